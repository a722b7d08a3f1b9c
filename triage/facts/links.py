"""The job's ports: down now, changed between the looks, lost and back at the time of the stall.

What can fool it: a port that the job does not use (only ports that the ranks' NCCL environment names, NCCL's own lines
name, or InfiniBand, are the job's; the others are findings); totals since boot (only the delta between the looks, or a
dated line, counts); carrier_changes of an interface that was just configured; a cable that somebody pulled or reseated
after the stall had begun, which is a consequence.
"""

from __future__ import annotations

from triage.facts.blame import Naming, namings, ties
from triage.facts.clocks import log_sample
from triage.facts.evidence import Evidence
from triage.facts.flaps import Loss, Trace, hidden, in_onset, kernel_whole, perhaps_in_onset, traces, window
from triage.facts.outages import MOST_PROVENANCE, flapped_losses, job_traces, loss_provenance, tied_losses
from triage.facts.ports import job_ports, ports
from triage.facts.registry import fact, known, unknown
from triage.facts.transport import spoken
from triage.model import Fact, Part, Provenance

# ---------------------------------------------------------------- now


def _now(ev: Evidence) -> tuple[list[tuple[Trace, bool]], int]:
    """Job ports without link in both looks, and whether they may be blamed for the stall; how many ports told their state."""
    found, told = [], 0
    for trace in job_traces(ev):
        port = trace.port
        if port.now:
            if port.down is None or port.down_before is None:  # one look may have met a flap that is over
                continue
            told += 1
            if port.down and port.down_before:
                found.append((trace, _blamed(ev, trace)))
        elif trace.kernel is not None and trace.losses and trace.losses[-1].kernel and trace.losses[-1].up is None:
            # Its node does not show its ports; the kernel's last word is that it has no link.
            told += 1
            found.append((trace, in_onset(ev, trace.losses[-1])))
    return found, told


def _blamed(ev: Evidence, trace: Trace) -> bool:
    """May a port that is down explain the stall, by when it went down?"""
    if any(in_onset(ev, loss) for loss in trace.losses):
        return True
    if ev.derive(window) is None or hidden(ev, trace) or any(perhaps_in_onset(ev, loss) for loss in trace.losses):
        return trace.port.use == "named"
    if trace.losses:
        return False  # it went down at another time
    # The kernel would have told of a cable: this one had no link when the job began, and NCCL did not take it.
    unplugged = trace.port.tells_the_log and any(record.get("carrier") == 0 for record in trace.port.now)
    long_since = unplugged and kernel_whole(ev, trace.port.node, surely=True) and ev.job.attempt.started is not None
    return trace.port.use == "named" and not long_since


@fact("links.down_now", type="number", unit="ports", parts="nic")
def down_now(ev: Evidence) -> Fact:
    """Ports that the job uses, that are without link in both looks, and that did not lose it at another time than the stall's.

    A port that the job names counts; one that it only may use (InfiniBand, none named) counts when a dated line puts the
    loss near the onset: a port that was never cabled is down in both looks too. Where a node does not show its ports, the
    kernel's last word near the onset counts.
    """
    found, told = _now(ev)
    if not told:
        return unknown("no port that the job is known to use was seen in both looks")
    blamed = [trace for trace, guilty in found if guilty]
    seen = [sample for trace in blamed if (sample := trace.port.sample) is not None]
    sources = (*ev.seen(*seen), *loss_provenance(ev, (trace.losses[-1] for trace in blamed if trace.losses)))
    return known(parts=[trace.port.part(_why_down(trace)) for trace in blamed], provenance=sources[:MOST_PROVENANCE])


def _why_down(trace: Trace) -> str:
    since = f"; it {trace.losses[-1].text()}" if trace.losses else ""
    looks = "in both looks" if trace.port.now else "by the last word of its kernel"
    return f"{trace.port.name} of {trace.port.node} has no link {looks}{since}"


@fact("links.just_down", type="number", unit="ports", parts="nic")
def just_down(ev: Evidence) -> Fact:
    """Ports of the job that had link in look A and have none in the newest one: what that does to the job is yet to show."""
    told = [port for port in job_ports(ev) if port.down is not None and port.down_before is not None]
    if not told:
        return unknown("no port that the job is known to use was seen in both looks")
    lost = [port for port in told if port.down and not port.down_before]
    parts = [port.part(f"{port.name} of {port.node} lost its link between the looks") for port in lost]
    return known(parts=parts, provenance=ev.seen(*(p.sample for p in lost[:MOST_PROVENANCE] if p.sample is not None)))


@fact("links.down_apart", type="number", unit="ports", parts="nic")
def down_apart(ev: Evidence) -> Fact:
    """Ports of the job without link that lost it at another time than the stall's, or never had it: a finding."""
    found, told = _now(ev)
    if not told:
        return unknown("no port that the job is known to use was seen in both looks")
    apart = [trace for trace, guilty in found if not guilty]
    seen = [sample for trace in apart if (sample := trace.port.sample) is not None]
    return known(
        parts=[trace.port.part(_why_down(trace)) for trace in apart], provenance=ev.seen(*seen[:MOST_PROVENANCE])
    )


@fact("links.flapped", type="number", unit="ports", parts="nic")
def flapped(ev: Evidence) -> Fact:
    """Ports that the job uses and whose counters of lost links rose between the looks."""
    parts, seen, told = [], [], 0
    for port in job_ports(ev):
        told += len(port.counter_pairs("carrier_changes", "link_downed"))
        rises = port.counter_rises("carrier_changes", "link_downed")
        if rises:
            name, was, new = rises[0]
            parts.append(port.part(f"{name} of {port.name} rose from {was} to {new}"))
            seen += [port.sample] if port.sample else []
    if not told:
        return unknown("no counter of a port that the job is known to use was seen in both looks")
    return known(parts=parts, provenance=ev.seen(*seen[:MOST_PROVENANCE]))


@fact("links.other_down", type="number", unit="ports", parts="nic")
def other_down(ev: Evidence) -> Fact:
    """Ports that the job does not use and that changed between the looks, or lost their link near the onset: a finding."""
    if not ev.of("nic") and not any(sample.data.get("readable") for sample in ev.of("kernel")):
        return unknown("no node told its ports, nor its kernel log")
    parts: list[Part] = []
    sources: list[Provenance] = []
    w = ev.derive(window)
    for found in ev.derive(traces).values():
        for trace in found:
            port = trace.port
            if port.the_jobs:
                continue
            aside = "the job only sets up its connections over it" if port.use == "setup" else "not the job's"
            near = [loss for loss in trace.losses if w is not None and loss.down.meets(w.lo, w.hi)]
            rises = port.counter_rises("carrier_changes", "link_downed")
            if near:
                parts.append(port.part(f"it {near[-1].text()}; {aside}"))
                sources += near[-1].provenance(ev)
            elif rises:
                parts.append(port.part(f"{rises[0][0]} rose from {rises[0][1]} to {rises[0][2]}; {aside}"))
                sources += ev.seen(port.sample) if port.sample else ()
    return known(parts=parts, provenance=tuple(dict.fromkeys(sources))[:MOST_PROVENANCE])


# ---------------------------------------------------------------- at the time of the stall


@fact("links.flapped_in_onset", type="number", unit="ports", parts="nic")
def flapped_in_onset(ev: Evidence) -> Fact:
    """Ports of the job that lost their link when that could have caused the stall, and are not known to lack it now.

    The loss is dated by the kernel log or by NCCL's own port events, and not over for whole steps before the stall.
    """
    if ev.derive(window) is None:
        return unknown("the job advances, or nothing tells when its stall began")
    found = ev.derive(flapped_losses)
    if found:
        parts = [loss.port.part(f"it {loss.text()}") for loss in found]
        against = ("the kernel log",) if any(_kernel_denies(ev, loss) for loss in found) else ()
        return known(parts=parts, provenance=loss_provenance(ev, found), contradicted_by=against)
    why = _blind(ev)
    if why:
        return unknown(why)
    return known(parts=[], text="no port of the job lost its link when the stall began and has it again")


def _kernel_denies(ev: Evidence, loss: Loss) -> bool:
    """Would the kernel log have told of it, and does not?"""
    return loss.kernel is None and loss.port.tells_the_log and kernel_whole(ev, loss.port.node)


def _blind(ev: Evidence) -> str:
    """Why a loss of link at the stall's beginning may have gone unseen, or ""."""
    told = ev.derive(ports)
    for trace in job_traces(ev):
        name = f"{trace.port.name} of {trace.port.node}"
        if any(perhaps_in_onset(ev, loss) for loss in trace.losses):
            return f"NCCL tells of a loss of link of {name}, and nothing dates that line well enough"
        if hidden(ev, trace):
            return f"{name} lost its link many times, and not all of the dates are known"
        if not trace.port.now:
            return f"the ports of {trace.port.node} could not be read"
        if not trace.port.tells_the_log:
            return f"the kernel logs nothing of the link of {name}"
    for node in ev.job.nodes:
        if not kernel_whole(ev, node.name):
            return f"the kernel log of {node.name} could not be read, or not back to the attempt's start"
        if not any(port.the_jobs for port in told.get(node.name, ())):
            return f"no port that the job is known to use was seen on {node.name}"
    return "" if ev.job.nodes else "the job's nodes are not known"


@fact("links.named", type="number", unit="ports", parts="nic")
def named(ev: Evidence) -> Fact:
    """Ports that the transport itself named near the onset: its card's event, its own port or its peer in a status 12."""
    if log_sample(ev) is None:
        return unknown("the job log could not be read")
    if ev.derive(window) is None:
        return unknown("the job advances, or nothing tells when its stall began")
    parts: dict[tuple[str, str], Part] = {}
    for naming in ev.derive(namings):
        part = _named_part(ev, naming)
        parts.setdefault((naming.node, str(part.nic or part.name)), part)
    return known(parts=list(parts.values())[:64], provenance=ev.derive(spoken).provenance(ev) if parts else ())


def _named_part(ev: Evidence, naming: Naming) -> Part:
    if naming.port is not None:
        return naming.port.part(naming.why)
    mine = sorted(trace.port.name for trace in ev.derive(traces).get(naming.node, ()) if trace.port.the_jobs)
    which = f"one of {', '.join(mine[:8])}" if mine else "one of its ports"
    return Part("nic", node=naming.node, name=which, why=naming.why)


@fact("links.tied", type="number", unit="ports", parts="nic")
def tied(ev: Evidence) -> Fact:
    """Members of links.flapped_in_onset that a second sign ties to the stall."""
    flaps = flapped_in_onset(ev)
    if not flaps.known:
        return unknown(flaps.reason)
    found = ev.derive(tied_losses)
    if not found:
        if flaps.parts and log_sample(ev) is None:
            return unknown("the job log, which would tell whom the transport named, could not be read")
        return known(parts=[], text="nothing but the time ties a port to the stall" if flaps.parts else "")
    parts, sources = [], list(loss_provenance(ev, found))
    for loss in found:
        reasons = ties(ev, loss)
        parts.append(loss.port.part(f"it {loss.text()}; {reasons[0].why}"))
        sources += ev.seen(*(sample for reason in reasons for sample in reason.samples))
    return known(
        parts=parts,
        provenance=tuple(dict.fromkeys(sources))[: 2 * MOST_PROVENANCE],
        contradicted_by=flaps.contradicted_by,
    )


@fact("links.survived", type="number", unit="ports", parts="nic")
def survived(ev: Evidence) -> Fact:
    """Ports of the job that lost their link within the attempt and have it again, and not at the stall's beginning: findings."""
    if log_sample(ev) is None and not any(sample.data.get("readable") for sample in ev.of("kernel")):
        return unknown("neither a kernel log nor the job log could be read")
    parts: list[Part] = []
    told: list[Loss] = []
    for trace in job_traces(ev):
        over = [loss for loss in trace.losses if _over(ev, trace, loss)]
        if over:
            parts.append(trace.port.part(_why_survived(ev, over)))
            told.append(over[-1])
    return known(parts=parts, provenance=loss_provenance(ev, told))


def _over(ev: Evidence, trace: Trace, loss: Loss) -> bool:
    """Is this loss dated, over, and surely not of the stall's beginning?"""
    back = loss.up is not None or trace.port.down is False or loss is not trace.losses[-1]
    dated = loss.down.hi - loss.down.lo <= ev.limit("link_slack_s")
    return back and dated and not in_onset(ev, loss) and not perhaps_in_onset(ev, loss)


def _why_survived(ev: Evidence, over: list[Loss]) -> str:
    w = ev.derive(window)
    late = w is not None and over[-1].when.lo > w.hi
    often = f" ({len(over)} times in all)" if len(over) > 1 else ""
    return f"it {over[-1].text()}{often}" + ("; the job already stood: a consequence" if late else "")
