"""Flight records written half a minute apart and more: what the older one does not show is no sign of absence."""

from __future__ import annotations

import pytest
from written_dumps import CREATED, LATE, WAITS, add_dumps, everyone, ranks_of, report
from written_evidence import NOW, World

AHEAD = ["0 1 all_reduce", "0 2 all_reduce", "0 3 all_reduce open"]
OPEN = ["0 1 all_reduce", "0 2 all_reduce open", "0 3 all_reduce open"]


def world(programs, age, *old, poked=False, **more):
    """Records of one moment, a second old; those of `old` are files of `age` seconds."""
    w = World().processes().fabric(0).log(last_ago=500)
    rows = {
        f"rank_{rank}": {"source": "poked" if poked else "file", "poke": "no_reader", "mtime": NOW - age}
        for rank in old
    }
    return add_dumps(w, programs, lib="2.27.5", created=CREATED, **rows, **more)


def named(w):
    found = report(w)
    return found.verdict.cause, [c.rank for c in found.culprits]


@pytest.mark.parametrize("age", [35, 90, 390])
def test_a_rank_that_is_absent_by_an_old_file_only_may_have_come_since_and_is_not_named(age):
    w = world(everyone(WAITS, r2=LATE), age, 2)
    assert ranks_of(w.fact("waits.stale")) == [2] and "may have got on since" in w.fact("waits.stale").parts[0].why
    assert ranks_of(w.fact("waits.possible")) == [2] and not w.fact("waits.roots").known
    assert named(w)[1] == []


@pytest.mark.parametrize("age", [1, 20, 29])
def test_records_of_one_moment_within_half_a_minute_are_compared(age):
    assert named(world(everyone(WAITS, r2=LATE), age, 2)) == ("stuck_rank/host", [2])


def test_beside_one_that_is_absent_by_a_fresh_record_an_old_file_accuses_nobody():
    w = world(everyone(WAITS, r2=LATE, r5=LATE), 41, 2)
    assert ranks_of(w.fact("waits.roots")) == [5] and named(w) == ("stuck_rank/host", [5])


def test_several_old_files_are_put_aside_one_after_the_other():
    w = world(everyone(WAITS, r2=LATE, r3=LATE, r5=LATE), 41, 2, 3)
    assert ranks_of(w.fact("waits.roots")) == [5]
    assert named(world(everyone(WAITS, r2=LATE, r3=LATE, r5=LATE), 41, 2, 3, 5))[1] == []


def test_one_that_was_in_an_operation_by_an_old_file_may_have_finished_it_since():
    assert ranks_of(world(everyone(AHEAD, r6=OPEN), 10, 6).fact("waits.roots")) == [6]
    w = world(everyone(AHEAD, r6=OPEN), 60, 6)
    assert not w.fact("waits.roots").known and named(w)[1] == []


def test_what_an_old_file_shows_done_stays_done():
    # Rank 2 waited there already when its file was written; who has not come is told by a fresh record.
    assert named(world(everyone(WAITS, r5=LATE), 60, 2)) == ("stuck_rank/host", [5])
    other = ["0 1 all_reduce", "0 2 all_gather open"]
    assert named(world(everyone(WAITS, r2=other), 60, 2)) == ("deadlock/mismatch", [2])


def test_an_old_file_among_those_that_wait_does_not_make_fresh_records_old():
    assert named(world(everyone(WAITS, r5=LATE), 60, 0, 1, 2, 3)) == ("stuck_rank/host", [5])


def test_records_all_written_at_one_old_moment_are_of_one_moment():
    w = world(everyone(WAITS, r5=LATE), 300, *range(8))
    assert named(w) == ("stuck_rank/host", [5])


def test_clocks_that_were_measured_are_taken_into_account():
    # The node of rank 2 runs 40 s behind: its file is as young as the others'.
    w = world(everyone(WAITS, r2=LATE), 41, 2, 3)
    w.samples = [
        type(s)(s.probe, s.node, s.look, s.status, s.data, at=s.at - 40, received=s.received)
        if s.node == "gpu002"
        else s
        for s in w.samples
    ]
    assert ranks_of(w.fact("waits.roots")) == [2]


def test_in_a_folder_that_was_collected_an_older_file_is_a_doubt_and_no_more():
    w = World()
    rows = {f"rank_{rank}": {"source": "file", "mtime": NOW - (60 if rank == 2 else 1)} for rank in range(8)}
    add_dumps(w, everyone(WAITS, r2=LATE), lib="2.27.5", **rows)
    w.samples = [type(s)(s.probe, "", s.look, s.status, s.data, at=s.at, received=s.received) for s in w.samples]
    found = w.fact("waits.roots")
    assert ranks_of(found) == [2]
    assert any("written 59s before the records of those that wait" in word for word in found.contradicted_by)
