"""Records of gloo: they tell no members, leave sends and receives out, and show a failed operation as a finished one."""

from __future__ import annotations

import pytest
from test_hard import dead_world
from written_dumps import GROUPS, LATE, WAITS, add_dumps, everyone, ranks_of, report
from written_evidence import NOW, World
from written_records import record
from written_stacks import EVALUATING, SENDING, stacked, stands

from triage.facts.collectives import decode
from triage.facts.waitgraph import draw

STOOD = 400


def nameless(w):
    """As gloo writes them: only the default group can be told by its description, no group tells its members."""
    for sample in w.samples:
        for row in sample.data.get("ranks", ()) if sample.probe == "flight_recorder" else ():
            for group in (row["record"] or {}).get("groups", ()):
                group["ranks"] = ""
    return w


def job(programs, dead=None, **change):
    w = World()
    w.dead = {} if dead is None else dead
    w.change = {(rank, look): more for rank, more in change.get("ranks", {}).items() for look in "AB"}
    w.processes().fabric(0).log(last_ago=STOOD)
    return nameless(add_dumps(w, programs))


def accused(told):
    return told.verdict.cause, [part.rank for part in told.culprits]


# ---------------------------------------------------------------- a rank that looks idle


def test_a_rank_that_looks_idle_may_wait_in_a_receive_and_is_named_only_by_its_stack():
    told = report(job(everyone(WAITS, r5=LATE)))
    assert accused(told) == ("inconclusive/unrecorded", []) and told.exit_code == 11
    assert [lead.cause for lead in told.alternatives] == ["stuck_rank/host"]
    assert accused(report(stacked(job(everyone(WAITS, r5=LATE)), stands(5, EVALUATING)))) == ("stuck_rank/host", [5])


def test_a_rank_whose_stack_stands_in_a_send_is_not_named():
    told = report(stacked(job(everyone(WAITS, r5=LATE)), stands(5, SENDING)))
    assert accused(told) == ("inconclusive/inside_a_call", [])


def test_of_two_that_look_idle_neither_is_named():
    told = report(job(everyone(WAITS, r4=LATE, r5=LATE)))
    assert told.verdict.id == "inconclusive" and not told.culprits


def test_records_of_nccl_tell_sends_and_name_the_rank_without_a_stack():
    w = World().processes().fabric(0).log(last_ago=STOOD)
    assert accused(report(add_dumps(w, everyone(WAITS, r5=LATE), lib="2.27.5"))) == ("stuck_rank/host", [5])


# ---------------------------------------------------------------- members that nobody tells


def test_a_stopped_rank_without_a_record_may_be_a_member_of_a_group_whose_members_nobody_tells():
    def lines(rank, *last):
        return ["0 1 all_reduce", f"{rank // 2 + 1} 1 all_reduce", *last]

    programs = {r: lines(r, f"{r // 2 + 1} 2 all_reduce", "0 2 all_reduce open") for r in (0, 1, 2, 3, 6, 7)}
    w = job({**programs, 4: lines(4, "3 2 all_reduce open"), 5: None}, ranks={5: {"state": "T"}})
    assert ranks_of(w.fact("waits.roots")) == [5]
    assert accused(report(w)) == ("stuck_rank/stopped", [5])


@pytest.mark.parametrize("without", [[], [5]])
def test_a_group_that_only_one_rank_has_ever_entered_is_not_one_that_all_have_joined(without):
    programs = {rank: ["0 1 all_reduce"] for rank in range(8)} | {0: ["0 1 all_reduce", "1 1 barrier open"]}
    w = job(programs | dict.fromkeys(without))
    found = w.fact("waits.all_joined")
    assert found.value is not True
    told = report(w)
    assert not told.culprits and "deadlock" not in [out.verdict for out in told.ruled_out]


def test_a_group_in_which_something_has_finished_is_known_once_all_ranks_have_told():
    one = {rank: ["0 1 all_reduce", "1 1 all_reduce", "1 2 all_reduce open"] for rank in (0, 1)}
    rest = {rank: ["0 1 all_reduce", "0 2 all_reduce open"] for rank in range(2, 8)}
    records = {rank: record(rank, lines, GROUPS) for rank, lines in {**one, **rest}.items()}
    for each in records.values():
        for group in each["groups"]:
            group["ranks"] = ""
    infos = {info.desc: info for info in decode(records, 8).groups.values()}
    assert infos["TP"].complete and list(infos["TP"].members) == [0, 1]
    del records[7]
    assert not next(info for info in decode(records, 8).groups.values() if info.desc == "TP").complete


def test_nobody_is_stuck_on_the_device_in_a_group_whose_members_nobody_tells():
    done, behind = ["0 1 all_reduce", "1 1 all_reduce", "1 2 all_reduce"], ["0 1 all_reduce", "1 1 all_reduce open"]
    records = {0: record(0, done, GROUPS), 1: record(1, behind, GROUPS)}
    assert draw(decode(records, 8)).device_stuck == {1: draw(decode(records, 8)).waiting[1]}
    for each in records.values():
        for group in each["groups"]:
            group["ranks"] = ""
    assert draw(decode(records, 8)).device_stuck == {}


# ---------------------------------------------------------------- peers of one that ended


def test_a_peer_whose_operation_failed_does_not_speak_against_the_one_that_was_killed():
    # 5 was killed; 4 failed in their group and has nothing open since; the others wait for 4 in the default group.
    w = dead_world().fabric(0)
    nameless(add_dumps(w, everyone(WAITS, r4=["0 1 all_reduce", "3 1 all_reduce"], r5=None), created=NOW - 99))
    told = report(w)
    assert accused(told) == ("dead_rank/killed", [5]) and told.verdict.confidence == "high"
    assert not w.fact("waits.agree_with_hard").contradicted_by
