"""Asking Slurm's commands, all of one search by one deadline, and what their failures mean.

    slurm_load_jobs error: Invalid job id specified                                     no such job (now): []
    slurm_load_jobs error: Unable to contact slurm controller (connect failure)         SchedulerSilent, after 18 s of its own
    squeue: fatal: Could not establish a configuration source                           NotHere
    squeue: error: 'other' can't be reached now, or it is an invalid entry for --cluster    UnknownJob; SchedulerSilent where the database is

A complaint that is not known is no "no such job" either.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from triage.errors import SchedulerSilent, UnknownJob
from triage.schedulers import _slurm_text as text
from triage.schedulers._commands import Said, locate, run_all
from triage.schedulers.base import Ask, NotHere
from triage.schedulers.hostlist import fold

LONGEST_LIST = 100_000  # bytes of one argument; the kernel takes 128 KiB
LEAST_S = 4.0  # for the questions after squeue: a slurmctld that took its time then answers these as well
# What a command needs of our environment. SQUEUE_FORMAT and its like would change what it prints.
KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_DEBUG_FLAGS",
        "LD_LIBRARY_PATH", "KRB5CCNAME")  # fmt: skip
SERVERS = {"squeue": "slurmctld", "sacct": "Slurm's accounting"}
NO_SUCH_JOB = ("Invalid job id", "Invalid job array", "Invalid array")
SILENT = ("Unable to contact slurm controller", "Socket timed out", "Connection refused", "Connection timed out",
          "Zero Bytes were transmitted", "Unable to connect", "Transport endpoint", "Unexpected message received",
          "slurmdbd", "DBD")  # fmt: skip
NOT_SET_UP = ("Could not establish a configuration source", "Unable to process configuration file")


@dataclass
class Calls:
    """One search: what is wanted, whose cluster it is, what was worth telling on the way."""

    ask: Ask
    want: text.Id
    notes: list[str] = field(default_factory=list)
    cluster: str = ""  # its name, as far as it is known
    where: tuple[str, ...] = ()  # -M CLUSTER, where the id names another one than this machine's
    deadline: float = 0.0
    said: bool = False

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.ask.limit_s

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def call(self, *lines: Sequence[str], least_s: float = 0.1) -> list[Said]:
        """Run these at once, until the deadline but for `least_s` in any case."""
        env = {name: value for name in KEPT if (value := os.environ.get(name))}
        # Whole array lists; times that need no zone.
        env.update(TZ="UTC0", LC_ALL="C", SLURM_BITSTR_LEN="0", SLURM_TIME_FORMAT="standard")
        paths = {name: locate(name) for name in dict.fromkeys(line[0] for line in lines)}
        whole = [[paths[line[0]] or line[0], *self.where, *line[1:]] for line in lines]
        return run_all(whole, max(least_s, self.left), env, self._waiting)

    def _waiting(self) -> None:
        """Said once: a person waits too."""
        if not self.said:
            self.said = True
            self.ask.say(f"asking Slurm for job {self.ask.job_id}")

    def rows(self) -> list[text.Row]:
        """squeue's rows of the id, [] where there is no such job now."""
        config = ("scontrol", "show", "config")
        line = ("squeue", "-h", "-t", "all", "-j", self.want.query, "-o", text.ROW)
        if self.want.cluster:
            # The name may be this machine's own cluster: then -M would ask a database that need not be there.
            (shown,) = self.call(config)
            self.cluster = _cluster(shown.out)
            if self.cluster != self.want.cluster:
                self.where, self.cluster = ("-M", self.want.cluster), self.want.cluster
            (told,) = self.call(line)
        else:
            told, shown = self.call(line, config)
            self.cluster = _cluster(shown.out)
        if told.ok:
            return text.rows(told.out)
        if any(words in told.err for words in NO_SUCH_JOB):
            return []
        self.refuse(told, "squeue")
        raise SchedulerSilent(f"squeue tells nothing of job {self.ask.job_id}: {why(told)}")

    def refuse(self, told: Said, name: str) -> None:
        """Raise what a command's failure means, where it is known."""
        complaint = text.plain(told.err, 200)
        if told.why == "absent":
            raise NotHere(f"there is no {name} here; run triage on a login node, or give --nodes")
        if "--cluster" in told.err and self.where:
            said = f"cluster {self.want.cluster} cannot be asked: {complaint}"
            raise SchedulerSilent(said) if "database" in told.err else UnknownJob(said)
        if any(words in told.err for words in NOT_SET_UP):
            raise NotHere(f"{name} is here and Slurm is not set up: {complaint}; is SLURM_CONF right?")
        if told.why == "timeout":
            raise SchedulerSilent(f"{SERVERS[name]} did not answer {name} within {self.ask.limit_s:g}s")
        if told.why == "overflow":
            raise SchedulerSilent(f"{name} said more than triage reads")
        if any(words in told.err for words in SILENT):
            raise SchedulerSilent(f"{SERVERS[name]} did not answer: {complaint}")

    def sinfo(self, names: Sequence[str]) -> tuple[str, ...]:
        """The line that asks for these nodes; of all nodes where they are too many for one argument."""
        listed = fold(names)
        return ("sinfo", "-h", "-N", *(("-n", listed) if len(listed) < LONGEST_LIST else ()), "-o", text.NODE)


def _cluster(config: str) -> str:
    for line in config.split("\n")[:2000]:
        name, _, value = line.partition("=")
        if name.strip() == "ClusterName":
            return text.plain(value, 40)
    return ""


def why(told: Said) -> str:
    """Why a command told nothing, in a few words."""
    return text.plain(told.err, 120) or told.why or f"exit {told.code}"
