"""The whole path against one cluster with a killed rank: what the operator, a script and a replay get."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from triage.drill.cluster import Cluster
from triage.drill.scenarios import find
from triage.schema import schema


@pytest.fixture(scope="module")
def frozen():
    """A cluster whose job stands still for long enough, and the rank that was killed."""
    scenario = find("dead-rank")
    with Cluster(nodes=3, ranks_per_node=2, seed=21, compute_ms=scenario.compute_ms) as cluster:
        until = time.monotonic() + 40
        while min(cluster.steps().values(), default=0) < 25 or len(cluster.steps()) < cluster.plan.world:
            assert time.monotonic() < until, "the job does not train"
            time.sleep(0.1)
        truth = cluster.apply(scenario.name, scenario.fault(""))
        while cluster.still_s() < 7.5:
            assert time.monotonic() < until, "the job did not freeze"
            time.sleep(0.1)
        yield cluster, truth["culprit"]["rank"]


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    return tmp_path_factory.mktemp("state")


def command(cluster, state, *words):
    return [
        sys.executable, "-m", "triage", "frozen-job", cluster.job_id, "--inventory", str(cluster.inventory_path),
        "--profile", str(cluster.profile_path), "--state-dir", str(state), *words,
    ]  # fmt: skip


def run(*argv, **env):
    return subprocess.run(argv, capture_output=True, text=True, timeout=90, env={**os.environ, **env})


def replay(state, *words):
    newest = max((state / "cases").iterdir(), key=lambda p: p.stat().st_mtime_ns)
    return run(sys.executable, "-m", "triage", "replay", str(newest), *words)


def test_a_run_without_poke_still_names_the_rank_and_writes_no_dump(frozen, state):
    cluster, rank = frozen
    before = cluster.files()
    done = run(*command(cluster, state, "--no-poke", "--output", "json"))
    report = json.loads(done.stdout)
    assert done.returncode == 10
    assert report["tool"]["pokes"] == 0
    assert [c["rank"] for c in report["culprits"]] == [rank]
    assert cluster.files() == before


def test_the_report_names_the_rank_and_is_valid_and_replays_byte_for_byte(frozen, state):
    cluster, rank = frozen
    done = run(*command(cluster, state, "--output", "json"))
    assert done.returncode == 10, done.stderr
    report = json.loads(done.stdout)
    jsonschema.validate(report, schema())
    assert report["verdict"]["cause"] == "dead_rank/killed"
    assert [(c["rank"], c["role"]) for c in report["culprits"]] == [(rank, "culprit")]
    assert rank not in [v["rank"] for v in report["victims"]]
    assert report["mitigation"]["recommended"]["strategy"] == "S4"
    assert report["mitigation"]["restart"]["exclude_nodes"] == []
    assert report["tool"]["pokes"] == cluster.plan.world - 1
    assert report["deadlines"][0]["what"] == "collective time-out"
    assert replay(state, "--output", "json").stdout == done.stdout


def test_the_same_incident_is_not_poked_twice_and_text_replays_byte_for_byte(frozen, state):
    cluster, rank = frozen
    done = run(*command(cluster, state, "--explain"))
    assert done.returncode == 10, done.stderr
    assert f"rank {rank} " in done.stdout.splitlines()[0]
    assert "DEADLINE" in done.stdout.splitlines()[2]
    assert "fresh dump" not in done.stderr, done.stderr
    assert replay(state, "--explain").stdout == done.stdout


def test_a_walk_can_be_stopped_and_a_changed_case_is_told(frozen, state):
    newest = max((state / "cases").iterdir(), key=lambda p: p.stat().st_mtime_ns)
    stopped = replay(state, "--until", "pulse", "--output", "json")
    asked = [step["question"] for step in json.loads(stopped.stdout)["walk"]]
    assert asked[-1] == "pulse" and len(asked) < len(json.loads(replay(state, "--output", "json").stdout)["walk"])
    with open(newest / "samples.jsonl", "a") as file:
        file.write("not a sample\n")
    told = replay(state)
    assert "samples.jsonl does not match" in told.stderr and "1 lines" in told.stderr
    assert told.returncode == 10


def test_an_interrupted_run_ends_with_130_and_leaves_a_case_that_replays(frozen, state):
    cluster, _ = frozen
    child = subprocess.Popen(
        command(cluster, state, "--output", "json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stderr is not None
    for line in child.stderr:
        if "nodes answered" in line:  # look A is there, the window has begun
            child.send_signal(signal.SIGINT)
            break
    out, _ = child.communicate(timeout=30)
    assert child.returncode == 130
    assert json.loads(out)["exit_code"] == 130
    done = replay(state, "--output", "json")
    report = json.loads(done.stdout)
    jsonschema.validate(report, schema())
    assert report["verdict"]["id"] in ("inconclusive", "dead_rank")


def test_nothing_of_triage_stays_on_the_nodes(frozen, state):
    cluster, _ = frozen
    mine = {os.getpid(), *cluster.processes()}
    mark = str(cluster.folder).encode()
    until = time.monotonic() + 5
    while True:
        left = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes()
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if mark in environ and int(pid) not in mine and b"os.read(0" in words:
                left.append((pid, words[:80]))
        if not left or time.monotonic() > until:
            break
        time.sleep(0.1)
    assert not left


def test_an_unwritable_state_folder_does_not_stop_a_diagnosis(frozen, tmp_path):
    cluster, rank = frozen
    (tmp_path / "file").write_text("")
    argv = command(cluster, tmp_path / "file" / "x", "--no-poke", "--output", "json")
    done = run(*argv, TMPDIR=str(tmp_path))
    assert done.returncode == 10
    assert "not writable" in done.stdout
    assert [c["rank"] for c in json.loads(done.stdout)["culprits"]] == [rank]


def test_a_second_look_says_what_changed_and_the_case_replays_with_what_was_remembered(frozen, state):
    cluster, _ = frozen
    done = run(*command(cluster, state, "--output", "json"))
    report = json.loads(done.stdout)
    jsonschema.validate(report, schema())
    since = report["since_last"]
    assert since["looks"] >= 2 and since["case"] and since["incident_onset"]
    assert not [c for c in since["changes"] if c["what"] in ("verdict", "culprits", "state")]
    assert any("asked for a fresh dump once" in line for line in since["tried"])
    assert replay(state, "--output", "json").stdout == done.stdout
    assert "LAST LOOK" in replay(state).stdout


def test_slow_job_of_a_frozen_job_goes_over_to_the_other_tree_and_names_the_same_rank(frozen, state):
    cluster, rank = frozen
    argv = command(cluster, state, "--output", "json")
    argv[argv.index("frozen-job")] = "slow-job"
    done = run(*argv)
    report = json.loads(done.stdout)
    assert report["walk"][0]["playbook"] == "slow-job" and report["walk"][1]["playbook"] == "frozen-job"
    assert [c["rank"] for c in report["culprits"]] == [rank]
    assert replay(state, "--output", "json").stdout == done.stdout


def test_a_watch_pokes_nobody_keeps_no_case_and_ends_with_130_and_a_last_line(frozen, state):
    cluster, _ = frozen
    before, cases = cluster.files(), sorted(os.listdir(state / "cases"))
    argv = command(cluster, state, "--every", "10s", "--output", "ndjson")
    argv[argv.index("frozen-job")] = "watch"
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    first = json.loads(child.stdout.readline())
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=30)
    assert child.returncode == 130 and "interrupted after 1 round;" in told
    assert first["state"] == "frozen" and first["schema_version"] == "triage.watch/1"
    assert cluster.files() == before and sorted(os.listdir(state / "cases")) == cases


def test_the_next_shift_reads_what_happened_and_what_was_ruled_out(frozen, state):
    cluster, rank = frozen
    argv = [sys.executable, "-m", "triage", "handover", cluster.job_id, "--state-dir", str(state)]
    told = run(*argv)
    assert told.returncode == 0, told.stderr
    for words in ("HAPPENED", f"rank {rank} ", "RULED OUT", "TRIED", "fresh dump once", "ACT"):
        assert words in told.stdout
    assert max(map(len, told.stdout.splitlines())) <= 80
    document = json.loads(run(*argv, "--output", "json").stdout)
    assert document["schema_version"] == "triage.handover/1" and document["ruled_out"]
    assert run(*argv[:-3], "no-such-job", *argv[-2:]).returncode == 20
