"""What an embedded cluster looks like before it runs: names, numbers, folders, the shape of its job. All from a seed.

Pure except for `bare_source`, which reads the drill's own files. Names say nothing about the scenario: a plan does
not know which fault will come.
"""

from __future__ import annotations

import ast
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triage.errors import UsageError

PREFIXES = ("gpu", "node", "h100-", "c", "dgx", "worker", "ac-gpu-", "n")
NICS = ("ens1f0np0", "enp65s0f0", "eth1", "ens3", "enp1s0np0", "rdma0")
SPARE_NICS = ("ens9f1np1", "enp129s0f1", "eth3", "ens7", "storage0")  # cabled, up, and not the job's
HCAS = ("mlx5_0", "mlx5_1", "mlx5_4", "mlx5_ib0")
USERS = ("oncall", "ops", "hpcadmin", "sre")
CLUSTER = "lab"
MANAGEMENT_NIC = "eno1"
DEFAULT_GROUP = "0"
TENSOR_GROUPS = "TENSOR_MODEL_PARALLEL_GROUP"
EVAL_GROUP = "undefined"  # what torch calls a group that `new_group` was given no name for
# All cards retry for longer than the specification says, by the same usual multiplier (notes/network.md 4.2).
IB_TIMEOUT, IB_RETRIES, IB_MULTIPLIER = 14, 7, 2
TCP_RETRIES_S = 924.6  # tcp_retries2 = 15, as the kernel's ip-sysctl documentation counts it
# Sources that can be hidden from a probe (`--blind`): each is then really missing on the nodes.
SECOND_LOOK = "second-look"  # not withheld on the nodes: frozen-job is run with one look
BLINDABLE = ("dumps", "joblog", "kernel", "ranks", "steps", "nic", SECOND_LOOK)
MOST_NODES, MOST_RANKS = 64, 256
SOCKET_PATH = 107  # the longest name of a Unix socket


@dataclass(frozen=True)
class RankPlan:
    rank: int
    local_rank: int
    node: str


@dataclass(frozen=True)
class Plan:
    """One job on its nodes. `folder` is the drill's own; `job_folder` stands for the job's shared file system."""

    seed: int
    job_id: str
    nodes: tuple[str, ...]  # in rank order
    ranks_per_node: int
    compute_ms: float
    data_ms: float
    chunk_bytes: int
    user: str
    nic: str
    hca: str  # the RDMA device of the same port
    spare_nic: str
    master_port: int
    folder: Path
    started: float
    blind: frozenset[str] = frozenset()
    engine: str = "ring"
    control_plane: bool = False  # do the ranks serve PyTorch's control plane?
    sockets: bool = False  # does the job's payload go over TCP, and not by RDMA?

    @property
    def world(self) -> int:
        return len(self.nodes) * self.ranks_per_node

    @property
    def ranks(self) -> tuple[RankPlan, ...]:
        """Block order, as torchrun numbers them: rank = node's place * ranks a node + local rank."""
        per = self.ranks_per_node
        return tuple(RankPlan(rank, rank % per, self.nodes[rank // per]) for rank in range(self.world))

    def on(self, node: str) -> tuple[RankPlan, ...]:
        return tuple(rank for rank in self.ranks if rank.node == node)

    @property
    def budget_s(self) -> float:
        """For how long the fabric of this cluster retries what is not answered."""
        if self.sockets:
            return TCP_RETRIES_S
        return float(4.096e-6 * 2**IB_TIMEOUT * IB_RETRIES * IB_MULTIPLIER)

    @property
    def job_folder(self) -> Path:
        return self.folder / "shared" / self.job_id

    @property
    def log(self) -> Path:
        return self.job_folder / f"train-{self.job_id}.log"

    def node_folder(self, node: str) -> Path:
        return self.folder / node

    def scratch(self, node: str) -> Path:
        """The node's own /tmp of this job, where its ranks put dumps, FIFOs and step records.

        The job knows it by the path on this machine, which is also what leads there below the node's rootfs (node.py);
        a probe that refuses to leave its rootfs by a link finds it as well.
        """
        return self.node_folder(node) / "root" / "tmp" / self.job_id

    def socket(self, rank: RankPlan) -> str:
        """Where the rank serves its control plane. Raises UsageError where the drill's folder lies too deep for it."""
        path = str(self.scratch(rank.node) / "comm" / f"worker_{rank.rank}.sock")
        if len(path) > SOCKET_PATH:
            raise UsageError(f"drill: {path} is too long for a Unix socket: set TMPDIR to a shorter folder")
        return path

    def tensor_group(self, node: str) -> list[int]:
        return [rank.rank for rank in self.on(node)]

    def groups(self, rank: RankPlan) -> list[dict[str, Any]]:
        """The process groups of a rank: the two of every step, in the order in which a healthy step enters them, and
        one for an evaluation that no step makes."""
        place, everybody = self.nodes.index(rank.node), list(range(self.world))
        return [
            {"name": str(1 + place), "desc": TENSOR_GROUPS, "ranks": self.tensor_group(rank.node), "each_step": True},
            {"name": DEFAULT_GROUP, "desc": "default_pg", "ranks": everybody, "each_step": True},
            {"name": str(1 + len(self.nodes)), "desc": EVAL_GROUP, "ranks": everybody, "each_step": False},
        ]

    def environment(self, node: str) -> dict[str, str]:
        """What the launcher of a node gets from the scheduler."""
        place = str(self.nodes.index(node))
        return {
            "SLURM_JOB_ID": self.job_id,
            "SLURM_STEP_ID": "0",
            "SLURM_NTASKS": str(len(self.nodes)),
            "SLURM_PROCID": place,  # srun starts one launcher a node: its PROCID is not a rank
            "SLURM_LOCALID": "0",
            "SLURM_RESTART_COUNT": "0",
            "SLURMD_NODENAME": node,
            "NCCL_SOCKET_IFNAME": self.nic,
            "NCCL_IB_HCA": self.hca,
            "NCCL_IB_TIMEOUT": str(IB_TIMEOUT),
            "NCCL_DEBUG": "WARN",
            **({"NCCL_IB_DISABLE": "1"} if self.sockets else {}),
        }

    def rank_environment(self, rank: RankPlan) -> dict[str, str]:
        """What torchrun adds for a rank, and the switches of the flight recorder (notes/flight-recorder.md 2)."""
        env = self.environment(rank.node) | {
            "RANK": str(rank.rank),
            "LOCAL_RANK": str(rank.local_rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_WORLD_SIZE": str(self.ranks_per_node),
            "GROUP_RANK": str(self.nodes.index(rank.node)),
            "MASTER_ADDR": self.nodes[0],
            "MASTER_PORT": str(self.master_port),
            "TORCHELASTIC_RUN_ID": self.job_id,
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }
        env["TORCHINDUCTOR_CACHE_DIR"] = str(self.scratch(rank.node) / "inductor")
        if "dumps" in self.blind:
            env["TORCH_FR_BUFFER_SIZE"] = "0"
        else:
            env["TORCH_FR_BUFFER_SIZE"] = "2000"
            env["TORCH_FR_DUMP_TEMP_FILE"] = str(self.scratch(rank.node) / "comm" / "trace_rank_")
            env["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] = str(self.scratch(rank.node) / "comm" / "pipe_rank_")
        if self.control_plane:
            env["TORCH_WORKER_SERVER_SOCKET"] = self.socket(rank)
        if "steps" not in self.blind:
            env["TRIAGE_STEP_LOG"] = str(self.scratch(rank.node) / "steps" / "rank_")
        return env


def check_shape(nodes: int, ranks_per_node: int) -> None:
    """Raises UsageError for a number of nodes and ranks that cannot be built."""
    if not 1 <= nodes <= MOST_NODES or ranks_per_node < 1 or nodes * ranks_per_node > MOST_RANKS:
        raise UsageError(
            f"drill: {nodes} nodes of {ranks_per_node} ranks cannot be built (1-{MOST_NODES} nodes, up to"
            f" {MOST_RANKS} ranks): choose --nodes and --ranks-per-node within that"
        )


def make_plan(
    folder: Path,
    *,
    seed: int,
    nodes: int,
    ranks_per_node: int,
    compute_ms: float,
    data_ms: float = 0.5,
    chunk_bytes: int = 2048,
    blind: frozenset[str] = frozenset(),
    engine: str = "ring",
    control_plane: bool = False,
    sockets: bool = False,
    now: float | None = None,
) -> Plan:
    """A plan from a seed: the same seed gives the same names. Raises UsageError for a shape that cannot be built."""
    check_shape(nodes, ranks_per_node)
    if compute_ms <= 0:
        raise UsageError(f"drill: {compute_ms} ms of compute a step is no step: give a positive number")
    rng = random.Random(seed)
    spare = random.Random(f"{seed}/spare")
    width = rng.choice((2, 3, 4))
    first = rng.randint(1, 10**width - nodes - 1)
    prefix = rng.choice(PREFIXES)
    return Plan(
        seed=seed,
        job_id=str(rng.randint(10_000, 9_999_999)),
        nodes=tuple(f"{prefix}{number:0{width}d}" for number in range(first, first + nodes)),
        ranks_per_node=ranks_per_node,
        compute_ms=compute_ms,
        data_ms=data_ms,
        chunk_bytes=chunk_bytes,
        user=rng.choice(USERS),
        nic=rng.choice(NICS),
        hca=spare.choice(HCAS),
        spare_nic=spare.choice(SPARE_NICS),
        master_port=rng.randint(29_400, 29_999),
        folder=folder,
        started=time.time() if now is None else now,
        blind=blind,
        engine=engine,
        control_plane=control_plane,
        sockets=sockets,
    )


def folded(nodes: tuple[str, ...]) -> str:
    """`gpu[017-020]`: a row of nodes with the same prefix, as schedulers write it."""
    if len(nodes) == 1:
        return nodes[0]
    digits = len(nodes[0]) - len(nodes[0].rstrip("0123456789"))
    prefix, first, last = nodes[0][:-digits], nodes[0][-digits:], nodes[-1][-digits:]
    return f"{prefix}[{first}-{last}]"


def bare_source(*names: str) -> str:
    """The source of files of this folder without comments and docstrings: what a node may hold of the drill.

    Several become one, in their order; what they import from each other needs no import then, and only the last is run.
    """
    whole = ast.Module(body=[], type_ignores=[])
    for name in names:
        tree = ast.parse(Path(__file__).with_name(name).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                first = node.body[0] if node.body else None
                if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                    node.body = node.body[1:] or [ast.Pass()]
        for part in tree.body:
            source = part.module or "" if isinstance(part, ast.ImportFrom) else ""
            if source.startswith("triage.") or (source == "__future__" and name != names[0]):
                continue
            if isinstance(part, ast.If) and name != names[-1]:
                continue  # `if __name__ == "__main__"`
            whole.body.append(part)
    return ast.unparse(whole) + "\n"
