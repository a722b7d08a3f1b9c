"""Rent that goes on from look to look, history that feeds the hint, and what a second report says."""

from dataclasses import replace
from importlib import resources

import pytest

from triage import memory
from triage.cost.options import measure
from triage.cost.profile import load_profile
from triage.cost.request import PlanRequest
from triage.recalled import continued, durations

COSTS = (resources.files("triage.playbooks") / "costs.yaml").read_text()
PROFILE = load_profile(COSTS)
T = 1_796_000_000.0


def remembered(**incident):
    base = {
        "onset": T - 3600,
        "opened": T - 3500,
        "seen": T - 600,
        "state": "slow",
        "rent_job_min": 12.0,
        "rent_at": T - 600,
    }
    return memory.bounded({"incident": {**base, **incident}})


def slow(**changed):
    base = PlanRequest(
        "straggler", "price", "slow", "high", "slow", T, 4, 8, kind="compute", onset=T - 300, t0_s=1.0, t1_s=1.25
    )
    return replace(base, **changed)


def test_rent_goes_on_from_what_an_earlier_look_counted():
    loss = measure(continued(slow(onset=T - 3600), remembered(), PROFILE))
    assert loss.rent.value == pytest.approx(12.0 + 10 * 0.2), "12 until ten minutes ago, a fifth of each minute since"
    assert loss.elapsed_min == 60.0


def test_a_log_that_begins_after_the_onset_does_not_reset_onset_or_rent():
    request = continued(slow(onset=T - 300), remembered(), PROFILE)
    assert request.onset == T - 3600
    assert measure(request).rent.value >= 12.0
    assert continued(slow(onset=None), remembered(), PROFILE).onset == T - 3600


def test_a_look_that_counts_more_than_the_record_is_believed():
    series = tuple((T - 3600 + 2.0 * i, 2000.0) for i in range(1800))
    alone = measure(slow(onset=T - 3600, series=series, t1_s=2.0)).rent.value
    both = measure(continued(slow(onset=T - 3600, series=series, t1_s=2.0), remembered(), PROFILE)).rent.value
    assert alone == pytest.approx(30.0, abs=0.1) and both == alone


def test_a_job_that_moved_since_it_last_froze_owes_nothing_of_the_old_stall():
    request = slow(fail="stop", state="frozen", mitigate="wait", onset=T - 100, kind=None)
    assert continued(request, remembered(state="frozen"), PROFILE).paid is None
    same = continued(replace(request, onset=T - 700), remembered(state="frozen"), PROFILE)
    assert same.onset == T - 3600 and same.paid == (T - 600, 12.0)


def test_a_record_from_the_future_or_of_a_healthy_job_changes_no_price():
    assert continued(slow(), remembered(rent_at=T + 50), PROFILE).paid is None
    healthy = slow(verdict_id="healthy", mitigate="none", fail="none", state="running")
    assert continued(healthy, remembered(), PROFILE) == healthy


def test_history_speaks_from_five_incidents_of_a_class_and_never_over_the_site():
    four = memory.bounded({"durations": [["compute", 8, 10, 20]] * 4})
    assert durations(four, PROFILE) == {}
    five = memory.bounded(
        {"durations": [["compute", 8, 10, 20]] * 5 + [["network", 1024, 50, 70]] * 5 + [["frozen", 8, 1, 1]] * 9}
    )
    told = durations(five, PROFILE)
    assert (told["duration_compute_min"].value, told["duration_compute_min"].low) == (15.0, 10.0)
    assert told["duration_large_min"].value == 60.0 and "duration_network_min" not in told
    assert told["duration_compute_min"].source == "history"
    own = load_profile(COSTS, "costs: {duration_compute_min: 3}")
    assert set(durations(five, own)) == {"duration_large_min"}


def test_costs_of_a_case_older_than_the_record_take_no_history():
    old = replace(PROFILE, quantities={k: v for k, v in PROFILE.quantities.items() if k != "history_least"})
    assert durations(memory.bounded({"durations": [["compute", 8, 10, 20]] * 9}), old) == {}
