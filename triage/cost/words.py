"""The sums as a person would write them down: one line each, every number with its source."""

from __future__ import annotations

from triage.cost.choose import Advice, expected_minutes
from triage.cost.escalate import break_even
from triage.cost.loss import gpu_hours
from triage.cost.options import Exclusion, Loss, Strategy
from triage.cost.profile import CostProfile, percent, plain
from triage.cost.request import PlanRequest, clock
from triage.cost.restart import RestartPrice


def span(minutes: float) -> str:
    """`45 s`, `48 min`, `6.8 h`."""
    if minutes < 2:
        return f"{round(minutes * 60)} s"
    return f"{plain(minutes)} min" if minutes < 120 else f"{plain(minutes / 60)} h"


def job_minutes(amount: float) -> str:
    text = plain(amount)
    return f"{text} job-minute{'' if text == '1' else 's'}"


def arithmetic(
    request: PlanRequest,
    profile: CostProfile,
    loss: Loss,
    options: tuple[Strategy, ...],
    restart: RestartPrice,
    advice: Advice,
) -> list[str]:
    """The lines under COST."""
    if request.case == "none":
        return ["Nothing is being lost to a fault." if request.verdict_id == "healthy" else "Nothing to price here."]
    lines = _loss_lines(request, profile, loss)
    lines += [
        line
        for option in options
        if option.plan is not None
        for line in (
            f"{option.id} would be: {option.plan.words}; {_leaves(request, loss, option.plan.left)}.",
            f"{option.id} in full: {option.plan.how}.",
        )
    ]
    lines += _restart_lines(request, profile, loss, options, restart)
    if not advice.corners_agree:
        lines.append(f"The ends of these ranges disagree: {' or '.join(advice.corners)}. Confidence is low.")
    return lines


def _leaves(request: PlanRequest, loss: Loss, left: float) -> str:
    """What the step takes then."""
    increase = (loss.increase or 0.0) * min(1.0, left)
    if request.t0_s is not None and request.t1_s is not None:
        return f"step {request.t1_s:.3g} s -> {request.t0_s * (1.0 + increase):.3g} s"
    return f"steps +{percent(increase)} instead of +{percent(loss.increase or 0.0)}"


def _loss_lines(request: PlanRequest, profile: CostProfile, loss: Loss) -> list[str]:
    if loss.lost is None:
        if loss.lost_high is None:
            return ["The healthy step time is not known: the loss cannot be priced."]
        own = percent(request.slow_fraction or 0.0)
        slow = (
            f"Its clock alone makes the slow part take {own}"
            if request.slow_by_clock
            else f"The slow part's own compute takes {own}"
        )
        line = (
            f"No healthy step time is known. {slow} longer, so the output is down by at most {percent(loss.lost_high)}."
        )
        if loss.rent.high is not None and loss.elapsed_min is not None:
            line += f" In {span(loss.elapsed_min)} that is 0 to {job_minutes(loss.rent.high)}."
        return [line]
    lines = []
    since = f" since {clock(request.onset)} ({span(loss.elapsed_min)})" if loss.elapsed_min is not None else ""
    if loss.increase is None:
        if request.state == "unknown":
            lines.append("If it stands still, which one look cannot tell, the whole output is lost.")
        else:
            lines.append(f"Frozen{since or ', since when is not known'}: the whole output is lost.")
    elif request.t0_s is None or request.t1_s is None:
        lines.append(f"Steps +{percent(loss.increase)}{since}. Output -{percent(loss.lost)}.")
    else:
        lines.append(
            f"Steps {request.t0_s:.3g} s -> {request.t1_s:.3g} s (+{percent(loss.increase)}){since}. "
            f"Output -{percent(loss.lost)}."
        )
    if loss.rent.value is not None:
        if loss.increase is None and loss.elapsed_min is not None:
            head = f"{span(loss.elapsed_min)} x 100 % = "
        elif "sum" not in loss.rent.how and loss.elapsed_min is not None:
            head = f"{span(loss.elapsed_min)} x {percent(loss.lost)} = "
        else:
            head = ""
        line = f"Lost so far: {head}{job_minutes(loss.rent.value)}"
        if not head:
            line += f" ({loss.rent.how})"
        lines.append(line + _money(request, profile, loss.rent.value) + ".")
    elif loss.rent.low is not None and not loss.rent.low:
        lines.append("Since when is not known, so neither is what is lost so far.")
    elif loss.rent.low is not None:
        lines.append(f"Since when is not known: {job_minutes(loss.rent.low)} or more are lost ({loss.rent.how}).")
    if loss.lost > 0:
        lines.append(f"It grows by 1 job-minute every {span(1.0 / loss.lost)}.")
    return lines


def _money(request: PlanRequest, profile: CostProfile, lost_minutes: float) -> str:
    if request.n_gpus is None:
        return ""
    hours = gpu_hours(lost_minutes, request.n_gpus)
    price = profile.quantity("gpu_hour_usd")
    text = f" x {request.n_gpus} GPUs / 60 = {plain(hours)} GPU-hours"
    if price.value is not None:
        text += f" (${hours * price.value:,.0f} at ${price.value:.2f}, {price.told()})"
    return text


def _restart_lines(
    request: PlanRequest, profile: CostProfile, loss: Loss, options: tuple[Strategy, ...], restart: RestartPrice
) -> list[str]:
    if request.case == "cause":
        return ["A restart would bring the slowness back: no step but mending its cause pays."]
    again = profile.quantity("restart_min")
    base = f"A restart takes {plain(again.value or 0.0)} min ({again.told()})"
    interval = profile.quantity("checkpoint_interval_min")
    age = f"{plain(restart.interval_min / 2)} min"
    if restart.age_min is None:
        age += f" (assumed: half of the interval of {plain(restart.interval_min)} min, {interval.told()})"
    else:
        step = f" (step {request.checkpoint_step})" if request.checkpoint_step is not None else ""
        age = f"{plain(restart.age_min)} min{step}"
    total = plain(restart.overhead.value or 0.0)
    if request.case == "may_heal":
        return [
            f"{base} and throws away the work since the last checkpoint, {age}: {total} job-minutes.",
            f"What heals by itself does so in {plain(profile.number('flap_mean_min'))} min on average "
            f"({profile.quantity('flap_mean_min').told()}): the wait is bounded by both.",
        ]
    if loss.lost is not None and loss.lost >= 1.0:
        lines = [f"{base}; the work since the last checkpoint, {age}, is lost either way."]
        if request.case == "dead" and request.state != "unknown":
            lines.append("Waiting cannot bring it back: the restart is due at once.")
        return lines
    way = (restart.overhead.value or 0.0) - (again.value or 0.0)
    ways = {
        "dump_now": f"{plain(way)} min to save now",
        "from_last": f"{plain(way)} min of work to do again since the last checkpoint: {age}",
        "wait_next": f"{plain(way)} job-min lost on the way to the next checkpoint",
    }
    lines = [f"{base} + {ways[restart.choice]} = {total} job-minutes."]
    if restart.choice == "wait_next":
        lines.append(f"The last checkpoint is {age} old: restarting from it would cost more.")
    s4 = next(o for o in options if o.id == "S4")
    if loss.lost:
        pays = break_even(restart.overhead.value or 0.0, loss.lost, 0.0)
        if pays is not None and s4.applicable:
            lines.append(f"S4 pays if the incident lasts {total} / {loss.lost:.3f} = {span(pays)} or more in all.")
        usual = expected_minutes(request, profile)
        if usual.value is not None:
            waiting = loss.lost * usual.value
            line = (
                f"If incidents here last {plain(usual.value)} min on average ({usual.told()}), "
                f"waiting costs {plain(waiting)} job-minutes, a restart {total}"
            )
            # The rule is insurance, not the best average: where the average is known and speaks clearly, say so.
            wins = s4.applicable and waiting > (restart.overhead.value or 0.0)
            lines.append(
                line + (": on average, restarting at once would win (policy prefer_restart)." if wins else ".")
            )
    return lines


def summary(request: PlanRequest, advice: Advice, restart: RestartPrice, excluded: Exclusion, spares_short: int) -> str:
    """The one sentence to act on."""
    action = advice.action
    fix = (request.fix_first or "").strip().rstrip(".")
    if action == "none":
        return "S1: nothing to do." if request.verdict_id == "healthy" else "S1: leave it alone."
    if action == "repair":
        return f"S1: mend the cause, do not restart{': ' + fix if fix else ''}."
    if action == "collect":
        if advice.following is None:
            return "S1: collect what is missing, then run triage again."
        late = advice.wait_until is not None and advice.wait_until <= request.observed
        when = "then" if late else f"at {clock(advice.wait_until)}"
        return f"S1: collect evidence; restart {when} if frozen, exclude nobody."
    if action == "wait":
        if request.case == "may_heal":
            if advice.wait_until is not None and advice.wait_until <= request.observed:
                return f"S1: the wait ended at {clock(advice.wait_until)}; a restart (S4) is justified."
            return f"S1: wait until {clock(advice.wait_until)}, then restart if still frozen."
        if advice.following is not None and advice.following.in_min is not None:
            return f"S1: keep it running; {advice.following.strategy} is justified in {span(advice.following.in_min)}."
        if advice.following is not None and request.fail == "slow":
            return f"S1: keep it running; {advice.following.strategy} is justified once {advice.following.condition}."
        if request.fail == "slow":
            return "S1: keep it running; look again in 10 min."
        return "S1: keep it running." if advice.wait_until is None else f"S1: wait, until {clock(advice.wait_until)}."
    if action == "rebalance":
        return "S2: re-balance the micro-batches now; run triage again in 10 min."
    if action == "change_topology":
        return "S3: change the topology now; run triage again in 10 min."
    free = f"free {spares_short} node{'s' * (spares_short > 1)} first, then " if spares_short else ""
    names = ", ".join(excluded.nodes) if len(excluded.nodes) <= 2 else f"{len(excluded.nodes)} nodes"
    without = f"without {names}" if excluded.nodes and action == "restart_excluding" else ""
    point = {
        "from_last": "from the last checkpoint",
        "dump_now": "after a dump",
        "wait_next": f"after the checkpoint due at {clock(advice.wait_until)}"
        if advice.wait_until
        else "after the next checkpoint",
    }[restart.choice]
    if action == "fix_then_restart":
        return f"S4: fix first (see FIX FIRST), {free or 'then '}restart {point}."
    now = "now" if advice.urgency == "now" and not free and restart.choice == "from_last" else ""
    words = " ".join(word for word in ("restart", now, without) if word)
    if request.state == "unknown":  # one look cannot tell slow from frozen: a restart of a moving job is pure loss
        return " ".join(f"S4: make sure it stands still, then {free}restart {without} {point}.".split())
    return f"S4: {free}{words}, {point}."
