"""Who lets the others wait, by flight records: the time between a rank's collectives, and how short its own waiting is.

No two clocks are compared: `gap` and `wait` are differences on one rank's own clock (probes/_reduced.py, `pace`), means of 20
units or more. The slow rank of a group has the longest gap and waits least; so has whoever waits for it in another group before
(a TP partner of a slow rank is as late to the DP collective). So one is named only if it waits for nobody in any group that it
works in, and the times of all ranks in all these groups are told: the one whose dump is missing may be the slow one.
What can fool it: the watchdog's notice comes every 100 ms, so only longer waits say anything unless PyTorch measured the
operations themselves; hosts that run ahead of their GPUs have no gaps to compare (unknown), nor have sends and receives; waiting
that no flight record holds (gloo, a store); a throttled link makes its far end the last to arrive (notes/straggler-and-cost.md
2.1). So this names nobody alone: it is the second road of a straggler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from triage.facts.dumps import Waits, waits
from triage.facts.evidence import Evidence
from triage.facts.members import members
from triage.facts.pace import outliers
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Part

MOST_RANKS = 1 << 17  # a world size is a number that a node tells
LEAST_MEMBERS = 4  # of a group in which one can stand out: of two, one is always the slower


@dataclass(frozen=True)
class Times:
    """Means of one rank in one group, ms. `wait` is the operation's own length where that was measured."""

    gap: float | None
    wait: float
    measured: bool


@dataclass(frozen=True)
class Late:
    """The answer: the one rank that lets the others wait, or why nobody is told."""

    rank: int | None = None
    text: str = ""
    why: str = ""
    measured: bool = False


Key = tuple[str, str]  # a group: name, folded members
Groups = Mapping[Key, Mapping[int, Times]]


def _times(ev: Evidence, found: Waits) -> tuple[dict[Key, dict[int, Times]], str]:
    """(group -> rank -> its times, of all groups that are worked in; why they are not all told)."""
    out: dict[Key, dict[int, Times]] = {}
    everyone: set[int] = set(range(min(ev.derive(rank_table).world_size or 0, MOST_RANKS)))
    silent = ""
    for rank, dump in found.dumps.items():
        for row in dump.record["groups"]:
            everyone.update(members(row.get("ranks") or ""))
            if "enq" not in row and not row.get("p2p"):
                continue  # nothing was ever done there
            _, gap, wait, length = row.get("pace") or (0, None, None, None)
            told = length if length is not None else wait
            if told is None or row.get("p2p") or not row.get("ranks"):
                silent = (
                    silent or f"rank {rank} also works in {row.get('desc') or row['name']}, whose times are not told"
                )
            else:
                out.setdefault((row["name"], row["ranks"]), {})[rank] = Times(gap, told, length is not None)
    if not out:
        return out, "no flight record tells when its collectives were finished"
    missing = sorted(everyone - found.dumps.keys())
    if missing:
        return out, f"the times of rank {missing[0]} are not told: the others may wait for it"
    return out, silent


def late_rank(ev: Evidence) -> Late:
    """The one that stands out in a group and waits for nobody in any; to be called through `ev.derive`."""
    found = ev.derive(waits)
    groups, why = _times(ev, found)
    if why:
        return Late(why=why)
    large = {key: ranks for key, ranks in groups.items() if len(ranks) >= LEAST_MEMBERS}
    if found.dumps.keys() - {rank for ranks in large.values() for rank in ranks}:
        return Late(why="not every rank works in a group of four or more, in which one could stand out")
    if len({times.measured for ranks in groups.values() for times in ranks.values()}) > 1:
        return Late(why="some ranks measured their operations and some did not")
    if any(times.gap is None or times.gap <= 0 for ranks in large.values() for times in ranks.values()):
        return Late(why="hosts run ahead of their GPUs, so the time between two collectives says nothing")
    out = {rank: ranks for ranks in large.values() for rank in ranks if _stands_out(ev, rank, ranks)}
    roots = [rank for rank in out if not any(_waits_for(ev, rank, other, groups) for other in found.dumps)]
    if len(roots) != 1:
        names = ", ".join(map(str, sorted(roots)[:4]))
        return Late(
            text=f"ranks {names} wait least alike"
            if roots
            else f"of {len(found.dumps)} ranks none waits less than its peers"
        )
    (rank,) = roots
    if any(not _waits_for(ev, other, rank, groups) for other in out if other != rank):
        return Late(text=f"ranks {', '.join(map(str, sorted(out)[:4]))} are late alike")
    mine, others = out[rank][rank], [times for other, times in out[rank].items() if other not in out]
    text = (
        f"waits {mine.wait:.3g} ms, its peers {median(t.wait for t in others):.3g} ms; "
        f"between collectives {mine.gap:.3g} ms, its peers {median(t.gap or 0.0 for t in others):.3g} ms"
    )
    return Late(rank, text, measured=mine.measured)


def _stands_out(ev: Evidence, rank: int, ranks: Mapping[int, Times]) -> bool:
    """Does it wait at most half as long as the median of all, by more than the watchdog's step, after a longer gap?"""
    mine, wait, gap = ranks[rank], median(t.wait for t in ranks.values()), median(t.gap or 0.0 for t in ranks.values())
    step = 0.0 if mine.measured else ev.limit("late_step_ms")
    return (
        mine.wait <= ev.limit("late_wait") * wait
        and wait - mine.wait > step
        and (mine.gap or 0.0) >= ev.limit("slow_ratio") * gap
    )


def _waits_for(ev: Evidence, rank: int, other: int, groups: Groups) -> bool:
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
        contradicted_by=told if found.measured and slow and found.rank not in slow else (),
    )
