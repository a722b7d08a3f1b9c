"""Dumps of a written world: what each rank of 4 nodes x 2 ranks would have written."""

from __future__ import annotations

from importlib import resources

from written_activity import doing, watch
from written_evidence import NOW, World
from written_records import record

from triage.case import CaseFile
from triage.conclude import conclude
from triage.investigate import probe_names

RANKS = {"0": ("default_pg", [0, 1, 2, 3, 4, 5, 6, 7])}
GROUPS = {**RANKS, **{str(i + 1): ("TP", [2 * i, 2 * i + 1]) for i in range(4)}}
WAITS = ["0 1 all_reduce", "0 2 all_reduce open"]
LATE = ["0 1 all_reduce"]
WROTE = NOW - 1.0  # when the dumps were written, after look A
CREATED = NOW - 400  # when what is open was enqueued


def world_with(programs, poked=True, **row):
    """A world of 4 nodes x 2 ranks whose ranks have dumped these operations; None: no dump came."""
    w = World().processes()
    add_dumps(w, programs, poked, **row)
    return w


def add_dumps(w, programs, poked=True, created=CREATED, mtime=WROTE, lib="", **row):
    for node, name in enumerate(w.names):
        rows = []
        for rank in (2 * node, 2 * node + 1):
            if rank not in programs:
                continue
            made = None
            if programs[rank] is not None:
                made = record(rank, programs[rank], GROUPS)
                made["lib"] = lib
                move_to(made, created)
            rows.append(
                {"rank": rank, "pid": 1000 + rank, "state": "S", "source": "poked" if poked else "file", "path": f"/d{rank}",
                 "mtime": mtime if made else None, "age_s": 1.0, "stale": False, "why": "" if made else "no dump",
                 "poke": "written", "record": made, **row.get(f"rank_{rank}", {})}
            )  # fmt: skip
        w.add("flight_recorder", name, "C", {"ranks": rows})
    return w


def report(w, **changes):
    """The report that this world gets: facts, walk, words, as a run that may ask for nothing more.

    Where the world does not say what its ranks do, each was watched and does nothing of its own.
    """
    if not any(s.probe == "activity" for s in w.samples):
        hosts = [(rank, w.names[rank // w.per_node]) for rank in range(len(w.names) * w.per_node)]
        watch(w, *(doing(rank) for rank, name in hosts if name not in w.skip_nodes))
    books = {
        n: (resources.files("triage.playbooks") / f"{n}.yaml").read_text() for n in ("frozen-job", "slow-job", "costs")
    }
    profile = "\n".join(["thresholds:", *(f"  {name}: {value}" for name, value in changes.items())]) if changes else ""
    case = CaseFile("c", "frozen-job", w.job, NOW, books, profile, asked=("flight_recorder",), samples=tuple(w.samples))
    return conclude(case, probes=tuple(probe_names()), can_ask=False).report


def named(w):
    """(cause of the verdict, ranks that are accused, confidence) of a world."""
    told = report(w)
    return told.verdict.cause, [c.rank for c in told.culprits], told.verdict.confidence


def move_to(made, created):
    """Shift the record's times so that its newest entry was created then."""
    shift = created - made["newest_s"]
    made["newest_s"] += shift
    for unit in made["open"]:
        unit["at"] += shift


def ranks_of(found):
    return [part.rank for part in found.parts]


def everyone(lines, **others):
    return {**dict.fromkeys(range(8), lines), **{int(k[1:]): v for k, v in others.items()}}
