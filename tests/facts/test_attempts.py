"""Which evidence is of the attempt asked about? Logs are appended, nodes serve the next job, and dumps lie where they fell."""

from dataclasses import replace

import pytest
from written_dumps import WAITS, add_dumps, everyone, ranks_of, report
from written_evidence import NOW, World, exit_line
from written_logs import (
    UNDATED_START,
    block,
    failed,
    log_sample,
    stamp,
    start,
    step,
    steps,
    stops,
    timed_out,
)

from triage.facts.progress import collective_ever
from triage.facts.ranktable import log_hits, rank_table
from triage.model import Attempt

BEGAN, ENDED = NOW - 7200, NOW - 3700  # an attempt that ended an hour ago: the processes of World began later
LAST = ENDED - 20  # its last step


def ended(w, started=BEGAN, at=ENDED, state="ended", restart=None):
    w.job = replace(w.job, state=state, attempt=Attempt(restart, started, at))
    return w


def log(w, *lines, **more):
    w.samples.append(
        log_sample([line for part in lines for line in ([part] if isinstance(part, str) else part)], **more)
    )
    return w


def kernel(w, node, *events):
    w.samples = [s for s in w.samples if not (s.probe == "kernel" and s.node == node)]
    return w.add("kernel", node, "A", {"readable": True, "events": list(events)})


def oom(at, pid=4005, last_at=None, count=1):
    return {
        "id": "oom_kill", "kind": "oom", "at": at, "last_at": last_at or at, "count": count,
        "text": f"Out of memory: Killed process {pid} (python3) total-vm:1kB", "groups": {"pid": str(pid)},
    }  # fmt: skip


def value(w, name):
    return w.fact(name).value


# ---------------------------------------------------------------- what the nodes show now


def test_processes_that_began_in_the_attempt_are_of_it():
    fact = World().processes().fact("job.attempt_now")
    assert fact.value is True and "8 rank processes" in fact.text


def test_where_no_process_was_seen_nothing_tells():
    w = World()
    assert value(w, "job.attempt_now") is None


def test_what_the_nodes_of_an_ended_attempt_show_now_is_not_of_it_and_counts_for_no_fact():
    w = ended(World()).processes().fabric(1e6).steps(lambda rank, i: 500.0)
    w.dead = {5: "A"}
    assert value(w, "job.attempt_now") is False and value(w, "job.over") is True
    for name in ("ranks.expected", "ranks.gone", "ranks.stopped", "progress.last_step", "links.down_now"):
        assert value(w, name) is None, name
    assert value(w, "progress.advancing") is None and "has ended" in w.fact("progress.advancing").reason


def test_an_end_in_the_past_is_an_end_whatever_the_state_says():
    assert value(ended(World(), state="running").processes(), "job.attempt_now") is False


def test_processes_of_an_ended_attempt_that_are_still_there_are_told_and_not_judged():
    w = ended(World(), at=NOW - 600)
    told = w.processes().fact("job.attempt_now")
    assert told.value is False and "8 processes that began in it are still there (gpu001, gpu002, gpu003" in told.text
    assert value(w, "ranks.gone") is None


@pytest.mark.parametrize("state", ["T", "D", "S"])
def test_a_rank_of_the_next_job_on_the_nodes_of_an_ended_one_is_not_accused(state):
    w = ended(World())
    for look in "AB":
        w.change[(5, look)] = {"state": state}
    w.dead = {3: "A"}
    w.processes()
    add_dumps(log(w, steps(1, 50, LAST)), everyone(WAITS, r3=None, r5=["0 1 all_reduce"]), lib="2.27.5")
    assert not report(w).culprits


def test_processes_older_than_the_attempt_are_of_an_earlier_one_and_accuse_nobody():
    w = World(started=NOW - 300)  # the processes began at NOW - 3500
    w.dead = {5: "A"}
    w.processes().log(last_ago=100, hits=[exit_line(4005, -9, 1, NOW - 99.5)])
    fact = w.fact("job.attempt_now")
    assert fact.value is False and "before this attempt" in fact.text
    assert value(w, "ranks.gone") is None and not report(w).culprits


def test_a_minute_between_the_schedulers_stamp_and_the_first_process_is_no_other_attempt():
    w = World(started=NOW - 3450)
    assert value(w.processes(), "job.attempt_now") is True


def wear(w, **env):
    """Every rank process wears these variables."""
    for look in "AB":
        for rank in range(8):
            base = w.record(rank, look)
            w.change[(rank, look)] = {**w.change.get((rank, look), {}), "env": {**base["env"], **env}}
    return w


@pytest.mark.parametrize(
    ("told", "env", "now"),
    [
        (1, {"SLURM_RESTART_COUNT": "1"}, True),
        (1, {"SLURM_RESTART_COUNT": "2"}, False),
        (1, {"SLURM_RESTART_COUNT": "0"}, False),
        (0, {"TORCHELASTIC_RESTART_COUNT": "1"}, False),
        (1, {"TORCHELASTIC_RESTART_COUNT": "1"}, True),
        # torchrun counts within one allocation: where the scheduler's own count is there, that one speaks.
        (1, {"SLURM_RESTART_COUNT": "1", "TORCHELASTIC_RESTART_COUNT": "0"}, True),
        (1, {}, True),
        (None, {"SLURM_RESTART_COUNT": "2"}, True),  # nobody told which attempt is meant: the one that runs
        (1, {"SLURM_RESTART_COUNT": "x"}, True),
    ],
)
def test_a_restart_count_that_contradicts_the_inventory_makes_the_processes_another_attempts(told, env, now):
    w = wear(World(), **env)
    w.job = replace(w.job, attempt=Attempt(told, NOW - 3600))
    w.dead = {5: "A"}
    w.processes().log(last_ago=100)
    assert value(w, "job.attempt_now") is now
    assert value(w, "ranks.gone") == (1 if now else None)
    if not now:
        assert "restart" in w.fact("job.attempt_now").text and not report(w).culprits


def test_one_node_that_lies_about_the_restart_makes_no_other_attempt():
    w = World()
    w.job = replace(w.job, attempt=Attempt(1, NOW - 3600))
    wear(w, SLURM_RESTART_COUNT="1")
    for look in "AB":
        for rank in (0, 1):
            w.change[(rank, look)]["env"]["SLURM_RESTART_COUNT"] = "7"
    assert value(w.processes(), "job.attempt_now") is True


def test_the_restart_count_is_the_schedulers_else_the_processes_else_unknown():
    w = World()
    w.job = replace(w.job, attempt=Attempt(None, NOW - 3600))
    assert value(w.processes(), "job.attempt") is None
    w = wear(World(), TORCHELASTIC_RESTART_COUNT="2")
    w.job = replace(w.job, attempt=Attempt(None, NOW - 3600))
    assert value(w.processes(), "job.attempt") == 2
    assert value(World().processes(), "job.attempt") == 0


# ---------------------------------------------------------------- appended logs


OLD = [*steps(1, 40, NOW - 5000), failed(NOW - 4990, -9, 1, 4005)]  # an attempt that ended before this one began


def test_steps_of_an_earlier_attempt_do_not_say_that_a_collective_ever_worked():
    w = log(World().processes(), OLD, [start(NOW - 3510), "loading checkpoint from /ckpt at iteration 30"])
    add_dumps(w, everyone(["0 1 all_reduce open"]))
    assert value(w, "progress.collective_ever") is False
    assert value(w, "progress.last_step") is None
    w = log(World().processes(), OLD, [start(NOW - 3510)], steps(31, 5, NOW - 100))
    assert value(w, "progress.collective_ever") is True and value(w, "progress.last_step") == 35


def test_undated_steps_above_the_newest_start_line_are_of_an_earlier_attempt():
    w = log(World().processes(), steps(1, 40, 0, dated=False), [UNDATED_START])
    assert value(w, "progress.last_step") is None
    w = log(World().processes(), steps(1, 40, 0, dated=False), [UNDATED_START], steps(41, 3, 0, dated=False))
    assert value(w, "progress.last_step") == 43
    assert len(w.fact("progress.collective_ever").text) > 0 and w.fact("progress.collective_ever").text.startswith("3 ")


def test_a_restart_that_goes_on_with_the_next_number_is_told_by_its_start_line():
    # Nothing else does: the numbers do not go back, and there is no date.
    w = log(World().processes(), steps(1, 40, 0, dated=False), [UNDATED_START], steps(41, 12, 0, dated=False))
    assert value(w, "pace.steps") == 12


def test_undated_steps_above_the_last_line_that_is_dated_before_the_attempt_are_not_of_it():
    w = log(World().processes(), steps(1, 40, 0, dated=False), [failed(NOW - 4990, -9, 1, 4005)])
    assert value(w, "progress.last_step") is None


def test_a_start_line_takes_nothing_away_from_lines_with_a_date_of_their_own():
    # Each node's launcher prints one, and the last node may be minutes late.
    w = log(World().processes(), [step(1, NOW - 3000), UNDATED_START], steps(2, 3, NOW - 100))
    assert value(w, "pace.steps") == 4


def test_without_any_mark_undated_steps_are_taken_for_this_attempts():
    assert value(log(World().processes(), steps(1, 12, 0, dated=False)), "pace.steps") == 12


def test_a_log_whose_zone_is_not_known_is_cut_by_the_order_of_its_lines_only():
    w = log(
        World().processes(),
        steps(1, 40, NOW - 100 - 7200),
        [UNDATED_START],
        steps(41, 3, NOW - 60 - 7200),
        ["a last line without a date"],
        zone_told=False,
    )
    assert w.samples[-1].data["zone"] == "unknown" and value(w, "pace.steps") == 3


def test_an_exit_of_an_earlier_attempt_with_this_ranks_pid_is_no_end_of_this_one():
    w = World()
    w.dead = {5: "B"}
    w.processes()
    log(w, [failed(NOW - 4990, -9, 1, 1005)], steps(1, 50, NOW - 100))
    assert value(w, "hard.events") == 0
    assert log_hits(w.evidence(), "torchelastic_failed") == []


def test_workers_that_were_started_again_within_the_attempt_leave_the_exits_before_behind():
    # torchrun restarted all ranks at NOW - 3500; the scheduler knows of one attempt since NOW - 7200.
    w = World(started=BEGAN)
    w.dead = {5: "A"}
    w.processes()
    log(w, steps(1, 50, NOW - 3600), [failed(NOW - 3599, -9, 1, 1005)], [start(NOW - 3510)], steps(40, 50, NOW - 100))
    assert value(w, "hard.events") == 0 and value(w, "pace.steps") == 50


def test_a_line_that_both_attempts_print_is_dated_by_this_one():
    words = "torch.cuda.OutOfMemoryError: CUDA out of memory."
    at = NOW - 99
    w = log(
        World().processes(), [f"[{stamp(NOW - 5000)}] {words}"], steps(1, 50, NOW - 100), [f"[{stamp(at)}] {words}"]
    )
    hit = next(h for h in log_hits(w.evidence(), "cuda_oom"))
    assert hit["at"] == pytest.approx(at, abs=0.01)


def test_what_the_scheduler_requeued_is_over():
    gone = f"slurmstepd: error: *** JOB 4711 ON gpu001 CANCELLED AT {stamp(NOW - 90, '%Y-%m-%dT%H:%M:%S')[:19]} DUE TO JOB REQUEUE ***"
    w = World(started=None)
    for look in "AB":
        for rank in range(8):
            w.change[(rank, look)] = {"start_s": None}
    w.processes()
    assert value(log(w, steps(1, 40, 0, dated=False), [gone]), "progress.last_step") is None


def test_a_checkpoint_that_an_earlier_attempt_began_is_no_phase_of_this_one():
    save = "saving checkpoint at iteration      40 to /ckpt in torch_dist format"
    w = log(World().processes(), steps(1, 40, NOW - 5000), [save, failed(NOW - 4990, -9, 1, 4005), start(NOW - 3510)])
    assert value(w, "busy.phase") == "none"
    restore = "loading checkpoint from /ckpt at iteration 30"
    assert value(log(World().processes(), OLD, [UNDATED_START, restore]), "busy.phase") == "restore"


# ---------------------------------------------------------------- kernel events


def test_a_kernel_event_from_before_the_attempt_is_none_of_it():
    w = World()
    w.dead = {5: "A"}
    w.processes().log(last_ago=100)
    assert value(kernel(w, "gpu003", oom(NOW - 99.5)), "hard.oom") == 1
    assert not [e for s in kernel(w, "gpu003", oom(NOW - 4000)).evidence().of("kernel") for e in s.data["events"]]


def test_a_kernel_event_that_also_happened_before_the_attempt_is_dated_by_its_last_time():
    w = World()
    w.dead = {5: "A"}
    w.processes().log(last_ago=100)
    kernel(w, "gpu003", oom(NOW - 90_000, last_at=NOW - 99.5, count=2))
    assert ranks_of(w.fact("hard.oom")) == [5]


def test_kernel_times_are_the_nodes_own():
    w = World()
    w.dead = {5: "A"}
    w.processes().log(last_ago=100)
    kernel(w, "gpu003", oom(NOW - 99.5 - 86_400))
    w.samples = [
        replace(s, at=s.at - 86_400) if s.node == "gpu003" and s.at is not None else s for s in w.samples
    ]  # a clock that is a day behind, and its processes' start with it
    for sample in w.samples:
        if sample.probe == "ranks" and sample.node == "gpu003":
            for record in sample.data["ranks"]:
                record["start_s"] -= 86_400
    assert ranks_of(w.fact("hard.oom")) == [5]


# ---------------------------------------------------------------- dumps


def test_a_dump_that_another_job_wrote_after_the_end_is_stale():
    w = ended(World().processes())
    add_dumps(w, everyone(WAITS), mtime=ENDED + 301, poked=False, created=ENDED)
    assert value(w, "waits.stale") == 8 and "after the attempt had ended" in w.fact("waits.stale").parts[0].why


def test_a_dump_of_an_ended_attempts_own_time_out_is_compared():
    w = ended(World().processes())
    add_dumps(w, everyone(WAITS), mtime=ENDED + 10, poked=False, created=ENDED - 600)
    assert value(w, "waits.fresh") == 8


@pytest.mark.parametrize("poked", [True, False])
def test_what_was_written_for_us_or_without_a_time_is_not_an_ended_attempts(poked):
    w = ended(World().processes())
    add_dumps(w, everyone(WAITS), mtime=ENDED + 10 if poked else None, poked=poked)
    assert value(w, "waits.fresh") == 0


def test_yesterdays_dump_says_of_no_rank_that_it_ever_worked():
    w = World().processes()
    add_dumps(w, everyone(WAITS), mtime=NOW - 86_400, poked=False, created=NOW - 86_500)
    assert value(w, "waits.stale") == 8
    assert w.evidence().derive(collective_ever).value is None


# ---------------------------------------------------------------- an ended attempt by dated evidence alone


def oom_world(*extra, pid=4005, kill_at=LAST + 0.5, exit_at=LAST + 0.8, node="gpu003", logged=True, killed=True):
    """Rank 5 of gpu003 was killed for lack of memory, its launcher said so, and the job ended; other jobs run there now."""
    w = ended(World()).processes()
    lines = [*steps(1, 50, LAST)]
    if logged:
        lines += [
            failed(exit_at, -9, 1, 4005),
            stops(exit_at, 4004),
            *block(exit_at, "gpu003.cluster.local", 5, 1, -9, 4005),
        ]
    log(w, lines, list(extra))
    return kernel(w, node, *([oom(kill_at, pid)] if killed else []))


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
