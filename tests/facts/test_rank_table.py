"""Which rank lives where, and is it gone? "Not seen" is never "not there"."""

from dataclasses import replace

import pytest
from written_evidence import NOW, World, exit_line

from triage.facts.ranktable import rank_sets, rank_table
from triage.model import Node


def gone(world):
    return [part.rank for part in world.fact("ranks.gone").parts]


def test_a_rank_that_look_a_saw_and_look_b_does_not_is_gone():
    world = World()
    world.dead = {5: "B"}
    assert gone(world.processes()) == [5]
    assert world.fact("ranks.gone").parts[0].node == "gpu003"


def test_a_rank_that_died_before_look_a_is_placed_by_its_siblings():
    world = World()
    world.dead = {5: "A"}
    assert gone(world.processes()) == [5]
    assert world.fact("ranks.gone").parts[0].node == "gpu003"


def test_a_rank_alone_on_its_node_is_placed_by_elimination():
    world = World(per_node=1)
    world.dead = {2: "A"}
    assert gone(world.processes()) == [2]
    assert world.fact("ranks.gone").parts[0].node == "gpu003"


def test_elimination_does_not_place_ranks_of_two_nodes_on_one():
    world = World()
    world.dead = {0: "A", 1: "A", 7: "A"}
    for rank in range(8):
        for look in "AB":
            world.change[(rank, look)] = {"group_rank": None, "local_world_size": None}
    assert world.processes().fact("ranks.gone").value is None


def test_nothing_is_gone_on_a_node_whose_processes_we_may_not_see():
    world = World(root=False)
    world.dead = {5: "B"}
    for look in "AB":
        for rank in range(8):
            world.change[(rank, look)] = {"uid": 4711}
    assert world.processes().fact("ranks.gone").value is None


def test_the_jobs_own_user_sees_enough():
    world = World(root=False)
    world.dead = {5: "B"}
    assert gone(world.processes()) == [5]


def test_hidepid_hides_even_from_the_jobs_user():
    world = World(root=False)
    world.dead = {5: "B"}
    world.processes()
    world.samples = [s for s in world.samples if s.probe != "reach"]
    for name in world.names:
        world.add("reach", name, "A", {"hidepid": 2})
    assert world.fact("ranks.gone").value is None


def test_ranks_of_a_silent_node_are_unknown_and_not_gone():
    world = World()
    world.skip_nodes = {"gpu002"}
    table = world.processes().evidence().derive(rank_table)
    assert table.rows[2].gone is None and table.rows[2].alive is None
    assert world.fact("ranks.gone").value is None


def test_a_zombie_is_gone():
    world = World()
    world.change[(3, "B")] = {"state": "Z"}
    assert gone(world.processes()) == [3]


def test_siblings_that_contradict_themselves_place_nobody():
    world = World()
    world.dead = {5: "A"}
    world.change = {(4, look): {"group_rank": 7} for look in "AB"}
    assert world.processes().fact("ranks.gone").value is None


def test_another_job_of_the_same_user_is_left_out():
    world = World()
    for look in "AB":
        other = world.record(3, look)
        other["env"] = {**other["env"], "SLURM_JOB_ID": "9", "MASTER_PORT": "1"}
        other["pid"] = 77
        world.add("ranks", "gpu001", look, {"ranks": [other], "sees_all": True})
    world.processes()
    assert len(rank_sets(world.evidence())) == 1


def test_two_rank_sets_and_no_rule_are_two():
    world = World(match={})
    for look in "AB":
        for rank in range(8):
            env = {k: v for k, v in world.record(rank, look)["env"].items() if k != "SLURM_JOB_ID"}
            if rank > 5:
                env["MASTER_PORT"] = "4000"
            world.change[(rank, look)] = {"env": env}
    assert len(rank_sets(world.processes().evidence())) == 2


@pytest.mark.parametrize("pid", [1005, 4242])
def test_a_launchers_line_is_tied_to_its_rank_by_pid_or_by_the_only_missing_local_rank(pid):
    world = World()
    seen_alive = pid == 1005  # by the first look, four seconds before it ended
    world.dead = {5: "B" if seen_alive else "A"}
    ago = 4 if seen_alive else 100
    world.processes().log(last_ago=ago, hits=[exit_line(pid, -9, 1, NOW - ago + 0.5)])
    fact = world.fact("hard.killed")
    assert [part.rank for part in fact.parts] == [5]


@pytest.mark.parametrize("look", ["A", "B"])
def test_a_launchers_line_is_not_tied_to_the_process_of_the_same_pid_that_works_on_another_node(look):
    world = World()
    world.dead = {5: look}
    world.change = {(1, which): {"pid": 1005} for which in "AB"}  # rank 1 of gpu001 is process 1005 there
    world.processes().log(last_ago=9, hits=[exit_line(1005, -9, 1, NOW - 8)])
    rows = world.evidence().derive(rank_table).rows
    assert (rows[5].gone, rows[5].exit_code) == (True, -9)
    assert rows[1].alive


def test_a_line_of_a_launcher_is_tied_although_a_node_of_the_job_hosts_no_rank():
    world = World()
    world.dead = {5: "A"}
    world.processes().log(last_ago=9, hits=[exit_line(4242, -9, 1, NOW - 8)])
    world.job = replace(world.job, nodes=(*world.job.nodes, Node("spare")))
    world.add("ranks", "spare", "B", {"ranks": [], "sees_all": True})
    assert world.evidence().derive(rank_table).rows[5].exit_code == -9


def test_stopped_and_uninterruptible_need_both_looks():
    world = World()
    world.change = {(1, "A"): {"state": "T"}, (1, "B"): {"state": "T"}, (2, "B"): {"state": "T"},
                    (3, "A"): {"state": "D"}, (3, "B"): {"state": "D"}}  # fmt: skip
    world.processes()
    assert [p.rank for p in world.fact("ranks.stopped").parts] == [1]
    assert [p.rank for p in world.fact("ranks.d_state").parts] == [3]
