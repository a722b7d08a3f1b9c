"""What stacks tell of the ranks that the others wait for, and what they do not prove."""

from __future__ import annotations

import pytest
from written_activity import doing, watch
from written_dumps import LATE, WAITS, add_dumps, everyone, report
from written_evidence import World
from written_stacks import EVALUATING, LOADING, LOCKED, REDUCING, SAVING, SENDING, no_stack, stacked, stands

from triage.readers.shapes import problem


def world(*late, rows=()):
    """Eight ranks that stand still; these have not joined and do nothing of their own; these stacks were read."""
    w = World().processes().log(last_ago=100).fabric(0)
    add_dumps(w, everyone(WAITS, **{f"r{rank}": LATE for rank in late}), lib="2.27.5")
    watch(w, *(doing(rank) for rank in late))
    return stacked(w, *rows)


def said(w):
    told = report(w)
    return told.verdict.cause, [c.rank for c in told.culprits]


PEERS = (stands(0, REDUCING), stands(7, REDUCING))


# ---------------------------------------------------------------- verdicts


def test_a_rank_in_a_lock_of_its_own_is_a_deadlock_and_the_program_is_mended_first():
    told = report(world(5, rows=(stands(5, LOCKED), *PEERS)))
    assert told.verdict.cause == "deadlock/host_lock" and [c.rank for c in told.culprits] == [5]
    assert told.mitigation["recommended"]["action"] == "fix_then_restart" or told.mitigation["recommended"]["fix_first"]
    assert any("update (train.py:12)" in line.text for line in told.evidence)


def test_a_held_interpreter_lock_is_one_too_even_where_it_keeps_the_stack_from_us():
    row = no_stack(5, "did not answer") | {"gil_held": "its control plane answers, but not with a traceback"}
    assert said(world(5, rows=(row, *PEERS))) == ("deadlock/host_lock", [5])


@pytest.mark.parametrize("text, words", [(SAVING, "write_all"), (LOADING, "data loader"), (EVALUATING, "evaluate")])
def test_a_rank_that_stands_elsewhere_is_stuck_on_its_host_and_the_place_is_told(text, words):
    told = report(world(5, rows=(stands(5, text), *PEERS)))
    assert (told.verdict.cause, [c.rank for c in told.culprits]) == ("stuck_rank/host", [5])
    assert words in " ".join(told.verdict.why) and any(words in line.text for line in told.evidence)


def test_a_stack_raises_the_confidence_and_its_absence_does_not_change_the_verdict():
    without, with_it = report(world(5)), report(world(5, rows=(stands(5, EVALUATING), *PEERS)))
    assert without.verdict.cause == with_it.verdict.cause == "stuck_rank/host"
    assert with_it.verdict.score > without.verdict.score
    assert "was not seen" in " ".join(without.verdict.why)


@pytest.mark.parametrize("text", [REDUCING, SENDING])
def test_a_rank_that_is_inside_a_call_by_its_stack_is_not_called_stuck_on_its_host(text):
    told = report(world(5, rows=(stands(5, text), *PEERS)))
    assert told.verdict.cause == "inconclusive/inside_a_call" and not told.culprits
    assert "stuck_rank/host" in [a.cause for a in told.alternatives]


def test_a_lock_that_was_seen_once_only_or_was_left_meanwhile_is_no_deadlock():
    assert said(world(5, rows=(stands(5, LOCKED, still=None), *PEERS))) == ("stuck_rank/host", [5])
    assert said(world(5, rows=(stands(5, LOCKED, still=False), *PEERS))) == ("stuck_rank/host", [5])


def test_of_two_that_are_waited_for_one_in_a_lock_does_not_make_a_deadlock_of_both():
    assert said(world(3, 5, rows=(stands(3, LOCKED), stands(5, EVALUATING), *PEERS)))[0] != "deadlock/host_lock"
    assert said(world(3, 5, rows=(stands(3, LOCKED), stands(5, LOCKED), *PEERS))) == ("deadlock/host_lock", [3, 5])


def test_a_place_in_storage_a_loader_a_compiler_or_a_checkpoint_alone_names_no_other_verdict():
    for text in (SAVING, LOADING):
        assert report(world(5, rows=(stands(5, text), *PEERS))).verdict.id not in ("input_stall", "busy")


# ---------------------------------------------------------------- facts


def test_where_nobody_was_asked_all_of_it_is_unknown_with_the_reason():
    w = world(5)
    for name in (
        "seen.stacks",
        "stacks.where",
        "stacks.class",
        "stacks.host_lock",
        "stacks.in_collective",
        "stacks.odd",
    ):
        assert not w.fact(name).known and "no node was asked" in w.fact(name).reason


def test_a_rank_without_a_stack_is_unknown_and_its_reason_is_told():
    w = world(5, rows=(no_stack(5), *PEERS))
    assert w.fact("seen.stacks").value == 2
    assert "no py-spy on this node" in w.fact("stacks.where").reason
    assert not w.fact("stacks.host_lock").known and not w.fact("stacks.in_collective").known


def test_the_odd_one_is_named_only_where_all_peers_agree():
    assert [p.rank for p in world(5, rows=(stands(5, SAVING), *PEERS)).fact("stacks.odd").parts] == [5]
    assert world(5, rows=(stands(5, REDUCING), *PEERS)).fact("stacks.odd").value == 0
    mixed = world(5, rows=(stands(5, SAVING), stands(0, REDUCING), stands(7, LOADING)))
    assert not mixed.fact("stacks.odd").known
    assert not world(5, rows=(stands(5, SAVING),)).fact("stacks.odd").known


def test_the_class_is_known_where_all_that_are_waited_for_share_it():
    assert world(3, 5, rows=(stands(3, SAVING), stands(5, SAVING))).fact("stacks.class").value == "checkpoint"
    assert not world(3, 5, rows=(stands(3, SAVING), stands(5, LOADING))).fact("stacks.class").known
    assert not world(3, 5, rows=(stands(3, SAVING),)).fact("stacks.class").known


def test_a_node_has_no_say_on_the_stacks_of_ranks_of_another():
    w = stacked(world(5), stands(5, LOCKED), node="gpu001")
    assert not w.fact("stacks.host_lock").known and said(w) == ("stuck_rank/host", [5])


def test_peers_do_not_become_suspects_by_their_stacks():
    assert said(world(5, rows=(stands(5, EVALUATING), stands(0, LOCKED), stands(7, REDUCING)))) == (
        "stuck_rank/host",
        [5],
    )


def test_equal_stacks_stand_together_in_the_report_suspects_first():
    told = report(world(5, rows=(stands(5, SAVING), *PEERS)))
    assert [(g.role, g.ranks, g.cls) for g in told.stacks] == [
        ("suspect", (5,), "checkpoint"),
        ("peer", (0, 7), "collective"),
    ]
    assert told.stacks[0].frames[0] == "main (train.py)"


@pytest.mark.parametrize(
    "rows",
    [
        [5, "x", None, {"rank": "5"}], [{"rank": 5, "threads": "x"}], [{"rank": 5, "threads": [{"frames": [[1, 2, 3, 4]]}]}],
        [{"rank": 5, "threads": [{"main": True, "frames": [["f", "x.py", 1]]}]}], [{"rank": 10**9}],
    ],
)  # fmt: skip
def test_an_answer_of_another_shape_never_comes_as_far_as_the_facts(rows):
    assert problem("stacks", {"ranks": rows})
