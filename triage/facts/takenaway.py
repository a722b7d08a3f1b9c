"""Was a node of the job taken away: by the scheduler, by the cloud, or by a boot in the middle of the attempt?

    slurmstepd: error: *** JOB 4711 ON gpu001 CANCELLED AT … DUE TO PREEMPTION ***       the whole job, on purpose
    Spot interruption payload received: {"action":"terminate", …}                        a machine, minutes ahead
    default-scheduler: preempting to accommodate a higher priority pod                   a pod
    reach: uptime 300 s, and the job's other ranks began an hour ago                     a boot

A word of the scheduler names the job and nobody in it. A boot is told by the node's own uptime, against when the ranks of
*other* nodes began: a scheduler stamps the start before machines of a cloud have booted at all.
What can fool it: a container, whose uptime is its own; a log that quotes such words; an operator who boots a node because the
job hangs (so a boot accuses only where its ranks are to blame anyway, and says why they are gone).
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from triage.facts.activity import number
from triage.facts.clocks import clock_offsets, log_sample, log_time, our_time
from triage.facts.ends import slack_s, stall_window
from triage.facts.evidence import Evidence
from triage.facts.exits import log_exits, node_named
from triage.facts.lastwords import cancelled
from triage.facts.pace import job_series
from triage.facts.progress import onset_interval
from triage.facts.ranktable import log_hits, rank_table
from triage.facts.registry import fact, known, other, unknown
from triage.model import Fact, Part, Sample

BOOT_SLACK_S = (
    60.0  # ranks begin together; one that began later than this before a boot was not there when the others began
)


@fact("hard.preempted", type="number", unit="parts", parts="node")
def preempted(ev: Evidence) -> Fact:
    """What the scheduler or the cloud says that it took away, near the stall or before any other end: a node, or the job."""
    log = log_sample(ev)
    if log is None:
        return unknown("the job log could not be read")
    parts = list(_by_scheduler(ev)) + list(_by_notices(ev))
    unique = {(part.kind, part.node, part.name): part for part in parts}
    text = "; ".join(part.why for part in list(unique.values())[:2])
    return known(parts=unique.values(), text=text, provenance=ev.seen(log))


def _by_scheduler(ev: Evidence) -> Iterator[Part]:
    if ev.derive(cancelled) == "preemption":
        yield Part("service", name="slurm", why="Slurm ended the job due to preemption")


def _by_notices(ev: Evidence) -> Iterator[Part]:
    window, ends = ev.derive(stall_window), [end.at for end in ev.derive(log_exits) if end.at is not None]
    for hit in log_hits(ev, "preempt_notice"):
        at, groups = log_time(ev, hit.get("at")), hit.get("groups")
        groups = groups if isinstance(groups, dict) else {}
        node = node_named(ev, str(groups.get("node") or hit.get("prefix") or ""))
        # It comes up to two minutes ahead of the end, and what is told after an end may be its consequence.
        first = min(([window[0]] if window else []) + ends, default=None)
        last = min(([window[1]] if window else []) + ends, default=None)
        if at is None or first is None or last is None:
            continue
        slack = slack_s(ev, node)
        if first - ev.limit("preempt_notice_s") - slack <= at <= last + slack:
            why = f"a notice in the job log: {str(hit.get('text') or '')[:120]}"
            yield Part("node", node, why=why) if node else Part("service", name="cloud", why=why)


@fact("hard.preempted_explains", type="bool")
def preempted_explains(ev: Evidence) -> Fact:
    """Is all that is to blame (ranks that are gone, nodes that are down) on nodes that were taken away, or was it the whole job?"""
    found = preempted(ev)
    if not found.known:
        return unknown(found.reason)
    if any(part.kind == "service" and part.name == "slurm" for part in found.parts):
        return known(True, provenance=found.provenance)
    taken = {part.node for part in found.parts if part.node}
    return known(bool(taken) and _to_blame(ev) <= taken, provenance=found.provenance)


def _to_blame(ev: Evidence) -> set[str]:
    """The nodes of what is to blame, by the names that are not known as well ("")."""
    parts = other(ev, "hosts.down").parts or other(ev, "blame.dead").parts
    return {part.node or "" for part in parts}


# ---------------------------------------------------------------- boots


def boots(ev: Evidence) -> dict[str, tuple[float, Sample]]:
    """node -> when it was booted, on our clock, and the sample that tells it."""
    found = {}
    for node, sample in ev.latest("reach").items():
        uptime, at = number(sample.data.get("uptime_s")), number(sample.data.get("now_s"))
        at = sample.at if at is None else at
        if uptime is not None and at is not None and uptime < at:
            found[node] = (our_time(ev, node, at) - uptime, sample)
    return found


def _ran_before(ev: Evidence, node: str) -> tuple[float, str] | None:
    """A moment from which on the job's ranks surely ran, by other nodes than this one, and who says so."""
    starts = [
        our_time(ev, row.node, row.start_s)
        for row in ev.derive(rank_table).rows.values()
        if row.alive and row.start_s is not None and row.node is not None and row.node != node
    ]
    if starts:
        return median(starts), "the ranks of other nodes began"
    series = ev.derive(job_series)
    dated = [at for at, _ in series.steps if at is not None] if series is not None else []
    return (dated[0], "the first step that the log tells ended") if dated else None


@fact("hosts.rebooted", type="number", unit="nodes", parts="node")
def rebooted(ev: Evidence) -> Fact:
    """Nodes that were booted after the job's ranks had begun elsewhere, and on which none of its ranks lives."""
    found = ev.derive(boots)
    if not found:
        return unknown("no node told its uptime")
    table, parts, seen, untold = ev.derive(rank_table), [], [], ""
    for node, (boot, sample) in found.items():
        if any(table.rows[rank].alive for rank in table.node_ranks.get(node, ())):
            continue
        before = _ran_before(ev, node)
        if before is None:
            untold = f"nothing tells whether the job ran before {node} was booted"
            continue
        offset = ev.derive(clock_offsets).get(node)
        if boot > before[0] + BOOT_SLACK_S + (offset.err_s if offset else 0.0):
            why = f"it was booted {boot - before[0]:.0f}s after {before[1]}"
            parts.append(Part("node", node, why=why))
            seen.append(sample)
    if not parts and untold:
        return unknown(untold)
    text = "; ".join(f"{part.node}: {part.why}" for part in parts[:3])
    return known(parts=parts, text=text, provenance=ev.seen(*(seen or [s for _, s in found.values()])[:8]))


@fact("hosts.rebooted_since", type="bool")
def rebooted_since(ev: Evidence) -> Fact:
    """Was every node that was booted surely still up when the job came to a standstill? Then the boot is no cause of it."""
    found, interval = rebooted(ev), ev.derive(onset_interval)
    if not found.known or interval is None:
        return unknown(found.reason if not found.known else "since when the job stands still is not known")
    late = {part.node: ev.derive(boots)[part.node or ""][0] - interval[1] for part in found.parts}
    is_late = bool(late) and min(late.values()) > ev.limit("boot_takes_s") and rebooted_all(ev).value is True
    text = "; ".join(
        f"{node} was booted {age / 60:.0f} min after the stall began" for node, age in list(late.items())[:3]
    )
    return known(is_late, text=text if is_late else "", provenance=found.provenance)


@fact("hosts.rebooted_all", type="bool")
def rebooted_all(ev: Evidence) -> Fact:
    """Is all that is to blame for a death on nodes that were booted since the job began?"""
    found = rebooted(ev)
    if not found.known:
        return unknown(found.reason)
    blamed = {part.node or "" for part in other(ev, "blame.dead").parts}
    return known(bool(blamed) and blamed <= {part.node for part in found.parts}, provenance=found.provenance)
