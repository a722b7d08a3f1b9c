"""Two faults at once: one may hide the other, but nobody else is ever named."""

from __future__ import annotations

from collections import Counter

import collective_judge
import pytest
from collective_pairs import pair
from written_dumps import LATE, WAITS, add_dumps, everyone, report
from written_evidence import NOW, World
from written_ports import long_outage
from written_stacks import LOADING, stacked, stands

from triage.facts.dumps import waits


@pytest.mark.parametrize(
    ("seeds", "wide", "lost"),
    [(range(0, 50), False, 0.0), (range(2000, 2040), True, 0.0), (range(4000, 4040), True, 0.3)],
    ids=["plain programs", "wide programs", "three tenths of the dumps lost"],
)
def test_random_jobs_with_two_faults_never_name_a_healthy_rank(seeds, wide, lost):
    count: Counter[str] = Counter()
    for seed in seeds:
        job = pair(seed, wide=wide, lost=lost)
        if job is None:
            continue
        p = job.world.evidence().derive(waits).picture
        accused = collective_judge.named(p)[0] if p else set()
        assert accused <= job.guilty, (seed, job.faults, p and (p.roots, p.mismatches, p.cycles))
        count["named" if accused else "open"] += 1
    assert count["named"] * 2 > count.total(), count


@pytest.mark.parametrize("seed", range(6000, 6012))
def test_the_whole_walk_over_two_faults_never_names_a_healthy_rank(seed):
    # Some pairs have no place in their program, or do no harm: then the next one of this row.
    job = next(made for each in range(seed, seed + 12000, 12) if (made := pair(each, lost=0.1)) is not None)
    told = report(job.world)
    assert {c.rank for c in told.culprits if c.role == "culprit"} <= job.guilty, (job.faults, told.verdict.cause)


# ---------------------------------------------------------------- pairs with a story

CIRCLE = {2: ["0 1 all_reduce", "2 1 all_reduce open"], 3: ["0 1 all_reduce", "0 2 all_reduce open"]}
OTHER = {4: ["0 1 all_reduce", "0 2 all_gather open"]}


def stopped(rank, **more):
    return {(rank, look): {"state": "T", **more} for look in "AB"}


def world(programs, change=(), dead=(), hits=(), **log):
    w = World()
    w.change, w.dead = dict(change), dict(dead)
    w.processes().fabric(0).log(**{"last_ago": 100, "hits": hits, **log})
    return add_dumps(w, dict(programs.items()), lib="2.27.5")


def end(rank, code, ago):
    at = NOW - ago
    return {
        "id": "torchelastic_failed", "line_no": 5000 - ago, "at": at, "last_at": at, "count": 1, "text": "failed",
        "groups": {"code": str(code), "lr": str(rank % 2), "pid": str(1000 + rank)},
    }  # fmt: skip


def slow(rank, **more):
    """A job in which this rank computed longer than its peers until all of it stood."""
    w = world(**more, step_s=0.56, steps=60)
    return w.steps(lambda r, i: 560.0 if r == rank else 500.0, lambda r, i: 5.0, n=40, step_s=0.56, last_ago=100)


STORIES = {
    "a circle in one group, a dead rank in another": (
        lambda: world({**everyone(WAITS), **CIRCLE, 7: None}, dead={7: "A"}), {2, 3, 7}),
    "a circle in one group, a rank that ends while one looks": (
        lambda: world({**everyone(WAITS), **CIRCLE, 7: None}, dead={7: "B"}), {2, 3, 7}),
    "a circle, and a stopped rank": (
        lambda: world({**everyone(WAITS), **CIRCLE, 7: None}, change=stopped(7)), {2, 3, 7}),
    "a mismatch, and a dead rank": (lambda: world({**everyone(WAITS), **OTHER, 7: None}, dead={7: "A"}), {4, 7}),
    "two dead ranks of two nodes": (lambda: world(everyone(WAITS, r3=None, r6=None), dead={3: "A", 6: "A"}), {3, 6}),
    "two dead ranks, by their launchers' lines": (
        lambda: world(everyone(WAITS, r3=None, r6=None), dead={3: "A", 6: "A"}, hits=[end(3, -9, 100), end(6, -11, 99)]),
        {3, 6}),
    "a rank killed, and another that its watchdog ended a minute later": (
        lambda: world(everyone(WAITS, r3=None, r6=None), dead={3: "A", 6: "A"}, hits=[end(3, -9, 100), end(6, -6, 40)]), {3}),
    "a stopped rank, and another that its watchdog ended a minute later": (
        lambda: world(everyone(WAITS, r2=None, r6=None), change=stopped(2), dead={6: "A"}, hits=[end(6, -6, 40)]), {2}),
    "a dead rank and a stopped one": (
        lambda: world(everyone(WAITS, r3=None, r6=None), change=stopped(6), dead={3: "A"}), {3, 6}),
    "two stopped ranks": (
        lambda: world(everyone(WAITS, r2=None, r6=None), change={**stopped(2), **stopped(6)}), {2, 6}),
    "a rank under a debugger while another waits in its loader": (
        lambda: stacked(
            world(everyone(WAITS, r5=None, r2=LATE), change=stopped(5, tracer_pid=77, tracer="gdb")), stands(2, LOADING)),
        {2}),
    "a straggler, and then a dead rank": (lambda: slow(5, programs=everyone(WAITS, r3=None), dead={3: "A"}), {3}),
    "a straggler, and then a rank that does not come": (lambda: slow(5, programs=everyone(WAITS, r3=LATE)), {3}),
}  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_of_two_faults_only_those_who_have_one_are_named(story):
    make, guilty = STORIES[story]
    told = report(make())
    named = {c.rank for c in told.culprits if c.role == "culprit"}
    assert named <= guilty, (told.verdict.cause, named)
    assert named or told.verdict.id == "inconclusive"


@pytest.mark.parametrize("late", [2, 5])
@pytest.mark.parametrize("how", ["stopped", "dead", "absent"])
def test_beside_a_port_that_was_gone_at_the_onset_neither_fault_makes_a_third_part_guilty(how, late):
    made = long_outage()
    if how == "dead":
        made.world.dead = {late: "A"}
    elif how == "stopped":
        made.world.change.update(stopped(late))
    told = report(
        add_dumps(made.made(), everyone(WAITS, **{f"r{late}": LATE if how == "absent" else None}), lib="2.27.5")
    )
    # The port is gpu002's (ranks 2 and 3).
    assert all(c.rank == late or (c.rank is None and c.node == "gpu002") for c in told.culprits), told.culprits
