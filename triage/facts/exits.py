"""Who ended, by the job log alone: launchers' lines and failure blocks, srun's task lines, the ranks' own exceptions.

    torchrun   "failed (exitcode: -9) local_rank: 1 (pid: 4242)", and its block "host / rank / exitcode"
    srun       "srun: error: gpu003: task 5: Killed"
    a rank     "[rank5]: ValueError: …", the last line of its traceback
Where processes can be seen, the rank table ties launchers' lines to ranks better (ranktable.py); this is for attempts of
which no process is left. Names no culprit by itself: a line is a claim, and a launcher tells the first exit that it saw.
What can fool it: srun numbers tasks, which are ranks only where no launcher stands between; a traceback has no date, so it
wears that of the nearest dated line above; an exception that the program caught and logged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triage.facts.clocks import log_sample, log_time
from triage.facts.evidence import Evidence
from triage.facts.ranktable import log_hits, rank_table
from triage.probes._watchdog import COLUMNS

# Words of strsignal(3) as srun prints them.
WORDS = {
    "Killed": -9, "Out Of Memory": -9, "Terminated": -15, "Aborted": -6, "Segmentation fault": -11, "Bus error": -7,
}  # fmt: skip
BLOCK_LINES = 2  # between `rank` and `exitcode` in torchrun's block; another writer's line may come between
RANK_TAG = re.compile(r"\[rank(\d{1,7})\]:")


@dataclass(frozen=True)
class LogExit:
    """One end of a process, as the log tells it."""

    code: int  # negative or above 128: a signal
    at: float | None  # on our clock
    pid: int | None = None
    local: int | None = None
    rank: int | None = None
    node: str | None = None
    who: str = "torchrun"  # or srun

    @property
    def signal(self) -> int:
        return signal_of(self.code)


@dataclass(frozen=True)
class Raised:
    """An exception of a rank's own: not one that its peers, its store or a time-out gave it."""

    rank: int
    exception: str
    at: float | None  # on our clock; of an undated line, of the nearest dated one above
    text: str


def signal_of(code: int) -> int:
    """The signal of an exit code in either spelling (-9, 137), 0 for none."""
    return -code if code < 0 else code - 128 if code > 128 else 0


def log_exits(ev: Evidence) -> tuple[LogExit, ...]:
    """Every end that the log tells, oldest first; undated ones last. To be called through `ev.derive`."""
    blocks = _blocks(ev)
    found: dict[int, LogExit] = {}
    for hit in log_hits(ev, "torchelastic_failed"):
        values = _groups(hit)
        code, local, pid = _int(values.get("code")), _int(values.get("lr")), _int(values.get("pid"))
        if code is None or pid is None:
            continue
        rank, node = blocks.get(pid, (code, None, None, None))[1:3]
        found[pid] = LogExit(code, log_time(ev, hit.get("at")), pid, local, rank, node)
    for pid, (code, rank, node, at) in blocks.items():
        if pid not in found:
            found[pid] = LogExit(code, log_time(ev, at), pid, None, rank, node)
    out = [*found.values(), *_of_srun(ev)]
    return tuple(sorted(out, key=lambda e: (e.at is None, e.at or 0.0)))


def _groups(hit: Mapping[str, Any]) -> Mapping[str, Any]:
    groups = hit.get("groups")
    return groups if isinstance(groups, Mapping) else {}


def _int(value: object) -> int | None:
    if not isinstance(value, str) or not re.fullmatch(r"-?\d{1,9}", value, re.ASCII):
        return None
    return int(value)


def _blocks(ev: Evidence) -> dict[int, tuple[int, int | None, str | None, Any]]:
    """pid -> (code, global rank, node, time) of torchrun's failure blocks: `exitcode` with the lines right above it."""
    above: dict[tuple[str, int], Mapping[str, Any]] = {}
    for hit in log_hits(ev, "torchelastic_block_rank", "torchelastic_block_host"):
        if isinstance(line := hit.get("line_no"), int):
            above[(str(hit.get("prefix", "")), line)] = hit
    found: dict[int, tuple[int, int | None, str | None, Any]] = {}
    for hit in log_hits(ev, "torchelastic_block_exit"):
        values, line = _groups(hit), hit.get("line_no")
        code, pid = _int(values.get("code")), _int(values.get("pid"))
        if code is None or pid is None or not isinstance(line, int):
            continue
        rank: int | None = None
        node: str | None = None
        for back in range(1, BLOCK_LINES + 3):
            one = above.get((str(hit.get("prefix", "")), line - back))
            told = _groups(one) if one is not None else {}
            if rank is None and "rank" in told and back <= BLOCK_LINES:
                rank = _int(told["rank"])
            elif rank is not None and node is None and "host" in told:
                node = node_named(ev, str(told["host"]))
        found[pid] = (code, rank, node, hit.get("at"))
    return found


def node_named(ev: Evidence, host: str) -> str | None:
    """The node of the job that a full or short host name means, or None."""
    names = {node.name for node in ev.job.nodes}
    short = [name for name in names if name.split(".")[0] == host.split(".")[0]]
    return host if host in names else short[0] if len(short) == 1 else None


def _of_srun(ev: Evidence) -> list[LogExit]:
    """srun's task lines that name one task of one host. A task is a rank only where it cannot be a node's launcher."""
    hits = log_hits(ev, "srun_task_exit")
    launcher = bool(log_hits(ev, "torchelastic_failed", "torchelastic_block_exit", "torchelastic_stops_worker"))
    tasks = [int(n) for hit in hits for n in re.findall(r"\d{1,7}", str(_groups(hit).get("tasks", "")))]
    are_ranks = not launcher and bool(tasks) and max(tasks) >= len(ev.job.nodes) > 0
    out = []
    for hit in hits:
        values = _groups(hit)
        task, what = str(values.get("tasks", "")), str(values.get("what", ""))
        code = WORDS.get(what, _int(values.get("code")))
        node = node_named(ev, str(values.get("hosts", "")))
        if code is None or node is None:
            continue
        rank = _int(task) if are_ranks else None
        out.append(LogExit(code, log_time(ev, hit.get("at")), None, None, rank, node, "srun"))
    return out


def raised(ev: Evidence) -> dict[int, list[Raised]]:
    """rank -> its own exceptions, in the order of the log. To be called through `ev.derive`."""
    found: dict[int, list[Raised]] = {}
    for hit in log_hits(ev, "python_exception", "cuda_oom", "cuda_error"):
        rank = _printer(ev, hit)
        if rank is None:
            continue
        what = "CUDA out of memory" if hit.get("id") == "cuda_oom" else str(_groups(hit).get("exception") or "")
        if hit.get("id") == "cuda_error":
            what = f"CUDA error: {_groups(hit).get('message', '')}"
        one = Raised(rank, what[:80], log_time(ev, hit.get("at")), str(hit.get("text", ""))[:160])
        # One line may be known by two signatures: "CUDA out of memory" is an OutOfMemoryError too, and tells more.
        told = found.setdefault(rank, [])
        if told and told[-1].text == one.text:
            told[-1] = one if hit.get("id") != "python_exception" else told[-1]
        else:
            told.append(one)
    return found


def own_exception(ev: Evidence, rank: int, first: float, last: float) -> Raised | None:
    """The rank's first exception between these moments: of a chain of them, the one that the others came of."""
    told = ev.derive(raised).get(rank, ())
    return next((one for one in told if one.at is not None and first <= one.at <= last), None)


def _printer(ev: Evidence, hit: Mapping[str, Any]) -> int | None:
    """The global rank that printed a line: torch's own tag, else one rank's prefix; None where only a task is told."""
    tag = RANK_TAG.search(str(hit.get("text", "")))
    prefix = str(hit.get("prefix", ""))
    name = tag.group(1) if tag else prefix.removeprefix("rank") if prefix.startswith("rank") else ""
    rank = _int(name)
    world = ev.derive(rank_table).world_size
    return rank if rank is not None and rank >= 0 and (world is None or rank < world) else None


def first_timeout(ev: Evidence) -> float | None:
    """When the first collective that timed out had begun: the line's time less what it says that it waited."""
    begun = []
    for hit in log_hits(ev, "watchdog_timeout"):
        at, ran = log_time(ev, hit.get("at")), _int(_groups(hit).get("ran_ms"))
        if at is not None and ran is not None:
            begun.append(at - ran / 1000.0)
    # Of thousands that gave up at once only the first and last lines are told one by one; their table holds them all.
    sample = log_sample(ev)
    table = sample.data.get("watchdog") if sample is not None else None
    for row in (table.get("rows") or ()) if isinstance(table, Mapping) else ():
        told = dict(zip(COLUMNS, row))
        at = log_time(ev, told.get("begun")) if told.get("kind") == "timeout" else None
        begun += [at] if at is not None else []
    return min(begun, default=None)
