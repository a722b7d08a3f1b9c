#!/usr/bin/env python3
"""What a flight record costs: on the node per rank, on the wire, and on the operator's side at 8,192 ranks.

usage: python tests/bench/bench_flight_records.py [RANKS] [ENTRIES]

Ranks are made, reduced and dropped one after the other, as nodes arrive; the operator keeps the reduced records only.
One rank has not entered the last collective of the default group, all others wait for it. Exit 1 over budget (DESIGN 11):
4 KB and 20 ms CPU a rank on the node; 1 s CPU and 100 MB for records, graph and facts on the operator's side.
"""

from __future__ import annotations

import gc
import io
import json
import pickle
import resource
import statistics
import sys
import time

from triage.probes import _records as probe

from triage.facts import registry
from triage.facts.evidence import Evidence
from triage.model import Job, Sample

TP, PER_NODE, TIMED = 8, 8, 24
T0_NS = 1_790_000_000_000_000_000
STEP = [("TP", "_all_gather_base", [4096, 512], [4096, 4096])] * 6 + [
    ("TP", "_reduce_scatter_base", [4096, 4096], [4096, 512])
] * 6
STEP += [("DP", "all_reduce", [1 << 20], [1 << 20])] * 2 + [("default_pg", "all_reduce", [1], [1])]


def make(rank: int, ranks: int, entries: int, stuck: int) -> dict[str, object]:
    """The dump of one rank, format 2.10, whole steps of 15 collectives."""
    tp, dp = rank // TP, rank % TP
    names = {"default_pg": "0", "TP": str(1 + tp), "DP": str(1_000_000 + dp)}
    members = {
        "default_pg": list(range(ranks)),
        "TP": list(range(tp * TP, min(ranks, tp * TP + TP))),
        "DP": list(range(dp, ranks, TP)),
    }
    count, seq, out = entries // len(STEP) * len(STEP), dict.fromkeys(names, 0), []
    for i in range(count - (rank == stuck)):
        desc, op, sizes_in, sizes_out = STEP[i % len(STEP)]
        seq[desc] += 1
        now, is_open = T0_NS + i * 1_000_000, i == count - 1
        out.append(
            {"record_id": i, "pg_id": list(names).index(desc), "process_group": (names[desc], desc),
             "collective_seq_id": seq[desc], "p2p_seq_id": 0, "op_id": seq[desc], "profiling_name": "nccl:" + op,
             "time_created_ns": now + rank * 1000, "input_sizes": [sizes_in], "input_dtypes": ["BFloat16"],
             "output_sizes": [sizes_out], "output_dtypes": ["BFloat16"], "state": "scheduled" if is_open else "completed",
             "time_discovered_started_ns": None, "time_discovered_completed_ns": None if is_open else now + 900_000,
             "retired": not is_open, "timeout_ms": 600_000, "is_p2p": False, "thread_id": "139", "thread_name": "main"}
        )  # fmt: skip
    status = {
        str(k): {
            "last_enqueued_collective": seq[d], "last_started_collective": -1,
            "last_completed_collective": seq[d] - (d == "default_pg" and rank != stuck),
        }
        for k, d in enumerate(names)
    }  # fmt: skip
    config = {names[d]: {"name": names[d], "desc": d, "ranks": str(members[d])} for d in names}
    return {"version": "2.10", "pg_config": config, "comm_lib_version": "2.27.5", "pg_status": status, "entries": out}


class AsPyTorch(pickle._Pickler):  # type: ignore[name-defined,misc]  # the one of C cannot be told what to remember
    """Writes a dump as PyTorch's own pickler does: only texts go into the memo (seen in all dumps of real jobs).

    Python's pickler remembers every list and map as well, which makes a dump a quarter larger and slower to read.
    """

    def memoize(self, obj: object) -> None:
        if type(obj) is str:
            super().memoize(obj)


def as_pytorch(dump: object) -> bytes:
    out = io.BytesIO()
    AsPyTorch(out, 2).dump(dump)
    return out.getvalue()


def main() -> int:
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 8192
    entries = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    stuck = ranks // 2 + 5
    node_ms: list[float] = []
    kept: list[str] = []
    for rank in range(0, ranks):
        # Making and reading a whole dump costs far more than reducing it: all ranks of one kind differ in names only, so the
        # first of each node is timed whole, the others are made with few entries and the same end.
        whole = len(node_ms) < TIMED and rank % (ranks // min(TIMED, ranks) or 1) == 0
        made = make(rank, ranks, entries if whole or rank == stuck else 16 * len(STEP), stuck)
        if whole:
            raw, cache = as_pytorch(made), {}
            del made
            began = time.process_time()
            record = probe.read_dump(raw, rank, cache)
            node_ms.append((time.process_time() - began) * 1000)
        else:
            record = probe.reduce_dump(made, rank)
            if rank != stuck:
                shift(record, entries)
        kept.append(json.dumps(record))
    sizes = [len(text) for text in kept]
    gc.collect()
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    samples = []
    for first in range(0, ranks, PER_NODE):
        rows = [
            {"rank": r, "pid": 1, "source": "poked", "mtime": T0_NS / 1e9 + 60, "stale": False, "why": "", "poke": "written",
             "record": json.loads(kept[r])}
            for r in range(first, min(ranks, first + PER_NODE))
        ]  # fmt: skip
        samples.append(Sample("flight_recorder", f"gpu{first // PER_NODE:04d}", "C", "ok", {"ranks": rows}))
        for r in range(first, min(ranks, first + PER_NODE)):
            kept[r] = ""
    parsed = time.process_time()
    ev = Evidence(Job("bench", "inventory", ()), samples, T0_NS / 1e9 + 60)
    names = ("roots", "absent", "mismatch", "cycle", "members", "victims", "known_share", "all_joined", "host_stuck")
    facts = {name: registry.other(ev, f"waits.{name}") for name in names}
    operator_s = time.process_time() - began
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
    found = [part.rank for part in facts["roots"].parts]
    print(f"ranks {ranks}, entries {entries}; root found: {found} (right: {[stuck]})")
    print(f"node     CPU ms a rank   median {statistics.median(node_ms):.1f}, worst {max(node_ms):.1f}   (budget 20)")
    print(f"wire     bytes a rank    median {statistics.median(sizes):.0f}, worst {max(sizes)}   (budget 4096)")
    print(
        f"operator CPU s           parse {parsed - began:.2f}, facts {operator_s - (parsed - began):.2f}   (budget 1 in all)"
    )
    print(f"operator memory grown by {grown_mb:.0f} MB   (budget 100)")
    good = found == [stuck] and statistics.median(node_ms) <= 20 and max(sizes) <= 4096
    return 0 if good and operator_s <= 1.0 and grown_mb <= 100 else 1


def shift(record: dict[str, object], entries: int) -> None:
    """Move a record made with 16 steps to the numbers that it would have with all entries."""
    steps = entries // len(STEP) - 16
    per = {"TP": 12, "DP": 2, "default_pg": 1}
    for row in record["groups"]:  # type: ignore[attr-defined]
        add = steps * per[row["desc"]]
        for key in ("enq", "first_open", "last_done"):
            if key in row:
                row[key] += add
        start, _, rest = row["win"].partition(":")
        row["win"] = f"{int(start) + add}:{rest}"
        row["status"] = [n + add for n in row["status"]]
    for unit in record["open"]:  # type: ignore[attr-defined]
        unit["seq"] += steps


if __name__ == "__main__":
    sys.exit(main())
