"""Who lets the others wait, by flight records: the time between a rank's collectives, and how short its own waiting is.

No two clocks are compared: `gap` and `wait` are differences on one rank's own clock (probes/_reduced.py, `pace`), medians of
20 units or more. The slow rank of a group has the longest gap and waits least; so have those who wait for it in a smaller
group before, which is why one that waits there is passed over (a TP partner of a slow rank is as late to the DP collective).
What can fool it: the watchdog's notice comes every 100 ms, so only longer waits say anything unless PyTorch measured the
operations themselves; hosts that run ahead of their GPUs have no gaps to compare (unknown); a throttled link makes its far end
the last to arrive (notes/straggler-and-cost.md 2.1), so this names nobody alone: it is the second road of a straggler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from triage.facts.dumps import Waits, waits
from triage.facts.evidence import Evidence
from triage.facts.members import members
from triage.facts.pace import outliers
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Part

LEAST_MEMBERS = 4  # of a group in which one can stand out: of two, one is always the slower


@dataclass(frozen=True)
class Times:
    """Medians of one rank in one group, ms. `wait` is the operation's own length where that was measured."""

    gap: float | None
    wait: float
    measured: bool


@dataclass(frozen=True)
class Late:
    """The answer: the one rank that lets the others wait, or why nobody is told."""

    rank: int | None = None
    text: str = ""
    why: str = ""


def _times(found: Waits) -> dict[tuple[str, str], dict[int, Times]]:
    """Group (name, folded members) -> rank -> its times, of all usable dumps."""
    out: dict[tuple[str, str], dict[int, Times]] = {}
    for rank, dump in found.dumps.items():
        for row in dump.record["groups"]:
            pace = row.get("pace")
            if not pace or not row.get("ranks"):
                continue
            _, gap, wait, length = pace
            told = length if length is not None else wait
            if told is not None:
                out.setdefault((row["name"], row["ranks"]), {})[rank] = Times(gap, told, length is not None)
    return out


def late_rank(ev: Evidence) -> Late:
    """Compare within the largest group whose members (nearly) all tell; to be called through `ev.derive`."""
    groups = _times(ev.derive(waits))
    if not groups:
        return Late(why="no flight record tells when its collectives were finished")
    share = ev.limit("late_share")
    whole = {
        key: ranks for key, ranks in groups.items() if len(ranks) >= max(LEAST_MEMBERS, share * len(members(key[1])))
    }
    if not whole:
        return Late(why="of no group of four ranks or more do nearly all tell their times")
    ranks = max(whole.values(), key=len)
    if len({times.measured for times in ranks.values()}) > 1:
        return Late(why="some ranks measured their operations and some did not")
    if any(times.gap is None or times.gap <= 0 for times in ranks.values()):
        return Late(why="hosts run ahead of their GPUs, so the time between two collectives says nothing")
    found = [rank for rank in ranks if _stands_out(ev, rank, ranks)]
    roots = [rank for rank in found if not any(_waits_for(ev, rank, other, groups) for other in found)]
    if len(roots) != 1:
        names = ", ".join(map(str, roots[:4]))
        return Late(
            text=f"ranks {names} wait least alike" if roots else f"of {len(ranks)} ranks none waits less than its peers"
        )
    (rank,) = roots
    if any(not _waits_for(ev, other, rank, groups) for other in found if other != rank):
        return Late(text=f"ranks {', '.join(map(str, found[:4]))} are late alike")
    others = [times for other, times in ranks.items() if other not in found]
    text = (
        f"waits {ranks[rank].wait:.3g} ms, its peers {median(t.wait for t in others):.3g} ms; "
        f"between collectives {ranks[rank].gap:.3g} ms, its peers {median(t.gap or 0.0 for t in others):.3g} ms"
    )
    return Late(rank, text)


def _stands_out(ev: Evidence, rank: int, ranks: Mapping[int, Times]) -> bool:
    """Does it wait at most half as long as the median of all, by more than the watchdog's step, after a longer gap?"""
    mine, wait, gap = ranks[rank], median(t.wait for t in ranks.values()), median(t.gap or 0.0 for t in ranks.values())
    step = 0.0 if mine.measured else ev.limit("late_step_ms")
    return (
        mine.wait <= ev.limit("late_wait") * wait
        and wait - mine.wait > step
        and (mine.gap or 0.0) >= ev.limit("slow_ratio") * gap
    )


def _waits_for(ev: Evidence, rank: int, other: int, groups: Mapping[tuple[str, str], Mapping[int, Times]]) -> bool:
    """Does it wait longer than the other in a group of both?"""
    return rank != other and any(
        rank in ranks and other in ranks and ranks[other].wait <= ev.limit("late_wait") * ranks[rank].wait
        for ranks in groups.values()
    )


@fact("arrivals.late", type="number", unit="ranks", parts="rank")
def late(ev: Evidence) -> Fact:
    """The rank that waits least in its group's collectives and takes longest in between, by flight records: a lead."""
    found = ev.derive(late_rank)
    dumps = ev.derive(waits).dumps
    if found.why:
        return unknown(found.why)
    if found.rank is None:
        return known(parts=[], text=found.text)
    dump = dumps[found.rank]
    slow = {part.rank for part in ev.derive(outliers).slow}
    told = (f"flight records show rank {found.rank} as the one that is waited for, not the slow one",)
    return known(
        parts=[Part("rank", dump.node, found.rank, why=found.text)],
        text=f"rank {found.rank} {found.text}",
        provenance=ev.seen(dump.sample),
        contradicted_by=told if slow and found.rank not in slow else (),
    )
