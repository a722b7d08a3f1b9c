"""Answers of the `activity` probe written by hand: what the ranks of a written world do within its window."""

from __future__ import annotations

from written_evidence import NOW

WINDOW_S = 1.5
AT = NOW - 0.1  # when the window ended, by the nodes' clock


def compiler(cpu_s=1.2, comm="ptxas", pid=7001, state="R"):
    return {"pid": pid, "comm": comm, "cpu_s": cpu_s, "state": state}


def cache(files=0, grown=0, newest_ago=None, path="/scratch/inductor", kind="inductor", **more):
    newest = None if newest_ago is None else AT - newest_ago
    told = {
        "path": path,
        "kind": kind,
        "files_new": files,
        "bytes_grown": grown,
        "newest_at": newest,
        "truncated": False,
    }
    return {**told, **more}


def doing(rank, compilers=(), caches=(), **more):
    """What one rank does: idle, but for what is named."""
    return {
        "rank": rank, "pid": 1000 + rank, "compilers": list(compilers), "caches": list(caches),
        "compiler_cpu_s": sum(each["cpu_s"] for each in compilers if each), "cpu_s": 1.5, "read_bytes_grown": 0,
        "write_bytes_grown": 0, "rchar_grown": 0, "wchar_grown": 0, "progress_line": None, "progress_moved": None,
        "folders": [], **more,
    }  # fmt: skip


def compiles(rank, **more):
    """Both signs: a compiler at work and a cache that grows."""
    return doing(rank, [compiler()], [cache(files=3)], **more)


def watch(world, *rows, everybody=False, node=None):
    """The nodes that host these ranks were asked; with `everybody` the other ranks were watched too, and are idle."""
    told = {row["rank"]: row for row in rows}
    if everybody:
        told = {**{rank: doing(rank) for rank in range(len(world.names) * world.per_node)}, **told}
    by_node = {}
    for rank, row in sorted(told.items()):
        by_node.setdefault(node or world.names[rank // world.per_node], []).append(row)
    for name, ranks in by_node.items():
        world.add("activity", name, "C", {"window_s": WINDOW_S, "ranks": ranks, "unseen": []})
    return world
