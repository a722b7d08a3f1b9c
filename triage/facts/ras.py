"""What NCCL's own RAS network tells: who is missing, who has launched less than its peers, and whether anything moves.

Reads the `ras` probe: two reports of one moment each, some seconds apart, in which every process of the job speaks. Numbers
are launches on the host; they are compared here, communicator by communicator (its hash is its name), and never taken from
the minority that NCCL lists, which may be the rank that is ahead (notes/nccl-ras-and-logs.md 1.7).
What can fool it: a hang in flight (all have launched alike, so equal counts are no health); sends, receives and CUDA graphs,
which are not counted, so that who lags may wait for one of them (and is therefore a lead, or a verdict of low confidence);
a rank that was stopped for a minute and stays "dead" (its process is looked at); the network of the bootstrap, which is not
the one that trains; a report that knows other processes than we do (whom a number means is checked by its process).
"""

from __future__ import annotations

from collections.abc import Iterable

from triage.facts.collectives import members, spoken
from triage.facts.evidence import Evidence
from triage.facts.launches import NOT_ASKED, Comm, heard, launches, named, rank_of, risen
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Part, Provenance

GONE = ("dead", "silent")  # the process does not answer; "left" means that it does, and knows this communicator no more
# Roles by the table of notes 1.7: what a rank reports it mostly saw happen to others.
ERRORS = {
    "1": "a CUDA error of its own",
    "2": "a system error: it saw the network or a peer go",
    "6": "a peer that went, or a network error: a symptom",
}


def _part(ev: Evidence, rank: int, why: str) -> Part:
    return Part("rank", ev.derive(rank_table).node_of(rank), rank, why=why)


@fact("ras.asked", type="bool")
def asked(ev: Evidence) -> Fact:
    """Did a RAS listener of this job answer with a report? Unknown while nobody was asked."""
    told = ev.derive(heard)
    if told.sample is None:
        return unknown(NOT_ASKED)
    return known(bool(told.reports), text="" if told.reports else told.why, provenance=ev.seen(told.sample))


@fact("ras.outcome", type="text")
def outcome(ev: Evidence) -> Fact:
    """What came of asking RAS: ok, no_listener, handshake_silent, foreign_job, garbage, too_old, skipped_init_risk, timeout."""
    told = ev.derive(heard)
    if told.sample is None:
        return unknown(NOT_ASKED)
    silent, tries = told.sample.data.get("silent"), told.sample.data.get("tries")
    text = told.why
    if told.reports and silent:  # the processes of a node share the port: one of them may be frozen
        text += f"; {silent} of {tries} connections met silence, as at a frozen process"
    return known(told.outcome, text=text, provenance=ev.seen(told.sample))


def _seen(ev: Evidence) -> tuple[Provenance, ...]:
    sample = ev.derive(heard).sample
    return ev.seen(sample) if sample else ()


def _ranks_text(ranks: Iterable[int]) -> str:
    have = sorted(set(ranks))
    return f"rank {have[0]}" if len(have) == 1 else f"ranks {spoken(have)}"


@fact("ras.laggards", type="number", unit="ranks", parts="rank")
def laggards(ev: Evidence) -> Fact:
    """Ranks with the fewest launches of a communicator in which nothing moved, less those that wait in another one.

    Never the minority that NCCL lists. Unknown where a rank is missing from the report: the others may lag for it.
    """
    found = ev.derive(launches)
    if found.why or found.crossed:
        return unknown(found.why or "ranks launched other operations than their peers", provenance=_seen(ev))
    roots = {rank: why for rank, why in found.behind.items() if rank not in found.ahead}
    text = f"{_ranks_text(roots)} launched less than the peers and stood still" if roots else ""
    if found.behind and not roots:
        text = "whoever lags in one communicator waits in another"
    return known(
        parts=[_part(ev, rank, why) for rank, why in sorted(roots.items())],
        text=text or "no communicator that stood still is uneven",
        provenance=_seen(ev),
    )


@fact("ras.crossed", type="number", unit="ranks", parts="rank")
def crossed(ev: Evidence) -> Fact:
    """Ranks that have launched more of one operation and fewer of another than their peers: another order of calls."""
    found = ev.derive(launches)
    if found.why and not found.crossed:
        return unknown(found.why, provenance=_seen(ev))
    return known(
        parts=[_part(ev, rank, why) for rank, why in sorted(found.crossed.items())],
        text=f"{_ranks_text(found.crossed)} launched other operations than the peers" if found.crossed else "",
        provenance=_seen(ev),
    )


@fact("ras.advancing", type="bool")
def advancing(ev: Evidence) -> Fact:
    """Did launch counts rise between two reports, on most of those that both tell of?"""
    told, found = ev.derive(heard), ev.derive(launches)
    if len(told.reports) < 2:
        return unknown(found.why or told.why, provenance=_seen(ev))
    signs, _samples = risen(ev)
    if signs:
        return known(True, text=signs[0], provenance=_seen(ev))
    if found.rose or found.hidden_rise:
        return unknown("launches rose on some ranks only between two RAS reports", provenance=_seen(ev))
    if not found.watched:
        return unknown("the reports tell no counts (a text report leaves out what is equal)", provenance=_seen(ev))
    return known(False, text="no launch between two RAS reports", provenance=_seen(ev))


@fact("ras.even", type="bool")
def even(ev: Evidence) -> Fact:
    """Have all ranks of every communicator launched alike, and does nothing move? No launch is missing; it is not health."""
    told, found = ev.derive(heard), ev.derive(launches)
    if found.uneven:
        return known(False, text=f"{found.uneven} communicators are uneven", provenance=_seen(ev))
    if found.why or told.newest is None:
        return unknown(found.why or told.why, provenance=_seen(ev))
    moves = advancing(ev)
    if moves.value is not False:
        return unknown(moves.reason or "launches rise", provenance=_seen(ev))
    text = "all ranks launched alike and stand still (a hang in flight looks so, too)"
    return known(True, text=text, provenance=_seen(ev))


def _gone(ev: Evidence, kinds: tuple[str, ...]) -> Fact:
    told = ev.derive(heard)
    if told.newest is None:
        return unknown(told.why, provenance=_seen(ev))
    table = ev.derive(rank_table)
    found: dict[int, str] = {}
    unnamed, alive = "", []
    for comm in told.newest["comms"]:
        if comm["missing_n"] > len(comm["missing"]):
            unnamed = "ranks are missing that the report does not name"
        for number, how, host, _ in comm["missing"]:
            if how not in kinds:
                continue
            rank = rank_of(ev, comm, number)
            if rank is None:
                unnamed = f"rank {number} of a communicator of {comm['size']} is missing, and is not known to be one of the job"
                continue
            row = table.rows.get(rank)
            if how == "dead" and row and row.alive and row.state not in ("T", "t", None):
                alive.append(rank)  # for RAS it stays dead once it was unreachable for a minute
                continue
            state = row.why if row else "its process is not known"
            how_long = "for a minute, once" if how == "dead" else "now"
            found.setdefault(rank, f"RAS could not reach it {how_long} ({host or 'address not told'}); {state}")
    if unnamed and not found:
        return unknown(unnamed, provenance=_seen(ev))
    text = f"RAS could not reach {_ranks_text(found)}" if found else ""
    nodes = {table.node_of(rank) for rank in found}
    whole_nodes = [n for n in nodes if n and set(table.node_ranks.get(n, ())) <= set(found)]
    if whole_nodes:
        text += f": all ranks of {', '.join(sorted(whole_nodes)[:8])}"
    if alive:
        text += f"{'; ' if text else ''}{_ranks_text(alive)} was unreachable once, and its process runs"
    return known(parts=[_part(ev, rank, why) for rank, why in sorted(found.items())], text=text, provenance=_seen(ev))


@fact("ras.missing", type="number", unit="ranks", parts="rank")
def missing(ev: Evidence) -> Fact:
    """Ranks whose process RAS could not reach: it ended, is frozen as a whole, or has lost the bootstrap's network."""
    return _gone(ev, GONE)


@fact("ras.dead", type="number", unit="ranks", parts="rank")
def dead(ev: Evidence) -> Fact:
    """Ranks that RAS holds for dead (unreachable for a minute, once) and whose process is not seen to run."""
    return _gone(ev, ("dead",))


@fact("ras.errors", type="number", unit="ranks", parts="rank")
def errors(ev: Evidence) -> Fact:
    """Ranks whose NCCL reports an error; most saw what happened to others, only a CUDA error is their own."""
    told = ev.derive(heard)
    if told.newest is None:
        return unknown(told.why, provenance=_seen(ev))
    found: dict[int, str] = {}
    for comm in told.newest["comms"]:
        for what, _, folded in comm["errors"]:
            kind, _, code = what.partition(" ")
            where = "in its set-up" if kind == "init" else "in flight"
            ranks, _why = named(ev, comm, members(folded))
            for rank in ranks:
                found.setdefault(rank, f"NCCL reports {ERRORS.get(code, f'error {code}')} ({where})")
    return known(
        parts=[_part(ev, rank, why) for rank, why in sorted(found.items())],
        text=f"NCCL reports errors on {_ranks_text(found)}" if found else "",
        provenance=_seen(ev),
    )


@fact("ras.initialising", type="number", unit="ranks", parts="rank")
def initialising(ev: Evidence) -> Fact:
    """Ranks that are in the set-up of one communicator in both reports: they wait there for one that has not come."""
    told = ev.derive(heard)
    if len(told.reports) < 2:
        return unknown(told.why if not told.reports else "there is only one report", provenance=_seen(ev))
    first, second = ({comm["id"]: comm for comm in report["comms"]} for report in told.reports)
    found: dict[int, str] = {}
    for ident, now in second.items():
        both = set(_in_state(first.get(ident), "INIT")) & set(_in_state(now, "INIT"))
        ranks, _why = named(ev, now, sorted(both))
        for rank in ranks:
            found.setdefault(rank, f"is still in the set-up of a communicator of {now['size']} ranks")
    return known(
        parts=[_part(ev, rank, why) for rank, why in sorted(found.items())],
        text=f"{_ranks_text(found)} did not come through a communicator's set-up" if found else "",
        provenance=_seen(ev),
    )


def _in_state(comm: Comm | None, state: str) -> list[int]:
    if comm is None:
        return []
    return [rank for word, _, folded in comm["status"] if word == state for rank in members(folded)]
