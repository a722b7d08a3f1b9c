"""One rank in another branch of the program: alone in a collective, and the whole job waits for it elsewhere."""

from __future__ import annotations

import random

import collective_judge
import collective_recorder as recorder
import collective_simulator as simulator
import pytest
from collective_machine import Machine
from triage.probes import _records as probe
from written_records import picture, repeated

from triage.facts.branches import apart
from triage.facts.collectives import decode
from triage.facts.waitgraph import draw

GROUPS = {
    "0": ("default_pg", [0, 1, 2, 3]), "1": ("TP", [0, 1]), "2": ("TP", [2, 3]), "3": ("undefined", [0, 1, 2, 3]),
}  # fmt: skip


def steps(tensor, last=4):
    return [line for n in range(1, last + 1) for line in (f"{tensor} {n} all_reduce", f"0 {n} all_reduce")]


def test_a_rank_that_evaluates_alone_is_told_from_its_tensor_peer_that_waits_for_it_too():
    p = picture(
        {
            0: [*steps("1"), "3 1 all_reduce open"],
            1: [*steps("1"), "1 5 all_reduce open"],
            2: [*steps("2"), "2 5 all_reduce", "0 5 all_reduce open"],
            3: [*steps("2"), "2 5 all_reduce", "0 5 all_reduce open"],
        },
        GROUPS,
    )
    assert p.cycles == [[0, 1, 2, 3]] and apart(p) == 0


def test_an_exception_handler_that_calls_a_barrier_of_its_own_group_is_the_one_apart():
    world = {"0": ("default_pg", [0, 1, 2, 3]), "3": ("gloo_barrier", [0, 1, 2, 3])}
    lines = repeated("0 # all_reduce", 1, 4)
    programs = {rank: [*lines, "0 5 all_reduce open"] for rank in range(4)} | {2: [*lines, "3 1 barrier open"]}
    assert apart(picture(programs, world)) == 2


def test_of_two_that_wait_for_each_other_neither_is_apart():
    world = {"0": ("default_pg", [0, 1]), "3": ("undefined", [0, 1])}
    p = picture({0: ["0 1 all_reduce", "3 1 all_reduce open"], 1: ["0 1 all_reduce", "0 2 all_reduce open"]}, world)
    assert p.cycles == [[0, 1]] and apart(p) is None


def test_two_that_took_the_other_branch_together_are_a_circle_and_nobody_is_apart():
    lines = repeated("0 # all_reduce", 1, 4)
    programs = {rank: [*lines, "0 5 all_reduce open"] for rank in (0, 1)}
    programs |= {rank: [*lines, "3 1 all_reduce open"] for rank in (2, 3)}
    p = picture(programs, GROUPS)
    assert p.cycles == [[0, 1, 2, 3]] and apart(p) is None


def test_a_rank_that_swapped_two_groups_and_met_others_there_is_not_apart():
    p = picture(
        {
            0: [*steps("1"), "0 5 all_reduce open"],
            1: [*steps("1"), "1 5 all_reduce open"],
            2: [*steps("2"), "2 5 all_reduce", "0 5 all_reduce open"],
            3: [*steps("2"), "2 5 all_reduce", "0 5 all_reduce open"],
        },
        GROUPS,
    )
    assert p.cycles == [[0, 1]] and apart(p) is None


def test_in_random_jobs_whoever_is_apart_is_the_broken_rank():
    found = 0
    for seed in range(40_000, 40_240):
        lost = 0.0 if seed % 3 else 0.1
        case = collective_judge.case(seed, wide=seed % 2 == 0, lost=lost, faults=("skip", "swap"))
        if case is None or case.picture is None or (rank := apart(case.picture)) is None:
            continue
        found += 1
        assert rank == case.job.truth["rank"], (seed, case.job.truth)
    assert found > 2


@pytest.mark.parametrize("seeds", [range(50_000, 50_150)])
def test_in_random_jobs_a_rank_that_takes_another_branch_is_apart(seeds):
    seen = right = 0
    for seed in seeds:
        rng = random.Random(seed)
        job = simulator.make_job(rng)
        everybody = list(range(job.ranks))
        job.groups["999"] = ("undefined", everybody)
        rank = rng.randrange(job.ranks)
        program = job.programs[rank]
        at = rng.randrange(len(program) // 4, max(len(program) // 4 + 1, len(program) - 3))
        program[at:] = [simulator.Op("999", "all_reduce", (8,))]
        job.truth = {"fault": "branch", "rank": rank, "at": at}
        machine = Machine(job).run()
        if not machine.hung():
            continue
        records = {r: probe.reduce_dump(recorder.dump(job, r, machine.enqueued[r]), r) for r in job.programs}
        p = draw(decode(records, job.ranks))
        seen += 1
        assert apart(p) in (None, rank)
        right += apart(p) == rank
    # Where exchanges between stages stand among the waits, nothing is said.
    assert seen > 50 and right > 20


def test_of_three_that_wait_for_each_other_the_one_that_did_as_the_rest_of_the_job_is_not_apart():
    groups = {
        "0": ("default_pg", [0, 1, 2, 3, 4, 5]), "1": ("TP", [0, 1, 2]), "2": ("TP", [3, 4, 5]),
    }  # fmt: skip
    swapped = [*steps("1"), "0 5 all_reduce open"]
    right = [*steps("2"), "2 5 all_reduce", "0 5 all_reduce open"]
    p = picture({0: swapped, 1: swapped, 2: [*steps("1"), "1 5 all_reduce open"], 3: right, 4: right, 5: right}, groups)
    assert p.cycles == [[0, 1, 2]] and apart(p) is None
