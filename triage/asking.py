"""Whom a question asks with a costly probe, and with which arguments: the suspects that answer, and some of their peers.

    plan(request, evidence) -> {"gpu002": {"window_s": 1.5, "ranks": [{"rank": 2, "pid": 1002}]}}

A probe that needs no more than the playbook's own arguments (`ask_for: {args: ...}`) needs nothing here. One that must be
told what to look at (which processes, which neighbours) has an entry in ASKED: its defaults, which the playbook may
override, and a function that makes of the evidence what only this run knows, which it may not. Pure: it asks nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from zlib import crc32

from triage.facts.evidence import Evidence
from triage.facts.launches import nccl_release, own_pid
from triage.facts.peers import answering, fabric, management
from triage.facts.ranktable import RankRow, rank_table
from triage.facts.registry import other
from triage.model import Node, Sample
from triage.tree.walk import Request

Item = TypeVar("Item")
Args = dict[str, Any]
Maker = Callable[[Request, Evidence, str], Args | None]  # of one node; None: it has nothing to say to this

MOST_TARGETS = 64  # of the `peers` probe, which connects to all of them at once
ALL_PAIRS = 17  # nodes: up to so many each tries every other one
CONTROLS = 2  # among them nodes that answer us: a peer that reaches none says nothing of the silent ones


@dataclass(frozen=True)
class Asked:
    """What a probe is told: `defaults` < the playbook's arguments < what `make` says of one node."""

    make: Maker
    defaults: Mapping[str, Any] = field(default_factory=dict)
    most: int | None = None  # nodes: one answer may tell of the whole job


def plan(request: Request, ev: Evidence) -> dict[str, Args]:
    """node -> the arguments of the probe there. Empty where nobody who could tell answers us."""
    asked = ASKED.get(request.probe, Asked(lambda request, ev, node: {}))
    out: dict[str, Args] = {}
    for node in whom(request, ev):
        ours = asked.make(request, ev, node)
        if ours is not None:
            out[node] = {**asked.defaults, **request.args, **ours}
        if len(out) == asked.most:
            break
    return out


def whom(request: Request, ev: Evidence) -> list[str]:
    """The suspects that answer, then `request.peers` others: spread over the job, so that no one rack speaks alone."""
    suspected = {part.node for part in request.parts}
    # Who went silent between the looks would only cost the time that the others need.
    lost = {part.node for part in other(ev, "hosts.lost").parts}
    healthy = [node.name for node in ev.derive(answering)]
    peers = [name for name in healthy if name not in suspected and name not in lost]
    return [*(name for name in healthy if name in suspected), *spread(peers, request.peers)]


def spread(items: Sequence[Item], count: int) -> list[Item]:
    """`count` of them and always the same ones: the first, the last, and evenly between."""
    if count <= 1 or count >= len(items):
        return list(items[: max(0, count)])
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


# ---------------------------------------------------------------- what each probe must be told


def _rows(ev: Evidence) -> dict[str, list[RankRow]]:
    """node -> its live ranks."""
    found: dict[str, list[RankRow]] = {}
    for row in ev.derive(rank_table).rows.values():
        if row.node and row.alive:
            found.setdefault(row.node, []).append(row)
    return found


def _processes(rows: Sequence[RankRow]) -> list[dict[str, Any]]:
    return [{"rank": row.rank, "pid": row.pid} for row in rows]


def _dumps(request: Request, ev: Evidence, node: str) -> Args | None:
    """All live ranks of the node: each has a flight recorder of its own."""
    return {"ranks": _processes(ev.derive(_rows).get(node, []))}


def _activity(request: Request, ev: Evidence, node: str) -> Args | None:
    """The suspected ranks of the node; all of its ranks where it is a peer, or suspected as a whole."""
    suspected = {part.rank for part in request.parts if part.node == node and part.rank is not None}
    rows = [row for row in ev.derive(_rows).get(node, []) if row.rank in suspected or not suspected]
    return {"ranks": _processes(rows)} if rows else None


def _stacks(request: Request, ev: Evidence, node: str) -> Args | None:
    """The suspected ranks of the node; of a node of peers one rank, which waits if that is known.

    Where the whole job lives on the suspects' nodes, its other ranks there are the peers.
    """
    suspected = {part.rank for part in request.parts if part.rank is not None}
    rows = sorted(ev.derive(_rows).get(node, []), key=lambda row: row.rank)
    ours = [row for row in rows if row.rank in suspected]
    waiting = {part.rank for part in other(ev, "waits.victims").parts}
    others = sorted((row for row in rows if row.rank not in suspected), key=lambda row: row.rank not in waiting)
    nodes = {part.node for part in request.parts}
    if not ours:
        chosen = others[:1] if node not in nodes else []
    else:
        alone = all(each.name in nodes for each in ev.derive(answering))
        chosen = [*ours, *(others[: request.peers] if alone else [])]
    return {"ranks": _processes(chosen)} if chosen else None


def _ras(request: Request, ev: Evidence, node: str) -> Args | None:
    """The node's live ranks as they know themselves, and whether communicators may be in their set-up now."""
    rows = ev.derive(_rows).get(node, [])
    rows = [row for row in rows if row.pid is not None and row.state not in ("T", "t")]
    if not rows:
        return None
    version = ev.derive(nccl_release)
    return {
        "ranks": [{"rank": row.rank, "pid": row.pid, "ns_pid": own_pid(row)} for row in rows],
        "world": ev.derive(rank_table).world_size,
        "init": _set_up(ev),
        "address": rows[0].env.get("NCCL_RAS_ADDR", ""),
        **({"nccl": version} if version else {}),
    }


def _set_up(ev: Evidence) -> str:
    """Are communicators set up by now? "past", "during", or "unclear": a set-up that hangs is old as well."""
    if other(ev, "progress.collective_ever").value is True:
        return "past"
    age = other(ev, "job.age_s").value
    return "during" if isinstance(age, int | float) and age < ev.limit("ras_init_s") else "unclear"


def _peers(request: Request, ev: Evidence, node: str) -> Args | None:
    """The suspects' addresses, and those of some nodes that answer us: whether this peer's own fabric works.

    With `pairs`: nobody is suspected, and each tries its neighbours of a ring and so many others of the job.
    """
    pairs = request.args.get("pairs")
    if isinstance(pairs, int):
        return _ring(ev, node, pairs)
    suspected = {part.node for part in request.parts} - {node}
    suspects = [each for each in ev.job.nodes if each.name in suspected]
    suspects.sort(key=lambda each: not each.fabric)  # if they are too many: those that can be judged
    healthy = [n for n in ev.derive(answering) if n.fabric and n.name != node and n.name not in suspected]
    controls = spread(healthy, CONTROLS)
    targets = [*controls, *suspects[: MOST_TARGETS - len(controls)]]
    return {"targets": [_target(each) for each in targets]} if suspects else None


def _ring(ev: Evidence, node: str, pairs: int) -> Args | None:
    """Whom this node tries on the fabric: the next two of the ring, and `pairs` more that are always the same ones.

    Linear in the nodes (notes/network.md 4.1); where they are few, all of them.
    """
    names = [each.name for each in ev.derive(answering) if each.fabric]
    count = len(names)
    if node not in names or count < 3:
        return None
    at = names.index(node)
    steps: Sequence[int] = range(1, count)
    if count > ALL_PAIRS:
        steps = [1, 2, *(3 + crc32(f"{node}/{i}".encode()) % (count - 3) for i in range(pairs))]
    chosen = dict.fromkeys(names[(at + step) % count] for step in steps)
    found = {each.name: each for each in ev.job.nodes}
    return {"targets": [{**_target(found[name]), "management": []} for name in chosen]}


def _target(node: Node) -> dict[str, Any]:
    return {"node": node.name, "management": [management(node)], "fabric": list(fabric(node))}


def hung_gpus(samples: Iterable[Sample]) -> dict[str, list[str]]:
    """node -> addresses of its GPUs that have hung once: to ask them again costs their node the whole of the limit."""
    found: dict[str, dict[str, None]] = {}
    for sample in samples:
        if sample.probe == "gpu" and sample.node and sample.status == "ok":
            hung = [gpu["bdf"] for gpu in sample.data.get("gpus", ()) if gpu.get("status") == "hung" and gpu.get("bdf")]
            if hung:
                found.setdefault(sample.node, {}).update(dict.fromkeys(hung))
    return {node: list(hung) for node, hung in found.items()}


def _gpu(request: Request, ev: Evidence, node: str) -> Args | None:
    hung = hung_gpus(ev.samples).get(node)
    return {"skip": hung} if hung else {}


ASKED: Mapping[str, Asked] = {
    "flight_recorder": Asked(_dumps, {"wait_s": 6.0}),
    "activity": Asked(_activity, {"window_s": 1.5}),
    "stacks": Asked(_stacks),
    "peers": Asked(_peers, {"timeout_s": 2.0}),
    "ras": Asked(_ras, most=2),
    "gpu": Asked(_gpu),
}
