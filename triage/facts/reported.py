"""Whom does the trainer itself call slow, and where does its step time go, by its own lines in the job's log?

NVIDIA's resiliency extension (scores of each rank's kernels without NCCL's), Megatron's straggler detection (the quickest and the
slowest rank in each report) and timers (least and most over ranks, which are not named), DeepSpeed's breakdown (rank 0 alone).
A line is a claim, so nobody is accused by it: who is reported is a lead beside the ranks' own times. And silence proves nothing:
by its defaults the extension names a rank from a score of 0.70 or 0.75 on, and one at 88 % speed has 0.88
(notes/straggler-and-cost.md 0.10). So its scores are read, not its warnings alone.
What can fool it: a report of an hour ago (dated, and only the newest count); one hiccup (the same rank in most of the last
reports); Megatron's timed part of a step holds the waits within a pipeline stage and a tensor-parallel group, so that all ranks
of a slow one's group may be called slow; the batch's time is the longest of the interval, and loaders fetch ahead.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from triage.facts.clocks import log_sample, log_time
from triage.facts.evidence import Evidence
from triage.facts.onset import change
from triage.facts.ranktable import log_hits, rank_table
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Part

NEWEST = 10  # reports of one kind that are compared
SCORES = "pace_nvrx_score"
CUT = 128  # characters that the probe tells of a group
_ID = re.compile(r"rank=(\d{1,7}), node=|(?:^|[\s,])(\d{1,7})(?=,|$)")
_LOWEST = re.compile(r" (\d{1,7}\.\d{1,4})/(\d{1,7}),")

Hit = Mapping[str, Any]


@dataclass(frozen=True)
class Claim:
    """One rank that a report calls slow, and in whose words."""

    rank: int
    why: str


def _text(hit: Hit, name: str) -> str:
    groups = hit.get("groups")
    return str(groups.get(name, "")) if isinstance(groups, Mapping) else ""


def _number(hit: Hit, name: str) -> float:
    """A group of digits. The signature's pattern made it; a case of somebody else may hold anything."""
    text = _text(hit, name)
    return float(text) if re.fullmatch(r"\d{1,9}(?:\.\d{1,4})?", text) else 0.0


def _rank(hit: Hit, name: str) -> int:
    text = _text(hit, name)
    return int(text) if re.fullmatch(r"\d{1,7}", text) else -1


def _place(hit: Hit) -> int:
    line = hit.get("line_no")
    return line if isinstance(line, int) else -1


def _fresh(ev: Evidence, *ids: str) -> list[Hit]:
    """Lines of these kinds that were written lately, in the order of the log; without a date a line is of any time."""
    out = []
    for hit in sorted(log_hits(ev, *ids), key=_place):
        at = log_time(ev, hit.get("last_at"))
        if at is not None and ev.observed - at <= ev.limit("report_stale_s"):
            out.append(hit)
    return out


def _by_scores(ev: Evidence) -> list[Claim]:
    """Of the newest report on relative performance: ranks whose score stands out below those that it tells."""
    hits = _fresh(ev, "pace_nvrx_report", SCORES, "pace_nvrx_named")
    heads = [hit for hit in hits if hit.get("id") == "pace_nvrx_report"]
    begun = max((_place(hit) for hit in heads if _text(hit, "kind") == "relative"), default=None)
    if begun is None:
        return _by_warning(hits)
    ended = min((_place(hit) for hit in heads if _place(hit) > begun), default=None)
    told = {
        _rank(hit, "rank"): _number(hit, "score")
        for hit in hits
        if hit.get("id") == SCORES and begun < _place(hit) and (ended is None or _place(hit) < ended)
    }
    if len(told) < ev.limit("report_least"):
        return []
    usual = median(told.values())
    return [
        Claim(
            rank,
            f"NVIDIA's straggler detection: score {score:.2f}, of {len(told)} ranks that it tells usually {usual:.2f}",
        )
        for rank, score in sorted(told.items(), key=lambda item: item[1])
        if 0 < score * ev.limit("slow_ratio") <= usual
    ]


def _by_warning(hits: Iterable[Hit]) -> list[Claim]:
    """Of a detector that is told to print no scores: whom its newest warning names."""
    named = [hit for hit in hits if hit.get("id") == "pace_nvrx_named"]
    if not named:
        return []
    text = _text(named[-1], "ranks")
    if len(text) >= CUT:
        text = text.rpartition(",")[0]  # the last number may be a part of one
    found = [int(first or second) for first, second in _ID.findall(text)]
    return [Claim(rank, f"NVIDIA's straggler detection: {_text(named[-1], 'kind')}") for rank in found]


def _same(ev: Evidence, hits: list[Hit], who: str, how: Callable[[Hit], float]) -> tuple[int, float, int] | None:
    """(rank, median of `how` over the reports that name it, reports) if nearly all of the last reports name one rank."""
    last = hits[-NEWEST:]
    if len(last) < ev.limit("report_least"):
        return None
    rank, times = Counter(_rank(hit, who) for hit in last).most_common(1)[0]
    if rank < 0 or times < ev.limit("slow_share") * len(last):
        return None
    return rank, median(how(hit) for hit in last if _rank(hit, who) == rank), times


def _over(most: str, least: str) -> Callable[[Hit], float]:
    return lambda hit: _number(hit, most) / _number(hit, least) if _number(hit, least) else 0.0


def _by_megatron(ev: Evidence) -> list[Claim]:
    """The rank that is slowest in nearly all of the last reports, where it is so by enough."""
    hits = _fresh(ev, "pace_megatron_straggler")
    found = _same(ev, hits, "most_rank", _over("most", "least"))
    if found is None or found[1] < ev.limit("slow_ratio"):
        return []
    rank, ratio, times = found
    why = f"Megatron's straggler detection: slowest in {times} of {len(hits[-NEWEST:])} reports, +{ratio - 1:.1%} on the quickest"
    lowest = _fresh(ev, "pace_megatron_lowest")
    beside = _LOWEST.findall(_text(lowest[-1], "ranks")) if lowest else []
    near = [int(r) for tf, r in beside if beside[0][1] == str(rank) and float(tf) < 1.01 * float(beside[0][0])]
    if len(near) > 1:  # a tensor-parallel group is as slow as its slowest member
        why += f"; ranks {', '.join(map(str, near[1:9]))} are as slow"
    return [Claim(rank, why)]


@fact("pace.reported", type="number", unit="ranks", parts="rank")
def reported(ev: Evidence) -> Fact:
    """Ranks that the trainer's own straggler report calls slow: a lead, for a line in a log proves nothing."""
    if log_sample(ev) is None:
        return unknown("the job log could not be read")
    if not log_hits(ev, "pace_nvrx_report", "pace_nvrx_named", "pace_megatron_straggler"):
        return unknown("the job prints no straggler report that is known here")
    if not _fresh(ev, "pace_nvrx_report", "pace_nvrx_named", "pace_megatron_straggler"):
        return unknown("the newest straggler report in the job log is old, or has no date")
    table = ev.derive(rank_table)
    size = table.world_size
    claims = {c.rank: c for c in (*_by_megatron(ev), *_by_scores(ev)) if size is None or c.rank < size}
    parts = [Part("rank", table.node_of(rank), rank, why=claim.why) for rank, claim in sorted(claims.items())]
    text = "; ".join(f"{part.label()}: {part.why}" for part in parts[:3]) or "the newest reports call no rank slow"
    return known(parts=parts, text=text, provenance=ev.seen(*filter(None, (log_sample(ev),))))


@fact("pace.reported_input", type="number", unit="ranks", parts="rank")
def reported_input(ev: Evidence) -> Fact:
    """The rank that Megatron's reports say waits longest for its batch, where that is a good part of a step: a lead."""
    hits = _fresh(ev, "pace_megatron_straggler")
    if len(hits) < ev.limit("report_least"):
        return unknown("fewer than three fresh reports of Megatron's straggler detection are in the job log")

    def share(hit: Hit) -> float:
        step = _number(hit, "most")
        return (_number(hit, "data") - _number(hit, "data_least")) / step if step else 0.0

    found = _same(ev, hits, "data_rank", share)
    if found is None or found[1] < ev.limit("slow_job"):
        return known(parts=[], text="no rank waits for its batch much longer than the others, by Megatron's reports")
    rank, part_of_step, times = found
    why = f"waits longest for its batch in {times} of {len(hits[-NEWEST:])} reports, by {part_of_step:.0%} of a step"
    part = Part("rank", ev.derive(rank_table).node_of(rank), rank, why=why)
    return known(parts=[part], text=f"{part.label()}: {why}", provenance=ev.seen(*filter(None, (log_sample(ev),))))


@fact("pace.spread", type="number")
def spread(ev: Evidence) -> Fact:
    """Compute time of the slowest rank over that of the quickest by Megatron's timers, which name neither (1.05 = 5 %)."""
    told: list[tuple[float, str]] = []
    for name in ("forward-compute", "backward-compute"):
        hits = [h for h in _fresh(ev, "pace_megatron_timer") if _text(h, "timer") == name][-NEWEST:]
        if len(hits) >= ev.limit("report_least"):
            least, most = (median(_number(hit, key) for hit in hits) for key in ("least", "most"))
            if least > 0:
                told.append((most / least, f"{name} {least:.4g} ms on the quickest rank, {most:.4g} ms on the slowest"))
    if not told:
        return unknown("Megatron's compute timers (--timing-log-level 2) are not in the job log")
    return known(
        max(told)[0], text="; ".join(text for _, text in told), provenance=ev.seen(*filter(None, (log_sample(ev),)))
    )


@fact("pace.reduce_share", type="number")
def reduce_share(ev: Evidence) -> Fact:
    """Which share of the lost time goes into reducing gradients, by DeepSpeed's breakdown of rank 0: 1 = all, 0 = none."""
    hits = sorted(log_hits(ev, "pace_deepspeed") or log_hits(ev, "pace_deepspeed_micro"), key=_place)
    rows = [(sum(_number(hit, name) for name in ("fwd", "inner", "step")), _number(hit, "reduce")) for hit in hits]
    found = change([work + reduce for work, reduce in rows if work + reduce > 0])
    if found is None:
        return unknown("fewer than ten lines of DeepSpeed's breakdown are in the job log")
    if not found.changed or found.increase <= 0:
        return unknown("DeepSpeed's breakdown shows no step that became longer")
    now = rows[found.since :]
    healthy = [row for row in rows[: found.since] if row[0] + row[1] <= 1.05 * found.healthy] or rows[: found.since]
    (work, reduce), (work_now, reduce_now) = (
        [median(row[column] for row in part) for column in (0, 1)] for part in (healthy, now)
    )
    grown = (work_now - work) + (reduce_now - reduce)
    if grown <= 0:
        return unknown("DeepSpeed's breakdown shows no part that became longer")
    return known(
        min(1.0, max(0.0, (reduce_now - reduce) / grown)),
        text=f"rank 0: reducing gradients {reduce:.4g} -> {reduce_now:.4g} ms, all else {work:.4g} -> {work_now:.4g} ms",
        provenance=ev.seen(*filter(None, (log_sample(ev),))),
    )
