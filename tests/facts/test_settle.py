"""Random jobs that hang, whose victims have died or were stopped since: what the dumps and the process list say together."""

from __future__ import annotations

import random
from collections import Counter
from functools import lru_cache

import collective_recorder as recorder
import collective_simulator as simulator
import pytest
from collective_machine import Machine
from triage.probes import _records as probe

from triage.facts.collectives import decode
from triage.facts.moments import behind
from triage.facts.settle import settle


@lru_cache
def cases(count=150):
    """(rng, job, fault, guilty rank or None, records of all ranks) of the jobs that hang; every fifth ring has wrapped."""
    found = []
    for seed in range(count):
        rng, ring = random.Random(seed), 40 if seed % 5 == 0 else 2000
        job, fault = simulator.make_job(rng), rng.choice(simulator.FAULTS)
        if not simulator.break_job(job, fault, rng):
            continue
        machine = Machine(job).run()
        if machine.hung():
            dumps = {
                r: recorder.dump(job, r, machine.enqueued[r], ring=ring, first=1 if ring < 2000 else 0)
                for r in job.programs
            }
            records = {r: {**probe.reduce_dump(d, r), "lib": "2.27.5"} for r, d in dumps.items()}
            found.append((rng, job, fault, job.truth.get("rank"), records))
    return found


def without(records, *ranks):
    return {rank: record for rank, record in records.items() if rank not in ranks}


def test_dumps_of_one_moment_are_never_taken_for_dumps_of_several():
    for _, job, fault, _, records in cases():
        everybody = decode(records, job.ranks)
        assert behind(everybody, ()) == {} == behind(everybody, set(records)), (fault, job.truth)


@pytest.mark.parametrize("kind", ["dead", "stopped"])
def test_the_one_rank_that_can_do_nothing_is_always_the_root_when_no_dump_says_otherwise(kind):
    seen = 0
    for _, job, fault, guilty, records in cases():
        if fault in ("dead", "stopped"):
            seen += 1
            picture = settle(decode(without(records, guilty), job.ranks), {}, {guilty: kind})
            assert picture.roots == {guilty: kind} and not picture.rivals, job.truth
    assert seen > 20


def test_a_victim_that_ended_after_the_stall_is_never_a_root():
    for rng, job, fault, guilty, records in cases():
        victim = rng.choice([rank for rank in job.programs if rank != guilty])
        lost = [guilty, victim] if fault in ("dead", "stopped") else [victim]
        perhaps = {guilty: fault} if fault in ("dead", "stopped") else {}
        assert victim not in settle(decode(without(records, *lost), job.ranks), {}, perhaps).roots, job.truth


def test_a_stopped_victim_takes_no_blame_from_a_rank_that_stands_on_the_host_side():
    count: Counter[str] = Counter()
    for rng, job, fault, guilty, records in cases():
        if fault == "host":
            victim = rng.choice([rank for rank in job.programs if rank != guilty])
            picture = settle(decode(without(records, victim), job.ranks), {}, {victim: "stopped"})
            count["named" if set(picture.roots) == {guilty} else "other"] += 1
            assert victim not in picture.roots or guilty in picture.rivals
    assert count["named"] > 10 * count["other"]


def test_a_stopped_member_of_a_circle_is_mostly_not_taken_for_its_cause():
    count: Counter[str] = Counter()
    for _, job, fault, guilty, records in cases():
        if fault == "swap":
            whole = settle(decode(records, job.ranks), {}, {})
            for other in {rank for one in whole.cycles for rank in one} - {guilty}:
                picture = settle(decode(without(records, other), job.ranks), {}, {other: "stopped"})
                count["accused" if other in picture.roots else "open"] += 1
                assert other in picture.roots or not set(picture.out_of_order) - {guilty}
    assert count["open"] > 4 * count["accused"], count
