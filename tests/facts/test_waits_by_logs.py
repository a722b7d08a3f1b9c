"""Ranks without a flight record that the job log places, and sources that contradict the records."""

from __future__ import annotations

import pytest
from written_dumps import LATE, WAITS, add_dumps, ranks_of, report
from written_evidence import World
from written_logs import log_sample, steps
from written_watchdogs import GAVE_UP, told, waited

EIGHT = range(8)


def world(programs, *lines, **row):
    w = World().processes()
    add_dumps(w, programs, lib="2.27.5", **row)
    if lines:
        w.samples.append(log_sample(list(lines)))
    return w


def all_waited(seq=2, *but):
    return [line for rank in EIGHT if rank not in but for line in waited(rank, seq)]


def without(*lost):
    return {rank: WAITS for rank in EIGHT if rank not in lost}


def test_a_rank_without_a_record_is_placed_by_its_own_line_in_the_log():
    w = world(without(5), *all_waited(2, 5), told(5, 1, 1))
    assert not w.fact("waits.roots").known
    found = w.fact("waits.by_logs")
    assert ranks_of(found) == [5] and not found.contradicted_by
    assert found.parts[0].node == "gpu003" and "had enqueued 1" in found.parts[0].why
    assert {p.probe for p in found.provenance} == {"flight_recorder", "joblog"}


def test_of_two_ranks_without_a_record_the_log_tells_which_has_not_come():
    w = world(without(4, 5), *all_waited(2, 5), told(5, 1, 1))
    assert ranks_of(w.fact("waits.possible")) == [4, 5]
    assert ranks_of(w.fact("waits.by_logs")) == [5]


def test_a_log_that_places_nobody_leaves_it_unknown_and_says_so():
    for lines in ((), all_waited(2, 5)):
        found = world(without(5), *lines).fact("waits.by_logs")
        assert not found.known and "neither the job log nor RAS" in found.reason


def test_a_log_that_places_a_rank_whose_record_shows_that_it_had_come_is_no_answer():
    w = world(without(5), *all_waited(2, 6), told(6, 1, 1))
    found = w.fact("waits.by_logs")
    assert not found.known and "rank 6 had not come, though the records show otherwise" in found.reason


def test_where_the_records_name_a_rank_themselves_the_log_adds_nobody_and_agrees():
    w = world({**without(), 5: LATE}, *all_waited(2, 5), told(5, 1, 1))
    assert w.fact("waits.by_logs").value == 0
    assert ranks_of(w.fact("waits.roots")) == [5] and w.fact("waits.roots").contradicted_by == ()


def test_a_log_that_names_another_rank_than_the_records_is_a_contradiction():
    w = world({**without(), 5: LATE}, *all_waited(2, 6), told(6, 1, 1))
    found = w.fact("waits.roots")
    assert ranks_of(found) == [5]
    assert found.contradicted_by == (
        "the watchdogs' lines, by which rank 6 had not come", "the watchdog of rank 5, which gave up waiting itself",
    )  # fmt: skip


def test_a_rank_that_has_nothing_open_by_its_record_and_gave_up_waiting_itself_is_doubted():
    w = world({**without(), 5: LATE}, *all_waited(2))
    assert w.fact("waits.roots").contradicted_by == ("the watchdog of rank 5, which gave up waiting itself",)


def test_a_rank_stuck_on_its_device_gives_up_waiting_like_its_peers_and_is_not_doubted_for_it():
    ahead = ["0 1 all_reduce", "0 2 all_reduce", "0 3 all_reduce open"]
    stuck = ["0 1 all_reduce", "0 2 all_reduce open", "0 3 all_reduce open"]
    w = world({**dict.fromkeys(EIGHT, ahead), 6: stuck}, *all_waited(3, 6), *waited(6, 2, 3, 1))
    assert ranks_of(w.fact("waits.roots")) == [6]
    assert w.fact("waits.roots").contradicted_by == ()


@pytest.mark.parametrize("silent", [True, False])
def test_a_log_without_watchdogs_lines_is_no_witness_for_or_against(silent):
    w = world({**without(), 5: LATE}, *([] if silent else ["a line of the program"]))
    assert w.fact("waits.roots").contradicted_by == ()


# ---------------------------------------------------------------- the verdict


def judged(programs, *lines):
    """(cause, accused, leads) of a job whose steps ended ten minutes before its watchdogs gave up."""
    w = World().processes().fabric(0)
    if programs is not None:
        add_dumps(w, programs, lib="2.27.5")
    w.samples.append(log_sample([*steps(1, 20, GAVE_UP - 601), *lines]))
    found = report(w)
    return found.verdict.cause, [part.rank for part in found.culprits], [lead.cause for lead in found.alternatives]


def test_records_that_lack_one_rank_and_the_line_that_places_it_name_it_together():
    cause, accused, _ = judged(without(5), *all_waited(2, 5), told(5, 1, 1))
    assert (cause, accused) == ("stuck_rank/not_arrived", [5])


def test_the_watchdogs_lines_alone_name_nobody_and_leave_a_lead():
    cause, accused, leads = judged(None, *all_waited(2, 5), told(5, 1, 1))
    assert accused == [] and cause.startswith("inconclusive/") and "stuck_rank/not_arrived" in leads


def test_another_source_agrees_where_the_records_could_be_explained_by_that_very_rank():
    w = world(without(5), *all_waited(2, 5), told(5, 1, 1))
    assert ranks_of(w.fact("watchdog.agreed")) == [5]
    told_by = {source.probe for source in w.fact("watchdog.agreed").provenance}
    assert told_by == {"flight_recorder", "joblog"}


def test_the_lines_alone_are_agreed_with_by_nobody():
    w = World().processes()
    w.samples.append(log_sample([*all_waited(2, 5), told(5, 1, 1)]))
    assert ranks_of(w.fact("watchdog.not_come")) == [5]
    found = w.fact("watchdog.agreed")
    assert not found.known and "no other source points at rank 5" in found.reason
