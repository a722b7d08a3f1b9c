"""Which step is recommended, until when to wait, what comes next, and what would change the advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from triage.cost.escalate import Option, decide, following, ladder, minutes_to
from triage.cost.options import Exclusion, Loss, Strategy, hard_fault
from triage.cost.profile import CostProfile, Quantity, plain
from triage.cost.request import PlanRequest
from triage.cost.restart import RestartPrice, best_wait

Action = Literal[
    "none",
    "wait",
    "collect",
    "repair",
    "rebalance",
    "change_topology",
    "restart",
    "restart_excluding",
    "fix_then_restart",
]
Urgency = Literal["now", "when_due", "none"]


@dataclass(frozen=True)
class Next:
    """The step after the recommended one: when (minutes from now, epoch seconds) and on which condition."""

    strategy: str
    in_min: float | None
    at: float | None
    condition: str


@dataclass(frozen=True)
class Advice:
    """What to do. `wait_until` is epoch seconds; `flips` are the points at which the advice changes."""

    strategy: str
    action: Action
    urgency: Urgency
    wait_until: float | None = None
    following: Next | None = None
    flips: tuple[dict[str, Any], ...] = ()
    corners_agree: bool = True
    priced: bool = True  # False: bounds only, or nothing known; the advice is then of low confidence
    corners: tuple[str, ...] = ()  # the strategies at the corners of the inputs, where they disagree


def choose(
    request: PlanRequest,
    profile: CostProfile,
    loss: Loss,
    options: Sequence[Strategy],
    restart: RestartPrice,
    excluded: Exclusion,
) -> Advice:
    """none, wait, repair: S1. price: the escalation rule, or a bounded wait where nothing moves. restart*: S4."""
    if request.case == "unknown":
        return _collect(request, profile)
    if request.mitigate == "repair":
        return Advice("S1", "repair", "now")
    if request.mitigate == "none":
        return Advice("S1", "none", "none")
    if request.case == "may_heal":
        return _bounded_wait(request, profile, loss, restart, excluded)
    if request.mitigate == "wait":
        return Advice("S1", "wait", "when_due", _before(request, profile))
    if hard_fault(request, excluded):
        return replace(_restart_now(request, excluded, restart), action="restart_excluding")
    if request.mitigate == "price":
        return (
            _escalate(request, profile, loss, options, restart)
            if request.case != "none"
            else Advice("S1", "none", "none")
        )
    return _restart_now(request, excluded, restart)


def _before(request: PlanRequest, profile: CostProfile) -> float | None:
    """The last moment to act before the nearest deadline acts for us."""
    if request.deadline is None:
        return None
    return request.deadline - 60.0 * profile.number("deadline_margin_min")


def _collect(request: PlanRequest, profile: CostProfile) -> Advice:
    """Inconclusive: collect until 5 min after the onset or 2 min before the deadline, then restart if still frozen."""
    start = request.onset if request.onset is not None else request.observed
    until = start + 60.0 * profile.number("inconclusive_wait_min")
    margin = _before(request, profile)
    if margin is not None:
        until = min(until, margin)
    if request.state != "frozen":  # no stall was seen: nothing to restart for
        return Advice("S1", "collect", "now", until, priced=False)
    condition = "no step has completed and no cause is found: restart from the last checkpoint, exclude no node"
    then = Next("S4", max(0.0, until - request.observed) / 60.0, until, condition)
    return Advice("S1", "collect", "now", until, then, priced=False)


def _restart_now(request: PlanRequest, excluded: Exclusion, restart: RestartPrice) -> Advice:
    """Proven dead or deadlocked, or slow with a hard fault: waiting buys nothing."""
    flips = ({"input": "evidence", "text": "only if the job is seen to make progress again: confirm before acting"},)
    action: Action = "restart"
    if request.mitigate == "fix_then_restart":
        action = "fix_then_restart"
    elif excluded.nodes:
        action = "restart_excluding"
    until = _checkpoint_at(request, restart)
    return Advice("S4", action, "now" if until is None else "when_due", until, None, flips)


def _checkpoint_at(request: PlanRequest, restart: RestartPrice) -> float | None:
    return None if restart.wait_min is None else request.observed + 60.0 * restart.wait_min


def _bounded_wait(
    request: PlanRequest, profile: CostProfile, loss: Loss, restart: RestartPrice, excluded: Exclusion
) -> Advice:
    """A frozen job that may come back: wait as long as is worth it from the onset, then restart.

    At least the transport's own retry budget, at most flap_wait_max_min, and never into the deadline.
    """
    start = request.onset if request.onset is not None else request.observed

    def wait_min(overhead: float, stuck: float) -> float:
        worth = best_wait(overhead, stuck, profile.number("flap_mean_min"), profile.number("flap_sigma"))
        longest = profile.number("flap_wait_max_min")
        return max(min(worth, longest), min((request.retry_budget_s or 0.0) / 60.0, longest))

    overhead, stuck = restart.overhead.value or 0.0, profile.quantity("flap_stuck_p")
    minutes = wait_min(overhead, stuck.value or 0.0)
    until = start + 60.0 * minutes
    margin = _before(request, profile)
    if margin is not None:
        until = min(until, margin)
    over = until <= request.observed
    elapsed = loss.elapsed_min or 0.0
    corners = {
        "S4" if wait_min(c, p) <= elapsed else "S1" for c, p in product(restart.overhead.span, stuck.span or (0.0,))
    }
    if margin is not None and margin <= request.observed:
        corners = {"S4"}
    agree = len(corners) <= 1
    told = tuple(sorted(corners)) if not agree else ()
    flips = (
        {
            "input": "flap_wait_min",
            "at": round(elapsed, 4),
            "unit": "min",
            "becomes": "S1" if over else "S4",
            "text": f"if waiting is worth {'more' if over else 'less'} than the {plain(elapsed)} min so far "
            f"(computed: {plain(minutes)} min)",
        },
    )
    if over and request.mitigate == "price":
        action: Action = "restart_excluding" if excluded.nodes else "restart"
        return Advice("S4", action, "now", None, None, flips, agree, corners=told)
    then = Next("S4", max(0.0, until - request.observed) / 60.0, until, "the job is still frozen then")
    return Advice("S1", "wait", "when_due", until, then, flips, agree, request.onset is not None, told)


def _escalate(
    request: PlanRequest, profile: CostProfile, loss: Loss, options: Sequence[Strategy], restart: RestartPrice
) -> Advice:
    """R1 with the middle of every input; then the corners, to say how firm that is."""
    lost = loss.lost if loss.lost is not None else (loss.lost_high or 0.0)
    rent = loss.rent.value if loss.rent.value is not None else (loss.rent.low or 0.0)
    open_ = [o for o in options if o.applicable and o.id != "S1" and o.overhead is not None and o.residual is not None]
    gain = profile.number("gain_min")
    rungs = ladder(_as_options(open_), lost, gain)
    chosen = decide(rungs, rent, request.tried)
    prefer = _prefer_restart(request, profile, lost, open_)
    if prefer and "S4" not in request.tried:
        chosen = next(r for r in _as_options(open_) if r.id == "S4")
    corners = {chosen.id} if prefer else _corners(loss.rent.low, rent, loss.rent.high, open_, lost, gain, request.tried)
    after = following(rungs, chosen, request.tried)
    then = None
    if after is not None:
        # Unpriced (bounds only), or since when is not known: no time is promised.
        known = loss.lost is not None and loss.rent.value is not None
        minutes = minutes_to(after, rent, chosen.residual) if known else None
        condition = (
            "it goes on as now" if chosen.id == "S1" else f"{chosen.id} leaves what is predicted; at once if it fails"
        )
        if not known:
            condition = f"{plain(after.overhead)} job-minutes are lost since the onset{_after(after, loss.lost)}"
        then = Next(after.id, minutes, None if minutes is None else request.observed + 60.0 * minutes, condition)
    until = _checkpoint_at(request, restart) if chosen.id == "S4" else None
    urgency: Urgency = "none" if chosen.id == "S1" else "now" if until is None else "when_due"
    actions: dict[str, Action] = {"S1": "wait", "S2": "rebalance", "S3": "change_topology", "S4": "restart_excluding"}
    return Advice(
        chosen.id,
        actions[chosen.id],
        urgency,
        until,
        then,
        _flips(chosen, rungs, rent, open_) if loss.rent.value is not None else (),
        len(corners) <= 1,
        loss.rent.value is not None,
        tuple(sorted(corners)) if len(corners) > 1 else (),
    )


def _after(step: Option, lost: float | None) -> str:
    return f", {plain(step.overhead / lost)} min after it" if lost else ""


def _as_options(strategies: Sequence[Strategy]) -> list[Option]:
    return [
        Option(s.id, s.overhead.value or 0.0, s.residual)
        for s in strategies
        if s.overhead is not None and s.residual is not None
    ]


def expected_minutes(request: PlanRequest, profile: CostProfile) -> Quantity:
    """How long incidents of this class and size last on average: for the hint, never for the rule."""
    if request.n_gpus is not None and request.n_gpus >= profile.number("large_job_gpus"):
        return profile.quantity("duration_large_min")
    return profile.quantity("duration_network_min" if request.case == "slow_network" else "duration_compute_min")


def _prefer_restart(request: PlanRequest, profile: CostProfile, lost: float, open_: Sequence[Strategy]) -> bool:
    s4 = next((o for o in open_ if o.id == "S4"), None)
    if profile.policy != "prefer_restart" or s4 is None or s4.overhead is None:
        return False
    return lost * (expected_minutes(request, profile).value or 0.0) > (s4.overhead.value or 0.0)


def _corners(
    low: float | None,
    rent: float,
    high: float | None,
    open_: Sequence[Strategy],
    lost: float,
    gain: float,
    tried: Sequence[str],
) -> set[str]:
    """The strategies that R1 picks at all corners of the rent and the overheads."""
    rents = {rent, *(v for v in (low, high) if v is not None)}
    spans = [s.overhead.span for s in open_ if s.overhead is not None]
    picked: set[str] = set()
    for overheads in product(*spans):
        moved = [
            replace(s, overhead=replace(s.overhead, value=value))
            for s, value in zip(open_, overheads)
            if s.overhead is not None
        ]
        rungs = ladder(_as_options(moved), lost, gain)
        picked.update(decide(rungs, r, tried).id for r in rents)
    return picked


def _flips(
    chosen: Option, rungs: Sequence[Option], rent: float, open_: Sequence[Strategy]
) -> tuple[dict[str, Any], ...]:
    """The value of the deciding input at which the advice becomes another one."""
    so_far = round(rent, 4)

    def flip(name: str, becomes: str, text: str) -> dict[str, Any]:
        return {
            "input": f"{name.lower()}_overhead_job_min",
            "at": so_far,
            "unit": "job-min",
            "becomes": becomes,
            "text": text,
        }

    if chosen.id == "S4":
        back = rungs[0].id
        return (flip("S4", back, f"to {back} if a restart costs more than {plain(rent)} job-min in all"),)
    found = []
    s4 = next((r for r in rungs if r.id == "S4"), None)
    if s4 is None and any(o.id == "S4" for o in open_):
        s4 = next(r for r in _as_options(open_) if r.id == "S4")
    if s4 is not None:
        if chosen.id == "S1":
            text = f"to S4 if a restart costs under {plain(rent)} job-min in all"
        elif s4.overhead > rent:
            text = f"S4 is justified too if a restart costs under {plain(rent)} job-min in all"
        else:
            text = f"S4 is justified too, unless a restart costs over {plain(rent)} job-min in all"
        found.append(flip("S4", "S4", text))
    if chosen.id != "S1":
        text = f"to S1 if {chosen.id} costs more than {plain(rent)} job-min"
        found.append(flip(chosen.id, "S1", text))
    return tuple(found)
