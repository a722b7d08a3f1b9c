"""Which run of the job id is asked about, and is what the nodes show now of that run?

A job id runs again after a requeue or a crash: its log goes on in the same file, and its nodes may by now serve another
job. Evidence counts that is dated inside [start, end + 5 min] of the attempt asked about; what the nodes show *now* counts
only while that attempt runs and the processes there are its own (DESIGN section 2, "Attempts"). evidence.py asks here once
and gives every fact what is left (cut.py).
What can fool it: an inventory of yesterday, or with times of another zone (then its own processes look like strangers: said,
and accused of nothing); a rank that was started alone again (the median of all starts is taken); a clock that was set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from triage.facts.clocks import Offset, offsets_of
from triage.model import Job, Sample

# How a flight record came that was written while we looked: for our poke, or told by the rank's control plane.
WRITTEN_NOW = frozenset({"poked", "http"})

GRACE_S = 300.0  # DESIGN section 2: what is dated up to five minutes after the end is still of the attempt
# A scheduler stamps the start before the first process runs, and the log's clock is the file server's.
STARTED_SLACK_S = 1.0
# A process start is btime plus ticks: known to a second, and told by clocks that are measured to two.
PROCESS_SLACK_S = 2.0
# A process that began this long before the attempt is not of it (as in claims.py).
STRANGER_SLACK_S = 60.0


@dataclass(frozen=True)
class Span:
    """The attempt as far as it can be told, on our clock.

    since     nothing dated before this counts; None: nothing tells when it began
    until     nothing dated after this counts; None: it has not ended
    over      it has ended: only dated evidence counts
    strange   why what the nodes show now is not of this attempt; "" if it is, or if nothing speaks against it
    now       is what the nodes show of this attempt? None: nothing tells
    says      that in a sentence
    """

    since: float | None = None
    until: float | None = None
    over: bool = False
    strange: str = ""
    now: bool | None = None
    says: str = ""


@dataclass(frozen=True)
class Process:
    """A rank process of the job in some look: when it began on our clock, and the restart count that it wears."""

    node: str
    rank: int
    start: float | None
    restart: int | None


Key = tuple[str, int, int | None]  # node, rank, pid


def span_of(job: Job, samples: Iterable[Sample], observed: float) -> Span:
    """See the module. Linear in the rank records."""
    samples = tuple(samples)
    offsets = offsets_of(samples)
    seen = processes(job, samples, offsets)
    attempt = job.attempt
    began = None if attempt.started is None else attempt.started - STARTED_SLACK_S
    if job.state == "ended" or (attempt.ended is not None and attempt.ended < observed):
        until = observed if attempt.ended is None else attempt.ended + GRACE_S
        return Span(began, until, True, "the attempt has ended", False, _still_there(job, seen))
    strange = _strangers(job, seen)
    starts = [p.start for p in seen.values() if p.start is not None]
    if strange:
        later = [at for at in starts if attempt.started is not None and at > attempt.started]
        return Span(began, min(later) if later else None, False, strange, False, strange)
    if starts:
        # The ranks that run now are what is asked about: a launcher may have started them again within the attempt.
        worked = median(starts) - PROCESS_SLACK_S
        began = worked if began is None else max(began, worked)
    if job.state == "pending":
        return Span(began, None, now=False, says="the job is pending")
    if not seen:
        return Span(began, None, says="no rank process was seen")
    return Span(began, None, now=True, says=f"{len(seen)} rank processes of this attempt were seen")


def processes(job: Job, samples: Iterable[Sample], offsets: Mapping[str, Offset]) -> dict[Key, Process]:
    """(node, rank, pid) -> process, of all rank processes that the job's rule does not exclude, in either look."""
    from triage.facts.claims import belongs, records_of, usable, whole  # claims.py stands on the evidence

    found: dict[Key, Process] = {}
    for sample in samples:
        if sample.probe != "ranks" or sample.status != "ok":
            continue
        offset = offsets.get(sample.node)
        for record in records_of(sample):
            if not isinstance(record, Mapping) or not usable(record):
                continue
            env = record["env"]
            if not belongs(env, job.id, job.match) and (job.match or _names_a_job(env)):
                continue
            start = record.get("start_s")
            good = isinstance(start, int | float) and not isinstance(start, bool)
            at = float(start) - (offset.offset_s if offset else 0.0) if good else None  # type: ignore[arg-type]
            rank = int(record["rank"])
            found[(sample.node, rank, whole(record.get("pid")))] = Process(sample.node, rank, at, restart_of(env))
    return found


def _names_a_job(env: Mapping[str, Any]) -> bool:
    """Does it wear a job's id? Then it is of that job, and of ours only if the id is ours."""
    return "SLURM_JOB_ID" in env


def restart_of(env: Mapping[str, Any]) -> int | None:
    """How often the job was restarted, by a process's environment; None where it does not say.

    Slurm's count is the scheduler's, torchrun's counts within one allocation: where both are there the first speaks.
    """
    for name in ("SLURM_RESTART_COUNT", "TORCHELASTIC_RESTART_COUNT"):
        value = env.get(name)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 7:
            return int(value)
    return None


def _strangers(job: Job, seen: Mapping[Key, Process]) -> str:
    """Why most of the processes are of another attempt, or ""."""
    started, restart = job.attempt.started, job.attempt.restart
    other = [p for p in seen.values() if restart is not None and p.restart is not None and p.restart != restart]
    if 2 * len(other) > len(seen):
        counts = sorted({p.restart for p in other if p.restart is not None})
        told = " and ".join(map(str, counts[:3]))
        return f"the rank processes say that they are of restart {told}, and restart {restart} was asked about"
    early = [p.start for p in seen.values() if started is not None and p.start is not None]
    early = [at for at in early if started is not None and at < started - STRANGER_SLACK_S]
    if started is not None and 2 * len(early) > len(seen):
        before = started - median(early)
        return (
            f"the rank processes began {_span(before)} before this attempt is said to have: they are of an earlier one, "
            "or the start is not right"
        )
    return ""


def _still_there(job: Job, seen: Mapping[Key, Process]) -> str:
    """The sentence for an attempt that is over, and whether processes that began in it are there all the same."""
    started, ended = job.attempt.started, job.attempt.ended
    left = [
        p
        for p in seen.values()
        if p.start is not None
        and (started is None or p.start >= started - STRANGER_SLACK_S)
        and (ended is None or p.start <= ended)
        and (p.restart is None or job.attempt.restart is None or p.restart == job.attempt.restart)
    ]
    says = "the attempt has ended: what its nodes show now accuses nobody"
    if left:
        nodes = sorted({p.node for p in left})
        more = f" and {len(nodes) - 3} more nodes" if len(nodes) > 3 else ""
        says += f"; {len(left)} processes that began in it are still there ({', '.join(nodes[:3])}{more})"
    return says


def _span(seconds: float) -> str:
    """`90s`, `48m`, `2h`."""
    if seconds < 120:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 7200 else f"{seconds / 3600:.0f}h"
