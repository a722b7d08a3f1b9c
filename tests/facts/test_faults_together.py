"""Faults that come together, end while one looks, or hide behind wrong names: nobody innocent is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from written_activity import compiles, watch
from written_dumps import add_dumps, everyone, report, world_with
from written_evidence import NOW, World
from written_silence import LATE, OPEN, ask, dumps, world

STOOD = 100.0


def frozen(programs, **row):
    return world_with(programs, **row).fabric(0).log(last_ago=STOOD)


# ---------------------------------------------------------------- a phase beside a fault


def test_a_rank_that_compiles_beside_a_node_that_nobody_reaches_is_no_phase_that_ends_well():
    w = dumps(world("gpu003"), r2=LATE)
    ask(w, "gpu001", {"gpu003": "timeout"})
    told = report(watch(w, compiles(2)))
    assert told.verdict.cause == "inconclusive/perhaps_busy" and not told.culprits


def test_a_rank_that_compiles_beside_a_port_without_link_is_no_phase_that_ends_well():
    w = world_with(everyone(OPEN, r2=LATE)).fabric(0, carrier=0).log(last_ago=STOOD)
    assert w.fact("links.down_now").value
    told = report(watch(w, compiles(2)))
    assert told.verdict.id == "inconclusive" and not told.culprits


# ---------------------------------------------------------------- the end of training


DONE = {"id": "training_finished", "line_no": 9000, "text": "[after training is done] datetime: 2026-11-30 21:40:01"}


def finished(programs):
    w = world_with(programs).fabric(0)
    hit = {**DONE, "at": NOW - 50, "last_at": NOW - 50, "count": 1, "groups": {}}
    return w.log(last_ago=STOOD, hits=[hit])


def test_a_job_whose_ranks_all_left_the_loop_shuts_down():
    told = report(finished(everyone(["0 1 all_reduce"])))
    assert told.verdict.cause == "busy/teardown" and told.exit_code == 0


def test_a_rank_that_left_the_loop_alone_holds_the_others_although_the_log_says_that_training_is_done():
    told = report(finished(everyone(OPEN, r7=LATE)))
    assert (told.verdict.cause, [c.rank for c in told.culprits]) == ("deadlock/uneven_inputs", [7])


# ---------------------------------------------------------------- what ends while one looks


def test_a_rank_that_ended_between_the_looks_is_told_although_steps_were_made():
    w = World()
    w.dead = {3: "B"}
    told = report(w.processes().fabric(1e6).log(last_ago=0.5))
    assert told.verdict.cause == "inconclusive/just_now" and told.exit_code == 11 and not told.culprits


def test_a_stall_that_ended_before_the_records_were_written_accuses_nobody():
    w = World().processes().fabric(0).log(last_ago=STOOD)
    add_dumps(w, everyone(OPEN, r2=LATE), created=NOW - 0.15, mtime=NOW - 0.1, lib="2.27.5")
    told = report(w)
    assert told.verdict.id == "healthy" and not told.culprits
    again = World().processes().fabric(0).log(last_ago=STOOD)
    add_dumps(again, everyone(OPEN, r2=LATE), lib="2.27.5")
    assert report(again).verdict.cause == "stuck_rank/host"


def test_one_node_that_claims_records_of_all_ranks_does_not_make_a_frozen_job_move():
    w = World().processes().fabric(0).log(last_ago=STOOD)
    add_dumps(w, everyone(OPEN, r2=LATE))
    liar = add_dumps(World(), everyone(OPEN), created=NOW - 0.15, mtime=NOW - 0.1)
    claimed = [row for s in liar.samples if s.probe == "flight_recorder" for row in s.data["ranks"]]
    w.samples = [
        replace(s, data={"ranks": claimed}) if s.probe == "flight_recorder" and s.node == "gpu004" else s
        for s in w.samples
    ]
    assert w.fact("progress.advancing").value is False


# ---------------------------------------------------------------- names


def named_as(w, node, hostname):
    w.samples = [
        replace(s, data={**s.data, "hostname": hostname}) if s.probe == "reach" and s.node == node else s
        for s in w.samples
    ]
    return w


@pytest.mark.parametrize("hostname", ["gpu003", "gpu003.cluster.example"])
def test_a_node_that_answers_under_the_name_of_another_of_the_job_makes_every_verdict_void(hostname):
    w = World()
    w.dead = {3: "A"}
    w = named_as(w.processes().fabric(0).log(last_ago=STOOD), "gpu002", hostname)
    told = report(w)
    assert told.verdict.cause == "inconclusive/misnamed" and not told.culprits


@pytest.mark.parametrize("hostname", ["", "gpu002", "gpu002.cluster.example", "login7", "localhost"])
def test_a_hostname_that_is_its_own_or_nobodys_says_nothing(hostname):
    w = named_as(World().processes().fabric(1e6).log(last_ago=0.5), "gpu002", hostname)
    assert w.fact("hosts.misnamed").value == 0
    assert report(w).verdict.id == "healthy"


def test_nodes_of_one_short_name_in_two_domains_are_not_mixed_up():
    w = World(nodes=2)
    w.names = ["gpu1.east", "gpu1.west"]
    w.job = replace(w.job, nodes=tuple(replace(n, name=name) for n, name in zip(w.job.nodes, w.names, strict=True)))
    w = named_as(named_as(w.processes(), "gpu1.east", "gpu1"), "gpu1.west", "gpu1")
    assert w.fact("hosts.misnamed").value == 0


# ---------------------------------------------------------------- an end by another cause


@pytest.mark.parametrize(("code", "cause"), [(-9, "dead_rank/oom_kill"), (-11, "dead_rank/segfault")])
def test_the_kernels_kill_of_a_stranger_is_not_the_end_of_a_rank_that_died_of_another_signal(code, cause):
    w = World()
    w.dead = {3: "A"}
    at = NOW - STOOD
    oom = {
        "id": "oom_kill",
        "kind": "oom",
        "at": at,
        "last_at": at,
        "count": 1,
        "text": "Killed process 999999",
        "groups": {},
    }
    w.processes()
    w.samples = [
        replace(s, data={"readable": True, "events": [oom]}) if s.probe == "kernel" and s.node == "gpu002" else s
        for s in w.samples
    ]
    exit_ = {
        "id": "torchelastic_failed", "line_no": 5000, "at": at, "last_at": at, "count": 1, "text": "failed",
        "groups": {"code": str(code), "lr": "1", "pid": "1003"},
    }  # fmt: skip
    w.fabric(0).log(last_ago=STOOD, hits=[exit_])
    add_dumps(w, {rank: OPEN for rank in range(8) if rank != 3})
    told = report(w)
    assert (told.verdict.cause, [c.rank for c in told.culprits]) == (cause, [3])


# ---------------------------------------------------------------- a phase that one rank writes


SAVING = {"id": "checkpoint_save_begin", "line_no": 9000, "text": "saving checkpoint at iteration 100 to /ckpt"}


def saving(programs, writer):
    w = World()
    w.change = {(writer, "B"): {"wchar": 800_000_000, "write_bytes": 800_000_000}}
    w.processes().fabric(0)
    add_dumps(w, programs)
    hit = {**SAVING, "at": NOW - STOOD, "last_at": NOW - STOOD, "count": 1, "groups": {}}
    return w.log(last_ago=STOOD, hits=[hit])


def test_the_rank_that_writes_the_checkpoint_is_the_one_that_is_waited_for():
    told = report(saving(everyone(OPEN, r1=LATE), writer=1))
    assert told.verdict.cause == "busy/storage_phase" and told.exit_code == 0


def test_a_checkpoint_of_one_rank_does_not_excuse_another_that_is_waited_for():
    told = report(saving(everyone(OPEN, r3=LATE), writer=1))
    assert told.verdict.id != "busy" and not [c for c in told.culprits if c.rank != 3]
