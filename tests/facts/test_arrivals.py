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


def dump(rank, rows, clock, measured, groups=GROUPS):
    entries = []
    for at, (name, desc, seq, began, noticed, length) in enumerate(rows):
        entries.append(
            {"record_id": at, "pg_id": int(name), "process_group": (name, desc), "collective_seq_id": seq, "p2p_seq_id": 0,
             "op_id": at, "profiling_name": "nccl:all_reduce", "time_created_ns": START + int((began + clock) * MS),
             "time_discovered_completed_ns": START + int((noticed + clock) * MS), "input_sizes": [[8]], "output_sizes": [[8]],
             "input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": "completed", "retired": True, "is_p2p": False,
             "timeout_ms": 600000, **({"duration_ms": length} if measured else {})}
        )  # fmt: skip
    config = {name: {"name": name, "desc": desc, "ranks": str(ranks)} for name, (desc, ranks) in groups.items()}
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


# Layouts of 8 ranks: how the groups of one step follow each other. A group that nobody records is one of sends and receives.
TP = {str(i + 1): ("TP", [2 * i, 2 * i + 1]) for i in range(4)}
DP = {"5": ("DP", [0, 2, 4, 6]), "6": ("DP", [1, 3, 5, 7])}
PP = {str(i + 11): ("PP", [i, i + 4]) for i in range(4)}
STAGES = {"1": ("DP", [0, 1, 2, 3]), "2": ("DP", [4, 5, 6, 7])}


def layout(groups, slow, unrecorded=()):
    """Measured dumps of a job whose ranks compute, then go through the groups in their order."""
    rng, now, rows = random.Random(slow), [0.0] * 8, {rank: [] for rank in range(8)}
    for number in range(1, 41):
        for rank in range(8):
            now[rank] += 400.0 * rng.uniform(0.98, 1.02) * (2.0 if rank == slow else 1.0)
        for name, (desc, ranks) in groups.items():
            end = max(now[rank] for rank in ranks) + 5.0
            for rank in ranks:
                if name not in unrecorded:
                    rows[rank].append((name, desc, number, now[rank], end, end - now[rank]))
                now[rank] = end
    told = {name: group for name, group in groups.items() if name not in unrecorded}
    return {rank: dump(rank, rows[rank], rng.randrange(-300, 300) * 1000, True, told) for rank in range(8)}


@pytest.mark.parametrize("slow", range(8))
def test_without_a_group_of_all_ranks_the_partner_in_the_other_group_is_not_told(slow):
    assert ranks_of(late(layout({**TP, **DP}, slow))) == [slow]


@pytest.mark.parametrize("slow", range(8))
def test_the_next_stage_that_waits_in_receives_nobody_times_is_not_told(slow):
    found = late(layout({**PP, **STAGES}, slow, unrecorded=PP))
    assert not found.parts and f"{slow % 4}, {slow % 4 + 4}" in found.text
    dumps = layout({**PP, **STAGES}, slow, unrecorded=PP)
    for rank, made in dumps.items():  # the same with the record of one receive
        made["entries"].append(
            {**made["entries"][-1], "record_id": 90, "is_p2p": True, "p2p_seq_id": 1, "collective_seq_id": 0,
             "profiling_name": f"nccl:recv {rank}<-{(rank + 4) % 8}", "pg_id": 11 + rank % 4, "process_group": PP_NAMES[rank % 4]}
        )  # fmt: skip
        made["pg_config"].update({name: {"name": name, "desc": d, "ranks": str(r)} for name, (d, r) in PP.items()})
    found = late(dumps)
    assert found.value is None and "also works in PP" in found.reason


PP_NAMES = [(name, desc) for name, (desc, _) in PP.items()]


@pytest.mark.parametrize("missing", [(5,), (4,), (0, 3), (7,)])
def test_with_a_dump_missing_nobody_is_told_for_that_one_may_be_the_slow_rank(missing):
    dumps = {rank: made for rank, made in job(random.Random(1), 5, measured=True).items() if rank not in missing}
    found = late(dumps)
    assert found.value is None and f"rank {missing[0]} are not told" in found.reason


def test_a_rank_that_is_late_to_most_collectives_of_a_step_but_not_to_the_whole_is_not_told():
    now, rows = [0.0] * 8, {rank: [] for rank in range(8)}
    for number in range(1, 61):
        short = number % 3
        for rank in range(8):  # rank 3 computes 130 + 130 + 300, the others 100 + 100 + 400
            now[rank] += (130.0 if rank == 3 else 100.0) if short else (300.0 if rank == 3 else 400.0)
        end = max(now) + 5.0
        for rank in range(8):
            rows[rank].append(("0", "default_pg", number, now[rank], end, end - now[rank]))
            now[rank] = end
    found = late({rank: dump(rank, rows[rank], 0, True) for rank in range(8)})
    assert not found.parts and found.value == 0


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
