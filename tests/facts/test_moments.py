"""Dumps of different moments: what a dump holds tells its age, whatever the clocks say."""

from __future__ import annotations

import pytest
from written_dumps import CREATED, add_dumps, named, ranks_of
from written_evidence import NOW, World
from written_records import WORLD, picture, record

from triage.facts.collectives import decode
from triage.facts.moments import behind
from triage.facts.waitgraph import draw

STALL = NOW - 100.0


def program(rank, upto, *ends):
    tp = rank // 2 + 1
    lines = [line for n in range(1, upto + 1) for line in (f"{tp} {n} all_reduce", f"0 {n} all_reduce")]
    return [*lines, *(end.replace("tp", str(tp)) for end in ends)]


def waiting(rank):
    return program(rank, 9, "tp 10 all_reduce", "0 10 all_reduce open")


def deadlock():
    told = {rank: waiting(rank) for rank in range(8)}
    told[2] = program(2, 9, "tp 10 all_reduce open")
    told[3] = program(3, 9, "0 10 all_reduce open")
    return told


def host():
    told = {rank: waiting(rank) for rank in range(8)}
    told[3] = program(3, 9)
    told[2] = program(2, 9, "tp 10 all_reduce open")
    return told


def world(programs, lib="2.27.5", **rows):
    w = World().processes().log(last_ago=100).fabric(0)
    return add_dumps(w, programs, lib=lib, created=STALL + 0.1, **rows)


def old_file(at):
    return {"source": "file", "poke": "no_fifo", "mtime": at}


# Whatever its file's time: before the stall, within the clocks' error of it, or touched since.
TIMES = [STALL - 3, STALL - 0.5, STALL, STALL + 0.5, NOW - 2]


@pytest.mark.parametrize("at", TIMES)
@pytest.mark.parametrize(("truth", "found"), [(deadlock, ("deadlock/order", [3])), (host, ("stuck_rank/host", [3]))])
def test_an_old_dump_that_shows_fewer_collectives_than_peers_have_finished_is_stale_by_what_it_holds(truth, found, at):
    told = {**truth(), 0: program(0, 5)}
    w = world(told, rank_0=old_file(at))
    assert ranks_of(w.fact("waits.stale")) == [0]
    assert named(w) == (*found, "high" if truth is deadlock else "medium")


def test_without_a_fresh_dump_of_anybody_the_older_files_are_stale():
    told = {**host(), 0: program(0, 5), 5: program(5, 7)}
    w = world(told, poked=False, mtime=NOW - 2)
    assert ranks_of(w.fact("waits.stale")) == [0, 5]
    assert named(w)[:2] == ("stuck_rank/host", [3])


def test_a_file_that_shows_more_than_fresh_dumps_is_of_another_attempt():
    w = world({**host(), 0: program(0, 40)}, rank_0=old_file(NOW - 2))
    assert "another attempt" in w.fact("waits.stale").parts[0].why
    assert named(w)[:2] == ("stuck_rank/host", [3])


@pytest.mark.parametrize("op", ["broadcast", "reduce", "gather", "scatter"])
def test_an_op_that_some_finish_alone_says_nothing_of_the_others(op):
    ahead = ["0 1 all_reduce", f"0 2 {op}", f"0 3 {op} open"]
    records = {r: {**record(r, ahead), "lib": "2.27.5"} for r in (0, 1, 2)}
    records[3] = {**record(3, ["0 1 all_reduce"]), "lib": "2.27.5"}
    assert behind(decode(records), ()) == {}


def test_records_without_nccl_are_not_judged_by_what_they_retired():
    ahead = ["0 1 all_reduce gloo", "0 2 all_reduce gloo", "0 3 all_reduce open"]
    records = {0: record(0, ahead), 1: record(1, ahead), 2: record(2, ahead), 3: record(3, ["0 1 all_reduce gloo"])}
    assert behind(decode(records), ()) == {}


def test_what_is_over_and_perhaps_failed_proves_nothing():
    # Retired, but never noticed as completed: number 2 timed out on rank 0, and rank 3 need not have come.
    ahead = ["0 1 all_reduce", "0 2 all_reduce retired"]
    records = {r: {**record(r, ahead), "lib": "2.27.5"} for r in (0, 1, 2)}
    records[3] = {**record(3, ["0 1 all_reduce"]), "lib": "2.27.5"}
    assert behind(decode(records), ()) == {}


def test_a_rank_that_is_behind_by_the_open_collective_only_is_no_old_dump():
    p = picture({r: ["0 1 all_reduce", "0 2 all_reduce open"] if r else ["0 1 all_reduce"] for r in range(4)}, WORLD)
    assert p.roots == {0: "host"}
    assert behind(p.records, ()) == {}


# ---------------------------------------------------------------- clocks


def test_a_file_from_before_the_jobs_last_step_is_stale_even_if_it_agrees_with_all_others():
    told = {rank: program(rank, 9) for rank in range(8)}
    w = World().processes().log(last_ago=100).fabric(0)
    add_dumps(w, told, poked=False, mtime=STALL - 30, created=STALL - 31, lib="2.27.5")
    assert w.fact("waits.stale").value == 8
    assert "last step" in w.fact("waits.stale").parts[0].why


def test_a_nodes_fast_clock_does_not_make_the_dumps_of_the_others_old():
    told = host()
    w = World().processes().log(last_ago=100).fabric(0)
    add_dumps(w, told, poked=False, mtime=STALL + 1.2, created=STALL + 0.1, lib="2.27.5")
    fast = []
    for s in w.samples:
        if s.node == "gpu004":
            data = s.data
            if s.probe == "flight_recorder":
                for row in data["ranks"]:
                    row["mtime"] += 20
                    row["record"]["newest_s"] += 20
            s = type(s)(s.probe, s.node, s.look, s.status, data, at=s.at + 20, received=s.received)
        fast.append(s)
    w.samples = fast
    assert w.fact("waits.stale").value == 0


def test_a_dump_that_claims_entries_of_the_future_does_not_make_the_others_old():
    w = world(host(), poked=False, mtime=STALL + 2)
    for s in w.samples:
        if s.probe == "flight_recorder" and s.node == "gpu004":
            for row in s.data["ranks"]:
                row["record"]["newest_s"] = 9e9
    assert w.fact("waits.stale").value == 0


# ---------------------------------------------------------------- liars


def forge(w, node, change):
    for s in w.samples:
        if s.probe == "flight_recorder" and s.node == node:
            for row in s.data["ranks"]:
                change(row)
    return w


def everything_is(number):
    def change(row):
        for group in row["record"]["groups"]:
            group.update({k: number for k in ("enq", "first", "last_done") if k in group})
            group["win"] = f"{number}:0"
            group.pop("first_open", None)
        row["record"].update(open=[], opens=0)

    return change


def nothing_open(row):
    row["record"]["open"] = []


def nothing_open_consistently(row):
    row["record"].update(open=[], opens=0)
    for group in row["record"]["groups"]:
        group.pop("first_open", None)


@pytest.mark.parametrize("number", [50, 10**18])
def test_a_node_whose_fresh_records_are_beyond_all_others_is_left_out_and_the_verdict_is_doubted(number):
    w = forge(world(host()), "gpu001", everything_is(number))
    assert ranks_of(w.fact("waits.stale")) == [0, 1]
    assert named(w) == ("stuck_rank/host", [3], "low")


def test_a_node_whose_fresh_records_are_behind_what_all_others_finished_is_left_out():
    w = forge(world(host()), "gpu001", everything_is(3))
    assert ranks_of(w.fact("waits.stale")) == [0, 1]
    assert named(w) == ("stuck_rank/host", [3], "low")


def test_a_record_that_counts_open_operations_and_tells_none_is_refused():
    w = forge(world(host()), "gpu001", nothing_open)
    assert ranks_of(w.fact("waits.stale")) == [0, 1]
    assert named(w)[:2] == ("stuck_rank/host", [3])


def test_a_lie_that_agrees_with_itself_and_with_all_others_damns_the_liar_only():
    w = forge(world({rank: waiting(rank) for rank in range(8)}), "gpu001", nothing_open_consistently)
    ranks = named(w)[1]
    assert set(ranks) <= {0, 1}


@pytest.mark.parametrize("text", ["0+9", "0+1000000", "8", "5000000+7"])
def test_a_record_that_names_ranks_beyond_the_job_is_refused(text):
    def change(row):
        for group in row["record"]["groups"]:
            group["ranks"] = text if group["desc"] != "default_pg" else group["ranks"]

    w = forge(world(host()), "gpu001", change)
    assert ranks_of(w.fact("waits.stale")) == [0, 1]
    assert named(w)[:2] == ("stuck_rank/host", [3])


def test_a_node_has_no_say_on_the_record_of_a_rank_that_lives_elsewhere():
    w = world(host())
    liar = add_dumps(World(), {5: program(5, 9)}, lib="2.27.5", mtime=NOW, created=CREATED).samples[2]
    w.add("flight_recorder", "gpu001", "C", {"ranks": list(liar.data["ranks"])})
    assert named(w)[:2] == ("stuck_rank/host", [3])


def test_two_nodes_of_fresh_records_that_contradict_each_other_are_both_left_out():
    lines = ["0 1 all_reduce", "0 2 all_reduce", "0 3 all_reduce open"]
    groups = {"0": ("default_pg", [0, 1])}
    records = {0: {**record(0, lines, groups), "lib": "2.27.5"}, 1: {**record(1, lines[:1], groups), "lib": "2.27.5"}}
    assert set(behind(decode(records), {0, 1})) == {0, 1}
    assert set(behind(decode(records), {0})) == {1}
    assert set(behind(decode(records), {1})) == {0}
    assert draw(decode(records)).roots == {1: "host"}  # what would have been said
