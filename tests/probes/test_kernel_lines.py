"""Kernel lines of every source: dated, told apart from what users write, and a flood of them told in a few events."""

from __future__ import annotations

import calendar
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triage.probes import _kernel_events, _kernel_lines, _kernel_sources, kernel
from triage.probes._probe import Ctx

from triage.readers.shapes import problem
from triage.readers.signatures import for_probe

SIGNATURES = for_probe("kernel")
NOW = float(calendar.timegm((2026, 11, 30, 22, 0, 0)))
AT = float(calendar.timegm((2026, 11, 30, 21, 40, 1)))
OOM = "Out of memory: Killed process 4242 (python3) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python3, GPU has fallen off the bus."
GONE = [
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
]
AER = "pcieport 0000:00:01.0: AER: Corrected error received: 0000:03:00.0"
ROOT = Path(__file__).parents[2]


def split(line: str) -> Any:
    return _kernel_lines.split_line(line, NOW, 1_000_000_000.0)


def events(*pieces: list[str], since: float | None = None) -> dict[str, dict[str, Any]]:
    """The events of a log that comes in these pieces, the newest first."""
    found = _kernel_events.Events(
        SIGNATURES, since, partial(_kernel_lines.split_line, now=NOW, mono_base=1_000_000_000.0)
    )
    found.feed_all(iter([[line.encode() for line in piece] for piece in pieces]))
    return {e["id"]: e for e in found.told()}


def look(root: Path, text: str, **args: Any) -> dict[str, Any]:
    for name in ("proc", "sys", "root/var/log"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "root/var/log/kern.log").write_text(text)
    ctx = Ctx(str(root / "proc"), str(root / "sys"), str(root / "root"), {"signatures": SIGNATURES, **args})
    ctx.now = lambda: NOW  # type: ignore[method-assign]
    data = kernel.collect(ctx)
    assert problem("kernel", json.loads(json.dumps(data, allow_nan=False))) is None
    return data


def journal(text: Any = OOM, **more: Any) -> str:
    record = {
        "__REALTIME_TIMESTAMP": f"{int(AT * 1e6) + 123456}", "__MONOTONIC_TIMESTAMP": "9000000000", "_TRANSPORT": "kernel",
        "_SOURCE_MONOTONIC_TIMESTAMP": "8999990000", "_BOOT_ID": "0123456789abcdef", "MESSAGE": text, **more,
    }  # fmt: skip
    return json.dumps(record)


# ---------------------------------------------------------------- one line


def test_a_record_of_the_journal_is_dated_by_its_receipt() -> None:
    assert split(journal()) == (pytest.approx(AT + 0.123456), 8999.99, OOM)
    assert split(journal(list(b"NVRM: Xid \xff"))) == (pytest.approx(AT + 0.123456), 8999.99, "NVRM: Xid \ufffd")


def test_what_the_kernel_said_before_the_journal_ran_is_dated_by_its_own_stamp() -> None:
    at, mono, _ = split(journal(__MONOTONIC_TIMESTAMP="30000000", _SOURCE_MONOTONIC_TIMESTAMP="2000000"))
    assert (at, mono) == (pytest.approx(AT + 0.123456 - 28.0), 2.0)


@pytest.mark.parametrize(
    "record",
    [
        journal(_TRANSPORT="syslog"),
        journal(_TRANSPORT=None),
        journal(None),
        journal({"a": 1}),
        "{",
        "{}",
        "[" * 3000,
        '{"MESSAGE":' + "[" * 3000,
    ],
)
def test_what_a_user_wrote_into_the_journal_is_no_word_of_the_kernel(record: str) -> None:
    told = split(record)
    assert told is None or told[2] == record


@pytest.mark.parametrize(
    "line",
    [
        f"Nov 30 21:40:01 gpu003 myapp[77]: fake kernel: {OOM}",
        f"Nov 30 21:40:01 gpu003 x kernel: {OOM}",
        f"2026-11-30T21:40:01.250000+00:00 gpu003 x kernel: {OOM}",
        f"1796074801.500000 gpu003 x kernel: {OOM}",
        f"Nov 30 21:40:01 gpu003 {OOM}",
    ],
)
def test_a_user_who_calls_himself_kernel_is_not_the_kernel_even_beside_a_true_line_of_that_text(line: str) -> None:
    assert split(line) is None
    told = events([line, f"Nov 30 21:40:02 gpu003 kernel: {OOM}", line])
    assert told["oom_kill"]["count"] == 1 and told["oom_kill"]["at"] == AT + 1


@pytest.mark.parametrize(
    "line",
    [
        "[Mon Nov 30 21:40:01 2026] mlx5_core 0000:9a:00.0: Port module event: module 1, Cable unplugged",
        "2026-11-30T21:40:01,000000+00:00 mlx5_core 0000:9a:00.0: Port module event: module 1, Cable unplugged",
        "Nov 30 21:40:01 kernel: mlx5_core 0000:9a:00.0: Port module event: module 1, Cable unplugged",
    ],
)
def test_a_driver_whose_name_stands_where_a_host_would_is_not_taken_for_a_user(line: str) -> None:
    assert events([line])["cable_error"]["at"] == AT


def test_a_month_in_another_language_leaves_a_line_undated_and_known() -> None:
    assert split(f"[Mo Dez 1 21:40:01 2026] {OOM}") == (None, None, OOM)
    assert events([f"[Mo Dez 1 21:40:01 2026] {OOM}"])["oom_kill"]["at"] is None


def test_the_29th_of_february_is_of_the_last_year_that_had_one() -> None:
    at = _kernel_lines.split_line(f"Feb 29 10:00:00 gpu003 kernel: {OOM}", NOW, None)[0]
    assert at == calendar.timegm((2024, 2, 29, 10, 0, 0))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300), st.floats(0, 4e9))
def test_any_text_is_split_or_refused_and_never_fatal(text: str, now: float) -> None:
    for told in (_kernel_lines.split_line(text, now, 0.0, anybody=True), _kernel_lines.split_kmsg(text, 0.0)):
        assert told is None or isinstance(told[2], str)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([XID, OOM, AER, GONE[2], "mlx5_core 0000:9a:00.0 eth2: Link down"]),
    st.lists(st.tuples(st.integers(0, 200), st.text(max_size=4)), max_size=6),
)
def test_a_known_line_with_anything_in_it_makes_an_answer_of_its_shape(line: str, changes: list) -> None:
    for place, text in changes:
        line = line[:place] + text + line[place:]
    found = _kernel_events.Events(SIGNATURES, None, split)
    found.split = lambda raw, anybody=False: _kernel_lines.split_line(raw, NOW, 0.0, False, anybody)
    found.feed_all(iter([[f"[12.5] {line}".encode("utf-8", "replace")]]))
    assert problem("kernel", {"readable": True, "events": found.told()}) is None


# ---------------------------------------------------------------- lines that belong together


def test_the_last_of_three_lines_takes_the_address_of_the_first() -> None:
    lines = [f"[{i}.0] {text}" for i, text in enumerate(GONE)]
    assert events(lines)["gpu_off_bus"]["groups"] == {"bdf": "0000:b3:00"}


def test_two_gpus_that_fall_off_the_bus_are_two_events_though_their_last_lines_are_one_text() -> None:
    other = [GONE[0].replace("b3", "3b"), *GONE[1:]]
    found = _kernel_events.Events(SIGNATURES, None, partial(_kernel_lines.split_line, now=NOW, mono_base=0.0))
    found.feed_all(iter([[f"[{i}.0] {text}".encode() for i, text in enumerate([*GONE, *other, *GONE])]]))
    told = {e["groups"].get("bdf"): e["count"] for e in found.told()}
    assert told == {"0000:b3:00": 2, "0000:3b:00": 1}


def test_the_address_is_found_where_the_lines_lie_in_two_pieces_of_the_log() -> None:
    lines = [f"[{i}.0] {text}" for i, text in enumerate(GONE)]
    assert events(lines[2:], lines[:2])["gpu_off_bus"]["groups"] == {"bdf": "0000:b3:00"}


def test_a_line_far_above_lends_no_address() -> None:
    lines = [GONE[0], "usb 1-1: new device", "usb 1-2: new device", "usb 1-3: new device", GONE[2]]
    assert events([f"[{i}.0] {text}" for i, text in enumerate(lines)])["gpu_off_bus"]["groups"] == {}


# ---------------------------------------------------------------- pieces, newest first


def test_pieces_that_come_newest_first_tell_the_same_as_the_whole_log() -> None:
    lines = [f"[{i}.0] {(AER, XID, OOM, 'usb 1-1: x')[i % 4]}" for i in range(400)]
    whole, cut = events(lines), events(lines[300:], lines[100:300], lines[:100])
    assert whole == cut
    assert whole["aer"]["count"] == 100 and whole["aer"]["at"] == 1_000_000_000.0
    assert whole["aer"]["last_at"] == 1_000_000_396.0 and whole["aer"]["times"][0] == 1_000_000_336.0


def test_lines_before_the_attempt_in_the_middle_of_a_piece_are_left_out_one_by_one() -> None:
    lines = [f"[{i}.0] {AER}" for i in range(100)]
    told = events(lines[50:], lines[:50], since=1_000_000_030.0)["aer"]
    assert (told["count"], told["at"], told["last_at"]) == (70, 1_000_000_030.0, 1_000_000_099.0)


def test_a_log_that_reaches_back_before_the_attempt_is_not_read_further() -> None:
    read = []

    def pieces():
        for begins in (300, 200, 100, 0):
            read.append(begins)
            yield [f"[{begins + i}.0] {AER}".encode() for i in range(100)]

    found = _kernel_events.Events(SIGNATURES, 1_000_000_250.0, split)
    found.split = lambda raw, anybody=False: _kernel_lines.split_line(raw, NOW, 1_000_000_000.0, False, anybody)
    assert found.feed_all(pieces()) == "since" and read == [300, 200, 100]
    assert found.told()[0]["count"] == 150


def test_over_its_bound_of_cpu_time_the_oldest_is_missing_and_it_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(kernel, "CPU_S", 0.0)
    monkeypatch.setattr(_kernel_sources, "PIECE", 1000)
    import _kernel_sources as beside  # the probe's own

    monkeypatch.setattr(beside, "PIECE", 1000)
    old = f"Nov 30 20:00:00 gpu003 kernel: {OOM}\n"
    data = look(tmp_path, old + "".join(f"Nov 30 21:40:01 gpu003 kernel: {AER}\n" for _ in range(100)))
    assert [e["id"] for e in data["events"]] == ["aer"] and data["boot_covered"] is False and data["readable"] is True


def test_a_file_is_read_in_pieces_without_losing_or_doubling_a_line(tmp_path: Path, monkeypatch) -> None:
    import _kernel_sources as beside

    for size in (64, 100, 257, 4096):
        monkeypatch.setattr(beside, "PIECE", size)
        text = "".join(f"Nov 30 21:40:{i % 60:02d} gpu003 kernel: {AER}\n" for i in range(57))
        (event,) = look(tmp_path, text)["events"]
        assert event["count"] == 57


def test_the_file_that_was_rotated_last_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "root/var/log").mkdir(parents=True)
    (tmp_path / "root/var/log/kern.log.1").write_text(f"Nov 29 10:00:00 gpu003 kernel: {XID}\n")
    data = look(tmp_path, f"Nov 30 21:40:01 gpu003 kernel: {AER}\n")
    assert [e["id"] for e in data["events"]] == ["xid", "gpu_off_bus", "aer"]


def test_the_newest_lines_of_the_journal_come_first_and_are_put_in_order() -> None:
    lines = b"".join(b"%d.0 gpu003 kernel: line %d\n" % (1_790_000_000 - i, i) for i in range(10))
    pieces = [lines[i : i + 7] for i in range(0, len(lines), 7)]
    (held,) = list(_kernel_sources.backwards(iter(pieces)))
    assert [line.split()[-1] for line in held] == [b"%d" % i for i in range(9, -1, -1)]


# ---------------------------------------------------------------- the driver


def test_the_driver_that_runs_and_its_gpus_are_told_without_nvml(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia/gpus/0000:3B:00.0").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/gpus/junk").mkdir()
    for text, release in (
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version: 12.2.0\n", "535.129.03"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\n", "570.124.06"),
        ("garbage 99", None),
    ):  # fmt: skip
        (tmp_path / "proc/driver/nvidia/version").write_text(text)
        assert look(tmp_path, "")["nvidia"] == {"driver": release, "gpus": ["0000:3b:00.0"]}


def test_a_node_without_the_driver_says_so(tmp_path: Path) -> None:
    assert look(tmp_path, "")["nvidia"] == {"driver": None, "gpus": []}


# ---------------------------------------------------------------- its cost

MEASURE = """
import json, os, resource, sys, time
sys.path.insert(0, sys.argv[1])
import kernel, _probe
kernel.CPU_S = float(sys.argv[4])
ctx = _probe.Ctx(sys.argv[2] + "/proc", sys.argv[2] + "/sys", sys.argv[2] + "/root", json.load(open(sys.argv[3])))
before = resource.getrusage(resource.RUSAGE_SELF)
data = kernel.collect(ctx)
after = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
                  "rss_mb": int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024.0, "bytes": len(json.dumps(data)), "data": data}))
"""


def measure(root: Path, write: Any, cpu_s: float = kernel.CPU_S) -> dict[str, Any]:
    for name in ("proc", "sys", "root/var/log"):
        (root / name).mkdir(parents=True, exist_ok=True)
    with open(root / "root/var/log/kern.log", "w") as file:
        for number in range(800_000):
            file.write(write(number))
    (root / "args").write_text(json.dumps({"signatures": SIGNATURES}))
    argv = [sys.executable, "-I", "-S", "-c", MEASURE, str(ROOT / "probes"), str(root), str(root / "args"), str(cpu_s)]
    return json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


def stamped(number: int, text: str) -> str:
    return f"Nov 30 21:{number // 60 % 60:02d}:{number % 60:02d} gpu003 kernel: [{number / 100:12.6f}] {text}\n"


def test_800_000_lines_of_a_flood_collapse_within_the_nodes_bounds(tmp_path: Path) -> None:
    """Measured: 0.45 to 0.8 CPU-s, 21 MB. On a crowded machine it is more; the probe's own bound is lifted to see all."""
    told = measure(tmp_path, lambda n: stamped(n, XID if n == 400_000 else AER), 60.0)
    counts = {e["id"]: e["count"] for e in told["data"]["events"]}
    assert counts == {"aer": 799_999, "xid": 1, "gpu_off_bus": 1}
    assert told["data"]["lines_read"] == 800_000 and told["data"]["boot_covered"] is True
    assert told["cpu_s"] < 3.0 and told["rss_mb"] < 48 and told["bytes"] < 16384


def test_a_flood_of_lines_that_all_differ_is_cut_at_the_bound_of_cpu_time_and_of_memory(tmp_path: Path) -> None:
    words = "NVRM: Xid (PCI:0000:3b:00): 13, pid=4242, name=python3, Graphics Exception: ESR 0x%x"
    told = measure(tmp_path, lambda n: stamped(n, words % n))
    assert told["data"]["boot_covered"] is False and told["data"]["events"][0]["id"] == "xid"
    assert told["cpu_s"] < 3 * kernel.CPU_S and told["rss_mb"] < 48 and told["bytes"] < 65536
