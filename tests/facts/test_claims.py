"""Nodes say who they host, and nodes lie: whoever contradicts others makes a rank unknown and never a culprit."""

from __future__ import annotations

import time

import pytest
from written_dumps import add_dumps, everyone, named, ranks_of, report
from written_evidence import NOW, World, exit_line

from triage.facts.ranktable import rank_table

OPEN = ["0 1 all_reduce", "0 2 all_reduce open"]


def rows(w):
    return w.evidence().derive(rank_table).rows


def killed(extra_node=False):
    """Rank 3 was killed at the stall and all others wait for it; its node's sibling places it."""
    w = World()
    w.dead = {3: "A"}
    w.processes().log(last_ago=100, hits=[exit_line(4003, -9, 1, NOW - 99.5)]).fabric(0)
    return add_dumps(w, everyone(OPEN, r3=None), lib="2.27.5")


def claim(w, node, *ranks, looks="AB", **changes):
    """This node claims these ranks as well."""
    for sample in [s for s in w.samples if s.probe == "ranks" and s.node == node and s.look in looks]:
        for rank in ranks:
            one = {**w.record(rank, sample.look), "pid": 77 + rank, "group_rank": 3, **changes}
            sample.data["ranks"].append(one)
    return w


STATES = ["S", "T", "Z", "D", "?", ["T"], 5, None]


@pytest.mark.parametrize("state", STATES)
def test_a_rank_that_two_nodes_claim_is_unknown_listed_and_not_accused(state):
    w = claim(killed(), "gpu004", 0, state=state)
    row = rows(w)[0]
    assert (row.alive, row.gone, row.node) == (None, None, None)
    assert ranks_of(w.fact("ranks.claimed_twice")) == [0]
    assert "gpu001 and gpu004" in w.fact("ranks.claimed_twice").parts[0].why
    assert named(w)[:2] == ("dead_rank/killed", [3])


@pytest.mark.parametrize("state", STATES)
def test_a_node_that_claims_all_ranks_makes_them_unknown_and_nobody_the_culprit(state):
    w = claim(killed(), "gpu004", *range(6), state=state)
    told = report(w)
    assert not told.culprits and told.exit_code == 11
    assert w.fact("ranks.all_gone").value is not True


@pytest.mark.parametrize("state", ["S", "T", "Z"])
def test_a_dead_rank_that_another_node_claims_is_not_accused_there(state):
    w = claim(killed(), "gpu004", 3, state=state)
    assert "siblings place it on gpu002" in w.fact("ranks.claimed_twice").parts[0].why
    assert (rows(w)[3].alive, rows(w)[3].gone) == (None, None)
    assert named(w)[1] == []


def test_two_nodes_that_both_say_they_are_one_group_place_nobody():
    w = World()
    w.dead = {3: "A"}
    w.change = {(rank, look): {"group_rank": 1} for rank in (2,) for look in "AB"}
    w.processes()
    claim(w, "gpu004", 3, group_rank=1, state="T")
    w.samples = [s for s in w.samples if s.probe != "ranks" or s.node != "gpu004"]
    w.change = {}
    for look in "AB":
        one = {**w.record(3, look), "group_rank": 1, "state": "T"}
        w.add("ranks", "gpu004", look, {"ranks": [one], "sees_all": True, "own_uid": 0})
    assert (rows(w)[3].alive, rows(w)[2].alive) == (None, None)
    assert w.fact("ranks.stopped").parts == ()


@pytest.mark.parametrize("rank", [8, 9, 255, 1_000_000, -1, 2**70])
@pytest.mark.parametrize("state", ["Z", "T"])
def test_a_rank_that_the_job_does_not_have_is_listed_and_has_no_row(rank, state):
    w = killed()
    for sample in w.samples:
        if sample.probe == "ranks" and sample.node == "gpu004":
            sample.data["ranks"].append({**w.record(6, sample.look), "rank": rank, "pid": 9, "state": state})
    assert set(rows(w)) == set(range(8))
    assert ranks_of(w.fact("ranks.claimed_twice")) == [rank]
    assert named(w)[:2] == ("dead_rank/killed", [3])


@pytest.mark.parametrize("size", [7, 100_000, 1_000_000, 2**63, -1, 0, True, "8", 8.0, None])
def test_the_size_of_the_job_is_what_most_nodes_say_and_costs_nothing(size):
    w = killed()
    for sample in w.samples:
        if sample.probe == "ranks" and sample.node == "gpu004":
            for record in sample.data["ranks"]:
                record["world_size"] = size
    began = time.process_time()
    assert named(w)[:2] == ("dead_rank/killed", [3])
    assert w.evidence().derive(rank_table).world_size == 8
    assert time.process_time() - began < 3.0  # 66 s it took, for one node's word


def test_no_size_beyond_what_the_nodes_can_hold_is_believed_even_if_all_say_so():
    w = World(nodes=1, per_node=2)
    w.change = {(rank, look): {"world_size": 10**6} for rank in (0, 1) for look in "AB"}
    assert w.processes().evidence().derive(rank_table).world_size is None
    assert set(rows(w)) == {0, 1}


@pytest.mark.parametrize("state", ["S", "T", "Z"])
def test_two_processes_of_one_rank_on_a_node_are_unknown(state):
    w = killed()
    w.samples = [s for s in w.samples if s.probe != "flight_recorder"]
    claim(w, "gpu001", 0, state=state, group_rank=0)
    assert (rows(w)[0].alive, rows(w)[0].gone) == (None, None)
    assert ranks_of(w.fact("ranks.stopped")) == []


# ---------------------------------------------------------------- honest jobs that look odd


def test_nodes_with_unequal_numbers_of_ranks_are_no_liars():
    w = World()
    sizes = {0: (0, 2), 1: (0, 2), 2: (1, 4), 3: (1, 4), 4: (1, 4), 5: (1, 4), 6: (2, 2), 7: (2, 2)}
    home = {0: "gpu001", 1: "gpu001", 2: "gpu002", 3: "gpu002", 4: "gpu002", 5: "gpu002", 6: "gpu003", 7: "gpu003"}
    for look in "AB":
        for name in w.names[:3]:
            mine = [
                {**w.record(r, look), "group_rank": sizes[r][0], "local_world_size": sizes[r][1]}
                for r in range(8)
                if home[r] == name
            ]
            w.add("ranks", name, look, {"ranks": mine, "sees_all": True, "own_uid": 0})
    assert w.fact("ranks.claimed_twice").value == 0
    assert all(row.alive for row in rows(w).values())


def test_ranks_whose_processes_start_at_different_seconds_are_all_believed():
    w = World(started=NOW - 3600)
    w.change = {(rank, look): {"start_s": NOW - 3500 + 20 * rank} for rank in range(8) for look in "AB"}
    w.processes().log(last_ago=1, steps=100)
    assert w.fact("ranks.claimed_twice").value == 0


# ---------------------------------------------------------------- impostors


def orphan(w, rank=0, start=NOW - 150, state="T"):
    """The rank is dead, and a stopped process that wears its environment is there instead."""
    w.dead = {}
    w.change.update({(rank, look): {"pid": 66, "state": state, "start_s": start} for look in "AB"})
    return w


def test_a_stopped_orphan_that_wears_a_dead_ranks_environment_is_not_the_rank():
    w = orphan(World())
    w.processes().log(last_ago=100, hits=[exit_line(4000, -9, 0, NOW - 99.5)]).fabric(0)
    add_dumps(w, everyone(OPEN, r0=None), lib="2.27.5")
    assert named(w)[:2] == ("dead_rank/killed", [0])
    assert "began when the job had already made steps" in w.fact("ranks.claimed_twice").parts[0].why


def test_without_the_launchers_line_the_rank_of_an_orphan_is_unknown_and_accused_of_nothing():
    w = orphan(World())
    w.processes().log(last_ago=100).fabric(0)
    add_dumps(w, everyone(OPEN, r0=None), lib="2.27.5")
    assert (rows(w)[0].alive, rows(w)[0].gone) == (None, None)
    assert named(w)[1] == []


def test_a_process_older_than_the_attempt_is_not_its_rank():
    w = orphan(World(started=NOW - 3600), start=NOW - 90_000)
    w.processes().log(last_ago=100).fabric(0)
    assert rows(w)[0].alive is None and w.fact("ranks.stopped").value == 0


# ---------------------------------------------------------------- records that cannot be used


def spoil(w, node, change, looks="AB"):
    for sample in w.samples:
        if sample.probe == "ranks" and sample.node == node and sample.look in looks:
            change(sample.data["ranks"])
    return w


SPOILS = {
    "no number": lambda told: told[0].update(rank="abc"),
    "null": lambda told: told[0].update(rank=None),
    "true": lambda told: told[0].update(rank=True),
    "a fraction": lambda told: told[0].update(rank=1e308),
    "no record": lambda told: told.__setitem__(0, "garbage"),
    "no environment": lambda told: told[0].update(env={}),
    "environment of another shape": lambda told: told[0].update(env=5),
    "without the job's mark": lambda told: told[0]["env"].pop("SLURM_JOB_ID"),
}


def waiting_for_rank_1(per_node=1):
    w = World(nodes=4, per_node=per_node)
    w.dead = {per_node: "A"}
    w.processes().log(last_ago=100, hits=[exit_line(4001, -9, 0, NOW - 99.5)]).fabric(0)
    return w


@pytest.mark.parametrize("looks", ["AB", "B"])
@pytest.mark.parametrize("spoilt", SPOILS)
@pytest.mark.parametrize("per_node", [1, 2])
def test_a_node_with_a_record_that_cannot_be_used_is_not_fully_seen_and_its_ranks_are_not_gone(per_node, spoilt, looks):
    w = spoil(waiting_for_rank_1(per_node), "gpu001", SPOILS[spoilt], looks)
    assert rows(w)[0].gone is not True
    assert 0 not in ranks_of(w.fact("blame.gone"))


@pytest.mark.parametrize("data", [{}, {"ranks": 5}, {"ranks": None}, {"ranks": {}}, {"ranks": "x"}])
def test_an_answer_without_a_list_of_ranks_is_none(data):
    w = waiting_for_rank_1(2)
    for sample in w.samples:
        if sample.probe == "ranks" and sample.node == "gpu001":
            sample.data.clear()
            sample.data.update(data, sees_all=True)
    if data not in ({}, {"ranks": None}, {"ranks": {}}):
        assert "gpu001" not in w.evidence().derive(rank_table).full_nodes
    assert named(w)[1] != [0, 1]


@pytest.mark.parametrize("looks", ["AB", "B"])
def test_a_rank_that_answered_our_poke_is_alive_whatever_the_process_list_says(looks):
    w = World()
    w.processes().log(last_ago=100).fabric(0)
    spoil(w, "gpu001", lambda told: told.__delitem__(0), looks)
    add_dumps(w, everyone(OPEN, r3=["0 1 all_reduce"]), lib="2.27.5")
    row = rows(w)[0]
    assert (row.alive, row.gone) == (True, False)
    assert named(w)[:2] == ("stuck_rank/host", [3])


def test_a_zombie_that_answered_our_poke_is_alive_too():
    w = World()
    w.change = {(0, look): {"state": "Z"} for look in "AB"}
    w.processes().log(last_ago=100).fabric(0)
    add_dumps(w, everyone(OPEN, r3=["0 1 all_reduce"]), lib="2.27.5")
    assert named(w)[:2] == ("stuck_rank/host", [3])


@pytest.mark.parametrize("told", [{"source": "file"}, {"stale": True}, {"record": None}])
def test_a_dump_that_was_not_written_for_us_is_no_sign_of_life(told):
    w = World()
    w.dead = {0: "A"}
    w.processes()
    add_dumps(w, {0: OPEN}, rank_0=told)
    assert rows(w)[0].gone is True


def test_another_nodes_word_that_a_gone_rank_answered_does_not_raise_it():
    w = killed()
    lie = add_dumps(World(), {3: OPEN}).samples[1]
    w.add("flight_recorder", "gpu004", "C", {"ranks": list(lie.data["ranks"])})
    assert rows(w)[3].gone is True
    assert named(w)[:2] == ("dead_rank/killed", [3])


def test_a_process_that_lost_the_jobs_mark_between_the_looks_is_still_the_rank():
    w = World()
    w.processes().log(last_ago=100)
    spoil(w, "gpu001", lambda told: told[0]["env"].update(SLURM_JOB_ID="1"), "B")
    assert rows(w)[0].alive is True
