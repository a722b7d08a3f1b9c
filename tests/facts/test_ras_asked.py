"""When may NCCL's RAS be asked, of whom, and what is it told?"""

from __future__ import annotations

from written_dumps import add_dumps, everyone
from written_evidence import NOW, World

from triage.asking import plan
from triage.facts import registry
from triage.facts.launches import nccl_release
from triage.tree.walk import Request


def asked(w, **limits):
    ev = w.evidence(**limits)
    parts = registry.other(ev, "ranks.expected").parts
    return plan(Request("ras", parts, 0, "frozen-job:launches", {"gap_s": 10}), ev)


def world(**more):
    return World(log="/job.log", **more).processes()


def test_two_nodes_of_many_are_asked_with_their_live_ranks_and_the_pids_that_these_see_themselves():
    w = World(nodes=8)
    w.change = {(rank, look): {"ns_pid": 40 + rank} for rank in range(16) for look in "AB"}
    told = asked(w.processes().log(last_ago=400.0))
    assert list(told) == ["gpu001", "gpu002"]
    assert told["gpu001"]["ranks"] == [{"rank": 0, "pid": 1000, "ns_pid": 40}, {"rank": 1, "pid": 1001, "ns_pid": 41}]
    assert (told["gpu001"]["world"], told["gpu001"]["gap_s"], told["gpu001"]["address"]) == (16, 10, "")


def test_a_node_whose_ranks_are_gone_or_stopped_is_passed_over():
    w = World()
    w.dead = {0: "A", 1: "A"}
    w.change = {(rank, look): {"state": "T"} for rank in (2, 3) for look in "AB"}
    assert list(asked(w.processes().log())) == ["gpu003", "gpu004"]


def test_after_a_step_the_set_up_is_past():
    assert asked(world().log(last_ago=400.0))["gpu001"]["init"] == "past"


def test_a_young_job_without_a_step_is_in_its_set_up():
    w = World(started=NOW - 300)
    w.change = {(rank, look): {"start_s": NOW - 290} for rank in range(8) for look in "AB"}
    assert asked(w.processes())["gpu001"]["init"] == "during"


def test_an_old_job_without_a_step_may_hang_in_its_set_up():
    assert asked(world(started=NOW - 3600))["gpu001"]["init"] == "unclear"
    assert asked(world(started=None))["gpu001"]["init"] == "unclear"


def test_the_address_is_that_of_the_jobs_environment():
    w = World()
    env = w.record(0, "A")["env"]
    w.change = {(0, look): {"env": {**env, "NCCL_RAS_ADDR": "localhost:28029"}} for look in "AB"}
    assert asked(w.processes())["gpu001"]["address"] == "localhost:28029"


def test_the_oldest_release_that_anything_tells_of_counts():
    w = add_dumps(world(), everyone(["0 1 all_reduce open"]), lib="2.27.5")
    assert nccl_release(w.evidence()) == "2.27.5"
    w.samples.append(w.samples[-1])
    w.add(
        "joblog",
        "",
        "B",
        {"path": "/job.log", "tail": ["n1:9:71 [0] NCCL INFO NCCL version 2.26.2+cuda12.4"], "hits": []},
    )
    assert asked(w)["gpu001"]["nccl"] == "2.26.2"
    assert nccl_release(world().evidence()) == ""
