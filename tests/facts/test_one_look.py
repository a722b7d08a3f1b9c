"""One look (frozen-job --looks 1): what takes two is unknown; a dated step that ended since we began is progress."""

from __future__ import annotations

import pytest
from written_evidence import NOW, World

from triage.facts import registry
from triage.model import Sample

BEGAN = NOW - 2.0


def glance(world, **clocks):
    """The world as one look from BEGAN to NOW shows it; `clocks`: how far a node's clock is ahead of ours."""
    kept = []
    for sample in world.samples:
        ahead = clocks.get(sample.node, 0.0)
        if sample.probe == "contact":
            kept.append(
                Sample("contact", sample.node, "A", sample.status, sample.data, at=BEGAN + ahead, received=BEGAN)
            )
        elif sample.look == "A" or sample.probe in ("steps", "joblog"):
            at = NOW + ahead if sample.node else None
            kept.append(Sample(sample.probe, sample.node, "A", "ok", sample.data, at=at, received=NOW))
    world.samples = kept
    return world


def world(**more):
    return World(nodes=2, per_node=2, **more).processes()


def advancing(made):
    return made.fact("progress.advancing")


def records(last_ago, ranks=None, kind="records", ahead=None):
    """Step records whose newest step ended `last_ago` s before NOW; `ahead`: node -> how far its clock is ahead."""
    made = world()
    made.steps(lambda rank, step: 900.0, last_ago=last_ago, ranks=ranks)
    for sample in made.samples:
        if sample.probe == "steps":
            for entry in sample.data["ranks"]:
                entry["kind"] = kind
                entry["last_at"] += (ahead or {}).get(sample.node, 0.0)
    return glance(made, **(ahead or {}))


def test_a_step_that_ended_after_we_began_to_look_is_progress_and_the_text_says_so():
    fact = advancing(records(1.0))
    assert fact.value is True
    assert fact.text == "steps of 4 ranks ended after this run began to look, by their records"
    assert {p.node for p in fact.provenance} >= {"gpu001", "gpu002"}


def test_a_step_that_ended_just_before_we_began_is_none():
    assert advancing(records(2.1)).value is None


@pytest.mark.parametrize("ahead", [-7200.0, 0.4, 30.0, 7200.0])
@pytest.mark.parametrize(("last_ago", "answer"), [(1.0, True), (2.1, None)])
def test_records_are_judged_by_the_clock_of_the_node_that_wrote_them_however_wrong_it_is(ahead, last_ago, answer):
    assert advancing(records(last_ago, ahead={"gpu001": ahead, "gpu002": -ahead})).value is answer


def test_a_record_of_the_future_is_no_step_that_ended():
    assert advancing(records(-0.5)).value is None


def test_a_minority_of_ranks_that_claims_a_step_is_not_believed():
    made = records(100.0)
    sample = next(s for s in made.samples if s.probe == "steps")
    sample.data["ranks"][0]["last_at"] = NOW - 1.0
    assert advancing(made).value is not True


def test_the_time_of_a_file_with_plain_numbers_dates_no_step():
    assert advancing(records(1.0, kind="numbers")).value is None


def test_with_a_second_look_only_what_rose_between_the_looks_counts():
    made = records(1.0)
    made.samples.append(Sample("ranks", "gpu001", "B", "timeout", {}))
    assert advancing(made).value is None


def test_a_stall_that_is_long_enough_is_no_progress_by_its_age_also_with_one_look():
    fact = advancing(glance(world().log(last_ago=900.0)))
    assert fact.value is False and "no step for 900s" in fact.text


def test_one_look_at_a_quiet_fabric_is_no_stall_and_at_a_busy_one_no_progress():
    for rate in (0, 10_000_000):
        made = glance(world().fabric(rate))
        assert advancing(made).value is None
        assert "one look" in advancing(made).reason


# ---------------------------------------------------------------- the job log


def test_a_step_that_the_log_dates_after_our_beginning_is_progress():
    fact = advancing(glance(world().log(step_s=1.0, steps=20, last_ago=0.5)))
    assert fact.value is True
    assert fact.text == "step 20 ended after this run began to look, by its date in the job log"


@pytest.mark.parametrize(("dated", "answer"), [(1.0, None), (8.0, None), (9.0, True), (11.0, None)])
def test_a_log_of_a_node_whose_clock_is_ahead_does_not_make_old_steps_new(dated, answer):
    # gpu002 is 10 s ahead and may have printed it; we began at -2. What it dates 11 s from now has not happened yet.
    made = glance(world().log(step_s=1.0, steps=20, last_ago=-dated), gpu002=10.0)
    assert advancing(made).value is answer


def test_while_the_clock_of_one_node_is_not_known_the_log_dates_nothing():
    made = world()
    made.skip_nodes = {"gpu002"}
    made.samples = [s for s in made.samples if s.node != "gpu002"]
    made.add("contact", "gpu002", "A", {"phase": "tcp", "error": "timed out"}, status="timeout")
    made.log(step_s=1.0, steps=20, last_ago=0.5)
    assert advancing(glance(made)).value is None


def test_a_log_whose_zone_is_not_known_dates_nothing():
    made = world().log(step_s=1.0, steps=20, last_ago=0.5, zone="unknown")
    for sample in made.samples:
        if sample.probe == "joblog":
            sample.data["mtime"] = NOW - 7200.0
    assert advancing(glance(made)).value is None


# ---------------------------------------------------------------- what takes two looks


@pytest.mark.parametrize("name", ["hosts.lost", "links.flapped"])
def test_what_takes_two_looks_is_unknown(name):
    fact = registry.other(glance(world().fabric(0)).evidence(), name)
    assert not fact.known and fact.reason


def test_the_report_says_that_there_was_one_look():
    fact = glance(world()).fact("seen.looks")
    assert fact.value == 1 and fact.text == "the nodes were looked at once"
