"""Watchdogs' lines of PyTorch, era by era, as tests write them, and the evidence of a log that holds them."""

from __future__ import annotations

import time
from functools import cache

from written_evidence import NOW, limits
from written_logs import log_sample

from triage.facts import registry
from triage.facts.evidence import Evidence
from triage.model import Attempt, Job

GAVE_UP = NOW - 300  # when the watchdogs printed


def head(rank, at, file_line="632"):
    """torch's own tag; the month is not padded."""
    when = time.gmtime(at)
    day = f"{when.tm_mon}{when.tm_mday:02d}"
    return f"[rank{rank}]:[E{day} {time.strftime('%H:%M:%S', when)}.{int(at * 1000) % 1000:03d}000000 ProcessGroupNCCL.cpp:{file_line}]"


def gave_up(rank, seq, op="ALLREDUCE", size=1, out=None, place=None, at=GAVE_UP, ran_s=600):
    work = f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={size}, NumelOut={size if out is None else out}, Timeout(ms)=600000)"
    return (
        f"{head(rank, at)} [Rank {rank if place is None else place}] Watchdog caught collective operation timeout: "
        f"{work} ran for {ran_s * 1000} milliseconds before timing out."
    )


def status(rank, seq, enqueued, completed, guid="0", desc="default_pg", place=None, at=GAVE_UP):
    tag = f"[PG ID 0 PG GUID {guid}({desc}) Rank {rank if place is None else place}]"
    return (
        f"{head(rank, at, '2271')} {tag}  failure detected by watchdog at work sequence id: {seq} "
        f"PG status: last enqueued work: {enqueued}, last completed work: {completed}"
    )


def told(rank, enqueued, completed, by=1, guid="0", desc="default_pg", place=None, at=GAVE_UP + 0.5):
    """The dump line that every rank prints."""
    tag = f"[PG ID 0 PG GUID {guid}({desc}) Rank {rank if place is None else place}]"
    return (
        f"{head(rank, at, '1858')} {tag} Received a dump signal due to a collective timeout from  rank {by} and we will try "
        f"our best to dump the debug info. Last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.This is most"
    )


def waited(rank, seq, enqueued=None, completed=None, **more):
    """The two lines of a rank that gave up."""
    call = {k: v for k, v in more.items() if k in ("op", "size", "out", "place", "at")}
    rest = {k: v for k, v in more.items() if k in ("guid", "desc", "place", "at")}
    return [
        gave_up(rank, seq, **call),
        status(rank, seq, seq if enqueued is None else enqueued, seq - 1 if completed is None else completed, **rest),
    ]


def old(rank, seq, op="ALLREDUCE", rank_tag=False):
    """1.12 to 2.1: no time, no global rank."""
    tag = f"[rank{rank}]:" if rank_tag else ""
    return (
        f"{tag}[E ProcessGroupNCCL.cpp:737] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, "
        f"OpType={op}, Timeout(ms)=1800000) ran for 1805456 milliseconds before timing out."
    )


def local(rank, seq, enqueued, completed, pg="0", place=None):
    """2.2 and 2.3: a number of each process's own for the group."""
    tag = f"[PG {pg} Rank {rank if place is None else place}]"
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:1537] {tag} Timeout at NCCL work: {seq}, "
        f"last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."
    )


@cache
def _limits():
    return limits()


def evidence(*lines, more=(), **how):
    flat = [text for each in lines for text in ([each] if isinstance(each, str) else each)]
    job = Job("48213", "files", (), state="unknown", attempt=Attempt())
    return Evidence(job, [log_sample(flat, **how), *more], NOW, _limits())


def fact(ev, name):
    return registry.other(ev, f"watchdog.{name}")


def ranks(ev, name):
    found = fact(ev, name)
    return {part.rank for part in found.parts} if found.known else None
