"""Nodes in namespaces: real cables, a real sshd, addresses that nobody else sees, and nothing left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from drill_helpers import alive, moving, still, wait_for

from triage.drill import machine, netlab
from triage.drill.cluster import Cluster
from triage.drill.run import DrillOptions, run_drill
from triage.errors import TriageError, UsageError

if netlab.why_not() and not os.environ.get("TRIAGE_NO_SKIPS"):
    pytest.skip(f"no namespaces here: {netlab.why_not()}", allow_module_level=True)

CARRIER = "cat /sys/class/net/{0}/carrier /sys/class/net/{0}/carrier_down_count /sys/class/net/{0}/operstate"


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with Cluster(nodes=3, ranks_per_node=2, seed=5, compute_ms=40, backend="namespaces") as cluster:
        moving(cluster)
        yield cluster


def asker(cluster: Cluster) -> Callable[..., str]:
    """ask(index of a node, command): what OpenSSH's own client hears, with the keys that the drill hands out."""

    def ask(index: int, command: str, check: bool = True) -> str:
        host, folder = cluster.hosts[index], cluster.folder / "operator"
        words = [
            "ssh",
            "-F",
            "none",
            "-i",
            str(folder / "id_ed25519"),
            "-o",
            f"UserKnownHostsFile={folder}/known_hosts",
        ]
        words += ["-o", "ConnectTimeout=4", "-o", "BatchMode=yes", f"{cluster.plan.user}@{host.address}", command]
        with cluster.backend.inside():
            done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=check)
        return done.stdout if done.returncode == 0 else f"failed: {done.stderr}"

    return ask


def interfaces() -> list[str]:
    return sorted(os.listdir("/sys/class/net"))


def test_each_node_is_a_machine_of_its_own(running: Cluster) -> None:
    ask = asker(running)
    for index, node in enumerate(running.plan.nodes):
        assert ask(index, "hostname").strip() == node
        ports = ask(index, "ls /sys/class/net").split()
        assert sorted(ports) == sorted(["lo", "eno1", running.plan.nic, running.plan.spare_nic])
        assert ask(index, "ls /sys/class/infiniband").split() == [running.plan.hca]
        processes = ask(index, "ps -eo args").splitlines()
        assert sum("pretrain_gpt.py" in line and "torchrun" not in line for line in processes) == 2
        assert not any("pytest" in line for line in processes)  # this very program runs on the machine
    assert len({ask(index, "cat /proc/sys/kernel/random/boot_id") for index in range(3)}) == 3


def test_nothing_of_it_is_seen_on_the_machine(running: Cluster) -> None:
    for network in netlab.NETWORKS.values():
        assert network not in subprocess.run(["ip", "addr"], capture_output=True, text=True, check=True).stdout
    assert not {"mgmt", "fab0", "mgmtn0", running.plan.nic} & set(interfaces())
    mounts = Path("/proc/self/mounts").read_text()
    assert "/sys/class/infiniband" not in mounts and "/run/site" not in mounts
    assert running.plan.user not in Path("/etc/passwd").read_text()


def test_accounts_of_the_machine_that_change_do_not_take_away_the_nodes(running: Cluster) -> None:
    """An installer replaces /etc/passwd by another file: what is mounted on that file alone would be gone with it."""
    places = [line.split()[1] for line in asker(running)(0, "cat /proc/self/mounts").splitlines()]
    assert "/etc" in places and not [place for place in places if place.startswith("/etc/passwd")]
    assert running.plan.user in asker(running)(0, "tail -n 1 /etc/passwd")


def test_the_log_of_the_machine_is_not_the_nodes_and_its_own_is(running: Cluster) -> None:
    ask = asker(running)
    assert running.plan.nodes[1] in ask(1, "tail -n 1 /var/log/kern.log")
    assert "failed" in ask(1, "dmesg", check=False)


def test_the_fake_rdma_device_counts_while_the_job_runs(running: Cluster) -> None:
    ask = asker(running)
    counter = f"cat /sys/class/infiniband/{running.plan.hca}/ports/1/counters/port_xmit_data"
    first = int(ask(0, counter))
    assert wait_for(lambda: int(ask(0, counter)) > first)


def test_a_pulled_cable_takes_the_carrier_of_that_port_alone_and_the_job_goes_on_when_it_is_back() -> None:
    with Cluster(nodes=3, ranks_per_node=1, seed=6, compute_ms=40, backend="namespaces") as cluster:
        moving(cluster)
        ask, nic = asker(cluster), cluster.plan.nic
        before = [ask(index, CARRIER.format(nic)).split() for index in range(3)]
        cluster.send(cluster.plan.nodes[1], {"flap": {"for_s": 0.3}})
        time.sleep(0.1)
        steps = max(cluster.steps().values())
        wait_for(lambda: min(cluster.steps().values()) > steps + 5)
        after = [ask(index, CARRIER.format(nic)).split() for index in range(3)]
        assert after[0] == before[0] and after[2] == before[2]
        assert int(after[1][1]) == int(before[1][1]) + 1 and after[1][0] == "1"
        cluster.send(cluster.plan.nodes[1], {"link": "down"})
        still(cluster)
        assert ask(1, f"cat /sys/class/net/{nic}/operstate").strip() in ("lowerlayerdown", "down")
        assert ask(1, "cat /sys/class/net/eno1/carrier").strip() == "1"


def test_a_cable_that_is_out_for_longer_than_the_cards_retry_lets_no_rank_end_its_step_afterwards() -> None:
    """Nothing that was on its way is delivered late: what TCP still holds when the cards give up is lost with them."""
    with Cluster(nodes=3, ranks_per_node=2, seed=6, compute_ms=40, backend="namespaces") as cluster:
        moving(cluster)
        cluster.send(cluster.plan.nodes[1], {"flap": {"for_s": 4.0}})
        time.sleep(2.5)  # for longer than the cards retry (0.94 s)
        steps = cluster.steps()
        time.sleep(6.0)
        assert cluster.steps() == steps and cluster.still_s() > 6


def test_a_cut_management_network_silences_ssh_and_not_the_job() -> None:
    with Cluster(nodes=2, ranks_per_node=1, seed=6, compute_ms=40, backend="namespaces") as cluster:
        moving(cluster)
        ask = asker(cluster)
        cluster.send(cluster.plan.nodes[0], {"ssh": "down"})
        wait_for(lambda: "failed" in ask(0, "true", check=False))
        steps = min(cluster.steps().values())
        wait_for(lambda: min(cluster.steps().values()) > steps + 5)


def test_a_fabric_in_two_halves_keeps_its_links_and_the_senders_give_up() -> None:
    with Cluster(nodes=4, ranks_per_node=1, seed=6, compute_ms=40, backend="namespaces") as cluster:
        moving(cluster)
        ask = asker(cluster)
        for node in cluster.plan.nodes[:2]:
            cluster.send(node, {"bridge": 1})
        still(cluster)
        assert all(ask(index, f"cat /sys/class/net/{cluster.plan.nic}/carrier").strip() == "1" for index in range(4))
        wait_for(lambda: "status=12" in (text := cluster.plan.log.read_text()) or "error 12" in text)
        for node in cluster.plan.nodes[:2]:  # whole again: who gave up stays in error
            cluster.send(node, {"bridge": 0})
        time.sleep(2.5)
        assert cluster.still_s() > 2


def test_after_a_drill_nothing_of_its_nodes_is_left() -> None:
    before = interfaces()
    with Cluster(nodes=2, ranks_per_node=1, seed=6, compute_ms=40, backend="namespaces") as cluster:
        moving(cluster)
        pids, folder = cluster.processes(), cluster.folder
        assert len(pids) > 6
    wait_for(lambda: not [pid for pid in pids if alive(pid)], 5)
    assert not folder.exists() and interfaces() == before


HELD = """
import sys, time
from triage.drill.cluster import Cluster
with Cluster(nodes=2, ranks_per_node=1, seed=6, compute_ms=40, backend="namespaces") as cluster:
    while len(cluster.steps()) < 2:
        time.sleep(0.1)
    print(*cluster.processes(), cluster.backend.lab.holder.pid, flush=True)
    print(cluster.folder, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_whatever_ends_the_drill_ends_its_namespaces(end: signal.Signals) -> None:
    held = subprocess.Popen([sys.executable, "-c", HELD], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert held.stdout is not None
    pids, folder = [int(word) for word in held.stdout.readline().split()], Path(held.stdout.readline().strip())
    assert len(pids) > 6 and all(map(alive, pids[-1:])) and folder.is_dir()
    held.send_signal(end)
    held.wait(20)
    wait_for(lambda: not [pid for pid in pids if alive(pid)], 10)
    wait_for(lambda: not folder.exists(), 10)


def test_two_clusters_at_once_do_not_meet(running: Cluster) -> None:
    with Cluster(nodes=2, ranks_per_node=1, seed=9, compute_ms=40, backend="namespaces") as other:
        moving(other)
        assert asker(other)(0, "hostname").strip() == other.plan.nodes[0]
        assert asker(running)(0, "hostname").strip() == running.plan.nodes[0]  # the same address


def test_what_namespaces_cannot_hide_is_refused() -> None:
    for source in ("ranks", "nic"):
        with pytest.raises(UsageError, match="--backend processes can"):
            Cluster(nodes=2, backend="namespaces", blind=frozenset({source})).start()


def test_what_could_not_be_done_to_a_node_is_told_and_the_node_lives(running: Cluster) -> None:
    assert running.backend.failed() == ""
    running.send(running.plan.nodes[2], {"shape": ["rate", "nonsense"]})
    assert running.plan.nodes[2] in wait_for(running.backend.failed) and "tc qdisc" in running.backend.failed()
    assert asker(running)(2, "hostname").strip() == running.plan.nodes[2]


def test_a_fault_of_real_cables_is_refused_without_them() -> None:
    for backend in ("processes",):
        with pytest.raises(UsageError, match="needs real cables"):
            run_drill(DrillOptions("network", "halves", backend=backend), lambda *_: 0, progress=lambda line: None)


def test_without_root_the_reason_is_told_and_auto_takes_processes(monkeypatch: Any) -> None:
    from triage.drill.backends import settled

    netlab.why_not.cache_clear()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    try:
        assert settled("auto") == "processes"
        with pytest.raises(UsageError, match="it needs root"):
            Cluster(nodes=2, backend="namespaces")
    finally:
        netlab.why_not.cache_clear()


def test_a_machine_does_not_start_outside_of_namespaces(tmp_path: Path) -> None:
    """It would mount over this machine's /proc, and end all of its processes."""
    config = {"node": "n1", "lab": {}, "blind": [], "folder": str(tmp_path / "n1"), "scratch": str(tmp_path / "s")}
    with pytest.raises(TriageError, match="outside"):
        machine.Machine(config)
    assert not (tmp_path / "n1").exists()
