"""Step times: the healthy one, the present one, since when, and who is slow.

Total step times never name a rank: in a synchronous job all ranks take equally long (notes/straggler-and-cost.md 2.1).
A rank is named only from its own *compute* time against its peers, on its own clock, and its collective time must then
be short: it is the one that the others wait for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

from triage.facts.clocks import log_sample, our_time
from triage.facts.evidence import Evidence
from triage.facts.onset import Change, change
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, unknown
from triage.facts.steplines import TIMED, log_steps, rank_timers, teller
from triage.facts.steps import FUTURE_S, job_steps, last_record_end
from triage.facts.steps import last_steps as last_steps
from triage.model import Fact, Part, Sample

RECENT_STEPS = 20
UNEVEN_STEPS = 200  # the last steps by which it is judged whether they are even


@dataclass(frozen=True)
class Series:
    """Whole-step times of the job, oldest first: (end of the step on our clock or None, seconds)."""

    steps: tuple[tuple[float | None, float], ...]
    source: str  # "job log", "step records" or "plain step times"
    sample: Sample | None
    numbers: tuple[int, ...] = ()  # the step numbers, where they are told
    covers: tuple[int, ...] = ()  # of how many steps each time is the mean; nothing: of one
    teller: str = ""  # whose lines in the log they are

    @property
    def named(self) -> str:
        """The source, in words."""
        return f"{self.source}: {self.teller}" if self.teller else self.source

    def lasted(self, since: int) -> float:
        """Seconds from the beginning of step `since` (an index) to the end of the last one, as the steps tell."""
        counts = self.covers or (1,) * len(self.steps)
        return sum(seconds * count for (_, seconds), count in zip(self.steps[since:], counts[since:]))

    @property
    def last_step(self) -> int | None:
        return self.numbers[-1] if self.numbers else None


@dataclass(frozen=True)
class RankPace:
    """The last steps of one rank, by step number, in milliseconds."""

    rank: int
    node: str
    sample: Sample
    compute: Mapping[int, float]
    collective: Mapping[int, float]
    data: Mapping[int, float]
    total: Mapping[int, float]
    ends: Mapping[int, float] = field(default_factory=dict)  # epoch s on our clock


def job_series(ev: Evidence) -> Series | None:
    """Step times from the job log, else from the per-rank records (median over ranks of each step), else plain numbers."""
    told = ev.derive(log_steps)
    if told:
        steps = tuple((step.end, step.seconds) for step in told)
        numbers = tuple(step.number for step in told)
        return Series(steps, "job log", log_sample(ev), numbers, tuple(step.covers for step in told), ev.derive(teller))
    paces = ev.derive(rank_paces)
    found: dict[int, list[tuple[float | None, float]]] = {}
    for pace in paces.values():
        for number, ms in pace.total.items():
            found.setdefault(number, []).append((pace.ends.get(number), ms / 1000.0))
    if found:
        rows = [_middle(found[number]) for number in sorted(found)]
        return Series(tuple(rows), "step records", next(iter(paces.values())).sample, tuple(sorted(found)))
    return ev.derive(_plain_series)


def _middle(told: list[tuple[float | None, float]]) -> tuple[float | None, float]:
    """One step as its ranks told it: median of its ends and of its times."""
    ends = [end for end, _ in told if end is not None]
    return (median(ends) if ends else None), median(seconds for _, seconds in told)


def _plain_series(ev: Evidence) -> Series | None:
    """From files of one number a line, counted back from their last line; without a unit they tell no time."""
    columns: list[list[float]] = []
    seen: Sample | None = None
    for sample, entry in ev.derive(job_steps):
        told = entry.get("columns")
        values = told.get("total_ms") if isinstance(told, Mapping) and entry.get("kind") == "numbers" else None
        if isinstance(values, list) and values and entry.get("unit") in ("ms", "s") and all(map(_positive, values)):
            columns.append([float(value) for value in values])
            seen = sample
    if not columns:
        return None
    last = min(len(values) for values in columns)
    rows = [(None, median(values[place - last] for values in columns) / 1000.0) for place in range(last)]
    return Series(tuple(rows), "plain step times", seen)


def rank_paces(ev: Evidence) -> dict[int, RankPace]:
    """The newest step columns of every rank that keeps records; where none does, Megatron's timers in the job log."""
    found: dict[int, RankPace] = {}
    for sample, entry in ev.derive(job_steps):
        columns, rank = entry.get("columns"), entry["rank"]
        numbers = columns.get("step") if isinstance(columns, Mapping) else None
        if not isinstance(columns, Mapping) or not isinstance(numbers, list):
            continue  # one number a line: count back from nothing in common
        found[rank] = RankPace(
            rank,
            sample.node,
            sample,
            _column(numbers, columns.get("compute_ms")),
            _column(numbers, columns.get("collective_ms")),
            _column(numbers, columns.get("data_ms")),
            _column(numbers, columns.get("total_ms")),
            _ends(ev, sample, numbers, columns),
        )
    log = log_sample(ev)
    if log is not None and not any(pace.compute for pace in found.values()):
        table = ev.derive(rank_table)
        for rank, told in ev.derive(rank_timers).items():
            if table.world_size is None or rank < table.world_size:
                compute, collective, data = (told.get(name, {}) for name in TIMED)
                found[rank] = RankPace(rank, table.node_of(rank) or "", log, compute, collective, data, {})
    return found


def _column(numbers: list[Any], values: Any) -> dict[int, float]:
    if not isinstance(values, list):
        return {}
    return {n: float(v) for n, v in zip(numbers, values) if isinstance(n, int) and _positive(v)}


def _ends(ev: Evidence, sample: Sample, numbers: list[Any], columns: Mapping[str, Any]) -> dict[int, float]:
    begun, took = _column(numbers, columns.get("t_start")), _column(numbers, columns.get("total_ms"))
    return {n: our_time(ev, sample.node, at + took[n] / 1000.0) for n, at in begun.items() if n in took}


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12


def job_change(ev: Evidence) -> Change | None:
    series = ev.derive(job_series)
    values = [seconds for _, seconds in series.steps if seconds > 0] if series else []
    return change(values)


def present_step(ev: Evidence) -> float | None:
    """Seconds from step to step at present: the level, or the mean of the last steps where some are far longer."""
    found, series = ev.derive(job_change), ev.derive(job_series)
    if found is None or series is None:
        return None
    return max(found.now, mean([seconds for _, seconds in series.steps if seconds > 0][-RECENT_STEPS:]))


@fact("pace.source", type="text")
def source(ev: Evidence) -> Fact:
    """Where step times come from: "job log", "step records" or "plain step times"."""
    series = ev.derive(job_series)
    return (
        known(series.source, text=series.named)
        if series
        else unknown("no step times were found in the job log or in step records")
    )


@fact("pace.steps", type="number", unit="steps")
def steps(ev: Evidence) -> Fact:
    """How many step times were read."""
    series = ev.derive(job_series)
    return known(len(series.steps)) if series else unknown("no step times were found")


@fact("pace.t0_s", type="number", unit="s")
def t0(ev: Evidence) -> Fact:
    """The healthy step time: median of the fastest stable stretch of at least ten steps."""
    found, series = ev.derive(job_change), ev.derive(job_series)
    if found is None or series is None:
        return unknown(f"fewer than ten step times were read ({len(series.steps) if series else 0})")
    return known(found.healthy, text=f"{found.healthy:.3g} s a step ({series.named})", provenance=_seen(ev, series))


@fact("pace.t1_s", type="number", unit="s")
def t1(ev: Evidence) -> Fact:
    """The present step time: median of the last stable stretch."""
    found, series = ev.derive(job_change), ev.derive(job_series)
    if found is None or series is None:
        return unknown("fewer than ten step times were read")
    return known(found.now, text=f"{found.now:.3g} s a step ({series.named})", provenance=_seen(ev, series))


@fact("pace.increase", type="number")
def increase(ev: Evidence) -> Fact:
    """How much longer a step takes now than when healthy: 0.13 = 13 % longer. Loss of output is x/(1+x)."""
    found = ev.derive(job_change)
    if found is None:
        return unknown("fewer than ten step times were read")
    lost = found.increase / (1 + found.increase)
    series = ev.derive(job_series)
    return known(
        found.increase,
        text=f"whole step {found.healthy:.4g} s -> {found.now:.4g} s (+{found.increase:.1%}), output -{lost:.1%}",
        provenance=_seen(ev, series),
    )


@fact("pace.slow_for_s", type="number", unit="s")
def slow_for(ev: Evidence) -> Fact:
    """How long the present pace has lasted, if it is slower than the healthy one; else 0."""
    found, series = ev.derive(job_change), ev.derive(job_series)
    if found is None or series is None:
        return unknown("fewer than ten step times were read")
    if not found.changed or found.increase <= 0:
        return known(0.0)
    return known(series.lasted(found.since), provenance=_seen(ev, series))


@fact("pace.uneven", type="number")
def uneven(ev: Evidence) -> Fact:
    """Share of the time of the last steps that goes into steps of more than twice the usual; 0 where those are rare."""
    series = ev.derive(job_series)
    values = [seconds for _, seconds in series.steps if seconds > 0][-UNEVEN_STEPS:] if series else []
    if len(values) < UNEVEN_STEPS // 4:
        return unknown(f"fewer than {UNEVEN_STEPS // 4} step times were read")
    usual = median(values)
    long = [seconds for seconds in values if seconds > 2 * usual]
    share = sum(long) / sum(values)
    often = len(long) >= ev.limit("uneven_steps") * len(values)
    text = f"{share:.0%} of the time goes into {len(long)} of {len(values)} steps, longer than twice {usual:.3g} s"
    return known(share if often else 0.0, text=text if often else "", provenance=_seen(ev, series))


@fact("pace.onset", type="number", unit="epoch s")
def onset(ev: Evidence) -> Fact:
    """When the present pace began, on our clock."""
    found, series = ev.derive(job_change), ev.derive(job_series)
    if found is None or series is None:
        return unknown("fewer than ten step times were read")
    if not found.changed:
        return unknown("the step times show no change")
    at = series.steps[found.since][0]
    if at is None:
        return unknown("the steps carry no time that can be placed on our clock")
    return known(at, provenance=_seen(ev, series))


def _seen(ev: Evidence, series: Series | None) -> tuple[Any, ...]:
    return ev.seen(series.sample) if series and series.sample else ()


# ------------------------------------------------------------------------------------------------ who is slow


@dataclass(frozen=True)
class Outliers:
    """What comparing the ranks' compute times gave."""

    slow: tuple[Part, ...] = ()
    ratio: float | None = None  # compute of the slowest named rank over its peers' median
    why: str = ""  # why nobody could be compared
    steps: int = 0
    provenance: tuple[Sample, ...] = field(default_factory=tuple)
    moving: bool = False  # the slowest rank changes from step to step
    contradicted: tuple[str, ...] = ()
    ratios: Mapping[int, float] = field(default_factory=dict)  # of each named rank


def outliers(ev: Evidence) -> Outliers:
    """Rule K (notes/straggler-and-cost.md 2.5) on compute time, with the collective time as the second road."""
    paces = {rank: pace for rank, pace in ev.derive(rank_paces).items() if pace.compute}
    totals = [pace for pace in ev.derive(rank_paces).values() if pace.total]
    if not paces:
        why = "no rank writes its compute time"
        if totals:
            why = "only whole step times are there, and those are equal on all ranks of a synchronous job"
        return Outliers(why=why)
    world = ev.derive(rank_table).world_size or len(paces)
    if len(paces) < 3 or len(paces) < 0.9 * world:
        return Outliers(why=f"only {len(paces)} of {world} ranks tell their compute time")
    common = _common_steps(ev, paces)
    if len(common) < ev.limit("slow_min_steps"):
        return Outliers(why=f"only {len(common)} steps at the present pace are common to all ranks")
    middles = {rank: median(pace.compute[n] for n in common) for rank, pace in paces.items()}
    found: list[Part] = []
    ratios: dict[int, float] = {}
    contradicted: list[str] = []
    for rank, pace in paces.items():
        peers = [m for other, m in middles.items() if other != rank]
        middle = median(peers)
        spread = max(1.4826 * median(abs(m - middle) for m in peers), ev.limit("slow_floor") * middle)
        step_peers = {n: median(p.compute[n] for r, p in paces.items() if r != rank) for n in common}
        ahead = sum(pace.compute[n] > ev.limit("slow_lead") * step_peers[n] for n in common) / len(common)
        if (
            middle > 0
            and middles[rank] / middle >= ev.limit("slow_ratio")
            and (middles[rank] - middle) / spread >= ev.limit("slow_spread")
            and ahead >= ev.limit("slow_share")
        ):
            ratio = middles[rank] / middle
            ratios[rank] = ratio
            waits = {r: median(p.collective[n] for n in common if n in p.collective) for r, p in paces.items()
                     if any(n in p.collective for n in common)}  # fmt: skip
            shortest = rank in waits and waits[rank] <= min(waits.values()) * 1.05 + 0.5
            if waits and not shortest:
                contradicted.append(f"rank {rank} does not have the shortest collective time")
            found.append(
                Part(
                    "rank",
                    node=pace.node,
                    rank=rank,
                    why=f"compute {middles[rank]:.4g} ms a step, peers {middle:.4g} ms (+{ratio - 1:.1%}), "
                    f"in {round(ahead * len(common))} of {len(common)} steps"
                    + (f"; shortest collective time ({waits[rank]:.3g} ms)" if shortest else ""),
                )
            )
    slowest = [max(paces, key=lambda r: paces[r].compute[n]) for n in common]
    usual = max(slowest.count(rank) for rank in set(slowest)) / len(slowest)
    spreads = [max(p.compute[n] for p in paces.values()) / max(1e-9, median(p.compute[n] for p in paces.values()))
               for n in common]  # fmt: skip
    moving = not found and usual < 0.5 and median(spreads) >= ev.limit("slow_ratio")
    return Outliers(
        tuple(found),
        max(ratios.values()) if ratios else None,
        steps=len(common),
        provenance=tuple({p.node: p.sample for p in paces.values()}.values()),
        moving=moving,
        contradicted=tuple(contradicted),
        ratios=ratios,
    )


def _common_steps(ev: Evidence, paces: Mapping[int, RankPace]) -> list[int]:
    """Steps that every rank recorded, of the present stretch only: a straggler that began lately must not be diluted."""
    common = sorted(set.intersection(*(set(pace.compute) for pace in paces.values())))
    slowest = [max(pace.compute[n] for pace in paces.values()) for n in common]
    found = change([value for value in slowest if value > 0]) if len(common) >= 2 else None
    return common[found.since :] if found is not None and found.changed else common


@fact("pace.slow", type="number", unit="ranks", parts="rank")
def slow(ev: Evidence) -> Fact:
    """Ranks whose compute time stands out from their peers' in nearly every step (rule K)."""
    found = ev.derive(outliers)
    if found.why:
        return unknown(found.why)
    return known(
        parts=found.slow,
        text="; ".join(f"{p.label()}: {p.why}" for p in found.slow[:3]) or f"none of {found.steps} steps stands out",
        provenance=ev.seen(*found.provenance[:8]),
        contradicted_by=found.contradicted,
    )


@fact("pace.slow_ratio", type="number")
def slow_ratio(ev: Evidence) -> Fact:
    """Compute time of the slowest named rank over the median of its peers (1.136 = a GPU at 88 % speed)."""
    found = ev.derive(outliers)
    if found.ratio is None:
        return unknown(found.why or "no rank stands out")
    return known(found.ratio, text=f"+{found.ratio - 1:.1%} compute time")


@fact("pace.slow_peers", type="number", unit="ranks", parts="rank")
def slow_peers(ev: Evidence) -> Fact:
    """Ranks that wait for the slow ones in every step: victims."""
    found = ev.derive(outliers)
    if found.why:
        return unknown(found.why)
    blamed = {part.rank for part in found.slow}
    paces = ev.derive(rank_paces)
    parts = [Part("rank", node=p.node, rank=r, why="waits for the slow rank in every step") for r, p in paces.items()
             if r not in blamed]  # fmt: skip
    return known(parts=parts if blamed else [])


@fact("pace.moving", type="bool")
def moving(ev: Evidence) -> Fact:
    """Does the slowest rank change from step to step (imbalance, garbage collection)? Then nobody is to be evicted."""
    found = ev.derive(outliers)
    return unknown(found.why) if found.why else known(found.moving)


def last_step_end(ev: Evidence) -> tuple[float, str, Sample] | None:
    """The end of the newest step on our clock, from records or log: (time, source, sample)."""
    record = ev.derive(last_record_end)
    best = (record[0], "step records", record[1]) if record else None
    series = ev.derive(job_series)
    if series and series.sample and series.source == "job log":
        times = [at for at, _ in series.steps if at is not None and at <= ev.observed + FUTURE_S]
        if times and (best is None or times[-1] > best[0]):
            best = (times[-1], "job log", series.sample)
    return best
