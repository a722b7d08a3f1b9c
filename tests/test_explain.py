"""Folders of real dumps through the whole path: `triage explain`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import jsonschema
import pytest

from triage.schema import schema


def explain(folder, tmp_path, *words):
    done = subprocess.run(
        [sys.executable, "-m", "triage", "explain", str(folder), "--output", "json", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "TRIAGE_STATE_DIR": str(tmp_path / "state")},
        timeout=60,
    )
    report = json.loads(done.stdout)
    if done.returncode in (0, 10, 11):
        jsonschema.validate(report, schema())
        assert report["exit_code"] == done.returncode
    return done, report


def named(report):
    return {culprit["rank"] for culprit in report["culprits"]}


@pytest.mark.parametrize(
    ("incident", "guilty", "kind"),
    [
        ("gpu_error_1st", {12, 14}, "device"),
        ("gpu_error_2nd", {9, 14}, "device"),
        ("lock_gil_1st", {9, 14}, "host"),
        ("lock_gil_2nd", {10, 15}, "host"),
    ],
)
def test_the_real_incidents_of_sixteen_ranks_name_exactly_the_guilty(incident, guilty, kind, shared_data, tmp_path):
    folder = shared_data / "flight-recorder" / "nccl-16-ranks" / incident
    done, report = explain(folder, tmp_path)
    assert done.returncode == 10
    assert report["verdict"]["cause"] == f"stuck_rank/{kind}" and report["verdict"]["kind"] == kind
    assert named(report) == guilty
    assert not guilty & {victim["rank"] for victim in report["victims"]}
    # One look cannot tell a stall from a slow job: nobody is sent to restart without making sure, nobody is excluded.
    assert report["verdict"]["confidence"] == "low" and report["state"] == "unknown"
    assert "make sure" in report["mitigation"]["recommended"]["summary"]
    assert report["mitigation"]["restart"]["exclude_nodes"] == []
    assert any("One source alone" in why for why in report["verdict"]["why"])


@pytest.mark.parametrize(
    ("case", "guilty", "verdict"),
    [
        ("order", {2}, "deadlock"),
        ("shape", {1}, "deadlock"),
        # gloo leaves sends and receives out of its records: in `p2p` rank 0 looks idle and only waits in a send.
        ("p2p", set(), "inconclusive"),
        ("dataload", set(), "inconclusive"),
        ("pp_chain", set(), "inconclusive"),
        # The job lives and only one rank is late: one moment cannot tell.
        ("straggler", set(), "inconclusive"),
        ("sigkill", set(), "inconclusive"),
        ("ok", set(), "inconclusive"),
    ],
)
def test_gloo_jobs_that_were_broken_on_purpose_name_the_guilty_or_nobody(case, guilty, verdict, shared_data, tmp_path):
    _, report = explain(shared_data / "flight-recorder" / "gloo-4-ranks" / case, tmp_path)
    assert named(report) == guilty
    assert report["verdict"]["id"] == verdict


def test_an_inconclusive_folder_says_whom_it_would_have_named(shared_data, tmp_path):
    _, report = explain(shared_data / "flight-recorder" / "gloo-4-ranks" / "dataload", tmp_path)
    assert any("rank 2" in alternative["why_not"] for alternative in report["alternatives"])


def test_a_folder_without_dumps_is_one_line_and_exit_2(tmp_path):
    (tmp_path / "notes.txt").write_text("no dump")
    done, report = explain(tmp_path, tmp_path)
    assert done.returncode == 2
    assert "no flight-recorder dump" in report["error"]


def test_a_hostile_pickle_is_not_run(tmp_path):
    folder = tmp_path / "dumps"
    folder.mkdir()
    mark = tmp_path / "ran"
    (folder / "_dump_0").write_bytes(b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR.")
    done, _ = explain(folder, tmp_path)
    assert done.returncode == 2
    assert not mark.exists()
    assert "Traceback" not in done.stderr


def test_links_out_of_the_folder_are_not_followed(tmp_path):
    folder = tmp_path / "dumps"
    folder.mkdir()
    (folder / "_dump_0").symlink_to("/etc/passwd")
    os.mkfifo(folder / "_dump_1")
    done, report = explain(folder, tmp_path)
    assert done.returncode == 2 and "it is empty" in report["error"]
