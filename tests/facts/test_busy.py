"""Is a rank compiling, saving, loading? Two signs are needed; one is a lead."""

import pytest
from test_job_and_busy import hit
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
        doing(5, [compiler(cpu_s=0.2)], [cache(files=3)]),  # polls for its next order
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


# ---------------------------------------------------------------- storage: the log and the bytes

SAVES = hit(901, "checkpoint_save_begin", text="saving checkpoint at iteration 100")
LOADS = hit(901, "checkpoint_load_begin", text="loading checkpoint from /ckpt")


def phase_world(line, **changes):
    w = World()
    w.change = {(rank, "B"): dict(fields) for rank, fields in changes.get("moved", {}).items()}
    w.processes().log(last_ago=ONSET, hits=[line])
    w.samples[-1].data["iterations"]["last_line_no"] = 900
    return w


def test_a_rank_whose_bytes_move_between_the_looks_in_an_announced_phase_saves():
    w = phase_world(SAVES, moved={0: {"wchar": 80_000_000}})
    found = w.fact("busy.parts")
    assert ranks_of(found) == [0] and found.parts[0].why == "10 MB/s in its checkpoint phase"
    assert {p.probe for p in found.provenance} == {"joblog", "ranks"}
    assert w.fact("busy.phase").value == "checkpoint"


@pytest.mark.parametrize(
    ("line", "counter", "moves"),
    [
        (SAVES, "wchar_grown", True),
        (SAVES, "write_bytes_grown", True),  # a file mapped into memory
        (SAVES, "read_bytes_grown", False),  # reads are no checkpoint
        (LOADS, "rchar_grown", True),
        (LOADS, "read_bytes_grown", True),
        (LOADS, "wchar_grown", False),
    ],
)
def test_the_window_of_the_activity_probe_is_a_second_source_for_the_bytes_of_a_phase(line, counter, moves):
    w = watch(phase_world(line), doing(2, **{counter: 30_000_000}))
    found = w.fact("busy.parts")
    assert ranks_of(found) == ([2] if moves else [])
    if moves:
        assert "activity" in {p.probe for p in found.provenance}


def test_a_helper_that_saves_for_its_rank_counts_for_it():
    # The looks see the rank's own counters, which stand; `activity` adds up what the rank started.
    w = watch(phase_world(SAVES), doing(2, wchar_grown=30_000_000, write_bytes_grown=None))
    assert ranks_of(w.fact("busy.parts")) == [2]


def test_an_announced_phase_of_ranks_whose_counters_nobody_reads_is_unknown():
    w = World()
    hidden = dict.fromkeys(("rchar", "wchar", "read_bytes", "write_bytes"))
    w.change = {(rank, look): hidden for rank in range(8) for look in "AB"}
    w.processes().log(last_ago=ONSET, hits=[SAVES], steps=0)
    assert w.fact("busy.phase").value == "checkpoint"
    assert w.fact("busy.parts").value is None


def test_a_phase_that_is_only_announced_is_a_lead_for_those_that_are_waited_for():
    w = watch(all_wait_for(5, world=phase_world(SAVES)), doing(5))
    assert w.fact("busy.parts").value == 0
    found = w.fact("busy.maybe")
    assert ranks_of(found) == [5] and "bytes are not seen to move" in found.text
    assert w.fact("busy.phase").value == "checkpoint"
    assert w.fact("busy.explains").value is None


def test_an_announced_phase_alone_is_a_lead_even_if_nobody_was_asked():
    assert ranks_of(all_wait_for(5, world=phase_world(SAVES)).fact("busy.maybe")) == [5]


def test_bytes_without_any_phase_are_a_lead():
    w = watch(all_wait_for(5), doing(5, write_bytes_grown=30_000_000))
    assert ranks_of(w.fact("busy.maybe")) == [5]
    assert w.fact("busy.parts").value == 0


def test_bytes_over_a_socket_are_no_lead_without_a_phase():
    # Rank 0 of a large job serves the store: read(2) and write(2) on sockets count in rchar and wchar.
    w = watch(all_wait_for(5), doing(5, rchar_grown=30_000_000, wchar_grown=30_000_000))
    assert w.fact("busy.maybe").value == 0


def test_storage_bytes_between_the_looks_are_a_lead_too():
    w = World()
    w.change = {(5, "B"): {"read_bytes": 90_000_000}}
    w = all_wait_for(5, world=w.processes().log(last_ago=ONSET).fabric(0))
    assert ranks_of(w.fact("busy.maybe")) == [5]


def test_a_data_cache_that_grows_is_a_lead():
    grows = {"path": "/data/cache", "kind": "data_cache", "files_new": 2, "bytes_grown": 0, "newest_at": None}
    found = watch(all_wait_for(5), doing(5, folders=[grows])).fact("busy.maybe")
    assert ranks_of(found) == [5] and "data cache folder /data/cache grows" in found.text


@pytest.mark.parametrize(("moved", "lead"), [(True, [5]), (False, []), (None, [])])
def test_a_progress_bar_is_a_lead_only_while_it_moves(moved, lead):
    bar = "Map (num_proc=8):  92%|#########2| 920/1000 [29:58<02:36, 41 examples/s]"
    found = watch(all_wait_for(5), doing(5, progress_line=bar, progress_moved=moved)).fact("busy.maybe")
    assert ranks_of(found) == lead
    assert ("41 examples/s" in found.text) is bool(lead)


def test_of_an_announced_phase_that_stands_and_a_compile_that_gets_on_the_compile_is_the_phase():
    w = watch(all_wait_for(5, world=phase_world(SAVES)), compiles(5))
    assert w.fact("busy.phase").value == "compile"


def test_without_a_job_log_a_compile_is_still_seen():
    w = add_dumps(World().processes().fabric(0), everyone(WAITS, r5=LATE), lib="2.27.5")
    assert w.fact("busy.phase").value is None
    assert watch(w, compiles(5)).fact("busy.phase").value == "compile"


def test_looks_without_times_of_the_node_are_dated_by_their_arrival():
    w = phase_world(SAVES, moved={0: {"wchar": 400_000}})  # 50 kB/s over eight seconds: under the floor
    for sample in [s for s in w.samples if s.probe == "ranks"]:
        w.samples.remove(sample)
        w.samples.append(
            type(sample)(sample.probe, sample.node, sample.look, "ok", sample.data, received=sample.received)
        )
    assert w.fact("busy.parts").value == 0


def test_another_process_of_the_rank_in_the_second_look_has_moved_nothing():
    w = phase_world(SAVES, moved={0: {"wchar": 80_000_000, "pid": 9000}})
    assert ranks_of(w.fact("busy.parts")) == []


# ---------------------------------------------------------------- does it explain the stall?


def test_the_one_rank_that_all_wait_for_compiles_and_that_explains_the_stall():
    found = watch(all_wait_for(5), compiles(5)).fact("busy.explains")
    assert found.value is True and "the waits end at rank 5" in found.text


@pytest.mark.parametrize("other", [doing(5), doing(5, [compiler()], [])])
def test_a_rank_that_compiles_does_not_explain_another_that_lacks_as_well_and_neither_is_called_stuck(other):
    # torch builds an extension on one rank while the others wait for a lock file: those are idle, and no dump shows it.
    w = watch(all_wait_for(3, 5), compiles(3), other)
    assert ranks_of(w.fact("busy.compiling")) == [3]
    assert w.fact("busy.explains").value is None
    assert "rank 5" in w.fact("busy.explains").reason
    assert not w.fact("blame.host").parts
    assert w.fact("blame.host").value is (0 if other["compilers"] else None)


@pytest.mark.parametrize("late", [(5,), (3, 5)])
def test_a_rank_that_nobody_watched_may_be_what_an_idle_one_waits_for(late):
    found = watch(all_wait_for(*late), doing(5)).fact("busy.explains")
    assert found.value is (False if late == (5,) else None)


def test_two_ranks_that_are_waited_for_and_idle_may_both_be_called_stuck():
    w = watch(all_wait_for(3, 5), doing(3), doing(5))
    assert ranks_of(w.fact("blame.host")) == [3, 5]
    assert w.fact("busy.explains").value is False


@pytest.mark.parametrize("after", [None, 0.5, 60.0])
def test_where_a_rank_has_ended_no_compile_of_another_is_worth_waiting_for(after):
    w = World()
    w.dead = {5: "A"}
    hits = [] if after is None else [exit_line(4005, -9, 1, NOW - ONSET + after)]
    w.processes().log(last_ago=ONSET, hits=hits).fabric(0)
    watch(add_dumps(w, everyone(WAITS, r5=None, r3=LATE), lib="2.27.5"), compiles(3))
    assert w.fact("busy.explains").value is False
    assert w.fact("blame.host").value == 0


@pytest.mark.parametrize("state", ["T", "D"])
def test_where_another_rank_is_stopped_a_compile_leaves_it_open(state):
    w = World()
    w.change = {(5, look): {"state": state} for look in "AB"}
    w.processes().log(last_ago=ONSET).fabric(0)
    watch(add_dumps(w, everyone(WAITS, r5=None, r3=LATE), lib="2.27.5"), compiles(3))
    assert w.fact("busy.explains").value is None


def test_a_victim_that_compiles_beside_explains_nothing():
    w = watch(all_wait_for(5), compiles(2), doing(5))
    assert w.fact("busy.explains").value is False
    assert ranks_of(w.fact("blame.host")) == [5]


def test_a_rank_that_was_not_watched_leaves_the_explanation_open():
    assert watch(all_wait_for(3, 5), compiles(3)).fact("busy.explains").value is None


def test_a_rank_with_one_sign_is_not_called_stuck():
    w = watch(all_wait_for(5), doing(5, [compiler()], [cache()]))
    assert w.fact("waits.host_stuck").value == 1
    found = w.fact("blame.host")
    assert found.value == 0 and "rank 5 is or may be busy" in found.text


def test_a_rank_without_any_sign_may_be_called_stuck_and_so_may_one_that_nobody_watched():
    assert ranks_of(watch(all_wait_for(5), doing(5)).fact("blame.host")) == [5]
    assert ranks_of(all_wait_for(5).fact("blame.host")) == [5]
    assert stalled().fact("blame.host").value is None


def test_a_compile_of_a_rank_without_a_flight_record_explains_what_only_it_could():
    w = watch(add_dumps(stalled(), everyone(WAITS, r5=None)), compiles(5))
    assert w.fact("waits.roots").value is None
    assert w.fact("busy.explains").value is True


def test_of_two_ranks_without_a_flight_record_one_that_compiles_leaves_it_open():
    w = watch(add_dumps(stalled(), everyone(WAITS, r5=None, r3=None)), compiles(5), everybody=True)
    assert w.fact("busy.explains").value is None


def test_ranks_that_wait_in_a_circle_are_not_explained_by_a_compile():
    told = everyone(WAITS, r2=["2 2 all_reduce open"], r3=["0 2 all_reduce open"])
    told = {rank: ["0 1 all_reduce", *[x for x in lines if "0 1" not in x]] for rank, lines in told.items()}
    w = watch(add_dumps(stalled(), told, lib="2.27.5"), compiles(2), everybody=True)
    assert w.fact("waits.cycle").value == 2
    assert w.fact("busy.explains").value is False


def test_without_any_flight_record_one_that_compiles_among_idle_ranks_explains_it():
    found = watch(stalled(), compiles(5), everybody=True).fact("busy.explains")
    assert found.value is True and "no flight record" in found.text


@pytest.mark.parametrize("odd", ["T", "D", "gone", "maybe", "hidden"])
def test_without_any_flight_record_a_second_oddity_leaves_it_open(odd):
    w = World(root=odd != "hidden")
    if odd in ("T", "D"):
        w.change = {(2, look): {"state": odd} for look in "AB"}
    if odd == "gone":
        w.dead = {2: "A"}
    if odd == "hidden":
        w.dead = {2: "A", 3: "A"}
        w.change = {(rank, look): {"uid": 4711} for rank in range(8) for look in "AB"}
    w.processes().log(last_ago=ONSET).fabric(0)
    more = [doing(2, [compiler()], [])] if odd == "maybe" else []
    watch(w, compiles(5), *more, everybody=True)
    assert w.fact("busy.explains").value is (False if odd == "gone" else None)


def test_without_any_flight_record_idle_ranks_explain_nothing():
    assert watch(stalled(), everybody=True).fact("busy.explains").value is False


def test_a_job_of_which_all_ranks_compile_is_busy():
    w = watch(stalled(), *(compiles(rank) for rank in range(8)))
    assert w.fact("busy.explains").value is True
    assert w.fact("busy.compiling").value == 8


def test_every_fact_names_the_probe_that_it_stands_on():
    w = watch(all_wait_for(5), compiles(5))
    for name in ("busy.compiling", "busy.phase", "busy.seen", "busy.explains", "blame.host"):
        assert "activity" in {p.probe for p in w.fact(name).provenance}, name
    assert all(NOW - 10 < p.at <= NOW for p in w.fact("busy.compiling").provenance)
