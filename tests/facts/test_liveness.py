"""Stopped, traced, hidden, dead: what a process list says, and what it must not be taken for."""

import pytest
from written_activity import watch
from written_dumps import LATE, WAITS, add_dumps, everyone, named, ranks_of, report
from written_evidence import NOW, World

ONSET = 100.0


def world(states=None, looks="AB", root=True, **fields):
    """A job that stands; `states`: rank -> state in these looks; `fields`: more of those ranks' records."""
    w = World(root=root)
    for rank, state in (states or {}).items():
        for look in looks:
            w.change[(rank, look)] = {"state": state, **fields}
    return w.processes().log(last_ago=ONSET).fabric(0)


def everybody(state):
    return dict.fromkeys(range(8), state)


GDB = {"tracer_pid": 4242, "tracer": "gdb"}

# ---------------------------------------------------------------- a suspended job


@pytest.mark.parametrize("state", ["T", "t"])
def test_a_job_of_which_every_rank_is_stopped_is_suspended(state):
    found = world(everybody(state)).fact("ranks.all_stopped")
    assert found.value is True and "all 8 ranks are stopped" in found.text
    assert {p.probe for p in found.provenance} == {"ranks"}


def test_one_rank_that_runs_makes_the_job_no_suspended_one():
    found = world(dict.fromkeys(range(7), "T")).fact("ranks.all_stopped")
    assert found.value is False and "rank 7" in found.text


def test_one_stopped_rank_below_a_stopped_launcher_is_one_stopped_rank():
    w = world({5: "T"})
    for sample in w.samples:
        if sample.probe == "ranks":
            sample.data["launchers"] = [{"pid": 900, "cmd": "torchrun train.py", "state": "T"}]
    assert w.fact("ranks.all_stopped").value is False
    assert ranks_of(w.fact("ranks.stopped")) == [5]


@pytest.mark.parametrize("looks", ["A", "B"])
def test_a_job_that_was_stopped_in_one_look_only_is_not_yet_a_suspended_one(looks):
    assert world(everybody("T"), looks=looks).fact("ranks.all_stopped").value is False


def test_a_job_whose_ranks_are_stopped_and_one_is_gone_is_not_merely_suspended():
    w = World()
    w.change = {(rank, look): {"state": "T"} for rank in range(8) for look in "AB"}
    w.dead = {5: "A"}
    found = w.processes().fact("ranks.all_stopped")
    assert found.value is False and "rank 5 is gone" in found.text


def test_ranks_that_nobody_sees_leave_it_open():
    w = World()
    w.change = {(rank, look): {"state": "T"} for rank in range(8) for look in "AB"}
    w.skip_nodes = {"gpu002"}
    assert w.processes().fact("ranks.all_stopped").value is None
    w.change[(0, "B")] = {"state": "S"}
    w.samples.clear()
    assert w.processes().fact("ranks.all_stopped").value is False
    assert World().fact("ranks.all_stopped").value is None


def test_one_look_is_all_looks_where_there_was_one():
    w = world(everybody("T"))
    w.samples = [s for s in w.samples if s.look == "A"]
    assert w.fact("ranks.all_stopped").value is True
    assert all("in the only look at it" in part.why for part in w.fact("ranks.stopped").parts)


def test_uninterruptible_sleep_is_no_stop():
    w = world(everybody("D"))
    assert w.fact("ranks.all_stopped").value is False
    assert w.fact("ranks.d_state").value == 8


# ---------------------------------------------------------------- a rank under a debugger


def test_a_rank_that_a_debugger_holds_is_stopped_and_the_debugger_is_named():
    w = world({5: "t"}, **GDB)
    (part,) = w.fact("ranks.stopped").parts
    assert part.rank == 5 and part.why.startswith("held by gdb (pid 4242)")
    assert [(p.rank, p.why) for p in w.fact("ranks.traced").parts] == [(5, "traced by gdb (pid 4242)")]


def test_a_rank_that_a_debugger_holds_is_named_as_stopped_and_not_as_stuck_on_its_host():
    w = add_dumps(world({5: "t"}, **GDB), everyone(WAITS, r5=None), lib="2.27.5")
    assert named(w) == ("stuck_rank/stopped", [5], "medium")
    assert w.fact("waits.roots_stopped").contradicted_by == (
        "a debugger mostly comes because a job stands: let the rank go, and look again",
    )
    sent = add_dumps(world({5: "T"}), everyone(WAITS, r5=None), lib="2.27.5")  # by a signal
    assert named(sent) == ("stuck_rank/stopped", [5], "high")
    other = add_dumps(world({0: "t"}, **GDB), everyone(WAITS, r0=None, r5=None), lib="2.27.5")
    assert named(other)[2] in ("low", "none")  # rank 5 gave no record either


def test_a_debugger_that_came_between_the_looks_is_a_finding_and_no_cause():
    w = add_dumps(world({2: "t"}, looks="B", **GDB), everyone(WAITS, r5=LATE), lib="2.27.5")
    assert w.fact("ranks.stopped").value == 0
    assert ranks_of(w.fact("ranks.traced")) == [2]
    assert named(watch(w, everybody=True))[:2] == ("stuck_rank/host", [5])


def test_a_rank_that_runs_under_strace_is_traced_and_not_stopped():
    w = world({5: "S"}, tracer_pid=31, tracer="strace")
    assert ranks_of(w.fact("ranks.traced")) == [5]
    assert w.fact("ranks.stopped").value == 0


def test_a_debugger_whose_name_may_not_be_read_is_told_by_its_number():
    w = world({5: "t"}, tracer_pid=4242, tracer=None)
    assert "an unknown process (pid 4242)" in w.fact("ranks.stopped").parts[0].why


def test_the_state_alone_tells_of_a_debugger_where_the_tracer_is_not_told():
    w = world({5: "t"})
    assert "held by a debugger (state t)" in w.fact("ranks.stopped").parts[0].why
    assert "debugger" not in world({5: "T"}).fact("ranks.stopped").parts[0].why


def test_whether_anybody_traces_is_unknown_while_a_rank_does_not_tell():
    assert world().fact("ranks.traced").value is None
    assert World().fact("ranks.traced").value is None
    assert world(everybody("S"), tracer_pid=0, tracer=None).fact("ranks.traced").value == 0
    some = world(dict.fromkeys(range(7), "S"), tracer_pid=0, tracer=None).fact("ranks.traced")
    assert some.value is None and "1 of 8" in some.reason


@pytest.mark.parametrize("pid", [True, -1.5, "4242", [1]])
def test_a_tracer_that_is_no_process_number_is_none(pid):
    assert world({5: "S"}, tracer_pid=pid, tracer="gdb").fact("ranks.traced").value is None


def test_a_parallel_debugger_that_holds_all_ranks_is_named():
    found = world(everybody("t"), **GDB).fact("ranks.all_stopped")
    assert found.value is True and "held by gdb (pid 4242)" in found.text


# ---------------------------------------------------------------- hidden, zombie, stopped, of a whole report


def test_processes_that_we_may_not_see_are_no_deaths():
    # hidepid on the node of the one that all wait for: nothing of it is seen, and it gives no flight record.
    w = World(root=False)
    w.dead = {4: "A", 5: "A"}
    w.change = {(rank, look): {"uid": 4711} for rank in range(8) for look in "AB"}
    w.processes().log(last_ago=ONSET).fabric(0)
    told = report(add_dumps(w, everyone(WAITS, r5=None), lib="2.27.5"))
    assert told.verdict.id == "inconclusive" and not told.culprits


@pytest.mark.parametrize("looks", ["AB", "B"])
def test_a_zombie_that_all_wait_for_is_a_dead_rank(looks):
    w = add_dumps(world({5: "Z"}, looks=looks), everyone(WAITS, r5=None), lib="2.27.5")
    assert ranks_of(w.fact("ranks.gone")) == [5]
    if looks == "AB":
        assert named(w)[:2] == ("dead_rank/gone", [5])


def test_a_zombie_is_neither_stopped_nor_traced():
    w = world({5: "Z"}, **GDB)
    assert w.fact("ranks.stopped").value == 0
    assert ranks_of(w.fact("ranks.traced")) == []


@pytest.mark.parametrize("step_s", [4.0, 30.0])
def test_a_look_shorter_than_a_step_leaves_it_open_whether_a_job_stands(step_s):
    # The one that is behind in its dump may be at work: an hour of steps like this is behind it.
    w = World(window=2.0).processes().log(step_s=step_s, last_ago=0.7 * step_s).fabric(0)
    add_dumps(w, everyone(WAITS, r5=LATE), lib="2.27.5", created=NOW - 0.5 * step_s)
    assert w.fact("progress.advancing").value is None
    assert w.fact("progress.stall_age_s").value == pytest.approx(0.7 * step_s, abs=0.1)
