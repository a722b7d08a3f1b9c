"""From a job id to the job: which scheduler is asked, what --nodes adds, and what is left when the scheduler is silent. Effects."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from triage import config, lastseen, ownfiles
from triage.config import Config
from triage.errors import SchedulerSilent, UnknownJob, UsageError
from triage.model import Job
from triage.schedulers import base as schedulers
from triage.schedulers import inventory
from triage.schedulers.base import Access, Answer
from triage.schedulers.hostlist import fold

Say = Callable[[str], None]
NODES_BY_HAND = "Give --inventory FILE.yaml, or --nodes 'gpu[001-128]'"
NODES_GIVEN_S = 3.0  # for a scheduler where --nodes was given: the first words must come within 5 s


@dataclass(frozen=True)
class Found:
    """A job, and all that says how to reach its nodes."""

    job: Job
    settings: Config
    access: Access = field(default_factory=Access)
    nodes: str = ""  # --nodes, as given


def find_job(job_id: str, nodes: str | None, flags: Mapping[str, str | None], *, warn: Say) -> Found:
    """The job of that id from its scheduler, from --nodes, or from both: then --nodes says which of them to ask."""
    settings = config.load(flags)
    for line in settings.warnings:
        warn(line)
    path = settings.value("inventory")
    name = schedulers.choose(job_id, settings.value("scheduler"), path)
    if name in ("", "inventory"):
        if not name and not nodes:
            raise UsageError(f"job {job_id}: nothing tells its nodes. {NODES_BY_HAND}")
        answer = schedulers.find(name, schedulers.Ask(job_id, path)) if name else _by_hand(job_id, nodes or "")
    else:
        by_itself = not settings.value("scheduler")
        answer = _of_scheduler(name, job_id, nodes or "", settings.value("state_dir"), by_itself, warn)
    job = answer.job
    for line in answer.notes:
        warn(line)
    settings = replace(settings, warnings=(*settings.warnings, *answer.notes))
    if nodes:
        known = {node.name: node for node in job.nodes}
        wanted = inventory.from_nodes(job_id, nodes).nodes
        job = replace(job, nodes=tuple(known.get(node.name, node) for node in wanted))
    ownfiles.ahead(opens=[job.log])
    if settings.value("cluster"):
        job = replace(job, cluster=job.cluster or settings.value("cluster"))
    return Found(job, settings, answer.access, nodes or "")


def _by_hand(job_id: str, nodes: str) -> Answer:
    return Answer(inventory.from_nodes(job_id, nodes))


def _of_scheduler(name: str, job_id: str, nodes: str, state_dir: str, by_itself: bool, say: Say) -> Answer:
    """The scheduler's answer, kept for the night on which it is silent. With --nodes the run goes on without it.

    What it told last is offered, and not used by itself: the job may have been requeued onto other nodes since.
    """
    limit_s = schedulers.ANSWER_S if not nodes else NODES_GIVEN_S
    try:
        answer = schedulers.find(name, schedulers.Ask(job_id, limit_s=limit_s, say=say))
    except (SchedulerSilent, UnknownJob, schedulers.NotHere) as error:
        seen = lastseen.recall(state_dir, name, job_id)
        if nodes:
            absent = isinstance(error, schedulers.NotHere) and by_itself
            return _without(job_id, nodes, seen, "" if absent else str(error))
        if isinstance(error, schedulers.NotHere) and by_itself:
            raise UsageError(f"job {job_id}: nothing tells its nodes ({error}). {NODES_BY_HAND}") from None
        if seen is None:
            raise
        folded = fold(node.name for node in seen.job.nodes)
        told = f"it had these nodes {seen.age}; if it still has them: --nodes {shlex.quote(folded)}"
        raise type(error)(f"{error}; {told}") from None
    lastseen.remember(state_dir, job_id, answer.job)
    return answer


def _without(job_id: str, nodes: str, seen: lastseen.Seen | None, why: str) -> Answer:
    """--nodes while the scheduler tells nothing: addresses as it last told them, and nothing else of then."""
    job = inventory.from_nodes(job_id, nodes)
    notes = [] if not why else [f"{why}: going on with --nodes; state, start and restarts of the job are not known"]
    if seen is not None:
        kept = {node.name: replace(node, state="", state_reason="") for node in seen.job.nodes}
        job = replace(job, nodes=tuple(kept.get(node.name, node) for node in job.nodes), match=seen.job.match)
        if any(node.address for node in job.nodes):
            notes.append(f"addresses of the nodes are as the scheduler told them {seen.age}")
    return Answer(job, tuple(notes))
