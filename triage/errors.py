"""What can go wrong, as exceptions: each knows its exit code and says, in one line, what to do.

The command line prints `triage: <message>` on stderr and leaves with `code`. A traceback is our bug (exit 1).
"""

from __future__ import annotations


class TriageError(Exception):
    """Base: one line that says what happened, to whom, and what to do about it."""

    code = 1


class UsageError(TriageError):
    """The command line asks for something that cannot be done as written."""

    code = 2


class ConfigError(TriageError):
    """A configuration file, inventory, profile or playbook cannot be used."""

    code = 3


class UnknownJob(TriageError):
    """No scheduler or inventory knows this job id."""

    code = 20


class SchedulerSilent(TriageError):
    """The scheduler did not answer in time. No answer is not "no such job"."""

    code = 21


class NoNodeReachable(TriageError):
    """Not one node of the job answered."""

    code = 22


class Silence(TriageError):
    """One node stopped answering, in a named phase. Evidence, not a failure of the run.

    `phase` is one of resolve, tcp, banner, kex, auth, channel, exec, read (DESIGN section 2).
    """

    code = 22

    def __init__(self, node: str, phase: str, why: str) -> None:
        super().__init__(f"{node}: {why} (phase {phase})")
        self.node = node
        self.phase = phase
        self.why = why
