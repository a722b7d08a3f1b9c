"""What ties a port to the stall beside the time at which it lost its link (DESIGN section 6, question 9)?

The transport named it (its own card reported it, gave up on it, or gave up on a peer behind it), the stalled group runs
over its node and is a part of the job only, or no byte moves on it alone while all others move.
What can fool it: the printer of a status 12 whose peer's process died first (it accuses nobody here), or whose own port
lost its link (it does not accuse its peer), a group of one node, which needs no port, many groups that are stuck at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from triage.facts.dumps import waits
from triage.facts.ends import ends
from triage.facts.evidence import Evidence
from triage.facts.flaps import Loss, Trace, hidden, in_onset, kernel_whole, traces, window
from triage.facts.ports import Port, job_ports
from triage.facts.ranktable import rank_table
from triage.facts.transport import GaveUp, PortEvent, Span, spoken
from triage.model import Sample

How = Literal["event", "gave up", "peer"]


@dataclass(frozen=True)
class Naming:
    """The transport named a port, or only its node (port None), near the stall."""

    node: str
    port: Port | None
    how: How
    why: str
    rail: str | None = None  # of a peer: the device at the printer's end, which mostly has its like at the other


def namings(ev: Evidence) -> list[Naming]:
    """Whom the transport named near the stall; to be called through `ev.derive`."""
    found = ev.derive(spoken)
    out: list[Naming] = []
    for event in found.events:
        trace = next((t for t in ev.derive(traces).get(event.node, ()) if event in t.events), None)
        if trace and trace.port.the_jobs and not event.up and _event_near(ev, trace, event):
            why = f"NCCL on {event.node} was told by its card that {trace.port.name} lost its link"
            out.append(Naming(event.node, trace.port, "event", why))
    for given in ev.derive(give_ups):
        line, own, far = given.line, given.own, given.far
        near = [trace for trace in ev.derive(traces).get(line.node or "", ()) if own and trace.port is own]
        peer = line.peer or line.told or "its peer"
        if line.node:
            why = f"NCCL on {line.node} gave up on {own.name if own else 'a port'}: no answer from {peer} (status 12)"
            out.append(Naming(line.node, own, "gave up", why))
        if line.peer and not (near and any(in_onset(ev, loss) for loss in near[0].losses)):
            why = f"NCCL on {line.node or 'another node'} got no answer from it (status 12)"
            only = far[0].port if len(far) == 1 else None
            out.append(Naming(line.peer, only, "peer", why, line.device))
    return list({(naming.node, naming.why): naming for naming in out}.values())


@dataclass(frozen=True)
class GivenUp:
    """One word of the transport that it gave up, near the stall and on a peer that had not died first.

    own   the printer's port, where that is known; `far`: the job's ports at the peer's end
    """

    line: GaveUp
    own: Port | None
    far: tuple[Trace, ...]


def give_ups(ev: Evidence) -> list[GivenUp]:
    """To be called through `ev.derive`."""
    out = []
    for line in ev.derive(spoken).gave_up:
        if line.peer and _died_first(ev, line.peer):
            continue  # whoever waits for a dead process gets no answer either
        own = _port(ev, line.node, line.device) if line.node else None
        far = tuple(trace for trace in ev.derive(traces).get(line.peer or "", ()) if trace.port.the_jobs)
        near = [trace for trace in ev.derive(traces).get(line.node or "", ()) if own and trace.port is own]
        if _gave_up_near(ev, line, [*near, *far]):
            out.append(GivenUp(line, own, far))
    return out


def _port(ev: Evidence, node: str, device: str | None) -> Port | None:
    """The port of the printer's own card; where the line does not name it, the only one that the job has there."""
    found = [t.port for t in ev.derive(traces).get(node, ()) if t.port.the_jobs]
    fits = [port for port in found if device is None or port.answers_to(device)]
    if len(fits) == 1:
        return fits[0]
    return None if device is None or fits else Port(node, device, None, "named", True)


def _event_near(ev: Evidence, trace: Trace, event: PortEvent) -> bool:
    w = ev.derive(window)
    if w is None:
        return False
    return any(span.inside(w.lo, w.hi) or _only_then(ev, [trace], span, 0.0) for span in event.times)


def _gave_up_near(ev: Evidence, line: GaveUp, suspects: list[Trace]) -> bool:
    w = ev.derive(window)
    if w is None:
        return False
    lo = w.earliest - ev.limit("link_slack_s")
    return any(
        span.inside(lo, w.gave_up) or (span.lo >= lo and _only_then(ev, suspects, span, w.earliest - w.lo))
        for span in line.times
    )


def _only_then(ev: Evidence, suspects: Iterable[Trace], span: Span, reach: float) -> bool:
    """An undated word: do the kernels of its suspects know of losses that it can speak of, and all at the stall's beginning?"""
    same = ev.limit("link_same_s")
    known: list[Loss] = []
    for trace in suspects:
        if not kernel_whole(ev, trace.port.node) or hidden(ev, trace):
            return False
        known += [
            loss for loss in trace.losses if loss.kernel and loss.down.meets(span.lo - reach - same, span.hi + same)
        ]
    return bool(known) and all(in_onset(ev, loss) for loss in known)


def _died_first(ev: Evidence, node: str) -> bool:
    table = ev.derive(rank_table)
    return any(end.kind != "late" and table.node_of(rank) == node for rank, end in ev.derive(ends).items())


# ---------------------------------------------------------------- ties


@dataclass(frozen=True)
class Tie:
    """One more reason, beside the time, to hold a port for the cause, and the samples that it stands on."""

    why: str
    samples: tuple[Sample, ...]


def ties(ev: Evidence, loss: Loss) -> list[Tie]:
    """What ties this loss to the stall."""
    port, log = loss.port, ev.derive(spoken).sample
    found = [
        Tie(naming.why, (log,) if log else ())
        for naming in ev.derive(namings)
        if naming.node == port.node and _names(ev, naming, loss)
    ]
    if port.node in ev.derive(_stalled_part):
        samples = tuple(s for s in ev.derive(waits).samples if s.node == port.node)
        found.append(Tie(f"the stalled group runs over {port.node} and is only a part of the job", samples[:1]))
    if _alone_still(ev, port):
        found.append(Tie("no byte moves on it while the job's other ports move", (port.sample,) if port.sample else ()))
    return found


def _names(ev: Evidence, naming: Naming, loss: Loss) -> bool:
    """Does this naming speak of the port that lost its link? An event that alone dates the loss does not tie it as well."""
    port = loss.port
    if naming.how == "event" and loss.kernel is None:
        return False
    if naming.port is not None:
        return same_port(naming.port, port)
    mine = [trace.port for trace in ev.derive(traces).get(port.node, ()) if trace.port.the_jobs]
    if naming.how != "peer" or naming.rail is None:
        return len(mine) == 1
    return port.answers_to(naming.rail) or len(mine) == 1


def same_port(a: Port, b: Port) -> bool:
    return a.node == b.node and bool({a.device, a.netdev} & {b.device, b.netdev} - {None})


def _stalled_part(ev: Evidence) -> set[str]:
    """Nodes over which every stalled group runs in which all have joined, where those are a part of the job only."""
    picture, table = ev.derive(waits).picture, ev.derive(rank_table)
    keys = {unit.key for unit in picture.stuck_units} if picture else set()
    if picture is None or not keys or table.world_size is None:
        return set()
    everybody: set[int] = set()
    common: set[str] | None = None
    for key in keys:
        info = picture.group(key)
        nodes = {table.node_of(rank) for rank in info.members}
        if not info.complete or None in nodes or len(nodes) < 2:
            return set()
        everybody.update(info.members)
        told = {node for node in nodes if node}
        common = told if common is None else common & told
    return common or set() if len(everybody) < table.world_size else set()


def _alone_still(ev: Evidence, port: Port) -> bool:
    """Does this port of the job stand still between the looks, while each of at least two others moves?"""
    floor = ev.limit("payload_floor_bytes_per_s")

    def moves(one: Port) -> bool | None:
        grew, window_s = one.growth(), one.window_s
        return None if grew is None or window_s is None else grew / window_s >= floor

    others = [moving for one in job_ports(ev) if not same_port(one, port) and (moving := moves(one)) is not None]
    return moves(port) is False and len(others) >= 2 and all(others)
