"""What does each step of this rank take? A recorder that a training job copies into itself and imports; for triage to read.

    export TRIAGE_STEP_LOG=/tmp/steps/rank_     before the ranks start: triage reads it in their environment

    import steplog
    log = steplog.StepLog()                     one a rank; RANK and the like tell which
    log.begin()
    for step, batch in enumerate(loader):
        log.mark("data")                        what has passed since the last call was waiting for data
        loss = model(batch); loss.backward()
        log.mark("compute")
        all_reduce(model)
        log.mark("collective")
        optimizer.step()
        log.end(step)                           writes one line; the next step begins here

appends to /tmp/steps/rank_<rank>.jsonl, one line a finished step (times in ms, t_start in s since 1970, UTC):

    {"step":12,"rank":3,"t_start":1790000000123456789e-9,"compute_ms":500100000e-6,"collective_ms":3200000e-6,
     "data_ms":100000e-6,"total_ms":503900000e-6,"gc_ms":0e-6,"seq_tokens":8192}

(numbers with an exponent are JSON, and three times cheaper to write than decimals). A part that was never marked is left
out: unknown, not 0.

It cannot harm the job: a disk that is full or read-only costs the record and nothing else, and nothing is ever raised. Each
line is one write at the end of the file: a crash tears the last line at most. A child made by fork (a loader's worker) records
nothing under its parent's name. A file of 64 MiB is put aside as <name>.old.
What can fool it: kernels run after the call that starts them returns. Time the GPU's work with CUDA events and hand it over,
`log.put("compute", begun.elapsed_time(done))`, where the step waits for the GPU anyway (loss.item()); a prefix on a shared
file system, where a stalled server can hold the write, and so the job: name a local folder; a variable that the job sets
itself (nobody outside sees it); two threads (one records). Python 3.8 or newer, standard library only.
"""

from __future__ import annotations

import gc
import os
import stat
import weakref
from time import perf_counter_ns, time_ns
from typing import Any

PARTS = ("compute", "collective", "data")
LIMIT = 64 << 20  # bytes of one file: the last 256 KiB are read
RANK_NAMES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")


class StepLog:
    """The step records of one rank: `begin`, then a step's `mark`s and `put`s and its `end`, again and again.

    prefix and rank are those of the environment where not given. Without a prefix every call does nothing, so that the
    calls may stay in the job.
    """

    def __init__(self, prefix: str | None = None, rank: int | None = None) -> None:
        self._file = self._room = self._step = 0
        self._began = self._last = self._wall = self._gc = 0  # ns
        self._ns: dict[str, int] = {}
        self._torn = False
        self._full = b""
        self.path = ""
        try:
            prefix = os.environ.get("TRIAGE_STEP_LOG", "") if prefix is None else os.fspath(prefix)
            self.rank = _rank() if rank is None else int(rank)
            if prefix.startswith("/") and self.rank >= 0:
                self.path = f"{prefix}{self.rank}.jsonl"
                self._full = _FULL.replace("RANK", str(self.rank)).encode()
                self._open()
        except Exception:
            self._close()

    def begin(self) -> None:
        """A step begins now, and not where the last one ended: before the loop, and behind an evaluation or a checkpoint."""
        self._ns = {}
        self._gc = _collected[0]
        self._wall = time_ns()
        self._began = self._last = perf_counter_ns()

    def mark(self, part: str) -> None:
        """What has passed since the last call was spent on "compute", "collective" or "data"."""
        now = perf_counter_ns()
        ns = self._ns
        ns[part] = now - self._last + ns.get(part, 0)
        self._last = now

    def put(self, part: str, ms: float) -> None:
        """The job has measured a part of this step itself, as with CUDA events: so long it took, whatever was marked."""
        try:
            if 0 <= ms < 1e9:
                self._ns[part] = int(ms * 1e6)
        except Exception:
            pass

    def end(self, step: int | None = None, seq_tokens: int | None = None) -> None:
        """The step is finished: write its record; the next begins. Without a number it is the one after the last."""
        now, wall, ns, collected = perf_counter_ns(), self._wall, self._ns, _collected[0]
        self._wall = time_ns()
        try:
            self._step = number = self._step + 1 if step is None else int(step)
            if self._file and wall:
                took, swept = now - self._began, collected - self._gc
                if len(ns) == 3 and seq_tokens is None:  # the usual case in one go
                    line = self._full % (number, wall, ns["compute"], ns["collective"], ns["data"], took, swept)
                else:
                    line = self._line(number, wall, took, swept, seq_tokens)
                if self._torn or self._room < 0:
                    line = self._mend(line)
                self._torn = os.write(self._file, line) != len(line)
                self._room -= len(line)
        except Exception:
            self._torn = True  # how much of the line stands there is not known
        self._began = self._last = now
        self._gc = collected
        self._ns = {}

    def step(self, step: int | None = None, seq_tokens: int | None = None) -> _Step:
        """`with log.step(12): …` is begin, and end unless the body raises: such a step was not finished."""
        return _Step(self, step, seq_tokens)

    def close(self) -> None:
        """Record nothing any more. Not needed: every record stands in the file when `end` returns."""
        self._close()

    # ------------------------------------------------------------------------------------------------ edge

    def _line(self, number: int, wall: int, took: int, swept: int, seq_tokens: int | None) -> bytes:
        parts = "".join(f'"{name}_ms":{self._ns[name]}e-6,' for name in PARTS if name in self._ns)
        tokens = "" if seq_tokens is None else f',"seq_tokens":{int(seq_tokens)}'
        text = (
            f'{{"step":{number},"rank":{self.rank},"t_start":{wall}e-9,{parts}"total_ms":{took}e-6,"gc_ms":{swept}e-6'
        )
        return (text + tokens + "}\n").encode()

    def _mend(self, line: bytes) -> bytes:
        """Behind a line that may be torn a new one begins; behind 64 MiB a new file."""
        if self._room < 0:
            self._close()
            os.replace(self.path, self.path + ".old")
            self._open()
        return b"\n" + line if self._torn else line

    def _open(self) -> None:
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        # A FIFO without a reader would block: O_NONBLOCK refuses it. 0: closed (nobody's standard input is our file).
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(self.path, flags, 0o644)
        info = os.fstat(file)
        if not stat.S_ISREG(info.st_mode) or file == 0:
            os.close(file)
            return
        self._file, self._room = file, LIMIT - info.st_size
        self._torn = info.st_size > 0  # who wrote before us may have died in the middle of a line
        _logs.add(self)
        if _watch not in gc.callbacks:
            gc.callbacks.append(_watch)

    def _close(self) -> None:
        file, self._file = self._file, 0
        try:
            if file:
                os.close(file)
        except OSError:
            pass

    def __del__(self) -> None:
        self._close()


class _Step:
    """One step as a block."""

    __slots__ = ("_log", "_step", "_tokens")

    def __init__(self, log: StepLog, step: int | None, seq_tokens: int | None) -> None:
        self._log, self._step, self._tokens = log, step, seq_tokens

    def __enter__(self) -> StepLog:
        self._log.begin()
        return self._log

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self._log.end(self._step, self._tokens)
        else:
            self._log.begin()


_FULL = (
    '{"step":%d,"rank":RANK,"t_start":%de-9,"compute_ms":%de-6,"collective_ms":%de-6,"data_ms":%de-6,'
    '"total_ms":%de-6,"gc_ms":%de-6}\n'
)
_logs: weakref.WeakSet[StepLog] = weakref.WeakSet()
_collected = [0, 0]  # ns that the garbage collector has taken so far; when it began


def _watch(phase: str, info: Any) -> None:
    if phase == "start":
        _collected[1] = perf_counter_ns()
    else:
        _collected[0] += perf_counter_ns() - _collected[1]


def _rank() -> int:
    """The global rank by the environment, as triage's probe reads it; -1 where nothing tells."""
    for name in RANK_NAMES:
        text = os.environ.get(name, "")
        if text and len(text) <= 7 and all(c in "0123456789" for c in text):
            return int(text)
    return -1


def _forget() -> None:
    """In a child made by fork: it is not the rank whose file this is."""
    for log in list(_logs):
        log._close()
        log.path = ""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
