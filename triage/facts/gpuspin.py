"""In a frozen job: which GPUs spin in a collective, and which has nothing to do although its peers wait for it?

A collective's kernel spins: 100 % utilisation, a seventh of the power, no memory traffic (notes/gpu-health.md 2.2). A GPU at 0 %
beside such peers has not launched the collective: its rank is stuck on its host, is dead, or has finished.
What can fool it: utilisation is of the last second at most, so both looks must agree; a floor that power smoothing holds
(GB200: the power test is dropped); MIG, which has no utilisation; a rank that waits in a collective of the host (gloo).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triage.facts.activity import number
from triage.facts.evidence import Evidence
from triage.facts.gpurows import Gpu, mine, why_none
from triage.facts.registry import fact, known, other, unknown
from triage.model import Fact


def _spread(row: Mapping[str, Any], name: str) -> list[float] | None:
    told = row.get(name)
    return [float(v) for v in told] if isinstance(told, list) and len(told) == 5 else None


def _spins(ev: Evidence, row: Mapping[str, Any]) -> bool | None:
    """Does one look show the fingerprint? None where it tells no utilisation or no power."""
    load, power, limit = _spread(row, "util_pct"), _spread(row, "power_w"), number(row.get("power_limit_w"))
    memory, clock, most = (
        _spread(row, "mem_util_pct"),
        _spread(row, "sm_clock_mhz"),
        number(row.get("max_sm_clock_mhz")),
    )
    tensor, dram, mask = _spread(row, "tensor_pct"), _spread(row, "dram_pct"), number(row.get("reasons_any"))
    if load is None or (power is None or not limit):
        return None
    if tensor is not None and tensor[2] >= ev.limit("spin_tensor"):
        return False
    if dram is not None and dram[2] >= ev.limit("spin_dram"):
        return False
    cheap = row.get("power_smoothing") is True and tensor is not None
    return (
        load[0] >= ev.limit("spin_util")
        and (cheap or power[3] <= ev.limit("spin_power") * limit)
        and (memory is None or memory[3] <= ev.limit("spin_memory"))
        and (mask is None or not int(mask) & ~0x5)
        and (clock is None or not most or clock[2] >= ev.limit("spin_clock") * most)
    )


def _idle(ev: Evidence, row: Mapping[str, Any]) -> bool | None:
    load = _spread(row, "util_pct")
    return None if load is None else load[4] <= ev.limit("idle_util")


def _in_all_looks(gpu: Gpu, test: Any) -> bool | None:
    """Yes in every look, no in one, unknown where a look does not tell or there was only one."""
    told = [test(row) for _, row in gpu.rows]
    return False if False in told else None if None in told or len(told) < 2 else True


def spinning(ev: Evidence) -> tuple[list[Gpu], list[Gpu], int]:
    """(GPUs that spin, GPUs with nothing to do, how many told)."""
    spin, idle, told = [], [], 0
    for gpu in ev.derive(mine):
        spins, rests = _in_all_looks(gpu, lambda row: _spins(ev, row)), _in_all_looks(gpu, lambda row: _idle(ev, row))
        told += rests is not None
        if spins:
            spin.append(gpu)
        elif rests:
            idle.append(gpu)
    return spin, idle, told


def _unknown(ev: Evidence, told: int) -> Fact | None:
    if not ev.derive(mine):
        return unknown(why_none(ev))
    if not told:
        return unknown("no GPU told its utilisation in two looks")
    return None


@fact("gpus.spin", type="number", unit="gpus", parts="gpu")
def spin(ev: Evidence) -> Fact:
    """GPUs of the job that spin in a collective: full utilisation, little power, nothing done, in both looks."""
    found, _, told = ev.derive(spinning)
    parts = [gpu.part("spins: busy, at little power, and does nothing") for gpu in found]
    return _unknown(ev, told) or known(
        parts=parts, text=f"{len(found)} of {told} GPUs spin in a collective", provenance=ev.seen(*_samples(ev, found))
    )


@fact("gpus.absent", type="number", unit="gpus", parts="gpu")
def absent(ev: Evidence) -> Fact:
    """GPUs with nothing to do while others of the job spin in a collective: their ranks have not launched it."""
    found, idle, told = ev.derive(spinning)
    missing = _unknown(ev, told)
    if missing is not None:
        return missing
    if not found:
        return known(parts=[], text="no GPU spins, so none is waited for", provenance=ev.seen(*_samples(ev, [])))
    parts = [gpu.part(f"has nothing to do while {len(found)} others spin") for gpu in idle]
    roots = {part.rank for part in other(ev, "waits.roots").parts}
    ranks = {part.rank for part in parts if part.rank is not None}
    words: tuple[str, ...] = ()
    if roots and ranks and not roots & ranks:
        words = (
            f"the GPUs show rank {min(ranks)} as the one that has not come, not rank {min(r for r in roots if r is not None)}",
        )
    return known(
        parts=parts, text="; ".join(f"{p.label()} {p.why}" for p in parts[:3]) or f"all {told} GPUs are busy",
        provenance=ev.seen(*_samples(ev, idle)), contradicted_by=words,
    )  # fmt: skip


def _samples(ev: Evidence, found: list[Gpu]) -> list[Any]:
    return list({gpu.node: gpu.sample for gpu in (found or ev.derive(mine))}.values())[:8]
