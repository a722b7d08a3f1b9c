"""The watchdogs' lines of all ranks, put together per process group: who gave up where, who was how far, who is missing.

Input: the rows of `probes/_watchdog.py` in the job log(s). A group is told by its GUID (torch 2.5 and newer), by a number of
each process's own ("[PG 1 Rank 3]", which may be another group on another rank), or not at all (before 2.2, and wherever only
the time-out lines were kept). The last two are believed only where every line's rank in the group is the global rank, and no
line tells otherwise: then they can hardly be anything but the group of all.
What can fool it: whatever a rank prints; a log that lacks the lines of some ranks (their absence is told by nothing); counts
of the default group in a dump line, which say nothing of the group that timed out. Pure; linear in the ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from triage.facts.clocks import log_time
from triage.facts.evidence import Evidence
from triage.facts.pace import last_step_end
from triage.facts.ranktable import rank_table
from triage.facts.signatures import canonical
from triage.model import Sample
from triage.probes._watchdog import COLUMNS

DEFAULT = "default_pg"
# Steps that ended so long after a watchdog gave up are of a job that went on: the lines are of an attempt before.
AFTER_S = 60.0
# Sends and receives have numbers of their own, and differ between ranks by nature.
NOT_COLLECTIVE = ("SEND", "RECV", "RECVANYSOURCE", "UNKNOWN", "")


@dataclass(frozen=True)
class Line:
    """One rank's line: a row of the table, unfolded."""

    kind: str  # timeout status dump
    rank: int
    place: int | None  # its rank in the group
    tag: tuple[str, str, str]  # (guid | local | none, name, description)
    seq: int | None
    sig: str  # "allreduce|1|1"; "" where the line tells no operation
    sized: bool  # does it tell sizes?
    enqueued: int | None
    completed: int | None
    line_no: int | None
    sample: int  # which of the logs


@dataclass
class Group:
    """What the members of one group said."""

    tag: tuple[str, str, str]
    at: dict[int, Line] = field(default_factory=dict)  # rank -> its time-out: the lowest number that it gave up at
    counts: dict[int, Line] = field(default_factory=dict)  # rank -> the line that tells how far it had come
    places: dict[int, int | None] = field(default_factory=dict)
    least: int = 0  # members that it has at least
    world: int | None = None  # members that it has for certain, where it is the group of all and their number is known

    @property
    def seq(self) -> int | None:
        """The lowest number at which somebody gave up."""
        return min((line.seq for line in self.at.values() if line.seq is not None), default=None)

    def label(self) -> str:
        kind, name, desc = self.tag
        if kind == "none":
            return "the group of all (no line names it)"
        return f"group {desc} ({name})" if desc and desc != DEFAULT else DEFAULT if desc else f"group {name}"

    @property
    def named(self) -> bool:
        return self.tag[0] == "guid" or self.tag[:2] == ("local", "0")


@dataclass(frozen=True)
class Watch:
    """All of it. `why`: why nothing can be said, or what was left out."""

    groups: tuple[Group, ...] = ()
    lines: tuple[Line, ...] = ()
    gloo: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # rank -> (log, line) of its last gloo error
    stuck: tuple[tuple[float | None, frozenset[int]], ...] = ()  # (when told, on our clock; ranks)
    desync: tuple[frozenset[int], ...] = ()  # ranks of the group that a report names, one a report
    samples: tuple[Sample, ...] = ()
    heard: frozenset[int] = frozenset()  # ranks whose output is known to be in the logs
    left_out: int = 0
    why: str = ""
    hosts: Mapping[int, str] = field(default_factory=dict)  # rank -> the host in the name of its log

    def ranks(self) -> set[int]:
        return {line.rank for line in self.lines}


def watch(ev: Evidence) -> Watch:
    """To be called through `ev.derive`."""
    logs = _logs(ev)
    rows = _one_moment(ev, logs, [(n, row) for n, sample in enumerate(logs) for row in _rows(ev, sample)])
    if not rows:
        return Watch(samples=logs, why="no watchdog of PyTorch says anything in the job log" if logs else "")
    known = any(row["ranks"] for _, row in rows)
    lines: list[Line] = []
    for n, row in rows:
        if row["kind"] in ("timeout", "status", "dump"):
            lines += _unfold(row, n, known)
    gloo = {
        rank: (n, row["line_no"])
        for n, row in rows
        if row["kind"] == "gloo" and isinstance(row["line_no"], int)
        for rank in _ranks(row["ranks"])
    }
    stuck = [
        (log_time_of(ev, logs[n], row["at"]) if row["dated"] else None, frozenset(_ranks(row["ranks"])))
        for n, row in rows
        if row["kind"] == "stuck" and row["ranks"]
    ]
    desync = [frozenset(_ranks(row["group_ranks"])) for _, row in rows if row["kind"] == "desync"]
    groups, why = _groups(ev, lines)
    left = sum(int(s.data["watchdog"].get("left_out") or 0) for s in logs)
    return Watch(
        tuple(groups),
        tuple(lines),
        gloo,
        tuple(stuck),
        tuple(desync),
        logs,
        frozenset(_heard(logs, lines)),
        left,
        why,
        _hosts(logs),
    )


# ---------------------------------------------------------------- reading


def _logs(ev: Evidence) -> tuple[Sample, ...]:
    """The newest reading of each log that holds a table."""
    newest: dict[tuple[str, Any], Sample] = {}
    for sample in ev.of("joblog"):
        if isinstance(sample.data.get("watchdog"), Mapping):
            newest[(sample.node, sample.data.get("path"))] = sample
    return tuple(newest.values())


def _rows(ev: Evidence, sample: Sample) -> Iterable[dict[str, Any]]:
    """The usable rows of one log; those after which the job made steps again are of another attempt."""
    last = last_step_end(ev)
    for row in sample.data["watchdog"].get("rows") or ():
        if not isinstance(row, list | tuple) or len(row) != len(COLUMNS):
            continue
        told = dict(zip(COLUMNS, row))
        ours = log_time_of(ev, sample, told["last_at"]) if told["dated"] else None
        if last is not None and ours is not None and last[0] > ours + AFTER_S:
            continue
        yield told


def _one_moment(
    ev: Evidence, logs: tuple[Sample, ...], rows: list[tuple[int, dict[str, Any]]]
) -> list[tuple[int, dict[str, Any]]]:
    """Without the dated rows that are far older than the newest: another attempt's, or another job's in the same folder.

    Rows are compared on our clock, and those of a log whose zone is unknown with each other.
    """
    at: list[tuple[object, float] | None] = []
    for n, row in rows:
        ours = log_time_of(ev, logs[n], row["last_at"]) if row["dated"] else None
        told = row["last_at"] if row["dated"] and isinstance(row["last_at"], int | float) else None
        at.append(("ours", ours) if ours is not None else None if told is None else (n, float(told)))
    newest: dict[object, float] = {}
    for clock, when in filter(None, at):
        newest[clock] = max(when, newest.get(clock, when))
    far = ev.limit("watchdog_moment_s")
    return [row for row, when in zip(rows, at) if when is None or when[1] >= newest[when[0]] - far]


def log_time_of(ev: Evidence, sample: Sample, at: object) -> float | None:
    """A time of this very log on our clock, or None."""
    return log_time(ev, at, sample)


def _ranks(folded: object) -> tuple[int, ...]:
    """The numbers of "0+8,16+4*2,40", in that order; shapes.py has bounded them."""
    out: list[int] = []
    if isinstance(folded, str) and folded not in ("", "="):
        for part in folded.split(","):
            start, _, rest = part.partition("+")
            count, _, step = rest.partition("*")
            out += range(int(start), int(start) + int(count or 1) * int(step or 1), int(step or 1))
    return tuple(out)


def _unfold(row: Mapping[str, Any], log: int, known: bool) -> Iterable[Line]:
    """A line for each rank of a row. Where no line of all tells a global rank, that in the group has to do."""
    ranks = _ranks(row["ranks"])
    places: tuple[int | None, ...] = ranks if row["group_ranks"] == "=" else _ranks(row["group_ranks"])
    if len(places) != len(ranks):
        places = (None,) * len(ranks)
    pairs = list(zip(ranks, places))
    if not known:
        pairs += [(rank, rank) for rank in _ranks(row["untold"])]
    tag = ("guid", row["guid"], row["desc"] or "") if row["guid"] else ("local", row["pg"] or "", row["desc"] or "")
    if row["guid"] is None and row["pg"] is None:
        tag = ("none", "", "")
    op = (row["op"] or "").upper()
    sized = row["numel_in"] is not None
    sig = f"{op.lower()}|{_count(row['numel_in'])}|{_count(row['numel_out'])}||" if row["op"] else ""
    for rank, place in pairs:
        yield Line(
            row["kind"], rank, place, tag, row["seq"], sig, sized, row["enqueued"], _done(row), row["line_no"], log
        )


def _count(numel: int | None) -> str:
    return "" if numel is None else str(numel)


def _done(row: Mapping[str, Any]) -> int | None:
    """last completed; -1 and more than was enqueued (uninitialised memory, 2.2 and 2.3) are "none"."""
    done, enqueued = row["completed"], row["enqueued"]
    if done is None or done < 0 or (enqueued is not None and done > enqueued):
        return 0 if done is not None else None
    return int(done)


def _heard(logs: Iterable[Sample], lines: Iterable[Line]) -> set[int]:
    """Ranks that are known to have printed into these logs, or whose own log was read."""
    found = {line.rank for line in lines}
    for sample in logs:
        found |= {rank for rank in sample.data.get("heard") or () if isinstance(rank, int)}
        for hit in sample.data.get("hits") or ():
            prefix = str(hit.get("prefix", "")) if isinstance(hit, Mapping) else ""
            if prefix.startswith("rank") and prefix[4:].isdigit() and len(prefix) < 12:
                found.add(int(prefix[4:]))
    return found


def _hosts(logs: Iterable[Sample]) -> dict[int, str]:
    """rank -> host, as far as the names of collected logs tell."""
    told = [pair for sample in logs for pair in (sample.data.get("hosts") or {}).items()]
    return {int(rank): str(host)[:256] for rank, host in told if str(rank).isdigit() and len(str(rank)) < 8}


# ---------------------------------------------------------------- groups


def _groups(ev: Evidence, lines: list[Line]) -> tuple[list[Group], str]:
    """The groups whose lines can be compared, and why others cannot."""
    found: dict[tuple[str, str, str], list[Line]] = {}
    statuses: dict[int, list[Line]] = {}
    for line in lines:
        if line.kind != "timeout":
            found.setdefault(line.tag, []).append(line)
            if line.kind == "status":
                statuses.setdefault(line.rank, []).append(line)
    loose: list[Line] = []
    for line in lines:
        if line.kind == "timeout":
            tags = {s.tag for s in statuses.get(line.rank, ()) if s.seq == line.seq and s.place in (line.place, None)}
            if len(tags) == 1:
                found.setdefault(tags.pop(), []).append(line)
            elif not tags:
                loose.append(line)
    if loose and not any(line.kind == "timeout" for told in found.values() for line in told):
        # No time-out is named by a status line: one group is all that these logs speak of, or nothing can be told.
        found.setdefault(("none", "", ""), []).extend(loose)
    out: list[Group] = []
    why = ""
    for tag, told in sorted(found.items()):
        group, problem = _group(ev, tag, told)
        why = why or problem
        if group is not None:
            out.append(group)
    return out, why


def _group(ev: Evidence, tag: tuple[str, str, str], lines: list[Line]) -> tuple[Group | None, str]:
    group = Group(tag)
    for line in lines:
        seen = group.places.setdefault(line.rank, line.place)
        if seen is None:
            group.places[line.rank] = line.place
        elif line.place is not None and line.place != seen:
            return None, f"rank {line.rank} is told under two numbers in one group: lines of several groups"
        if line.kind == "timeout":
            other = group.at.get(line.rank)
            if other is not None and tag[0] != "guid" and other.sig != line.sig and other.seq == line.seq:
                return None, f"rank {line.rank} gave up in two calls of one number: lines of several groups"
            if line.seq is not None and (other is None or (other.seq or 0) > line.seq):
                group.at[line.rank] = line
        elif line.enqueued is not None:
            before = group.counts.get(line.rank)
            if before is None or (before.enqueued or 0) < line.enqueued:
                group.counts[line.rank] = line
    places = [place for place in group.places.values() if place is not None]
    if len(set(places)) != len(places):
        return None, "two ranks have one number in a group: lines of several groups under one name"
    same = all(place == rank for rank, place in group.places.items())
    if tag[0] == "local" and tag[1] != "0":
        # Number 0 is the group of all in each process; of any other number, random jobs of several groups named innocents.
        return None, "the watchdogs' lines tell the group by a number of each process's own"
    if tag[0] != "guid" and not same:
        return None, "the watchdogs' lines do not tell which group they are of"
    group.least = max(places, default=-1) + 1
    if same and (tag[2] == DEFAULT or tag[1] == "0" or tag[0] == "none"):
        group.world = ev.derive(rank_table).world_size
        group.least = max(group.least, group.world or 0)
    return group, ""


# ---------------------------------------------------------------- comparing


def sides(group: Group) -> tuple[int, list[tuple[str, frozenset[int]]]] | None:
    """(number, [(call, ranks)…] largest first) of the lowest number at which the members' calls differ."""
    by_seq: dict[int, list[Line]] = {}
    for line in group.at.values():
        if line.seq is not None and line.sig and line.sig.split("|")[0].upper() not in NOT_COLLECTIVE:
            by_seq.setdefault(line.seq, []).append(line)
    for seq in sorted(by_seq):
        lines = by_seq[seq]
        sized = all(line.sized for line in lines)
        found: dict[object, tuple[str, set[int]]] = {}
        for line in lines:
            key = canonical(line.sig) if sized else line.sig.split("|")[0]
            found.setdefault(key, (line.sig, set()))[1].add(line.rank)
        if len(found) > 1:
            told = [(sig, frozenset(ranks)) for sig, ranks in found.values()]
            return seq, sorted(told, key=lambda side: (-len(side[1]), sorted(side[1])))
    return None


def call(sig: str) -> str:
    """`ALLREDUCE of 1`, `_ALLGATHER_BASE of 1048576 to 8388608`."""
    op, numel_in, numel_out = [*sig.split("|"), "", ""][:3]
    size = numel_in if numel_in == numel_out or not numel_out else f"{numel_in} to {numel_out}"
    return f"{op.upper()} of {size}" if size else op.upper()


def behind(group: Group, lines: Iterable[Line]) -> dict[int, Line]:
    """Members that had not enqueued what the others gave up at, by their own line.

    Nobody is behind where that may come of waiting for somebody else: where ranks gave up in other groups too (a rank may
    wait there, and its line be missing), where a member printed nothing (it may be whom they wait for), and where as many
    are behind as waited (then these may have called what nobody else calls).
    """
    seq = group.seq
    if seq is None:
        return {}
    gave_up = {rank for rank, line in group.at.items() if line.seq == seq}
    found = {
        rank: line
        for rank, line in group.counts.items()
        if rank not in group.at and line.enqueued is not None and line.enqueued < seq
    }
    told = {*group.at, *group.counts}
    # Several nodes may have read one log: the same line twice is one.
    here = {(line.rank, line.seq, line.sig) for line in group.at.values()}
    others = any(line.kind == "timeout" and (line.rank, line.seq, line.sig) not in here for line in lines)
    if others or len(found) >= len(gave_up) or not set(range(group.least)) <= told:
        return {}
    return found
