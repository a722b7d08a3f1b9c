"""When was the last complete checkpoint, how often do they come, and how was the job laid out?

Two roads: the job log, which says when each save began and ended, and the trackers in the folder that the job saves to, as
the `checkpoint` probe reads them on rank 0's node (probes/_checkpoints.py says which, and why half-written ones are not
told). The later one counts: the log may be cut, and a job may save where nothing tells of it.
What can fool it: a file server whose clock is not ours (a checkpoint of the future counts as one of now); saves that the log
announces and another process finishes; a layout that stands in a configuration file, which is then not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from triage.facts.clocks import log_sample, log_time
from triage.facts.evidence import Evidence
from triage.facts.ranktable import log_hits
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Sample

BEGIN, END = "checkpoint_save_begin", "checkpoint_save_end"
LAST_GAPS = 5
Range = tuple[float, float, float]  # seconds: middle, least, most


@dataclass(frozen=True)
class Saves:
    """`at` epoch seconds on our clock; None = no complete checkpoint is known. `source` is log or filesystem."""

    at: float | None = None
    step: int | None = None
    gap_s: Range | None = None
    took_s: Range | None = None
    source: str = ""
    sample: Sample | None = None
    why: str = ""


@dataclass(frozen=True)
class Launch:
    """Numbers of rank 0's command line; None = not told. `stage_outermost`: ranks count tp-dp-pp."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    layers: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    stage_outermost: bool = True

    def replicas(self, world: int) -> int | None:
        """Data-parallel groups of a job of so many ranks; None where they do not divide."""
        size = self.tensor * self.pipeline * self.context
        return world // size if world >= size and world % size == 0 else None

    def micro_batches(self, world: int) -> int | None:
        """Of each data-parallel group in one step."""
        replicas = self.replicas(world)
        if not (replicas and self.global_batch and self.micro_batch):
            return None
        count, rest = divmod(self.global_batch, replicas * self.micro_batch)
        return count if count and not rest else None


def saves(ev: Evidence) -> Saves:
    """The later of what log and trackers tell; what one lacks the other adds."""
    logged, tracked = _logged(ev), _tracked(ev)
    if logged.at is None or (tracked.at is not None and tracked.at > logged.at + 60.0):
        first, second = tracked, logged
    else:
        first, second = logged, tracked
    if first.at is None:
        return Saves(why=tracked.why or logged.why)
    return Saves(
        first.at, first.step if first.step is not None else second.step, first.gap_s or second.gap_s,
        first.took_s or second.took_s, first.source, first.sample,
    )  # fmt: skip


def _logged(ev: Evidence) -> Saves:
    sample = log_sample(ev)
    if sample is None:
        return Saves(why="the job log could not be read")
    ends = [(at, _step(hit)) for hit in log_hits(ev, END) if (at := _last(ev, hit)) is not None]
    if not ends:
        return Saves(why="the job log tells of no checkpoint that was written")
    began = {_step(hit): at for hit in log_hits(ev, BEGIN) if (at := _last(ev, hit)) is not None}
    took = [at - began[step] for at, step in ends if step in began and at >= began[step]]
    at, step = max(ends, key=lambda end: end[0])
    return Saves(min(at, ev.observed), step, _gaps([at for at, _ in ends]), _range(took), "log", sample)


def _last(ev: Evidence, hit: Mapping[str, Any]) -> float | None:
    if not hit.get("dated", True):
        return None
    return log_time(ev, hit.get("last_at") if hit.get("last_at") is not None else hit.get("at"))


def _step(hit: Mapping[str, Any]) -> int | None:
    told = (hit.get("groups") or {}).get("iteration")
    return int(told) if isinstance(told, str) and told.isdigit() else None


def _gaps(times: Sequence[float]) -> Range | None:
    gaps = [b - a for a, b in pairwise(sorted(times)[-LAST_GAPS - 1 :]) if b - a > 1.0]
    return _range(gaps) if len(gaps) > 1 else None


def _range(values: Sequence[float]) -> Range | None:
    return (median(values), min(values), max(values)) if values else None


def _probe(ev: Evidence) -> Sample | None:
    """The answer of rank 0's node; where several claim it (two jobs on them), the one that knows a folder."""
    told = [sample for sample in ev.latest("checkpoint").values() if sample.status == "ok"]
    return max(told, key=lambda sample: (len(sample.data.get("folders") or ()), sample.node), default=None)


def _tracked(ev: Evidence) -> Saves:
    sample = _probe(ev)
    if sample is None:
        return Saves(why="no node told which folder rank 0 saves to")
    whole = [row for row in sample.data.get("folders") or () if row.get("at") is not None]
    if not whole:
        whys = [str(row.get("why")) for row in sample.data.get("folders") or () if row.get("why")]
        return Saves(why=whys[0] if whys else "rank 0's command line names no folder that it saves to")
    row = max(whole, key=lambda each: float(each["at"]))
    gap = row.get("gap_s")
    told = isinstance(gap, list) and 0 < gap[1] <= gap[0] <= gap[2]
    gaps: Range | None = (gap[0], gap[1], gap[2]) if told and gap is not None else None
    return Saves(min(float(row["at"]), ev.observed), row.get("step"), gaps, None, "filesystem", sample)


def launch(ev: Evidence) -> Launch | None:
    """The layout that rank 0's command line names; None where nothing of it is told."""
    sample = _probe(ev)
    told = (sample.data.get("launch") or {}) if sample is not None else {}
    if not any(told.get(name) for name in ("tp", "pp", "global_batch")):
        return None
    return Launch(
        told.get("tp") or 1, told.get("pp") or 1, told.get("cp") or 1, told.get("layers"), told.get("global_batch"),
        told.get("micro_batch"), told.get("order") != "tp-pp-dp",
    )  # fmt: skip


@fact("checkpoint.age_s", type="number", unit="s")
def age(ev: Evidence) -> Fact:
    """Age of the last complete checkpoint; half-written ones do not count."""
    found = ev.derive(saves)
    if found.at is None:
        return unknown(found.why)
    old = max(0.0, ev.observed - found.at)
    step = f" of step {found.step}" if found.step is not None else ""
    seen = ev.seen(found.sample) if found.sample is not None else ()
    return known(
        old, text=f"last complete checkpoint{step} is {old / 60:.0f} min old ({found.source})", provenance=seen
    )


@fact("checkpoint.interval_s", type="number", unit="s")
def interval(ev: Evidence) -> Fact:
    """Time between the last complete checkpoints, the median of at most five gaps."""
    found = ev.derive(saves)
    if found.gap_s is None:
        return unknown(found.why or "fewer than three complete checkpoints are known")
    return known(found.gap_s[0], provenance=ev.seen(found.sample) if found.sample is not None else ())
