"""An inventory says what it means, and every mistake in it is one line with its place."""

import pytest

from triage.errors import ConfigError, UnknownJob
from triage.schedulers import inventory

GOOD = """
version: 1
jobs:
  "4711": {nodes: "gpu[001-002]", log: /shared/4711.log, started: 2026-11-29T01:10:00Z, cluster: lab, match: {SLURM_JOB_ID: "4711"}}
  4712: {nodes: [gpu003, gpu001]}
hosts:
  "gpu[001-002]": {address: 127.0.0.1, port: 2201, user: oncall, fabric: ["10.88.0.11:22"], state: idle}
ssh: {key: ~/.ssh/id_ed25519, known_hosts: [a, b]}
"""


def test_a_job_gets_its_nodes_in_order_with_their_addresses():
    read = inventory.parse(GOOD, "lab.yaml")
    job = read.job("4711")
    assert [node.name for node in job.nodes] == ["gpu001", "gpu002"]
    assert job.nodes[0].port == 2201 and job.nodes[0].fabric == ("10.88.0.11:22",)
    assert job.attempt.started == 1795914600.0
    assert job.match == {"SLURM_JOB_ID": "4711"}
    assert [node.name for node in read.job("4712").nodes] == ["gpu003", "gpu001"]
    assert read.access.known_hosts == ("a", "b")


def test_an_unknown_job_names_the_nearest_one():
    with pytest.raises(UnknownJob, match="did you mean 4711"):
        inventory.parse(GOOD, "lab.yaml").job("47l11")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected"),
        ("[1, 2]", "expected"),
        ("jobs: {a: {nodes: n1}}\nhots: {}", "did you mean hosts"),
        ("jobs: {}", "no jobs"),
        ("jobs: {a: {}}", "nodes is empty"),
        ("jobs: {a: {nodes: ''}}", "nodes is empty"),
        ("jobs: {a: {nodes: 'n[3-1]'}}", "runs backwards"),
        ("jobs: {a: {nodes: n1, state: asleep}}", "not one of"),
        ("jobs: {a: {nodes: n1, started: yesterday}}", "not a time"),
        ("jobs: {a: {nodes: n1, restart: -1}}", "not a count"),
        ("jobs: {a: {nodes: n1}}\nhosts: {n1: {port: 70000}}", "not a port"),
        ("jobs: {a: {nodes: n1}}\nhosts: {n1: {fabric: x}}", "must be a list"),
        ("version: 2\njobs: {a: {nodes: n1}}", "reads version 1"),
        ("jobs: {a: {nodes: n1}", "not YAML"),
        ("jobs: !!python/object/apply:os.system [id]", "the tag"),
        ("jobs: {a: {nodes: n1}}\njobs: {}", "stands twice"),
        ("jobs: {a: {nodes: n1, started: 2026-13-45}}", "not a time"),
        ("a: &x [1]\nb: *x", "anchors and aliases"),
    ],
)
def test_every_mistake_is_one_line_with_its_place(text, says):
    with pytest.raises(ConfigError, match=says) as refused:
        inventory.parse(text, "lab.yaml")
    assert str(refused.value).startswith("lab.yaml")
    assert "\n" not in str(refused.value)


def test_bare_node_lists_make_a_job():
    assert [n.name for n in inventory.from_nodes("x", "a[1-2]").nodes] == ["a1", "a2"]


# ---------------------------------------------------------------- which attempt is meant?

NOW = 1795950000.0  # 2026-11-29 11:00 UTC


def job_of(entry, now=NOW):
    return inventory.parse(f"jobs:\n  a: {{nodes: n1, {entry}}}\n  b: {{nodes: n2}}", "lab.yaml", now)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("started: 2026-11-29T10:00:00Z, ended: 2026-11-29T09:00:00Z", "ended before it started"),
        ("state: running, ended: 2026-11-29T10:30:00Z", "leave one out"),
        ("state: suspended, ended: 2026-11-29T10:30:00Z", "leave one out"),
        ("started: 2026-11-29T13:00:00Z", "started lies 2h ahead of this machine's clock; is it local time"),
        ("started: 2026-11-29T11:20:00Z", "started lies 20m ahead"),
        ("state: ended, ended: 2026-11-30T11:00:00Z", "a wall-time limit is `deadline`"),
    ],
)
def test_times_that_cannot_be_refuse_that_job_in_one_line_and_no_other(entry, says):
    read = job_of(entry)
    with pytest.raises(ConfigError, match=says) as refused:
        read.job("a")
    assert str(refused.value).startswith("lab.yaml: job a: ") and "\n" not in str(refused.value)
    assert read.job("b").nodes[0].name == "n2"


@pytest.mark.parametrize(
    "entry",
    [
        "started: 2026-11-29T11:02:00Z",  # two minutes of two clocks
        "state: pending, started: 2026-11-29T18:00:00Z",  # when the scheduler means to start it
        "state: pending, ended: 2026-11-29T10:00:00Z",  # requeued, and waiting
        "started: 2026-11-29T13:00:00+02:00",
        "deadline: 2026-11-30T11:00:00Z",
    ],
)
def test_times_that_two_clocks_or_a_waiting_job_explain_are_no_mistake(entry):
    assert job_of(entry).job("a").id == "a"


def test_without_a_clock_nothing_lies_in_the_future():
    assert job_of("started: 2036-11-29T13:00:00Z", None).job("a").attempt.started is not None


def test_a_job_with_an_end_has_ended_unless_its_state_says_otherwise():
    assert job_of("ended: 2026-11-29T10:00:00Z").job("a").state == "ended"
    assert job_of("ended: 2026-11-29T10:00:00Z, state: completing").job("a").state == "completing"
    assert job_of("cluster: lab").job("a").state == "running"


def test_what_is_missing_to_tell_attempts_apart_is_noted():
    assert "restart 2 without `started`" in job_of("restart: 2").notes["a"][0]
    assert "ended without `ended`" in job_of("state: ended").notes["a"][0]
    assert "a" not in job_of("restart: 2, started: 2026-11-29T10:00:00Z").notes
    assert "a" not in job_of("restart: 0").notes


def test_a_restart_that_nobody_told_is_not_none_at_all():
    assert job_of("restart: 0").job("a").attempt.restart == 0
    assert job_of("cluster: lab").job("a").attempt.restart is None
