"""What is wrong with a wire while the job moves: it runs below its rail's speed, or loses packets.

What can fool it: totals since boot (only what both looks say counts); errors that all ports of a rail show alike, which are
the switch's or the weather's; an end that waits for an answer, which tells of the path and not of its own port (the peer may
be slow, or dead); a job whose nodes are built differently, whose slower cards are no degraded ones; a port that carries
next to nothing, whose low speed slows nobody; TCP's counters, which are those of all connections of the node, and count
the unanswered openings of any program as time-outs. Nothing of it is a verdict while the job is as fast as ever.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from triage.facts.evidence import Evidence
from triage.facts.ports import Port
from triage.facts.rails import Told, at_rails, rails, sources, told
from triage.facts.registry import fact, known, unknown
from triage.facts.tcp import bad_nodes, meeting, port_of, tcp
from triage.facts.tcp import edges as tcp_edges
from triage.model import Fact, Part, Sample

NO_LOOKS = "no port of the job was seen in both looks"
MOST_TOLD = 3


def few(ev: Evidence, nodes: int, of: int) -> bool:
    """Are so few nodes odd that the fault may be theirs? More than that share one cause."""
    return nodes <= max(1.0, ev.limit("wire_few_share") * of)


# ---------------------------------------------------------------- speed


@dataclass(frozen=True)
class Slower:
    """Ports below the speed of their like: (port, its speed, that of the others); `compared` ports; `mixed`: two kinds of speed."""

    ports: tuple[tuple[Port, int, int], ...]
    compared: int
    mixed: str = ""


def slower(ev: Evidence) -> Slower:
    """To be called through `ev.derive`."""
    out: list[tuple[Port, int, int]] = []
    compared, mixed = 0, ""
    for group in _alike(ev):
        speeds = Tally(speed for _, speed in group)
        usual, times = speeds.most_common(1)[0]
        compared += len(group)
        odd = [(port, speed, usual) for port, speed in group if speed < usual]
        # The median is that of most ports alike; where many run slower, they are another kind of node, or were set so.
        if 2 * times <= len(group) or not few(ev, len({port.node for port, _, _ in odd}), len(group)):
            mixed = mixed or f"{len(group) - times} of {len(group)} like ports run at another speed than the rest"
        else:
            out += odd
    return Slower(tuple(out), compared, mixed)


def _alike(ev: Evidence) -> list[list[tuple[Port, int]]]:
    """Ports that may be compared by speed: of one rail and one board; of all rails where one has too few."""
    least = int(ev.limit("wire_least_ports"))
    groups: list[list[tuple[Port, int]]] = []
    small: list[list[tuple[Port, int]]] = []
    for rail in ev.derive(rails).rails:
        boards: dict[str, list[tuple[Port, int]]] = {}
        for port in rail.ports:
            speed = port.speed_mbps
            if speed is not None and port.down is not True:
                boards.setdefault(_board(port), []).append((port, speed))
        for group in boards.values():
            (groups if len(group) >= least else small).append(group)
    pooled: dict[str, list[tuple[Port, int]]] = {}
    for group in small:
        pooled.setdefault(_board(group[0][0]), []).extend(group)
    # Rails of one node may differ by design; so many ports of one board and over two nodes do not.
    return groups + [g for b, g in pooled.items() if b and len(g) >= 2 * least and len({p.node for p, _ in g}) > 1]


def _board(port: Port) -> str:
    return next((str(r["board"]) for r in port.now if r.get("board")), "")


@fact("wire.degraded", type="number", unit="ports", parts="nic")
def degraded(ev: Evidence) -> Fact:
    """Ports of the job whose link runs below the speed of their rail's other ports (a lane or a speed step is lost)."""
    found = ev.derive(slower)
    if not found.compared:
        return unknown("too few ports of the job told their speed to compare them")
    parts = [port.part(f"{_rate(port, speed)}, its rail {_gb(usual)}") for port, speed, usual in found.ports]
    text = "; ".join(f"{p.label()}: {p.why}" for p in parts[:MOST_TOLD])
    text = text or found.mixed or f"{found.compared} ports run at their rail's speed"
    return known(parts=parts, text=text, provenance=ev.seen(*sources([port for port, _, _ in found.ports])))


def _gb(mbps: int) -> str:
    return f"{mbps / 1000:g} Gb/s"


def _rate(port: Port, speed: int) -> str:
    told = next((str(r["rate"]) for r in port.now if r.get("rate")), "")
    return told or _gb(speed)


@fact("wire.degraded_load", type="number")
def degraded_load(ev: Evidence) -> Fact:
    """Share of its own speed that the busiest degraded port carried between the looks: a port that idles holds up nobody."""
    found = ev.derive(slower)
    if not found.ports:
        return unknown("no port runs below its rail's speed")
    loads = []
    heard = ev.derive(told)
    for port, _, _ in found.ports:
        one = heard.get((port.node, port.name))
        if one is not None and (load := _load(one)) is not None:
            loads.append((load, port))
    if not loads:
        return unknown("the bytes of the slower port were not seen in both looks")
    load, port = max(loads, key=lambda pair: pair[0])
    says = f"{port.name} of {port.node} carried {load:.0%} of its speed"
    return known(load, text=says, provenance=ev.seen(*sources([port])))


# ---------------------------------------------------------------- loss


def active(ev: Evidence, heard: Told, role: str, side: str) -> dict[str, int]:
    """Counters of this kind that rose fast enough between the looks: our name -> events."""
    found = {}
    for name, value in heard.of(role, side).items():
        limit = heard.meaning[name].per_s
        if value > 0 and value / heard.window_s >= (ev.limit("loss_per_s") if limit is None else limit):
            found[name] = value
    return found


def standing_out(ev: Evidence, side: str) -> tuple[dict[tuple[str, str], tuple[Told, dict[str, int]]], int]:
    """({(node, port): what it loses, more than its rail does}, ports that could tell)."""
    found: dict[tuple[str, str], tuple[Told, dict[str, int]]] = {}
    could = 0
    everybody = list(ev.derive(told).values())
    for _, heard in ev.derive(at_rails):
        peers = heard if len(heard) >= ev.limit("wire_least_ports") else everybody
        for one in heard:
            could += bool(one.of("loss", side))
            rose = active(ev, one, "loss", side)
            if side == "own":
                rose.update((n, v) for n, v in active(ev, one, "flap", "").items() if one.meaning[n].per_s is not None)
            odd = {n: v for n, v in rose.items() if v >= ev.limit("loss_over_rail") * _usual(one, n, peers)}
            if odd:
                found[(one.port.node, one.port.name)] = (one, odd)
    return found, could


def _usual(one: Told, name: str, peers: list[Told]) -> float:
    values = [peer.values[name] for peer in peers if peer is not one and name in peer.values]
    return median(values) if values else 0.0


def _says(heard: Told, rose: Mapping[str, int]) -> str:
    best = sorted(rose.items(), key=lambda pair: -pair[1])[:2]
    words = [f"{name} +{value} in {heard.window_s:.3g}s ({heard.meaning[name].says})" for name, value in best]
    return ", ".join(words)


@fact("wire.lossy", type="number", unit="ports", parts="nic")
def lossy(ev: Evidence) -> Fact:
    """Ports that received spoilt packets, or trained again, between the looks, and more than their rail: the fault is at this end."""
    found, could = standing_out(ev, "own")
    meet = ev.derive(meeting)
    if not could and meet is None:
        return unknown(_cannot(ev))
    parts = [one.port.part(_says(one, rose)) for one, rose in found.values()]
    seen = ev.seen(*sources([one.port for one, _ in found.values()]))
    if meet is not None and meet.node not in {part.node for part in parts}:
        parts.append(port_of(ev, meet.node, meet.says))
        seen += ev.seen(*meet.samples[:4])
    if not few(ev, len({part.node for part in parts}), ev.derive(rails).nodes):
        return known(parts=[], text=f"errors rise on {len(parts)} ports at once: not one port's fault", provenance=seen)
    text = "; ".join(f"{p.label()}: {p.why}" for p in parts[:MOST_TOLD]) or f"no errors on {could} ports"
    return known(parts=parts, text=text, provenance=seen)


@fact("wire.retries", type="number", unit="ports", parts="nic")
def retries(ev: Evidence) -> Fact:
    """Ports that got no answer in time, or sent again, between the looks, more than their rail: the path or its far end."""
    found, could = standing_out(ev, "peer")
    if not could and not ev.derive(tcp):
        return unknown(_cannot(ev))
    parts = [one.port.part(_says(one, rose)) for one, rose in found.values()]
    bad = [each for each in ev.derive(bad_nodes) if each.node not in {part.node for part in parts}]
    parts += [port_of(ev, each.node, each.says) for each in bad]
    seen = [*sources([one.port for one, _ in found.values()]), *(each.sample for each in bad)]
    return known(parts=parts, provenance=ev.seen(*seen[:8]))


@fact("wire.slow_takers", type="number", unit="ports", parts="nic")
def slow_takers(ev: Evidence) -> Fact:
    """Ports whose own or whose peers' programs did not take what came, more than on their rail: a slow process, no cable."""
    found, could = standing_out(ev, "receiver")
    if not could:
        return unknown(_cannot(ev))
    parts = [one.port.part(_says(one, rose)) for one, rose in found.values()]
    return known(parts=parts, provenance=ev.seen(*sources([one.port for one, _ in found.values()])))


def _cannot(ev: Evidence) -> str:
    heard = ev.derive(told)
    if not heard:
        return NO_LOOKS
    stuck = [one for one in heard.values() if one.why]
    if stuck:
        return f"the counters of {stuck[0].port.name} of {stuck[0].port.node} are {next(iter(stuck[0].why.values()))}"
    return "no port of the job tells of lost packets (a virtual function does not)"


@fact("wire.saturated", type="number", unit="ports", parts="nic")
def saturated(ev: Evidence) -> Fact:
    """Ports of which a counter stands at its maximum or began anew between the looks: what it would say is unknown, not 0."""
    heard = ev.derive(told)
    if not heard:
        return unknown(NO_LOOKS)
    parts = [
        one.port.part(", ".join(f"{name} {why}" for name, why in list(one.why.items())[:MOST_TOLD]))
        for one in heard.values()
        if one.why
    ]
    return known(parts=parts, provenance=ev.seen(*sources([one.port for one in heard.values() if one.why])))


# ---------------------------------------------------------------- paths


@fact("wire.lossy_path", type="number", unit="links", parts="link")
def lossy_path(ev: Evidence) -> Fact:
    """Paths from a port, or between nodes over TCP, that lose packets while nothing says at which end: no node is named."""
    at_ends, _ = standing_out(ev, "own")
    found, could = standing_out(ev, "peer")
    heard, bad = ev.derive(tcp), ev.derive(bad_nodes)
    if not could and not heard:
        return unknown(_cannot(ev))
    if not found and not bad and heard and max(one.sent for one in heard.values()) < ev.limit("tcp_busy"):
        return unknown("too little went over TCP between the looks to tell whether any of it is lost")
    parts: list[Part] = []
    seen: list[Sample] = []
    if not at_ends:
        for one, rose in found.values():
            parts.append(
                Part("link", name=f"from {one.port.name} of {one.port.node} to its peer", why=_says(one, rose))
            )
            seen += sources([one.port])
    if ev.derive(meeting) is None:
        known_ways = ev.derive(tcp_edges)
        for way in known_ways.lossy:
            parts.append(Part("link", name=way.name, why=way.says))
        told_of = {way.source for way in known_ways.lossy}
        for each in bad:
            if each.node not in told_of:
                parts.append(Part("link", name=f"from {each.node} to its peers over TCP", why=each.says))
        seen += [each.sample for each in bad]
    nodes = {one.port.node for one, _ in found.values()} | {each.node for each in bad}
    # Two ends of one lossy cable both send again; more than that is the fabric.
    if len(nodes) > 2 and not few(ev, len(nodes), max(ev.derive(rails).nodes, len(heard))):
        text = f"packets are lost from {len(nodes)} nodes at once: not one path"
        return known(parts=[], text=text, provenance=ev.seen(*seen[:8]))
    text = "; ".join(f"{p.name}: {p.why}" for p in parts[:MOST_TOLD])
    return known(parts=parts, text=text or "no path loses packets", provenance=ev.seen(*seen[:8]))


@fact("wire.traffic", type="number", unit="MB/s")
def traffic(ev: Evidence) -> Fact:
    """Payload that all ports of the job moved between the looks, in both directions."""
    moved = [(g / w, p) for p in ev.derive(rails).ports() if (g := p.growth()) is not None and (w := p.window_s)]
    if not moved:
        return unknown("the bytes of no port of the job were seen in both looks")
    rate = sum(each for each, _ in moved)
    text = f"{rate / 1e6:.3g} MB/s over {len(moved)} ports"
    return known(rate / 1e6, text=text, provenance=ev.seen(*sources([port for _, port in moved])))


def moving(ev: Evidence, heard: list[Told]) -> list[Told]:
    """Those of a rail's ports, if most of them are at work: a share of their speed that is more than chatter."""
    loads = {id(one): load for one in heard if (load := _load(one)) is not None}
    busy = bool(loads) and median(loads.values()) >= ev.limit("wire_moving_share")
    return [one for one in heard if id(one) in loads] if busy else []


def _load(one: Told) -> float | None:
    """Share of its speed that the busier direction carried."""
    ways, speed = one.port.growths(), one.port.speed_mbps
    return max(ways.values()) * 8 / one.window_s / (speed * 1e6) if ways and speed else None
