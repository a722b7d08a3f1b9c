"""Which nodes are silent, and what do those that answer see of them on the training network?

Reads `contact` (how far our own connection came) and the `peers` probe: plain TCP connects from nodes that answer to the
silent ones, on the management and the fabric side, and to some nodes that answer us too (controls).
What can fool it: a peer whose own fabric is cut reaches nobody, so its time-outs count only if it reaches a control; a
peer that lies (one that reaches a node outweighs all that do not); an address that the inventory has wrong; a firewall on
one node alone; a management address that means another machine from there (127.0.0.1): that side proves no death, it only
tells that a kernel lives. Linear in the samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from triage.facts.evidence import Evidence
from triage.model import Node, Sample

LATE_PHASES = ("banner", "kex", "auth", "channel", "exec", "read")  # TCP was accepted: the kernel lives
REACHED = ("open", "refused")  # a kernel that refuses lives
MOST_ADDRESSES = 8  # of one node: what the probe tries of it
IN_VAIN = ("timeout", "unreachable")  # all else (a name that is not resolved) tells nothing of the node


@dataclass(frozen=True)
class View:
    """What the peers say of one silent node, each line ready for the report.

    seen      "gpu001 reaches 10.88.0.13:22 (refused)": a connect on the fabric that came through
    blind     peers that reach a control, tried all fabric addresses of the node, and reached none
    kernel    "gpu001 reaches 10.1.0.13:22": the management side answered
    told      some peer said something of its fabric addresses
    """

    seen: tuple[str, ...] = ()
    blind: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()
    told: bool = False


@dataclass(frozen=True)
class PeerViews:
    """node -> View, for the silent nodes; the samples that this stands on; peers that reach no control."""

    nodes: Mapping[str, View] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()
    deaf: tuple[str, ...] = ()


def silent_nodes(ev: Evidence) -> dict[str, Sample]:
    """node -> its failed contact, for the nodes whose last word is silence: one that answered later is not silent."""
    quiet: dict[str, Sample] = {}
    names = {node.name for node in ev.job.nodes}
    for sample in ev.samples:
        if sample.node not in names:
            continue
        if sample.status == "ok":
            quiet.pop(sample.node, None)
        elif sample.probe == "contact":
            quiet[sample.node] = sample
    # In the job's order: which of them was given up first is chance.
    return {node.name: quiet[node.name] for node in ev.job.nodes if node.name in quiet}


def answering(ev: Evidence) -> list[Node]:
    """Nodes of the job that answered us and are not silent, in the scheduler's order."""
    reached = {s.node for s in ev.samples if s.node and s.status == "ok"}
    quiet = ev.derive(silent_nodes)
    return [node for node in ev.job.nodes if node.name in reached and node.name not in quiet]


def management(node: Node) -> str:
    """Where we connect to the node, "host:port"."""
    host = node.address or node.name
    return f"[{host}]:{node.port}" if ":" in host else f"{host}:{node.port}"


def fabric(node: Node) -> tuple[str, ...]:
    """The addresses on the training network that are tried."""
    return node.fabric[:MOST_ADDRESSES]


def kernel_lives(contact: Sample) -> str:
    """Why our own connection says that the node's kernel lives; "" if it does not."""
    phase, error = str(contact.data.get("phase", "")), str(contact.data.get("error", ""))
    if phase in LATE_PHASES:
        return f"it took our connection and stopped in phase {phase}"
    return "it refused our connection" if phase == "tcp" and "refused" in error.lower() else ""


def peer_views(ev: Evidence) -> PeerViews:
    """Everything that the `peers` samples tell of the silent nodes, from peers that answer us."""
    quiet = ev.derive(silent_nodes)
    healthy = {node.name: node for node in ev.derive(answering)}
    silent = {node.name: node for node in ev.job.nodes if node.name in quiet}
    samples = [sample for sample in ev.of("peers") if sample.node in healthy]
    seen: dict[str, dict[str, None]] = {}
    blind: dict[str, dict[str, None]] = {}
    kernel: dict[str, dict[str, None]] = {}
    told: set[str] = set()
    deaf: dict[str, None] = {}
    for sample in samples:
        hears = _hears(sample, healthy)
        if not hears:
            deaf[sample.node] = None
        for name, target in targets_of(sample):
            node = silent.get(name)
            if node is None:
                continue
            for address, result in results_of(target, "management"):
                if address == management(node) and result in REACHED:
                    kernel.setdefault(name, {})[f"{sample.node} reaches {address}"] = None
            tries = [(address, result) for address, result in results_of(target, "fabric") if address in node.fabric]
            if tries:
                told.add(name)
            for address, result in tries:
                if result in REACHED:
                    seen.setdefault(name, {})[f"{sample.node} reaches {address} ({result})"] = None
            # One address in vain is one rail: the node is blind to a peer that tried them all.
            if hears and tries and {a for a, result in tries if result in IN_VAIN} == set(fabric(node)):
                blind.setdefault(name, {})[sample.node] = None
    views = {
        name: View(
            tuple(seen.get(name, ())),
            () if name in seen else tuple(blind.get(name, ())),
            tuple(kernel.get(name, ())),
            name in told,
        )
        for name in quiet
    }
    return PeerViews(views, tuple(samples), tuple(deaf))


def _hears(sample: Sample, healthy: Mapping[str, Node]) -> bool:
    """Does this peer reach another node that answers us, on that node's own fabric address?"""
    own = healthy[sample.node].fabric
    return any(
        result in REACHED and address in healthy[name].fabric and address not in own
        for name, target in targets_of(sample)
        if name in healthy
        for address, result in results_of(target, "fabric")
    )


def targets_of(sample: Sample) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(node, what was tried of it) of one answer of the probe."""
    told = sample.data.get("targets")
    for target in told if isinstance(told, list) else ():
        if isinstance(target, Mapping) and isinstance(target.get("node"), str):
            yield target["node"], target


def results_of(target: Mapping[str, Any], side: str) -> Iterator[tuple[str, str]]:
    """(address, result) of the management or the fabric side."""
    told = target.get(side)
    for row in told if isinstance(told, list) else ():
        if isinstance(row, Mapping) and isinstance(row.get("address"), str) and isinstance(row.get("result"), str):
            yield row["address"], row["result"]
