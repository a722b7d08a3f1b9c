"""What the flight recorder of one simulated rank would write: format 2.9, no stacks.

A collective and a single send have CUDA events and end as `completed`. The parts of a batch and of a coalesced collective
have none: they stay `scheduled` and unretired for ever, and only the entry that closes the batch tells (pytorch issue
137969, pull request 120270). A dump of active entries leaves out what was noticed as completed, and nothing else.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

from collective_simulator import Job, Op

START_NS = 1_795_990_000_000_000_000  # some hours before the NOW of written_evidence.py
ROUND_S = 10  # of wall clock a round of the machine takes


def closing_name(op: Op) -> str:
    return "ALLGATHER_coalesced" if op.name == "_broadcast_oop" else "coalesced"


def dump(
    job: Job,
    rank: int,
    enqueued: int,
    *,
    ring: int = 2000,
    first: int = 0,
    active: bool = False,
    until: int | None = None,
) -> dict[str, Any]:
    """The dump of a rank: the last `ring` entries, the first numbered `first`; as it was after round `until`."""
    entries: list[dict[str, Any]] = []
    p2p: dict[str, int] = {}
    local = {name: {r: i for i, r in enumerate(members)} for name, (_, members) in job.groups.items()}
    names = [name for name, (_, members) in job.groups.items() if rank in members]

    def write(op: Op, name: str, done: bool, shape: bool = True, **more: Any) -> None:
        at = START_NS + op.created * ROUND_S * 10**9 + len(entries) * 1000
        sizes = [list(op.shape)] if shape else []
        entries.append(
            {
                "record_id": first + len(entries), "pg_id": names.index(op.group),
                "process_group": (op.group, job.groups[op.group][0]), "collective_seq_id": op.seq,
                "p2p_seq_id": p2p.get(op.group, 0), "op_id": len(entries), "profiling_name": f"nccl:{name}",
                "time_created_ns": at, "time_discovered_started_ns": None,
                "time_discovered_completed_ns": at + 500_000 if done else None,
                "state": "completed" if done else "scheduled", "retired": done, "timeout_ms": 600_000,
                "input_sizes": sizes, "output_sizes": sizes, "input_dtypes": ["BFloat16"] if shape else [],
                "output_dtypes": ["BFloat16"] if shape else [], "is_p2p": not op.name, **more,
            }
        )  # fmt: skip

    for op in job.programs[rank][:enqueued]:
        if until is not None and op.created > until:
            break
        done = op.over is not None and (until is None or op.over <= until)
        if op.name and op.coalesced:
            for _ in range(op.coalesced):
                write(op, op.name, False)
            write(op, closing_name(op), done, shape=False)
        elif op.name:
            write(op, op.name, done)
        else:
            p2p[op.group] = p2p.get(op.group, 0) + 1
            spots = local[op.group]
            for side, a, b in op.parts:
                name = f"send {spots[a]}->{spots[b]}" if side == "s" else f"recv {spots[b]}<-{spots[a]}"
                write(op, name, done and not op.batched)
            if op.batched:
                write(op, "coalesced", done, shape=False)
    config = {n: {"name": n, "desc": job.groups[n][0], "ranks": str(job.groups[n][1])} for n in names}
    kept = entries[-ring:]
    if active:
        kept = [e for e in kept if e["time_discovered_completed_ns"] is None]
    return {
        "version": "2.9", "pg_config": config, "nccl_version": "2.27.3", "pg_status": _status(names, entries),
        "entries": kept,
    }  # fmt: skip


def _status(names: list[str], entries: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    def number(e: dict[str, Any]) -> int:
        return e["p2p_seq_id"] if e["is_p2p"] else e["collective_seq_id"]

    status = {}
    for i, name in enumerate(names):
        mine = [e for e in entries if e["process_group"][0] == name]
        over = [e for e in mine if e["retired"]]
        status[str(i)] = {
            "last_enqueued_collective": number(mine[-1]) if mine else -1,
            "last_started_collective": -1,
            "last_completed_collective": number(over[-1]) if over else -1,
        }
    return status


def as_bytes(made: dict[str, Any], as_json: bool = False) -> bytes:
    """The file of this dump. JSON writes 0 for a time that is not there, and the numbers of pg_status as text."""
    if not as_json:
        return pickle.dumps(made, 2)
    times = ("time_discovered_started_ns", "time_discovered_completed_ns")
    entries = [{k: 0 if k in times and v is None else v for k, v in e.items()} for e in made["entries"]]
    status = {key: {k: str(v) for k, v in row.items()} for key, row in made["pg_status"].items()}
    told = {**made, "pg_status": status, "entries": entries}
    if not entries:
        del told["entries"]
    return json.dumps(told).encode()
