"""What would each policy have cost over many incidents? The table of notes/straggler-and-cost.md 3.6, pure and fast.

A policy's cost is a function of the incident's length: straight pieces, with a jump where it enters a step. So one walk
through a policy gives its pieces, and 10^5 sorted lengths are summed piece by piece; nothing is stepped in time.
The overhead of a step takes its minutes, during which the fault's clock runs on and nothing more is lost.
Lengths come from the caller: this room knows no dice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import inf

from triage.cost.escalate import Option, decide, ladder

POLICIES = ("oracle", "never act", "restart at once", "R1", "wall-clock rule", "S1->S4 only")


@dataclass(frozen=True)
class Setting:
    """One row of the table: what is lost, which steps there are, and what they leave in truth where that is worse."""

    name: str
    says: str
    lost: float
    options: tuple[Option, ...]
    really: Mapping[str, float] = field(default_factory=dict)


def _set(name: str, kind: str, lost: float, restart: float, s3: float | None = 0.02, s2: bool = True) -> Setting:
    steps = [Option("S2", 0.5, 0.03)] if s2 else []
    steps += [] if s3 is None else [Option("S3", 1.0, s3)]
    only = "" if steps else "only "
    says = f"{kind}, lost {lost:g}, {only}S4 {restart:g} min"
    return Setting(name, says, lost, (*steps, Option("S4", restart, 0.0)))


_B = _set("B", "compute", 0.12, 25.0)
SETS: tuple[Setting, ...] = (
    _set("A", "compute", 0.12, 110.0),
    _B,
    _set("C", "network", 0.257, 110.0, s3=0.103, s2=False),
    _set("D", "network", 0.257, 25.0, s3=0.103, s2=False),
    _set("E", "network", 0.5, 25.0, s3=0.2, s2=False),
    _set("F", "compute", 0.12, 25.0, s3=None, s2=False),
    _set("G", "compute", 0.5, 25.0, s3=None, s2=False),
    _set("H", "compute", 0.5, 8.0, s3=None, s2=False),
    Setting("I", "as B, but S2 and S3 do nothing", 0.12, _B.options, {"S2": 0.12, "S3": 0.12}),
)


@dataclass(frozen=True)
class Piece:
    """An incident that ends after `start` minutes, and before the next piece, costs `at + slope (length - start)`."""

    start: float
    at: float
    slope: float


Pieces = tuple[Piece, ...]


def cost(pieces: Pieces, length: float) -> float:
    """Job-minutes that one incident of `length` minutes costs. At a border the earlier piece speaks: it ended in time."""
    piece = pieces[max(0, bisect_right([p.start for p in pieces], length) - 1)]
    if piece.start == length and piece is not pieces[0]:
        piece = pieces[pieces.index(piece) - 1]
    return piece.at + piece.slope * (length - piece.start)


def total(pieces: Pieces, ordered: Sequence[float], sums: Sequence[float]) -> float:
    """Sum of `cost` over sorted lengths; `sums[i]` is the sum of the first i of them."""
    borders = [0, *(bisect_right(ordered, piece.start) for piece in pieces[1:]), len(ordered)]
    whole = 0.0
    for piece, (low, high) in zip(pieces, pairwise(borders)):
        whole += (piece.at - piece.slope * piece.start) * (high - low) + piece.slope * (sums[high] - sums[low])
    return whole


Due = Callable[[Option, float, float, float], float]  # (step, minutes so far, rent, rate) -> minutes until it is due


def walk(
    rungs: Sequence[Option],
    really: Mapping[str, float],
    due: Due,
    instant: bool = False,
) -> Pieces:
    """The pieces of a policy that enters each rung of a ladder once, when it is due.

    rungs     S1 first
    really    what a step leaves in truth; never worse than what was before it
    instant   overheads take no time: the model of the proof
    """
    now, rent, spent, rate = 0.0, 0.0, 0.0, rungs[0].residual
    pieces = [Piece(0.0, 0.0, rate)]
    for rung in rungs[1:]:
        minutes = due(rung, now, rent, rate)
        if minutes == inf:
            break
        now, rent = now + minutes, rent + rate * minutes
        spent += rung.overhead
        if not instant and rung.overhead > 0:
            pieces.append(Piece(now, rent + spent, 0.0))
            now += rung.overhead
        rate = min(rate, really.get(rung.id, rung.residual))
        pieces.append(Piece(now, rent + spent, rate))
    return tuple(pieces)


def by_rent(rung: Option, now: float, rent: float, rate: float) -> float:
    """R1: a step is due when what was lost since the onset reaches its overhead. `decide` is the rule itself."""
    if decide((Option("S1", 0.0, rate), rung), rent).id == rung.id:
        return 0.0
    return (rung.overhead - rent) / rate if rate > 0 else inf


def by_clock(rung: Option, now: float, rent: float, rate: float) -> float:
    """What the published planner does: minutes since the onset against the overhead, lost or not."""
    return max(0.0, rung.overhead - now)


def at_once(rung: Option, now: float, rent: float, rate: float) -> float:
    return 0.0


def policies(setting: Setting, gain_min: float = 0.0) -> dict[str, Pieces]:
    """Each policy of the table but the oracle, as pieces."""
    rungs = ladder(setting.options, setting.lost, gain_min)
    last = [o for o in setting.options if o.id == "S4"]
    only = ladder(last, setting.lost, gain_min)
    restart = last[0].overhead if last else inf
    return {
        "never act": (Piece(0.0, 0.0, setting.lost),),
        "restart at once": (Piece(0.0, restart, 0.0),),
        "R1": walk(rungs, setting.really, by_rent),
        "wall-clock rule": walk(rungs, setting.really, by_clock),
        "S1->S4 only": walk(only, setting.really, by_rent),
    }


def hindsight(setting: Setting) -> Callable[[float], float]:
    """The best single step, entered at once by who knows the length beforehand."""
    steps = [(0.0, setting.lost)]
    steps += [(o.overhead, min(setting.lost, setting.really.get(o.id, o.residual))) for o in setting.options]

    def best(length: float) -> float:
        return min(c + r * max(0.0, length - c) for c, r in steps)

    return best


@dataclass(frozen=True)
class Row:
    """Mean job-minutes of each policy over the incidents, and how many times hindsight that is."""

    setting: Setting
    means: Mapping[str, float]

    @property
    def ratios(self) -> dict[str, float]:
        best = self.means["oracle"]
        return {name: mean / best for name, mean in self.means.items() if best > 0}


def table(lengths: Sequence[float], settings: Sequence[Setting] = SETS) -> list[Row]:
    """One row a setting, over the same incidents (minutes, any order)."""
    ordered = sorted(lengths)
    sums = [0.0, *accumulate(ordered)]
    count = len(ordered)
    rows = []
    for setting in settings:
        found = {name: total(pieces, ordered, sums) / count for name, pieces in policies(setting).items()}
        best = hindsight(setting)
        rows.append(Row(setting, {"oracle": sum(map(best, ordered)) / count, **found}))
    return rows
