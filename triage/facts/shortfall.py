"""Do NCCL's launch counts prove that a rank has not come to what the others wait in by their flight records?

That it has launched less is not enough. A rank that waits for its own device (`loss.item()` on the one that writes the log)
launches nothing either, while its peers run ahead: it has come to the collective that hangs, and lags in those behind it.
So the group must be that communicator, and nobody may have enqueued anything there beyond what he waits in: then whatever the
rank has not launched lies at or before it. Counts of another group prove nothing: it may lag there because it waits here. And
one that is even in another communicator, or has sends and receives, may wait in that for its device, held by a third rank.
What can fool it: two communicators over the same ranks (all of them must say so); records much older than the report.
Pure; linear in the report and the records.
"""

from __future__ import annotations

from triage.facts.collectives import GroupInfo, GroupKey, members
from triage.facts.dumps import waits
from triage.facts.evidence import Evidence
from triage.facts.launches import Comm, heard, rank_of
from triage.facts.waitgraph import Picture


def unproven(ev: Evidence, rank: int) -> str:
    """Why the counts do not prove that this rank has not come; "" where they do."""
    picture, newest = ev.derive(waits).picture, ev.derive(heard).newest
    if picture is None or newest is None:
        return "there are no flight records and launch counts of one moment"
    awaited = [key for key in sorted(picture.stalled_groups) if rank in picture.group(key).members]
    if not awaited:
        return f"no flight record shows that anybody waits in a group of rank {rank}"
    for comm in newest["comms"]:
        if comm["ranks"] == "comm":
            return "whose ranks one of the communicators holds is not known"
        if rank in {member for group in comm["groups"] for member in members(group[2])} and not _lags(ev, comm, rank):
            return f"rank {rank} has launched as much as its peers in another communicator, and may wait in that"
    # A text report lists what is uneven, and counts the rest in its table.
    if newest["left_out"] or sum(row[0] for row in newest["table"]) > len(newest["comms"]):
        return "the report does not show all communicators"
    for key in awaited:
        info = picture.group(key)
        if info.p2p:
            return f"there are sends and receives in {info.label()}, which NCCL does not count"
        if _beyond(picture, key):
            return (
                f"ranks have enqueued more of {info.label()} than they wait in, so that one that waits may lag as well"
            )
        comms = [comm for comm in newest["comms"] if _is_of(comm, info, picture.records.world)]
        if not comms or not all(_lags(ev, comm, rank) for comm in comms):
            return f"the counts do not show rank {rank} behind in {info.label()}, where the others wait"
    return ""


def _beyond(picture: Picture, key: GroupKey) -> bool:
    """Has a rank that waits in this group enqueued anything of it behind that, or is it no collective that it waits in?"""
    for rank, unit in picture.waiting.items():
        if unit.key == key:
            row = picture.records.views[rank].rows.get(key)
            if unit.seq is None or row is None or picture.records.enqueued(row, key) != unit.seq:
                return True
    return False


def _is_of(comm: Comm, info: GroupInfo, world: int | None) -> bool:
    if comm["size"] != len(info.members) or not info.complete:
        return False
    if comm["ranks"] == "global":
        return {rank for group in comm["groups"] for rank in members(group[2])} == set(info.members)
    return bool(comm["ranks"] == "world" and comm["size"] == world)


def _lags(ev: Evidence, comm: Comm, rank: int) -> bool:
    """Has it launched less there than the most, and not more of anything?"""
    own = next((group[0] for group in comm["groups"] if rank in members(group[2])), None)
    if own is None or rank_of(ev, comm, rank) != rank:
        return False
    best = max((group[0] for group in comm["groups"]), key=lambda vector: sum(n or 0 for n in vector))
    steps = [(most or 0) - (few or 0) for most, few in zip(best, own, strict=True)]
    return any(steps) and min(steps) >= 0
