"""What kind of thing stands at the end of the waits? The wait-for graph met with the process table.

Two roads to one verdict: the survivors' dumps say whom they wait for, the process table says what became of it.
"""

from __future__ import annotations

from dataclasses import replace

from triage.facts.dumps import waits
from triage.facts.evidence import Evidence
from triage.facts.liveness import how_stopped, tracer_of
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, other, unknown
from triage.facts.waits import without_exchanges
from triage.model import Fact, Part

DEBUGGED = "a debugger mostly comes because a job stands: let the rank go, and look again"


def _ranks(fact: Fact) -> set[int]:
    return {part.rank for part in fact.parts if part.rank is not None}


def _of_kind(ev: Evidence, kind: str, process: str) -> Fact:
    """Roots of the waits of one kind; those that the process list alone makes a root are doubted where others could be."""
    roots, state = other(ev, "waits.roots"), other(ev, process)
    picture = ev.derive(waits).picture
    if not roots.known or picture is None:
        return unknown(roots.reason)
    parts = [part for part in roots.parts if part.rank is not None and picture.roots.get(part.rank) == kind]
    rivals = ("other ranks that could explain the waits as well",) if parts and picture.rivals else ()
    return known(parts=parts, provenance=(*roots.provenance[:4], *state.provenance[:4]), contradicted_by=rivals)


@fact("waits.roots_gone", type="number", unit="ranks", parts="rank")
def roots_gone(ev: Evidence) -> Fact:
    """Ranks that the others wait for and whose process is gone, and not only since the stall began."""
    return _of_kind(ev, "dead", "ranks.gone_first")


@fact("waits.roots_stopped", type="number", unit="ranks", parts="rank")
def roots_stopped(ev: Evidence) -> Fact:
    """Ranks that the others wait for and whose process is stopped.

    One that a debugger holds writes no record, and whoever writes none looks waited for: somebody may have attached to a
    victim of a hang in flight because the job stands. That is said as a doubt.
    """
    found, rows = _of_kind(ev, "stopped", "ranks.stopped"), ev.derive(rank_table).rows
    named = [rows[part.rank] for part in found.parts if part.rank is not None and part.rank in rows]
    debugged = [row for row in named if row.state == "t" or (tracer_of(row) or (0, ""))[0]]
    if debugged:
        found = replace(found, contradicted_by=(*found.contradicted_by, DEBUGGED))
    held = [
        replace(part, why=f"waited for; {how_stopped(rows[part.rank])}") if part.rank in rows else part
        for part in found.parts
        if part.rank is not None
    ]
    return replace(found, parts=tuple(held))


@fact("waits.root_kinds", type="number", unit="kinds")
def root_kinds(ev: Evidence) -> Fact:
    """How many different things stand at the ends of the waits: gone, stopped, in D, stuck on the device or the host."""
    roots = other(ev, "waits.roots")
    picture = ev.derive(waits).picture
    if not roots.known or picture is None:
        return unknown(roots.reason)
    kinds = sorted(set(picture.roots.values()))
    return known(
        len(kinds), text=f"the ranks at the ends of the waits are {', '.join(kinds)}", provenance=roots.provenance
    )


@fact("waits.out_of_order", type="number", unit="ranks", parts="rank")
def out_of_order(ev: Evidence) -> Fact:
    """Ranks that wait for a rank without a flight record, but have passed by what most others did first: half a circle."""
    picture = ev.derive(waits).picture
    if picture is None:
        return unknown(ev.derive(waits).why_none())
    node_of = ev.derive(rank_table).node_of
    return known(
        parts=[Part("rank", node_of(rank), rank, why=why) for rank, why in sorted(picture.out_of_order.items())],
        provenance=ev.seen(*ev.derive(waits).samples[:8]),
    )


def _alone(ev: Evidence, name: str) -> Fact:
    """Parts of a fact of the process list that may be accused although no dump says whom the others wait for."""
    suspects, late = other(ev, name), other(ev, "ranks.gone_late")
    if not suspects.known:
        return unknown(suspects.reason)
    picture = ev.derive(waits).picture
    why = ""
    if picture is not None and picture.waiting:
        why = "the flight records show waits that do not end there"
    elif late.parts:
        why = "other ranks ended after the stall began, and these may have as well"
    elif _living(ev) * 2 < len(ev.derive(rank_table).rows):
        why = "of most ranks nothing is seen: rather what came after the stall than what began it"
    if why:
        return known(parts=[], text=why, provenance=suspects.provenance)
    return known(parts=suspects.parts, provenance=suspects.provenance)


def _living(ev: Evidence) -> int:
    return sum(row.alive is True for row in ev.derive(rank_table).rows.values())


@fact("ranks.gone_alone", type="number", unit="ranks", parts="rank")
def gone_alone(ev: Evidence) -> Fact:
    """Ranks that are gone while most others live, where no flight record tells whom these wait for."""
    return _alone(ev, "ranks.gone_first")


@fact("ranks.stopped_alone", type="number", unit="ranks", parts="rank")
def stopped_alone(ev: Evidence) -> Fact:
    """Ranks that are stopped while most others are seen, where no flight record tells whom these wait for."""
    return _alone(ev, "ranks.stopped")


def _to_blame(ev: Evidence, waited_for: str, alone: str) -> Fact:
    by_waits, by_list = other(ev, waited_for), other(ev, alone)
    return by_waits if by_waits.parts else by_list


@fact("blame.gone", type="number", unit="ranks", parts="rank")
def blame_gone(ev: Evidence) -> Fact:
    """Whom a death may be laid to: gone ranks that the others wait for; without flight records, those gone alone."""
    return _to_blame(ev, "waits.roots_gone", "ranks.gone_alone")


@fact("blame.stopped", type="number", unit="ranks", parts="rank")
def blame_stopped(ev: Evidence) -> Fact:
    """Whom a stop may be laid to: stopped ranks that the others wait for; without flight records, those stopped alone."""
    return _to_blame(ev, "waits.roots_stopped", "ranks.stopped_alone")


@fact("waits.agree_with_hard", type="bool")
def agree_with_hard(ev: Evidence) -> Fact:
    """Do the survivors' dumps wait for the very ranks that the hard facts hit?"""
    roots, hard = other(ev, "waits.roots"), other(ev, "hard.parts")
    if not roots.known:
        return unknown(roots.reason)
    hit = {part for part in hard.parts if part.rank is not None}
    if not hard.known or not hit:
        return unknown(hard.reason or "the hard facts name no rank")
    if not roots.parts:
        return unknown("the dumps name no rank that the others wait for")
    agreed = [part for part in hit if part.rank in _ranks(roots)]
    picture = ev.derive(waits).picture
    vague = set(without_exchanges(ev.derive(waits), picture)) if picture is not None else set()
    if not agreed and _ranks(roots) <= vague:
        return unknown("the survivors wait for a rank whose records do not tell a failed operation from a finished one")
    names = ", ".join(sorted(Part.label(part) for part in agreed))
    # A second rank that is waited for, or a circle, may have been first: the one that ended is then one of several.
    more = _ranks(roots) - {part.rank for part in hit} - vague
    against = [f"rank {rank}, which is waited for as well" for rank in sorted(more)[:1]]
    against += ["ranks that wait for each other"] if other(ev, "waits.cycle").parts else []
    return known(
        bool(agreed),
        text=f"the survivors wait for {names}" if agreed else "the survivors wait for others",
        provenance=(*roots.provenance[:4], *hard.provenance[:4]),
        contradicted_by=against,
    )


@fact("waits.mismatch_named", type="number", unit="ranks", parts="rank")
def mismatch_named(ev: Evidence) -> Fact:
    """The ranks of a mismatch that something separates from their peers: the minority, or the odd one of the trail."""
    found, tied = other(ev, "waits.mismatch"), other(ev, "waits.mismatch_tied")
    if not found.known or not tied.known:
        return unknown(found.reason or tied.reason)
    return known(parts=() if tied.value else found.parts, text=found.text, provenance=found.provenance)
