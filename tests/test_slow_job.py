"""The slow-job playbook on written evidence: what is said of a job that advances."""

import random
import sys
from importlib import resources
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "facts"))
from written_evidence import World, limits

from triage.facts import registry
from triage.investigate import probe_names
from triage.tree.load import load_set
from triage.tree.walk import walk


def concluded(world):
    names = ("frozen-job", "slow-job")
    texts = {f"{n}.yaml": (resources.files("triage.playbooks") / f"{n}.yaml").read_text() for n in names}
    books = load_set(texts, registry.catalogue(), probe_names())
    return walk(books, registry.compute(world.evidence()), limits(), can_ask=False)


def moving(step_s, elapsed, compute):
    """A job of 8 ranks that makes steps; `compute(rank, i)` is each rank's compute time."""
    world = World(window=8.0).processes().fabric(1e6)
    world.log(step_s=step_s, steps=len(elapsed), elapsed=elapsed, last_ago=0.2)
    return world.steps(compute, lambda rank, i: 5.0, n=40)


@pytest.mark.parametrize(
    ("elapsed", "cause"),
    [
        ([0.1] * 200, "healthy/advancing"),
        ([0.1] * 150 + [0.12] * 50, "healthy/slower_lately"),  # six seconds of a busy machine
        ([0.5] * 300 + [0.6] * 200, "slow_everywhere/alike"),  # two minutes of +20 %
        ([0.5] * 300 + [0.51] * 200, "healthy/advancing"),  # +2 % is the day's swing
        ([0.6] * 200 + [0.5] * 200, "healthy/advancing"),  # it began slow and has got better
    ],
)
def test_a_whole_job_is_slow_only_when_it_lasts(elapsed, cause):
    found = concluded(moving(elapsed[-1], elapsed, lambda rank, i: 90.0 + (rank * 7 + i * 3) % 5 * 0.2))
    assert found.verdict.cause == cause
    assert not found.culprit_parts


def wandering(rng, share, factor, n=200, usual=0.2):
    """Step times of which a share is much longer, at random places, as packets that are lost make them."""
    return [usual * (rng.uniform(2.5, factor) if rng.random() < share else rng.uniform(0.97, 1.03)) for _ in range(n)]


@pytest.mark.parametrize("seed", range(10))
def test_a_job_whose_steps_are_often_far_longer_than_usual_is_not_said_to_just_advance(seed):
    rng = random.Random(seed)
    elapsed = [0.2] * 20 + wandering(rng, 0.3, 20.0, n=100)
    found = concluded(moving(0.2, elapsed, lambda rank, i: 90.0 + (rank * 7 + i * 3) % 5 * 0.2))
    assert found.verdict.cause in ("healthy/uneven", "slow_everywhere/alike", "healthy/slower_lately")
    assert not found.culprit_parts and found.verdict.cause != "healthy/advancing"


@pytest.mark.parametrize(
    "elapsed",
    [
        ([0.2] * 49 + [60.0]) * 4,  # a checkpoint
        ([0.2] * 99 + [30.0]) * 2,  # an evaluation
        [0.2 * (1 + 0.15 * ((i * 7) % 10) / 10) for i in range(200)],  # lengths of sequences
        [0.2] * 20,
    ],
)
def test_checkpoints_evaluations_and_uneven_batches_are_no_uneven_job(elapsed):
    found = concluded(moving(0.2, elapsed, lambda rank, i: 90.0 + (rank * 7 + i * 3) % 5 * 0.2))
    assert found.verdict.cause == "healthy/advancing"


def test_a_slow_rank_is_named_however_short_it_has_been_slow():
    found = concluded(moving(0.5, [0.5] * 30 + [0.568] * 20, lambda rank, i: 568.0 if rank == 5 else 500.0))
    assert found.verdict.cause == "straggler/compute"
    assert [part.rank for part in found.culprit_parts] == [5]
