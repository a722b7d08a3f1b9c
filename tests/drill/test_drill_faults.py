"""The faults of ranks, seen from outside: what stands still, who is alive, what the flight records say, what leaks."""

from __future__ import annotations

import os
import statistics
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
        rdma = net.parent / "infiniband" / cluster.plan.hca / "ports" / "1" / "counters" / "port_rcv_data"
        read = {cluster.plan.nic: rdma, "eno1": net / "eno1" / "statistics" / "rx_bytes"}
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


def test_a_rank_that_leaves_out_a_collective_looks_like_one_that_swapped_two() -> None:
    with Cluster(nodes=2, ranks_per_node=2, seed=16, compute_ms=60) as cluster:
        moving(cluster)
        truth = cluster.apply("deadlock", find("deadlock").fault("missing"))
        still(cluster)
        odd, node = truth["culprit"]["rank"], truth["culprit"]["node"]
        tensor = str(1 + cluster.plan.nodes.index(node))
        waits = {rank: open_operations(poke(cluster, rank)) for rank in range(4)}
        (step,) = {number for waiting in waits.values() for _, number in waiting}
        assert waits[odd ^ 1] == [(tensor, step)]
        assert all(waits[rank] == [("0", step)] for rank in range(4) if rank != odd ^ 1)
        assert all(alive(pid) for pid in cluster.pids().values()) and told_on_nodes(cluster) == []


def test_a_rank_in_another_branch_is_alone_in_its_collective_and_all_others_wait_for_it() -> None:
    with Cluster(nodes=3, ranks_per_node=1, seed=17, compute_ms=60) as cluster:
        moving(cluster)
        truth = cluster.apply("deadlock", find("deadlock").fault("conditional"))
        still(cluster)
        odd = truth["culprit"]["rank"]
        waits = {rank: open_operations(poke(cluster, rank)) for rank in range(3)}
        assert waits.pop(odd) == [(str(1 + 3), 1)]
        assert len({tuple(waiting) for waiting in waits.values()}) == 1 and waits.popitem()[1][0][0] == "0"
        assert truth["cycle"] == [] and told_on_nodes(cluster) == []


def test_a_rank_that_compiles_really_compiles_and_then_the_job_goes_on() -> None:
    with Cluster(nodes=2, ranks_per_node=1, seed=18, compute_ms=40) as cluster:
        moving(cluster)
        node, cache = cluster.node_of(1), cluster.plan.scratch(cluster.node_of(1)) / "inductor"
        cluster.send(node, {"rank": 1, "tell": {"compile": 4.0}})
        still(cluster, 1.5)
        view = cluster.plan.node_folder(node) / "proc"
        own = {int(name) for name in os.listdir(view) if name.isdigit()}
        (worker,) = [pid for pid in own if parent(pid) == cluster.pids()[1]]
        assert b"compile_worker" in Path(f"/proc/{worker}/cmdline").read_bytes()
        assert environment(worker)["RANK"] == "1"
        ticks, files = cpu_ticks(worker), len(list(cache.rglob("*")))
        wait_for(lambda: cpu_ticks(worker) > ticks + 20 and len(list(cache.rglob("*"))) > files + 1, 3)
        assert open_operations(poke(cluster, 1)) == [] and len(open_operations(poke(cluster, 0))) == 1
        assert told_on_nodes(cluster) == []
        at = cluster.steps()[0]
        wait_for(lambda: cluster.steps()[0] > at + 5, 10)
        assert not alive(worker)
        wait_for(lambda: not (view / str(worker)).is_symlink(), 3)


def test_a_compiler_does_not_outlive_its_rank() -> None:
    with Cluster(nodes=2, ranks_per_node=1, seed=19, compute_ms=40) as cluster:
        moving(cluster)
        cluster.send(cluster.node_of(0), {"rank": 0, "tell": {"compile": 60.0}})
        (worker,) = wait_for(lambda: children_of(cluster.pids()[0]))
        os.kill(cluster.pids()[0], 9)
        wait_for(lambda: not alive(worker), 3)


def test_a_job_that_has_finished_says_so_and_its_processes_stay() -> None:
    with Cluster(nodes=2, ranks_per_node=2, seed=20, compute_ms=40) as cluster:
        moving(cluster)
        cluster.apply("finished", find("finished").fault(""))
        still(cluster, 1.5)
        assert len(set(cluster.steps().values())) == 1 and all(alive(pid) for pid in cluster.pids().values())
        assert cluster.plan.log.read_text().splitlines()[-1].startswith("[after training is done] datetime: 20")
        assert all(open_operations(poke(cluster, rank)) == [] for rank in range(4))
        assert told_on_nodes(cluster) == []


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


def children_of(pid: int) -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and parent(int(name)) == pid]


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


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def still_has_reader(cluster: Cluster, node: str, rank: int) -> None:
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
