"""Batches in flight records: PyTorch gives their parts no events, only the entry that closes the batch tells its state.

pytorch issue 137969 (open) and the comment in its own test: "the coalesced op has no metadata but indicates that coalescing
was used, and accurately reflects the timing and state info for the whole group" (pull request 120270).
"""

from __future__ import annotations

import random

import pytest
from triage.probes import _records as records

PP = {"3": {"name": "3", "desc": "PP", "ranks": "[2, 6]"}, "0": {"name": "0", "desc": "default_pg", "ranks": "[2, 6]"}}


def entry(i, op, seq=0, number=0, done=False, group=("3", "PP"), p2p=None):
    p2p = "->" in op or "<-" in op if p2p is None else p2p
    return {
        "record_id": i, "pg_id": 1, "process_group": group, "collective_seq_id": seq, "p2p_seq_id": number, "op_id": i,
        "profiling_name": f"nccl:{op}", "time_created_ns": 10**18 + i, "input_sizes": [[8]], "output_sizes": [[8]],
        "input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": "completed" if done else "scheduled",
        "time_discovered_completed_ns": 10**18 + i if done else None, "retired": done, "timeout_ms": 600_000, "is_p2p": p2p,
    }  # fmt: skip


def batch(i, number, done, *parts, seq=0, closing=True):
    made = [entry(i + k, part, seq, number) for k, part in enumerate(parts)]
    end = entry(i + len(parts), "coalesced", seq, number, done, p2p=True)
    return [*made, end] if closing else made


def reduced(entries, rank=2):
    return records.reduce_dump({"version": "2.10", "pg_config": PP, "pg_status": {}, "entries": entries}, rank)


BOTH = ("send 0->1", "recv 0<-1")


def test_a_finished_batch_is_finished_although_its_parts_stay_scheduled_for_ever():
    made = reduced([*batch(0, 1, True, *BOTH), *batch(3, 2, True, "send 0->1"), entry(5, "barrier", 1, 2, p2p=False)])
    assert [unit["seq"] for unit in made["open"]] == [1]
    told = {tuple(row[1:4]): (row[4][2], row[5][2], row[6]) for row in made["pairs"]}
    assert told == {("s", 2, 6): (2, 2, None), ("r", 6, 2): (1, 1, None)}


def test_a_batch_whose_closing_entry_is_open_is_one_open_unit_with_all_its_parts():
    made = reduced([*batch(0, 1, True, *BOTH), *batch(3, 2, False, *BOTH)])
    (head,) = made["open"]
    assert (head["id"], [part[:3] for part in head["p2p"]]) == (3, [["s", 2, 6], ["r", 6, 2]])
    assert {row[6][2] for row in made["pairs"]} == {2}
    assert made["groups"][0]["batched"] is True


def test_a_batch_that_is_not_closed_yet_is_open():
    assert len(reduced([*batch(0, 1, True, *BOTH), *batch(3, 2, None, *BOTH, closing=False)])["open"]) == 1


def test_a_single_send_has_events_of_its_own_and_no_closing_entry():
    made = reduced([entry(0, "send 0->1", 0, 1, True), entry(1, "send 0->1", 0, 2), entry(2, "recv 0<-1", 0, 3, True)])
    assert [unit["id"] for unit in made["open"]] == [1]
    assert "batched" not in made["groups"][0]


def test_a_single_send_before_a_coalesced_collective_is_not_closed_by_it():
    # Every entry carries both numbers: the collective's closing entry has the send's number as well.
    lines = [
        entry(0, "send 0->1", 0, 1),
        entry(1, "_reduce_oop", 1, 1),
        entry(2, "REDUCE_SCATTER_coalesced", 1, 1, True),
    ]
    assert [unit["id"] for unit in reduced(lines)["open"]] == [0]


def test_up_to_pytorch_2_5_a_batch_took_the_number_of_a_collective():
    lines = [entry(0, "send 0->1", 5, 0), entry(1, "coalesced", 5, 0, True, p2p=False), entry(2, "send 0->1", 6, 0)]
    made = reduced(lines)
    assert [unit["id"] for unit in made["open"]] == [2]
    assert "enq" not in made["groups"][0]


@pytest.mark.parametrize("end", [True, False])
def test_parts_of_a_coalesced_collective_are_one_unit_that_its_closing_entry_tells_of(end):
    group = ("0", "default_pg")
    lines = [
        entry(0, "all_reduce", 1, done=True, group=group),
        entry(1, "_reduce_oop", 2, group=group),
        entry(2, "_reduce_oop", 2, group=group),
        entry(3, "REDUCE_SCATTER_coalesced", 2, done=end, group=group),
        entry(4, "all_reduce", 3, group=group),
    ]
    made = reduced(lines)
    assert [unit["seq"] for unit in made["open"]] == ([3] if end else [2, 3])
    assert made["groups"][0]["last_done"] == (2 if end else 1)
    assert made["sigs"][int(made["groups"][0]["win"].split(",")[1])].count("+") == 2


def test_a_coalesced_collective_without_its_closing_entry_is_open():
    lines = [entry(0, "_reduce_oop", 1, p2p=False), entry(1, "_reduce_oop", 1, p2p=False)]
    assert [unit["seq"] for unit in reduced(lines)["open"]] == [1]


def test_the_ring_may_have_dropped_the_parts_of_a_batch_and_kept_its_closing_entry():
    over = [entry(500, "coalesced", 0, 77, True, p2p=True), entry(501, "barrier", 1, 77, p2p=False)]
    assert [unit["seq"] for unit in reduced(over)["open"]] == [1]
    still = reduced([entry(500, "coalesced", 0, 77, False, p2p=True), entry(501, "barrier", 1, 77, p2p=False)])
    assert [(unit["seq"], unit.get("p2p")) for unit in still["open"]] == [(None, []), (1, None)]


def test_a_dump_of_open_entries_leaves_out_the_closing_entry_of_a_finished_batch():
    # Parts never complete, so they are in the dump; what closes them has completed, so it is not.
    lines = [
        *batch(500, 70, None, *BOTH, closing=False),
        *batch(510, 71, None, "send 0->1", closing=False),
        *batch(520, 72, False, *BOTH),
    ]
    made = reduced(lines)
    assert made["active_only"] is True
    assert [unit["id"] for unit in made["open"]] == [520]
    assert {row[5][2] for row in made["pairs"]} == {70, 71}


def test_a_send_that_pg_status_calls_completed_and_that_is_there_all_the_same_is_a_part_of_a_finished_batch():
    lines = [entry(500, "send 0->1", 0, 70), entry(502, "send 0->1", 0, 71), entry(510, "barrier", 0, 71, p2p=False)]
    told = {"version": "2.10", "pg_config": PP, "entries": [{**e, "pg_id": 1 + (i > 1)} for i, e in enumerate(lines)]}
    status = {"1": {"last_enqueued_collective": 71, "last_completed_collective": 71}}
    assert [u["seq"] for u in records.reduce_dump({**told, "pg_status": status}, 2)["open"]] == [0]
    # ... a single call is left out when it has completed; others of its group may still be open, in any order
    status["1"]["last_completed_collective"] = 72
    assert [u["id"] for u in records.reduce_dump({**told, "pg_status": status}, 2)["open"]] == [500, 502, 510]


def test_parts_of_finished_batches_from_the_first_record_on_do_not_hide_that_only_open_entries_are_there():
    lines = [
        *batch(0, 1, None, *BOTH, closing=False),
        *batch(9, 2, None, *BOTH, closing=False),
        *batch(40, 3, False, *BOTH),
    ]
    made = reduced(lines)
    assert made["active_only"] is True
    assert [unit["id"] for unit in made["open"]] == [40]


def test_a_host_that_ran_ahead_by_more_than_the_ring_holds_is_told_apart_from_one_that_waits_at_the_oldest_entry():
    group = ("0", "default_pg")
    lines = [entry(500 + i, "all_reduce", 400 + i, group=group) for i in range(40)]
    told = {"version": "2.10", "pg_config": PP, "entries": lines}
    status = {"1": {"last_enqueued_collective": 439, "last_completed_collective": 399}}
    assert "lost" not in records.reduce_dump({**told, "pg_status": status}, 2)
    status["1"]["last_completed_collective"] = 120  # 121 is what it waits in, and the ring has dropped it
    assert records.reduce_dump({**told, "pg_status": status}, 2)["lost"] is True


def test_a_coalesced_unit_that_the_ring_has_cut_is_not_compared():
    group = ("0", "default_pg")
    cut = [entry(501, "_reduce_oop", 7, group=group), entry(502, "REDUCE_SCATTER_coalesced", 7, done=True, group=group)]
    made = reduced([*cut, entry(503, "all_reduce", 8, group=group)])
    assert made["groups"][0]["win"].startswith("8:")


# ---------------------------------------------------------------- what is read of a long dump


def long_dump(seed):
    """2,000 entries of a job of several groups: some with sends, some coalesced, the newest perhaps open."""
    rng = random.Random(seed)
    kinds = {f"{i}": rng.choice(("plain", "plain", "rare", "coalesced", "p2p")) for i in range(5)}
    seqs, lines = dict.fromkeys(kinds, 0), []
    open_from = rng.choice((10**9, 1990, 1960, 1500, 3))
    while len(lines) < 2000:
        name = rng.choice(list(kinds))
        if kinds[name] == "rare" and rng.random() < 0.97:
            continue
        group, i, done = (name, f"G{name}"), len(lines), len(lines) < open_from
        if kinds[name] == "p2p" and rng.random() < 0.8:
            lines += [dict(e, process_group=group) for e in batch(i, i, done, "send 0->1", "recv 0<-1", seq=seqs[name])]
            continue
        seqs[name] += 1
        parts = ["_reduce_oop"] * 3 if kinds[name] == "coalesced" else []
        lines += [entry(i + k, op, seqs[name], 0, False, group, False) for k, op in enumerate(parts)]
        op = "REDUCE_SCATTER_coalesced" if parts else rng.choice(("all_reduce", "barrier"))
        lines.append(entry(len(lines), op, seqs[name], 0, done, group, False))
    config = {n: {"name": n, "desc": f"G{n}", "ranks": "[2, 6]"} for n in kinds}
    return {"version": "2.9", "pg_config": config, "pg_status": {}, "entries": lines}


@pytest.mark.parametrize("seed", range(12))
def test_what_is_passed_over_in_a_long_dump_changes_nothing_in_its_record(seed, monkeypatch):
    made = long_dump(seed)
    quick = records.reduce_dump(made, 2)
    read = len(records._worth_reading(made["entries"])[0])
    monkeypatch.setattr(records, "_worth_reading", lambda entries: (range(len(entries)), False))
    assert quick == records.reduce_dump(made, 2)
    assert read <= len(made["entries"])


def test_of_a_long_dump_of_finished_collectives_only_the_ends_are_read():
    lines = [entry(i, "all_reduce", i + 1, done=True, group=("0", "default_pg")) for i in range(2000)]
    assert len(records._worth_reading(lines)[0]) < 100
