"""What a scheduler is: something that turns a job id into a `Job` with its nodes, in time or not at all.

A scheduler is one file of this folder, found by its name (a leading underscore is a helper's); nothing is registered. It has

    claims(job_id) -> bool     are its commands here, and does the id look like one of its own? Asks nobody, quick.
    find(ask) -> Answer        the job. Raises UnknownJob (it answered: no such job), SchedulerSilent (it did not answer),
                               NotHere (its commands are here and it is not), UsageError (the id means several jobs)

The answer may say that a job is pending (it has no nodes yet) or ended. What commands print is hostile input: bounded, cleaned.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from triage.errors import ConfigError, UsageError
from triage.model import Job

ANSWER_S = 8.0  # of a scheduler: notes/fanout-and-schedulers.md 3.3; squeue alone would wait 18 s for a dead slurmctld


class NotHere(ConfigError):
    """The scheduler's commands are installed and not set up: it is not this machine's scheduler."""


@dataclass(frozen=True)
class Access:
    """How the inventory says to reach the nodes: key files, known_hosts files, ssh_config; without, the user's own."""

    keys: tuple[str, ...] = ()
    known_hosts: tuple[str, ...] = ()
    config: str = ""  # "none" = read none


@dataclass(frozen=True)
class Ask:
    """What a scheduler is asked. `path` is the inventory's file; `say` gets a line of progress at once."""

    job_id: str
    path: str = ""
    limit_s: float = ANSWER_S
    say: Callable[[str], None] = lambda line: None


@dataclass(frozen=True)
class Answer:
    """The job, what is worth telling of it (`notes`: kept for the report), and how its nodes are reached."""

    job: Job
    notes: tuple[str, ...] = ()
    access: Access = field(default_factory=Access)


def names() -> list[str]:
    """All schedulers, by the names of their files."""
    found = {m.name for m in pkgutil.iter_modules(importlib.import_module("triage.schedulers").__path__)}
    return sorted(name for name in found if not name.startswith("_") and hasattr(_module(name), "claims"))


def _module(name: str) -> Any:
    return importlib.import_module(f"triage.schedulers.{name}")


def choose(job_id: str, wanted: str = "", inventory: str = "") -> str:
    """The name of the scheduler to ask: the wanted one; the inventory where there is one; whoever claims the id; "" = nobody.

    UsageError where several claim it, or where no scheduler is called so.
    """
    known = names()
    if wanted:
        if wanted not in known:
            raise UsageError(f"no scheduler is called {wanted[:40]!r}; there are: {', '.join(known)}")
        if wanted == "inventory" and not inventory:
            raise UsageError("--scheduler inventory: give --inventory FILE.yaml")
        return wanted
    if inventory:
        return "inventory"
    claiming = [name for name in known if _module(name).claims(job_id)]
    if len(claiming) > 1:
        raise UsageError(
            f"job {job_id[:60]}: {' and '.join(claiming)} are both here; say which: --scheduler {claiming[0]}"
        )
    return claiming[0] if claiming else ""


def find(name: str, ask: Ask) -> Answer:
    """Ask the scheduler of that name."""
    answer: Answer = _module(name).find(ask)
    return answer
