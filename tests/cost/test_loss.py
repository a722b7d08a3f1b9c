"""Rent: what a slowdown has cost so far (notes/straggler-and-cost.md 3.1, 3.8)."""

from __future__ import annotations

import pytest

from triage.cost.escalate import break_even
from triage.cost.loss import accumulated, gpu_hours, lost_fraction, lost_minutes, step_increase

ONSET = 1_795_914_720.0  # 2026-11-29T01:12:00Z


def steps(n: int, step_s: float, start: float = ONSET) -> list[tuple[float | None, float]]:
    return [(start + step_s * (i + 1), step_s * 1000.0) for i in range(n)]


def test_88_percent_speed_makes_steps_13_64_percent_longer_and_output_12_percent_lower() -> None:
    x = step_increase(1.0, 1.0 / 0.88)
    assert x == pytest.approx(0.1364, abs=5e-5)
    assert lost_fraction(x) == pytest.approx(0.12)


def test_takes_12_percent_longer_is_not_12_percent_of_the_output() -> None:
    assert lost_fraction(0.12) == pytest.approx(0.107, abs=5e-4)


@pytest.mark.parametrize(
    ("increase", "s", "cost_72", "for_100", "for_25", "for_half"),
    [
        (0.12, 0.107, 7.71, 933, 233, 4.67),
        (1 / 0.88 - 1, 0.120, 8.64, 833, 208, 4.17),
        (17.1 / 14.8 - 1, 0.135, 9.68, 744, 186, 3.72),
        (44 / 37 - 1, 0.159, 11.45, 629, 157, 3.14),
        (0.3459, 0.257, 18.50, 389, 97, 1.95),
        (1.0, 0.500, 36.0, 200, 50, 1.00),
    ],
)
def test_the_table_of_losses_and_break_evens(
    increase: float, s: float, cost_72: float, for_100: float, for_25: float, for_half: float
) -> None:
    lost = lost_fraction(increase)
    assert lost == pytest.approx(s, abs=6e-4)
    assert lost_minutes(lost, 72) == pytest.approx(cost_72, abs=0.01)
    assert break_even(100, lost, 0) == pytest.approx(for_100, abs=0.6)
    assert break_even(25, lost, 0) == pytest.approx(for_25, abs=0.6)
    assert break_even(0.5, lost, 0) == pytest.approx(for_half, abs=0.006)


def test_a_frozen_job_loses_every_minute_and_100_minutes_is_its_break_even_only() -> None:
    assert lost_minutes(1.0, 72) == 72
    assert break_even(100, 1.0, 0.0) == 100


def test_money_of_512_gpus() -> None:
    assert gpu_hours(0.12 * 60, 512) == pytest.approx(61.4, abs=0.05)
    assert gpu_hours(8.64, 512) * 2.5 == pytest.approx(184, abs=0.5)
    assert gpu_hours(110, 512) * 2.5 == pytest.approx(2347, abs=1)
    assert gpu_hours(25, 512) * 2.5 == pytest.approx(533, abs=1)
    assert gpu_hours(0.5, 512) * 2.5 == pytest.approx(10.67, abs=0.01)


def test_rent_is_the_exact_sum_over_the_steps_since_onset() -> None:
    series = steps(100, 1.0, ONSET - 100) + steps(100, 1.2)
    rent = accumulated(series, 1.0, ONSET, ONSET + 120.0, lost_fraction(0.2))
    assert rent.value == pytest.approx(100 * 0.2 / 60)
    assert rent.how == "sum over steps since onset"


def test_steps_before_the_onset_and_faster_steps_do_not_lower_the_rent() -> None:
    series = [*steps(10, 5.0, ONSET - 50.1), (ONSET + 1.2, 1200.0), (ONSET + 1.7, 500.0)]
    rent = accumulated(series, 1.0, ONSET, ONSET + 1.7, 0.1)
    assert rent.value == pytest.approx(0.2 / 60)


def test_a_log_that_begins_after_the_onset_is_filled_at_the_same_rate_and_bounded_below_by_what_was_seen() -> None:
    late = steps(100, 1.25, ONSET + 1000)
    rent = accumulated(late, 1.0, ONSET, ONSET + 1125, 0.2)
    assert rent.value == pytest.approx((1000 * 0.2 + 100 * 0.25) / 60)
    assert rent.low == pytest.approx(100 * 0.25 / 60)
    assert "rest at the same rate" in rent.how


def test_a_log_line_that_is_the_mean_of_100_steps_counts_100_times() -> None:
    series = [(ONSET + 120.0 * (i + 1), 1200.0) for i in range(10)]
    rent = accumulated(series, 1.0, ONSET, ONSET + 1200, 1 / 6, steps_per_point=100)
    assert rent.value == pytest.approx(1000 * 0.2 / 60)


def test_a_log_without_dates_is_priced_by_time() -> None:
    rent = accumulated([(None, 1200.0)] * 50, 1.0, ONSET, ONSET + 600, 0.12)
    assert rent.value == pytest.approx(1.2)


def test_a_log_whose_clock_is_wrong_never_loses_more_than_the_time_that_passed() -> None:
    crowded = [(ONSET + i * 0.001, 60_000.0) for i in range(100)]
    rent = accumulated(crowded, 1.0, ONSET, ONSET + 60, 0.9)
    assert rent.value is not None and rent.value <= 1.0


def test_an_onset_in_the_future_costs_nothing() -> None:
    assert accumulated([], 1.0, ONSET + 60, ONSET, 0.5).value == 0
