"""Real PyTorch on the embedded cluster: does the job train, and does each fault show as it does in real jobs?

Skipped where PyTorch is not installed. That triage says the right thing of every fault is asked by
`tests/bench/bench_drills.py --engine torch`, and here of one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from drill_helpers import alive, environment, open_operations, poke, told_on_nodes, wait_for

from triage.drill.cluster import Cluster
from triage.drill.scenarios import find

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra drill-torch")
DEFAULT = "0"
CUT = re.compile(r"^\[rank\d\]: RuntimeError: .*Connection (closed|reset) by peer", re.MULTILINE)


@contextmanager
def training(seed: int = 3, **more: Any) -> Iterator[Cluster]:
    """A job of two nodes and four ranks that has made some steps."""
    with Cluster(nodes=2, ranks_per_node=2, seed=seed, engine="torch", **more) as cluster:
        wait_for(lambda: len(seen := cluster.steps()) == 4 and min(seen.values()) >= 3, 150)
        yield cluster


def broken(cluster: Cluster, fault: str, rank: int) -> list[int]:
    """Break it, and wait until no step is made any more; the other ranks."""
    cluster.apply("deadlock", find("deadlock", "torch").fault(fault), rank=rank)
    wait_for(lambda: cluster.still_s() >= 3, 60)
    return [other for other in range(4) if other != rank]


def newest(dump: dict[str, Any], group: str = DEFAULT) -> dict[str, Any]:
    return [entry for entry in dump["entries"] if entry["process_group"][0] == group][-1]


def ask_control_plane(path: str, handler: str, seconds: float = 5.0) -> Any:
    """POST /handler/NAME over a Unix socket: what the handler answers, as JSON."""
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(seconds)
        wire.connect(path)
        wire.sendall(f"POST /handler/{handler} HTTP/1.0\r\nHost: rank\r\nContent-Length: 0\r\n\r\n".encode())
        raw = b"".join(iter(lambda: wire.recv(1 << 16), b""))
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0]
    return json.loads(body)


def test_a_torch_job_trains_and_its_records_and_loader_are_those_of_pytorch() -> None:
    with training() as cluster:
        pids = cluster.pids()
        dump = poke(cluster, 2)
        # gloo knows no members, calls nothing completed, and has no send or receive (though each step makes one).
        assert dump["version"] == "2.10" and dump["pg_config"][""]["ranks"] == "[]"
        assert {entry["state"] for entry in dump["entries"]} == {"scheduled"}
        assert {entry["profiling_name"] for entry in dump["entries"]} == {
            "gloo:all_reduce",
            "gloo:broadcast",
            "gloo:barrier",
        }
        assert {entry["process_group"][1] for entry in dump["entries"]} == {
            "TENSOR_MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP", "EVALUATION_GROUP", "default_pg"
        }  # fmt: skip
        # The job goes on meanwhile, and the log of its last rank says so.
        step = min(cluster.steps().values())
        wait_for(lambda: min(cluster.steps().values()) > step + 2)
        assert f"iteration {step:8d}/" in cluster.plan.log.read_text()
        # The loader's worker wears the environment of its rank and is seen on the rank's node.
        for rank, pid in pids.items():
            child = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
            assert environment(child)["RANK"] == str(rank) and alive(child)
            assert (cluster.plan.node_folder(cluster.node_of(rank)) / "proc" / str(child)).is_symlink()
        assert not told_on_nodes(cluster)
        everything = [*cluster.processes(), child]
    wait_for(lambda: not any(alive(pid) for pid in everything), 5)
    assert not cluster.folder.exists()


def test_over_a_shape_that_differs_a_neighbour_aborts_and_not_the_one_that_differs() -> None:
    with training() as cluster:
        others = broken(cluster, "shape", 1)
        ended = wait_for(cluster.ended)
        assert set(ended.values()) == {-6} and 1 not in ended
        wait_for(lambda: CUT.search(cluster.plan.log.read_text()))  # whose neighbour it was
        assert "instance of 'gloo::EnforceNotMet'" in cluster.plan.log.read_text()
        dumps = {rank: poke(cluster, rank) for rank in (1, *others) if rank not in ended}
        at = newest(dumps[1])["collective_seq_id"]
        sizes = {
            rank: [e["input_sizes"] for e in dump["entries"] if (e["process_group"][0], e["collective_seq_id"]) == (DEFAULT, at)]
            for rank, dump in dumps.items()
        }  # fmt: skip
        assert sizes.pop(1) == [[[128, 4]]] and len(sizes) >= 2
        assert all(size == [[[64, 4]]] for size in sizes.values())


def test_while_a_c_call_keeps_the_gil_the_fifo_is_deaf_and_the_control_plane_answers() -> None:
    with training(control_plane=True) as cluster:
        others = broken(cluster, "gil", 2)
        env = environment(cluster.pids()[2])
        pipe = os.open(f"{env['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}2.pipe", os.O_WRONLY | os.O_NONBLOCK)
        os.write(pipe, b"1")
        held = ask_control_plane(env["TORCH_WORKER_SERVER_SOCKET"], "fr_trace_json")
        assert held["entries"] and all(entry["retired"] for entry in held["entries"])
        waiting = {
            rank: open_operations(poke(cluster, rank)) for rank in others
        }  # takes longer than a poll of the FIFO
        os.close(pipe)
        assert all(len(waits) == 1 for waits in waiting.values())
        assert not Path(env["TORCH_FR_DUMP_TEMP_FILE"] + "2").exists()


def test_a_rank_that_hangs_is_waited_for_by_its_groups_one_after_the_other() -> None:
    with training() as cluster:
        others = broken(cluster, "tp-dp", 3)
        assert open_operations(poke(cluster, 3)) == []
        waiting = {rank: newest_open(poke(cluster, rank)) for rank in others}
        # 2 in the tensor group for 3, 1 in a data group for 3, and 0 in the other data group for 2.
        assert waiting == {2: "TENSOR_MODEL_PARALLEL_GROUP", 1: "DATA_PARALLEL_GROUP", 0: "DATA_PARALLEL_GROUP"}


def newest_open(dump: dict[str, Any]) -> str:
    (entry,) = [entry for entry in dump["entries"] if not entry["retired"]]
    desc: str = entry["process_group"][1]
    return desc


def test_a_rank_ends_by_its_own_exception_and_its_peers_fail_but_stay() -> None:
    with training() as cluster:
        others = broken(cluster, "exception", 0)
        assert wait_for(cluster.ended) == {0: 1}
        assert all(alive(cluster.pids()[rank]) for rank in others)
        text = cluster.plan.log.read_text()
        assert "[rank0]: ValueError: batch " in text and CUT.search(text)
        assert "failed (exitcode: 1) local_rank: 0" in text
        # What failed counts as done: whoever asks the records alone sees ranks that wait for nobody.
        assert any(open_operations(poke(cluster, rank)) == [] for rank in others)


@pytest.mark.parametrize("fault", ["tp-dp"])
def test_triage_names_the_rank_that_did_it(fault: str, tmp_path: Path) -> None:
    truth = tmp_path / "truth.json"
    command = [
        sys.executable,
        "-m",
        "triage",
        "drill",
        "deadlock",
        "--engine",
        "torch",
        "--fault",
        fault,
        "--seed",
        "11",
    ]
    command += ["--after", "4s", "--output", "json", "--truth", str(truth), "--state-dir", str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    told, right = json.loads(done.stdout), json.loads(truth.read_text())
    assert done.returncode == right["exit_code"] == 10
    assert told["verdict"]["cause"] == right["cause"]
    assert [(part["role"], part["rank"]) for part in told["culprits"]] == [("culprit", right["broken_rank"])]
