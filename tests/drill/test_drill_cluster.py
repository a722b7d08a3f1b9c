"""A healthy embedded cluster, seen from outside: its job, its flight records, its nodes' roots."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from drill_helpers import alive, environment, moving, open_operations, poke, wait_for

from triage.drill.cluster import Cluster
from triage.errors import TriageError, UsageError

MEGATRON = re.compile(
    r"^ \[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\] iteration +(\d+)/ +100000 \| consumed samples: +\d+ \|"
    r" elapsed time per iteration \(ms\): (\d+\.\d) \|.* lm loss: \d\.\d{6}E[+-]\d\d \|",
    re.MULTILINE,
)
ENTRY = {
    "frames", "record_id", "pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "op_id", "profiling_name",
    "time_created_ns", "input_sizes", "input_dtypes", "output_sizes", "output_dtypes", "state",
    "time_discovered_started_ns", "time_discovered_completed_ns", "retired", "timeout_ms", "is_p2p", "thread_id",
    "thread_name",
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, ranks_per_node=2, seed=11) as running:
        moving(running)
        yield running


def test_every_rank_makes_steps_and_records_their_times(cluster: Cluster) -> None:
    before = cluster.steps()
    wait_for(lambda: all(step > before[rank] + 2 for rank, step in cluster.steps().items()))
    for rank, pid in cluster.pids().items():
        prefix = environment(pid)["TRIAGE_STEP_LOG"]
        rows = [json.loads(line) for line in Path(f"{prefix}{rank}.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
        assert {row["rank"] for row in rows} == {rank}
        last = rows[-1]
        assert set(last) == {"step", "rank", "t_start", "compute_ms", "collective_ms", "data_ms", "total_ms"}
        assert last["compute_ms"] >= 100.0
        assert abs(last["total_ms"] - last["compute_ms"] - last["collective_ms"] - last["data_ms"]) < 0.01


def test_the_last_rank_prints_the_iteration_line_into_the_shared_log(cluster: Cluster) -> None:
    text = wait_for(lambda: cluster.plan.log.exists() and cluster.plan.log.read_text())
    steps = [int(step) for step, _ in MEGATRON.findall(text)]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 3
    assert "Traceback" not in text


def test_a_rank_has_the_environment_that_torchrun_gives(cluster: Cluster) -> None:
    env = environment(cluster.pids()[3])
    plan = cluster.plan
    wanted = {
        "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
        "MASTER_ADDR": plan.nodes[0], "MASTER_PORT": str(plan.master_port), "SLURM_JOB_ID": plan.job_id,
        "SLURMD_NODENAME": plan.nodes[1], "NCCL_SOCKET_IFNAME": plan.nic, "TORCH_FR_BUFFER_SIZE": "2000",
    }  # fmt: skip
    assert {name: env.get(name) for name in wanted} == wanted


def test_a_poked_rank_dumps_in_the_format_2_10_without_a_single_global(cluster: Cluster) -> None:
    dump = poke(cluster, 5)
    assert dump["version"] == "2.10" and set(dump) == {
        "version", "pg_config", "pg_status", "comm_lib_version", "entries",
    }  # fmt: skip
    assert dump["pg_config"] == {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3, 4, 5]"},
        "3": {"name": "3", "desc": "TENSOR_MODEL_PARALLEL_GROUP", "ranks": "[4, 5]"},
        "4": {"name": "4", "desc": "undefined", "ranks": "[0, 1, 2, 3, 4, 5]"},
    }
    assert all(set(entry) == ENTRY for entry in dump["entries"])
    assert [entry["record_id"] for entry in dump["entries"]] == list(range(len(dump["entries"])))
    done = [entry for entry in dump["entries"] if entry["retired"]]
    assert {entry["state"] for entry in done} == {"completed"} and len(done) >= len(dump["entries"]) - 1
    assert all(entry["time_discovered_completed_ns"] > entry["time_created_ns"] for entry in done)
    assert {entry["time_discovered_started_ns"] for entry in dump["entries"]} == {None}
    for group, local in (("0", "0"), ("3", "1")):
        numbers = [e["collective_seq_id"] for e in dump["entries"] if e["process_group"][0] == group]
        assert numbers == list(range(1, len(numbers) + 1))
        assert {e["pg_id"] for e in dump["entries"] if e["process_group"][0] == group} == {int(local)}
        assert dump["pg_status"][local]["last_enqueued_collective"] == numbers[-1]
        assert dump["pg_status"][local]["last_started_collective"] == -1


def test_a_healthy_rank_is_in_at_most_one_collective(cluster: Cluster) -> None:
    assert all(len(open_operations(poke(cluster, rank))) <= 1 for rank in range(cluster.plan.world))


def test_a_node_shows_its_own_ranks_and_launcher_and_no_others(cluster: Cluster) -> None:
    plan, pids = cluster.plan, cluster.pids()
    for node in plan.nodes:
        shown = {int(name) for name in os.listdir(plan.node_folder(node) / "proc") if name.isdigit()}
        own = {pids[place.rank] for place in plan.on(node)}
        assert own < shown and len(shown) == len(own) + 1
        (launcher,) = shown - own
        parents = {Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1] for pid in own}
        assert parents == {str(launcher)}
        assert "RANK" not in environment(launcher)
        assert (plan.node_folder(node) / "proc" / "sys" / "kernel" / "hostname").read_text() == node + "\n"
        assert (plan.node_folder(node) / "proc" / "uptime").read_text()


def test_the_jobs_absolute_paths_resolve_below_the_rootfs_of_every_node(cluster: Cluster) -> None:
    for node in cluster.plan.nodes:
        root = cluster.plan.node_folder(node) / "root"
        assert (root / cluster.plan.log.relative_to("/")).samefile(cluster.plan.log)
        own = cluster.plan.scratch(node) / "comm"
        assert (root / own.relative_to("/")).samefile(own) and root in own.parents
        assert f" {node} kernel: " in (root / "var" / "log" / "kern.log").read_text()


def test_the_fabric_card_counts_the_jobs_bytes_while_the_carrier_stays(cluster: Cluster) -> None:
    for node in cluster.plan.nodes:
        card = cluster.plan.node_folder(node) / "sys" / "class" / "net" / cluster.plan.nic
        rdma = cluster.plan.node_folder(node) / "sys" / "class" / "infiniband" / cluster.plan.hca / "ports" / "1"

        def read(name: str, card: Path = card) -> str:
            return (card / name).read_text().strip()

        assert (read("operstate"), read("carrier"), read("type"), read("speed")) == ("up", "1", "1", "100000")
        assert int(read("carrier_changes")) == int(read("carrier_up_count")) + int(read("carrier_down_count"))
        assert (card / "device" / "driver").resolve().name == "mlx5_core"
        for file in (rdma / "counters" / "port_rcv_data", rdma / "counters" / "port_xmit_data"):  # in units of 4 bytes
            start = int(file.read_text())
            wait_for(lambda file=file, start=start: int(file.read_text()) > start + 2500)


def test_the_inventory_is_what_triage_reads(cluster: Cluster) -> None:
    from triage.schedulers import inventory

    text = cluster.inventory_path.read_text()
    job = inventory.parse(text, "inventory.yaml").job(cluster.job_id)
    assert tuple(node.name for node in job.nodes) == cluster.plan.nodes
    assert [node.port for node in job.nodes] == [host.port for host in cluster.hosts]
    assert (job.log, job.cluster, job.state) == (str(cluster.plan.log), "lab", "running")
    assert dict(job.match) == {"SLURM_JOB_ID": cluster.job_id}
    assert job.attempt.started is not None and job.attempt.started <= cluster.plan.started
    assert yaml.safe_load(cluster.profile_path.read_text()) == {"thresholds": {"progress_floor_s": 5}}
    assert cluster.inventory_path.stat().st_mode & 0o077 == 0


def test_a_connection_that_says_nothing_does_not_hold_up_the_fabric(cluster: Cluster) -> None:
    address, port = cluster.hosts[1].fabric.split(":")
    with socket.create_connection((address, int(port))):
        before = cluster.steps()
        wait_for(lambda: cluster.steps()[2] > before[2] + 3)
    with socket.create_connection((address, int(port))) as garbage:
        garbage.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert garbage.recv(10) == b""
    assert all(alive(pid) for pid in cluster.processes())


def test_a_second_cluster_beside_the_first_does_not_clash_and_has_other_names(cluster: Cluster) -> None:
    with Cluster(nodes=1, ranks_per_node=3) as other:
        moving(other)
        assert other.job_id != cluster.job_id and other.folder != cluster.folder
        assert {host.port for host in other.hosts}.isdisjoint(host.port for host in cluster.hosts)
    assert alive(cluster.pids()[0])


def test_a_blinded_source_is_really_missing_on_the_nodes() -> None:
    blind = frozenset({"dumps", "steps", "joblog", "kernel", "nic", "ranks"})
    with Cluster(nodes=2, ranks_per_node=1, blind=blind) as cluster:
        moving(cluster)
        env = environment(cluster.pids()[1])
        assert not {"TRIAGE_STEP_LOG", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"} & set(env)
        assert env["TORCH_FR_BUFFER_SIZE"] == "0"
        assert not cluster.plan.log.exists() and "log:" not in cluster.inventory_path.read_text()
        folder = cluster.plan.node_folder(cluster.plan.nodes[0])
        assert not (folder / "root" / "var" / "log" / "kern.log").exists()
        assert not list((folder / "sys" / "class" / "net").iterdir())
        assert not [name for name in os.listdir(folder / "proc") if name.isdigit()]
        assert not list(folder.glob("root/tmp/*/comm/*")) + list(folder.glob("root/tmp/*/steps/*"))


def test_a_node_that_cannot_start_is_said_in_one_line_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(nodes=1, ranks_per_node=1)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(TriageError, match=f"node {cluster.plan.nodes[0]} did not come up"):
        cluster.start()
    assert not cluster.folder.exists()


def test_impossible_shapes_are_refused_before_anything_starts() -> None:
    for wrong in ({"nodes": 0}, {"ranks_per_node": 0}, {"nodes": 64, "ranks_per_node": 64}, {"compute_ms": 0}):
        with pytest.raises(UsageError):
            Cluster(**wrong)
    with pytest.raises(UsageError, match="did you mean processes"):
        Cluster(backend="process")
