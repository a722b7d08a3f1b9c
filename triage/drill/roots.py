"""The view of the world of one fake node that is a process beside others: three folders that probes are sent to.

A procfs root (links to the processes of its own ranks and launcher, and to what belongs to the whole machine), a sysfs root (its
NICs, alive) and a rootfs (its kernel log, and the shared file system of the job under the job's absolute path).
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

from triage.drill import cards

# Of the whole machine, and read by probes; what the machine lacks is not linked.
SHARED_PROC = ("uptime", "stat", "meminfo", "mounts", "loadavg", "version", "vmstat", "self", "cpuinfo", "filesystems")


class Roots:
    """The three folders of a node. `blind` names what is really missing in them."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.node: str = config["node"]
        self.blind = frozenset(config["blind"])
        self.folder = Path(config["folder"])
        self.proc, self.sys, self.root = (self.folder / name for name in ("proc", "sys", "root"))
        self.spool = self.folder / "spool"
        for folder in (self.proc, self.sys / "class" / "net", self.root / "var" / "log", self.spool):
            folder.mkdir(parents=True)
        self.fill_proc(config["seed"])
        self.fill_root(Path(config["shared"]), Path(config["scratch"]))

    def fill_proc(self, seed: int) -> None:
        for name in SHARED_PROC:
            if os.path.lexists(f"/proc/{name}"):
                (self.proc / name).symlink_to(f"/proc/{name}")
        if "ranks" in self.blind:  # what hides the processes of others from an ordinary user
            (self.proc / "mounts").unlink()
            (self.proc / "mounts").write_text("proc /proc proc rw,nosuid,nodev,noexec,relatime,hidepid=invisible 0 0\n")
        kernel = self.proc / "sys" / "kernel"
        (kernel / "random").mkdir(parents=True)
        (kernel / "random" / "boot_id").write_text(boot_id(seed, self.node) + "\n")
        (kernel / "hostname").write_text(self.node + "\n")
        (kernel / "osrelease").write_text(os.uname().release + "\n")

    def fill_root(self, shared: Path, scratch: Path) -> None:
        """Absolute paths of the job resolve below the rootfs: there the same path leads to the same folder."""
        for real in (shared, self.folder):
            here = self.root / real.relative_to("/")
            here.parent.mkdir(parents=True, exist_ok=True)
            here.symlink_to(real)
        for name in ("comm", "steps"):
            (scratch / name).mkdir(parents=True)
        (self.root / "etc").mkdir()
        (self.root / "etc" / "hostname").write_text(self.node + "\n")

    def kernel(self, text: str, at: float | None = None) -> None:
        """One line of the kernel log."""
        if "kernel" not in self.blind:
            log_line(self.root / "var" / "log" / "kern.log", self.node, text, at)

    def show(self, pid: int) -> None:
        if "ranks" not in self.blind:
            (self.proc / str(pid)).symlink_to(f"/proc/{pid}")

    def hide(self, pid: int) -> None:
        """A process ended. Its number may soon belong to a stranger."""
        (self.proc / str(pid)).unlink(missing_ok=True)

    def environment(self) -> dict[str, str]:
        """What a command over SSH gets to see of its surroundings."""
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": os.environ.get("HOME", "/"),
            "SHELL": "/bin/sh",
            "LANG": "C.UTF-8",
            "SLURMD_NODENAME": self.node,
            "TRIAGE_PROCFS": str(self.proc),
            "TRIAGE_SYSFS": str(self.sys),
            "TRIAGE_ROOTFS": str(self.root),
        }


def boot_id(seed: int, node: str) -> str:
    text = f"{random.Random(f'{seed}/{node}/boot').getrandbits(128):032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def log_line(log: Path, node: str, text: str, at: float | None = None) -> None:
    """One line of a kernel log, as rsyslog writes it."""
    when = time.time() if at is None else at
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(when)) + f".{int(when * 1e6) % 1_000_000:06d}+00:00"
    with log.open("a") as out:
        out.write(f"{stamp} {node} kernel: {text}\n")


def boot_lines(seed: int, node: str, firmware: str, fabric: str, others: list[str]) -> list[tuple[str, float]]:
    """(text, time) of what the kernel said at boot, dated as /proc/uptime says. `fabric` and `others`: of the links."""
    rng = random.Random(f"{seed}/{node}/log")
    at = time.time() - float(Path("/proc/uptime").read_text().split()[0])
    told = []
    for line in (
        f"Linux version {os.uname().release} (builder@build) #1 SMP PREEMPT_DYNAMIC",
        "x86/fpu: Supporting XSAVE feature 0x001: 'x87 floating point registers'",
        f"mlx5_core {cards.FABRIC.pci}: firmware version: {firmware}",
        fabric,
        "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.",
        *others,
    ):
        at += rng.uniform(0.01, 0.5)
        told.append((line, at))
    return told
