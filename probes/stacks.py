"""Where in its program does a suspected rank stand, and in which call of the kernel?

Reads    py-spy dump --pid 4242 --nonblocking --json     twice, half a second apart; see _frames.py for what it prints
         else POST /handler/dump_traceback               where the rank's process has opened PyTorch's control plane
         /proc/<pid>/task/<tid>/{comm,stat,wchan,syscall,stack}   "futex_do_wait"  "202 0x7f3c… 0x189 …"  (stack: root only)
         one line of the main thread's own source, of which only a word of VERBS leaves the node
py-spy is looked for on the node, in the rank's own environment, and may be carried there (--carry-py-spy, run from memory).
It is run with --nonblocking: it then reads the memory of the process and never stops it (no ptrace; a rank that stands still
is read as well so). `native` asks for C frames, which does stop the rank, and is refused while another process traces it.
Fooled by   calls of C, which have no frame: a lock that is taken, a tensor that is waited for (`.item()`) and a collective of
            NCCL all show the Python line that called them; a rank that moves on between the two dumps (`still` is false);
            pythons that py-spy does not know (an error, told); a container whose thread numbers are its own; a file that
            changed since it was loaded; an interpreter lock held for some milliseconds (both dumps must show it).
"""

import os
import re
import stat
import time

PROBE = {
    "name": "stacks",
    "version": 1,
    "needs": [],
    "timeout_s": 18,
    "cost": "intrusive",
    "fields": {
        "ranks": "list, one a rank that was asked for: rank, pid, state",
        "how": "text: py-spy (and where from) | control plane | empty where there is no Python stack",
        "why": "text: why there is none",
        "threads": "list: main thread first, then few others: tid, name, main, gil, active, frames, cut (frames left out)",
        "frames": "list: function, file, line, is it the job's own code; innermost first",
        "still": "bool: both dumps show the main thread at the same place; null with one dump",
        "verb": "text: what the main thread's line calls, a word of acquire lock flock wait join get sleep sync; or empty",
        "gil_held": "text: why the interpreter lock is known to be held by a thread that does not run; empty if not",
        "kernel": "list: main thread first, then threads in D: tid, comm, state, wchan, syscall, stack",
        "states": "count of threads by state",
    },
}

MAX_RANKS, MAX_TASKS, MAX_KERNEL = 16, 2048, 6
PAUSE_S, SPY_S, PLANE_S = 0.5, 4.0, 4.0
ENV_NAMES = ("VIRTUAL_ENV", "CONDA_PREFIX", "PATH", "TORCH_WORKER_SERVER_SOCKET", "RANK", "SLURM_PROCID")
SYSTEM = ("/usr/local/bin", "/usr/bin", "/usr/local/sbin", "/opt/py-spy/bin")
VERBS = (
    ("acquire", r"\.acquire\s*\("),
    ("lock", r"^\s*(?:async\s+)?with\b[^#]{0,200}?(?:(?<![bc])lock|mutex|semaphore)"),  # no block, no clock
    ("flock", r"\b(?:flock|lockf)\s*\("),
    ("sync", r"\.(?:item|cpu|tolist|numpy|synchronize)\s*\("),
    ("wait", r"\.wait\s*\("),
    ("join", r"\.join\s*\(\s*(?:timeout\b|\d|\))"),  # not of texts
    ("get", r"\.get\s*\("),
    ("sleep", r"\bsleep\s*\("),
)
SYSCALLS = {
    "x86_64": {
        0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 16: "ioctl",
        17: "pread64", 18: "pwrite64", 23: "select", 24: "sched_yield", 35: "nanosleep", 42: "connect", 43: "accept",
        45: "recvfrom", 47: "recvmsg", 61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 82: "rename",
        83: "mkdir", 87: "unlink", 202: "futex", 217: "getdents64", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid",
        257: "openat", 262: "newfstatat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4", 332: "statx",
    },
    "aarch64": {
        22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 34: "mkdir", 56: "openat", 57: "close", 61: "getdents64",
        63: "read", 64: "write", 67: "pread64", 68: "pwrite64", 72: "pselect6", 73: "ppoll", 79: "newfstatat", 80: "fstat",
        82: "fsync", 83: "fdatasync", 95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep",
        124: "sched_yield", 202: "accept", 203: "connect", 207: "recvfrom", 212: "recvmsg", 242: "accept4", 260: "wait4",
        291: "statx",
    },
}  # fmt: skip


class Rank(object):
    """One rank that was asked for, and what has been seen of it."""

    def __init__(self, rank, pid):
        self.rank, self.pid, self.env, self.argv0, self.tracer = rank, pid, {}, "", None
        self.threads, self.how, self.still, self.gil_held, self.verb = [], "", None, "", ""
        self.why, self.kernel, self.states, self.state = "", [], {}, None

    def row(self, frames):
        told = [{k: v for k, v in t.items() if k != "path"} for t in frames.chosen(self.threads)]
        return {
            "rank": self.rank, "pid": self.pid, "state": self.state, "tracer_pid": self.tracer, "how": self.how,
            "why": frames.clean(self.why, 240), "threads": told, "still": self.still, "verb": self.verb,
            "gil_held": self.gil_held, "kernel": self.kernel, "states": self.states,
        }  # fmt: skip


def asked(args):
    found = []
    for item in args.get("ranks") if isinstance(args.get("ranks"), list) else []:
        rank, pid = (item.get("rank"), item.get("pid")) if isinstance(item, dict) else (None, None)
        if type(rank) is int and type(pid) is int and rank >= 0 and 1 < pid <= 1 << 22:
            found.append(Rank(rank, pid))
    return found[:MAX_RANKS]


# ---------------------------------------------------------------- the kernel's side


def first_line(ctx, path, limit=256):
    return (ctx.read(path, limit) or "").strip()


def thread_row(ctx, pid, tid, clean):
    """One thread as the kernel shows it, or None where it is gone."""
    base = ctx.proc("%d/task/%d/" % (pid, tid))
    head, _, rest = first_line(ctx, base + "stat", 1024).rpartition(")")
    if not rest.split():
        return None
    wchan = first_line(ctx, base + "wchan", 96)
    words = first_line(ctx, base + "syscall", 256).split()
    name = words[0] if words else ""
    if name.isdigit():
        name = SYSCALLS.get(os.uname().machine, {}).get(int(name), name)
    lines = [line.split("] ", 1)[-1].split("+")[0] for line in first_line(ctx, base + "stack", 4096).splitlines()]
    return {
        "tid": tid, "comm": clean(head.partition("(")[2], 32), "state": rest.split()[0][:1],
        "wchan": "" if wchan == "0" else clean(wchan, 64), "syscall": clean(name, 32),
        "stack": [clean(line, 64) for line in lines[:10]],
    }  # fmt: skip


def look_at_kernel(ctx, rank, clean):
    """The main thread, and those that sleep where nothing wakes them: a worker may hold the wait that the main one shares."""
    tids = [int(name) for name in ctx.listdir(ctx.proc("%d/task" % rank.pid)) if name.isdigit()][:MAX_TASKS]
    rank.kernel, rank.states = [], {}
    for tid in sorted(tids, key=lambda tid: tid != rank.pid):
        text = first_line(ctx, ctx.proc("%d/task/%d/stat" % (rank.pid, tid)), 1024).rpartition(")")[2].split()
        state = text[0][:1] if text else "?"
        rank.states[state] = rank.states.get(state, 0) + 1
        if tid == rank.pid or (state == "D" and len(rank.kernel) < MAX_KERNEL):
            row = thread_row(ctx, rank.pid, tid, clean)
            if row:
                rank.kernel.append(row)
    rank.state = rank.kernel[0]["state"] if rank.kernel and rank.kernel[0]["tid"] == rank.pid else None


def learn(ctx, ranks):
    """Environment, command and tracer of each; reading them may never end where a thread holds the memory lock in D."""
    import _stuck

    def read_one(rank):
        env = {}
        for item in (ctx.read_bytes(ctx.proc("%d/environ" % rank.pid), 1 << 18) or b"").split(b"\0"):
            name, _, value = item.partition(b"=")
            if name.decode("ascii", "replace") in ENV_NAMES:
                env[name.decode("ascii")] = value[:4096].decode("utf-8", "surrogateescape")
        argv0 = (ctx.read_bytes(ctx.proc("%d/cmdline" % rank.pid), 4096) or b"").split(b"\0")[0]
        return env, argv0.decode("utf-8", "surrogateescape")

    told, stuck, _ = _stuck.guarded(ranks, read_one, ctx.left, 0.5, 4)
    for rank in ranks:
        if rank in told:
            rank.env, rank.argv0 = told[rank]
        elif rank in stuck:
            rank.why = "its memory lock is held in D state: it does not let itself be read"
        for line in (ctx.read(ctx.proc("%d/status" % rank.pid), 8192) or "").splitlines():
            if line.startswith("TracerPid:") and line.split()[1:2] and line.split()[1].isdigit():
                rank.tracer = int(line.split()[1])


# ---------------------------------------------------------------- py-spy


def folders(ctx, rank):
    """Where py-spy may lie: the node's own folders, then those of the rank's environment, below the rank's own root."""
    import _folders

    names = [rank.env[name] + "/bin" for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if rank.env.get(name)]
    names += [os.path.dirname(rank.argv0)] + rank.env.get("PATH", "").split(":")[:24]
    root = ctx.proc("%d/root" % rank.pid)
    inner = [_folders.resolve_in(root, name) for name in names if name.startswith("/")]
    home = os.path.expanduser("~")
    return list(dict.fromkeys(list(SYSTEM) + ([home + "/.local/bin"] if home.startswith("/") else []) + inner))


def find_spy(ctx, rank):
    """(path, "" ) of a py-spy that may be run, or (None, why not)."""
    why = ""
    for folder in folders(ctx, rank):
        path = folder + "/py-spy"
        try:
            seen, above = os.stat(path), os.stat(folder)
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(seen.st_mode) and seen.st_mode & 0o111:
            if may_run(seen) and may_run(above):
                return path, ""
            why = "a py-spy lies in the rank's own files and belongs to others than root and us; it is not run"
    return None, why or "no py-spy on this node"


def may_run(seen):
    """Only what root or we ourselves could have put there: as root, a program of the job's user is not run."""
    return seen.st_uid in (0, os.geteuid()) and not seen.st_mode & 0o022


class Spy(object):
    """A py-spy that can be run, and where it came from."""

    def __init__(self, path, label, fds=()):
        self.path, self.label, self.fds = path, label, fds

    def dump(self, ctx, rank, frames, native):
        """(threads, "") or ([], why)."""
        argv = [self.path, "dump", "--pid", str(rank.pid), "--json", "--native" if native else "--nonblocking"]
        code, out, err = ctx.run(argv, min(SPY_S, max(0.2, ctx.left() - 1.0)), 8 << 20, self.fds)
        if code != 0:
            lines = [line.strip() for line in err.splitlines() if line.strip()]
            return [], "py-spy: " + (frames.clean(lines[-1], 160) if lines else "ended with %s" % code)
        try:
            threads = frames.parse_json(out, rank.pid)
            return threads, "" if threads else "py-spy told no thread"
        except (ValueError, RecursionError):
            return [], "py-spy printed what is no dump"


def carried(ctx):
    """The py-spy that the operator sent along, in memory; None where none came."""
    if not ctx.args.get("carry"):
        return None
    if ctx.carried is None:
        ctx.note("the py-spy that was carried along cannot be run here: %s" % (ctx.carried_why or "it did not come"))
        return None
    return Spy("/proc/self/fd/%d" % ctx.carried, "py-spy (carried, from memory)", (ctx.carried,))


def spy_on(ctx, rank, sent, frames):
    """Two dumps of one rank."""
    native = bool(ctx.args.get("native"))
    if native and rank.tracer:
        ctx.note("rank %d is traced by process %d: no native frames" % (rank.rank, rank.tracer))
        native = False
    path, why = find_spy(ctx, rank)
    spies = [Spy(path, "py-spy")] if path else []
    if sent:
        spies.insert(0, sent)
    for spy in spies:
        before = rank.kernel
        first, why = spy.dump(ctx, rank, frames, native)
        if not first:
            continue
        time.sleep(min(PAUSE_S, max(0.0, ctx.left() - 3.0)))
        second, _ = spy.dump(ctx, rank, frames, native)
        look_at_kernel(ctx, rank, frames.clean)
        rank.threads, rank.how, rank.why = second or first, spy.label, ""
        rank.still = frames.alike(first, second) if second else None
        rank.gil_held = gil_held(ctx, rank, first, second, before)
        return
    rank.why = rank.why or why


def gil_held(ctx, rank, first, second, before):
    """Why the interpreter lock is held by a thread that sleeps in the kernel, in both dumps at one place; "" if it is not.

    Whoever sleeps without giving the lock up stops every other Python thread of the rank.
    """
    owners = [[t for t in dump if t["gil"]] for dump in (first, second or [])]
    if not all(len(found) == 1 for found in owners) or owners[0][0]["frames"] != owners[1][0]["frames"]:
        return ""
    owner = owners[1][0]
    tid = rank.pid if owner["main"] else owner["tid"]
    if tid is None:
        return ""
    text = first_line(ctx, ctx.proc("%d/task/%d/stat" % (rank.pid, tid)), 1024).rpartition(")")[2].split()
    was = [row["state"] for row in before if row["tid"] == tid]
    if not text or text[0] not in ("S", "D") or (was and was[0] not in ("S", "D")):
        return ""
    return "the thread %s holds the interpreter lock and sleeps in the kernel" % (owner["name"] or tid)


# ---------------------------------------------------------------- without py-spy


def ask_planes(ctx, ranks, frames):
    """The control plane's own traceback of those that have one; a `ping` beside it tells a held interpreter lock."""
    import _control_plane

    planes = {}
    for rank in ranks:
        plane, why = _control_plane.find(ctx, rank.pid, rank.env)
        if plane is not None:
            planes[rank] = plane
        elif why:
            rank.why = "; ".join(word for word in (rank.why, why) if word)
    limit_s = min(PLANE_S, max(0.0, ctx.left() - 1.0))
    if not planes or limit_s < 0.3:
        return
    wanted = {(rank, name): (plane, name) for rank, plane in planes.items() for name in ("ping", "dump_traceback")}
    answers = _control_plane.ask_all(wanted, limit_s, 4 << 20)
    for rank in planes:
        ping, trace = answers[(rank, "ping")], answers[(rank, "dump_traceback")]
        if trace.good:
            rank.threads = threads_of(trace, frames)
            rank.how, rank.why = ("control plane", "") if rank.threads else ("", "its traceback names no thread")
        elif trace.silent and ping.good:
            rank.gil_held = (
                "its control plane answers, but not with a traceback, for which it needs the interpreter lock"
            )
            rank.why = "; ".join(word for word in (rank.why, trace.why) if word)
        else:
            rank.why = "; ".join(w for w in (rank.why, trace.why or "its control plane gives no traceback") if w)

    told = {rank: (plane, "dump_traceback") for rank, plane in planes.items() if rank.threads}
    if told and ctx.left() > PAUSE_S + 2.0:
        time.sleep(PAUSE_S)
        for rank, answer in _control_plane.ask_all(told, min(PLANE_S, ctx.left() - 1.0), 4 << 20).items():
            second = threads_of(answer, frames) if answer.good else []
            rank.still = frames.alike(rank.threads, second) if second else None
            look_at_kernel(ctx, rank, frames.clean)


def threads_of(answer, frames):
    return frames.parse_text(answer.body.decode("utf-8", "replace"))


def read_verbs(ctx, ranks):
    """What the line that the main thread stands in calls: read on the node, and only the word is told."""
    import _folders
    import _stuck

    def read_one(rank):
        main = [t for t in rank.threads if t["main"] and t["frames"]][:1]
        if not main or not main[0]["frames"][0][3] or not str(main[0].get("path") or "").startswith("/"):
            return ""
        path = _folders.resolve_in(ctx.proc("%d/root" % rank.pid), main[0]["path"])
        if not stat.S_ISREG(os.stat(path).st_mode):
            return ""
        lines = (ctx.read(path, 4 << 20) or "").splitlines()
        number = main[0]["frames"][0][2]
        return verb_of(lines[number - 1]) if 0 < number <= len(lines) else ""

    def safely(rank):
        try:
            return read_one(rank)
        except (OSError, ValueError):
            return ""

    told, _, _ = _stuck.guarded(ranks, safely, ctx.left, 0.4, 3)
    for rank, verb in told.items():
        rank.verb = verb


def verb_of(line):
    code = line[:400].split("#")[0]
    return next((verb for verb, pattern in VERBS if re.search(pattern, code, re.I)), "")


# ---------------------------------------------------------------- collect


def collect(ctx):
    import _frames

    ranks = asked(ctx.args)
    if not ranks:
        raise ctx.Absent('no rank was named; --args \'{"ranks": [{"rank": 3, "pid": 4242}]}\'')
    for rank in ranks:
        look_at_kernel(ctx, rank, _frames.clean)
        if not rank.kernel:
            rank.why = "its process is gone"
    alive = [rank for rank in ranks if rank.kernel]
    learn(ctx, alive)
    if ctx.real:
        sent = carried(ctx)
        for rank in alive:
            if rank.state in ("Z", "X"):
                rank.why = "its process is dead"
            elif ctx.left() < 3.0:
                rank.why = rank.why or "no time was left for it"
            elif not rank.why:
                spy_on(ctx, rank, sent, _frames)
    else:
        for rank in alive:
            rank.why = rank.why or "no program of the host is run below another root"
    without = [rank for rank in alive if not rank.threads and rank.state not in ("T", "t", "Z", "X")]
    ask_planes(ctx, without, _frames)
    read_verbs(ctx, [rank for rank in alive if rank.threads])
    return {"ranks": [rank.row(_frames) for rank in ranks]}


if __name__ == "__main__":
    import _probe

    _probe.main(PROBE, collect)
