"""S3's plan: the order of the nodes; against all orders where there are few."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triage.cost.layout import Grid, gather, grid_of, load, moves, part_links, slowness
from triage.cost.shares import pipeline_time


def names(count: int) -> list[str]:
    return [f"n{i}" for i in range(count)]


def step(slow: dict[str, float], order: tuple[str, ...], grid: Grid, micro_batches: int = 4) -> float:
    return pipeline_time(slowness(slow, order, grid), [1.0] * grid.stages, micro_batches)


def test_two_slow_nodes_of_two_stages_are_gathered_into_one_by_one_swap() -> None:
    order = gather({"n3": 1.2, "n6": 1.136}, names(8), Grid(2, 4))
    assert slowness({"n3": 1.2, "n6": 1.136}, order, Grid(2, 4)).count(1.0) == 1
    assert moves(names(8), order) == 2


def test_the_slowest_stand_together_and_a_healthy_stage_stays_healthy() -> None:
    slow = {"n0": 1.1, "n2": 1.5, "n4": 1.1, "n6": 1.5}
    assert sorted(slowness(slow, gather(slow, names(8), Grid(4, 2)), Grid(4, 2))) == [1.0, 1.0, 1.1, 1.5]


def test_one_slow_node_stays_where_it_is() -> None:
    assert gather({"n5": 1.3}, names(8), Grid(4, 2)) == tuple(names(8))


def test_a_slow_node_goes_to_the_stage_with_the_least_work_where_stages_differ() -> None:
    order = gather({"n0": 1.3}, names(4), Grid(4, 1), weights=[1.2, 1.0, 1.0, 0.8])
    assert order == ("n3", "n1", "n2", "n0")


def test_the_other_order_of_ranks_puts_the_stages_of_a_replica_side_by_side() -> None:
    grid = Grid(2, 3, stage_outermost=False)
    assert [grid.stage(p) for p in range(6)] == [0, 1, 0, 1, 0, 1]
    assert all(grid.position(grid.stage(p), grid.row(p)) == p for p in range(6))
    order = gather({"n0": 1.2, "n3": 1.2}, names(6), grid)
    assert sorted(slowness({"n0": 1.2, "n3": 1.2}, order, grid)) == [1.0, 1.2]


grids = st.sampled_from(
    [Grid(2, 3), Grid(3, 2), Grid(2, 2), Grid(6, 1), Grid(1, 4), Grid(3, 2, False), Grid(2, 3, False)]
)


@settings(max_examples=60, deadline=None)
@given(grids, st.data())
def test_no_order_of_the_nodes_gives_a_shorter_step(grid: Grid, data: st.DataObject) -> None:
    factors = data.draw(st.lists(st.sampled_from([1.0, 1.0, 1.1, 1.3, 2.0]), min_size=grid.nodes, max_size=grid.nodes))
    slow = {f"n{i}": f for i, f in enumerate(factors) if f > 1}
    order = gather(slow, names(grid.nodes), grid)
    assert sorted(order) == sorted(names(grid.nodes))
    best = min(step(slow, other, grid) for other in permutations(names(grid.nodes)))
    assert step(slow, order, grid) == pytest.approx(best)


@settings(max_examples=60, deadline=None)
@given(grids, st.data())
def test_no_order_gives_a_shorter_step_where_stages_differ(grid: Grid, data: st.DataObject) -> None:
    factors = data.draw(st.lists(st.sampled_from([1.0, 1.0, 1.1, 1.6]), min_size=grid.nodes, max_size=grid.nodes))
    weights = data.draw(st.lists(st.sampled_from([0.8, 1.0, 1.25]), min_size=grid.stages, max_size=grid.stages))
    slow = {f"n{i}": f for i, f in enumerate(factors) if f > 1}

    def took(order: tuple[str, ...]) -> float:
        return max(w * t for w, t in zip(weights, slowness(slow, order, grid)))

    order = gather(slow, names(grid.nodes), grid, weights)
    assert took(order) == pytest.approx(min(took(other) for other in permutations(names(grid.nodes))))


# ---------------------------------------------------------------- links


def test_the_ends_of_a_slow_link_are_parted_by_one_swap() -> None:
    grid = Grid(1, 8)
    order = part_links({("n3", "n4"): 2.0}, names(8), grid)
    assert load({("n3", "n4"): 2.0}, names(8), grid) == 1.0
    assert load({("n3", "n4"): 2.0}, order, grid) == 0
    assert moves(names(8), order) == 2


def test_the_first_and_the_last_of_a_ring_are_neighbours_too() -> None:
    assert load({("n0", "n7"): 2.0}, names(8), Grid(1, 8)) == 1.0
    assert load({("n0", "n7"): 2.0}, part_links({("n0", "n7"): 2.0}, names(8), Grid(1, 8)), Grid(1, 8)) == 0


def test_three_nodes_in_a_ring_cannot_be_parted() -> None:
    assert part_links({("n0", "n1"): 2.0}, names(3), Grid(1, 3)) == tuple(names(3))


def test_a_slow_port_moves_to_an_end_of_the_pipeline_where_it_has_one_neighbour_less() -> None:
    grid = Grid(4, 2)
    order = part_links({("n2", ""): 2.0}, names(8), grid)
    assert grid.stage(order.index("n2")) in (0, 3)


def test_a_link_that_carries_nothing_is_left_alone() -> None:
    assert part_links({("n0", "n5"): 4.0}, names(8), Grid(2, 4)) == tuple(names(8))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([Grid(1, 7), Grid(7, 1)]), st.data())
def test_swap_by_swap_is_as_good_as_all_orders_of_seven_nodes(grid: Grid, data: st.DataObject) -> None:
    pairs = data.draw(
        st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda p: p[0] < p[1]), min_size=1, max_size=2)
    )
    links = {(f"n{a}", f"n{b}"): 2.0 for a, b in pairs}
    best = min(load(links, other, grid) for other in permutations(names(7)))
    assert load(links, part_links(links, names(7), grid), grid) == pytest.approx(best)


# ---------------------------------------------------------------- grids


def test_a_grid_is_made_only_where_each_node_is_of_one_stage() -> None:
    assert grid_of(64, 512, 8, 8) == Grid(8, 8)
    assert grid_of(64, 512, 4, 8) == Grid(8, 8)  # two groups of 4 on a node are two replicas of one stage
    assert "evenly" in str(grid_of(3, 16, 8, 1))
    assert "more than one" in str(grid_of(2, 16, 1, 4))
    assert "more than one" in str(grid_of(64, 512, 4, 8, stage_outermost=False))
    assert grid_of(64, 512, 8, 8, stage_outermost=False) == Grid(8, 8, False)
