"""Facts that end a job by themselves: a rank killed, out of memory, or ended by its own error.

Each must be dated before the stall's end: what happens after it (SIGABRT of a watchdog, SIGTERM of a launcher) is a
consequence. Signal 6 and 15 are never a cause here (DESIGN section 6, question 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from triage.facts.clocks import log_sample, our_time
from triage.facts.ends import CAUSES, ends, near_the_stall, signal_of
from triage.facts.evidence import Evidence
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Part, Sample


@dataclass(frozen=True)
class HardEvent:
    """One event: what, to whom, when on our clock, and who told."""

    kind: str  # killed oom
    part: Part
    at: float | None
    text: str
    sample: Sample


def hard_events(ev: Evidence) -> list[HardEvent]:
    table, ended = ev.derive(rank_table), ev.derive(ends)
    events: list[HardEvent] = []
    log = log_sample(ev)
    for row in table.rows.values():
        end = ended.get(row.rank)
        if log is None or end is None or end.kind != "early" or row.exit_code is None:
            continue
        how = CAUSES[signal_of(row.exit_code)]
        text = f"the launcher says that rank {row.rank} ended by {how} (exit code {row.exit_code})"
        events.append(HardEvent("killed", Part("rank", row.node, row.rank, why=text), end.at, text, log))
    # Whoever ended after the stall had begun was not its cause, and the kill that the kernel tells of was another's.
    gone: dict[str, list[int]] = {}
    for rank, end in ended.items():
        if end.kind != "late":
            gone.setdefault(table.node_of(rank) or "", []).append(rank)
    for node, sample in ev.latest("kernel").items():
        told = sample.data.get("events")
        for event in told if isinstance(told, list) and node in gone else ():
            if not isinstance(event, Mapping) or event.get("kind") != "oom":
                continue
            at = event.get("at")
            ours = our_time(ev, node, float(at)) if isinstance(at, int | float) else None
            if near_the_stall(ev, node, ours):
                text = f"the kernel of {node} killed a process for lack of memory: {str(event.get('text', ''))[:120]}"
                # The kill line names a pid; which rank it was is known only when one rank of the node is gone.
                owners = gone[node] if len(gone[node]) == 1 else []
                part = Part("rank", node, owners[0], why=text) if owners else Part("node", node, why=text)
                events.append(HardEvent("oom", part, ours, text, sample))
    return events


@fact("hard.events", type="number", unit="events")
def events(ev: Evidence) -> Fact:
    """Events that end a job by themselves, dated before the end of the onset."""
    if log_sample(ev) is None and not any(s.data.get("readable") for s in ev.of("kernel")):
        return unknown("neither the job log nor a kernel log could be read")
    found = ev.derive(hard_events)
    if not found and not _kernel_logs_whole(ev):
        return unknown("nothing in the job log, but not every kernel log could be read")
    return known(
        len(found), text="; ".join(e.text for e in found[:3]), provenance=ev.seen(*(e.sample for e in found[:8]))
    )


def _kernel_logs_whole(ev: Evidence) -> bool:
    latest = ev.latest("kernel")
    return bool(ev.job.nodes) and all(
        node.name in latest and latest[node.name].data.get("readable") for node in ev.job.nodes
    )


def _of_kind(ev: Evidence, kind: str) -> Fact:
    if log_sample(ev) is None and not ev.of("kernel"):
        return unknown("neither the job log nor a kernel log could be read")
    found = [e for e in ev.derive(hard_events) if e.kind == kind]
    unique = {(e.part.kind, e.part.node, e.part.rank): e for e in found}
    return known(
        parts=[e.part for e in unique.values()],
        text="; ".join(e.text for e in found[:3]),
        provenance=ev.seen(*(e.sample for e in found[:8])),
    )


@fact("hard.parts", type="number", unit="parts", parts="rank")
def parts(ev: Evidence) -> Fact:
    """Whom the hard events hit."""
    if log_sample(ev) is None and not ev.of("kernel"):
        return unknown("neither the job log nor a kernel log could be read")
    unique = {(e.part.kind, e.part.node, e.part.rank): e.part for e in ev.derive(hard_events)}
    return known(parts=unique.values())


@fact("hard.killed", type="number", unit="ranks", parts="rank")
def killed(ev: Evidence) -> Fact:
    """Ranks that the launcher reports as ended by SIGKILL, SIGSEGV or SIGBUS near the onset, and that are gone."""
    return _of_kind(ev, "killed")


@fact("hard.oom", type="number", unit="ranks", parts="rank")
def oom(ev: Evidence) -> Fact:
    """Ranks (or nodes) that the kernel's out-of-memory killer hit near the onset."""
    return _of_kind(ev, "oom")
