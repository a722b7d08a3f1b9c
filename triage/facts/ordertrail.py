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
    """The one candidate from whom the witnesses part; None if nothing separates them.

    A witness speaks where it parts from some candidates and goes with others. Two at least, and half of those that speak,
    must part from the one alone, and no two from another alone. Whoever goes with the one past where they parted from it
    speaks against it: then it runs another part of the program (another pipeline stage), and does so rightly.
    """
    suspects = sorted(set(candidates))
    if not 2 <= len(suspects) <= MOST_CANDIDATES:
        return None
    if any(records.views[rank].record.get("active_only") for rank in suspects if rank in records.views):
        return None  # what is open now is no order: where one left something out, its numbers mean other operations
    trails = {rank: trail(records, rank) for rank in suspects}
    if not all(trails.values()):
        return None
    alone: dict[int, list[int]] = {rank: [] for rank in suspects}  # how long those went with it that part from it alone
    along: dict[int, int] = dict.fromkeys(suspects, 0)  # how far anybody goes with it
    speak = 0
    for other in _witnesses(records, suspects):
        if other not in trails:
            trails[other] = trail(records, other)
        told = {
            rank: parted
            for rank in suspects
            if rank != other and (parted := _parting(trails[rank], trails[other])) is not None
        }
        for rank, (differs, common) in told.items():
            along[rank] = max(along[rank], 0 if differs else common)
        apart = [rank for rank, (differs, _) in told.items() if differs]
        if apart and len(apart) < len(told):
            speak += 1
            if len(apart) == 1:
                alone[apart[0]].append(told[apart[0]][1])
    odd = [r for r in suspects if len(alone[r]) >= 2 and len(alone[r]) * 2 >= speak and along[r] <= max(alone[r])]
    if len(odd) == 1 and all(len(alone[rank]) <= 1 for rank in suspects if rank != odd[0]):
        return odd[0] if _left_its_own(records, odd[0], trails[odd[0]]) else None
    return None


def _left_its_own(records: Records, rank: int, own: Trail) -> bool:
    """Does one of its own groups' members part from it too?

    If they all go along with it as far as they have come, those that part from it run another stage, which may be longer.
    """
    view = records.views[rank]
    keys = {view.keys[g] for g, _ in view.trail()}
    groups = [records.groups[key].members for key in keys if len(records.groups[key].members) < len(records.views)]
    mates = {
        mate for group in groups for mate in islice(group, MOST_WITNESSES) if mate != rank and mate in records.views
    }
    return not mates or any(differ(own, trail(records, mate)) for mate in sorted(mates)[:MOST_WITNESSES])


def stands_apart(records: Records, rank: int, peers: Iterable[int]) -> bool:
    """Has this rank left the program that those who do not join it (its peers in the group where it is alone) follow?

    Two ranks at least go further with a peer than with it, and not two go further with it than those who parted from it
    last. Ranks of another pipeline stage part from both alike, and so speak for neither.
    """
    own = trail(records, rank)
    asked = islice((p for p in peers if p != rank and p in records.views), MOST_CANDIDATES)
    others = {peer: trail(records, peer) for peer in asked}
    apart: list[int] = []
    along: list[int] = []
    for other in _witnesses(records, [rank]):
        theirs = trail(records, other) if other != rank else []
        parted = _parting(own, theirs)
        if parted is None:
            continue
        differs, common = parted
        further = (_parting(line, theirs) for peer, line in others.items() if peer != other)
        if not differs:
            along.append(common)
        elif any(with_peer is not None and with_peer[1] > common for with_peer in further):
            apart.append(common)
    return len(apart) >= 2 and sum(common > max(apart) for common in along) < 2


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
        role = desc if desc and desc != "undefined" else f"{len(records.groups[key].members)} members"
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
    """The last units of a rank in the order of enqueueing; [] where those between them are left out (a dump of open ones)."""
    view, roles = records.views[rank], _roles(records, rank)
    out: Trail = []
    if view.gaps:
        return out
    for g, seq in view.trail():
        sig = records.window(rank, view.keys[g]).get(seq, "")
        out.append(((*roles[g], seq), canonical(sig)))
    return out


def differ(a: Trail, b: Trail) -> bool | None:
    """Do two trails part before one of them ends? None if they have nothing in common."""
    parted = _parting(a, b)
    return None if parted is None else parted[0]


def _parting(a: Trail, b: Trail) -> tuple[bool, int] | None:
    """(do they part before one ends?, how many units they have in common until then); None if they have none."""
    at = {key: i for i, (key, _) in enumerate(b)}
    start = next(((i, at[key]) for i, (key, _) in enumerate(a) if key in at), None)
    if start is None:
        return None
    i, j = start
    if i and j:  # neither begins inside the other: they part before
        return True, 0
    common = 0
    for x, y in zip(a[i:], b[j:]):
        if x != y:
            return True, common
        common += 1
    return False, common
