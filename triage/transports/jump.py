"""Through jump hosts: one connection to each, and in it a channel (direct-tcpip) per node. No process per node.

    gpu001 <- jump2 <- jump1 <- here           ProxyJump jump1,jump2

A process per node (`ssh -W`) would meet the MaxStartups of the jump host's sshd, 10 by default, which drops connections at
random beyond; channels of one connection are not counted (notes/fanout-and-schedulers.md 2).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

import paramiko

from triage.model import Node
from triage.transports.base import Contact, Unreached, left

# Log in to a jump host, through others or none.
Login = Callable[[Node, tuple[Node, ...], float, Contact], paramiko.Transport]


class ChannelSocket:
    """A channel with the manners of a socket that dial.py and paramiko need: a look ahead, and an end from any thread."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self._ahead = b""

    def settimeout(self, seconds: float | None) -> None:
        self._channel.settimeout(seconds)

    def recv(self, most: int, flags: int = 0) -> bytes:
        if flags & socket.MSG_PEEK:
            if not self._ahead or (self._channel.recv_ready() and len(self._ahead) < most):
                self._ahead += bytes(self._channel.recv(most))
            return self._ahead[:most]
        if self._ahead:
            piece, self._ahead = self._ahead[:most], self._ahead[most:]
            return piece
        return bytes(self._channel.recv(most))

    def send(self, data: bytes) -> int:
        return self._channel.send(data)

    def shutdown(self, how: int = socket.SHUT_RDWR) -> None:
        # Telling the jump host may block where it takes nothing more: our own readers are woken first.
        self._channel.in_buffer.close()
        threading.Thread(target=self.close, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._channel.close()

    def getpeername(self) -> Any:
        return self._channel.getpeername()


class _Bastion:
    """One jump host: connected to by whoever needs it first; the others wait for the outcome, each until its deadline."""

    def __init__(self) -> None:
        self.settled = threading.Event()
        self.transport: paramiko.Transport | None = None
        self.why = ""


class Bastions:
    """The jump hosts of a run, each reached once. `login` connects and logs in to one, through those before it."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._lock = threading.Lock()
        self._known: dict[tuple[object, ...], _Bastion] = {}

    def reach(self, node: str, hops: tuple[Node, ...], deadline: float) -> paramiko.Transport:
        """The connection to the last of these hops. Unreached (of `node`, phase resolve: it was not even asked) if none."""
        key = tuple((hop.name, hop.port, hop.user) for hop in hops)
        with self._lock:
            first = key not in self._known
            bastion = self._known.setdefault(key, _Bastion())
        if first:
            # In a thread of its own: the others' patience must not hang on this node's deadline.
            threading.Thread(target=self._connect, args=(bastion, hops, deadline), daemon=True).start()
        if not bastion.settled.wait(left(deadline)):
            raise Unreached(node, "resolve", f"jump host {hops[-1].name}: no login in time", "timeout")
        if bastion.transport is None or not bastion.transport.is_active():
            raise Unreached(node, "resolve", f"jump host {bastion.why or f'{hops[-1].name}: the connection broke'}")
        return bastion.transport

    def _connect(self, bastion: _Bastion, hops: tuple[Node, ...], deadline: float) -> None:
        name = hops[-1].name
        contact = Contact()
        try:
            bastion.transport = self._login(hops[-1], hops[:-1], deadline, contact)
        except Unreached as exc:
            bastion.why = f"{name}: {exc.why} (its phase {exc.phase})"
        except Exception as exc:  # a thread that dies here would let all nodes wait
            bastion.why = f"{name}: {type(exc).__name__}: {exc}"
        finally:
            bastion.settled.set()

    def close(self) -> None:
        """Give all up without waiting for any."""
        with self._lock:
            known = list(self._known.values())
        for bastion in known:
            if bastion.transport is not None:
                with contextlib.suppress(Exception):
                    bastion.transport.sock.shutdown(socket.SHUT_RDWR)


def open_channel(through: paramiko.Transport, address: str, port: int, until: float) -> ChannelSocket:
    """Let a jump host connect to a node. Raises OSError or TimeoutError in the words of a connection."""
    try:
        channel = through.open_channel(
            "direct-tcpip", (address, port), ("127.0.0.1", 0), window_size=256 << 10, timeout=left(until) or 0.001
        )
    except paramiko.ChannelException as exc:
        # RFC 4254 5.1: 2 is "connect failed"; all else is the jump host's own will.
        if exc.code == 2:
            raise ConnectionRefusedError(0, f"the jump host cannot connect to {address} port {port}") from exc
        raise PermissionError(0, "the jump host forwards no connections (AllowTcpForwarding)") from exc
    except paramiko.SSHException as exc:
        if "Timeout" in str(exc):
            raise TimeoutError("the jump host does not connect to it") from exc
        raise ConnectionError(f"the jump host's connection broke: {exc}") from exc
    return ChannelSocket(channel)
