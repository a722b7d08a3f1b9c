"""Who has to send again over TCP, and to whom, while the job moves.

Where a job's payload goes over sockets no card counts what is lost; the sender does, for the whole node (TcpExt of
/proc/net) and for each connection (ss). A sender that sends again is the one that noticed: the packets were lost on its way
to the peer, and who loses them is told only where several lossy ways meet in one node.
What can fool it: the counters of the node are those of all its connections; openings that nobody answers count as time-outs
and as segments sent again; a clean run at line rate sends two segments in ten thousand again, without one time-out
(notes/network.md 1.4); addresses that two nodes show (a bridge of containers) are nobody's; in a ring each node has one way
out and one in, so that one lossy way leaves both of its ends in doubt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from triage.facts.evidence import Evidence
from triage.facts.fabric import fabric
from triage.facts.ports import ports
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Part, Sample
from triage.probes._nic_sockets import host

COUNTERS = ("OutSegs", "RetransSegs", "TCPTimeouts", "TCPSynRetrans")


@dataclass(frozen=True)
class Tcp:
    """TCP of one node between the looks: the share of segments sent again, and time-outs a second of open connections."""

    node: str
    share: float
    timeouts_per_s: float
    sent: int
    says: str
    sample: Sample


def looks(ev: Evidence) -> Iterator[tuple[str, Sample, Sample, float]]:
    """(node, look A, look B, seconds between) of the nodes of one boot whose payload goes over sockets."""
    for node, (a, b) in ev.both_looks("nic").items():
        if a.at is None or b.at is None or b.at - a.at < ev.limit("wire_min_s") or not _over_tcp(ev, node):
            continue
        if a.data.get("boot_id") == b.data.get("boot_id"):
            yield node, a, b, b.at - a.at


def _over_tcp(ev: Evidence, node: str) -> bool:
    """Does the job's payload go over sockets there: RDMA switched off, or no RDMA device at hand?"""
    mine = [port for port in ev.derive(ports).get(node, ()) if port.the_jobs]
    return fabric(ev, node).no_rdma or (bool(mine) and not any(port.device for port in mine))


def tcp(ev: Evidence) -> dict[str, Tcp]:
    """node -> its TCP; to be called through `ev.derive`."""
    found: dict[str, Tcp] = {}
    for node, a, b, window in looks(ev):
        old, new = a.data.get("tcp") or {}, b.data.get("tcp") or {}
        grew = {n: new[n] - old[n] for n in COUNTERS if isinstance(new.get(n), int) and isinstance(old.get(n), int)}
        if len(grew) < len(COUNTERS) or any(value < 0 for value in grew.values()):
            continue  # absent, or another network namespace: nothing can be told
        again = max(0, grew["RetransSegs"] - grew["TCPSynRetrans"])
        waited = max(
            0, grew["TCPTimeouts"] - grew["TCPSynRetrans"]
        )  # an opening that nobody answers is no loss of ours
        share = again / grew["OutSegs"] if grew["OutSegs"] > 0 else 0.0
        says = f"TCP sent {again} of {grew['OutSegs']} segments again, {waited} time-outs, in {window:.3g}s"
        lost = share if again >= ev.limit("tcp_least") else 0.0
        rate = waited / window if waited >= ev.limit("tcp_timeouts_least") else 0.0
        found[node] = Tcp(node, lost, rate, grew["OutSegs"], says, b)
    return found


def bad_nodes(ev: Evidence) -> list[Tcp]:
    """Nodes whose TCP loses, and clearly more than the others'; to be called through `ev.derive`."""
    heard = ev.derive(tcp)
    found = []
    for one in heard.values():
        others = [o for o in heard.values() if o is not one]
        usual_share = median(o.share for o in others) if others else 0.0
        usual_waits = median(o.timeouts_per_s for o in others) if others else 0.0
        factor = ev.limit("loss_over_rail")
        by_share = one.share >= ev.limit("tcp_again_share") and one.share >= factor * usual_share
        by_waits = one.timeouts_per_s >= ev.limit("tcp_timeouts_per_s") and one.timeouts_per_s >= factor * usual_waits
        if by_share or by_waits:
            found.append(one)
    return found


# ---------------------------------------------------------------- connections


@dataclass(frozen=True)
class Way:
    """All connections from one node of the job to another, between the looks."""

    source: str
    target: str
    sent: int
    again: int
    waited: float = 0.0  # share of the time that its busiest connection waited for the network

    @property
    def share(self) -> float:
        return self.again / self.sent if self.sent else 0.0

    @property
    def says(self) -> str:
        return f"{self.source} sent {self.again} of {self.sent} segments to {self.target} again"

    @property
    def name(self) -> str:
        return f"from {self.source} to {self.target} over TCP"


@dataclass(frozen=True)
class Ways:
    """lossy   those that lose clearly more than the others;  clean  those that carry enough to be called so
    narrow  those that have data under way nearly all the time, while most wait for them;  free  those that hardly do
    half    between the two: their acknowledgements share the narrow place with a narrow way's data
    """

    lossy: tuple[Way, ...] = ()
    clean: tuple[Way, ...] = ()
    narrow: tuple[Way, ...] = ()
    free: tuple[Way, ...] = ()
    half: tuple[Way, ...] = ()
    samples: tuple[Sample, ...] = ()


def edges(ev: Evidence) -> Ways:
    """To be called through `ev.derive`."""
    pairs = list(looks(ev))
    owner: dict[str, set[str]] = {}
    for node, _, b, _ in pairs:
        for row in b.data.get("sockets") or ():
            owner.setdefault(host(row[0]), set()).add(node)
    only = {each.rpartition(":")[0].strip("[]") for node in ev.job.nodes for each in node.fabric}
    sums: dict[tuple[str, str], list[int]] = {}
    waits: dict[tuple[str, str], float] = {}
    for node, a, b, window in pairs:
        old = {(row[0], row[1]): row for row in a.data.get("sockets") or ()}
        for row in b.data.get("sockets") or ():
            was, peers = old.get((row[0], row[1])), owner.get(host(row[1]), set())
            if was is None or len(peers) != 1 or row[2] < was[2] or row[3] < was[3] or node in peers:
                continue
            if only and host(row[0]) not in only:
                continue  # the management network's connections are not the job's
            total = sums.setdefault((node, next(iter(peers))), [0, 0])
            total[0] += row[2] - was[2]
            total[1] += row[3] - was[3]
            key = (node, next(iter(peers)))
            waits[key] = max(waits.get(key, 0.0), min(1.0, max(0, row[4] - was[4]) / 1000 / window))
    ways = [Way(a, b, n, again, waits[a, b]) for (a, b), (n, again) in sums.items() if n >= ev.limit("tcp_busy")]
    lossy = []
    for way in ways:
        usual = median([other.share for other in ways if other is not way] or [0.0])
        limit = max(ev.limit("tcp_again_share"), ev.limit("loss_over_rail") * usual)
        if way.again >= ev.limit("tcp_least") and way.share >= limit:
            lossy.append(way)
    clean = [way for way in ways if way.share < ev.limit("tcp_again_share") / ev.limit("loss_over_rail")]
    narrow, free = _narrow(ev, ways, lossy)
    half = tuple(way for way in ways if way not in narrow and way not in free) if narrow else ()
    return Ways(tuple(lossy), tuple(clean), narrow, free, half, tuple(b for _, _, b, _ in pairs))


def _narrow(ev: Evidence, ways: list[Way], lossy: list[Way]) -> tuple[tuple[Way, ...], tuple[Way, ...]]:
    """(ways that wait for the network nearly all the time, ways that do not): a synchronous job runs at the pace of the former.

    Where a way loses, it waits for what is sent again, and its acknowledgements make others wait: that is no narrow place.
    """
    free = tuple(way for way in ways if way.waited * ev.limit("loss_over_rail") <= ev.limit("tcp_waits"))
    narrow = tuple(way for way in ways if way.waited >= ev.limit("tcp_waits")) if not lossy else ()
    # Most ways wait little where a few are narrow; where most wait, the network is what the job is limited by.
    return (narrow, free) if 2 * len(free) > len(ways) else ((), free)


@dataclass(frozen=True)
class Meeting:
    """The one node that every bad way has as an end."""

    node: str
    says: str
    samples: tuple[Sample, ...]


def meeting(ev: Evidence) -> Meeting | None:
    """The node in which at least two lossy ways meet, and no other, while ways that pass it by are clean; else None."""
    found = ev.derive(edges)
    return _meeting(found.lossy, found.clean, found.samples, "; ".join(way.says for way in found.lossy[:3]))


def narrow_meeting(ev: Evidence) -> Meeting | None:
    """The same of ways that wait for the network.

    A link that is narrow one way delays what goes the other way too: its acknowledgements stand in the same queue. Measured
    between five namespaces in a ring: the way into the limited node waited 98 % of the time, the way out of it 45 %, the
    others 1 %.
    """
    found = ev.derive(edges)
    bad = (*found.narrow, *found.half)
    return _meeting(bad, found.free, found.samples, waits_text(bad))


def waits_text(ways: tuple[Way, ...]) -> str:
    return "; ".join(f"{w.source} waited {w.waited:.0%} of the time for the network to {w.target}" for w in ways[:3])


def _meeting(bad: tuple[Way, ...], good: tuple[Way, ...], samples: tuple[Sample, ...], says: str) -> Meeting | None:
    if len(bad) < 2:
        return None
    common = set.intersection(*({way.source, way.target} for way in bad))
    if len(common) != 1:
        return None
    node = next(iter(common))
    if not any(node not in (way.source, way.target) for way in good):
        return None
    return Meeting(node, says, samples)


def port_of(ev: Evidence, node: str, why: str) -> Part:
    """The port over which a node's sockets go, if it is known to be one."""
    mine = [port for port in ev.derive(ports).get(node, ()) if port.the_jobs]
    if len(mine) == 1:
        return mine[0].part(why)
    return Part("nic", node=node, name="one of its ports", why=why)


NO_WAYS = "no two nodes are seen to speak over TCP (the payload goes another way, or ss is missing there)"


@fact("wire.narrow", type="number", unit="ports", parts="nic")
def narrow(ev: Evidence) -> Fact:
    """Ports whose node is an end of every connection that waits for the network, while the other connections do not."""
    found = ev.derive(edges)
    if not (found.clean or found.lossy or found.free or found.narrow):
        return unknown(NO_WAYS)
    meet = ev.derive(narrow_meeting)
    parts = [port_of(ev, meet.node, meet.says)] if meet else []
    return known(parts=parts, text=meet.says if meet else "", provenance=ev.seen(*found.samples[:8]) if meet else ())


@fact("wire.narrow_path", type="number", unit="links", parts="link")
def narrow_path(ev: Evidence) -> Fact:
    """The way between two nodes that waits for the network nearly all the time, while the others do not: which end is not told."""
    found = ev.derive(edges)
    if not (found.clean or found.lossy or found.free or found.narrow):
        return unknown(NO_WAYS)
    ways = found.narrow if ev.derive(narrow_meeting) is None and len(found.narrow) <= 2 else ()
    parts = [Part("link", name=way.name, why=waits_text((way,))) for way in ways]
    return known(parts=parts, text=waits_text(ways), provenance=ev.seen(*found.samples[:8]) if parts else ())
