"""A run goes on whatever becomes of the record of incidents, and says so once."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "render"))
from sample_report import report

from triage import incidents, ownfiles
from triage.incidents import Who
from triage.ledger import Ledger

ME = Who("lab", "inventory", "4711", 0, 1_795_000_000)


@pytest.fixture(autouse=True)
def fresh():
    ownfiles.forget()
    yield
    ownfiles.forget()


def test_a_second_run_is_told_of_the_first(tmp_path):
    said = []
    ledger = Ledger(str(tmp_path), ME)
    assert ledger.recall(said.append) == {}
    ledger.keep(report(), "frozen-job", False, said.append)
    assert ledger.recall(said.append)["last"]["cause"] == report().verdict.cause
    assert said == []


def test_a_folder_that_stands_still_is_asked_nothing_and_the_loss_is_said_once(tmp_path):
    said = []
    ledger = Ledger(str(tmp_path), ME, stuck="it did not answer within 2s")
    assert ledger.recall(said.append) == {} and ledger.may_poke(1.0)
    ledger.keep(report(), "frozen-job", False, said.append)
    assert len(said) == 1 and "does not answer" in said[0] and os.listdir(tmp_path) == []


def test_a_folder_that_may_not_be_written_costs_one_line(tmp_path, monkeypatch):
    def refuse(path, write):
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(incidents, "_open", refuse)
    said = []
    ledger = Ledger(str(tmp_path), ME)
    ledger.keep(report(), "frozen-job", False, said.append)
    assert len(said) == 1 and "Read-only file system" in said[0]
    assert ledger.may_poke(1.0), "the mark beside the record, or nobody, guards then"


def test_only_a_round_of_a_watch_that_saw_something_new_is_kept_as_a_look(tmp_path):
    from dataclasses import replace

    from triage.model import SinceLast

    said = []
    ledger = Ledger(str(tmp_path), ME)
    same = replace(report(), since_last=SinceLast("c", "2026-11-29T01:00:00Z", 1.0, 1, None, (), ()))
    ledger.keep(report(), "watch", False, said.append)
    ledger.keep(same, "watch", False, said.append)
    assert ledger.recall(said.append)["count"] == 1
