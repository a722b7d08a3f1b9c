"""Will the job resume by itself after the flap that is tied to its stall, or never (notes/network.md 4.2)?

The length of the outage is held against the retry budget of the job's own environment and release of NCCL; both are printed.
What can fool it: see outages.py; a second fault that holds the job after the link is back.
"""

from __future__ import annotations

import math

from triage.facts.budget import budget
from triage.facts.evidence import Evidence
from triage.facts.failover import may_fail_over
from triage.facts.flaps import Loss, stamp
from triage.facts.outages import given_up, loss_provenance, outlasts, resumes_by, tied_losses
from triage.facts.registry import fact, known, unknown
from triage.facts.transport import spoken
from triage.model import Fact


def _lasted(ev: Evidence, loss: Loss) -> str:
    return f"{loss.port.name} of {loss.port.node} {loss.text()}; retries last {ev.derive(budget).text}"


@fact("links.outlasted", type="bool")
def outlasted(ev: Evidence) -> Fact:
    """Did the transport give up on the tied port: by its own word (status 12), or as the outage outlasted its retries?

    False where the outage was shorter than the shortest budget; between the shortest and the longest nothing is decided.
    """
    found = ev.derive(tied_losses)
    if not found:
        return unknown("no port is tied to the stall")
    limits, log = ev.derive(budget), ev.derive(spoken).sample
    gave_up = [naming for loss in found for naming in given_up(ev, loss)]
    by_time = {outlasts(ev, loss) for loss in found}
    sources = loss_provenance(ev, found)
    lasted = _lasted(ev, found[0])
    if gave_up:
        against = ("an outage shorter than the retry budget",) if by_time == {False} else ()
        told = tuple(dict.fromkeys((*sources, *(ev.seen(log) if log else ()))))
        text = f"{gave_up[0].why}; {lasted}: it never resumes"
        return known(True, text=text, provenance=told, contradicted_by=against)
    if True in by_time:
        return known(True, text=f"{lasted}: it never resumes", provenance=sources)
    if by_time == {False} or math.isinf(limits.least):
        return known(False, text=lasted, provenance=sources)
    if ev.derive(may_fail_over) and all((loss.outage or (0.0,))[0] > limits.worst for loss in found):
        return unknown(f"NCCL may have gone on over another port: {lasted}", provenance=sources)
    return unknown(f"nothing tells whether the transport gave up: {lasted}", provenance=sources)


@fact("links.resumes", type="bool")
def resumes(ev: Evidence) -> Fact:
    """Will the job resume by itself, as the tied port was back before any retry ended? The text tells until when.

    False where the transport gave up; unknown where that is not decided, or the time has passed and the job still stands.
    """
    gave_up = outlasted(ev)
    if not gave_up.known:
        return unknown(gave_up.reason, provenance=gave_up.provenance)
    if gave_up.value:
        return known(False, text=gave_up.text, provenance=gave_up.provenance)
    ends = [resumes_by(ev, loss) for loss in ev.derive(tied_losses)]
    by = None if None in ends else max(end for end in ends if end is not None)
    if by is None:
        return unknown(f"nothing bounds when the transport sends again: {gave_up.text}", provenance=gave_up.provenance)
    if ev.observed > by:
        why = f"it would have resumed by {stamp(by)}, and has not: {gave_up.text}"
        return unknown(why, provenance=gave_up.provenance)
    left = math.ceil(by - ev.observed)
    text = f"{gave_up.text}: it resumes by itself, by {stamp(by)} ({left}s from now)"
    return known(True, text=text, provenance=gave_up.provenance)
