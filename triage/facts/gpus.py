"""Which GPUs of the job's nodes are hot? A finding only: heat is neither needed for a slow GPU nor does it make one.

A slow GPU may be at 70 C and most hot ones are as fast as their peers (notes/gpu-health.md 4.1); who is slow is told by the
ranks' own compute times. So no question and no verdict may rest on this fact.
What can fool it: limits in degrees are not told by every generation (the floor of the playbook stands in for them), and some
boards tell 0 or less; index 3 inside of a container is not always index 3 of the node.
"""

from __future__ import annotations

from collections.abc import Mapping

from triage.facts.activity import number, rows_of
from triage.facts.claims import whole
from triage.facts.evidence import Evidence
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Part


@fact("gpus.hot", type="number", unit="gpus", parts="gpu")
def hot(ev: Evidence) -> Fact:
    """GPUs of the job above what they, or the playbook, call normal. Heat is a correlate: a finding, never a cause."""
    samples = [s for s in ev.latest("gpu").values() if s.node]
    if not samples:
        return unknown("no node told its GPUs")
    told, parts, warm = 0, [], []
    for sample in samples:
        for gpu in _of_the_job(ev, sample.node, rows_of(sample.data.get("gpus"))):
            temperature = number(gpu.get("temp_c"))
            if temperature is None:
                continue
            told += 1
            limit, why = _limit(ev, gpu)
            if temperature > limit:
                parts.append(Part("gpu", sample.node, gpu=whole(gpu.get("index")), why=f"{temperature:.0f} C; {why}"))
                warm.append(sample)
    if not told:
        return unknown("no GPU told its temperature")
    text = f"{len(parts)} of {told} GPUs are hot; that alone slows nothing"
    return known(parts=parts, text=text, provenance=ev.seen(*(warm or samples)[:8]))


def _limit(ev: Evidence, gpu: Mapping[str, object]) -> tuple[float, str]:
    """(temperature above which it is hot, why): its own highest normal one, or some degrees below where it slows down."""
    highest, slows = number(gpu.get("temp_max_c")), number(gpu.get("temp_slowdown_c"))
    if highest:  # 0 is no limit (notes/gpu-health.md 1.1: some boards tell it)
        return highest, f"its own highest normal temperature is {highest:.0f} C"
    if slows:
        return slows - ev.limit("gpu_hot_margin_c"), f"its clocks slow down from {slows:.0f} C on"
    return ev.limit("gpu_hot_c"), "its own limits are not known"


def _of_the_job(ev: Evidence, node: str, gpus: list[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Those that the node's ranks name in CUDA_VISIBLE_DEVICES, by number or UUID; all where they name none that is there."""
    words = [row.env.get("CUDA_VISIBLE_DEVICES", "") for row in ev.derive(rank_table).rows.values() if row.node == node]
    named = {word.strip() for value in words for word in value.split(",") if word.strip()} if all(words) else set()
    mine = [gpu for gpu in gpus if str(gpu.get("index")) in named or gpu.get("uuid") in named]
    return mine or gpus
