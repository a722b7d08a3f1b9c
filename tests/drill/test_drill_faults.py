"""The four faults, seen from outside: what stands still, who is alive, what the flight records say, what leaks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from drill_helpers import alive, environment, moving, open_operations, poke, still, told_on_nodes, wait_for

from triage.drill.cluster import Cluster
from triage.drill.scenarios import find


def test_a_killed_rank_leaves_all_others_alive_and_blocked_in_the_collective() -> None:
    with Cluster(nodes=3, ranks_per_node=2, seed=4, compute_ms=60) as cluster:
        moving(cluster)
        pids = cluster.pids()
        truth = cluster.apply("dead-rank", find("dead-rank").fault(""))
        still(cluster)
        gone = truth["culprit"]["rank"]
        node = truth["culprit"]["node"]
        assert truth["victims"] == [rank for rank in range(6) if rank != gone] and truth["cycle"] == []
        # Reaped: no zombie, no link to its number, and the launcher says who it was. Nobody else follows.
        assert [rank for rank, pid in pids.items() if not alive(pid)] == [gone]
        assert not Path(f"/proc/{pids[gone]}").exists()
        assert not (cluster.plan.node_folder(node) / "proc" / str(pids[gone])).is_symlink()
        line = f"failed (exitcode: -9) local_rank: {gone % 2} (pid: {pids[gone]}) of binary: "
        text = cluster.plan.log.read_text()
        assert line in text and text.count("failed (exitcode") == 1
        assert "Traceback" not in text
        # The FIFO answers while the main thread hangs, twice the same; the dead rank's FIFO has no reader.
        first = {rank: open_operations(poke(cluster, rank)) for rank in truth["victims"]}
        assert all(len(waits) == 1 for waits in first.values())
        assert first == {rank: open_operations(poke(cluster, rank)) for rank in truth["victims"]}
        # Asleep in a system call of the network, not spinning and not in a timer.
        for rank in truth["victims"]:
            assert Path(f"/proc/{pids[rank]}/wchan").read_text() not in ("hrtimer_nanosleep", "do_nanosleep")
            before = cpu_ticks(pids[rank])
            assert cpu_ticks(pids[rank]) - before <= 1
        with pytest.raises(OSError):
            still_has_reader(cluster, node, gone)
        assert told_on_nodes(cluster) == []


def test_the_fabric_counters_stand_still_after_a_death_and_management_goes_on() -> None:
    with Cluster(nodes=2, ranks_per_node=1, seed=9, compute_ms=40) as cluster:
        moving(cluster)
        cluster.apply("dead-rank", find("dead-rank").fault(""))
        still(cluster)
        net = cluster.plan.node_folder(cluster.plan.nodes[0]) / "sys" / "class" / "net"
        read = {nic: net / nic / "statistics" / "rx_bytes" for nic in (cluster.plan.nic, "eno1")}
        before = {nic: int(path.read_text()) for nic, path in read.items()}
        wait_for(lambda: int(read["eno1"].read_text()) > before["eno1"])
        assert int(read[cluster.plan.nic].read_text()) == before[cluster.plan.nic]
        assert (net / cluster.plan.nic / "carrier").read_text() == "1\n"


def test_a_rank_that_enters_its_groups_in_the_opposite_order_makes_a_cycle() -> None:
    with Cluster(nodes=2, ranks_per_node=2, seed=6, compute_ms=60) as cluster:
        moving(cluster)
        truth = cluster.apply("deadlock", find("deadlock").fault("order"))
        still(cluster)
        swapped = truth["culprit"]["rank"]
        assert truth["cycle"] == sorted([swapped, swapped ^ 1]) and len(truth["victims"]) == 2
        assert all(alive(pid) for pid in cluster.pids().values())
        tensor = str(1 + cluster.plan.nodes.index(truth["culprit"]["node"]))
        waits = {rank: open_operations(poke(cluster, rank)) for rank in range(4)}
        (step,) = {number for waiting in waits.values() for _, number in waiting}
        assert waits[swapped] == [("0", step)] and waits[swapped ^ 1] == [(tensor, step)]
        assert all(waits[rank] == [("0", step)] for rank in truth["victims"])
        assert "failed (exitcode" not in cluster.plan.log.read_text()
        assert told_on_nodes(cluster) == []


def test_a_rank_at_88_percent_computes_longer_and_all_others_wait_for_it() -> None:
    with Cluster(nodes=2, ranks_per_node=2, seed=2, compute_ms=200) as cluster:
        moving(cluster, 2)
        truth = cluster.apply("straggler", find("straggler").fault(""), speed=0.88)
        rank = truth["culprit"]["rank"]
        start = cluster.steps()[rank]
        wait_for(lambda: min(cluster.steps().values()) >= start + 8)
        rows = {r: [row for row in cluster.records(r) if row["step"] >= start + 2] for r in range(4)}
        compute = {r: statistics.median(row["compute_ms"] for row in rows[r]) for r in rows}
        waiting = {r: statistics.median(row["collective_ms"] for row in rows[r]) for r in rows}
        assert compute[rank] / 200 == pytest.approx(1 / 0.88, rel=0.02)
        assert all(compute[r] == pytest.approx(200, rel=0.05) for r in truth["victims"])
        assert all(waiting[r] > waiting[rank] + 15 for r in truth["victims"])
        assert all(alive(pid) for pid in cluster.pids().values())
        assert told_on_nodes(cluster) == []


@pytest.fixture
def cut() -> Iterator[tuple[Cluster, str]]:
    with Cluster(nodes=2, ranks_per_node=1, seed=8, compute_ms=40) as cluster:
        moving(cluster)
        node = cluster.plan.nodes[1]
        cluster.send(node, {"link": "down"})
        yield cluster, node


def test_a_cut_link_stops_the_job_and_loses_nothing_when_it_comes_back(cut: tuple[Cluster, str]) -> None:
    cluster, node = cut
    still(cluster, 1.5)
    card = cluster.plan.node_folder(node) / "sys" / "class" / "net" / cluster.plan.nic
    changes = int((card / "carrier_changes").read_text())
    assert (card / "operstate").read_text() == "down\n" and (card / "carrier").read_text() == "0\n"
    dumps = [open_operations(poke(cluster, rank)) for rank in range(2)]
    assert dumps[0] == dumps[1] and len(dumps[0]) == 1  # both have joined, nobody finishes
    at = cluster.steps()[0]
    cluster.send(node, {"link": "up"})
    wait_for(lambda: cluster.steps()[0] > at + 5)
    assert int((card / "carrier_changes").read_text()) == changes + 1
    assert max(row["total_ms"] for row in cluster.records(0)) > 1500
    assert "Link down" in (cluster.plan.node_folder(node) / "root" / "var" / "log" / "kern.log").read_text()


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def still_has_reader(cluster: Cluster, node: str, rank: int) -> None:
    import os

    path = cluster.plan.scratch(node) / "comm" / f"pipe_rank_{rank}.pipe"
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


def test_a_stopped_rank_freezes_the_job_without_ending_it() -> None:
    with Cluster(nodes=2, ranks_per_node=1, seed=3, compute_ms=40) as cluster:
        moving(cluster)
        cluster.send(cluster.node_of(1), {"rank": 1, "signal": 19})
        still(cluster, 1.5)
        pid = cluster.pids()[1]
        assert Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
        at = cluster.steps()[0]
        cluster.send(cluster.node_of(1), {"rank": 1, "signal": 18})
        wait_for(lambda: cluster.steps()[0] > at + 3)
        assert environment(pid)["RANK"] == "1"
