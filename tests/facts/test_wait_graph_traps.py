"""Traps of the wait-for graph that random jobs of the wide kind found (tests/bench/bench_wait_graph.py), one case each."""

from __future__ import annotations

import pytest
from written_records import TP_DP, WORLD, picture, record, repeated

from triage.facts.branches import apart
from triage.facts.collectives import decode
from triage.facts.ordertrail import odd_one
from triage.facts.waitgraph import draw

PAIR = {"0": ("default_pg", [0, 1, 2, 3]), "1": ("TP", [0, 1])}


def only_open(programs, groups=None, **status):
    """Dumps of open entries only; `status`: r1={"1": (enqueued, completed)} of a rank's groups."""
    records = {r: record(r, lines, groups, wrap=50, only_open=True) for r, lines in programs.items()}
    for name, told in status.items():
        for group, numbers in told.items():
            rows = records[int(name[1:])]["groups"]
            row = next((row for row in rows if row["name"] == group), None)
            if row is None:
                row = {"name": group, "ranks": "0+2" if group == "1" else "0+4"}
                rows.append(row)
            row["status"] = list(numbers)
    return decode(records, 4)


# ---------------------------------------------------------------- dumps of open entries


@pytest.mark.parametrize("op", ["all_reduce", "all_to_all"])
def test_one_peer_that_is_past_a_number_may_have_got_through_another_operation_and_left_no_signature(op):
    # Rank 1 passed something else at number 7 and got through alone; its dump of open entries does not show what.
    ahead, behind = ["0 3 all_reduce open"], [f"1 7 {op} open", "0 3 all_reduce open"]
    records = only_open({0: behind, 1: ahead, 2: ahead, 3: ahead}, PAIR, r1={"1": (7, 7)})
    assert draw(records).device_stuck == {}
    # ... while nobody finishes number 8 unless the other has come past 7: then it is its device
    records = only_open({0: behind, 1: ahead, 2: ahead, 3: ahead}, PAIR, r1={"1": (8, 8)})
    assert draw(records).roots == {0: "device"}


def test_two_peers_that_are_past_a_number_did_not_both_pass_something_else():
    ahead, behind = ["0 8 all_reduce open"], ["0 7 all_reduce open"]
    records = only_open({0: behind, 1: ahead, 2: ahead, 3: ahead})
    assert draw(records).roots == {0: "device"}


def test_a_dump_of_open_entries_in_which_finished_batches_look_open_is_not_compared():
    batched = record(0, ["5 p 90 send 0->1 open", "0 4 barrier open"], TP_DP, wrap=50, only_open=True)
    batched["groups"][0]["batched"] = True
    loose = record(1, ["5 p 70 recv 1<-0 open", "0 4 barrier open"], TP_DP, wrap=50, only_open=True)
    other = record(2, ["0 4 barrier open"], TP_DP, wrap=50, only_open=True)
    assert set(decode({0: batched, 1: loose, 2: other}, 4).refused) == {1}
    # ... where nobody shows a batch, single calls are what they seem (all of four real incidents)
    del batched["groups"][0]["batched"]
    assert decode({0: batched, 1: loose, 2: other}, 4).refused == {}


def test_a_ring_that_has_dropped_what_is_open_does_not_tell_where_its_rank_waits():
    waits = {r: record(r, ["0 1 barrier", "0 2 barrier open"]) for r in (0, 1, 2)}
    lost = {**record(3, ["0 1 barrier", "0 2 barrier open"]), "lost": True}
    p = draw(decode({**waits, 3: lost}, 4))
    assert "dropped operations that are still open" in p.records.refused[3]
    assert (p.roots, p.possible, p.stuck_units) == ({}, {3}, [])


def test_the_order_of_open_entries_with_others_left_out_between_them_separates_nobody():
    right = ["# 3 all_reduce", "0 2 all_reduce", "# 4 all_reduce open", "0 3 all_reduce open"]
    programs = {r: [line.replace("#", str(r // 2 + 1)) for line in right] for r in range(4)}
    programs[1] = ["1 3 all_reduce", "0 2 all_reduce", "0 3 all_reduce open", "1 4 all_reduce open"]
    records = {r: record(r, lines, TP_DP) for r, lines in programs.items()}
    assert odd_one(decode(records), (0, 1)) == 1
    gaps = {r: {**made, "ids": [50, 99]} for r, made in records.items()}
    assert odd_one(decode(gaps), (0, 1)) is None


# ---------------------------------------------------------------- stages of another length

STAGES = {
    "0": ("default_pg", [0, 1, 2, 3, 4, 5]), "1": ("TP", [0, 1]), "2": ("TP", [2, 3]), "3": ("TP", [4, 5]),
}  # fmt: skip


def stage(tensor, layers, last="0 1 all_reduce open"):
    return [*repeated(f"{tensor} # all_reduce", 1, layers), last]


def test_a_rank_of_a_shorter_pipeline_stage_is_not_the_odd_one_of_two():
    # 2 and 3 run a stage of two layers, the others stages of four: all did right.
    programs = {
        0: stage("1", 4),
        1: stage("1", 4),
        2: stage("2", 2),
        3: stage("2", 2),
        4: stage("3", 4),
        5: stage("3", 4),
    }
    records = decode({r: record(r, lines, STAGES) for r, lines in programs.items()})
    assert odd_one(records, (0, 2)) is None
    assert odd_one(records, (1, 2, 4)) is None


def test_where_one_of_two_has_no_order_to_compare_neither_is_odd():
    programs = {0: stage("1", 4), 1: ["1 1 all_reduce", "0 1 all_reduce open"], 4: stage("3", 4), 5: stage("3", 4)}
    records = {r: record(r, lines, STAGES) for r, lines in programs.items()}
    records[1]["trail"] = ""
    assert odd_one(decode(records), (0, 1)) is None


def test_a_rank_alone_in_a_collective_that_its_peer_skipped_is_not_in_another_branch():
    # Rank 1 skipped one of TP's: 0 is alone at number 4 of TP, and all others wait for both in the default group. The other
    # stages have another length, so they differ from 0 as they differ from 1.
    groups = {**STAGES, "4": ("MP", [0, 2, 4])}
    programs = {
        0: [*repeated("1 # all_reduce", 1, 3), "1 4 all_reduce open"],
        1: [*repeated("1 # all_reduce", 1, 3), "0 1 all_reduce open"],
        2: [*repeated("2 # all_reduce", 1, 6), "4 1 all_reduce open"],
        3: [*repeated("2 # all_reduce", 1, 6), "0 1 all_reduce open"],
        4: [*repeated("3 # all_reduce", 1, 6), "4 1 all_reduce open"],
        5: [*repeated("3 # all_reduce", 1, 6), "0 1 all_reduce open"],
    }
    assert apart(picture(programs, groups)) is None


def test_groups_without_a_description_are_told_apart_by_their_size():
    # PyTorch writes "undefined" for all of them: the pair and the four are no one role.
    groups = {"0": ("default_pg", [0, 1, 2, 3]), "1": ("undefined", [0, 1]), "2": ("undefined", [2, 3]),
              "3": ("undefined", [0, 1, 2, 3])}  # fmt: skip
    lines = {r: [f"{1 if r < 2 else 2} 1 all_reduce", "3 1 all_reduce", "0 1 all_reduce open"] for r in range(4)}
    lines[1] = ["3 1 all_reduce open"]
    records = decode({r: record(r, told, groups) for r, told in lines.items()})
    assert odd_one(records, (0, 1)) is None or odd_one(records, (0, 1)) == 1


# ---------------------------------------------------------------- a path and not the devices


def test_a_unit_that_the_ring_has_cut_differs_from_nobodys():
    groups = WORLD
    whole = ["0 7 _reduce_oop", "0 7 _reduce_oop", "0 7 REDUCE_SCATTER_coalesced", "0 8 barrier open"]
    p = picture({0: whole, 1: whole, 2: whole, 3: whole[1:]}, groups, wrap=500)
    assert p.mismatches == []


def test_one_rank_left_behind_by_all_others_whose_open_entries_tell_nothing_accuses_none_of_them():
    # All have finished the program but rank 1: in dumps of open entries only, the others look as if they had never come.
    done = ["0 1 all_reduce", "0 2 all_reduce"]
    p = picture(dict.fromkeys((0, 2, 3), done) | {1: ["0 1 all_reduce open"]}, only_open=True)
    assert p.roots == {} and p.possible == {0, 2, 3}


def test_few_that_hold_nothing_open_while_most_wait_are_the_roots_in_dumps_of_open_entries_too():
    p = picture(
        {r: ["0 1 all_reduce", "0 2 all_reduce open"] for r in (0, 1, 2)} | {3: ["0 1 all_reduce"]}, only_open=True
    )
    assert p.roots == {3: "host"}


# ---------------------------------------------------------------- what a hostile reader wrote


def test_a_rank_whose_operation_is_over_and_never_completed_waited_itself_and_is_no_root():
    # Rank 0 never came to number 2 of its TP pair; 1 timed out in it (retired, not completed); 2 and 3 wait in DP.
    tp = {0: ["1 1 all_reduce"], 1: ["1 1 all_reduce", "1 2 all_reduce retired"]}
    dp = {
        2: ["2 1 all_reduce", "2 2 all_reduce", "3 1 all_reduce open"],
        3: ["2 1 all_reduce", "2 2 all_reduce", "4 1 all_reduce open"],
    }
    p = picture({**tp, **dp}, TP_DP)
    assert p.roots == {0: "host"}
    p = picture({1: tp[1], **dp}, TP_DP)
    assert p.roots == {} and 1 in p.possible


def test_a_full_ring_that_has_dropped_a_group_does_not_tell_that_its_rank_never_came():
    busy = [f"2 {n} all_reduce" for n in range(1, 9)]
    records = {r: record(r, ["0 1 all_reduce", "0 2 all_reduce open"], TP_DP) for r in (0, 1)}
    records |= {r: record(r, busy, TP_DP, wrap=500) for r in (2, 3)}
    p = draw(decode(records, 4))
    assert p.roots == {} and p.possible == {2, 3}


def test_a_bool_and_a_byte_are_one_type_to_nccl():
    from triage.facts.signatures import canonical

    assert canonical("broadcast|8|8|Bool|Bool") == canonical("broadcast|8|8|Byte|Byte")
    assert canonical("broadcast|8|8|Char|Char") != canonical("broadcast|8|8|Byte|Byte")
