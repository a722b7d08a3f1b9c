"""The step times behind a picture: from a finished run, or from files of step times that somebody has."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from triage.errors import UsageError
from triage.facts.clocks import our_time
from triage.facts.evidence import Evidence
from triage.facts.onset import change
from triage.facts.pace import job_series
from triage.facts.steps import job_steps
from triage.inputs import _files as files_below
from triage.investigate import Result, probe_names, shipped_limits
from triage.probes import steps as steps_probe
from triage.render.plot import Line, drawn, picture_of

_NAME = re.compile(r"rank_?(\d{1,7})\.(?:jsonl|log)$")
_MOST_STEPS = 50_000
_SLOW = 1.05  # rule K's ratio (notes/straggler-and-cost.md 2.5); here it only decides which line is drawn by itself


@dataclass(frozen=True)
class StepLog:
    """Step times of a job: `total` (epoch seconds of the step's end, or None; seconds), oldest first; a line a rank.

    `observed` is the end of the newest step, epoch seconds. Lines count minutes from it.
    """

    total: tuple[tuple[float | None, float], ...]
    lines: tuple[Line, ...]
    observed: float
    what: str = "step, s"


def of_result(result: Result) -> str:
    """The SVG of a finished run: what its nodes told of steps, and its priced mitigation."""
    case = result.case
    ev = Evidence(case.job, case.samples, case.observed, shipped_limits(probe_names()))
    culprits = {culprit.rank for culprit in result.report.culprits}
    found: dict[int, Line] = {}  # each rank's newest records: both looks tell of them
    what = "step, s"
    for sample, entry in ev.derive(job_steps):
        points, name = _points(entry.get("columns"), lambda at, node=sample.node: our_time(ev, node, at), case.observed)
        if points:
            what = name
            found[entry["rank"]] = Line(f"rank {entry['rank']} ({sample.node})", points, entry["rank"] in culprits)
    lines = [found[rank] for rank in sorted(found)]
    series = ev.derive(job_series)
    if not lines and series is not None:
        points = [((at - case.observed) / 60.0, seconds) for at, seconds in series.steps if at is not None]
        lines = [Line("the job", points)] if points else []
    title = f"{result.report.verdict.title}: {result.report.mitigation['recommended']['summary']}"
    return drawn(picture_of(result.report.mitigation, lines, title=title, what=what))


def _points(columns: Any, on_our_clock: Any, observed: float) -> tuple[list[tuple[float, float]], str]:
    """(minutes before now, seconds) of one rank: its own compute where it tells it, for whole steps are alike on all."""
    if not isinstance(columns, Mapping):
        return [], ""
    begun = columns.get("t_start")
    own = "compute_ms" if isinstance(columns.get("compute_ms"), list) else "total_ms"
    values = columns.get(own)
    if not isinstance(begun, list) or not isinstance(values, list):
        return [], ""
    points = [((on_our_clock(at) - observed) / 60.0, ms / 1000.0) for at, ms in zip(begun, values)]
    return points, "own compute of a step, s" if own == "compute_ms" else "step, s"


# ---------------------------------------------------------------- files


def read_steps(folder: str) -> StepLog:
    """Step records (`rank_3.jsonl`) or plain numbers (`rank_3.log`) of a folder. UsageError where there is none."""
    columns: dict[int, tuple[Mapping[str, list[float]], float]] = {}
    for name, content, mtime in files_below(_path(folder)):
        found = _NAME.search(name)
        if not found:
            continue
        whole = len(content) <= (16 << 20)
        if name.endswith(".jsonl"):
            told = steps_probe.reduce_records(content, True, _MOST_STEPS) if whole else None
        else:
            told = steps_probe.reduce_numbers(content, True, _MOST_STEPS) if whole else None
        if told is not None:
            columns[int(found[1])] = (told["columns"], mtime)
    if not columns:
        raise UsageError(f"--steps {folder}: no step times in it; expected rank_0.jsonl … or rank_0.log …")
    ends = {rank: _ends(held, mtime) for rank, (held, mtime) in columns.items()}
    observed = max(end[-1] for end in ends.values())
    own = "compute_ms" if all("compute_ms" in held for held, _ in columns.values()) else "total_ms"
    now = {rank: median(held[own][-20:]) for rank, (held, _) in columns.items() if held.get(own)}
    usual = median(now.values()) if now else 0.0
    lines = [
        Line(
            f"rank {rank}",
            [((at - observed) / 60.0, ms / 1000.0) for at, ms in zip(ends[rank], held[own])],
            own == "compute_ms" and len(now) > 2 and now[rank] >= _SLOW * usual,
        )
        for rank, (held, _) in sorted(columns.items())
        if rank in now
    ]
    return StepLog(
        tuple(_total(columns, ends)),
        tuple(lines),
        observed,
        "own compute of a step, s" if own == "compute_ms" else "step, s",
    )


def _path(folder: str) -> Any:
    from pathlib import Path

    return Path(os.path.expanduser(folder))


def _ends(columns: Mapping[str, list[float]], mtime: float) -> list[float]:
    """When each step ended: as it says, else counted back from the file's last change."""
    total = columns.get("total_ms") or []
    begun = columns.get("t_start")
    if begun and len(begun) == len(total):
        return [at + ms / 1000.0 for at, ms in zip(begun, total)]
    if begun:
        return list(begun)
    found, at = [], mtime
    for ms in reversed(total):
        found.append(at)
        at -= ms / 1000.0
    return found[::-1]


def _total(
    columns: Mapping[int, tuple[Mapping[str, list[float]], float]], ends: Mapping[int, Sequence[float]]
) -> list[tuple[float | None, float]]:
    """The job's steps: of each the median over the ranks that tell it. Plain numbers are aligned at their ends."""
    held: dict[int, list[tuple[float, float]]] = {}
    for rank, (told, _) in columns.items():
        total = told.get("total_ms") or []
        numbers = told.get("step") or range(-len(total), 0)
        for number, at, ms in zip(numbers, ends[rank], total):
            held.setdefault(int(number), []).append((at, ms / 1000.0))
    return [(median(at for at, _ in row), median(s for _, s in row)) for _, row in sorted(held.items())]


def slowdown(log: StepLog) -> tuple[float, float, float | None]:
    """(healthy step, step now, epoch seconds of the onset) as the step times themselves tell it. UsageError if they do not."""
    found = change([seconds for _, seconds in log.total if seconds > 0])
    if found is None:
        raise UsageError(f"--steps: {len(log.total)} steps are too few to tell a slowdown; it takes ten and more")
    if not found.changed or found.increase <= 0:
        raise UsageError(
            "--steps: no stretch of these steps is slower than the one before: nothing is lost, or since always"
        )
    return found.healthy, found.now, log.total[found.since][0]
