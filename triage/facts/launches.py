"""Two reports of NCCL's RAS compared: who has launched less than its peers, who waits, who went another way, what moved.

Numbers are compared here, communicator by communicator (its hash is its name), and never taken from the minority that NCCL
lists, which may be the rank that is ahead. Only what stands still in both reports tells of anybody. Whom a number means is
proven by its process: a communicator counts its own ranks (notes/nccl-ras-and-logs.md 1.1, 1.7). Linear in the answer.
What can fool it: a rank that waits for a send, a receive or a CUDA graph, which are not counted, lags like one that hangs;
pids, which are a container's own (only one that fits exactly one rank of the job names it).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from triage.facts.claims import records_of, whole
from triage.facts.collectives import members
from triage.facts.evidence import Evidence
from triage.facts.ranktable import RankRow, rank_table
from triage.model import Sample

Comm = Mapping[str, Any]
Report = Mapping[str, Any]

NOT_ASKED = "NCCL's RAS was not asked"
RELEASE = re.compile(r"v?(2\.\d{1,3}\.\d{1,3})(?:\D.*)?")
LINE = re.compile(r"NCCL version (2\.\d{1,3}\.\d{1,3})\b")


@dataclass(frozen=True)
class Heard:
    """The best answer there is: its sample, and the reports that it holds (none unless its outcome is ok)."""

    sample: Sample | None = None
    reports: tuple[Report, ...] = ()
    outcome: str = ""
    why: str = NOT_ASKED

    @property
    def newest(self) -> Report | None:
        return self.reports[-1] if self.reports else None


def heard(ev: Evidence) -> Heard:
    """To be called through `ev.derive`."""
    best = Heard()
    for sample in ev.of("ras", status=None):
        if sample.status != "ok":
            why = f"the RAS probe on {sample.node}: {sample.status}"
            found = Heard(sample, (), "timeout" if sample.status == "timeout" else "no_listener", why)
        else:
            data = sample.data
            outcome, why = str(data.get("outcome") or ""), str(data.get("why") or "")
            told = [data.get(name) for name in ("first", "second")]
            reports = tuple(report for report in told if isinstance(report, Mapping)) if outcome == "ok" else ()
            found = Heard(sample, reports, outcome, f"RAS on {sample.node}: {outcome}{f' ({why})' if why else ''}")
        if best.sample is None or len(found.reports) >= len(best.reports):
            best = found
    return best


# ---------------------------------------------------------------- whom a number means


def own_pid(row: RankRow) -> int | None:
    """The pid that the rank has in its own eyes (in a container another one than in ours)."""
    record = row.last or row.first or {}
    return whole(record.get("ns_pid")) or row.pid


def nccl_releases(ev: Evidence) -> list[tuple[int, ...]]:
    """The releases of NCCL that flight records, the job log or RAS tell of, oldest first; [] where none does."""
    told = [
        str(record.get("lib") or "")
        for sample in ev.of("flight_recorder")
        for row in records_of(sample)
        if isinstance(row, Mapping) and isinstance(record := row.get("record"), Mapping)
    ]
    told += [str(report.get("nccl") or "") for report in ev.derive(heard).reports]
    lines = [line for sample in ev.of("joblog") for line in sample.data.get("tail") or ()]
    hits = [hit for sample in ev.of("joblog") for hit in sample.data.get("hits") or () if isinstance(hit, Mapping)]
    lines += [hit.get("text") for hit in hits]
    found = {RELEASE.fullmatch(text.strip()) for text in told}
    found |= {LINE.search(line) for line in lines if isinstance(line, str)}
    return sorted({tuple(int(part) for part in match.group(1).split(".")) for match in found if match})


def nccl_release(ev: Evidence) -> str:
    """The oldest of them, "2.27.5"; "" where none is told."""
    releases = nccl_releases(ev)
    return ".".join(map(str, releases[0])) if releases else ""


def rank_of(ev: Evidence, comm: Comm, number: int) -> int | None:
    """The global rank that a communicator's rank is; None where nothing proves it."""
    table = ev.derive(rank_table)
    told = {row[0]: row[2] for row in comm["who"]} | {row[0]: row[3] for row in comm["missing"]}
    pid = told.get(number) or None
    if comm["ranks"] in ("global", "world"):
        row = table.rows.get(number)
        ours = own_pid(row) if row else None
        agreed = pid is not None and pid == ours
        refuted = pid is not None and ours is not None and pid != ours
        within = table.world_size is None or number < table.world_size
        return number if agreed or (comm["ranks"] == "global" and within and not refuted) else None
    if pid is None or table.world_size is None or any(own_pid(row) is None for row in table.rows.values()):
        return None  # of a rank that nobody shows the pid may be the same
    fits = [row.rank for row in table.rows.values() if own_pid(row) == pid]
    return fits[0] if len(fits) == 1 else None


def named(ev: Evidence, comm: Comm, numbers: Iterable[int]) -> tuple[list[int], str]:
    """(global ranks, "") or ([], whose number is not known to be whose)."""
    found = []
    for number in numbers:
        rank = rank_of(ev, comm, number)
        if rank is None:
            return [], f"rank {number} of a communicator of {comm['size']} is not known to be one rank of the job"
        found.append(rank)
    return found, ""


# ---------------------------------------------------------------- launches


@dataclass
class Launches:
    """What both reports say of who has launched what.

    behind     rank -> why: the fewest launches of a communicator in which nothing moved
    ahead      ranks that have launched more than the fewest there: they wait
    crossed    rank -> why: more of one operation and fewer of another than most
    rose       ranks whose count rose in some communicator, of `watched`;  moved  communicators in which any did
    uneven     communicators whose ranks differ;  standing  of them those in which nothing moved
    why        what keeps laggards from being told; "" where nothing does
    """

    behind: dict[int, str] = field(default_factory=dict)
    ahead: set[int] = field(default_factory=set)
    crossed: dict[int, str] = field(default_factory=dict)
    rose: set[object] = field(default_factory=set)
    watched: set[object] = field(default_factory=set)
    moved: int = 0
    uneven: int = 0
    standing: int = 0
    unnamed_ahead: bool = False
    hidden_rise: bool = False
    why: str = ""


def launches(ev: Evidence) -> Launches:
    """To be called through `ev.derive`."""
    out = Launches()
    told = ev.derive(heard)
    if len(told.reports) < 2:
        out.why = told.why if not told.reports else "there is only one report, and one alone shows nothing stand still"
        return out
    first, second = ({comm["id"]: comm for comm in report["comms"]} for report in told.reports)
    out.hidden_rise = told.reports[0].get("left_launches") != told.reports[1].get("left_launches")
    backwards = False
    for ident, now in second.items():
        before = first.get(ident)
        if before is not None:
            backwards = not _growth(before, now, out) or backwards
        if _uneven(now):
            out.uneven += 1
            if before is None:
                out.why = out.why or "an uneven communicator stands in one of the two reports only"
            elif all(before[name] == now[name] for name in ("ops", "groups", "unlisted", "size", "ranks")):
                out.standing += 1
                _stands(ev, now, out)
    missing = [row for report in told.reports for comm in report["comms"] for row in comm["missing"]]
    if backwards:
        # Nobody takes a launch back: the two are not of one life of that communicator.
        out.why, out.rose, out.moved = "launches went backwards between the two reports", set(), 0
    elif unsettled := next((why for report in told.reports if (why := _unsettled(report))), ""):
        out.why = unsettled
    elif missing or any(comm["missing_n"] for report in told.reports for comm in report["comms"]):
        out.why = "ranks are missing from the report, and the others may lag for one of them"
    elif told.reports[1]["left_out"] and all(_uneven(comm) for comm in second.values()):
        out.why = "more communicators are uneven than the answer holds"
    elif out.unnamed_ahead and out.standing > 1:
        out.why = out.why or "who lags in one communicator may wait in another: its ranks are not known by name"
    return out


def _uneven(comm: Comm) -> bool:
    return len(comm["groups"]) > 1 or bool(comm["unlisted"])


def _total(group: list[Any]) -> int:
    return sum(n or 0 for n in group[0])


def _unsettled(report: Report) -> str:
    """Why the counts of a report may differ without anybody being late: who has met an error, aborts, leaves or joins a
    communicator launches nothing in its others either, and mostly it is the one that noticed (notes 1.7)."""
    for comm in report["comms"]:
        state = next((word for word, *_ in comm["status"] if word != "RUNNING"), "")
        if state or comm["errors"]:
            what = f"is in the state {state}" if state else "has met an error"
            return (
                f"a communicator of {comm['size']} {what} on some ranks, and such ranks launch nothing elsewhere either"
            )
    # A text report lists only what is uneven: one that all its members abort stands in its table alone.
    state = next((row[2] for row in report["table"] if row[2] not in ("RUNNING", "NOCOMM", "UNKNOWN")), "")
    return f"a communicator is in the state {state}, and its ranks launch nothing elsewhere either" if state else ""


def _growth(before: Comm, now: Comm, out: Launches) -> bool:
    """Whose launches rose between the reports; False where any went back.

    A text report tells only the operations that are uneven, so that two may count other ones.
    """
    earlier: dict[int, Mapping[str, Any]] = {}
    for group in before["groups"]:
        counts = dict(zip(before["ops"], group[0]))
        earlier.update((rank, counts) for rank in members(group[2]))
    rose = False
    for group in now["groups"]:
        for rank in members(group[2]):
            if rank in earlier:
                # Ranks of a communicator that nothing ties to the job's ranks count for themselves.
                key = rank if now["ranks"] == "global" else (now["id"], rank)
                out.watched.add(key)
                was = earlier[rank]
                steps = [(n or 0) - (was[op] or 0) for op, n in zip(now["ops"], group[0]) if op in was]
                if any(step < 0 for step in steps):
                    return False
                if any(steps):
                    out.rose.add(key)
                    rose = True
    out.moved += rose
    return True


def _stands(ev: Evidence, comm: Comm, out: Launches) -> None:
    """An uneven communicator in which nothing moved: who is behind, who waits, who went another way."""
    if comm["unlisted"]:
        out.why = out.why or f"the report tells numbers without ranks ({comm['unlisted']})"
        return
    if any(word != "RUNNING" for word, *_ in comm["status"]):
        return  # an abort, or the end, stops the counts of some before others
    if comm["more_groups"] or any(n != len(members(folded)) for _, n, folded in comm["groups"]):
        out.why = out.why or "the launches of one communicator differ more than the answer holds"
        return
    ops, groups = comm["ops"], comm["groups"]
    usual = max(groups, key=lambda group: group[1])
    odd = [group for group in groups if _differs_both_ways(group[0], usual[0])]
    if odd:
        if 2 * usual[1] <= comm["present"]:  # nothing separates the two sides
            odd = [*odd, usual]
        for group in odd:
            _note(ev, comm, group, out.crossed, f"went another way: {_against(ops, group[0], usual[0])}", out)
        return
    least = min(map(_total, groups))
    behind = [group for group in groups if _total(group) == least]
    best = max(groups, key=_total)
    if len(behind) > 1 or _differs_both_ways(behind[0][0], best[0]):
        for group in behind:  # each is behind in another operation
            _note(ev, comm, group, out.crossed, f"went another way: {_against(ops, group[0], best[0])}", out)
        return
    _note(ev, comm, behind[0], out.behind, f"has launched less: {_against(ops, behind[0][0], best[0])}", out)
    for group in groups:
        if _total(group) > least:
            ranks, why = named(ev, comm, members(group[2]))
            out.ahead.update(ranks)
            out.unnamed_ahead = out.unnamed_ahead or bool(why)


def _note(ev: Evidence, comm: Comm, group: list[Any], into: dict[int, str], words: str, out: Launches) -> None:
    ranks, why = named(ev, comm, members(group[2]))
    out.why = out.why or why
    for rank in ranks:
        into.setdefault(rank, f"{words} (of {comm['size']} ranks, alike in both reports)")


def _differs_both_ways(one: list[Any], other: list[Any]) -> bool:
    steps = [(a or 0) - (b or 0) for a, b in zip(one, other)]
    return any(step > 0 for step in steps) and any(step < 0 for step in steps)


def _against(ops: list[str], one: list[Any], other: list[Any]) -> str:
    """ "41 AllReduce where others launched 42": the operations that differ."""
    told = [
        f"{a} {'operations' if op == 'all' else op} where others launched {b}"
        for op, a, b in zip(ops, one, other)
        if a != b
    ]
    return ", ".join(told[:3])


def risen(ev: Evidence) -> tuple[list[str], list[Sample]]:
    """Signs that the job launched something between two reports, and who told (a count that rises is progress).

    Ranks of a synchronous job advance together: a minority that does is a part of it, and no progress of the job.
    """
    told, found = ev.derive(heard), ev.derive(launches)
    # Another library of the job (an engine that serves the model) has processes that are no ranks, and launches of its own.
    ours = {key for key in found.watched if isinstance(key, int)} or found.watched
    rose = found.rose & ours
    if told.sample is None or not rose or 2 * len(rose) < len(ours):
        return [], []
    gap = told.sample.data.get("gap_s")
    apart = f"{gap:.0f}s apart" if isinstance(gap, int | float) else "some seconds apart"
    many = "a communicator" if found.moved == 1 else f"{found.moved} communicators"
    return [f"launches rose in {many} between two RAS reports {apart}"], [told.sample]
