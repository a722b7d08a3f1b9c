"""How long did the last steps of each rank take, and what were they spent on?

Reads    /proc/<pid>/environ         TRIAGE_STEP_LOG=/shared/steps/rank_ and RANK=3 name /shared/steps/rank_3.jsonl
         that file, last 256 KiB     {"step":12,"rank":3,"t_start":1790000000.123,"compute_ms":500.1,
                                      "collective_ms":3.2,"data_ms":0.1,"total_ms":503.9}     a line a finished step
         /tmp/step_times/rank_3.log  "503.9"                                      one number a line, the whole step
Fooled by   a file of an earlier attempt (compare t_start with the rank's start_s); a torn last line (passed over); the
            step under way (a record is written when its step ends); plain numbers without a unit (`unit` says what was
            assumed), which never name a culprit: all ranks of a synchronous job show the same total
            (notes/straggler-and-cost.md 2); a path inside a container (tried through /proc/<pid>/root).
"""

import json
import os
import re
import stat
import threading
import time

PROBE = {
    "name": "steps",
    "version": 1,
    "needs": [],
    "timeout_s": 4,
    "cost": "cheap",
    "fields": {
        "ranks": "list, one a step file: rank, path, kind records or numbers",
        "last_step": "number of the last finished step (records), or lines so far (numbers, null if the file was cut)",
        "last_at": "epoch s, node clock: end of the last finished step (records), mtime (numbers)",
        "n": "steps in the columns",
        "columns": "lists of equal length, oldest first: step, t_start epoch s, total_ms, compute_ms, collective_ms …",
        "unit": "numbers only: ms, s (both converted to ms), or assumed_ms",
    },
}

LAST = 64  # steps told
TAIL = 262144  # bytes read of a file
MAX_RANKS = 256
MAX_STUCK = 4  # processes that do not let themselves be read, before we give up
STALL_S = 0.4
NUMBERS = ("t_start", "total_ms", "compute_ms", "collective_ms", "data_ms")
PLAIN = re.compile(r"(?P<x>\d{1,15}(?:\.\d{0,12})?(?:[eE][+-]?\d{1,2})?)\s{0,4}(?P<u>ms|s|sec|seconds)?\s{0,8}$")
PLAIN_NAME = re.compile(r"rank_(\d{1,7})\.log$")
NOT_MS_BELOW = 10.0  # no step of a synchronous job lasts under 10 ms: smaller numbers are seconds
SURELY_MS_ABOVE = 600.0  # nor does one last ten minutes: larger numbers are milliseconds


# ---------------------------------------------------------------- pure


def number(value):
    """A finite non-negative number as it came, else None (also for booleans, NaN and text)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if 0 <= value < 1e15 else None


def whole_lines(raw, from_start):
    """Lines of the end of a file; without the first if it may be cut, and without a last one that has no newline."""
    lines = raw.split(b"\n")
    lines.pop()
    return lines if from_start else lines[1:]


def reduce_records(raw, from_start=True, last=LAST):
    """{last_step, last_at, n, columns} of step records (bytes of the file's end), or None if it holds none.

    A column is there only if every told step has it. Lines that are no record are passed over.
    """
    records = []
    for line in reversed(whole_lines(raw, from_start)):
        if len(records) >= last:
            break
        try:
            record = json.loads(line[:8192].decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and isinstance(number(record.get("step")), int):
            records.append(record)
    if not records:
        return None
    records.reverse()
    columns = {"step": [r["step"] for r in records]}
    for name in NUMBERS:
        values = [number(r.get(name)) for r in records]
        if None not in values:
            columns[name] = values
    begun, took = number(records[-1].get("t_start")), number(records[-1].get("total_ms"))
    return {
        "last_step": records[-1]["step"],
        "last_at": None if begun is None or took is None else round(begun + took / 1000.0, 6),
        "n": len(records),
        "columns": columns,
    }


def reduce_numbers(raw, from_start=True, last=LAST):
    """{last_step, last_at: None, n, columns, unit} of a file with one number a line, or None if it holds none."""
    values, units, count = [], set(), 0
    for line in whole_lines(raw, from_start):
        found = PLAIN.search(line[-200:].decode("ascii", "replace").strip())
        if found:
            count += 1
            values.append(float(found.group("x")))
            units.add(found.group("u") or "")
            del values[:-last]
    if not values or max(values) >= 1e15:
        return None
    middle = sorted(values)[len(values) // 2]
    if units == {""}:
        unit = "s" if middle < NOT_MS_BELOW else "ms" if middle > SURELY_MS_ABOVE else "assumed_ms"
    else:
        unit = "ms" if units <= {"ms", ""} else "s"
    if unit == "s":
        values = [v * 1000.0 for v in values]
    # Of a file whose head was not read the number of lines, and so the step, is not known.
    step = count if from_start else None
    return {"last_step": step, "last_at": None, "n": len(values), "columns": {"total_ms": values}, "unit": unit}


def step_file_of(environ):
    """(rank, path, pathless prefix) that an environment block (bytes) names, or None."""
    if b"TRIAGE_STEP_LOG=" not in environ:
        return None
    env = {}
    for item in environ.split(b"\0"):
        name, _, value = item.partition(b"=")
        if name in (b"TRIAGE_STEP_LOG", b"RANK", b"SLURM_PROCID", b"OMPI_COMM_WORLD_RANK", b"PMIX_RANK"):
            env.setdefault(name, value[:1024].decode("utf-8", "replace"))
    for name in (b"RANK", b"SLURM_PROCID", b"OMPI_COMM_WORLD_RANK", b"PMIX_RANK"):
        rank = env.get(name, "")
        if rank and len(rank) <= 7 and all(c in "0123456789" for c in rank):
            prefix = env.get(b"TRIAGE_STEP_LOG", "")
            return (int(rank), prefix + rank + ".jsonl") if prefix.startswith("/") else None
    return None


# ---------------------------------------------------------------- edge


def read_end(path, limit=TAIL):
    """(last bytes, is it the whole file, mtime) of a plain file, or None. A FIFO would block, a device may act."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError):
        return None
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            return None
        start = max(0, info.st_size - limit)
        return os.pread(handle, limit, start), start == 0, info.st_mtime
    except OSError:
        return None
    finally:
        os.close(handle)


def first_end(paths):
    for path in paths:
        end = read_end(path)
        if end is not None:
            return end
    return None


def guarded(names, read_one, left, stall_s=STALL_S):
    """{name: read_one(name)} and the names whose reading does not end.

    Reading the environment of a process takes its memory lock, which a thread of it in D state may hold for ever
    (notes/prototype-findings.md 2.2): one such rank must not cost what the node says of all others.
    """
    todo, done, stuck = list(reversed(names)), {}, []
    finished = threading.Event()
    now_at = {}  # worker -> (name, since)

    def work(me):
        while todo and me in now_at:
            name = todo.pop()
            now_at[me] = (name, time.monotonic())
            value = read_one(name)
            if me not in now_at:
                return  # given up on meanwhile
            done[name] = value
        finished.set()

    me = 0
    threading.stack_size(262144)
    while True:
        now_at[me] = (None, time.monotonic())
        threading.Thread(target=work, args=(me,), daemon=True).start()
        while not finished.wait(0.05):
            name, since = now_at[me]
            if name is not None and time.monotonic() - since > stall_s:
                break
            if left() < 0.5:
                now_at.clear()
                return done, stuck, False
        else:
            return done, stuck, True
        now_at.pop(me)
        stuck.append(name)
        me += 1
        if me >= MAX_STUCK:
            return done, stuck, False


def environ_of(ctx, pid):
    try:
        with open(ctx.proc(pid + "/environ"), "rb") as handle:
            return handle.read(262144)
    except OSError:
        return b""  # ended, or not ours to read: `ranks` counts those


def collect(ctx):
    named = {}  # (rank, path) -> pid that names it
    pids = [pid for pid in ctx.listdir(ctx.procfs) if pid.isdigit()]
    told, stuck, complete = guarded(pids, lambda pid: step_file_of(environ_of(ctx, pid)), ctx.left)
    if stuck or not complete:
        ctx.note("not all processes could be looked at (%d do not let themselves be read)" % len(stuck))
    for pid in pids:
        if told.get(pid):
            named.setdefault(told[pid], pid)
    rows, missing = [], 0
    for (rank, path), pid in sorted(named.items())[:MAX_RANKS]:
        if ctx.left() < 0.2:
            ctx.note("not all step files were read")
            break
        # A container's path exists only below its own root. A test folder's path exists only below that folder.
        inside = ctx.proc(pid + "/root" + path)
        end = first_end([inside, path] if ctx.real else [ctx.root(path), inside])
        told = reduce_records(end[0], end[1]) if end else None
        if told is None:
            missing += 1
            continue
        rows.append(dict(told, rank=rank, path="".join(c if c.isprintable() else " " for c in path), kind="records"))
    folder = ctx.root("/tmp/step_times")
    for name in ctx.listdir(folder)[:MAX_RANKS] if os.path.isdir(folder) else []:
        found = PLAIN_NAME.match(name)
        end = read_end(os.path.join(folder, name)) if found else None
        told = reduce_numbers(end[0], end[1]) if end else None
        if told is not None:
            told.update(rank=int(found.group(1)), path="/tmp/step_times/" + name, kind="numbers", last_at=end[2])
            rows.append(told)
    if missing:
        ctx.note("%d step files that ranks name are absent, empty or closed to us" % missing)
    if not rows:
        raise ctx.Absent("no rank names a step log (TRIAGE_STEP_LOG), and /tmp/step_times is empty")
    return {"ranks": rows, "named": len(named), "missing": missing}


if __name__ == "__main__":
    import _probe

    _probe.main(PROBE, collect)
