"""Worlds whose job has run more than once: an attempt that ended, logs that were appended, nodes that serve another by now."""

from __future__ import annotations

from dataclasses import replace

from written_evidence import NOW, World
from written_logs import block, failed, log_sample, steps, stops

from triage.model import Attempt

BEGAN, ENDED = NOW - 7200, NOW - 3700  # an attempt that ended an hour ago: the processes of World began later
LAST = ENDED - 20  # its last step


def ended(w, started=BEGAN, at=ENDED, state="ended", restart=None):
    w.job = replace(w.job, state=state, attempt=Attempt(restart, started, at))
    return w


def log(w, *lines, **more):
    w.samples.append(
        log_sample([line for part in lines for line in ([part] if isinstance(part, str) else part)], **more)
    )
    return w


def kernel(w, node, *events):
    w.samples = [s for s in w.samples if not (s.probe == "kernel" and s.node == node)]
    return w.add("kernel", node, "A", {"readable": True, "events": list(events)})


def oom(at, pid=4005, last_at=None, count=1):
    return {
        "id": "oom_kill", "kind": "oom", "at": at, "last_at": last_at or at, "count": count,
        "text": f"Out of memory: Killed process {pid} (python3) total-vm:1kB", "groups": {"pid": str(pid)},
    }  # fmt: skip


def value(w, name):
    return w.fact(name).value


def wear(w, **env):
    """Every rank process wears these variables."""
    for look in "AB":
        for rank in range(8):
            base = w.record(rank, look)
            w.change[(rank, look)] = {**w.change.get((rank, look), {}), "env": {**base["env"], **env}}
    return w


OLD = [*steps(1, 40, NOW - 5000), failed(NOW - 4990, -9, 1, 4005)]  # an attempt that ended before this one began


def oom_world(*extra, pid=4005, kill_at=LAST + 0.5, exit_at=LAST + 0.8, node="gpu003", logged=True, killed=True):
    """Rank 5 of gpu003 was killed for lack of memory, its launcher said so, and the job ended; other jobs run there now."""
    w = ended(World()).processes()
    lines = [*steps(1, 50, LAST)]
    if logged:
        lines += [
            failed(exit_at, -9, 1, 4005),
            stops(exit_at, 4004),
            *block(exit_at, "gpu003.cluster.local", 5, 1, -9, 4005),
        ]
    log(w, lines, list(extra))
    return kernel(w, node, *([oom(kill_at, pid)] if killed else []))
