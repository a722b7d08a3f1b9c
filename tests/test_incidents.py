"""What is remembered between looks: rent and onset that go on, two operators at once, files that are none."""

import json
import os
import sqlite3
import subprocess
import sys

import pytest

from triage import incidents, memory, ownfiles
from triage.incidents import Unavailable, Who, claim_poke, recall, record

ME = Who("lab", "inventory", "4711", 0, 1_796_000_000)
T = 1_796_000_600.0


@pytest.fixture(autouse=True)
def fresh():
    ownfiles.forget()
    yield
    ownfiles.forget()


def look(at, state="slow", verdict="straggler", rent=1.0, onset=T - 300, **more):
    base = {"at": at, "case": f"c{at:.0f}", "command": "frozen-job", "state": state, "verdict": verdict,
            "cause": f"{verdict}/compute", "confidence": "high", "culprits": ["rank 5 (gpu003)"], "onset": onset,
            "rent_job_min": rent, "strategy": "S1", "kind": "compute", "gpus": 8, "last_step": 100}  # fmt: skip
    return memory.bounded({"last": {**base, **more}})["last"]


def healthy(at):
    return look(at, "running", "healthy", None, None, culprits=[])


def test_of_a_job_that_nobody_looked_at_nothing_is_remembered_and_no_file_is_made(tmp_path):
    assert recall(str(tmp_path), ME, T).value == {}
    assert os.listdir(tmp_path) == []


def test_an_incident_keeps_its_earliest_onset_and_its_highest_rent(tmp_path):
    for at, rent, onset in ((T, 2.0, T - 300), (T + 60, 1.5, T - 100), (T + 120, 3.0, T - 200)):
        record(str(tmp_path), ME, look(at, rent=rent, onset=onset))
    got = recall(str(tmp_path), ME, T + 130).value
    assert got["incident"] == {
        "onset": T - 300, "opened": T, "seen": T + 120, "rent_at": T + 120, "state": "slow", "rent_job_min": 3.0,
        "poked": False,
    }  # fmt: skip
    assert got["last"]["at"] == T + 120 and got["count"] == 3


def test_a_rent_that_a_look_did_not_know_leaves_the_old_one_and_its_time(tmp_path):
    record(str(tmp_path), ME, look(T, rent=2.0))
    record(str(tmp_path), ME, look(T + 60, rent=None, onset=None))
    incident = recall(str(tmp_path), ME, T + 61).value["incident"]
    assert (incident["rent_job_min"], incident["rent_at"], incident["onset"]) == (2.0, T, T - 300)


def test_a_healthy_look_ends_the_incident_and_its_length_is_history(tmp_path):
    record(str(tmp_path), ME, look(T, onset=T - 600))
    record(str(tmp_path), ME, healthy(T + 600))
    got = recall(str(tmp_path), ME, T + 700).value
    assert got["incident"] is None
    assert got["durations"] == [["compute", 8, 10.0, 20.0]]


def test_an_incident_that_a_restart_ended_is_no_length_of_an_incident_and_the_attempt_is_told(tmp_path):
    record(str(tmp_path), ME, look(T))
    later = Who("lab", "inventory", "4711", 1, ME.started + 7200)
    record(str(tmp_path), later, healthy(T + 7300))
    got = recall(str(tmp_path), later, T + 7400).value
    assert got["durations"] == [] and got["incident"] is None
    assert [(a["restart"], a["cause"], a["last"]) for a in got["attempts"]] == [(0, "straggler/compute", T)]
    assert "restart 0" in memory.tried(got)[0]


def test_a_job_that_moved_between_two_stalls_has_two_incidents_and_may_be_poked_twice(tmp_path):
    frozen = {"state": "frozen", "verdict": "dead_rank"}
    assert claim_poke(str(tmp_path), ME, T - 100, T).value is True
    record(str(tmp_path), ME, look(T, onset=T - 100, **frozen))
    assert claim_poke(str(tmp_path), ME, T - 98, T + 10).value is False, "the onset is only told more exactly"
    assert claim_poke(str(tmp_path), ME, T + 500, T + 600).value is True
    record(str(tmp_path), ME, look(T + 600, onset=T + 500, **frozen))
    assert recall(str(tmp_path), ME, T + 601).value["incident"]["onset"] == T + 500


def test_without_the_start_of_an_attempt_a_record_of_yesterday_is_another_job(tmp_path):
    nobody = Who("", "nodes", "4711")
    record(str(tmp_path), nobody, look(T))
    assert recall(str(tmp_path), nobody, T + 3600).value["incident"] is not None
    late = recall(str(tmp_path), nobody, T + incidents.STALE_S + 60).value
    assert late["incident"] is None and late["last"] is None


def test_rounds_of_a_watch_are_not_the_last_look_of_a_person(tmp_path):
    record(str(tmp_path), ME, look(T))
    record(str(tmp_path), ME, look(T + 60, command="watch"))
    assert recall(str(tmp_path), ME, T + 61).value["last"]["at"] == T


def test_looks_of_an_attempt_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(incidents, "KEPT_LOOKS", 5)
    for i in range(9):
        record(str(tmp_path), ME, look(T + i))
    got = recall(str(tmp_path), ME, T + 20).value
    assert [entry["at"] for entry in got["looks"]] == [T + i for i in (8, 7, 6, 5, 4)]


OPERATOR = """
import sys, json
from triage import incidents
state, me, base = sys.argv[1], incidents.Who("lab", "inventory", "4711", 0, 1796000000), json.loads(sys.argv[2])
won = 0
for i in range(20):
    look = {**base, "at": base["at"] + i, "rent_job_min": base["rent_job_min"] + i}
    incidents.record(state, me, look)
    won += incidents.claim_poke(state, me, base["onset"], look["at"]).value
print(won)
"""


def test_operators_who_look_at_once_lose_nothing_and_poke_once(tmp_path):
    both = [
        subprocess.Popen([sys.executable, "-c", OPERATOR, str(tmp_path), json.dumps(look(T + 100 * i, rent=i))],
                         stdout=subprocess.PIPE, text=True)
        for i in range(3)
    ]  # fmt: skip
    said = [child.communicate(timeout=60)[0].strip() for child in both]
    assert [child.returncode for child in both] == [0, 0, 0]
    assert sorted(said) == ["0", "0", "1"]
    got = recall(str(tmp_path), ME, T + 400).value
    assert got["count"] == 60 and got["incident"]["rent_job_min"] == 21.0
    assert sqlite3.connect(tmp_path / incidents.NAME).execute("pragma integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize(
    "rubbish", [b"not a database, and longer than a header of one" * 40, b"SQLite format 3\0" + b"\xff" * 4096]
)
def test_a_file_that_is_no_record_is_set_aside_with_one_warning(tmp_path, rubbish):
    (tmp_path / incidents.NAME).write_bytes(rubbish)
    got = recall(str(tmp_path), ME, T)
    assert got.value["last"] is None and "set aside" in got.warning
    aside = [name for name in os.listdir(tmp_path) if ".broken-" in name]
    assert len(aside) == 1 and (tmp_path / aside[0]).read_bytes() == rubbish
    assert record(str(tmp_path), ME, look(T)).warning == ""
    assert recall(str(tmp_path), ME, T + 1).value["count"] == 1


def test_a_database_of_somebody_else_is_set_aside_too(tmp_path):
    with sqlite3.connect(tmp_path / incidents.NAME) as db:
        db.execute("create table looks (a)")
        db.execute("pragma user_version = 1")
    assert "set aside" in record(str(tmp_path), ME, look(T)).warning
    assert recall(str(tmp_path), ME, T + 1).value["count"] == 1


def test_a_record_of_a_newer_triage_is_left_alone(tmp_path):
    with sqlite3.connect(tmp_path / incidents.NAME) as db:
        db.execute("pragma user_version = 9")
    for ask in (lambda: recall(str(tmp_path), ME, T), lambda: record(str(tmp_path), ME, look(T))):
        with pytest.raises(Unavailable, match="newer triage"):
            ask()
    assert not [name for name in os.listdir(tmp_path) if "broken" in name]


def test_what_the_record_holds_is_bounded_whoever_wrote_it(tmp_path):
    record(str(tmp_path), ME, look(T))
    evil = json.dumps(
        {"at": T + 5, "state": "x\x1b[31m" * 99, "culprits": ["a\nb" * 999] * 99, "rent_job_min": 1e300, "cause": 7}
    )
    with sqlite3.connect(tmp_path / incidents.NAME) as db:
        db.execute("update looks set doc = ?", (evil,))
        db.execute("update incidents set rent = 'much', onset = -5, state = ?", ("\x1b" * 500,))
    got = recall(str(tmp_path), ME, T + 9).value
    assert len(got["last"]["culprits"]) == 8 and all(c.isprintable() for c in got["last"]["culprits"])
    assert got["last"]["rent_job_min"] is None and got["last"]["cause"] == ""
    assert got["incident"]["rent_job_min"] is None and got["incident"]["onset"] is None
    assert got["incident"]["state"].strip() == ""
    assert memory.bounded(got) == got, "what a case holds of it reads back as the same"


def test_one_who_holds_the_record_is_waited_for_and_then_done_without(tmp_path):
    record(str(tmp_path), ME, look(T))
    holds = "import sqlite3, sys, time; db = sqlite3.connect(sys.argv[1], isolation_level=None); "
    holds += "db.execute('begin immediate'); print('held', flush=True); time.sleep(float(sys.argv[2])); db.execute('rollback')"
    for seconds, waits in (("5", False), ("0.4", True)):
        other = subprocess.Popen(
            [sys.executable, "-c", holds, str(tmp_path / incidents.NAME), seconds], stdout=subprocess.PIPE
        )
        try:
            assert other.stdout is not None and other.stdout.readline() == b"held\n"
            if waits:
                record(str(tmp_path), ME, look(T + 2))
            else:
                with pytest.raises(Unavailable, match="another run holds it"):
                    record(str(tmp_path), ME, look(T + 1))
        finally:
            other.kill()
            other.communicate()
    assert recall(str(tmp_path), ME, T + 3).value["count"] == 2


def test_a_state_folder_that_is_a_file_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable):
        record(str(tmp_path / "file"), ME, look(T))
    assert recall(str(tmp_path / "file"), ME, T).value == {}


def test_the_attempts_of_an_id_are_found_the_latest_first(tmp_path):
    other = Who("west", "inventory", "4711", 2, 5)
    record(str(tmp_path), ME, look(T))
    record(str(tmp_path), other, look(T + 5))
    assert incidents.jobs_called(str(tmp_path), "4711").value == [other, ME]
    assert incidents.jobs_called(str(tmp_path), "4712").value == []
