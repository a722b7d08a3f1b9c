"""An embedded cluster: fake nodes with a real synchronous job, real SSH, and faults that really happen.

    with Cluster(nodes=4, ranks_per_node=2, seed=7) as cluster:
        cluster.inventory_path      # all that triage is given
        cluster.apply("dead-rank", fault)

Whatever ends it (close, Ctrl-C, a crash, kill -9), nothing stays: nodes notice the EOF on their stdin, launchers that
of theirs, ranks that of theirs, and the folder is removed by whoever is left.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import select
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from triage.drill.backends import AUTO, Backend, Host, backends, key_pair, settled
from triage.drill.faults import Fault, check_needs, choose, did_you_mean, for_rank, ground_truth, messages
from triage.drill.plan import CLUSTER, Plan, folded, make_plan
from triage.errors import UsageError

FLOOR_S = (
    5  # the drill's profile: a job is called frozen, or slow, after this and not after a minute (DESIGN section 2)
)
HISTORY = 400
SOON_STEPS = 10  # far enough ahead for a message to reach every rank before that step


class Cluster:
    """A running embedded cluster. Use it as a context manager; `close` may be called at any time."""

    def __init__(
        self,
        *,
        nodes: int = 4,
        ranks_per_node: int = 2,
        seed: int | None = None,
        compute_ms: float = 100.0,
        data_ms: float = 0.5,
        chunk_bytes: int = 2048,
        blind: frozenset[str] = frozenset(),
        backend: str = "processes",
        engine: str = "ring",
        control_plane: bool = False,
        sockets: bool = False,
        slow_soon: bool = False,
    ) -> None:
        known = backends()
        if backend != AUTO and backend not in known:
            raise UsageError(f"drill: no backend is called {backend}{did_you_mean(backend, [AUTO, *known])}")
        made = known[settled(backend)]()
        self.folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="site-")))
        self.history: dict[int, collections.deque[dict[str, Any]]] = {}
        self.moved = time.monotonic()
        self.truth: dict[str, Any] | None = None
        self.closed = False
        self.floors = {"progress_floor_s": FLOOR_S} | ({"slow_min_s": FLOOR_S} if slow_soon else {})
        self.lock = threading.Lock()
        self.backend: Backend = made
        self.hosts: list[Host] = []
        try:
            self.plan: Plan = make_plan(
                self.folder,
                seed=random.SystemRandom().randrange(1 << 31) if seed is None else seed,
                nodes=nodes,
                ranks_per_node=ranks_per_node,
                compute_ms=compute_ms,
                data_ms=data_ms,
                chunk_bytes=chunk_bytes,
                blind=blind,
                engine=engine,
                control_plane=control_plane,
                sockets=sockets,
            )
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------ life

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start nodes and ranks; return when every node answers and every rank runs (not: has done a step)."""
        try:
            (self.folder / "operator").mkdir()
            private, public = key_pair()
            self.private_file("id_ed25519", private)
            reports, report_fd = os.pipe()
            threading.Thread(target=self.read_reports, args=(reports,), daemon=True).start()
            try:
                self.hosts = self.backend.start(self.plan, public, report_fd)
            finally:
                os.close(report_fd)
            self.private_file("known_hosts", self.known_hosts())
            self.private_file("inventory.yaml", self.inventory())
            floors = ", ".join(f"{name}: {value}" for name, value in self.floors.items())
            self.private_file("profile.yaml", f"thresholds: {{{floors}}}\n")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End every process of the cluster and remove its folder."""
        if self.closed:
            return
        self.backend.stop()
        self.sweep()
        until = time.monotonic() + 5
        while self.folder.exists() and time.monotonic() < until:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.closed = True

    def sweep(self) -> None:
        """Kill what a killed node may have left: any process of ours whose environment names our folder."""
        until = time.monotonic() + 2
        while (left := self.strays()) and time.monotonic() < until:
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def strays(self) -> list[int]:
        mark = str(self.folder).encode() + b"/"
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                with contextlib.suppress(OSError):
                    if mark in Path(f"/proc/{name}/environ").read_bytes():
                        found.append(int(name))
        return found

    # ------------------------------------------------------------ what triage gets

    @property
    def job_id(self) -> str:
        return self.plan.job_id

    @property
    def inventory_path(self) -> Path:
        return self.folder / "operator" / "inventory.yaml"

    @property
    def profile_path(self) -> Path:
        return self.folder / "operator" / "profile.yaml"

    def private_file(self, name: str, text: str) -> None:
        path = self.folder / "operator" / name
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
            out.write(text)

    def known_hosts(self) -> str:
        return "".join(
            ",".join(name if host.port == 22 else f"[{name}]:{host.port}" for name in (host.address, host.node))
            + f" {host.public_key}\n"
            for host in self.hosts
        )

    def inventory(self) -> str:
        """DESIGN section 12. It names nodes and addresses and says nothing of what will break."""
        plan = self.plan
        quoted = json.dumps  # a JSON string is a YAML string
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(plan.started))
        lines = ["version: 1", "jobs:", f"  {quoted(plan.job_id)}:", f"    nodes: {quoted(folded(plan.nodes))}"]
        if "joblog" not in plan.blind:
            lines.append(f"    log: {quoted(str(plan.log))}")
        lines += ["    state: running", f"    started: {started}", f"    cluster: {CLUSTER}"]
        lines += [f"    match: {{SLURM_JOB_ID: {quoted(plan.job_id)}}}", "hosts:"]
        for host in self.hosts:
            lines.append(
                f"  {quoted(host.node)}: {{address: {quoted(host.address)}, port: {host.port}, user: {plan.user},"
                f" fabric: [{quoted(host.fabric)}]}}"
            )
        key, known = (quoted(str(self.folder / "operator" / name)) for name in ("id_ed25519", "known_hosts"))
        lines.append(f"ssh: {{key: {key}, known_hosts: {known}, config: none}}")
        return "\n".join(lines) + "\n"

    # ------------------------------------------------------------ what the drill itself sees

    def read_reports(self, reports: int) -> None:
        """Collect the ranks' step records, ten times a second, until the last rank is gone."""
        rest = b""
        with os.fdopen(reports, "rb", buffering=0) as pipe:
            while True:
                select.select([pipe], [], [])
                piece = pipe.read(1 << 20)
                if not piece:
                    return
                *lines, rest = (rest + piece).split(b"\n")
                with self.lock:
                    for line in lines:
                        record = json.loads(line)
                        self.history.setdefault(record["rank"], collections.deque(maxlen=HISTORY)).append(record)
                    if lines:
                        self.moved = time.monotonic()
                time.sleep(0.1)

    def steps(self) -> dict[int, int]:
        """The last step that each rank finished; a rank that finished none is missing."""
        with self.lock:
            return {rank: records[-1]["step"] for rank, records in self.history.items()}

    def records(self, rank: int) -> list[dict[str, Any]]:
        """The newest step records of a rank, oldest first (as in its step log)."""
        with self.lock:
            return list(self.history.get(rank, ()))

    def still_s(self) -> float:
        """Seconds since any rank finished a step."""
        with self.lock:
            return time.monotonic() - self.moved

    def pids(self) -> dict[int, int]:
        return self.backend.pids()

    def ended(self) -> dict[int, int]:
        """Exit code of each rank that ended."""
        return self.backend.ended()

    def processes(self) -> list[int]:
        """Everything that close() must end: nodes, launchers, ranks."""
        return self.backend.processes()

    def node_of(self, rank: int) -> str:
        return self.plan.ranks[rank].node

    def files(self) -> list[str]:
        """Every path that a node holds, processes and the nodes' own counters left out: to compare before and after."""
        found = []
        for top in (*(self.plan.node_folder(node) for node in self.plan.nodes), self.folder / "shared"):
            for folder, folders, files in os.walk(top):
                at = Path(folder)
                if at.name == "proc" or at.name == "spool":
                    folders.clear()
                    continue
                found += [str((at / name).relative_to(self.folder)) for name in (*folders, *files)]
        return sorted(found)

    # ------------------------------------------------------------ breaking it

    def apply(self, scenario: str, fault: Fault, *, speed: float = 0.88, rank: int | None = None) -> dict[str, Any]:
        """Break the job: the seed chooses the rank unless one is given. Returns the ground truth, also in `truth`."""
        check_needs(fault, len(self.plan.nodes), self.plan.ranks_per_node)
        began = time.time()
        told = messages(fault, speed, max(self.steps().values(), default=0) + SOON_STEPS)
        chosen: int | None = None
        if fault.half:
            for node in self.plan.nodes[: len(self.plan.nodes) // 2]:
                for message in told:
                    self.backend.send(node, message)
        elif fault.everybody:
            for each in self.plan.ranks:
                for message in told:
                    self.backend.send(each.node, {"rank": each.rank} | message)
        elif told:
            chosen = choose(fault, self.plan) if rank is None else rank
            for message in told:
                if "pause" in message:
                    time.sleep(message["pause"])
                    continue
                whom = {"rank": chosen} if for_rank(message) else {}
                self.backend.send(self.node_of(chosen), whom | message)
        self.truth = ground_truth(scenario, fault, self.plan, chosen, began)
        return self.truth

    def send(self, node: str, what: dict[str, Any]) -> None:
        """Pass a message to a node as it is, e.g. {"link": "down"}."""
        self.backend.send(node, what)

    def ground_truth(self) -> dict[str, Any] | None:
        return self.truth
