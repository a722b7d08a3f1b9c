"""The lists of a report that tell the story: evidence, findings, what is unknown, timeline, deadlines, commands. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from triage.case import CaseFile
from triage.cost.request import iso as iso_second
from triage.facts.clocks import clock_offsets
from triage.facts.evidence import Evidence
from triage.facts.hard import hard_events
from triage.facts.progress import onset_interval
from triage.facts.ranktable import rank_table
from triage.model import Command, Deadline, EvidenceLine, Fact, Finding, Moment, Part, Unknown
from triage.tree.walk import Conclusion
from triage.tree.words import clean, fold_parts, with_unit

MOST = 12  # lines of one list; the case holds everything

# Facts that are worth a line when they are true and did not become the verdict: (fact, class, words).
FINDINGS = (
    ("links.other_down", "nic", "a port that the job is not known to use changed"),
    ("links.down_now", "nic", "a port of the job has no link"),
    ("links.down_apart", "nic", "a port of the job has no link, but lost it at another time than the stall's"),
    ("links.survived", "nic", "a port of the job lost its link and has it again"),
    ("links.flapped", "nic", "a counter of a port of the job rose between the looks"),
    ("links.failover", "nic", "NCCL gave up on a port and went on over another one: slower, not hung"),
    ("links.slower", "nic", "a port of the job came back at a lower speed"),
    ("links.cut_off", "node", "neither reaches the others on the training network, nor they it"),
    (
        "hosts.peers_see",
        "node",
        "is reached by its peers on the training network: the management path to it is dead, not the node; "
        "do not restart or drain it for that",
    ),
    (
        "hosts.our_way",
        "node",
        "does not answer us, and its peers reach it on the management network: our own way to it is closed "
        "(firewall, route, jump host), not the node",
    ),
    ("hosts.marked", "node", "is marked by the scheduler"),
    ("hosts.silent", "node", "did not answer; silence alone accuses nobody"),
    ("hosts.lost", "node", "answered the first look and not the second"),
    ("waits.stale", "dump", "its dump is of another attempt or older than its process; not compared"),
    ("ranks.claimed_twice", "process", "no claim to be this rank is believed"),
    ("ranks.gone_late", "process", "ended after the stall began: a consequence"),
    ("waits.out_of_order", "process", "passed by what the others did before"),
    ("ranks.traced", "process", "another process traces it"),
    ("ranks.stopped", "process", "is stopped (state T)"),
    ("ranks.d_state", "process", "is in uninterruptible sleep (state D)"),
    ("ranks.gone", "process", "is gone"),
    ("busy.maybe", "process", "does something of its own"),
    ("ras.missing", "process", "is not reached by NCCL's RAS"),
    ("ras.crossed", "process", "launched other operations than its peers, by NCCL's RAS"),
    ("ras.errors", "process", "reports an error of NCCL"),
    ("watchdog.behind", "process", "had not enqueued what others gave up at, by the watchdogs' lines"),
    ("watchdog.mismatch", "process", "called otherwise than its peers, by the watchdogs' lines"),
    ("watchdog.heartbeat", "process", "its watchdog itself got stuck"),
    ("xids.cause", "gpu", "told an Xid that is a cause, at the time of the stall"),
    ("xids.perhaps", "gpu", "told an Xid that may be a cause"),
    ("xids.told_action", "gpu", "needs a step, by its driver"),
    ("xids.switch", "node", "has an NVSwitch with a fatal error"),
    ("xids.symptom", "gpu", "told an Xid that only follows something else, and accuses nobody"),
    ("xids.application", "gpu", "told an Xid that mostly is the program's own error"),
    ("xids.info", "gpu", "told an Xid that is worth a note, and no cause"),
    ("hosts.rebooted", "node", "was booted since the job's ranks began"),
    ("hard.preempted", "node", "was taken away, by the words of the scheduler or the cloud"),
    ("wire.degraded", "nic", "a port of the job runs below the speed of its rail"),
    ("wire.lossy", "nic", "a port of the job receives spoilt packets"),
    ("wire.pausing", "nic", "a port of the job pauses those who send to it"),
    ("wire.paused", "nic", "a port of the job is told to stop sending"),
    ("wire.congested", "nic", "a port of the job is slowed down by congestion"),
    ("wire.retries", "nic", "a port of the job waited for an answer, or sent again"),
    ("wire.slow_takers", "nic", "a program does not take what comes over this port"),
    ("wire.saturated", "nic", "a counter of a port of the job cannot tell"),
    ("gpus.lost", "gpu", "is off the bus"),
    ("gpus.hung", "gpu", "does not answer its driver"),
    (
        "gpus.absent",
        "gpu",
        "has nothing to do while its peers wait in a collective: its rank may be the one that has not come",
    ),
    ("gpus.recovery", "gpu", "needs a step, by its driver's own word"),
    ("gpus.remap", "gpu", "its memory is to be repaired"),
    ("gpus.nvlink_down", "gpu", "has fewer NVLinks than its peers"),
    ("gpus.limited", "gpu", "is held back more than its peers"),
    ("gpus.slow_clock", "gpu", "runs at a lower clock than its peers under the same load"),
    ("gpus.lock", "gpu", "seems to be locked to a lower clock than its peers"),
    ("gpus.low_limit", "gpu", "has a lower power limit than its peers"),
    ("gpus.pcie", "gpu", "has a slower PCIe link than its peers under the same load"),
    ("gpus.driver_mismatch", "node", "has another NVML library than driver"),
    ("gpus.unseen", "node", "its driver tells nothing of its GPUs"),
    ("pace.reported", "rank", "is called slow by the trainer's own report; that alone accuses nobody"),
    ("pace.reported_input", "rank", "waits for its batch longer than the others, by the trainer's own report"),
    ("gpus.hot", "gpu", "is hot; heat goes with many things and is the cause of few"),
)
# Instead, while the job advances: it could not without this node's ranks, so the way to it is what is broken.
REACHED_NOT = (
    "does not answer us, but the job advances, and it cannot without every node's ranks: the management path to it "
    "is dead (network, sshd), not the node; do not restart or drain it"
)

# What would tell a fact that is unknown. {again} is the line that looks again, {node} and {pid} the first suspect's.
LEARN = {
    "hard.events": ("Whether the kernel or the launcher ended a rank", "ssh {node} sudo dmesg -T | tail -100"),
    "seen.kernel_log": ("Kernel events at the time of the stall", "ssh {node} sudo dmesg -T | tail -100"),
    "xids.cause": ("What the driver said of the GPUs", "ssh {node} sudo dmesg -T | grep -iE 'xid|nvrm' | tail -50"),
    "gpus.absent": (
        "Which GPUs work and which wait",
        "ssh {node} nvidia-smi --query-gpu=index,utilization.gpu,power.draw --format=csv",
    ),
    "gpus.lost": ("Whether every GPU answers", "ssh {node} nvidia-smi -L; ssh {node} lspci -d 10de:"),
    "ranks.gone": ("Which rank processes still exist", "ssh {node} ps -eo pid,stat,etimes,args --sort=etimes"),
    "waits.roots": ("Which rank the others wait for", "ssh {node} py-spy dump --pid {pid}"),
    "waits.host_stuck": ("Where the suspect stands in its program", "ssh {node} py-spy dump --pid {pid}"),
    "stacks.host_lock": ("Where the suspect stands in its program", "ssh {node} py-spy dump --nonblocking --pid {pid}"),
    "progress.advancing": ("Whether the job moves", "{again}"),
    "ras.laggards": ("Which rank has launched less than its peers, by NCCL's own counts", "{again}"),
    "ras.behind": (
        "Whether the rank that launched less is held on its host, or waits for its device like its peers",
        "ssh {node} py-spy dump --nonblocking --pid {pid}",
    ),
    "pace.slow": ("How a job can write each rank's own compute time", "man triage-steplog"),
    "links.down_now": ("The state of the job's ports", "ssh {node} ip -s link; ssh {node} ibstat"),
}


def iso(at: float | None) -> str | None:
    return iso_second(at)


def evidence_lines(ev: Evidence, facts: Mapping[str, Fact], found: Conclusion) -> tuple[EvidenceLine, ...]:
    """The leaf's own facts, and what contradicts facts of the path."""
    lines: list[EvidenceLine] = []
    for name in found.evidence:
        fact = facts.get(name)
        if fact is None or not fact.known:
            continue
        where = fact.provenance[0] if fact.provenance else None
        part = fact.parts[0] if len(fact.parts) == 1 else None
        told_by = {source.node for source in fact.provenance}
        lines.append(
            EvidenceLine(
                fact=name,
                text=clean(fact_text(fact), 400),
                side="for",
                node=part.node if part else where.node if where and len(told_by) == 1 else None,
                rank=part.rank if part else None,
                probe=where.probe if where else None,
                at=iso(where.at) if where else None,
                age_s=round(max(0.0, ev.observed - where.at), 1) if where and where.at is not None else None,
            )
        )
    lines += [
        EvidenceLine(name, f"{name} is doubtful: {clean(source, 120)}", "against")
        for source, name in found.contradictions
    ]
    return tuple(lines[:MOST])


def fact_text(fact: Fact) -> str:
    """How the report says a fact: its own text, else its parts with their reasons, else value and unit."""
    if fact.text:
        return fact.text
    if fact.parts:
        why = next((part.why for part in fact.parts if part.why), "")
        return f"{fold_parts(fact.parts)}{': ' + why if why else ''}"
    return f"{fact.name} = {with_unit(fact)}"


def findings(case: CaseFile, ev: Evidence, facts: Mapping[str, Fact], found: Conclusion) -> tuple[Finding, ...]:
    """True, worth knowing, and not the cause."""
    blamed = {(part.kind, part.node, part.rank, part.nic) for part in found.culprit_parts}
    out: list[Finding] = []
    if not case.complete:
        out.append(
            Finding("interrupted", None, "the run was interrupted; only what was seen until then is judged here")
        )
    out += [Finding("note", None, clean(line, 300)) for line in case.warnings[:MOST]]
    told: set[tuple[str, str | None, int | None, str | None]] = set()
    for name, cls, words in FINDINGS:
        fact = facts.get(name)
        parts = [p for p in fact.parts if (p.kind, p.node, p.rank, p.nic) not in blamed | told] if fact else []
        if not parts:
            continue
        if name == "hosts.silent" and facts["progress.advancing"].value is True:
            words = REACHED_NOT
        out.append(Finding(cls, fold_parts(parts), f"{words} ({clean(parts[0].why, 300)})"))
        if cls == "nic":  # one port has many counters, and is one finding
            told |= {(p.kind, p.node, p.rank, p.nic) for p in parts}
    if case.job.scheduler == "nodes" and (stranger := _unconfirmed(case.job.id, ev)):
        out.append(stranger)
    phase = facts.get("hosts.same_phase")
    if phase is not None and phase.value is True:
        out.append(Finding("service", None, f"the silent nodes all stopped at one place: {clean(phase.text, 200)}"))
    for node, offset in sorted(ev.derive(clock_offsets).items()):
        if abs(offset.offset_s) > 2.0:
            text = f"its clock is {offset.offset_s:+.1f}s off ours (taken out of all times here)"
            out.append(Finding("clock", node, text))
    for sample in ev.of("joblog", status=None):
        if not sample.node and sample.status == "timeout":
            text = "the job log did not answer on our own machine within its deadline: shared storage may be stuck"
            out.append(Finding("storage", None, text))
            break
    return tuple(out[:MOST])


def _unconfirmed(job_id: str, ev: Evidence) -> Finding | None:
    """With a bare list of nodes nobody but the ranks' own environment says that they are the job that was asked about."""
    rows = [row for row in ev.derive(rank_table).rows.values() if row.alive]
    if not rows or any(job_id in (row.env.get("SLURM_JOB_ID"), row.env.get("TORCHELASTIC_RUN_ID")) for row in rows):
        return None
    text = f"nothing there says that it is job {job_id}: these are the only ranks on the nodes that were named"
    return Finding("job", None, clean(text, 200))


def unknowns(case: CaseFile, facts: Mapping[str, Fact], found: Conclusion) -> tuple[Unknown, ...]:
    """What questions of the walk could not be answered, what else is missing, and the command that would tell."""
    missing = {u.what: u for u in found.unknown}
    for name in ("seen.kernel_log",):
        fact = facts.get(name)
        if fact is not None and isinstance(fact.value, int | float) and fact.value < 1 and case.job.nodes:
            share = f"{1 - fact.value:.0%} of the kernel logs could not be read"
            missing.setdefault(name, Unknown(name, share))
    node, pid = _suspect(case, facts, found)
    silent = {part.node for part in facts["hosts.silent"].parts}
    out: list[Unknown] = []
    for name, unknown in missing.items():
        tells, command = LEARN.get(name, (unknown.tells, None))
        run = None
        if command is not None and "{node}" in command and node in silent:
            tells, command = f"{tells} ({node} does not answer: its console or BMC would tell)", None
        has = {"{node}": node, "{pid}": pid, "{again}": case.again}
        if command is not None and all(value for slot, value in has.items() if slot in command):
            run = command.format(node=shlex.quote(node or ""), pid=pid, again=case.again)
            if any(run == other.run for other in out):
                run = None  # one command tells several things; it is printed once
        out.append(Unknown(name, clean(unknown.why, 200), tells, run))
    return tuple(out[:MOST])


def _suspect(case: CaseFile, facts: Mapping[str, Fact], found: Conclusion) -> tuple[str | None, int | None]:
    """A node and process worth looking at: a culprit, a root, a silent node, else the first node."""
    candidates: list[Part] = [*found.culprit_parts]
    for name in ("waits.roots", "waits.possible", "ras.laggards", "hosts.silent"):
        candidates += facts[name].parts if name in facts else ()
    node = next((part.node for part in candidates if part.node), None)
    if node is None and case.job.nodes:
        node = case.job.nodes[0].name
    pid = None
    for sample in case.samples:
        if sample.probe == "ranks" and sample.node == node and sample.status == "ok":
            for record in sample.data.get("ranks") or ():
                wanted = {part.rank for part in candidates if part.node == node}
                if isinstance(record.get("pid"), int) and (not wanted or record.get("rank") in wanted or pid is None):
                    pid = record["pid"]
    return node, pid


def timeline(ev: Evidence, facts: Mapping[str, Fact]) -> tuple[Moment, ...]:
    """Dated events on our clock, oldest first."""
    moments: list[tuple[float, Moment]] = []

    def add(at: float | None, what: str, part: Part | None = None, role: str | None = None) -> None:
        when = iso(at)
        if at is None or when is None:
            return
        node = part.node if part else None
        error = ev.derive(clock_offsets).get(node or "")
        moments.append(
            (
                at,
                Moment(when, clean(what, 200), error.err_s if error else None, node, part.rank if part else None, role),
            )
        )

    add(ev.job.attempt.started, "the attempt began")
    interval = ev.derive(onset_interval)
    if interval is not None:
        add(interval[0], "the last step ended")
    if isinstance(facts["pace.onset"].value, int | float):
        add(float(facts["pace.onset"].value), "steps took longer from here on")
    for event in ev.derive(hard_events):
        add(event.at, event.text, event.part, "cause")
    add(ev.observed, "triage looked")
    return tuple(moment for _, moment in sorted(moments, key=lambda pair: pair[0])[:MOST])


def deadlines(ev: Evidence, facts: Mapping[str, Fact]) -> tuple[Deadline, ...]:
    """What will end the job by itself, nearest first."""
    found: list[tuple[float, Deadline]] = []

    def add(what: str, at: float, source: str) -> None:
        found.append((at, Deadline(what, iso(at), round(at - ev.observed, 1), source)))

    stop = facts.get("waits.timeout_at")
    if stop is not None and isinstance(stop.value, int | float):
        add("collective time-out", float(stop.value), "flight recorder")
    if ev.job.deadline is not None:
        add("wall-time limit", ev.job.deadline, ev.job.scheduler)
    return tuple(deadline for _, deadline in sorted(found, key=lambda pair: pair[0]))


def commands(case: CaseFile, ev: Evidence, found: Conclusion, mitigation: Mapping[str, Any]) -> tuple[Command, ...]:
    """Copy-paste lines in the order of DESIGN section 7: save evidence, confirm, then act. triage runs none of them."""
    out: list[Command] = list(found.collect)
    table = ev.derive(rank_table)
    for part in found.culprit_parts[:2]:
        row = table.rows.get(part.rank) if part.rank is not None else None
        if row is not None and row.alive and row.node and row.pid and found.verdict.fail == "stop":
            out.append(
                Command(
                    "save the stack of the suspect before anything is restarted",
                    f"ssh {shlex.quote(row.node)} py-spy dump --pid {row.pid}",
                    "reads the process, which pauses for some milliseconds",
                    "seconds",
                )
            )
    if found.verdict.id == "inconclusive" and found.verdict.fail == "stop":
        out += _collect(case, ev)
    if case.again:
        out.append(Command("see whether it is still true before you act", case.again, "reads only", "under a minute"))
    recommended = mitigation.get("recommended") or {}
    if recommended.get("command_hint"):
        out.append(
            Command(str(recommended.get("action")), str(recommended["command_hint"]), "changes the job", "see above")
        )
    return tuple(out[:MOST])


def _collect(case: CaseFile, ev: Evidence) -> list[Command]:
    """What an inconclusive freeze should leave behind before anybody restarts: where every rank stands."""
    pids: dict[str, list[int]] = {}
    for row in ev.derive(rank_table).rows.values():
        if row.alive and row.node and row.pid:
            pids.setdefault(row.node, []).append(row.pid)
    out: list[Command] = []
    for node, ranks in list(pids.items())[:3]:
        loop = f"for p in {' '.join(map(str, ranks[:64]))}; do py-spy dump --pid $p; done"
        more = f"; likewise on {len(pids) - 3} more nodes" if len(pids) > 3 and not out else ""
        out.append(
            Command(
                f"save where every rank of {clean(node, 80)} stands in its program{more}",
                f"ssh {shlex.quote(node)} {shlex.quote(loop)}",
                "reads the processes, each pauses for some milliseconds",
                "seconds",
            )
        )
    if case.job.scheduler == "files":
        out.append(
            Command(
                "take a second dump of every rank, some seconds after the first: what moved is slow, what stood is stuck",
                'for f in "$TORCH_NCCL_DEBUG_INFO_PIPE_FILE"*.pipe; do '
                'printf 1 | timeout 2 dd of="$f" oflag=nonblock conv=notrunc; done',
                "overwrites the ranks' dump files; copy the first ones away before",
                "seconds, on each node",
            )
        )
    return out
