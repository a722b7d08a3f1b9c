"""Facts of the wait-for graph: who has not arrived, who is a root, where signatures differ, what each rank waits for.

Sources: the `flight_recorder` probe (or a folder of dumps through readers/flight_records.py), the rank table for who is dead
or stopped, and look A's clock for how long a cycle has stood. Only dumps of this attempt's processes, taken after everybody
had entered what is open, are compared; the others are listed in `waits.stale` (dumps.py).
What can fool it: a snapshot of a merely slow job has a root too (progress is asked first); dumps of different moments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from triage.facts.collectives import spoken
from triage.facts.dumps import Dump, Waits, waits
from triage.facts.ends import ends
from triage.facts.evidence import Evidence
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, unknown
from triage.facts.sources import against
from triage.facts.waitgraph import Mismatch, Picture, describe
from triage.model import Fact, Part, Provenance

MOST_PROVENANCE = 16


# ---------------------------------------------------------------- helpers of the facts


def _part(ev: Evidence, rank: int, why: str = "") -> Part:
    dump = ev.derive(waits).dumps.get(rank)
    node = ev.derive(rank_table).node_of(rank) or (dump.node or dump.host if dump else None)
    return Part("rank", node=node or None, rank=rank, why=why)


def _seen(ev: Evidence, ranks: Iterable[int] = ()) -> tuple[Provenance, ...]:
    """The samples that tell of these ranks (all, if none is named), a bounded number."""
    w = ev.derive(waits)
    nodes = {w.dumps[r].node for r in ranks if r in w.dumps}
    picked = [s for s in w.samples if s.node in nodes] or w.samples
    return ev.seen(*picked[:MOST_PROVENANCE])


def _with_picture(ev: Evidence, tell: Callable[[Waits, Picture], Fact]) -> Fact:
    w = ev.derive(waits)
    if w.picture is None:
        return unknown(w.why_none(), provenance=_seen(ev))
    return tell(w, w.picture)


def _ranks_text(ranks: Iterable[int]) -> str:
    have = sorted(set(ranks))
    return f"rank {have[0]}" if len(have) == 1 else f"ranks {spoken(have)}"


def _why_root(w: Waits, p: Picture, rank: int) -> str:
    kind = p.roots.get(rank)
    if kind == "device":
        return f"{p.label(p.device_stuck[rank])} is open on it while its peers have finished it"
    if kind in ("dead", "stopped", "d_state"):
        how = {"dead": "is gone", "stopped": "is stopped (T)", "d_state": "hangs in D"}[kind]
        return f"waited for, {'' if rank in w.dumps else 'no flight record, '}its process {how}"
    units = sorted(p.absent.get(rank, ()), key=repr)
    where = f"has not come to {p.label(units[0])}" if units else "is waited for"
    return f"no open operation, and it {where}"


def _why_possible(ev: Evidence, w: Waits, rank: int) -> str:
    end = ev.derive(ends).get(rank)
    if rank in w.dumps:
        if any(row.get("failed") for row in w.dumps[rank].record.get("groups", ())):
            return "an operation of it is over without having completed: it may have waited in it itself"
        return "its record does not tell how far it has come in that group"
    return (end.why if end else "") or w.stale.get(rank) or w.silent.get(rank) or "no flight record"


# ---------------------------------------------------------------- facts


@fact("waits.known_share", type="number", unit="of the stalled groups' members")
def known_share(ev: Evidence) -> Fact:
    """Share of the members of stalled groups (of all ranks, if none waits) whose flight record is fresh and usable."""
    w = ev.derive(waits)
    if not w.samples:
        return unknown(w.why_none())
    if w.picture and w.picture.stalled_groups:
        ranks = {m for key in w.picture.stalled_groups for m in w.picture.group(key).members}
    else:
        world = ev.derive(rank_table).world_size or (w.picture.records.world if w.picture else None)
        ranks = set(range(world)) if world else {*w.dumps, *w.stale, *w.silent}
    if not ranks:
        return unknown(w.why_none(), provenance=_seen(ev))
    have = len(ranks & set(w.dumps))
    return known(
        round(have / len(ranks), 4),
        text=f"{have} of {len(ranks)} ranks of the stalled groups have a usable flight record",
        provenance=_seen(ev),
    )


@fact("waits.fresh", type="number", unit="ranks")
def fresh(ev: Evidence) -> Fact:
    """Ranks whose flight record is of this attempt and of the moment that is compared."""
    w = ev.derive(waits)
    if not w.samples:
        return unknown(w.why_none())
    return known(len(w.dumps), text=f"{len(w.dumps)} ranks have a usable flight record", provenance=_seen(ev))


@fact("waits.stale", type="number", unit="ranks", parts="rank")
def stale(ev: Evidence) -> Fact:
    """Ranks whose flight record is of another attempt, another job or an earlier moment, and is not compared."""
    w = ev.derive(waits)
    if not w.samples:
        return unknown(w.why_none())
    parts = [_part(ev, rank, why) for rank, why in sorted(w.stale.items())]
    return known(
        parts=parts, text=f"flight records not compared: {_ranks_text(w.stale)}" if parts else "", provenance=_seen(ev)
    )


@fact("waits.members", type="number", unit="ranks", parts="rank")
def members_of_stalled(ev: Evidence) -> Fact:
    """Members of the stalled group: the process group in which most ranks wait."""

    def tell(w: Waits, p: Picture) -> Fact:
        if p.stalled is None:
            return known(parts=[], text="no rank waits in a collective", provenance=_seen(ev))
        info = p.group(p.stalled)
        waiting = sum(1 for unit in p.waiting.values() if unit.key == p.stalled)
        return known(
            parts=[_part(ev, rank) for rank in info.members],
            text=f"{waiting} of {len(info.members)} members wait in {info.label()}",
            provenance=_seen(ev, info.members),
        )

    return _with_picture(ev, tell)


@fact("waits.mismatch", type="number", unit="ranks", parts="rank")
def mismatch(ev: Evidence) -> Fact:
    """Ranks that pass another operation, size or type than their peers at one number of a group.

    The minority, or the one that the order trail separates; where nothing separates two sides, both (waits.mismatch_tied).
    """

    def tell(w: Waits, p: Picture) -> Fact:
        named = p.named_by_mismatch or p.tied_by_mismatch
        text = "; ".join(describe(p, m) for m in p.mismatches[:3])
        parts = [_part(ev, rank, next(describe(p, m) for m in p.mismatches if _in(rank, m))) for rank in sorted(named)]
        if not parts:
            text = f"the {len(w.dumps)} flight records agree wherever they overlap"
            if any(d.record.get("active_only") for d in w.dumps.values()):
                text += " (they hold open operations only, no history)"
        return known(parts=parts, text=text, provenance=_seen(ev, named))

    def _in(rank: int, m: Mismatch) -> bool:
        return any(rank in ranks for _, ranks in m.sides)

    return _with_picture(ev, tell)


@fact("waits.mismatch_tied", type="bool")
def mismatch_tied(ev: Evidence) -> Fact:
    """Does nothing separate the sides of the mismatch, so that its members are involved and none is the culprit?"""

    def tell(w: Waits, p: Picture) -> Fact:
        tied = bool(p.mismatches) and not p.named_by_mismatch
        return known(
            tied, text=f"nothing separates {_ranks_text(p.tied_by_mismatch)}" if tied else "", provenance=_seen(ev)
        )

    return _with_picture(ev, tell)


@fact("waits.absent", type="number", unit="ranks", parts="rank")
def absent(ev: Evidence) -> Fact:
    """Members that others wait for and that have not arrived at the collective or exchange in question."""

    def tell(w: Waits, p: Picture) -> Fact:
        if not p.absent and p.possible:
            return unknown(
                f"{_ranks_text(p.possible)} gave no usable flight record and may be the one that has not arrived",
                provenance=_seen(ev),
            )
        parts = []
        for rank, units in sorted(p.absent.items()):
            parts.append(_part(ev, rank, f"has not come to {p.label(sorted(units, key=repr)[0])}"))
        if not parts and not p.waiting:
            text = "no rank waits in a collective"
        elif not parts:
            text = "every member that is waited for has arrived"
        else:
            text = f"{_ranks_text(p.absent)} {'has' if len(parts) == 1 else 'have'} not arrived where others wait"
        return known(parts=parts, text=text, provenance=_seen(ev, p.absent))

    return _with_picture(ev, tell)


@fact("waits.roots", type="number", unit="ranks", parts="rank")
def roots(ev: Evidence) -> Fact:
    """Ranks that are waited for and wait for nobody: dead, stopped, stuck on the device or stuck on the host."""

    def tell(w: Waits, p: Picture) -> Fact:
        if not p.roots and p.possible:
            rank = next(iter(p.out_of_order), None)
            halved = f"; and rank {rank} {p.out_of_order[rank]}, so that it may be a circle" if rank is not None else ""
            return unknown(
                f"only ranks without a usable flight record could explain the wait: {_ranks_text(p.possible)}{halved}",
                provenance=_seen(ev),
            )
        parts = [_part(ev, rank, _why_root(w, p, rank)) for rank in sorted(p.roots)]
        text = ""
        if len(parts) == 1:
            text = f"all waits end at rank {parts[0].rank}: {parts[0].why}"
        elif parts:
            # Two faults at once are found as one of the two in 44 % of cases (prototype-findings 3.4).
            text = f"the waits end at least at {_ranks_text(p.roots)}"
        return known(
            parts=parts,
            text=text,
            provenance=_seen(ev, p.roots),
            contradicted_by=(
                *(("flight records that contradict each other",) if w.disputed else ()),
                *(f"the time of rank {rank}'s file, {why}" for rank, why in list(w.outdated.items())[:1]),
                *against(ev, p),
            ),
        )

    return _with_picture(ev, tell)


@fact("waits.possible", type="number", unit="ranks", parts="rank")
def possible(ev: Evidence) -> Fact:
    """Ranks without a usable flight record that could explain a wait which nobody else explains: leads, never culprits."""
    return _with_picture(
        ev,
        lambda w, p: known(
            parts=[_part(ev, r, _why_possible(ev, w, r)) for r in sorted(p.possible)],
            text=f"{_ranks_text(p.possible)} could explain the wait" if p.possible else "",
            provenance=_seen(ev),
        ),
    )


@fact("waits.cycle", type="number", unit="ranks", parts="rank")
def cycle(ev: Evidence) -> Fact:
    """Ranks that wait for each other in a circle which nobody outside can resolve."""

    def tell(w: Waits, p: Picture) -> Fact:
        if not p.cycles and not p.roots and p.possible:
            return unknown(f"{_ranks_text(p.possible)} gave no usable flight record", provenance=_seen(ev))
        if not p.cycles and any(not p.group(unit.key).complete for unit in p.stuck_units):
            return unknown("the dumps do not tell all members of a group in which ranks wait", provenance=_seen(ev))
        ranks = sorted({rank for one in p.cycles for rank in one})
        parts = [_part(ev, r, f"waits at {p.label(p.waiting[r])}" if r in p.waiting else "") for r in ranks]
        return known(
            parts=parts,
            text=f"{_ranks_text(ranks)} wait for each other" if ranks else "",
            provenance=_seen(ev, ranks),
        )

    return _with_picture(ev, tell)


@fact("waits.swapper", type="number", unit="ranks", parts="rank")
def swapper(ev: Evidence) -> Fact:
    """The one rank of a cycle that enters its collectives in another order than all others do."""

    def tell(w: Waits, p: Picture) -> Fact:
        if p.swapper is None:
            return known(
                parts=[], text="nothing separates the members of the cycle" if p.cycles else "", provenance=_seen(ev)
            )
        why = "enters its collectives in another order than the other ranks"
        return known(
            parts=[_part(ev, p.swapper, why)], text=f"rank {p.swapper} {why}", provenance=_seen(ev, [p.swapper])
        )

    return _with_picture(ev, tell)


@fact("waits.cycle_stands", type="bool")
def cycle_stands(ev: Evidence) -> Fact:
    """Has the cycle stood in both looks, on the host's side, with no member dead, stopped or stuck on its device?

    True where each member's open operation was created before look A (its node's clock) and is still open in a dump
    taken later; or, without looks, where all of them were created before the earliest moment at which any dump can have
    been taken: then all were open together once, and a cycle never resolves. A folder's file times are no proof of that.
    """

    def tell(w: Waits, p: Picture) -> Fact:
        ranks = sorted({rank for one in p.cycles for rank in one})
        if not ranks:
            return known(False, text="no ranks wait in a circle", provenance=_seen(ev))
        bad = [r for r in ranks if r in p.device_stuck or r in w.incapable]
        if bad:
            return known(
                False, text=f"{_ranks_text(bad)} can do nothing any more, so this is no deadlock", provenance=_seen(ev)
            )
        doubt = next((p.unsure_cycles[r] for r in ranks if r in p.unsure_cycles), "")
        if doubt and p.swapper is None:
            return unknown(doubt, provenance=_seen(ev, ranks))
        entered = {r: view.at for r in ranks if (view := p.records.views[r].head)}
        if any(at is None for at in entered.values()):
            return unknown("a dump does not tell when its open operation was created", provenance=_seen(ev, ranks))
        looked = {r: _look_a(ev, w.dumps[r].node) for r in ranks}
        if all(at is not None for at in looked.values()):
            late = [r for r in ranks if (entered[r] or 0.0) >= (looked[r] or 0.0)]
            early = [r for r in ranks if (w.dumps[r].mtime or 0.0) < (looked[r] or 0.0)]
            if not late and not early:
                return known(True, text=f"{_ranks_text(ranks)} waited so in both looks", provenance=_seen(ev, ranks))
            if late:
                return unknown(
                    f"{_ranks_text(late)} entered the wait after the first look", provenance=_seen(ev, ranks)
                )
        taken = min(_taken_after(w.dumps[r]) for r in ranks)
        if max(at or 0.0 for at in entered.values()) <= taken:
            return known(True, text=f"{_ranks_text(ranks)} were all waiting at one moment", provenance=_seen(ev, ranks))
        return unknown(
            "one snapshot only: whether the circle stood at one moment is not proven", provenance=_seen(ev, ranks)
        )

    return _with_picture(ev, tell)


def _look_a(ev: Evidence, node: str) -> float | None:
    """When look A was taken on a node, by the node's clock."""
    if not node:
        return None
    times = [s.at for probe in ("ranks", "reach") for s in ev.of(probe, "A") if s.node == node and s.at is not None]
    return min(times) if times else None


def _taken_after(dump: Dump) -> float:
    """The earliest moment a dump can have been taken: its file time if it was written for us, else its newest entry."""
    newest = dump.record.get("newest_s")
    least = float(newest) if isinstance(newest, int | float) else 0.0
    return max(least, dump.mtime) if dump.source == "poked" and dump.mtime is not None else least


@fact("waits.all_joined", type="bool")
def all_joined(ev: Evidence) -> Fact:
    """Have all members of a stalled unit joined it with equal signatures, and nobody finishes?"""

    def tell(w: Waits, p: Picture) -> Fact:
        if p.roots or p.cycles or p.mismatches or not p.waiting:
            return known(False, text="" if p.waiting else "no rank waits in a collective", provenance=_seen(ev))
        if p.possible:
            return unknown(f"{_ranks_text(p.possible)} gave no usable flight record", provenance=_seen(ev))
        partial = [u for u in p.stuck_units if not p.group(u.key).complete]
        if partial:
            return unknown("the dumps do not tell all members of the stalled group", provenance=_seen(ev))
        if not p.stuck_units:
            return unknown("the dumps do not tell whom the waiting ranks wait for", provenance=_seen(ev))
        units = [p.label(u) for u in p.stuck_units[:3]]
        return known(
            True, text=f"all members have joined and nobody finishes: {'; '.join(units)}", provenance=_seen(ev)
        )

    return _with_picture(ev, tell)


@fact("waits.device_stuck", type="number", unit="ranks", parts="rank")
def device_stuck(ev: Evidence) -> Fact:
    """Roots whose own operation is open while their peers have finished the same one: the device does not get on."""

    def tell(w: Waits, p: Picture) -> Fact:
        ranks = [r for r, kind in sorted(p.roots.items()) if kind == "device"]
        parts = [_part(ev, r, _why_root(w, p, r)) for r in ranks]
        return known(
            parts=parts, text=f"{_ranks_text(ranks)} stuck on the device" if ranks else "", provenance=_seen(ev, ranks)
        )

    return _with_picture(ev, tell)


@fact("waits.host_stuck", type="number", unit="ranks", parts="rank")
def host_stuck(ev: Evidence) -> Fact:
    """Roots that answered with a dump, have nothing open, and whose process is not known to be dead or stopped."""

    def tell(w: Waits, p: Picture) -> Fact:
        ranks = [r for r, kind in sorted(p.roots.items()) if kind == "host" and r not in w.incapable]
        parts = [_part(ev, r, _why_root(w, p, r)) for r in ranks]
        return known(
            parts=parts, text=f"{_ranks_text(ranks)} stuck on the host" if ranks else "", provenance=_seen(ev, ranks)
        )

    return _with_picture(ev, tell)


def without_exchanges(w: Waits, p: Picture) -> list[int]:
    """Roots that look idle in records of another library than NCCL: gloo records no send and no receive, and a failed
    operation as a finished one (notes/flight-recorder.md 1.2 and 5, p2p), so that a rank that waits in one looks idle."""
    found = [r for r, kind in p.roots.items() if kind == "host" and r in w.dumps and not w.dumps[r].record.get("lib")]
    return sorted(found)


@fact("waits.open_s", type="number", unit="s")
def open_age(ev: Evidence) -> Fact:
    """How long what the ranks wait in had been open when their records were written, at most: one look at a healthy job
    meets operations that are open for an instant, and a rank that has just not come to them.

    By the files' own times; copying may have made these younger than the records and never older.
    """

    def tell(w: Waits, p: Picture) -> Fact:
        ages = []
        for rank in p.waiting:
            head, dump = p.records.views[rank].head, w.dumps.get(rank)
            if head is not None and head.at is not None and dump is not None and dump.mtime is not None:
                ages.append(dump.mtime - head.at)
        if not ages:
            return unknown(
                "no waiting rank's record tells when it began to wait and when it was written", provenance=_seen(ev)
            )
        return known(round(max(ages), 3), provenance=_seen(ev, p.waiting))

    return _with_picture(ev, tell)


@fact("waits.unrecorded", type="number", unit="ranks", parts="rank")
def unrecorded(ev: Evidence) -> Fact:
    """Ranks that the waits end at, and whose records would not show a send or receive that they wait in themselves."""

    def tell(w: Waits, p: Picture) -> Fact:
        ranks = without_exchanges(w, p)
        parts = [_part(ev, r, "its records are not NCCL's and leave sends and receives out") for r in ranks]
        return known(parts=parts, provenance=_seen(ev, ranks))

    return _with_picture(ev, tell)


@fact("waits.victims", type="number", unit="ranks", parts="rank")
def victims(ev: Evidence) -> Fact:
    """Ranks that wait for others: neither root, nor member of the cycle, nor on the odd side of a mismatch."""

    def tell(w: Waits, p: Picture) -> Fact:
        guilty = {*p.roots, *p.named_by_mismatch, *p.tied_by_mismatch, *(r for one in p.cycles for r in one)}
        ranks = sorted(set(p.waiting) - guilty)
        parts = [_part(ev, r, f"waits at {p.label(p.waiting[r])}") for r in ranks]
        return known(
            parts=parts, text=f"{_ranks_text(ranks)} wait for others" if ranks else "", provenance=_seen(ev, ranks[:8])
        )

    return _with_picture(ev, tell)


@fact("waits.timeout_at", type="number", unit="epoch s")
def timeout_at(ev: Evidence) -> Fact:
    """When the first open collective reaches its time-out: created + time-out, by the clock of its rank's node."""

    def tell(w: Waits, p: Picture) -> Fact:
        ends = [(d, r) for r, v in p.records.views.items() for head in v.opens if (d := head.deadline) is not None]
        if not ends:
            return unknown("no open operation tells its time-out", provenance=_seen(ev))
        at, rank = min(ends)
        return known(round(at, 1), text=f"rank {rank}'s open operation times out first", provenance=_seen(ev, [rank]))

    return _with_picture(ev, tell)
