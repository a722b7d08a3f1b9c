"""Are the job's GPUs there and well, by NVML and the PCI bus? And which are hot: a finding only.

Heat is neither needed for a slow GPU nor does it make one.

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
from triage.facts.gpurows import Gpu, mine, why_none
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


# ---------------------------------------------------------------- there, and well

ACTIONS = {1: "reset the GPU", 2: "reboot the node", 3: "drain its peer-to-peer traffic", 4: "drain and reset the GPU",
           5: "recover the IMEX domain", 6: "reset its bus", 7: "reboot the node"}  # fmt: skip


def _told(ev: Evidence, found: list[tuple[Gpu, str]], none: str) -> Fact:
    """The fact of these GPUs; unknown where no GPU of the job was told at all."""
    if not ev.derive(mine):
        return unknown(why_none(ev))
    parts = [gpu.part(why) for gpu, why in found]
    samples = [gpu.sample for gpu, _ in found] or list({gpu.node: gpu.sample for gpu in ev.derive(mine)}.values())
    text = "; ".join(f"{part.label()}: {part.why}" for part in parts[:3]) or none
    return known(parts=parts, text=text, provenance=ev.seen(*samples[:8]))


@fact("gpus.lost", type="number", unit="gpus", parts="gpu")
def lost(ev: Evidence) -> Fact:
    """GPUs of the job that are off the bus, by NVML (GPU is lost) or by the bus itself, in the newest look."""
    found = [(gpu, str(gpu.row.get("status_why") or "lost")) for gpu in ev.derive(mine) if gpu.status == "lost"]
    return _told(ev, found, f"all {len(ev.derive(mine))} GPUs answer on the bus")


@fact("gpus.hung", type="number", unit="gpus", parts="gpu")
def hung(ev: Evidence) -> Fact:
    """GPUs of the job for which NVML does not come back. Their driver or firmware hangs; the process on them may not know."""
    found = []
    for gpu in ev.derive(mine):
        if gpu.status == "hung":
            state, where = gpu.rows[0][1].get("child_state"), gpu.rows[0][1].get("child_wchan")
            why = str(gpu.rows[0][1].get("status_why") or "NVML does not answer")
            found.append((gpu, f"{why}; the asking process is in state {state} ({where})" if state else why))
    return _told(ev, found, "NVML answers for every GPU")


@fact("gpus.recovery", type="number", unit="gpus", parts="gpu")
def recovery(ev: Evidence) -> Fact:
    """GPUs for which the driver itself asks for a reset, a reboot or a drain (field 230, from driver 570 on)."""
    told = [gpu for gpu in ev.derive(mine) if gpu.value("recovery_action") is not None]
    if ev.derive(mine) and not told:
        return unknown("no driver tells a recovery action (older than 570)")
    found = [
        (gpu, f"its driver says: {ACTIONS.get(int(gpu.value('recovery_action') or 0), 'recover it')}")
        for gpu in told if gpu.value("recovery_action")
    ]  # fmt: skip
    return _told(ev, found, "no driver asks for a reset")


@fact("gpus.remap", type="number", unit="gpus", parts="gpu")
def remap(ev: Evidence) -> Fact:
    """GPUs with a row remapping (or page retirement) that waits for a reset, or that has failed: to be repaired, not slow."""
    found = []
    for gpu in ev.derive(mine):
        if gpu.row.get("remap_failed") is True:
            found.append((gpu, "a row remapping has failed: the card is to be replaced"))
        elif gpu.row.get("remap_pending") is True or gpu.row.get("retired_pending") is True:
            found.append((gpu, "a row remapping waits for a reset of the GPU"))
    return _told(ev, found, "no row remapping is pending or failed")


@fact("gpus.nvlink_down", type="number", unit="gpus", parts="gpu")
def nvlink_down(ev: Evidence) -> Fact:
    """GPUs of which an NVLink is down while those of their peers of the same kind are up."""
    most: dict[object, float] = {}
    links = {id(gpu): gpu.row.get("nvlinks") for gpu in ev.derive(mine)}
    for gpu in ev.derive(mine):
        told = links[id(gpu)]
        if isinstance(told, list):
            name = gpu.row.get("name")
            most[name] = max(most.get(name, 0), told[0])
    found = []
    for gpu in ev.derive(mine):
        told = links[id(gpu)]
        # A card whose links are all off has none in use (PCIe boards); so have its peers then.
        if isinstance(told, list) and told[0] < told[1] and told[0] < most[gpu.row.get("name")]:
            down = ", ".join(str(link) for link in (gpu.row.get("nvlinks_down") or [])[:8])
            found.append(
                (
                    gpu,
                    f"{told[0]} of {told[1]} NVLinks are up (down: {down}), its peers have {most[gpu.row.get('name')]:.0f}",
                )
            )
    if ev.derive(mine) and not most:
        return unknown("no GPU told its NVLinks")
    return _told(ev, found, "no NVLink is down that others have up")


@fact("gpus.driver_mismatch", type="number", unit="nodes", parts="node")
def driver_mismatch(ev: Evidence) -> Fact:
    """Nodes whose NVML library is of another release than the loaded driver: running jobs go on, new ones cannot start."""
    samples = ev.latest("gpu")
    if not samples:
        return unknown(why_none(ev))
    bad = [s for s in samples.values() if s.data.get("nvml") == "mismatch"]
    parts = [
        Part("node", s.node, why="its driver was upgraded and not loaded anew: no new process can use a GPU")
        for s in bad
    ]
    return known(
        parts=parts,
        text=f"{len(parts)} of {len(samples)} nodes",
        provenance=ev.seen(*(bad or list(samples.values()))[:8]),
    )


@fact("gpus.unseen", type="number", unit="nodes", parts="node")
def unseen(ev: Evidence) -> Fact:
    """Nodes with GPUs of which NVML tells nothing, and why."""
    samples = ev.latest("gpu")
    if not samples:
        return unknown(why_none(ev))
    bad = [s for s in samples.values() if s.data.get("nvml") not in ("ok", "not_asked", None)]
    parts = [Part("node", s.node, why=f"{s.data.get('nvml')}: {s.data.get('nvml_why')}"[:160]) for s in bad]
    return known(
        parts=parts,
        text=f"NVML answers on {len(samples) - len(parts)} of {len(samples)} nodes",
        provenance=ev.seen(*list(samples.values())[:8]),
    )
