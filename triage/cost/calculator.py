"""From the flags of `triage cost` to the question that the cost model answers: numbers that a person types, checked.

    1.76s 48m 2h 90         durations; a bare number is seconds, as everywhere
    5m,10m,40m              low, middle and high of one that is not known well
    44:37                   MFU, or any rate, healthy and now; a third number is the one after a remedy (17.1:14.8:16.2)
Errors   UsageError, one line that names the flag.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from triage.cost.layout import grid_of
from triage.cost.profile import CostProfile, Quantity, Switch
from triage.cost.request import CulpritNode, PlanRequest, Shape
from triage.errors import UsageError

_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_S = 366 * 86400.0
_GPUS_OF_A_NODE = 8
MOST_GROUPS = 65536
MOST_MICRO_BATCHES = 65536


@dataclass(frozen=True)
class Flags:
    """What was typed; "" or None = not said."""

    healthy_step: str = ""
    slow_step: str = ""
    speed: float | None = None
    mfu: str = ""
    rate: str = ""
    clock: str = ""
    frozen: bool = False
    kind: str = "compute"
    gpus: int | None = None
    nodes: Sequence[str] = ()
    since: str = ""
    price: float | None = None
    checkpoint_dump: str = ""
    checkpoint_every: str = ""
    checkpoint_age: str = ""
    restart: str = ""
    micro_batches: int | None = None
    tensor: int | None = None
    pipeline: int = 1
    data: int | None = None
    layers: int | None = None
    rank_order: str = "tp-dp-pp"
    s2: bool = False
    s3: bool = False
    slow: Sequence[str] = ()
    exclude: Sequence[str] = ()
    idle_nodes: int | None = None
    tried: Sequence[str] = ()
    checkpoint_at: float | None = None  # of a tracker file: epoch seconds and step
    checkpoint_step: int | None = None
    checkpoint_gap_s: Sequence[float] = ()  # median, least, most between its checkpoints


def seconds(flag: str, text: str) -> float:
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,9})?) ?(ms|s|m|h|d|)", text.strip())
    value = float(match[1]) * _SECONDS[match[2]] if match else -1.0
    if not 0 <= value <= _LONGEST_S:
        raise UsageError(f"{flag} {text[:40]!r} is not a duration such as 1.76s, 48m or 2h")
    return value


def minutes(flag: str, text: str) -> Quantity:
    """`10m`, or `5m,10m,40m`: low, middle, high."""
    values = [seconds(flag, part) / 60.0 for part in text.split(",")]
    if len(values) not in (1, 3) or values != sorted(values):
        raise UsageError(f"{flag} {text[:40]!r}: give one duration, or low,middle,high")
    return Quantity(values[len(values) // 2], values[0], values[-1], "min", "flag")


def rates(flag: str, text: str) -> list[float]:
    """`44:37` or `17.1:14.8:16.2`: a rate when healthy, now, and after a remedy."""
    try:
        values = [float(part) for part in text.split(":")]
    except ValueError:
        values = []
    if len(values) not in (2, 3) or not all(0 < v < 1e12 for v in values):
        raise UsageError(f"{flag} {text[:40]!r}: give healthy:now, e.g. 44:37")
    if values[1] > values[0]:
        raise UsageError(f"{flag} {text[:40]!r}: the rate now is above the healthy one; the order is healthy:now")
    return values


@dataclass(frozen=True)
class Recovery:
    """How much of a slowdown a remedy took away, by throughput and by step time; the two differ, so both are told."""

    by_rate: float
    by_time: float


def recovery(healthy: float, slow: float, after: float) -> Recovery:
    """17.1 -> 14.8 -> 16.2: 60.87 % by throughput, 64.25 % by step time (notes/straggler-and-cost.md 3.8)."""
    if slow >= healthy:
        raise UsageError("nothing was lost, so there is nothing to recover")
    by_time = (1 / slow - 1 / after) / (1 / slow - 1 / healthy)
    return Recovery((after - slow) / (healthy - slow), by_time)


def increase_of(flags: Flags) -> tuple[float | None, float | None, float | None]:
    """(x, healthy step in s, step now in s) from the one way in which it was told. All None if frozen, or by clock only."""
    ways = {
        "--healthy-step with --slow-step": bool(flags.healthy_step or flags.slow_step),
        "--speed": flags.speed is not None,
        "--mfu": bool(flags.mfu),
        "--rate": bool(flags.rate),
        "--clock": bool(flags.clock),
        "--frozen": flags.frozen,
        "--steps": False,  # tells healthy and slow step itself, before this is asked
    }
    told = [name for name, said in ways.items() if said]
    if len(told) != 1:
        if told:
            raise UsageError(f"say how slow it is in one way only: {', '.join(told)}")
        raise UsageError(f"say how slow it is, in one way: {', '.join(ways)}")
    if flags.frozen or flags.clock:
        return None, None, None
    if flags.speed is not None:
        if not 0 < flags.speed <= 1:
            raise UsageError(f"--speed {flags.speed:g} is a share of the healthy speed: above 0 to 1; 0 is --frozen")
        return 1.0 / flags.speed - 1.0, None, None
    if flags.mfu or flags.rate:
        values = rates("--mfu" if flags.mfu else "--rate", flags.mfu or flags.rate)
        return values[0] / values[1] - 1.0, None, None
    if not (flags.healthy_step and flags.slow_step):
        raise UsageError("--healthy-step and --slow-step belong together: a loss is the difference of the two")
    healthy, slow = seconds("--healthy-step", flags.healthy_step), seconds("--slow-step", flags.slow_step)
    if healthy <= 0 or slow < healthy:
        raise UsageError("--slow-step is shorter than --healthy-step: nothing is lost")
    return slow / healthy - 1.0, healthy, slow


def slow_parts(slow: Sequence[str], nodes: Sequence[str]) -> tuple[dict[str, float], dict[tuple[str, str], float]]:
    """`n04=0.88` a node's own speed; `n04~n05=0.5` the link between two; `n04~=0.5` all that a node sends."""
    own: dict[str, float] = {}
    links: dict[tuple[str, str], float] = {}
    for text in slow:
        name, mark, value = text.partition("=")
        try:
            speed = float(value) if mark else -1.0
        except ValueError:
            speed = -1.0
        a, link, b = name.partition("~")
        if not 0 < speed <= 1:
            raise UsageError(f"--slow {text[:60]!r}: give NODE=SPEED or NODE~NODE=SPEED, the speed above 0 to 1")
        for node in (a, b):
            if node and nodes and node not in nodes:
                raise UsageError(f"--slow {text[:60]!r}: {node[:40]} is none of --nodes")
        if not nodes or not a:
            raise UsageError("--slow names a node: say which there are with --nodes")
        if link:
            links[(a, b)] = 1.0 / speed
        else:
            own[a] = 1.0 / speed
    return own, links


def _shape(flags: Flags) -> Shape | None:
    slow, links = slow_parts(flags.slow, flags.nodes)
    replicas = flags.data
    grid = None
    if flags.nodes and flags.gpus:
        tensor = flags.tensor or 1
        found = grid_of(len(flags.nodes), flags.gpus, tensor, flags.pipeline, flags.rank_order == "tp-dp-pp")
        if isinstance(found, str):
            if flags.slow or flags.tensor is not None:
                raise UsageError(f"no plan for these nodes: {found}")
        else:
            grid = found
            if flags.tensor is not None:
                replicas = replicas or flags.gpus // (tensor * flags.pipeline)
    if grid is None and replicas is None:
        return None
    return Shape(tuple(flags.nodes), grid, replicas, slow, links, flags.layers)


def check(flags: Flags) -> None:
    """Numbers that would make no sense, or take for ever."""
    for name, value, least, most in (
        ("--gpus", flags.gpus, 1, 10_000_000),
        ("--micro-batches", flags.micro_batches, 1, MOST_MICRO_BATCHES),
        ("--tp", flags.tensor, 1, 65536),
        ("--pp", flags.pipeline, 1, 4096),
        ("--dp", flags.data, 1, MOST_GROUPS),
        ("--layers", flags.layers, 1, 4096),
        ("--idle-nodes", flags.idle_nodes, 0, 10_000_000),
    ):
        if value is not None and not least <= value <= most:
            raise UsageError(f"{name} {value} is not from {least} to {most}")
    if flags.price is not None and not 0 <= flags.price < 1e6:
        raise UsageError(f"--price {flags.price:g} is no price of a GPU-hour")
    if (flags.data or 1) * (flags.micro_batches or 1) > 4_000_000:
        raise UsageError("--dp times --micro-batches is more than 4 million: no such batch can be shared out here")
    if len(flags.nodes) != len(set(flags.nodes)):
        raise UsageError("--nodes names a node twice")
    for name, word, known in (
        ("--kind", flags.kind, ("compute", "network")),
        ("--rank-order", flags.rank_order, ("tp-dp-pp", "tp-pp-dp")),
    ):
        if word not in known:
            raise UsageError(f"{name} {word[:20]!r} is none of {', '.join(known)}")
    for name in flags.tried:
        if name not in ("S2", "S3", "S4"):
            raise UsageError(f"--tried {name[:20]!r} is none of S2, S3, S4")


def request_of(flags: Flags, observed: float) -> PlanRequest:
    """The question. `observed` is now, epoch seconds."""
    check(flags)
    increase, healthy, slow = increase_of(flags)
    since = seconds("--since", flags.since) if flags.since else None
    shape = _shape(flags)
    nodes = len(flags.nodes) or max(1, (flags.gpus or 1) // _GPUS_OF_A_NODE)
    own = max((shape.slow if shape else {}).values(), default=0.0) - 1.0
    if flags.clock:
        peers, mine = rates("--clock", flags.clock)[:2]
        own = peers / mine - 1.0
    return PlanRequest(
        verdict_id="frozen" if flags.frozen else "straggler",
        mitigate="price",
        fail="stop" if flags.frozen else "slow",
        confidence="high",
        state="frozen" if flags.frozen else "slow",
        observed=observed,
        n_nodes=max(nodes, 50 * len(flags.exclude)),  # who types a name has decided: the guard is not for him
        n_gpus=flags.gpus,
        kind=flags.kind,
        culprits=tuple(CulpritNode(name, facts=2) for name in dict.fromkeys(flags.exclude)),
        onset=None if since is None else observed - since,
        t0_s=healthy,
        t1_s=slow,
        increase=increase,
        step_source="flag",
        gpus_source="flag",
        slow_fraction=own if own > 0 else increase,
        slow_by_clock=bool(flags.clock),
        idle_nodes=flags.idle_nodes,
        idle_source=None if flags.idle_nodes is None else "flag",
        dp_groups=shape.replicas if shape else None,
        pp_stages=flags.pipeline,
        shape=shape,
        checkpoint_step=flags.checkpoint_step,
        checkpoint_at=flags.checkpoint_at,
        tried=tuple(flags.tried),
        measured=_told(flags),
        replaced=not flags.exclude,
    )


def _told(flags: Flags) -> Mapping[str, Quantity]:
    found: dict[str, Quantity] = {}
    for name, flag, text in (
        ("dump_min", "--checkpoint-dump", flags.checkpoint_dump),
        ("checkpoint_interval_min", "--checkpoint-every", flags.checkpoint_every),
        ("checkpoint_age_min", "--checkpoint-age", flags.checkpoint_age),
        ("restart_min", "--restart", flags.restart),
    ):
        if text:
            found[name] = minutes(flag, text)
    if flags.checkpoint_gap_s and not flags.checkpoint_every:
        middle, low, high = (gap / 60.0 for gap in flags.checkpoint_gap_s)
        found["checkpoint_interval_min"] = Quantity(middle, low, high, "min", "filesystem")
    for name, number in (("gpu_hour_usd", flags.price), ("micro_batches", flags.micro_batches)):
        if number is not None:
            found[name] = Quantity(float(number), float(number), float(number), "", "flag")
    return found


def with_switches(profile: CostProfile, flags: Flags) -> CostProfile:
    """A dump that is priced can be taken; S2 and S3 are possible where the flag says so."""
    said = {"dump_on_demand": bool(flags.checkpoint_dump), "s2_supported": flags.s2, "s3_supported": flags.s3}
    switches = {
        name: Switch(True, "flag", known.note) if said.get(name) else known for name, known in profile.switches.items()
    }
    return CostProfile(profile.quantities, switches, profile.policy, profile.policy_source)
