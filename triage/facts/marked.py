"""What does the scheduler say of the job's nodes, before anybody has asked them?

    sinfo: n3 mixed* (Not responding)      its slurmd is silent; the machine need not be

A finding, never a verdict by itself: hosts.down weighs the word against what the node and its peers say. A node that answers us
shows that only its daemon is silent, or that somebody drained it.
What can fool it: a state of some minutes ago (Slurm pings its nodes every SlurmdTimeout/3); an inventory of yesterday.
"""

from __future__ import annotations

from triage.facts.evidence import Evidence
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Part, Provenance
from triage.readers.node_words import unwell

MOST_PROVENANCE = 8


@fact("hosts.marked", type="number", unit="nodes", parts="node")
def marked(ev: Evidence) -> Fact:
    """Nodes that the scheduler marks as down, drained or not responding, whether they answer us or not."""
    if not any(node.state for node in ev.job.nodes):
        return unknown("no scheduler told the states of the nodes")
    answered = {s.node for s in ev.of("contact")}
    parts = []
    for node in ev.job.nodes:
        word = unwell(node.state)
        if not word:
            continue
        why = f"{word}{f'; {node.state_reason}' if node.state_reason else ''}"
        parts.append(Part("node", node=node.name, why=f"{why}; it answers us" if node.name in answered else why))
    scheduler = ev.job.scheduler or "scheduler"
    return known(
        parts=parts,
        text="; ".join(f"{part.node} {part.why}" for part in parts[:3]),
        provenance=[Provenance(scheduler, part.node) for part in parts[:MOST_PROVENANCE]],
    )
