"""One exec channel of an SSH connection, as a session; and connections that its node makes for us."""

from __future__ import annotations

import contextlib

import paramiko

from triage.transports.base import Unreached, left, plain
from triage.transports.dial import Wire, shut
from triage.transports.watchdog import Watchdog

WINDOW = 256 << 10  # bytes a node may send unread
MAX_STDERR = 64 << 10


class SshSession:
    """One exec channel; see base.Session."""

    def __init__(
        self, node: str, transport: paramiko.Transport, sock: Wire, channel: paramiko.Channel, dog: Watchdog
    ) -> None:
        self._node, self._transport, self._sock, self._channel, self._dog = node, transport, sock, channel, dog
        self._stderr = b""

    def send(self, data: bytes, deadline: float) -> None:
        # A full TCP buffer blocks inside the library, where no channel time-out reaches: hence the watchdog.
        guard = self._dog.at(deadline, self.close)
        try:
            self._channel.settimeout(left(deadline) or 0.001)
            self._channel.sendall(data)
        except (OSError, EOFError, paramiko.SSHException) as exc:
            status = "timeout" if guard.fired or isinstance(exc, TimeoutError) else "error"
            why = "does not take our request" if status == "timeout" else "the connection is gone"
            raise Unreached(self._node, "read", why, status) from exc
        finally:
            guard.cancel()

    def read(self, deadline: float) -> bytes:
        try:
            self._drain_stderr()
            self._channel.settimeout(left(deadline) or 0.001)
            data = self._channel.recv(65536)
        except TimeoutError as exc:
            raise Unreached(self._node, "read", "no answer in time", "timeout") from exc
        except (OSError, EOFError, paramiko.SSHException) as exc:
            raise Unreached(self._node, "read", f"the connection broke: {exc}") from exc
        return bytes(data)

    def _drain_stderr(self) -> None:
        """Unread standard error would fill the window and stall the command; past the cap it may do just that."""
        while len(self._stderr) < MAX_STDERR and self._channel.recv_stderr_ready():
            piece = self._channel.recv_stderr(MAX_STDERR - len(self._stderr))
            if not piece:
                return
            self._stderr += piece

    def complaint(self) -> str:
        with contextlib.suppress(Exception):
            self._drain_stderr()
        text = plain(self._stderr[:2000].decode("utf-8", "replace"))
        if not self._transport.is_active():
            return f"{text} the connection broke".strip()
        if self._channel.status_event.wait(0.2):
            text = f"{text} exit {self._channel.exit_status}".strip()
        return text

    def dial(self, host: str, port: int, deadline: float) -> _Tunnel:
        """A direct-tcpip channel (`ssh -W`): the node's sshd connects, nothing runs there. See base.Dialler."""
        guard = self._dog.at(deadline, self.close)
        try:
            channel = self._transport.open_channel(
                "direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=max(0.1, left(deadline) - 0.2)
            )
        except paramiko.ChannelException as exc:
            # RFC 4254 5.1: 2 is "connect failed"; all else (1: prohibited, 3: unknown type) is the server's own will.
            if exc.code == 2:
                raise ConnectionRefusedError(plain(str(exc))) from exc
            raise PermissionError(f"{self._node} forwards no connections") from exc
        except (EOFError, paramiko.SSHException) as exc:
            raise TimeoutError(plain(str(exc)) or "no channel") from exc
        finally:
            guard.cancel()
        return _Tunnel(channel)

    def close(self) -> None:
        # Not transport.close(): it joins a thread. A shut socket wakes that thread, and with it every waiter.
        shut(self._sock)


class _Tunnel:
    """A channel as base.Line: whatever the library raises is an OSError."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def settimeout(self, seconds: float) -> None:
        self._channel.settimeout(seconds)

    def sendall(self, data: bytes) -> None:
        try:
            self._channel.sendall(data)
        except (EOFError, paramiko.SSHException) as exc:
            raise ConnectionError(str(exc)) from exc

    def recv(self, most: int) -> bytes:
        try:
            return bytes(self._channel.recv(most))
        except (EOFError, paramiko.SSHException) as exc:
            raise ConnectionError(str(exc)) from exc

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._channel.close()


def open_session(transport: paramiko.Transport, until: float) -> paramiko.Channel:
    try:
        return transport.open_session(window_size=WINDOW, timeout=left(until) or 0.001)
    except paramiko.SSHException as exc:
        if "Timeout" in str(exc):
            raise TimeoutError("no channel") from exc
        raise
