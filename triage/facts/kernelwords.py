"""What single lines of a kernel log say of a process that ended: which memory was short, which process was hit by what.

    Memory cgroup out of memory: Killed process 31337 (python) …         the limit of a cgroup (a job, a pod): the node has more
    Out of memory: Killed process 4242 (python) …                        the node itself
    Killed process 4243 (python) total-vm:…                              5.0 and older: the lines beside it tell which
    oom-kill:constraint=CONSTRAINT_MEMCG,…,oom_memcg=/…/job_4711,…       5.0 and newer: whose limit
What can fool it: lines that are rate-limited away (then neither is said); two kills in one second on an old kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from triage.facts.activity import number, rows_of
from triage.facts.claims import whole
from triage.facts.ranktable import RankRow

CGROUP = "Memory cgroup out of memory"
NODE = "Out of memory"
# An old kernel prints whom it chose, whose limit it was and whom it killed in one go.
TOGETHER_S = 2.0
# What ends a process by a fault of its own or of the host's memory: class of the signature -> is it a segmentation fault?
FAULTS = {"segfault": True, "memory_failure": False}


def groups_of(event: Mapping[str, Any]) -> Mapping[str, Any]:
    told = event.get("groups")
    return told if isinstance(told, Mapping) else {}


def oom_scope(events: Iterable[Mapping[str, Any]], kill: Mapping[str, Any]) -> tuple[str, str]:
    """("cgroup" | "node" | "", whose limit it was where that is told) of one kill, by its own line and those beside it."""
    text, pid, at = str(kill.get("text") or ""), str(groups_of(kill).get("pid") or ""), number(kill.get("at"))
    scope = "cgroup" if CGROUP in text else "node" if NODE in text else ""
    limit = ""
    for event in events:
        groups, when = groups_of(event), number(event.get("at"))
        near = at is not None and when is not None and abs(at - when) <= TOGETHER_S
        if event.get("id") == "oom_context" and pid and str(groups.get("pid")) == pid:
            of_cgroup = groups.get("constraint") == "CONSTRAINT_MEMCG"
            scope = scope or ("cgroup" if of_cgroup else "node")
            limit = limit or (str(groups.get("memcg") or "") if of_cgroup else "")
        elif event.get("id") == "oom_group" and near and groups.get("memcg"):
            scope, limit = scope or "cgroup", limit or str(groups["memcg"])
        elif event.get("id") == "oom_chosen" and near:
            scope = scope or ("cgroup" if CGROUP in str(event.get("text") or "") else "node")
    return scope, limit[:160]


def pids_of(row: RankRow) -> set[int]:
    """Under which numbers a rank's own process, or the wrapper around it, is known."""
    found = {row.pid}
    for record in (row.first, row.last):
        found |= {whole((record or {}).get("pid")), whole((record or {}).get("top_pid"))}
    return {pid for pid in found if pid is not None}


def faults_of(events: object, rows: Iterable[RankRow]) -> list[tuple[RankRow, Mapping[str, Any], bool]]:
    """(rank, event, was it a segmentation fault) of each kernel line that names the process of one of these ranks."""
    by_pid = {str(pid): row for row in rows for pid in pids_of(row)}
    found = []
    for event in rows_of(events):
        row = by_pid.get(str(groups_of(event).get("pid") or ""))
        if row is not None and event.get("kind") in FAULTS:
            found.append((row, event, FAULTS[str(event["kind"])]))
    return found
