"""`--transport srun` with a scripted srun: one step per node, so that a dead slurmd costs its own node only."""

import json
import os
import sys
import time

import pytest

from triage.errors import ConfigError, UsageError
from triage.gather import Fleet
from triage.model import Node
from triage.transports import base, payload, srun

PROBE = """
PROBE = {"name": "quick", "version": 1, "timeout_s": 5.0, "cost": "cheap", "needs": [], "fields": {}}
def collect(ctx): return {"sees": ctx.look}
"""
LOAD = payload.build(["quick"], extra={"quick": PROBE}, nice=0)

# What the real one says stands in notes/fanout-and-schedulers.md 3.2.
SCRIPT = """#!{python}
import json, os, sys, time
given, command = dict(a[2:].split("=", 1) if "=" in a else (a[2:], "") for a in sys.argv[1:-3]), sys.argv[-3:]
node = given["nodelist"]
with open("{folder}/calls", "a") as file:
    file.write(json.dumps([given, sorted(k for k in os.environ if k.startswith("SLURM"))]) + "\\n")
def fail(*lines):
    for line in lines:
        print("srun: " + line, file=sys.stderr, flush=True)
    sys.exit(1)
if node == "dead":
    time.sleep(0.3)
    fail("error: Task launch for StepId=4711.7 failed on node dead: Communication connection failure",
         "error: Application launch failed: Communication connection failure", "Job step aborted: Waiting up to 32 seconds")
if node == "hung":
    time.sleep(60)
if node == "busy":
    print("srun: Job 4711 step creation temporarily disabled, retrying (Requested nodes are busy)", file=sys.stderr, flush=True)
    time.sleep(60)
if node == "denied":
    fail("error: Unable to create step for job 4711: Access/permission denied")
if node == "over":
    fail("error: Unable to create step for job 4711: Job/step already completing or completed")
if node == "noisy":
    print("srun: warning: can't honor --ntasks-per-node set to 8", file=sys.stderr, flush=True)
    print("module: command not found", file=sys.stderr, flush=True)
os.execv(command[0], command)
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    (tmp_path / "srun").write_text(SCRIPT.format(python=sys.executable, folder=tmp_path))
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/lab.conf")
    monkeypatch.setenv("SLURM_NTASKS", "64")
    return tmp_path


def asked(names, **options):
    nodes = [Node(name) for name in names]
    fleet = Fleet(nodes, base.load("srun", {"job": "lab:4711.0", **options}), LOAD)
    began = time.monotonic()
    found = {s.node: s for s in fleet.open(3.0)}
    took = time.monotonic() - began
    sees = {s.node: s for s in fleet.look("A", {"quick": {}}, 4.0)}
    fleet.close()
    return found, sees, took


def test_dead_and_hung_nodes_cost_themselves_only_and_each_says_what_slurm_said(slurm):
    names = ["n1", "noisy", "n3", "dead", "hung", "busy", "denied", "over"]
    found, sees, took = asked(names)
    assert took < 4.5
    assert [found[n].status for n in names[:3]] == ["ok"] * 3
    assert [sees[n].data for n in names[:3]] == [{"sees": "A"}] * 3
    told = {n: (found[n].data["phase"], found[n].status) for n in names[3:]}
    assert told == {
        "dead": ("tcp", "error"),
        "hung": ("channel", "timeout"),
        "busy": ("channel", "timeout"),
        "denied": ("auth", "error"),
        "over": ("resolve", "error"),
    }
    assert "failed on node dead: Communication connection failure" in found["dead"].data["error"]
    assert "Requested nodes are busy" in found["busy"].data["error"]


def test_each_node_is_a_step_of_its_own_that_shares_what_the_job_has(slurm):
    asked(["n1", "n2"])
    calls = [json.loads(line) for line in (slurm / "calls").read_text().splitlines()]
    assert sorted(given["nodelist"] for given, _ in calls) == ["n1", "n2"]
    for given, environment in calls:
        assert (given["jobid"], given["nodes"], given["ntasks"]) == ("4711", "1", "1")
        assert "overlap" in given, "without it the step waits until the training ends"
        assert environment == ["SLURM_CONF"], "options of the job that we were started in"


def test_more_nodes_than_places_are_asked_in_turn(slurm, monkeypatch):
    monkeypatch.setattr(srun, "AT_ONCE", 2)
    found, _, _ = asked(["n1", "n2", "n3", "n4", "n5"])
    assert {s.status for s in found.values()} == {"ok"}


def test_what_is_no_job_and_a_machine_without_srun_are_one_line(slurm, monkeypatch):
    with pytest.raises(UsageError, match="'frozen; rm' is no job id of Slurm"):
        base.load("srun", {"job": "frozen; rm"})
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="there is no srun here"):
        base.load("srun", {"job": "4711"})
