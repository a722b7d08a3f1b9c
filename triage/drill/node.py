"""One fake node as an OS process: an SSH server, the launcher of its ranks, its fabric, its view of the world.

The view is three roots that a probe is sent to through the environment of its command: a procfs root (links to the
processes of its own ranks and launcher, and to what belongs to the whole machine), a sysfs root (its NICs, alive) and a
rootfs (its kernel log, and the shared file system of the job under the job's absolute path).

stdin, JSON lines: first the configuration (`backends.Processes` writes it); then {"rank", "tell"} and {"rank",
"signal"} for the launcher, {"link": "up"|"down"} for the fabric. EOF means that the drill is over or dead: end all
ranks and commands, remove the drill's folder, leave. stdout, JSON lines: {"ready": true, "pids"}, {"ended": rank}.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from triage.drill.fabric import Nic, Relay, tick

# Of the whole machine, and read by probes; what the machine lacks is not linked.
SHARED_PROC = ("uptime", "stat", "meminfo", "mounts", "loadavg", "version", "vmstat", "self", "cpuinfo", "filesystems")
MANAGEMENT = "eno1"


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
        self.log_kernel(config["seed"], config["nic"])

    def fill_proc(self, seed: int) -> None:
        for name in SHARED_PROC:
            if os.path.lexists(f"/proc/{name}"):
                (self.proc / name).symlink_to(f"/proc/{name}")
        kernel = self.proc / "sys" / "kernel"
        (kernel / "random").mkdir(parents=True)
        bits = random.Random(f"{seed}/{self.node}/boot").getrandbits(128)
        text = f"{bits:032x}"
        boot = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
        (kernel / "random" / "boot_id").write_text(boot + "\n")
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

    def log_kernel(self, seed: int, nic: str) -> None:
        """What the kernel said at boot, dated as /proc/uptime says."""
        if "kernel" in self.blind:
            return
        rng = random.Random(f"{seed}/{self.node}/log")
        at = time.time() - float(Path("/proc/uptime").read_text().split()[0])
        lines = [
            f"Linux version {os.uname().release} (builder@build) #1 SMP PREEMPT_DYNAMIC",
            "x86/fpu: Supporting XSAVE feature 0x001: 'x87 floating point registers'",
            f"mlx5_core 0000:17:00.0: firmware version: 28.{rng.randint(36, 43)}.1014",
            f"mlx5_core 0000:17:00.0 {nic}: Link up",
            "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.",
            f"{MANAGEMENT}: NIC Link is Up 1000 Mbps Full Duplex, Flow Control: RX/TX",
        ]
        for line in lines:
            at += rng.uniform(0.01, 0.5)
            self.kernel(line, at)

    def kernel(self, text: str, at: float | None = None) -> None:
        """One line of the kernel log, as rsyslog writes it."""
        if "kernel" in self.blind:
            return
        when = time.time() if at is None else at
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(when)) + f".{int(when * 1e6) % 1_000_000:06d}+00:00"
        with (self.root / "var" / "log" / "kern.log").open("a") as log:
            log.write(f"{stamp} {self.node} kernel: {text}\n")

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


class Launcher:
    """The launcher process of this node, seen from the node."""

    def __init__(self, config: dict[str, Any], roots: Roots) -> None:
        self.roots = roots
        order = config["launcher"]
        keep = [rank["plan"]["listen_fd"] for rank in order["ranks"]]
        keep += [fd for fd in {rank["plan"]["report_fd"] for rank in order["ranks"]} if fd >= 0]
        self.pids: dict[int, int] = {}
        self.process = subprocess.Popen(
            order["argv"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=order["env"],
            cwd=order["folder"],
            pass_fds=keep,
            start_new_session=True,
        )
        for fd in keep:
            os.close(fd)
        roots.show(self.process.pid)
        self.tell(order)
        threading.Thread(target=self.listen, args=(len(order["ranks"]),), daemon=True).start()

    def tell(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass

    def listen(self, expected: int) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            if "started" in message:
                self.pids[message["started"]] = message["pid"]
                self.roots.show(message["pid"])
                if len(self.pids) == expected:
                    say({"ready": True, "launcher": self.process.pid, "pids": self.pids})
            else:
                self.roots.hide(message["pid"])
                say(message)
        self.process.wait()
        self.roots.hide(self.process.pid)

    def end(self) -> None:
        """Close its stdin: it ends its ranks. Whatever is still there is killed."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except OSError:
            pass
        try:
            self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            for pid in self.pids.values():
                if pid_is_child_session(pid):
                    os.killpg(pid, signal.SIGKILL)


def pid_is_child_session(pid: int) -> bool:
    """Is this number still the leader of its own session, as our ranks are?"""
    try:
        return os.getsid(pid) == pid
    except OSError:
        return False


output = threading.Lock()


def say(message: dict[str, Any]) -> None:
    with output:
        try:
            os.write(1, json.dumps(message).encode() + b"\n")
        except OSError:
            pass


def make_nics(config: dict[str, Any], roots: Roots) -> tuple[Nic, Nic]:
    """The fabric's card and the management card; both count even where a probe is not shown them."""
    sysfs = roots.folder / "unseen" if "nic" in roots.blind else roots.sys
    seed = random.Random(f"{config['seed']}/{config['node']}").getrandbits(32)
    fabric = Nic(sysfs, config["nic"], roots.spool, driver="mlx5_core", speed_mbps=100_000, seed=seed)
    management = Nic(sysfs, MANAGEMENT, roots.spool, driver="igb", speed_mbps=1000, seed=seed)
    return fabric, management


def remove_folder(folder: str) -> None:
    """All nodes of a drill do this at once, and some of it may still be written to: try until it is gone."""
    until = time.monotonic() + 4
    while os.path.isdir(folder) and time.monotonic() < until:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


def main() -> None:
    commands = sys.stdin.buffer
    first = commands.readline()
    if not first:
        return
    config = json.loads(first)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the drill decides; its end is our EOF
    roots = Roots(config)
    fabric, management = make_nics(config, roots)
    local = {rank: ("127.0.0.1", port) for rank, port in config["ports"]}
    routes = {rank: ("127.0.0.1", port) for rank, port in config["routes"]}
    relay = Relay(socket.socket(fileno=config["fabric_fd"]), local, routes, fabric)
    relay.start()
    threading.Thread(target=tick, args=([fabric, management], management), daemon=True).start()
    launcher = Launcher(config, roots)

    # After the launcher: paramiko takes a fifth of a second to import, and the ranks start meanwhile.
    from triage.drill.sshd import Server

    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    server = Server(
        socket.socket(fileno=config["ssh_fd"]),
        config["host_key"],
        config["user"],
        config["authorized"],
        roots.environment(),
    )
    threading.Thread(target=server.serve, daemon=True).start()
    say({"serving": True})
    for line in commands:
        message = json.loads(line)
        if "link" in message:
            up = message["link"] == "up"
            roots.kernel(f"mlx5_core 0000:17:00.0 {config['nic']}: Link {message['link']}")
            relay.set_link(up)
        else:
            launcher.tell(message)
    launcher.end()
    server.end()
    remove_folder(config["remove"])
    os._exit(0)


if __name__ == "__main__":
    main()
