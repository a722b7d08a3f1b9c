"""The whole walk on attempts that are over, that are not the one asked about, or of which no process is left."""

from dataclasses import replace

import pytest
from written_attempts import BEGAN, ENDED, LAST, ended, kernel, log, oom, oom_world, wear
from written_dumps import add_dumps, everyone, report
from written_evidence import NOW, World
from written_logs import block, failed, stamp, start, steps

from triage.model import Attempt


def told(w):
    found = report(w)
    return found.verdict.cause, [(c.node, c.rank) for c in found.culprits], found.verdict.confidence


def test_an_ended_attempt_is_diagnosed_from_the_job_log_and_the_kernel_log_alone():
    w = oom_world()
    assert told(w) == ("dead_rank/oom_kill", [("gpu003", 5)], "high")
    found = report(w)
    assert found.state == "ended" and found.exit_code == 10 and not found.victims
    assert {line.fact for line in found.evidence} >= {"hard.oom"}
    assert any("2 sources agree" in line for line in found.verdict.why)


def test_an_ended_attempt_whose_rank_told_its_exception_is_diagnosed_with_less_confidence():
    w = ended(World()).processes()
    log(
        w,
        steps(1, 50, LAST),
        ['[rank5]: KeyError: "labels"', failed(LAST + 4, 1, 1, 4005), *block(LAST + 4, "gpu003", 5, 1, 1, 4005)],
    )
    assert told(w)[:2] == ("dead_rank/exception", [("gpu003", 5)])
    assert report(w).mitigation["recommended"]["fix_first"]


def test_an_ended_attempt_with_one_road_only_is_not_diagnosed_and_the_launchers_word_is_a_lead():
    w = oom_world(killed=False)
    found = report(w)
    assert (found.verdict.cause, found.exit_code, found.culprits) == ("inconclusive/ended", 0, ())
    assert [(a.cause, "rank 5" in a.why_not) for a in found.alternatives] == [("dead_rank/killed", True)]


def test_an_ended_attempt_that_no_node_answers_for_is_ended_and_not_unreachable():
    w = oom_world()
    w.samples = [
        replace(s, status="timeout") if s.probe == "contact" else s
        for s in w.samples
        if s.probe in ("contact", "joblog")
    ]
    found = report(w)
    assert (found.verdict.cause, found.exit_code) == ("inconclusive/ended", 0)


@pytest.mark.parametrize("why", ["TIME LIMIT", "JOB REQUEUE"])
def test_an_attempt_that_the_scheduler_ended_says_so(why):
    when = stamp(LAST + 0.2, "%Y-%m-%dT%H:%M:%S")[:19]
    w = oom_world(f"slurmstepd: error: *** JOB 4711 ON gpu001 CANCELLED AT {when} DUE TO {why} ***")
    found = report(w)
    assert found.verdict.cause == "inconclusive/ended" and any(why.lower() in line.text for line in found.evidence)


def test_an_attempt_that_had_finished_is_ended_and_nobody_is_looked_for():
    w = oom_world(f"[after training is done] datetime: {stamp(LAST + 1, '%Y-%m-%d %H:%M:%S')[:19]} ")
    assert told(w)[:2] == ("inconclusive/ended", [])


def test_processes_of_another_attempt_are_said_and_not_judged():
    w = wear(World(), SLURM_RESTART_COUNT="2")
    w.job = replace(w.job, attempt=Attempt(1, NOW - 3600))
    w.dead = {5: "A"}
    w.processes().log(last_ago=100).fabric(0)
    add_dumps(w, everyone(["0 1 all_reduce", "0 2 all_reduce open"], r5=None), lib="2.27.5")
    assert told(w)[:2] == ("inconclusive/other_attempt", [])


def test_a_completing_attempt_is_read_by_its_dated_evidence():
    w = oom_world()
    w.job = replace(w.job, state="completing", attempt=Attempt(None, BEGAN, ENDED))
    assert told(w)[:2] == ("dead_rank/oom_kill", [("gpu003", 5)])


def test_a_running_job_of_which_nothing_is_left_is_diagnosed_from_its_last_words():
    w = World()
    w.dead = dict.fromkeys(range(8), "A")
    w.processes().fabric(0)
    log(w, steps(1, 50, NOW - 100), [failed(NOW - 99.2, -9, 1, 4005), *block(NOW - 99.2, "gpu003", 5, 1, -9, 4005)])
    kernel(w, "gpu003", oom(NOW - 99.5))
    assert told(w)[:2] == ("dead_rank/oom_kill", [("gpu003", 5)])
    kernel(w, "gpu003")
    assert told(w)[:2] == ("inconclusive/all_gone", [])


def test_a_rank_that_ended_by_its_own_exception_is_dead_by_that():
    w = World()
    w.dead = {5: "A"}
    w.processes().fabric(0)
    log(w, start(NOW - 3510), steps(1, 50, NOW - 100), ['[rank5]: KeyError: "labels"', failed(NOW - 99, 1, 1, 4005)])
    add_dumps(w, everyone(["0 1 all_reduce", "0 2 all_reduce open"], r5=None), lib="2.27.5")
    assert told(w)[:2] == ("dead_rank/exception", [("gpu003", 5)])


def test_a_node_that_lost_all_its_ranks_is_one_culprit():
    w = World()
    w.dead = {4: "A", 5: "A"}
    w.processes().fabric(0).log(last_ago=100)
    add_dumps(w, everyone(["0 1 all_reduce", "0 2 all_reduce open"], r4=None, r5=None), lib="2.27.5")
    assert told(w)[:2] == ("dead_rank/gone", [("gpu003", None)])
