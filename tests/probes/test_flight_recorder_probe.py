"""Flight-recorder dumps: found, poked without ever blocking, read without ever running them, reduced to 4 KB."""

from __future__ import annotations

import gc
import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import _folders
import _records as records
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triage.probes import flight_recorder as probe
from triage.probes._probe import Ctx

PROBES = Path(__file__).parents[2] / "probes"
DATA = Path(__file__).parents[2].parent / "shared" / "data" / "flight-recorder"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the real dumps of ../shared/data are not here")
BOOT, HERTZ = 1_790_000_000, os.sysconf("SC_CLK_TCK")
T0 = BOOT + 1000


def entry(i, group=("0", "default_pg"), op="nccl:all_reduce", seq=None, done=True, **changes):
    base = {
        "record_id": i, "pg_id": 0, "process_group": group, "collective_seq_id": i + 1 if seq is None else seq,
        "p2p_seq_id": 0, "op_id": i, "profiling_name": op, "time_created_ns": (T0 + i) * 10**9, "input_sizes": [[8, 4]],
        "input_dtypes": ["Float"], "output_sizes": [[8, 4]], "output_dtypes": ["Float"],
        "state": "completed" if done else "scheduled", "time_discovered_started_ns": None,
        "time_discovered_completed_ns": (T0 + i) * 10**9 + 1 if done else None, "retired": done, "timeout_ms": 600_000,
        "is_p2p": False,
    }  # fmt: skip
    return {**base, **changes}


def dump(entries, ranks="[0, 1, 2, 3]", version="2.10", status=None):
    return {
        "version": version, "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": status if status is not None else {}, "comm_lib_version": "2.27.5", "entries": entries,
    }  # fmt: skip


def reduced(obj, rank=1, kind="pickle"):
    made = records.reduce_dump(obj, rank, kind)
    assert len(json.dumps(made)) <= 4096
    return made


WAITING = dump([entry(0), entry(1), entry(2, done=False)])


# ---------------------------------------------------------------- reading without running


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class ById(pickle.Pickler):
    def persistent_id(self, obj):
        return "id" if obj == "secret" else None


def persistent(protocol):
    out = io.BytesIO()
    ById(out, protocol).dump({"version": "2.10", "entries": ["secret"]})
    return out.getvalue()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_wants_to_run_a_command_is_refused_and_runs_nothing(tmp_path, protocol):
    mark = tmp_path / "ran"
    raw = pickle.dumps({"version": "2.10", "pg_config": {}, "entries": [Evil(mark)]}, protocol)
    with pytest.raises(records.BadDump):
        records.load_dump(raw)
    with pytest.raises(records.BadDump, match="names no classes"):  # the second lock, should the first ever be picked
        records.Refusing(io.BytesIO(raw)).load()
    assert not mark.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_persistent_ids_are_refused(protocol):
    with pytest.raises(records.BadDump):
        records.load_dump(persistent(protocol))
    with pytest.raises(records.BadDump):
        records.Refusing(io.BytesIO(persistent(protocol))).load()


def u32(n):
    return struct.pack("<I", n)


TRICKS = [
    (
        "a memo index of two milliards, for which the C unpickler would clear 32 GB",
        b"\x80\x02}r" + u32(1 << 31) + b".",
    ),
    ("a text of 4 GB that is not there", b"\x80\x02X" + u32(0xFFFFFFFF) + b"abc."),
    ("bytes of an exabyte", b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x."),
    ("an integer of 2 GB", b"\x80\x02\x8b" + u32(0x7FFFFFFF) + b"1."),
    ("a class by name", b"\x80\x02cos\nsystem\n."),
    ("a class from the stack", b"\x80\x04\x8c\x02os\x8c\x06system\x93."),
    ("an extension code", b"\x80\x02\x82\x01."),
    ("a call", b"\x80\x02NNR."),
    ("a new object", b"\x80\x02NN\x81."),
    ("a persistent id", b"\x80\x02NQ."),
    ("a state to set", b"\x80\x02]Nb."),
    ("the top of the stack doubled for ever", b"\x80\x02]" + b"2" * 1000 + b"."),
    ("a buffer from outside", b"\x80\x05\x97."),
    ("an opcode that does not exist", b"\x80\x02\xff."),
    ("nothing but a beginning", b"\x80\x02"),
    ("a pop from an empty stack", b"\x80\x02a."),
    ("a mark that is missing", b"\x80\x02e."),
    ("a memo entry that was never made", b"\x80\x02h\x07."),
    ("an end without a value", b"\x80\x02."),
    ("four million lists", b"\x80\x02(" + b"]" * 4_000_000 + b"l."),
]


@pytest.mark.parametrize(("trick", "raw"), TRICKS)
def test_tricks_with_opcodes_end_in_one_line(trick, raw):
    began = time.process_time()
    with pytest.raises(records.BadDump):
        records.load_dump(raw)
    assert time.process_time() - began < 2.0, trick


LIMITED = """
import resource, sys, time
sys.path.insert(0, sys.argv[1])
import _records as records
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (mapped + (128 << 20),) * 2)
for line in sys.stdin:
    began = time.process_time()
    try:
        print("read", records.load_dump(bytes.fromhex(line.strip())))
    except records.BadDump as error:
        print("bad", time.process_time() - began < 2.0, error)
"""


def test_under_a_limit_of_memory_as_on_a_node_tricks_end_in_one_line_without_a_look_at_the_opcodes():
    raws = [raw for _, raw in TRICKS if len(raw) < 100_000]
    raws.append(b"\x80\x02L" + b"9" * 200_000 + b"L\n.")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(PROBES)], input="\n".join(r.hex() for r in raws), text=True, capture_output=True,
        timeout=60, check=True,
    )  # fmt: skip
    told = done.stdout.splitlines()
    assert len(told) == len(raws)
    # A list that lies on the stack a thousand times, or that is to have the state None, is a list: it harms nobody.
    harmless = [
        i for i, (trick, _) in enumerate(TRICKS) if trick.startswith(("the top of the stack", "a state to set"))
    ]
    assert [i for i, line in enumerate(told) if not line.startswith("bad True")] == harmless
    assert {told[i] for i in harmless} == {"read ([], 'pickle')"}


def test_lists_nested_a_hundred_thousand_deep_do_not_crash():
    raw = b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."
    with pytest.raises(records.BadDump):
        records.reduce_dump(records.load_dump(raw)[0], 0)
    with pytest.raises(records.BadDump):
        records.load_dump(b'{"entries":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def test_a_small_pickle_of_shared_lists_that_unfolds_to_milliards_is_reduced_at_once():
    laugh = [1]
    for _ in range(40):
        laugh = [laugh, laugh]
    bad = dump([entry(0, input_sizes=laugh, input_dtypes=laugh, process_group=laugh, profiling_name=laugh)])
    bad["pg_config"]["0"]["ranks"] = laugh
    began = time.process_time()
    assert reduced(records.load_dump(pickle.dumps(bad, 2))[0])
    assert time.process_time() - began < 1.0


def test_a_dump_cut_off_at_any_byte_is_refused():
    raw = pickle.dumps(WAITING, 2)
    for end in range(len(raw)):
        with pytest.raises(records.BadDump):
            records.load_dump(raw[:end])
    text = json.dumps(WAITING).encode()
    for end in range(len(text)):
        with pytest.raises(records.BadDump):
            records.load_dump(text[:end])


@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(st.binary(max_size=200), st.integers(0, 3))
def test_random_bytes_are_never_more_than_a_bad_dump(raw, how):
    head = (b"", b"\x80\x02", b"{", b"\x80\x04")[how]
    try:
        obj, kind = records.load_dump(head + raw)
        records.reduce_dump(obj, 0, kind)
    except records.BadDump:
        pass


def test_a_real_looking_dump_with_any_byte_changed_never_crashes():
    raw = bytearray(pickle.dumps(WAITING, 2))
    rng = random.Random(7)
    for _ in range(1500):
        other = bytearray(raw)
        for _ in range(rng.choice((1, 1, 2, 5))):
            other[rng.randrange(len(other))] = rng.randrange(256)
        try:
            obj, kind = records.load_dump(bytes(other))
            made = records.reduce_dump(obj, 0, kind)
        except records.BadDump:
            continue
        assert len(json.dumps(made)) <= 4096


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(sorted(entry(0))), VALUES), max_size=4), VALUES, VALUES, VALUES)
def test_fields_of_any_type_are_tolerated(changes, config, status, version):
    odd = dump([entry(0), {**entry(1), **dict(changes)}, entry(2, done=False)], version="2.9")
    odd["pg_config"], odd["pg_status"] = config, status
    assert reduced(odd)["n"] == 3
    try:
        reduced({**odd, "version": version, "entries": config})
    except records.BadDump:
        pass


def test_text_from_a_dump_is_bounded_and_free_of_control_characters():
    bad = dump([entry(0, ("\x1b[31m" * 50, "d\0\n" * 99), op="nccl:all\x07reduce" * 40, done=False)])
    made = json.dumps(reduced(bad))
    assert "\\u001b" not in made and "\\u0007" not in made and "\\n" not in made


# ---------------------------------------------------------------- formats


@pytest.mark.parametrize("version", ["2.3", "2.4", "2.5", "2.7", "2.8", "2.9", "2.10"])
def test_all_known_formats_are_read(version):
    assert reduced(dump([entry(0, done=False)], version=version))["format"] == version


@pytest.mark.parametrize("on", [True, False])
def test_a_dump_is_read_without_the_collector_and_leaves_it_as_it_was(on, monkeypatch):
    raw, seen, whole = pickle.dumps(WAITING, 2), [], records.reduce_dump
    monkeypatch.setattr(records, "reduce_dump", lambda *told: seen.append(gc.isenabled()) or whole(*told))
    was = gc.isenabled()
    (gc.enable if on else gc.disable)()
    try:
        assert records.read_dump(raw, 1) == whole(*records.load_dump(raw)[:1], 1)
        with pytest.raises(records.BadDump, match=r"cannot be read|cut off"):
            records.read_dump(raw[:-20], 1)
        assert (seen, gc.isenabled()) == ([False], on)
    finally:
        (gc.enable if was else gc.disable)()


def test_a_newer_minor_is_read_with_a_warning_and_another_major_is_refused():
    assert reduced(dump([entry(0)], version="2.11"))["warn"] == ["format 2.11 is newer than 2.10"]
    with pytest.raises(records.BadDump, match=r"3\.0 is not supported"):
        records.reduce_dump(dump([entry(0)], version="3.0"), 0)


def test_the_plain_list_of_2023_is_unsupported_and_said_so():
    with pytest.raises(records.BadDump, match="2023"):
        records.reduce_dump(records.load_dump(pickle.dumps([{"seq_id": 1}], 2))[0], 0)


def test_json_without_entries_has_none_open():
    made = reduced(records.load_dump(b'{"version": "2.10", "pg_config": {}, "pg_status": {}}')[0], kind="json")
    assert (made["n"], made["opens"]) == (0, 0)


def test_a_missing_lib_version_and_the_older_name_are_both_read():
    old = dump([entry(0)])
    del old["comm_lib_version"]
    assert reduced(old)["lib"] == ""
    assert reduced({**old, "nccl_version": "2.21.5"})["lib"] == "2.21.5"


def test_string_numbers_bare_types_and_missing_ids_are_coerced():
    # The entries of PyTorch's own analyzer tests (notes/flight-recorder.md 3.3).
    tests = [
        {"record_id": i, "profiling_name": "nccl:all_reduce", "collective_seq_id": str(i + 1), "p2p_seq_id": "0",
         "process_group": ["0", "default_pg"], "input_sizes": [[4, 4]], "output_sizes": [[4, 4]],
         "input_dtypes": "float32", "output_dtypes": "float32", "state": state, "is_p2p": False}
        for i, state in enumerate(("completed", "scheduled"))
    ]  # fmt: skip
    made = reduced(dump(tests, status={"0": {"last_enqueued_collective": "2", "last_completed_collective": "1"}}))
    assert made["groups"][0]["enq"] == 2 and made["groups"][0]["first_open"] == 2
    assert made["sigs"] == ["all_reduce|4x4|4x4|float32|float32"]


def test_done_is_retired_or_completed_or_noticed_as_completed():
    states = [
        entry(0, done=False, retired=True),
        entry(1, done=False, state="completed"),
        entry(2, done=False, time_discovered_completed_ns=5),
        entry(3, done=False, state="started"),
        entry(4, done=False, time_discovered_completed_ns=0),  # JSON writes 0 for None
    ]
    row = reduced(dump(states))["groups"][0]
    assert (row["last_done"], row["first_open"], row["enq"]) == (3, 4, 5)


def test_what_was_retired_without_completing_may_have_failed():
    assert (
        reduced(dump([entry(0), entry(1, state="scheduled", time_discovered_completed_ns=None)]))["groups"][0]["unsure"]
        == 2
    )
    gloo = [entry(i, op="gloo:all_reduce", state="scheduled", time_discovered_completed_ns=None) for i in range(3)]
    assert reduced(dump(gloo))["groups"][0]["unsure"] == 3  # its last; the host went on after the others
    assert "unsure" not in reduced(dump([*gloo, entry(3, done=False)]))["groups"][0]


def test_the_head_is_the_open_unit_with_the_smallest_record_id_and_all_its_parts():
    made = reduced(
        dump(
            [
                entry(7, seq=7),
                entry(8, ("3", "PP"), "nccl:send 0->1", 0, False, is_p2p=True, p2p_seq_id=4),
                entry(9, ("3", "PP"), "nccl:recv 0<-1", 0, False, is_p2p=True, p2p_seq_id=4),
                entry(10, seq=8, done=False),
            ]
        )
        | {"pg_config": {"3": {"name": "3", "desc": "PP", "ranks": "[2, 6]"}}},
        rank=2,
    )
    head, second = made["open"]
    assert [part[:3] for part in head["p2p"]] == [["s", 2, 6], ["r", 6, 2]]
    assert (head["id"], second["seq"]) == (8, 8)


def test_a_wrapped_ring_loses_the_count_of_sends_until_the_next_collective():
    send = {"is_p2p": True, "p2p_seq_id": 9}
    ring = [
        entry(500, ("3", "PP"), "nccl:send 0->1", 6, **send),
        entry(501, ("3", "PP"), "nccl:barrier", 7),
        entry(502, ("3", "PP"), "nccl:send 0->1", 7, False, **send),
    ]
    made = reduced({**dump(ring), "pg_config": {"3": {"name": "3", "desc": "PP", "ranks": "[0, 1, 5]"}}}, rank=0)
    assert made["wrapped"] is True
    ((_, side, src, dst, enq, done, first_open),) = made["pairs"]
    assert (side, src, dst) == ("s", 0, 1)
    assert (enq, done, first_open) == ([7, 0, 9], [6, None, 9], [7, 0, 9])


def test_a_dump_of_open_entries_only_is_marked_and_bridges_its_group_numbers_by_creation_order():
    config = {n: {"name": n, "desc": d, "ranks": "[0, 1]"} for n, d in (("0", "default_pg"), ("12", "B"), ("7", "A"))}
    status = {
        str(i): {"last_enqueued_collective": e, "last_completed_collective": e} for i, e in ((0, 5), (4, 70), (9, 120))
    }
    none = {"version": "2.9", "pg_config": config, "pg_status": status, "entries": []}
    made = reduced(none)
    assert made["active_only"] is True
    assert {row["name"]: row["status"] for row in made["groups"]} == {"0": [5, 5], "7": [70, 70], "12": [120, 120]}
    hashed = {**none, "pg_config": {**config, "a9f": {**config["7"], "name": "a9f"}}}
    assert reduced(hashed)["groups"] == []  # no numbers, no bridge


def test_gloos_nameless_configuration_is_the_default_group():
    odd = dump([entry(0, op="gloo:barrier", done=False)])
    odd["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[0, 1, 2, 3]"}}
    assert reduced(odd)["groups"][0]["ranks"] == "0+4"
    odd["pg_config"][""]["ranks"] = "[]"
    assert reduced(odd)["groups"][0]["ranks"] == ""


def test_a_record_fits_in_four_kilobytes_whatever_the_job_does():
    rng = random.Random(3)
    groups = [(f"hash_{i:060d}", f"A_VERY_LONG_GROUP_DESCRIPTION_{i:030d}") for i in range(60)]
    mess = [
        entry(i, rng.choice(groups), f"nccl:op_{rng.randrange(900)}", i, rng.random() < 0.5,
              input_sizes=[[rng.randrange(9999), rng.randrange(9999)]], output_sizes=[[rng.randrange(99999)]])
        for i in range(3000)
    ]  # fmt: skip
    odd = dump(mess)
    odd["pg_config"] = {n: {"name": n, "desc": d, "ranks": str(sorted(rng.sample(range(512), 40)))} for n, d in groups}
    try:
        made = reduced(odd)
    except records.BadDump as error:
        assert "does not fit" in str(error)
    else:
        assert made["cut"]
        assert made["open"][0]["id"] == min(e["record_id"] for e in mess if not e["retired"])


def test_members_fold_to_runs():
    assert records.fold(list(range(8192))) == "0+8192"
    assert records.fold([3, 7, 11, 15]) == "3+4*4"
    for ranks in ([], [5], [5, 9], [0, 1, 2, 7], [0, 1, 4, 5, 8, 9, 12, 13], [1, 2, 4, 8, 16]):
        unfolded = []
        for part in filter(None, records.fold(ranks).split(",")):
            start, _, rest = part.partition("+")
            count, _, step = rest.partition("*")
            unfolded += [int(start) + k * int(step or 1) for k in range(int(count or 1))]
        assert unfolded == ranks
        assert [r for r in range(-3, 20) if records.holds(records.fold(ranks), r)] == ranks


# ---------------------------------------------------------------- a node: procfs, files and FIFOs


class Node:
    """A procfs and a root folder with ranks whose recorders are threads of this test."""

    def __init__(self, base):
        self.proc, self.root = base / "proc", base / "root"
        self.proc.mkdir()
        (self.root / "tmp").mkdir(parents=True)
        (self.proc / "stat").write_text(f"cpu 1 2 3\nbtime {BOOT}\n")
        self.closers = []

    def rank(self, rank, pid=None, state="S", start=T0 - 500, ppid=1, comm="python", env=None, stat=True):
        pid = pid or 4000 + rank
        home = self.proc / str(pid)
        home.mkdir()
        values = {
            "RANK": rank, "WORLD_SIZE": 4, "MASTER_ADDR": "a", "MASTER_PORT": 1, "HOME": "/home/u",
            "TORCH_FR_DUMP_TEMP_FILE": "/tmp/fr_", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/tmp/pipe_", **(env or {}),
        }  # fmt: skip
        block = b"\0".join(f"{k}={v}".encode() for k, v in values.items() if v is not None)
        (home / "environ").write_bytes(block + b"\0")
        (home / "comm").write_text(comm + "\n")
        fields = ["0"] * 40
        fields[0], fields[1], fields[19] = state, str(ppid), str((start - BOOT) * HERTZ)
        name = "a (b) c" if comm == "python" else comm
        (home / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
        return pid

    def file(self, path, content, mtime=T0 + 50):
        at = self.root / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, 2))
        os.utime(at, (mtime, mtime))
        return at

    def recorder(self, rank, write, delay=0.1):
        """A monitor thread: holds the FIFO open, and on a byte calls write(path of the dump)."""
        fifo, target = self.root / f"tmp/pipe_{rank}.pipe", self.root / f"tmp/fr_{rank}"
        os.mkfifo(fifo)
        fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        got, stop = [], threading.Event()

        def watch():
            while not stop.wait(0.02):
                try:
                    data = os.read(fd, 128)
                except BlockingIOError:
                    continue
                if data:
                    got.append(data)
                    time.sleep(delay)
                    write(target)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        self.closers.append(lambda: (stop.set(), thread.join(), os.close(fd)))
        return got

    def collect(self, now=T0 + 100, **args):
        ctx = Ctx(str(self.proc), "/sys", str(self.root), args=args)
        ctx.now = lambda: now
        return {row["rank"]: row for row in probe.collect(ctx)["ranks"]}


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    yield made
    for close in made.closers:
        close()


def test_a_dump_is_found_reduced_and_its_age_told(node):
    node.rank(1)
    node.file("/tmp/fr_1", WAITING)
    row = node.collect()[1]
    assert (row["source"], row["poke"], row["stale"], row["state"]) == ("file", "not_asked", False, "S")
    assert row["age_s"] == 50.0 and row["path"].endswith("/tmp/fr_1")
    assert row["record"]["open"][0]["seq"] == 3


@pytest.mark.parametrize(
    ("env", "path"),
    [
        ({"TORCH_FR_DUMP_TEMP_FILE": "/a/rank_"}, "/a/rank_1"),
        ({"TORCH_FR_DUMP_TEMP_FILE": None, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/b/old_"}, "/b/old_1"),
        ({"TORCH_FR_DUMP_TEMP_FILE": None, "XDG_CACHE_HOME": "/cache"}, "/cache/torch/comm_lib_trace_rank_1"),
        ({"TORCH_FR_DUMP_TEMP_FILE": None}, "/home/u/.cache/torch/comm_lib_trace_rank_1"),
        ({"TORCH_FR_DUMP_TEMP_FILE": None, "HOME": None}, "/tmp/nccl_trace_rank_1"),
        ({"TORCH_FR_DUMP_TEMP_FILE": "/a/whole", "TORCH_FR_DUMP_DYNAMIC_FILE_NAME": "1"}, "/a/whole"),
    ],
)
def test_every_place_where_a_release_puts_its_dump_is_looked_at(node, env, path):
    node.rank(1, env=env)
    node.file(path, WAITING)
    assert node.collect()[1]["path"].endswith(path)


def test_what_the_job_set_itself_goes_before_a_newer_file_in_the_shared_cache(node):
    node.rank(1)
    node.file("/tmp/fr_1", WAITING, T0 + 10)
    node.file("/home/u/.cache/torch/comm_lib_trace_rank_1", dump([entry(0)]), T0 + 90)  # perhaps another job's
    assert node.collect()[1]["path"].endswith("/tmp/fr_1")


def test_a_dump_older_than_the_process_is_stale_and_not_handed_on(node):
    node.rank(1, start=T0)
    node.file("/tmp/fr_1", WAITING, T0 - 3600)
    row = node.collect()[1]
    assert row["stale"] is True and row["record"] is None
    assert "older than the process" in row["why"]


def test_a_poke_brings_a_new_dump_and_keeps_what_the_old_one_had_said(node):
    node.rank(1)
    node.file("/tmp/fr_1", dump([entry(0), entry(1, done=False)]))
    got = node.recorder(1, lambda path: path.write_bytes(pickle.dumps(WAITING, 2)))
    row = node.collect(poke=True, wait_s=3.0)[1]
    assert (row["source"], row["poke"]) == ("poked", "written")
    assert row["record"]["open"][0]["seq"] == 3
    assert row["before"]["groups"] == {"0": [2, 1]}
    assert got == [b"1"]


def test_without_a_reader_the_poke_returns_at_once_and_the_old_dump_stands(node):
    node.rank(1)
    node.file("/tmp/fr_1", WAITING)
    os.mkfifo(node.root / "tmp/pipe_1.pipe")
    began = time.monotonic()
    row = node.collect(poke=True, wait_s=5.0)[1]
    assert time.monotonic() - began < 1.0
    assert (row["poke"], row["source"]) == ("no_reader", "file") and row["record"]


def test_a_missing_fifo_is_not_created(node):
    node.rank(1)
    assert node.collect(poke=True, wait_s=5.0)[1]["poke"] == "no_fifo"
    assert not (node.root / "tmp/pipe_1.pipe").exists()


def test_a_regular_file_where_the_fifo_should_be_is_told_and_left_alone(node):
    node.rank(1)
    there = node.file("/tmp/pipe_1.pipe", b"1\n")
    assert node.collect(poke=True, wait_s=5.0)[1]["poke"] == "not_a_fifo"
    assert there.read_bytes() == b"1\n"


def test_a_link_in_place_of_the_fifo_is_not_followed(node):
    node.rank(1)
    node.rank(2)
    got = node.recorder(2, lambda path: None)
    os.symlink("pipe_2.pipe", node.root / "tmp/pipe_1.pipe")
    found = node.collect(poke=True, wait_s=0.3, ranks=[{"rank": 1, "pid": 4001}])
    # resolved below the root first, so it is the other FIFO that is reached or nothing; never anything outside
    assert found[1]["poke"] in ("written", "not_a_fifo")
    assert got in ([], [b"1"])


@pytest.mark.parametrize("state", ["T", "Z"])
def test_a_stopped_rank_gets_no_byte_that_it_would_act_on_when_it_wakes(node, state):
    node.rank(1, state=state)
    got = node.recorder(1, lambda path: None)
    began = time.monotonic()
    row = node.collect(poke=True, wait_s=5.0, ranks=[{"rank": 1, "pid": 4001}])[1]
    assert time.monotonic() - began < 1.0
    assert row["poke"] == "skipped_state" and not got


def test_a_rank_in_d_is_poked_and_not_waited_for(node):
    node.rank(1, state="D")
    node.recorder(1, lambda path: None)
    began = time.monotonic()
    assert node.collect(poke=True, wait_s=5.0)[1]["poke"] == "written"
    assert time.monotonic() - began < 1.0


def test_all_ranks_of_a_node_are_poked_first_and_waited_for_together(node):
    for rank in range(4):
        node.rank(rank)
        node.recorder(rank, lambda path: path.write_bytes(pickle.dumps(WAITING, 2)), delay=0.4)
    node.rank(9)
    node.recorder(9, lambda path: None)
    began = time.monotonic()
    found = node.collect(poke=True, wait_s=1.2)
    took = time.monotonic() - began
    assert [found[r]["source"] for r in range(4)] == ["poked"] * 4
    assert found[9]["source"] == "none" and "no new dump came" in found[9]["why"]
    assert took < 2.4


def test_a_dump_that_is_still_being_written_is_waited_for_until_it_is_whole(node):
    node.rank(1)
    raw = pickle.dumps(dump([entry(i) for i in range(300)] + [entry(300, done=False)]), 2)

    def slowly(path):
        with open(path, "wb") as f:  # truncates first, fills afterwards, as PyTorch does
            f.write(raw[: len(raw) // 2])
            f.flush()
            time.sleep(0.5)
            f.write(raw[len(raw) // 2 :])

    node.recorder(1, slowly)
    row = node.collect(poke=True, wait_s=4.0)[1]
    assert row["source"] == "poked" and row["record"]["n"] == 301


def test_a_new_dump_that_stays_half_written_leaves_the_old_one_in_force(node):
    node.rank(1)
    node.file("/tmp/fr_1", WAITING)
    raw = pickle.dumps(WAITING, 2)
    node.recorder(1, lambda path: path.write_bytes(raw[: len(raw) // 2] + b"q"))
    row = node.collect(poke=True, wait_s=0.8)[1]
    assert (row["source"], row["poke"]) == ("file", "written")
    assert row["record"]["open"][0]["seq"] == 3
    assert "half written" in row["why"]


def test_the_dump_may_appear_in_another_place_than_the_environment_tells(node):
    node.rank(1, env={"TORCH_FR_DUMP_TEMP_FILE": None})
    node.recorder(1, lambda path: node.file("/tmp/nccl_trace_rank_1", WAITING, time.time()))
    assert node.collect(poke=True, wait_s=3.0)[1]["path"].endswith("/tmp/nccl_trace_rank_1")


def test_a_fifo_a_folder_or_a_giant_in_place_of_the_dump_never_blocks(node):
    for rank in (1, 2, 3):
        node.rank(rank)
    os.mkfifo(node.root / "tmp/fr_1")
    (node.root / "tmp/fr_2").mkdir()
    with open(node.root / "tmp/fr_3", "wb") as f:
        f.truncate(records.MAX_FILE + 1)
    found = node.collect()
    assert [found[r]["source"] for r in (1, 2, 3)] == ["none"] * 3
    assert "larger than 64 MiB" in found[3]["why"]


def test_a_hostile_dump_is_one_row_with_a_reason(node, tmp_path):
    node.rank(1)
    node.rank(2)
    node.file("/tmp/fr_1", pickle.dumps({"entries": [Evil(tmp_path / "ran")]}, 2))
    node.file("/tmp/fr_2", WAITING)
    found = node.collect()
    assert found[1]["record"] is None and "refused" in found[1]["why"]
    assert found[2]["record"]
    assert not (tmp_path / "ran").exists()


def test_links_of_a_container_stay_below_its_root(tmp_path):
    root = tmp_path / "root"
    (root / "data").mkdir(parents=True)
    os.symlink("/data", root / "tmp")
    os.symlink("../../../../etc", root / "up")
    os.symlink("loop", root / "loop")
    assert _folders.resolve_in(str(root), "/tmp/fr_1") == f"{root}/data/fr_1"
    assert _folders.resolve_in(str(root), "/up/passwd") == f"{root}/etc/passwd"
    assert _folders.resolve_in(str(root), "/../../etc/passwd") == f"{root}/etc/passwd"
    assert _folders.resolve_in(str(root), "/loop/x").startswith(str(root))
    assert _folders.resolve_in("/", "/tmp/x") == "/tmp/x"


def test_ranks_are_found_without_being_told_as_the_topmost_of_their_environment(node):
    node.rank(0, pid=50, comm="bash")  # the launcher's shell wears it too
    node.rank(0, pid=60, ppid=50)
    node.rank(0, pid=61, ppid=60)  # a loader worker
    node.rank(1, pid=70)
    node.file("/tmp/fr_0", WAITING)
    found = node.collect()
    assert {r: row["pid"] for r, row in found.items()} == {0: 60, 1: 70}


def test_a_rank_that_is_gone_or_closed_to_us_is_a_row_with_its_reason(node):
    pid = node.rank(1)
    os.unlink(node.proc / str(pid) / "environ")
    found = node.collect(poke=True, ranks=[{"rank": 1, "pid": pid}, {"rank": 2, "pid": 999}, {"rank": "x"}, 7])
    assert "may not be read" in found[1]["why"]
    assert found[2]["why"] == "process 999 is gone" and found[2]["poke"] == "skipped_state"


def test_a_node_without_ranks_is_absent(node):
    with pytest.raises(Ctx.Absent if hasattr(Ctx, "Absent") else Exception):
        node.collect()


# ---------------------------------------------------------------- every interpreter


def interpreters():
    """This one and those of pyenv, 3.6 or newer."""
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    return [sys.executable, *map(str, sorted(home.glob("3.*/bin/python")))]


def test_every_interpreter_from_3_6_reduces_a_dump_to_the_same_record(node):
    node.rank(1)
    node.file("/tmp/fr_1", dump([entry(i) for i in range(40)] + [entry(40, done=False)]), time.time())
    told = {}
    for python in interpreters():
        argv = [
            python,
            "-S",
            str(PROBES / "flight_recorder.py"),
            "--procfs",
            str(node.proc),
            "--rootfs",
            str(node.root),
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (python, done.stderr)
        envelope = json.loads(done.stdout.strip().splitlines()[-1])
        assert envelope["status"] == "ok", (python, envelope)
        told[python] = envelope["data"]["ranks"][0]["record"]
    assert all(record == told[sys.executable] for record in told.values())
    assert told[sys.executable]["open"][0]["seq"] == 41


@needs_data
@pytest.mark.shared
def test_real_dumps_reduce_to_four_kilobytes_and_pickle_and_json_agree():
    for path in sorted(DATA.glob("nccl-16-ranks/*/_dump_*")):
        made = reduced(records.load_dump(path.read_bytes())[0], int(path.name.split("_")[-1]))
        assert made["active_only"] and not made["warn"] and "cut" not in made
    for path in sorted(DATA.glob("gloo-4-ranks/*/fr_nostack_*.pickle")):
        rank = int(path.stem.split("_")[-1])
        text = path.with_name(f"fr_{rank}.json").read_bytes()
        one = reduced(records.load_dump(path.read_bytes())[0], rank)
        other = reduced(records.load_dump(text)[0], rank, "json")
        one.pop("kind"), other.pop("kind")
        assert one == other, path


def test_a_real_process_is_read_through_its_own_root(tmp_path):
    (tmp_path / "fr_3").write_bytes(pickle.dumps(WAITING, 2))
    env = {"PATH": os.environ["PATH"], "RANK": "3", "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/fr_", "HOME": str(tmp_path)}
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=env)
    try:
        time.sleep(0.3)
        os.utime(tmp_path / "fr_3")
        (row,) = probe.collect(Ctx(args={"ranks": [{"rank": 3, "pid": child.pid}], "poke": True}))["ranks"]
        assert (row["source"], row["stale"], row["poke"]) == ("file", False, "no_fifo")
        assert row["path"].startswith(f"/proc/{child.pid}/root/")
        os.utime(tmp_path / "fr_3", (time.time() - 3600,) * 2)
        (row,) = probe.collect(Ctx(args={"ranks": [{"rank": 3, "pid": child.pid}]}))["ranks"]
        assert row["stale"] is True
    finally:
        child.kill()
        child.wait()
