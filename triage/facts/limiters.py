"""Which GPU runs slower than its peers of the same kind under the same load, and what holds it back (notes/gpu-health.md 4.1).

A GPU is only ever compared with GPUs of the same job, model and MIG mode that are loaded at the same time; never with what a
data sheet says. Clocks, limiters and power each say a part; none accuses a rank: who is slow is told by the ranks' own times
(pace.slow), and these facts name the cause.
What can fool it: an idle or frozen cohort (not measurable); all GPUs held back alike (no one stands out); a whole node under a
power brake (told once a GPU, and the node is the same); a limiter that flashes at a change of state (a share of the samples
counts, not one); clocks that somebody locked, which no reason tells; pipeline bubbles and mixed boards (fewer than four alike).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from triage.facts.activity import number
from triage.facts.evidence import Evidence
from triage.facts.gpurows import Gpu, mine, why_none
from triage.facts.registry import fact, known, unknown
from triage.model import Fact

HARD = ("hw_slowdown", "sw_thermal", "hw_thermal", "power_brake", "reliability")  # 0x08 0x20 0x40 0x80 0x400
TIMES = {"sw_thermal": "thermal", "hw_thermal": "thermal", "thermal": "thermal", "power_brake": "power_brake"}
KINDS = {"sw_thermal": "thermal", "hw_thermal": "thermal", "power_brake": "power_brake"}
P50, P90 = 2, 3


@dataclass(frozen=True)
class Judged:
    """One loaded GPU against its cohort. Ratios are its value over the cohort's median."""

    gpu: Gpu
    peers: int  # loaded ones of its kind
    clock: float
    z: float
    limiter: str = ""  # thermal, power_brake, power_limit, other; "" where nothing holds it back more than its peers
    limiter_text: str = ""
    peak: float | None = None  # of the 90th percentile of power
    tensor: float | None = None
    memory: float | None = None
    loaded: bool = True  # all the time; else it is one of `Cohorts.pausing`
    gaps: float = 0.0  # share of the time in which it has nothing to do and its peers have
    lock: str = ""
    low_limit: str = ""
    pcie: str = ""
    ecc: str = ""


@dataclass(frozen=True)
class Cohorts:
    judged: tuple[Judged, ...] = ()
    pausing: tuple[Judged, ...] = ()  # not loaded all the time, beside enough peers that are
    why: str = ""  # why nobody could be compared


def cohorts(ev: Evidence) -> Cohorts:
    """Through `ev.derive`."""
    if not ev.derive(mine):
        return Cohorts(why=why_none(ev))
    kinds: dict[object, list[Gpu]] = {}
    rest: list[Gpu] = []
    for gpu in ev.derive(mine):
        if gpu.row.get("mig") is True or gpu.status != "ok":
            continue
        if _loaded(ev, gpu):
            kinds.setdefault(gpu.row.get("name"), []).append(gpu)
        else:
            rest.append(gpu)
    judged = [
        _judge(ev, gpu, [other for other in alike if other is not gpu])
        for name, alike in kinds.items() if name and len(alike) >= ev.limit("gpu_cohort") for gpu in alike
    ]  # fmt: skip
    if not judged:
        most = max((len(alike) for alike in kinds.values()), default=0)
        return Cohorts(
            why=f"fewer than {ev.limit('gpu_cohort'):.0f} GPUs of a kind are loaded ({most}): they cannot be compared"
        )
    pausing = [
        _judge(ev, gpu, kinds[gpu.row.get("name")])
        for gpu in rest
        if len(kinds.get(gpu.row.get("name"), ())) >= ev.limit("gpu_cohort") and _clock(gpu) is not None
    ]
    return Cohorts(tuple(judged), tuple(pausing))


def _loaded(ev: Evidence, gpu: Gpu) -> bool:
    share, count = gpu.value("loaded_share"), gpu.value("loaded_n")
    return (
        gpu.spread("sm_clock_loaded") is not None
        and (share or 0.0) >= ev.limit("gpu_loaded_share")
        and (count or 0.0) >= ev.limit("gpu_least_samples")
    )


def _clock(gpu: Gpu) -> float | None:
    """Under load; of one that is hardly ever loaded, nearly the highest that it ran at."""
    return _mid(gpu, "sm_clock_loaded") or _mid(gpu, "sm_clock_mhz", P90)


def _judge(ev: Evidence, gpu: Gpu, peers: list[Gpu]) -> Judged:
    clock, others = _clock(gpu), [_mid(p, "sm_clock_loaded") for p in peers]
    middle = median(v for v in others if v is not None)
    assert clock is not None
    spread = max(1.4826 * median(abs(v - middle) for v in others if v is not None), ev.limit("gpu_floor") * middle)
    kind, text = _limiter(ev, gpu, peers)
    low = _low_limit(ev, gpu, peers)
    return Judged(
        gpu, len(peers), clock / middle if middle else 1.0, (middle - clock) / spread if spread else 0.0, kind, text,
        peak=_over(gpu, peers, "power_w", P90), tensor=_over(gpu, peers, "tensor_pct", P50),
        memory=_over(gpu, peers, "mem_clock_mhz", P50), gaps=_gaps(ev, gpu, peers), lock=_lock(ev, gpu, middle), low_limit=low,
        pcie=_pcie(gpu, peers), ecc=_ecc(ev, gpu), loaded=_loaded(ev, gpu),
    )  # fmt: skip


def _mid(gpu: Gpu, name: str, at: int = P50) -> float | None:
    told = gpu.spread(name)
    return None if told is None else told[at]


def _over(gpu: Gpu, peers: list[Gpu], name: str, at: int) -> float | None:
    own, others = _mid(gpu, name, at), [v for p in peers if (v := _mid(p, name, at)) is not None]
    middle = median(others) if others else 0.0
    return None if own is None or middle <= 0 else own / middle


def _gaps(ev: Evidence, gpu: Gpu, peers: list[Gpu]) -> float:
    """How much less of the time it is busy than its peers, which spin in a collective until it comes."""
    own, others = _mid(gpu, "util_pct"), [v for p in peers if (v := _mid(p, "util_pct")) is not None]
    seen = gpu.value("n") or 0.0
    if own is None or not others or seen < ev.limit("gpu_least_samples"):
        return 0.0
    return max(0.0, (median(others) - own) / 100.0)


def _share(gpu: Gpu, name: str) -> float:
    """Share of the samples in which this reason was active; absent while others are told is none."""
    told = gpu.row.get("reasons")
    value = told.get(name, 0.0) if isinstance(told, dict) else 0.0
    return float(value)


def _time_share(gpu: Gpu, name: str) -> float:
    """Share of the window that this limiter held the clocks, by the driver's own clock; else of the time between two looks."""
    told, window = gpu.row.get("limited_window_ns"), number(gpu.sample.data.get("window_s")) or 0.0
    if isinstance(told, dict) and name in told and window > 0:
        return min(1.0, float(told[name]) / 1e9 / window)
    counted = [
        (at, float(held[name]))
        for at, row in gpu.rows
        if at is not None and isinstance(held := row.get("limited_ns"), dict) and name in held
    ]
    if len(counted) < 2:
        return 0.0
    (first_at, first), (last_at, last) = counted[0], counted[-1]
    span = last_at - first_at
    return min(1.0, (last - first) / 1e9 / span) if span > 0 and last > first else 0.0


def _limiter(ev: Evidence, gpu: Gpu, peers: list[Gpu]) -> tuple[str, str]:
    """Rule B: (kind, text) of what holds this GPU in a good share of the time and its peers hardly ever."""
    found: dict[str, tuple[float, str]] = {}
    for name in HARD:
        mine_, theirs = _share(gpu, name), median(_share(p, name) for p in peers)
        if mine_ >= ev.limit("gpu_limited_share") and theirs <= ev.limit("gpu_peers_share"):
            kind = KINDS.get(name, "other")
            found[kind] = max(
                found.get(kind, (0.0, "")), (mine_, f"{name} in {mine_:.0%} of the samples, its peers {theirs:.0%}")
            )
    for name, kind in TIMES.items():
        mine_, theirs = _time_share(gpu, name), median(_time_share(p, name) for p in peers)
        if mine_ >= ev.limit("gpu_limited_share") and theirs <= ev.limit("gpu_peers_share"):
            found.setdefault(kind, (mine_, f"held by {name} in {mine_:.0%} of the time, its peers {theirs:.0%}"))
    if len(found) > 1:
        found.pop("other", None)  # the slowdown bit goes with the heat or brake that caused it
    if found:
        kind = max(found, key=lambda k: found[k][0])
        return kind, found[kind][1]
    low = _low_limit(ev, gpu, peers)
    capped, theirs = _share(gpu, "power_cap"), median(_share(p, "power_cap") for p in peers)
    if capped >= ev.limit("gpu_limited_share") and (low or capped - theirs >= ev.limit("gpu_cap_excess")):
        return (
            "power_limit",
            f"at its power limit in {capped:.0%} of the samples, its peers {theirs:.0%}{'; ' + low if low else ''}",
        )
    return "", ""


def _low_limit(ev: Evidence, gpu: Gpu, peers: list[Gpu]) -> str:
    own, others = gpu.value("power_limit_w"), [v for p in peers if (v := p.value("power_limit_w"))]
    middle = median(others) if others else 0.0
    if not own or own > ev.limit("gpu_low_limit") * middle:
        return ""
    return f"its power limit is {own:.0f} W, its peers' {middle:.0f} W"


def _lock(ev: Evidence, gpu: Gpu, middle: float) -> str:
    """A flat clock below the peers' with no reason for it and power to spare (notes/gpu-health.md 2.3)."""
    told, limit, power = gpu.spread("sm_clock_loaded"), gpu.value("power_limit_w"), gpu.spread("power_w")
    mask = gpu.value("reasons_any")
    if told is None or mask is None or not limit or power is None:
        return ""
    flat = told[4] - told[0] <= ev.limit("gpu_lock_spread_mhz") and (gpu.value("loaded_n") or 0) >= ev.limit(
        "gpu_lock_samples"
    )
    if (
        flat
        and told[P50] < ev.limit("gpu_lock_below") * middle
        and not int(mask) & ~0x2
        and power[P90] < ev.limit("gpu_lock_power") * limit
    ):
        return f"its clock stands at {told[P50]:.0f} MHz with nothing limiting it, its peers run at {middle:.0f} MHz"
    return ""


def _pcie(gpu: Gpu, peers: list[Gpu]) -> str:
    """Fewer lanes or a lower generation than its loaded peers of the same kind have now (idle cards lower theirs)."""
    words = []
    for name, said in (("pcie_gen", "generation"), ("pcie_width", "width")):
        own, others = gpu.value(name), [v for p in peers if (v := p.value(name)) is not None]
        if own is not None and others and own < median(others):
            words.append(f"PCIe {said} {own:.0f}, its peers {median(others):.0f}")
    return "; ".join(words)


def _ecc(ev: Evidence, gpu: Gpu) -> str:
    """Memory that corrects errors all the time, or whose repair failed."""
    rate = gpu.rate("ecc_corr")
    if rate is not None and rate >= ev.limit("gpu_ecc_per_s"):
        return f"{rate:.0f} memory errors corrected a second"
    if gpu.row.get("remap_failed") is True or gpu.row.get("remap_pending") is True:
        return "a row remapping is pending" if gpu.row.get("remap_failed") is not True else "a row remapping has failed"
    return ""


# ---------------------------------------------------------------- facts


def _fact(ev: Evidence, found: list[tuple[Judged, str]], none: str) -> Fact:
    told = ev.derive(cohorts)
    if told.why:
        return unknown(told.why)
    parts = [one.gpu.part(why) for one, why in found]
    samples = {one.gpu.node: one.gpu.sample for one, _ in found} or {
        one.gpu.node: one.gpu.sample for one in told.judged
    }
    text = "; ".join(f"{part.label()}: {part.why}" for part in parts[:3]) or none
    return known(parts=parts, text=text, provenance=ev.seen(*list(samples.values())[:8]))


def slow(ev: Evidence, one: Judged) -> bool:
    """Rule A."""
    return one.clock <= ev.limit("gpu_slow") and one.z >= ev.limit("gpu_z")


@fact("gpus.slow_clock", type="number", unit="gpus", parts="gpu")
def slow_clock(ev: Evidence) -> Fact:
    """Loaded GPUs whose clock is a tenth and more below that of their loaded peers (rule A)."""
    found = [
        (one, f"its clock is {one.clock:.0%} of its {one.peers} peers'")
        for one in ev.derive(cohorts).judged
        if slow(ev, one)
    ]
    return _fact(ev, found, "the loaded GPUs run at like clocks")


@fact("gpus.limited", type="number", unit="gpus", parts="gpu")
def limited(ev: Evidence) -> Fact:
    """Loaded GPUs that a limiter holds back in a fifth of the time and more, and their peers hardly ever (rule B)."""
    return _fact(
        ev,
        [(one, one.limiter_text) for one in ev.derive(cohorts).judged if one.limiter],
        "no GPU is held back more than its peers",
    )


@fact("gpus.brake", type="number", unit="gpus", parts="gpu")
def brake(ev: Evidence) -> Fact:
    """GPUs that the power brake of their chassis or rack holds back (it usually takes a whole node)."""
    found = [(one, one.limiter_text) for one in ev.derive(cohorts).judged if one.limiter == "power_brake"]
    return _fact(ev, found, "no power brake")


@fact("gpus.low_limit", type="number", unit="gpus", parts="gpu")
def low_limit(ev: Evidence) -> Fact:
    """GPUs whose enforced power limit is lower than their peers'."""
    return _fact(ev, [(one, one.low_limit) for one in ev.derive(cohorts).judged if one.low_limit], "like power limits")


@fact("gpus.lock", type="number", unit="gpus", parts="gpu")
def lock(ev: Evidence) -> Fact:
    """GPUs whose clock somebody seems to have locked below their peers': flat, with no reason told and power to spare."""
    return _fact(
        ev, [(one, one.lock) for one in ev.derive(cohorts).judged if one.lock], "no clock stands still below its peers'"
    )


@fact("gpus.pcie", type="number", unit="gpus", parts="gpu")
def pcie(ev: Evidence) -> Fact:
    """Loaded GPUs with fewer PCIe lanes or a lower generation than their loaded peers."""
    return _fact(ev, [(one, one.pcie) for one in ev.derive(cohorts).judged if one.pcie], "like PCIe links")


@fact("gpus.starved", type="number", unit="gpus", parts="gpu")
def starved(ev: Evidence) -> Fact:
    """GPUs at their peers' clock whose tensor cores do less: they are not given work in time (rule E)."""
    found = [
        (one, f"tensor cores at {one.tensor:.0%} of its peers', at {one.clock:.0%} of their clock")
        for one in ev.derive(cohorts).judged
        if one.tensor is not None and one.tensor <= ev.limit("gpu_starved") and one.clock > ev.limit("gpu_suspect")
    ]
    if not ev.derive(cohorts).why and all(one.tensor is None for one in ev.derive(cohorts).judged):
        return unknown("no GPU tells what its tensor cores do (Hopper and newer do)")
    return _fact(ev, found, "tensor cores are busy alike")
