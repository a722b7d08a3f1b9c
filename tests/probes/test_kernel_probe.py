"""Kernel lines of every dating, and the difference between nothing said and nothing readable."""

from __future__ import annotations

import calendar
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triage.probes import _kernel_events, _kernel_lines, _kernel_sources, kernel
from triage.probes._probe import Ctx

from triage.readers.signatures import for_probe

CAPTURES = Path(__file__).parents[1] / "captures"
SIGNATURES = for_probe("kernel")
NOW = float(calendar.timegm((2026, 11, 30, 22, 0, 0)))
AT = float(calendar.timegm((2026, 11, 30, 21, 40, 1)))
OOM = "Out of memory: Killed process 4242 (python3) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB"


class Node:
    def __init__(self, root: Path, now: float = NOW) -> None:
        self.root, self.now_s = root, now
        for name in ("proc", "sys", "root/var/log"):
            (root / name).mkdir(parents=True)

    def log(self, text: str) -> None:
        (self.root / "root/var/log/kern.log").write_text(text)

    def look(self, **args: Any) -> dict[str, Any]:
        ctx = Ctx(
            str(self.root / "proc"), str(self.root / "sys"), str(self.root / "root"), {"signatures": SIGNATURES, **args}
        )
        ctx.now = lambda: self.now_s  # type: ignore[method-assign]
        data = kernel.collect(ctx)
        json.dumps(data, allow_nan=False)
        return data


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_syslog_file_tells_kills_links_and_mounts_and_not_what_a_user_process_claims(node) -> None:
    node.log((CAPTURES / "kern_syslog.log").read_text())
    data = node.look()
    assert data["readable"] is True and data["source"] == "kern.log" and data["boot_covered"] is True
    told = {e["id"]: e for e in data["events"]}
    assert list(told) == ["link_down", "oom_context", "oom_kill", "link_up", "nfs_not_responding"]
    assert (
        told["oom_kill"]["kind"] == "oom"
        and told["oom_kill"]["groups"]["pid"] == "4242"
        and told["oom_kill"]["at"] == AT
    )
    assert told["oom_context"]["kind"] == "oom_context"  # else one kill would count twice
    nfs = told["nfs_not_responding"]
    assert nfs["count"] == 2 and nfs["last_at"] - nfs["at"] == 60
    assert told["link_down"]["groups"] == {"nic": "ens9np0"}


@pytest.mark.parametrize(
    "line, expected",
    [
        (f"Nov 30 21:40:01 gpu003 kernel: [12346.2] {OOM}", AT),
        (f"Nov 30 21:40:01 gpu003 kernel: {OOM}", AT),
        (f"2026-11-30T21:40:01.250000+00:00 gpu003 kernel: [12346.2] {OOM}", AT + 0.25),
        (f"2026-11-30T22:40:01.250000+01:00 gpu003 kernel: {OOM}", AT + 0.25),
        (f"2026-11-30T21:40:01,034040+00:00 {OOM}", AT + 0.03404),
        (f"{AT + 0.5:.6f} gpu003 kernel: {OOM}", AT + 0.5),
        (f"[Mon Nov 30 21:40:01 2026] {OOM}", AT),
        (f"[12346.200003] {OOM}", NOW - 20000 + 12346.200003),
        (f"<3>[12346.200003][ T4242] {OOM}", NOW - 20000 + 12346.200003),
        (f"Dec 31 21:40:01 gpu003 kernel: {OOM}", float(calendar.timegm((2025, 12, 31, 21, 40, 1)))),
        (OOM, None),
    ],
)  # fmt: skip
def test_every_dating_of_a_kernel_line_is_read(node, line, expected) -> None:
    (node.root / "proc/uptime").write_text("20000.00 1.0\n")
    node.log(line + "\n")
    (event,) = node.look()["events"]
    assert event["id"] == "oom_kill" and event["at"] == (expected and pytest.approx(expected, abs=1e-3))


def test_could_not_read_is_not_none(node) -> None:
    data = node.look()
    assert data["readable"] is False and data["source"] == "none" and "kern.log" in data["why"] and data["events"] == []
    assert data["boot_covered"] is None
    node.log("")
    assert node.look()["readable"] is True


def test_a_log_that_may_not_be_read_says_why(node) -> None:
    node.log(OOM + "\n")
    (node.root / "root/var/log/kern.log").chmod(0)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        data = node.look()
    finally:
        if root:
            os.seteuid(0)
    assert data["readable"] is False and "ermission" in data["why"]


def test_a_fifo_in_the_place_of_the_log_blocks_nobody(node) -> None:
    os.mkfifo(node.root / "root/var/log/kern.log")
    assert node.look()["readable"] is False


def test_lines_before_the_attempt_are_left_out(node) -> None:
    node.log(f"Nov 30 20:00:00 gpu003 kernel: {OOM}\nNov 30 21:40:01 gpu003 kernel: {OOM.replace('4242', '4243')}\n")
    data = node.look(since=AT - 600)
    assert [e["groups"]["pid"] for e in data["events"]] == ["4243"] and data["boot_covered"] is True


def test_a_ring_that_wrapped_after_the_attempt_began_does_not_cover_it() -> None:
    assert _kernel_sources.covered(100.0, 200.0, False) is False and _kernel_sources.covered(100.0, 50.0, False) is True
    assert _kernel_sources.covered(100.0, 200.0, True) is True and _kernel_sources.covered(100.0, None, False) is None


def test_a_flood_of_one_kind_leaves_room_for_the_line_that_matters(node) -> None:
    flood = "".join(f"[{i}.0] python3[{i}]: segfault at 0 ip 0000 sp 0000 error 4\n" for i in range(1000))
    node.log(flood + "[2000.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, GPU has fallen off the bus.\n")
    data = node.look()
    ids = [e["id"] for e in data["events"]]
    assert (
        ids.count("segfault") == 60
        and "xid" in ids
        and "gpu_off_bus" in ids
        and data["events_left_out"]["segfault"] == 940
    )
    assert data["events"][0]["groups"]["pid"] == "0"


def test_records_of_dev_kmsg_are_read_but_not_what_users_write_there() -> None:
    assert _kernel_lines.split_kmsg(f"3,339,5140900,-;{OOM}\n SUBSYSTEM=x", 100.0) == (
        pytest.approx(105.1409),
        5.1409,
        OOM,
    )
    assert _kernel_lines.split_kmsg(f"12,340,5140900,-;{OOM}\n", 100.0) is None  # facility 1: a user
    assert _kernel_lines.split_kmsg("garbage", 100.0) is None


def test_a_port_that_flaps_all_day_tells_when_it_did_so_last(node) -> None:
    line = "2026-11-30T21:%02d:00+00:00 gpu003 kernel: mlx5_core 0000:17:00.0 ens1f0np0: Link down"
    node.log("\n".join(line % minute for minute in range(20)) + "\n")
    (event,) = node.look()["events"]
    since = calendar.timegm((2026, 11, 30, 21, 0, 0))
    assert (event["count"], event["at"], event["last_at"]) == (20, since, since + 19 * 60)
    assert event["times"] == [since + minute * 60 for minute in range(4, 20)]
    node.log("\n".join(line % minute for minute in range(2)) + "\n")
    assert "times" not in node.look()["events"][0]  # first and last are both of them


def test_kills_are_counted_for_the_node_and_for_the_jobs_own_cgroup(node) -> None:
    (node.root / "proc/vmstat").write_text("nr_free_pages 1\noom_kill 3\n")
    group = "system.slice/slurmstepd.scope/job_4711"
    (node.root / "proc/55").mkdir()
    (node.root / "proc/55/cgroup").write_text(f"0::/{group}/step_0/user/task_3\n")
    (node.root / "proc/55/environ").write_bytes(b"A=b\0RANK=3\0")
    (node.root / "sys/fs/cgroup" / group).mkdir(parents=True)
    (node.root / "sys/fs/cgroup" / group / "memory.events").write_text("low 0\noom 2\noom_kill 2\n")
    data = node.look()
    assert data["oom_kill"] == 3 and data["cgroup_oom_kill"] == {"55": 2}
    assert kernel.cgroup_files("9:memory:/slurm/uid_1000/job_4711/step_0/task_1\n1:cpu:/x\n") == [
        "fs/cgroup/memory/slurm/uid_1000/job_4711/memory.oom_control"
    ]
    assert kernel.cgroup_files("0::/../../etc\n0::/\n") == []


def test_a_process_whose_memory_lock_is_held_does_not_cost_the_kernels_lines(node) -> None:
    node.log(OOM + "\n")
    (node.root / "proc/5").mkdir()
    os.mkfifo(node.root / "proc/5/environ")  # blocks its reader as the kernel does
    data = node.look()
    assert len(data["events"]) == 1 and data["cgroup_oom_kill"] == {}


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_any_line_is_read_and_never_fatal(text) -> None:
    events = _kernel_events.Events(SIGNATURES, None)
    events.take(_kernel_lines.split_line(text, NOW, 0.0))
    _kernel_lines.split_kmsg(text, 0.0)


def test_this_machine_answers_one_way_or_the_other() -> None:
    data = kernel.collect(Ctx(args={"signatures": SIGNATURES}))
    assert data["readable"] is (data["source"] != "none") and (data["readable"] or data["why"])
