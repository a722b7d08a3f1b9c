"""How much has this incident cost so far, and how fast does it grow? The rent of the escalation rule.

One job-minute is all GPUs of the job for one minute. The lost fraction of the output is s = x / (1 + x), where x is
the increase of the *step time*: a GPU at 88 % speed makes steps 13.6 % longer and output 12.0 % lower, and it is the
12.0 % that is lost (notes/straggler-and-cost.md 0, 3.1). A frozen job loses everything: s = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float | None, float]  # (epoch seconds at the end of the step, or None; milliseconds of the step)


@dataclass(frozen=True)
class Rent:
    """Job-minutes lost since onset. None = not known; `low` and `high` bound it where they can."""

    value: float | None
    low: float | None
    high: float | None
    how: str = ""  # how it was summed, for the report


def step_increase(healthy_s: float, slow_s: float) -> float:
    """x: by what fraction a step takes longer. A step that got faster counts as no increase."""
    return max(0.0, slow_s / healthy_s - 1.0)


def lost_fraction(increase: float) -> float:
    """s = x / (1 + x): the fraction of the output that is lost when steps take x longer."""
    return increase / (1.0 + increase)


def lost_minutes(lost: float, minutes: float) -> float:
    """Job-minutes lost in so many minutes at the lost fraction s."""
    return lost * max(0.0, minutes)


def gpu_hours(job_minutes: float, gpus: int) -> float:
    return gpus * job_minutes / 60.0


def accumulated(
    series: Sequence[Point], healthy_s: float, onset: float, observed: float, lost: float, steps_per_point: float = 1.0
) -> Rent:
    """Sum of max(0, t_i - T0) over the steps since onset, plus s x time where the series does not reach.

    series            oldest first; a log line may be the mean over `steps_per_point` steps and counts that often
    onset, observed   epoch seconds
    The part that no step covers (a log that begins late, the step now in flight) is priced at the rate s. A step
    that ended before the onset was healthy and is left out.
    """
    elapsed = max(0.0, observed - onset)
    dated = [(at, ms / 1000.0) for at, ms in series if at is not None]
    since = [(at, step_s) for at, step_s in dated if onset <= at <= observed]
    if not since:
        whole = lost_minutes(lost, elapsed / 60.0)
        return Rent(whole, whole, whole, "lost fraction x time since onset")
    summed = sum(max(0.0, step_s - healthy_s) for _, step_s in since) * steps_per_point / 60.0
    # The series reaches back to the onset if it holds an older step; else its first step began where it began.
    began = since[0][0] - since[0][1] * steps_per_point
    head = 0.0 if any(at < onset for at, _ in dated) else max(0.0, began - onset)
    tail = max(0.0, observed - since[-1][0])
    gaps = lost_minutes(lost, (head + tail) / 60.0)
    # No step can lose more than the time that passed: a series with wrong dates must not price more than that.
    total = min(summed + gaps, elapsed / 60.0)
    how = (
        "sum over steps since onset" if head + tail <= 0.1 * elapsed else "sum over logged steps, rest at the same rate"
    )
    return Rent(total, min(summed, total), total, how)
