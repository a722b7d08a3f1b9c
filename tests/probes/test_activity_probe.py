"""What a silent rank is busy with: real compilers, real caches, and what only looks like them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import _compilers as compilers
import pytest
from stalled_mount import Unavailable, stalled
from test_ranks_probe import Procfs, until
from triage.probes import activity
from triage.probes._probe import Ctx

from triage.readers.shapes import problem

BURN = "while True: pass"
WORKER = """
import os, time
cache = os.environ["TORCHINDUCTOR_CACHE_DIR"]
for number in range(10**9):
    compile("\\n".join("x%d = y * %d" % (k, k) for k in range(2000)), "kernel", "exec")
    os.makedirs(os.path.join(cache, "ab"), exist_ok=True)
    with open(os.path.join(cache, "ab", "c%d.py" % number), "w") as out:
        out.write("x" * 1000)
"""


def asked(ctx: Ctx) -> dict[str, Any]:
    data = activity.collect(ctx)
    assert problem("activity", json.loads(json.dumps(data))) is None
    return data


def look(*ranks: tuple[int, int], window_s: float = 0.4, **more: Any) -> dict[str, Any]:
    """What the probe tells of (rank, pid)."""
    args = {"ranks": [{"rank": rank, "pid": pid} for rank, pid in ranks], "window_s": window_s}
    return asked(Ctx(args=args, deadline=time.monotonic() + 12.0, **more))


def only(data: dict[str, Any]) -> dict[str, Any]:
    assert data["unseen"] == []
    (row,) = data["ranks"]
    return row


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a process in a session of its own, with a home of its own; all of that session ends with the test."""
    started: list[subprocess.Popen[bytes]] = []
    home = tmp_path / "home"
    home.mkdir()

    def begin(argv: list[str], rank: int = 3, **env: str) -> subprocess.Popen[bytes]:
        base = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "RANK": str(rank), **env}
        base.setdefault("NEURON_COMPILE_CACHE_URL", "s3://none")
        child = subprocess.Popen(argv, env=base, stdin=subprocess.DEVNULL, start_new_session=True, cwd=str(tmp_path))
        started.append(child)
        return child

    yield begin
    for child in started:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()


def worker(folder: Path) -> Path:
    """A compile worker where PyTorch has its own; it really compiles."""
    script = folder / "torch" / "_inductor" / "compile_worker" / "__main__.py"
    script.parent.mkdir(parents=True)
    script.write_text(WORKER)
    return script


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def below(rank: int) -> set[str]:
    """The names of the processes below a process."""
    ctx = Ctx()
    watch = compilers.Watch(ctx, {rank})
    watch.look()
    return {watch.table[pid][1] for pid, _ in watch.trees[rank]}


# ---------------------------------------------------------------- real processes


def test_a_rank_that_waits_for_its_compile_worker_shows_its_cpu_and_its_growing_cache(start, tmp_path) -> None:
    cache = tmp_path / "inductor"
    code = f"import subprocess, sys; subprocess.run([sys.executable, {str(worker(tmp_path))!r}, '--kind=fork'])"
    rank = start(python(code), TORCHINDUCTOR_CACHE_DIR=str(cache))
    assert until(lambda: (cache / "ab").is_dir() and list((cache / "ab").iterdir()))
    row = only(look((3, rank.pid), window_s=0.8))
    assert (row["rank"], row["pid"]) == (3, rank.pid)
    assert row["compiler_cpu_s"] > 0.02 and row["compilers"][0]["cpu_s"] > 0.02 and row["cpu_s"] == 0.0
    (grown,) = [each for each in row["caches"] if each["kind"] == "inductor"]
    assert grown["path"] == str(cache) and grown["files_new"] > 0 and grown["bytes_grown"] >= 1000
    assert abs(grown["newest_at"] - time.time()) < 60 and grown["why"] == "" and grown["shared_with"] == 0
    assert row["wchar_grown"] >= 1000 and row["progress_line"] is None and row["progress_moved"] is None


def test_the_cache_that_the_rank_chose_after_its_start_is_known_from_its_worker(start, tmp_path) -> None:
    cache = tmp_path / "chosen"
    code = (
        f"import os, subprocess, sys; os.environ['TORCHINDUCTOR_CACHE_DIR'] = {str(cache)!r}\n"
        f"subprocess.run([sys.executable, {str(worker(tmp_path))!r}])"
    )
    rank = start(python(code))
    assert until(lambda: (cache / "ab").is_dir() and list((cache / "ab").iterdir()))
    row = only(look((3, rank.pid), window_s=0.8))
    assert [each["path"] for each in row["caches"] if each["files_new"]] == [str(cache)]


@pytest.mark.parametrize("through", ["rank", "shell"])
def test_compilers_that_live_a_tenth_of_a_second_are_seen_also_below_a_shell(start, tmp_path, through) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    (tmp_path / "a.c").write_text(
        "#include <stdio.h>\n"
        + "".join(
            f"int f{i}(int x){{return x*{i}+f{i - 1}(x);}}\n" if i else "int f0(int x){return x;}\n"
            for i in range(3000)
        )
    )
    (tmp_path / "ptxas").symlink_to(sys.executable)
    (tmp_path / "a.py").write_text(f"compile({'x = 1' + chr(10)!r} * 60000, 'a', 'exec')\n")
    line = f"{compiler} -O1 -c {tmp_path}/a.c -o {tmp_path}/a.o" if compiler else f"{tmp_path}/ptxas {tmp_path}/a.py"
    loop = f"while true; do {line}; done"
    code = f"import subprocess; subprocess.run({loop!r}, shell=True)"
    rank = start(python(code) if through == "rank" else ["sh", "-c", f"sh -c '{loop}'; true"])
    names = {"cc1", "as", "clang", "ptxas", "gcc"}
    assert until(lambda: below(rank.pid) & names)
    row = only(look((3, rank.pid), window_s=1.0))
    assert row["compiler_cpu_s"] > 0.03 and {each["comm"] for each in row["compilers"]} & names


def test_a_process_called_ptxas_that_does_nothing_says_nothing(start, tmp_path) -> None:
    shutil.copy(os.path.realpath(shutil.which("sleep") or "/bin/sleep"), tmp_path / "ptxas")
    rank = start(python(f"import subprocess; subprocess.run([{str(tmp_path / 'ptxas')!r}, '60'])"))
    assert until(lambda: "ptxas" in below(rank.pid))
    row = only(look((3, rank.pid)))
    assert [(each["comm"], each["cpu_s"]) for each in row["compilers"]] == [("ptxas", 0.0)]
    assert row["compiler_cpu_s"] == 0.0 and not [each for each in row["caches"] if each["files_new"]]


def test_what_a_compiler_had_burnt_before_the_window_does_not_count(start, tmp_path) -> None:
    (tmp_path / "ptxas").symlink_to(sys.executable)
    code = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass\nprint(1, flush=True); time.sleep(60)"
    rank = start(python(f"import subprocess; subprocess.run([{str(tmp_path / 'ptxas')!r}, '-S', '-c', {code!r}])"))

    def burnt() -> bool:
        watch = compilers.Watch(Ctx(), {rank.pid})
        watch.look()
        return any(
            watch.table[pid][1] == "ptxas" and watch.table[pid][3] >= 40 and watch.table[pid][2] == "S"
            for pid, _ in watch.trees[rank.pid]
        )

    assert until(burnt)
    assert only(look((3, rank.pid)))["compiler_cpu_s"] <= 0.01


def test_a_compiler_of_somebody_else_is_not_this_ranks(start, tmp_path) -> None:
    (tmp_path / "ptxas").symlink_to(sys.executable)
    start([str(tmp_path / "ptxas"), "-c", BURN])
    rank = start(python("import time; time.sleep(60)"))
    row = only(look((3, rank.pid)))
    assert row["compilers"] == [] and row["compiler_cpu_s"] == 0.0


def test_a_rank_below_a_rank_keeps_its_own_compilers(start, tmp_path) -> None:
    (tmp_path / "ptxas").symlink_to(sys.executable)
    inner = f"import subprocess; subprocess.run([{str(tmp_path / 'ptxas')!r}, '-c', {BURN!r}])"
    env = "dict(os.environ, RANK='4')"
    outer = start(python(f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], env={env})"))
    watch = compilers.Watch(Ctx(), {outer.pid})

    def chain() -> list[int]:
        watch.look()
        return [pid for pid, _ in watch.trees[outer.pid]] if len(watch.trees[outer.pid]) == 2 else []

    child = until(chain)[0]
    data = look((3, outer.pid), (4, child))
    assert {row["rank"]: bool(row["compilers"]) for row in data["ranks"]} == {3: False, 4: True}


def test_a_rank_that_spins_burns_cpu_of_its_own_and_compiles_nothing(start) -> None:
    rank = start(python(BURN))
    row = only(look((3, rank.pid), window_s=0.6))
    assert row["cpu_s"] > 0.02 and row["compiler_cpu_s"] == 0.0 and row["compilers"] == []


def test_bytes_of_the_rank_and_of_children_that_end_meanwhile_are_counted(start, tmp_path) -> None:
    inner = f"open({str(tmp_path / 'x')!r}, 'w').write('x' * 500000)"
    rank = start(python(f"import subprocess, sys\nwhile True: subprocess.run([sys.executable, '-S', '-c', {inner!r}])"))
    assert until(lambda: (tmp_path / "x").exists())
    row = only(look((3, rank.pid), window_s=1.0))
    assert row["wchar_grown"] >= 500000 and row["rchar_grown"] > 0
    assert row["read_bytes_grown"] is not None and row["write_bytes_grown"] is not None


def test_a_checkpoint_that_is_being_written_grows_also_below_a_relative_path(start, tmp_path) -> None:
    code = (
        "import os, sys, time; os.makedirs('ckpt/iter_7', exist_ok=True)\n"
        "with open('ckpt/iter_7/shard.pt', 'wb', buffering=0) as out:\n"
        "    while True: out.write(b'x' * 10000); time.sleep(0.01)"
    )
    rank = start([sys.executable, "-c", code, "--save", "ckpt", "--load", "elsewhere"])
    assert until(lambda: (tmp_path / "ckpt" / "iter_7" / "shard.pt").exists())
    row = only(look((3, rank.pid)))
    (folder,) = row["folders"]
    assert (folder["path"], folder["kind"]) == (str(tmp_path / "ckpt"), "checkpoint")
    assert folder["files_new"] == 1 and folder["bytes_grown"] >= 10000 and row["wchar_grown"] >= 10000


def test_a_progress_bar_is_read_from_the_file_that_the_rank_prints_to(start, tmp_path) -> None:
    bar = "\\r {0}%|####      | {0}/100 [00:10<00:12,  4.50it/s]"
    code = (
        f"import os, time\nout = os.open({str(tmp_path / 'log')!r}, os.O_CREAT | os.O_WRONLY | os.O_APPEND)\nos.dup2(out, 2)\n"
        f"for n in range(10**9): os.write(2, '{bar}'.format(n % 100).encode()); time.sleep(0.02)"
    )
    rank = start(python(code))
    assert until(lambda: (tmp_path / "log").exists() and (tmp_path / "log").stat().st_size)
    row = only(look((3, rank.pid)))
    assert row["progress_line"].endswith("[00:10<00:12,  4.50it/s]") and row["progress_moved"] is True
    os.kill(rank.pid, signal.SIGSTOP)
    assert only(look((3, rank.pid), window_s=0.1))["progress_moved"] is False


def test_what_is_dead_gone_or_another_rank_by_now_is_unseen_and_says_why(start, tmp_path) -> None:
    rank, other = start(python("import time; time.sleep(60)")), start(python("import time; time.sleep(60)"), rank=5)
    dead = start(python("pass"))
    assert until(lambda: Path(f"/proc/{dead.pid}/stat").read_text().split()[2] == "Z")
    data = look((3, rank.pid), (4, other.pid), (6, dead.pid), (7, activity.LAST_PID))
    assert [row["rank"] for row in data["ranks"]] == [3]
    assert {each["rank"]: each["why"] for each in data["unseen"]} == {
        4: "this process is another rank's now",
        6: "its process is dead",
        7: "there is no such process, or it is hidden",
    }


def test_a_rank_that_ends_while_we_look_is_unseen_and_not_idle(start) -> None:
    rank = start(python("import time; time.sleep(60)"))
    assert until(lambda: b"RANK=3" in Path(f"/proc/{rank.pid}/environ").read_bytes())
    later(0.7, lambda: os.kill(rank.pid, signal.SIGKILL))
    data = look((3, rank.pid), window_s=1.5)
    assert data["ranks"] == [] and [each["why"] for each in data["unseen"]] == ["it ended while we looked"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: drops to another user to see what that user may not")
def test_a_rank_that_may_not_be_read_is_unseen_and_not_idle(start) -> None:
    rank = start(python("import time; time.sleep(60)"))
    assert until(lambda: b"RANK=3" in Path(f"/proc/{rank.pid}/environ").read_bytes())
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgid(65534)
        os.setuid(65534)
        os.write(write, json.dumps(look((3, rank.pid), window_s=0.1)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = json.load(pipe)
    os.waitpid(pid, 0)
    assert data["ranks"] == [] and "may not be read" in data["unseen"][0]["why"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes a mount namespace")
def test_the_private_tmp_of_a_job_is_the_one_that_is_looked_into(start, tmp_path) -> None:
    # Slurm's job_container gives each job a /tmp of its own below the same root.
    private = tmp_path / "private"
    shared = tmp_path / "shared"
    private.mkdir(), shared.mkdir()
    code = f"import time\nfor n in range(10**9): open('{shared}/k%d' % n, 'w').write('x'); time.sleep(0.02)"
    script = f'mount --bind {private} {shared} && exec {sys.executable} -c "{code}"'
    rank = start(["unshare", "-m", "--propagation", "private", "sh", "-c", script], TRITON_CACHE_DIR=str(shared))
    if not until(lambda: list(private.iterdir()) or rank.poll() is not None) or rank.poll() is not None:
        pytest.skip("no mount namespaces here")
    assert not list(shared.iterdir())
    (cache,) = only(look((3, rank.pid)))["caches"]
    assert cache["path"] == str(shared) and cache["files_new"] > 0


# ---------------------------------------------------------------- storage that does not answer


def test_folders_that_never_answer_cost_their_own_rows_and_no_other(start, tmp_path) -> None:
    # More of them than are waited for, and asked before the one that is well: they are one mount.
    alive = tmp_path / "ckpt"
    alive.mkdir()
    code = f"import time\nfor n in range(10**9): open('{alive}/k%d' % n, 'w').write('x'); time.sleep(0.02)"
    names = (
        "HOME",
        "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "CUDA_CACHE_PATH",
        "TORCH_EXTENSIONS_DIR",
        "HF_HOME",
    )
    try:
        with stalled(tmp_path / "dead") as dead:
            rank = start([*python(code), f"--save={alive}"], **{name: f"{dead}/{name}" for name in names})
            assert until(lambda: list(alive.iterdir()))
            began = time.monotonic()
            row = only(look((3, rank.pid)))
            assert time.monotonic() - began < 9
    except Unavailable as exc:
        pytest.skip(str(exc))
    told = {each["path"]: each for each in row["caches"] + row["folders"]}
    assert told[str(alive)]["files_new"] > 0
    lost = [each for path, each in told.items() if path.startswith(str(dead))]
    assert len(lost) == 6 and all(each["files_new"] is None and each["why"] for each in lost)


# ---------------------------------------------------------------- a procfs of files


@pytest.fixture
def procfs(tmp_path: Path) -> Procfs:
    root = tmp_path / "proc"
    root.mkdir()
    return Procfs(root)


def later(seconds: float, change: Callable[[], Any]) -> None:
    timer = threading.Timer(seconds, change)
    timer.daemon = True
    timer.start()


def there(procfs: Procfs, tmp_path: Path, *ranks: tuple[int, int], window_s: float = 1.0) -> dict[str, Any]:
    (tmp_path / "root").mkdir(exist_ok=True)
    return look(*ranks, window_s=window_s, procfs=str(procfs.root), rootfs=str(tmp_path / "root"))


def burn(procfs: Procfs, pid: int, ticks: int) -> None:
    path = procfs.root / str(pid) / "stat"
    path.write_text(path.read_text().replace(" 1200 300 ", f" {1200 + ticks} 300 "))


ENV: Mapping[str, str] = {"RANK": "3", "HOME": "/home/ann", "USER": "ann"}


def test_descendants_are_found_however_deep_and_their_burnt_ticks_are_seconds(procfs, tmp_path) -> None:
    procfs.add(100, 1, ENV)
    procfs.add(101, 100, comm="sh", cmd="sh -c nvcc")
    procfs.add(102, 101, comm="nvcc", cmd="nvcc x.cu")
    procfs.add(103, 102, comm="cicc", cmd="cicc x.ii", state="R")
    procfs.add(104, 100, ENV, comm="pt_data_worker", flags=0x400040)
    later(0.5, lambda: (burn(procfs, 103, 30), burn(procfs, 104, 50), burn(procfs, 100, 20)))
    row = only(there(procfs, tmp_path, (3, 100)))
    tick = os.sysconf("SC_CLK_TCK")
    assert [(c["pid"], c["comm"], c["state"]) for c in row["compilers"]] == [(103, "cicc", "R"), (102, "nvcc", "S")]
    assert row["compilers"][0]["cpu_s"] == row["compiler_cpu_s"] == pytest.approx(30 / tick)
    assert row["cpu_s"] == pytest.approx(20 / tick)


def test_a_compiler_that_is_born_within_the_window_counts_whole_and_one_that_turns_up_does_not(
    procfs, tmp_path
) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    (procfs.root / "uptime").write_text("100.00 1.00\n")
    procfs.add(100, 1, ENV)

    def come() -> None:
        for pid, age in ((101, 5), (102, -5000)):
            procfs.add(pid, 100, comm="ptxas", cmd="ptxas", start=100 * tick + age)

    later(0.5, come)
    row = only(there(procfs, tmp_path, (3, 100)))
    assert {c["pid"]: c["cpu_s"] for c in row["compilers"]} == {101: pytest.approx(1500 / tick), 102: 0.0}


def test_the_pool_below_a_compile_worker_compiles_whatever_it_is_called(procfs, tmp_path) -> None:
    # TORCHINDUCTOR_WORKER_START=spawn: the pool's processes wear multiprocessing's command line.
    procfs.add(100, 1, ENV)
    procfs.add(
        110, 100, comm="pt_main_thread", cmd="python3 /env/torch/_inductor/compile_worker/__main__.py --kind=spawn"
    )
    procfs.add(111, 110, comm="python3", cmd="python3 -c from_multiprocessing.spawn_import_spawn_main")
    procfs.add(120, 100, comm="python3", cmd="python3 -c from_multiprocessing.spawn_import_spawn_main")
    procfs.add(121, 100, comm="python3", cmd="python3 train.py --log torch/_inductor/compile_worker.log")
    assert {c["pid"] for c in only(there(procfs, tmp_path, (3, 100)))["compilers"]} == {110, 111}


def test_sixteen_compilers_are_told_and_all_are_counted(procfs, tmp_path) -> None:
    procfs.add(100, 1, ENV)
    for pid in range(200, 240):
        procfs.add(pid, 100, comm="ptxas", cmd="ptxas")
    later(0.5, lambda: [burn(procfs, pid, 10) for pid in range(200, 240)])
    row = only(there(procfs, tmp_path, (3, 100)))
    assert len(row["compilers"]) == 16
    assert row["compiler_cpu_s"] == pytest.approx(40 * 10 / os.sysconf("SC_CLK_TCK"))


@pytest.mark.parametrize(
    "comm",
    ["ptxas", "ptxas-blackwell", "cicc", "nvcc", "cc1plus", "cc1", "g++", "gcc", "gcc-12", "clang", "clang-17", "ld",
     "ld.lld", "as", "neuronx-cc", "aarch64-gcc", "c++"],
)  # fmt: skip
def test_compilers_are_known_by_name(comm) -> None:
    assert compilers.is_compiler(comm)


@pytest.mark.parametrize(
    "comm", ["python3", "sh", "bash", "ssh", "gcc-monitor", "ptxasd", "has", "cold", "", "wandb-core", "ccache"]
)
def test_other_names_are_no_compilers(comm) -> None:
    assert not compilers.is_compiler(comm)


def test_defaults_and_named_folders_are_resolved_below_the_root_that_was_given(procfs, tmp_path) -> None:
    root = tmp_path / "root"
    for path in ("home/ann/.triton/cache", "scratch/ind", "home/ann/.nv/ComputeCache", "ckpt"):
        (root / path).mkdir(parents=True)
    procfs.add(100, 1, {**ENV, "TORCHINDUCTOR_CACHE_DIR": "/scratch/ind"}, cmd="python3 train.py --save /ckpt")
    later(0.5, lambda: (root / "scratch/ind/k.py").write_text("12345"))
    row = only(there(procfs, tmp_path, (3, 100)))
    told = {
        each["kind"]: (each["path"], each["files_new"], each["bytes_grown"]) for each in row["caches"] + row["folders"]
    }
    assert told == {
        "triton": ("/home/ann/.triton/cache", 0, 0),
        "inductor": ("/scratch/ind", 1, 5),
        "cuda": ("/home/ann/.nv/ComputeCache", 0, 0),
        "checkpoint": ("/ckpt", 0, 0),
    }


def test_a_cache_that_two_ranks_share_says_so(procfs, tmp_path) -> None:
    (tmp_path / "root" / "t").mkdir(parents=True)
    for rank in (0, 1):
        procfs.add(100 + rank, 1, {**ENV, "RANK": str(rank), "TRITON_CACHE_DIR": "/t"})
    procfs.add(102, 1, {**ENV, "RANK": "2"})
    later(0.5, lambda: (tmp_path / "root/t/k").write_text("x"))
    data = there(procfs, tmp_path, (0, 100), (1, 101), (2, 102))
    told = {row["rank"]: [(c["files_new"], c["shared_with"]) for c in row["caches"]] for row in data["ranks"]}
    assert told == {0: [(1, 1)], 1: [(1, 1)], 2: []}


HOSTILE = {
    "relative without a working folder": "cache",
    "upwards": "../../../../../../etc",
    "upwards from the root": "/../etc",
    "upwards on the way": "/home/../../etc",
    "root": "/",
    "procfs": "/proc",
    "a loop of links": "/loop/x",
    "huge": "/" + "x/" * 3000,
    "a URL": "s3://bucket/x",
    "escapes": "/\x1b]0;evil\x07\x1b[31m",
    "no text": "/\udcff\udcfe",
    "newline": "/a\nb",
    "a file": "/file",
    "a FIFO": "/fifo",
    "a device": "/dev/zero",
}


@pytest.mark.parametrize("path", HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_environment_neither_hangs_the_probe_nor_leaves_its_root(procfs, tmp_path, path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "loop").symlink_to(root / "loop")
    (root / "file").write_text("x")
    os.mkfifo(root / "fifo")
    for folder in ("\x1b]0;evil\x07\x1b[31m", "\udcff\udcfe", "a\nb", "home"):
        (root / folder).mkdir()
    (tmp_path / "etc").mkdir()
    here = procfs.root / "100"
    procfs.add(100, 1, {}, cmd="x")
    names = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "HF_DATASETS_CACHE", "TMPDIR", "XDG_CACHE_HOME", "HOME")
    value = os.fsencode(path)
    (here / "environ").write_bytes(
        b"RANK=3\0" + b"".join(n.encode() + b"=" + value + b"\0" for n in names) + b"\0=\0=x"
    )
    (here / "cmdline").write_bytes(
        b"python3\0--save\0" + value + b"\0--cache_dir=" + value + b"\0" + b"--save\0" * 3000
    )
    began = time.monotonic()
    row = only(there(procfs, tmp_path, (3, 100), window_s=0.1))
    assert time.monotonic() - began < 5
    for each in row["caches"] + row["folders"]:
        assert each["path"].isprintable() and len(each["path"]) <= 256 and not each["files_new"]
        assert "etc" not in each["path"] or each["why"]


def test_a_rank_whose_memory_lock_is_held_is_unseen_and_the_others_are_seen(procfs, tmp_path) -> None:
    # A FIFO in the place of environ blocks its reader as the kernel does.
    procfs.add(100, 1, {**ENV, "RANK": "0"})
    procfs.add(101, 1, {}, state="D")
    (procfs.root / "101" / "environ").unlink()
    (procfs.root / "101" / "cmdline").unlink()
    os.mkfifo(procfs.root / "101" / "environ")
    os.mkfifo(procfs.root / "101" / "cmdline")
    data = there(procfs, tmp_path, (0, 100), (1, 101), window_s=0.1)
    assert [row["rank"] for row in data["ranks"]] == [0] and data["unseen"][0]["rank"] == 1


def test_counters_that_cannot_be_read_are_null_and_not_zero(procfs, tmp_path) -> None:
    procfs.add(100, 1, ENV)
    (procfs.root / "100" / "io").unlink()
    row = only(there(procfs, tmp_path, (3, 100), window_s=0.1))
    assert [row[f"{name}_grown"] for name in ("read_bytes", "write_bytes", "rchar", "wchar")] == [None] * 4


@pytest.mark.parametrize(
    "args",
    [{}, {"ranks": []}, {"ranks": 5}, {"ranks": [5, None, {}, {"rank": True, "pid": 7}, {"rank": 3, "pid": 1}]},
     {"ranks": [{"rank": -1, "pid": 50}, {"rank": 3, "pid": "50"}, {"rank": 3, "pid": 1 << 40}]}],
)  # fmt: skip
def test_asked_for_nobody_it_says_how_to_ask(args) -> None:
    with pytest.raises(Ctx.Absent, match="ranks"):
        activity.collect(Ctx(args=args))


@pytest.mark.parametrize("window_s", [None, "2", -1, 0, 1e9, float("nan"), True])
def test_no_window_of_the_request_outlasts_the_probes_deadline(procfs, tmp_path, window_s) -> None:
    procfs.add(100, 1, ENV)
    args = {"ranks": [{"rank": 3, "pid": 100}], "window_s": window_s}
    began = time.monotonic()
    data = asked(Ctx(procfs=str(procfs.root), rootfs=str(tmp_path / "root"), args=args, deadline=began + 2.0))
    assert time.monotonic() - began < 2.5 and 0 < data["window_s"] < 2
