"""How far each node's clock, and the job log's zone, are from ours.

A node's answer carries its own time (`at`) and is stamped by us on arrival (`received`): `at - received` is the clock's
offset less the way home. The answer that came home fastest has the largest difference, so the maximum is taken, and the
spread of the differences is the stated error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from triage.model import Sample

if TYPE_CHECKING:  # evidence.py asks attempt.py, which asks for clocks
    from triage.facts.evidence import Evidence

# A log whose zone could not be told is taken as UTC only if its newest dated line is about as old as the file's last
# change: in another zone the two would differ by a half hour at least.
ZONE_SLACK_S = 240.0


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
    return {
        node: Offset(max(differences), max(0.1, min(2.0, max(differences) - min(differences))))
        for node, differences in seen.items()
    }


def our_time(ev: Evidence, node: str, at: float) -> float:
    """A time of a node's clock on ours. A node without measured offset is taken as right."""
    offset = ev.derive(clock_offsets).get(node)
    return at - offset.offset_s if offset else at


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


def log_time(ev: Evidence, at: object) -> float | None:
    """A time of the job log on our clock, or None."""
    shift = ev.derive(log_shift)
    return float(at) + shift if isinstance(at, int | float) and shift is not None else None
