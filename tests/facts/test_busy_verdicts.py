"""What a whole report says of jobs that are busy, suspended or merely slow, and of ranks that are stuck beside busy ones."""

import pytest
from written_activity import cache, compiler, compiles, doing, watch
from written_dumps import LATE, WAITS, add_dumps, everyone, report
from written_evidence import NOW, World


def stalled(**world):
    w = World()
    for name, value in world.items():
        setattr(w, name, value)
    return w.processes().log(last_ago=100).fabric(0)


def late(w, *ranks):
    return add_dumps(w, everyone(WAITS, **{f"r{rank}": LATE for rank in ranks}), lib="2.27.5")


def said(w):
    told = report(w)
    return told.verdict.cause, [c.rank for c in told.culprits]


def both(state, *ranks):
    return {(rank, look): {"state": state} for rank in ranks for look in "AB"}


def test_the_rank_that_all_wait_for_compiles_and_nobody_is_blamed():
    told = report(watch(late(stalled(), 5), compiles(5)))
    assert told.verdict.cause == "busy/compile" and not told.culprits
    assert (told.state, told.exit_code, told.mitigation["recommended"]["strategy"]) == ("busy", 0, "S1")
    assert told.deadlines  # with the moment at which the collective's own time-out ends it


def test_a_compile_before_the_first_step_is_a_compile_and_no_failed_set_up():
    w = World().processes().log(steps=0).fabric(0)
    assert said(watch(late(w, 5), compiles(5)))[0] == "busy/compile"
    w = World().processes().log(steps=0).fabric(0)
    assert said(watch(w, *(compiles(rank) for rank in range(8))))[0] == "busy/compile"


def test_a_rank_that_does_nothing_is_stuck_on_its_host():
    assert said(watch(late(stalled(), 5), doing(5))) == ("stuck_rank/host", [5])
    idle_ptxas = doing(5, [compiler(cpu_s=0.0, state="S")], [cache(newest_ago=5000.0)])
    assert said(watch(late(stalled(), 5), idle_ptxas)) == ("stuck_rank/host", [5])


def test_a_rank_with_one_sign_is_neither_stuck_nor_surely_busy():
    told = report(watch(late(stalled(), 5), doing(5, [compiler()], [])))
    assert told.verdict.id == "inconclusive" and not told.culprits
    assert "stuck_rank/host" in [a.cause for a in told.alternatives]


@pytest.mark.parametrize("other", [compiles(3), doing(3, [compiler()], [])])
def test_beside_a_rank_that_is_or_may_be_busy_an_idle_one_is_not_called_stuck(other):
    told = report(watch(late(stalled(), 3, 5), other, doing(5)))
    assert told.verdict.id == "inconclusive" and not told.culprits


def test_what_a_victim_does_beside_does_not_hide_the_rank_that_is_stuck():
    assert said(watch(late(stalled(), 5), compiles(2), doing(5))) == ("stuck_rank/host", [5])
    reads = stalled(change={(2, "B"): {"read_bytes": 10**9}})
    assert said(watch(late(reads, 5), doing(5))) == ("stuck_rank/host", [5])


@pytest.mark.parametrize("watched", ["all", "those that are waited for"])
def test_where_a_rank_has_ended_the_compile_of_another_is_not_worth_waiting_for(watched):
    w = add_dumps(stalled(dead={5: "A"}), everyone(WAITS, r3=LATE, r5=None), lib="2.27.5")
    told = report(watch(w, compiles(3), everybody=watched == "all"))
    assert told.verdict.id != "busy"
    assert 3 not in [c.rank for c in told.culprits]


def test_without_flight_records_a_compile_among_idle_ranks_is_told_with_less_confidence():
    told = report(watch(stalled(), compiles(5), everybody=True))
    assert told.verdict.cause == "busy/compile"
    assert told.verdict.score < report(watch(late(stalled(), 5), compiles(5))).verdict.score
    assert report(watch(stalled(change=both("D", 2)), compiles(5), everybody=True)).verdict.id == "inconclusive"


def test_a_suspended_job_accuses_nobody():
    w = add_dumps(stalled(change=both("T", *range(8))), dict.fromkeys(range(8)))
    told = report(w)
    assert told.verdict.id == "busy" and told.exit_code == 0 and not told.culprits


@pytest.mark.parametrize("step_s", [4.0, 30.0])
def test_a_rank_that_is_behind_within_the_time_of_a_step_is_not_accused(step_s):
    w = World().processes().log(step_s=step_s, last_ago=0.7 * step_s).fabric(0)
    add_dumps(w, everyone(WAITS, r5=LATE), lib="2.27.5", created=NOW - 0.5 * step_s)
    told = report(watch(w, doing(5)))
    assert told.verdict.id == "inconclusive" and not told.culprits


def test_a_rank_that_is_behind_on_its_device_within_the_time_of_a_step_is_not_accused_either():
    w = World().processes().log(step_s=30.0, last_ago=20.0).fabric(0)
    done = ["0 1 all_reduce", "0 2 all_reduce"]
    add_dumps(w, everyone(done, r5=["0 1 all_reduce", "0 2 all_reduce open"]), lib="2.27.5", created=NOW - 15)
    told = report(watch(w, everybody=True))
    assert told.verdict.id == "inconclusive" and not told.culprits
