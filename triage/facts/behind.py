"""Who lags by launch counts and by nothing else that we know does anything better than that: the one whom RAS may name.

RAS alone proves that a rank has not launched what its peers have. It does not count sends and receives, so that a rank may
lag because it waits in one. What the process list, the flight records and the ranks' own activity say is asked before it is
named.
"""

from __future__ import annotations

from triage.facts.activity import activity
from triage.facts.evidence import Evidence
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, other, unknown
from triage.model import Fact

BUSY = ("busy.parts", "busy.compiling", "busy.maybe")


@fact("ras.behind", type="number", unit="ranks", parts="rank")
def behind(ev: Evidence) -> Fact:
    """Laggards whose process runs, who do nothing of their own and who, by the flight records there are, wait for nobody."""
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
    agreed = other(ev, "waits.possible").provenance[:4] if possible else ()
    return known(parts=told, text=lag.text, provenance=(*lag.provenance, *agreed))
