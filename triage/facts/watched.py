"""How many ports of the job were watched, and does any byte still move on them?

A flap is found the sooner the more ports are watched: of 8,192 ports that lose their link once in 100 days, one does so near
any stall in one case of seven. So a flap alone is a lead, and the number of ports is printed beside it (DESIGN section 6).
What can fool it: ports of nodes that were not read (told apart), InfiniBand ports, of whose link the kernel says nothing.
"""

from __future__ import annotations

import math

from triage.facts.evidence import Evidence
from triage.facts.flaps import kernel_whole, window
from triage.facts.outages import job_traces
from triage.facts.ports import job_ports
from triage.facts.registry import fact, known, unknown
from triage.model import Fact

DAY_S = 86400.0


@fact("links.watched", type="number", unit="ports")
def watched(ev: Evidence) -> Fact:
    """Ports of the job whose losses of link would have been seen, and how often one of so many flaps by chance."""
    traces = [trace for trace in job_traces(ev) if trace.port.now or trace.losses]
    if not traces:
        return unknown("no port that the job is known to use was seen")
    dated = [
        trace
        for trace in traces
        if trace.losses or trace.events or (trace.port.tells_the_log and kernel_whole(ev, trace.port.node))
    ]
    nodes = {trace.port.node for trace in traces}
    text = f"{len(traces)} ports of {len(nodes)} of {len(ev.job.nodes)} nodes were watched"
    if len(dated) < len(traces):
        text += f" ({len(traces) - len(dated)} of them by their state alone: no log dates a loss of their link)"
    w = ev.derive(window)
    if w is not None:
        expected = len(traces) * (w.hi - w.lo) / (ev.limit("link_chance_days") * DAY_S)
        text += f"; by chance one of so many flaps near a stall in {_percent(1.0 - math.exp(-expected))} of the cases"
    sources = {id(port.sample): port.sample for port in job_ports(ev) if port.sample is not None}
    return known(len(traces), text=text, provenance=ev.seen(*list(sources.values())[:8]))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "less than 1 %"


@fact("links.zero_bytes", type="bool")
def zero_bytes(ev: Evidence) -> Fact:
    """Does no byte of payload move on any port of the job between the looks? Unknown where a node's ports were not told."""
    floor = ev.limit("payload_floor_bytes_per_s")
    quiet: set[str] = set()
    for port in job_ports(ev):
        grew, window_s = port.growth(), port.window_s
        if grew is None or window_s is None:
            continue
        if grew / window_s >= floor:
            moved = f"{port.name} of {port.node} moved {grew / window_s / 1e6:.3g} MB/s"
            return known(False, text=moved, provenance=ev.seen(*([port.sample] if port.sample else [])))
        quiet.add(port.node)
    missing = [node.name for node in ev.job.nodes if node.name not in quiet]
    if not quiet or missing:
        where = missing[0] if missing else "any node"
        return unknown(f"the bytes of {where}'s ports were not told in both looks")
    samples = {id(port.sample): port.sample for port in job_ports(ev) if port.sample is not None}
    text = f"no byte moves on the ports of {len(quiet)} nodes"
    return known(True, text=text, provenance=ev.seen(*list(samples.values())[:8]))
