"""Is one rank of a circle in another branch of the program: alone in a collective while all others wait for it elsewhere?

An `if rank == 0: evaluate()` around a collective, an exception handler that calls a barrier, a last batch that one rank
does not have: the rank enters, alone, what nobody else will, and owes the others what they all have entered.
What can fool it: a circle of two, in which either may be the one (the order trail decides or nobody); a rank that is right
where all others are wrong (not told from its opposite by any record: the majority is believed, as for a mismatch).
"""

from __future__ import annotations

from collections import Counter

from triage.facts.dumps import waits
from triage.facts.evidence import Evidence
from triage.facts.ordertrail import stands_apart
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, unknown
from triage.facts.waitgraph import Picture, Unit
from triage.model import Fact, Part


def apart(picture: Picture) -> int | None:
    """The rank of the one circle that is alone in its collective, and for which all others of the circle wait in the end."""
    if len(picture.cycles) != 1 or len(picture.cycles[0]) < 3:
        return None
    members = picture.cycles[0]
    units = {rank: picture.waiting.get(rank) for rank in members}
    if any(unit is None or unit.seq is None for unit in units.values()):
        return None
    joined = Counter(picture.waiting.values())
    alone = [rank for rank, unit in units.items() if unit is not None and joined[unit] == 1]
    odd = [rank for rank in alone if _resolves(picture, rank)]
    if len(odd) != 1 or picture.swapper not in (None, odd[0]):
        return None
    unit = units[odd[0]]
    assert unit is not None
    # Of two members of its group, the one that is not there may be the one that left it out.
    if sum(member in picture.records.views for member in picture.group(unit.key).members) < 3:
        return None
    return odd[0] if stands_apart(picture.records, odd[0], picture.group(unit.key).members) else None


def _resolves(picture: Picture, rank: int) -> bool:
    """Would no circle be left among the others if this rank came to where it is waited for?"""
    owing: dict[Unit, set[int]] = {}
    others = [other for other in picture.cycles[0] if other != rank]
    for other in others:
        for unit in picture.absent.get(other, ()):
            owing.setdefault(unit, set()).add(other)
    left = set(others)
    while left:
        held = {unit for unit, late in owing.items() if not late.isdisjoint(left)}
        free = {other for other in left if picture.waiting[other] not in held}
        if not free:
            return False
        left -= free
    return True


@fact("waits.apart", type="number", unit="ranks", parts="rank")
def apart_fact(ev: Evidence) -> Fact:
    """The rank of a circle that is alone in another collective, while all others of the circle wait for it elsewhere."""
    found = ev.derive(waits)
    if found.picture is None:
        return unknown(found.why_none())
    rank = apart(found.picture)
    if rank is None:
        return known(parts=[], provenance=ev.seen(*found.samples[:8]))
    label = found.picture.label
    owed = sorted(map(label, found.picture.absent[rank]))
    why = f"is alone at {label(found.picture.waiting[rank])}, and has not come to {' and '.join(owed[:2])}, where others wait"
    part = Part("rank", ev.derive(rank_table).node_of(rank) or found.dumps[rank].node or None, rank, why=why)
    samples = [s for s in found.samples if s.node == found.dumps[rank].node] or found.samples
    return known(parts=[part], text=f"rank {rank} {why}", provenance=ev.seen(*samples[:8]))
