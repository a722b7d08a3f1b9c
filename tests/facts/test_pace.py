"""Who is slow? Only compute times may name a rank, and only when its peers were compared."""

import random

import pytest
from written_evidence import World

from triage.facts.pace import present_step


def compute(slow_rank=5, factor=1 / 0.88, noise=0.005, seed=1, base=500.0):
    rng = random.Random(seed)
    return lambda rank, i: base * (factor if rank == slow_rank else 1) * (1 + rng.gauss(0, noise))


def waiting(slow_rank=5):
    return lambda rank, i: 3.0 if rank == slow_rank else 70.0


def slow(world):
    return [part.rank for part in world.fact("pace.slow").parts]


def test_between_the_looks_there_is_time_for_three_steps_as_they_come_and_not_as_the_usual_one_is():
    even, uneven = World().processes(), World().processes()
    even.log(step_s=0.2, steps=60, elapsed=[0.2] * 60)
    uneven.log(step_s=0.2, steps=60, elapsed=[0.2, 0.2, 0.2, 3.0] * 15)
    assert even.evidence().derive(present_step) == pytest.approx(0.2)
    assert uneven.evidence().derive(present_step) == pytest.approx(0.9)
    assert World().evidence().derive(present_step) is None


def test_a_rank_at_88_percent_computes_13_6_percent_longer_and_is_named():
    world = World().processes().steps(compute(), waiting())
    assert slow(world) == [5]
    assert world.fact("pace.slow_ratio").value == pytest.approx(1 / 0.88, rel=0.01)
    assert "shortest collective time" in world.fact("pace.slow").text
    assert sorted(p.rank for p in world.fact("pace.slow_peers").parts) == [0, 1, 2, 3, 4, 6, 7]


def test_whole_step_times_alone_name_nobody_and_say_why():
    world = World().processes()
    ranks = [
        {"rank": r, "last_step": 9, "columns": {"step": list(range(20)), "total_ms": [1000.0 + 9 * r] * 20}}
        for r in range(8)
    ]
    world.add("steps", "gpu001", "B", {"ranks": ranks})
    fact = world.fact("pace.slow")
    assert fact.value is None and "equal on all ranks" in fact.reason


def test_healthy_ranks_name_nobody():
    for seed in range(30):
        assert slow(World().processes().steps(compute(factor=1.0, noise=0.007, seed=seed), waiting())) == []


def test_three_percent_is_silence():
    assert slow(World().processes().steps(compute(factor=1.03, noise=0.002), waiting())) == []


def test_nine_steps_are_too_few():
    assert World().processes().steps(compute(), waiting(), n=9).fact("pace.slow").value is None


def test_a_rank_that_became_slow_a_few_steps_ago_is_not_diluted():
    rng = random.Random(3)

    def began_late(rank, i):
        return 500.0 * (1.136 if rank == 5 and i >= 30 else 1) * (1 + rng.gauss(0, 0.004))

    assert slow(World().processes().steps(began_late, waiting(), n=44)) == [5]


def test_one_spike_is_not_a_straggler():
    def spike(rank, i):
        return 5000.0 if rank == 5 and i == 10 else 500.0

    assert slow(World().processes().steps(spike, waiting())) == []


def test_a_slow_rank_that_changes_every_step_is_nobody():
    def rotating(rank, i):
        return 700.0 if rank == i % 8 else 500.0

    world = World().processes().steps(rotating)
    assert slow(world) == []
    assert world.fact("pace.moving").value is True


def test_a_slow_rank_that_waits_as_long_as_the_others_is_contradicted():
    world = World().processes().steps(compute(), lambda rank, i: 90.0 if rank == 5 else 20.0)
    assert world.fact("pace.slow").contradicted_by


def test_missing_ranks_leave_the_comparison_open():
    world = World().processes().steps(compute(), waiting(), ranks=range(4))
    assert "only 4 of 8 ranks" in world.fact("pace.slow").reason


def test_the_whole_step_and_the_loss_are_told_as_what_they_are():
    elapsed = [0.5] * 100 + [0.568] * 60
    world = World().processes().log(step_s=0.5, steps=160, elapsed=elapsed)
    fact = world.fact("pace.increase")
    assert fact.value == pytest.approx(0.136, abs=0.001)
    assert "+13.6%" in fact.text and "output -12.0%" in fact.text


def test_steps_of_an_earlier_attempt_in_the_same_log_do_not_count():
    world = World().processes().log(steps=30, last_ago=1.0)
    data = dict(world.samples[-1].data)
    old = [[n, world.b - 5000 + n, 100.0] for n in range(400, 440)]
    data["iterations"] = {"series": old + data["iterations"]["series"]}
    world.samples.pop()
    world.add("joblog", "", "B", data)
    assert world.fact("pace.t0_s").value == pytest.approx(1.0)


def test_a_pace_that_wobbled_for_seconds_is_told_with_its_length():
    wobble = World().processes().log(step_s=0.1, steps=80, elapsed=[0.1] * 50 + [0.115] * 30)
    assert wobble.fact("pace.slow_for_s").value == pytest.approx(3.45)
    steady = World().processes().log(step_s=0.1, steps=80)
    assert steady.fact("pace.slow_for_s").value == 0.0
    faster = World().processes().log(step_s=0.1, steps=80, elapsed=[0.12] * 40 + [0.1] * 40)
    assert faster.fact("pace.slow_for_s").value == 0.0
