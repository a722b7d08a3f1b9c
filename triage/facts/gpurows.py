"""The job's GPUs as the gpu probe told them: the newest answer, the one before, whose rank works on each.

Input    samples of probes/gpu.py (shape: readers/shapes.py GPU_ROW), looks A and B, and C where a question asked for a longer one
Output   one Gpu per card that may be the job's; `ours` only where that is known (gpuplaces.py)
What can fool it: a node that several jobs share (then `ours` is None and nobody is compared), MIG, a container's own numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triage.facts.activity import number, rows_of
from triage.facts.evidence import Evidence
from triage.facts.gpuplaces import gpu_place
from triage.model import Part, Sample


@dataclass(frozen=True)
class Gpu:
    """One card. `rows`: what each look told of it, oldest first, with the time of the look on the node's clock."""

    node: str
    bdf: str
    index: int | None
    rank: int | None
    ours: bool | None
    rows: tuple[tuple[float | None, Mapping[str, Any]], ...]
    sample: Sample

    @property
    def row(self) -> Mapping[str, Any]:
        return self.rows[-1][1]

    @property
    def status(self) -> str:
        return str(self.row.get("status"))

    def value(self, name: str) -> float | None:
        return number(self.row.get(name))

    def spread(self, name: str) -> tuple[float, ...] | None:
        """(least, p10, p50, p90, most) of the newest window."""
        told = self.row.get(name)
        return tuple(float(v) for v in told) if isinstance(told, list) and len(told) == 5 else None

    def part(self, why: str) -> Part:
        return Part("gpu", self.node, self.rank, self.index, name=self.bdf, why=why)

    def rate(self, name: str) -> float | None:
        """Events a second of a counter between the first and the last look; None where it was set back or not read twice."""
        told = [(at, number(row.get(name))) for at, row in self.rows]
        (first_at, first), (last_at, last) = told[0], told[-1]
        if None in (first_at, last_at, first, last) or len(told) < 2:
            return None
        assert first_at is not None and last_at is not None and first is not None and last is not None
        return (last - first) / (last_at - first_at) if last_at > first_at and last >= first else None


def gpus(ev: Evidence) -> list[Gpu]:
    """All cards that the nodes told, without those that are known to be another job's. Through `ev.derive`."""
    found: dict[tuple[str, str], list[tuple[Sample, Mapping[str, Any]]]] = {}
    for sample in ev.of("gpu"):
        for row in rows_of(sample.data.get("gpus")):
            if sample.node and isinstance(row.get("bdf"), str):
                found.setdefault((sample.node, row["bdf"]), []).append((sample, row))
    out = []
    for (node, bdf), told in found.items():
        place = gpu_place(ev, node, bdf)
        if place.ours is False:
            continue
        rows = tuple((sample.at, row) for sample, row in told)
        out.append(Gpu(node, bdf, place.index, place.rank, place.ours, rows, told[-1][0]))
    return out


def mine(ev: Evidence) -> list[Gpu]:
    """Those that are known to be the job's."""
    return [gpu for gpu in ev.derive(gpus) if gpu.ours]


def why_none(ev: Evidence) -> str:
    """Why there is no GPU to speak of."""
    samples = ev.of("gpu", status=None)
    if not samples:
        return "no node told its GPUs"
    if not ev.derive(gpus):
        words = {str(s.data.get("nvml_why") or s.status) for s in samples if s.status != "absent"}
        return f"no node told its GPUs: {sorted(words)[0][:120]}" if words else "the nodes have no NVIDIA GPU"
    return "whether the job uses these GPUs is not known"
