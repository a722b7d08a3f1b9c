"""What the `activity` probe saw the ranks do within its window of seconds: compilers, caches, folders, bytes.

Only the node that hosts a rank is heard on it, and only on the process that the rank table knows: a cache that grows on
another node, or under a process of the same number, is no sign of this rank.
What can fool it: two ranks of one node may share a cache, so that each sees what the other's compiler writes; `rchar` and
`wchar` count what a process reads and writes on sockets by read(2) and write(2) as well (measured), `read_bytes` and
`write_bytes` only what goes to storage; a cache on a file server carries the server's dates; an output that several ranks
share shows the progress bar of any of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from triage.facts.claims import records_of, whole
from triage.facts.clocks import clock_offsets, our_time
from triage.facts.ends import stall_window
from triage.facts.evidence import Evidence
from triage.facts.ranktable import RankRow, rank_table
from triage.model import Sample

# A file's date is the file server's: by so much it may lie in the node's future (dumps.py takes the same for folders).
FILE_CLOCK_SLACK_S = 5.0
STORAGE = ("read_bytes", "write_bytes")


@dataclass(frozen=True)
class Doing:
    """What one rank was seen to do: the probe's row, over how many seconds, and when (the node's clock)."""

    row: Mapping[str, Any]
    window_s: float
    at: float | None
    sample: Sample


@dataclass
class Activity:
    of: dict[int, Doing] = field(default_factory=dict)
    unseen: dict[int, str] = field(default_factory=dict)  # rank -> why the probe did not see it
    samples: list[Sample] = field(default_factory=list)  # good ones
    asked: set[str] = field(default_factory=set)  # nodes that were asked, whatever came of it


def activity(ev: Evidence) -> Activity:
    """The newest word on each rank."""
    out, table = Activity(), ev.derive(rank_table)
    for sample in ev.of("activity", status=None):
        out.asked.add(sample.node)
        window = number(sample.data.get("window_s"))
        if sample.status != "ok" or not window:
            continue
        out.samples.append(sample)
        for row in records_of(sample):
            rank = whole(row.get("rank")) if isinstance(row, Mapping) else None
            home = table.rows.get(rank) if rank is not None else None
            if rank is None or not isinstance(row, Mapping) or home is None or home.node != sample.node:
                continue
            if home.pid is not None and whole(row.get("pid")) not in (None, home.pid):
                out.unseen[rank] = f"process {home.pid} of the looks was no longer there"
                continue
            out.of[rank] = Doing(row, window, sample.at, sample)
        for row in rows_of(sample.data.get("unseen")):
            rank = whole(row.get("rank"))
            if rank is not None and table.node_of(rank) == sample.node:
                out.unseen[rank] = str(row.get("why") or "not seen")[:160]
    return out


def number(value: object) -> float | None:
    """A finite number from 0 up, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return float(value)


def rows_of(value: object) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list | tuple) else []


# ---------------------------------------------------------------- signs of one rank; "" = no sign


def compiler_sign(ev: Evidence, doing: Doing) -> str:
    """Do compilers below the rank burn CPU? One that is there and does nothing is no sign, whatever its name."""
    rows = sorted(rows_of(doing.row.get("compilers")), key=lambda row: -(number(row.get("cpu_s")) or 0.0))
    burnt = number(doing.row.get("compiler_cpu_s"))
    if burnt is None:
        burnt = sum(number(row.get("cpu_s")) or 0.0 for row in rows)
    share = burnt / doing.window_s
    if share < ev.limit("busy_cpu_share"):
        return ""
    at_work = [row for row in rows if number(row.get("cpu_s"))]
    if not at_work:
        return f"compilers that have ended since used {share:.2g} cores"
    first = f"{str(at_work[0].get('comm') or 'a compiler')[:32]} (pid {whole(at_work[0].get('pid'))})"
    more = f" and {len(at_work) - 1} more compilers" if len(at_work) > 1 else ""
    return f"{first}{more} used {share:.2g} cores"


def cache_sign(ev: Evidence, row: RankRow, doing: Doing) -> str:
    """Did a compiler cache of the rank grow within the window, or get a file since the stall began and not long ago?"""
    for cache in rows_of(doing.row.get("caches")):
        name = f"{str(cache.get('kind') or 'compiler')[:20]} cache {str(cache.get('path') or '')[:100]}".rstrip()
        others = whole(cache.get("shared_with")) or 0
        name += f" (shared with {others} other rank{'s' if others > 1 else ''} at least)" if others > 0 else ""
        files, grown = whole(cache.get("files_new")) or 0, whole(cache.get("bytes_grown")) or 0
        if files > 0 or grown > 0:
            what = f"{files} new file{'s' if files > 1 else ''}" if files > 0 else f"{grown} new bytes"
            return f"its {name} got {what} within {doing.window_s:.3g}s"
        newest = number(cache.get("newest_at"))
        if newest is not None and doing.at is not None and _since_the_stall(ev, row, doing.at, newest):
            return f"the newest file of its {name} is {max(0.0, doing.at - newest):.0f}s old, younger than the stall"
    return ""


def _since_the_stall(ev: Evidence, row: RankRow, now: float, newest: float) -> bool:
    """Is this file young, and of the time since the last step ended (since the process began, while no step is known)?"""
    if not -FILE_CLOCK_SLACK_S <= now - newest <= ev.limit("busy_cache_fresh_s"):
        return False
    window, node = ev.derive(stall_window), row.node or ""
    if window is None:
        return row.start_s is not None and newest > row.start_s
    offset = ev.derive(clock_offsets).get(node)
    return our_time(ev, node, newest) > window[0] + (offset.err_s if offset else 0.0)


def folder_sign(doing: Doing) -> str:
    """Does a checkpoint or data-cache folder of the rank grow?"""
    for folder in rows_of(doing.row.get("folders")):
        files, grown = whole(folder.get("files_new")) or 0, whole(folder.get("bytes_grown")) or 0
        if files > 0 or grown > 0:
            kind = str(folder.get("kind") or "").replace("_", " ")[:20]
            return f"its {kind} folder {str(folder.get('path') or '')[:100]} grows"
    return ""


def bar_sign(doing: Doing) -> str:
    """Did the last progress bar of its output change within the window? A bar that stands says nothing."""
    line = doing.row.get("progress_line")
    return (
        f"its progress bar moves: {line.strip()[:100]}"
        if doing.row.get("progress_moved") is True and isinstance(line, str)
        else ""
    )


def rate(doing: Doing, counters: Iterable[str]) -> float | None:
    """Bytes a second of the fastest of these counters, by the rank and what it started; None where none could be read."""
    grown = [g for name in counters if (g := number(doing.row.get(f"{name}_grown"))) is not None]
    return max(grown) / doing.window_s if grown else None


def look_rates(ev: Evidence, counters: Iterable[str]) -> dict[int, float]:
    """rank -> bytes a second of the fastest of these counters between the two looks, by the rank's own process."""
    names, windows = tuple(counters), ev.both_looks("ranks")
    found: dict[int, float] = {}
    for rank, row in ev.derive(rank_table).rows.items():
        if (
            row.first is None
            or row.last is None
            or row.node not in windows
            or row.first.get("pid") != row.last.get("pid")
        ):
            continue
        a, b = windows[row.node]
        seconds = _between(a.at, b.at) or _between(a.received, b.received)
        pairs = [(row.first.get(name), row.last.get(name)) for name in names]
        grown = [new - old for old, new in pairs if whole(old) is not None and whole(new) is not None]  # type: ignore[operator]
        if seconds and grown:
            found[rank] = max(grown) / seconds
    return found


def _between(a: float | None, b: float | None) -> float | None:
    return b - a if a is not None and b is not None and b > a else None
