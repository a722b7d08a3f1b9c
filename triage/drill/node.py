"""One fake node as an OS process: an SSH server, the launcher of its ranks, its fabric, its view of the world.

Where it stands is a place: on loopback beside the others, with folders for its view (roots.py), or in namespaces of its own,
with real cables (machine.py).

stdin, JSON lines: first the configuration (`backends.Processes` writes it); then what is done to the node:

    {"rank", "tell"}, {"rank", "signal"}   passed on to the launcher
    {"link": "down"|"up"}                  the cable of the fabric's port
    {"flap": {"for_s": 0.3}}               the same, down and up again after that time
    {"spare_flap": {"for_s": 1.0}}         the port that the job does not use
    {"bridge": 1}                          the fabric's cable is plugged into that switch (machines only)
    {"shape": ["rate", "8mbit", ...]}      the fabric's port is held back by tc's tbf; {"lose": 3}: 3 % of what comes is lost
    {"count_only": true}                   the counters of the fabric's port tell of a loss of link that never was
    {"ssh": "down"}                        the management network is cut: SSH is a black hole, all else goes on
    {"node": "down"}                       the machine is gone, with all its ports

EOF means that the drill is over or dead: end all ranks and commands, remove the drill's folder, leave. stdout, JSON
lines: {"ready": true, "pids"}, {"ended": rank}, {"failed": why} of what could not be done.
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
from typing import Any, Protocol

from triage.drill import cards
from triage.drill.cards import Card, RoceCard
from triage.drill.door import Door
from triage.drill.fabric import Address, Relay
from triage.drill.plan import MANAGEMENT_NIC
from triage.drill.roots import Roots, boot_lines
from triage.errors import TriageError


class Launcher:
    """The launcher process of this node, seen from the node."""

    def __init__(self, config: dict[str, Any], roots: View) -> None:
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


class Place(Protocol):
    """Where a node stands: its view of the world, its ports, its cables."""

    @property
    def roots(self) -> View:
        """What the probes are shown."""

    @property
    def sysfs(self) -> Path:
        """Where its cards are written."""

    def door(self) -> Door:
        """The fabric's port."""

    def serve(self) -> Access:
        """Start the SSH server."""

    def cable(self, name: str, up: bool) -> None:
        """Plug the cable of a port in, or pull it."""

    def command(self, message: dict[str, Any]) -> None:
        """Do to the fabric's cable what only a real one can bear: {"bridge"}, {"shape"}, {"lose"}."""


class View(Protocol):
    """What of a node the probes are shown."""

    @property
    def node(self) -> str:
        """Its name."""

    @property
    def spool(self) -> Path:
        """Where files are prepared, to be renamed into their place."""

    def kernel(self, text: str, at: float | None = None) -> None:
        """One line of the kernel log."""

    def show(self, pid: int) -> None:
        """A process of the job began."""

    def hide(self, pid: int) -> None:
        """It ended."""


class Access(Protocol):
    """The node's SSH server."""

    def vanish(self) -> None:
        """The management network is cut."""

    def die(self) -> None:
        """The machine is gone: nobody is answered, and nobody learns of it."""

    def end(self) -> None:
        """Kill every command that still runs, and start no more."""


class Loopback:
    """A place beside other nodes: folders for a view, sockets that were inherited, cables of words alone."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config, self.roots = config, Roots(config)
        self.sysfs = self.roots.folder / "unseen" if "nic" in self.roots.blind else self.roots.sys

    def door(self) -> Door:
        return Door(socket.socket(fileno=self.config["fabric_fd"]))

    def serve(self) -> Access:
        from triage.drill.sshd import Server

        logging.getLogger("paramiko").setLevel(logging.CRITICAL)
        told, listener = self.config, socket.socket(fileno=self.config["ssh_fd"])
        server = Server(listener, told["host_key"], told["user"], told["authorized"], self.roots.environment())
        threading.Thread(target=server.serve, daemon=True).start()
        return server

    def cable(self, name: str, up: bool) -> None:
        pass

    def command(self, message: dict[str, Any]) -> None:
        pass


def place(config: dict[str, Any]) -> Place:
    if "lab" not in config:
        return Loopback(config)
    from triage.drill.machine import Machine

    return Machine(config)


class Node:
    """Everything of one node, and what can be done to it. Each act moves all its traces."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.acting = threading.Lock()
        self.dead = threading.Event()
        self.place = place(config)
        self.roots = self.place.roots
        self.fabric, self.spare, self.management = self.make_cards(config)
        local = {rank: (host, port) for rank, host, port in config["ports"]}
        routes = {rank: (host, port) for rank, host, port in config["routes"]}
        self.relay = Relay(self.place.door(), local, routes, self.fabric, config["budget_s"], self.gave_up)
        self.relay.counts = not config["sockets"]
        self.relay.start()
        if config.get("acknowledged"):
            threading.Thread(target=self.relay.watch, daemon=True).start()
        everything = (self.fabric, self.spare, self.management)
        threading.Thread(
            target=cards.tick, args=(everything, self.management, self.fabric, self.dead), daemon=True
        ).start()
        self.launcher = Launcher(config, self.roots)
        # After the launcher: paramiko takes a fifth of a second to import, and the ranks start meanwhile.
        self.server = self.place.serve()

    def make_cards(self, config: dict[str, Any]) -> tuple[RoceCard, Card, Card]:
        """The fabric's card, an unused one, and that of management; they count even where no probe is shown them."""
        sysfs, spool, name = self.place.sysfs, self.roots.spool, self.roots.node
        rng = random.Random(f"{config['seed']}/{name}")
        seed, firmware = rng.getrandbits(32), f"28.{rng.randint(36, 43)}.1014"
        fabric = RoceCard(sysfs, spool, config["nic"], config["hca"], cards.FABRIC, seed, firmware)
        spare = Card(sysfs, spool, config["spare_nic"], cards.SPARE, seed)
        management = Card(sysfs, spool, MANAGEMENT_NIC, cards.MANAGEMENT, seed)
        others = [spare.says(True), management.says(True)]
        for text, at in boot_lines(config["seed"], name, firmware, fabric.says(True), others):
            self.roots.kernel(text, at)
        return fabric, spare, management

    def obey(self, message: dict[str, Any]) -> None:
        """Do what a line on stdin says, or tell why it could not be done. A dead node does nothing any more."""
        try:
            if not self.dead.is_set():
                self.act(message)
        except TriageError as error:
            say({"failed": str(error)})

    def act(self, message: dict[str, Any]) -> None:
        if "link" in message:
            self.set_link(message["link"] == "up")
        elif "flap" in message:
            self.later(self.flap, self.set_link, message["flap"]["for_s"])
        elif "spare_flap" in message:
            self.later(self.flap, self.set_spare, message["spare_flap"]["for_s"])
        elif {"bridge", "shape", "lose"} & message.keys():
            self.place.command(message)
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
        try:
            set_link(False)
            time.sleep(max(0.0, until - time.monotonic()))
            set_link(True)
        except TriageError as error:
            say({"failed": str(error)})

    def set_link(self, up: bool) -> None:
        """Cut the cable of the fabric's port, or plug it in again: bytes, card, kernel log, NCCL's own event, callers."""
        with self.acting:
            if self.dead.is_set() or up == self.fabric.up:
                return
            at = time.time()
            self.place.cable(self.fabric.name, up)
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
            self.place.cable(self.spare.name, up)
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
            for name in (self.fabric.name, self.spare.name, self.management.name):
                self.place.cable(name, False)  # first: what ends now must not be able to tell its peers
            self.relay.link.set(False)
            self.server.die()
            self.launcher.die()
            self.server.end()
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
