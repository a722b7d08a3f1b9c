"""Where the fake nodes live. A backend starts the nodes of a plan, passes messages to them, and ends them all.

`processes` needs nothing but Linux and an ordinary user: each node is one OS process (node.py) on its own loopback
port. Another backend gives the same answers for nodes in namespaces; `Cluster` knows only this interface.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from triage.drill.plan import Plan, bare_source
from triage.errors import TriageError

START_S = 60.0
# What the ranks run, by engine.
SOURCES = {"ring": ("diary.py", "rank.py"), "torch": ("diary.py", "rank.py", "torch_rank.py")}


@dataclass(frozen=True)
class Host:
    """How a node is reached, as the inventory and known_hosts must say it."""

    node: str
    address: str
    port: int
    fabric: str  # "host:port" on the training network
    public_key: str  # of the SSH server


class Backend(Protocol):
    """Start, speak to, and end the nodes of one plan."""

    def start(self, plan: Plan, authorized: str, report_fd: int) -> list[Host]:
        """Start all nodes and their ranks; return when each answers. `authorized` is the client's public key line;
        each rank writes its step records to `report_fd`. Raises TriageError if a node does not come up."""

    def send(self, node: str, message: dict[str, Any]) -> None:
        """Pass one message to a node (see node.py)."""

    def pids(self) -> dict[int, int]:
        """Process id of each rank as the drill's machine sees it (also of ranks that ended)."""

    def ended(self) -> dict[int, int]:
        """Exit code of each rank that ended (minus the signal's number, if by a signal), as far as its node could say."""

    def processes(self) -> list[int]:
        """Process ids of nodes, launchers and ranks, as far as they were started."""

    def stop(self) -> None:
        """End everything that start() began. May be called at any time and more than once."""


def bound() -> socket.socket:
    """A listening socket on a free loopback port. Held from here on and handed down, so ports never clash."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    return listener


def key_pair() -> tuple[str, str]:
    """A new ed25519 key: the private key as OpenSSH text, the public key line."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return private.decode(), public.decode()


class NodeProcess:
    """One node.py, seen from the drill."""

    def __init__(self, node: str, config: dict[str, Any], keep: list[int], errors: Path) -> None:
        self.node = node
        self.errors = errors
        self.pids: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self.launcher: int | None = None
        self.ready = threading.Event()
        self.gone = threading.Event()
        root = Path(__file__).resolve().parents[2]  # where the package lies, installed or not
        with errors.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "triage.drill.node"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                cwd=root,
                pass_fds=keep,
                start_new_session=True,  # Ctrl-C is for the drill; the node follows by EOF
            )
        self.send(config)
        threading.Thread(target=self.listen, daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass

    def listen(self) -> None:
        assert self.process.stdout is not None
        serving = False
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("ready"):
                self.launcher = message["launcher"]
                self.pids = {int(rank): pid for rank, pid in message["pids"].items()}
            if "ended" in message:
                self.ended[message["ended"]] = message["code"]
            serving = serving or bool(message.get("serving"))
            if serving and self.pids:
                self.ready.set()
        self.gone.set()
        self.ready.set()


class Processes:
    """Backend `processes`: no root, no sshd, any Linux."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeProcess] = {}

    def start(self, plan: Plan, authorized: str, report_fd: int) -> list[Host]:
        python = os.path.realpath(sys.executable)  # not the venv's path: it may say what this is
        plan.job_folder.mkdir(parents=True)
        script, torchrun = plan.job_folder / "pretrain_gpt.py", plan.job_folder / "torchrun"
        script.write_text(bare_source(*SOURCES[plan.engine]))
        torchrun.write_text(bare_source("launcher.py"))
        worker = plan.job_folder / "torch" / "_inductor" / "compile_worker" / "__main__.py"
        worker.parent.mkdir(parents=True)
        worker.write_text(bare_source("compiler.py"))
        ssh = {node: bound() for node in plan.nodes}
        fabric = {node: bound() for node in plan.nodes}
        ranks = {place.rank: bound() for place in plan.ranks}
        hosts = []
        try:
            for node in plan.nodes:
                private, public = key_pair()
                orders = [self.rank_order(plan, place, ranks, fabric, report_fd) for place in plan.on(node)]
                keep = [ssh[node].fileno(), fabric[node].fileno(), report_fd]
                keep += [order["plan"]["listen_fd"] for order in orders]
                config = {
                    "node": node,
                    "seed": plan.seed,
                    "blind": sorted(plan.blind),
                    "folder": str(plan.node_folder(node)),
                    "shared": str(plan.folder / "shared"),
                    "remove": str(plan.folder),
                    "scratch": str(plan.scratch(node)),
                    "nic": plan.nic,
                    "hca": plan.hca,
                    "spare_nic": plan.spare_nic,
                    "budget_s": plan.budget_s,
                    "ports": [[place.rank, port(ranks[place.rank])] for place in plan.on(node)],
                    "routes": [[place.rank, port(fabric[place.node])] for place in plan.ranks if place.node != node],
                    "fabric_fd": fabric[node].fileno(),
                    "ssh_fd": ssh[node].fileno(),
                    "host_key": private,
                    "user": plan.user,
                    "authorized": authorized,
                    "launcher": self.launcher_order(plan, node, python, orders),
                }
                self.nodes[node] = NodeProcess(node, config, keep, plan.folder / "operator" / f"{node}.err")
                hosts.append(Host(node, "127.0.0.1", port(ssh[node]), f"127.0.0.1:{port(fabric[node])}", public))
        finally:
            # Only the node may hold them: a port whose owner died must refuse.
            for listener in (*ssh.values(), *fabric.values(), *ranks.values()):
                listener.close()
        self.wait_until_ready()
        return hosts

    def rank_order(
        self, plan: Plan, place: Any, ranks: dict[int, socket.socket], fabric: dict[str, socket.socket], report_fd: int
    ) -> dict[str, Any]:
        """What the launcher is told of one rank: a neighbour on this node is reached directly, others by the relay."""
        groups = plan.groups(place)
        for group in groups:
            members = group["ranks"]
            right = members[(members.index(place.rank) + 1) % len(members)]
            near = plan.ranks[right].node == place.node
            group["right"] = ["127.0.0.1", port(ranks[right] if near else fabric[place.node])]
        engine: dict[str, Any] = {"chunk_bytes": plan.chunk_bytes, "groups": groups}
        if plan.engine == "torch":  # it connects its groups itself, by a store
            engine = {"ranks_per_node": plan.ranks_per_node, "store_port": port(ranks[0]), "path": packages()}
        return {
            "rank": place.rank,
            "local_rank": place.local_rank,
            "env": system_environment() | plan.rank_environment(place),
            "plan": {
                "rank": place.rank,
                "world": plan.world,
                "listen_fd": ranks[place.rank].fileno(),
                "report_fd": report_fd,
                "compute_ms": plan.compute_ms,
                "data_ms": plan.data_ms,
                **engine,
            },
        }

    def launcher_order(self, plan: Plan, node: str, python: str, orders: list[dict[str, Any]]) -> dict[str, Any]:
        training = [
            f"--tensor-model-parallel-size={plan.ranks_per_node}",
            "--num-layers=32",
            "--hidden-size=4096",
            "--micro-batch-size=1",
            "--bf16",
        ]
        script = str(plan.job_folder / "pretrain_gpt.py")
        argv = [python, "-I", "-S", str(plan.job_folder / "torchrun"), f"--nnodes={len(plan.nodes)}"]
        argv += [f"--nproc-per-node={plan.ranks_per_node}", f"--node-rank={plan.nodes.index(node)}"]
        argv += [f"--master-addr={plan.nodes[0]}", f"--master-port={plan.master_port}", script, *training]
        return {
            "argv": argv,
            "env": system_environment() | plan.environment(node),
            "folder": str(plan.job_folder),
            "python": python,
            "script": script,
            "args": training,
            "log": os.devnull if "joblog" in plan.blind else str(plan.log),
            "ranks": orders,
        }

    def wait_until_ready(self) -> None:
        until = time.monotonic() + START_S
        for node in self.nodes.values():
            node.ready.wait(max(0.0, until - time.monotonic()))
            if not node.ready.is_set() or node.gone.is_set():
                said = node.errors.read_text(errors="replace").strip().splitlines()
                why = said[-1] if said else f"no answer in {START_S:.0f} s"
                raise TriageError(f"drill: node {node.node} did not come up: {why}")

    def send(self, node: str, message: dict[str, Any]) -> None:
        self.nodes[node].send(message)

    def pids(self) -> dict[int, int]:
        return {rank: pid for node in self.nodes.values() for rank, pid in node.pids.items()}

    def ended(self) -> dict[int, int]:
        return {rank: code for node in self.nodes.values() for rank, code in node.ended.copy().items()}

    def processes(self) -> list[int]:
        nodes = self.nodes.values()
        return [n.process.pid for n in nodes] + [n.launcher for n in nodes if n.launcher] + list(self.pids().values())

    def stop(self) -> None:
        """EOF to all at once, then wait; a node that does not go is killed (its ranks then go by themselves)."""
        for node in self.nodes.values():
            assert node.process.stdin is not None
            try:
                node.process.stdin.close()
            except OSError:
                pass
        until = time.monotonic() + 6.0
        for node in self.nodes.values():
            try:
                node.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                node.process.kill()
                node.process.wait()


def port(listener: socket.socket) -> int:
    number: int = listener.getsockname()[1]
    return number


def packages() -> list[str]:
    """Where a rank finds torch and what torch needs: ranks start without site packages, as the drill's Python has them."""
    return [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]


def system_environment() -> dict[str, str]:
    """The few names of our own environment that a rank may inherit. Nothing else: it could say what this is."""
    names = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in names if name in os.environ}


BACKENDS: dict[str, type[Processes]] = {"processes": Processes}
