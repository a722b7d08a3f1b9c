"""How much we see: which share of the nodes answered, whose processes and kernel log we may read, how often we looked."""

from __future__ import annotations

from triage.facts.evidence import Evidence
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, unknown
from triage.model import Fact


@fact("seen.nodes_share", type="number")
def nodes_share(ev: Evidence) -> Fact:
    """Share of the job's nodes that answered (0 to 1)."""
    if not ev.job.nodes:
        return unknown("the job's nodes are not known")
    answered = ev.of("contact")
    return known(
        len({s.node for s in answered}) / len(ev.job.nodes),
        text=f"{len({s.node for s in answered})} of {len(ev.job.nodes)} nodes answered",
        provenance=ev.seen(*answered[:8]),
    )


@fact("seen.procs", type="bool")
def procs(ev: Evidence) -> Fact:
    """Do we see all processes of every node of the job? Only there may "gone" be said."""
    if not ev.of("ranks"):
        return unknown("no node told its processes")
    full = ev.derive(rank_table).full_nodes
    return known(all(node.name in full for node in ev.job.nodes), text=f"processes of {len(full)} nodes fully visible")


@fact("seen.kernel_log", type="number")
def kernel_log(ev: Evidence) -> Fact:
    """Share of the job's nodes whose kernel log could be read. "Could not read" is not "nothing there"."""
    if not ev.job.nodes:
        return unknown("the job's nodes are not known")
    readable = [s for s in ev.latest("kernel").values() if s.data.get("readable")]
    return known(len(readable) / len(ev.job.nodes), provenance=ev.seen(*readable[:8]))


@fact("seen.looks", type="number", unit="looks")
def looks(ev: Evidence) -> Fact:
    """How many rounds of cheap probes were made (two are needed to tell slow from frozen)."""
    count = len({s.look for s in ev.samples if s.status == "ok" and s.look in ("A", "B") and s.node})
    times = "twice" if count == 2 else "once"
    return known(count, text=f"the nodes were looked at {times}" if count else "no node was looked at")
