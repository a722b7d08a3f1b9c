"""Which flight records of a run may be compared, and the picture that they draw together.

Usable is a dump of a process of this attempt, from the node that hosts its rank, taken after everybody had entered what is
open now. The others are listed with their reason and never compared: a file carries no job id, host or attempt
(notes/flight-recorder.md 6.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from triage.facts.attempt import WRITTEN_NOW
from triage.facts.claims import MOST_PER_NODE, records_of, whole
from triage.facts.clocks import clock_offsets, our_time
from triage.facts.collectives import decode
from triage.facts.ends import ends
from triage.facts.evidence import Evidence
from triage.facts.hard import hard_events
from triage.facts.moments import behind
from triage.facts.progress import onset_interval
from triage.facts.ranktable import RankRow, RankTable, rank_table
from triage.facts.settle import settle
from triage.facts.waitgraph import Picture
from triage.model import Sample
from triage.probes._unpickle import without_gc

# Beyond the measured error of the clocks: a file's time is the file server's. Dumps of different moments mostly give
# themselves away by what they hold (moments.py).
CLOCK_SLACK_S = 1.0
# Files of a folder say nothing of their clocks; hosts without common time differ by seconds.
FOLDER_SLACK_S = 5.0
START_SLACK_S = 2.0  # a process start is known to a second
# Of records written further apart, what the older one does not show is no sign of absence (issue 4; findings 3.3).
APART_S = 30.0


@dataclass(frozen=True)
class Dump:
    """One rank's usable dump: its reduced record and where and when it was written."""

    rank: int
    node: str
    record: Mapping[str, Any]
    source: str  # "file" | "poked"
    mtime: float | None
    sample: Sample
    host: str = ""  # the name in the file's own name: of a folder that somebody collected


@dataclass
class Waits:
    """All dumps of the run, sorted into usable and not, and the picture that the usable ones draw."""

    dumps: dict[int, Dump] = field(default_factory=dict)
    stale: dict[int, str] = field(default_factory=dict)  # rank -> why its dump is not compared
    silent: dict[int, str] = field(default_factory=dict)  # rank -> why there is no dump at all
    samples: list[Sample] = field(default_factory=list)
    picture: Picture | None = None
    incapable: dict[int, str] = field(default_factory=dict)  # rank -> dead | stopped | d_state; no victim of the stall
    disputed: bool = False  # fresh dumps contradict each other: somebody lies
    outdated: dict[int, str] = field(default_factory=dict)  # root by an older file of a folder -> why that is a doubt

    def why_none(self) -> str:
        """Why there is no picture, in one sentence for the report."""
        if not self.samples:
            return "no flight records were collected"
        if self.stale:
            why = next(iter(self.stale.values()))
            return f"no usable flight record: {len(self.stale)} of other times or attempts ({why})"
        reasons = Counter(self.silent.values()).most_common(1)
        return "no rank has a flight record" + (f": {reasons[0][0]}" if reasons and reasons[0][0] else "")


def waits(ev: Evidence) -> Waits:
    """Read, sort and compare all dumps once; the facts in waits.py read this (`ev.derive(waits)`)."""
    # Nothing here is cyclic, and the collector would walk the records of all ranks a dozen times: a third of the cost.
    told: Waits = without_gc(_waits)(ev)
    return told


def _waits(ev: Evidence) -> Waits:
    out = Waits()
    table = ev.derive(rank_table)
    for rank, (sample, row) in sorted(_rows(ev, table, out).items()):
        why = _old(row, table.rows.get(rank))
        record = row.get("record")
        if rank in table.claimed and table.node_of(rank) is None:
            out.silent[rank] = table.claimed[rank][:160]  # whose dump it is nobody knows
        elif why:
            out.stale[rank] = why
        elif isinstance(record, Mapping):
            mtime = row.get("mtime")
            out.dumps[rank] = Dump(
                rank, sample.node, record, str(row.get("source", "file")),
                float(mtime) if isinstance(mtime, int | float) else None, sample, str(row.get("host") or ""),
            )  # fmt: skip
        else:
            out.silent[rank] = str(row.get("why", ""))[:160]
    _drop_other_worlds(out, table.world_size)
    _drop_early(ev, out)
    dead, perhaps = _incapable(ev, table)
    out.incapable = {**perhaps, **dead}
    if out.dumps:
        _draw(out, table.world_size, dead, perhaps)
        # Without those whose absence is out of date others may be left that are.
        while out.picture is not None and (late := _came_since(ev, out, out.picture)):
            out.stale.update(late)
            for rank in late:
                out.dumps.pop(rank)
            out.picture = None
            if out.dumps:
                _draw(out, table.world_size, dead, perhaps)
    return out


def _came_since(ev: Evidence, out: Waits, picture: Picture) -> dict[int, str]:
    """Roots by a file written long before those of the ranks that wait: they may have come, or got on, since.

    What a record shows done stays done; what it does not show is true of its own moment only. Of a folder that somebody
    collected the times may be those of the copying: there it is a doubt (`outdated`), and its dump stays.
    """
    told = [(rank, out.dumps[rank]) for rank in picture.waiting if rank in out.dumps]
    last = max((our_time(ev, d.node, d.mtime) for _, d in told if d.mtime is not None), default=None)
    late: dict[int, str] = {}
    out.outdated = {}
    for rank, kind in picture.roots.items():
        dump = out.dumps.get(rank)
        if (
            kind not in ("host", "device")
            or dump is None
            or dump.mtime is None
            or last is None
            or dump.source in WRITTEN_NOW
        ):
            continue
        age = last - our_time(ev, dump.node, dump.mtime)
        if age > APART_S:
            why = f"written {int(age)}s before the records of those that wait: it may have got on since"
            (late if dump.node else out.outdated)[rank] = why
    return late


def _draw(out: Waits, world: int | None, dead: Mapping[int, str], perhaps: Mapping[int, str]) -> None:
    """Decode what is left; leave out what is refused or of another moment; draw."""
    records = decode({rank: dump.record for rank, dump in out.dumps.items()}, world)
    bad = dict(records.refused)
    fresh = {rank for rank, dump in out.dumps.items() if dump.source in WRITTEN_NOW}
    other = behind(records, fresh)
    out.disputed = any(rank in fresh for rank in other)
    bad.update(other)
    out.stale.update(bad)
    for rank in bad:
        out.dumps.pop(rank, None)
    if other:
        records = decode({rank: dump.record for rank, dump in out.dumps.items()}, world)
    if records.views:
        out.picture = settle(records, dead, perhaps)


def _rows(ev: Evidence, table: RankTable, out: Waits) -> dict[int, tuple[Sample, Mapping[str, Any]]]:
    """The row of each rank: from the node that hosts it, usable, newest. A node has no say on ranks of another."""
    rows: dict[int, tuple[Sample, Mapping[str, Any]]] = {}
    end = table.world_size or (MOST_PER_NODE * len(ev.job.nodes) if ev.job.nodes else None)
    for sample in ev.of("flight_recorder"):
        out.samples.append(sample)
        for row in records_of(sample):
            if not isinstance(row, Mapping):
                continue
            rank = whole(row.get("rank"))
            if rank is None or rank < 0 or (end is not None and rank >= end):
                continue
            home = table.node_of(rank)
            if sample.node and home is not None and sample.node != home:
                continue
            if rank not in rows or _better(row, rows[rank][1]):
                rows[rank] = (sample, row)
    return rows


def _better(row: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    def weight(r: Mapping[str, Any]) -> tuple[bool, bool, float]:
        age = r.get("mtime")
        return (
            isinstance(r.get("record"), Mapping) and not r.get("stale"),
            r.get("source") in WRITTEN_NOW,
            float(age) if isinstance(age, int | float) else 0.0,
        )

    return weight(row) >= weight(old)


def _old(row: Mapping[str, Any], process: RankRow | None) -> str:
    """Why a dump is not of this attempt's process; "" if it may be."""
    if row.get("stale"):
        return str(row.get("why") or "older than the process")[:160]
    mtime = row.get("mtime")
    if process and process.start_s and isinstance(mtime, int | float) and mtime < process.start_s - START_SLACK_S:
        return f"older than the process by {int(process.start_s - mtime)}s: of another attempt"
    return ""


def _drop_other_worlds(out: Waits, world: int | None) -> None:
    """A dump whose default group has another size than the job (or than most dumps) is of another job or attempt."""
    sizes: dict[int, str] = {}
    for rank, dump in out.dumps.items():
        groups = dump.record.get("groups", ())
        for row in groups if isinstance(groups, list) else ():
            # The name first: it is cheap, and all groups of all ranks come through here.
            if (type(row) is dict or isinstance(row, Mapping)) and row.get("desc") == "default_pg" and row.get("ranks"):
                sizes[rank] = str(row["ranks"])
    if not sizes:
        return
    usual = f"0+{world}" if world and world > 1 else Counter(sizes.values()).most_common(1)[0][0]
    for rank, size in sizes.items():
        if size != usual:
            out.dumps.pop(rank)
            out.stale[rank] = (
                f"its default group is ranks {size[:40]}, the job's is {usual[:40]}: of another job or attempt"
            )


def _drop_early(ev: Evidence, out: Waits) -> None:
    """A file that lay there before others entered what they wait in, or before the job's last step ended, shows its rank
    at an earlier moment, not behind. A dump that was written for us is of the same moment as the others.
    """
    offsets = ev.derive(clock_offsets)
    written = {r: our_time(ev, d.node, d.mtime) for r, d in out.dumps.items() if d.mtime is not None}
    entered: dict[int, float] = {}
    for rank, dump in out.dumps.items():
        at = dump.record.get("newest_s")
        if isinstance(at, int | float):
            # No dump holds what came after it; whoever says so is not believed.
            entered[rank] = min(our_time(ev, dump.node, float(at)), written.get(rank, float(at)) + CLOCK_SLACK_S)
    last = max(entered.values(), default=0.0)
    interval = ev.derive(onset_interval) if any(d.node and d.source != "poked" for d in out.dumps.values()) else None
    for rank, dump in list(out.dumps.items()):
        if dump.source == "poked" or rank not in written:
            continue
        offset = offsets.get(dump.node)
        slack = (CLOCK_SLACK_S if dump.node else FOLDER_SLACK_S) + (offset.err_s if offset else 0.0)
        at = written[rank]
        # Its own newest entry is older than its file, so "last" is another rank's where this holds.
        if last > at + slack:
            out.stale[rank] = f"written {int(last - at)}s before other ranks entered what is open now"
        elif dump.node and interval is not None and interval[0] > at + slack:
            out.stale[rank] = f"written {int(interval[0] - at)}s before the job's last step ended"
        if rank in out.stale:
            out.dumps.pop(rank)


def _incapable(ev: Evidence, table: RankTable) -> tuple[dict[int, str], dict[int, str]]:
    """(surely dead before the stall, perhaps its cause): rank -> "dead", "stopped" or "d_state". Without its victims."""
    ended = ev.derive(ends)
    dead = {rank: "dead" for rank, end in ended.items() if end.kind == "early"}
    dead.update({event.part.rank: "dead" for event in ev.derive(hard_events) if event.part.rank is not None})
    perhaps: dict[int, str] = {}
    for rank, row in table.rows.items():
        if row.gone and rank not in dead and ended[rank].kind == "undated":
            perhaps[rank] = "dead"
        elif row.alive and (state := standing(row)):
            perhaps[rank] = {"T": "stopped", "D": "d_state"}[state]
    return dead, perhaps


def standing(row: RankRow) -> str:
    """ "T" or "D" if every look that shows the rank shows it so, else "". A stop between the looks came after the stall."""
    states = {str(r.get("state")).upper() for r in (row.first, row.last) if r}
    return states.pop() if len(states) == 1 and row.state is not None and states <= {"T", "D"} else ""
