"""Which one of several ranks enters its collectives in another order, or with other arguments, than all the others?

Where counting sides cannot decide (one against one, a cycle), every other rank with a dump is a witness: groups of one role
stand for each other, so rank 0's TP group tells what rank 4's should have done (notes/prototype-findings.md 3.3, rule 5).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from triage.facts.collectives import GroupKey, Records
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


def stands_apart(records: Records, rank: int) -> bool:
    """Does this rank's trail differ from at least half of all others' that can be compared with it (two at least)?

    Of three that wait for each other, two may be wrong and the third right: the rest of the job, which did as the third
    did, tells.
    """
    own = trail(records, rank)
    told = [
        d
        for other in _witnesses(records, [rank])
        if other != rank and (d := differ(own, trail(records, other))) is not None
    ]
    return sum(told) >= 2 and sum(told) * 2 >= len(told)


def overtakers(records: Records, waiting: Mapping[int, GroupKey], suspects: Collection[int]) -> dict[int, str]:
    """Ranks that wait for a suspect in one group, but have passed by an earlier collective of another group with it; else
    the one near the suspects whose order is another than all others'. rank -> why.

    That is one half of a circle; the other half would be the suspect's dump, if there were one: it waits where this rank
    has not come. What comes earlier is what most other ranks have done before, in their groups of that role. Of 373
    honest cases of the random jobs none has such a rank; of 51 circles and skips with one dump lost, 36 have.
    """
    near = [rank for rank in _near(records, suspects) if rank in waiting]
    found: dict[int, str] = {}
    for rank in near:
        view, roles = records.views[rank], _roles(records, rank)
        head = view.head
        if head is None or head.seq is None:
            continue
        here = (*roles[view.keys.index(head.key)], head.seq)
        passed = {g for g, seq in view.trail() if (*roles[g], seq) != here}
        owed = {
            (*roles[g], records.enqueued(view.rows[key], key) + 1): records.groups[key].label()
            for g, key in enumerate(view.keys)
            if g in passed and key != head.key and any(r in records.groups[key].members for r in suspects)
        }
        seen, before = 0, Counter[tuple[str, int, int]]()
        for other in _witnesses(records, [rank]) if owed else ():
            place = {key: i for i, (key, _) in enumerate(trail(records, other))}
            if other == rank or here not in place:
                continue
            seen += 1
            before.update(key for key in owed if place.get(key, place[here]) < place[here])
        for key, count in before.items():
            if count >= 2 and count * 2 > seen:
                found[rank] = f"has not come to number {key[2]} of {owed[key]}, which {count} others did before"
    odd = None if found else odd_one(records, near)
    return found if odd is None else {odd: "enters its collectives in another order than the other ranks"}


def _near(records: Records, suspects: Collection[int]) -> list[int]:
    """Ranks with a dump in the smallest groups of the suspects: who would stand in a circle with one of them."""
    near: dict[int, None] = {}
    for info in sorted(records.groups.values(), key=lambda info: len(info.members)):
        if len(near) < MOST_CANDIDATES and any(rank in info.members for rank in suspects):
            left = MOST_CANDIDATES - len(near)
            near.update(dict.fromkeys(islice((r for r in info.members if r in records.views and r not in near), left)))
    return list(near)


def _roles(records: Records, rank: int) -> list[tuple[str, int]]:
    """(role, which of that role) of each group of a rank, in the order of its keys."""
    view = records.views[rank]
    roles: list[tuple[str, int]] = []
    count: Counter[str] = Counter()
    for g, key in enumerate(view.keys):
        desc = str(view.record["groups"][g].get("desc") or "")
        role = desc or f"{len(records.groups[key].members)} members"
        roles.append((role, count[role]))
        count[role] += 1
    return roles


def _witnesses(records: Records, suspects: list[int]) -> list[int]:
    """All ranks with a dump; of very many, those nearest to the suspects (they run the same part of the program)."""
    ranks = sorted(records.views)
    if len(ranks) <= MOST_WITNESSES:
        return ranks
    return sorted(ranks, key=lambda r: (min(abs(r - s) for s in suspects), r))[:MOST_WITNESSES]


def trail(records: Records, rank: int) -> Trail:
    """The last units of a rank in the order of enqueueing."""
    view, roles = records.views[rank], _roles(records, rank)
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
