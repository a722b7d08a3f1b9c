"""A small job on disk: a procfs folder, a root folder and dumps per node, read by the real probes and judged like a live run.

site = Site(tmp_path); site.kill(5); site.worker(5, 7001); site.named()  ->  (cause, accused ranks, confidence)
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from triage.probes import flight_recorder, kernel, ranks, reach
from triage.probes._probe import Absent, Ctx

sys.path.insert(0, str(Path(__file__).parents[1] / "facts"))
import written_dumps
from test_ranks_probe import Procfs
from written_evidence import NOW, World
from written_logs import log_sample
from written_records import dump

from triage.readers.signatures import for_probe

BTIME = 1_790_000_000  # of Procfs
LAUNCHER, INIT = 900, 1
FORKED = 0x400040
BEGAN = NOW - 3500


class Site:
    """`nodes` x `per_node` ranks under one torchrun a node; change it between the looks through `between`."""

    def __init__(self, folder: Path, nodes: int = 4, per_node: int = 2) -> None:
        self.world = World(nodes, per_node)
        self.per_node = per_node
        self.procs: dict[str, Procfs] = {}
        self.roots: dict[str, Path] = {}
        for index, name in enumerate(self.world.names):
            root = folder / name
            (root / "proc").mkdir(parents=True)
            (root / "root" / "var" / "log").mkdir(parents=True)
            (root / "root" / "var" / "log" / "kern.log").write_text(
                f"{BEGAN - 60:.6f} {name} kernel: Linux version 6.1.0\n"
            )
            self.roots[name] = root / "root"
            self.procs[name] = procfs = Procfs(root / "proc")
            (procfs.root / "mounts").write_text("proc /proc proc rw,nosuid 0 0\n")
            procfs.add(INIT, 0, comm="systemd", cmd="/sbin/init")
            procfs.add(
                LAUNCHER, INIT, comm="python3", cmd="python3 -m torch.distributed.run train.py", start=self.ticks()
            )
            for rank in range(index * per_node, (index + 1) * per_node):
                procfs.add(1000 + rank, LAUNCHER, self.env(rank), start=self.ticks())

    def ticks(self, after: float = 0.0) -> int:
        return int((BEGAN + after - BTIME) * os.sysconf("SC_CLK_TCK"))

    def env(self, rank: int, **more: str) -> dict[str, str]:
        node, local = divmod(rank, self.per_node)
        world = str(len(self.world.names) * self.per_node)
        return {
            "RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": str(self.per_node),
            "GROUP_RANK": str(node), "MASTER_ADDR": "gpu001", "MASTER_PORT": "29500", "SLURM_JOB_ID": "48213",
            "NCCL_SOCKET_IFNAME": "fab0", "HOME": "/home/u", **more,
        }  # fmt: skip

    def node(self, rank: int) -> str:
        return self.world.names[rank // self.per_node]

    def proc(self, rank: int) -> Path:
        return self.procs[self.node(rank)].root / str(1000 + rank)

    # ---------------------------------------------------------------- what happens

    def kill(self, rank: int) -> None:
        """The rank's own process is gone; what it started is not."""
        for file in self.proc(rank).iterdir():
            file.unlink()
        self.proc(rank).rmdir()

    def state(self, rank: int, letter: str) -> None:
        stat = self.proc(rank) / "stat"
        stat.write_text(stat.read_text().replace(") S ", f") {letter} "))
        if letter == "Z":
            (self.proc(rank) / "environ").write_bytes(b"")
            (self.proc(rank) / "cmdline").write_bytes(b"")

    def worker(self, rank: int, pid: int, parent: int | None = None, **how: object) -> None:
        """A process that the rank started: it wears the rank's environment. Without a parent init has adopted it."""
        more = {"comm": "pt_data_worker", "flags": FORKED, "start": self.ticks(30), **how}
        self.procs[self.node(rank)].add(pid, parent or INIT, self.env(rank), **more)  # type: ignore[arg-type]

    def traced(self, rank: int, pid: int = 4242, comm: str = "gdb") -> None:
        self.procs[self.node(rank)].add(pid, INIT, comm=comm, cmd=comm, start=self.ticks(60))
        (self.procs[self.node(rank)].root / str(pid) / "comm").write_text(comm + "\n")
        status = self.proc(rank) / "status"
        status.write_text(status.read_text() + f"TracerPid:\t{pid}\n")
        self.state(rank, "t")

    def killed_for_memory(self, rank: int, at: float) -> None:
        line = f"{at:.6f} {self.node(rank)} kernel: Out of memory: Killed process {1000 + rank} (python3) total-vm:1kB"
        with open(self.roots[self.node(rank)] / "var" / "log" / "kern.log", "a") as file:
            file.write(line + "\n")

    def dump(self, rank: int, lines: list[str], created: float = NOW - 99, written: float = NOW - 1.0) -> None:
        """What the rank's flight recorder left in the cache that all jobs of this user share."""
        made = dump(rank, lines, written_dumps.GROUPS)
        made["nccl_version"] = "2.27.5"
        shift = int(created * 1e9) - max(e["time_created_ns"] for e in made["entries"])
        for entry in made["entries"]:
            for name in ("time_created_ns", "time_discovered_completed_ns"):
                if entry[name] is not None:
                    entry[name] += shift
        path = self.roots[self.node(rank)] / "home" / "u" / ".cache" / "torch" / f"comm_lib_trace_rank_{rank}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(made))
        os.utime(path, (written, written))

    # ---------------------------------------------------------------- looking

    def look(self, look: str) -> Site:
        """One round of the cheap probes on every node, as a run would have asked them."""
        for name in self.world.names:
            ctx = self.ctx(name, job_id="48213", match={"SLURM_JOB_ID": "48213"}, signatures=for_probe("kernel"))
            self.world.add("ranks", name, look, ranks.collect(ctx))
            if look == "A":
                self.world.add("contact", name, "A", {"phase": "read"})
                self.world.add("reach", name, "A", reach.collect(ctx))
                self.world.add("kernel", name, "A", kernel.collect(ctx))
        return self

    def ctx(self, name: str, **args: object) -> Ctx:
        folder = self.roots[name]
        return Ctx(procfs=str(self.procs[name].root), rootfs=str(folder), sysfs=str(folder / "sys"), args=args)

    def records(self) -> Site:
        """The flight recorders, asked on every node."""
        for name in self.world.names:
            try:
                data = flight_recorder.collect(self.ctx(name))
            except Absent:
                continue
            self.world.add("flight_recorder", name, "C", data)
        return self

    def seen(self, *log: str, last_ago: float = 100.0) -> Site:
        """Both looks at a job whose last step ended so long ago, whose fabric is still, and whose log may say more."""
        self.look("A").look("B")
        self.world.log(last_ago=last_ago).fabric(0)
        if log:
            self.world.samples = [s for s in self.world.samples if s.probe != "joblog"]
            self.world.samples.append(log_sample(list(log)))
        return self.records()

    def named(self) -> tuple[str, list[int], str]:
        return written_dumps.named(self.world)

    def ranks_of(self, fact: str) -> list[int]:
        return written_dumps.ranks_of(self.world.fact(fact))
