"""Whose step files are these? Only the job's own may speak for its progress, its pace and its slow ranks.

The `steps` probe tells, of each file, the processes that name it and their environment. What can fool it: another job on
the node (its files, or its ranks' in our file), the files of an earlier attempt, a rank number that the job does not have,
a launcher that passes its own number to all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triage.facts.clocks import our_time
from triage.facts.evidence import Evidence
from triage.facts.ranktable import RankTable, belongs, rank_table, set_of
from triage.model import Sample

# Clocks are measured to two seconds at worst, a log's zone to 30 (joblog): what lies further ahead of now is no time.
FUTURE_S = 60.0


def job_steps(ev: Evidence) -> tuple[tuple[Sample, Mapping[str, Any]], ...]:
    """(sample, entry) of the step files that are this job's, in the order of the samples; of a rank the newest file.

    Left out: files of another job on the node, of a rank that the job does not have or that lives on another node, of an
    earlier attempt, and files that another job writes to as well. A dead rank's file is the job's because its prefix is
    a living rank's. To be called through `ev.derive`.
    """
    table = ev.derive(rank_table)
    found: list[tuple[Sample, Mapping[str, Any]]] = []
    for sample in ev.of("steps"):
        entries = [entry for entry in sample.data.get("ranks") or () if isinstance(entry, Mapping)]
        owned = [(entry, _is_ours(ev, table, sample.node, entry)) for entry in entries]
        foreign = {
            entry.get("path") for entry, ours in owned if (not ours or entry.get("shared")) and entry.get("path")
        }
        newest: dict[int, Mapping[str, Any]] = {}
        for entry, ours in owned:
            if not ours or entry.get("path") in foreign or not _is_current(ev, table, sample.node, entry):
                continue
            old = newest.setdefault(entry["rank"], entry)
            if (entry.get("last_at") or 0.0) > (old.get("last_at") or 0.0):
                newest[entry["rank"]] = entry
        found += [(sample, entry) for entry in newest.values()]
    return tuple(found)


def _is_ours(ev: Evidence, table: RankTable, node: str, entry: Mapping[str, Any]) -> bool:
    """Do the processes that name this file belong to the job? As ranktable chooses its ranks."""
    env, pids = entry.get("set"), entry.get("pids")
    if not isinstance(env, Mapping) or not isinstance(pids, list):
        # Plain numbers have no owner: they are the job's where nobody else's ranks run on the node.
        return node not in ev.derive(_shared_nodes)
    told = _fits(ev, table, env)
    return told if told is not None else any((node, pid) in ev.derive(_rank_pids) for pid in pids)


def _fits(ev: Evidence, table: RankTable, env: Mapping[str, str]) -> bool | None:
    """Is an environment the job's, by its rule, else by the rank sets that were taken for the job? None: nothing tells."""
    told = belongs(env, ev.job.id, ev.job.match)
    if told is None and (set_of(env) in table.sets or not table.sets):
        return True
    return told


def _rank_pids(ev: Evidence) -> set[tuple[str | None, Any]]:
    records = [(row.node, r) for row in ev.derive(rank_table).rows.values() for r in (row.first, row.last) if r]
    return {(node, record.get(name)) for node, record in records for name in ("pid", "top_pid")} - {(None, None)}


def _shared_nodes(ev: Evidence) -> set[str]:
    """Nodes where ranks of another job run beside ours."""
    table = ev.derive(rank_table)
    return {
        sample.node
        for sample in ev.of("ranks")
        for record in sample.data.get("ranks") or ()
        if isinstance(record, Mapping) and not _fits(ev, table, record.get("env") or {})
    }


def _is_current(ev: Evidence, table: RankTable, node: str, entry: Mapping[str, Any]) -> bool:
    """Is it the file of a rank that the job has, here, in this attempt?"""
    rank, last_at = entry.get("rank"), entry.get("last_at")
    if not isinstance(rank, int) or (table.world_size is not None and rank >= table.world_size):
        return False
    home = table.node_of(rank)
    if node and home is not None and home != node:
        return False
    if not isinstance(last_at, int | float):
        return True
    started, row = ev.job.attempt.started, table.rows.get(rank)
    if started is not None and our_time(ev, node, last_at) < started - 1.0:
        return False
    # The same clock wrote both; a process start is known to a second.
    return not (row and row.start_s is not None and home == node and last_at < row.start_s - 2.0)


def last_steps(ev: Evidence, sample: Sample) -> dict[int, int]:
    """rank -> number of its last finished step, of the job's own files in one answer of `steps`."""
    return {
        entry["rank"]: entry["last_step"]
        for told, entry in ev.derive(job_steps)
        if told is sample and isinstance(entry.get("last_step"), int)
    }


def last_record_end(ev: Evidence) -> tuple[float, Sample] | None:
    """The end of the newest recorded step on our clock, and who told it. A record of the future tells nothing."""
    best: tuple[float, Sample] | None = None
    for sample, entry in ev.derive(job_steps):
        at = entry.get("last_at")
        if not isinstance(at, int | float):
            continue
        ours = our_time(ev, sample.node, float(at))
        if ours <= ev.observed + FUTURE_S and (best is None or ours > best[0]):
            best = (ours, sample)
    return best
