"""The losses of link that may be the stall's cause, and whether the transport outlived each (notes/network.md 4.2).

An outage shorter than every retry budget is survived: the card sends again within one try of the link's return. One that is
longer than every budget ends the connections over the port for good, whether or not the link is green again; so does the
transport's own word (status 12). Between the two nothing is decided.
What can fool it: port failover (NCCL goes on over another port, failover.py); TCP, which goes on for a quarter of an hour;
a budget that is NCCL's default because no rank's environment was seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from triage.facts.blame import Naming, namings, ties
from triage.facts.budget import budget
from triage.facts.evidence import Evidence
from triage.facts.failover import may_fail_over
from triage.facts.flaps import Loss, Trace, in_onset, traces
from triage.model import Provenance

MOST_PROVENANCE = 8


def job_traces(ev: Evidence) -> Iterator[Trace]:
    """The job's ports, with what was said of their link."""
    for found in ev.derive(traces).values():
        yield from (trace for trace in found if trace.port.the_jobs)


def loss_provenance(ev: Evidence, found: Iterable[Loss]) -> tuple[Provenance, ...]:
    told = dict.fromkeys(source for loss in found for source in loss.provenance(ev))
    return tuple(told)[:MOST_PROVENANCE]


def flapped_losses(ev: Evidence) -> list[Loss]:
    """Of each port that lost its link at the stall's beginning and is not down now: the last such loss."""
    found = []
    for trace in job_traces(ev):
        guilty = [loss for loss in trace.losses if in_onset(ev, loss)]
        still = guilty and guilty[-1] is trace.losses[-1] and guilty[-1].up is None and guilty[-1].kernel is not None
        if guilty and trace.port.down is not True and not (still and not trace.port.now):
            found.append(guilty[-1])
    return found


def tied_losses(ev: Evidence) -> list[Loss]:
    """Those of them that a second sign ties to the stall.

    Of several, those on which the transport surely gave up; else those that were not surely over before it would have.
    """
    found = [loss for loss in ev.derive(flapped_losses) if ties(ev, loss)]
    sure = [loss for loss in found if outlasts(ev, loss) or given_up(ev, loss)]
    fatal = [loss for loss in found if outlasts(ev, loss) is not False]
    return sure or fatal or found


def given_up(ev: Evidence, loss: Loss) -> list[Naming]:
    """Words of the transport that it gave up on this port, or on a peer behind it."""
    return [
        naming
        for naming in ev.derive(namings)
        if naming.how != "event" and naming.node == loss.port.node and any(t.why == naming.why for t in ties(ev, loss))
    ]


def outlasts(ev: Evidence, loss: Loss) -> bool | None:
    """Was this outage longer than any retry budget (True), or shorter than each (False)? None: between, or not known."""
    limits, lasted = ev.derive(budget), loss.outage
    if (
        lasted is None or over_tcp(loss) or not limits.sure
    ):  # TCP goes on for many minutes, and the collective ends first
        return None
    if lasted[0] > limits.worst:
        return None if ev.derive(may_fail_over) else True
    return False if lasted[1] < limits.least else None


def over_tcp(loss: Loss) -> bool:
    """Is the port known to be a plain network interface to the job?"""
    return loss.port.device is None and bool(loss.port.now)


def resumes_by(ev: Evidence, loss: Loss) -> float | None:
    """When the card must have sent again at the latest: one try after the link came back. None: nothing bounds it."""
    a_try = ev.derive(budget).a_try
    return loss.up.hi + loss.err + a_try + ev.limit("link_slack_s") if loss.up is not None and a_try < 3600.0 else None
