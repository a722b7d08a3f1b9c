"""What of the samples is of the attempt asked about: the rest is cut away before any fact sees it.

    log lines       by their own date; undated ones by their place: behind the last line that is dated before the attempt,
                    and behind the newest line that only a start prints (signature `attempt_start`)
    kernel events   by their date
    dumps           by the file's time; those written since an attempt ended, or because we asked, are another job's
    all else        is of now: it counts only while the attempt runs and the processes are its own

Of an attempt that is over only what is dated counts. Pure; a sample of which nothing is cut is the same object.
What can fool it: a log whose zone is not known (its dates place nothing, only the order of its lines does); two attempts
in one file without any date and without a start line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from triage.facts.attempt import WRITTEN_NOW, Span
from triage.facts.clocks import Offset, offsets_of, shift_of, zones_checked
from triage.model import Sample
from triage.probes._watchdog import COLUMNS

# They tell of a node and of our way to it, not of what runs there.
OF_THE_NODE = frozenset(("contact", "reach", "peers"))
MARK = "attempt_start"
# What the scheduler writes when it ends a job that will run again: what follows is of a later attempt.
REQUEUES = frozenset(("JOB REQUEUE", "PREEMPTION", "NODE FAILURE"))


def cut(samples: Iterable[Sample], span: Span) -> tuple[Sample, ...]:
    """The samples, without what is not of this attempt."""
    samples = zones_checked(samples)
    offsets = offsets_of(samples)
    return tuple(_one(sample, span, offsets) for sample in samples)


def _one(sample: Sample, span: Span, offsets: Mapping[str, Offset]) -> Sample:
    if not sample.data:
        return sample
    if sample.probe == "joblog":
        return _log(sample, span, shift_of(sample, offsets))
    if sample.probe == "kernel":
        return _kernel(sample, span, _offset(offsets, sample.node))
    if sample.probe == "flight_recorder":
        return _dumps(sample, span, _offset(offsets, sample.node))
    if span.strange and sample.probe not in OF_THE_NODE:
        return replace(sample, status="absent", data={}, notes=(*sample.notes[:19], f"not used: {span.strange}"))
    return sample


def _offset(offsets: Mapping[str, Offset], node: str) -> float:
    found = offsets.get(node)
    return found.offset_s if found else 0.0


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _early(span: Span, at: float | None) -> bool:
    return at is not None and span.since is not None and at < span.since


def _late(span: Span, at: float | None) -> bool:
    return at is not None and span.until is not None and at > span.until


# ---------------------------------------------------------------- the kernel


def _kernel(sample: Sample, span: Span, offset: float) -> Sample:
    told = sample.data.get("events")
    if not isinstance(told, list):
        return sample
    kept = [event for one in told if (event := _event(one, span, offset)) is not None]
    same = len(kept) == len(told) and all(a is b for a, b in zip(kept, told))
    return sample if same else replace(sample, data={**sample.data, "events": kept})


def _event(event: Any, span: Span, offset: float) -> Any:
    """An event of the attempt; one that also happened before it is dated by its last time."""
    if not isinstance(event, Mapping):
        return event
    first, last = _number(event.get("at")), _number(event.get("last_at"))
    first = last if first is None else first
    last = first if last is None else last
    if first is None or last is None:
        return None if span.over else event
    if _early(span, last - offset) or _late(span, first - offset):
        return None
    if _early(span, first - offset):
        return {**event, "at": last}
    return {**event, "last_at": first} if _late(span, last - offset) else event


# ---------------------------------------------------------------- dumps


def _dumps(sample: Sample, span: Span, offset: float) -> Sample:
    told = sample.data.get("ranks")
    if not isinstance(told, list) or (span.since is None and span.until is None and not span.strange):
        return sample
    kept = [_dump(one, span, offset) for one in told]
    same = all(a is b for a, b in zip(kept, told))
    return sample if same else replace(sample, data={**sample.data, "ranks": kept})


def _dump(row: Any, span: Span, offset: float) -> Any:
    if not isinstance(row, Mapping) or row.get("stale") or not isinstance(row.get("record"), Mapping):
        return row
    at = _number(row.get("mtime"))
    ours = None if at is None else at - offset
    why = ""
    if span.strange and (row.get("source") in WRITTEN_NOW or not span.over):
        why = f"of what runs now, and {span.strange}"
    elif span.over and ours is None:
        why = "without a time, and the attempt has ended"
    elif ours is not None and _late(span, ours) and span.until is not None:
        why = f"written {int(ours - span.until)}s after the attempt had ended: by another job"
    elif ours is not None and _early(span, ours) and span.since is not None:
        why = f"written {int(span.since - ours)}s before this attempt began: of another attempt"
    return {**row, "stale": True, "why": why} if why else row


# ---------------------------------------------------------------- the job log


@dataclass(frozen=True)
class _Log:
    """Which lines of one log are the attempt's. Line numbers are those of the probe."""

    span: Span
    shift: float | None  # to our clock; None: its dates place nothing
    before: int  # the last line that is surely of an earlier attempt: by its own date, or it ends that attempt; else 0
    mark: int  # the newest line that only a start prints, else 0

    def time(self, value: Any) -> float | None:
        number = _number(value)
        return None if number is None or self.shift is None else number + self.shift

    def ours(self, first: float | None, last: float | None, own: bool, line: int | None) -> bool:
        """Is a line that stood there from `first` to `last` the attempt's? `own`: the dates are the line's own."""
        span = self.span
        if span.over:
            if first is None or _early(span, last) or _late(span, first):
                return False
            return span.since is not None or line is None or line >= self.mark
        if span.since is not None and last is not None:
            if not _early(span, last):
                return not _late(span, first)
            # An undated line wears the date of the nearest one above, which may be of the attempt before.
            return not own and line is not None and line >= self.mark > self.before
        return line is None or (line > self.before and line >= self.mark)


def _log(sample: Sample, span: Span, shift: float | None) -> Sample:
    hits, steps = sample.data.get("hits"), sample.data.get("iterations")
    hits = hits if isinstance(hits, list) else []
    steps = steps if isinstance(steps, Mapping) else {}
    log = _read(hits, steps, span, shift)
    kept = [hit for one in hits if (hit := _hit(one, log)) is not None]
    changed: dict[str, Any] = {}
    if len(kept) != len(hits) or any(a is not b for a, b in zip(kept, hits)):
        changed["hits"] = kept
    counted = _steps(steps, log)
    if counted is not steps:
        changed["iterations"] = counted
    table = sample.data.get("watchdog")
    rows = table.get("rows") if isinstance(table, Mapping) else None
    if isinstance(table, Mapping) and isinstance(rows, list):
        ours = [row for row in rows if _told(row, log)]
        if len(ours) != len(rows):
            changed["watchdog"] = {**table, "rows": ours}
    return replace(sample, data={**sample.data, **changed}) if changed else sample


def _read(hits: list[Any], steps: Mapping[str, Any], span: Span, shift: float | None) -> _Log:
    """Find the lines that divide the log. Only dates that a line carries itself divide it."""
    before, mark = 0, 0
    for hit in hits:
        line = _whole(hit.get("line_no")) if isinstance(hit, Mapping) else None
        if line is None:
            continue
        dated = hit.get("dated") is not False and shift is not None
        first, last = (_number(hit.get(name)) if dated else None for name in ("at", "last_at"))
        if _late(span, None if first is None else first + (shift or 0.0)):
            continue
        if hit.get("id") == MARK:
            mark = max(mark, line)  # a launcher prints it some time before the ranks' processes begin
        elif _early(span, None if last is None else last + (shift or 0.0)) or (not span.over and _requeue(hit)):
            before = max(before, line)
    for row, line in zip(steps.get("series") or (), steps.get("lines") or ()):
        at = _number(row[1]) if shift is not None and isinstance(row, list | tuple) and len(row) > 1 else None
        if at is not None and isinstance(line, int) and _early(span, at + (shift or 0.0)):
            before = max(before, line)
    return _Log(span, shift, before, mark)


def _requeue(hit: Mapping[str, Any]) -> bool:
    groups = hit.get("groups")
    told = groups if isinstance(groups, Mapping) else {}
    return hit.get("id") == "slurm_cancel" and told.get("what") == "JOB" and told.get("why") in REQUEUES


def _hit(hit: Any, log: _Log) -> Any:
    """A known line of the attempt, or None. One that also stood in another attempt keeps the times that are this one's."""
    if not isinstance(hit, Mapping):
        return hit
    first, last = log.time(hit.get("at")), log.time(hit.get("last_at"))
    last = first if last is None else last
    if not log.ours(first, last, hit.get("dated") is not False, _whole(hit.get("line_no"))):
        return None
    if _early(log.span, last):
        return {**hit, "at": None, "last_at": None}  # by its place: the date that it wears is another line's
    if _early(log.span, first):
        return {**hit, "at": hit.get("last_at")}
    return {**hit, "last_at": hit.get("at"), "line_no": None} if _late(log.span, last) else hit


def _told(row: Any, log: _Log) -> bool:
    """Is a row of the watchdogs' table of this attempt? None holds lines of two (probes/_watchdog.py)."""
    if not isinstance(row, list | tuple) or len(row) != len(COLUMNS):
        return False
    told = dict(zip(COLUMNS, row))
    first, last = log.time(told["at"]), log.time(told["last_at"])
    return log.ours(first, last, told["dated"] is True, _whole(told["line_no"]))


def _steps(steps: Mapping[str, Any], log: _Log) -> Mapping[str, Any]:
    series = steps.get("series")
    if not isinstance(series, list) or not series:
        return steps
    places = steps.get("lines")
    places = places if isinstance(places, list) and len(places) == len(series) else [None] * len(series)
    keep = []
    for row, line in zip(series, places):
        at = log.time(row[1]) if isinstance(row, list | tuple) and len(row) > 1 else None
        keep.append(log.ours(at, at, True, _whole(line)))
    if all(keep):
        return steps
    last = [line for line, kept in zip(places, keep) if kept]
    return {
        **steps,
        "series": [row for row, kept in zip(series, keep) if kept],
        "lines": last,
        "last_line_no": last[-1] if last else None,
    }
