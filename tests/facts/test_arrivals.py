"""Who lets the others wait, by what flight records tell of times: the slow rank, or nobody."""

from __future__ import annotations

import random

import pytest
from triage.probes import _records
from written_dumps import GROUPS, ranks_of
from written_evidence import NOW, World

from triage.readers.shapes import problem

MS = 1_000_000
START = int((NOW - 3000) * 1000) * MS


def job(rng, slow=None, steps=40, compute_ms=400.0, extra=1.0, measured=False, ahead=False, notice_ms=0.0):
    """Dumps of 8 ranks in TP pairs: each step computes, reduces in the pair, then over all. Clocks differ by minutes."""
    clocks = [rng.randrange(-300, 300) * 1000 for _ in range(8)]
    now = [0.0] * 8
    rows = {rank: [] for rank in range(8)}

    def collective(name, desc, ranks, step):
        end = max(now[rank] for rank in ranks) + 5.0
        for rank in ranks:
            noticed = end if not notice_ms else (end // notice_ms + 1) * notice_ms
            began = now[rank]
            rows[rank].append((name, desc, step, began if not ahead else began - 5000.0, noticed, end - began))
            now[rank] = end

    for step in range(1, steps + 1):
        for rank in range(8):
            now[rank] += compute_ms * rng.uniform(0.98, 1.02) * (1.0 + extra if rank == slow else 1.0)
        for pair in range(4):
            collective(str(pair + 1), "TP", [2 * pair, 2 * pair + 1], step)
        collective("0", "default_pg", range(8), step)
    return {rank: dump(rank, rows[rank], clocks[rank], measured) for rank in range(8)}


def dump(rank, rows, clock, measured):
    entries = []
    for at, (name, desc, seq, began, noticed, length) in enumerate(rows):
        entries.append(
            {"record_id": at, "pg_id": int(name), "process_group": (name, desc), "collective_seq_id": seq, "p2p_seq_id": 0,
             "op_id": at, "profiling_name": "nccl:all_reduce", "time_created_ns": START + int((began + clock) * MS),
             "time_discovered_completed_ns": START + int((noticed + clock) * MS), "input_sizes": [[8]], "output_sizes": [[8]],
             "input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": "completed", "retired": True, "is_p2p": False,
             "timeout_ms": 600000, **({"duration_ms": length} if measured else {})}
        )  # fmt: skip
    config = {name: {"name": name, "desc": desc, "ranks": str(ranks)} for name, (desc, ranks) in GROUPS.items()}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}


def late(dumps, compute=None):
    """The fact, from these dumps; `compute`: milliseconds a step that each rank's own records tell."""
    w = World().processes()
    for node, name in enumerate(w.names):
        rows = [
            {"rank": rank, "pid": 1000 + rank, "state": "S", "source": "poked", "path": f"/d{rank}", "mtime": NOW - 1.0,
             "age_s": 1.0, "stale": False, "why": "", "poke": "written", "record": _records.reduce_dump(dumps[rank], rank)}
            for rank in (2 * node, 2 * node + 1) if rank in dumps
        ]  # fmt: skip
        assert problem("flight_recorder", {"ranks": rows}) is None
        w.add("flight_recorder", name, "C", {"ranks": rows})
    if compute:
        w.steps(compute)
    return w.fact("arrivals.late")


@pytest.mark.parametrize("seed", range(40))
def test_the_slow_rank_is_told_and_not_the_partner_that_waits_for_it(seed):
    rng = random.Random(seed)
    slow = rng.randrange(8)
    found = late(job(rng, slow, extra=rng.uniform(0.3, 2.0), measured=seed % 2 == 0, notice_ms=rng.choice([0, 0, 100])))
    assert ranks_of(found) in ([slow], []), found
    if seed % 2 == 0:
        assert ranks_of(found) == [slow], found.text


@pytest.mark.parametrize("seed", range(40))
def test_in_a_healthy_job_nobody_is_told_to_be_late(seed):
    rng = random.Random(seed)
    found = late(
        job(rng, measured=seed % 2 == 0, notice_ms=rng.choice([0, 100]), compute_ms=rng.choice([10.0, 400.0, 4000.0]))
    )
    assert not found.parts, found


def test_hosts_that_run_ahead_of_their_gpus_have_no_time_between_collectives_that_says_anything():
    found = late(job(random.Random(1), slow=5, measured=True, ahead=True))
    assert found.value is None and "run ahead" in found.reason


def test_two_slow_ranks_are_told_of_none():
    rng = random.Random(3)
    dumps, other = job(rng, 2, measured=True), job(random.Random(3), 6, measured=True)
    dumps[6] = other[6]
    found = late(dumps)
    assert not found.parts and "6" in found.text


def test_with_a_dump_in_four_missing_no_group_can_be_compared():
    dumps = {rank: made for rank, made in job(random.Random(1), 5, measured=True).items() if rank not in (0, 3)}
    found = late(dumps)
    assert found.value is None and "nearly all" in found.reason


def test_fewer_than_twenty_finished_collectives_tell_no_median():
    found = late(job(random.Random(1), 5, steps=12, measured=True))
    assert found.value is None and "no flight record tells" in found.reason


def test_step_records_that_accuse_another_rank_are_a_contradiction_said_aloud():
    dumps = job(random.Random(1), 5, measured=True)
    found = late(dumps, compute=lambda rank, step: 500 if rank == 2 else 400)
    assert ranks_of(found) == [5] and "rank 5" in found.contradicted_by[0]
    assert not late(dumps, compute=lambda rank, step: 500 if rank == 5 else 400).contradicted_by


def test_times_that_cannot_be_are_not_counted():
    dumps = job(random.Random(1), 5)
    for entry in dumps[5]["entries"]:
        entry["time_discovered_completed_ns"] = entry["time_created_ns"] - 10**13  # a clock that was set back
    found = late(dumps)
    assert found.value is None


@pytest.mark.parametrize("bad", [float("nan"), -1.0, 1e300, "5", True, None])
def test_a_length_that_is_none_is_left_out_of_the_record(bad):
    dumps = job(random.Random(1), 5)
    for entry in dumps[5]["entries"]:
        entry["duration_ms"] = bad
    rows = _records.reduce_dump(dumps[5], 5)["groups"]
    assert [row["pace"][3] for row in rows] == [None, None]
