"""Which of S1 to S4 apply here, what each costs and what it leaves (notes/straggler-and-cost.md 3.2 to 3.4)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from triage.cost.loss import Rent, accumulated, lost_fraction, lost_minutes, step_increase
from triage.cost.moves import MOST_MICRO_BATCHES, Plan, change_topology, rebalance
from triage.cost.profile import CostProfile, Quantity, percent, plain
from triage.cost.request import PlanRequest
from triage.cost.restart import RestartPrice, price

_FREE = Quantity(0.0, 0.0, 0.0, "job-min", "default")


@dataclass(frozen=True)
class Loss:
    """What the incident loses. `lost` is s; None where neither step times nor a freeze tell it."""

    increase: float | None  # x of the whole step
    lost: float | None
    lost_low: float | None
    lost_high: float | None
    elapsed_min: float | None
    rent: Rent


@dataclass(frozen=True)
class Strategy:
    """One line of the table. `overhead` and `residual` are None where the step cannot be priced."""

    id: str
    applicable: bool
    reason: str
    overhead: Quantity | None
    residual: float | None
    plan: Plan | None = None


@dataclass(frozen=True)
class Exclusion:
    """Nodes that a restart leaves out, and if none, why not."""

    nodes: tuple[str, ...]
    why_not: str = ""


def measure(request: PlanRequest) -> Loss:
    """The loss so far, never less than what an earlier look counted and what came since (rent is never reset)."""
    loss = _measure(request)
    if request.paid is None or loss.lost is None or request.case == "none":
        return loss
    at, before = request.paid
    since = _measure(replace(request, onset=max(at, request.onset or at))).rent.value
    if since is None or (loss.rent.value is not None and loss.rent.value >= before + since):
        return loss
    total, how = before + since, "what earlier looks counted, and the steps since"
    return replace(loss, rent=Rent(total, max(loss.rent.low or 0.0, since), max(loss.rent.high or 0.0, total), how))


def _measure(request: PlanRequest) -> Loss:
    """The loss by this look alone. Without the healthy step: bounds from the culprit's own compute, and no middle."""
    elapsed = None if request.onset is None else max(0.0, request.observed - request.onset) / 60.0
    if request.case in ("dead", "may_heal") or (request.case in ("unknown", "cause") and request.state == "frozen"):
        return Loss(None, 1.0, 1.0, 1.0, elapsed, Rent(elapsed, elapsed, elapsed, "time since onset, nothing moves"))
    if request.case == "none":
        healthy = 0.0 if request.verdict_id == "healthy" else None
        return Loss(healthy, healthy, healthy, healthy, elapsed, Rent(healthy, healthy, healthy))
    if request.t0_s and request.t1_s and request.t0_s > 0:
        increase = step_increase(request.t0_s, request.t1_s)
        lost = lost_fraction(increase)
        if request.onset is None:
            over = sum(max(0.0, ms / 1000.0 - request.t0_s) for _, ms in request.series) * request.steps_per_point
            return Loss(increase, lost, lost, lost, None, Rent(None, over / 60.0, None, "logged steps only"))
        rent = accumulated(request.series, request.t0_s, request.onset, request.observed, lost, request.steps_per_point)
        return Loss(increase, lost, lost, lost, elapsed, rent)
    if request.increase is not None:
        lost = lost_fraction(max(0.0, request.increase))
        whole = None if elapsed is None else lost_minutes(lost, elapsed)
        rent = Rent(whole, whole if whole is not None else 0.0, whole, "lost fraction x time since onset")
        return Loss(max(0.0, request.increase), lost, lost, lost, elapsed, rent)
    if request.slow_fraction is not None:
        # The step holds more than this compute, so it has grown by at most that fraction; it may hide part of it.
        high = lost_fraction(max(0.0, request.slow_fraction))
        most = None if elapsed is None else lost_minutes(high, elapsed)
        return Loss(None, None, 0.0, high, elapsed, Rent(None, 0.0, most, "bounds from the culprit's own speed"))
    return Loss(None, None, None, None, elapsed, Rent(None, None, None))


def exclusion(request: PlanRequest, profile: CostProfile) -> Exclusion:
    """Nodes to leave out. Only at high confidence, each with a hard or two independent facts, and never many."""
    if request.mitigate not in ("restart_excluding", "price"):
        return Exclusion((), "")
    named = tuple(dict.fromkeys(c.node for c in request.culprits if not c.involved and c.node))
    if not named:
        return Exclusion((), "no single node is the culprit")
    if request.confidence != "high":
        return Exclusion((), f"confidence is {request.confidence}; a node is excluded at high only")
    firm = {c.node for c in request.culprits if not c.involved and (c.hard or c.facts >= 2)}
    nodes = tuple(node for node in named if node in firm)
    if not nodes:
        return Exclusion((), "only one soft fact points at it; it takes a hard or two independent ones")
    most = max(profile.number("exclude_nodes"), math.floor(profile.number("exclude_share") * request.n_nodes))
    if len(nodes) > most:
        return Exclusion((), f"{len(nodes)} nodes are more than one rule may exclude ({plain(most)})")
    return Exclusion(nodes)


def hard_fault(request: PlanRequest, excluded: Exclusion) -> str | None:
    """A node that is slow and has a fault that ends a job by itself: it is drained, whatever the rent says so far."""
    if request.mitigate != "price" or request.case not in ("slow_compute", "slow_network"):
        return None
    return next((c.node for c in request.culprits if c.hard and c.node in excluded.nodes), None)


def price_restart(request: PlanRequest, profile: CostProfile, loss: Loss) -> RestartPrice:
    """S4 as it stands now. The age is counted to the stall: after it nothing was achieved that could be lost."""
    age = profile.quantity("checkpoint_age_min")
    if age.value is None and request.checkpoint_at is not None:
        frozen = loss.lost is not None and loss.lost >= 1.0
        until = request.onset if frozen and request.onset is not None else request.observed
        minutes = max(0.0, until - request.checkpoint_at) / 60.0
        age = Quantity(minutes, minutes, minutes, "min", request.checkpoint_source)
    return price(
        lost=loss.lost if loss.lost is not None else (loss.lost_high or 0.0),
        age=age,
        interval=profile.quantity("checkpoint_interval_min"),
        restart=profile.quantity("restart_min"),
        dump=profile.quantity("dump_min") if profile.can("dump_on_demand") else None,
        inevitable=request.case != "may_heal",
    )


def after_rebalance(speed: float, micro_batches: int, groups: int | None = None, stages: int = 1) -> float:
    """Step-time increase left by the best S2: the slow group gives k of its M micro-batches to the others.

    min over k of max((M - k + P - 1) / v, M + ceil(k / (G - 1)) + P - 1) against M + P - 1. Only whole micro-batches
    move, so at least about 1 / (M + P - 1) remains. `groups` None = many.
    """
    healthy = micro_batches + stages - 1
    best = healthy / speed
    for given in range(1, micro_batches):
        others = groups - 1 if groups is not None else given
        if others < 1:
            break
        slow = (healthy - given) / speed
        best = min(best, max(slow, float(healthy + math.ceil(given / others))))
    return best / healthy - 1.0


def strategies(
    request: PlanRequest, profile: CostProfile, loss: Loss, restart: RestartPrice, excluded: Exclusion
) -> tuple[Strategy, ...]:
    """S1 to S4, always all four, each with whether it applies and why."""
    case = request.case
    s1 = Strategy("S1", True, "current", _FREE, loss.lost)
    if case in ("slow_compute", "slow_network"):
        s1 = Strategy("S1", True, "a stopgap: the loss goes on", _FREE, loss.lost)
        if node := hard_fault(request, excluded):
            s1 = Strategy("S1", False, f"{node} has a hard fault too: that does not pass", _FREE, loss.lost)
        return (
            s1,
            _s2(request, profile, loss),
            _s3(request, profile, loss),
            _s4_slow(request, loss, restart, excluded),
        )
    no = {
        "none": "nothing to mend",
        "unknown": "the cause is not known",
        "cause": "the slowness comes back: mend its cause",
        "dead": "the job stands still: there is no step to re-balance",
        "may_heal": "the job stands still: there is no step to re-balance",
    }[case]
    s2, s3 = (
        Strategy(name, False, no, profile.quantity(f"{name.lower()}_overhead_min"), None) for name in ("S2", "S3")
    )
    s4 = Strategy("S4", False, no, restart.overhead, None)
    if case == "cause":
        s1 = Strategy("S1", True, "while its cause is mended", _FREE, loss.lost)
    elif case == "dead":
        s1 = Strategy("S1", False, "it cannot come back by itself", _FREE, 1.0)
        s4 = Strategy("S4", True, "the only step that ends this", restart.overhead, 0.0)
    elif case == "may_heal":
        s1 = Strategy("S1", True, "a bounded wait: it may come back", _FREE, 1.0)
        s4 = Strategy("S4", True, "when the wait is over", restart.overhead, 0.0)
    elif case == "unknown":
        s1 = Strategy("S1", True, "only while evidence is collected", _FREE, loss.lost)
        if request.state == "frozen":
            s4 = Strategy("S4", True, "when the time to collect is over, excluding nobody", restart.overhead, None)
    return s1, s2, s3, s4


def _s2(request: PlanRequest, profile: CostProfile, loss: Loss) -> Strategy:
    overhead = profile.quantity("s2_overhead_min")

    def no(reason: str) -> Strategy:
        return Strategy("S2", False, reason, overhead, None)

    if request.case == "slow_network":
        return no("other micro-batches do not relieve a slow link")
    if not profile.can("s2_supported"):
        return no(f"not supported here ({profile.switches['s2_supported'].source})")
    count = profile.quantity("micro_batches").value
    if count is None or not 1 <= count <= MOST_MICRO_BATCHES:
        return no("cannot judge: the number of micro-batches is not known")
    if loss.lost is None or loss.increase is None:
        return no("cannot judge: the healthy step time is not known")
    own = request.slow_fraction if request.slow_fraction else loss.increase
    if own <= 0:
        return no("no part is slower than its peers")
    micro_batches, speed = int(count), 1.0 / (1.0 + own)
    if not micro_batches + 1 < micro_batches / speed:
        return no(f"{micro_batches} micro-batches are too few for whole ones to even out {percent(own)}")
    plan = rebalance(request, own, micro_batches)
    share = plan.left if plan else after_rebalance(speed, micro_batches, request.dp_groups, request.pp_stages) / own
    # The culprit's compute may have grown more than the step: what is left of the step shrinks in proportion.
    residual = lost_fraction(loss.increase * min(1.0, share))
    if loss.lost - residual < profile.number("gain_min"):
        return no(
            f"{micro_batches} micro-batches would leave {percent(residual)} of {percent(loss.lost)}: not worth a try"
        )
    return Strategy("S2", True, f"leaves -{percent(residual)} (M={micro_batches})", overhead, residual, plan)


def _s3(request: PlanRequest, profile: CostProfile, loss: Loss) -> Strategy:
    overhead = profile.quantity("s3_overhead_min")

    def no(reason: str) -> Strategy:
        return Strategy("S3", False, reason, overhead, None)

    if not profile.can("s3_supported"):
        return no(f"not supported here ({profile.switches['s3_supported'].source})")
    if loss.lost is None:
        return no("cannot judge: the healthy step time is not known")
    plan = change_topology(request, profile, int(profile.quantity("micro_batches").value or 1))
    if isinstance(plan, str):
        return no(plan)
    if plan is not None and loss.increase is not None:
        residual = lost_fraction(loss.increase * plan.left)
    elif request.case == "slow_network":
        residual = profile.number("s3_residual_network_share") * loss.lost
    else:
        residual = profile.number("s3_residual_compute")
    if loss.lost - residual < profile.number("gain_min"):
        return no(f"would leave {percent(residual)} of {percent(loss.lost)}: not worth a try")
    return Strategy("S3", True, f"leaves -{percent(residual)}", overhead, residual, plan)


def _s4_slow(request: PlanRequest, loss: Loss, restart: RestartPrice, excluded: Exclusion) -> Strategy:
    """A restart onto the same nodes brings the same slowness back: without an exclusion it buys nothing."""
    if request.mitigate != "price":  # the verdict itself asks for it: the cause is mended, or proven to be hardware
        return Strategy("S4", True, "the verdict asks for it", restart.overhead, 0.0)
    if request.replaced:
        part = "path" if request.case == "slow_network" else "part"
        return Strategy("S4", True, f"ends it, if the slow {part} is left out", restart.overhead, 0.0)
    if not excluded.nodes:
        why = excluded.why_not or "nothing may be excluded"
        return Strategy("S4", False, f"the slow part would come back: {why}", restart.overhead, loss.lost)
    return Strategy("S4", True, "ends it, without the slow node", restart.overhead, 0.0)
