"""Losses of link, each dated on our clock: by the kernel's lines (the node's clock), by NCCL's own port events, or by both.

What can fool it: a counter since boot (no counter counts here), InfiniBand ports, of which the kernel logs nothing, lines
that the probes counted and did not keep, lines of an earlier attempt, a kernel log that does not reach back so far.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from triage.facts.budget import budget
from triage.facts.clocks import clock_err, our_time
from triage.facts.ends import stall_window
from triage.facts.evidence import Evidence
from triage.facts.fabric import fabric
from triage.facts.pace import job_change
from triage.facts.ports import Port, ports
from triage.facts.transport import PortEvent, Span, spoken
from triage.model import Provenance, Sample

LATEST = 4e9  # epoch seconds: what a node says beyond is no time


@dataclass(frozen=True)
class Loss:
    """One loss of link of one port. `kernel` and `joblog`: the samples that tell of it.

    err   how far both of its moments may lie from ours, beside their spans: the length of the outage is not touched by it
    """

    port: Port
    down: Span
    up: Span | None
    kernel: Sample | None = None
    joblog: Sample | None = None
    err: float = 0.0

    @property
    def when(self) -> Span:
        """When it began, with all that is not known of its clock."""
        return Span(self.down.lo - self.err, self.down.hi + self.err)

    @property
    def outage(self) -> tuple[float, float] | None:
        """How long it lasted, (at least, at most); None while no end is known."""
        if self.up is None:
            return None
        return max(0.0, self.up.lo - self.down.hi), max(0.0, self.up.hi - self.down.lo)

    def provenance(self, ev: Evidence) -> tuple[Provenance, ...]:
        return ev.seen(*(sample for sample in (self.kernel, self.joblog) if sample is not None))

    def text(self) -> str:
        """`lost its link at 2026-11-29T01:55:27Z for 4.0s (kernel log, NCCL)`."""
        told = [name for name, sample in (("kernel log", self.kernel), ("NCCL", self.joblog)) if sample is not None]
        return f"lost its link at {stamp(self.down.lo)}{self._lasted()} ({', '.join(told)})"

    def _lasted(self) -> str:
        if self.outage is None:
            return ""
        least, most = self.outage
        if most - least < 0.05:
            return f" for {most:.1f}s"
        return f" for {least:.0f} to {most:.0f}s" if least else f" for at most {most:.0f}s"


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Window:
    """When a loss of link must have begun to be the cause of the stall (lo, hi), and until when NCCL may give up on it."""

    lo: float
    hi: float
    gave_up: float
    earliest: float  # the stall's last sign of life


def window(ev: Evidence) -> Window | None:
    """To be called through `ev.derive`. None while the job advances, or nothing dated is known of its stall."""
    stall = ev.derive(stall_window)
    if stall is None:
        return None
    reach = ev.derive(budget).worst
    if math.isinf(reach):  # of one that retries for ever nothing bounds it; as far as NCCL's default does
        reach = ev.limit("link_budget_s") * ev.limit("link_worst_factor")
    slack = ev.limit("link_slack_s")
    return Window(stall[0] - reach - slack, stall[1] + slack, stall[1] + reach + slack, stall[0])


@dataclass
class Trace:
    """All that was said of the link of one port, oldest first. `more`: between these moments lie further words, undated."""

    port: Port
    downs: list[float] = field(default_factory=list)  # by the kernel
    ups: list[float] = field(default_factory=list)
    events: list[PortEvent] = field(default_factory=list)  # by NCCL
    more: list[tuple[float, float]] = field(default_factory=list)
    kernel: Sample | None = None
    err: float = 0.0  # of the kernel's dates
    losses: list[Loss] = field(default_factory=list)


def traces(ev: Evidence) -> dict[str, list[Trace]]:
    """node -> its ports with what was said of their link; to be called through `ev.derive`."""
    kernels, told = ev.derive(_kernels), ev.derive(ports)
    events: dict[str, list[PortEvent]] = {}
    for event in ev.derive(spoken).events:
        events.setdefault(event.node, []).append(event)
    out: dict[str, list[Trace]] = {}
    for node in dict.fromkeys([*told, *kernels, *events]):
        found = [Trace(port) for port in told.get(node, ())]
        if node in kernels:
            _take_kernel(ev, node, kernels[node], found)
        for event in sorted(events.get(node, ()), key=lambda event: event.up):  # losses first: they join the names
            _take_event(ev, node, event, found)
        for trace in found:
            trace.losses = _losses(ev, trace)
        out[node] = found
    return out


def _kernels(ev: Evidence) -> dict[str, Sample]:
    return ev.latest("kernel")


def kernel_whole(ev: Evidence, node: str, surely: bool = False) -> bool:
    """Could the kernel log of this node be read as far back as the attempt goes? `surely`: it says so itself."""
    sample = ev.derive(_kernels).get(node)
    if sample is None or not sample.data.get("readable"):
        return False
    covered = sample.data.get("boot_covered")
    return covered is True or (covered is not False and not surely)


# ---------------------------------------------------------------- the kernel's words


def _take_kernel(ev: Evidence, node: str, sample: Sample, found: list[Trace]) -> None:
    told = sample.data.get("events")
    for event in told if isinstance(told, list) else ():
        if not isinstance(event, Mapping) or event.get("id") not in ("link_down", "link_up"):
            continue
        times = [our_time(ev, node, at) for at in _dates(event)]
        trace = _trace_of(ev, node, event, found) if times else None
        if trace is None:
            continue
        trace.kernel = sample
        doubt = event.get("err_s")
        if isinstance(doubt, int | float) and 0.0 <= doubt < LATEST:
            trace.err = max(trace.err, float(doubt))
        (trace.downs if event["id"] == "link_down" else trace.ups).extend(times)
        count = event.get("count")
        if isinstance(count, int) and count > len(times) > 1 and event["id"] == "link_down":
            trace.more.append((times[0], times[1]))


def _dates(event: Mapping[str, Any]) -> list[float]:
    """All moments that an event tells: the first, the newest ones, the last."""
    told = event.get("times")
    every = [event.get("at"), *(told if isinstance(told, list) else ()), event.get("last_at")]
    good = {float(at) for at in every if isinstance(at, int | float) and not isinstance(at, bool) and 0 < at < LATEST}
    return sorted(good)


def _trace_of(ev: Evidence, node: str, event: Mapping[str, Any], found: list[Trace]) -> Trace | None:
    """The port that a kernel line names; one that sysfs does not show is added."""
    groups = event.get("groups")
    names = [v for v in groups.values() if isinstance(v, str) and v] if isinstance(groups, Mapping) else []
    if not names:
        return None
    name = str(groups.get("nic") or "") if isinstance(groups, Mapping) else ""
    for trace in found:
        if any(trace.port.answers_to(word) for word in ([name] if name else names)):
            return trace
    own, name = fabric(ev, node), name or names[0]
    rdma = own.names_rdma or bool(ev.derive(spoken).devices(node))
    trace = Trace(Port(node, None, name, ("setup" if rdma else "named") if own.names_netdev(name) else "no"))
    found.append(trace)
    return trace


# ---------------------------------------------------------------- NCCL's words


def _take_event(ev: Evidence, node: str, event: PortEvent, found: list[Trace]) -> None:
    """Give NCCL's event to its port. Without a name of its own, only to one that nothing else could be."""
    device = event.device
    fits = [trace for trace in found if (trace.port.answers_to(device) if device else trace.port.the_jobs)]
    if len(fits) != 1:
        fits = [t for t in fits or found if (fits or t.port.device is None) and _coincide(ev, t, event)]
        if not fits and device and not any(trace.port.answers_to(device) for trace in found):
            found.append(Trace(Port(node, device, None, "named", True)))
            fits = found[-1:]
    if len(fits) != 1:
        return
    trace = fits[0]
    if device and trace.port.device is None:  # its two names were known to the kernel and to NCCL alone
        trace.port = replace(trace.port, device=device, use="named", by_device=True)
    trace.events.append(event)


def _coincide(ev: Evidence, trace: Trace, event: PortEvent) -> bool:
    same = ev.limit("link_same_s")
    moments = trace.ups if event.up else trace.downs
    return all(any(span.meets(at - same, at + same) for at in moments) for span in event.times)


# ---------------------------------------------------------------- both


def _losses(ev: Evidence, trace: Trace) -> list[Loss]:
    same = ev.limit("link_same_s")
    found: list[Loss] = []
    for at, up in sorted([(at, False) for at in trace.downs] + [(at, True) for at in trace.ups]):
        last = found[-1] if found else None
        if up and last is not None and last.up is None:
            found[-1] = replace(last, up=Span(at, at))
        elif not up and (last is None or last.up is not None or at > last.down.hi + same):
            found.append(Loss(trace.port, Span(at, at), None, kernel=trace.kernel))
    log = ev.derive(spoken).sample
    heard: list[Span] = []
    for span in _merged((span for event in trace.events if not event.up for span in event.times), same):
        meant = [i for i, loss in enumerate(found) if span.meets(loss.down.lo - same, loss.down.hi + same)]
        if len(meant) == 1:
            found[meant[0]] = replace(found[meant[0]], joblog=log)
        elif not meant:
            heard.append(span)
    actives = sorted((s for event in trace.events if event.up for s in event.times), key=lambda s: s.lo)
    for span in heard:
        up_again = next((s for s in actives if s.lo >= span.lo and s.hi >= span.hi), None)
        found.append(Loss(trace.port, span, up_again, joblog=log))
    for event in trace.events:
        if event.more and not event.up:
            trace.more.append((event.times[0].lo, event.times[-1].hi))
    err = clock_err(ev, trace.port.node)
    found = [replace(loss, err=err + (trace.err if loss.kernel else 0.0)) for loss in found]
    found = [loss for loss in found if _of_the_attempt(ev, loss)]
    return sorted(found, key=lambda loss: loss.down.lo)


def _merged(spans: Iterable[Span], same: float) -> list[Span]:
    """Every rank of a node prints the event: words within `same` seconds are of one loss."""
    out: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.lo, span.hi)):
        if out and span.lo <= out[-1].lo + same and span.hi <= out[-1].hi + same:
            out[-1] = Span(out[-1].lo, max(span.hi, out[-1].hi))
        else:
            out.append(span)
    return out


def _of_the_attempt(ev: Evidence, loss: Loss) -> bool:
    """An event that also happened in another attempt keeps the dates of both."""
    since, until = ev.span.since, ev.span.until
    return (since is None or loss.down.hi >= since) and (until is None or loss.down.lo <= until)


# ---------------------------------------------------------------- near the stall


def in_onset(ev: Evidence, loss: Loss) -> bool:
    """Did it begin when it could have caused the stall, and was it not over for whole steps before that?"""
    w = ev.derive(window)
    return w is not None and loss.when.inside(w.lo, w.hi) and not recovered(ev, loss)


def perhaps_in_onset(ev: Evidence, loss: Loss) -> bool:
    """Nothing dates it well enough: it may be of the stall's beginning, or not."""
    w = ev.derive(window)
    return (
        w is not None and not loss.when.inside(w.lo, w.hi) and loss.when.meets(w.lo, w.hi) and not recovered(ev, loss)
    )


def recovered(ev: Evidence, loss: Loss) -> bool:
    """Did the job still make whole steps when the link was back? Then it has survived this one."""
    w, change = ev.derive(window), ev.derive(job_change)
    if w is None or change is None or loss.up is None:
        return False
    return loss.up.hi + loss.err + ev.limit("still_factor") * change.healthy <= w.earliest


def hidden(ev: Evidence, trace: Trace) -> bool:
    """May the probes have counted, and not kept, a loss of this port at the stall's beginning?"""
    w = ev.derive(window)
    return w is not None and any(Span(lo, hi).meets(w.lo, w.hi) for lo, hi in trace.more)
