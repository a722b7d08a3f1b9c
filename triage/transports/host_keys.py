"""What to think of a host key that a node offers, and the one line that tells the operator what to do about it."""

from __future__ import annotations

import shlex

from triage.model import Node
from triage.transports.base import Contact
from triage.transports.known_hosts import Answer, fingerprint, with_port
from triage.transports.routes import Route


def judge(route: Route, contact: Contact, kind: str, blob: bytes) -> Answer:
    """What known_hosts says of it; the fingerprint is kept in `contact`."""
    contact.fingerprint = fingerprint(blob)
    return route.hosts.check(route.host, route.host_port, route.also, kind, blob)


def words(node: Node, route: Route, contact: Contact, kind: str, answer: Answer) -> str:
    """Why this key is not accepted."""
    if answer.judgement in ("unknown", "other_type"):
        return unknown(node, route, contact, answer)
    return _alarm(route, contact, kind, answer)


def unknown(node: Node, route: Route, contact: Contact, answer: Answer) -> str:
    scan = f"ssh-keyscan {'' if route.port == 22 else f'-p {route.port} '}{shlex.quote(route.address)}"
    if route.jumps:
        # ssh-keyscan reaches nothing behind a jump host; ssh itself asks before it adds a key.
        scan = f"ssh {shlex.quote(node.name)}"
        return f"host key is not known ({contact.fingerprint}). Check it, then let ssh add it: {scan} true"
    if route.host_port != route.port or route.host not in (node.name, route.address):
        return (
            f"host key is not known under its HostKeyAlias {route.host} ({contact.fingerprint}). Check it, then let ssh "
            f"add it: ssh {shlex.quote(node.name)} true"
        )
    also = ""
    if answer.authority:
        also = f" ({answer.authority.place} trusts a certificate authority for it: --transport openssh can use that)"
    return f"host key is not known ({contact.fingerprint}){also}. Check it, then: {scan} >> ~/.ssh/known_hosts"


def _alarm(route: Route, contact: Contact, kind: str, answer: Answer) -> str:
    entry = answer.entries[0]
    if answer.judgement == "revoked":
        return f"HOST KEY IS REVOKED by {entry.place} ({contact.fingerprint}). Not connected"
    path, _, _ = entry.place.rpartition(":")
    other = with_port(route.also, route.host_port) if route.also else ""
    name = other if other and entry.belongs_to(other) else with_port(route.host, route.host_port)
    return (
        f"HOST KEY HAS CHANGED: it offers {kind} {contact.fingerprint}, but {entry.place} says "
        f"{fingerprint(entry.key)}. The node was reinstalled, or somebody stands in between. Not connected. "
        f"Once you know why: ssh-keygen -R {shlex.quote(name)} -f {shlex.quote(path)}"
    )
