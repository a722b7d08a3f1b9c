"""Evidence written by hand, in the shapes that the probes produce: a small job whose world a test can bend."""

from __future__ import annotations

from functools import cache
from importlib import resources

import yaml

from triage.facts import registry
from triage.facts.evidence import Evidence
from triage.model import Attempt, Job, Node, Sample

NOW = 1_796_000_000.0


@cache
def _shipped():
    """Thresholds of the shipped playbooks. Reading their YAML takes longer than most tests that ask for them."""
    found = {}
    for name in ("frozen-job", "slow-job"):
        text = (resources.files("triage.playbooks") / f"{name}.yaml").read_text()
        found.update({k: float(v["value"]) for k, v in yaml.safe_load(text)["thresholds"].items()})
    return found


def limits(**changes):
    return {**_shipped(), **changes}


class World:
    """nodes x ranks_per_node ranks, seen in looks A and B that are `window` seconds apart; the last look is now."""

    def __init__(self, nodes=4, per_node=2, window=8.0, root=True, started=NOW - 3600, match=None, log="/job.log"):
        self.names = [f"gpu{i:03d}" for i in range(1, nodes + 1)]
        self.per_node, self.window = per_node, window
        self.job = Job(
            "48213",
            "inventory",
            tuple(Node(name) for name in self.names),
            attempt=Attempt(0, started),
            match={"SLURM_JOB_ID": "48213"} if match is None else match,
            log=log,
        )
        self.samples = []
        self.root = root
        self.a, self.b = NOW - window - 0.2, NOW - 0.2
        self.skip_nodes = set()
        self.dead = {}  # rank -> the look from which it is missing ("A": in both)
        self.change = {}  # (rank, look) -> dict of changes to its record

    def add(self, probe, node, look, data, status="ok", at=None, received=None):
        when = {"A": self.a, "B": self.b}.get(look, NOW - 0.1)
        self.samples.append(
            Sample(probe, node, look, status, data, at=when if at is None else at, received=received or when)
        )
        return self

    def record(self, rank, look):
        node = rank // self.per_node
        base = {
            "rank": rank, "local_rank": rank % self.per_node, "world_size": len(self.names) * self.per_node,
            "local_world_size": self.per_node, "group_rank": node, "pid": 1000 + rank, "ppid": 900, "uid": 0,
            "state": "S", "wchan": "poll", "start_s": NOW - 3500, "rchar": 10, "wchar": 10, "read_bytes": 0,
            "write_bytes": 0, "cmd": "python train.py", "children": [],
            "env": {"RANK": str(rank), "MASTER_ADDR": "gpu001", "MASTER_PORT": "29500", "SLURM_JOB_ID": "48213",
                    "WORLD_SIZE": str(len(self.names) * self.per_node), "NCCL_SOCKET_IFNAME": "fab0",
                    "LOCAL_RANK": str(rank % self.per_node)},
        }  # fmt: skip
        base.update(self.change.get((rank, look), {}))
        return base

    def processes(self):
        for look in "AB":
            for index, name in enumerate(self.names):
                if name in self.skip_nodes:
                    continue
                ranks = [
                    self.record(rank, look)
                    for rank in range(index * self.per_node, (index + 1) * self.per_node)
                    if not (rank in self.dead and look >= self.dead[rank])
                ]
                self.add("ranks", name, look, {"ranks": ranks, "sees_all": self.root, "own_uid": 0})
        for name in self.names:
            if name in self.skip_nodes:
                self.add("contact", name, "A", {"phase": "tcp", "error": "timed out"}, status="timeout")
            else:
                self.add("contact", name, "A", {"phase": "read"})
                self.add("reach", name, "A", {"hidepid": 0, "sees_all": self.root})
                self.add("kernel", name, "A", {"readable": True, "events": []})
        return self

    def fabric(self, rate, only=None, carrier=1):
        for name in self.names:
            if name in self.skip_nodes:
                continue
            moved = rate if only is None or name in only else 0
            for look, count in (("A", 1000), ("B", 1000 + int(moved * self.window))):
                nics = [
                    {"name": "fab0", "kind": "ethernet", "carrier": carrier, "carrier_changes": 1, "rx_bytes": count,
                     "tx_bytes": 5},
                    {"name": "eth0", "kind": "ethernet", "carrier": 1, "carrier_changes": 1,
                     "rx_bytes": 10 * count, "tx_bytes": 5},
                ]  # fmt: skip
                self.add("nic", name, look, {"nics": nics})
        return self

    def log(self, step_s=1.0, steps=100, last_ago=1.0, hits=(), zone="utc", look="B", first=1, elapsed=None):
        series = []
        for index in range(steps):
            at = NOW - last_ago - (steps - 1 - index) * step_s
            ms = (elapsed[index] if elapsed else step_s) * 1000
            series.append([first + index, at, ms])
        data = {
            "path": "/job.log", "size": 1000, "mtime": NOW - last_ago, "newest_at": NOW - last_ago, "zone": zone,
            "iterations": {"total": 1000, "series": series}, "hits": list(hits), "tail": [],
        }  # fmt: skip
        return self.add("joblog", "", look, data)

    def steps(self, compute, collective=None, n=20, step_s=1.0, last_ago=0.5, ranks=None):
        """compute: rank, step index -> ms."""
        by_node = {}
        for rank in ranks if ranks is not None else range(len(self.names) * self.per_node):
            numbers = list(range(100, 100 + n))
            values = [compute(rank, i) for i in range(n)]
            columns = {"step": numbers, "compute_ms": values, "total_ms": [step_s * 1000.0] * n}
            if collective:
                columns["collective_ms"] = [collective(rank, i) for i in range(n)]
            by_node.setdefault(self.names[rank // self.per_node], []).append(
                {"rank": rank, "kind": "records", "last_step": numbers[-1], "last_at": NOW - last_ago,
                 "columns": columns}
            )  # fmt: skip
        for name, ranks_ in by_node.items():
            self.add("steps", name, "B", {"ranks": ranks_})
        return self

    def evidence(self, **changes):
        return Evidence(self.job, self.samples, NOW, limits(**changes))

    def fact(self, name, **changes):
        return registry.other(self.evidence(**changes), name)


def exit_line(pid, code, local_rank, at):
    return {
        "id": "torchelastic_failed", "at": at, "last_at": at, "count": 1, "line_no": 900, "prefix": "", "dated": True,
        "text": f"failed (exitcode: {code}) local_rank: {local_rank} (pid: {pid})",
        "groups": {"code": str(code), "lr": str(local_rank), "pid": str(pid)},
    }  # fmt: skip
