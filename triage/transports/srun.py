"""Nodes of a running Slurm job by `srun --overlap`, one step per node: no SSH, and into the job's own cgroup.

    srun --jobid=4711 --overlap --nodelist=gpu001 --nodes=1 --ntasks=1 --mem=0 … /bin/sh -c …

A step over several nodes would be one program for all, but one dead slurmd ends it after 10 to 20 s with
`Application launch failed` and kills the probes on the healthy nodes as well (notes/fanout-and-schedulers.md 3.2). So each node
has its own srun, some at once: each costs slurmctld several requests.

Needs: the job's owner, or root; a slurmctld that answers; a job that runs. Option: `job` (its id).
What can fool it: a step ends with its job, so a job that is being killed takes the probes along; what a step may not see of
the node (other jobs' GPUs, by the device cgroup) the probes do not see either.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Mapping
from typing import Any

from triage.errors import ConfigError, UsageError
from triage.model import Node
from triage.transports.base import Contact, Unreached, left, plain
from triage.transports.child import ChildSession, start

AT_ONCE = 16  # steps that are being created at once: 16 to 32 do not hurt slurmctld (notes 3.2)
STARTED = "triage: here"  # printed by the node's shell: until then slurmctld and slurmd are at work
JOB = re.compile(r"\d+(?:[_+]\d+)?")

# What srun says -> (phase, status, what it means). The phases are those of SSH: tcp is the way to the node, auth the permission.
SAYS = (
    (r"Task launch for .* failed on node \S+: (?P<why>.+)", "tcp", "error"),
    (r"Communication connection failure|Socket timed out|Unable to contact slurm controller", "tcp", "timeout"),
    (
        r"Node \S+ is not part of this job|node .* not in job|Requested node configuration is not available",
        "resolve",
        "error",
    ),
    (r"Invalid job id|already completed|Job/step already completing", "resolve", "error"),
    (r"Access/permission denied|Invalid user id|Protocol authentication error", "auth", "error"),
    (r"step creation temporarily disabled|Requested nodes are busy|Job step creation .* retry", "channel", "timeout"),
    (r"error: (?:execve|Unable to|couldn't chdir|_fork_all_tasks)", "exec", "error"),
)


class _Watch:
    """Follows what srun says on its standard error; after the start all else is the command's own."""

    def __init__(self, contact: Contact) -> None:
        self.contact, self.words = contact, [""]
        self.started = False

    def hear(self, line: str) -> bool:
        if STARTED in line:
            self.started = True
            return True
        if line.startswith("srun: ") and len(self.words) < 20:
            self.words.append(plain(line.removeprefix("srun: ").removeprefix("error: ")))
            return not self.started
        return False

    def why(self) -> tuple[str, str, str]:
        """(phase, status, reason) by the first line that tells."""
        for line in self.words:
            for pattern, phase, status in SAYS:
                found = re.search(pattern, line)
                if found:
                    return phase, status, line
        return "channel", "error", " ".join(self.words).strip() or "srun ended without a word"


class SrunTransport:
    """Starts one step of the job on each node."""

    name = "srun"

    def __init__(self, binary: str, job: str, env: Mapping[str, str]) -> None:
        self._binary, self._job, self._env = binary, job, dict(env)
        self._slots = threading.BoundedSemaphore(AT_ONCE)

    def open(self, node: Node, command: str, deadline: float, contact: Contact) -> ChildSession:
        contact.enter("channel")
        # Waiting for a place is not the node's fault, but it is its time: a run of thousands needs a longer --timeout.
        held = self._slots.acquire(timeout=max(0.0, left(deadline) - 1.0))
        try:
            if not held:
                raise Unreached(
                    node.name, "channel", f"not begun: {AT_ONCE} steps were being created at once", "timeout"
                )
            return self._open(node, command, deadline, contact)
        finally:
            if held:
                self._slots.release()

    def _open(self, node: Node, command: str, deadline: float, contact: Contact) -> ChildSession:
        watch = _Watch(contact)
        session = start(node, self.argv(node, command), contact, self._env, watch.hear)
        # A moment before the deadline: its last words must still arrive.
        if session.wait_until(lambda: watch.started, deadline - min(0.3, left(deadline) / 10)):
            contact.enter("exec")
            contact.enter("read")
            return session
        if session.ended:
            session.complaint()
            phase, status, why = watch.why()
        else:
            last = watch.words[-1]
            phase, status, why = "channel", "timeout", f"no step in time{': ' + last if last else ''}"
        session.close()
        raise Unreached(node.name, phase, why, status)

    def argv(self, node: Node, command: str) -> list[str]:
        # GPUs are not asked for: with --overlap the step shares those of the job (since Slurm 21.08).
        return [
            self._binary,
            f"--jobid={self._job}",
            "--overlap",
            f"--nodelist={node.name}",
            "--nodes=1",
            "--ntasks=1",
            "--mem=0",  # whatever the job has: no step of its own waits for memory
            "--cpu-bind=none",
            "--chdir=/",  # the job's folder may lie on the storage that stands still
            "--input=all",
            "--unbuffered",
            "/bin/sh",
            "-c",
            f"echo {STARTED!r} >&2; {command}",
        ]

    def close(self) -> None:
        return None


def make(options: Mapping[str, Any]) -> SrunTransport:
    """ConfigError where there is no srun here; UsageError where the job is no Slurm job."""
    binary = shutil.which("srun")
    if binary is None:
        raise ConfigError("--transport srun: there is no srun here; run triage on a login node, or use --transport ssh")
    job = str(options.get("job") or "").rpartition(":")[2].partition(".")[0]
    if not JOB.fullmatch(job):
        raise UsageError(f"--transport srun: {str(options.get('job') or '(none)')[:60]!r} is no job id of Slurm")
    # A triage that was started inside of a job has that job's SLURM_* set: they would stand for options that are not given.
    keep = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SRUN_")) or name in keep
    }
    return SrunTransport(binary, job, env)
