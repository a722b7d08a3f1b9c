"""When did the pace change? (notes/straggler-and-cost.md 2.6)"""

import random

from triage.facts.onset import change, segments


def series(rng, *levels, spikes=0.01):
    out = []
    for level, count in levels:
        for _ in range(count):
            value = level * (1 + rng.gauss(0, 0.02))
            out.append(value * (rng.uniform(1.5, 6) if rng.random() < spikes else 1))
    return out


def test_a_steady_job_with_spikes_shows_no_change():
    rng = random.Random(1)
    false_alarms = sum(change(series(rng, (1.0, 200))).changed for _ in range(100))
    assert false_alarms == 0


def test_a_straggler_of_88_percent_is_found_at_its_first_step():
    rng, hits, errors = random.Random(2), 0, []
    for _ in range(50):
        found = change(series(rng, (0.5, 100), (0.5 / 0.88, 100)))
        hits += found.changed
        errors.append(abs(found.since - 100))
        assert abs(found.increase - 0.136) < 0.03 or not found.changed
    assert hits >= 48
    assert sorted(errors)[len(errors) // 2] <= 2


def test_sixteen_healthy_and_fourteen_slow_steps_are_enough():
    rng = random.Random(3)
    assert all(change(series(rng, (0.5, 16), (0.568, 14), spikes=0)).changed for _ in range(20))


def test_healthy_is_the_fastest_stretch_and_not_the_first():
    rng = random.Random(4)
    found = change(series(rng, (1.3, 40), (1.0, 40), (1.3, 40)))
    assert abs(found.healthy - 1.0) < 0.03 and abs(found.now - 1.3) < 0.05


def test_one_step_of_ten_times_is_a_stall_and_no_onset():
    values = [1.0] * 60
    values[30] = 10.0
    assert not change(values).changed


def test_nine_steps_say_nothing():
    assert change([1.0] * 9) is None


def test_a_return_to_health_ends_at_the_healthy_level():
    rng = random.Random(5)
    found = segments(series(rng, (1.0, 60), (1.5, 60), (1.0, 60), spikes=0))
    assert len(found) == 3 and abs(found[-1].level - found[0].level) < 0.03
