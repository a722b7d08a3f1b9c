"""Where may each rank's flight-recorder dump lie, and where its FIFO? Shared by the probe and nobody else yet.

    places(ctx)    one Place a rank of this node: its process, its candidate files in order of trust, its FIFO

The names are those of every release (notes/flight-recorder.md 2); paths are resolved through the process's own root, so
that a container's files are found and its links do not lead out of it.
Fooled by   what the job's own code set after it began: only the environment at exec is visible.

(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import os
import stat

STALE_SLACK_S = 2.0  # a process start is btime (whole seconds) plus ticks


def _records():
    """The reader of dumps: it lies beside this file, and travels in the payload with it."""
    import _records

    return _records


NAMES = (
    "RANK SLURM_PROCID OMPI_COMM_WORLD_RANK PMIX_RANK MASTER_ADDR MASTER_PORT WORLD_SIZE TORCHELASTIC_RUN_ID HOME "
    "XDG_CACHE_HOME TORCH_FR_DUMP_TEMP_FILE TORCH_NCCL_DEBUG_INFO_TEMP_FILE TORCH_FR_DUMP_DYNAMIC_FILE_NAME "
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE TORCH_WORKER_SERVER_SOCKET"
).split()


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


class Place(object):
    """One rank of this node, its files, and what has been seen of them."""

    def __init__(self, rank, pid):
        self.rank, self.pid, self.state, self.start = rank, pid, None, None
        self.env, self.why, self.poke = {}, "", "not_asked"
        self.paths, self.fifo, self.marks = [], None, {}
        self.path, self.mtime, self.record, self.source, self.before = None, None, None, "none", None
        self.gone, self.http = False, "none"

    def told(self):
        """How many of the candidates come from the job's own environment (the last ones are defaults)."""
        defaults = len([1 for n in ("XDG_CACHE_HOME", "HOME") if self.env.get(n)]) + 1
        return max(0, len(self.paths) - defaults)

    def row(self, now):
        stale = bool(self.mtime is not None and self.start is not None and self.mtime < self.start - STALE_SLACK_S)
        why = self.why
        if stale:
            why = "older than the process (by %d s): of another attempt or job" % int(self.start - self.mtime)
        row = {
            "rank": self.rank, "pid": self.pid, "state": self.state, "source": self.source, "path": _records().clean(self.path or "", 256),
            "mtime": self.mtime, "age_s": None if self.mtime is None else round(now - self.mtime, 1), "stale": stale,
            "why": _records().clean(why, 160), "poke": self.poke, "http": self.http, "record": None if stale else self.record,
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


def find_ranks(ctx):
    """(rank, pid) of all ranks of this node, found as the ranks probe finds them."""
    import _processes

    procs, _, _, _ = _processes.read_table(ctx)
    _processes.set_keys(procs)
    found, _, _ = _processes.find_ranks(procs)
    return sorted((proc.key[-1], proc.pid) for proc, _ in found if proc.state not in ("Z", "X"))


def places(ctx):
    told = ctx.args.get("ranks")
    boot = boot_time(ctx)
    if isinstance(told, list):
        pairs = [(_records().whole(r.get("rank")), _records().whole(r.get("pid"))) for r in told if isinstance(r, dict)]
        pairs = [(rank, pid) for rank, pid in pairs if rank is not None and pid is not None and pid > 0]
    else:
        pairs = find_ranks(ctx)
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
    import _folders

    root = ctx.proc("%d/root" % place.pid) if ctx.real else ctx.rootfs

    def ours(path):
        # With another root a path may already be told from our side of it.
        if not ctx.real and ctx.rootfs not in ("", "/") and path.startswith(ctx.rootfs.rstrip("/") + "/"):
            return path
        return _folders.resolve_in(root, path)  # a container's links must not lead out of it

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
