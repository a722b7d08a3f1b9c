"""What has each rank's flight recorder written: where does the rank wait, and what came before?

Reads    the dump of every rank on this node, a pickle or JSON of PyTorch's flight recorder, format 2.3 to 2.10:
         {"version": "2.10", "pg_status": {...},
          "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
          "entries": [{"record_id": 86694, "process_group": ("35", "TP"), "collective_seq_id": 39408, "retired": False,
                       "profiling_name": "nccl:_all_gather_base", "input_sizes": [[4096, 512]], "state": "scheduled"}]}
         and reduces it to at most 4 KB. If asked, it first pokes the recorder's FIFO and waits for the new file: this is
         the one thing that triage ever writes to on a node (one byte, never blocking, into an existing FIFO only).
Fooled by   a dump of an earlier attempt or of another job in the shared cache folder (no job id inside: its age is
            compared with the process); a file that is being written (truncated first, then filled in place); `started`,
            which never appears without timing; gloo, whose ops stay `scheduled` for ever and are `retired` also when
            they failed; names that two groups share; local group ids that differ between ranks; a hostile pickle.
"""

import errno
import os
import stat
import time

PROBE = {
    "name": "flight_recorder",
    "version": 1,
    "needs": [],
    "timeout_s": 12,
    "cost": "intrusive",
    "fields": {
        "ranks": "list, one a rank of this node: rank, pid, state, and what follows",
        "source": "none | file (it lay there) | poked (it was written for us)",
        "mtime": "epoch s, the file system's clock",
        "age_s": "s between mtime and the moment of reading",
        "stale": "bool: older than the process that should have written it, so of another attempt",
        "poke": "text: written, no_reader (no live monitor thread), no_fifo, not_a_fifo, denied, not_asked, skipped_state",
        "before": "what the dump that the poke overwrote had said: mtime, and [enqueued, done] of each group",
        "record": "reduced dump, <= 4 KB; its shape is told at reduce_dump()",
    },
}

STALE_SLACK_S = 2.0  # a process start is btime (whole seconds) plus ticks


def _records():
    """The reader of dumps: it lies beside this file, and travels in the payload with it."""
    import _records

    return _records


# ---------------------------------------------------------------- finding files and FIFOs

NAMES = (
    "RANK SLURM_PROCID OMPI_COMM_WORLD_RANK PMIX_RANK MASTER_ADDR MASTER_PORT WORLD_SIZE TORCHELASTIC_RUN_ID HOME "
    "XDG_CACHE_HOME TORCH_FR_DUMP_TEMP_FILE TORCH_NCCL_DEBUG_INFO_TEMP_FILE TORCH_FR_DUMP_DYNAMIC_FILE_NAME "
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
).split()

SET_NAMES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")
WRAPPERS = frozenset("sh bash dash zsh srun slurmstepd numactl env timeout tini dumb-init".split())


def parse_environ(data):
    env = {}
    for item in data.split(b"\0"):
        name, mark, value = item.partition(b"=")
        name = name.decode("ascii", "replace")
        if mark and name in NAMES and name not in env:
            env[name] = value[:1024].decode("utf-8", "surrogateescape")
    return env


def dump_paths(env, rank):
    """Where this rank's dump may lie, best guess first; what the job's own code set later is not visible."""
    told = []
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        if env.get(name):
            told.append(env[name] + str(rank))
            if env.get("TORCH_FR_DUMP_DYNAMIC_FILE_NAME", "").lower() in ("1", "true", "yes", "on", "y"):
                told.insert(0, env[name])  # then the name is complete as it stands
    for folder in (env.get("XDG_CACHE_HOME"), env.get("HOME") and env["HOME"] + "/.cache"):
        if folder:
            told.append("%s/torch/comm_lib_trace_rank_%d" % (folder, rank))
    told.append("/tmp/nccl_trace_rank_%d" % rank)
    return [p for i, p in enumerate(told) if p.startswith("/") and p not in told[:i]]


def resolve_in(root, path):
    """`path` below `root`: a container's links must not lead out of it."""
    import _folders  # it travels in the payload beside this file, too

    return _folders.resolve_in(root, path)


class Place(object):
    """One rank of this node, its files, and what has been seen of them."""

    def __init__(self, rank, pid):
        self.rank, self.pid, self.state, self.start = rank, pid, None, None
        self.env, self.why, self.poke = {}, "", "not_asked"
        self.paths, self.fifo, self.marks = [], None, {}
        self.path, self.mtime, self.record, self.source, self.before = None, None, None, "none", None
        self.gone = False

    def row(self, now):
        stale = bool(self.mtime is not None and self.start is not None and self.mtime < self.start - STALE_SLACK_S)
        why = self.why
        if stale:
            why = "older than the process (by %d s): of another attempt or job" % int(self.start - self.mtime)
        row = {
            "rank": self.rank, "pid": self.pid, "state": self.state, "source": self.source, "path": _records().clean(self.path or "", 256),
            "mtime": self.mtime, "age_s": None if self.mtime is None else round(now - self.mtime, 1), "stale": stale,
            "why": _records().clean(why, 160), "poke": self.poke, "record": None if stale else self.record,
        }  # fmt: skip
        if self.before:
            row["before"] = self.before
        return row


def boot_time(ctx):
    for line in (ctx.read(ctx.proc("stat"), 1 << 20) or "").splitlines():
        if line.startswith("btime "):
            return _records().whole(line.split()[1])
    return None


def read_stat(ctx, pid, boot):
    """(state, parent, start as epoch s) of a process, or None where it is not there."""
    text = ctx.read(ctx.proc("%d/stat" % pid), 4096)
    fields = text.rpartition(")")[2].split() if text else []
    if len(fields) < 20:
        return None
    try:
        hertz = os.sysconf("SC_CLK_TCK")
    except (ValueError, OSError):
        hertz = 100
    ticks = _records().whole(fields[19])
    return (
        fields[0],
        _records().whole(fields[1]),
        None if boot is None or ticks is None else boot + ticks / float(hertz),
    )


def rank_of(env):
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"):
        if name in env:
            return _records().whole(env[name])
    return None


def find_ranks(ctx, boot):
    """Ranks by the environment of all processes: the topmost of those that share a rank set and a number."""
    found = {}
    for name in ctx.listdir(ctx.procfs):
        if not name.isdigit():
            continue
        data = ctx.read_bytes(ctx.proc(name + "/environ"), 1 << 17)
        if not data or (b"RANK=" not in data and b"SLURM_PROCID=" not in data):
            continue
        env = parse_environ(data)
        rank, told = rank_of(env), read_stat(ctx, int(name), boot)
        if rank is not None and 0 <= rank < 1000000 and told and told[0] not in ("Z", "X"):
            key = (rank,) + tuple(env.get(n) for n in SET_NAMES)
            found[int(name)] = (key, env, told)
    tops = {}
    for pid in sorted(found):
        key, env, told = found[pid]
        comm = (ctx.read(ctx.proc("%d/comm" % pid), 64) or "").strip()
        if comm in WRAPPERS:
            continue  # a wrapper: the rank is below it
        parent = found.get(told[1])
        while parent and parent[0] == key:
            above = (ctx.read(ctx.proc("%d/comm" % told[1]), 64) or "").strip()
            if above not in WRAPPERS:
                break
            told = parent[2]
            parent = found.get(told[1])
        if parent and parent[0] == key:
            continue
        if key not in tops or (found[pid][2][2] or 0) < (found[tops[key]][2][2] or 0):
            tops[key] = pid
    return [(found[pid][0][0], pid) for pid in sorted(tops.values())]


def places(ctx):
    told = ctx.args.get("ranks")
    boot = boot_time(ctx)
    if isinstance(told, list):
        pairs = [(_records().whole(r.get("rank")), _records().whole(r.get("pid"))) for r in told if isinstance(r, dict)]
        pairs = [(rank, pid) for rank, pid in pairs if rank is not None and pid is not None and pid > 0]
    else:
        pairs = find_ranks(ctx, boot)
    out = []
    for rank, pid in pairs[:256]:
        place = Place(rank, pid)
        seen = read_stat(ctx, pid, boot)
        if seen is None:
            place.gone, place.why = True, "process %d is gone" % pid
        else:
            place.state, _, place.start = seen
            data = ctx.read_bytes(ctx.proc("%d/environ" % pid), 1 << 17)
            if data is None:
                place.why = "the environment of process %d may not be read" % pid
            place.env = parse_environ(data or b"")
            where(ctx, place)
        out.append(place)
    return out


def where(ctx, place):
    """Fill in the candidate files and the FIFO, as paths that we can open."""
    root = ctx.proc("%d/root" % place.pid) if ctx.real else ctx.rootfs

    def ours(path):
        # With another root a path may already be told from our side of it.
        if not ctx.real and ctx.rootfs not in ("", "/") and path.startswith(ctx.rootfs.rstrip("/") + "/"):
            return path
        return resolve_in(root, path)

    place.paths = [ours(path) for path in dump_paths(place.env, place.rank)]
    pipe = place.env.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    if pipe and pipe.startswith("/"):
        place.fifo = ours("%s%d.pipe" % (pipe, place.rank))


# ---------------------------------------------------------------- files


def mark(path):
    """What tells one version of a file from the next, or None where there is no regular file."""
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return (seen.st_mtime_ns, seen.st_size, seen.st_ino) if stat.S_ISREG(seen.st_mode) else None


def read_file(path):
    """(bytes, mtime) of a regular file of at most 64 MiB; OSError or _records().BadDump otherwise. Never blocks on a FIFO."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode):
            raise _records().BadDump("not a regular file")
        if seen.st_size > _records().MAX_FILE:
            raise _records().BadDump("larger than %d MiB" % (_records().MAX_FILE >> 20))
        parts, left = [], seen.st_size + 1
        while left > 0:
            got = os.read(fd, min(left, 1 << 20))
            if not got:
                break
            parts.append(got)
            left -= len(got)
        return b"".join(parts), seen.st_mtime
    finally:
        os.close(fd)


def last_byte(path):
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        size = os.fstat(fd).st_size
        os.lseek(fd, max(0, size - 16), os.SEEK_SET)
        return os.read(fd, 16)
    except OSError:
        return b""
    finally:
        os.close(fd)


def take(place, path, source, cache):
    """Read, reduce and remember one file; False (with the reason kept) where it cannot be used."""
    try:
        raw, mtime = read_file(path)
        obj, kind = _records().load_dump(raw)
        record = _records().reduce_dump(obj, place.rank, kind, cache)
    except _records().BadDump as error:
        place.why = str(error)
        if place.path is None:
            place.path = path
        return False
    except OSError as error:
        place.why = "cannot be read (%s)" % errno.errorcode.get(error.errno, error.errno)
        return False
    place.path, place.mtime, place.record, place.source, place.why = path, round(mtime, 3), record, source, ""
    return True


def outline(place):
    """What the dump that a poke overwrites had said: progress since then shows without a copy of it."""
    rows = [r for r in place.record["groups"] if "enq" in r][:12]
    return {
        "mtime": place.mtime,
        "newest_s": place.record["newest_s"],
        "groups": {r["name"]: [r["enq"], r.get("last_done")] for r in rows},
    }


def poke(path):
    """One byte into an existing FIFO, never blocking, never creating: what became of it."""
    try:
        seen = os.lstat(path)
    except OSError as error:
        return "denied" if error.errno == errno.EACCES else "no_fifo"
    if not stat.S_ISFIFO(seen.st_mode):
        return "not_a_fifo"  # a shell's `echo 1 > path` made it, when there was no FIFO
    try:
        # The one place where a probe opens anything for writing: without O_CREAT, and never through a link.
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return {errno.ENXIO: "no_reader", errno.ENOENT: "no_fifo", errno.ELOOP: "not_a_fifo"}.get(error.errno, "denied")
    try:
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            return "not_a_fifo"
        os.write(fd, b"1")
        return "written"
    except OSError as error:
        # A full pipe _records().holds bytes that nobody has read: the reader has the FIFO open and does not poll it.
        return "no_reader" if error.errno in (errno.EAGAIN, errno.EPIPE) else "denied"
    finally:
        os.close(fd)


# ---------------------------------------------------------------- collect


def collect(ctx):
    found = places(ctx)
    if not found:
        raise ctx.Absent("no rank of a job is seen on this node")
    cache = {}
    for place in found:
        for path in place.paths:
            place.marks[path] = mark(path)
        there = [p for p in place.paths if place.marks[p]]
        if not there:
            place.why = place.why or "no dump in %d places" % len(place.paths)
            continue
        # The job's own setting first; among the defaults the newest.
        told = [p for p in there if place.paths.index(p) < _told(place)]
        path = told[0] if told else max(there, key=lambda p: place.marks[p][0])
        take(place, path, "file", cache)
    if ctx.args.get("poke"):
        poke_all(ctx, found, cache)
    now = ctx.now()
    return {"ranks": [place.row(now) for place in found]}


def _told(place):
    """How many of the candidates come from the job's own environment (the last ones are defaults)."""
    defaults = len([1 for n in ("XDG_CACHE_HOME", "HOME") if place.env.get(n)]) + 1
    return max(0, len(place.paths) - defaults)


def poke_all(ctx, found, cache):
    """All pokes first, then one wait for all: a node costs one wait, not one a rank."""
    wait_s = ctx.args.get("wait_s", 4.0)
    wait_s = min(max(float(wait_s), 0.0), 30.0) if isinstance(wait_s, (int, float)) else 4.0
    waiting, late = [], []
    for place in found:
        if place.gone:
            place.poke = "skipped_state"
        elif place.state in ("T", "t", "Z", "X"):
            place.poke = "skipped_state"  # a stopped rank takes the byte and dumps when it is woken, if ever
        elif place.fifo is None:
            place.poke = "no_fifo"
        else:
            place.poke = poke(place.fifo)
            if place.poke == "written":
                # A rank in D may still dump (the monitor is another thread) but is not worth waiting for.
                (late if place.state == "D" else waiting).append(place)
    end = time.monotonic() + min(wait_s, max(0.0, ctx.left() - 1.0))
    pause = 0.05
    while waiting and time.monotonic() < end:
        waiting = [place for place in waiting if not fresh(place, cache)]
        if waiting:
            time.sleep(min(pause, max(0.0, end - time.monotonic())))
            pause = min(pause * 1.5, 0.25)
    for place in waiting + late:
        if not fresh(place, cache):
            if "half written" not in place.why:
                place.why = "poked, and no new dump came within %.1f s" % wait_s


def fresh(place, cache):
    """Has the poke made a new, complete dump? Then it is taken."""
    for path in place.paths:
        now = mark(path)
        if now is None or now == place.marks.get(path):
            continue
        if not _records().looks_finished(last_byte(path)):
            place.why = "the new dump is only half written"
            continue
        before = outline(place) if place.record and place.source == "file" else None
        if take(place, path, "poked", cache):
            place.before = before
            return True
    return False


if __name__ == "__main__":
    import _probe

    _probe.main(PROBE, collect)
