"""A py-spy that lies, floods, forks and never ends; ranks with thousands of threads; stacks of any depth; what vanishes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_stacks_probe import ask_node, asked, running
from triage.probes import _frames as frames
from triage.probes import stacks as probe
from triage.probes._probe import Ctx

from triage.readers.shapes import problem
from triage.readers.stacks import place_of

SLEEPS = """
    import time
    time.sleep(1000)
"""
PYTHON = f"#!{sys.executable} -IS\nimport json, os, sys, time\n"
LIES = {
    "floods its output": PYTHON + "while True: os.write(1, b'x' * 65536)",
    "floods its errors": PYTHON + "while True: os.write(2, b'x' * 65536)",
    "never ends": PYTHON + "time.sleep(1000)",
    "drips": PYTHON + "while True: os.write(1, b'['); time.sleep(0.05)",
    "leaves a child that keeps its output": PYTHON + "if os.fork() == 0:\n    os.setsid(); time.sleep(1000)",
    "leaves a child and answers": PYTHON + "if os.fork() == 0:\n    os.setsid(); time.sleep(1000)\nos.write(1, b'[]')",
    "ignores signals": PYTHON + "import signal\nfor n in range(1, 32):\n    if n not in (9, 19): signal.signal(n, 1)\ntime.sleep(1000)",
    "kills itself": PYTHON + "os.kill(os.getpid(), 9)",
    "prints nonsense": PYTHON + "os.write(1, b'\\xff\\x00' * 1000)",
    "prints nested lists": PYTHON + "os.write(1, b'[' * 5000000)",
    "prints empty frames": PYTHON + "print('[' + ','.join(['{\"frames\":[' + ','.join(['{}'] * 5000) + ']}'] * 300) + ']')",
    "prints a huge number": PYTHON + "print('[{\"os_thread_id\":' + '9' * 1000000 + ',\"frames\":[]}]')",
    "fails with words": PYTHON + "sys.stderr.write('\\x1b[31mPermission\\x07 denied\\x1b[0m\\n'); sys.exit(1)",
}  # fmt: skip


@contextmanager
def hostile(tmp_path, monkeypatch, source):
    """A rank, and a py-spy that only we could have put there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    spy = folder / "py-spy"
    spy.write_text(source)
    spy.chmod(0o755)
    # The probe looks in the folders of the system first; a rank's own PATH goes through the same checks.
    with running(tmp_path, SLEEPS, env={"PATH": str(folder)}, python=os.path.realpath(sys.executable)) as child:
        yield child


def left_behind(mark):
    """Processes that still run our hostile py-spy."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(int(name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("how", LIES)
def test_a_py_spy_that_lies_costs_bounded_time_and_leaves_no_process(tmp_path, monkeypatch, how):
    with hostile(tmp_path, monkeypatch, LIES[how]) as child:
        began = time.monotonic()
        sample = ask_node(child)
        took = time.monotonic() - began
        mark = str(tmp_path / "bin" / "py-spy").encode()
        until = time.monotonic() + 3
        while left_behind(mark) and time.monotonic() < until:
            time.sleep(0.05)
        assert not left_behind(mark)
        assert child.poll() is None, "the rank itself is never hurt"
    assert took < 17 and sample.status in ("ok", "error", "timeout", "malformed"), (took, sample)
    for row in sample.data.get("ranks", ()):
        if str(row["how"]) == "py-spy" and row["threads"]:
            pytest.skip("this machine has a py-spy of its own in the folders of the system")
        assert row["kernel"][0]["state"] == "S" and row["gil_held"] == ""
        assert row["why"].startswith("py-spy") and row["why"].isprintable() and len(row["why"]) <= 240


def test_a_rank_of_thousands_of_threads_is_read_within_its_time(tmp_path):
    source = "import threading, time\nthreading.stack_size(65536)\nfor _ in range(1500):\n    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\ntime.sleep(1000)\n"
    with running(tmp_path, source) as child:
        until = time.monotonic() + 10
        while len(os.listdir(f"/proc/{child.pid}/task")) < 1501 and time.monotonic() < until:
            time.sleep(0.05)
        began = time.process_time()
        ((row,), _) = asked(child)
        assert time.process_time() - began < 2.0
    assert sum(row["states"].values()) > 1000 and len(row["threads"]) <= frames.MOST_THREADS
    assert len(json.dumps(row)) < 32 << 10


@pytest.mark.parametrize("depth", [1, 33, 1000, 100_000])
def test_a_stack_of_any_depth_keeps_both_of_its_ends_and_stays_small(depth):
    inner = [{"name": f"f{i}", "filename": "/job/train.py", "line": i} for i in range(min(depth, 5000))]
    told = [{"thread_name": "MainThread", "os_thread_id": 5, "frames": inner}]
    (main,) = frames.chosen(frames.parse_json(json.dumps(told), 5))
    assert len(main["frames"]) <= frames.MOST_FRAMES and main["frames"][0][0] == "f0"
    text = 'Thread 5 (idle): "MainThread"\n' + "    f (train.py:1)\n" * depth
    (main,) = frames.chosen(frames.parse_text(text))
    assert len(main["frames"]) <= frames.MOST_FRAMES


def test_of_many_threads_the_one_that_talks_to_other_ranks_is_kept():
    many = [
        {
            "thread_name": f"worker-{i}",
            "active": True,
            "frames": [{"name": "run", "filename": "/job/pool.py", "line": 1}],
        }
        for i in range(200)
    ]
    talks = {
        "thread_name": "saver",
        "frames": [
            {
                "name": "barrier",
                "filename": "/v/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py",
                "line": 9,
            },
            {"name": "commit", "filename": "/job/ckpt.py", "line": 4},
        ],
    }
    main = {
        "thread_name": "MainThread",
        "os_thread_id": 5,
        "frames": [{"name": "main", "filename": "/job/t.py", "line": 2}],
    }
    rank = probe.Rank(1, 5)
    rank.threads = frames.parse_json(json.dumps([*many[:100], talks, *many[100:], main]), 5)
    row = rank.row(frames)
    assert place_of(row).communicates and problem("stacks", {"ranks": [row]}) is None


def test_a_rank_that_ends_while_it_is_looked_at_is_a_row_and_no_error(tmp_path):
    for after in (0.0, 0.05, 0.3, 0.7):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        timer = threading.Timer(after, child.kill)
        timer.start()
        ctx = Ctx(args={"ranks": [{"rank": 3, "pid": child.pid}]}, deadline=time.monotonic() + 10)
        data = probe.collect(ctx)
        timer.join()
        child.wait()
        assert problem("stacks", data) is None and len(data["ranks"]) == 1
