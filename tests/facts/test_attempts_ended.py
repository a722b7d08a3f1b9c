"""An attempt of which no process is left is diagnosed from what is dated, and only where two witnesses agree."""

import pytest
from written_attempts import ENDED, LAST, OLD, ended, kernel, log, oom, oom_world, value
from written_dumps import ranks_of, report
from written_evidence import NOW, World
from written_logs import block, failed, stamp, start, steps, timed_out

from triage.facts.ranktable import rank_table

# ---------------------------------------------------------------- an ended attempt by dated evidence alone


def test_a_kill_and_the_launchers_line_on_one_process_are_two_roads_to_the_rank():
    w = oom_world()
    fact = w.fact("hard.oom")
    assert [(p.rank, p.node) for p in fact.parts] == [(5, "gpu003")]
    assert {p.probe for p in fact.provenance} == {"kernel", "joblog"}
    assert ranks_of(w.fact("hard.first_exit")) == [5] and value(w, "hard.first_agreed") is True


@pytest.mark.parametrize(
    "changed",
    [
        {"logged": False},  # the kernel alone: any process of any job may have been killed
        {"killed": False},  # the launcher alone: an operator may have killed it
        {"pid": 999},  # the kernel killed another process
        {"node": "gpu002"},  # the same pid on another node than the failure block names
        {"kill_at": LAST - 30, "exit_at": LAST - 29},  # steps were made after it
        {"kill_at": LAST + 0.5, "exit_at": LAST + 30},  # another end of a process with this number
        {"kill_at": LAST + 0.9, "exit_at": LAST - 3},  # the line is older than the kill
        {"kill_at": LAST + 90, "exit_at": LAST + 90.5},  # the job stood for a minute and a half already
    ],
)
def test_one_road_alone_or_two_that_do_not_meet_name_nobody(changed):
    w = oom_world(**changed)
    assert value(w, "hard.events") == 0 and not report(w).culprits


def test_the_launchers_line_alone_is_told_as_a_lead_and_not_agreed_upon():
    w = oom_world(killed=False)
    assert ranks_of(w.fact("hard.first_exit")) == [5] and value(w, "hard.first_agreed") is False


@pytest.mark.parametrize("when", [ENDED + 299, ENDED + 301])
def test_evidence_counts_until_five_minutes_after_the_end(when):
    w = ended(World()).processes()
    log(
        w,
        steps(1, 50, when - 1),
        [failed(when + 0.3, -9, 1, 4005), *block(when + 0.3, "gpu003", 5, 1, -9, 4005)],
        mtime=when + 1,
    )
    inside = when + 0.3 < ENDED + 300
    assert value(kernel(w, "gpu003", oom(when)), "hard.events") == (1 if inside else 0)


def test_the_end_of_a_later_attempt_in_the_same_log_is_not_this_ones():
    later = ENDED + 1000
    w = oom_world(
        *[
            start(later - 60),
            *steps(30, 50, later),
            failed(later + 1, -9, 0, 7002),
            *block(later + 1, "gpu002", 2, 0, -9, 7002),
        ]
    )
    w.samples = [s for s in w.samples if s.probe != "kernel"]
    for name, events in (("gpu002", [oom(later + 0.5, 7002)]), ("gpu003", [oom(LAST + 0.5, 4005)])):
        w.add("kernel", name, "A", {"readable": True, "events": events})
    assert ranks_of(w.fact("hard.oom")) == [5] and value(w, "progress.last_step") == 50


def test_what_ended_after_a_time_out_had_begun_is_a_consequence():
    # All ranks waited from LAST on; an operator (or a leak) ended one of them long after.
    w = oom_world(timed_out(LAST + 200, 0, 200), kill_at=LAST + 30, exit_at=LAST + 30.3)
    assert value(w, "hard.events") == 0
    assert value(w, "hard.first_exit") == 0


def test_a_kill_after_another_process_had_been_told_to_end_is_no_cause():
    w = oom_world(failed(LAST + 0.5, -15, 0, 7002), kill_at=LAST + 10, exit_at=LAST + 10.3)
    assert value(w, "hard.events") == 0 and value(w, "hard.first_exit") == 0


def test_what_the_scheduler_ended_has_no_culprit_among_the_ranks():
    when = stamp(LAST + 0.2, "%Y-%m-%dT%H:%M:%S")[:19]
    w = oom_world(f"slurmstepd: error: *** STEP 4711.0 ON gpu001 CANCELLED AT {when} DUE TO TIME LIMIT ***")
    assert value(w, "job.ended_by") == "time limit" and value(w, "hard.events") == 0


def test_a_job_that_ended_because_a_task_failed_was_not_ended_by_the_scheduler():
    when = stamp(LAST + 2, "%Y-%m-%dT%H:%M:%S")[:19]
    w = oom_world(f"slurmstepd: error: *** STEP 4711.0 ON gpu001 CANCELLED AT {when} ***")
    assert value(w, "job.ended_by") == "none" and ranks_of(w.fact("hard.oom")) == [5]


def test_a_kill_and_slurms_own_count_name_the_node_and_no_rank():
    w = ended(World()).processes()
    log(
        w,
        steps(1, 50, LAST),
        [f"[{stamp(LAST + 1)}] slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of"],
    )
    fact = kernel(w, "gpu003", oom(LAST + 0.5, 77)).fact("hard.oom")
    assert [(p.kind, p.node, p.rank) for p in fact.parts] == [("node", "gpu003", None)]


def test_a_killed_loader_worker_is_tied_to_the_rank_that_lost_it():
    lost = "[rank5]: RuntimeError: DataLoader worker (pid 4300) is killed by signal: Killed."
    w = ended(World()).processes()
    log(w, steps(1, 50, LAST), [lost, failed(LAST + 4, 1, 1, 4005), *block(LAST + 4, "gpu003", 5, 1, 1, 4005)])
    assert ranks_of(kernel(w, "gpu003", oom(LAST + 0.5, 4300)).fact("hard.oom")) == [5]


def test_an_exception_of_its_own_and_the_launchers_exit_code_agree_on_a_rank():
    w = ended(World()).processes()
    log(
        w,
        steps(1, 50, LAST),
        ['[rank5]: KeyError: "labels"', failed(LAST + 4, 1, 1, 4005), *block(LAST + 4, "gpu003", 5, 1, 1, 4005)],
    )
    assert ranks_of(w.fact("hard.raised")) == [5] and "KeyError" in w.fact("hard.raised").text
    assert ranks_of(w.fact("hard.first_exit")) == [5] and value(w, "hard.first_agreed") is True


@pytest.mark.parametrize(
    "said",
    [
        "[rank4]: torch.distributed.DistBackendError: NCCL error in: x.hpp:1, remote process exited, NCCL version 2.18.1",
        "[rank4]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:5421",
        "nothing at all",
    ],
)
def test_an_exit_code_whose_rank_tells_no_exception_of_its_own_is_no_cause(said):
    w = ended(World()).processes()
    log(w, steps(1, 50, LAST), [said, failed(LAST + 4, 1, 1, 4005), *block(LAST + 4, "gpu003", 5, 1, 1, 4005)])
    assert value(w, "hard.events") == 0 and value(w, "hard.first_exit") == 0


def test_an_attempt_that_said_it_was_done_is_not_searched_for_a_dead_rank():
    w = oom_world(f"[after training is done] datetime: {stamp(LAST + 1, '%Y-%m-%d %H:%M:%S')[:19]} ")
    assert value(w, "job.finished") is True and not report(w).culprits


def test_an_ended_attempt_without_dates_in_its_log_tells_nothing():
    w = ended(World()).processes()
    log(w, steps(1, 50, 0, dated=False), block(LAST + 1, "gpu003", 5, 1, -9, 4005)[3:])
    assert value(w, "progress.last_step") is None and value(w, "hard.events") == 0


def test_of_an_ended_attempt_whose_times_nobody_told_the_newest_start_on_counts():
    w = ended(World(), started=None, at=None).processes()
    log(w, OLD, [start(LAST - 60)], steps(41, 5, LAST))
    assert value(w, "pace.steps") == 5


def test_the_start_of_a_later_attempt_does_not_cut_off_the_one_that_ended_before_it():
    w = ended(World(), started=None).processes()
    log(w, steps(41, 5, LAST), [start(ENDED + 1000)], steps(46, 3, ENDED + 2000))
    assert value(w, "pace.steps") == 5 and value(w, "progress.last_step") == 45


def test_where_starts_stand_before_and_after_and_nobody_told_its_own_start_the_log_tells_nothing():
    # A line that is printed again is told once, with its last place: which lines lie between is not known.
    w = ended(World(), started=None).processes()
    log(w, OLD, [start(LAST - 60)], steps(41, 5, LAST), [start(ENDED + 1000)], steps(46, 3, ENDED + 2000))
    assert value(w, "progress.last_step") is None


def test_two_launchers_that_tell_of_ends_at_one_time_name_neither_first():
    w = oom_world(failed(LAST + 0.9, -9, 0, 7002), *block(LAST + 0.9, "gpu002", 2, 0, -9, 7002), killed=False)
    assert value(w, "hard.first_exit") is None and "error of the clocks" in w.fact("hard.first_exit").reason


def test_a_task_line_of_srun_names_its_rank_only_where_tasks_are_ranks():
    w = ended(World()).processes()
    line = f"[{stamp(LAST + 1)}] srun: error: gpu003: task 5: Killed"
    assert ranks_of(log(w, steps(1, 50, LAST), [line]).fact("hard.first_exit")) == [5]
    w = ended(World()).processes()
    line = f"[{stamp(LAST + 1)}] srun: error: gpu003: task 2: Killed"  # one task a node: its launcher
    parts = log(w, steps(1, 50, LAST), [line]).fact("hard.first_exit").parts
    assert [(p.kind, p.node, p.rank) for p in parts] == [("node", "gpu003", None)]


def test_a_job_that_runs_and_whose_processes_are_all_gone_is_read_like_an_ended_one():
    w = World()
    w.dead = dict.fromkeys(range(8), "A")
    w.processes()
    log(w, steps(1, 50, NOW - 100), [failed(NOW - 99.2, -9, 1, 4005), *block(NOW - 99.2, "gpu003", 5, 1, -9, 4005)])
    kernel(w, "gpu003", oom(NOW - 99.5))
    assert not w.evidence().derive(rank_table).rows
    assert ranks_of(w.fact("hard.oom")) == [5] and ranks_of(w.fact("hard.first_exit")) == [5]
