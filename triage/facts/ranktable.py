"""One table of all ranks of the job: where each lives, and whether it lives.

Sources: the `ranks` probe in both looks as far as it may be believed (claims.py), `reach` (what we may see), the
launcher's lines in the job log, `contact`, and dumps that a rank wrote when it was asked.
What can fool it: a node whose processes we may not see (nothing is then "gone"), a second job of the same user on the
node (other rank set), a pid that was given to another process (the start time is compared), orphaned loader workers
that wear the rank's environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from triage.facts.attempt import WRITTEN_NOW
from triage.facts.claims import ATTEMPT_SLACK_S, Claims, claims, environment, records_of, whole
from triage.facts.claims import belongs as belongs
from triage.facts.claims import set_of as set_of
from triage.facts.evidence import Evidence
from triage.model import Sample

STATES = frozenset("RSDTtZXIWKP")  # proc(5)


@dataclass(frozen=True)
class RankRow:
    """One global rank. `alive` and `gone` are both None or False where we cannot say; they are never both true."""

    rank: int
    node: str | None
    pid: int | None
    state: str | None  # R S D T Z, of the newest look
    start_s: float | None  # the node's clock
    env: Mapping[str, str]
    alive: bool | None
    gone: bool | None
    why: str
    first: Mapping[str, Any] | None = None  # the record of look A
    last: Mapping[str, Any] | None = None  # the record of look B (or A, where B has none)
    exit_code: int | None = None  # from the launcher's line
    exit_at: float | None = None  # as the log dates that line


@dataclass(frozen=True)
class RankTable:
    rows: Mapping[int, RankRow]
    world_size: int | None
    node_ranks: Mapping[str, tuple[int, ...]]  # node -> ranks known to be hosted there, alive or gone
    full_nodes: frozenset[str]  # nodes whose processes we see fully, in the newest look
    sets: tuple[tuple[tuple[str, str], ...], ...] = ()  # rank sets seen that belong to the job, as (name, value) pairs
    claimed: Mapping[int, str] = field(default_factory=dict)  # rank -> why a claim on it is not believed

    def node_of(self, rank: int) -> str | None:
        row = self.rows.get(rank)
        return row.node if row else None


@dataclass(frozen=True)
class Exit:
    """A launcher's line "failed (exitcode: -9) local_rank: 1 (pid: N)", tied to a rank."""

    code: int
    at: float | None  # as the log dates it
    pid: int


def rank_sets(ev: Evidence) -> list[tuple[tuple[str, str], ...]]:
    """The rank sets that could be this job: exactly one is good; the caller refuses two (exit 2)."""
    return list(ev.derive(claims).sets)


def rank_table(ev: Evidence) -> RankTable:
    found = ev.derive(claims)
    newest = ev.latest("ranks")
    full = frozenset(node for node, s in newest.items() if node not in found.broken and _sees_fully(ev, s))
    world = found.world
    told = {rank for look in found.looks.values() for rank in look} | set(found.homes) | set(found.impostors)
    doubted = {rank for rank in found.doubted if world is None or 0 <= rank < world}
    make = _Rows(ev, found, newest, full)
    rows = {rank: make.row(rank) for rank in sorted(told | doubted | set(range(world or 0)))}
    hosted: dict[str, list[int]] = {}
    for row in rows.values():
        if row.node:
            hosted.setdefault(row.node, []).append(row.rank)
    return RankTable(
        rows,
        world,
        {node: tuple(ranks) for node, ranks in hosted.items()},
        full,
        tuple(found.sets),
        {**{rank: why for rank, (_, why) in found.impostors.items()}, **found.doubted},
    )


def _uids(ev: Evidence) -> set[object]:
    """The users under whom the ranks of all nodes run."""
    return {
        r.get("uid")
        for sample in ev.of("ranks")
        for r in records_of(sample)
        if isinstance(r, Mapping) and isinstance(r.get("uid"), int)
    }


def _sees_fully(ev: Evidence, sample: Sample) -> bool:
    """Root, or the job's own user on a node without hidepid: only there may "gone" be said (DESIGN section 2)."""
    if sample.data.get("truncated"):
        return False
    if sample.data.get("sees_all") is True:
        return True
    reach = ev.derive(_reach).get(sample.node)
    hidden = reach is None or reach.data.get("hidepid") not in (None, 0)
    if hidden:
        return False
    # The job's user: its own ranks elsewhere run under the uid that probes with.
    uid = sample.data.get("own_uid")
    return uid is not None and ev.derive(_uids) == {uid}


def _reach(ev: Evidence) -> dict[str, Sample]:
    return ev.latest("reach")


class _Rows:
    """Makes one row after the other."""

    def __init__(self, ev: Evidence, found: Claims, newest: Mapping[str, Sample], full: frozenset[str]) -> None:
        self.found, self.newest, self.full = found, newest, full
        self.first, self.last = found.looks.get("A", {}), found.looks.get("B", {})
        self.exits = ev.derive(launcher_exits)
        self.answered = ev.derive(_answered)

    def row(self, rank: int) -> RankRow:
        if rank in self.found.doubted:
            return _unknown(rank, None, self.found.doubted[rank])
        row = self._by_processes(rank)
        if not row.alive and row.node and (row.node, rank) in self.answered:
            # It ran after the looks: whatever hid its process there, it is not gone.
            why = "it wrote a flight record when it was asked, after the looks"
            return replace(row, alive=True, gone=False, state=None, why=why)
        return row

    def _by_processes(self, rank: int) -> RankRow:
        first, last, home = self.first.get(rank), self.last.get(rank), self.found.homes.get(rank)
        now = last
        if first and not last:
            node, record = first
            sample = self.newest.get(node)
            again = self.found.listed.get(node, {}).get(record.get("pid") or -1)
            if sample is None or sample.look == "A":
                now = first  # without a look B of that node A is simply the newest we have
            elif again is not None and again.get("start_ticks") == record.get("start_ticks"):
                # The same process is there, under another number or environment: hardly a death.
                now = (node, {**record, "state": again.get("state")})
        before = first[1] if first else None
        if now:
            return _seen(rank, *now, before)
        node_name = first[0] if first else (home[0] if home else None)
        told = before or {}
        exit_ = self.exits.get((node_name or "", rank))
        impostor = self.found.impostors.get(rank)
        if impostor and exit_ is None:
            return _unknown(rank, node_name or impostor[0], impostor[1])
        if node_name is None:
            return _unknown(rank, None, "no node is known to host it")
        pid = whole(told.get("pid")) or (exit_.pid if exit_ and exit_.pid else None)
        base = (rank, node_name, pid, None, _start(told), environment(told))
        if node_name not in self.newest:
            return RankRow(*base, None, None, f"{node_name} did not tell its processes")
        if node_name not in self.full:
            return RankRow(*base, None, None, f"not all processes of {node_name} are visible to us")
        if not impostor and (node_name, rank) in self.found.strangers:
            why = f"{node_name} shows a process of rank {rank} that nothing ties to the job"
            return RankRow(*base, None, None, why)
        how = "the first look saw it there" if first else home[1] if home else ""
        if impostor:
            how += f"; {impostor[1]}"
        return RankRow(
            *base, False, True, f"its process is no longer on {node_name} ({how})", before, None,
            exit_.code if exit_ else None, exit_.at if exit_ else None,
        )  # fmt: skip


def _start(record: Mapping[str, Any]) -> float | None:
    at = record.get("start_s")
    return float(at) if isinstance(at, int | float) and not isinstance(at, bool) else None


def _unknown(rank: int, node: str | None, why: str) -> RankRow:
    return RankRow(rank, node, None, None, None, {}, None, None, why)


def _seen(rank: int, node: str, record: Mapping[str, Any], before: Mapping[str, Any] | None) -> RankRow:
    told = record.get("state")
    state = told if isinstance(told, str) and told in STATES else None
    pid = whole(record.get("pid"))
    over = state in ("Z", "X")
    why = "its process is a zombie" if over else f"process {pid} is there, state {state}"
    return RankRow(
        rank, node, pid, state, _start(record), environment(record), not over, over, why, before, record
    )  # fmt: skip


def _answered(ev: Evidence) -> set[tuple[str, int]]:
    """(node, rank) of ranks that wrote a flight record because we asked for one."""
    return {
        (sample.node, rank)
        for sample in ev.of("flight_recorder")
        for row in records_of(sample)
        if isinstance(row, Mapping) and (rank := whole(row.get("rank"))) is not None
        if row.get("source") in WRITTEN_NOW and not row.get("stale") and isinstance(row.get("record"), Mapping)
    }


def launcher_exits(ev: Evidence) -> dict[tuple[str, int], Exit]:
    """(node, rank) -> exit, from the launcher's "failed (exitcode: -9) local_rank: 1 (pid: N)" lines.

    The line names a pid and a local rank, no node. It is tied to a node by the pid of an earlier look, or when only one
    node of the job lacks that local rank.
    """
    found = ev.derive(claims)
    by_pid: dict[
        int, set[tuple[str, int, int | None]]
    ] = {}  # pid -> (node, rank, local rank), where it is not at work now
    present: dict[str, set[int]] = {}  # node -> local ranks
    groups: dict[str, tuple[int, int]] = {}
    starts: list[float] = []
    for node, record in found.believed():
        rank, local, pid = int(record["rank"]), whole(record.get("local_rank")), whole(record.get("pid"))
        now = found.listed.get(node, {}).get(pid or -1)
        # Pids are a node's own: the same one may be at work on another node, and that is not the one that ended.
        if now is None or now.get("state") in ("Z", "X"):
            for each in (pid, whole(record.get("top_pid"))):  # a shell may stand between launcher and rank
                if each is not None:
                    by_pid.setdefault(each, set()).add((node, rank, local))
        if local is not None:
            present.setdefault(node, set()).add(local)
        group, size = whole(record.get("group_rank")), whole(record.get("local_world_size"))
        if group is not None and size is not None:
            groups[node] = (group, size)
        if (start := _start(record)) is not None:
            starts.append(start)
    placed: dict[str, list[int]] = {}
    for rank, (node, _) in sorted(found.homes.items()):
        placed.setdefault(node, []).append(rank)
    exits: dict[tuple[str, int], Exit] = {}
    loose: dict[int, dict[int, Exit]] = {}  # local rank -> pid -> exit, of lines that no pid ties
    for hit in log_hits(ev, "torchelastic_failed"):
        values = hit.get("groups")
        try:
            code, local, pid = int(values["code"]), int(values["lr"]), int(values["pid"])  # type: ignore[index]
        except (KeyError, TypeError, ValueError):
            continue
        at = hit.get("at")
        exit_ = Exit(code, float(at) if isinstance(at, int | float) else None, pid)
        tied = {(node, rank) for node, rank, its in by_pid.get(pid, ()) if its is None or its == local}
        if len(tied) == 1:
            exits[next(iter(tied))] = exit_
        elif exit_.at is None or not starts or exit_.at >= min(starts) - ATTEMPT_SLACK_S:
            loose.setdefault(local, {})[pid] = exit_
    everywhere = {int(r["rank"]) for _, r in found.believed()} | set(found.homes)
    whole_job = found.world is not None and len(everywhere) == found.world  # then a node without any hosts none
    for local, found_exits in loose.items():
        lacking = [
            n.name
            for n in ev.job.nodes
            if local not in present.get(n.name, ()) and (not whole_job or n.name in groups or n.name in placed)
        ]
        if len(lacking) not in (1, len(found_exits)):
            continue
        # Several nodes lack it: which line is whose is not known, but what all say is true of each.
        told = list(found_exits.values())[-1] if len(lacking) == 1 else _alike(list(found_exits.values()))
        if told is None:
            continue
        for node in lacking:
            if node in groups:
                group, size = groups[node]
                exits[(node, group * size + local)] = told
            elif 0 <= local < len(placed.get(node, ())):  # nothing of it is left: the ranks that must have been there
                exits[(node, placed[node][local])] = told
    return exits


def _alike(exits: list[Exit]) -> Exit | None:
    """What exits of one code have in common; None where the codes differ."""
    if len({e.code for e in exits}) != 1:
        return None
    times = [e.at for e in exits]
    known = [at for at in times if at is not None]
    dated = len(known) == len(times) and max(known) - min(known) <= 1.0
    return Exit(exits[0].code, max(known) if dated else None, 0)


def log_hits(ev: Evidence, *ids: str) -> list[Mapping[str, Any]]:
    """Hits of these signatures in the job log, from the newest reading of it, in the order of the log."""
    best: Sample | None = None
    for sample in ev.of("joblog"):
        if best is None or (sample.data.get("size") or 0) >= (best.data.get("size") or 0):
            best = sample
    if best is None:
        return []
    hits = best.data.get("hits")
    return [h for h in hits if isinstance(h, Mapping) and h.get("id") in ids] if isinstance(hits, list) else []
