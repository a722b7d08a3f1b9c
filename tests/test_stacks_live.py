"""A rank that waits for a lock of its own, from real processes to the report: dumps, py-spy carried in memory, the verdict."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from datetime import datetime, timezone

import pytest

SPY = shutil.which("py-spy", path=sysconfig.get_path("scripts"))
RANK = """
import json, os, sys, threading, time
rank, folder = int(os.environ["RANK"]), sys.argv[1]
def entry(number, done):
    at = int((time.time() + number / 100) * 1e9)
    return {"record_id": number, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": number + 1,
            "p2p_seq_id": 0, "op_id": number, "profiling_name": "nccl:all_reduce", "time_created_ns": at, "input_sizes": [[4]],
            "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"],
            "state": "completed" if done else "scheduled", "time_discovered_started_ns": None,
            "time_discovered_completed_ns": at + 1 if done else None, "retired": done, "timeout_ms": 1800000, "is_p2p": False}
def write():
    last = 3 if rank == 2 else 4
    dump = {"version": "2.10", "comm_lib_version": "2.27.5", "pg_status": {}, "entries": [entry(i, i < 3) for i in range(last)],
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}}
    with open(f"{folder}/_dump_{rank}", "w") as file:
        json.dump(dump, file)
the_lock = threading.Lock()
the_lock.acquire()
def update_metrics():
    with the_lock:
        pass
def wait_for_the_others():
    threading.Event().wait()
input()
write()
print("written", flush=True)
update_metrics() if rank == 2 else wait_for_the_others()
"""


@pytest.mark.skipif(SPY is None, reason="py-spy is not installed (pip install -e '.[dev]')")
def test_a_lock_of_its_own_is_found_by_a_py_spy_that_was_carried_along_and_told_with_the_function(tmp_path):
    folder = str(tmp_path)
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "profile.yaml").write_text("version: 1\nthresholds: {progress_floor_s: 3, progress_unknown_s: 3}\n")
    job = f'{{nodes: n1, log: {folder}/job.log, state: running, match: {{SLURM_JOB_ID: "{os.getpid()}"}}}}'
    (tmp_path / "inventory.yaml").write_text(f'version: 1\njobs:\n  "4711": {job}\n')
    common = {
        "PATH": "/nonexistent", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9",
        "SLURM_JOB_ID": str(os.getpid()), "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/_dump_",
    }  # fmt: skip
    python = os.path.realpath(sys.executable)
    ranks = [
        subprocess.Popen(
            [python, str(tmp_path / "rank.py"), folder], env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(4)
    ]  # fmt: skip
    try:
        time.sleep(3.0)  # a log line counts that is later than the start of its processes
        with open(tmp_path / "job.log", "w") as log:
            for number in range(20):
                at = datetime.fromtimestamp(time.time() - 1 + number / 20, timezone.utc).strftime(
                    "%Y-%m-%d %H:%M:%S.%f"
                )
                print(
                    f" [{at}] iteration {number:8d}/    1000 | elapsed time per iteration (ms): 50.0 | loss: 1.0",
                    file=log,
                )
        time.sleep(0.5)
        for rank in ranks:
            rank.stdin.write("\n")
            rank.stdin.flush()
            assert rank.stdout.readline() == "written\n"
        time.sleep(5.0)
        argv = [sys.executable, "-m", "triage", "frozen-job", "4711", "--inventory", f"{folder}/inventory.yaml"]
        argv += ["--profile", f"{folder}/profile.yaml", "--transport", "local", "--state-dir", f"{folder}/state"]
        done = subprocess.run(
            [*argv, "--carry-py-spy", SPY, "--output", "json"], capture_output=True, text=True, timeout=100
        )
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    report = json.loads(done.stdout)
    assert report["verdict"]["cause"] == "deadlock/host_lock", (report["verdict"], report["walk"][-3:], done.stderr)
    assert [c["rank"] for c in report["culprits"]] == [2] and done.returncode == 10
    assert any("update_metrics" in line["text"] for line in report["evidence"])
    assert [group["class"] for group in report["stacks"]] == ["lock", "wait"]
    assert "carrying py-spy to 1 suspected node" in done.stderr
