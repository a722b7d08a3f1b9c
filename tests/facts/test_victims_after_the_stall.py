"""A rank that dies or is stopped after the freeze is a victim, whatever it looks like: a watchdog, a launcher, an operator.

The world: 4 nodes x 2 ranks, TP pairs and a default group, a step a second, frozen for 100 s. Each truth meets each fate of a
victim; the victim is never accused, and the honest case (no victim) still names the guilty.
"""

from __future__ import annotations

import pytest
from written_dumps import add_dumps, named, ranks_of, report
from written_evidence import NOW, World, exit_line

STALL = NOW - 100.0  # when the last step ended
VICTIM = 0


def program(rank, *ends):
    """The TP pair's collective and the default group's, twice; the last step as given."""
    tp = rank // 2 + 1
    return [f"{tp} 1 all_reduce", "0 1 all_reduce", *(end.replace("tp", str(tp)) for end in ends)]


def waiting(rank):
    return program(rank, "tp 2 all_reduce", "0 2 all_reduce open")


def programs(truth):
    """rank -> what it has enqueued; None: it writes no dump any more."""
    out = {rank: waiting(rank) for rank in range(8)}
    if truth == "host":
        out[3] = program(3)
        out[2] = program(2, "tp 2 all_reduce open")
    elif truth in ("stopped", "killed", "gone"):
        out[3] = None
        out[2] = program(2, "tp 2 all_reduce open")
    elif truth == "deadlock":  # rank 3 goes to the default group first, its pair's rank to the pair
        out[2] = program(2, "tp 2 all_reduce open")
        out[3] = program(3, "0 2 all_reduce open")
    return out


def end(w, rank, code=None, after=None, look="A"):
    """The rank is gone; the launcher says so `after` the stall began, if it does."""
    w.dead[rank] = look
    pid = 1000 + rank if look == "B" else 4000 + rank
    return [exit_line(pid, code, rank % 2, None if after is None else STALL + after)] if code is not None else []


def stop(w, rank, looks="AB"):
    for look in looks:
        w.change[(rank, look)] = {"state": "T"}
    return []


FATES = {
    "abort 60 s later": lambda w, r: end(w, r, -6, 60),
    "abort in the other spelling": lambda w, r: end(w, r, 134, 60),
    "abort without a date": lambda w, r: end(w, r, -6),
    "terminate": lambda w, r: end(w, r, -15, 30),
    "kill 9 s later": lambda w, r: end(w, r, -9, 9 + 3),
    "kill at an unknown time": lambda w, r: end(w, r),
    "gone between the looks": lambda w, r: end(w, r, look="B"),
    "stopped since": lambda w, r: stop(w, r),
    "stopped between the looks": lambda w, r: stop(w, r, "B"),
}
TRUTHS = {
    "host": ("stuck_rank/host", [3]),
    "stopped": ("stuck_rank/stopped", [3]),
    "killed": ("dead_rank/killed", [3]),
    "gone": ("dead_rank/gone", [3]),
    "deadlock": ("deadlock/order", [3]),
}


def frozen(truth, *fates):
    """(world, programs) with this truth; each fate (a function, and whom it strikes) came over a victim."""
    w, hits = World(), []
    if truth == "stopped":
        stop(w, 3)
    if truth in ("killed", "gone"):
        hits += end(w, 3, *((-9, 0.5) if truth == "killed" else ()))
    told = programs(truth)
    for fate, rank in fates:
        hits += fate(w, rank)
        told[rank] = None
    w.processes().log(last_ago=100, hits=hits).fabric(0)
    return add_dumps(w, told, lib="2.27.5")


@pytest.mark.parametrize("truth", TRUTHS)
def test_the_guilty_is_named_with_high_confidence_where_nothing_came_after(truth):
    # Held on the host may also be a silent phase of the program: its stack would tell.
    assert named(frozen(truth)) == (*TRUTHS[truth], "medium" if truth == "host" else "high")


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("truth", TRUTHS)
def test_a_victim_that_ends_or_is_stopped_after_the_stall_is_never_accused(truth, fate):
    cause, ranks, _ = named(frozen(truth, (FATES[fate], VICTIM)))
    assert (cause, ranks) == TRUTHS[truth]


@pytest.mark.parametrize("fate", FATES)
def test_a_whole_node_of_victims_that_ended_is_never_accused(fate):
    cause, ranks, _ = named(frozen("host", (FATES[fate], 4), (FATES[fate], 5)))
    assert (cause, ranks) == TRUTHS["host"]


@pytest.mark.parametrize("fate", FATES)
def test_of_a_circle_whose_one_member_ended_or_was_stopped_since_that_member_is_not_accused(fate):
    told = report(frozen("deadlock", (FATES[fate], 2)))
    assert [c.rank for c in told.culprits] in ([], [3])
    assert told.verdict.cause in ("inconclusive/arrival_unknown", "deadlock/order")
    w = frozen("deadlock", (FATES[fate], 2))
    if w.fact("ranks.gone_late").value == 0 and "between" not in fate:  # else it is not even suspected
        assert ranks_of(w.fact("waits.out_of_order")) == [3]
        assert "deadlock/order" in [a.cause for a in told.alternatives]


@pytest.mark.parametrize("fate", ["abort 60 s later", "abort without a date", "kill 9 s later", "terminate"])
def test_when_the_watchdog_has_ended_all_victims_the_survivor_is_no_proof_and_the_dead_are_not_accused(fate):
    told = report(frozen("host", *((FATES[fate], rank) for rank in range(8) if rank != 3)))
    assert told.verdict.id == "inconclusive" and not told.culprits


@pytest.mark.parametrize("fate", ["abort 60 s later", "kill 9 s later", "gone between the looks"])
def test_without_any_flight_record_late_ends_accuse_nobody(fate):
    w = World()
    hits = FATES[fate](w, VICTIM)
    assert named(w.processes().log(last_ago=100, hits=hits).fabric(0))[:2] == ("inconclusive/arrival_unknown", [])


def test_without_any_flight_record_a_rank_gone_alone_is_named_and_not_where_others_ended_late():
    w = World()
    w.dead = {5: "A"}
    assert named(w.processes().log(last_ago=100).fabric(0))[:2] == ("dead_rank/gone", [5])
    w = World()
    hits = end(w, 0, -6, 60) + end(w, 5)
    assert named(w.processes().log(last_ago=100, hits=hits).fabric(0))[1] == []


def test_two_ranks_killed_at_once_are_both_named():
    w = World()
    hits = end(w, 3, -9, 0.5) + end(w, 5, -9, 0.6)
    told = {rank: waiting(rank) for rank in range(8)}
    told.update({3: None, 5: None, 2: program(2, "tp 2 all_reduce open"), 4: program(4, "tp 2 all_reduce open")})
    w.processes().log(last_ago=100, hits=hits).fabric(0)
    assert named(add_dumps(w, told, lib="2.27.5")) == ("dead_rank/killed", [3, 5], "high")


def test_a_kill_at_the_stall_beside_a_rank_that_never_came_is_told_with_less_confidence():
    # Rank 3 stands on the host side and rank 0 was killed in the same second: which was first nobody can tell.
    w = World()
    hits = end(w, 0, -9, 0.5)
    told = {**programs("host"), 0: None}
    cause, ranks, confidence = named(
        add_dumps(w.processes().log(last_ago=100, hits=hits).fabric(0), told, lib="2.27.5")
    )
    assert (cause, ranks, confidence) == ("dead_rank/killed", [0], "medium")


def test_a_stopped_and_an_undated_dead_rank_that_are_both_waited_for_are_leads_and_no_culprits():
    w = World()
    stop(w, 3)
    hits = end(w, 5)
    told = {**programs("stopped"), 5: None, 4: program(4, "tp 2 all_reduce open")}
    w.processes().log(last_ago=100, hits=hits).fabric(0)
    report_ = report(add_dumps(w, told, lib="2.27.5"))
    assert report_.verdict.cause == "inconclusive/several_roots" and not report_.culprits
    assert {a.cause: a.why_not.split(",")[0].split(" ended")[0] for a in report_.alternatives} == {
        "dead_rank/gone": "rank 5 (gpu003)",
        "stuck_rank/stopped": "rank 3 (gpu002) is stopped",
    }


def test_another_rank_without_a_record_lowers_the_confidence_in_one_that_is_stopped():
    w = World()
    stop(w, 3)
    told = {rank: waiting(rank) for rank in range(8)}
    told.update({2: None, 3: None})  # rank 2's record is lost: it may be the one that has not come
    w.processes().log(last_ago=100).fabric(0)
    assert named(add_dumps(w, told, lib="2.27.5")) == ("stuck_rank/stopped", [3], "medium")


# ---------------------------------------------------------------- when did it end?


def kinds(w):
    return {name: ranks_of(w.fact(f"ranks.{name}")) for name in ("gone", "gone_first", "gone_late")}


@pytest.mark.parametrize(
    ("after", "code", "late"),
    [
        (0.5, -9, False),
        (3.5, -9, False),
        (7, -9, False),
        (12, -9, True),
        (0.5, -6, False),
        (12, -6, True),
        (12, 1, True),
    ],
)
def test_an_end_is_late_only_when_no_launcher_can_have_been_that_slow(after, code, late):
    w = World()
    w.processes().log(last_ago=100, hits=end(w, 5, code, after))
    w.samples.clear()
    w.processes().log(last_ago=100, hits=[exit_line(4005, code, 1, STALL + after)])
    assert kinds(w) == {"gone": [5], "gone_first": [] if late else [5], "gone_late": [5] if late else []}


def test_a_rank_killed_by_a_launchers_slow_line_is_still_found_as_gone_when_all_wait_for_it():
    # torchrun looked at its processes every 5 s until 2024: the line comes after the stall's window, the death did not.
    w = World()
    hits = end(w, 3, -9, 6.5)
    w.processes().log(last_ago=100, hits=hits).fabric(0)
    assert named(add_dumps(w, programs("gone"), lib="2.27.5")) == ("dead_rank/gone", [3], "high")


def test_a_log_with_a_line_every_ten_steps_does_not_make_a_death_between_two_lines_late():
    w = World()
    hits = end(w, 3, -9, 9.0)
    w.processes().log(step_s=10.0, elapsed=[1.0] * 100, last_ago=100, hits=hits).fabric(0)
    assert named(add_dumps(w, programs("killed"), lib="2.27.5"))[:2] == ("dead_rank/killed", [3])


def test_when_most_ranks_entered_what_they_wait_in_tells_the_stall_too():
    # No step line for the last 40 s before the stall (an evaluation, say): the dumps say when everybody stopped.
    w = World()
    hits = end(w, 3, -9, 40.5)
    w.processes().log(last_ago=100, hits=hits).fabric(0)
    assert named(add_dumps(w, programs("killed"), created=STALL + 40, lib="2.27.5"))[:2] == ("dead_rank/killed", [3])


def test_a_rank_that_wrote_a_record_long_after_the_stall_ended_late_however_it_ended():
    w = World()
    w.dead = {0: "A"}
    w.processes().log(last_ago=100).fabric(0)
    add_dumps(w, {0: waiting(0)}, poked=False, mtime=NOW - 40, created=STALL + 0.1)
    assert kinds(w)["gone_late"] == [0]


def test_one_node_with_a_clock_of_its_own_cannot_date_a_victims_end_to_the_stall():
    # By the log's clock the line is 5 s too late to be a cause; by its node's clock, which is 9 s ahead, it is at the stall.
    w = World()
    hits = end(w, 0, -9, 9.5)
    w.processes().log(last_ago=100, hits=hits).fabric(0)
    w.samples = [
        s
        if s.node != "gpu001"
        else type(s)(s.probe, s.node, s.look, s.status, s.data, at=s.at + 9, received=s.received)
        for s in w.samples
    ]
    assert w.fact("hard.events").value == 0


def test_an_out_of_memory_kill_is_not_laid_to_a_rank_that_ended_later():
    w = World()
    hits = end(w, 4, -6, 60) + end(w, 5)
    w.processes().log(last_ago=100, hits=hits)
    event = {"id": "oom_kill", "kind": "oom", "at": STALL + 0.5, "count": 1, "text": "Killed process 4005 (python)"}
    w.samples = [s for s in w.samples if not (s.probe == "kernel" and s.node == "gpu003")]
    w.add("kernel", "gpu003", "A", {"readable": True, "events": [event]})
    assert ranks_of(w.fact("hard.oom")) == [5]


def test_several_launcher_lines_that_no_pid_ties_are_believed_in_what_all_of_them_say():
    w = World()
    hits = [line for rank in (0, 2, 4, 6) for line in end(w, rank, -6, 60)]
    w.processes().log(last_ago=100, hits=hits)
    assert kinds(w) == {"gone": [0, 2, 4, 6], "gone_first": [], "gone_late": [0, 2, 4, 6]}


def test_the_finding_of_a_victims_end_says_that_it_is_a_consequence():
    told = report(frozen("host", (FATES["abort 60 s later"], VICTIM)))
    assert any("rank 0" in (f.part or "") and "consequence" in f.text for f in told.findings)
