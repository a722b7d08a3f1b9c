"""Whose answers never came over the fabric, though it lives (status 12), and which NVLink is the cause?

Status 12 accuses the path to the peer that it names, never the peer: whose process died first gets no card to answer
(notes/network.md 4.2). So the peer's liveness is asked first: its node answers, all its ranks live, its ports have link.
What can fool it: a rank that was killed and whose death nobody saw; a port that flapped unseen (then the path is right all
the same); a status 12 of an earlier communicator that was built anew.
"""

from __future__ import annotations

from collections.abc import Mapping

from triage.facts.blame import GivenUp, give_ups
from triage.facts.clocks import log_sample, our_time
from triage.facts.ends import near_the_stall
from triage.facts.evidence import Evidence
from triage.facts.flaps import window
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, other, unknown
from triage.facts.transport import spoken
from triage.facts.xids import judged
from triage.model import Fact, Part

MOST_PARTS = 64


@fact("links.peer_silent", type="number", unit="paths", parts="link")
def peer_silent(ev: Evidence) -> Fact:
    """Paths over which the transport gave up on a peer that lives: its node answers, its ranks are there, its ports have link."""
    if log_sample(ev) is None:
        return unknown("the job log could not be read")
    if ev.derive(window) is None:
        return unknown("the job advances, or nothing tells when its stall began")
    parts: dict[str, Part] = {}
    open_ = ""
    for given in ev.derive(give_ups):
        why = _not_alive(ev, given)
        if why is None:
            open_ = open_ or f"the peer {given.line.told or '?'} of a status 12 is no known node"
        elif why:
            open_ = open_ or why
        else:
            part = _path(given)
            parts.setdefault(str(part.name), part)
    if not parts and open_:
        return unknown(open_)
    log = ev.derive(spoken).provenance(ev) if parts else ()
    text = "; ".join(f"{part.name}: {part.why}" for part in list(parts.values())[:3])
    return known(parts=list(parts.values())[:MOST_PARTS], text=text, provenance=log)


def _not_alive(ev: Evidence, given: GivenUp) -> str | None:
    """Why this peer is not known to live and to have link; "" if it is; None where it is no known node."""
    node = given.line.peer
    if node is None:
        return None
    table = ev.derive(rank_table)
    ranks = table.node_ranks.get(node, ())
    if not ranks:
        return f"whether {node}, from which no answer came, lives is not known: no rank was seen there"
    for rank in ranks:
        row = table.rows[rank]
        if row.gone or not row.alive:
            return f"rank {rank} on {node}, from which no answer came, {'is gone' if row.gone else 'may be gone'}"
    own = [given.own] if given.own else []
    for port in [*own, *(trace.port for trace in given.far)]:
        if port.down:
            return f"{port.name} of {port.node} has no link"
    return ""


def _path(given: GivenUp) -> Part:
    line = given.line
    mine = f"{line.node or 'a node'}{f' ({given.own.name})' if given.own else ''}"
    why = f"NCCL on {line.node or 'a node'} got no answer from {line.peer} within its retries (status 12), and {line.peer} lives"
    return Part("link", name=f"{mine} to {line.peer}", why=why)


@fact("links.nvlink", type="number", unit="gpus", parts="gpu")
def nvlink(ev: Evidence) -> Fact:
    """GPUs whose NVLink is the cause: an Xid of NVLink near the stall, or a link down and a fatal word of its NVSwitch then."""
    causes = other(ev, "xids.cause")
    down, switches = other(ev, "gpus.nvlink_down"), other(ev, "xids.switch")
    lame = {(part.node, part.name): part for part in down.parts}
    parts: dict[tuple[str | None, str | None], Part] = {}
    sources = []
    for one in ev.derive(judged).causes:
        if one.meaning.cls == "nvlink":
            part = one.part()
            too = lame.get((part.node, part.name))
            parts.setdefault((part.node, part.name), part)
            sources += [*ev.seen(one.sample), *(down.provenance[:2] if too else ())]
    near = {part.node for part in switches.parts if part.node and _switch_near(ev, part.node)}
    for key, part in lame.items():
        if part.node in near and key not in parts:
            parts[key] = part
            sources += [*down.provenance[:2], *switches.provenance[:2]]
    if not parts and not causes.known and not (down.known and switches.known):
        return unknown(causes.reason)
    text = "; ".join(f"{part.label()}: {part.why}" for part in list(parts.values())[:3])
    return known(parts=list(parts.values())[:MOST_PARTS], text=text, provenance=tuple(dict.fromkeys(sources))[:8])


def _switch_near(ev: Evidence, node: str) -> bool:
    """Is a fatal word of an NVSwitch of this node dated inside the stall's beginning?"""
    sample = ev.latest("kernel").get(node)
    events = sample.data.get("events") if sample is not None else None
    for event in events if isinstance(events, list) else ():
        groups = event.get("groups") if isinstance(event, Mapping) and event.get("id") == "sxid" else None
        if not groups or groups.get("severity") != "Fatal":
            continue
        for at in (event.get("at"), event.get("last_at"), *(event.get("times") or ())):
            if isinstance(at, int | float) and near_the_stall(ev, node, our_time(ev, node, float(at))):
                return True
    return False
