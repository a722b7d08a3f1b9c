"""S4: its price, from which checkpoint, and how long to wait instead (notes/straggler-and-cost.md 3.2, 3.7)."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triage.cost.profile import Quantity
from triage.cost.restart import before_restart, best_wait, price


def exact(value: float) -> Quantity:
    return Quantity(value, value, value, "min", "measured")


UNKNOWN = Quantity(None, None, None, "min")


def test_wait_for_the_next_checkpoint_if_the_last_is_older_than_s_times_the_interval() -> None:
    assert before_restart(0.12, 7.0, 60, None)[0] == "from_last"
    assert before_restart(0.12, 7.4, 60, None)[0] == "wait_next"


@given(st.floats(0.01, 0.99), st.floats(0.0, 60.0))
def test_the_rule_a_greater_than_s_i_is_the_cheaper_way(lost: float, age: float) -> None:
    choice, cost = before_restart(lost, age, 60.0, None)
    assert cost == pytest.approx(min((1 - lost) * age, lost * (60 - age)))
    if abs(age - lost * 60) > 1e-6:
        assert choice == ("wait_next" if age > lost * 60 else "from_last")
    assert cost <= lost * (1 - lost) * 60 + 1e-9  # 6.3 min at s 0.12


def test_the_best_moment_costs_3_2_minutes_on_average_against_26_4_for_always_now() -> None:
    ages = [60 * (i + 0.5) / 600 for i in range(600)]
    assert fmean(before_restart(0.12, a, 60, None)[1] for a in ages) == pytest.approx(3.2, abs=0.05)
    assert fmean(0.88 * a for a in ages) == pytest.approx(26.4, abs=0.01)


def test_a_short_dump_beats_waiting_and_a_long_one_does_not() -> None:
    assert before_restart(0.12, 20, 60, 1.0)[0] == "dump_now"
    assert before_restart(0.12, 20, 60, 100.0)[0] == "wait_next"


def test_the_print_out_restart_is_18_minutes() -> None:
    found = price(lost=0.12, age=exact(35), interval=exact(60), restart=Quantity(15, 5, 40), dump=None, inevitable=True)
    assert found.choice == "wait_next"
    assert found.overhead.value == pytest.approx(18.0)
    assert found.wait_min == pytest.approx(25.0)
    assert (found.overhead.low, found.overhead.high) == (pytest.approx(8.0), pytest.approx(43.0))


def test_a_frozen_job_cannot_dump_whatever_the_framework_can() -> None:
    assert before_restart(1.0, 40, 60, 0.1)[0] == "from_last"


def test_the_work_of_a_dead_job_is_sunk_it_stands_in_the_bill_and_not_in_the_price() -> None:
    found = price(lost=1.0, age=exact(40), interval=exact(60), restart=exact(15), dump=None, inevitable=True)
    assert found.overhead.value == 15
    assert found.work_lost_min == 40
    assert found.sunk


def test_the_work_of_a_job_that_may_heal_is_at_stake() -> None:
    found = price(lost=1.0, age=exact(40), interval=exact(60), restart=exact(15), dump=None, inevitable=False)
    assert found.overhead.value == 55
    assert not found.sunk


def test_an_unknown_age_counts_as_half_the_interval_and_is_still_reported_as_unknown() -> None:
    found = price(lost=1.0, age=UNKNOWN, interval=Quantity(60, 20, 180), restart=exact(15), dump=None, inevitable=False)
    assert found.age_min is None
    assert found.overhead.value == 45
    assert found.overhead.low == 15 and found.overhead.high == 195
    assert found.wait_min is None  # nobody knows when the next checkpoint is due


@pytest.mark.parametrize(
    ("overhead", "row"),
    [
        (8, [12, 7.3, 5.8, 3.8, 2.0, 0, 0, 0]),
        (25, [19, 12, 9.5, 6.5, 4.3, 2.5, 1.0, 0]),
        (110, [28, 19, 15, 11, 7.5, 5.3, 3.3, 0]),
    ],
)
def test_the_best_wait_is_that_of_the_table(overhead: float, row: list[float]) -> None:
    for stuck, expected in zip((0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.99), row):
        assert best_wait(overhead, stuck) == pytest.approx(expected, abs=0.6), stuck


def test_nobody_waits_for_what_is_proven_dead() -> None:
    assert best_wait(110, 1.0) == 0


def test_a_spread_of_zero_in_a_profile_is_no_crash() -> None:
    assert best_wait(25, 0.1, mean=2.0, sigma=0.0) == pytest.approx(2.0, abs=0.2)
