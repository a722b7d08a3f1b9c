"""From a name to a socket whose server has said its SSH banner: phases resolve, tcp and banner, each with a deadline.

Raises TimeoutError when the deadline passes, OSError or EOFError for what ends sooner.
"""

from __future__ import annotations

import contextlib
import ipaddress
import queue
import socket
import threading
import time
from typing import Any, Protocol

from triage.transports.base import left, plain


class Wire(Protocol):
    """What an SSH connection runs over: a socket, or a channel of a jump host with a socket's manners."""

    def settimeout(self, seconds: float | None) -> None: ...
    def recv(self, most: int, flags: int = 0) -> bytes: ...
    def send(self, data: bytes) -> int: ...
    def shutdown(self, how: int) -> None: ...
    def close(self) -> None: ...


MAX_BANNER = 8 << 10  # bytes before and with the SSH- line


def resolve(address: str, port: int, until: float) -> list[tuple[int, Any]]:
    """(family, socket address) of a name. getaddrinfo knows no deadline: a thread that hangs in it is left behind."""
    with contextlib.suppress(ValueError):
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
        return [(family, (address, port))]
    answers: queue.SimpleQueue[list[tuple[int, Any]] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
            answers.put([(family, where) for family, _, _, _, where in found])
        except OSError as exc:
            answers.put(exc)
        except UnicodeError:
            answers.put(OSError("no host name"))

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=left(until) or 0.001)
    except queue.Empty:
        raise TimeoutError("the name is not resolved") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def dial(targets: list[tuple[int, Any]], until: float) -> socket.socket:
    """Connect to the first address that takes us; each gets its share of the time."""
    error: OSError = OSError("no address")
    for position, (family, where) in enumerate(targets):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.settimeout(max(0.05, left(until) / (len(targets) - position)))
            sock.connect(where)
            return sock
        except OSError as exc:
            sock.close()
            error = TimeoutError("no TCP connection") if isinstance(exc, TimeoutError) else exc
    raise error


def await_banner(sock: Wire, until: float) -> str:
    """Wait for the server's `SSH-2.0-...` line and leave it unread for paramiko; lines before it are taken away.

    Done here, and not in paramiko's thread, so that a silent server costs neither a handshake's place nor a thread,
    and one that talks for ever costs no memory.
    """
    taken = 0
    while True:
        sock.settimeout(left(until) or 0.001)
        try:
            seen = sock.recv(MAX_BANNER, socket.MSG_PEEK)
        except TimeoutError:
            raise TimeoutError("no SSH banner") from None
        if not seen:
            raise EOFError("closed before its banner")
        line, newline, _ = seen.partition(b"\n")
        if newline and line.startswith(b"SSH-"):
            return plain(line.decode("utf-8", "replace"))
        if not newline and len(seen) < MAX_BANNER and left(until):
            time.sleep(min(0.02, left(until)))  # the rest of the line is under way
            continue
        taken += len(sock.recv(len(line) + 1))
        if taken > MAX_BANNER:
            raise ConnectionError(f"no SSH banner in its first {MAX_BANNER} bytes")
        if not left(until):
            raise TimeoutError("no SSH banner")


def shut(sock: Wire) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
