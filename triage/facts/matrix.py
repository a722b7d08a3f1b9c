"""Who of the nodes that answer reaches whom on the training network, and into which parts does it fall (network.md 4.1)?

Reads the `peers` probe: TCP connects between the job's own nodes, on the addresses of one rail at a time. A pair is joined
when either end reaches the other; the parts are the connected components.
    two parts, each joined inside, and every connect between them in vain      the fabric is cut between them
    one node that reaches nobody and that nobody reaches, the others joined    that node is cut off
    a rail on which nobody reaches anybody, while other rails work             that rail is down
What can fool it: a firewall that drops connects on the fabric and lets RDMA through (so a stalled group must run across the
cut); an inventory with wrong addresses (nobody then reaches anybody: nothing is said); an address that two nodes share (not
counted); nodes that were not asked. Linear in the connects tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from triage.facts.components import components
from triage.facts.dumps import waits
from triage.facts.evidence import Evidence
from triage.facts.peers import (
    IN_VAIN,
    REACHED,
    answering,
    fabric,
    kernel_lives,
    management,
    peer_views,
    results_of,
    silent_nodes,
    targets_of,
)
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Part, Sample

Pair = tuple[str, str]
MOST_PROVENANCE = 8


@dataclass
class Tries:
    """Of one rail, or of all (rail None): who reached whom, and which connects were in vain; (from, to)."""

    rail: int | None = None
    up: set[Pair] = field(default_factory=set)
    vain: set[Pair] = field(default_factory=set)

    def nodes(self) -> list[str]:
        return sorted({node for pair in self.up | self.vain for node in pair})


@dataclass(frozen=True)
class Cut:
    """How the fabric falls apart: `sides` of two nodes and more, largest first; `alone`: nodes that nobody reaches.

    vain   connects between them that were tried in vain
    """

    rail: int | None
    sides: tuple[tuple[str, ...], ...] = ()
    alone: tuple[str, ...] = ()
    vain: int = 0


def tries(ev: Evidence) -> list[Tries]:
    """All rails together, then each where there are several; to be called through `ev.derive`."""
    nodes = {node.name: node for node in ev.derive(answering)}
    owners: dict[str, int] = {}
    for node in ev.job.nodes:
        for address in fabric(node):
            owners[address] = owners.get(address, 0) + 1
    rails: dict[int, Tries] = {}
    whole = Tries()
    for sample in ev.of("peers"):
        if sample.node not in nodes:
            continue
        for name, target in targets_of(sample):
            if name not in nodes or name == sample.node:
                continue
            addresses, pair = fabric(nodes[name]), (sample.node, name)
            told: dict[int, str] = {}
            for address, result in results_of(target, "fabric"):
                if address in addresses and owners[address] == 1 and result in (*REACHED, *IN_VAIN):
                    told[addresses.index(address)] = result
            for rail, result in told.items():
                one = rails.setdefault(rail, Tries(rail))
                (one.up if result in REACHED else one.vain).add(pair)
            if any(result in REACHED for result in told.values()):
                whole.up.add(pair)
            elif told and len(told) == len(addresses):
                whole.vain.add(pair)
    return [whole, *(rails[rail] for rail in sorted(rails) if len(rails) > 1)]


def cut_of(told: Tries) -> Cut | None:
    """How this falls apart, or None where it does not, or too little was tried to say so."""
    edges: dict[str, list[str]] = {}
    for a, b in told.up:
        edges.setdefault(a, []).append(b)
        edges.setdefault(b, []).append(a)
    nodes = told.nodes()
    of = components(edges, nodes)
    groups: dict[int, list[str]] = {}
    for node in nodes:
        groups.setdefault(of[node], []).append(node)
    sides = sorted((tuple(group) for group in groups.values() if len(group) > 1), key=lambda side: (-len(side), side))
    if not sides:
        return None  # nobody reaches anybody: the addresses, or a firewall
    member = {node: index for index, side in enumerate(sides) for node in side}
    across: dict[Pair, set[Pair]] = {}
    for pair in told.vain:
        if pair[0] in member and pair[1] in member and member[pair[0]] != member[pair[1]]:
            ends = sorted((sides[member[pair[0]]][0], sides[member[pair[1]]][0]))
            across.setdefault((ends[0], ends[1]), set()).add(pair)
    wanted = len(sides) * (len(sides) - 1) // 2
    # Two connects from two nodes at least: one may be that node's own trouble.
    proven = len(across) == wanted and all(len({pair[0] for pair in pairs}) > 1 for pairs in across.values())
    alone = tuple(node for node in nodes if node not in member and _cut_off(told, node, member))
    if len(sides) > 1 and not proven:
        return None
    if len(sides) == 1 and not alone:
        return None
    return Cut(told.rail, tuple(sides), alone, sum(len(pairs) for pairs in across.values()))


def _cut_off(told: Tries, node: str, member: Mapping[str, int]) -> bool:
    """Did two nodes that reach others try it in vain, and did it try others itself, in vain?"""
    tried_it = {a for a, b in told.vain if b == node and a in member}
    return len(tried_it) > 1 and any(a == node and b in member for a, b in told.vain)


def cuts(ev: Evidence) -> Cut | None:
    """The cut of the whole fabric, else that of one rail; to be called through `ev.derive`."""
    for told in ev.derive(tries):
        found = cut_of(told)
        if found is not None:
            return found
    return None


def dead_rails(ev: Evidence) -> list[Tries]:
    """Rails on which nobody reaches anybody, though three nodes at least tried, while another rail works."""
    rails = [told for told in ev.derive(tries) if told.rail is not None]
    if not any(told.up for told in rails):
        return []
    return [told for told in rails if not told.up and len({a for a, _ in told.vain}) > 2]


# ---------------------------------------------------------------- facts


def _why_not(ev: Evidence) -> str:
    """Why nothing is known of who reaches whom; "" if something is."""
    if not ev.of("peers"):
        return "the nodes were not asked whom they reach"
    whole = ev.derive(tries)[0]
    if not whole.up:
        return "no node reaches another one on a fabric address: those may be wrong, or closed to connects"
    return ""


def _asked(ev: Evidence) -> list[Sample]:
    return ev.of("peers")[:MOST_PROVENANCE]


@fact("links.partition", type="number", unit="cuts", parts="fabric")
def partition(ev: Evidence) -> Fact:
    """Cuts of the training network: sides whose nodes reach each other and nobody of the other side, or a rail that is down."""
    why = _why_not(ev)
    if why:
        return unknown(why)
    found, dead = ev.derive(cuts), ev.derive(dead_rails)
    parts: list[Part] = []
    if found is not None and len(found.sides) > 1:
        where = "" if found.rail is None else f" on rail {found.rail}"
        sides = " | ".join(_few(side) for side in found.sides)
        told = (
            f"{found.vain} connects between {len(found.sides)} sides were in vain{where}, inside each they come through"
        )
        parts.append(Part("fabric", name=sides + where, why=told))
    for told_rail in dead:
        why = f"{len(told_rail.vain)} connects were in vain, and on other rails the same nodes reach each other"
        parts.append(Part("fabric", name=f"rail {told_rail.rail}", why=why))
    text = "; ".join(f"{part.name}: {part.why}" for part in parts)
    if not text:
        text = f"the nodes that were asked reach each other on the fabric ({len(ev.derive(tries)[0].up)} connects)"
    return known(parts=parts, text=text, provenance=ev.seen(*_asked(ev)))


@fact("links.cut_off", type="number", unit="nodes", parts="node")
def cut_off(ev: Evidence) -> Fact:
    """Nodes that answer us and that no other reaches on the training network, nor they others, while the others are joined."""
    why = _why_not(ev)
    if why:
        return unknown(why)
    found = ev.derive(cuts)
    whole = ev.derive(tries)[0]
    names = found.alone if found is not None and len(found.sides) == 1 else ()
    where = f" on rail {found.rail}" if found is not None and found.rail is not None else ""
    parts = [
        Part("node", node=name, why=f"it answers us; {_few(_tried(whole, name))} cannot reach it{where}, nor it them")
        for name in names
    ]
    return known(parts=parts, provenance=ev.seen(*_asked(ev)))


def _tried(told: Tries, node: str) -> list[str]:
    return sorted({a for a, b in told.vain if b == node}) or ["others"]


@fact("links.cut_across", type="bool")
def cut_across(ev: Evidence) -> Fact:
    """Does every group that stalls run across the cut? Without that a cut is a closed port, and no cause."""
    found = ev.derive(cuts)
    if found is None:
        return known(True, text="a whole rail is down") if ev.derive(dead_rails) else unknown("no cut was seen")
    picture, table = ev.derive(waits).picture, ev.derive(rank_table)
    units = [*picture.stuck_units, *picture.waiting.values()] if picture else []
    if picture is None or not units:
        return unknown("no flight record tells which group stalls")
    parts = [set(side) for side in found.sides] + [{name} for name in found.alone]
    for key in {unit.key for unit in units}:
        nodes = {table.node_of(rank) for rank in picture.group(key).members}
        if None in nodes:
            return unknown("not every member of the stalled groups has a known node")
        if sum(bool(nodes & part) for part in parts) < 2:
            return known(False, text=f"{picture.group(key).label()} stalls, and all of it is on one side of the cut")
    return known(True, text="every group that stalls runs across the cut")


def _few(names: Iterable[str], most: int = 4) -> str:
    held = list(names)
    return ", ".join(held[:most]) + (f" and {len(held) - most} more" if len(held) > most else "")


@fact("hosts.our_way", type="number", unit="nodes", parts="node")
def our_way(ev: Evidence) -> Fact:
    """Silent nodes whose management address a peer reaches though we got no answer there: our own way to it is closed."""
    views, quiet = ev.derive(peer_views), ev.derive(silent_nodes)
    if views.nodes and not views.samples:
        return unknown("no peer was asked about the silent nodes, or none answered")
    parts = []
    for name, view in views.nodes.items():
        node, contact = ev.job.node(name), quiet[name]
        closed = contact.data.get("phase") in ("resolve", "tcp") and not kernel_lives(contact)
        # A loopback address is another machine on every machine: what a peer reaches there is itself.
        own = node is None or management(node).startswith(("127.", "localhost", "[::1]"))
        if view.kernel and closed and not own:
            parts.append(Part("node", node=name, why="; ".join(view.kernel[:3])))
    return known(parts=parts, provenance=ev.seen(*views.samples[:MOST_PROVENANCE]) if parts else ())
