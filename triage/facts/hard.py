"""Facts that end a job by themselves: a rank killed, out of memory, or ended by its own error; a GPU that is lost or in error.

Each must be dated before the stall's end: what happens after it (SIGABRT of a watchdog, SIGTERM of a launcher) is a
consequence. Signal 6 and 15 are never a cause here (DESIGN section 6, question 4). Where no rank process is left to be seen
(the attempt is over, or all are gone) the dated evidence must agree with itself: lastwords.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from triage.facts.activity import rows_of
from triage.facts.clocks import log_sample, our_time
from triage.facts.ends import CAUSES, ends, near_the_stall, signal_of
from triage.facts.evidence import Evidence
from triage.facts.gpuplaces import short_bdf
from triage.facts.kernelwords import faults_of, oom_scope
from triage.facts.lastwords import HardEvent, by_dated_evidence, first_by_log, nobody_left, separated
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, other, unknown
from triage.facts.xids import OFF_BUS, judged, moment
from triage.model import Fact, Part, Provenance, Sample

KINDS = {11: "segfault"}  # signals that have a leaf of their own
NVML_LOST = "gpus.lost"  # told by the facts of the gpu probe
GPU_KINDS = frozenset(("gpu_lost", "xid"))


def hard_events(ev: Evidence) -> list[HardEvent]:
    if ev.derive(nobody_left):
        return ev.derive(by_dated_evidence)
    return [*_with_the_kernels_word(ev, _of_the_launcher(ev)), *_of_the_kernel(ev), *_of_the_gpus(ev)]


def _of_the_launcher(ev: Evidence) -> list[HardEvent]:
    """Ranks whose end the launcher tells and whose process is gone. Of a node that lost all its ranks the first one only:
    its launcher ends the rest."""
    table, ended = ev.derive(rank_table), ev.derive(ends)
    log = log_sample(ev)
    events: list[HardEvent] = []
    for row in table.rows.values():
        end = ended.get(row.rank)
        if log is None or end is None or end.kind != "early" or row.exit_code is None:
            continue
        signal = signal_of(row.exit_code)
        how = CAUSES.get(signal, "an exception of its own")
        text = f"the launcher says that rank {row.rank} ended by {how} (exit code {row.exit_code})"
        if not signal:
            text += f": {end.why}"
        part = Part("rank", row.node, row.rank, why=text)
        kind = KINDS.get(signal, "killed") if signal else "raised"
        events.append(HardEvent(kind, part, end.at, text, log, _process(ev, row.node)))
    lost = _emptied(ev)
    firsts = {
        node: min((e.at or 0.0) for e in events if e.part.node == node)
        for node in lost
        if any(e.part.node == node for e in events)
    }
    return [e for e in events if e.part.node not in firsts or (e.at or 0.0) <= firsts[e.part.node]]


def _with_the_kernels_word(ev: Evidence, told: list[HardEvent]) -> list[HardEvent]:
    """The launcher's events, with what the kernel says of the same processes; and faults that the kernel alone tells.

    Most faults leave no line (a handler of the process, a limit of the rate): its absence says nothing.
    """
    table, ended = ev.derive(rank_table), ev.derive(ends)
    out = list(told)
    for node, sample in ev.latest("kernel").items():
        rows = [table.rows[rank] for rank, end in ended.items() if end.kind != "late" and table.node_of(rank) == node]
        for row, event, segfault in faults_of(sample.data.get("events"), rows):
            at = event.get("at")
            ours = our_time(ev, node, float(at)) if isinstance(at, int | float) else None
            if not near_the_stall(ev, node, ours):
                continue
            line = f"the kernel of {node}: {str(event.get('text', ''))[:120]}"
            kind = "segfault" if segfault else "killed"
            same = next((e for e in out if e.part.node == node and e.part.rank == row.rank), None)
            if same is None:
                part = Part("rank", node, row.rank, why=line)
                out.append(HardEvent(kind, part, ours, line, sample, _process(ev, node)))
            elif same.kind in ("killed", "segfault"):
                text = f"{same.text}; {line}"
                named = Part("rank", node, row.rank, why=text)
                out[out.index(same)] = HardEvent(kind, named, same.at, text, same.sample, (*same.also, sample))
    return out


def _of_the_gpus(ev: Evidence) -> list[HardEvent]:
    """GPUs of the job that are lost, or in an error that is a cause: by the kernel's Xids, and by NVML, which dates nothing."""
    events = [
        HardEvent("gpu_lost" if one.code == OFF_BUS else "xid", one.part(), moment(ev, one), one.why(), one.sample)
        for one in ev.derive(judged).causes
    ]
    lost = other(ev, NVML_LOST).parts
    samples = ev.latest("gpu")
    for part in lost if other(ev, "progress.advancing").value is not True else ():
        sample = samples.get(part.node or "")
        same = next((e for e in events if _same_gpu(e.part, part)), None)
        if sample is None:
            continue
        if same is None:
            events.append(HardEvent("gpu_lost", part, None, f"NVML: {part.why or 'it is lost'}", sample))
        else:
            text = f"{same.text}; NVML: {part.why or 'it is lost'}"
            named = replace(same.part, rank=part.rank if same.part.rank is None else same.part.rank, why=text)
            events[events.index(same)] = HardEvent("gpu_lost", named, same.at, text, same.sample, (*same.also, sample))
    return events


def _same_gpu(ours: Part, theirs: Part) -> bool:
    """By the address where both have one, else by the number."""
    if ours.node != theirs.node:
        return False
    a, b = short_bdf(ours.name), short_bdf(theirs.name)
    return a == b if a and b else ours.gpu is not None and ours.gpu == theirs.gpu


def _emptied(ev: Evidence) -> dict[str, tuple[int, ...]]:
    """node -> its ranks, of nodes that hosted several and on which none is left."""
    table = ev.derive(rank_table)
    return {
        node: ranks
        for node, ranks in table.node_ranks.items()
        if len(ranks) > 1 and all(table.rows[rank].gone for rank in ranks)
    }


def _process(ev: Evidence, node: str | None) -> tuple[Sample, ...]:
    newest = ev.latest("ranks").get(node or "")
    return (newest,) if newest else ()


def _of_the_kernel(ev: Evidence) -> list[HardEvent]:
    """Out-of-memory kills near the stall on nodes where a rank is gone. Whoever ended after the stall had begun was not
    its cause, and the kill that the kernel tells of was another's."""
    table, ended = ev.derive(rank_table), ev.derive(ends)
    events: list[HardEvent] = []
    gone: dict[str, list[int]] = {}
    for rank, end in ended.items():
        if end.kind != "late":
            gone.setdefault(table.node_of(rank) or "", []).append(rank)
    for node, sample in ev.latest("kernel").items():
        told = rows_of(sample.data.get("events"))
        for event in told if node in gone else ():
            if event.get("kind") != "oom":
                continue
            at = event.get("at")
            ours = our_time(ev, node, float(at)) if isinstance(at, int | float) else None
            if near_the_stall(ev, node, ours):
                text = f"the kernel of {node} killed a process for lack of memory: {str(event.get('text', ''))[:120]}"
                owners = _owners(ev, gone[node], event)
                if not owners:
                    continue  # whoever is gone there ended by another signal: the kernel killed a stranger
                scope, limit = oom_scope(told, event)
                text += f"; it was at the limit of {limit}" if limit else ""
                part = Part("rank", node, owners[0], why=text) if len(owners) == 1 else Part("node", node, why=text)
                kind = "cgroup_oom" if scope == "cgroup" else "oom"
                events.append(HardEvent(kind, part, ours, text, sample, _process(ev, node)))
    return events


def _owners(ev: Evidence, gone: list[int], event: Mapping[str, Any]) -> list[int]:
    """Which of a node's gone ranks the kill may have hit: the one whose process it names; else any that may have ended by
    signal 9, its own or that of a worker of its (which leaves a plain exit code)."""
    table = ev.derive(rank_table)
    groups = event.get("groups")
    pid = str(groups.get("pid", "")) if isinstance(groups, Mapping) else ""
    named = [rank for rank in gone if pid and str(table.rows[rank].pid) == pid]
    codes = {rank: table.rows[rank].exit_code for rank in gone}
    return named or [rank for rank, code in codes.items() if code is None or signal_of(code) in (0, 9)]


# ---------------------------------------------------------------- facts


@fact("hard.events", type="number", unit="events")
def events(ev: Evidence) -> Fact:
    """Events that end a job by themselves, dated before the end of the onset."""
    if log_sample(ev) is None and not any(s.data.get("readable") for s in ev.of("kernel")):
        return unknown("neither the job log nor a kernel log could be read")
    found = ev.derive(hard_events)
    if not found and not _kernel_logs_whole(ev):
        return unknown("nothing in the job log, but not every kernel log could be read")
    perhaps = ev.derive(judged).perhaps
    if not found and perhaps:
        return unknown(f"Xid {perhaps[0][0].code} on {perhaps[0][0].part().label()}: {perhaps[0][1]}")
    return known(len(found), text="; ".join(e.text for e in found[:3]), provenance=_sources(ev, found))


def _sources(ev: Evidence, found: Iterable[HardEvent]) -> tuple[Provenance, ...]:
    samples = {id(s): s for e in list(found)[:8] for s in (e.sample, *e.also)}
    return ev.seen(*samples.values())


def _kernel_logs_whole(ev: Evidence) -> bool:
    latest = ev.latest("kernel")
    return bool(ev.job.nodes) and all(
        node.name in latest and latest[node.name].data.get("readable") for node in ev.job.nodes
    )


def _of_kind(ev: Evidence, *kinds: str) -> Fact:
    if log_sample(ev) is None and not ev.of("kernel"):
        return unknown("neither the job log nor a kernel log could be read")
    found = [e for e in ev.derive(hard_events) if e.kind in kinds]
    return known(
        parts=_unique(found),
        text="; ".join(e.text for e in found[:3]),
        provenance=_sources(ev, found),
        contradicted_by=_elsewhere(ev, found) if set(kinds) & GPU_KINDS else (),
    )


def _unique(found: Iterable[HardEvent]) -> list[Part]:
    unique: dict[tuple[object, ...], Part] = {}
    for event in found:
        part = event.part
        unique.setdefault((part.kind, part.node, part.rank, part.gpu, part.name), part)
    return list(unique.values())


def _elsewhere(ev: Evidence, found: list[HardEvent]) -> list[str]:
    """Who ended on another node, not surely later than these: it may have been the first, and these GPUs' errors another matter."""
    nodes, at = {e.part.node for e in found}, min((e.at for e in found if e.at is not None), default=None)
    others = [e for e in ev.derive(hard_events) if e.kind not in GPU_KINDS and e.part.node not in nodes]
    early = [e for e in others if found and (e.at is None or at is None or e.at <= at + ev.limit("hard_slack_s"))]
    return [f"{e.part.label()}, which ended as well" for e in early[:1]]


@fact("hard.parts", type="number", unit="parts", parts="rank")
def parts(ev: Evidence) -> Fact:
    """Whom the hard events hit."""
    if log_sample(ev) is None and not ev.of("kernel"):
        return unknown("neither the job log nor a kernel log could be read")
    found = ev.derive(hard_events)
    return known(parts=_unique(found), provenance=_sources(ev, found))


@fact("hard.killed", type="number", unit="ranks", parts="rank")
def killed(ev: Evidence) -> Fact:
    """Ranks that ended by SIGKILL, SIGSEGV or SIGBUS near the onset, by the launcher's or the kernel's word, and are gone."""
    return _of_kind(ev, "killed", "segfault")


@fact("hard.segfault", type="number", unit="ranks", parts="rank")
def segfault(ev: Evidence) -> Fact:
    """Those of the killed ranks that ended by a segmentation fault."""
    return _of_kind(ev, "segfault")


@fact("hard.oom", type="number", unit="ranks", parts="rank")
def oom(ev: Evidence) -> Fact:
    """Ranks (or nodes) that the kernel's out-of-memory killer hit near the onset."""
    return _of_kind(ev, "oom", "cgroup_oom")


@fact("hard.cgroup_oom", type="number", unit="ranks", parts="rank")
def cgroup_oom(ev: Evidence) -> Fact:
    """Those of them that were at the limit of their cgroup (job, step, pod), while the node may have had memory."""
    return _of_kind(ev, "cgroup_oom")


@fact("hard.raised", type="number", unit="ranks", parts="rank")
def raised(ev: Evidence) -> Fact:
    """Ranks that ended near the onset by an exception of their own, which is no transport, store or time-out error."""
    return _of_kind(ev, "raised")


@fact("hard.gpu", type="number", unit="gpus", parts="gpu")
def gpu(ev: Evidence) -> Fact:
    """GPUs of the job that are lost, or in an error that is a cause, near the onset."""
    return _of_kind(ev, "gpu_lost", "xid")


@fact("hard.gpu_lost", type="number", unit="gpus", parts="gpu")
def gpu_lost(ev: Evidence) -> Fact:
    """Those of them that are lost: fallen off the bus."""
    return _of_kind(ev, "gpu_lost")


@fact("hard.xid", type="number", unit="gpus", parts="gpu")
def xid(ev: Evidence) -> Fact:
    """Those of them with another Xid that is a cause."""
    return _of_kind(ev, "xid")


@fact("hard.gpu_elsewhere", type="bool")
def gpu_elsewhere(ev: Evidence) -> Fact:
    """Do the survivors' records point at ranks on other nodes than those of the GPUs that are lost or in error?"""
    roots, found = other(ev, "waits.roots"), gpu(ev)
    if not roots.known or not found.known:
        return unknown(roots.reason or found.reason)
    nodes = {part.node for part in found.parts}
    away = bool(roots.parts) and not any(part.node in nodes for part in roots.parts)
    return known(away, provenance=(*roots.provenance[:4], *found.provenance[:4]))


@fact("blame.dead", type="number", unit="parts", parts="rank")
def blame_dead(ev: Evidence) -> Fact:
    """Whom a death that nothing explains is laid to; where a node lost all its ranks that is the node, and no rank of it."""
    gone, lost = other(ev, "blame.gone"), _emptied(ev)
    whole = {node for node, ranks in lost.items() if set(ranks) <= {p.rank for p in gone.parts}}
    if not gone.known or not whole:
        return gone
    parts = [p for p in gone.parts if p.node not in whole]
    for node in sorted(whole):
        why = f"all its {len(lost[node])} ranks are gone, and nothing tells which of them went first"
        parts.append(Part("node", node, why=why))
    text = "; ".join(f"{p.label()}: {p.why}" for p in parts[:3])
    return known(parts=parts, text=text, provenance=gone.provenance, contradicted_by=gone.contradicted_by)


@fact("hard.first_exit", type="number", unit="ranks", parts="rank")
def first_exit(ev: Evidence) -> Fact:
    """Of a node (or job) that lost all its ranks: the one whose end came first and is a cause; never more than one.

    Signals 6 and 15 are consequences. Two ends that the clocks cannot put in order name nobody. By the launcher's line
    alone it is a lead: hard.first_agreed says whether a second source tells of that end.
    """
    log = log_sample(ev)
    if log is None:
        return unknown("the job log could not be read")
    found = ev.derive(first_by_log) if ev.derive(nobody_left) else _first_of_emptied(ev)
    if isinstance(found, str):
        return unknown(found, provenance=ev.seen(log))
    if found is None:
        return known(parts=[], provenance=ev.seen(log))
    return known(parts=[found.part], text=found.text, provenance=_sources(ev, [found]))


def _first_of_emptied(ev: Evidence) -> HardEvent | str | None:
    """The first end on the nodes that lost all their ranks; a sentence where nothing separates several."""
    lost = _emptied(ev)
    if not lost:
        return None
    firsts = sorted(
        (e for e in ev.derive(hard_events) if e.part.node in lost and e.part.rank is not None and e.at is not None),
        key=lambda e: e.at or 0.0,
    )
    if not firsts:
        node = next(iter(lost))
        return f"all {len(lost[node])} ranks of {node} are gone, and nothing dated says which of them went first"
    return separated(ev, firsts)


@fact("hard.first_agreed", type="bool")
def first_agreed(ev: Evidence) -> Fact:
    """Does a second source beside the launcher's line tell of that first end (kernel, process list, its own exception)?"""
    found = first_exit(ev)
    if not found.known:
        return unknown(found.reason)
    first = {(p.node, p.rank) for p in found.parts}
    agreed = [e for e in ev.derive(hard_events) if (e.part.node, e.part.rank) in first]
    return known(bool(agreed), text="; ".join(e.text for e in agreed[:2]), provenance=_sources(ev, agreed))
