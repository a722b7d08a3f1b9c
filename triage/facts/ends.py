"""When did a rank end: before the stall, which makes it a cause, or after it, which makes it a victim?

A watchdog's SIGABRT, a launcher's SIGTERM, an operator's kill or debugger strike ranks that already waited. So each rank
that is gone is one of
    early    a signal that is a cause (9, 11, 7) or an exception of its own, dated by the launcher's line inside the
             stall's beginning
    late     it surely lived when the job already stood, or ended by what only ever follows a stall (6, 15), or with its
             node's launcher, which ends all its ranks when one has ended
    undated  neither is proven
Only early ones are dead for certain; late ones never accuse; an undated one explains a wait that nothing else explains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal

from triage.facts.claims import records_of, whole
from triage.facts.clocks import clock_offsets, log_time, our_time
from triage.facts.evidence import Evidence
from triage.facts.exits import own_exception
from triage.facts.exits import signal_of as signal_of
from triage.facts.pace import job_change, job_series, last_step_end
from triage.facts.progress import onset_interval
from triage.facts.ranktable import RankRow, rank_table

# Ended by the kernel or an operator (9), by bad memory access (11, 7).
CAUSES = {9: "SIGKILL", 11: "SIGSEGV", 7: "SIGBUS"}
# Abort is mostly a watchdog's, terminate a launcher's or a scheduler's: DESIGN section 6, question 4.
CONSEQUENCES = {6: "SIGABRT", 15: "SIGTERM"}
# How long after a death its launcher may write the line: torchrun looked every 5 s until April 2024 (pytorch pull request
# 124692), and nvidia-resiliency-ext sets 5 s still. Until then a death is not proven to have come after the stall.
LAUNCHER_LAG_S = 5.0


@dataclass(frozen=True)
class End:
    kind: Literal["early", "late", "undated"]
    why: str
    at: float | None = None  # on our clock, where a launcher's line dates it


def stall_window(ev: Evidence) -> tuple[float, float] | None:
    """When the stall began, [earliest, latest] on our clock: the onset, made later by what else tells of that moment.

    A log that has a line only every so many steps ends before the stall does begin; the moment when most ranks entered
    what they wait in tells it too. None while the job advances or nothing is dated.
    """
    interval = ev.derive(onset_interval)
    if interval is None:
        return None
    earliest, latest = interval
    change = ev.derive(job_change)
    allowed = max(ev.limit("still_factor") * (change.healthy if change else 0.0), 1.0)
    last, series = last_step_end(ev), ev.derive(job_series)
    if last is not None and last[1] == "job log" and series is not None:
        dated = [at for at, _ in series.steps[-64:] if at is not None]
        gaps = [b - a for a, b in pairwise(dated) if b > a]
        if gaps:
            latest = max(latest, earliest + median(gaps) + allowed)
    entered = [at for at in ev.derive(_entered) if at <= ev.observed]
    if entered:
        latest = max(latest, median(entered) + allowed)
    return earliest, latest


def _entered(ev: Evidence) -> list[float]:
    """When each rank with a flight record enqueued the operation that it waits in, on our clock."""
    found: list[float] = []
    for sample in ev.of("flight_recorder"):
        for row in records_of(sample):
            record = row.get("record") if isinstance(row, Mapping) and not row.get("stale") else None
            opens = record.get("open") if isinstance(record, Mapping) else None
            at = opens[0].get("at") if isinstance(opens, list) and opens and isinstance(opens[0], Mapping) else None
            if isinstance(at, int | float) and not isinstance(at, bool):
                found.append(our_time(ev, sample.node, float(at)))
    return found


def ends(ev: Evidence) -> dict[int, End]:
    """rank -> how it ended, for every rank that is gone."""
    gone = [row for row in ev.derive(rank_table).rows.values() if row.gone]
    if not gone:
        return {}
    window, wrote = ev.derive(stall_window), ev.derive(_wrote)
    ended = {row.rank: _end(ev, row, window, wrote) for row in gone}
    for node, first in _first_of_their_nodes(ev, ended).items():
        why = f"rank {first} had ended, and then the launcher of {node} ends all its ranks: a consequence"
        for rank in ev.derive(rank_table).node_ranks[node]:
            if ended[rank].kind == "undated":
                ended[rank] = End("late", why)
    return ended


def _first_of_their_nodes(ev: Evidence, ended: Mapping[int, End]) -> dict[str, int]:
    """node -> the rank that ended first there, of nodes on which no rank is left and one ended early."""
    out: dict[str, int] = {}
    for node, ranks in ev.derive(rank_table).node_ranks.items():
        early = [rank for rank in ranks if rank in ended and ended[rank].kind == "early"]
        if early and len(ranks) > 1 and all(rank in ended for rank in ranks):
            out[node] = min(early, key=lambda rank: (ended[rank].at or 0.0, rank))
    return out


def slack_s(ev: Evidence, node: str | None) -> float:
    """How far outside the window a time of this node may lie and still be inside: its clock's error, and a second."""
    offset = ev.derive(clock_offsets).get(node or "")
    return ev.limit("hard_slack_s") + (offset.err_s if offset else 0.0)


def near_the_stall(ev: Evidence, node: str | None, at: float | None) -> bool:
    """Is this time inside the stall's beginning? Undated, or with a stall of unknown beginning, it is not."""
    window = ev.derive(stall_window)
    if at is None or window is None:
        return False
    slack = slack_s(ev, node)
    return window[0] - slack <= at <= window[1] + slack


def _end(ev: Evidence, row: RankRow, window: tuple[float, float] | None, wrote: Mapping[int, float]) -> End:
    latest = window[1] + slack_s(ev, row.node) if window else None
    if latest is not None:
        seen = ev.derive(_looked).get(row.node or "")
        if row.first is not None and row.first.get("state") not in ("Z", "X") and seen is not None and seen > latest:
            return End("late", "it still ran in the first look, when the job already stood")
        if wrote.get(row.rank, 0.0) > latest:
            return End("late", "it wrote a flight record when the job already stood")
    signal = signal_of(row.exit_code) if row.exit_code is not None else 0
    how = CAUSES.get(signal) or CONSEQUENCES.get(signal) or f"code {row.exit_code}"
    times = _times(ev, row)
    if times and latest is not None and min(times) > latest + LAUNCHER_LAG_S:
        after = min(times) - (window[1] if window else 0.0)
        return End("late", f"it ended by {how} {after:.0f}s after the stall had begun: a consequence", min(times))
    near = bool(times) and all(near_the_stall(ev, row.node, at) for at in times)
    if signal in CONSEQUENCES and not near:
        return End("late", f"it ended by {how}, which follows a stall: a consequence", min(times, default=None))
    if signal in CAUSES and near:
        return End("early", f"it ended by {how} at the time of the stall", times[0])
    if row.exit_code and not signal and near and window is not None and latest is not None:
        # A traceback has no date: it wears that of the nearest dated line above it, which stands before the exit's own.
        own = own_exception(ev, row.rank, window[0] - slack_s(ev, row.node), min(latest, times[0] + LAUNCHER_LAG_S))
        if own is not None:
            return End("early", f"its program ended by {own.exception} at the time of the stall", times[0])
    why = f"it ended by {how}, and whether before the stall is not known" if row.exit_code is not None else row.why
    return End("undated", why, times[0] if times else None)


def _times(ev: Evidence, row: RankRow) -> list[float]:
    """The launcher's line on our clock, in both readings: by the log's clock, and by that of the launcher's node."""
    by_log = log_time(ev, row.exit_at)
    if by_log is None or row.exit_at is None:
        return []
    return [by_log, our_time(ev, row.node, row.exit_at)] if row.node else [by_log]


def _looked(ev: Evidence) -> dict[str, float]:
    """node -> when look A saw its processes, on our clock (its own time, or else that of arrival)."""
    return {
        s.node: min(t for t in (s.received, None if s.at is None else our_time(ev, s.node, s.at)) if t is not None)
        for s in ev.of("ranks", "A")
        if s.received is not None or s.at is not None
    }


def _wrote(ev: Evidence) -> dict[int, float]:
    """rank -> when the node that hosts it says that its flight record was written, on our clock."""
    table = ev.derive(rank_table)
    found: dict[int, float] = {}
    for sample in ev.of("flight_recorder"):
        for row in records_of(sample):
            rank = whole(row.get("rank")) if isinstance(row, Mapping) else None
            if rank is None or not isinstance(row, Mapping) or row.get("stale") or table.node_of(rank) != sample.node:
                continue
            at = row.get("mtime")
            if isinstance(at, int | float) and not isinstance(at, bool) and isinstance(row.get("record"), Mapping):
                found[rank] = our_time(ev, sample.node, float(at))
    return found
