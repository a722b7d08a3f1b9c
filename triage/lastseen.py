"""Which nodes a job had when a scheduler last told: for the night on which the scheduler is silent too.

One small file a job in the state folder (`<state>/jobs/slurm-lab-4711.json`), mode 0600, written after each answer. It is
offered, never used by itself: since then the job may have been requeued onto other nodes.
All of it is touched by children with a deadline: the state folder may lie on the storage that froze the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from triage import ownfiles
from triage.case import job_of
from triage.errors import ConfigError
from triage.model import Job

MOST_BYTES = 16 << 20
KEEP = 500  # jobs; the oldest go


@dataclass(frozen=True)
class Seen:
    job: Job
    at: float  # epoch seconds

    @property
    def age(self) -> str:
        """`12m ago`."""
        past = max(0.0, time.time() - self.at)
        return (
            f"{past:.0f}s ago" if past < 120 else f"{past / 60:.0f}m ago" if past < 7200 else f"{past / 3600:.0f}h ago"
        )


def _file(state_dir: str, scheduler: str, job_id: str) -> Path:
    safe = "".join(sign if sign.isalnum() or sign in "._+-" else "_" for sign in job_id)[:80]
    return Path(state_dir, "jobs", f"{scheduler}-{safe}.json")


def remember(state_dir: str, asked: str, job: Job) -> None:
    """Keep the job under the id that was asked for. Nothing is said where it cannot be kept."""
    if not state_dir or not job.nodes:
        return
    file = _file(state_dir, job.scheduler, asked)
    text = json.dumps({"at": time.time(), "job": asdict(job)}).encode()

    def write() -> bytes:
        os.makedirs(file.parent, mode=0o700, exist_ok=True)
        beside = file.with_name(f"{file.name}.{os.getpid()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(beside, flags, 0o600), "wb") as out:
            out.write(text)
        os.replace(beside, file)
        others = sorted(file.parent.glob("*.json"), key=lambda one: one.lstat().st_mtime)
        for old in others[: max(0, len(others) - KEEP)]:
            old.unlink(missing_ok=True)
        return b""

    with contextlib.suppress(OSError):
        ownfiles.compute(write, str(file))


def recall(state_dir: str, scheduler: str, asked: str) -> Seen | None:
    """What is kept of a job of that id, None if nothing (that can be read)."""
    file = _file(state_dir, scheduler, asked)
    try:
        told = json.loads(ownfiles.read_plain(str(file), MOST_BYTES))
        at = told["at"]
        if not isinstance(at, int | float) or isinstance(at, bool) or not 0 < at < 1e10:
            return None
        job = job_of(told["job"], file)
    except (OSError, ValueError, RecursionError, KeyError, TypeError, ConfigError):
        return None
    return Seen(job, float(at)) if job.nodes else None
