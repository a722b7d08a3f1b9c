"""A written job some of whose nodes are silent: what its survivors recorded, and what peers say of the silent ones."""

from __future__ import annotations

from dataclasses import replace

from written_dumps import CREATED, add_dumps, everyone, move_to
from written_evidence import NOW, World
from written_records import record

from triage.model import Node

OPEN = ["0 1 all_reduce", "0 2 all_reduce open"]
LATE = ["0 1 all_reduce"]


def address(name, rail=0):
    return f"10.88.{rail}.{int(name[3:])}:22"


def world(*silent, phase="tcp", error="no TCP connection within 4.0 s", frozen=True, states=None, rails=1, fabric=True):
    """4 nodes x 2 ranks, some of them silent; the job froze 100 s ago unless told otherwise."""
    w = World()
    w.skip_nodes = set(silent)
    w.job = replace(
        w.job,
        nodes=tuple(
            Node(
                name,
                f"10.1.0.{int(name[3:])}",
                fabric=tuple(address(name, rail) for rail in range(rails)) if fabric else (),
                state=(states or {}).get(name, ""),
            )
            for name in w.names
        ),
    )
    w.processes().fabric(0 if frozen else 1e6).log(last_ago=100 if frozen else 0.5)
    w.samples = [
        replace(s, data={"phase": phase, "error": error}) if s.probe == "contact" and s.node in silent else s
        for s in w.samples
    ]
    return w


def dumps(w, programs=None, lib="2.27.5", **others):
    """What the answering nodes' ranks recorded: by default all of them wait for the ranks of the silent ones."""
    add_dumps(w, programs or everyone(OPEN, **others), lib=lib)
    w.samples = [s for s in w.samples if s.probe != "flight_recorder" or s.node not in w.skip_nodes]
    return w


def ask(w, peer, results, controls="open", management="timeout", look="C"):
    """What this peer says of the silent nodes: node -> result (or one a rail), and of two nodes that answer."""
    healthy = [n for n in w.names if n not in w.skip_nodes and n != peer]
    told = {**dict.fromkeys(healthy[:2], controls), **results}
    targets = []
    for name, result in told.items():
        rails = result if isinstance(result, (list, tuple)) else [result]
        targets.append(
            {
                "node": name,
                "management": [{"address": f"10.1.0.{int(name[3:])}:22", "result": management, "errno": None}],
                "fabric": [{"address": address(name, i), "result": r, "errno": None} for i, r in enumerate(rails)],
            }
        )
    w.add("peers", peer, look, {"targets": targets})
    return w


def gone(w):
    """The node is gone as far as all three peers can tell."""
    for peer in [n for n in w.names if n not in w.skip_nodes]:
        ask(w, peer, dict.fromkeys(sorted(w.skip_nodes), "timeout"))
    return w


def nodes_of(fact):
    return [part.node for part in fact.parts]


def down(w):
    """Whom the fact names, or why it names nobody."""
    told = w.fact("hosts.down")
    return nodes_of(told) if told.known else told.reason


def recorded(w, programs, groups):
    """What these ranks recorded, in groups of the test's own."""
    for node, name in enumerate(w.names):
        rows = []
        for rank in (2 * node, 2 * node + 1):
            if rank in programs:
                made = record(rank, programs[rank], groups)
                made["lib"] = "2.27.5"
                move_to(made, CREATED)
                rows.append({"rank": rank, "pid": 1000 + rank, "source": "poked", "mtime": NOW - 1, "record": made})
        if rows:
            w.add("flight_recorder", name, "C", {"ranks": rows})
    return w
