"""Whose steps are these? Another job on the node must neither keep ours alive nor put its ranks under accusation."""

import pytest
from written_evidence import NOW, World

from triage.facts.pace import job_steps, last_step_end, last_steps, rank_paces

OURS = {"MASTER_ADDR": "gpu001", "MASTER_PORT": "29500", "WORLD_SIZE": "8", "SLURM_JOB_ID": "48213"}
THEIRS = {**OURS, "MASTER_PORT": "29501", "SLURM_JOB_ID": "9"}


def entry(rank, last_ago=400.0, whose=OURS, pids=None, path=None, last_step=100, **more):
    numbers = list(range(last_step - 19, last_step + 1))
    columns = {"step": numbers, "total_ms": [1000.0] * 20, "compute_ms": [500.0] * 20}
    told = {"set": dict(whose), "pids": pids or [1000 + rank]} if whose is not None else {}
    return {"rank": rank, "kind": "records", "path": path or f"/{(whose or {}).get('SLURM_JOB_ID')}_{rank}.jsonl",
            "last_step": last_step, "last_at": NOW - last_ago, "columns": columns, **told, **more}  # fmt: skip


def with_steps(entries, world=None, node="gpu001", looks="AB"):
    world = world or World(nodes=1, per_node=8).processes()
    for look in looks:
        world.add("steps", node, look, {"ranks": list(entries)})
    return world


def kept(world):
    return [(e["rank"], e["path"]) for s, e in world.evidence().derive(job_steps) if s.look == "B"]


def test_the_files_of_another_job_on_the_node_are_not_the_jobs():
    world = with_steps([entry(0), entry(1), entry(1, 0.5, THEIRS, [77]), entry(9, 0.5, THEIRS, [78])])
    assert kept(world) == [(0, "/48213_0.jsonl"), (1, "/48213_1.jsonl")]
    end = last_step_end(world.evidence())
    assert end is not None and end[0] == pytest.approx(NOW - 400, abs=1)
    assert set(rank_paces(world.evidence())) == {0, 1}


def test_without_a_rule_the_rank_set_decides_and_then_the_processes():
    plain = {k: v for k, v in OURS.items() if k != "SLURM_JOB_ID"}
    other = {**plain, "MASTER_PORT": "29501"}

    def world():
        made = World(nodes=1, per_node=8, match={})
        old = made.record

        def record(rank, look):
            told = old(rank, look)
            told["env"].pop("SLURM_JOB_ID")
            return told

        made.record = record
        return made.processes()

    found = with_steps([entry(0, whose=plain), entry(1, 0.5, other, [77]), entry(2, whose={}, pids=[1002])], world())
    assert [rank for rank, _ in kept(found)] == [0, 2]


@pytest.mark.parametrize("rank", [8, 3000])
def test_a_rank_that_the_job_does_not_have_is_left_out(rank):
    assert kept(with_steps([entry(0), entry(rank, 0.5)])) == [(0, "/48213_0.jsonl")]


def test_a_rank_that_lives_on_another_node_is_left_out():
    world = with_steps([entry(0), entry(7, 0.5)], World().processes())
    assert [rank for rank, _ in kept(world)] == [0]


def test_the_file_of_a_dead_rank_is_kept_by_its_siblings_prefix():
    world = World(nodes=1, per_node=8)
    world.dead = {3: "A"}
    found = with_steps([entry(0), entry(3, 405, pids=[1000], last_step=99)], world.processes())
    assert [rank for rank, _ in kept(found)] == [0, 3]


def test_what_an_earlier_attempt_left_behind_is_no_step_of_this_one():
    before_attempt = entry(1, 4000)
    before_process = entry(2, 3550)
    world = with_steps([entry(0), before_attempt, before_process])
    assert [rank for rank, _ in kept(world)] == [0]


def test_a_file_to_which_another_job_writes_tells_nothing():
    mixed = [entry(0, path="/s_0"), entry(0, 0.5, THEIRS, [77], path="/s_0"), entry(1), entry(2, 0.5, shared=True)]
    assert kept(with_steps(mixed)) == [(1, "/48213_1.jsonl")]


def test_of_two_files_of_one_rank_the_newer_speaks():
    world = with_steps(
        [entry(0, 20, path="/new"), entry(0, 300, path="/old"), entry(1, 300), entry(1, 20, path="/new1")]
    )
    assert kept(world) == [(0, "/new"), (1, "/new1")]


def test_numbers_without_an_owner_count_where_the_node_is_the_jobs_alone():
    number = {"rank": 1, "kind": "numbers", "path": "/tmp/step_times/rank_1.log", "last_step": 5, "last_at": NOW - 9}
    assert [rank for rank, _ in kept(with_steps([number]))] == [1]
    shared = World(nodes=1, per_node=8).processes()
    for sample in [s for s in shared.samples if s.probe == "ranks"]:
        sample.data["ranks"].append({"rank": 1, "pid": 77, "state": "S", "env": {**THEIRS, "RANK": "1"}})
    assert kept(with_steps([number], shared)) == []


def test_the_last_steps_of_one_look_are_the_jobs_own():
    world = with_steps([entry(0), entry(1, 0.5, THEIRS, [77], last_step=900)])
    sample = world.samples[-1]
    assert last_steps(world.evidence(), sample) == {0: 100}


def test_a_step_that_ends_in_the_future_is_no_sign_of_life():
    world = with_steps([entry(0), entry(1, -(10**6))])
    end = last_step_end(world.evidence())
    assert end is not None and end[0] == pytest.approx(NOW - 400, abs=1)


def test_old_answers_without_owners_are_read_as_before():
    world = with_steps([entry(0, whose=None), entry(1, whose=None)])
    assert [rank for rank, _ in kept(world)] == [0, 1]
