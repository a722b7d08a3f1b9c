"""Are these dumps of one moment? Compared by what they hold, which no clock can falsify.

A symmetric collective that one member has finished was entered by all. A dump that shows less is older than that moment
(a file that lay there), or one of the two lies (both were written when we asked). Only NCCL's records can tell: gloo's
retire what failed as well (notes/flight-recorder.md 0, 1.2).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from triage.facts.collectives import GroupKey, RankView, Records
from triage.facts.signatures import symmetric


class _Shows(NamedTuple):
    """What one dump shows of one group: the newest collective that all have entered for sure, and its own newest."""

    rank: int
    finished: int  # -1: none that proves anything
    enqueued: int


def behind(records: Records, fresh: Collection[int]) -> dict[int, str]:
    """rank -> why its dump is of another moment than most. `fresh`: ranks whose dump was written because we asked.

    Fresh dumps are judged first, among themselves: a minority that contradicts more than half of the others is out; then
    the files by what is left of them (or, without any, by the newest of their own).
    """
    out: dict[int, str] = {}
    for key, rows in _by_group(records):
        asked = [row for row in rows if row.rank in fresh]
        lying = _contradict(asked)
        for row in lying:
            out[row.rank] = (
                f"its number {row.enqueued} of {records.groups[key].label()} contradicts the other ranks' records"
            )
        sure = [row for row in asked if row not in lying] if lying else asked
        files = [row for row in rows if row.rank not in fresh]
        if not files:
            continue
        newest = max(sure or files, key=_finished_number, default=None)
        least = min((row.enqueued for row in sure), default=None)
        for row in files:
            if newest is not None and row.enqueued < newest.finished:
                out[row.rank] = (
                    f"it shows number {row.enqueued} of {records.groups[key].label()}, and rank {newest.rank} has finished "
                    f"number {newest.finished}, which none can without it: of an earlier moment"
                )
            elif least is not None and row.finished > least:
                out[row.rank] = f"it shows more of {records.groups[key].label()} than fresh records: of another attempt"
    return out


def _contradict(rows: list[_Shows]) -> list[_Shows]:
    """Those that cannot be of one moment with more than half of the others."""
    if not rows or max([r.finished for r in rows]) <= min([r.enqueued for r in rows]):
        return []
    enqueued, finished = sorted(r.enqueued for r in rows), sorted(r.finished for r in rows)
    against = {
        row: bisect_left(enqueued, row.finished) + len(rows) - bisect_right(finished, row.enqueued) for row in rows
    }
    return [row for row in rows if against[row] * 2 >= len(rows) - 1]


def _finished_number(row: _Shows) -> int:
    return row.finished


def _by_group(records: Records) -> Iterator[tuple[GroupKey, list[_Shows]]]:
    rows: dict[GroupKey, list[_Shows]] = {
        key: [] for key, info in records.groups.items() if info.complete and len(info.members) > 1 and not info.p2p
    }
    newest: dict[tuple[str, tuple[str, ...], int], int] = {}
    for rank, view in records.views.items():
        if not view.record.get("lib"):
            continue
        for key, row in view.rows.items():
            told = rows.get(key)
            enqueued = row.get("enq") if told is not None else None
            if told is not None and enqueued is not None:
                status = row.get("status")
                most = max(enqueued, int(status[0])) if status else enqueued  # as Records.enqueued
                told.append(_Shows(rank, _finished(records, view, key, row, newest), most))
    return ((key, each) for key, each in sorted(rows.items()) if len(each) > 1)


def _finished(
    records: Records,
    view: RankView,
    key: GroupKey,
    row: Mapping[str, object],
    known: dict[tuple[str, tuple[str, ...], int], int],
) -> int:
    """The newest collective that this rank has surely finished and that nobody can finish without the others, or -1."""
    end: int = row["enq"] + 1  # type: ignore[operator]  # a number: collectives.py has checked it
    for limit in (row.get("first_open"), row.get("unsure")):
        if isinstance(limit, int) and limit < end:
            end = limit
    at = (str(row.get("win", "")), view.sigs, end)
    found = known.get(at)
    if found is None:
        window = records.window(view.rank, key)
        found = known[at] = max([seq for seq, sig in window.items() if seq < end and symmetric(sig)], default=-1)
    return found
