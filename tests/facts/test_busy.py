"""Is a rank compiling? Two signs of its own are needed; one is a lead, and what was not watched is unknown."""

import pytest
from written_activity import AT, WINDOW_S, cache, compiler, compiles, doing, watch
from written_dumps import LATE, WAITS, add_dumps, everyone, ranks_of
from written_evidence import NOW, World, exit_line

from triage.readers.shapes import problem

ONSET = 100.0  # seconds ago the last step ended


def stalled(hits=(), **kwargs):
    return World(**kwargs).processes().log(last_ago=ONSET, hits=hits).fabric(0)


def all_wait_for(*late, world=None):
    """Dumps in which these ranks have not come to what all others wait in."""
    w = world or stalled()
    return add_dumps(w, everyone(WAITS, **{f"r{rank}": LATE for rank in late}), lib="2.27.5")


# ---------------------------------------------------------------- compiling: two signs


def test_a_compiler_that_burns_cpu_under_a_cache_that_grows_is_a_compile():
    w = watch(all_wait_for(5), compiles(5))
    found = w.fact("busy.compiling")
    assert ranks_of(found) == [5] and found.parts[0].node == "gpu003"
    assert "ptxas (pid 7001) used 0.8 cores" in found.text and "3 new files" in found.text
    assert w.fact("busy.maybe").value == 0
    assert w.fact("busy.phase").value == "compile"


@pytest.mark.parametrize(
    "row",
    [
        doing(5, [compiler(cpu_s=0.0, state="S")], [cache(files=3)]),  # called ptxas, and does nothing
        doing(5, [compiler(cpu_s=0.0, state="T")], [cache(files=3)]),  # stopped
        doing(5, [compiler(cpu_s=0.1)], [cache(files=3)]),  # polls for its next order
        doing(5, [], [cache(files=3)], cpu_s=1.5),  # a rank that waits spins: its own CPU time is no sign
        doing(5, [compiler()], []),  # no cache is known
        doing(5, [compiler()], [cache()]),  # runs for ever and writes nothing
        doing(5, [compiler()], [cache(newest_ago=50.0, path="/a"), cache(newest_ago=5000.0)], compiler_cpu_s=0.0),
    ],
)
def test_one_sign_alone_is_no_compile_but_a_lead(row):
    w = watch(all_wait_for(5), row)
    assert w.fact("busy.compiling").value == 0
    assert ranks_of(w.fact("busy.maybe")) == [5]
    assert w.fact("busy.phase").value == "none"
    assert w.fact("busy.explains").value is None


def test_a_rank_that_does_nothing_is_not_even_a_lead():
    w = watch(all_wait_for(5), doing(5, [compiler(cpu_s=0.0)], [cache(newest_ago=5000.0)]))
    assert (w.fact("busy.compiling").value, w.fact("busy.maybe").value) == (0, 0)
    assert w.fact("busy.seen").value is True


@pytest.mark.parametrize(
    ("newest_ago", "onset", "busy"),
    [
        (60.0, 100.0, True),  # one kernel takes a minute
        (150.0, 400.0, True),
        (200.0, 400.0, False),  # no kernel takes that long
        (60.0, 30.0, False),  # written before the last step ended: that compile was over
        (-3.0, 100.0, True),  # the file server's clock is ahead
        (-3600.0, 100.0, False),  # a file of the future tells nothing
    ],
)
def test_a_file_that_is_younger_than_the_stall_and_not_old_is_a_sign_too(newest_ago, onset, busy):
    w = World().processes().log(last_ago=onset).fabric(0)
    watch(w, doing(5, [compiler()], [cache(newest_ago=newest_ago)]), everybody=True)
    assert (ranks_of(w.fact("busy.compiling")) == [5]) is busy


@pytest.mark.parametrize(("newest_ago", "busy"), [(60.0, True), (3600.0, False)])
def test_before_the_first_step_a_file_must_be_younger_than_the_process(newest_ago, busy):
    w = World().processes().log(steps=0)
    watch(w, doing(5, [compiler()], [cache(newest_ago=newest_ago)]), everybody=True)
    assert (ranks_of(w.fact("busy.compiling", busy_cache_fresh_s=10_000)) == [5]) is busy


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
def test_a_node_whose_clock_is_an_hour_off_compiles_all_the_same(ahead):
    w = stalled()
    for sample in [s for s in w.samples if s.node == "gpu003"]:
        w.samples.remove(sample)
        w.add(sample.probe, sample.node, sample.look, sample.data, at=sample.at + ahead, received=sample.received)
    fresh = {**cache(), "newest_at": AT + ahead - 30.0}
    data = {"window_s": WINDOW_S, "ranks": [doing(5, [compiler()], [fresh])], "unseen": []}
    w.add("activity", "gpu003", "C", data, at=AT + ahead, received=AT)
    assert ranks_of(w.fact("busy.compiling")) == [5]


def test_several_compilers_together_may_reach_the_share_that_none_reaches_alone():
    few = [compiler(cpu_s=0.11, comm="cc1plus", pid=7000 + i) for i in range(4)]
    found = watch(all_wait_for(5), doing(5, few, [cache(grown=4096)])).fact("busy.compiling")
    assert ranks_of(found) == [5]
    assert "3 more compilers" in found.text and "4096 new bytes" in found.text


def test_compilers_that_came_and_went_within_the_window_count_by_their_sum():
    w = watch(all_wait_for(5), doing(5, [], [cache(files=1)], compiler_cpu_s=0.9))
    assert ranks_of(w.fact("busy.compiling")) == [5]


# ---------------------------------------------------------------- whose sign is it?


def test_a_cache_that_grows_on_another_node_makes_no_rank_here_busy():
    w = watch(all_wait_for(5), compiles(5), node="gpu001")  # gpu001 tells of a rank that lives on gpu003
    assert w.fact("busy.compiling").value is None
    assert w.fact("busy.seen").value is False


def test_a_shared_cache_that_another_rank_fills_makes_no_rank_without_a_compiler_busy():
    shared = cache(files=9, path="/home/u/.triton/cache", kind="triton")
    w = all_wait_for(3, 5)
    watch(w, doing(5, [], [shared]), doing(3, [compiler()], [shared]))
    assert ranks_of(w.fact("busy.compiling")) == [3]
    assert ranks_of(w.fact("busy.maybe")) == [5]


def test_a_cache_that_other_ranks_have_too_is_told_as_such():
    w = watch(all_wait_for(5), doing(5, [], [cache(files=1, shared_with=3)]))
    assert "shared with 3 other ranks at least" in w.fact("busy.maybe").parts[0].why


def test_the_compilers_of_another_process_of_that_rank_number_are_not_the_ranks():
    w = watch(all_wait_for(5), {**compiles(5), "pid": 4711})
    found = w.fact("busy.compiling")
    assert found.value is None and "process 1005 of the looks was no longer there" in found.reason
    assert w.fact("busy.seen").value is False


def test_what_its_compilers_still_do_does_not_help_a_rank_that_is_stopped():
    w = World()
    w.change = {(5, look): {"state": "T"} for look in "AB"}
    w.processes().log(last_ago=ONSET).fabric(0)
    watch(add_dumps(w, everyone(WAITS, r5=None)), compiles(5))
    assert w.fact("busy.compiling").value == 0 and w.fact("busy.maybe").value == 0
    assert w.fact("busy.explains").value is False


# ---------------------------------------------------------------- was it seen?


def test_nobody_asked_is_unknown_and_not_idle():
    w = all_wait_for(5)
    for name in ("compiling", "maybe", "seen", "explains"):
        assert w.fact(f"busy.{name}").reason == "no node was asked what its ranks are busy with"


def test_a_rank_that_is_waited_for_and_was_not_watched_leaves_it_unknown():
    w = watch(all_wait_for(3, 5), doing(3))
    assert w.fact("busy.seen").value is False
    assert "5" in w.fact("busy.seen").text
    assert w.fact("busy.compiling").value is None
    assert watch(w, doing(5)).fact("busy.seen").value is True
    assert w.fact("busy.compiling").value == 0


def test_the_reason_of_the_probe_is_repeated():
    w = all_wait_for(5)
    data = {"window_s": WINDOW_S, "ranks": [], "unseen": [{"rank": 5, "pid": 1005, "why": "not ours to read"}]}
    assert "not ours to read" in w.add("activity", "gpu003", "C", data).fact("busy.compiling").reason


@pytest.mark.parametrize("data", [{}, {"window_s": WINDOW_S, "ranks": [compiles(5)]}])
def test_a_node_that_did_not_answer_in_time_was_asked_and_not_seen(data):
    w = all_wait_for(5).add("activity", "gpu003", "C", data, status="timeout")
    assert w.fact("busy.seen").value is False
    assert w.fact("busy.compiling").value is None


def test_where_the_waits_end_at_nobody_all_ranks_must_have_been_watched():
    w = watch(stalled(), doing(5))
    assert w.fact("busy.seen").value is False
    assert watch(w, everybody=True).fact("busy.seen").value is True


def test_a_rank_that_is_gone_needs_no_watching():
    w = World()
    w.dead = {5: "A"}
    w.processes().log(last_ago=ONSET, hits=[exit_line(4005, -9, 1, NOW - ONSET + 0.5)]).fabric(0)
    watch(add_dumps(w, everyone(WAITS, r5=None, r3=LATE), lib="2.27.5"), doing(3))
    assert ranks_of(w.fact("waits.roots")) == [3, 5]
    assert w.fact("busy.seen").value is True


@pytest.mark.parametrize("window", [None, 0, -1.5, float("nan"), True, "1.5"])
def test_an_answer_without_a_window_tells_no_share(window):
    w = all_wait_for(5).add("activity", "gpu003", "C", {"window_s": window, "ranks": [compiles(5)]})
    assert w.fact("busy.compiling").value is None


def test_rows_that_are_none_are_passed_over():
    w = all_wait_for(5)
    rows = [None, 7, {"rank": True}, {"rank": 4711}, doing(5, [None], [None], folders=[3]), {}]
    w.add("activity", "gpu003", "C", {"window_s": WINDOW_S, "ranks": rows, "unseen": [None, {"rank": 5}]})
    assert w.fact("busy.compiling").value == 0


def test_what_is_written_here_has_the_shape_of_the_probes_answer():
    w = watch(stalled(), compiles(5), doing(3, [compiler()], [cache(newest_ago=3.0, shared_with=1)]), everybody=True)
    told = [s for s in w.samples if s.probe == "activity"]
    assert len(told) == 4 and not [problem("activity", s.data) for s in told if problem("activity", s.data)]


def test_every_fact_names_the_probe_that_it_stands_on():
    w = watch(all_wait_for(5), compiles(5))
    for name in ("busy.compiling", "busy.phase", "busy.seen", "busy.explains", "blame.host"):
        assert "activity" in {p.probe for p in w.fact(name).provenance}, name
    assert all(NOW - 10 < p.at <= NOW for p in w.fact("busy.compiling").provenance)
