"""What should be done about this verdict, and do the numbers justify it? The `mitigation` of a report.

`plan(request, profile)` is pure: no clock, no files. Its keys are those of notes/straggler-and-cost.md 4 and DESIGN
sections 7 and 8; null is unknown, never 0. Strategies: S1 do nothing, S2 re-balance micro-batches, S3 change the
topology, S4 checkpoint-and-restart. Which rule speaks depends on the verdict's `mitigate`:

    none wait repair                                  S1
    price                                             the escalation rule (escalate.py); frozen: a bounded wait, then S4
    restart restart_excluding fix_then_restart        S4
    inconclusive                                      S1: collect until wait_until, then restart, excluding nobody
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triage.cost.choose import Advice, choose
from triage.cost.escalate import break_even
from triage.cost.loss import gpu_hours
from triage.cost.options import Loss, Strategy, exclusion, measure, price_restart, strategies
from triage.cost.profile import CostProfile, Quantity
from triage.cost.request import CulpritNode, PlanRequest, iso
from triage.cost.restart import RestartPrice
from triage.cost.words import arithmetic, summary

__all__ = ["CulpritNode", "PlanRequest", "plan"]


def plan(request: PlanRequest, profile: CostProfile) -> dict[str, Any]:
    """The priced mitigation of one verdict. See triage/schema.py for the shape."""
    profile = profile.measured(request.measured)
    loss = measure(request)
    restart = price_restart(request, profile, loss)
    excluded = exclusion(request, profile)
    options = strategies(request, profile, loss, restart, excluded)
    advice = choose(request, profile, loss, options, restart, excluded)
    # Nodes are left out only by a step that restarts: S4 now, or S4 as the next escalation of a priced verdict.
    leaves_out = excluded.nodes if request.mitigate in ("restart_excluding", "price") else ()
    short = max(0, len(leaves_out) - request.idle_nodes) if request.idle_nodes is not None else 0
    lines = arithmetic(request, profile, loss, options, restart, advice)
    if short and advice.strategy == "S4":
        lines.insert(0, f"Too few idle nodes: {len(leaves_out)} needed, {request.idle_nodes} idle.")
    if excluded.why_not and advice.strategy == "S4":
        lines.append(f"No node is excluded: {excluded.why_not}.")
    return {
        "policy": profile.policy,
        "failure_class": _failure_class(request),
        "recommended": {
            "strategy": advice.strategy,
            "action": advice.action,
            "urgency": advice.urgency,
            "fix_first": request.fix_first or None,
            "wait_until": iso(advice.wait_until),
            "command_hint": request.command_hints.get(advice.action),
            "summary": summary(request, advice, restart, excluded, short if advice.strategy == "S4" else 0),
        },
        "loss": _loss(request, profile, loss),
        "strategies": [_strategy(o, request, loss, advice) for o in options],
        "next_escalation": _next(advice),
        "restart": {
            "last_checkpoint_step": request.checkpoint_step,
            "age_min": _n(restart.age_min),
            "interval_min": _n(restart.interval_min),
            "choice": None if request.case == "none" else restart.choice,
            "work_lost_min": None if request.case == "none" else _n(restart.work_lost_min),
            "ways": [] if request.case in ("none", "cause") else _ways(profile, loss, restart),
            "exclude_nodes": list(leaves_out),
            "not_excluded_because": excluded.why_not or None,
            "spares": {"needed": len(leaves_out), "idle": request.idle_nodes, "source": request.idle_source},
        },
        "sensitivity": {"flips_if": list(advice.flips), "corners_agree": advice.corners_agree},
        "inputs": _inputs(request, profile, loss, restart),
        "confidence": _confidence(request, advice),
        "arithmetic": lines,
    }


def _ways(profile: CostProfile, loss: Loss, restart: RestartPrice) -> list[dict[str, Any]]:
    """All ways to come to a checkpoint, the chosen one first: what each costs with the restart, and from when it pays."""
    again = profile.quantity("restart_min").value or 0.0
    found = []
    for way in restart.ways:
        total = again + (0.0 if restart.sunk else way.job_min)
        pays = None if not loss.lost or restart.sunk else break_even(total, loss.lost, 0.0)
        found.append(
            {
                "choice": way.choice,
                "overhead_job_min": _n(total),
                "break_even_incident_min": _n(pays),
                "assumed": way.assumed,
            }
        )
    return found


def _failure_class(request: PlanRequest) -> str:
    if request.verdict_id == "straggler":
        return f"{request.kind or 'compute'}_straggler"
    return request.verdict_id


def _loss(request: PlanRequest, profile: CostProfile, loss: Loss) -> dict[str, Any]:
    hours = None
    if loss.rent.value is not None and request.n_gpus is not None:
        hours = gpu_hours(loss.rent.value, request.n_gpus)
    price = profile.quantity("gpu_hour_usd").value
    return {
        "healthy_step_s": _n(request.t0_s),
        "slow_step_s": _n(request.t1_s),
        "step_increase": _n(loss.increase),
        "speed_ratio": None if loss.lost is None else _n(1.0 - loss.lost),
        "lost_fraction": _n(loss.lost),
        "onset": iso(request.onset),
        "elapsed_min": _n(loss.elapsed_min),
        "accumulated_job_min": _n(loss.rent.value),
        "gpu_hours": _n(hours),
        "usd": None if hours is None or price is None else _n(hours * price),
        "job_min_per_hour": None if loss.lost is None else _n(60.0 * loss.lost),
    }


def _strategy(option: Strategy, request: PlanRequest, loss: Loss, advice: Advice) -> dict[str, Any]:
    overhead = option.overhead
    middle = overhead.value if overhead is not None else None
    pays = None  # a proven dead job has no length from which a restart pays: it is due at once
    if (
        option.id != "S1"
        and request.case != "dead"
        and middle is not None
        and loss.lost is not None
        and option.residual is not None
    ):
        pays = break_even(middle, loss.lost, option.residual)
    justified, since = _justified(option, middle, request, loss, advice)
    return {
        "id": option.id,
        "applicable": option.applicable,
        "reason": option.reason.strip(),
        "overhead_job_min": None
        if overhead is None
        else {"low": _n(overhead.low), "mid": _n(overhead.value), "high": _n(overhead.high)},
        "residual_lost_fraction": _n(option.residual),
        "break_even_incident_min": _n(pays),
        "justified": justified,
        "justified_at": iso(since),
        "plan": _plan(option, request, loss),
    }


def _plan(option: Strategy, request: PlanRequest, loss: Loss) -> dict[str, Any] | None:
    """What exactly to do, and the step time that it should give."""
    if option.plan is None or not option.applicable:
        return None
    step = None
    if request.t0_s is not None and loss.increase is not None:
        step = request.t0_s * (1.0 + loss.increase * min(1.0, option.plan.left))
    return {**_EMPTY_PLAN, **option.plan.detail, "predicted_step_s": _n(step), "text": option.plan.words}


_EMPTY_PLAN: dict[str, Any] = {
    "micro_batches": None,
    "micro_batches_now": None,
    "slow_groups": None,
    "slow_group_known": None,
    "node_order": None,
    "moves": None,
    "layers": None,
    "slow_stages": None,
}


def _justified(
    option: Strategy, overhead: float | None, request: PlanRequest, loss: Loss, advice: Advice
) -> tuple[bool, float | None]:
    """Has the loss reached the overhead, and when did it or will it?"""
    if not option.applicable:
        return False, None
    if option.id == "S1":
        return True, request.onset
    if option.id == "S4" and request.case == "dead":
        return True, request.onset if request.onset is not None else request.observed
    if option.id == "S4" and request.case in ("may_heal", "unknown"):
        due = advice.following.at if advice.following is not None else None
        if advice.strategy == "S4":
            return True, request.observed
        return due is not None and due <= request.observed, due
    if advice.strategy == option.id:
        return True, _when(overhead, request, loss) or request.observed
    rent = loss.rent.value
    if rent is None or overhead is None:
        return False, None
    return rent + 1e-9 >= overhead, _when(overhead, request, loss)


def _when(overhead: float | None, request: PlanRequest, loss: Loss) -> float | None:
    """The moment at which the rent is worth the overhead, at the present rate."""
    if overhead is None or loss.rent.value is None or not loss.lost:
        return None
    at = request.observed + 60.0 * (overhead - loss.rent.value) / loss.lost
    return at if request.onset is None else max(at, request.onset)


def _next(advice: Advice) -> dict[str, Any] | None:
    if advice.following is None:
        return None
    then = advice.following
    return {"strategy": then.strategy, "in_min": _n(then.in_min), "at": iso(then.at), "condition": then.condition}


def _confidence(request: PlanRequest, advice: Advice) -> str:
    """That of the verdict, unless the price is a guess or its corners disagree."""
    if request.confidence in ("none", "low") or not advice.priced or not advice.corners_agree:
        return "low"
    return request.confidence


_PRICE = ("gpu_hour_usd",)
_RESTART = ("restart_min", "checkpoint_interval_min", *_PRICE)
_FLAP = ("flap_mean_min", "flap_sigma", "flap_stuck_p", "flap_wait_max_min", "deadline_margin_min")
_LADDER = ("s2_supported", "s2_overhead_min", "micro_batches", "s3_supported", "s3_overhead_min", "gain_min")
_OF_STEP = {"s2": ("s2_overhead_min", "micro_batches"), "s3": ("s3_overhead_min",)}
_USED: dict[str, Sequence[str]] = {
    "none": (),
    "cause": _PRICE,
    "unknown": (*_RESTART, "inconclusive_wait_min", "deadline_margin_min"),
    "dead": _RESTART,
    "may_heal": (*_RESTART, *_FLAP),
    "slow_compute": (*_RESTART, "dump_min", "dump_on_demand", *_LADDER),
    "slow_network": (*_RESTART, "dump_min", "dump_on_demand", *_LADDER),
}


def _inputs(request: PlanRequest, profile: CostProfile, loss: Loss, restart: RestartPrice) -> dict[str, Any]:
    """Every input that had a say, with its range and source. The computed ones first."""
    case = request.case
    given: dict[str, Quantity] = {}
    if case != "none":
        source: Any = "default" if request.onset is None else "flag" if request.step_source == "flag" else "measured"
        given["lost_job_min"] = Quantity(loss.rent.value, loss.rent.low, loss.rent.high, "job-min", source)
        rate: Any = "flag" if request.step_source == "flag" else "measured"
        given["lost_fraction"] = Quantity(loss.lost, loss.lost_low, loss.lost_high, "fraction", rate)
        age = restart.age_min
        middle = age if age is not None else restart.interval_min / 2.0
        low, high = (age, age) if age is not None else (0.0, profile.quantity("checkpoint_interval_min").high)
        given["checkpoint_age_min"] = Quantity(
            middle, low, high, "min", "default" if age is None else _age_source(request, profile)
        )
    if request.n_gpus is not None:
        given["gpus"] = Quantity(
            float(request.n_gpus), float(request.n_gpus), float(request.n_gpus), "gpus", request.gpus_source
        )
    if request.t0_s is not None:
        given["healthy_step_s"] = Quantity(request.t0_s, None, None, "s", request.step_source)
    if request.t1_s is not None:
        given["slow_step_s"] = Quantity(request.t1_s, None, None, "s", request.step_source)
    found = {name: _told(q) for name, q in given.items()}
    silent = {name for step in ("s2", "s3") if not profile.can(f"{step}_supported") for name in _OF_STEP[step]}
    if not profile.can("dump_on_demand"):
        silent.add("dump_min")
    if restart.ways and restart.choice == "dump_now" and all(way.assumed for way in restart.ways[1:]):
        silent |= {"checkpoint_interval_min"}
        found.pop("checkpoint_age_min", None)
    for name in _USED[case]:
        if name in silent:
            continue
        if name in profile.switches:
            switch = profile.switches[name]
            found[name] = {"value": switch.value, "low": None, "high": None, "unit": "", "source": switch.source}
        else:
            found[name] = _told(profile.quantity(name))
    return found


def _age_source(request: PlanRequest, profile: CostProfile) -> Any:
    own = profile.quantity("checkpoint_age_min")
    return own.source if own.value is not None else request.checkpoint_source


def _told(quantity: Quantity) -> dict[str, Any]:
    return {
        "value": _n(quantity.value),
        "low": _n(quantity.low),
        "high": _n(quantity.high),
        "unit": quantity.unit,
        "source": quantity.source,
    }


def _n(number: float | None) -> float | None:
    """Four digits after the point: enough for any sum here, and the same on every machine."""
    return None if number is None else round(float(number), 4)
