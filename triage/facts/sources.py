"""Flight records met with what else tells who has come: the watchdogs' lines of the job log, and NCCL's own launch counts.

A rank without a usable record is only *possible* by the records of others. Its own line ("last enqueued 41", while the others
gave up at 42) or the launch counts of all members, the same in two reports, place it. A source that names others than the
records do is told as a contradiction, and one that says nothing is no witness.
The stack of a rank that has not come by its record, and stands in a collective, contradicts the record.
What can fool it: launch counts leave sends, receives and CUDA graphs out; "last enqueued" is counted when the call returns, so
that a rank stuck inside that very call looks as one that never came to it (its stack tells, where it was read).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from triage.facts.collectives import spoken
from triage.facts.dumps import Waits, waits
from triage.facts.evidence import Evidence
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, other, unknown
from triage.facts.shortfall import unproven
from triage.facts.stacks import stacks
from triage.facts.waitgraph import Picture
from triage.model import Fact, Part, Provenance

# fact -> how it is called where it contradicts the records
PLACES = {"watchdog.behind": "the watchdogs' lines", "ras.laggards": "NCCL's launch counts"}


def _many(ranks: Iterable[int]) -> str:
    have = sorted(set(ranks))
    return f"rank {have[0]}" if len(have) == 1 else f"ranks {spoken(have)}"


def placed(ev: Evidence) -> dict[str, dict[int, str]]:
    """fact -> {rank that has not come: why}, of each other source that names somebody. Through `ev.derive`."""
    found = {}
    for name in PLACES:
        told = other(ev, name)
        if told.known and told.parts:
            found[name] = {part.rank: part.why for part in told.parts if part.rank is not None}
    return found


def against(ev: Evidence, picture: Picture) -> tuple[str, ...]:
    """Sources that say otherwise than these records: who has not come is another rank, or one that waited."""
    named = {*picture.roots, *picture.absent, *picture.possible, *picture.named_by_mismatch, *picture.tied_by_mismatch}
    named |= {rank for circle in picture.cycles for rank in circle}
    found = [
        f"{PLACES[name]}, by which {_many(ranks)} had not come"
        for name, ranks in ev.derive(placed).items()
        if named and named.isdisjoint(ranks)
    ]
    idle = {rank for rank, kind in picture.roots.items() if kind == "host" and rank in picture.records.views}
    gave_up = {part.rank for part in other(ev, "watchdog.victims").parts} & idle
    if gave_up:
        found.append(
            f"the watchdog of {_many(rank for rank in gave_up if rank is not None)}, which gave up waiting itself"
        )
    # PyTorch writes an operation down when the call returns: who stands in such a call may have come all the same.
    places = ev.derive(stacks).places
    inside = [rank for rank in sorted(idle) if rank in places and places[rank].communicates]
    if inside:
        found.append(f"the stack of {_many(inside)}, which stands in a call that waits for others")
    return tuple(found)


@fact("waits.by_logs", type="number", unit="ranks", parts="rank")
def by_logs(ev: Evidence) -> Fact:
    """Of the ranks that could explain the waits but gave no flight record: those that another source places as not come.

    Only where the records name nobody by themselves, and no source names a rank whose record shows that it had come.
    """
    found = ev.derive(waits)
    picture = found.picture
    if picture is None:
        return unknown(found.why_none())
    if picture.roots or picture.cycles or not picture.possible:
        return known(parts=[], provenance=ev.seen(*found.samples[:8]))
    sources: Mapping[str, Mapping[int, str]] = _proven(ev, picture, ev.derive(placed))
    if not sources:
        return unknown(
            f"{_many(picture.possible)} gave no flight record, and neither the job log nor RAS places them",
            provenance=ev.seen(*found.samples[:8]),
        )
    told: dict[int, str] = {}
    doubt: list[str] = []
    for name, ranks in sources.items():
        inside = {rank: why for rank, why in ranks.items() if rank in picture.possible}
        if set(ranks) - set(inside):
            doubt.append(f"{PLACES[name]}, by which {_many(set(ranks) - set(inside))} had not come")
        elif told and set(told).isdisjoint(inside):
            doubt.append(f"{PLACES[name]}, by which {_many(inside)} had not come")
        for rank, why in inside.items():
            told.setdefault(rank, why)
    if not told:
        return unknown(f"{doubt[0]}, though the records show otherwise", provenance=ev.seen(*found.samples[:8]))
    return known(
        parts=[_part(ev, found, rank, why) for rank, why in sorted(told.items())],
        text=f"{_many(told)} gave no flight record, could explain all waits, and had not come by another source",
        provenance=_seen(ev, found, sources),
        contradicted_by=doubt,
    )


def _proven(ev: Evidence, picture: Picture, told: Mapping[str, Mapping[int, str]]) -> dict[str, dict[int, str]]:
    """The same without the ranks whose launch counts do not prove that they have not come to what the records wait in."""
    found = {}
    for name, ranks in told.items():
        kept = {
            rank: why
            for rank, why in ranks.items()
            if name != "ras.laggards" or rank not in picture.possible or not unproven(ev, rank)
        }
        if kept:
            found[name] = kept
    return found


@fact("watchdog.agreed", type="number", unit="ranks", parts="rank")
def agreed(ev: Evidence) -> Fact:
    """The rank that had not come by the watchdogs' lines, where records, processes or launch counts point at it too.

    The lines alone may lack one: whoever gave up in a group that no line is left of looks as one that never came.
    """
    told = other(ev, "watchdog.not_come")
    if not told.known:
        return unknown(told.reason)
    seen = [other(ev, name) for name in ("waits.by_logs", "ranks.gone_first", "ranks.stopped", "ras.laggards")]
    ranks = {part.rank for each in seen for part in each.parts}
    parts = [part for part in told.parts if part.rank in ranks]
    if told.parts and not parts and not all(each.known for each in seen):
        return unknown(f"no other source points at {_many(part.rank or 0 for part in told.parts)}")
    return known(
        parts=parts,
        provenance=(*told.provenance[:4], *(p for each in seen if each.parts for p in each.provenance[:4])),
    )


def _part(ev: Evidence, found: Waits, rank: int, why: str) -> Part:
    missing = found.stale.get(rank) or found.silent.get(rank) or "no flight record"
    return Part("rank", ev.derive(rank_table).node_of(rank), rank, why=f"{why}; {missing}")


def _seen(ev: Evidence, found: Waits, sources: Iterable[str]) -> tuple[Provenance, ...]:
    more = [p for name in sources for p in other(ev, name).provenance[:4]]
    return (*ev.seen(*found.samples[:4]), *more)
