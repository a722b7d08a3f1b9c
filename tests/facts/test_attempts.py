"""Which evidence is of the attempt asked about? Logs are appended, nodes serve the next job, and dumps lie where they fell."""

from dataclasses import replace

import pytest
from written_attempts import BEGAN, ENDED, LAST, OLD, ended, kernel, log, oom, value, wear
from written_dumps import WAITS, add_dumps, everyone, ranks_of, report
from written_evidence import NOW, World, exit_line
from written_logs import UNDATED_START, failed, stamp, start, step, steps

from triage.facts.progress import collective_ever
from triage.facts.ranktable import log_hits
from triage.model import Attempt

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


@pytest.mark.parametrize("started", [BEGAN, None])
def test_steps_from_before_the_ranks_that_run_now_began_are_not_theirs_though_the_numbers_go_on(started):
    w = World(started=started).processes()
    log(w, steps(1, 50, NOW - 3510), steps(51, 20, NOW - 100))
    assert value(w, "pace.steps") == 20


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


@pytest.mark.parametrize("first", [UNDATED_START, start(NOW - 3900)])
def test_an_undated_line_behind_the_start_line_is_this_attempts_whatever_date_stands_above_it(first):
    # torchrun says its first words some time (here 400 s, of waiting for the other nodes) before the ranks begin.
    restore = "loading checkpoint from /ckpt at iteration 30"
    assert value(log(World().processes(), OLD, [first, restore]), "busy.phase") == "restore"


def test_an_undated_line_behind_the_end_of_an_earlier_attempt_is_not_this_ones_unless_a_start_line_stands_between():
    restore = "loading checkpoint from /ckpt at iteration 30"
    assert value(log(World().processes(), OLD, [restore]), "busy.phase") == "none"


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
