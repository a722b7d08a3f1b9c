"""A checkpoint or restore: the log announces it, and its bytes move, by either of two sources. One of these is a lead."""

import pytest
from test_busy import ONSET, all_wait_for
from test_job_and_busy import hit
from written_activity import compiles, doing, watch
from written_dumps import LATE, WAITS, add_dumps, everyone, ranks_of
from written_evidence import World

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
