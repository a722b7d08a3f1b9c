"""SSH by paramiko: one process, a thread or two per node, every phase with a deadline and a name.

Options (the inventory's `ssh:` map): `key` (a path or list of paths; without it the agent and ~/.ssh/id_*),
`known_hosts` (a path or list, which may be empty; without it ~/.ssh/known_hosts and /etc/ssh/ssh_known_hosts), `user`, `agent: false`,
`limits` (seconds per phase, over PHASE_S).
~/.ssh/config is not read: paramiko would misread parts of it (notes/fanout-and-schedulers.md 2).

Host keys are checked strictly and nothing is ever added to a known_hosts file. No set of paramiko's own time-outs
covers a channel request that is never answered, or a server that talks for ever before its banner; so each
connection has its deadline in a watchdog, which shuts the socket down under the library (notes 1.4).
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import logging
import os
import shlex
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import paramiko

from triage import ownfiles
from triage.errors import ConfigError
from triage.model import Node
from triage.transports.base import Contact, Unreached, left, plain
from triage.transports.dial import await_banner, dial, resolve, shut
from triage.transports.known_hosts import Answer, KnownHosts, fingerprint, with_port
from triage.transports.ssh_keys import Identities
from triage.transports.watchdog import Watchdog

T = TypeVar("T")

# Seconds per phase, each cut by what the caller's deadline leaves (notes 1.4, "suggested defaults"). Banner to kex
# and auth are where a hung userland shows; a loaded login service needs more than a dead one deserves.
PHASE_S = {"resolve": 3.0, "tcp": 4.0, "banner": 6.0, "kex": 6.0, "auth": 8.0, "channel": 4.0, "exec": 4.0}
HANDSHAKES = 64  # at once: more only lets each wait longer, and waiting costs CPU (notes 1.3, trap 3)
SLOT_S = 2.5  # how long a slow server may hold one of them
WINDOW = 256 << 10  # bytes a node may send unread
MAX_STDERR = 64 << 10
MAX_KEYS = 5  # sshd's MaxAuthTries is 6

_KEX = (
    "curve25519-sha256@libssh.org",
    "curve25519-sha256",
    "ecdh-sha2-nistp256",
    "ecdh-sha2-nistp384",
    "ecdh-sha2-nistp521",
    "mlkem768x25519-sha256",
)
_HOST_KEYS = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}


_LIBSSH = "curve25519-sha256@libssh.org"
_KEX_CLASSES: dict[str, Any] = dict(getattr(paramiko.Transport, "_kex_info", {}))
if _LIBSSH in _KEX_CLASSES:
    # RFC 8731: the plain name means the same as libssh's, which is the only one that paramiko lists.
    _KEX_CLASSES["curve25519-sha256"] = _KEX_CLASSES[_LIBSSH]


class _Transport(paramiko.Transport):
    """paramiko's transport, tuned: cheap algorithms first, pure-Python Diffie-Hellman never (26 to 82 ms each)."""

    if _KEX_CLASSES:
        _kex_info = _KEX_CLASSES
    # Each transport wakes this often only to see whether it was closed; 0.1 s costs 0.28 core per 1,000 sessions.
    if hasattr(paramiko.Transport, "_active_check_timeout"):
        _active_check_timeout = 1.0


class SshSession:
    """One exec channel; see base.Session."""

    def __init__(
        self, node: str, transport: paramiko.Transport, sock: socket.socket, channel: paramiko.Channel, dog: Watchdog
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


class SshTransport:
    """Opens sessions to nodes. Keys and known_hosts are read once, in make()."""

    name = "ssh"

    def __init__(self, hosts: KnownHosts, identities: Identities, user: str, limits: Mapping[str, float]) -> None:
        self._hosts, self._identities, self._user = hosts, identities, user
        self._limits = {**PHASE_S, **limits}
        self._dog = Watchdog()
        self._slots = threading.BoundedSemaphore(HANDSHAKES)

    @property
    def problems(self) -> list[str]:
        """What could not be used of the known_hosts and key files."""
        return [*self._hosts.problems, *self._identities.problems]

    @property
    def silent(self) -> list[str]:
        """Which of our own files, and whether the agent, did not answer."""
        return [*self._hosts.silent, *self._identities.silent]

    def open(self, node: Node, command: str, deadline: float, contact: Contact) -> SshSession:
        address = node.address or node.name
        types = self._hosts.key_types(node.name, node.port, address)
        try:
            return self._open(node, address, command, deadline, contact, types)
        except _OtherType as exc:
            contact.enter("tcp")
            try:
                return self._open(node, address, command, deadline, contact, exc.types)
            except _OtherType as again:
                raise Unreached(node.name, "kex", _unknown(node, address, contact, again.answer)) from again

    def close(self) -> None:
        self._dog.close()

    def _open(
        self, node: Node, address: str, command: str, deadline: float, contact: Contact, types: list[str]
    ) -> SshSession:
        step = _Step(node.name, contact, deadline, self._limits)
        targets = step.run("resolve", lambda until: resolve(address, node.port, until))
        sock = step.run("tcp", lambda until: dial(targets, until))
        guard = self._dog.at(deadline, lambda: shut(sock))
        slot = _Slot(self._slots)
        try:
            contact.banner = step.run("banner", lambda until: await_banner(sock, until))
            slot.take(self._dog, min(3.0, left(deadline) / 3))
            transport = step.run("kex", lambda until: _exchange_keys(sock, types, until))
            self._check_host_key(node, address, contact, transport)
            step.run("auth", lambda until: self._log_in(transport, node.user or self._user, until))
            slot.give_back()
            channel = step.run("channel", lambda until: _open_channel(transport, until))
            step.run("exec", lambda until: self._exec(channel, sock, command, until))
        except BaseException:
            shut(sock)
            raise
        finally:
            guard.cancel()
            slot.give_back()
        contact.enter("read")
        return SshSession(node.name, transport, sock, channel, self._dog)

    def _check_host_key(self, node: Node, address: str, contact: Contact, transport: paramiko.Transport) -> None:
        key = transport.get_remote_server_key()
        blob, kind = key.asbytes(), key.get_name()
        contact.fingerprint = fingerprint(blob)
        answer = self._hosts.check(node.name, node.port, address, kind, blob)
        if answer.judgement == "known":
            return
        if answer.judgement == "other_type":
            raise _OtherType(answer)
        if answer.judgement == "unknown":
            raise Unreached(node.name, "kex", _unknown(node, address, contact, answer))
        raise Unreached(node.name, "kex", _alarm(node, address, contact, kind, answer))

    def _log_in(self, transport: paramiko.Transport, user: str, until: float) -> None:
        refused = ""
        for key in self._identities.keys[:MAX_KEYS]:
            done = threading.Event()
            transport.auth_publickey(user, key, event=done)
            if not done.wait(left(until)):
                raise TimeoutError("no end of the login")
            if transport.is_authenticated():
                return
            error = transport.get_exception()
            if not transport.is_active():
                raise error or EOFError()
            refused = str(error) if error and not isinstance(error, paramiko.AuthenticationException) else refused
        raise PermissionError(f"{user} may not log in with {self._identities.words}{': ' + refused if refused else ''}")

    def _exec(self, channel: paramiko.Channel, sock: socket.socket, command: str, until: float) -> None:
        # Channel.exec_command waits on an event without any time-out.
        guard = self._dog.at(until, lambda: shut(sock))
        try:
            channel.exec_command(command)
        except (OSError, EOFError, paramiko.SSHException) as exc:
            if guard.fired:
                raise TimeoutError("the command is not started") from exc
            raise
        finally:
            guard.cancel()


class _OtherType(Exception):
    """The server showed a key of a type that known_hosts does not hold for it, but it holds others: ask for those."""

    def __init__(self, answer: Answer) -> None:
        super().__init__("other key type")
        self.answer = answer
        self.types = list(dict.fromkeys(e.key_type for e in answer.entries))


class _Step:
    """Runs one phase with its limit and turns whatever goes wrong into an Unreached that names the phase."""

    def __init__(self, node: str, contact: Contact, deadline: float, limits: Mapping[str, float]) -> None:
        self.node, self.contact, self._deadline, self._limits = node, contact, deadline, limits

    def run(self, phase: str, action: Callable[[float], T]) -> T:
        if self.contact.phase != phase:
            self.contact.enter(phase)
        limit = min(self._limits[phase], left(self._deadline))
        until = self._deadline - left(self._deadline) + limit
        try:
            return action(until)
        except Unreached:
            raise
        except TimeoutError as exc:
            raise Unreached(self.node, phase, f"{_words(exc)} within {limit:.1f} s", "timeout") from exc
        except (OSError, EOFError, paramiko.SSHException) as exc:
            # The watchdog closes the socket at the deadline: whatever error that caused, it was a time-out.
            late = not left(until)
            raise Unreached(self.node, phase, _words(exc), "timeout" if late else "error") from exc


class _Slot:
    """One of the places for handshakes. A slow server loses its place and may go on without one."""

    def __init__(self, slots: threading.BoundedSemaphore) -> None:
        self._slots, self._lock, self._held = slots, threading.Lock(), False

    def take(self, dog: Watchdog, patience_s: float) -> None:
        """Wait for a place, but not for long: going on without one costs CPU, waiting costs the node's answer."""
        self._held = self._slots.acquire(timeout=patience_s)
        if self._held:
            dog.after(SLOT_S, self.give_back)

    def give_back(self) -> None:
        with self._lock:
            if self._held:
                self._held = False
                self._slots.release()


def _exchange_keys(sock: socket.socket, types: list[str], until: float) -> paramiko.Transport:
    """Start paramiko on a socket whose server has spoken."""
    done = threading.Event()
    transport = _Transport(sock)
    _tune(transport, types)
    transport.start_client(event=done)
    if not done.wait(left(until)):
        raise TimeoutError("no end of the key exchange")
    if not transport.is_active():
        raise transport.get_exception() or EOFError()
    return transport


def _tune(transport: paramiko.Transport, types: list[str]) -> None:
    """Order the algorithms by cost, and the host-key types by what known_hosts can check."""
    security = transport.get_security_options()
    security.kex = [k for k in _KEX if k in getattr(transport, "_kex_info", _KEX)]
    security.ciphers = sorted(security.ciphers, key=lambda c: not c.startswith("aes128-gcm"))
    wanted = [a for t in types for a in _HOST_KEYS.get(t, ())]
    security.key_types = [*wanted, *(k for k in security.key_types if k not in wanted)]
    if hasattr(transport.packetizer, "start_handshake"):
        # It starts a timer thread per connection; our watchdog already bounds the handshake.
        transport.packetizer.start_handshake = lambda timeout: None  # type: ignore[method-assign]


def _open_channel(transport: paramiko.Transport, until: float) -> paramiko.Channel:
    try:
        return transport.open_session(window_size=WINDOW, timeout=left(until) or 0.001)
    except paramiko.SSHException as exc:
        if "Timeout" in str(exc):
            raise TimeoutError("no channel") from exc
        raise


def _words(exc: BaseException) -> str:
    """What went wrong in a few words; paramiko's EOFError and socket errors often have none."""
    if isinstance(exc, OSError) and exc.errno in (errno.EMFILE, errno.ENFILE):
        return "too many open files here; raise `ulimit -n`"
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror
    return plain(str(exc)) or ("the server closed the connection" if isinstance(exc, EOFError) else type(exc).__name__)


def _unknown(node: Node, address: str, contact: Contact, answer: Answer) -> str:
    scan = f"ssh-keyscan {'' if node.port == 22 else f'-p {node.port} '}{shlex.quote(address)}"
    also = ""
    if answer.authority:
        also = f" ({answer.authority.place} trusts a certificate authority for it, which this transport cannot use)"
    return f"host key is not known ({contact.fingerprint}){also}. Check it, then: {scan} >> ~/.ssh/known_hosts"


def _alarm(node: Node, address: str, contact: Contact, kind: str, answer: Answer) -> str:
    entry = answer.entries[0]
    if answer.judgement == "revoked":
        return f"HOST KEY IS REVOKED by {entry.place} ({contact.fingerprint}). Not connected"
    path, _, _ = entry.place.rpartition(":")
    name = with_port(address if entry.belongs_to(with_port(address, node.port)) else node.name, node.port)
    return (
        f"HOST KEY HAS CHANGED: it offers {kind} {contact.fingerprint}, but {entry.place} says "
        f"{fingerprint(entry.key)}. The node was reinstalled, or somebody stands in between. Not connected. "
        f"Once you know why: ssh-keygen -R {shlex.quote(name)} -f {shlex.quote(path)}"
    )


def make(options: Mapping[str, Any]) -> SshTransport:
    """Read keys and known_hosts once. ConfigError if there is no usable key."""
    logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)  # phases and reasons are told by us, once
    usual = [os.path.expanduser("~/.ssh/known_hosts"), "/etc/ssh/ssh_known_hosts"]
    named = "known_hosts" in options  # also by none: those that there are do not answer
    files = _paths(options, "known_hosts") if named else [path for path in usual if ownfiles.exists(path)]
    identities = Identities.load(_paths(options, "key"), agent=options.get("agent", True) is not False)
    user = str(options.get("user") or "") or _own_name()
    return SshTransport(KnownHosts.load(files), identities, user, _limits(options))


def _paths(options: Mapping[str, Any], name: str) -> list[str]:
    value = options.get(name) or []
    paths = [value] if isinstance(value, (str, os.PathLike)) else value
    if not isinstance(paths, (list, tuple)) or not all(isinstance(p, (str, os.PathLike)) for p in paths):
        raise ConfigError(f"ssh: {name} must be a path or a list of paths")
    return [os.path.expanduser(os.fspath(p)) for p in paths]


def _limits(options: Mapping[str, Any]) -> dict[str, float]:
    limits = options.get("limits") or {}
    if not isinstance(limits, Mapping):
        raise ConfigError(f"ssh: limits must be a map of {', '.join(PHASE_S)}")
    for phase, seconds in limits.items():
        if phase not in PHASE_S or isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds <= 0:
            raise ConfigError(f"ssh: limits: {phase}: not a phase ({', '.join(PHASE_S)}) with seconds above 0")
    return {str(phase): float(seconds) for phase, seconds in limits.items()}


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError) as exc:
        raise ConfigError("no user name for SSH: set `user` under `ssh:` in the inventory") from exc
