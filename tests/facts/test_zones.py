"""A log's zone is believed only as long as no second source contradicts it; then its times have no order against others'."""

from __future__ import annotations

import pytest
from written_evidence import NOW, World, limits
from written_logs import log_sample, step
from written_watchdogs import GAVE_UP, waited

from triage.facts.clocks import log_shift, log_time, zones_checked
from triage.facts.evidence import Evidence
from triage.facts.exits import first_timeout
from triage.facts.registry import other
from triage.model import Sample

HOUR = 3600.0


def world():
    w = World()
    w.processes()
    return w


def records(last_step, last_at):
    """Step records as the ranks themselves keep them, by their node's clock."""
    rows = [{"rank": 0, "last_step": last_step, "last_at": last_at, "columns": {}}]
    return Sample("steps", "gpu001", "B", "ok", {"ranks": rows}, at=NOW - 0.2, received=NOW - 0.2)


def flight_record(seq, at):
    rows = [{"rank": 0, "record": {"v": 2, "groups": [], "open": [{"g": 0, "seq": seq, "at": at, "sig": 0}]}}]
    return Sample("flight_recorder", "gpu001", "C", "ok", {"ranks": rows}, at=NOW - 0.2, received=NOW - 0.2)


def evidence(log, *more):
    w = world()
    return Evidence(w.job, [*w.samples, log, *more], NOW, limits())


def test_a_log_that_agrees_with_the_ranks_own_records_keeps_its_times():
    log = log_sample([step(99, NOW - 61), step(100, NOW - 60)])
    ev = evidence(log, records(100, NOW - 60.2))
    assert ev.derive(log_shift) == pytest.approx(0.0, abs=3) and log_time(ev, NOW - 60) == pytest.approx(
        NOW - 60, abs=3
    )


def test_a_log_whose_steps_lie_an_hour_off_the_ranks_own_records_loses_its_times():
    log = log_sample([step(99, NOW - 61 + HOUR), step(100, NOW - 60 + HOUR)])
    ev = evidence(log, records(100, NOW - 60.2))
    assert ev.derive(log_shift) is None and log_time(ev, NOW - 60) is None
    told = next(s for s in ev.samples if s.probe == "joblog")
    assert any("h off those of the ranks' own records" in note for note in told.notes)


def test_a_log_whose_watchdogs_began_to_wait_hours_before_anybody_enqueued_loses_its_times():
    log = log_sample(waited(0, 78, at=GAVE_UP))
    good = evidence(log, flight_record(78, GAVE_UP - 600))
    assert good.derive(log_shift) is not None
    bad = evidence(log, flight_record(78, GAVE_UP - 600 + 2 * HOUR))
    assert bad.derive(log_shift) is None
    # What the lines say of each other stays true.
    assert {part.rank for part in other(bad, "watchdog.table").parts} == {0}
    assert first_timeout(bad) is None and first_timeout(good) == pytest.approx(GAVE_UP - 600, abs=3)


def test_a_step_that_was_made_twice_is_compared_with_the_nearer_one():
    log = log_sample([step(100, NOW - 5000), step(90, NOW - 300), step(100, NOW - 60)])
    assert evidence(log, records(100, NOW - 60.2)).derive(log_shift) is not None


def test_another_steps_time_says_nothing_of_the_zone():
    log = log_sample([step(100, NOW - 60 + HOUR)])
    assert evidence(log, records(57, NOW - 60.2)).derive(log_shift) is not None


def test_samples_without_a_second_source_are_handed_on_untouched():
    samples = [log_sample([step(100, NOW - 60)]), Sample("reach", "gpu001", "A", "ok", {})]
    assert all(a is b for a, b in zip(zones_checked(samples), samples))
