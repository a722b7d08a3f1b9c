"""What kind of thing stands at the end of the waits? The wait-for graph met with the process table.

Two roads to one verdict: the survivors' dumps say whom they wait for, the process table says what became of it.
"""

from __future__ import annotations

from triage.facts.evidence import Evidence
from triage.facts.registry import fact, known, other, unknown
from triage.model import Fact, Part


def _ranks(fact: Fact) -> set[int]:
    return {part.rank for part in fact.parts if part.rank is not None}


def _both(ev: Evidence, waits: str, process: str) -> Fact:
    """Roots of the waits that are also parts of a fact of the process table."""
    roots, state = other(ev, waits), other(ev, process)
    if not roots.known:
        return unknown(roots.reason)
    if not state.known:
        # Who wrote a fresh dump ran when it was written: neither gone nor stopped, whatever the process table hides.
        answered = _ranks(other(ev, "waits.device_stuck")) | _ranks(other(ev, "waits.host_stuck"))
        if roots.parts and _ranks(roots) <= answered:
            return known(parts=[], text="the ranks that the others wait for wrote a dump", provenance=roots.provenance)
        return unknown(state.reason)
    parts = [part for part in state.parts if part.rank in _ranks(roots)]
    return known(parts=parts, provenance=(*roots.provenance[:4], *state.provenance[:4]))


@fact("waits.roots_gone", type="number", unit="ranks", parts="rank")
def roots_gone(ev: Evidence) -> Fact:
    """Ranks that the others wait for and whose process is gone."""
    return _both(ev, "waits.roots", "ranks.gone")


@fact("waits.roots_stopped", type="number", unit="ranks", parts="rank")
def roots_stopped(ev: Evidence) -> Fact:
    """Ranks that the others wait for and whose process is stopped."""
    return _both(ev, "waits.roots", "ranks.stopped")


@fact("waits.agree_with_hard", type="bool")
def agree_with_hard(ev: Evidence) -> Fact:
    """Do the survivors' dumps wait for the very ranks that the hard facts hit?"""
    roots, hard = other(ev, "waits.roots"), other(ev, "hard.parts")
    if not roots.known:
        return unknown(roots.reason)
    hit = {part for part in hard.parts if part.rank is not None}
    if not hard.known or not hit:
        return unknown(hard.reason or "the hard facts name no rank")
    if not roots.parts:
        return unknown("the dumps name no rank that the others wait for")
    agreed = [part for part in hit if part.rank in _ranks(roots)]
    names = ", ".join(Part.label(part) for part in agreed)
    return known(bool(agreed), text=f"the survivors wait for {names}" if agreed else "the survivors wait for others")


@fact("waits.mismatch_named", type="number", unit="ranks", parts="rank")
def mismatch_named(ev: Evidence) -> Fact:
    """The ranks of a mismatch that something separates from their peers: the minority, or the odd one of the trail."""
    found, tied = other(ev, "waits.mismatch"), other(ev, "waits.mismatch_tied")
    if not found.known or not tied.known:
        return unknown(found.reason or tied.reason)
    return known(parts=() if tied.value else found.parts, text=found.text, provenance=found.provenance)
