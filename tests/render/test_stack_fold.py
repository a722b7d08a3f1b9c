"""Equal stacks of many ranks on one page: where they part is where they differ."""

from __future__ import annotations

from sample_report import report as sample

from triage.model import StackGroup
from triage.render import get
from triage.render.layout import width_of
from triage.render.stacks import fold, ranges

BASE = ("<module> (train.py)", "main (train.py)", "train (train.py)")


def group(ranks, frames, cls="collective", role="peer"):
    return StackGroup(tuple(ranks), role, cls, cls, tuple(frames))


def test_ranks_that_stand_together_are_one_branch_and_the_odd_one_is_another():
    lines = fold([group([2], (*BASE, "save (io.py)"), "checkpoint"), group([0, 1, 3], (*BASE, "barrier (c10d.py)"))])
    assert lines == [
        "[0-3] <module> (train.py)",
        "      main (train.py)",
        "      train (train.py)",
        "  [0-1,3] barrier (c10d.py)  <- collective",
        "  [2] save (io.py)  <- checkpoint",
    ]


def test_a_stack_of_forty_frames_stays_on_the_page_with_both_its_ends():
    deep = [f"call_{i} (model.py)" for i in range(40)]
    lines = fold([group([0], deep)])
    assert len(lines) == 7 and "call_0 " in lines[0] and "call_39 " in lines[-1] and "34 frames" in lines[2]


def test_no_line_is_wider_than_the_page_whatever_a_node_sends():
    wide = [group([7 * i for i in range(60)], ("f" * 300 + " (" + "x" * 300 + ")", "\x1b[31m\u202e世界" * 40), "lock")]
    many = [group([i], [f"f{j} (x.py)" for j in range(i % 30)] + [f"g{i} (y.py)"]) for i in range(200)]
    for lines in (fold(wide), fold(many), fold(wide, 40), fold([group([1], ())])):
        assert lines and all(width_of(line) <= 80 and line.isprintable() for line in lines)
    assert all(width_of(line) <= 40 for line in fold(wide, 40)) and len(fold(many)) <= 48


def test_where_one_stack_is_the_beginning_of_another_both_ends_are_marked():
    lines = fold([group([0], BASE, "user_code"), group([1], (*BASE, "step (x.py)"), "lock")])
    assert lines[2].endswith("<- user_code") and lines[3] == "  [1] step (x.py)  <- lock"


def test_without_stacks_there_is_nothing():
    assert fold([]) == [] and ranges([5, 3, 4, 9]) == "3-5,9"


def test_the_page_shows_them_within_eighty_columns():
    from dataclasses import replace

    held = replace(
        sample(), stacks=(group([5], (*BASE, "save (io.py)"), "checkpoint", "suspect"), group(range(5), BASE))
    )
    page = get("text")(held)
    assert "STACKS\n  [0-5] <module> (train.py)" in page and "<- checkpoint" in page
    assert max(map(width_of, page.splitlines())) <= 80
    assert "STACKS" not in get("text")(sample())
