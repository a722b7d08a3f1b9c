"""Jobs that slurmctld knows no more, as accounting (sacct) tells them.

    sacct -X -D -P -o JobID,JobIDRaw,State,NodeList,…    4711 · 4711 · OUT_OF_MEMORY · gpu[001-004] · 2026-12-01T01:10:00 · …

What can fool it: -D lists each attempt of a requeued job, under one id; accounting that lags behind says RUNNING of a job that is
over; `sacct` prints `None assigned` for a job that never ran, and `CANCELLED by 1000`. notes/fanout-and-schedulers.md 3.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from triage.errors import UnknownJob, UsageError
from triage.model import Attempt, Job, Node
from triage.schedulers import _slurm_text as text
from triage.schedulers._commands import Said
from triage.schedulers._slurm_calls import LEAST_S, Calls
from triage.schedulers._slurm_calls import why as why_not
from triage.schedulers.base import Answer

MOST_TOLD = 8
# Restarts and StdOut came later than the others: sacct refuses the whole line where it does not know one.
PAST = ("JobID", "JobIDRaw", "State", "NodeList", "Start", "End", "User", "Reason")
PAST_NEW = ("Restarts", "StdOut")


@dataclass(frozen=True)
class Past:
    """One run of a job as accounting tells it; a requeued job has one for each attempt, the newest last."""

    id: str
    raw: int
    word: str
    nodes: tuple[str, ...]
    started: float | None
    ended: float | None
    user: str
    restarts: int | None
    reason: str
    stdout: str
    workdir: str

    @property
    def state(self) -> str:
        return text.state_of(self.word)


def past(printed: str, fields: Sequence[str]) -> Iterator[Past]:
    """sacct's rows of these fields; WorkDir stands behind them, for anybody may put anything there."""
    for line in printed.split("\n")[: text.MOST_ROWS]:
        cells = [cell.strip() for cell in line.split(text.SEPARATOR)]
        if len(cells) <= len(fields):
            continue
        told = dict(zip(fields, cells))
        raw = told.get("JobIDRaw", "")
        # A step, where -X was not honoured; the waiting rest of an array (`4711_[5-9%2]`).
        if not re.fullmatch(r"\d{1,10}", raw, re.ASCII) or not re.fullmatch(
            r"\d{1,10}([_+]\d{1,10})?", told["JobID"], re.ASCII
        ):
            continue
        restarts, reason = told.get("Restarts", ""), text.plain(told.get("Reason", ""), 120)
        yield Past(
            text.plain(told.get("JobID", ""), 80),
            int(raw),
            text.plain(told.get("State", ""), 40),
            tuple(text.hosts(told.get("NodeList", ""))),
            text.time_of(told.get("Start", "")),
            text.time_of(told.get("End", "")),
            text.plain(told.get("User", ""), 64),
            int(restarts) if restarts.isascii() and restarts.isdigit() and len(restarts) < 7 else None,
            "" if reason in ("None", "(null)") else reason,
            told.get("StdOut", ""),
            text.path(text.SEPARATOR.join(cells[len(fields) :])),
        )


def over(calls: Calls) -> Answer:
    """A job that slurmctld knows no more: as accounting tells it."""
    fields: tuple[str, ...] = (*PAST, *PAST_NEW)
    told = _sacct(calls, fields)
    if "Invalid field" in told.err:
        fields = PAST
        told = _sacct(calls, fields)
    if not told.ok and told.why != "absent":
        calls.refuse(told, "sacct")  # a silent accounting is no "no such job"
    rows = list(past(told.out, fields)) if told.ok else []
    if not rows:
        raise UnknownJob(_unknown(calls, told))
    return _job(calls, rows)


def _sacct(calls: Calls, fields: Sequence[str]) -> Said:
    (told,) = calls.call((
        "sacct", "-n", "-P", "-X", "-D", f"--delimiter={text.SEPARATOR}", "-j", calls.want.query, "-o", ",".join((*fields, "WorkDir")),
    ))  # fmt: skip
    return told


def _unknown(calls: Calls, told: Said) -> str:
    if told.ok:
        return f"no job {calls.ask.job_id}: neither slurmctld nor accounting knows it"
    return (
        f"slurmctld knows no job {calls.ask.job_id}, and accounting tells nothing of older ones ({why_not(told)}); "
        "its nodes can be named with --nodes"
    )


def _job(calls: Calls, rows: list[Past]) -> Answer:
    runs = _newest(calls.want, rows)
    last = runs[0]
    names = list(dict.fromkeys(node for run in runs for node in run.nodes))
    machines: Mapping[str, text.Machine] = {}
    if names:
        (told,) = calls.call(calls.sinfo(names), least_s=LEAST_S)
        machines = text.machines(told.out)
    # Accounting may lag behind, or have lost an end: it says RUNNING of a job that slurmctld does not know.
    state = "ended" if last.state == "ended" else "unknown"
    why = f" ({last.reason})" if last.reason else ""
    ended = "has ended" if state == "ended" else "is not known to slurmctld"
    calls.notes.append(f"job {last.id} {ended}: accounting says {last.word}{why}")
    attempts = sum(row.raw == last.raw for row in rows)
    if attempts > 1:
        calls.notes.append(f"accounting knows {attempts} attempts of job {last.id}: the last one is meant")
    leader = int(last.id.partition("+")[0]) if "+" in last.id else last.raw
    log, unsaid = text.expand_path(last.stdout, row=_as_row(last, leader), workdir=last.workdir)
    calls.notes += [unsaid] if unsaid else []
    job = Job(
        id=last.id.removesuffix("+0") if calls.want.part is None else last.id,
        scheduler="slurm",
        nodes=tuple(node_of(name, machines.get(name), None) for name in names),
        cluster=calls.cluster,
        state=state,
        attempt=Attempt(last.restarts, last.started, last.ended),
        log=log,
        user=last.user,
        match=match_of(calls.want, leader),
        workdir=last.workdir,
    )
    return Answer(job, tuple(calls.notes))


def _newest(want: text.Id, rows: list[Past]) -> list[Past]:
    """The last attempt of the job, or of each component of it that is wanted."""
    ids = list(dict.fromkeys(row.id for row in rows))
    if want.task is None and len(ids) > 1 and any("_" in each for each in ids):
        listed = ", ".join(ids[:MOST_TOLD])
        raise UsageError(f"job {want.job} is an array that is over: {listed}; name one of its tasks")
    wanted = [row for row in rows if want.part is None or row.id.endswith(f"+{want.part}")]
    if not wanted:
        raise UnknownJob(f"job {want.job} had no component +{want.part}")
    newest: dict[int, Past] = {}
    for row in wanted:
        before = newest.get(row.raw)
        if before is None or (row.started or 0.0) >= (before.started or 0.0):
            newest[row.raw] = row
    return list(newest.values())


def _as_row(run: Past, leader: int) -> text.Row:
    """What the name of its output is made of."""
    array, _, task = run.id.partition("_")
    return text.Row(
        id=run.id,
        raw=run.raw,
        leader=leader,
        array=int(array) if task else None,
        task=task,
        part=None,
        word=run.word,
        nodes=run.nodes,
        batch_host=run.nodes[0] if run.nodes else "",
        started=run.started,
        ended=run.ended,
        limited=False,
        user=run.user,
        reason=run.reason,
    )


def match_of(want: text.Id, leader: int) -> dict[str, str]:
    """What the ranks wear. The components of a heterogeneous job all wear the first one's id."""
    step = {"SLURM_STEP_ID": want.step} if want.step.isdigit() else {}
    return {"SLURM_JOB_ID": str(leader), **step}


def node_of(name: str, machine: text.Machine | None, gpus: int | None) -> Node:
    """A node of the job, with what sinfo told of it."""
    if machine is None:
        return Node(name, gpus=gpus)
    address = "" if machine.address == name else machine.address
    return Node(name, address=address, state=machine.state, state_reason=machine.reason, gpus=gpus)
