"""Did a rank raise an exception before it went its own way? Then that is why the others wait for it.

A rank that raises and whose handler calls a barrier lives on: the flight records differ at one number, or it waits where
nobody comes, and the error stands in the log, some lines above the loudest one. The exception is the cause, the collective
that it then called is not. "[rank5]:" before the line tells whose it is (torch 2.3 and newer).
What can fool it: an exception that the program caught and went on after (then the rank does not stand out); a line that a
rank prints for another. So it names nobody by itself: only ranks that the flight records single out already.
"""

from __future__ import annotations

from triage.facts.clocks import log_sample
from triage.facts.ends import slack_s, stall_window
from triage.facts.evidence import Evidence
from triage.facts.exits import Raised, own_exception
from triage.facts.exits import raised as exceptions
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, other, unknown
from triage.model import Fact, Part

# What the flight records say of ranks that went their own way; a rank of one of these that raised is why.
SINGLED_OUT = ("waits.mismatch", "waits.apart", "waits.cycle", "waits.roots")


def before_the_stall(ev: Evidence) -> dict[int, Raised]:
    """rank -> the first exception of its own near the stall's beginning. To be called through `ev.derive`."""
    window = ev.derive(stall_window)
    if window is None:
        return {}
    out: dict[int, Raised] = {}
    for rank in ev.derive(exceptions):
        slack = slack_s(ev, ev.derive(rank_table).node_of(rank))
        found = own_exception(ev, rank, window[0] - slack, window[1] + slack)
        if found is not None:
            out[rank] = found
    return out


@fact("raised.ranks", type="number", unit="ranks", parts="rank")
def ranks(ev: Evidence) -> Fact:
    """Ranks whose program told an exception of its own when the stall began (no transport, store or time-out error)."""
    sample = log_sample(ev)
    if sample is None:
        return unknown("the job log could not be read")
    if ev.derive(exceptions) and ev.derive(stall_window) is None:
        return unknown("ranks told exceptions, and when the stall began is not known", provenance=ev.seen(sample))
    return known(parts=_parts(ev, ev.derive(before_the_stall)), provenance=ev.seen(sample))


def _parts(ev: Evidence, told: dict[int, Raised]) -> list[Part]:
    node_of = ev.derive(rank_table).node_of
    return [Part("rank", node_of(rank), rank, why=f"it said: {one.text}") for rank, one in sorted(told.items())]


@fact("waits.diverged_after", type="number", unit="ranks", parts="rank")
def diverged_after(ev: Evidence) -> Fact:
    """Ranks that the flight records single out and that had told an exception of their own before they went their own way.

    The exception is then the cause: its handler called a collective that the others do not call.
    """
    found = ranks(ev)
    if not found.known:
        return unknown(found.reason)
    if not found.parts:
        return known(parts=[], provenance=found.provenance)
    told = [other(ev, name) for name in SINGLED_OUT]
    if not any(one.known for one in told):
        return unknown(told[0].reason, provenance=found.provenance)
    apart = {part.rank for one in told for part in one.parts}
    both = [part for part in found.parts if part.rank in apart]
    where = [source for one in told if one.parts for source in one.provenance[:4]]
    text = "; ".join(f"{part.label()} told an exception before it went its own way: {part.why}" for part in both[:3])
    return known(parts=both, text=text, provenance=(*found.provenance, *where))


@fact("blame.mismatch", type="number", unit="ranks", parts="rank")
def blame_mismatch(ev: Evidence) -> Fact:
    """Whom a mismatch is laid to: the ranks that had told an exception before they differed, else those that are separated.

    Two sides that nothing else separates are separated by an exception that one of them told.
    """
    odd, named, after = (other(ev, name) for name in ("waits.mismatch", "waits.mismatch_named", "waits.diverged_after"))
    differ = {part.rank for part in odd.parts}
    told = [part for part in after.parts if part.rank in differ]
    if not told or {part.rank for part in named.parts} - {part.rank for part in told}:
        return named  # a minority that the tables name is not narrowed by one of it that could still print
    return known(parts=told, text=after.text, provenance=(*after.provenance, *odd.provenance[:4]))
