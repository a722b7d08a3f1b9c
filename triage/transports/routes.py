"""How one node is reached: address, user, keys, host-key names, jump hosts; or why only the ssh binary can, or nobody.

Options (the inventory's `ssh:` map and what the command line adds), each of which wins over the ssh_config:
`key` and `known_hosts` (a path or a list of paths, which may be empty), `usual_known_hosts` (the usual files, as far as they
answer), `user`, `agent: false`, `config` (a file instead of the usual ones; "none"), `nodes` (whom to look up at once).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from triage.errors import ConfigError
from triage.model import Node
from triage.transports.base import Unreached
from triage.transports.known_hosts import KnownHosts
from triage.transports.ssh_config import Configs, HostConfig, has_ticket, hop
from triage.transports.ssh_keys import Identities

MAX_HOPS = 8
USUAL_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


@dataclass(frozen=True)
class Route:
    """All that is needed to connect to one node."""

    address: str
    port: int
    user: str
    host: str  # the name by which its key is known
    host_port: int  # the port of that name; an alias has none (22)
    also: str  # a second name, "" = none
    hosts: KnownHosts
    identities: Identities
    jumps: tuple[Node, ...] = ()
    binary: str = ""  # why the ssh binary must do it


@dataclass
class Routes:
    """The routes of all nodes; files are read once. Used from many threads."""

    options: Mapping[str, Any]
    configs: Configs = field(default_factory=Configs)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _indexes: dict[tuple[str, ...], KnownHosts] = field(default_factory=dict)
    _identities: dict[object, Identities] = field(default_factory=dict)
    _known: dict[tuple[str, int, str, str], Route | str] = field(default_factory=dict)
    _hops: dict[tuple[str, int, str], Route] = field(default_factory=dict)

    @classmethod
    def of_options(cls, options: Mapping[str, Any]) -> Routes:
        routes = cls(options, Configs(path=os.path.expanduser(str(options.get("config") or ""))))
        routes.configs.learn((node.name, node.user or routes.user) for node in options.get("nodes") or ())
        return routes

    @property
    def user(self) -> str:
        """Who is to log in on the nodes, whatever the ssh_config says."""
        return str(self.options.get("user") or "")

    @property
    def identities(self) -> list[Identities]:
        return list(self._identities.values())

    @property
    def indexes(self) -> list[KnownHosts]:
        return list(self._indexes.values())

    def of(self, node: Node) -> Route:
        """The route to a node. Raises Unreached where it is not to be contacted, with the reason."""
        key = (node.name, node.port, node.address, node.user)
        with self._lock:
            if key not in self._known:
                self._known[key] = self._find(node)
            route = self._known[key]
        if isinstance(route, str):
            raise Unreached(node.name, "resolve", route)
        return route

    def usual(self) -> Identities:
        """The keys where nothing is configured. Raises ConfigError for a key that was named and does not work."""
        return self._keys(HostConfig())

    def _find(self, node: Node, before: frozenset[str] | None = None) -> Route | str:
        """The route to a node, or why there is none. `before`: it is a jump host, and these are behind it."""
        user = node.user or ("" if before else self.user)
        said = self.configs.of(node.name, user)
        if said.refused:
            return said.refused
        hosts, identities = self._index(said, before is not None), self._keys(said, before is not None)
        address = node.address or said.hostname or node.name
        port = node.port if node.port not in (0, 22) else said.port
        host, host_port, also = (said.alias, 22, "") if said.alias else (node.name, port, address)
        binary = said.needs
        authority = hosts.only_authority(host, host_port, also)
        if authority:
            binary = f"{authority.place} trusts a @cert-authority for it"
        elif said.kerberos and not self._paths("key") and has_ticket():
            binary = binary or "GSSAPIAuthentication is on and there is a Kerberos ticket"
        elif identities.hardware and not identities.keys:
            binary = binary or f"the key {identities.hardware[0]} lies on a security key"
        jumps, why = ((), "") if binary else self._through(said.jumps, (before or frozenset()) | {node.name})
        if why.startswith("!"):
            return why[1:]
        binary = binary or why
        if binary and self.configs.binary is None:
            return f"{binary}: this takes the ssh binary, which is not installed here (openssh-client)"
        return Route(address, port, user or said.user, host, host_port, also, hosts, identities, jumps, binary)

    def _through(self, specs: tuple[str, ...], before: frozenset[str]) -> tuple[tuple[Node, ...], str]:
        """The jump hosts, the first hop's own ones before it; and why the ssh binary must do it, or "!" and why nobody can."""
        hops = [hop(spec) for spec in specs]
        if not hops or hops[-1].name in before or len(before) > MAX_HOPS:
            return (), ""  # as ssh: a jump host is not its own
        own: tuple[Node, ...] = ()
        for place, node in enumerate(hops):
            found = self._find(node, before)
            if isinstance(found, str):
                return (), f"!jump host {node.name}: {found}"
            if found.binary:
                return (), f"its jump host {node.name}: {found.binary}"
            own = found.jumps if place == 0 else own
            self._hops[node.name, node.port, node.user] = found
        return (*own, *hops), ""

    def of_hop(self, node: Node) -> Route:
        """The route to a jump host that stands in the `jumps` of a route."""
        return self._hops[node.name, node.port, node.user]

    def _index(self, said: HostConfig, is_hop: bool) -> KnownHosts:
        own = list(said.known_hosts)
        if not own or set(own) == {os.path.expanduser(path) for path in USUAL_HOSTS}:
            usual = "usual_known_hosts" in self.options
            own = self._paths("usual_known_hosts") if usual else [os.path.expanduser(path) for path in USUAL_HOSTS]
        named = "known_hosts" in self.options  # also by none: those that there are do not answer
        files = self._paths("known_hosts") if named else []
        files += own if is_hop or not named else []
        key = tuple(dict.fromkeys(files))
        if key not in self._indexes:
            index = self._indexes[key] = KnownHosts.load(key)
            if not named or is_hop:  # nobody named them: that some are absent is usual
                index.problems = [line for line in index.problems if not line.endswith("No such file or directory")]
        return self._indexes[key]

    def _keys(self, said: HostConfig, is_hop: bool = False) -> Identities:
        named = self._paths("key")
        agent: bool | str = self.options.get("agent", True) is not False
        if agent and said.agent:
            agent = False if said.agent == "none" else said.agent
        if named and not is_hop:
            key: object = (tuple(named), agent)
        else:
            key = (said.keys, said.certificates, said.only_named, agent, is_hop)
        if key in self._identities:
            return self._identities[key]
        if named and not is_hop:
            found = Identities.load(named, agent)
        else:
            files = [*said.keys, *named]
            found = Identities.load(
                files, agent, strict=False, certificates=said.certificates, only_named=said.only_named
            )
        self._identities[key] = found
        return found

    def _paths(self, name: str) -> list[str]:
        return paths(self.options, name)


def paths(options: Mapping[str, Any], name: str) -> list[str]:
    """One or several paths of the options. ConfigError for anything else."""
    value = options.get(name) or []
    found = [value] if isinstance(value, (str, os.PathLike)) else value
    if not isinstance(found, (list, tuple)) or not all(isinstance(p, (str, os.PathLike)) for p in found):
        raise ConfigError(f"ssh: {name} must be a path or a list of paths")
    return [os.path.expanduser(os.fspath(p)) for p in found]
