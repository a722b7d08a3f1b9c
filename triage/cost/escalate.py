"""Which step does the loss so far justify? The ski-rental rule R1 (notes/straggler-and-cost.md 3.5).

Rent is what the slowdown has cost since its onset; buy is what a step costs. Enter step i when rent >= its overhead
c_i. Rent is never reset and the overheads are not counted in it. For the ladder 0 = c_1 < c_2 < ... < c_n with
lost fractions r_1 >= ... >= r_n the cost is then at most

    1 + max over k of (c_2 + ... + c_k) / c_k

times that of someone who knew the length of the incident beforehand: 2 for one option, 2.5 for 0.5, 1, >= 1.5, and at
most 3 if each costs twice the one before. It reacts to what has accrued because the length cannot be known: the
longer a heavy-tailed incident has lasted, the longer the rest to be expected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

NOTHING = "S1"
_MAX_RATIO = 3.0
_DOUBLE = 2.0
_TINY = 1e-9


@dataclass(frozen=True)
class Option:
    """A step that could be taken: its overhead in job-minutes and the lost fraction that it leaves."""

    id: str
    overhead: float
    residual: float


def ladder(options: Iterable[Option], lost: float, gain_min: float = 0.0) -> tuple[Option, ...]:
    """The steps worth a rung, cheapest first, S1 at the bottom.

    Dropped: a step that wins back less than `gain_min` of the output, a step that another beats in both overhead
    and what it leaves, and (only while the worst-case ratio of the ladder is above 3) the cheaper of two whose
    overheads are less than a factor 2 apart: they count as one step, entered at the dearer price. The ratio is then
    against the ladder that is left.
    """
    worth = sorted(
        (o for o in options if o.id != NOTHING and lost - o.residual >= max(gain_min, _TINY)),
        key=lambda o: (o.overhead, o.residual, o.id),
    )
    rungs: list[Option] = []
    for option in worth:  # sorted by overhead: only what leaves less than all cheaper ones adds anything
        if not rungs or option.residual < rungs[-1].residual - _TINY:
            rungs.append(option)
    while worst_ratio(rungs) > _MAX_RATIO + _TINY:
        close = [i for i in range(len(rungs) - 1) if rungs[i + 1].overhead < _DOUBLE * rungs[i].overhead]
        if not close:
            break
        del rungs[close[0]]
    return (Option(NOTHING, 0.0, lost), *rungs)


def worst_ratio(rungs: Iterable[Option]) -> float:
    """How many times the cost of perfect hindsight R1 can reach on this ladder."""
    spent, worst = 0.0, 0.0
    for rung in rungs:
        if rung.overhead > 0:
            spent += rung.overhead
            worst = max(worst, spent / rung.overhead)
    return 1.0 + worst


def decide(rungs: Sequence[Option], rent: float, tried: Collection[str] = ()) -> Option:
    """The rung to enter now: the cheapest untried one whose overhead the rent has reached; else S1, carry on.

    After a late page several are due at once. The cheapest goes first all the same: it costs half a minute against
    a restart's 25, and the rent stays, so the next rung follows at once if it fails.
    """
    for rung in rungs[1:]:
        if rung.id not in tried and rent + _TINY >= rung.overhead:
            return rung
    return rungs[0]


def following(rungs: Sequence[Option], current: Option, tried: Collection[str] = ()) -> Option | None:
    """The rung after `current` that has not been tried."""
    return next((r for r in rungs[1:] if r.overhead >= current.overhead and r != current and r.id not in tried), None)


def minutes_to(rung: Option, rent: float, rate: float) -> float | None:
    """Minutes until the rent reaches a rung at `rate` job-minutes a minute; 0 if it has, None if it never will."""
    missing = rung.overhead - rent
    if missing <= _TINY:
        return 0.0
    return missing / rate if rate > _TINY else None


def break_even(overhead: float, lost: float, residual: float) -> float | None:
    """How long an incident must last for the step to pay: c / (s - r) minutes. None if it wins nothing back."""
    gained = lost - residual
    return overhead / gained if gained > _TINY else None
