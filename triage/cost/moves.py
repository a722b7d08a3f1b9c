"""What exactly would S2 and S3 do here, and what would they leave? The plan itself, not only its name.

S2  the micro-batches of each data-parallel group (shares.share_out)
S3  the order of the nodes (layout.gather, layout.part_links), and the layers of each stage where they may be shared out

What is left is a share of the loss that was measured: the model says which part of the slow step goes away, the step
times say how long the slow step is. A culprit's compute may have grown more than the step did; so may a slow link hide
behind compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from triage.cost.layout import Grid, gather, load, moves, part_links, slowness
from triage.cost.profile import CostProfile
from triage.cost.request import PlanRequest, Shape
from triage.cost.shares import longest, moved, pipeline_time, share_out, split_layers

# Of all groups together, and so on: beyond these nothing is planned. Numbers come from a node's command line too.
MOST_MICRO_BATCHES, MOST_LAYERS, MOST_STAGES, MOST_LINKS = 1_000_000, 2048, 128, 16


@dataclass(frozen=True)
class Plan:
    """`left` is the share of the slowdown that remains, 0 to 1; `detail` is what the report carries; `words` one clause."""

    left: float
    words: str
    detail: dict[str, Any]
    how: str = ""  # the plan so that a person can carry it out; long ones are cut, the whole stands in `detail`


def rebalance(request: PlanRequest, own: float, micro_batches: int) -> Plan | None:
    """S2 for `micro_batches` of each group, with one slow part that takes `own` longer. None where nothing is known."""
    times, names = _groups(request, own)
    if len(times) < 2 or len(times) * micro_batches > MOST_MICRO_BATCHES:
        return None
    present = [micro_batches] * len(times)
    fill = request.pp_stages - 1
    counts = share_out(times, present, fill)
    healthy = float(micro_batches + fill)
    now, then = longest(times, present, fill), longest(times, counts, fill)
    slow = [i for i, t in enumerate(times) if t > 1.0]
    fewest, most = min(counts), max(counts)
    words = f"{moved(present, counts)} of {sum(present)} micro-batches move: {fewest} to {most} a group, were {micro_batches}"
    return Plan(
        (then - healthy) / (now - healthy) if now > healthy else 1.0,
        words,
        {
            "micro_batches": list(counts),
            "micro_batches_now": micro_batches,
            "slow_groups": slow if names else [],  # without the layout the slow group stands first, whichever it is
            "slow_group_known": bool(names),
        },
        _counts(counts, micro_batches, names),
    )


_MOST = 8


def _counts(counts: tuple[int, ...], usual: int, known: bool) -> str:
    """`group 1: 29; groups 0, 2, 3: 33; the rest: 32`."""
    held: dict[int, list[int]] = {}
    for group, count in enumerate(counts):
        if count != usual:
            held.setdefault(count, []).append(group)
    parts = []
    for count, groups in sorted(held.items()):
        if not known:
            who = "the slow group" if groups == [0] else f"{len(groups)} of the others"
        else:
            more = f" and {len(groups) - _MOST} more" if len(groups) > _MOST else ""
            who = f"group{'s' * (len(groups) > 1)} {', '.join(map(str, groups[:_MOST]))}{more}"
        parts.append(f"{who}: {count}")
    rest = len(counts) - sum(map(len, held.values()))
    return "; ".join([*parts, f"the rest: {usual}"] if rest else parts)


def _groups(request: PlanRequest, own: float) -> tuple[list[float], bool]:
    """Time of a micro-batch in each data-parallel group, and whether we know which group is which."""
    shape = request.shape
    if shape is not None and shape.grid is not None and shape.replicas and shape.order and shape.slow:
        return _replica_times(shape, shape.grid, shape.replicas), True
    count = request.dp_groups or (shape.replicas if shape is not None else None)
    return ([1.0 + own] + [1.0] * (count - 1) if count else []), False


def _replica_times(shape: Shape, grid: Grid, replicas: int) -> list[float]:
    """A replica is as slow as its slowest node: each micro-batch passes all of its stages."""
    times = [1.0] * replicas
    rows = grid.per_stage
    for position, name in enumerate(shape.order):
        row = grid.row(position)
        # One row may hold several replicas (small tensor groups), or one replica several rows (large ones).
        first, last = row * replicas // rows, max(row * replicas // rows + 1, (row + 1) * replicas // rows)
        for replica in range(first, min(last, replicas)):
            times[replica] = max(times[replica], shape.slow.get(name, 1.0))
    return times


def change_topology(request: PlanRequest, profile: CostProfile, micro_batches: int) -> Plan | str | None:
    """S3, or why no order of the nodes helps, or None where the layout is not known."""
    shape = request.shape
    if shape is None or shape.grid is None or len(shape.order) != shape.grid.nodes:
        return None
    if request.case == "slow_network":
        return _away_from_links(shape, shape.grid, profile) if 0 < len(shape.links) <= MOST_LINKS else None
    return _gathered(shape, shape.grid, micro_batches) if shape.slow else None


def _gathered(shape: Shape, grid: Grid, micro_batches: int) -> Plan | str:
    if grid.stages < 2:
        return "there is one pipeline stage: nowhere to gather what is slow"
    order = gather(shape.slow, shape.order, grid)
    before, after = slowness(shape.slow, shape.order, grid), slowness(shape.slow, order, grid)
    share = (shape.layers or grid.stages) / grid.stages
    even = [share] * grid.stages
    healthy = pipeline_time([1.0] * grid.stages, even, micro_batches)
    now = pipeline_time(before, even, micro_batches)
    split = None
    then = pipeline_time(after, even, micro_batches)
    if shape.layers is not None and grid.stages <= shape.layers <= MOST_LAYERS and grid.stages <= MOST_STAGES:
        counts = split_layers(after, shape.layers, micro_batches)
        taken = pipeline_time(after, counts, micro_batches)
        if taken < then:
            split, then = list(counts), taken
    if then >= now * (1 - 1e-9):
        return "no order of the nodes makes the step shorter"
    slow = sum(t > 1.0 for t in after)
    words = f"slow nodes in {slow} of {grid.stages} stages, now {sum(t > 1.0 for t in before)}"
    if split is not None:
        words += f"; layers {min(split)} to {max(split)} a stage"
    detail = _detail(shape, order, grid, split, after)
    return Plan((then - healthy) / (now - healthy), words, detail, _order(detail))


def _away_from_links(shape: Shape, grid: Grid, profile: CostProfile) -> Plan | str:
    forward = profile.number("stage_traffic_share")
    before = load(shape.links, shape.order, grid, 1.0, forward)
    if before <= 0:
        return "nothing of the job crosses the slow link as far as its layout tells"
    order = part_links(shape.links, shape.order, grid, 1.0, forward)
    left = load(shape.links, order, grid, 1.0, forward) / before
    if left >= 1.0:
        return "no order of the nodes takes traffic off the slow link"
    words = f"{moves(shape.order, order)} nodes change places; the slow link carries {left:.0%} of what it does now"
    detail = _detail(shape, order, grid, None, None)
    return Plan(left, words, detail, _order(detail))


def _order(detail: dict[str, Any]) -> str:
    """`n04 to place 20, n20 to place 4; layers by stage 11 13 12 …`."""
    moved = [f"{move['node']} to place {move['to'] + 1}" for move in detail["moves"]]
    more = [f"{len(moved) - _MOST} more"] if len(moved) > _MOST else []
    parts = [", ".join([*moved[:_MOST], *more])] if moved else []
    if detail["layers"]:
        parts.append("layers by stage " + " ".join(map(str, detail["layers"][: 4 * _MOST])))
    return "; ".join(parts)


def _detail(
    shape: Shape, order: tuple[str, ...], grid: Grid, split: list[int] | None, slow: tuple[float, ...] | None
) -> dict[str, Any]:
    held = {name: i for i, name in enumerate(order)}
    return {
        "node_order": list(order),
        "moves": [
            {"node": name, "from": i, "to": held[name], "stage": grid.stage(held[name])}
            for i, name in enumerate(shape.order)
            if held[name] != i
        ],
        "layers": split,
        "slow_stages": [] if slow is None else [i for i, t in enumerate(slow) if t > 1.0],
    }
