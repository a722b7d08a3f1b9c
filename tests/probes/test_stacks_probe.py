"""Where a real process stands: read without stopping it, twice, with the kernel's side; and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import textwrap
import time
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path

import _frames as frames
import pytest
from control_planes import TRACE
from stalled_mount import Unavailable, stalled
from triage.probes import stacks as probe
from triage.probes._probe import Ctx

from triage import carry
from triage.gather import Fleet
from triage.model import Node
from triage.readers.shapes import problem
from triage.readers.stacks import place_of
from triage.transports import payload
from triage.transports.base import load as load_transport

SCRIPTS = sysconfig.get_path("scripts")
SPY = shutil.which("py-spy", path=os.pathsep.join([SCRIPTS, *os.environ["PATH"].split(os.pathsep)]))
needs_spy = pytest.mark.skipif(SPY is None, reason="py-spy is not installed (pip install -e '.[dev]')")
CONTROL = Path(__file__).with_name("control_planes.py")

LOCK = """
    import threading
    lock = threading.Lock()
    lock.acquire()
    def train_step(secret="hunter2"):
        password = "hunter3"
        lock.acquire()
    train_step()
"""
WITH_LOCK = """
    import threading
    the_lock = threading.Lock()
    the_lock.acquire()
    def update():
        with the_lock:
            pass
    update()
"""
QUEUE = """
    import queue
    def next_batch():
        return queue.Queue().get()
    next_batch()
"""
GIL = """
    import ctypes, threading, time
    def beat():
        while True:
            time.sleep(0.01)
    threading.Thread(target=beat, daemon=True).start()
    def call_of_an_extension():
        ctypes.PyDLL(None).sleep(1000)
    call_of_an_extension()
"""
FLOCK = """
    import fcntl, os, sys
    def prepare(path):
        fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)
    prepare(sys.argv[1])
"""
BUSY = """
    def count():
        number = 0
        while True:
            number += 1
    count()
"""
SLEEPS = """
    import time
    def evaluate():
        time.sleep(1000)
    evaluate()
"""
READS = """
    import sys
    def read_shard(path):
        return open(path).read()
    read_shard(sys.argv[1])
"""


@contextmanager
def running(tmp_path, source, *args, env=None, python=sys.executable):
    """A rank that runs this script, once it stands where it is going to stand."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(source))
    whole = {"PATH": f"{SCRIPTS}:/usr/bin:/bin", "RANK": "3", **(env or {})}
    child = subprocess.Popen([python, str(script), *map(str, args)], env=whole, stderr=subprocess.DEVNULL)
    try:
        settle(child.pid)
        yield child
    finally:
        child.kill()
        with suppress(subprocess.TimeoutExpired):  # one that sleeps on dead storage ends when the storage does
            child.wait(2)


def settle(pid):
    """Wait until the interpreter has started: its state or place no longer changes."""
    last, same, until = None, 0, time.monotonic() + 20
    # On a busy machine a start is slow: one that runs may be starting, one that sleeps for a while has come to its place.
    while same < (6 if last and last[0] in "SD" else 40) and time.monotonic() < until:
        text = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        now = (text[0], Path(f"/proc/{pid}/wchan").read_text())
        same = same + 1 if now == last else 0
        last = now
        time.sleep(0.05)


def asked(*children, **args):
    ranks = [{"rank": 3 + i, "pid": child.pid} for i, child in enumerate(children)]
    ctx = Ctx(args={"ranks": ranks, **args}, deadline=time.monotonic() + 15)
    data = probe.collect(ctx)
    assert problem("stacks", data) is None
    return data["ranks"], ctx.notes


def look(child, **args):
    (row,), _ = asked(child, **args)
    return row


def top(row):
    return row["threads"][0]["frames"][0][0]


# ---------------------------------------------------------------- real places


@needs_spy
@pytest.mark.parametrize("source, function, verb", [(LOCK, "train_step", "acquire"), (WITH_LOCK, "update", "lock")])
def test_a_rank_that_waits_for_a_lock_of_its_own_is_known_by_its_line_and_its_call_of_the_kernel(
    tmp_path, source, function, verb
):
    with running(tmp_path, source) as child:
        row = look(child)
    place = place_of(row)
    assert (top(row), row["verb"], row["kernel"][0]["syscall"], row["still"]) == (function, verb, "futex", True)
    assert place.cls == "lock" and function in place.inside


@needs_spy
def test_no_variable_and_no_line_of_the_source_leaves_the_node(tmp_path):
    with running(tmp_path, LOCK, env={"API_KEY": "hunter4"}) as child:
        told = json.dumps(asked(child))
    assert "hunter" not in told and "password" not in told and "lock.acquire" not in told


@needs_spy
def test_a_rank_that_waits_for_another_thread_is_no_lock(tmp_path):
    with running(tmp_path, QUEUE) as child:
        place = place_of(look(child))
    assert place.cls == "wait" and "next_batch" in place.inside


@needs_spy
def test_an_interpreter_lock_that_is_kept_while_its_thread_sleeps_is_seen(tmp_path):
    with running(tmp_path, GIL) as child:
        row = look(child)
    assert "holds the interpreter lock and sleeps" in row["gil_held"] and place_of(row).cls == "lock"


@needs_spy
def test_a_rank_that_computes_holds_the_interpreter_lock_and_is_not_called_locked(tmp_path):
    with running(tmp_path, BUSY) as child:
        row = look(child)
    assert row["gil_held"] == "" and place_of(row).cls == "user_code" and top(row) == "count"


@needs_spy
def test_a_silent_phase_of_its_own_is_no_lock(tmp_path):
    with running(tmp_path, SLEEPS) as child:
        row = look(child)
    assert place_of(row).cls == "user_code" and row["verb"] == "sleep" and "evaluate" in place_of(row).inside


@needs_spy
def test_a_lock_file_that_another_process_holds_shows_in_the_kernels_call(tmp_path):
    held = tmp_path / "lock"
    held.write_text("")
    import fcntl

    with open(held) as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        with running(tmp_path, FLOCK, held) as child:
            row = look(child)
    assert row["kernel"][0]["syscall"] == "flock" and place_of(row).cls == "lock"


@needs_spy
def test_a_rank_in_d_on_storage_that_went_away_is_read_or_passed_over_and_never_waited_for(tmp_path):
    try:
        with stalled(tmp_path / "dead") as folder, running(tmp_path, READS, folder / "shard") as child:
            began = time.monotonic()
            row = look(child)
            took = time.monotonic() - began
            child.kill()
    except Unavailable as why:
        pytest.skip(str(why))
    assert row["kernel"][0]["state"] in "DS" and took < 12
    place = place_of(row)
    assert place is None or place.cls == "storage", (place, row["kernel"][0])


@needs_spy
def test_a_stopped_or_traced_rank_is_read_without_waking_it(tmp_path):
    with running(tmp_path, LOCK) as child:
        os.kill(child.pid, signal.SIGSTOP)
        while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
        row = look(child)
        assert Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    assert row["state"] == "T" and top(row) == "train_step"


TRACED = """
    import ctypes, threading
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)  # PTRACE_TRACEME: this test is its tracer, and there can be no second
    def train_step():
        threading.Event().wait()
    train_step()
"""


@needs_spy
def test_a_rank_that_a_debugger_holds_is_read_since_nothing_here_needs_to_trace_it(tmp_path):
    with running(tmp_path, TRACED) as child:
        row, notes = asked(child, native=True)[0][0], asked(child, native=True)[1]
        argv = [SPY, "dump", "--pid", str(child.pid)]
        stopping = subprocess.run(argv, capture_output=True, text=True)
    assert row["tracer_pid"] == os.getpid() and "train_step" in json.dumps(row["threads"])
    assert any("no native frames" in note for note in notes)
    assert stopping.returncode != 0  # while py-spy without --nonblocking cannot: it would have to stop the rank


# ---------------------------------------------------------------- what is refused, and what takes its place


@needs_spy
@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
@pytest.mark.parametrize("how", ["owner", "folder", "writable"])
def test_a_py_spy_that_the_jobs_user_could_have_put_there_is_not_run_by_us(tmp_path, how):
    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy(SPY, folder / "py-spy")
    if how == "owner":
        os.chown(folder / "py-spy", 1000, 1000)
    elif how == "folder":
        os.chown(folder, 1000, 1000)
    else:
        (folder / "py-spy").chmod(0o777)
    with running(tmp_path, LOCK, env={"PATH": str(folder)}, python=os.path.realpath(sys.executable)) as child:
        row = look(child)
    if row["how"]:
        pytest.skip("this machine has a py-spy of its own beside the interpreter")
    assert "it is not run" in row["why"] and row["threads"] == [] and row["kernel"][0]["syscall"] == "futex"


@needs_spy
def test_below_another_root_no_program_is_run_and_the_kernels_side_is_told(tmp_path):
    with running(tmp_path, LOCK) as child:
        (tmp_path / "proc").mkdir()
        os.symlink(f"/proc/{child.pid}", tmp_path / "proc" / str(child.pid))
        data = probe.collect(Ctx(procfs=str(tmp_path / "proc"), args={"ranks": [{"rank": 3, "pid": child.pid}]}))
    (row,) = data["ranks"]
    assert row["threads"] == [] and "another root" in row["why"] and row["kernel"][0]["state"] == "S"


def test_a_rank_that_is_gone_is_a_row_with_its_reason():
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert asked(gone)[0][0]["why"] == "its process is gone"


@pytest.mark.parametrize("args", [{}, {"ranks": 5}, {"ranks": [{"rank": True, "pid": 1}, "x", {"rank": 1, "pid": -4}]}])
def test_without_ranks_there_is_nothing_to_look_at(args):
    with pytest.raises(Ctx.Absent):
        probe.collect(Ctx(args=args))


@contextmanager
def with_plane(tmp_path, kind):
    path = tmp_path / "s"
    env = {"PATH": "/nonexistent", "RANK": "3", "TORCH_WORKER_SERVER_SOCKET": str(path)}
    child = subprocess.Popen(
        [os.path.realpath(sys.executable), str(CONTROL), kind, str(path), ""],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True,
    )  # fmt: skip
    try:
        assert child.stdout.readline().startswith("ready")
        yield child
    finally:
        child.kill()
        child.communicate()


@pytest.fixture
def no_spy(monkeypatch):
    monkeypatch.setattr(probe, "find_spy", lambda ctx, rank: (None, "no py-spy on this node"))


def test_without_py_spy_the_control_plane_tells_the_stack(tmp_path, no_spy):
    with with_plane(tmp_path, "ok") as child:
        row = look(child)
    assert (row["how"], top(row), row["still"]) == ("control plane", "save_checkpoint", True)
    assert place_of(row).cls == "checkpoint"


def test_a_control_plane_that_pings_but_gives_no_traceback_tells_of_a_held_interpreter_lock(
    tmp_path, no_spy, monkeypatch
):
    monkeypatch.setattr(probe, "PLANE_S", 0.6)
    with with_plane(tmp_path, "held") as child:
        row = look(child)
    assert "interpreter lock" in row["gil_held"] and place_of(row).cls == "lock"


def test_a_control_plane_that_is_silent_altogether_tells_nothing_of_a_lock(tmp_path, no_spy, monkeypatch):
    monkeypatch.setattr(probe, "PLANE_S", 0.6)
    with with_plane(tmp_path, "mute") as child:
        row = look(child)
    assert row["gil_held"] == "" and "did not answer" in row["why"] and place_of(row) is None


# ---------------------------------------------------------------- carried along


def ask_node(child, lines=(), **args):
    """The whole way: payload, wire, runner, a child with its limits."""
    fleet = Fleet([Node("n1")], load_transport("local", {}), payload.build(["stacks"], deadline_s=30.0))
    try:
        fleet.open(10.0)
        told = {"ranks": [{"rank": 3, "pid": child.pid}], **args}
        (sample,) = fleet.ask("stacks", ["n1"], told, limit_s=18.0, before={"n1": tuple(lines)})
        return sample
    finally:
        fleet.close()


@needs_spy
def test_a_py_spy_that_is_carried_along_runs_from_memory_and_leaves_no_file(tmp_path):
    program = carry.read(SPY)
    if program.machine != os.uname().machine:
        pytest.skip("the py-spy here is for another machine")
    with running(tmp_path, LOCK, env={"PATH": "/nonexistent"}, python=os.path.realpath(sys.executable)) as child:
        before = set(os.listdir("/tmp")) | set(os.listdir("/dev/shm"))
        sample = ask_node(child, program.lines(), carry=carry.NAME)
        after = set(os.listdir("/tmp")) | set(os.listdir("/dev/shm"))
    (row,) = sample.data["ranks"]
    assert (sample.status, row["how"], top(row)) == ("ok", "py-spy (carried, from memory)", "train_step")
    assert not [name for name in after - before if "spy" in name or "triage" in name]


@needs_spy
def test_under_the_limits_of_a_probe_the_nodes_own_py_spy_runs_too(tmp_path):
    with running(tmp_path, LOCK) as child:
        sample = ask_node(child)
    assert sample.status == "ok" and top(sample.data["ranks"][0]) == "train_step"


@pytest.mark.parametrize(
    "change, why",
    [
        ({"machine": "vax"}, "it is for vax"),
        ({"last": False}, "did not come whole"),
        ({"data": "AAAA"}, "did not come whole"),
        ({"data": 5}, "did not come whole"),
        (None, "did not come"),
    ],
)
def test_a_program_that_is_for_another_machine_or_comes_in_pieces_is_not_run_and_said_so(tmp_path, change, why, no_spy):
    program = carry.Program("", os.uname().machine, zlib.compress(b"\x7fELF not a program"))
    (line,) = program.lines()
    lines = [json.dumps({**json.loads(line), **change}).encode() + b"\n"] if change else []
    with running(tmp_path, SLEEPS) as child:
        sample = ask_node(child, lines, carry=carry.NAME)
    assert sample.status == "ok" and any(why in note for note in sample.notes), sample.notes


def test_a_program_that_the_kernel_does_not_run_is_told_and_nothing_else_is_tried(tmp_path):
    program = carry.Program("", os.uname().machine, zlib.compress(b"\x7fELF not a program"))
    with running(tmp_path, SLEEPS, env={"PATH": "/nonexistent"}, python=os.path.realpath(sys.executable)) as child:
        sample = ask_node(child, program.lines(), carry=carry.NAME)
    (row,) = sample.data["ranks"]
    assert row["threads"] == [] or row["how"] == "py-spy"  # one of the machine's own
    assert row["how"] or "format error" in row["why"], row


def test_a_program_that_unfolds_without_end_is_refused_within_its_memory(tmp_path):
    bomb = zlib.compress(bytes(100 << 20), 9)
    program = carry.Program("", os.uname().machine, bomb)
    with running(tmp_path, SLEEPS) as child:
        sample = ask_node(child, program.lines(), carry=carry.NAME)
    assert sample.status == "ok" and any("more than 32 MiB" in note for note in sample.notes)


# ---------------------------------------------------------------- pure


def test_both_printed_forms_are_read_and_faulthandlers_last_thread_is_the_main_one():
    told = frames.parse_text(TRACE)
    assert [t["main"] for t in told] == [False, True]
    assert told[1]["frames"][0] == ["save_checkpoint", "job/train.py", 41, True]
    assert told[0]["frames"][0] == ["handler", "torch/distributed/debug/__init__.py", 9, False]
    spied = frames.parse_text('Thread 7 (active+gil): "MainThread"\n    step (train.py:3)\n    <module> (train.py:9)\n')
    assert spied[0]["gil"] and spied[0]["active"] and spied[0]["frames"][1] == ["<module>", "train.py", 9, True]


@pytest.mark.parametrize("text", ["", "[", "{}", "5", '[{"frames": 5}]', "[[]]", '[{"a": 1}]', "[" * 5000])
def test_what_is_no_dump_of_py_spy_is_refused(text):
    with pytest.raises((ValueError, RecursionError)):
        frames.parse_json(text, 1)


def test_a_hostile_dump_is_bounded_and_clean():
    many = [
        {"thread_name": "\x1b[31m" * 99, "os_thread_id": 10**30, "owns_gil": 5, "active": None,
         "frames": [{"name": "f" * 500 + "\n", "filename": "/x/" + "\u202e" * 500, "line": -5}] * 100}
    ] * 40  # fmt: skip
    rank = probe.Rank(1, 1001)
    rank.threads = frames.parse_json(json.dumps(many), 1)
    row = rank.row(frames)
    raw = json.dumps(row)
    assert len(raw) < 64 << 10 and "\\u001b" not in raw and "\\u202e" not in raw and "\\n" not in raw
    assert problem("stacks", {"ranks": [row]}) is None


@pytest.mark.parametrize(
    "line, verb",
    [
        ("    self._lock.acquire()", "acquire"), ("    with self.lock:", "lock"), ("with open(path) as f:", ""),
        ("    fcntl.flock(fd, 2)", "flock"), ("    loss.item()", "sync"), ("    ', '.join(names)", ""),
        ("    worker.join()", "join"), ("    pass  # lock.acquire()", ""), ("time.sleep(5)", "sleep"), ("x" * 10**6, ""),
        ("    with block_timer():", ""), ("    with self.clock('step'):", ""), ("    with torch.no_grad(), Clock():", ""),
        ("    with FileLock(path):", "lock"), ("    async with self._lock:", "lock"), ("    with table.rlock:", "lock"),
    ],
)  # fmt: skip
def test_only_a_word_of_a_line_is_told(line, verb):
    assert probe.verb_of(line) == verb
