"""Ranks are found among real processes: agents, shells, loader workers, orphans, zombies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from triage.probes import _processes, ranks
from triage.probes._probe import Ctx

SLEEP = "import time; time.sleep(60)"


def rank_env(run: str, rank: int, world: int = 2, **more: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG")}
    env.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
    env.update(GROUP_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", TORCHELASTIC_RUN_ID=run, **more)
    return env


@pytest.fixture
def run_id() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a process in a session of its own; everything in that session ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(argv: list[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(argv, env=dict(env), stdin=subprocess.DEVNULL, start_new_session=True)
        started.append(child)
        return child

    yield begin
    for child in started:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def look(run: str, **args: Any) -> dict[str, Any]:
    """What the probe tells, reduced to the processes of this test: other jobs may run on the machine."""
    ctx = Ctx(args=args)
    data = ranks.collect(ctx)
    data["ranks"] = [r for r in data["ranks"] if r["env"].get("TORCHELASTIC_RUN_ID") == run]
    return data


def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() > end:
            return value
        time.sleep(0.03)


def test_a_rank_is_one_process_and_what_it_started_are_its_children(run_id, start) -> None:
    code = f"import os,subprocess,sys,time; os.fork() and subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); time.sleep(60)"
    child = start(python(code), rank_env(run_id, 1))
    rows = until(lambda: [r for r in look(run_id)["ranks"] if len(r["children"]) >= 2])
    assert [(r["rank"], r["pid"], r["world_size"], r["local_rank"]) for r in rows] == [(1, child.pid, 2, 1)]
    row = rows[0]
    assert row["state"] in "SR" and row["uid"] == os.geteuid() and row["rank_from"] == "RANK"
    assert abs(row["start_s"] - time.time()) < 60 and row["utime_s"] >= 0 and row["threads"] == 1
    assert row["rchar"] > 0 and row["ns_pid"] is not None


def test_a_shell_around_a_rank_is_passed_over_but_its_pid_is_told(run_id, start) -> None:
    # The launcher's log line names the pid of the shell.
    shell = start(["sh", "-c", f"{sys.executable} -c '{SLEEP}'; true"], rank_env(run_id, 0))
    rows = until(lambda: look(run_id)["ranks"])
    assert len(rows) == 1 and rows[0]["top_pid"] == shell.pid and rows[0]["pid"] != shell.pid
    assert rows[0]["cmd"].endswith("time.sleep(60)")


def test_of_a_pipeline_the_trainer_is_the_rank_and_not_the_tee(run_id, start) -> None:
    start(["bash", "-c", f"(cd /; {sys.executable} -c '{SLEEP}') | tee /dev/null; true"], rank_env(run_id, 0))
    rows = until(lambda: [r for r in look(run_id)["ranks"] if "time.sleep" in r["cmd"]])
    assert len(rows) == 1


def test_a_shell_whose_trainer_has_ended_is_no_living_rank(run_id, start) -> None:
    shell = start(["sh", "-c", f"{sys.executable} -c pass; sleep 60; true"], rank_env(run_id, 0))
    told = until(lambda: [w for w in ranks.collect(Ctx())["wrappers"] if w["pid"] == shell.pid])
    assert told and told[0]["rank"] == 0


def test_a_loader_worker_that_outlives_its_rank_does_not_keep_the_rank_alive(run_id, start) -> None:
    # The rank is not our child, so that its death orphans the worker for good and leaves no zombie of ours.
    code = (
        "import os,signal,subprocess,sys,time\n"
        f"p = subprocess.Popen([sys.executable, '-c', 'import os,time; os.fork(); time.sleep(60)'], env={rank_env(run_id, 1)!r})\n"
        "print(p.pid, flush=True); time.sleep(60)"
    )
    env = {"PATH": os.environ["PATH"]}
    agent = subprocess.Popen(python(code), env=env, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert agent.stdout is not None
        rank = int(agent.stdout.readline())
        row = until(lambda: [r for r in look(run_id)["ranks"] if r["children"]])[0]
        worker = row["children"][0]["pid"]
        assert row["pid"] == rank and {p["pid"] for p in ranks.collect(Ctx())["launchers"]} >= {agent.pid}
        os.kill(rank, signal.SIGKILL)
        orphans = until(lambda: [o for o in ranks.collect(Ctx())["orphans"] if o["pid"] == worker])
        assert orphans and orphans[0]["rank"] == 1
        assert look(run_id)["ranks"] == []
    finally:
        os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()


def test_an_unreaped_dead_rank_is_a_zombie_of_its_launcher_and_no_rank(run_id, start) -> None:
    code = (
        "import os,signal,subprocess,sys,time\n"
        f"base = {rank_env(run_id, 0)!r}\n"
        f"ps = [subprocess.Popen([sys.executable, '-c', {SLEEP!r}], env=dict(base, RANK=str(i))) for i in range(2)]\n"
        "time.sleep(0.3); os.kill(ps[1].pid, signal.SIGKILL); time.sleep(60)"
    )
    agent = start(python(code), {"PATH": os.environ["PATH"]})
    zombies = until(lambda: [z for z in ranks.collect(Ctx())["zombies"] if z["ppid"] == agent.pid])
    assert len(zombies) == 1 and zombies[0]["state"] == "Z" and zombies[0]["rank"] is None
    assert [r["rank"] for r in look(run_id)["ranks"]] == [0]


def test_a_torchrun_agent_under_srun_is_no_rank_even_when_all_its_ranks_are_dead(run_id, start, tmp_path) -> None:
    run_py = tmp_path / "torch" / "distributed" / "run.py"
    run_py.parent.mkdir(parents=True)
    run_py.write_text(
        f"import subprocess,sys,time\np = subprocess.Popen([sys.executable, '-c', {SLEEP!r}], env={rank_env(run_id, 4)!r})\n"
        "sys.stdin.readline(); p.kill(); p.wait(); time.sleep(60)\n"
    )
    job = uuid.uuid4().hex
    env = {"PATH": os.environ["PATH"], "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_JOB_ID": job}
    agent = subprocess.Popen([sys.executable, str(run_py)], env=env, stdin=subprocess.PIPE, start_new_session=True)
    try:
        rows = until(lambda: look(run_id)["ranks"])
        assert [r["rank"] for r in rows] == [4] and rows[0]["ppid"] == agent.pid

        def mine() -> list[dict[str, Any]]:
            return [r for r in ranks.collect(Ctx())["ranks"] if r["env"].get("SLURM_JOB_ID") == job]

        assert mine() == []
        assert agent.stdin is not None
        agent.stdin.write(b"go\n")
        agent.stdin.flush()
        assert until(lambda: not look(run_id)["ranks"])
        assert mine() == []
        assert agent.pid in {p["pid"] for p in ranks.collect(Ctx())["launchers"]}
    finally:
        os.killpg(agent.pid, signal.SIGKILL)
        agent.wait()


def test_without_rank_the_schedulers_number_counts(start) -> None:
    job = uuid.uuid4().hex
    env = {
        "PATH": os.environ["PATH"],
        "SLURM_PROCID": "7",
        "SLURM_LOCALID": "3",
        "SLURM_NTASKS": "8",
        "SLURM_JOB_ID": job,
    }
    start(["sh", "-c", f"sleep 60 & {sys.executable} -c '{SLEEP}'; true"], env)

    def mine() -> list[dict[str, Any]]:
        return [r for r in ranks.collect(Ctx())["ranks"] if r["env"].get("SLURM_JOB_ID") == job]

    rows = until(mine)
    assert [(r["rank"], r["local_rank"], r["world_size"], r["rank_from"]) for r in rows] == [(7, 3, 8, "SLURM_PROCID")]
    assert "time.sleep" in rows[0]["cmd"]


def test_a_stopped_rank_is_told_as_stopped(run_id, start) -> None:
    child = start(python(SLEEP), rank_env(run_id, 0))
    assert until(lambda: look(run_id)["ranks"])
    os.kill(child.pid, signal.SIGSTOP)
    assert until(lambda: [r["state"] for r in look(run_id)["ranks"]] == ["T"])


PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207


@pytest.fixture
def tracer() -> Iterator[Callable[[int, int], int]]:
    """Attach to a process as a debugger does, from a process of its own; `hold`: and stop it."""
    pids = []

    def attach(pid: int, hold: int) -> int:
        code = (
            "import ctypes, sys, time; ptrace = ctypes.CDLL(None, use_errno=True).ptrace; ptrace.argtypes = [ctypes.c_long] * 4\n"
            f"assert ptrace({PTRACE_SEIZE}, {pid}, 0, 0) == 0, ctypes.get_errno()\n"
            f"assert not {hold} or ptrace({PTRACE_INTERRUPT}, {pid}, 0, 0) == 0\n"
            "print('attached', flush=True); time.sleep(60)"
        )
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        pids.append(child)
        assert child.stdout is not None and child.stdout.readline() == b"attached\n"
        return child.pid

    yield attach
    for child in pids:
        child.kill()
        child.wait()


def test_a_rank_under_a_debugger_tells_who_holds_it_and_that_it_does(run_id, start, tracer) -> None:
    ranks_ = [start(python(SLEEP), rank_env(run_id, number, world=3)) for number in range(3)]
    assert until(lambda: len(look(run_id)["ranks"]) == 3)
    watched, held = tracer(ranks_[1].pid, 0), tracer(ranks_[2].pid, 1)
    rows = until(lambda: (found := look(run_id)["ranks"]) and found[2]["state"] == "t" and found)
    assert [(r["state"], r["tracer_pid"]) for r in rows] == [("S", 0), ("S", watched), ("t", held)]
    assert rows[0]["tracer"] is None and rows[2]["tracer"] == Path(f"/proc/{held}/comm").read_text().strip()
    os.kill(ranks_[0].pid, signal.SIGSTOP)
    assert until(lambda: [r["state"] for r in look(run_id)["ranks"]] == ["T", "S", "t"]), "stopped is not traced"


def test_secrets_in_the_environment_never_leave_the_node(run_id, start) -> None:
    start(python(SLEEP), rank_env(run_id, 0, WANDB_API_KEY="hunter2-secret", NCCL_DEBUG="INFO\x1b[31m" + "x" * 5000))
    rows = until(lambda: look(run_id)["ranks"])
    assert "hunter2" not in json.dumps(rows)
    assert set(rows[0]["env"]) <= set(_processes.ENV_NAMES)
    assert "\x1b" not in rows[0]["env"]["NCCL_DEBUG"] and len(rows[0]["env"]["NCCL_DEBUG"]) <= 256


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: drops to another user to see what that user may not")
def test_another_user_does_not_see_everything_and_says_so(run_id, start) -> None:
    start(python(SLEEP), rank_env(run_id, 0))
    assert until(lambda: look(run_id)["ranks"])
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.seteuid(65534)
        os.write(write, json.dumps(ranks.collect(Ctx())).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = json.load(pipe)
    os.waitpid(pid, 0)
    assert data["sees_all"] is False and data["unreadable"] > 0 and 0 in data["unreadable_uids"]
    assert not [r for r in data["ranks"] if r["env"].get("TORCHELASTIC_RUN_ID") == run_id]


# ---------------------------------------------------------------- a procfs of files


class Procfs:
    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "stat").write_text("cpu 1 2 3\nbtime 1790000000\n")

    def add(
        self, pid: int, ppid: int, env: Mapping[str, str] | None = None, comm: str = "python3", state: str = "S",
        cmd: str = "python3 train.py", flags: int = 0x400000, start: int = 5000, threads: int = 40,
    ) -> None:  # fmt: skip
        here = self.root / str(pid)
        here.mkdir()
        (here / "stat").write_text(
            f"{pid} ({comm}) {state} {ppid} {pid} {pid} 0 -1 {flags} 0 0 0 0 1200 300 0 0 20 0 {threads} 0 {start} 0 0\n"
        )
        (here / "environ").write_bytes(b"".join(f"{k}={v}\0".encode() for k, v in (env or {}).items()))
        (here / "cmdline").write_bytes(cmd.replace(" ", "\0").encode() + b"\0")
        (here / "status").write_text(f"Name:\t{comm}\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t{pid}\t7\n")
        (here / "wchan").write_text("futex_wait_queue")
        (here / "io").write_text("rchar: 10\nwchar: 20\nsyscr: 1\nread_bytes: 30\nwrite_bytes: 40\n")

    def look(self, **args: Any) -> dict[str, Any]:
        return ranks.collect(Ctx(procfs=str(self.root), args=args))


@pytest.fixture
def procfs(tmp_path: Path) -> Procfs:
    root = tmp_path / "proc"
    root.mkdir()
    return Procfs(root)


def test_states_and_numbers_of_a_rank_are_told_with_their_units(procfs) -> None:
    procfs.add(100, 50, rank_env("r", 0), state="D")
    procfs.add(101, 50, rank_env("r", 1), state="T")
    data = procfs.look()
    assert [(r["rank"], r["state"]) for r in data["ranks"]] == [(0, "D"), (1, "T")]
    row = data["ranks"][0]
    tick = os.sysconf("SC_CLK_TCK")
    assert row["start_s"] == pytest.approx(1790000000 + 5000 / tick) and row["start_ticks"] == 5000
    assert row["utime_s"] == pytest.approx(1200 / tick) and row["stime_s"] == pytest.approx(300 / tick)
    assert (row["rchar"], row["wchar"], row["read_bytes"], row["write_bytes"]) == (10, 20, 30, 40)
    assert row["uid"] == 1000 and row["ns_pid"] == 7 and row["wchan"] == "futex_wait_queue" and row["group_rank"] == 0
    assert data["sees_all"] is True and data["truncated"] is False


def test_a_folder_of_links_serves_as_procfs_and_a_link_whose_process_died_is_gone_and_no_error(
    procfs, run_id, start
) -> None:
    child = start(python(SLEEP), rank_env(run_id, 0))
    (procfs.root / str(child.pid)).symlink_to(f"/proc/{child.pid}")
    (procfs.root / "4194301").symlink_to("/proc/4194301")
    data = until(lambda: (d := procfs.look())["ranks"] and d)
    assert [r["pid"] for r in data["ranks"]] == [child.pid] and data["sees_all"] is True


def test_a_forked_worker_without_its_rank_is_an_orphan_and_a_compiler_too(procfs) -> None:
    procfs.add(1, 0, comm="systemd", cmd="/sbin/init")
    procfs.add(200, 1, rank_env("r", 3), flags=0x400040, comm="pt_data_worker")
    procfs.add(
        201, 1, rank_env("r", 2), comm="python3", cmd="python3 -c from_multiprocessing.resource_tracker_import_main"
    )
    procfs.add(202, 1, rank_env("r", 1), comm="nvcc", cmd="nvcc -c x.cu")
    data = procfs.look()
    assert data["ranks"] == []
    assert sorted(o["rank"] for o in data["orphans"]) == [1, 2, 3]


def test_a_rank_whose_launcher_died_is_still_a_rank(procfs) -> None:
    procfs.add(1, 0, comm="systemd", cmd="/sbin/init")
    procfs.add(200, 1, rank_env("r", 3))
    procfs.add(201, 200, rank_env("r", 3), flags=0x400040)
    data = procfs.look()
    assert [(r["rank"], r["pid"]) for r in data["ranks"]] == [(3, 200)] and data["orphans"] == []


def test_a_pods_rank_on_the_agent_makes_no_second_rank_set(procfs) -> None:
    # Kubeflow gives the pod RANK = its index; torchrun inside gives its workers the global ones.
    pod = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
    procfs.add(1, 0, pod, comm="torchrun", cmd="/usr/bin/python3 /usr/local/bin/torchrun --nnodes=2 train.py")
    procfs.add(30, 1, rank_env("r", 8, world=16), start=6000)
    procfs.add(31, 1, rank_env("r", 9, world=16), start=6000)
    data = procfs.look()
    assert [r["rank"] for r in data["ranks"]] == [8, 9] and {r["world_size"] for r in data["ranks"]} == {16}
    assert data["wrappers"] == [] and [p["pid"] for p in data["launchers"]] == []  # pid 1 is nobody's to restart


def test_the_newer_of_two_processes_of_one_rank_is_not_taken_for_it(procfs) -> None:
    procfs.add(1, 0, comm="systemd", cmd="/sbin/init")
    procfs.add(50, 1, comm="python3", cmd="python3 -m torch.distributed.run train.py")
    procfs.add(200, 50, rank_env("r", 3), start=9000)
    procfs.add(190, 1, rank_env("r", 3), start=9500, cmd="python3 upload_daemon.py")  # a daemon that left its rank
    data = procfs.look()
    assert [r["pid"] for r in data["ranks"]] == [200]


def test_two_jobs_on_a_node_are_both_told_and_the_asked_one_survives_the_cap(procfs) -> None:
    for i in range(300):
        procfs.add(1000 + i, 50, rank_env("other", i, world=300))
    for i in range(2):
        procfs.add(5000 + i, 60, rank_env("mine", i, SLURM_JOB_ID="4711"))
    data = procfs.look(job_id="4711", match={"SLURM_JOB_ID": "4711"})
    assert len(data["ranks"]) == 256 and data["truncated"] is True and data["sees_all"] is False
    assert {r["pid"] for r in data["ranks"][:2]} == {5000, 5001}
    assert len(json.dumps(data)) < 1 << 20


def test_a_tracer_that_cannot_be_read_is_unknown_and_not_none(procfs) -> None:
    for rank, line in enumerate(
        ("TracerPid:\t0\n", "TracerPid:\t77\n", "TracerPid:\t78\n", "", "TracerPid:\n", "TracerPid:\tx\n")
    ):
        procfs.add(100 + rank, 50, rank_env("r", rank))
        (procfs.root / str(100 + rank) / "status").write_text("Uid:\t0\t0\t0\t0\n" + line)
    procfs.add(77, 1, comm="gdb\x1b[31m", cmd="gdb -p 101")
    (procfs.root / "104" / "status").unlink()
    rows = procfs.look()["ranks"]
    assert [(r["tracer_pid"], r["tracer"]) for r in rows] == [
        (0, None), (77, "gdb [31m"), (78, None), (None, None), (None, None), (None, None),
    ]  # fmt: skip


def test_one_rank_with_its_loader_workers_and_trackers_does_not_look_like_nine(procfs) -> None:
    env = rank_env("r", 3)
    procfs.add(50, 1, comm="python3", cmd="python3 -m torch.distributed.run train.py")
    procfs.add(100, 50, env, start=5000)
    for pid in range(101, 107):
        procfs.add(pid, 100, env, comm="pt_data_worker", flags=0x400040, start=6000 + pid)
    procfs.add(107, 100, env, cmd="python3 -c from_multiprocessing.resource_tracker_import_main", start=6200)
    procfs.add(108, 100, env, comm="wandb-core", cmd="wandb-core --port", start=6300)
    data = procfs.look()
    assert [(r["rank"], r["pid"], len(r["children"])) for r in data["ranks"]] == [(3, 100, 8)]
    assert data["orphans"] == [] and data["wrappers"] == []


def test_the_loader_workers_of_a_killed_rank_are_eight_orphans_and_no_rank(procfs) -> None:
    env = rank_env("r", 3)
    procfs.add(1, 0, comm="systemd", cmd="/sbin/init")
    for pid in range(101, 108):
        procfs.add(pid, 1, env, comm="pt_data_worker", flags=0x400040)
    procfs.add(108, 1, env, comm="ptxas", cmd="ptxas a.ptx")
    data = procfs.look()
    assert data["ranks"] == [] and [o["rank"] for o in data["orphans"]] == [3] * 8 and data["sees_all"] is True


def test_a_rank_that_has_ended_and_is_not_reaped_is_a_zombie_without_a_number(procfs) -> None:
    procfs.add(50, 1, comm="python3", cmd="python3 -m torch.distributed.run train.py")
    procfs.add(100, 50, rank_env("r", 0))
    procfs.add(101, 50, {}, state="Z", cmd="", flags=0x400044)  # the environment of a zombie is empty
    data = procfs.look()
    assert [r["rank"] for r in data["ranks"]] == [0]
    assert [(z["pid"], z["state"], z["rank"]) for z in data["zombies"]] == [(101, "Z", None)]


@pytest.mark.parametrize(
    "option, sees_all", [("", True), (",hidepid=0", True), (",hidepid=2", False), (",hidepid=invisible", False)]
)
def test_where_processes_are_hidden_absence_proves_nothing(procfs, option, sees_all) -> None:
    procfs.add(100, 50, rank_env("r", 0))
    (procfs.root / "mounts").write_text(f"proc /proc proc rw,nosuid{option} 0 0\n")
    data = procfs.look()
    assert data["sees_all"] is sees_all and [r["rank"] for r in data["ranks"]] == [0]


def test_the_mounts_of_the_machine_itself_do_not_hide_what_a_folder_of_links_shows(procfs) -> None:
    procfs.add(100, 50, rank_env("r", 0))
    (procfs.root / "mounts").symlink_to("/proc/mounts")
    assert procfs.look()["sees_all"] is True


def test_names_with_parentheses_and_garbage_stat_files_are_survived(procfs) -> None:
    procfs.add(300, 50, rank_env("r", 0), comm="a) R 1 (b")
    for pid, text in ((301, ""), (302, "302 (x"), (303, "\x00\xff"), (304, "304 (x) S a b c")):
        (procfs.root / str(pid)).mkdir()
        (procfs.root / str(pid) / "stat").write_text(text)
    (procfs.root / "12abc").mkdir()
    data = procfs.look()
    assert [(r["pid"], r["state"], r["ppid"]) for r in data["ranks"]] == [(300, "S", 50)]


def test_a_process_whose_memory_lock_is_held_does_not_hide_the_other_ranks(procfs) -> None:
    # A FIFO in the place of environ blocks its reader as the kernel does.
    for pid, rank in ((300, 0), (301, 1), (302, 2)):
        procfs.add(pid, 50, rank_env("r", rank), state="D" if pid == 301 else "S")
    (procfs.root / "301" / "environ").unlink()
    os.mkfifo(procfs.root / "301" / "environ")
    began = time.monotonic()
    data = procfs.look()
    assert [r["rank"] for r in data["ranks"]] == [0, 2] and data["sees_all"] is False
    assert [(p["pid"], p["state"]) for p in data["stuck"]] == [(301, "D")]
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("value", ["-1", "", "1e3", "x", "٣", "9" * 30, " 1", "1.0"])
def test_a_rank_that_is_no_number_is_no_rank(procfs, value) -> None:
    procfs.add(300, 50, dict(rank_env("r", 0), RANK=value, SLURM_PROCID="3"))
    assert procfs.look()["ranks"] == []


def test_the_first_of_two_equal_names_in_an_environment_wins_as_in_getenv() -> None:
    assert _processes.parse_environ(b"RANK=3\0RANK=4\0FOO\0=x\0\0")["RANK"] == "3"


def test_hidepid_is_read_in_both_spellings() -> None:
    line = "proc /proc proc rw,nosuid,nodev,noexec,relatime%s 0 0\n"
    assert [ranks.hidepid_of(line % x) for x in ("", ",hidepid=2", ",gid=4,hidepid=invisible", ",hidepid=zzz")] == [
        0,
        2,
        2,
        None,
    ]
    assert ranks.hidepid_of("/dev/vda / ext4 rw 0 0\n") is None
