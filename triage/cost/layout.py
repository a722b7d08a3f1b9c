"""In which order should the nodes stand, so that slow ones hurt least? S3's plan: whole nodes change places, nothing else.

    gather({"n3": 1.136, "n6": 1.136}, ["n0" … "n7"], Grid(2, 4))  ->  n0 n1 n2 n6 n4 n5 n3 n7     one slow stage, not two
    part_links({("n0", "n1"): 2.0}, ["n0" … "n7"], Grid(2, 4))      ->  n0 n2 n1 n3 …               not neighbours any more

The order is that of the hostfile (Slurm: SLURM_HOSTFILE with --distribution=arbitrary), from which ranks are counted.
A stage is as slow as its slowest node in any replica, for all replicas share one split of the layers; so slow nodes belong
into as few stages as possible, and those stages then get fewer layers (shares.split_layers).
What can fool it: ranks that are not counted in the order of the hostfile; rings that NCCL lays otherwise than in that
order; a switch between nodes, which stays whoever stands there; first and last stages, which hold more than their layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

EXACT_NODES = 6  # up to so many all orders are tried: 720


@dataclass(frozen=True)
class Grid:
    """How nodes are laid out: `stages` x `per_stage` positions of one node each.

    stage_outermost   True: n0 n1 … hold stage 0 (Megatron's default order tp-dp-pp); False: the stages of one replica
                      follow each other (tp-pp-dp), position i is stage i % stages
    """

    stages: int
    per_stage: int
    stage_outermost: bool = True

    @property
    def nodes(self) -> int:
        return self.stages * self.per_stage

    def stage(self, position: int) -> int:
        return position // self.per_stage if self.stage_outermost else position % self.stages

    def row(self, position: int) -> int:
        """The place within the stage: nodes of one row pass micro-batches to each other."""
        return position % self.per_stage if self.stage_outermost else position // self.stages

    def position(self, stage: int, row: int) -> int:
        return stage * self.per_stage + row if self.stage_outermost else row * self.stages + stage


def grid_of(nodes: int, gpus: int, tensor: int, pipeline: int, stage_outermost: bool = True) -> Grid | str:
    """The grid of a job of `gpus` ranks on equal nodes, or why there is none."""
    if nodes < 1 or gpus % nodes or gpus % max(1, tensor * pipeline):
        return "ranks do not divide evenly over nodes, tensor and pipeline parallelism"
    if nodes % pipeline:
        return "a node holds ranks of more than one pipeline stage"
    if not stage_outermost and tensor != gpus // nodes:
        return "in this order of ranks a node holds more than one pipeline stage"
    return Grid(pipeline, nodes // pipeline, stage_outermost)


def slowness(slow: Mapping[str, float], order: Sequence[str], grid: Grid) -> tuple[float, ...]:
    """Of each stage: the factor of its slowest node, 1 = healthy."""
    worst = [1.0] * grid.stages
    for position, name in enumerate(order):
        stage = grid.stage(position)
        worst[stage] = max(worst[stage], slow.get(name, 1.0))
    return tuple(worst)


def gather(
    slow: Mapping[str, float], order: Sequence[str], grid: Grid, weights: Sequence[float] | None = None
) -> tuple[str, ...]:
    """The order with the slow nodes in the fewest stages, the slowest together, by as few swaps as that takes.

    slow      node -> factor above 1
    weights   work of each stage, where stages differ: the slowest nodes go where there is least to do
    Filling stage after stage with the slowest that are left makes every stage's factor, from the worst down, the least
    possible at once; so it is best for any time that rises with them.
    """
    if len(order) != grid.nodes:
        raise ValueError(f"{len(order)} nodes for {grid.nodes} places")
    bad = sorted((name for name in order if slow.get(name, 1.0) > 1.0), key=lambda n: (-slow[n], order.index(n)))
    held = {name: position for position, name in enumerate(order)}
    at = list(order)
    free = set(range(grid.stages))
    for start in range(0, len(bad), grid.per_stage):
        group = bad[start : start + grid.per_stage]
        here = {stage: sum(grid.stage(held[name]) == stage for name in group) for stage in free}
        stage = min(free, key=lambda s: (weights[s] if weights else 0.0, -here[s], s))
        free.discard(stage)
        places = [p for p in range(grid.nodes) if grid.stage(p) == stage]
        room = [p for p in places if at[p] not in group]
        # Whoever is slow and belongs elsewhere leaves first; it is placed with its own group.
        room.sort(key=lambda p: (slow.get(at[p], 1.0) <= 1.0, p))
        for name in group:
            if grid.stage(held[name]) == stage:
                continue
            place = room.pop(0)
            other = at[place]
            at[place], at[held[name]] = name, other
            held[name], held[other] = place, held[name]
    return tuple(at)


# ---------------------------------------------------------------- slow links


Links = Mapping[tuple[str, str], float]  # two nodes, or one and "" for all that it sends; factor above 1


def traffic(grid: Grid, a: int, b: int, reduce: float, forward: float) -> float:
    """What two positions send each other in a step: gradients around the ring of a stage, activations along a row."""
    amount = 0.0
    if grid.stage(a) == grid.stage(b) and grid.per_stage > 1 and a != b:
        apart = abs(grid.row(a) - grid.row(b))
        amount += reduce * ((apart == 1) + (apart == grid.per_stage - 1 and grid.per_stage > 2))
    if grid.row(a) == grid.row(b) and abs(grid.stage(a) - grid.stage(b)) == 1:
        amount += forward
    return amount


def loads(
    links: Links, held: Mapping[str, int], grid: Grid, reduce: float = 1.0, forward: float = 0.1
) -> tuple[float, ...]:
    """Of each slow link its traffic times how much longer that takes, the worst first. All 0 = nothing crosses any.

    held   node -> position
    """
    found = []
    for (a, b), factor in links.items():
        if b:
            amount = traffic(grid, held[a], held[b], reduce, forward)
        else:
            amount = sum(traffic(grid, held[a], other, reduce, forward) for other in _beside(grid, held[a]))
        found.append(round(amount * (factor - 1.0), 9))
    return tuple(sorted(found, reverse=True))


def load(links: Links, order: Sequence[str], grid: Grid, reduce: float = 1.0, forward: float = 0.1) -> float:
    """The worst of `loads`: by how much a slow link holds up the step, in the unit of the traffic."""
    return loads(links, positions(order), grid, reduce, forward)[0] if links else 0.0


def positions(order: Sequence[str]) -> dict[str, int]:
    return {name: position for position, name in enumerate(order)}


def _beside(grid: Grid, position: int) -> set[int]:
    stage, row = grid.stage(position), grid.row(position)
    rows = {(row + 1) % grid.per_stage, (row - 1) % grid.per_stage}
    beside = {grid.position(stage, r) for r in rows}
    beside |= {grid.position(s, row) for s in (stage - 1, stage + 1) if 0 <= s < grid.stages}
    return beside - {position}


def part_links(
    links: Links, order: Sequence[str], grid: Grid, reduce: float = 1.0, forward: float = 0.1
) -> tuple[str, ...]:
    """The order that takes the heaviest traffic off slow links, by few swaps.

    reduce, forward   bytes of gradients between neighbours of a ring, and of activations between stages; any unit
    Up to EXACT_NODES nodes all orders are tried; beyond, the best swap of a link's end with any node, again and again.
    """
    if len(order) != grid.nodes:
        raise ValueError(f"{len(order)} nodes for {grid.nodes} places")
    present = tuple(order)
    if load(links, present, grid, reduce, forward) <= 0:
        return present
    if len(present) <= EXACT_NODES:
        return min(
            permutations(present),
            key=lambda p: (loads(links, positions(p), grid, reduce, forward), moves(present, p), p),
        )
    held = positions(present)
    best = loads(links, held, grid, reduce, forward)
    ends = sorted({name for link in links for name in link if name})
    for _ in range(2 * len(ends)):
        tried = (_after_swap(links, held, a, b, grid, reduce, forward) for a in ends for b in present if a != b)
        least, a, b = min(tried)
        if least >= best:
            break
        held[a], held[b] = held[b], held[a]
        best = least
    return tuple(sorted(held, key=lambda name: held[name]))


def _after_swap(
    links: Links, held: dict[str, int], a: str, b: str, grid: Grid, reduce: float, forward: float
) -> tuple[tuple[float, ...], str, str]:
    held[a], held[b] = held[b], held[a]
    found = loads(links, held, grid, reduce, forward)
    held[a], held[b] = held[b], held[a]
    return found, a, b


def moves(before: Sequence[str], after: Sequence[str]) -> int:
    """How many nodes change their place."""
    return sum(a != b for a, b in zip(before, after))
