"""Who lags by launch counts and by nothing else that we know does anything better than that: the one whom RAS may name.

RAS alone proves that a rank has not launched what its peers have, and that is no proof that they wait for it. A rank that waits
for its own device launches nothing either: `loss.item()` on the one that writes the log, while its peers run ahead into a
collective that hangs in flight, makes the healthiest rank the laggard. And sends and receives are not counted, so that it may
wait in one. So a second source has to show it held on its host: its GPU has nothing to do while others spin, its stack stands
in a place of the host alone, or the records of the others prove together with the counts that it has not come.
What can fool it: a rank that waits in a collective of the host (gloo) has its GPU at rest as well; its stack tells.
"""

from __future__ import annotations

from triage.facts.activity import activity
from triage.facts.evidence import Evidence
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, other, unknown
from triage.facts.shortfall import unproven
from triage.facts.stacks import on_the_host, stacks
from triage.model import Fact, Part, Provenance

BUSY = ("busy.parts", "busy.compiling", "busy.maybe")
ALONE = (
    "has launched less by NCCL's counts alone: one that waits for its device, or in a send or receive, lags as well; its GPU at "
    "rest while others spin, or its stack, would tell"
)


@fact("ras.behind", type="number", unit="ranks", parts="rank")
def behind(ev: Evidence) -> Fact:
    """Laggards whose process runs, who do nothing of their own, and whom a second source shows to be held on their host."""
    lag = other(ev, "ras.laggards")
    if not lag.known:
        return unknown(lag.reason, provenance=lag.provenance)
    table, waiting = ev.derive(rank_table), {part.rank for part in other(ev, "waits.victims").parts}
    waiting |= {part.rank for part in other(ev, "waits.cycle").parts}
    possible = {part.rank for part in (*other(ev, "waits.possible").parts, *other(ev, "waits.roots").parts)}
    told = [part for part in lag.parts if part.rank is not None]
    held = [part for part in told if part.rank in waiting]
    if held:
        text = f"{held[0].label()} launched less, but by its flight record it waits for another"
        return known(parts=[], text=text, provenance=lag.provenance)
    strays = [part for part in told if possible and part.rank not in possible]
    if strays:
        text = f"{strays[0].label()} launched less, but the flight records' waits do not end there"
        return known(parts=[], text=text, provenance=lag.provenance)
    for part in told:
        row = table.rows.get(part.rank if part.rank is not None else -1)
        if row is None or row.alive is not True:
            return unknown(f"whether the process of {part.label()} runs is not known", provenance=lag.provenance)
    # A rank that compiles or reads for minutes launches nothing either.
    busy = {part.rank for name in BUSY for part in other(ev, name).parts}
    at_work = [part for part in told if part.rank in busy]
    if at_work:
        text = f"{at_work[0].label()} launched less, and does something of its own"
        return known(parts=[], text=text, provenance=lag.provenance)
    unwatched = [part for part in told if part.rank not in ev.derive(activity).of]
    if unwatched:
        why = f"whether {unwatched[0].label()} does something of its own was not watched"
        return unknown(why, provenance=lag.provenance)
    agreed: list[Provenance] = []
    for part in told:
        against, sources = _second(ev, part, bool(possible))
        if against:
            return known(parts=[], text=f"{part.label()} launched less, but {against}", provenance=lag.provenance)
        if not sources:
            return unknown(f"{part.label()} {ALONE}", provenance=lag.provenance)
        agreed += sources
    return known(parts=told, text=lag.text, provenance=(*lag.provenance, *dict.fromkeys(agreed)))


def _second(ev: Evidence, part: Part, possible: bool) -> tuple[str, list[Provenance]]:
    """(what shows that it waits itself, or "", the sources that show it held on its host)."""
    rank = part.rank if part.rank is not None else -1
    if rank in {each.rank for each in other(ev, "gpus.spin").parts}:
        return "its GPU spins in a collective, so that it waits itself", []
    found: list[Provenance] = []
    idle = other(ev, "gpus.absent")
    if rank in {each.rank for each in idle.parts}:
        found += idle.provenance[:4]
    seen = ev.derive(stacks)
    if rank in seen.places:
        place = seen.places[rank]
        if place.communicates or place.verb == "sync":
            return f"by its stack it waits for others or for its device ({place.words()})", []
        if seen.still[rank] is True and on_the_host(place):
            found += ev.seen(seen.sample[rank])
    if possible and not unproven(ev, rank):
        found += other(ev, "waits.possible").provenance[:4]
    return "", found
