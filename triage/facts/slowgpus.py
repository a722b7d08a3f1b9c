"""What does the GPU of a rank that is slow by its own times show against its peers, and does that name the cause?

Who is slow is told by the ranks' own compute times alone (pace.slow); a cause is named only where the rank's own GPU shows it,
in two signs that agree, and where it is enough to explain a good part of how slow the rank is (notes/gpu-health.md 4.1).
Where nobody tells such times, a GPU with two signs is a lead and accuses nobody.
What can fool it: a cause that has nothing to do with the slowness (a clock 4 % lower under a rank that takes half as long
again); a rank that starves its GPU, whose tensor cores may do as much a step as its peers' (then the gaps tell: the peers spin
while they wait for it, and it stands idle); utilisation, which is a mean over a sixth of a second to a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from triage.facts.evidence import Evidence
from triage.facts.limiters import Judged, cohorts, slow
from triage.facts.pace import outliers
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Sample


@dataclass(frozen=True)
class Cause:
    """Of one slow rank's GPU: the cause ("" where it shows none) and what it shows."""

    one: Judged
    cause: str
    text: str


def cause_of(ev: Evidence, one: Judged, ratio: float) -> tuple[str, str]:
    """(cause, text). `ratio`: how much longer the rank computes than its peers; its GPU must explain a good part of it."""
    clock = f"its clock is {one.clock:.0%} of its peers'"
    peak = f", its peak power {one.peak:.0%}" if one.peak is not None else ""
    needed = ev.limit("gpu_explains") * (ratio - 1.0)
    explained = one.clock > 0 and 1.0 / one.clock - 1.0 >= needed
    suspect = one.clock <= ev.limit("gpu_suspect") and one.z >= ev.limit("gpu_z")
    held = one.limiter if suspect and one.limiter in ("thermal", "power_brake", "power_limit") else ""
    if (held or one.lock) and explained:
        return (held, f"{one.limiter_text}; {clock}") if held else ("clock_lock", one.lock)
    if suspect or one.limiter or one.lock:
        # Slower, or held back, and the other half is missing: no cause that two signs agree on.
        words = [clock + peak, one.limiter_text or one.lock]
        if held or one.lock:
            words.append(f"too little for a rank that is {ratio - 1.0:.0%} slower")
        return "", "; ".join(filter(None, words))
    if one.pcie and not one.loaded:
        return "", f"{one.pcie}; but it is not loaded all the time, and an idle card lowers its link"
    if one.pcie:
        return "pcie", one.pcie
    if one.ecc:
        memory = f"; memory clock {one.memory:.0%} of its peers'" if one.memory and one.memory < 1 else ""
        return "ecc_remap", one.ecc + memory
    if one.tensor is not None and one.tensor <= ev.limit("gpu_starved"):
        return "host_cpu", f"{clock}, and its tensor cores do {one.tensor:.0%} of theirs: it waits for its host"
    # The share of a slow step that the rank takes longer for is (ratio - 1) / ratio.
    if one.gaps >= ev.limit("gpu_gaps") and one.gaps >= needed / ratio:
        idle = f"it has nothing to do in {one.gaps:.0%} more of the time"
        return "host_cpu", f"{clock}, and {idle}: it waits for its host"
    return "", "its GPU runs like its peers'"


def _of_slow(ev: Evidence) -> tuple[list[Cause], str]:
    """([the slow ranks' GPUs], why that is not known)."""
    found = ev.derive(outliers)
    ratios: Mapping[int, float] = found.ratios
    told = ev.derive(cohorts)
    if not ratios:
        return [], found.why or "no rank is slow by its own times"
    if told.why:
        return [], told.why
    by_rank = {one.gpu.rank: one for one in (*told.pausing, *told.judged) if one.gpu.rank is not None}
    missing = [rank for rank in ratios if rank not in by_rank]
    if missing:
        return [], f"which GPU rank {missing[0]} works on is not known, or it was not loaded"
    return [Cause(by_rank[rank], *cause_of(ev, by_rank[rank], ratio)) for rank, ratio in ratios.items()], ""


def _samples(found: Iterator[Judged]) -> list[Sample]:
    return list({one.gpu.node: one.gpu.sample for one in found}.values())[:8]


@fact("gpus.slow_cause", type="text")
def slow_cause(ev: Evidence) -> Fact:
    """Why the slow ranks' GPUs are slow: thermal power_brake power_limit clock_lock pcie ecc_remap host_cpu, or none."""
    found, why = ev.derive(_of_slow)
    if why:
        return unknown(why)
    causes = {each.cause for each in found}
    text = "; ".join(f"{each.one.gpu.part('').label()}: {each.text}" for each in found[:3])
    provenance = ev.seen(*_samples(each.one for each in found))
    if len(causes) > 1:
        return unknown(f"the slow ranks' GPUs differ: {text}"[:300], provenance=provenance)
    return known(causes.pop() or "none", text=text, provenance=provenance)


@fact("gpus.of_slow", type="number", unit="gpus", parts="gpu")
def of_slow(ev: Evidence) -> Fact:
    """The GPUs that the slow ranks work on, and what they show."""
    found, why = ev.derive(_of_slow)
    if why:
        return unknown(why)
    return known(
        parts=[each.one.gpu.part(each.text) for each in found],
        text="; ".join(f"{each.one.gpu.part('').label()}: {each.text}" for each in found[:3]),
        provenance=ev.seen(*_samples(each.one for each in found)),
    )


@fact("gpus.probable", type="number", unit="gpus", parts="gpu")
def probable(ev: Evidence) -> Fact:
    """GPUs with a slow clock and a limiter or a low peak power: a lead to who is slow, where no rank's own times tell it."""
    told = ev.derive(cohorts)
    if told.why:
        return unknown(told.why)
    found = [one for one in told.judged if slow(ev, one) and (one.limiter or one.lock or _weak(ev, one))]
    parts = [one.gpu.part(cause_of(ev, one, 1.0)[1]) for one in found]
    text = "; ".join(f"{part.label()}: {part.why}" for part in parts[:3]) or "no GPU is slow by two signs"
    return known(parts=parts, text=text, provenance=ev.seen(*_samples(iter(found or told.judged))))


def _weak(ev: Evidence, one: Judged) -> bool:
    """Rule C."""
    return one.peak is not None and one.peak <= ev.limit("gpu_peak")
