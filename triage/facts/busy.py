"""Is the rank that others wait for in a long legitimate phase that makes progress of its own?

    compile    a compiler below the rank burns CPU, and the rank's compiler cache grows (or has grown since the stall began)
    checkpoint, restore    the log announces it, and bytes of that phase move (phases.py)

Two signs each: a process called `ptxas` that does nothing, one that runs for ever and writes nothing, and a shared cache
that another rank's compiler fills are one sign each. One sign is a lead (`busy.maybe`), and enough not to call a rank stuck.
A busy rank tells of that rank only: another one that is waited for as well may be dead or stuck.
What can fool it: a rank that compiles within its own process shows its cache only (its CPU time is no sign, a waiting rank
spins); an endless compiler on a node whose other ranks fill the same cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from triage.facts.activity import STORAGE, activity, bar_sign, cache_sign, compiler_sign, folder_sign, look_rates, rate
from triage.facts.clocks import log_sample
from triage.facts.collectives import spoken
from triage.facts.dumps import standing
from triage.facts.evidence import Evidence
from triage.facts.phases import open_phase, saving, told_by
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, other, unknown
from triage.model import Fact, Part, Provenance


@dataclass(frozen=True)
class Signs:
    """What speaks for this rank being busy; "" = it does not."""

    compiler: str = ""
    cache: str = ""
    others: tuple[str, ...] = ()

    @property
    def compiles(self) -> bool:
        return bool(self.compiler and self.cache)

    def words(self) -> str:
        return "; ".join(word for word in (self.compiler, self.cache, *self.others) if word)


def signs(ev: Evidence) -> dict[int, Signs]:
    """rank -> what was seen of it, for each rank with a sign at least."""
    table, watched = ev.derive(rank_table), ev.derive(activity).of
    floor = ev.limit("busy_floor_bytes_per_s")
    by_looks = look_rates(ev, STORAGE)
    found: dict[int, Signs] = {}
    for rank, row in table.rows.items():
        if row.gone or standing(row) == "T":
            continue  # what its compilers still do does not help a rank that is stopped
        doing = watched.get(rank)
        others = [folder_sign(doing), bar_sign(doing)] if doing else []
        rates = [by_looks.get(rank) or 0.0, (rate(doing, STORAGE) or 0.0) if doing else 0.0]
        if max(rates) >= floor:
            others.append(f"it moves {max(rates) / 1e6:.3g} MB/s to or from storage")
        made = Signs(
            compiler_sign(ev, doing) if doing else "",
            cache_sign(ev, row, doing) if doing else "",
            tuple(word for word in others if word),
        )
        if made.words():
            found[rank] = made
    return found


def _ranks(found: Fact) -> set[int]:
    return {part.rank for part in found.parts if part.rank is not None}


def _parts(ev: Evidence, ranks: dict[int, str]) -> list[Part]:
    node_of = ev.derive(rank_table).node_of
    return [Part("rank", node=node_of(rank), rank=rank, why=why) for rank, why in sorted(ranks.items())]


def _watched(ev: Evidence, ranks: Iterable[int] = ()) -> tuple[Provenance, ...]:
    """The windows that tell of these ranks (all, if none is named), a bounded number."""
    found = ev.derive(activity)
    named = {id(s): s for rank in ranks if rank in found.of for s in [found.of[rank].sample]}
    return ev.seen(*list(named.values() or found.samples)[:8])


def _ends(ev: Evidence) -> tuple[set[int], str]:
    """(ranks that the waits end at, what they are called); every rank where the waits end at none.

    Those whose process is gone are left out: they are busy with nothing.
    """
    table = ev.derive(rank_table)
    roots = _ranks(other(ev, "waits.roots"))
    if roots:
        return {r for r in roots if r not in table.rows or not table.rows[r].gone}, "waited for"
    return {rank for rank, row in table.rows.items() if not row.gone}, "of the job"


def _unwatched(ev: Evidence) -> str:
    """Why not all ranks that the waits end at were watched; "" if they were."""
    found = ev.derive(activity)
    if not found.asked:
        return "no node was asked what its ranks are busy with"
    if not ev.derive(rank_table).rows:
        return "no rank process was seen"
    ends, what = _ends(ev)
    missing = sorted(ends - set(found.of))
    if not missing:
        return ""
    why = next((f" ({found.unseen[rank]})" for rank in missing if rank in found.unseen), "")
    return f"{len(missing)} of the {len(ends)} ranks {what} were not watched: {spoken(missing)}{why}"


# ---------------------------------------------------------------- facts


@fact("busy.compiling", type="number", unit="ranks", parts="rank")
def compiling(ev: Evidence) -> Fact:
    """Ranks with a compiler that burns CPU and a compiler cache that grows. Unknown if those waited for were not watched."""
    found = {rank: s.words() for rank, s in ev.derive(signs).items() if s.compiles}
    missing = _unwatched(ev)
    if not found and missing:
        return unknown(missing, provenance=_watched(ev))
    text = "; ".join(f"rank {rank}: {why}" for rank, why in list(found.items())[:2])
    return known(
        parts=_parts(ev, found), text=text or "no rank that was watched compiles", provenance=_watched(ev, found)
    )


@fact("busy.maybe", type="number", unit="ranks", parts="rank")
def maybe(ev: Evidence) -> Fact:
    """Ranks with one sign of a long phase only: leads, and a bar to calling them stuck."""
    busy, found = _busy(ev), {}
    for rank, its in ev.derive(signs).items():
        if rank not in busy:
            found[rank] = its.words()
    announced = ev.derive(open_phase)
    if announced:
        for rank in _ends(ev)[0] - busy:
            why = f"the log announces a {announced[0]}, whose bytes are not seen to move"
            found[rank] = f"{found[rank]}; {why}" if rank in found else why
    missing = _unwatched(ev)
    if not found and missing:
        return unknown(missing, provenance=_watched(ev))
    text = "; ".join(f"rank {rank}: {why}" for rank, why in sorted(found.items())[:2])
    return known(parts=_parts(ev, found), text=text, provenance=told_by(ev, sorted(found)) if found else _watched(ev))


def _busy(ev: Evidence) -> set[int]:
    """Ranks with both signs of a phase."""
    return {rank for rank, s in ev.derive(signs).items() if s.compiles} | set(ev.derive(saving)[0])


@fact("busy.seen", type="bool")
def seen(ev: Evidence) -> Fact:
    """Was every rank that the waits end at (every rank, where they end at none) watched for what it is busy with?"""
    if not ev.derive(activity).asked:
        return unknown("no node was asked what its ranks are busy with")
    missing = _unwatched(ev)
    return known(not missing, text=missing, provenance=_watched(ev))


@fact("busy.phase", type="text")
def phase(ev: Evidence) -> Fact:
    """The long phase that the job is in: checkpoint, restore (as the log says), compile; "none" if no phase is open."""
    announced, moving = ev.derive(open_phase), ev.derive(saving)[0]
    compiles = {rank: s.words() for rank, s in ev.derive(signs).items() if s.compiles}
    if announced and (moving or not compiles):  # of an announced phase and a compile, the one that is seen to get on
        return known(announced[0], text=f"the job log says: {announced[1]}", provenance=told_by(ev, list(moving)))
    if compiles:
        rank, why = next(iter(sorted(compiles.items())))
        return known("compile", text=f"rank {rank}: {why}", provenance=_watched(ev, compiles))
    if log_sample(ev) is None:
        return unknown("the job log could not be read")
    return known("none", provenance=told_by(ev, []))


@fact("busy.explains", type="bool")
def explains(ev: Evidence) -> Fact:
    """Is every rank that the waits end at busy (both signs), so that waiting helps? Without flight records: all that is odd.

    No: none of them is, or any rank has ended. Unknown: one was not seen, shows one sign only, or none beside a busy
    one, or another rank is stopped.
    """
    busy, maybe_ = _busy(ev), _ranks(maybe(ev))
    roots, possible = other(ev, "waits.roots"), other(ev, "waits.possible")
    watched = ev.derive(activity).of
    provenance = (*_watched(ev, busy), *told_by(ev, sorted(busy)))[:12]
    if not busy and _unwatched(ev):
        return unknown(_unwatched(ev))

    def judge(ends: set[int], end: str) -> Fact:
        rest = sorted(ends - busy)
        if not rest:
            text = f"{end} {spoken(sorted(ends))}, busy in its own right"
            return _in_vain(ev, busy) or known(True, text=text, provenance=provenance)
        gone = next((rank for rank in rest if _gone(ev, rank)), None)
        if gone is not None:
            return known(
                False, text=f"rank {gone} has ended, and waiting does not bring it back", provenance=provenance
            )
        idle = [rank for rank in rest if rank in watched and rank not in maybe_]
        if idle == rest and not ends & busy:
            return known(False, text=f"{end} {spoken(idle)}, not seen to be busy", provenance=provenance)
        # An idle one may wait for the lock of the one that compiles (torch's extensions build so): nothing tells.
        how = "shows one sign only" if rest[0] in maybe_ else "shows none" if rest[0] in watched else "was not watched"
        return unknown(f"rank {rest[0]}, which is waited for as well, {how}", provenance=provenance)

    if _ranks(roots):
        return judge(_ranks(roots), "the waits end at rank")
    if not roots.known and _ranks(possible):
        # One of these explains the wait; which one, no flight record tells.
        return judge(_ranks(possible), "only these could explain the wait: rank")
    if roots.known:  # nobody is waited for: a circle, all have joined, or no rank waits
        if other(ev, "waits.victims").value or not busy:
            return known(False, text="the waits end at no rank", provenance=provenance)
        return unknown("no flight record shows a rank that waits", provenance=provenance)
    return _alone(ev, busy, maybe_, provenance)


def _in_vain(ev: Evidence, busy: set[int]) -> Fact | None:
    """Why waiting for the busy ranks may not help: a rank that has ended never comes, however long ago it did."""
    rows = [row for rank, row in sorted(ev.derive(rank_table).rows.items()) if rank not in busy]
    ended = next((row for row in rows if row.gone), None)
    if ended is not None:
        text = f"rank {ended.rank} has ended, and waiting does not bring it back"
        return known(False, text=text, provenance=told_by(ev, [ended.rank]))
    held = next((row for row in rows if row.alive and standing(row)), None)
    return unknown(f"rank {held.rank} is in state {held.state} as well") if held is not None else None


def _gone(ev: Evidence, rank: int) -> bool:
    row = ev.derive(rank_table).rows.get(rank)
    return bool(row and row.gone)


def _alone(ev: Evidence, busy: set[int], maybe_: set[int], provenance: tuple[Provenance, ...]) -> Fact:
    """Without any flight record: busy ranks explain the stall where every other rank lives, runs and was watched."""
    if not busy:
        return known(False, text="no rank is busy", provenance=provenance)
    watched = ev.derive(activity).of
    for rank, row in sorted(ev.derive(rank_table).rows.items()):
        if rank not in busy and (not row.alive or rank not in watched or rank in maybe_):
            why = (
                row.why if row.alive is None else "it was not watched" if rank not in watched else "it may be busy, too"
            )
            return _in_vain(ev, busy) or unknown(f"rank {rank}: {why}", provenance=provenance)
    text = f"rank {spoken(sorted(busy))} busy, and nothing else stands out; no flight record tells who waits for whom"
    return _in_vain(ev, busy) or known(True, text=text, provenance=provenance)


@fact("blame.host", type="number", unit="ranks", parts="rank")
def blame_host(ev: Evidence) -> Fact:
    """Ranks that others wait for, held on the host side, of which none shows a sign of being busy: they may be called stuck.

    Unknown where one does: an idle one beside it may wait for a lock that the busy one holds.
    """
    stuck = other(ev, "waits.host_stuck")
    if not stuck.known:
        return unknown(stuck.reason)
    spared = _busy(ev) | _ranks(maybe(ev))
    left_out, parts = sorted(_ranks(stuck) & spared), [part for part in stuck.parts if part.rank not in spared]
    provenance = (*stuck.provenance[:8], *_watched(ev, _ranks(stuck))[:4])
    if left_out and parts:
        busy = f"rank {spoken(left_out)}, waited for as well, is or may be busy"
        return unknown(f"{busy}: {parts[0].label()} may wait for what it does", provenance=provenance)
    return known(
        parts=parts,
        text=f"rank {spoken(left_out)} is or may be busy" if left_out else stuck.text,
        provenance=provenance,
        contradicted_by=stuck.contradicted_by if parts else (),
    )
