"""Who is silent, together with whom, and what does the scheduler say of them?"""

from __future__ import annotations

from dataclasses import replace

import pytest
from written_dumps import report
from written_evidence import World
from written_silence import LATE, ask, down, dumps, gone, nodes_of, world

from triage.facts.hosts import gone_word
from triage.model import Node

# ---------------------------------------------------------------- a shared service


def many(count, of, phase):
    w = World(nodes=of, per_node=1)
    w.skip_nodes = set(w.names[:count])
    w.processes()
    w.samples = [
        replace(s, data={"phase": phase, "error": "x"}) if s.probe == "contact" and s.status != "ok" else s
        for s in w.samples
    ]
    return w


@pytest.mark.parametrize(
    "count, of, phase, shared",
    [
        (2, 10, "auth", True),  # 20 % of the job
        (3, 40, "auth", True),  # three nodes
        (3, 40, "banner", True),
        (2, 40, "auth", False),
        (1, 4, "auth", False),  # one node has no company, though it is 25 %
        (3, 4, "tcp", False),  # an early phase: nodes or their network
        (3, 4, "resolve", False),
    ],
)
def test_many_nodes_that_stop_in_one_late_phase_point_at_a_shared_service(count, of, phase, shared):
    w = many(count, of, phase)
    assert w.fact("hosts.same_phase").value is shared
    assert w.fact("hosts.silent_phase").value == phase


def test_nodes_that_stop_together_in_auth_are_not_accused_although_the_scheduler_and_peers_say_so():
    w = gone(dumps(world("gpu002", "gpu003", phase="auth", states={"gpu002": "down", "gpu003": "down"})))
    assert w.fact("hosts.same_phase").value is True
    assert "rather a shared service" in down(w)


# ---------------------------------------------------------------- nodes that change


def test_a_node_that_was_silent_and_then_answers_is_not_silent():
    w = gone(dumps(world("gpu003")))
    assert w.fact("hosts.silent").value == 1
    w.add("contact", "gpu003", "A", {"phase": "read"})
    assert (w.fact("hosts.silent").value, w.fact("hosts.down").value) == (0, 0)


def test_a_node_whose_probe_answers_after_all_is_not_silent():
    w = gone(dumps(world("gpu003")))
    w.add("reach", "gpu003", "B", {"hidepid": 0})
    assert w.fact("hosts.silent").value == 0


def test_a_node_that_went_between_the_looks_is_lost_and_not_silent():
    w = world()
    w.samples = [
        replace(s, status="timeout", data={}, notes=("phase read: no answer within 10 s",))
        if s.node == "gpu003" and s.look == "B"
        else s
        for s in w.samples
    ]
    assert (nodes_of(w.fact("hosts.lost")), w.fact("hosts.silent").value) == (["gpu003"], 0)


# ---------------------------------------------------------------- the scheduler's word


@pytest.mark.parametrize(
    "state",
    ["down", "DOWN", "down*", "DOWN*+DRAIN", "fail", "failing", "powered_down", "POWERING_DOWN", "no_respond",
     "idle*", "mixed*", "IDLE+NOT_RESPONDING", "alloc+no_respond", "drain*", "idle*~"],
)  # fmt: skip
def test_the_schedulers_words_for_a_node_that_is_gone(state):
    assert gone_word(Node("n", state=state)) == state


@pytest.mark.parametrize(
    "state",
    ["", "idle", "mixed", "alloc", "allocated", "drain", "drained", "maint", "reboot", "unknown", "idle-", "idle~",
     "downtown", "not down", "*", "failover", "up", "mixed+planned", "completing$"],
)  # fmt: skip
def test_words_that_are_not_known_say_nothing(state):
    assert gone_word(Node("n", state=state)) == ""


def test_a_reason_counts_only_as_the_schedulers_own_and_without_a_state():
    assert gone_word(Node("n", state_reason="Not responding [slurm@2026-11-29T01:10:00]"))
    assert not gone_word(Node("n", state="idle", state_reason="Not responding [slurm@2026-11-01T01:10:00]"))
    assert not gone_word(Node("n", state_reason="was down last week, not responding then"))


def test_the_schedulers_word_alone_accuses_a_silent_node_of_a_frozen_job():
    told = world("gpu003", states={"gpu003": "down*"}).fact("hosts.down")
    assert nodes_of(told) == ["gpu003"] and "the inventory says down*" in told.parts[0].why
    assert {p.probe for p in told.provenance} == {"inventory", "contact"}


def test_the_schedulers_word_accuses_no_node_that_answers():
    assert world(states={"gpu003": "down*"}).fact("hosts.down").value == 0
    w = world("gpu002", states={"gpu003": "down*"})
    assert not isinstance(down(w), list)


def test_the_schedulers_word_accuses_nobody_while_the_job_advances():
    assert "only if the job stands still" in down(world("gpu003", frozen=False, states={"gpu003": "down*"}))


def test_the_schedulers_word_does_not_outweigh_records_that_point_elsewhere():
    w = dumps(world("gpu003", states={"gpu003": "down*"}), r2=LATE)
    assert "lives on gpu002, which answered" in down(w)


def test_the_schedulers_word_and_the_waits_need_no_peer():
    told = dumps(world("gpu003", states={"gpu003": "down*"})).fact("hosts.down")
    assert nodes_of(told) == ["gpu003"] and told.contradicted_by == ()
    assert {p.probe for p in told.provenance} == {"inventory", "contact", "flight_recorder"}


@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_without_records_another_rank_that_is_gone_or_stopped_leaves_the_word_undecided(fault):
    w = World()
    base = world("gpu003", states={"gpu003": "down*"})
    w.skip_nodes, w.job = base.skip_nodes, base.job
    if fault == "killed":
        w.dead = {1: "A"}
    else:
        w.change = {(1, look): {"state": "T"} for look in "AB"}
    w.processes().fabric(0).log(last_ago=100)
    assert "rank 1 (gpu001) is" in down(w)


def test_one_gone_by_its_peers_and_one_by_the_scheduler_are_both_gone():
    w = dumps(world("gpu002", "gpu003", states={"gpu003": "down"}))
    for peer in ("gpu001", "gpu004"):
        ask(w, peer, {"gpu002": "timeout"})
    assert down(w) == ["gpu002", "gpu003"]


# ---------------------------------------------------------------- hostile answers


HOSTILE = [
    {}, {"targets": None}, {"targets": 5}, {"targets": [5, None, {}, {"node": 3}]}, {"targets": {"node": "gpu003"}},
    {"targets": [{"node": "gpu003", "fabric": 5}]}, {"targets": [{"node": "gpu003", "fabric": [None, 1, {}]}]},
    {"targets": [{"node": "gpu003", "fabric": [{"address": 5, "result": []}], "management": "x"}]},
]  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE)
def test_an_answer_of_another_shape_is_no_answer(data):
    w = dumps(world("gpu003"))
    for peer in ("gpu001", "gpu002"):
        w.add("peers", peer, "C", data)
    assert not isinstance(down(w), list)
    assert "please report" not in down(w)


def test_what_the_ssh_client_said_stands_beside_the_phase_where_a_node_fell_silent():
    w = World()
    w.skip_nodes = {"gpu002"}
    w.processes()
    for sample in w.samples:
        if sample.probe == "contact" and sample.node == "gpu002":
            sample.data.update(
                phase="kex", error="host key is not known (SHA256:x). Check it, then: ssh-keyscan gpu002"
            )
    (part,) = w.fact("hosts.silent").parts
    assert part.why == "silent in phase kex: host key is not known (SHA256:x). Check it, then: ssh-keyscan gpu002"
    told = report(w.log(last_ago=400))
    assert any("ssh-keyscan gpu002" in found.text for found in told.findings)
