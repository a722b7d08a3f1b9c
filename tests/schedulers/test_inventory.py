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
