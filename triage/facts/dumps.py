"""Which flight records of a run may be compared, and the picture that they draw together.

Usable is a dump of a process of this attempt, taken after everybody had entered what is open now. The others are listed
with their reason and never compared: a file carries no job id, host or attempt (notes/flight-recorder.md 6.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from triage.facts.collectives import decode
from triage.facts.evidence import Evidence
from triage.facts.ranktable import RankRow, RankTable, rank_table
from triage.facts.waitgraph import Picture, draw
from triage.model import Sample

# Clocks of two nodes may be this far apart before a dump counts as taken too early.
CLOCK_SLACK_S = 5.0
START_SLACK_S = 2.0  # a process start is known to a second


@dataclass(frozen=True)
class Dump:
    """One rank's usable dump: its reduced record and where and when it was written."""

    rank: int
    node: str
    record: Mapping[str, Any]
    source: str  # "file" | "poked"
    mtime: float | None
    sample: Sample


@dataclass
class Waits:
    """All dumps of the run, sorted into usable and not, and the picture that the usable ones draw."""

    dumps: dict[int, Dump] = field(default_factory=dict)
    stale: dict[int, str] = field(default_factory=dict)  # rank -> why its dump is not compared
    silent: dict[int, str] = field(default_factory=dict)  # rank -> why there is no dump at all
    samples: list[Sample] = field(default_factory=list)
    picture: Picture | None = None
    incapable: dict[int, str] = field(default_factory=dict)  # rank -> dead | stopped | d_state

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
    out = Waits()
    table = ev.derive(rank_table)
    rows = _rows(ev, table, out)
    for rank, (sample, row) in sorted(rows.items()):
        why = _old(row, table.rows.get(rank))
        record = row.get("record")
        if why:
            out.stale[rank] = why
        elif isinstance(record, Mapping):
            mtime = row.get("mtime")
            out.dumps[rank] = Dump(
                rank, sample.node, record, str(row.get("source", "file")),
                float(mtime) if isinstance(mtime, int | float) else None, sample,
            )  # fmt: skip
        else:
            out.silent[rank] = str(row.get("why", ""))[:160]
    _drop_other_worlds(out, table.world_size)
    _drop_early(out)
    out.incapable = {rank: how for rank, row in table.rows.items() if (how := _incapable(row))}
    if out.dumps:
        records = decode({rank: dump.record for rank, dump in out.dumps.items()}, table.world_size)
        out.stale.update(records.refused)
        for rank in records.refused:
            out.dumps.pop(rank, None)
        if records.views:
            out.picture = draw(records, out.incapable)
    return out


def _rows(ev: Evidence, table: RankTable, out: Waits) -> dict[int, tuple[Sample, Mapping[str, Any]]]:
    """The row of each rank: of all answers, that of the node which hosts it (homes are shared), usable, newest."""
    rows: dict[int, tuple[Sample, Mapping[str, Any]]] = {}
    for sample in ev.of("flight_recorder"):
        out.samples.append(sample)
        for row in sample.data.get("ranks", ()):
            if not isinstance(row, Mapping) or not isinstance(row.get("rank"), int):
                continue
            rank = int(row["rank"])
            if rank not in rows or _better(table.node_of(rank), sample, row, *rows[rank]):
                rows[rank] = (sample, row)
    return rows


def _better(home: str | None, sample: Sample, row: Mapping[str, Any], old: Sample, old_row: Mapping[str, Any]) -> bool:
    def weight(s: Sample, r: Mapping[str, Any]) -> tuple[bool, bool, bool, float]:
        age = r.get("mtime")
        return (
            home is not None and s.node == home,
            isinstance(r.get("record"), Mapping) and not r.get("stale"),
            r.get("source") == "poked",
            float(age) if isinstance(age, int | float) else 0.0,
        )

    return weight(sample, row) >= weight(old, old_row)


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
        for row in dump.record.get("groups", ()):
            if isinstance(row, Mapping) and row.get("ranks") and row.get("desc") == "default_pg":
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


def _drop_early(out: Waits) -> None:
    """A file that lay there before others entered what they wait in shows its rank at an earlier moment, not behind.

    A dump that was written for us is of the same moment as the others. Clocks of two nodes may differ by some seconds.
    """
    entered = {
        rank: float(at) for rank, d in out.dumps.items() if isinstance(at := d.record.get("newest_s"), int | float)
    }
    last = max(entered.values(), default=0.0)
    for rank, dump in list(out.dumps.items()):
        # Its own newest entry is older than its file, so "last" is another rank's where this holds.
        if dump.source != "poked" and dump.mtime is not None and last > dump.mtime + CLOCK_SLACK_S:
            out.dumps.pop(rank)
            out.stale[rank] = f"written {int(last - dump.mtime)}s before other ranks entered what is open now"


def _incapable(row: RankRow) -> str:
    """ "dead", "stopped", "d_state", or "" for a rank that may still move."""
    if row.gone:
        return "dead"
    if row.state in ("T", "t"):
        return "stopped"
    looks = [r.get("state") for r in (row.first, row.last) if r]
    if row.state == "D" and looks and all(state == "D" for state in looks):
        return "d_state"
    return ""
