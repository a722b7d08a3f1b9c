"""An SSH server for one fake node, with paramiko's server side: public keys, exec requests as real processes.

No shell, no terminal, no forwarding. A command runs through `/bin/sh -c` in a session of its own with an environment
built from a short list. The client's EOF closes the command's stdin; when the transport dies its stdin closes too and
after GRACE_S what is left of it is killed, as a real server's does when its client is gone. A cut cable is neither: then
nobody notices anything (`vanish`).
"""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import IO, Any

import paramiko
from paramiko.common import (
    AUTH_FAILED,
    AUTH_SUCCESSFUL,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_SUCCEEDED,
)

from triage.drill.door import Door

GRACE_S = 2.0
PIECE = 1 << 15


class Gate(paramiko.ServerInterface):
    """Who may come in, and what they may ask for."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        known = username == self.server.user and key == self.server.authorized
        return AUTH_SUCCESSFUL if known else AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        if kind == "session":
            return OPEN_SUCCEEDED
        return OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=self.server.execute, args=(channel, command), daemon=True).start()
        return True


class Line:
    """A client's connection, as paramiko uses a socket. Once `cut` is set nothing comes or goes and nobody notices."""

    def __init__(self, connection: socket.socket, cut: threading.Event) -> None:
        self.connection, self.cut = connection, cut
        self.limit_s: float | None = None

    @property
    def _closed(self) -> bool:  # paramiko asks for this name
        return self.connection.fileno() < 0

    def settimeout(self, limit_s: float | None) -> None:
        self.limit_s = limit_s
        self.connection.settimeout(limit_s)

    def getpeername(self) -> Any:
        return self.connection.getpeername()

    def recv(self, count: int) -> bytes:
        if not self.cut.is_set():
            try:
                piece = self.connection.recv(count)
            except OSError:
                if not self.cut.is_set():
                    raise
            else:
                if not self.cut.is_set():
                    return piece
        time.sleep(self.limit_s or GRACE_S)
        raise TimeoutError

    def send(self, data: bytes) -> int:
        return len(data) if self.cut.is_set() else self.connection.send(data)

    def close(self) -> None:
        if not self.cut.is_set():
            self.connection.close()


class Server:
    """Accepts on a bound socket until the process ends. `environment` is what every command gets."""

    def __init__(
        self, listener: socket.socket, host_key: str, user: str, authorized: str, environment: Mapping[str, str]
    ) -> None:
        self.door = Door(listener)
        self.lines_cut = threading.Event()
        self.host_key = paramiko.Ed25519Key(file_obj=io.StringIO(host_key))
        self.user = user
        self.authorized = paramiko.PKey.from_type_string(*_public(authorized))
        self.environment = dict(environment)
        self.running: set[int] = set()
        self.lock = threading.Lock()
        self.closing = False

    def serve(self) -> None:
        """Accept connections, one paramiko transport (thread) each."""
        self.door.serve(self.welcome)

    def welcome(self, connection: socket.socket) -> None:
        line = Line(connection, self.lines_cut)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport = paramiko.Transport(line)  # type: ignore[arg-type]
            transport.local_version = "SSH-2.0-OpenSSH_9.2p1"
            transport.add_server_key(self.host_key)
            transport.start_server(server=Gate(self))
        except (paramiko.SSHException, EOFError, OSError):
            line.close()  # a port scan, a client that changed its mind

    def cut(self) -> None:
        """What is connected stays so and is silent from now on."""
        self.lines_cut.set()

    def vanish(self) -> None:
        """The network to this server is cut: connections are silent, new ones are not answered. Commands run on."""
        self.cut()
        self.door.shut()

    def die(self) -> None:
        """The same, of a machine that is gone."""
        self.vanish()

    def execute(self, channel: paramiko.Channel, command: bytes) -> None:
        """Run one command and tell its exit status; signals show as 128 + number, as from a shell."""
        transport = channel.get_transport()
        with self.lock:
            if self.closing:
                return
            child = subprocess.Popen(
                [b"/bin/sh", b"-c", command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.environment,
                cwd="/",
                start_new_session=True,
                bufsize=0,
            )
            self.running.add(child.pid)
        assert child.stdin and child.stdout and child.stderr
        threading.Thread(target=pump_in, args=(channel, child.stdin), daemon=True).start()
        pumps = [
            threading.Thread(target=pump_out, args=(child.stdout, channel.sendall), daemon=True),
            threading.Thread(target=pump_out, args=(child.stderr, channel.sendall_stderr), daemon=True),
        ]
        ended = threading.Event()
        threading.Thread(target=wait_for, args=(child, ended), daemon=True).start()
        for pump in pumps:
            pump.start()
        while not ended.wait(0.5):
            if channel.closed or not transport.is_active():
                if not ended.wait(GRACE_S):
                    kill_session(child.pid)
                break
        ended.wait()
        for pump in pumps:
            # What a command left behind may hold its output open; the channel then stays, as with a real server.
            while pump.is_alive() and not channel.closed and transport.is_active():
                pump.join(0.5)
        if channel.closed or not transport.is_active():
            kill_session(child.pid)
        with self.lock:
            self.running.discard(child.pid)
        try:
            code = child.returncode
            channel.send_exit_status(code if code >= 0 else 128 - code)
            channel.close()
        except (paramiko.SSHException, OSError, EOFError):
            pass

    def end(self) -> None:
        """Kill every command that still runs, and start no more."""
        with self.lock:
            self.closing = True
            for pid in self.running:
                kill_session(pid)


def pump_in(channel: paramiko.Channel, sink: IO[bytes]) -> None:
    """Client to command. b"" is the client's EOF or a dead channel: both close the command's stdin."""
    try:
        while piece := channel.recv(PIECE):
            view = memoryview(piece)
            while view:
                view = view[sink.write(view) :]
    except OSError:
        pass
    finally:
        try:
            sink.close()
        except OSError:
            pass


def pump_out(source: IO[bytes], send: Any) -> None:
    """Command to client, until the command closes its end. A client that is gone is read for no longer."""
    try:
        while piece := os.read(source.fileno(), PIECE):
            send(piece)
    except (OSError, EOFError):
        pass
    finally:
        source.close()


def wait_for(child: subprocess.Popen[bytes], ended: threading.Event) -> None:
    child.wait()
    ended.set()


def kill_session(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except OSError:
        pass


def _public(line: str) -> tuple[str, bytes]:
    """(type, blob) of a public key line."""
    import base64

    kind, blob = line.split()[:2]
    return kind, base64.b64decode(blob)
