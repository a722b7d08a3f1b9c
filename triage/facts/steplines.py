"""How long did each step take, by the lines that the trainer prints into the job's log? The whole job's time only.

One printer (the last rank, or rank 0) tells what all ranks take together, so nothing here ever names a rank
(notes/straggler-and-cost.md 2.3). A line may be the mean of all steps since the line before (Megatron's log interval): `covers`.
A trainer that prints steps and no times (torchtitan, DeepSpeed's throughput lines) is timed by the dates of its lines.
What can fool it: dates of whole seconds (averaged over so many lines that a second is no more than two per cent); a validation
or a checkpoint between two lines, which makes the later one long (a spike, as elsewhere); a restart, which goes back to a
lower number (what stands before it is of another attempt); the rate of a progress bar, which follows a change slowly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from triage.facts.clocks import log_sample, log_time
from triage.facts.evidence import Evidence

TELLERS = {
    "megatron": "Megatron's iteration lines",
    "nemo": "NeMo's step lines",
    "deepspeed": "the dates of DeepSpeed's throughput lines",
    "torchtitan": "the dates of torchtitan's step lines",
    "tqdm": "a progress bar",
}
TIMED = ("compute_ms", "collective_ms", "data_ms")
ROUGH = 0.02  # what the last digit of a date may be of the time that is told by it


@dataclass(frozen=True)
class Row:
    """A step line: its number, when it was printed (any one clock), and the time that it tells, in seconds."""

    number: int
    at: float | None
    seconds: float | None


@dataclass(frozen=True)
class Step:
    """One line as a step time: seconds of a step, the mean of the last `covers` steps; `end` as in Row."""

    number: int
    end: float | None
    seconds: float
    covers: int


def timed(rows: Iterable[Row]) -> tuple[Step, ...]:
    """The lines of the newest attempt as step times, oldest first. A line whose time is not known is left out."""
    mine: list[Row] = []
    for row in rows:
        if mine and row.number < mine[-1].number:  # a restart goes back to its checkpoint
            mine.clear()
        if not mine or row.number > mine[-1].number:
            mine.append(row)
    dated = [row for row in mine if row.at is not None]
    digit = 1.0 if all(row.at == int(row.at or 0) for row in dated) else 0.001
    found: list[Step] = []
    anchor = seen = 0  # the latest dated line that is far enough back for the dates to tell a time; dated lines so far
    for place, row in enumerate(mine):
        seconds = row.seconds
        if row.at is not None:
            while anchor + 1 < seen and _apart(dated[anchor + 1], row) >= digit / ROUGH:
                anchor += 1
            if seconds is None and _apart(dated[anchor], row) >= digit / ROUGH:
                seconds = _apart(dated[anchor], row) / (row.number - dated[anchor].number)
            seen += 1
        if seconds is not None and seconds > 0:
            found.append(Step(row.number, row.at, seconds, row.number - mine[place - 1].number if place else 1))
    return tuple(found)


def _apart(before: Row, row: Row) -> float:
    """Seconds from one dated line to another."""
    return row.at - before.at if row.at is not None and before.at is not None else 0.0


def log_steps(ev: Evidence) -> tuple[Step, ...]:
    """Step times of this attempt by the job's log, on our clock; to be called through `ev.derive`."""
    sample = log_sample(ev)
    told = sample.data.get("iterations") if sample is not None else None
    rows: list[Row] = []
    for row in (told.get("series") if isinstance(told, Mapping) else None) or []:
        if not (isinstance(row, list) and len(row) == 3 and isinstance(row[0], int)):
            continue
        at = log_time(ev, row[1])
        if at is not None and ev.job.attempt.started is not None and at < ev.job.attempt.started - 1.0:
            continue
        took = row[2]
        known = isinstance(took, int | float) and not isinstance(took, bool) and 0 < took < 1e12
        rows.append(Row(row[0], at, took / 1000.0 if known else None))
    return timed(rows)


def teller(ev: Evidence) -> str:
    """Who tells these times, in words."""
    sample = log_sample(ev)
    told = sample.data.get("iterations") if sample is not None else None
    return TELLERS.get(str(told.get("source")), "") if isinstance(told, Mapping) else ""


Column = dict[int, float]  # step -> ms


def rank_timers(ev: Evidence) -> dict[int, dict[str, Column]]:
    """rank -> compute_ms, collective_ms, data_ms -> step -> ms, by Megatron's timers of all ranks: means of an interval.

    Only of steps that this attempt's own lines tell. To be called through `ev.derive`.
    """
    sample = log_sample(ev)
    told = sample.data.get("timers") if sample is not None else None
    steps = told.get("step") if isinstance(told, Mapping) else None
    found: dict[int, dict[str, Column]] = {}
    if not isinstance(told, Mapping) or not isinstance(steps, list):
        return found
    mine = {step.number for step in ev.derive(log_steps)}
    for part in TIMED:
        ranks = told.get(part)
        for name, values in ranks.items() if isinstance(ranks, Mapping) else ():
            if name.isdecimal() and len(name) <= 7 and isinstance(values, list) and len(values) == len(steps):
                column = {step: float(ms) for step, ms in zip(steps, values) if step in mine}
                found.setdefault(int(name), {})[part] = column
    return found
