"""The recorder that a job copies into itself: what the probe reads of it, and that it cannot harm the job."""

from __future__ import annotations

import ast
import gc
import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from triage.probes import steps as probe

from triage.steplog import StepLog

SOURCE = Path(__file__).parents[1] / "triage" / "steplog.py"


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


@pytest.fixture
def prefix(tmp_path) -> str:
    return str(tmp_path / "steps" / "rank_")


def one_step(log: StepLog, number: int | None = None, **more) -> None:
    log.mark("data")
    log.mark("compute")
    log.mark("collective")
    log.end(number, **more)


JOB = """
import sys, time
sys.path.insert(0, sys.argv[1])
import steplog
assert not [name for name in sys.modules if name.split(".")[0] == "triage"]
log = steplog.StepLog()
log.begin()
for step in range(int(sys.argv[2])):
    time.sleep(0.002)
    log.mark("data")
    time.sleep(0.008)
    log.mark("compute")
    time.sleep(0.004)
    log.mark("collective")
    log.end(step, seq_tokens=8192)
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_probe_reads_what_a_real_loop_with_the_copied_file_records(tmp_path, prefix):
    shutil.copy(SOURCE, tmp_path / "steplog.py")
    env = {**os.environ, "TRIAGE_STEP_LOG": prefix, "RANK": "3"}
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, str(tmp_path), "20"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert job.stdout is not None and job.stdout.readline() == b"ready\n"
        asked = [sys.executable, str(Path(probe.__file__)), "--args", "{}"]
        done = subprocess.run(asked, capture_output=True, timeout=60, check=False)
        told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
        rows = [row for answer in told for row in answer["data"]["ranks"] if row["path"] == f"{prefix}3.jsonl"]
    finally:
        job.kill()
        job.wait()
    assert len(rows) == 1 and rows[0]["rank"] == 3 and rows[0]["last_step"] == 19 and rows[0]["n"] == 20
    columns = rows[0]["columns"]
    assert all(ms >= 8 for ms in columns["compute_ms"]) and all(ms >= 4 for ms in columns["collective_ms"])
    assert all(ms >= 2 for ms in columns["data_ms"])
    for total, *parts in zip(*(columns[f"{n}_ms"] for n in ("total", "compute", "collective", "data"))):
        assert sum(parts) <= total <= sum(parts) + 200
    assert abs(rows[0]["last_at"] - time.time()) < 120


def others() -> list[str]:
    """One interpreter a minor version from 3.8 on: those of pyenv and those on PATH."""
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    found = {}
    for minor in range(8, 15):
        places = sorted(Path(root).glob(f"versions/3.{minor}.*/bin/python3"))
        there = shutil.which(f"python3.{minor}")
        places += [Path(there)] if there and "shims" not in there else []
        if places:
            found[minor] = str(places[0])
    return list(found.values()) or [sys.executable]


@pytest.mark.parametrize("python", others(), ids=lambda p: "-".join(Path(p).parts[-3:]))
def test_every_python_at_hand_records_the_same(python, tmp_path, prefix):
    shutil.copy(SOURCE, tmp_path / "steplog.py")
    env = {**os.environ, "TRIAGE_STEP_LOG": prefix, "RANK": "0"}
    subprocess.run([python, "-c", JOB, str(tmp_path), "3"], env=env, input=b"", capture_output=True, check=True)
    found = records(Path(prefix + "0.jsonl"))
    assert [r["step"] for r in found] == [0, 1, 2] and all(r["seq_tokens"] == 8192 for r in found)


def test_the_steps_of_a_loop_follow_each_other_without_a_gap(prefix):
    log = StepLog(prefix, 0)
    log.begin()
    for _ in range(5):
        time.sleep(0.003)
        one_step(log)
    found = records(Path(log.path))
    assert [r["step"] for r in found] == [1, 2, 3, 4, 5]
    for before, after in itertools.pairwise(found):
        assert after["t_start"] == pytest.approx(before["t_start"] + before["total_ms"] / 1000, abs=0.05)


def test_a_part_that_was_never_marked_is_left_out_and_not_zero(prefix):
    log = StepLog(prefix, 0)
    log.begin()
    log.mark("compute")
    log.end(7)
    (record,) = records(Path(log.path))
    assert "data_ms" not in record and "collective_ms" not in record and "seq_tokens" not in record
    assert record["total_ms"] >= record["compute_ms"] >= 0


def test_what_the_job_measured_on_the_gpu_takes_the_place_of_the_marked_time(prefix):
    log = StepLog(prefix, 0)
    log.begin()
    log.mark("compute")
    log.put("compute", 512.25)
    log.end(7)
    assert records(Path(log.path))[0]["compute_ms"] == 512.25


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, "x", None])
def test_a_measured_time_that_is_no_time_is_dropped(prefix, bad):
    log = StepLog(prefix, 0)
    log.begin()
    log.put("compute", bad)
    log.end(7)
    assert "compute_ms" not in records(Path(log.path))[0]


def test_a_part_marked_twice_is_the_sum_of_both(prefix):
    log = StepLog(prefix, 0)
    log.begin()
    for _ in range(2):
        time.sleep(0.005)
        log.mark("compute")
        log.mark("collective")
    log.end(1)
    assert records(Path(log.path))[0]["compute_ms"] >= 10


def test_a_step_whose_body_raises_was_not_finished(prefix):
    log = StepLog(prefix, 0)
    with log.step(1):
        pass
    with pytest.raises(KeyError), log.step(2):
        raise KeyError("the job's own")
    with log.step(3, seq_tokens=4096) as step:
        step.mark("compute")
    assert [r["step"] for r in records(Path(log.path))] == [1, 3]
    assert records(Path(log.path))[1]["seq_tokens"] == 4096


def test_the_collector_s_time_stands_in_the_step_in_which_it_ran(prefix):
    log = StepLog(prefix, 0)
    gc.collect()
    log.begin()
    gc.disable()
    try:
        one_step(log, 1)
        gc.collect()
        one_step(log, 2)
        one_step(log, 3)
    finally:
        gc.enable()
    times = [r["gc_ms"] for r in records(Path(log.path))]
    assert times[0] == 0 and times[1] > 0 and times[2] == 0


def test_a_crash_tears_the_last_line_at_most_and_the_next_attempt_begins_a_new_one(prefix):
    log = StepLog(prefix, 0)
    log.begin()
    one_step(log, 1)
    with open(log.path, "ab") as file:
        file.write(b'{"step":2,"ra')
    again = StepLog(prefix, 0)
    again.begin()
    one_step(again, 2)
    told = probe.reduce_records(Path(log.path).read_bytes())
    assert told is not None and told["columns"]["step"] == [1, 2]


def test_a_rank_that_is_killed_leaves_every_finished_step(tmp_path, prefix):
    code = (
        f"import sys, os; sys.path.insert(0, {str(SOURCE.parent)!r}); import steplog\n"
        f"log = steplog.StepLog({prefix!r}, 0); log.begin()\n"
        "for n in range(300): log.mark('compute'); log.end(n)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [r["step"] for r in records(Path(prefix + "0.jsonl"))] == list(range(300))


def test_a_full_disk_costs_records_and_never_the_job(prefix):
    """A limit on the file's size tears a line in the middle, as a disk that fills up does."""
    code = (
        f"import sys, os, resource, signal; sys.path.insert(0, {str(SOURCE.parent)!r}); import steplog\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"log = steplog.StepLog({prefix!r}, 0); log.begin()\n"
        "def run(numbers):\n"
        "    for n in numbers: log.mark('compute'); log.end(n)\n"
        "run(range(5)); size = os.stat(log.path).st_size\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, hard)); run(range(5, 10))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)); run(range(10, 12))\n"
        "print('trained to the end')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "trained to the end\n" and not done.stderr
    told = probe.reduce_records(Path(prefix + "0.jsonl").read_bytes())
    assert told is not None and told["columns"]["step"] == [0, 1, 2, 3, 4, 10, 11]


@pytest.mark.parametrize("place", ["/proc/no/rank_", "/dev/null/rank_", "relative/rank_", "", "/sys/rank_"])
def test_a_place_that_cannot_be_written_is_silence(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = StepLog(place, 0)
    log.begin()
    one_step(log, 1)
    with log.step(2):
        pass
    log.close()
    assert not list(tmp_path.iterdir())


def test_a_process_without_free_descriptors_is_silence(prefix):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        log = StepLog(prefix, 0)
        log.begin()
        one_step(log, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not Path(prefix + "0.jsonl").exists()


def test_a_pipe_in_the_place_of_the_file_does_not_block_the_job(prefix):
    os.makedirs(os.path.dirname(prefix))
    os.mkfifo(prefix + "0.jsonl")
    done = threading.Event()

    def job() -> None:
        log = StepLog(prefix, 0)
        log.begin()
        one_step(log, 1)
        done.set()

    threading.Thread(target=job, daemon=True).start()
    assert done.wait(30)


def test_without_the_variable_nothing_is_written_and_the_calls_may_stay(tmp_path, monkeypatch):
    monkeypatch.delenv("TRIAGE_STEP_LOG", raising=False)
    monkeypatch.setenv("RANK", "0")
    log = StepLog()
    log.begin()
    one_step(log)
    assert log.path == ""


@pytest.mark.parametrize(
    ("env", "rank"), [({"SLURM_PROCID": "5"}, 5), ({"RANK": "2", "SLURM_PROCID": "5"}, 2), ({}, None)]
)
def test_the_rank_is_that_of_the_environment_as_the_probe_reads_it(env, rank, prefix, monkeypatch):
    for name in probe.RANK_NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**env, "TRIAGE_STEP_LOG": prefix}.items():
        monkeypatch.setenv(name, value)
    block = b"\0".join(f"{k}={v}".encode() for k, v in {**env, "TRIAGE_STEP_LOG": prefix}.items())
    owner = probe.owner_of(block)
    assert (owner["rank"] if owner else None) == rank
    assert StepLog().path == (f"{prefix}{rank}.jsonl" if rank is not None else "")


def test_a_loader_worker_made_by_fork_records_nothing_under_its_parent_s_name(prefix):
    log = StepLog(prefix, 0)
    log.begin()
    one_step(log, 1)
    child = os.fork()
    if child == 0:
        try:
            one_step(log, 99)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    one_step(log, 2)
    assert [r["step"] for r in records(Path(log.path))] == [1, 2]


def test_a_child_made_by_fork_that_is_a_rank_of_its_own_opens_its_own(prefix):
    StepLog(prefix, 0).begin()
    child = os.fork()
    if child == 0:
        try:
            mine = StepLog(prefix, 1)
            mine.begin()
            one_step(mine, 1)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert [r["rank"] for r in records(Path(prefix + "1.jsonl"))] == [1]


def test_a_long_run_does_not_fill_the_disk(prefix, monkeypatch):
    monkeypatch.setattr("triage.steplog.LIMIT", 4096)
    log = StepLog(prefix, 0)
    log.begin()
    for number in range(200):
        one_step(log, number)
    files = sorted(Path(prefix).parent.iterdir())
    assert [f.name for f in files] == ["rank_0.jsonl", "rank_0.jsonl.old"]
    assert all(f.stat().st_size < 4096 + 400 for f in files)
    assert records(files[0])[-1]["step"] == 199


def test_two_attempts_that_write_at_once_never_mix_their_lines(prefix):
    code = (
        f"import sys; sys.path.insert(0, {str(SOURCE.parent)!r}); import steplog\n"
        f"log = steplog.StepLog({prefix!r}, 0); log.begin()\n"
        "for n in range(2000): log.mark('compute'); log.end(n)\n"
    )
    jobs = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [job.wait() for job in jobs] == [0, 0]
    assert len(records(Path(prefix + "0.jsonl"))) == 4000


def test_the_copied_file_runs_on_python_3_8_and_imports_the_standard_library_alone():
    tree = ast.parse(SOURCE.read_text(), feature_version=(3, 8))
    names = {
        (node.module if isinstance(node, ast.ImportFrom) else alias.name) or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {name.split(".")[0] for name in names} <= set(sys.stdlib_module_names)
