"""Is one port of the job congested, held up by its neighbour, or holding up others, while the job moves?

Notices of congestion are counted per packet and compared along each rail (notes/network.md 3): a busy port has more of them,
and a fixed number says nothing. Who *receives* marked packets is the place where many meet, who is *told* to slow down is a
sender; a port that is paused is a victim, the one that pauses others is the slow host.
What can fool it: a frozen job, which sends nothing and has no congestion to show (not applicable, never "none"); fabrics
whose library does its own admission, where no notices are sent however full the queues are; two looks, which say nothing of
whether this is new; few ports on a rail, of which one is always the worst. That notices rise as the GPUs' activity falls is
true of healthy jobs as well (notes/history.md 2): it is shown, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from triage.facts.activity import number, rows_of
from triage.facts.evidence import Evidence
from triage.facts.rails import Rail, Told, at_rails, rails, sources, told
from triage.facts.registry import catalogue, fact, known, other, unknown
from triage.facts.wire import NO_LOOKS, few, moving
from triage.model import Fact, Part, Provenance

PACKET_BYTES = 4096  # of RDMA, where packets are not counted: the largest path MTU
WORD_BYTES = 4
# What makes a GPU the slower part (triage.facts.gpus*): with any of them the fabric is not to be accused first.
GPU_FAULTS = (
    "gpus.lost", "gpus.slow_clock", "gpus.limited", "gpus.lock", "gpus.low_limit", "gpus.brake", "gpus.pcie",
    "gpus.starved", "xids.cause",
)  # fmt: skip


@dataclass(frozen=True)
class Rate:
    """Notices of one port per million packets. `events`: how many there were."""

    told: Told
    per_mpkt: float
    events: int


def _packets(one: Told, way: str) -> float | None:
    packets, words = one.values.get(f"{way}_roce_packets"), one.values.get(f"{way}_words")
    if packets is not None:
        return float(packets)
    return None if words is None else words * WORD_BYTES / PACKET_BYTES


def _received(one: Told) -> Rate | None:
    """Marked packets that arrived here: told to their senders, or only seen."""
    return _rate(one, one.values.get("np_cnp_sent"), "rx")


def _slowed(one: Told) -> Rate | None:
    """How often it was told to slow down; on InfiniBand, which tells nobody, how long it had no credits (ticks a word)."""
    if one.port.layer == "InfiniBand":
        waited, words = one.values.get("port_xmit_wait"), one.values.get("tx_words")
        return None if waited is None or not words else Rate(one, waited / words * 1e6, waited)
    return _rate(one, one.values.get("rp_cnp_handled"), "tx")


def _rate(one: Told, events: int | None, way: str) -> Rate | None:
    packets = _packets(one, way)
    return None if events is None or not packets else Rate(one, events / packets * 1e6, events)


Measure = Callable[[Told], Rate | None]


def _spread(values: list[float]) -> tuple[float, float]:
    """(median, median absolute deviation with its floor)."""
    middle = median(values)
    return middle, max(median(abs(v - middle) for v in values), 1.0, 0.1 * middle)


@dataclass(frozen=True)
class Judged:
    """One measure over all rails: outliers on their rail, ports compared, and the median of each rail."""

    odd: tuple[Rate, ...]
    usual: dict[int, float]
    compared: int
    medians: tuple[tuple[Rail, float, int], ...]
    why: str = ""

    def nodes(self) -> set[str]:
        return {rate.told.port.node for rate in self.odd}


def _judge(ev: Evidence, measure: Measure) -> Judged:
    odd: list[Rate] = []
    usual: dict[int, float] = {}
    medians: list[tuple[Rail, float, int]] = []
    compared, still = 0, 0
    for rail, heard in ev.derive(at_rails):
        busy = moving(ev, heard)
        still += len(heard) - len(busy)
        rates = [rate for one in busy if (rate := measure(one)) is not None]
        if len(rates) < ev.limit("wire_least_ports"):
            continue
        compared += len(rates)
        middle, mad = _spread([rate.per_mpkt for rate in rates])
        medians.append((rail, middle, sum(rate.events for rate in rates)))
        for rate in rates:
            rest = max(other.per_mpkt for other in rates if other is not rate)
            if (
                rate.events >= ev.limit("cnp_least")
                and _waits_at_all(ev, rate)
                and _far(ev, rate.per_mpkt, middle, mad, rest, len(rates))
            ):
                odd.append(rate)
                usual[id(rate)] = middle
    if compared:
        return Judged(tuple(odd), usual, compared, tuple(medians))
    if not ev.derive(told):
        why = NO_LOOKS
    elif still:
        why = "not applicable: no traffic on the job's ports, and a port that sends nothing shows no congestion"
    else:
        why = "no rail has enough ports that count notices of congestion"
    return Judged((), {}, 0, (), why)


def _far(ev: Evidence, value: float, middle: float, mad: float, rest: float, ports: int) -> bool:
    """Does it stand out from its rail? Of few ports the spread says nothing: then it must be far from the next one."""
    if ports < ev.limit("cnp_rail_ports"):
        return value > 0 and value >= ev.limit("cnp_over_rail") * rest
    return 0.6745 * (value - middle) / mad >= ev.limit("cnp_z") and value >= ev.limit("cnp_over_rail") * middle


def _waits_at_all(ev: Evidence, rate: Rate) -> bool:
    """On InfiniBand: ticks without credits are counted on idle paths too, and matter from some share of the words on."""
    return rate.told.port.layer != "InfiniBand" or rate.per_mpkt >= ev.limit("wait_least") * 1e6


def receivers(ev: Evidence) -> Judged:
    """To be called through `ev.derive`."""
    return _judge(ev, _received)


def senders(ev: Evidence) -> Judged:
    """To be called through `ev.derive`."""
    return _judge(ev, _slowed)


def _part(judged: Judged, rate: Rate, what: str) -> Part:
    one = rate.told
    unit = "ticks a million words" if one.port.layer == "InfiniBand" else "a million packets"
    middle = judged.usual[id(rate)]
    return one.port.part(
        f"{what} {rate.per_mpkt:.3g} times {unit}, its rail {middle:.3g} ({rate.events} in {one.window_s:.3g}s)"
    )


def _seen(ev: Evidence, *rates: Rate) -> tuple[Provenance, ...]:
    return ev.seen(*sources([rate.told.port for rate in rates]))


@fact("wire.congested", type="number", unit="ports", parts="nic")
def congested(ev: Evidence) -> Fact:
    """Ports that are told to slow down far more often, per packet, than the rest of their rail, while the job moves."""
    out, into = ev.derive(senders), ev.derive(receivers)
    if not out.compared:
        return unknown(out.why)
    nodes = ev.derive(rails).nodes
    if _incast(ev) or not few(ev, len(out.nodes()), nodes):
        text = f"{len(out.odd)} ports of {len(out.nodes())} nodes are slowed down alike: not one port's"
        return known(parts=[], text=text, provenance=_seen(ev, *out.odd))
    parts = [_part(out, rate, "was told to slow down") for rate in out.odd]
    # The words that slowed it down come from one receiver: then the path between the two may be the narrow place.
    against = [f"the notices of {rate.told.port.name} of {rate.told.port.node}" for rate in into.odd
               if rate.told.port.node not in out.nodes()] if parts else []  # fmt: skip
    text = "; ".join(f"{p.label()}: {p.why}" for p in parts[:3]) or _all_alike(out)
    return known(parts=parts, text=text, provenance=_seen(ev, *out.odd), contradicted_by=against[:1])


def _all_alike(judged: Judged) -> str:
    middles = ", ".join(f"{middle:.3g}" for _, middle, _ in judged.medians[:8])
    return f"none of {judged.compared} ports stands out (per million packets, by rail: {middles})"


def _incast(ev: Evidence) -> list[Rate]:
    """Receivers of marked packets that stand out on few nodes, while their senders are many or none stands out."""
    into, out = ev.derive(receivers), ev.derive(senders)
    if not into.odd or not few(ev, len(into.nodes()), ev.derive(rails).nodes):
        return []
    one_pair = len(out.nodes() - into.nodes()) == 1
    own_link = bool(out.nodes() & into.nodes())
    return [] if one_pair or own_link else list(into.odd)


@fact("wire.incast", type="number", unit="places", parts="fabric")
def incast(ev: Evidence) -> Fact:
    """Ports onto which too many send at once: the traffic's shape, and no fault of the node that receives it."""
    into = ev.derive(receivers)
    if not into.compared:
        return unknown(into.why)
    found = _incast(ev)
    parts = [
        Part("fabric", name=f"traffic of many onto {r.told.port.name} of {r.told.port.node}",
             why=_part(into, r, "asked senders to slow down").why)
        for r in found
    ]  # fmt: skip
    return known(parts=parts, text=parts[0].why if parts else _all_alike(into), provenance=_seen(ev, *found))


@fact("wire.rail_wide", type="number", unit="rails", parts="fabric")
def rail_wide(ev: Evidence) -> Fact:
    """Rails that are congested as a whole, while the others are not: their leaf switch or its uplinks, and no node."""
    found: dict[int, Part] = {}
    told_any = False
    for judged in (ev.derive(senders), ev.derive(receivers)):
        rows = judged.medians
        if len(rows) < ev.limit("wire_least_rails"):
            continue
        told_any = True
        middle, mad = _spread([value for _, value, _ in rows])
        for rail, value, events in rows:
            z = 0.6745 * (value - middle) / mad
            if (
                z >= ev.limit("cnp_z")
                and value >= ev.limit("cnp_over_rail") * middle
                and events >= ev.limit("cnp_least")
            ):
                why = f"its ports tell of congestion {value:.3g} times a million packets, those of the other rails {middle:.3g}"
                found.setdefault(rail.index, Part("fabric", name=rail.says(), why=why))
    if not told_any:
        return unknown(ev.derive(senders).why or "too few rails to tell one from the others")
    parts = list(found.values())
    text = "; ".join(f"{p.name}: {p.why}" for p in parts[:3]) or "no rail stands out"
    return known(parts=parts, text=text, provenance=ev.seen(*sources(list(ev.derive(rails).ports()))[:2]))


# ---------------------------------------------------------------- pause


def _paused_share(ev: Evidence, one: Told, role: str) -> float | None:
    """How much of the time, or of its limit, this port is paused or pauses: 1 and more is too much; None: cannot tell."""
    us, frames = one.total(role, "us"), one.total(role)
    by_time = None if us is None else us / 1e6 / one.window_s / ev.limit("pause_share")
    by_frames = None if frames is None else frames / one.window_s / ev.limit("pause_per_s")
    return by_time if by_time is not None else by_frames


def _pauses(ev: Evidence, role: str, words: str) -> tuple[list[Part], list[Told], int]:
    parts: list[Part] = []
    seen: list[Told] = []
    could = 0
    everybody = list(ev.derive(told).values())
    for _, heard in ev.derive(at_rails):
        peers = heard if len(heard) >= ev.limit("wire_least_ports") else everybody
        shares = {id(one): share for one in peers if (share := _paused_share(ev, one, role)) is not None}
        for one in heard:
            mine = shares.get(id(one))
            could += mine is not None
            rest = [share for key, share in shares.items() if key != id(one)]
            if mine is not None and mine >= 1 and mine >= ev.limit("loss_over_rail") * (median(rest) if rest else 0.0):
                us, frames = one.total(role, "us"), one.total(role)
                how = f"{us / 1e4 / one.window_s:.2g} % of the time" if us is not None else f"{frames} frames"
                parts.append(one.port.part(f"{words} ({how}) in {one.window_s:.3g}s"))
                seen.append(one)
    return parts, seen, could


NO_PAUSE = "no port of the job counts pause frames (InfiniBand has none, a virtual function does not see them)"


@fact("wire.paused", type="number", unit="ports", parts="nic")
def paused(ev: Evidence) -> Fact:
    """Ports that the fabric told to stop sending, more than their rail: victims of whoever is slow behind it."""
    parts, seen, could = _pauses(ev, "paused", "was told to stop sending")
    if not could:
        return unknown(NO_PAUSE if ev.derive(told) else NO_LOOKS)
    return known(parts=parts, provenance=ev.seen(*sources([one.port for one in seen])))


@fact("wire.pausing", type="number", unit="ports", parts="nic")
def pausing(ev: Evidence) -> Fact:
    """Ports that told the fabric to stop sending, more than their rail: their host is slow (PCIe, IOMMU, memory), and others wait."""
    parts, seen, could = _pauses(ev, "pausing", "told the fabric to stop sending")
    if not could:
        return unknown(NO_PAUSE if ev.derive(told) else NO_LOOKS)
    provenance = ev.seen(*sources([one.port for one in seen]))
    if not few(ev, len({part.node for part in parts}), ev.derive(rails).nodes):
        return known(
            parts=[], text=f"{len(parts)} ports pause their senders alike: not one host's", provenance=provenance
        )
    text = "; ".join(f"{p.label()}: {p.why}" for p in parts[:3]) or "no port pauses its senders"
    return known(parts=parts, text=text, provenance=provenance)


# ---------------------------------------------------------------- the GPUs beside it


@fact("wire.gpus_healthy", type="bool")
def gpus_healthy(ev: Evidence) -> Fact:
    """Is no GPU of the job slow by itself? Only then is a slow job the network's. Unknown where the GPUs were not read."""
    names = [name for name in GPU_FAULTS if name in catalogue()]
    facts = {name: other(ev, name) for name in names}
    bad = [(name, found) for name, found in facts.items() if found.known and found.parts]
    if bad:
        name, found = bad[0]
        return known(False, text=f"{name}: {found.parts[0].label()}", provenance=found.provenance)
    heard = [sample for sample in ev.latest("gpu").values() if rows_of(sample.data.get("gpus"))]
    clocks = [name for name in ("gpus.limited", "gpus.slow_clock") if name in facts and facts[name].known]
    if not heard or not clocks:
        return unknown("nothing tells whether the GPUs run at their clocks")
    return known(
        True, text=f"no GPU of {len(heard)} nodes is limited or slower than its peers", provenance=ev.seen(*heard[:8])
    )


@fact("wire.activity", type="text")
def activity(ev: Evidence) -> Fact:
    """How busy the GPUs of each node are beside its notices of congestion: shown as support, and it decides nothing."""
    by_node: dict[str, float] = {}
    measure = ""
    for node, sample in ev.latest("gpu").items():
        # Utilisation counts a spinning collective as work: it is never taken here (notes/network.md 3).
        for key, name in (("sm_pct", "SM activity, %"), ("power_w", "power, W")):
            middles = [m for gpu in rows_of(sample.data.get("gpus")) if (m := _middle(gpu.get(key))) is not None]
            if middles and measure in ("", name):
                by_node[node], measure = median(middles), name
                break
    if not by_node:
        return unknown("no GPU told its SM activity or its power")
    odd = sorted(ev.derive(senders).nodes() | ev.derive(receivers).nodes())
    others = [value for node, value in by_node.items() if node not in odd]
    words = [f"{node} {by_node[node]:.3g}" for node in odd if node in by_node][:4]
    rest = f"the other nodes {median(others):.3g}" if others else ""
    says = f"{measure}: {', '.join(filter(None, (*words, rest)))} (support only: healthy jobs show the same pattern)"
    return known(says, text=says, provenance=ev.seen(*list(ev.latest("gpu").values())[:4]))


def _middle(value: object) -> float | None:
    """The median of a distribution [min, p10, p50, p90, max]."""
    return number(value[2]) if isinstance(value, list | tuple) and len(value) == 5 else None
