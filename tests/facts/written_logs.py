"""Job logs written line by line and read by the real reducer: what a World's log tells when several attempts share a file."""

from __future__ import annotations

import time

from triage.probes import joblog
from written_evidence import NOW

from triage.model import Sample
from triage.readers.signatures import for_probe

SIGNATURES = for_probe("joblog")


def stamp(at, form="%Y-%m-%d %H:%M:%S"):
    return time.strftime(form, time.gmtime(at)) + f".{int(at * 1000) % 1000:03d}"


def glog(at, pid=900):
    """The head of a torchelastic line, UTC."""
    return f"E{time.strftime('%m%d %H:%M:%S', time.gmtime(at))}.{int(at * 1000) % 1000:03d}000 {pid} torch/distributed/elastic/multiprocessing/api.py:1002]"


def step(number, at, dated=True):
    head = f" [{stamp(at)}]" if dated else ""
    return f"{head} iteration {number:8d}/  100000 | consumed samples: 32 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.3E+00 |"


def steps(first, count, last_at, dated=True):
    """`count` steps of a second; the last one ended at `last_at`."""
    return [step(first + i, last_at - (count - 1 - i), dated) for i in range(count)]


def failed(at, code, local, pid):
    return f"{glog(at)} failed (exitcode: {code}) local_rank: {local} (pid: {pid}) of binary: /usr/bin/python3"


def stops(at, pid):
    return f"W{glog(at)[1:]} Sending process {pid} closing signal SIGTERM"


def block(at, host, rank, local, code, pid):
    return [
        "Root Cause (first observed failure):",
        "[0]:",
        f"  time      : {stamp(at, '%Y-%m-%d_%H:%M:%S')[:19]}",
        f"  host      : {host}",
        f"  rank      : {rank} (local_rank: {local})",
        f"  exitcode  : {code} (pid: {pid})",
        "  error_file: <N/A>",
    ]


def timed_out(at, rank, ran_s, seq=100):
    head = f"[rank{rank}]:[E{time.strftime('%m%d %H:%M:%S', time.gmtime(at))}.{int(at * 1000) % 1000:03d} ProcessGroupNCCL.cpp:632] [Rank {rank}]"
    return f"{head} Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)={ran_s * 1000}) ran for {ran_s * 1000} milliseconds before timing out."


def start(at):
    """What torchrun prints first."""
    head = f"W{glog(at, 4240)[1:].split(' torch')[0]} torch/distributed/run.py:774]"
    return f"{head} Setting OMP_NUM_THREADS environment variable for each process to be 1 in default"


UNDATED_START = "> initializing torch distributed ..."


def log_sample(lines, mtime=NOW - 50, look="B", zone_told=True, since=None):
    """The joblog answer of our own machine for a log of these lines; `zone_told`: it is known to be UTC."""
    raw = ("\n".join(lines) + "\n").encode()
    data = joblog.reduce_log(raw, SIGNATURES, mtime=mtime, offset_s=0.0 if zone_told else None, since=since)
    data.update({"path": "/job.log", "size": len(raw), "mtime": mtime})
    return Sample("joblog", "", look, "ok", data, received=NOW)
