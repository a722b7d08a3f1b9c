"""What the user's ssh_config says of each node: address, port, user, keys, jump hosts, host-key name, known_hosts files.

`ssh -G NAME` is asked where the binary exists: it is right by construction, `Include` and every `Match` with it. Its answer
looks like this (lower-case names, one a line, a name may come again):

    hostname gpu001.cluster
    identityfile ~/.ssh/id_%h
    proxyjump me@jump1:2222,jump2

It is asked for the first and the last node of each class: nodes for which the same patterns of `Host` and `Match host` lines
hold. Only where both answers are alike but for the name does the answer count for the whole class; else, and where a
`Match exec` or the like may look at anything, every node is asked. Who is not answered in time is refused, with the reason.

Without the binary paramiko's parser reads the files, and what it would read wrongly is refused with its line: `Include`
inside a block, `Match` by anything but host and user (notes/fanout-and-schedulers.md 2).

What can fool it: an address of the inventory or the scheduler wins over `HostName`; `ssh -G` is asked for the name.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from triage import ownfiles
from triage.model import Node
from triage.transports import ssh_config_files as files
from triage.transports.base import plain

PATIENCE_S = 3.0  # for all questions to `ssh -G`: a `Match exec` may run anything, and the home may be gone
AT_ONCE = 8
HOST_NAME = re.compile(r"[A-Za-z0-9_.:][A-Za-z0-9_.:%-]*")
TOKEN = re.compile(r"%(.)")
VARIABLE = re.compile(r"\$\{(\w+)\}")

# What paramiko cannot do, by the setting of `ssh -G` that asks for it: (name, values that ask for nothing).
ONLY_THE_BINARY = {
    "proxycommand": ("none",),
    "knownhostscommand": ("none",),
    "revokedhostkeys": ("none",),
    "pkcs11provider": ("none",),
    "bindaddress": ("none", ""),
    "bindinterface": ("none", ""),
    "hostbasedauthentication": ("no", "false"),
    "verifyhostkeydns": ("no", "false", "ask"),
    "pubkeyauthentication": ("yes", "true", "unbound", "host-bound"),
}


@dataclass(frozen=True)
class HostConfig:
    """What holds for one node. "" and () mean: not said."""

    hostname: str = ""
    port: int = 22
    user: str = ""
    keys: tuple[str, ...] = ()
    usual_keys: bool = True  # `keys` are ssh's own defaults: nobody named them
    certificates: tuple[str, ...] = ()
    only_named: bool = False  # IdentitiesOnly: of the agent only keys that `keys` names
    agent: str = ""  # socket of an IdentityAgent, or "none"
    alias: str = ""
    known_hosts: tuple[str, ...] = ()
    jumps: tuple[str, ...] = ()  # "user@host:port", the first hop first
    kerberos: bool = False
    needs: str = ""  # the settings that only the ssh binary understands
    refused: str = ""  # why this node is not contacted at all


@dataclass
class Configs:
    """The configuration of all nodes, read once.

    path   a file instead of the user's own and the system's (`ssh -F`); "none" reads none
    """

    path: str = ""
    binary: str | None = field(default_factory=lambda: shutil.which("ssh"))
    silent: list[str] = field(default_factory=list)  # files that did not answer
    _known: dict[tuple[str, str], HostConfig] = field(default_factory=dict)
    _texts: list[tuple[str, str]] | None = None

    def learn(self, names: Iterable[tuple[str, str]]) -> None:
        """Ask for all of these (name, user on the node or "") now, a few of them for each class."""
        wanted = [key for key in dict.fromkeys(names) if key not in self._known]
        # What ssh takes for no host name cannot stand in its configuration either: such a node has an address of its own.
        self._known.update(
            (key, HostConfig()) for key in wanted if self.path == "none" or not HOST_NAME.fullmatch(key[0])
        )
        wanted = [key for key in wanted if key not in self._known]
        if not wanted:
            return
        texts = self._read()
        if self.silent or not any(files.says_anything(text) for _, text in texts):
            self._known.update((key, HostConfig()) for key in wanted)
        elif self.binary is None:
            self._known.update((key, files_config(texts, *key)) for key in wanted)
        else:
            self._ask(wanted, [text for _, text in texts])

    def of(self, name: str, user: str) -> HostConfig:
        if (name, user) not in self._known:
            self.learn([(name, user)])
        return self._known[name, user]

    def _read(self) -> list[tuple[str, str]]:
        """(path, text) of every file, those that are included as well: only to see which names they tell apart."""
        if self._texts is None:
            roots = [self.path] if self.path else [os.path.expanduser("~/.ssh/config"), "/etc/ssh/ssh_config"]
            self._texts, stuck = files.read_all(roots)
            self.silent += stuck
        return self._texts

    def _ask(self, wanted: Sequence[tuple[str, str]], texts: Sequence[str]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        apart = files.Apart.of(texts)
        classes: dict[object, list[tuple[str, str]]] = {}
        for name, user in wanted:
            classes.setdefault((apart.of_name(name), user), []).append((name, user))
        with_samples = {key for members in classes.values() for key in (members[0], members[-1])}
        answers = self._answers(sorted(with_samples), deadline)
        rest: list[tuple[str, str]] = []
        for members in classes.values():
            first, last = members[0], members[-1]
            template = _for_name(answers[first], first[0], "\0")
            if first != last and _for_name(answers[last], last[0], "\0") != template:
                rest += members[1:-1]
                continue
            answers.update((key, _for_name(template, "\0", key[0])) for key in members[1:-1])
        answers.update(self._answers(rest, deadline))
        self._known.update((key, _config(answers[key], *key)) for key in wanted)

    def _answers(self, keys: Sequence[tuple[str, str]], deadline: float) -> dict[tuple[str, str], str]:
        """key -> what `ssh -G` printed, or "!" and why not."""
        if len(keys) <= 2:
            return {key: self._answer(key[0], key[1], deadline) for key in keys}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return dict(zip(keys, pool.map(lambda key: self._answer(key[0], key[1], deadline), keys)))

    def _answer(self, name: str, user: str, deadline: float) -> str:
        patience = deadline - time.monotonic()
        if patience <= 0:
            return f"!`ssh -G {name}` was not reached within {PATIENCE_S:g} s"
        assert self.binary is not None
        where = ["-F", self.path] if self.path else []
        who = ["-l", user] if user else []
        child = subprocess.Popen(
            [self.binary, "-T", *where, *who, "-G", "--", name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = child.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # a `Match exec` may have left anything
            return (
                f"!`ssh -G {name}` does not answer within {PATIENCE_S:g} s: look at Match exec and Include in its files"
            )
        if child.returncode:
            return f"!`ssh -G {name}`: {plain(err.decode('utf-8', 'replace')) or f'exit {child.returncode}'}"
        return out.decode("utf-8", "replace")


def files_config(texts: Sequence[tuple[str, str]], name: str, user: str) -> HostConfig:
    """The configuration by paramiko's parser, for machines without the ssh binary."""
    try:
        return _config(files.by_paramiko(texts, name, user), name, user)
    except files.CannotRead as exc:
        return HostConfig(refused=f"{exc}, which needs the ssh binary (openssh-client) to be read")


def _for_name(answer: str, name: str, other: str) -> str:
    """The answer with another name in the place of this one, where it stands as a word of its own in a value."""
    word = re.compile(rf"(?<![\w]){re.escape(name)}(?![\w])") if name != "\0" else re.compile("\0")
    lines = []
    for line in answer.splitlines():
        key, space, value = line.partition(" ")
        lines.append(f"{key}{space}{word.sub(lambda _: other, value)}")
    return "\n".join(lines)


def _config(answer: str, name: str, user: str) -> HostConfig:
    if answer.startswith("!"):
        return HostConfig(refused=answer[1:])
    said: dict[str, list[str]] = {}
    for line in answer.splitlines():
        key, _, value = line.partition(" ")
        said.setdefault(key.lower(), []).append(value.strip())

    def one(key: str, default: str = "") -> str:
        return said.get(key, [default])[0]

    needs = [f"{key} {one(key)}" for key, idle in ONLY_THE_BINARY.items() if one(key, idle[0]).lower() not in idle]
    methods = one("preferredauthentications")
    if methods and "publickey" not in methods:
        needs.append(f"preferredauthentications {methods}")
    port = int(one("port", "22")) if one("port", "22").isdigit() else 22
    tokens = {
        "%": "%",
        "h": one("hostname") or name,
        "n": name,
        "r": user or one("user"),
        "p": str(port),
        "k": one("hostkeyalias") or name,
        "d": os.path.expanduser("~"),
        "u": _own_name(),
        "i": str(os.getuid()),
    }

    def paths(key: str) -> tuple[str, ...]:
        return tuple(p for value in said.get(key, []) if (p := _path(value, tokens)) != "none")

    try:
        agent = _path(one("identityagent"), tokens)
        named = [*paths("identityfile")]
        certificates = paths("certificatefile")
        jump = _path(one("proxyjump", "none"), tokens)
    except KeyError as exc:
        needs.append(f"the token {exc.args[0]}")
        agent, named, certificates, jump = "", [], (), "none"
    jumps = () if jump.lower() == "none" else tuple(part.strip() for part in jump.split(",") if part.strip())
    return HostConfig(
        hostname=one("hostname"),
        port=port,
        user=one("user"),
        keys=tuple(named),
        usual_keys=all(re.fullmatch(r"~/\.ssh/id_\w+", value) for value in said.get("identityfile", [])),
        certificates=certificates,
        only_named=one("identitiesonly", "no") in ("yes", "true"),
        agent=_agent(agent),
        alias=one("hostkeyalias"),
        known_hosts=tuple(
            _path(path, tokens) for key in ("userknownhostsfile", "globalknownhostsfile") for path in one(key).split()
        ),
        jumps=jumps,
        kerberos=one("gssapiauthentication", "no") in ("yes", "true"),
        needs=", ".join(needs),
    )


def _path(value: str, tokens: Mapping[str, str]) -> str:
    """A path with its tokens, variables and ~ filled in. KeyError names a token that is not known here."""

    def token(found: re.Match[str]) -> str:
        if found.group(1) not in tokens:
            raise KeyError(found.group(0))
        return tokens[found.group(1)]

    def variable(found: re.Match[str]) -> str:
        if found.group(1) not in os.environ:
            raise KeyError(found.group(0))
        return os.environ[found.group(1)]

    return os.path.expanduser(TOKEN.sub(token, VARIABLE.sub(variable, value.strip('"'))))


def _agent(said: str) -> str:
    """The socket of an IdentityAgent: a path, a variable that holds one, or the usual agent ("")."""
    if said.removeprefix("$") == "SSH_AUTH_SOCK":
        return ""
    return os.environ.get(said[1:], "none") if said.startswith("$") else said


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def hop(spec: str) -> Node:
    """A jump host as a node: `user@host:port`, `[v6]:port`, `ssh://user@host:port`. Port 0 where none is said."""
    rest = spec.removeprefix("ssh://").rstrip("/")
    user, at, where = rest.rpartition("@")
    host, port = where, ""
    if where.startswith("["):
        host, _, port = where[1:].partition("]")
        port = port.lstrip(":")
    elif where.count(":") == 1:
        host, _, port = where.partition(":")
    return Node(host, port=int(port) if port.isdigit() else 0, user=user if at else "")


def has_ticket() -> bool:
    """Is there a Kerberos ticket cache that looks alive? Only where it is: what it holds is for the ssh binary."""
    cache = os.environ.get("KRB5CCNAME", "") or f"FILE:/tmp/krb5cc_{os.getuid()}"
    kind, colon, path = cache.partition(":")
    if not colon or kind not in ("FILE", "DIR"):
        return bool(os.environ.get("KRB5CCNAME"))
    try:
        return ownfiles.exists(path)
    except OSError:
        return False
