"""One fake node as an OS process: an SSH server, the launcher of its ranks, its fabric, its view of the world.

The view is three roots that a probe is sent to through the environment of its command: a procfs root (links to the
processes of its own ranks and launcher, and to what belongs to the whole machine), a sysfs root (its NICs, alive) and a
rootfs (its kernel log, and the shared file system of the job under the job's absolute path).

stdin, JSON lines: first the configuration (`backends.Processes` writes it); then what is done to the node:

    {"rank", "tell"}, {"rank", "signal"}   passed on to the launcher
    {"link": "down"|"up"}                  the cable of the fabric's port
    {"flap": {"for_s": 0.3}}               the same, down and up again after that time
    {"spare_flap": {"for_s": 1.0}}         the port that the job does not use
    {"count_only": true}                   the counters of the fabric's port tell of a loss of link that never was
    {"ssh": "down"}                        the management network is cut: SSH is a black hole, all else goes on
    {"node": "down"}                       the machine is gone, with all its ports

EOF means that the drill is over or dead: end all ranks and commands, remove the drill's folder, leave. stdout, JSON
lines: {"ready": true, "pids"}, {"ended": rank}.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triage.drill import cards
from triage.drill.cards import Card, RoceCard
from triage.drill.door import Door
from triage.drill.fabric import Address, Relay

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

    def fill_proc(self, seed: int) -> None:
        for name in SHARED_PROC:
            if os.path.lexists(f"/proc/{name}"):
                (self.proc / name).symlink_to(f"/proc/{name}")
        if "ranks" in self.blind:  # what hides the processes of others from an ordinary user
            (self.proc / "mounts").unlink()
            (self.proc / "mounts").write_text("proc /proc proc rw,nosuid,nodev,noexec,relatime,hidepid=invisible 0 0\n")
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

    def log_boot(self, seed: int, firmware: str, fabric: str, others: list[str]) -> None:
        """What the kernel said at boot, dated as /proc/uptime says. `fabric` and `others`: of the links."""
        rng = random.Random(f"{seed}/{self.node}/log")
        at = time.time() - float(Path("/proc/uptime").read_text().split()[0])
        lines = [
            f"Linux version {os.uname().release} (builder@build) #1 SMP PREEMPT_DYNAMIC",
            "x86/fpu: Supporting XSAVE feature 0x001: 'x87 floating point registers'",
            f"mlx5_core {cards.FABRIC.pci}: firmware version: {firmware}",
            fabric,
            "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.",
            *others,
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
        self.lock = threading.Lock()
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
            with self.lock:
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
            elif "child" in message:  # what a rank has started: a compiler, a loader worker
                self.roots.show(message["pid"])
            elif "child_ended" in message:
                self.roots.hide(message["pid"])
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
            self.die()

    def die(self) -> None:
        """All of it is gone at once and says nothing: the launcher first, or it would tell of its ranks' end."""
        sessions = [pid for pid in self.pids.values() if pid_is_child_session(pid)]
        self.process.kill()
        self.process.wait()
        for pid in sessions:  # the rank follows by itself; what it started need not
            try:
                os.killpg(pid, signal.SIGKILL)
            except OSError:
                pass


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


def remove_folder(folder: str) -> None:
    """All nodes of a drill do this at once, and some of it may still be written to: try until it is gone."""
    until = time.monotonic() + 4
    while os.path.isdir(folder) and time.monotonic() < until:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


class Node:
    """Everything of one node, and what can be done to it. Each act moves all its traces."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.acting = threading.Lock()
        self.dead = threading.Event()
        self.roots = Roots(config)
        self.fabric, self.spare, self.management = self.make_cards(config)
        local = {rank: ("127.0.0.1", port) for rank, port in config["ports"]}
        routes = {rank: ("127.0.0.1", port) for rank, port in config["routes"]}
        door = Door(socket.socket(fileno=config["fabric_fd"]))
        self.relay = Relay(door, local, routes, self.fabric, config["budget_s"], self.gave_up)
        self.relay.start()
        everything = (self.fabric, self.spare, self.management)
        threading.Thread(
            target=cards.tick, args=(everything, self.management, self.fabric, self.dead), daemon=True
        ).start()
        self.launcher = Launcher(config, self.roots)
        # After the launcher: paramiko takes a fifth of a second to import, and the ranks start meanwhile.
        from triage.drill.sshd import Server

        logging.getLogger("paramiko").setLevel(logging.CRITICAL)
        listener, environment = socket.socket(fileno=config["ssh_fd"]), self.roots.environment()
        self.server = Server(listener, config["host_key"], config["user"], config["authorized"], environment)
        threading.Thread(target=self.server.serve, daemon=True).start()

    def make_cards(self, config: dict[str, Any]) -> tuple[RoceCard, Card, Card]:
        """The fabric's card, an unused one, and that of management; they count even where no probe is shown them."""
        roots = self.roots
        sysfs = roots.folder / "unseen" if "nic" in roots.blind else roots.sys
        rng = random.Random(f"{config['seed']}/{roots.node}")
        seed, firmware = rng.getrandbits(32), f"28.{rng.randint(36, 43)}.1014"
        fabric = RoceCard(sysfs, roots.spool, config["nic"], config["hca"], cards.FABRIC, seed, firmware)
        spare = Card(sysfs, roots.spool, config["spare_nic"], cards.SPARE, seed)
        management = Card(sysfs, roots.spool, MANAGEMENT, cards.MANAGEMENT, seed)
        roots.log_boot(config["seed"], firmware, fabric.says(True), [spare.says(True), management.says(True)])
        return fabric, spare, management

    def obey(self, message: dict[str, Any]) -> None:
        """Do what a line on stdin says. A dead node does nothing any more."""
        if self.dead.is_set():
            return
        if "link" in message:
            self.set_link(message["link"] == "up")
        elif "flap" in message:
            self.later(self.flap, self.set_link, message["flap"]["for_s"])
        elif "spare_flap" in message:
            self.later(self.flap, self.set_spare, message["spare_flap"]["for_s"])
        elif "count_only" in message:
            self.fabric.count_only()
        elif "ssh" in message:
            self.server.vanish()
        elif "node" in message:
            self.die()
        else:
            self.launcher.tell(message)

    def later(self, act: Callable[..., None], *about: Any) -> None:
        threading.Thread(target=act, args=about, daemon=True).start()

    def flap(self, set_link: Callable[[bool], None], for_s: float) -> None:
        until = time.monotonic() + for_s
        set_link(False)
        time.sleep(max(0.0, until - time.monotonic()))
        set_link(True)

    def set_link(self, up: bool) -> None:
        """Cut the cable of the fabric's port, or plug it in again: bytes, card, kernel log, NCCL's own event, callers."""
        with self.acting:
            if self.dead.is_set() or up == self.fabric.up:
                return
            at = time.time()
            self.relay.link.set(up)
            self.fabric.set_link(up)
            self.roots.kernel(self.fabric.says(up), at)
            for rank in self.relay.ranks:
                self.launcher.tell({"rank": rank, "tell": {"nccl_port": "active" if up else "error"}})
            (self.relay.door.open if up else self.relay.door.shut)()

    def set_spare(self, up: bool) -> None:
        with self.acting:
            if self.dead.is_set() or up == self.spare.up:
                return
            self.spare.set_link(up)
            self.roots.kernel(self.spare.says(up))

    def gave_up(self, rank: int, peer: Address) -> None:
        """The retries of a connection of this rank are exhausted: its NCCL gets the completion error 12."""
        error = {"peer": peer[0], "port": peer[1], "status": 12}
        self.launcher.tell({"rank": rank, "tell": {"nccl": [error]}})

    def die(self) -> None:
        """The machine is gone. Its ports answer nobody, and what was connected stays open and hears nothing."""
        with self.acting:
            self.dead.set()
            self.relay.link.set(False)
            self.server.cut()
            self.launcher.die()
            self.server.end()
            self.server.door.shut()
            self.relay.door.shut()

    def end(self) -> None:
        self.launcher.end()
        self.server.end()


def main() -> None:
    commands = sys.stdin.buffer
    first = commands.readline()
    if not first:
        return
    config = json.loads(first)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the drill decides; its end is our EOF
    node = Node(config)
    say({"serving": True})
    for line in commands:
        node.obey(json.loads(line))
    node.end()
    remove_folder(config["remove"])
    os._exit(0)


if __name__ == "__main__":
    main()
