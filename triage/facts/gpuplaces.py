"""Is this GPU, by its PCI address, one of the job's, and which rank works on it?

In this order: a process of a rank (or one of whose end the launcher tells) that the kernel's line or NVML names on it; the ranks' own CUDA_VISIBLE_DEVICES and
LOCAL_RANK over the GPUs of the node in the order of their addresses; a node whose GPUs are as many as its ranks.
What can fool it: numbers inside of a container (index 3 there is not always index 3 of the node: of a rank with process
numbers of its own no index is believed), MIG, a node that several jobs share, programs that choose their device themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from triage.facts.activity import rows_of
from triage.facts.claims import whole
from triage.facts.evidence import Evidence
from triage.facts.exits import log_exits
from triage.facts.ranktable import RankRow, rank_table
from triage.model import Sample

ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?\Z")


@dataclass(frozen=True)
class GpuPlace:
    """One GPU of a node. `ours` None: not known whether the job uses it. `rank` None: not known which rank."""

    node: str
    bdf: str
    index: int | None
    rank: int | None
    ours: bool | None
    why: str


@dataclass(frozen=True)
class NodeGpus:
    """The GPUs of a node in the order of their addresses, and whose they are by the ranks' environment."""

    bdfs: tuple[str, ...] = ()
    index: Mapping[str, int] = field(default_factory=dict)  # address -> NVML's number, where NVML told it
    ranks_of: Mapping[int, int] = field(default_factory=dict)  # process of a rank, or child of it -> rank
    by_nvml: Mapping[str, int] = field(default_factory=dict)  # address -> rank, by the processes that NVML tells
    by_env: Mapping[str, int] = field(default_factory=dict)  # address -> rank
    whole: bool = False  # every rank of the node was placed by its environment
    ranks: int = 0


def short_bdf(value: object) -> str:
    """`0000:3b:00` of any spelling of a PCI address (the kernel leaves the function out), "" for what is none."""
    found = ADDRESS.match(value.strip().lower()) if isinstance(value, str) else None
    return f"{int(found.group(1) or '0', 16):04x}:{found.group(2)}:{found.group(3)}" if found else ""


def gpu_place(ev: Evidence, node: str, bdf: str, pid: int | None = None) -> GpuPlace:
    """See the module. `pid`: the process that the kernel's line names, on the host."""
    bdf = short_bdf(bdf)
    gpus = ev.derive(node_gpus).get(node, _NONE)
    position = gpus.bdfs.index(bdf) if bdf in gpus.bdfs else None
    index = gpus.index.get(bdf, position) if bdf else None
    if pid is not None and pid in gpus.ranks_of:
        rank = gpus.ranks_of[pid]
        return GpuPlace(node, bdf, index, rank, True, f"process {pid} of rank {rank}")
    ended = (
        [end for end in ev.derive(log_exits) if end.pid == pid and end.node in (None, node)] if pid is not None else []
    )
    if len(ended) == 1 and (ended[0].node == node or len(ev.job.nodes) == 1):
        return GpuPlace(node, bdf, index, ended[0].rank, True, f"process {pid}, of whose end the launcher tells")
    if not bdf:
        return GpuPlace(node, bdf, None, None, None, "its line does not say which GPU")
    if bdf in gpus.by_nvml:
        rank = gpus.by_nvml[bdf]
        return GpuPlace(node, bdf, index, rank, True, f"rank {rank} works on it, by NVML")
    if bdf in gpus.by_env:
        rank = gpus.by_env[bdf]
        return GpuPlace(node, bdf, index, rank, True, f"the GPU of rank {rank} by its environment")
    if position is not None and gpus.whole:
        return GpuPlace(node, bdf, index, None, False, "the ranks of the node work on other GPUs, by their environment")
    if position is not None and gpus.ranks == len(gpus.bdfs):
        return GpuPlace(node, bdf, index, None, True, f"the job's {gpus.ranks} ranks use all GPUs of the node")
    return GpuPlace(node, bdf, index, None, None, "whether the job uses that GPU is not known")


def _processes(row: RankRow) -> frozenset[int]:
    """A rank's process and its children, in every look."""
    found = {row.pid}
    for record in (row.first, row.last):
        found |= {whole(child.get("pid")) for child in rows_of((record or {}).get("children"))}
        found.add(whole((record or {}).get("pid")))
    return frozenset(pid for pid in found if pid is not None)


_NONE = NodeGpus()


def _by_node(ev: Evidence) -> dict[str, list[RankRow]]:
    found: dict[str, list[RankRow]] = {}
    for row in ev.derive(rank_table).rows.values():
        if row.node:
            found.setdefault(row.node, []).append(row)
    return found


def node_gpus(ev: Evidence) -> dict[str, NodeGpus]:
    """node -> its GPUs. To be called through `ev.derive`."""
    kernels, told, by_node = ev.latest("kernel"), ev.latest("gpu"), ev.derive(_by_node)
    return {
        node: _of_node(
            rows_of(told[node].data.get("gpus")) if node in told else [],
            kernels[node].data if node in kernels else {},
            by_node.get(node, []),
        )
        for node in {*kernels, *told}
    }


def _of_node(rows: list[Mapping[str, Any]], kernel: Mapping[str, Any], ranks: list[RankRow]) -> NodeGpus:
    nvidia = kernel.get("nvidia")
    listed = nvidia.get("gpus") if isinstance(nvidia, Mapping) else None
    names = {short_bdf(name) for name in (listed if isinstance(listed, list) else [])}
    names |= {short_bdf(row.get("bdf")) for row in rows}
    bdfs = tuple(sorted(name for name in names if name))
    index: dict[str, int] = {}
    uuid: dict[str, str] = {}
    by_pid: dict[str, frozenset[int]] = {}
    for row in rows:
        bdf = short_bdf(row.get("bdf"))
        number, pids = whole(row.get("index")), row.get("pids")
        if bdf and number is not None:
            index[bdf] = number
        if bdf and isinstance(row.get("uuid"), str):
            uuid[str(row["uuid"])] = bdf
        if bdf and isinstance(pids, list):
            by_pid[bdf] = frozenset(pid for pid in pids if whole(pid) is not None)
    for event in rows_of(kernel.get("events")):
        groups = event.get("groups")
        if event.get("id") == "gpu_uuid" and isinstance(groups, Mapping) and short_bdf(groups.get("bdf")) in bdfs:
            uuid.setdefault(str(groups.get("uuid")), short_bdf(groups.get("bdf")))
    ranks_of = {pid: row.rank for row in ranks for pid in _processes(row)}
    by_nvml = {
        bdf: ranks_of[pid] for bdf, pids in by_pid.items() for pid in sorted(pids, reverse=True) if pid in ranks_of
    }
    by_env, every = _by_environment(bdfs, uuid, ranks)
    return NodeGpus(bdfs, index, ranks_of, by_nvml, by_env, every, len(ranks))


def _by_environment(
    bdfs: tuple[str, ...], uuid: Mapping[str, str], ranks: list[RankRow]
) -> tuple[dict[str, int], bool]:
    """(address -> rank, is every rank of the node placed so). Two ranks on one GPU: nobody is believed."""
    found: dict[str, int] = {}
    placed = 0
    for row in ranks:
        bdf = _by_own_words(bdfs, uuid, row, len(ranks))
        if bdf is None:
            continue
        if bdf in found:
            return {}, False
        found[bdf] = row.rank
        placed += 1
    return found, bool(ranks) and placed == len(ranks)


def _by_own_words(bdfs: tuple[str, ...], uuid: Mapping[str, str], row: RankRow, on_node: int) -> str | None:
    record = row.last or row.first or {}
    local = _number(row.env.get("LOCAL_RANK")) if "LOCAL_RANK" in row.env else whole(record.get("local_rank"))
    own = whole(record.get("ns_pid"))
    contained = own is not None and row.pid is not None and own != row.pid
    if local is None or not bdfs:
        return None
    visible = row.env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        # One GPU a rank in the order of the bus is what a launcher does; fewer ranks than GPUs may do anything.
        return bdfs[local] if on_node == len(bdfs) and local < len(bdfs) and not contained else None
    words = [word.strip() for word in visible.split(",") if word.strip()]
    if not words or (len(words) > 1 and local >= len(words)):
        return None
    word = words[0] if len(words) == 1 else words[local]
    if word in uuid:
        return uuid[word]
    number = _number(word)
    return bdfs[number] if number is not None and number < len(bdfs) and not contained else None


def _number(text: object) -> int | None:
    return int(text) if isinstance(text, str) and re.fullmatch(r"[0-9]{1,4}", text) else None


def _newest(ev: Evidence) -> tuple[dict[str, Sample], dict[str, Sample]]:
    return ev.latest("kernel"), ev.latest("gpu")


def driver_of(ev: Evidence, node: str) -> str | None:
    """The release of the kernel module that runs on a node: by the kernel's own file, else as NVML tells it."""
    kernel, gpu = (samples.get(node) for samples in ev.derive(_newest))
    nvidia = kernel.data.get("nvidia") if kernel is not None else None
    told = nvidia.get("driver") if isinstance(nvidia, Mapping) else None
    told = told or (gpu.data.get("driver") if gpu is not None else None)
    return told if isinstance(told, str) and told else None


def arch_of(ev: Evidence, node: str, bdf: str) -> int | None:
    """NVML's number of a GPU's generation, or None."""
    gpu = ev.derive(_newest)[1].get(node)
    rows = rows_of(gpu.data.get("gpus")) if gpu is not None else []
    return next((whole(row.get("arch")) for row in rows if short_bdf(row.get("bdf")) == short_bdf(bdf)), None)
