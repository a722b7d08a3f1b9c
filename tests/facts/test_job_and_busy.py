"""Has the job said that it is done, or that it saves? What a line says is over when steps follow it."""

import pytest
from written_evidence import NOW, World

DONE = "training_finished"


def hit(line_no, name=DONE, at=None, text="[after training is done] datetime: 2026-11-30 21:40:01", **more):
    return {"id": name, "at": at, "last_at": at, "count": 1, "line_no": line_no, "prefix": "", "dated": at is not None,
            "text": text, "groups": {}, **more}  # fmt: skip


def world(hits, last_line=900, dated=True, steps=100, last_ago=400):
    """A job whose log has its last step line at `last_line` (None: the probe did not tell)."""
    made = World().processes().log(hits=hits, last_ago=last_ago, steps=steps)
    iterations = made.samples[-1].data["iterations"]
    if last_line is not None:
        iterations["last_line_no"] = last_line
    if not dated:
        for row in iterations["series"]:
            row[1] = None
    return made


def finished(*words, **more):
    return world(*words, **more).fact("job.finished")


def test_without_such_a_line_the_job_has_not_said_it():
    assert finished([]).value is False


@pytest.mark.parametrize("at", [None, NOW - 399, NOW - 3000])
def test_a_line_behind_the_last_step_is_the_end(at):
    fact = finished([hit(901, at=at)])
    assert fact.value is True and "after training is done" in fact.text


@pytest.mark.parametrize("at", [None, NOW - 399, NOW - 3000])
def test_a_line_that_steps_follow_is_not_whatever_its_date(at):
    fact = finished([hit(800, at=at)])
    assert fact.value is False and "steps follow" in fact.text


def test_the_last_of_several_lines_counts():
    assert finished([hit(10), hit(905)]).value is True
    assert finished([hit(10), hit(850)]).value is False


def test_without_line_numbers_the_dates_decide():
    assert finished([hit(50, at=NOW - 399)], last_line=None).value is True
    assert finished([hit(50, at=NOW - 450)], last_line=None).value is False


def test_with_neither_it_is_unknown():
    assert finished([hit(50)], last_line=None).value is None
    assert finished([hit(50, at=NOW - 399)], last_line=None, dated=False).value is None


def test_a_log_without_step_lines_needs_the_records_of_the_ranks():
    made = world([hit(50, at=NOW - 200)], last_line=None, steps=0)
    assert made.fact("job.finished").value is None
    assert made.steps(lambda r, i: 500.0, last_ago=201).fact("job.finished").value is True
    later = world([hit(50, at=NOW - 200)], last_line=None, steps=0).steps(lambda r, i: 500.0, last_ago=20)
    assert later.fact("job.finished").value is False


def test_a_line_dated_before_this_attempt_is_of_another():
    fact = finished([hit(901, at=NOW - 4000)], last_line=100, steps=0)
    assert fact.value is False and "earlier attempt" in fact.text


SAVES = hit(850, "checkpoint_save_begin", text="saving checkpoint at iteration 100")


def busy(hits, **more):
    return world(hits, **more).fact("busy.phase").value


def test_a_phase_is_over_when_it_ends_or_when_steps_follow():
    assert busy([{**SAVES, "line_no": 901}]) == "checkpoint"
    assert busy([{**SAVES, "line_no": 901}, hit(905, "checkpoint_save_end")]) == "none"
    assert busy([SAVES]) == "none"
    assert busy([SAVES, hit(860, "checkpoint_save_end"), {**SAVES, "line_no": 902}]) == "checkpoint"


def test_a_restore_before_the_first_step_is_open():
    assert busy([hit(12, "checkpoint_load_begin")], last_line=None, steps=0) == "restore"
