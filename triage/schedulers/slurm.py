"""Slurm: job id -> nodes in their order, addresses, states, attempt, output file; from squeue, scontrol, sinfo and sacct.

    squeue (the core: the same from 17.11 to 26.05), at the same time scontrol show config (the cluster's name)
      no such job -> sacct: a job that is over, or one that nobody knows
    scontrol show job -d -o (restarts, output file, GPUs), sinfo -N (addresses, states, reasons), squeue -s where a step is asked for
    squeue --json only for what the text form left open

Nothing but squeue must answer: what else is missing is said. A slurmctld that is silent is no "no such job".
What can fool it: `*` behind a node's state tells of its slurmd, not of the machine; an array's id stands for many jobs; a
requeued job runs again under the same id, on other nodes; a cluster's squeue may be a wrapper.
notes/fanout-and-schedulers.md 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from triage import ownfiles
from triage.errors import SchedulerSilent, UnknownJob, UsageError
from triage.model import Attempt, Job
from triage.readers.node_words import unwell
from triage.schedulers import _slurm_json as extra_form
from triage.schedulers import _slurm_text as text
from triage.schedulers._commands import Said, locate
from triage.schedulers._slurm_calls import LEAST_S, Calls, why
from triage.schedulers._slurm_past import match_of, node_of, over
from triage.schedulers.base import Answer, Ask
from triage.schedulers.hostlist import fold

MOST_TOLD = 8


def claims(job_id: str) -> bool:
    """Is squeue here, and is it an id of Slurm's?"""
    if text.parse_id(job_id) is None:
        return False
    try:
        return bool(locate("squeue"))
    except ownfiles.TooSlow:
        return True  # it is asked, and the folder that stands still is told


def find(ask: Ask) -> Answer:
    """The job as Slurm knows it now, or knew it (sacct)."""
    want = text.parse_id(ask.job_id)
    if want is None:
        raise UsageError(
            f"{ask.job_id[:60]!r} is no job id of Slurm; such are 4711, 4711_3 (array), 4711+1 (heterogeneous), "
            "4711.0 (step), lab:4711 (cluster)"
        )
    try:
        return _Search(ask, want).run()
    except ownfiles.TooSlow as error:
        raise SchedulerSilent(f"Slurm was not asked: {error}; shared storage may be stuck") from None


class _Search(Calls):
    def run(self) -> Answer:
        rows = self.rows()
        return self._answer(self._chosen(rows)) if rows else over(self)

    # ------------------------------------------------------------ which of the rows

    def _chosen(self, rows: list[text.Row]) -> list[text.Row]:
        """The rows that are the job: one, or the components of a heterogeneous job in their order."""
        want = self.want
        same = [row for row in rows if row.raw == want.job and row.array is None]
        if want.task is not None:
            exact = [row for row in rows if row.task == str(want.task)]
            waiting = [row for row in rows if row.task and not row.task.isdigit()]
            return exact or waiting[:1] or rows[:1]
        parts = sorted((row for row in rows if row.part is not None), key=lambda row: row.part or 0)
        if parts:
            if want.part is not None:
                parts = [row for row in parts if row.part == want.part]
                if not parts:
                    raise UnknownJob(f"job {want.job} has no component +{want.part}")
            return parts
        if want.part is not None:
            raise UnknownJob(f"job {want.job} is not heterogeneous: it has no component +{want.part}")
        tasks = [row for row in rows if row.array is not None]
        if tasks and not same:
            return [self._of_array(tasks)]
        return same[:1] or rows[:1]

    def _of_array(self, tasks: list[text.Row]) -> text.Row:
        by_raw = [row for row in tasks if row.raw == self.want.job and row.array != self.want.job]
        if by_raw:
            return by_raw[0]
        running = [row for row in tasks if row.state not in ("pending", "ended")]
        if len(running) > 1:
            listed = ", ".join(row.id for row in running[:MOST_TOLD])
            more = f" and {len(running) - MOST_TOLD} more" if len(running) > MOST_TOLD else ""
            raise UsageError(
                f"job {self.want.job} is an array of which {len(running)} tasks run: {listed}{more}; name one"
            )
        if running:
            self.notes.append(f"job {self.want.job} is an array; {running[0].id} is the task that runs")
            return running[0]
        ended = [row for row in tasks if row.state == "ended"]
        if len(ended) > 1 and len(ended) == len(tasks):
            listed = ", ".join(row.id for row in ended[:MOST_TOLD])
            raise UsageError(f"job {self.want.job} is an array of which no task runs; these ended: {listed}; name one")
        return next((row for row in tasks if row.state == "pending"), tasks[0])

    # ------------------------------------------------------------ the job

    def _answer(self, rows: list[text.Row]) -> Answer:
        first = rows[0]
        names = list(dict.fromkeys(node for row in rows for node in row.nodes))
        lines: list[Sequence[str]] = [("scontrol", "show", "job", "-d", "-o", str(first.leader))]
        if names:
            lines.append(self.sinfo(names))
        if self.want.step:
            for raw in dict.fromkeys(row.raw for row in rows):
                lines.append(("squeue", "-h", "-s", "-j", str(raw), "-o", text.STEP))
        told = self.call(*lines, least_s=LEAST_S)
        shown = text.shown(told[0].out)
        machines = text.machines(told[1].out) if names else {}
        if names and not machines:
            self.notes.append(
                f"sinfo told nothing of the nodes ({why(told[1])}): reached by their names, their states unknown"
            )
        if self.want.step:
            names = self._of_step(first, names, told[2 if first.nodes else 1 :])
        details = {row.raw: shown.get(row.raw, text.Shown()) for row in rows}
        extras = self._extras(first, details)
        leader, extra = details[first.raw], extras.get(first.raw, extra_form.Extra())
        gpus = {node: count for each in details.values() for node, count in (each.gpus or {}).items()}
        gpus = gpus or {node: count for row in rows for node, count in (extras.get(row.raw, extra).gpus or {}).items()}
        workdir = leader.workdir or extra.workdir
        state = _state(rows)
        self._tell(state, first, leader.restarts if leader.restarts is not None else extra.restarts)
        job = Job(
            id=first.id.removesuffix("+0") if self.want.part is None and first.part == 0 else first.id,
            scheduler="slurm",
            nodes=tuple(node_of(name, machines.get(name), gpus.get(name)) for name in names),
            cluster=self.cluster,
            state=state,
            attempt=Attempt(
                leader.restarts if leader.restarts is not None else extra.restarts,
                None if state == "pending" else first.started,
                first.ended if state == "ended" else None,
            ),
            log=self._log(first, leader, extra, machines, workdir),
            user=first.user,
            match=match_of(self.want, first.leader),
            deadline=first.ended if state in ("running", "suspended") and first.limited else None,
            workdir=workdir,
        )
        if self.want.step:
            job = replace(job, id=f"{job.id}.{self.want.step}")
        self._say_states(job)
        return Answer(job, tuple(self.notes))

    def _of_step(self, row: text.Row, names: list[str], told: Sequence[Said]) -> list[str]:
        steps: dict[str, list[str]] = {}
        for each in told:
            for step, nodes in text.steps(each.out).items():
                steps.setdefault(step, []).extend(nodes)
        if self.want.step in steps:
            wanted = set(steps[self.want.step])
            return [name for name in names if name in wanted] or list(dict.fromkeys(steps[self.want.step]))
        if row.state in ("pending", "ended"):
            self.notes.append(f"job {row.id} has no steps now: all of its nodes are meant")
            return names
        if any(not each.ok for each in told):
            self.notes.append(
                f"Slurm did not tell the nodes of step {self.want.step}: all of the job's nodes are meant"
            )
            return names
        there = ", ".join(list(steps)[:MOST_TOLD]) or "none"
        raise UnknownJob(f"job {row.id} has no step {self.want.step} now; its steps are: {there}")

    def _extras(self, first: text.Row, details: Mapping[int, text.Shown]) -> dict[int, extra_form.Extra]:
        """The JSON form, where the text form left something open. Not every squeue has it, and none needs it."""
        open_ = [
            one for one in details.values() if one.restarts is None or (not one.stdout and first.state != "pending")
        ]
        if not open_ or self.left < 1.0:
            return {}
        (told,) = self.call(("squeue", "-t", "all", "-j", str(first.leader), "--json"))
        return extra_form.extras(told.out) if told.ok else {}

    def _log(
        self,
        row: text.Row,
        shown: text.Shown,
        extra: extra_form.Extra,
        machines: Mapping[str, text.Machine],
        workdir: str,
    ) -> str:
        if extra.expanded and not shown.stdout:
            return text.path(extra.stdout)
        batch = machines.get(row.batch_host)
        file, why = text.expand_path(
            shown.stdout or extra.stdout,
            row=row,
            name=shown.name or extra.name,
            hostname=batch.hostname if batch else "",
            workdir=workdir,
        )
        if why and row.state != "pending":  # then there is no such file yet
            self.notes.append(why)
        return file

    # ------------------------------------------------------------ what is worth saying

    def _tell(self, state: str, row: text.Row, restarts: int | None) -> None:
        if state == "unknown":
            self.notes.append(f"Slurm says that the job is {row.word}, which triage does not know")
        if state == "pending":
            again = f"was requeued (restart {restarts}) and " if restarts else ""
            self.notes.append(f"job {row.id} {again}waits{': ' + row.reason if row.reason else ''}")
        elif state == "ended":
            why = f" ({row.reason})" if row.reason else ""
            self.notes.append(f"job {row.id} has ended: {row.word}{why}")

    def _say_states(self, job: Job) -> None:
        """Before anybody is asked by SSH: what Slurm says of nodes that are not as they should be."""
        marked: dict[str, list[str]] = {}
        for node in job.nodes:
            if word := unwell(node.state):
                why = f"; {node.state_reason}" if node.state_reason else ""
                marked.setdefault(f"{word}{why}", []).append(node.name)
        for words, names in list(marked.items())[:MOST_TOLD]:
            self.ask.say(f"Slurm marks {fold(names)} as {words}")


def _state(rows: Sequence[text.Row]) -> str:
    """Of one row its own; of components the one that says most of the whole."""
    states = [row.state for row in rows]
    return next((word for word in ("completing", "suspended", "running", "pending") if word in states), states[0])
