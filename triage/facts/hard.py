"""Facts that end a job by themselves: a rank killed, out of memory, or ended by its own error.

Each must be dated before the stall's end: what happens after it (SIGABRT of a watchdog, SIGTERM of a launcher) is a
consequence. Signal 6 and 15 are never a cause here (DESIGN section 6, question 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triage.facts.clocks import log_sample, log_time, our_time
from triage.facts.evidence import Evidence
from triage.facts.progress import onset_interval
from triage.facts.ranktable import log_hits, rank_table
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Part, Sample

# Ended by the kernel or an operator (9), by bad memory access (11, 7). Not 6 (abort: mostly a watchdog) nor 15.
SIGNALS = {9: "SIGKILL", 11: "SIGSEGV", 7: "SIGBUS"}


@dataclass(frozen=True)
class HardEvent:
    """One event: what, to whom, when on our clock, and who told."""

    kind: str  # killed oom
    part: Part
    at: float | None
    text: str
    sample: Sample


def hard_events(ev: Evidence) -> list[HardEvent]:
    table = ev.derive(rank_table)
    interval = ev.derive(onset_interval)
    events: list[HardEvent] = []
    log = log_sample(ev)
    for row in table.rows.values():
        if log is None or not row.gone or row.exit_code is None:
            continue
        signal = _signal(row.exit_code)
        if signal is None:
            continue
        at = _exit_time(ev, row.exit_code, row.pid, row.env.get("LOCAL_RANK"))
        if _in_time(ev, at, interval):
            text = f"the launcher says that rank {row.rank} ended by {SIGNALS[signal]} (exit code {row.exit_code})"
            events.append(HardEvent("killed", Part("rank", row.node, row.rank, why=text), at, text, log))
    for node, sample in ev.latest("kernel").items():
        gone = [row for row in table.rows.values() if row.gone and row.node == node]
        for event in sample.data.get("events") or ():
            if not isinstance(event, Mapping) or event.get("kind") != "oom":
                continue
            at = event.get("at")
            ours = our_time(ev, node, float(at)) if isinstance(at, int | float) else None
            if gone and _in_time(ev, ours, interval):
                text = f"the kernel of {node} killed a process for lack of memory: {str(event.get('text', ''))[:120]}"
                # The kill line names a pid; which rank it was is known only when one rank of the node is gone.
                owners = gone if len(gone) == 1 else []
                part = Part("rank", node, owners[0].rank, why=text) if owners else Part("node", node, why=text)
                events.append(HardEvent("oom", part, ours, text, sample))
    return events


def _signal(code: int) -> int | None:
    number = -code if code < 0 else code - 128 if code > 128 else 0
    return number if number in SIGNALS else None


def _exit_time(ev: Evidence, code: int, pid: int | None, local_rank: str | None) -> float | None:
    for hit in log_hits(ev, "torchelastic_failed"):
        groups: Mapping[str, Any] = hit.get("groups") or {}
        if str(groups.get("code")) == str(code) and str(pid or groups.get("pid")) == str(groups.get("pid")):
            if local_rank is not None and str(groups.get("lr")) != local_rank:
                continue
            return log_time(ev, hit.get("at"))
    return None


def _in_time(ev: Evidence, at: float | None, interval: tuple[float, float] | None) -> bool:
    """Near the onset? An undated event, or a stall of unknown onset, cannot be ordered and so cannot accuse."""
    if at is None or interval is None:
        return False
    slack = ev.limit("hard_slack_s")
    return interval[0] - slack <= at <= interval[1] + slack


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
