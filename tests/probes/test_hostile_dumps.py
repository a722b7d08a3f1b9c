"""Dumps that want to harm whoever reads them: a reason in bounded time and memory, nothing run, nothing raised.

Each is read twice: by the probe on a node, with its own limits, and by `triage explain` on the operator's machine.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS, MEGABYTES = 10.0, 400  # of the operator's side, CPU; measured: 1.7 s and 270 MB at most
NODE_SECONDS, NODE_MEGABYTES = 5.0, 200  # with the interpreter; measured: 0.72 s and 139 MB at most


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def knot(depth=60):
    """A pickle of some hundred bytes that unfolds to 2**depth lists."""
    inner = []
    for _ in range(depth):
        inner = [inner, inner]
    return {
        "version": "2.10",
        "pg_config": {},
        "pg_status": {},
        "entries": [{"process_group": inner, "profiling_name": inner}],
    }


def tuples(depth=60):
    """The same of tuples, which have a hash: it would be computed for ever."""
    inner = ("x",)
    for _ in range(depth):
        inner = (inner, inner)
    return inner


def knotted(place, value):
    """A dump that is fine but for the one value of each of its entries, made anew for each."""
    entry = {
        "record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 1, "p2p_seq_id": 0, "op_id": 1,
        "profiling_name": "nccl:all_reduce", "time_created_ns": 1, "input_sizes": [[1]], "output_sizes": [[1]],
        "input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": "completed", "retired": True, "is_p2p": False,
    }  # fmt: skip
    entries = [{**entry, "record_id": n, "collective_seq_id": n + 1, place: value()} for n in range(3)]
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0]"}},
        "pg_status": {},
        "entries": entries,
    }


PLACES = [
    "record_id", "pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "profiling_name", "time_created_ns", "input_sizes",
    "output_sizes", "input_dtypes", "output_dtypes", "state", "retired", "is_p2p", "timeout_ms",
]  # fmt: skip
KNOTS = {
    "lists": lambda: knot()["entries"][0]["process_group"],
    "tuples": tuples,
    "a list of tuples": lambda: [[tuples()]],
}


def around(value):
    """A whole dump with this in every place that is read."""
    entry = dict.fromkeys(
        [
            "record_id",
            "pg_id",
            "process_group",
            "collective_seq_id",
            "p2p_seq_id",
            "op_id",
            "profiling_name",
            "time_created_ns",
            "input_sizes",
            "output_sizes",
            "input_dtypes",
            "output_dtypes",
            "state",
            "time_discovered_started_ns",
            "time_discovered_completed_ns",
            "retired",
            "timeout_ms",
            "is_p2p",
            "frames",
            "duration_ms",
        ],
        value,
    )
    return {
        "version": "2.10",
        "pg_config": value,
        "pg_status": value,
        "comm_lib_version": value,
        "entries": [entry, value],
    }


def deep(levels):
    inner = 1
    for _ in range(levels):
        inner = [inner]
    return inner


TEXTS = {
    "a pickle that imports": lambda p: pickle.dumps({"version": "2.10", "entries": [Evil(p)]}, 2),
    "an import by protocol 0": lambda p: b"cos\nsystem\n(S'touch %s'\ntR." % str(p).encode(),
    "an import inside of json's beginning": lambda p: b"{cos\nsystem\n(S'touch %s'\ntR." % str(p).encode(),
    "2 GB of text promised": lambda p: b"\x80\x02}X\xff\xff\xff\x7fversion",
    "2 GB of bytes promised in eight bytes": lambda p: b"\x80\x04\x8e\xff\xff\xff\x7f\x00\x00\x00\x00x.",
    "a frame of 16 exabytes": lambda p: b"\x80\x04\x95" + b"\xff" * 8 + b"]." ,
    "a memo of milliards": lambda p: b"\x80\x02]r\xff\xff\xff\x7f.",
    "a number of a megabyte": lambda p: b"\x80\x02\x8b\x00\x00\x10\x00" + b"\x7f" * (1 << 20) + b".",
    "nested ten thousand deep": lambda p: b"\x80\x02" + b"]" * 10_000 + b"a" * 9_999 + b".",
    "nested a million deep": lambda p: b"\x80\x02" + b"]" * 1_000_000 + b"a" * 999_999 + b".",
    "json nested ten thousand deep": lambda p: b"[" * 10_000 + b"]" * 10_000,
    "json nested a million deep": lambda p: b'{"entries":' * 1_000_000,
    "a knot of shared lists": lambda p: pickle.dumps(knot(), 2),
    "a knot of tuples as a key": lambda p: b"\x80\x02}N\x85q\x00" + b"".join(b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(60)) + b"Ns.",
    "a knot of tuples as a key, protocol 4": lambda p: b"\x80\x04}N\x85\x94" + b"".join(b"h%ch%c\x86\x94" % (n, n) for n in range(60)) + b"Ns.",
    "a knot of marked tuples as a key": lambda p: b"\x80\x02}N\x85q\x00" + b"".join(b"(h%ch%ctq%c" % (n, n, n + 1) for n in range(60)) + b"Ns.",
    "a knot in the library's version": lambda p: pickle.dumps({"version": "2.10", "comm_lib_version": knot()["entries"], "entries": []}, 2),
    "a knot in a group's description": lambda p: pickle.dumps({"version": "2.10", "pg_config": {"0": {"desc": knot()["entries"], "name": "0"}}, "entries": []}, 2),
    "a list that holds itself": lambda p: b"\x80\x02}(X\x07\x00\x00\x00entries]q\x00h\x00aX\x07\x00\x00\x00versionh\x00u.",
    "60 MB of small numbers": lambda p: b"\x80\x02](" + b"M\x01\x02" * (20 << 20) + b"e.",
    "60 MB of small strings": lambda p: b"\x80\x04](" + b"\x8c\x02ab" * (15 << 20) + b"e.",
    "60 MB of empty lists": lambda p: b"\x80\x02](" + b"]" * (60 << 20) + b"e.",
    "60 MB of one string": lambda p: b"\x80\x02}X\x07\x00\x00\x00versionX" + (60 << 20).to_bytes(4, "little") + b"x" * (60 << 20) + b"s.",
    "json of 60 MB of empty lists": lambda p: b"[" + b"[]," * (20 << 20) + b"1]",
    "json of 60 MB of numbers": lambda p: b"[" + b"1e9," * (15 << 20) + b"1]",
    "a number of a million digits": lambda p: b'{"version": "2.10", "entries": [{"record_id": ' + b"9" * 10**6 + b"}]}",
    "the same key a million times": lambda p: b'{"version": "2.10", ' + b'"entries": 1, ' * 1_000_000 + b'"entries": [5]}',
    "not a number": lambda p: b'{"version": NaN, "entries": [{"record_id": Infinity, "time_created_ns": -Infinity}]}',
    "no text at all": lambda p: os.urandom(1 << 16),
    "an empty file": lambda p: b"",
}  # fmt: skip
for _name, _value in {
    "none": None, "a number": -5, "a huge number": 10**300, "a float": 1e308, "text": "\x1b[2J\u202e" * 2000, "a list": [[[]]],
    "a map": {"": {"": None}}, "a deep list": deep(150), "bytes-like numbers": "9" * 4000, "true": True,
}.items():  # fmt: skip
    TEXTS[f"{_name} everywhere, pickle"] = lambda p, v=_value: pickle.dumps(around(v), 2)
    TEXTS[f"{_name} everywhere, json"] = lambda p, v=_value: json.dumps(around(v)).encode()


def special(kind, path):
    """Things in the place of a dump that are no files, or not what they seem."""
    if kind == "a sparse file of 2 GB":
        path.touch()
        os.truncate(path, 2 << 30)
    elif kind == "a FIFO that never answers":
        os.mkfifo(path)
    elif kind == "a link to /dev/zero":
        path.symlink_to("/dev/zero")
    elif kind == "a link to itself":
        path.symlink_to(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))


SPECIAL = (
    "a sparse file of 2 GB", "a FIFO that never answers", "a link to /dev/zero", "a link to itself", "a folder", "a socket",
)  # fmt: skip


def place(kind, path, marker):
    if kind in TEXTS:
        path.write_bytes(TEXTS[kind](marker))
    else:
        special(kind, path)


READ = """
import sys
from triage.probes import _records
try:
    _records.read_dump(sys.stdin.buffer.read(), 0)
except _records.BadDump:
    pass
"""


@pytest.mark.parametrize("place", PLACES)
def test_what_a_pickle_shares_with_itself_a_billionfold_is_neither_hashed_nor_compared_nor_written(place):
    for what, value in KNOTS.items():
        raw = pickle.dumps(knotted(place, value), 2)
        done = subprocess.run([sys.executable, "-c", READ], input=raw, timeout=30, capture_output=True, cwd=ROOT)
        assert (done.returncode, done.stderr) == (0, b""), what


MEASURE = """
import json, resource, subprocess, sys
argv, env = json.load(sys.stdin)
done = subprocess.run(argv, capture_output=True, timeout=90, env=env)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
spent = used.ru_utime + used.ru_stime  # not time by the clock: the machine may be busy with other things
print(json.dumps([done.returncode, done.stdout.decode(), done.stderr.decode(), spent, used.ru_maxrss / 1024]))
"""


def measured(argv, env=None):
    """(exit code, stdout, stderr, CPU seconds, megabytes of the largest of its processes).

    By a small process of its own: the peak of a child counts what it was forked from, and these tests are large.
    """
    told = json.dumps([[str(word) for word in argv], dict(os.environ if env is None else env)])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", MEASURE], input=told, capture_output=True, text=True, timeout=120
    )
    return json.loads(done.stdout)


@pytest.fixture
def rank(tmp_path):
    """A real process whose environment names its dump."""
    env = {"PATH": "/usr/bin:/bin", "RANK": "0", "WORLD_SIZE": "1", "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "_dump_")}
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, env=env)
    time.sleep(0.05)
    yield child
    child.kill()
    child.communicate()


@pytest.mark.parametrize("kind", [*TEXTS, *SPECIAL])
def test_on_the_node_a_hostile_dump_is_a_row_with_a_reason_in_bounded_time_and_memory(tmp_path, rank, kind):
    path, marker = tmp_path / "_dump_0", tmp_path / "ran"
    place(kind, path, marker)
    args = json.dumps({"ranks": [{"rank": 0, "pid": rank.pid}]})
    script = str(ROOT / "probes" / "flight_recorder.py")
    code, out, err, seconds, peak = measured([sys.executable, "-S", script, "--args", args])
    assert (code, err) == (0, "") and not marker.exists()
    answer = json.loads(out)
    assert answer["status"] in ("ok", "timeout", "malformed"), answer
    if answer["status"] == "ok":
        (row,) = answer["data"]["ranks"]
        assert row["why"] or row["record"], row
        assert len(out) < 16384 and "\x1b" not in out
    assert seconds < NODE_SECONDS and peak < NODE_MEGABYTES, (seconds, peak)


def test_explain_of_a_folder_whose_dumps_hold_wrong_types_everywhere_answers_all_the_same(tmp_path):
    folder = tmp_path / "dumps"
    folder.mkdir()
    for number, kind in enumerate(kind for kind in TEXTS if "everywhere" in kind):
        place(kind, folder / f"_dump_{number}", tmp_path / "ran")
    argv = [sys.executable, "-m", "triage", "explain", str(folder), "--state-dir", str(tmp_path / "state")]
    code, out, err, seconds, peak = measured(argv)
    assert code in (2, 10, 11) and "Traceback" not in err and "bug of triage" not in err, (code, err)
    assert "\x1b" not in out + err and seconds < SECONDS and peak < MEGABYTES


@pytest.mark.parametrize("kind", [kind for kind in (*TEXTS, *SPECIAL) if "everywhere" not in kind])
def test_explain_of_a_folder_with_a_hostile_dump_says_why_it_was_not_read(tmp_path, kind):
    folder, marker = tmp_path / "dumps", tmp_path / "ran"
    folder.mkdir()
    place(kind, folder / "_dump_0", marker)
    argv = [sys.executable, "-m", "triage", "explain", str(folder), "--state-dir", str(tmp_path / "state")]
    code, out, err, seconds, peak = measured(argv)
    assert code in (2, 10, 11) and "Traceback" not in err and "bug of triage" not in err, (code, err)
    assert not marker.exists()
    assert "\x1b" not in out + err and max(map(len, err.splitlines())) < 900
    assert seconds < SECONDS and peak < MEGABYTES, (seconds, peak)


def test_one_hostile_dump_among_good_ones_costs_its_own_rank_only(tmp_path):
    folder = tmp_path / "dumps"
    folder.mkdir()
    entry = {
        "record_id": 1, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 2, "p2p_seq_id": 0, "op_id": 1,
        "profiling_name": "nccl:all_reduce", "time_created_ns": 1_790_000_000 * 10**9, "input_sizes": [[4]],
        "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"], "state": "scheduled",
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": False, "timeout_ms": 600000,
        "is_p2p": False,
    }  # fmt: skip
    good = {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
            "pg_status": {}, "comm_lib_version": "2.27.5", "entries": [entry]}  # fmt: skip
    for number in range(3):
        (folder / f"_dump_{number}").write_bytes(pickle.dumps(good, 2))
    (folder / "_dump_3").write_bytes(TEXTS["a pickle that imports"](tmp_path / "ran"))
    argv = [
        sys.executable,
        "-m",
        "triage",
        "explain",
        str(folder),
        "--state-dir",
        str(tmp_path / "s"),
        "--output",
        "json",
    ]
    code, out, err, _, _ = measured(argv)
    assert code in (10, 11) and "refused" in err and not (tmp_path / "ran").exists()
    assert json.loads(out)["culprits"] == []
