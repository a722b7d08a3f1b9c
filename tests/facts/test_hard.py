"""Hard facts: what ends a job by itself, and only when it happened at the time of the stall."""

import pytest
from written_evidence import NOW, World, exit_line


def dead_world(code=-9, at=NOW - 99.5, zone="utc"):
    world = World()
    world.dead = {5: "A"}
    return world.processes().log(last_ago=100, zone=zone, hits=[exit_line(4242, code, 1, at)])


@pytest.mark.parametrize("code", [-9, 137, -11, -7])
def test_a_rank_that_ended_by_a_deadly_signal_at_the_onset_is_hard(code):
    assert [p.rank for p in dead_world(code).fact("hard.killed").parts] == [5]


@pytest.mark.parametrize("code", [-6, 134, -15, 143, 1, 0])
def test_abort_terminate_and_plain_exits_are_consequences(code):
    assert dead_world(code).fact("hard.events").value == 0


def test_an_exit_long_after_the_stall_is_no_cause():
    assert dead_world(at=NOW - 20).fact("hard.events").value == 0


def test_an_exit_long_before_the_last_step_is_no_cause():
    assert dead_world(at=NOW - 2000).fact("hard.events").value == 0


def test_a_rank_that_still_lives_was_not_killed_whatever_the_log_says():
    world = World().processes().log(last_ago=100, hits=[exit_line(1005, -9, 1, NOW - 99.5)])
    assert world.fact("hard.events").value == 0


def oom(world, node="gpu003", at=NOW - 99.5):
    world.samples = [s for s in world.samples if not (s.probe == "kernel" and s.node == node)]
    event = {
        "id": "oom_kill",
        "kind": "oom",
        "at": at,
        "count": 1,
        "text": "Out of memory: Killed process 4242 (python)",
    }
    return world.add("kernel", node, "A", {"readable": True, "events": [event]})


def test_an_oom_kill_on_the_node_of_the_gone_rank_is_hard():
    world = World()
    world.dead = {5: "A"}
    fact = oom(world.processes().log(last_ago=100)).fact("hard.oom")
    assert [p.rank for p in fact.parts] == [5]


def test_an_oom_kill_on_a_node_whose_ranks_all_live_is_no_cause():
    assert oom(World().processes().log(last_ago=100)).fact("hard.events").value == 0


def test_with_two_ranks_gone_the_oom_kill_names_the_node_only():
    world = World()
    world.dead = {4: "A", 5: "A"}
    world.processes().log(last_ago=100)
    parts = oom(world).fact("hard.oom").parts
    assert [(p.kind, p.node, p.rank) for p in parts] == [("node", "gpu003", None)]


def test_an_unreadable_kernel_log_leaves_the_question_open():
    world = World().processes().log(last_ago=100)
    world.samples = [s for s in world.samples if s.probe != "kernel"]
    world.add("kernel", "gpu001", "A", {}, status="denied")
    assert world.fact("hard.events").value is None
