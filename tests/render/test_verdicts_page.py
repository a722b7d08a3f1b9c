"""triage-verdicts(7) names every verdict, strategy, exit code and cost word that a report can hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from triage import errors
from triage.cost.profile import Policy, Source
from triage.cost.restart import Choice

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "man" / "triage-verdicts.7").read_text()


def test_every_verdict_of_every_playbook_has_its_entry() -> None:
    ids = {
        found
        for path in (ROOT / "playbooks").glob("*.yaml")
        for found in re.findall(r"^  ([a-z_]+)/[a-z_]+:$", path.read_text(), re.M)
    }
    assert {f"\n.TP\n.B {name}\n" in PAGE for name in ids} <= {True}


@pytest.mark.parametrize("word", ["S1", "S2", "S3", "S4", *get_args(Policy), *get_args(Source), *get_args(Choice)])
def test_every_word_of_a_plan_is_explained(word: str) -> None:
    assert re.search(rf"\b{word}\b", PAGE)


def test_every_exit_code_has_its_entry() -> None:
    codes = {kind.code for kind in vars(errors).values() if isinstance(kind, type)} | {0, 10, 11, 130}
    for code in codes:
        assert f"\n.TP\n.B {code}\n" in PAGE, code
