"""Where do ranks live whose process nobody shows, and who may say so? No node moves a rank to another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from written_dumps import ranks_of
from written_evidence import World

from triage.facts.claims import claims
from triage.facts.places import BY_ELIMINATION, BY_ORDER, BY_SIBLINGS, Word, by_order
from triage.facts.ranktable import rank_table

LOOKS = "AB"


def silent(*names, nodes=4, per_node=2, change=None):
    """A job some of whose nodes answer nothing; `change`: rank -> changes to its record in both looks."""
    w = World(nodes=nodes, per_node=per_node)
    w.skip_nodes = set(names)
    w.change = {(rank, look): told for rank, told in (change or {}).items() for look in LOOKS}
    return w.processes()


def hosted(w):
    table = w.evidence().derive(rank_table)
    return {rank: row.node for rank, row in table.rows.items()}


def words(*nodes, size=2, per=None):
    """Nodes n0, n1 … that show the ranks of their own block; None: says nothing."""
    per = per or size
    return {
        f"n{i}": Word(group, size, frozenset(range(group * per, (group + 1) * per)))
        for i, group in enumerate(nodes)
        if group is not None
    }


def order(told, count, world=None, where=None, answered=None, size=2):
    names = [f"n{i}" for i in range(count)]
    shown = {rank: name for name, word in told.items() for rank in word.ranks}
    return by_order(names, told, set(answered or told), world or count * size, {**shown, **(where or {})})


# ---------------------------------------------------------------- the scheduler's order


def test_ranks_of_one_silent_node_are_placed_by_elimination():
    w = silent("gpu003")
    assert hosted(w)[4] == hosted(w)[5] == "gpu003"
    assert w.evidence().derive(claims).homes[4] == ("gpu003", BY_ELIMINATION)


def test_ranks_of_two_silent_nodes_are_placed_by_the_schedulers_order():
    w = silent("gpu002", "gpu003")
    assert {rank: node for rank, node in hosted(w).items() if 2 <= rank <= 5} == {
        2: "gpu002", 3: "gpu002", 4: "gpu003", 5: "gpu003",
    }  # fmt: skip
    rows = w.evidence().derive(rank_table).rows
    assert (rows[2].alive, rows[2].gone) == (None, None)  # placed, and neither alive nor gone


def test_two_nodes_that_stand_at_their_places_are_enough_for_many_silent_ones():
    w = silent(*(f"gpu{i:03d}" for i in range(3, 9)), nodes=8)
    assert hosted(w)[15] == "gpu008"


def test_one_node_at_its_place_may_stand_there_by_chance():
    w = World()
    w.skip_nodes = {"gpu001", "gpu002"}
    w.dead = {4: "A", 5: "A"}  # gpu003 answers and shows no rank: it tells no place
    assert {hosted(w.processes())[rank] for rank in range(6)} == {None}


def test_one_node_is_enough_where_it_is_all_that_there_is_besides_the_silent():
    placed = order(words(0, None), 2)
    assert placed.homes == {2: ("n1", BY_ORDER), 3: ("n1", BY_ORDER)}
    # A node that answered and shows no rank of the job makes it one of two that tell.
    assert order(words(0, None, None), 3, answered={"n0", "n1"}).homes == {}


def test_a_launcher_that_numbers_the_nodes_its_own_way_places_nobody_by_the_schedulers_order():
    swapped = order(words(0, 1, 3, None), 4)
    assert (swapped.homes, swapped.doubted) == ({}, {})
    assert order(words(None, 1, 2, None), 4).homes
    assert order(words(None, 2, 1, None), 4).homes == {}


def test_nodes_that_do_not_tell_their_group_but_show_its_ranks_do_not_contradict():
    told = {**words(0, 1, None, None), "n2": Word(None, None, frozenset({4, 5}))}
    assert order(told, 4).homes == {6: ("n3", BY_ORDER), 7: ("n3", BY_ORDER)}
    told["n2"] = Word(None, None, frozenset({6}))
    assert order(told, 4).homes == {}


def test_nodes_with_unequal_numbers_of_ranks_have_no_order():
    assert order(words(0, 1, None, None), 4, world=7).homes == {}
    told = {**words(0, 1, None, None), "n2": Word(2, 4, frozenset({4, 5}))}
    assert order(told, 4).homes == {}
    unsaid = words(0, 1, None, None, size=None, per=2)
    assert order(unsaid, 4).homes and order(unsaid, 4, world=9).homes == {}


def test_a_node_of_the_job_that_hosts_no_rank_is_not_given_any():
    assert order(words(0, 1, 2, None), 4, world=6).homes == {}


def test_a_node_that_answered_is_given_no_rank_that_it_does_not_show():
    assert order(words(0, 1, None, None), 4, answered={"n0", "n1", "n2"}).homes == {
        6: ("n3", BY_ORDER), 7: ("n3", BY_ORDER),
    }  # fmt: skip


def test_a_rank_that_is_seen_elsewhere_breaks_the_order():
    assert order(words(0, 1, None, None), 4, where={6: "n2"}).homes == {}


def test_a_rank_that_died_on_an_answering_node_is_its_siblings_and_not_the_silent_nodes():
    w = World()
    w.dead = {3: "A"}
    w.skip_nodes = {"gpu003"}
    w.processes()
    rows = w.evidence().derive(rank_table).rows
    assert (rows[3].node, rows[3].gone) == ("gpu002", True) and BY_SIBLINGS in rows[3].why
    assert (rows[4].node, rows[4].gone) == ("gpu003", None)


# ---------------------------------------------------------------- nodes that lie


def claim(w, node, rank, **changes):
    for sample in [s for s in w.samples if s.probe == "ranks" and s.node == node]:
        sample.data["ranks"].append({**w.record(rank, sample.look), "pid": 77 + rank, **changes})
    return w


@pytest.mark.parametrize("group", [3, 2, 0, None, -1, "3", True])
@pytest.mark.parametrize("state", ["S", "T", "Z"])
def test_a_claim_on_a_silent_nodes_rank_makes_it_unknown_and_moves_it_nowhere(group, state):
    w = claim(silent("gpu002", "gpu003", nodes=6), "gpu004", 4, group_rank=group, state=state)
    rows = w.evidence().derive(rank_table).rows
    assert rows[4].node != "gpu004" and rows[4].alive is None and rows[4].gone is None
    assert ranks_of(w.fact("ranks.claimed_twice")) == [4]
    assert "the scheduler's order places on gpu003" in w.fact("ranks.claimed_twice").parts[0].why
    # Where somebody lies nothing is placed by what the others leave over; what the liar hosts it still hosts.
    assert {rows[rank].node for rank in (2, 3, 5)} == {None}
    assert (rows[6].node, rows[7].node) == ("gpu004", "gpu004")


def test_a_node_that_tells_another_group_than_its_place_hides_the_places_and_changes_none():
    change = {rank: {"group_rank": 1} for rank in (6, 7)}
    assert {hosted(silent("gpu002", "gpu003", change=change))[rank] for rank in (2, 3, 4, 5)} == {None}


def test_a_node_whose_ranks_contradict_each_other_hides_the_places():
    w = silent("gpu002", "gpu003", nodes=6, change={7: {"group_rank": 2}})
    assert {hosted(w)[rank] for rank in (2, 3, 4, 5)} == {None}
    assert hosted(silent("gpu002", "gpu003", nodes=6))[2] == "gpu002"


@pytest.mark.parametrize("size", [1, 4, 0, -2, 257, 10**6, None, "2", True])
def test_no_size_that_one_node_tells_moves_another_nodes_ranks(size):
    w = silent("gpu002", "gpu003", change={rank: {"local_world_size": size} for rank in (6, 7)})
    told = hosted(w)
    assert all(told[rank] in (None, "gpu002") for rank in (2, 3))
    assert all(told[rank] in (None, "gpu003") for rank in (4, 5))
    assert (told[0], told[1]) == ("gpu001", "gpu001")


def test_most_nodes_out_of_order_are_an_order_of_their_own_and_no_liars():
    """Ranks dealt out one a node in turn (cyclic): nobody is doubted, nothing is placed."""
    w = World()
    w.skip_nodes = {"gpu003"}
    for look in LOOKS:
        for index, name in enumerate(w.names):
            if name not in w.skip_nodes:
                mine = [{**w.record(rank, look), "group_rank": index} for rank in (index, index + 4)]
                w.add("ranks", name, look, {"ranks": mine, "sees_all": True, "own_uid": 0})
    assert w.fact("ranks.claimed_twice").value == 0
    assert hosted(w)[2] in (None, "gpu003") and hosted(w)[6] in (None, "gpu003")


def test_where_as_many_nodes_leave_the_order_as_keep_it_the_order_judges_nobody():
    told = words(0, 1, 2, 3, None)
    told |= {f"n{i}": replace(told[f"n{i}"], ranks=told[f"n{i}"].ranks | {8 + i % 2}) for i in (2, 3)}
    assert (order(told, 5).homes, order(told, 5).doubted) == ({}, {})
    told = {**words(0, 1), "n2": replace(words(0, 1, 2)["n2"], ranks=frozenset({4, 5, 8}))}
    assert list(order(told, 5).doubted) == [8]


def test_the_order_is_the_schedulers_and_not_that_of_the_names():
    w = World()
    w.skip_nodes = {"gpu002", "gpu003"}
    w.processes()
    w.job = replace(w.job, nodes=tuple(w.job.nodes[i] for i in (0, 2, 1, 3)))
    assert (hosted(w)[2], hosted(w)[4]) == ("gpu003", "gpu002")


def test_eight_thousand_ranks_are_placed_in_a_moment():
    count = 1024
    told = words(*[None if i % 3 == 0 else i for i in range(count)], size=8)
    placed = order(told, count, size=8)
    assert len(placed.homes) == 8 * len([i for i in range(count) if i % 3 == 0])
