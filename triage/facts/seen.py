"""How much we see: which nodes answered, whose processes and kernel log we may read, who is silent and since which phase."""

from __future__ import annotations

from triage.facts.evidence import Evidence
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Part


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
    return known(count, text=f"the nodes were looked at {'twice' if count == 2 else f'{count} times'}")


@fact("hosts.silent", type="number", unit="nodes", parts="node")
def silent(ev: Evidence) -> Fact:
    """Nodes of the job that did not answer. Silence alone accuses nobody."""
    contacts = ev.of("contact", status=None)
    if not contacts:
        return unknown("no node was asked")
    quiet = [s for s in contacts if s.status != "ok"]
    return known(
        parts=[Part("node", node=s.node, why=f"silent in phase {s.data.get('phase', '?')}") for s in quiet],
        provenance=ev.seen(*quiet[:8]),
    )


@fact("hosts.lost", type="number", unit="nodes", parts="node")
def lost(ev: Evidence) -> Fact:
    """Nodes that answered the first look and not the second: they, their SSH or their network went away meanwhile."""
    answered = {s.node for s in ev.of("contact")}
    second = ev.of("ranks", "B", status=None)
    if not second:
        return unknown("there was no second look")
    gone = [s for s in second if s.node in answered and s.status in ("timeout", "error")]
    return known(
        parts=[Part("node", node=s.node, why="; ".join(s.notes)[:160] or s.status) for s in gone],
        provenance=ev.seen(*gone[:8]),
    )


@fact("hosts.silent_phase", type="text")
def silent_phase(ev: Evidence) -> Fact:
    """The phase in which the silent nodes stopped, if it is one: resolve tcp banner kex auth channel exec read."""
    phases = [str(s.data.get("phase", "")) for s in ev.of("contact", status=None) if s.status != "ok"]
    if not phases:
        return unknown("no node is silent")
    common = max(set(phases), key=phases.count)
    return known(common, text=f"{phases.count(common)} of {len(phases)} silent nodes stopped in phase {common}")
