"""Who waited and for whom, by the watchdogs' lines alone: the minority, the one that had not come, and all that must not be named."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import collective_simulator as simulator
import pytest
from collective_machine import Machine
from written_evidence import NOW, World
from written_logs import UNDATED_START, step
from written_watchdogs import GAVE_UP, evidence, fact, gave_up, head, local, old, ranks, status, told, waited

from triage.facts.evidence import Evidence
from triage.facts.registry import catalogue
from triage.facts.watchtable import watch

GLOO = ": RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.7]:57000"


def test_the_rank_that_never_enqueued_what_the_others_gave_up_at_is_behind():
    ev = evidence(*(waited(r, 78, enqueued=79, completed=77) for r in (0, 1, 3, 4)), told(2, 77, 77))
    assert ranks(ev, "behind") == {2} == ranks(ev, "not_come")
    assert ranks(ev, "victims") == {0, 1, 3, 4} and ranks(ev, "mismatch") == set()
    assert fact(ev, "table").value == 5
    # PyTorch counts an operation only when the NCCL call has returned: it may be stuck inside that very call.
    assert "inside that very call" in fact(ev, "behind").parts[0].why


def test_the_one_whose_call_differs_at_the_same_number_is_the_minority():
    ev = evidence(
        waited(0, 4120, op="_ALLGATHER_BASE", size=1048576, out=8388608), *(waited(r, 4120) for r in (1, 2, 3))
    )
    assert ranks(ev, "mismatch") == {0} == ranks(ev, "mismatch_named")
    assert fact(ev, "mismatch_tied").value is False and ranks(ev, "victims") == {1, 2, 3}


def test_equal_calls_of_different_size_differ():
    ev = evidence(waited(0, 9, op="BROADCAST", size=64), *(waited(r, 9, op="BROADCAST", size=24084544) for r in (1, 2)))
    assert ranks(ev, "mismatch_named") == {0}


def test_two_sides_of_equal_size_are_both_involved_and_nobody_is_named():
    ev = evidence(waited(2, 7219, op="BROADCAST", size=64), waited(3, 7219, op="BROADCAST", size=80))
    assert ranks(ev, "mismatch") == {2, 3} and ranks(ev, "mismatch_named") == set()
    assert fact(ev, "mismatch_tied").value is True


def test_a_majority_of_those_that_printed_is_none_of_a_group_whose_other_members_are_silent():
    # Ranks up to 9 belong to the group; six of them could be on either side.
    ev = evidence(waited(0, 9, op="BROADCAST"), waited(1, 9), waited(2, 9), told(9, 9, 8))
    assert ranks(ev, "mismatch") == {0, 1, 2} and ranks(ev, "mismatch_named") == set()


@pytest.mark.parametrize("op", ["COALESCED", "ALLTOALL", "_ALLTOALL_BASE", "BARRIER"])
def test_sizes_that_may_differ_by_nature_are_no_mismatch(op):
    # Uneven all-gathers are coalesced, an all-to-all may give each peer another share (seen in the field: 56,320 and 76,800).
    ev = evidence(
        waited(0, 610, op=op, size=56320), waited(1, 610, op=op, size=76800), waited(2, 610, op=op, size=76800)
    )
    assert ranks(ev, "mismatch") == set()


def test_sends_and_receives_have_numbers_of_their_own():
    ev = evidence(waited(0, 5, op="SEND"), waited(1, 5, op="RECV", size=8), waited(2, 5, op="RECV", size=8))
    assert ranks(ev, "mismatch") == set()


def test_one_number_in_two_groups_is_two_collectives():
    lines = [
        *(waited(r, 40, op="ALLREDUCE", guid="5", desc="tp", place=r) for r in (0, 1)),
        *(waited(r, 40, op="_ALLGATHER_BASE", guid="9", desc="dp", place=p) for p, r in enumerate((2, 3, 4))),
    ]
    ev = evidence(*lines)
    assert ranks(ev, "mismatch") == set() and ranks(ev, "behind") == set()
    assert fact(ev, "all_joined").value is None


def test_the_counts_of_a_dump_line_are_those_of_its_own_group():
    # Seen in the field: everybody times out in a group of its own while the default group stands at 6 = 6.
    lines = [*(waited(r, 78, guid="5", desc="dp") for r in (0, 1, 2)), *(told(r, 6, 6) for r in (0, 1, 2, 3))]
    ev = evidence(*lines)
    assert ranks(ev, "behind") == set() and not ranks(ev, "not_come")


def test_one_that_is_behind_in_one_group_and_waits_in_another_is_not_named():
    lines = [
        *(waited(r, 78) for r in (0, 1, 3)),
        told(2, 77, 77),
        waited(2, 12, guid="5", desc="tp", place=0),
    ]
    assert ranks(evidence(*lines), "behind") == set()


def test_many_that_are_behind_one_may_all_be_right_and_nobody_is_named():
    ev = evidence(waited(0, 78), *(told(r, 77, 77) for r in (1, 2, 3)))
    assert ranks(ev, "behind") == set()


def test_of_two_ranks_one_that_waits_does_not_condemn_the_other():
    assert ranks(evidence(waited(0, 78), told(1, 77, 77)), "behind") == set()


def test_who_prints_nothing_is_a_lead_and_known_only_where_its_output_is_in_the_log():
    lines = [*(waited(r, 19) for r in (1, 2, 3)), "[rank0]: ValueError: loader gave up waiting for a batch"]
    ev = evidence(*lines)
    assert ranks(ev, "silent") == {0}
    assert ranks(ev, "behind") == set() and ranks(ev, "not_come") is None  # named by nothing
    # The same log without a word of rank 0: perhaps it is cut, perhaps it is only one node's.
    lonely = evidence(*(waited(r, 19) for r in (1, 2, 3)))
    assert fact(lonely, "silent").value is None and "rank 0" in fact(lonely, "silent").reason


def test_all_joined_needs_the_lines_of_all_ranks_of_a_job_whose_size_is_known():
    lines = [text for r in range(8) for text in waited(r, 40, enqueued=41, completed=39)]
    assert fact(evidence(*lines), "all_joined").value is None
    w = World()  # eight ranks
    w.processes()
    live = Evidence(w.job, [*w.samples, *evidence(*lines).seen_samples], NOW, evidence(*lines)._limits)
    assert fact(live, "all_joined").value is True
    less = evidence(*lines[:-2])
    assert fact(Evidence(w.job, [*w.samples, *less.seen_samples], NOW, less._limits), "all_joined").value is None


@pytest.mark.parametrize("garbage", ["-1", "3452013982", "76280750235782912"])
def test_a_completed_count_of_nonsense_is_none_at_all(garbage):
    ev = evidence(*(waited(r, 1, enqueued=1, completed=garbage) for r in range(3)))
    assert {line.completed for line in ev.derive(watch).lines if line.kind == "status"} == {0}


def test_a_status_line_of_the_newest_release_tells_what_was_started():
    line = status(0, 18, 39, 17).replace(
        "39, last completed", "39, last started work: 19 (_ALLGATHER_BASE), last completed"
    )
    ev = evidence(gave_up(0, 18), line)
    assert fact(ev, "table").value == 1 and fact(ev, "group_named").value is True


# ---------------------------------------------------------------- eras without a name of the group


def test_the_oldest_lines_without_rank_time_or_group_are_compared_where_they_can_only_be_of_one_group():
    ev = evidence(old(0, 7559, op="_ALLGATHER_BASE"), *(old(r, 7559) for r in (1, 2, 3)))
    assert ranks(ev, "mismatch_named") == {0}
    assert fact(ev, "group_named").value is False


def test_lines_without_a_group_of_ranks_that_have_other_numbers_in_theirs_are_not_compared():
    # A job of several groups: rank 4 is number 0 of some group.
    ev = evidence(gave_up(0, 9, op="BROADCAST"), gave_up(1, 9), gave_up(4, 9, place=0))
    assert ranks(ev, "mismatch") is None and "group" in fact(ev, "mismatch").reason


def test_one_rank_that_gave_up_twice_at_one_number_tells_of_two_groups():
    ev = evidence(old(0, 9), old(0, 9, op="BROADCAST"), old(1, 9), old(2, 9))
    assert ranks(ev, "mismatch") is None


def test_a_groups_own_number_is_believed_only_where_it_can_be_but_the_group_of_all():
    ev = evidence(*(text for r in (1, 2, 3) for text in (old(r, 19, rank_tag=True), local(r, 19, 19, 18))))
    assert fact(ev, "table").value == 3 and ranks(ev, "behind") == set()
    # [PG 1] on ranks 0 and 2 may be two groups of two.
    two = evidence(
        gave_up(0, 19, place=0), local(0, 19, 19, 18, pg="1", place=0), gave_up(2, 19, op="BROADCAST", place=0),
        local(2, 19, 19, 18, pg="1", place=0),
    )  # fmt: skip
    assert ranks(two, "mismatch") is None


def test_different_numbers_of_two_ranks_name_nobody():
    # Rank 0 did something extra before: its 7559 is not the others' 7559.
    ev = evidence(waited(0, 7559, op="_ALLGATHER_BASE"), waited(1, 7561, op="_ALLGATHER_BASE"))
    assert ranks(ev, "mismatch") == set() and ranks(ev, "behind") == set()


# ---------------------------------------------------------------- another backend


def test_ranks_that_ended_in_an_error_of_gloo_waited_there_while_the_others_waited_in_nccl():
    lines = [*(waited(r, 78) for r in (1, 2, 3)), told(0, 77, 77), f"[rank0]{GLOO}"]
    assert ranks(evidence(*lines), "elsewhere") == {0}
    # One that is behind and has no such error may be whom the other one waited for in gloo.
    other = [*(waited(r, 78) for r in (1, 2, 3, 5)), told(0, 77, 77), f"[rank0]{GLOO}", told(4, 77, 77)]
    assert ranks(evidence(*other), "elsewhere") == set()
    # An error before the others gave up is another story.
    early = [f"[rank0]{GLOO}", *(waited(r, 78) for r in (1, 2, 3)), told(0, 77, 77)]
    assert ranks(evidence(*early), "elsewhere") == set()


def test_a_member_of_which_nothing_is_known_may_be_whom_gloo_waited_for():
    lines = [*(waited(r, 78) for r in (1, 3, 4)), told(0, 77, 77), f"[rank0]{GLOO}"]
    assert ranks(evidence(*lines), "elsewhere") == set()


# ---------------------------------------------------------------- desync reports and heartbeats


def test_a_desync_report_names_who_never_joined():
    report = "   - To our best knowledge, ranks [5] are the lagging ranks that caused this timeout. They never joined any collectives"
    ev = evidence(*(waited(r, 3) for r in (0, 1, 2, 3, 4)), report)
    assert ranks(ev, "desync") == {5} == ranks(ev, "not_come")


def test_a_desync_report_that_names_one_who_gave_up_itself_or_most_of_the_group_names_nobody():
    first = [text for r in (0, 1, 2, 3) for text in waited(r, 3)]
    own = "   - [2] finished collective #2, but didn't join collective #3 (count from 1)"
    assert ranks(evidence(*first, own), "desync") == set()
    most = "   - [1, 2, 3] finished collective #2, but didn't join collective #3 (count from 1)"
    assert ranks(evidence(waited(0, 3), most), "desync") in (None, set())


def test_the_ranks_of_a_desync_report_are_numbers_within_a_group_that_it_does_not_name():
    lines = [*(waited(r, 3, guid="7", desc="dp", place=i) for i, r in enumerate((1, 3, 5)))]
    ev = evidence(*lines, "   - [3] finished collective #2, but didn't join collective #3 (count from 1)")
    assert ranks(ev, "desync") is None


def test_of_stuck_watchdogs_the_first_in_time_counts():
    words = "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives."
    tag = "[PG ID 0 PG GUID 0(default_pg) Rank {0}]"
    lines = [f"{head(r, GAVE_UP + late)} {tag.format(r)} {words}" for r, late in ((3, 40.0), (2, 0.0), (5, 41.0))]
    ev = evidence(*lines)
    assert ranks(ev, "heartbeat") == {2}
    assert ranks(ev, "behind") is None  # no time-out is told: nobody is behind
    assert ranks(evidence("nothing"), "heartbeat") == set()


# ---------------------------------------------------------------- attempts, silence, bounds


def test_the_lines_of_an_attempt_before_are_not_compared_with_those_of_this_one():
    before = [text for r in (0, 1, 3) for text in waited(r, 78, at=GAVE_UP - 4000)] + [
        told(2, 77, 77, at=GAVE_UP - 3999)
    ]
    ev = evidence(*before, UNDATED_START, *(waited(r, 78) for r in (0, 2, 3)), told(1, 77, 77))
    assert ranks(ev, "behind") == {1}


def test_a_job_that_made_steps_after_its_watchdogs_spoke_is_of_another_attempt():
    lines = [*(waited(r, 78, at=GAVE_UP - 4000) for r in (0, 1, 3)), told(2, 77, 77, at=GAVE_UP - 3999)]
    assert ranks(evidence(*lines, step(100, GAVE_UP - 60)), "behind") is None


def test_a_log_without_watchdogs_makes_every_such_fact_unknown_or_empty_and_says_why():
    ev = evidence(step(7, NOW - 100))
    for name in ("behind", "mismatch", "silent", "desync", "all_joined", "elsewhere", "not_come", "mismatch_tied"):
        found = fact(ev, name)
        assert found.value is None and "watchdog" in found.reason, name


def test_thousands_of_ranks_come_to_a_handful_of_rows():
    lines = [text for r in range(1200) if r != 777 for text in waited(r, 78)] + [told(777, 77, 77)]
    ev = evidence(*lines)
    table = ev.seen_samples[0].data["watchdog"]
    assert len(table["rows"]) == 3 and table["left_out"] == 0
    assert ranks(ev, "behind") == {777} and fact(ev, "table").value == 1200


def test_every_fact_of_the_watchdogs_says_what_it_means():
    names = {name for name in catalogue() if name.startswith("watchdog.")}
    assert {
        f"watchdog.{n}" for n in ("table", "behind", "silent", "mismatch", "desync", "all_joined", "heartbeat")
    } <= names


# ---------------------------------------------------------------- what may not be named, found by random jobs


def test_where_a_member_prints_nothing_it_may_be_whom_the_one_behind_waits_for():
    # Rank 3 is dead and silent; rank 2 waits for it in a send that no watchdog watches.
    ev = evidence(*(waited(r, 78) for r in (0, 1, 4, 5)), told(2, 77, 77))
    assert ranks(ev, "behind") == set()


def test_where_ranks_gave_up_in_another_group_too_the_one_behind_may_wait_there():
    lines = [*(waited(r, 78) for r in (0, 1, 3)), told(2, 77, 77), waited(3, 12, guid="5", desc="tp", place=1)]
    assert ranks(evidence(*lines), "behind") == set()


def test_of_two_that_are_behind_one_may_wait_for_the_other_and_neither_is_named():
    ev = evidence(*(waited(r, 78) for r in (0, 1, 3, 4, 6, 7)), told(2, 77, 77), told(5, 77, 77))
    assert ranks(ev, "behind") == {2, 5} and ranks(ev, "not_come") is None


def test_one_log_that_several_nodes_have_read_is_one_log():
    lines = [*(waited(r, 78) for r in (0, 1, 3)), told(2, 77, 77)]
    twice = replace(evidence(*lines).seen_samples[0], node="gpu001")
    ev = evidence(*lines, more=[twice])
    assert ranks(ev, "behind") == {2} and ranks(ev, "victims") == {0, 1, 3}


OPS = {"all_reduce": "ALLREDUCE", "all_to_all": "ALLTOALL"}


def random_lines(job, machine, rng, named, dropped):
    """What the watchdogs of a hung job print: of each group in which a rank waits, and of the default group by all."""
    out = []
    whole = next((g for g, (_, members) in job.groups.items() if len(members) == job.ranks), None)
    for rank, program in job.programs.items():
        if job.truth["fault"] in ("dead", "stopped") and rank == job.truth["rank"]:
            continue
        groups = {}
        for op in program[: machine.enqueued[rank]]:
            groups.setdefault(op.group, []).append(op)
        counts = {}
        for group, ops in groups.items():
            numbers = [op.seq for op in ops if op.name]
            counts[group] = (max(numbers, default=0), max((op.seq for op in ops if op.name and op.done), default=0))
            waits = [op for op in ops if not op.done]
            if not waits or rank not in job.groups[group][1] or rng.random() < dropped:
                continue
            op, place = waits[0], job.groups[group][1].index(rank)
            name = "COALESCED" if op.coalesced or not op.name else OPS.get(op.name, op.name.upper())
            size = math.prod(op.shape) if op.name else 7 + rank
            at = GAVE_UP + rng.random() * 20
            out.append(gave_up(rank, op.seq, op=name, size=size, place=place, at=at))
            if named:
                desc = job.groups[group][0] or "undefined"
                out.append(status(rank, op.seq, *counts[group], guid=group, desc=desc, place=place, at=at))
        if whole and named:
            out.append(told(rank, *counts.get(whole, (0, 0)), guid=whole, desc=job.groups[whole][0] or "default_pg"))
    rng.shuffle(out)
    return out


@pytest.mark.parametrize("dropped", [0.0, 0.2])
@pytest.mark.parametrize("wide", [False, True])
def test_of_random_jobs_with_one_fault_the_watchdogs_lines_never_name_an_innocent(wide, dropped):
    spoke = 0
    for seed in range(16):
        rng = random.Random(seed + 1000 * wide)
        job = simulator.make_job(rng, wide)
        if not simulator.break_job(job, rng.choice(simulator.FAULTS), rng):
            continue
        machine = Machine(job).run()
        lines = random_lines(job, machine, rng, rng.random() < 0.7, dropped) if machine.hung() else []
        if not lines:
            continue
        ev = evidence(*lines)
        spoke += bool(ranks(ev, "table"))
        if fact(ev, "group_named").value is not True:
            continue  # lines of two groups may look like one that differs: the playbook takes these for leads only
        guilty = set() if job.truth["fault"] == "unit" else {job.truth["rank"]}
        for name in ("mismatch_named", "not_come", "elsewhere"):
            assert (ranks(ev, name) or set()) <= guilty, (seed, name, job.truth)
        involved = ranks(ev, "mismatch") or guilty
        assert not involved or involved & guilty, (seed, job.truth)
    assert spoke >= 8


# ---------------------------------------------------------------- lines of two moments


@pytest.mark.parametrize("apart_s", [600, 7200])
def test_lines_of_an_earlier_attempt_are_not_compared_with_those_of_this_one(apart_s):
    # Before: three gave up in an all-reduce at number 5, the fourth's line is lost. Now all four wait in one and the same.
    before = [waited(r, 5, op="ALLREDUCE", at=GAVE_UP - apart_s) for r in (1, 2, 3)]
    now = [waited(r, 5, op="_ALLGATHER_BASE") for r in range(4)]
    ev = evidence(*before, *now)
    assert not ranks(ev, "mismatch") and ranks(ev, "table") == {0, 1, 2, 3}


def test_one_ranks_line_of_another_day_makes_no_mismatch():
    ev = evidence(*(waited(r, 5) for r in (1, 2, 3)), *waited(0, 5, op="BROADCAST", at=GAVE_UP - 86_400))
    assert not ranks(ev, "mismatch")
