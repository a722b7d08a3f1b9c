"""How long did the last steps of each rank take, and what were they spent on?

Reads    /proc/<pid>/environ         TRIAGE_STEP_LOG=/shared/steps/rank_ and RANK=3 name /shared/steps/rank_3.jsonl
         that file, last 256 KiB     {"step":12,"rank":3,"t_start":1790000000.123,"compute_ms":500.1,
                                      "collective_ms":3.2,"data_ms":0.1,"total_ms":503.9}     a line a finished step
                                     (also gc_ms and seq_tokens; triage/steplog.py writes them, triage-steplog(3))
         /tmp/step_times/rank_3.log  "503.9"                                      one number a line, the whole step
A rank that has died names nothing any more: its file is found beside those of its siblings on this node.
Fooled by   two jobs on one node (every entry says whose it is, in `set` and `pids`; with args["match"] those of others
            are left out) and two jobs that write to one file (told once for each); a file of an earlier attempt
            (compare last_at with the attempt's start); a torn last line (passed over); the step under way (a record is
            written when its step ends); plain numbers without a unit (`unit` says what was assumed) and without an
            owner, which never name a culprit: all ranks of a synchronous job show the same total
            (notes/straggler-and-cost.md 2); a path inside a container (tried through /proc/<pid>/root).
"""

import json
import os
import re
import stat

PROBE = {
    "name": "steps",
    "version": 1,
    "needs": [],
    "timeout_s": 4,
    "cost": "cheap",
    "fields": {
        "ranks": "list, one a step file and rank set: rank, path, kind records or numbers",
        "pids": "processes of that set that name the file's prefix, those of this very rank first (records)",
        "shared": "bool: ranks that args[match] leaves out name this file as well (records)",
        "set": "the owners' MASTER_ADDR MASTER_PORT WORLD_SIZE TORCHELASTIC_RUN_ID SLURM_JOB_ID and what match names",
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
MAX_PIDS = 16  # owners told of one file
MAX_SIBLINGS = 64  # ranks of one node, by LOCAL_WORLD_SIZE
MAX_STUCK = 4  # processes that do not let themselves be read, before we give up
STALL_S = 0.4
NUMBERS = ("t_start", "total_ms", "compute_ms", "collective_ms", "data_ms", "gc_ms", "seq_tokens")
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
            columns[name] = [round(value, 6 if name == "t_start" else 3) for value in values]
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


SET_NAMES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
RANK_NAMES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
NAMES = SET_NAMES + RANK_NAMES + ("TRIAGE_STEP_LOG", "LOCAL_WORLD_SIZE", "GROUP_RANK")


def whole(text):
    """A plain non-negative decimal number of at most seven digits, or None."""
    return int(text) if text and len(text) <= 7 and all(c in "0123456789" for c in text) else None


def owner_of(environ, more=()):
    """Who a process is, by its environment block (bytes): None if it names no step log, else

    {"rank", "from": name that told it, "prefix", "set": {name: value} of SET_NAMES and `more`,
     "siblings": ranks of its node by its launcher}
    """
    if b"TRIAGE_STEP_LOG=" not in environ:
        return None
    wanted = {name.encode("utf-8", "surrogateescape"): name for name in NAMES + tuple(more)}
    env = {}
    for item in environ.split(b"\0"):
        name, mark, value = item.partition(b"=")
        if mark and name in wanted:
            text = value[:1024].decode("utf-8", "replace")
            env.setdefault(wanted[name], "".join(c if c.isprintable() else " " for c in text))
    prefix = env.get("TRIAGE_STEP_LOG", "")
    for name in RANK_NAMES:
        rank = whole(env.get(name))
        if rank is not None:
            break
    else:
        return None
    if not prefix.startswith("/"):
        return None
    group, size = whole(env.get("GROUP_RANK")), whole(env.get("LOCAL_WORLD_SIZE"))
    siblings = ()
    # Nodes with unequal numbers of ranks break the product: believe it only where it also places the rank itself.
    if group is not None and size and size <= MAX_SIBLINGS and group * size <= rank < (group + 1) * size:
        siblings = tuple(range(group * size, (group + 1) * size))
    told = {n: env[n] for n in SET_NAMES + tuple(more) if n in env}
    return {"rank": rank, "from": name, "prefix": prefix, "set": told, "siblings": siblings}


def files_of(owners, job_id="", match=None):
    """Step files of these owners {pid: owner_of()}, as [(rank, prefix, set, [pids], shared)]: one a rank, prefix and set.

    The job's first (as `ranks` chooses), so that of too many files the others' are left out; with `match` only its own.
    """
    sets, left_out = {}, set()  # (prefix, set as pairs) -> {pid: owner}; (rank, prefix)
    # A torchrun agent under srun has SLURM_PROCID and its children's step log; it is no rank where they wear RANK.
    ranked = {owner["prefix"] for owner in owners.values() if owner["from"] == "RANK"}
    for pid, owner in owners.items():
        if owner["from"] != "RANK" and owner["prefix"] in ranked:
            continue
        if not match or all(owner["set"].get(name) == value for name, value in match.items()):
            sets.setdefault((owner["prefix"], tuple(sorted(owner["set"].items()))), {})[pid] = owner
        else:
            left_out.add((owner["rank"], owner["prefix"]))
    found = []
    for (prefix, pairs), members in sets.items():
        told = dict(pairs)
        ranks = {owner["rank"] for owner in members.values()}
        for owner in members.values():
            ranks.update(owner["siblings"])
        for rank in ranks:
            pids = sorted(members, key=lambda pid: (members[pid]["rank"] != rank, pid))[:MAX_PIDS]
            found.append((rank, prefix, told, pids, (rank, prefix) in left_out))

    def others(file):
        return bool(job_id) and job_id not in (file[2].get("SLURM_JOB_ID"), file[2].get("TORCHELASTIC_RUN_ID"))

    return sorted(found, key=lambda file: (others(file), file[0], file[1], file[3]))


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


def environ_of(ctx, pid):
    try:
        with open(ctx.proc(pid + "/environ"), "rb") as handle:
            return handle.read(262144)
    except OSError:
        return b""  # ended, or not ours to read: `ranks` counts those


def collect(ctx):
    match = ctx.args.get("match")
    match = {str(k): str(v) for k, v in match.items()} if isinstance(match, dict) else {}
    pids = [pid for pid in ctx.listdir(ctx.procfs) if pid.isdigit()]
    import _stuck  # beside this file, and in the payload

    told, stuck, complete = _stuck.guarded(
        pids, lambda pid: owner_of(environ_of(ctx, pid), tuple(match)), ctx.left, STALL_S, MAX_STUCK
    )
    if stuck or not complete:
        ctx.note("not all processes could be looked at (%d do not let themselves be read)" % len(stuck))
    owners = {int(pid): told[pid] for pid in pids if told.get(pid)}
    files = files_of(owners, str(ctx.args.get("job_id") or ""), match)
    alive = {(owner["rank"], owner["prefix"]) for owner in owners.values()}
    rows, missing = [], 0
    for rank, prefix, whose, wearers, shared in files[:MAX_RANKS]:
        if ctx.left() < 0.2:
            ctx.note("not all step files were read")
            break
        path = "%s%d.jsonl" % (prefix, rank)
        # A container's path exists only below its own root. A test folder's path exists only below that folder.
        inside = ctx.proc("%d/root%s" % (wearers[0], path))
        end = first_end([inside, path] if ctx.real else [ctx.root(path), inside])
        found = reduce_records(end[0], end[1]) if end else None
        if found is None:
            missing += (rank, prefix) in alive  # a sibling need not live here
            continue
        rows.append(dict(found, rank=rank, path=path, kind="records", pids=wearers, set=whose, shared=shared))
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
    return {"ranks": rows, "named": len(files), "missing": missing}


if __name__ == "__main__":
    import _probe

    _probe.main(PROBE, collect)
