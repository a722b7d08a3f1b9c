"""Which one of several ranks enters its collectives in another order, or with other arguments, than all the others?

Where counting sides cannot decide (one against one, a cycle), every other rank with a dump is a witness: groups of one role
stand for each other, so rank 0's TP group tells what rank 4's should have done (notes/prototype-findings.md 3.3, rule 5).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from triage.facts.collectives import Records
from triage.facts.signatures import canonical

# ((role of the group, which of that role, number), what must agree) of each unit, oldest first
Trail = list[tuple[tuple[str, int, int], tuple[tuple[str, ...], ...]]]

MOST_WITNESSES = 256
MOST_CANDIDATES = 16


def odd_one(records: Records, candidates: Iterable[int]) -> int | None:
    """The one candidate whose trail differs from at least half of all others', while every other candidate's differs from
    at most one; None if nothing separates them. Ranks that run another part of the program differ from all candidates
    alike, and so separate nobody."""
    suspects = sorted(set(candidates))
    if not 2 <= len(suspects) <= MOST_CANDIDATES:
        return None
    trails = {rank: trail(records, rank) for rank in suspects}
    apart: dict[int, int] = dict.fromkeys(suspects, 0)
    compared: dict[int, int] = dict.fromkeys(suspects, 0)
    for other in _witnesses(records, suspects):
        if other not in trails:
            trails[other] = trail(records, other)
        for rank in suspects:
            differs = None if other == rank else differ(trails[rank], trails[other])
            if differs is not None:
                compared[rank] += 1
                apart[rank] += differs
    odd = [r for r in suspects if apart[r] >= 2 and apart[r] * 2 >= compared[r]]
    if len(odd) == 1 and all(apart[r] <= 1 for r in suspects if r != odd[0]):
        return odd[0]
    return None


def _witnesses(records: Records, suspects: list[int]) -> list[int]:
    """All ranks with a dump; of very many, those nearest to the suspects (they run the same part of the program)."""
    ranks = sorted(records.views)
    if len(ranks) <= MOST_WITNESSES:
        return ranks
    return sorted(ranks, key=lambda r: (min(abs(r - s) for s in suspects), r))[:MOST_WITNESSES]


def trail(records: Records, rank: int) -> Trail:
    """The last units of a rank in the order of enqueueing."""
    view = records.views[rank]
    roles: list[tuple[str, int]] = []
    count: Counter[str] = Counter()
    for g, key in enumerate(view.keys):
        desc = str(view.record["groups"][g].get("desc") or "")
        role = desc or f"{len(records.groups[key].members)} members"
        roles.append((role, count[role]))
        count[role] += 1
    out: Trail = []
    for g, seq in view.trail():
        sig = records.window(rank, view.keys[g]).get(seq, "")
        out.append(((*roles[g], seq), canonical(sig)))
    return out


def differ(a: Trail, b: Trail) -> bool | None:
    """Do two trails part before one of them ends? None if they have nothing in common."""
    at = {key: i for i, (key, _) in enumerate(b)}
    start = next(((i, at[key]) for i, (key, _) in enumerate(a) if key in at), None)
    if start is None:
        return None
    i, j = start
    if i and j:  # neither begins inside the other: they part before
        return True
    return any(x != y for x, y in zip(a[i:], b[j:]))
