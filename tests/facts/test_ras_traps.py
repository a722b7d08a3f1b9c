"""Launch counts that point at a healthy rank: what has to be known beside them before anybody is named."""

from __future__ import annotations

import copy

import pytest
from collective_launches import hung
from collective_launches import world as made_of
from ras_server import Comm, Report
from test_ras_facts import comm, facts, one, ranks
from test_ras_verdicts import WAITS, heard, stalled, told
from written_dumps import LATE, add_dumps, everyone, report
from written_stacks import EVALUATING, LOADING, LOCKED, REDUCING, SAVING, no_stack, stacked, stands

BEHIND = Report(comm().more(5, by=-1))
SYNCING = """Thread 1 (idle): "MainThread"
    write_log (train.py:50)
    main (train.py:70)
verb: sync
kernel: S futex_do_wait futex"""
READING = """Thread 1 (idle): "MainThread"
    read_shard (data.py:12)
    main (train.py:70)
kernel: D rpc_wait_bit_killable read"""
ASKING_THE_STORE = """Thread 1 (idle): "MainThread"
    agree (train.py:12)
    main (train.py:70)
verb: get
kernel: S sk_wait_data recvfrom"""


def gpus(w, *idle, spinning=tuple(range(8))):
    """Each rank's GPU, in both looks: spins in a collective, or has nothing to do."""
    for look in "AB":
        for node, name in enumerate(w.names):
            cards = []
            for rank in (2 * node, 2 * node + 1):
                load = 0.0 if rank in idle else 100.0 if rank in spinning else 50.0
                cards.append(
                    {"bdf": f"0000:{rank % 2 + 1}b:00.0", "index": rank % 2, "status": "ok", "util_pct": [load] * 5,
                     "power_w": [110.0] * 5, "power_limit_w": 700.0, "mem_util_pct": [0.0] * 5, "pids": [1000 + rank]}
                )  # fmt: skip
            w.add("gpu", name, look, {"nvml": "ok", "gpus": cards})
    return w


# ---------------------------------------------------------------- the laggard that waits for its device


def test_the_rank_that_reads_its_loss_while_a_collective_hangs_lags_and_is_not_named():
    # Its peers run ahead; its own GPU spins in the collective that hangs, as theirs do.
    w = gpus(heard(stalled(), Report(comm().more(0, by=-1))))
    assert w.fact("ras.laggards").value == 1 and w.fact("gpus.spin").value == 8
    assert told(w)[:2] == ("inconclusive/arrival_unknown", [])
    assert "spins in a collective" in w.fact("ras.behind").text


@pytest.mark.parametrize("text", [SYNCING, REDUCING, EVALUATING, SAVING, LOCKED, ASKING_THE_STORE])
def test_a_stack_in_which_a_device_or_a_peer_may_be_waited_for_is_no_second_source(text):
    w = stacked(heard(stalled(), BEHIND), stands(5, text.replace("pipe_write write", "futex_do_wait futex")))
    assert told(w)[:2] == ("inconclusive/arrival_unknown", [])


@pytest.mark.parametrize("text", [LOADING, READING])
def test_a_stack_in_which_only_the_host_holds_it_is_a_second_source_if_seen_twice(text):
    assert told(stacked(heard(stalled(), BEHIND), stands(5, text)))[:2] == ("stuck_rank/launches", [5])
    for row in (stands(5, text, still=False), stands(5, text, still=None), no_stack(5)):
        assert told(stacked(heard(stalled(), BEHIND), row))[:2] == ("inconclusive/arrival_unknown", [])


def test_a_gpu_at_rest_beside_spinning_ones_is_a_second_source_and_one_of_another_rank_is_not():
    found = gpus(heard(stalled(), BEHIND), 5)
    assert told(found)[:2] == ("stuck_rank/launches", [5])
    assert any(line.startswith("2 sources agree: gpu, ras") for line in report(found).verdict.why)
    assert 5 not in told(gpus(heard(stalled(), BEHIND), 3, spinning=(0, 1, 2, 4, 6, 7)))[1]


def test_a_gpu_at_rest_does_not_outweigh_a_stack_inside_a_collective():
    w = stacked(gpus(heard(stalled(), BEHIND), 5), stands(5, REDUCING))
    assert told(w)[:2] == ("inconclusive/arrival_unknown", [])


# ---------------------------------------------------------------- records that leave it open


def test_records_that_show_more_enqueued_than_waited_in_do_not_prove_that_a_laggard_has_not_come():
    # The ones with records hang in number 2 and have enqueued number 3 behind it; rank 6 may hang in number 2 as they do.
    ahead = ["0 1 all_reduce", "0 2 all_reduce open", "0 3 all_reduce open"]
    for lines, sure in ((WAITS, True), (ahead, False)):
        w = add_dumps(stalled(), everyone(lines, r6=None), lib="2.27.5")
        heard(w, Report(comm().more(6, by=-1)))
        assert ranks(w.fact("waits.possible")) == [6]
        assert (6 in told(w)[1]) == sure
        assert (ranks(w.fact("waits.by_logs")) == [6]) == sure


def test_counts_of_another_group_do_not_prove_that_a_laggard_has_not_come_to_the_group_that_is_waited_in():
    # Rank 6 and its partner hang in their own group; so it lags in the large one, which nobody's record mentions.
    tp = ["0 1 all_reduce", "4 1 all_reduce open"]
    w = add_dumps(stalled(), everyone(["0 1 all_reduce"], r7=tp, r6=None), lib="2.27.5")
    pair = Comm(0xB4, 2, members=[6, 7], pid=1000)
    heard(w, Report(comm().more(6, by=-1), pair))
    assert ranks(w.fact("waits.possible")) == [6] and ranks(w.fact("ras.laggards")) == [6]
    assert told(w)[1] == []


def test_a_laggard_that_is_even_in_another_communicator_may_wait_in_that_and_is_not_named_by_records_and_counts():
    for others, sure in (
        ([comm(0xA2)], False),
        ([Comm(0xB4, 2, members=[6, 7], pid=1000)], False),
        ([Comm(0xB3, 2, members=[4, 5], pid=1000)], True),  # not one of its own
        ([comm(0xA2).more(6, by=-1)], True),
    ):
        w = add_dumps(stalled(), everyone(WAITS, r6=None), lib="2.27.5")
        assert told(heard(w, Report(comm().more(6, by=-1), *others)))[1] == ([6] if sure else [])


def test_a_text_report_that_does_not_list_all_communicators_proves_nothing_with_the_records():
    for others, sure in (([], True), ([comm(0xA2)], False)):
        w = add_dumps(stalled(), everyone(WAITS, r6=None), lib="2.27.5")
        assert told(heard(w, Report(comm().more(6, by=-1), *others), form="text"))[1] == ([6] if sure else [])


def test_in_a_group_with_sends_and_receives_counts_and_records_prove_nothing():
    sends = ["0 1 all_reduce", "0 p 1 send 0->1", "0 2 all_reduce open"]
    w = add_dumps(stalled(), everyone(WAITS, r0=sends, r6=None), lib="2.27.5")
    assert told(heard(w, Report(comm().more(6, by=-1))))[1] == []


# What the simulator found: hosts that run ahead, one that does not, and a third that is at fault.
@pytest.mark.parametrize("seed", [781, *range(700, 716)])
@pytest.mark.parametrize("lost, cards", [(0.6, False), (1.0, True)])
def test_random_jobs_of_which_the_records_are_lost_never_name_a_healthy_rank_by_their_launches(seed, lost, cards):
    found = hung(seed, wide=False)
    if found is None:
        pytest.skip("this fault has no place in its program, or does no harm")
    job, machine, rng = found
    told_ = report(made_of(job, machine, rng, lost, cards))
    guilty = set() if job.truth["fault"] == "unit" else {job.truth["rank"]}
    assert {c.rank for c in told_.culprits if c.role == "culprit"} <= guilty, (job.truth, machine.limits)


def test_ras_places_a_rank_without_a_record_and_says_so_beside_the_records():
    w = add_dumps(stalled(), everyone(WAITS, r6=None), lib="2.27.5")
    heard(w, Report(comm().more(6, by=-1)))
    found = w.fact("waits.by_logs")
    assert ranks(found) == [6] and not found.contradicted_by and "41 AllReduce" in found.parts[0].why
    assert {p.probe for p in found.provenance} == {"flight_recorder", "ras"}


def test_ras_that_places_a_rank_whose_record_shows_that_it_had_come_is_no_answer():
    w = add_dumps(stalled(), everyone(WAITS, r6=None), lib="2.27.5")
    heard(w, Report(comm().more(3, by=-1)))
    found = w.fact("waits.by_logs")
    assert not found.known and "launch counts, by which rank 3 had not come" in found.reason


def test_ras_that_names_another_rank_than_the_records_is_a_contradiction_that_is_told():
    w = add_dumps(stalled(), everyone(WAITS, r5=LATE), lib="2.27.5")
    heard(w, Report(comm().more(3, by=-1)))
    assert "NCCL's launch counts, by which rank 3 had not come" in w.fact("waits.roots").contradicted_by
    assert told(w)[1] in ([], [5])


# ---------------------------------------------------------------- counts that differ for another reason


@pytest.mark.parametrize("state", ["ABORT", "FINALIZE", "INIT"])
@pytest.mark.parametrize("form", ["json", "text"])
def test_a_rank_that_left_or_is_joining_one_communicator_lags_in_another_and_is_no_laggard(state, form):
    pair = comm(0xB1, 2, members=[4, 5])
    pair.status[1] = state
    assert not one(Report(comm().more(5, by=-1), pair), form=form).known
    every = comm(0xB1, 2, members=[4, 5])
    every.status = dict.fromkeys(range(2), state)  # alike on all of its members, so that the text does not list it
    assert not one(Report(comm().more(5, by=-1), every), form=form).known


@pytest.mark.parametrize("code", [1, 2, 6])
def test_a_rank_that_has_met_an_error_lags_elsewhere_and_is_no_laggard(code):
    pair = comm(0xB1, 2, members=[4, 5])
    pair.asynchronous[1] = code
    assert not one(Report(comm().more(5, by=-1), pair)).known


def test_counts_that_go_backwards_prove_neither_progress_nor_a_laggard():
    first = comm().more(5, by=-1)
    second = copy.deepcopy(first)
    for rank in range(6):
        second.more(rank)
    second.more(7, by=-3)
    found = facts(Report(first), Report(second))
    assert "backwards" in found["ras.laggards"].reason
    assert found["ras.advancing"].value is not True and found["progress.advancing"].value is not True


def test_a_text_report_that_lists_other_operations_than_the_one_before_shows_no_progress_by_that():
    first, second = comm().more(5, by=-1), comm().more(5, by=-1).more(5, "AllGather", by=-1)
    found = facts(Report(first), Report(second), form="text")
    assert found["ras.advancing"].value is not True and found["progress.advancing"].value is not True


def test_a_communicator_that_changes_its_size_between_the_reports_proves_nothing():
    shrunk = comm(size=7, members=[0, 1, 2, 3, 4, 6, 7]).more(4, by=-1)
    assert ranks(one(Report(comm().more(4, by=-1)), Report(shrunk))) == []


def test_launches_of_processes_that_are_no_ranks_of_the_job_are_no_progress_of_it():
    # An engine of eight workers beside the training, in the same report: it moves, the ranks do not.
    def engine(step):
        made = comm(0xE1, 8, counts=(0, 0, 0, 0, step))
        made.where = {rank: ("10.0.0.99", 7000 + rank, rank) for rank in range(8)}
        return made

    found = facts(Report(comm(), engine(5)), Report(comm(), engine(9)))
    assert found["progress.advancing"].value is not True and found["ras.advancing"].value is not True
    assert facts(Report(comm()), Report(comm(counts=(0, 0, 13, 0, 45))))["progress.advancing"].value is True
