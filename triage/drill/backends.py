"""Where the fake nodes live. A backend starts the nodes of a plan, passes messages to them, and ends them all.

`processes` needs nothing but Linux and an ordinary user: each node is one OS process (node.py) on its own loopback
port. Another backend gives the same answers for nodes in namespaces; `Cluster` knows only this interface.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from triage.drill.plan import Plan, bare_source
from triage.errors import TriageError

START_S = 60.0
AUTO = "auto"
LOOPBACK = "127.0.0.1"
Address = tuple[str, int]
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

    def failed(self) -> str:
        """Why something that a node was told could not be done; "" if all was."""

    def processes(self) -> list[int]:
        """Process ids of nodes, launchers and ranks, as far as they were started."""

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """Who asks the nodes (this thread, and those that it starts) stands in the cluster's network while this is open."""

    def prefix(self) -> list[str]:
        """The words that put another terminal's command there."""

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

    def __init__(
        self, node: str, config: dict[str, Any], keep: list[int], errors: Path, wrapped: Sequence[str] = ()
    ) -> None:
        self.node = node
        self.errors = errors
        self.pids: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self.failed = ""
        self.launcher: int | None = None
        self.ready = threading.Event()
        self.gone = threading.Event()
        root = Path(__file__).resolve().parents[2]  # where the package lies, installed or not
        with errors.open("wb") as sink:
            self.process = subprocess.Popen(
                [*wrapped, sys.executable, "-m", "triage.drill.node"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                cwd=root,
                pass_fds=keep,
                start_new_session=True,  # Ctrl-C is for the drill; the node follows by EOF
            )
        if not wrapped:
            self.begin(config)

    def begin(self, config: dict[str, Any]) -> None:
        """Give it its configuration: it stands where it shall stand."""
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
            self.failed = self.failed or str(message.get("failed", ""))
            if "ended" in message:
                self.ended[message["ended"]] = message["code"]
            serving = serving or bool(message.get("serving"))
            if serving and self.pids:
                self.ready.set()
        self.gone.set()
        self.ready.set()


@dataclass
class Wiring:
    """Where everything listens: (host, port) of SSH and fabric by node, and of ranks, as the ranks of their node reach them."""

    ssh: dict[str, Address]
    fabric: dict[str, Address]
    ranks: dict[int, Address]


class Processes:
    """Backend `processes`: no root, no sshd, any Linux."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeProcess] = {}
        self.held: dict[str, list[socket.socket]] = {}

    def start(self, plan: Plan, authorized: str, report_fd: int) -> list[Host]:
        python = os.path.realpath(sys.executable)  # not the venv's path: it may say what this is
        write_programs(plan)
        hosts = []
        try:
            wiring = self.wire(plan)
            for node in plan.nodes:
                private, public = key_pair()
                orders = [self.rank_order(plan, place, wiring, report_fd) for place in plan.on(node)]
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
                    "sockets": plan.sockets,
                    "ports": [[place.rank, *wiring.ranks[place.rank]] for place in plan.on(node)],
                    "routes": [[place.rank, *wiring.fabric[place.node]] for place in plan.ranks if place.node != node],
                    "host_key": private,
                    "user": plan.user,
                    "authorized": authorized,
                    "launcher": self.launcher_order(plan, node, python, orders),
                    **self.stand(plan, node, orders),
                }
                keep = [report_fd, *(listener.fileno() for listener in self.held.get(node, ()))]
                self.nodes[node] = self.begin(plan, node, config, keep)
                (ssh, port), fabric = wiring.ssh[node], wiring.fabric[node]
                hosts.append(Host(node, ssh, port, f"{fabric[0]}:{fabric[1]}", public))
        finally:
            # Only the node may hold them: a port whose owner died must refuse.
            for listeners in self.held.values():
                for listener in listeners:
                    listener.close()
        self.wait_until_ready()
        return hosts

    def wire(self, plan: Plan) -> Wiring:
        """Bind a port of this machine for everything that listens; `held` is handed down to the nodes."""
        self.held = {node: [bound() for _ in range(2 + plan.ranks_per_node)] for node in plan.nodes}
        ends = {node: [("127.0.0.1", port(one)) for one in listeners] for node, listeners in self.held.items()}
        return Wiring(
            {node: at[0] for node, at in ends.items()},
            {node: at[1] for node, at in ends.items()},
            {place.rank: ends[place.node][2 + place.local_rank] for place in plan.ranks},
        )

    def stand(self, plan: Plan, node: str, orders: list[dict[str, Any]]) -> dict[str, Any]:
        """What the node is told of its own place (node.py): here the sockets that it inherits."""
        ssh, fabric, *ranks = (listener.fileno() for listener in self.held[node])
        for order, listener in zip(orders, ranks, strict=True):
            order["plan"]["listen_fd"] = listener
        return {"ssh_fd": ssh, "fabric_fd": fabric}

    def begin(self, plan: Plan, node: str, config: dict[str, Any], keep: list[int]) -> NodeProcess:
        """Start the node and give it its configuration."""
        return NodeProcess(node, config, keep, plan.folder / "operator" / f"{node}.err")

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """Whoever asks the nodes does it in here: the cluster's network is the machine's own."""
        return contextlib.nullcontext()

    def prefix(self) -> list[str]:
        """The words before a command that another terminal runs against this cluster."""
        return []

    def rank_order(self, plan: Plan, place: Any, wiring: Wiring, report_fd: int) -> dict[str, Any]:
        """What the launcher is told of one rank: a neighbour on this node is reached directly, others by the relay."""
        groups = plan.groups(place)
        for group in groups:
            members = group["ranks"]
            right = members[(members.index(place.rank) + 1) % len(members)]
            near = plan.ranks[right].node == place.node
            group["right"] = list(wiring.ranks[right] if near else (LOOPBACK, wiring.fabric[place.node][1]))
        engine: dict[str, Any] = {"chunk_bytes": plan.chunk_bytes, "groups": groups}
        if plan.engine == "torch":  # it connects its groups itself, by a store
            engine = {
                "ranks_per_node": plan.ranks_per_node,
                "store": list(self.store(plan, wiring)),
                "path": packages(),
            }
        return {
            "rank": place.rank,
            "local_rank": place.local_rank,
            "env": system_environment() | plan.rank_environment(place),
            "plan": {
                "rank": place.rank,
                "world": plan.world,
                "listen_fd": -1,
                "report_fd": report_fd,
                "compute_ms": plan.compute_ms,
                "data_ms": plan.data_ms,
                **engine,
            },
        }

    def store(self, plan: Plan, wiring: Wiring) -> Address:
        """Where the store of PyTorch is reached from every node."""
        return wiring.ranks[0]

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

    def failed(self) -> str:
        return next((f"{node.node}: {node.failed}" for node in self.nodes.values() if node.failed), "")

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


def write_programs(plan: Plan) -> None:
    """What the job runs, bare, on the file system that all nodes share."""
    plan.job_folder.mkdir(parents=True)
    (plan.job_folder / "pretrain_gpt.py").write_text(bare_source(*SOURCES[plan.engine]))
    (plan.job_folder / "torchrun").write_text(bare_source("launcher.py"))
    worker = plan.job_folder / "torch" / "_inductor" / "compile_worker" / "__main__.py"
    worker.parent.mkdir(parents=True)
    worker.write_text(bare_source("compiler.py"))


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


def backends() -> dict[str, Callable[[], Backend]]:
    """name -> how it is made."""
    from triage.drill.namespaces import Namespaces

    return {"processes": Processes, "namespaces": Namespaces}


def settled(name: str) -> str:
    """The name of the backend for `auto`: namespaces where they can be had."""
    if name != AUTO:
        return name
    from triage.drill.netlab import why_not

    return "processes" if why_not() else "namespaces"
