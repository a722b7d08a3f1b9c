"""SSH by paramiko: one process, a thread or two per node, every phase with a deadline and a name.

How each node is reached (ssh_config, keys, host keys, jump hosts) is told by routes.py, with its options; here also `limits`
(seconds per phase, over PHASE_S). What paramiko cannot do is left to the system's own ssh (openssh.py) for those nodes, and
`choices` says so with the reason.

Host keys are checked strictly and nothing is ever added to a known_hosts file. No set of paramiko's own time-outs
covers a channel request that is never answered, or a server that talks for ever before its banner; so each
connection has its deadline in a watchdog, which shuts the socket down under the library (notes/fanout-and-schedulers.md 1.4).
"""

from __future__ import annotations

import errno
import getpass
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import paramiko

from triage.errors import ConfigError
from triage.model import Node
from triage.transports import host_keys, openssh
from triage.transports.base import Contact, Session, Unreached, left, plain
from triage.transports.dial import Wire, await_banner, dial, resolve, shut
from triage.transports.jump import Bastions, open_channel
from triage.transports.known_hosts import Answer
from triage.transports.routes import Route, Routes
from triage.transports.ssh_keys import Identities
from triage.transports.ssh_session import SshSession, open_session
from triage.transports.ssh_tuning import exchange_keys
from triage.transports.watchdog import Watchdog

T = TypeVar("T")

# Seconds per phase, each cut by what the caller's deadline leaves (notes 1.4, "suggested defaults"). Banner to kex
# and auth are where a hung userland shows; a loaded login service needs more than a dead one deserves.
PHASE_S = {"resolve": 3.0, "tcp": 4.0, "banner": 6.0, "kex": 6.0, "auth": 8.0, "channel": 4.0, "exec": 4.0}
HANDSHAKES = 64  # at once: more only lets each wait longer, and waiting costs CPU (notes 1.3, trap 3)
SLOT_S = 2.5  # how long a slow server may hold one of them
MAX_KEYS = 5  # sshd's MaxAuthTries is 6


class SshTransport:
    """Opens sessions to nodes. Keys, known_hosts and the configuration are read once."""

    name = "ssh"

    def __init__(self, routes: Routes, limits: Mapping[str, float], user: str, binary: Callable[[], Any]) -> None:
        self._routes, self._user, self._make_binary = routes, user, binary
        self._limits = {**PHASE_S, **limits}
        self._dog = Watchdog()
        self._slots = threading.BoundedSemaphore(HANDSHAKES)
        self._bastions = Bastions(self._log_in_to_hop)
        self._lock = threading.Lock()
        self._binary: Any = None
        self.choices: dict[str, list[str]] = {}  # why the ssh binary was chosen -> for which nodes

    @property
    def problems(self) -> list[str]:
        """What could not be used of the known_hosts and key files."""
        hosts, identities = self._routes.indexes, self._routes.identities
        return [line for lines in [i.problems for i in hosts] + [i.problems for i in identities] for line in lines]

    @property
    def silent(self) -> list[str]:
        """Which of our own files, and whether the agent, did not answer."""
        hosts, identities = self._routes.indexes, self._routes.identities
        told = [self._routes.configs.silent, *(i.silent for i in hosts), *(i.silent for i in identities)]
        return list(dict.fromkeys(line for lines in told for line in lines))

    def open(self, node: Node, command: str, deadline: float, contact: Contact) -> Session:
        route = self._routes.of(node)
        if route.binary:
            session: Session = self._by_binary(node, route.binary).open(node, command, deadline, contact)
            return session
        transport, sock = self._connect(node, route, route.jumps, deadline, contact)
        step = _Step(node.name, contact, deadline, self._limits)
        guard = self._dog.at(deadline, lambda: shut(sock))
        try:
            channel = step.run("channel", lambda until: open_session(transport, until))
            step.run("exec", lambda until: self._exec(channel, sock, command, until))
        except BaseException:
            shut(sock)
            raise
        finally:
            guard.cancel()
        contact.enter("read")
        return SshSession(node.name, transport, sock, channel, self._dog)

    def close(self) -> None:
        self._bastions.close()
        self._dog.close()
        if self._binary is not None:
            self._binary.close()

    def look_up(self, nodes: tuple[Node, ...]) -> None:
        """Find the routes of these nodes now. ConfigError if one is to log in with a key and there is none at all."""
        identities: list[Identities] = []
        for node in nodes:
            try:
                route = self._routes.of(node)
            except Unreached:
                continue  # told node by node
            if route.binary:
                self._chosen(node, route.binary)
            else:
                identities.append(route.identities)
        if identities or not nodes:
            identities = identities or [self._routes.usual()]
            if not any(each.keys for each in identities):
                identities[0].must_work()

    def _chosen(self, node: Node, why: str) -> None:
        with self._lock:
            nodes = self.choices.setdefault(why, [])
            if node.name not in nodes:
                nodes.append(node.name)

    def _by_binary(self, node: Node, why: str) -> Any:
        self._chosen(node, why)
        with self._lock:
            if self._binary is None:
                self._binary = self._make_binary()
            return self._binary

    def _log_in_to_hop(
        self, node: Node, via: tuple[Node, ...], deadline: float, contact: Contact
    ) -> paramiko.Transport:
        return self._connect(node, self._routes.of_hop(node), via, deadline, contact)[0]

    def _connect(
        self, node: Node, route: Route, via: tuple[Node, ...], deadline: float, contact: Contact
    ) -> tuple[paramiko.Transport, Wire]:
        """A connection that is logged in. A server that shows a key of another type than is known is asked once more."""
        types = route.hosts.key_types(route.host, route.host_port, route.also)
        try:
            return self._once(node, route, via, deadline, contact, types)
        except _OtherType as exc:
            contact.enter("tcp")
            try:
                return self._once(node, route, via, deadline, contact, exc.types)
            except _OtherType as again:
                why = host_keys.unknown(node, route, contact, again.answer)
                raise Unreached(node.name, "kex", why) from again

    def _once(
        self,
        node: Node,
        route: Route,
        via: tuple[Node, ...],
        deadline: float,
        contact: Contact,
        types: list[str],
    ) -> tuple[paramiko.Transport, Wire]:
        step = _Step(node.name, contact, deadline, self._limits)
        sock = self._dial(step, node, route, via, deadline)
        guard = self._dog.at(deadline, lambda: shut(sock))
        slot = _Slot(self._slots)
        try:
            contact.banner = step.run("banner", lambda until: await_banner(sock, until))
            slot.take(self._dog, min(3.0, left(deadline) / 3))
            transport = step.run("kex", lambda until: exchange_keys(sock, types, until))
            self._check_host_key(node, route, contact, transport)
            user = route.user or self._user
            step.run("auth", lambda until: _log_in(transport, user, route.identities, until))
        except BaseException:
            shut(sock)
            raise
        finally:
            guard.cancel()
            slot.give_back()
        return transport, sock

    def _dial(self, step: _Step, node: Node, route: Route, via: tuple[Node, ...], deadline: float) -> Wire:
        if via:
            through = self._bastions.reach(node.name, via, deadline)
            return step.run("tcp", lambda until: open_channel(through, route.address, route.port, until))
        targets = step.run("resolve", lambda until: resolve(route.address, route.port, until))
        return step.run("tcp", lambda until: dial(targets, until))

    def _check_host_key(self, node: Node, route: Route, contact: Contact, transport: paramiko.Transport) -> None:
        key = transport.get_remote_server_key()
        answer = host_keys.judge(route, contact, key.get_name(), key.asbytes())
        if answer.judgement == "other_type":
            raise _OtherType(answer)
        if answer.judgement != "known":
            raise Unreached(node.name, "kex", host_keys.words(node, route, contact, key.get_name(), answer))

    def _exec(self, channel: paramiko.Channel, sock: Wire, command: str, until: float) -> None:
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


def _log_in(transport: paramiko.Transport, user: str, identities: Identities, until: float) -> None:
    refused = ""
    for key in identities.keys[:MAX_KEYS]:
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
    why = f": {plain(refused)}" if refused else ""
    if not identities.keys and identities.problems:
        why = f": {identities.problems[0]}"
    also = f"; {identities.hardware[0]} is for --transport openssh" if identities.hardware else ""
    raise PermissionError(f"{user} may not log in with {identities.words}{why}{also}")


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


def _words(exc: BaseException) -> str:
    """What went wrong in a few words; paramiko's EOFError and socket errors often have none."""
    if isinstance(exc, OSError) and exc.errno in (errno.EMFILE, errno.ENFILE):
        return "too many open files here; raise `ulimit -n`"
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror
    return plain(str(exc)) or ("the server closed the connection" if isinstance(exc, EOFError) else type(exc).__name__)


def make(options: Mapping[str, Any]) -> SshTransport:
    """Read keys, known_hosts and configuration once. ConfigError if there is no usable key for whoever needs one."""
    logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)  # phases and reasons are told by us, once
    limits = _limits(options)
    routes = Routes.of_options(options)
    transport = SshTransport(routes, limits, routes.user or _own_name(), lambda: openssh.make(options))
    transport.look_up(tuple(options.get("nodes") or ()))
    return transport


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
