"""What ended an attempt of which no process is left: dated evidence alone, and only where two witnesses agree.

    kernel and launcher   the kernel killed pid 4242 of gpu003 for lack of memory (or saw it segfault), and a launcher says
                          that its pid 4242 ended by that signal, within the seconds a launcher takes to look
    kernel and Slurm      the same kill, and slurmstepd counts an out-of-memory kill in the job's step
    rank and launcher     "[rank5]: ValueError …", and a launcher says that rank 5 ended with an exit code of a program
    driver and launcher   an Xid that is a cause on a GPU of the job, and a launcher says that its rank ended right after it
The launcher's line alone names nobody: it tells the first exit that it saw, and a signal 9 may be an operator's. Nor does
what came when the job stood already: after the first collective that timed out had begun, or longer after the last step
than a job may take before it counts as frozen.
What can fool it: pids are a node's own (the failure block names the host, and the times must agree); a log in an unknown
zone, whose lines have no time here; a hang that nobody noticed yet, in which a process then ran out of memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from triage.facts.activity import rows_of
from triage.facts.clocks import clock_offsets, log_sample, log_time, our_time
from triage.facts.evidence import Evidence
from triage.facts.exits import LogExit, first_timeout, log_exits, raised
from triage.facts.kernelwords import oom_scope
from triage.facts.pace import job_change
from triage.facts.progress import pulse
from triage.facts.ranktable import log_hits, rank_table
from triage.facts.xids import OFF_BUS, judged, moment
from triage.model import Part, Sample

DEADLY = {9: "SIGKILL", 11: "SIGSEGV", 7: "SIGBUS"}
AFTERMATH = frozenset((6, 15))  # DESIGN section 6, question 4
# What the kernel tells of -> the signals by which the launcher then says that the process ended.
SIGNALS = {"oom": frozenset((9,)), "segfault": frozenset((11, 7, 4, 5, 8))}
# How long after a death its launcher may write the line (ends.py), and a rank its exit after its traceback (teardown of
# CUDA and of the process groups takes seconds, and torch waits up to a minute for the store).
LAUNCHER_LAG_S = 5.0
TEARDOWN_S = 60.0
BY_SLURM = "Slurm counted an out-of-memory kill in the job"  # which it counts in the job's own cgroup


@dataclass(frozen=True)
class HardEvent:
    """One event: what, to whom, when on our clock, and who told."""

    kind: str  # killed segfault oom cgroup_oom raised gpu_lost xid
    part: Part
    at: float | None
    text: str
    sample: Sample
    also: tuple[Sample, ...] = ()  # further witnesses


def nobody_left(ev: Evidence) -> bool:
    """Is there no rank of this attempt in the process lists? Then only what is dated tells of its end."""
    return ev.span.over or not ev.derive(rank_table).rows


def by_dated_evidence(ev: Evidence) -> list[HardEvent]:
    """See the module. To be called through `ev.derive`."""
    log = log_sample(ev)
    if log is None or ev.derive(cancelled) is not None:
        return []
    return [*_by_kernel(ev, log), *_by_exceptions(ev, log), *_by_gpus(ev, log)]


def _by_kernel(ev: Evidence, log: Sample) -> Iterator[HardEvent]:
    for node, sample in ev.latest("kernel").items():
        for event in sample.data.get("events") or ():
            kind = event.get("kind") if isinstance(event, Mapping) else None
            at = event.get("at") if isinstance(event, Mapping) else None
            if kind not in SIGNALS or not isinstance(at, int | float) or isinstance(at, bool):
                continue
            ours = our_time(ev, node, float(at))
            if not _may_have_begun_it(ev, node, ours):
                continue
            agreed = _second_witness(ev, node, ours, str(kind), event)
            if agreed is None:
                continue
            part, who = agreed
            words = str(event.get("text", ""))[:120]
            what = "killed a process for lack of memory" if kind == "oom" else "saw a process end by a fault"
            text = f"the kernel of {node} {what} ({words}), and {who}"
            scope, limit = oom_scope(rows_of(sample.data.get("events")), event) if kind == "oom" else ("", "")
            text += f"; it was at the limit of {limit}" if limit else ""
            named = Part(part.kind, part.node, part.rank, why=text)
            told = "cgroup_oom" if scope == "cgroup" or (not scope and who == BY_SLURM) else str(kind)
            yield HardEvent(told, named, ours, text, sample, (log,))


def _second_witness(ev: Evidence, node: str, at: float, kind: str, event: Mapping[str, Any]) -> tuple[Part, str] | None:
    """Whom the kernel's line hit by a second source, and that source's words; None where there is none."""
    groups = event.get("groups")
    pid = str(groups.get("pid", "")) if isinstance(groups, Mapping) else ""
    slack = _slack(ev, node)
    for end in ev.derive(log_exits):
        fits = end.pid is not None and str(end.pid) == pid and end.node in (None, node)
        if fits and end.signal in SIGNALS[kind] and end.at is not None and end.at - at <= LAUNCHER_LAG_S + slack:
            who = f"rank {end.rank}" if end.rank is not None else f"its process {pid}"
            part = Part("rank", node, end.rank) if end.rank is not None else Part("node", node)
            return part, f"the launcher says that {who} ended by {DEADLY.get(end.signal, f'signal {end.signal}')}"
    if kind != "oom":
        return None
    for rank, told in ev.derive(raised).items():
        # A loader worker was killed: its rank says so with the worker's pid, and ends by that.
        if pid and any(_names(one.text, pid) for one in told):
            return Part("rank", node, rank), f"rank {rank} says that it lost its worker {pid}"
    counted = [log_time(ev, hit.get("at")) for hit in log_hits(ev, "slurm_oom")]
    if any(one is not None and -slack <= one - at <= TEARDOWN_S for one in counted):
        return Part("node", node), BY_SLURM
    return None


def _names(text: str, pid: str) -> bool:
    """`DataLoader worker (pid 4300) is killed by signal`, `(pid(s) 4300, 4301) exited unexpectedly`."""
    words = text.replace(",", " ").replace(")", " ").replace("(", " ").split()
    return "DataLoader" in text and pid in words


def _by_exceptions(ev: Evidence, log: Sample) -> Iterator[HardEvent]:
    for end in ev.derive(log_exits):
        if end.rank is None or end.signal or not end.code or end.at is None:
            continue
        own = [
            one
            for one in ev.derive(raised).get(end.rank, ())
            if one.at is not None and end.at - TEARDOWN_S <= one.at <= end.at + LAUNCHER_LAG_S
        ]
        if own and _may_have_begun_it(ev, end.node, own[0].at or end.at):
            text = (
                f"rank {end.rank} says that it ended by {own[0].exception}, and the launcher that it ended with exit "
                f"code {end.code}"
            )
            yield HardEvent("raised", Part("rank", end.node, end.rank, why=text), end.at, text, log)


def _by_gpus(ev: Evidence, log: Sample) -> Iterator[HardEvent]:
    """GPUs of the job in an error that is a cause, where a rank or a process of that node ended within the time of a teardown."""
    for one in ev.derive(judged).causes:
        at, place = moment(ev, one), one.place
        slack = _slack(ev, place.node) + one.err_s
        for end in ev.derive(log_exits):
            same = end.rank == place.rank if place.rank is not None else end.node == place.node
            if not same or not end.code or at is None or end.at is None or not -slack <= end.at - at <= TEARDOWN_S:
                continue
            who = f"rank {end.rank}" if end.rank is not None else f"a process of {place.node}"
            text = f"{one.why()}; and {end.who} says that {who} ended {max(0.0, end.at - at):.0f}s later (exit code {end.code})"
            part = replace(one.part(), why=text)
            yield HardEvent("gpu_lost" if one.code == OFF_BUS else "xid", part, at, text, one.sample, (log,))
            break


def _slack(ev: Evidence, node: str | None) -> float:
    offset = ev.derive(clock_offsets).get(node or "")
    return ev.limit("hard_slack_s") + (offset.err_s if offset else 0.0)


def _may_have_begun_it(ev: Evidence, node: str | None, at: float) -> bool:
    """Did this come while the job was not yet known to stand, and before any other end?

    A kill comes before its own launcher's line, so whatever line is older tells of an earlier end.
    """
    slack = _slack(ev, node)
    timed_out, change = ev.derive(first_timeout), ev.derive(job_change)
    # Whoever waits longest entered some steps before the one that died on its way there, at most.
    if timed_out is not None and at > timed_out + slack + ev.limit("still_factor") * (
        change.healthy if change else 0.0
    ):
        return False
    found = ev.derive(pulse)
    if found.last is not None and not found.last[0] - slack <= at <= found.last[0] + found.limit_s:
        return False
    ends = [end.at for end in ev.derive(log_exits) if end.at is not None]
    return not ends or at <= min(ends) + slack


def cancelled(ev: Evidence) -> str | None:
    """Why the scheduler ended the attempt, by its own line before any end; None if it does not say that it did."""
    ends = [end.at for end in ev.derive(log_exits) if end.at is not None]
    for hit in log_hits(ev, "slurm_cancel"):
        groups, at = hit.get("groups"), log_time(ev, hit.get("at"))
        why = str(groups.get("why") or "") if isinstance(groups, Mapping) else ""
        if why in ("NODE FAILURE", "TASK FAILURE"):
            continue  # it says that something else was first
        if at is None or not ends or at <= min(ends) + ev.limit("hard_slack_s"):
            return why.lower() or "cancelled"
    return None


def first_by_log(ev: Evidence) -> HardEvent | str | None:
    """The end that came first and is a cause, by the launchers' lines; a sentence where nothing separates several."""
    log = log_sample(ev)
    why = ev.derive(cancelled)
    if log is None or why is not None:
        return None if why is None else f"the scheduler ended the attempt ({why})"
    found: list[HardEvent] = []
    for end in ev.derive(log_exits):
        if end.at is None or end.signal in AFTERMATH or not end.code or not _is_cause(ev, end):
            continue
        if not _may_have_begun_it(ev, end.node, end.at):
            continue
        event = _event(ev, end, log)
        if event is None:
            return (
                f"{end.who} says that process {end.pid} ended first, and nothing says which rank on which node that was"
            )
        found.append(event)
    return separated(ev, found) if found else None


def _is_cause(ev: Evidence, end: LogExit) -> bool:
    return end.signal in DEADLY or (not end.signal and any(e.part.rank == end.rank for e in _by_exceptions_of(ev)))


def _by_exceptions_of(ev: Evidence) -> list[HardEvent]:
    return [e for e in ev.derive(by_dated_evidence) if e.kind == "raised"]


def _event(ev: Evidence, end: LogExit, log: Sample) -> HardEvent | None:
    """The launcher's line as an event; a kernel that tells of the same end lends its node and its word. None: of whom?"""
    for event in ev.derive(by_dated_evidence):
        same = event.part.rank is not None and event.part.rank == end.rank
        if same or (event.part.rank is None and event.also and f"process {end.pid} ended" in event.text):
            return HardEvent(event.kind, event.part, end.at, event.text, event.sample, (*event.also, log))
    how = DEADLY.get(end.signal, f"exit code {end.code}")
    if end.rank is None and end.node is None:
        return None
    who = f"rank {end.rank}" if end.rank is not None else f"a process of {end.node}"
    text = f"{end.who} says that {who} ended first, by {how}"
    part = Part("node" if end.rank is None else "rank", end.node, end.rank, why=text)
    return HardEvent("killed" if end.signal else "raised", part, end.at, text, log)


def separated(ev: Evidence, found: list[HardEvent]) -> HardEvent | str:
    """The first of these, oldest first; a sentence where the clocks cannot tell it from one of another node."""
    first = found[0]
    for other in found[1:]:
        # The lines of one launcher are in order; of two nodes only as far as their clocks agree.
        if other.part.node == first.part.node and first.part.node is not None:
            continue
        if (other.at or 0.0) - (first.at or 0.0) <= _slack(ev, first.part.node) + _slack(ev, other.part.node):
            return f"{first.part.label()} and {other.part.label()} ended within the error of the clocks"
    return first
