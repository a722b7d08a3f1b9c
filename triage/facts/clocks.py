"""How far each node's clock, and the job log's zone, are from ours.

A node's answer carries its own time (`at`) and is stamped by us on arrival (`received`): `at - received` is the clock's
offset less the way home. The answer that came home fastest has the largest difference, so the maximum is taken, and the
spread of the differences is the stated error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from triage.model import Sample
from triage.probes._watchdog import COLUMNS

if TYPE_CHECKING:  # evidence.py asks attempt.py, which asks for clocks
    from triage.facts.evidence import Evidence

# A log whose zone could not be told is taken as UTC only if its newest dated line is about as old as the file's last
# change: in another zone the two would differ by a half hour at least.
ZONE_SLACK_S = 240.0
# Zones differ by a quarter of an hour at least; no line waits this long in a writer's buffer at the moment of a stall.
WRONG_ZONE_S = 600.0
# No answer is under way for so long (a whole run has a minute or two): the node's clock was set between two of them.
STEPPED_S = 60.0


@dataclass(frozen=True)
class Offset:
    """Node clock minus our clock, and how wrong that may be."""

    offset_s: float
    err_s: float


def clock_offsets(ev: Evidence) -> Mapping[str, Offset]:
    """node -> offset of its clock against ours. Nodes that never answered have none."""
    return offsets_of(ev.samples)


def offsets_of(samples: Iterable[Sample]) -> dict[str, Offset]:
    """The same of bare samples: attempt.py needs it before there is any evidence."""
    seen: dict[str, list[float]] = {}
    for sample in samples:
        if sample.node and sample.at is not None and sample.received is not None and sample.status == "ok":
            seen.setdefault(sample.node, []).append(sample.at - sample.received)
    return {node: Offset(max(differences), _err(differences)) for node, differences in seen.items()}


def _err(differences: list[float]) -> float:
    """How far the largest difference may be from the offset: some seconds of the way home; all of it if the clock was set."""
    spread = max(differences) - min(differences)
    return max(0.1, min(2.0, spread)) if spread < STEPPED_S else spread


def our_time(ev: Evidence, node: str, at: float) -> float:
    """A time of a node's clock on ours. A node without measured offset is taken as right."""
    offset = ev.derive(clock_offsets).get(node)
    return at - offset.offset_s if offset else at


def clock_err(ev: Evidence, node: str) -> float:
    """How far `our_time` of this node may be wrong: minutes where its clock was never measured (a file that was handed in)."""
    offset = ev.derive(clock_offsets).get(node)
    return offset.err_s if offset else ev.limit("clock_unknown_s")


def log_sample(ev: Evidence) -> Sample | None:
    """The newest reading of the job log: the largest file among our own reading and the nodes'."""
    best: Sample | None = None
    for sample in ev.of("joblog"):
        if best is None or _size(sample) >= _size(best):
            best = sample
    return best


def _size(sample: Sample) -> float:
    size = sample.data.get("size")
    return float(size) if isinstance(size, int | float) else 0.0


def log_shift(ev: Evidence) -> float | None:
    """Seconds to add to a time of the job log to get ours; None where its zone is not known.

    The joblog probe measures the zone where the last line is dated and has already taken it out; what is left is the
    clock of the node that read the file (file servers are taken to agree with their clients).
    """
    sample = log_sample(ev)
    return None if sample is None else shift_of(sample, ev.derive(clock_offsets))


def shift_of(sample: Sample, offsets: Mapping[str, Offset]) -> float | None:
    """log_shift of one reading of the log."""
    if sample.data.get("zone") != "utc":
        newest, changed = sample.data.get("newest_at"), sample.data.get("mtime")
        if not isinstance(newest, int | float) or not isinstance(changed, int | float):
            return None
        if not -5.0 <= changed - newest <= ZONE_SLACK_S:
            return None
    offset = offsets.get(sample.node) if sample.node else None
    return -offset.offset_s if offset else 0.0


def zones_checked(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """The samples, with the zone of a log taken away where a second source contradicts it.

    A log's zone is measured against its file's time, which is that of a copy, or of another writer, once in a while. Two
    sources tell the same moments by the nodes' clocks: step records (the end of a step that the log tells too) and flight
    records (when an operation was enqueued that a watchdog gave up later). Where all of them are off by more than any clock,
    the log's times have no order against other sources (DESIGN section 2).
    """
    samples = tuple(samples)
    offsets = offsets_of(samples)
    moments = _moments(samples, offsets)
    return tuple(_checked(sample, moments, offsets) if sample.probe == "joblog" else sample for sample in samples)


Moments = dict[tuple[str, int], list[float]]


def _moments(samples: Iterable[Sample], offsets: Mapping[str, Offset]) -> Moments:
    """("step", its number) -> when it ended; ("seq", its number) -> when it was enqueued. On our clock."""
    found: Moments = {}

    def add(kind: str, number: object, at: object, sample: Sample) -> None:
        if isinstance(number, int) and isinstance(at, int | float):
            offset = offsets.get(sample.node)
            found.setdefault((kind, number), []).append(float(at) - (offset.offset_s if offset else 0.0))

    for sample in samples:
        told = sample.data.get("ranks")
        for entry in told if isinstance(told, list) else ():
            if sample.probe == "steps" and isinstance(entry, Mapping):
                add("step", entry.get("last_step"), entry.get("last_at"), sample)
            record = entry.get("record") if isinstance(entry, Mapping) and not entry.get("stale") else None
            if sample.probe == "flight_recorder" and isinstance(record, Mapping):
                for one in record.get("open") or ():
                    add("seq", one.get("seq"), one.get("at"), sample)
    return found


def _checked(sample: Sample, moments: Moments, offsets: Mapping[str, Offset]) -> Sample:
    shift = shift_of(sample, offsets) if moments and sample.data else None
    if shift is None:
        return sample
    away: list[float] = []
    steps: dict[int, list[float]] = {}
    for row in (sample.data.get("iterations") or {}).get("series") or ():
        if isinstance(row[1], int | float):
            steps.setdefault(row[0], []).append(row[1])
    for number, times in steps.items():
        # A step that was made again after a restart stands there twice: the nearer one is meant.
        ends = moments.get(("step", number))
        away += [min(abs(at + shift - end) for at in times for end in ends)] if ends else []
    for told in (sample.data.get("watchdog") or {}).get("rows") or ():
        row = dict(zip(COLUMNS, told))
        if row.get("kind") == "timeout" and row.get("dated") and isinstance(row.get("begun"), int | float):
            ends = moments.get(("seq", row["seq"]))
            away += [min(abs(row["begun"] + shift - at) for at in ends)] if ends else []
    if not away or min(away) < WRONG_ZONE_S:
        return sample
    why = f"the log's times are {min(away) / 3600:.2g} h off those of the ranks' own records: they are not compared with them"
    data = {**sample.data, "zone": "doubted", "mtime": None}
    return replace(sample, data=data, notes=(*sample.notes[:19], why))


def log_time(ev: Evidence, at: object, sample: Sample | None = None) -> float | None:
    """A time of the job log (of this reading of a log, where there are several) on our clock, or None."""
    shift = ev.derive(log_shift) if sample is None else shift_of(sample, ev.derive(clock_offsets))
    return float(at) + shift if isinstance(at, int | float) and shift is not None else None
