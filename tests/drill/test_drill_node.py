"""What can be done to a node moves all its traces at once: bytes, card, kernel log, NCCL's lines, callers, processes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from drill_helpers import alive, connect, moving, open_operations, poke, still, told_on_nodes, wait_for
from triage.probes import kernel, nic
from triage.probes._nic_counters import whole
from triage.probes._probe import Ctx

from triage.drill.cluster import Cluster
from triage.readers.signatures import for_probe


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, ranks_per_node=1, seed=8, compute_ms=40) as running:
        moving(running)
        yield running


def ports(cluster: Cluster, node: str) -> dict[str, dict[str, Any]]:
    """What the probe says of the ports of a node, by name."""
    roots = {f"{kind}fs": str(cluster.plan.node_folder(node) / kind) for kind in ("proc", "sys")}
    return {port["name"]: port for port in whole(nic.collect(Ctx(**roots)))}


def kernel_lines(cluster: Cluster, node: str, name: str) -> list[tuple[float, str]]:
    """(time, "up" or "down") that the kernel probe tells of a port, since the job began."""
    roots = (str(cluster.plan.node_folder(node) / root) for root in ("proc", "sys", "root"))
    data = kernel.collect(Ctx(*roots, {"signatures": for_probe("kernel"), "since": cluster.plan.started}))
    assert data["readable"] is True
    wanted = {"link_down": "down", "link_up": "up"}
    own = [event for event in data["events"] if event["id"] in wanted and event["groups"]["nic"] == name]
    assert all(event.get("count", 1) == 1 for event in own)
    return sorted((event["at"], wanted[event["id"]]) for event in own if event["at"] >= cluster.plan.started)


def errors(cluster: Cluster, node: str) -> dict[str, int]:
    counters = ports(cluster, node)[cluster.plan.hca]["counters"]
    return {name: counters[name] for name in ("local_ack_timeout_err", "req_transport_retries_exceeded", "link_downed")}


def rose(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in before}


def nccl_lines(cluster: Cluster, words: str) -> list[str]:
    return [line for line in cluster.plan.log.read_text().splitlines() if "NCCL WARN" in line and words in line]


def address(cluster: Cluster, node: int) -> tuple[str, int]:
    host, port = cluster.hosts[node].fabric.split(":")
    return host, int(port)


def answers(where: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(where, timeout=0.3):
            return True
    except TimeoutError:
        return False


def test_every_node_has_a_roce_port_an_idle_one_and_one_of_management(cluster: Cluster) -> None:
    plan, node = cluster.plan, cluster.plan.nodes[0]
    before = ports(cluster, node), cluster.steps()[0]
    wait_for(lambda: cluster.steps()[0] > before[1] + 25)
    steps = cluster.steps()[0] - before[1]
    time.sleep(0.3)
    after = ports(cluster, node)
    assert set(after) == {plan.hca, plan.nic, plan.spare_nic, "eno1"}
    assert after[plan.hca]["netdev"] == plan.nic
    assert {after[name]["state"] for name in (plan.nic, plan.spare_nic, "eno1")} == {"up"}
    assert after[plan.spare_nic] == before[0][plan.spare_nic]
    for way in ("rx_bytes", "tx_bytes"):
        # Two hops a step, each a chunk and its head of 32 bytes.
        payload = after[plan.hca][way] - before[0][plan.hca][way]
        assert payload / (2 * (plan.chunk_bytes + 32)) == pytest.approx(steps, abs=12)
        chatter = after[plan.nic][way] - before[0][plan.nic][way]
        assert chatter < payload / 20


def test_a_cut_shorter_than_the_retries_passes_by_itself(cluster: Cluster) -> None:
    plan = cluster.plan
    node, other = plan.nodes[1], plan.nodes[0]
    before = {name: (ports(cluster, name), errors(cluster, name)) for name in plan.nodes}
    files, at = cluster.files(), cluster.steps()[0]
    cluster.send(node, {"flap": {"for_s": 0.3}})
    wait_for(lambda: len(kernel_lines(cluster, node, plan.nic)) == 2)
    wait_for(lambda: cluster.steps()[0] > at + 15)
    (down, first), (up, second) = kernel_lines(cluster, node, plan.nic)
    assert (first, second) == ("down", "up") and 0.29 < up - down < 0.9
    time.sleep(0.3)  # the counters are written a few times a second
    now = ports(cluster, node)
    assert now[plan.nic]["carrier_changes"] == before[node][0][plan.nic]["carrier_changes"] + 2
    assert now[plan.hca]["state"] == "ACTIVE" and now[plan.nic]["carrier"] == 1
    waited = rose(before[node][1], errors(cluster, node)), rose(before[other][1], errors(cluster, other))
    assert waited[0]["link_downed"] == 1 and waited[1]["link_downed"] == 0
    assert waited[0]["local_ack_timeout_err"] + waited[1]["local_ack_timeout_err"] >= 1
    assert {each["req_transport_retries_exceeded"] for each in waited} == {0}
    assert max(row["total_ms"] for row in cluster.records(0)) > 250
    assert not nccl_lines(cluster, "status=12")
    assert kernel_lines(cluster, other, plan.nic) == []
    assert set(cluster.files()) == set(files) and told_on_nodes(cluster) == []


def test_a_cut_longer_than_the_retries_is_never_recovered_from_though_the_link_is_back(cluster: Cluster) -> None:
    plan = cluster.plan
    node, other = plan.nodes[1], plan.nodes[0]
    before = {name: errors(cluster, name) for name in plan.nodes}
    cluster.send(node, {"flap": {"for_s": 1.5}})
    wait_for(lambda: len(kernel_lines(cluster, node, plan.nic)) == 2)
    still(cluster, 2.2)
    now = ports(cluster, node)
    assert (now[plan.hca]["state"], now[plan.hca]["phys_state"], now[plan.nic]["carrier"]) == ("ACTIVE", "LinkUp", 1)
    dumps = [open_operations(poke(cluster, rank)) for rank in range(2)]
    # Nobody finishes. A cut in the middle of one leaves it done on one side and open on the other.
    assert [len(dump) for dump in dumps] == [1, 1] and abs(dumps[0][0][1] - dumps[1][0][1]) <= 1
    # The path to a peer is named by whoever sent to it; the port's own node also tells of the port.
    lines = nccl_lines(cluster, "status=12")
    known = {rank: f"from peer 127.0.0.1<{address(cluster, 1 - rank)[1]}> " for rank in range(2)}
    assert lines and all(
        any(f" {plan.nodes[rank]}:" in line and known[rank] in line for rank in known) for line in lines
    )
    events = [line.split("event: ")[1] for line in nccl_lines(cluster, "async error event")]
    assert events == ["port error", "port active"]
    assert all(f" {node}:" in line for line in nccl_lines(cluster, "async error event"))
    gave_up = {name: rose(before[name], errors(cluster, name))["req_transport_retries_exceeded"] for name in plan.nodes}
    printers = {name: sum(f" {name}:" in line for line in lines) for name in plan.nodes}
    assert gave_up == printers
    # Everything else is as before: all alive, all reachable.
    assert all(alive(pid) for pid in cluster.pids().values())
    assert answers(address(cluster, 0)) and answers(address(cluster, 1))
    assert kernel_lines(cluster, other, plan.nic) == [] and told_on_nodes(cluster) == []


def test_a_port_that_stays_down_shows_it_everywhere_and_answers_nobody(cluster: Cluster) -> None:
    plan, node = cluster.plan, cluster.plan.nodes[0]
    cluster.send(node, {"link": "down"})
    cluster.send(node, {"link": "down"})  # twice the same is once
    still(cluster, 1.3)
    assert [state for _, state in kernel_lines(cluster, node, plan.nic)] == ["down"]
    first = ports(cluster, node)
    assert (first[plan.hca]["state"], first[plan.hca]["phys_state"]) == ("DOWN", "Disabled")
    assert (first[plan.nic]["state"], first[plan.nic]["carrier"]) == ("down", 0)
    assert nccl_lines(cluster, "port error") and not nccl_lines(cluster, "port active")
    assert not answers(address(cluster, 0)) and answers(address(cluster, 1))
    second = ports(cluster, node)
    assert [second[plan.hca][way] for way in ("rx_bytes", "tx_bytes")] == [
        first[plan.hca][way] for way in ("rx_bytes", "tx_bytes")
    ]
    with connect(cluster) as client:  # management is another network
        assert client.exec_command("echo here")[1].read() == b"here\n"
    cluster.send(node, {"link": "up"})
    wait_for(lambda: answers(address(cluster, 0)))
    assert wait_for(lambda: nccl_lines(cluster, "port active"))


def test_a_flap_of_a_port_that_the_job_does_not_use_touches_no_byte_of_it(cluster: Cluster) -> None:
    plan, node = cluster.plan, cluster.plan.nodes[1]
    before = ports(cluster, node)
    cluster.send(node, {"spare_flap": {"for_s": 0.4}})
    wait_for(lambda: ports(cluster, node)[plan.spare_nic]["carrier"] == 0, 2)
    at = cluster.steps()[0]
    wait_for(lambda: len(kernel_lines(cluster, node, plan.spare_nic)) == 2)
    wait_for(lambda: cluster.steps()[0] > at + 3)
    (down, first), (up, second) = kernel_lines(cluster, node, plan.spare_nic)
    assert (first, second) == ("down", "up") and 0.39 < up - down < 0.9
    now = ports(cluster, node)
    assert now[plan.spare_nic]["carrier_changes"] == before[plan.spare_nic]["carrier_changes"] + 2
    assert now[plan.spare_nic]["state"] == "up"
    assert now[plan.nic]["carrier_changes"] == before[plan.nic]["carrier_changes"]
    assert kernel_lines(cluster, node, plan.nic) == []
    assert not nccl_lines(cluster, "") and cluster.still_s() < 1 and told_on_nodes(cluster) == []


def test_a_counter_can_rise_without_a_cut(cluster: Cluster) -> None:
    plan, node = cluster.plan, cluster.plan.nodes[1]
    before, retries, at = ports(cluster, node), errors(cluster, node), cluster.steps()[0]
    cluster.send(node, {"count_only": True})
    wait_for(lambda: ports(cluster, node)[plan.nic]["carrier_changes"] == before[plan.nic]["carrier_changes"] + 2)
    wait_for(lambda: cluster.steps()[0] > at + 10)
    now = ports(cluster, node)
    assert now[plan.hca]["counters"]["link_downed"] == before[plan.hca]["counters"]["link_downed"] + 1
    assert (now[plan.hca]["state"], now[plan.nic]["carrier"]) == ("ACTIVE", 1)
    waited = rose(retries, errors(cluster, node))
    assert (waited["local_ack_timeout_err"], waited["req_transport_retries_exceeded"]) == (0, 0)
    assert kernel_lines(cluster, node, plan.nic) == [] and not nccl_lines(cluster, "")
    assert max(row["total_ms"] for row in cluster.records(0)) < 1000 and told_on_nodes(cluster) == []


def test_a_node_that_is_gone_takes_everything_with_it_and_says_nothing() -> None:
    with Cluster(nodes=3, ranks_per_node=2, seed=31, compute_ms=40) as cluster:
        moving(cluster)
        plan, node, pids = cluster.plan, cluster.plan.nodes[1], cluster.pids()
        waiting = connect(cluster, 1)
        _, out, _ = waiting.exec_command("echo $$; exec sleep 60")
        command = int(out.readline())
        other = connect(cluster, 0)
        cluster.send(node, {"node": "down"})
        wait_for(lambda: not any(alive(pids[rank]) for rank in (2, 3)) and not alive(command), 3)
        still(cluster, 1.3)
        launchers = cluster.processes()[3:6]
        assert [alive(pid) for pid in launchers] == [True, False, True]
        assert all(alive(pids[rank]) for rank in (0, 1, 4, 5))
        # Both its addresses swallow every caller; those of the others answer.
        ssh = (cluster.hosts[1].address, cluster.hosts[1].port)
        for _ in range(2):
            assert not answers(ssh) and not answers(address(cluster, 1))
        assert answers(address(cluster, 0)) and answers(address(cluster, 2))
        # No line of an end, no traceback; who sent to it got no answer. Its own ranks say nothing of the fabric.
        text = plan.log.read_text()
        assert "failed (exitcode" not in text and "Traceback" not in text
        (line,) = nccl_lines(cluster, "")
        assert f" {plan.nodes[0]}:" in line and f"from peer 127.0.0.1<{address(cluster, 1)[1]}> with status=12" in line
        # What was connected hears nothing and sees no end.
        out.channel.settimeout(0.3)
        with pytest.raises(TimeoutError):
            out.channel.recv(1)
        transport = waiting.get_transport()
        assert transport is not None and transport.is_active() and not out.channel.closed
        assert other.exec_command("echo here")[1].read() == b"here\n"
        # Nothing of it moves any more, whatever is asked of it.
        own = plan.node_folder(node)
        before = frozen(own)
        cluster.send(node, {"link": "up"})
        cluster.send(node, {"flap": {"for_s": 0.1}})
        time.sleep(0.7)
        assert frozen(own) == before
        assert told_on_nodes(cluster) == []
        everything, folder = cluster.processes(), cluster.folder
        began = time.monotonic()
    assert time.monotonic() - began < 4
    assert not folder.exists() and not any(alive(pid) for pid in everything)
    waiting.close()
    other.close()


def frozen(folder: Path) -> dict[str, bytes]:
    """Every regular file of a node, the machine's own /proc left out."""
    tops = (folder / "sys", folder / "root")
    return {str(path): path.read_bytes() for top in tops for path in top.rglob("*") if path.is_file()}


def test_without_management_a_node_computes_on_and_its_fabric_answers(cluster: Cluster) -> None:
    node = cluster.plan.nodes[1]
    cluster.send(node, {"ssh": "down"})
    ssh = (cluster.hosts[1].address, cluster.hosts[1].port)
    wait_for(lambda: not answers(ssh))
    at = cluster.steps()
    wait_for(lambda: min(cluster.steps().values()) > max(at.values()) + 10)
    assert answers(address(cluster, 1)) and not answers(ssh)
    assert answers((cluster.hosts[0].address, cluster.hosts[0].port))
    assert all(alive(pid) for pid in cluster.pids().values())
    assert not nccl_lines(cluster, "") and kernel_lines(cluster, node, cluster.plan.nic) == []
    assert told_on_nodes(cluster) == []


@pytest.mark.parametrize("message", [{"node": "down"}, {"ssh": "down"}, {"link": "down"}, {"flap": {"for_s": 60.0}}])
def test_nothing_stays_when_a_broken_cluster_ends(message: dict[str, Any]) -> None:
    with Cluster(nodes=2, ranks_per_node=1, seed=8, compute_ms=40) as cluster:
        moving(cluster, 1)
        cluster.send(cluster.plan.nodes[0], message)
        still(cluster, 0.3) if "ssh" not in message else time.sleep(0.3)
        everything, folder = cluster.processes(), cluster.folder
        began = time.monotonic()
    assert time.monotonic() - began < 4
    assert not folder.exists() and not any(alive(pid) for pid in everything)
