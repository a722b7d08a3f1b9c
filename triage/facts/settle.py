"""The wait graph met with the process list: who of those that can do nothing now was the cause, and who is a victim?

A rank that has died or was stopped has no fresh dump, and whoever has none looks as if all others wait for it. What the
dumps show by themselves (a rank that has not come, a circle) goes before that. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from triage.facts.collectives import Records
from triage.facts.ordertrail import overtakers
from triage.facts.waitgraph import Picture, draw


def settle(records: Records, dead: Mapping[int, str], perhaps: Mapping[int, str]) -> Picture:
    """The picture of these dumps and of the process list together.

    dead      ranks that surely ended before the stall: they can do nothing, so they are roots wherever they are missed
    perhaps   rank -> "dead" | "stopped" | "d_state" at an unknown time: a victim may have been killed or stopped since

    Whoever is only *perhaps* a cause explains the waits where nothing that the dumps show does (no root, no circle), and
    then only if no rank with a dump has gone past what it owed to that very rank: that is one half of a circle.
    """
    first = draw(records, dead)
    down = {rank: perhaps[rank] for rank in first.possible if rank in perhaps}
    if first.roots or first.cycles or not down:
        _as_now(first, {**perhaps, **dead})
        return first
    ahead = overtakers(records, {rank: unit.key for rank, unit in first.waiting.items()}, down)
    if ahead:
        first.out_of_order = ahead
        return first
    second = draw(records, {**dead, **down})
    # In a job that stands every healthy rank waits in something before long: whoever stands outside may be the cause.
    outside = {rank for rank, view in records.views.items() if view.head is None and view.record.get("lib")}
    second.rivals = (first.possible | outside) - set(second.roots)
    _as_now(second, {**perhaps, **dead})
    return second


def _as_now(picture: Picture, state: Mapping[int, str]) -> None:
    """A root whose dump is from before is now what the process list says."""
    for rank, kind in picture.roots.items():
        now = state.get(rank)
        if now in ("dead", "stopped") or (now and kind == "host"):
            picture.roots[rank] = now
