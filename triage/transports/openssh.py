"""SSH by the system's own `ssh`, one process per node: for what paramiko cannot do (notes/fanout-and-schedulers.md 2).

Kerberos, security keys (FIDO), PKCS#11, ProxyCommand, host certificates (@cert-authority), hostbased login: whatever works on
the command line works here, at 15 ms of CPU a node and a process each. `--transport ssh` chooses it by itself for nodes whose
configuration needs it; `--transport openssh` takes it for all.

A host key that is not known is refused, and nothing is added to any known_hosts: `StrictHostKeyChecking=yes` stands on the
command line and, for the jump hosts, whose ssh does not get our command line, at the head of a configuration file of our own
that includes the user's (the first value wins; without it, a `StrictHostKeyChecking no` there would let a jump host's unseen
key in). What ssh says while it connects (`LogLevel=DEBUG2`) tells the phases:

    debug1: Connecting to gpu001 [10.0.0.1] port 22.         debug1: SSH2_MSG_NEWKEYS received
    debug1: Connection established.                          Authenticated to gpu001 ([10.0.0.1]:22) using "publickey".
    debug1: Remote protocol version 2.0, remote software …   debug1: Sending command: …
    debug1: Server host key: ssh-ed25519 SHA256:…            debug2: exec request accepted on channel 0

What can fool it: a command of the node that prints such lines on its standard error, after its login only, about itself only.
A `ProxyCommand` of the user's that calls ssh is the user's own call: what it accepts is up to the user's configuration.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import threading
from collections.abc import Mapping
from typing import Any

from triage import ownfiles
from triage.errors import ConfigError
from triage.model import Node
from triage.transports.base import PHASES, Contact, Unreached, left, plain
from triage.transports.child import ChildSession, start
from triage.transports.routes import paths
from triage.transports.ssh_config import Configs

HANDSHAKES = 32  # processes that log in at once: each takes a core for its key exchange
# Through a jump host each node is one more connection there, and its sshd drops them at random beyond 10 (MaxStartups).
THROUGH_A_JUMP = 8
USUAL_CONFIGS = ("~/.ssh/config", "/etc/ssh/ssh_config")
STRICT = {"StrictHostKeyChecking": "yes", "UpdateHostKeys": "no", "BatchMode": "yes", "PermitLocalCommand": "no"}
OPTIONS = {
    **STRICT,
    "ConnectionAttempts": "1",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "2",
    "ClearAllForwardings": "yes",
    "ControlMaster": "no",
    "ControlPath": "none",
    "RemoteCommand": "none",
    "Tunnel": "no",
    "ForwardAgent": "no",
    "RequestTTY": "no",
    "EscapeChar": "none",
    "LogLevel": "DEBUG2",
    # The default of OpenSSH 9 costs 80 ms of CPU a connection, this one 15 (notes 1.1).
    "KexAlgorithms": "^curve25519-sha256,curve25519-sha256@libssh.org",
}
# What ssh prints -> the phase that begins there.
STEPS = (
    (re.compile(r"debug1: Connecting to .* port \d+\.$"), "tcp"),
    (re.compile(r"debug1: Executing proxy command: "), "tcp"),
    (re.compile(r"debug1: Connection established\.$"), "banner"),
    (
        re.compile(r"debug1: Remote protocol version (?P<protocol>[\d.]+), remote software version (?P<software>.*)"),
        "kex",
    ),
    (re.compile(r"debug1: Server host key: \S+ (?P<fingerprint>SHA256:\S+)"), "kex"),
    (re.compile(r"debug1: SSH2_MSG_NEWKEYS received$"), "auth"),
    (re.compile(r"(?:debug1: )?Authenticated to .* using |debug1: Authentication succeeded "), "channel"),
    (re.compile(r"debug1: Sending command: "), "exec"),
    (re.compile(r"debug2: (?:\w+: )?exec request accepted on channel "), "read"),
)
NOISE = re.compile(
    r"debug[123]: |Transferred: |Bytes per second: |Authenticated to |OpenSSH_|@{20}|Pseudo-terminal will not "
)
NOT_KNOWN = re.compile(r"No (?P<kind>\S+) host key is known for (?P<name>\S+) and you have requested strict checking")
TIME_OUT = re.compile(r"timed out|Timeout, server .* not responding")


class _Watch:
    """Follows what ssh says: the phase it is in, and its last words."""

    def __init__(self, contact: Contact) -> None:
        self.contact = contact
        self.words: list[str] = []
        self.authority = ""

    def hear(self, line: str) -> bool:
        """Takes ssh's own lines; once the command runs, all others are the command's."""
        for pattern, phase in STEPS:
            found = pattern.match(line)
            if found:
                self._enter(phase, found.groupdict())
                return True
        if NOISE.match(line) or not line.strip():
            return True
        if self.contact.phase == "read":
            return False
        if len(self.words) < 30:
            self.words.append(plain(line))
        return True

    def _enter(self, phase: str, told: Mapping[str, str | None]) -> None:
        # Only onwards: what a command prints later must not turn the clock back, nor change the key that was checked.
        if self.contact.phase not in PHASES[:5]:
            told = {}
        if PHASES.index(phase) > PHASES.index(self.contact.phase):
            self.contact.enter(phase)
        if told.get("software"):
            self.contact.banner = plain(f"SSH-{told['protocol']}-{told['software']}")
        if told.get("fingerprint"):
            self.contact.fingerprint = str(told["fingerprint"])

    def why(self, node: Node) -> tuple[str, str]:
        """(status, reason) once ssh has given up."""
        text = " ".join(self.words)
        status = "timeout" if TIME_OUT.search(text) else "error"
        changed = "IDENTIFICATION HAS CHANGED" in text
        unknown = NOT_KNOWN.search(text)
        seen = f" ({self.contact.fingerprint})" if self.contact.fingerprint else ""
        if changed:
            where = re.search(r"Offending \S+ key in (\S+)", text)
            return status, (
                f"HOST KEY HAS CHANGED{seen}: not what {where.group(1) if where else 'known_hosts'} says. The node was "
                f"reinstalled, or somebody stands in between. Not connected"
            )
        if "REVOKED" in text:
            return status, f"HOST KEY IS REVOKED{seen}. Not connected"
        if unknown or "Host key verification failed" in text:
            return (
                status,
                f"host key is not known{seen}. Check it, then let ssh add it: ssh {shlex.quote(node.name)} true",
            )
        return status, text or "ssh ended without a word"


class OpenSshTransport:
    """Starts the system's ssh for each node."""

    name = "openssh"

    def __init__(self, binary: str, arguments: list[str], user: str, configs: Configs, strict: _Strict) -> None:
        self._binary, self._arguments, self._user = binary, arguments, user
        self._configs, self._strict = configs, strict
        self._slots = threading.BoundedSemaphore(HANDSHAKES)
        self._jump_slots = threading.BoundedSemaphore(THROUGH_A_JUMP)

    @property
    def silent(self) -> list[str]:
        """Which of our own files did not answer."""
        return self._configs.silent

    def open(self, node: Node, command: str, deadline: float, contact: Contact) -> ChildSession:
        said = self._configs.of(node.name, node.user or self._user)
        if said.refused:
            raise Unreached(node.name, "resolve", said.refused)
        slots = self._jump_slots if said.jumps or "proxycommand" in said.needs else self._slots
        held = slots.acquire(
            timeout=left(deadline) / 2
        )  # going on without one costs CPU, waiting costs the node's answer
        try:
            return self._open(node, command, deadline, contact)
        finally:
            if held:
                slots.release()

    def _open(self, node: Node, command: str, deadline: float, contact: Contact) -> ChildSession:
        watch = _Watch(contact)
        session = start(node, self.argv(node, command, left(deadline)), contact, hear=watch.hear)
        # A moment before the deadline: its last words must still arrive.
        if session.wait_until(lambda: contact.phase == "read", deadline - min(0.3, left(deadline) / 10)):
            return session
        phase = contact.phase
        if session.ended:
            session.complaint()
            status, why = watch.why(node)
        else:
            status, why = "timeout", f"no end of this phase in time{': ' + watch.words[-1] if watch.words else ''}"
        session.close()
        raise Unreached(node.name, phase, why, status)

    def argv(self, node: Node, command: str, seconds: float) -> list[str]:
        """The command line: what stands in it wins over every file."""
        options = {**OPTIONS, "ConnectTimeout": str(max(1, int(seconds)))}
        if node.address:
            options["HostName"] = node.address
        words = [self._binary, "-T", "-x", "-F", self._strict.path, *self._arguments]
        for name, value in options.items():
            words += ["-o", f"{name}={value}"]
        if node.port != 22:
            words += ["-p", str(node.port)]
        user = node.user or self._user
        if user:
            words += ["-l", user]
        return [*words, "--", node.name, command]

    def close(self) -> None:
        self._strict.remove()


class _Strict:
    """A configuration file of our own: strict first, then all that the user's says."""

    def __init__(self, own: str) -> None:
        self.path = "none"
        if own == "none":
            return
        try:
            self._folder = ownfiles.private_folder()
            self.path = os.path.join(self._folder, "ssh_config")
            with open(self.path, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write("".join(f"{name} {value}\n" for name, value in STRICT.items()))
                file.write("".join(f'Include "{each}"\nMatch all\n' for each in ([own] if own else USUAL_CONFIGS)))
        except OSError as exc:
            raise ConfigError(f"--transport openssh: no place for its configuration file: {exc.strerror}") from exc

    def remove(self) -> None:
        if self.path != "none":
            shutil.rmtree(self._folder, ignore_errors=True)


def make(options: Mapping[str, Any]) -> OpenSshTransport:
    """ConfigError where there is no ssh here. Options: `config`, `key`, `known_hosts`, `user`, `agent` as of routes.py."""
    binary = shutil.which("ssh")
    if binary is None:
        raise ConfigError("--transport openssh: there is no ssh binary here (openssh-client)")
    arguments: list[str] = []
    own = os.path.expanduser(str(options.get("config") or ""))
    configs = Configs(path=own, binary=binary)
    user = str(options.get("user") or "")
    configs.learn((node.name, node.user or user) for node in options.get("nodes") or ())
    for path in paths(options, "key"):
        arguments += ["-i", path]
    if paths(options, "key"):
        arguments += ["-o", "IdentitiesOnly=yes"]
    if "known_hosts" in options:
        files = paths(options, "known_hosts")
        arguments += ["-o", f"UserKnownHostsFile={' '.join(map(_quoted, files)) or '/dev/null'}"]
        arguments += ["-o", "GlobalKnownHostsFile=/dev/null"]
    if options.get("agent", True) is False:
        arguments += ["-o", "IdentityAgent=none"]
    return OpenSshTransport(binary, arguments, user, configs, _Strict(own))


def _quoted(path: str) -> str:
    return f'"{path}"' if " " in path else path
