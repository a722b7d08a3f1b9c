"""How many micro-batches for each data-parallel group, how many layers for each stage? S2's plan, and a part of S3's.

    share_out([1.0, 1.0, 1.136, 1.0], [8, 8, 8, 8])  -> (8, 8, 7, 9)      times 8.0 8.0 7.95 9.0

A group of time t for one micro-batch and n of them ends after (n + fill) t, where fill = stages - 1 is what its
pipeline needs to fill. All groups meet at the barrier, so the slowest one is the step: minimise the maximum, over whole
numbers of at least one with the same sum. The published planner minimises a variance instead, which a barrier does not
feel (notes/straggler-and-cost.md 1.1).
Whoever moves micro-batches must weigh gradients by micro-batches and not by groups, or the training changes.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Sequence

_WORTH_A_MOVE = 0.005  # a step this much shorter is worth another layer's move
_NEAR = 1e-9  # relative: 8 x 1.125 and 9 x 1.0 are one time


def longest(times: Sequence[float], counts: Sequence[int], fill: int = 0) -> float:
    """The step: when the last group is through."""
    return max((n + fill) * t for t, n in zip(times, counts))


def share_out(times: Sequence[float], present: Sequence[int], fill: int = 0) -> tuple[int, ...]:
    """Counts with the sum of `present`, each at least 1, of the least possible longest time; and of those, few moves.

    times     seconds (or any unit) of one micro-batch in each group, all above 0
    present   the counts now, each at least 1
    fill      stages - 1
    Exact: giving the next one always to the group that would end first is the best for a maximum of rising times.
    """
    total = sum(present)
    if len(times) != len(present) or not times or min(present) < 1 or min(times) <= 0:
        raise ValueError("each group needs a time above 0 and at least one micro-batch")
    counts = [1] * len(times)
    ends = [((2 + fill) * t, i) for i, t in enumerate(times)]
    heapq.heapify(ends)
    for _ in range(total - len(times)):
        _, i = ends[0]
        counts[i] += 1
        heapq.heapreplace(ends, ((counts[i] + 1 + fill) * times[i], i))
    best = longest(times, counts, fill)
    if longest(times, present, fill) <= best * (1 + _NEAR):
        return tuple(present)
    # Many ways end equally early. The one that moves least: cut what is over the time, hand it to those with most room.
    most = [max(1, math.floor(best * (1 + _NEAR) / t) - fill) for t in times]
    counts = [min(n, top) for n, top in zip(present, most)]
    room = [((n + 1 + fill) * t, i) for i, (t, n) in enumerate(zip(times, counts)) if n < most[i]]
    heapq.heapify(room)
    for _ in range(total - sum(counts)):
        _, i = heapq.heappop(room)
        counts[i] += 1
        if counts[i] < most[i]:
            heapq.heappush(room, ((counts[i] + 1 + fill) * times[i], i))
    return tuple(counts)


def moved(present: Sequence[int], counts: Sequence[int]) -> int:
    """How many micro-batches change their group."""
    return sum(max(0, new - old) for old, new in zip(present, counts))


def split_layers(slowness: Sequence[float], layers: int, micro_batches: int) -> tuple[int, ...]:
    """Layers for each pipeline stage, each at least one: the fewest moves within half a percent of the least step.

    slowness   time of one layer in each stage, 1 = healthy
    For each possible slowest stage there are two ways: the others take what they can below it, the fastest first, which
    makes the sum (`pipeline_time`) least; or only what is over it moves.
    """
    stages = len(slowness)
    if layers < stages:
        raise ValueError("each stage needs a layer")
    even = [layers // stages + (i < layers % stages) for i in range(stages)]
    caps = sorted({n * t for t in slowness for n in range(1, layers - stages + 2)})

    def room(cap: float) -> list[int]:
        return [math.floor(cap * (1 + _NEAR) / t) for t in slowness]

    def enough(cap: float) -> bool:
        most = room(cap)
        return min(most) >= 1 and sum(most) >= layers

    ways: dict[tuple[int, ...], float] = {}
    best = math.inf
    for cap in caps[bisect_left(caps, True, key=enough) :]:
        # A slower slowest stage can only win back what the sum of the others may still shrink.
        if (micro_batches - 1) * cap + layers * min(slowness) > best * (1 + _WORTH_A_MOVE):
            break
        most = room(cap)
        for start in ([1] * stages, [min(n, top) for n, top in zip(even, most)]):
            way = _fill_up(start, most, slowness, layers)
            ways[way] = pipeline_time(slowness, way, micro_batches)
            best = min(best, ways[way])
    near = best * (1 + _WORTH_A_MOVE)
    return min((moved(even, way), took, way) for way, took in ways.items() if took <= near)[2]


def _fill_up(start: Sequence[int], most: Sequence[int], slowness: Sequence[float], total: int) -> tuple[int, ...]:
    counts, left = list(start), total - sum(start)
    for i in sorted(range(len(counts)), key=lambda i: slowness[i]):
        more = min(left, most[i] - counts[i])
        counts[i] += more
        left -= more
    return tuple(counts)


def pipeline_time(slowness: Sequence[float], layers: Sequence[int | float], micro_batches: int) -> float:
    """One step of a pipeline that is kept full: the first micro-batch passes all stages, the rest follow the slowest."""
    each = [n * t for n, t in zip(layers, slowness)]
    return sum(each) + (micro_batches - 1) * max(each)
