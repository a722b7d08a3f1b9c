"""The doctor on a real drill cluster: what is missing is told with its price and its line, and nothing is written on a node."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from triage import checkup, investigate
from triage.drill.backends import key_pair
from triage.drill.cluster import Cluster
from triage.inputs import find_job, options
from triage.render.clean import clean

SCHEMA_KEYS = {"id", "asks", "state", "says", "nodes", "costs", "where", "set"}


def look(cluster, state):
    flags = {"inventory": str(cluster.inventory_path), "state_dir": str(state), "profile": str(cluster.profile_path)}
    found = find_job(cluster.job_id, None, flags, warn=lambda line: None)
    chosen = options("doctor", found, poke=False, run_s=None, looks=1, say=lambda line: None)
    return checkup.examine(investigate.live(found.job, chosen))


@pytest.fixture(scope="module")
def blind(tmp_path_factory):
    with Cluster(
        nodes=2, ranks_per_node=1, seed=3, compute_ms=40, blind=frozenset({"dumps", "steps", "joblog"})
    ) as cluster:
        while len(cluster.steps()) < 2:
            time.sleep(0.05)
        before = cluster.files()
        made = look(cluster, tmp_path_factory.mktemp("state"))
        assert cluster.files() == before
        yield made


def test_what_the_job_was_started_without_is_told_with_its_price_and_its_line(blind):
    lacks = {f.id: f for f in blind.findings if f.state == "lack"}
    assert {"recorder_off", "pipe", "steps", "job_log"} <= set(lacks) and blind.exit_code == 10
    assert "deadlock/order" in lacks["recorder_off"].costs and lacks["recorder_off"].set.startswith("export TORCH_FR")
    assert "straggler/compute" in lacks["steps"].costs and len(lacks["steps"].nodes) == 2
    text = checkup.text(blind)
    assert max(map(len, text.splitlines())) <= 130 and "export TRIAGE_STEP_LOG" in text
    assert all(len(line) <= 80 for line in text.splitlines() if not line.startswith("     "))


def test_the_document_has_every_check_with_all_keys(blind):
    told = json.loads(json.dumps(checkup.document(blind)))
    assert told["schema_version"] == "triage.doctor/1" and told["exit_code"] == 10 and told["answered"] == 2
    assert all(set(check) == SCHEMA_KEYS for check in told["checks"])
    assert all(check["set"] and check["where"] for check in told["checks"] if check["state"] == "lack")


def test_a_job_with_all_switches_lacks_none_of_them(tmp_path):
    with Cluster(nodes=2, ranks_per_node=1, seed=3, compute_ms=40) as cluster:
        while len(cluster.steps()) < 2:
            time.sleep(0.05)
        made = look(cluster, tmp_path)
    assert not [f.id for f in made.findings if f.state == "lack" and f.where == "job"]


def test_where_no_node_answers_the_exit_is_that_of_an_unreachable_job(tmp_path):
    inventory = tmp_path / "jobs.yaml"
    inventory.write_text(
        'version: 1\njobs: {"1": {nodes: "n[1-2]"}}\nhosts: {"n[1-2]": {address: 127.0.0.1, port: 1}}\n'
    )
    (tmp_path / "known").write_text("")
    (tmp_path / "key").write_text(key_pair()[0])
    (tmp_path / "key").chmod(0o600)
    words = [sys.executable, "-m", "triage", "doctor", "1", "--inventory", str(inventory), "--state-dir", str(tmp_path)]
    words += ["--known-hosts", str(tmp_path / "known"), "--key", str(tmp_path / "key"), "--output", "json"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False)
    told = json.loads(done.stdout)
    assert done.returncode == 22 == told["exit_code"] and told["answered"] == 0, done.stderr
    lack = next(check for check in told["checks"] if check["id"] == "nodes")
    assert lack["nodes"] == ["n1", "n2"] and lack["set"].startswith("ssh NODE true ")


def test_an_unknown_job_is_told_as_such(tmp_path):
    inventory = tmp_path / "jobs.yaml"
    inventory.write_text('version: 1\njobs: {"1": {nodes: n1}}\n')
    words = [sys.executable, "-m", "triage", "doctor", "2", "--inventory", str(inventory), "--state-dir", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False)
    assert done.returncode == 20 and done.stdout == "" and "it knows 1" in done.stderr


def test_names_of_nodes_reach_no_terminal_unclean():
    found = checkup.Finding(
        "x", "Is it?", "lack", says=clean("bad \x1b[31mred"), nodes=("n\x1b[2J1",), where="job", set="a"
    )
    assert "\x1b" not in checkup.text(checkup.Checkup("\x1b]0;x", 1, 1, (found,)))
