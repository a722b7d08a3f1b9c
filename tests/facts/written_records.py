"""Flight records written by hand: what each rank would have dumped, from one line an operation."""

from __future__ import annotations

import re
from typing import Any

from triage.probes import _records as probe

from triage.facts.collectives import decode
from triage.facts.waitgraph import draw

T0_NS = 1_790_000_000_000_000_000
WORLD = {"0": ("default_pg", [0, 1, 2, 3])}
TP_DP = {
    **WORLD,
    "1": ("TP", [0, 1]), "2": ("TP", [2, 3]), "3": ("DP", [0, 2]), "4": ("DP", [1, 3]), "5": ("PP", [0, 1, 2]),
    "6": ("PP2", [0, 1]),
}  # fmt: skip


def entries(lines, groups, wrap=0, only_open=False):
    """ "0 4 all_reduce 8x4 open", "5 p 2 send 0->1 open", "0 4 all_reduce 16x4": group, number, op, shape, state.

    open | done | retired (over, but never noticed as completed) | gloo (over, and stays `scheduled`)
    """
    out, counts = [], {}
    for i, line in enumerate(lines):
        words = line.split()
        state = words.pop() if words[-1] in ("open", "done", "retired", "gloo") else "done"
        name, number = words[0], words[1]
        p2p = number == "p"
        if p2p:
            number, op, shape = words[2], f"{words[3]} {words[4]}", words[5] if len(words) > 5 else "4"
        else:
            op, shape = words[2], words[3] if len(words) > 3 else "8x4"
            counts[name] = int(number)
        dims = [[int(d) for d in part.split("x")] for part in shape.split(">")]
        over = state != "open"
        backend = "gloo" if state == "gloo" else "nccl"
        out.append(
            {
                "record_id": i + wrap, "pg_id": sorted(groups).index(name), "process_group": (name, groups[name][0]),
                "collective_seq_id": counts.get(name, 0), "p2p_seq_id": int(number) if p2p else 0, "op_id": i,
                "profiling_name": f"{backend}:{op}", "time_created_ns": T0_NS + i * 10**9, "input_sizes": [dims[0]],
                "output_sizes": [dims[-1]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
                "state": "completed" if state == "done" else "scheduled", "retired": over, "timeout_ms": 600_000,
                "time_discovered_completed_ns": T0_NS + i * 10**9 + 1 if state == "done" else None, "is_p2p": p2p,
            }
        )  # fmt: skip
    return [e for e in out if not (only_open and e["retired"])]


def dump(rank, lines, groups=None, **how) -> dict[str, Any]:
    groups = WORLD if groups is None else groups
    mine = {n: g for n, g in groups.items() if rank in g[1]}
    config = {n: {"name": n, "desc": d, "ranks": str(m)} for n, (d, m) in mine.items()}
    return {"version": "2.9", "pg_config": config, "pg_status": {}, "entries": entries(lines, groups, **how)}


def record(rank, lines, groups=None, **how):
    return probe.reduce_dump(dump(rank, lines, groups, **how), rank)


def picture(programs, groups=None, incapable=None, world=None, **how):
    """The wait graph of {rank: lines}."""
    records = {rank: record(rank, lines, groups, **how) for rank, lines in programs.items()}
    return draw(decode(records, world), incapable)


def repeated(line, first, last):
    """One line an operation for numbers first..last of "0 # all_reduce"."""
    return [re.sub("#", str(n), line) for n in range(first, last + 1)]
