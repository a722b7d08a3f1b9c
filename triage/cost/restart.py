"""What does checkpoint-and-restart cost now, from which checkpoint, and how long is it worth waiting instead?

The rules are notes/straggler-and-cost.md 3.2 (timing) and 3.7 (a frozen job that may come back). Times are minutes.

    a   work since the last complete checkpoint        s   lost fraction (1 = frozen)
    I   checkpoint interval                            R   requeue + start + load + warm-up
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Literal

from triage.cost.profile import Quantity

Choice = Literal["dump_now", "from_last", "wait_next"]


@dataclass(frozen=True)
class Way:
    """One way to come to a checkpoint: what it costs before the restart itself, and whether that rests on defaults only."""

    choice: Choice
    job_min: float
    assumed: bool


@dataclass(frozen=True)
class RestartPrice:
    """S4 in job-minutes (low, mid, high), the checkpoint to restart from, and the work that is lost with it."""

    choice: Choice
    overhead: Quantity
    age_min: float | None  # None = not known; the price then uses half the interval
    interval_min: float
    work_lost_min: float  # since the checkpoint that is restarted from
    wait_min: float | None  # wait_next: until the next scheduled checkpoint; None = its time is not known
    sunk: bool  # the age is lost whatever is decided, and is no reason to wait
    ways: tuple[Way, ...] = ()  # all that are open, the chosen one first


def ways_to(lost: float, age: float, interval: float, dump: float | None) -> dict[Choice, float]:
    """B: the ways to come to a checkpoint while the job still crawls, each with its job-minutes.

    dump_now   the blocking part of a dump, where the job can save when asked (None = it cannot)
    from_last  (1 - s) a: what the job achieved since the last complete one is done again
    wait_next  s (I - a): crawl on to the next scheduled one. Cheaper than from_last if and only if a > s I
    A frozen job (s = 1) can neither dump nor reach the next checkpoint.
    """
    if lost >= 1.0:
        return {"from_last": age}
    ways: dict[Choice, float] = {"from_last": (1.0 - lost) * age, "wait_next": lost * max(0.0, interval - age)}
    if dump is not None:
        ways["dump_now"] = dump
    return ways


def before_restart(lost: float, age: float, interval: float, dump: float | None) -> tuple[Choice, float]:
    """The cheapest of `ways_to`, and its job-minutes."""
    ways = ways_to(lost, age, interval, dump)
    choice = min(ways, key=lambda way: ways[way])
    return choice, ways[choice]


def price(
    *,
    lost: float,
    age: Quantity,
    interval: Quantity,
    restart: Quantity,
    dump: Quantity | None,
    inevitable: bool,
) -> RestartPrice:
    """c_4 = min(B_dump, B_last, B_next) + R, with its range over the corners of the inputs.

    inevitable   dead or deadlocked: the age is sunk, a restart comes anyway, so c_4 = R and the age stands in the
                 bill only. A frozen job that may heal (a flap) would throw its work away: c_4 = a + R.
    """
    middle_interval = interval.value or 0.0
    middle_age = age.value if age.value is not None else middle_interval / 2.0
    # What somebody told beats what nobody did: the age and interval of defaults are no reason against a known dump.
    guessed = age.value is None and interval.source == "default"
    told_dump = dump is not None and dump.value is not None and dump.source != "default"
    only_dump = guessed and told_dump and lost < 1.0
    open_ = ways_to(lost, middle_age, middle_interval, dump.value if dump else None)
    choice: Choice = "dump_now" if only_dump else min(open_, key=lambda way: open_[way])
    way = open_[choice]
    sunk = lost >= 1.0 and inevitable
    ends = [0.0]
    if sunk:
        way = 0.0
    elif only_dump and dump is not None:
        ends = [*dump.span]
    else:
        ages = age.span or (0.0, interval.high if interval.high is not None else middle_interval)
        dumps: tuple[float | None, ...] = (dump.span or (None,)) if dump else (None,)
        ends = [
            before_restart(lost, min(a, i) if age.value is None else a, i, d)[1]
            for a, i, d in product(ages, interval.span or (middle_interval,), dumps)
        ]
    base = restart.value or 0.0
    low = (restart.low if restart.low is not None else base) + min(*ends, way)
    high = (restart.high if restart.high is not None else base) + max(*ends, way)
    lost_work = {
        "dump_now": 0.0,
        "wait_next": 0.0,
        "from_last": middle_age if lost >= 1.0 else (1.0 - lost) * middle_age,
    }[choice]
    wait = max(0.0, middle_interval - middle_age) if choice == "wait_next" and age.value is not None else None
    return RestartPrice(
        choice=choice,
        overhead=Quantity(base + way, low, high, "job-min", restart.source),
        age_min=age.value,
        interval_min=middle_interval,
        work_lost_min=lost_work,
        wait_min=wait,
        sunk=sunk,
        ways=tuple(
            Way(name, cost, not told_dump if name == "dump_now" else guessed)
            for name, cost in sorted(open_.items(), key=lambda item: (item[0] != choice, item[1]))
        ),
    )


def best_wait(overhead: float, stuck: float, mean: float = 2.0, sigma: float = 1.0, top: float = 60.0) -> float:
    """Minutes to wait for a frozen job before a restart of `overhead` job-minutes, at least expected cost.

    stuck         probability that it cannot come back at all
    mean, sigma   log-normal length of the flap otherwise, minutes and log
    Minimises p (w + c) + (1 - p) (integral of the survival to w + c x survival at w) on a grid of 1.2 s. Waiting a
    little never pays (the hazard of a log-normal begins at zero): the answer is 0 or well inside.
    """
    mean, sigma = max(mean, 0.01), max(sigma, 0.01)
    mu = math.log(mean) - sigma * sigma / 2.0
    step = 0.02
    waited, previous = 0.0, 1.0
    best, answer = overhead, 0.0
    for i in range(1, round(top / step) + 1):
        wait = i * step
        survival = 0.5 * math.erfc((math.log(wait) - mu) / (sigma * math.sqrt(2.0)))
        waited += (previous + survival) / 2.0 * step
        previous = survival
        expected = stuck * (wait + overhead) + (1.0 - stuck) * (waited + overhead * survival)
        if expected < best - 1e-12:
            best, answer = expected, wait
    return answer
