"""What could a silent rank be busy with, as far as can be seen without tracing it?

Reads    /proc/<pid>/stat of every process, many times within the window: the compilers below a rank and the CPU they burn
             "4711 (ptxas) R 4242 …"      "4300 (python3.11) S 4242 …" .../torch/_inductor/compile_worker/__main__.py
         /proc/<pid>/io  "wchar: 1034567"   of the rank and all that is below it, at both ends of the window
         the compile caches, checkpoint and data folders that its environment and command line name: what grew there
         /proc/<pid>/fd/{1,2}, if that is a plain file: its last progress bar  "\\r 45%|####     | 45/100 [00:10<00:12 …"
Fooled by   a name: a process called ptxas may do nothing (then cpu_s is 0, and nothing is said); compilers inside the rank
            (NVRTC, the driver's own, XLA), which have no process; workers that the rank forked itself
            (TORCHINDUCTOR_WORKER_START=fork), which look like the rank: of these only the ptxas below them is seen;
            compilers that live less than a look (0.1 s); a cache that several ranks, nodes or jobs share: it grows for
            all of them (`shared_with` counts the ranks asked); a standard output that all ranks share; bytes of sockets
            and pipes in rchar and wchar (read_bytes and write_bytes are storage only); what is written elsewhere.
"""

import os
import time

PROBE = {
    "name": "activity",
    "version": 1,
    "needs": [],
    "timeout_s": 12,
    "cost": "slow",
    "fields": {
        "window_s": "s between the two looks at processes; folders are walked just before and just after it",
        "ranks": "list, one a rank that was asked for and is there",
        "compilers": "list, at most 16, busiest first: pid, comm, state, cpu_s burnt within the window",
        "compiler_cpu_s": "CPU s of all compilers below the rank within the window",
        "cpu_s": "CPU s of the rank itself, all threads, within the window",
        "caches": "list: path, kind triton inductor cuda torch_extensions xla neuron, and what grew",
        "folders": "list: path, kind checkpoint data_cache, and what grew",
        "files_new": "files made or grown between the walks (no locks, nothing empty); null if not known",
        "bytes_grown": "bytes, of those files",
        "newest_at": "epoch s of the newest file, clock of the file system (a server's, if it is shared)",
        "truncated": "bool: not all of the folder was seen; growth that is told is certain, none told is no proof",
        "why": "text: why the folder says nothing; empty if it does",
        "shared_with": "count of other ranks in this answer that have the same folder",
        "read_bytes_grown": "bytes fetched from storage within the window, rank and all below it; null if unreadable",
        "write_bytes_grown": "bytes sent to storage, likewise",
        "rchar_grown": "bytes of read calls, likewise (page cache, pipes and some sockets included)",
        "wchar_grown": "bytes of write calls, likewise",
        "progress_line": "text: the last progress bar of its standard output or error, if that is a plain file",
        "progress_moved": "bool: that line changed within the window; null if there is none",
        "unseen": "list: ranks that were asked for and are not in ranks: rank, pid, why",
    },
}

WINDOW_S, SHORTEST_S, LONGEST_S = 1.5, 0.1, 5.0
PAUSE_S = 0.1  # between two looks at the processes; longer where a look itself takes long
WALK_S, STALL_S, MAX_STUCK = 0.9, 1.3, 3  # one folder; one that does not answer; how many of those
MAX_RANKS, MAX_COMPILERS, MAX_PLACES, MAX_NAMES = 64, 16, 24, 200000
TAIL = 16384
LAST_PID = 1 << 22

IO_NAMES = ("read_bytes", "write_bytes", "rchar", "wchar")


# ---------------------------------------------------------------- pure


def clean(text, limit=256):
    return "".join(c if c.isprintable() else " " for c in text[:limit])


def asked_ranks(args):
    """[(rank, pid)] of the request, without what is none."""
    found = []
    for item in args.get("ranks") or () if isinstance(args.get("ranks"), (list, tuple)) else ():
        rank, pid = (item.get("rank"), item.get("pid")) if isinstance(item, dict) else (None, None)
        if type(rank) is int and type(pid) is int and rank >= 0 and 1 < pid <= LAST_PID and (rank, pid) not in found:
            found.append((rank, pid))
    return found[:MAX_RANKS]


def read_io(ctx, pid):
    """{counter: bytes} of a process; {} if it is gone or closed to us."""
    found = {}
    for line in (ctx.read(ctx.proc("%d/io" % pid), 1024) or "").splitlines():
        name, _, value = line.partition(":")
        if name in IO_NAMES and value.strip().isdigit():
            found[name] = int(value)
    return found


def io_sums(ctx, watch):
    """{top: {counter: bytes}}; None for a rank whose own counters are closed to us.

    The kernel adds what a child had moved to its parent's counters once it is reaped, so nothing is lost on the way.
    """
    sums = {}
    for top, tree in watch.trees.items():
        own = read_io(ctx, top)
        inner = [read_io(ctx, pid) for pid, _ in tree]
        sums[top] = {n: own[n] + sum(one.get(n, 0) for one in inner) for n in IO_NAMES} if len(own) == 4 else None
    return sums


# ---------------------------------------------------------------- what belongs to a rank


class Rank(object):
    def __init__(self, rank, pid, start):
        self.rank, self.pid, self.start = rank, pid, start
        self.root = "/"
        self.mounts = ()  # mount points, as the rank sees them
        self.places = []  # (list it is told in, kind, path as the job names it)

    def thing(self, path):
        """What has to be looked at for one place: the same for all ranks that share it."""
        return "folder", self.root, path


class Self(object):
    """What one process says of itself; read where reading may never end."""

    def __init__(self, ctx, pid):
        base = "%d/" % pid
        self.environ = ctx.read_bytes(ctx.proc(base + "environ"), 262144)
        self.cmdline = ctx.read_bytes(ctx.proc(base + "cmdline"), 65536) or b""
        self.cwd = target_of(ctx.proc(base + "cwd"))
        self.uid = ""
        for line in (ctx.read(ctx.proc(base + "status"), 4096) or "").splitlines():
            if line.startswith("Uid:"):
                self.uid = line.split()[1]
        lines = [line.split() for line in (ctx.read(ctx.proc(base + "mounts"), 1 << 18) or "").splitlines()]
        self.mounts = [words[1] for words in lines if len(words) > 2]
        self.view = view_of(ctx, pid)


def target_of(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""


def view_of(ctx, pid):
    """Which files a process sees: its mount namespace and its root; None if that is closed to us.

    Containers have both of their own; Slurm's private /tmp has a namespace only, and the same root.
    """
    try:
        root = os.stat(ctx.proc("%s/root/" % pid))
    except OSError:
        return None
    return target_of(ctx.proc("%s/ns/mnt" % pid)), root.st_dev, root.st_ino


def learn(ctx, ranks, watch, unseen):
    """The ranks that can be read, each with its root and its places; the others go to `unseen`."""
    import _places
    import _stuck

    workers = {r.pid: [pid for pid, _ in watch.seen.get(r.pid, ())][:4] for r in ranks}
    asked = list(workers) + [pid for pids in workers.values() for pid in pids]
    told, _, _ = _stuck.guarded(asked, lambda pid: Self(ctx, pid), ctx.left, 0.4, 4)
    passwd = ctx.read(ctx.root("/etc/passwd"), 1 << 20)
    roots, kept = {view_of(ctx, "self"): "/", None: "/"}, []
    for rank in ranks:
        me = told.get(rank.pid)
        env = _places.parse_environ(me.environ or b"") if me else {}
        if me is None:
            unseen.append(missing(rank, "it does not let itself be read (its memory lock is held in D state)"))
        elif not me.environ:
            unseen.append(missing(rank, "its environment may not be read, so its folders are not known"))
        elif _places.wears_another(env, rank.rank):
            unseen.append(missing(rank, "this process is another rank's now"))
        else:
            rank.root = roots.setdefault(me.view, ctx.proc("%d/root" % rank.pid)) if ctx.real else "/"
            rank.mounts = me.mounts
            inner = [told[pid].environ or b"" for pid in workers[rank.pid] if pid in told]
            rank.places = places_of(env, me, inner, _places.account(me.uid, passwd))
            kept.append(rank)
    return kept


def places_of(env, me, inner, account):
    """[(list, kind, absolute path)] that a rank names, and its compile workers, who know what it set since it began."""
    import _places

    name, home = account
    found = [("caches",) + pair for pair in _places.caches_of(env, name, home)]
    found += [("folders",) + pair for pair in _places.folders_of(env, _places.parse_cmdline(me.cmdline), home)]
    for environ in inner:
        more = _places.parse_environ(environ)
        found += [("caches",) + pair for pair in (_places.caches_of(more, name, home) if more else ())]
    places = [(where, kind, _places.absolute(path, me.cwd, env.get("HOME") or home)) for where, kind, path in found]
    return [place for place in dict.fromkeys(places) if place[2]][:MAX_PLACES]


def missing(rank, why):
    return {"rank": rank.rank, "pid": rank.pid, "why": why}


# ---------------------------------------------------------------- folders and files, twice


def mount_of(path, mounts):
    """The mount point that a path lies on, by its name."""
    over = [one for one in mounts if path == one or path.startswith(one.rstrip("/") + "/")]
    return max(over, key=len) if over else "/".join(path.split("/")[:3])


class Grounds(object):
    """The folders of all ranks and the files that they print to, looked at twice; each folder once a time."""

    def __init__(self, ctx, ranks):
        self.ctx, self.room = ctx, MAX_NAMES
        self.mount = {}  # what is wanted -> what it stands or falls with
        self.users = {}  # what is wanted -> how many ranks have it
        for rank in ranks:
            for thing in {rank.thing(path): path for _, _, path in rank.places}:
                self.mount.setdefault(thing, (rank.root, mount_of(thing[2], rank.mounts)))
                self.users[thing] = self.users.get(thing, 0) + 1
        for rank in ranks:
            for fd in (1, 2):
                self.mount[("tail", "%d/fd/%d" % (rank.pid, fd))] = ("tail", rank.pid)

    def real_path(self, root, path):
        import _folders

        if root != "/":
            return _folders.resolve_in(root, path)
        if self.ctx.real or path.startswith(self.ctx.rootfs.rstrip("/") + "/"):
            return path
        return self.ctx.root(os.path.normpath(path))

    def look(self, until, before=None):
        """{what was wanted: what it is}; what did not answer, or came too late, is not in it."""
        import _folders
        import _stuck

        walked, under_way = {}, {}

        def read(thing):
            # One reader works at a time: whatever is under way when the next begins does not answer.
            if self.mount[thing] in under_way:
                return None
            under_way[self.mount[thing]] = thing
            found = read_thing(thing)
            del under_way[self.mount[thing]]
            return found

        def read_thing(thing):
            if thing[0] == "tail":
                return _folders.tail(self.ctx.proc(thing[1]), TAIL) or b""
            path = self.real_path(thing[1], thing[2])
            if path not in walked:
                end, old = min(until, time.monotonic() + WALK_S), before.get(thing) if before else None
                walked[path] = _folders.walk(path, end, old, min(self.room, _folders.MOST_NAMES))
                self.room -= walked[path].names if before is None else 0
            return walked[path]

        things = [thing for thing in self.mount if before is None or thing in before]
        found, stuck, _ = _stuck.guarded(things, read, lambda: until - time.monotonic() + 0.5, STALL_S, MAX_STUCK)
        for thing in stuck:
            self.ctx.note("%s does not answer" % clean(str(thing[-1])))
        return {thing: what for thing, what in found.items() if what is not None}

    def rows(self, rank, before, after):
        """{"caches": [...], "folders": [...]} of one rank; what is not there is left out."""
        import _folders

        rows = {"caches": [], "folders": []}
        for where, kind, path in rank.places:
            thing = rank.thing(path)
            old, new = before.get(thing), after.get(thing)
            if old is None or new is None:
                row = _folders.unknown("it did not answer in time")
            elif old.absent and new.absent:
                continue
            else:
                row = _folders.growth(old, new)
            rows[where].append(dict(row, path=clean(path), kind=kind, shared_with=self.users[thing] - 1))
        return rows


def bar(rank, before, after):
    """(last progress bar, whether it moved) of what the rank prints; (None, None) without one."""
    import _places

    for fd in (1, 2):
        thing = ("tail", "%d/fd/%d" % (rank.pid, fd))
        line = _places.progress_line(after.get(thing))
        if line:
            return line, line != _places.progress_line(before.get(thing))
    return None, None


# ---------------------------------------------------------------- all of it


def collect(ctx):
    asked = asked_ranks(ctx.args)
    if not asked:
        raise ctx.Absent('no rank was named; --args \'{"ranks": [{"rank": 3, "pid": 4242}]}\'')
    told = ctx.args.get("window_s")
    window = min(LONGEST_S, max(SHORTEST_S, told if isinstance(told, (int, float)) else WINDOW_S))
    import _compilers  # beside this file, and in the payload

    watch = _compilers.Watch(ctx, {pid for _, pid in asked})
    watch.look()
    ranks, unseen = [], []
    for number, pid in asked:
        stat = watch.table.get(pid)
        rank = Rank(number, pid, stat[4] if stat else None)
        if stat is None or stat[2] in "ZX":
            unseen.append(missing(rank, "its process is dead" if stat else "there is no such process, or it is hidden"))
        else:
            ranks.append(rank)
    ranks = learn(ctx, ranks, watch, unseen)
    grounds = Grounds(ctx, ranks)
    before = grounds.look(time.monotonic() + max(0.0, ctx.left() - window) * 0.45)

    watch.begin()
    began, first, io_before = time.monotonic(), watch.table, io_sums(ctx, watch)
    end = began + min(window, max(SHORTEST_S, ctx.left() * 0.4))
    while time.monotonic() < end:
        at = time.monotonic()
        watch.look()
        pause = max(PAUSE_S, 4 * (time.monotonic() - at))
        time.sleep(max(0.0, min(pause, end - time.monotonic())))
    watch.look()
    io_after, took = io_sums(ctx, watch), time.monotonic() - began

    after = grounds.look(time.monotonic() + max(0.0, ctx.left() - 0.5), before)
    tick, rows = float(os.sysconf("SC_CLK_TCK")), []
    for rank in ranks:
        old, new = first.get(rank.pid), watch.table.get(rank.pid)
        if old is None or new is None or new[4] != rank.start or new[2] in "ZX":
            unseen.append(missing(rank, "it ended while we looked"))
            continue
        compilers = watch.compilers(rank.pid)
        row = {"rank": rank.rank, "pid": rank.pid, "compilers": compilers[:MAX_COMPILERS]}
        row["compiler_cpu_s"] = round(sum(one["cpu_s"] for one in compilers), 3)
        row["cpu_s"] = round((new[3] - old[3]) / tick, 3)
        row.update(grounds.rows(rank, before, after))
        old, new = io_before.get(rank.pid), io_after.get(rank.pid)
        for name in IO_NAMES:
            grown = new[name] - old[name] if old and new else -1
            row[name + "_grown"] = grown if grown >= 0 else None
        row["progress_line"], row["progress_moved"] = bar(rank, before, after)
        rows.append(row)
    return {"window_s": round(took, 3), "ranks": rows, "unseen": unseen}


if __name__ == "__main__":
    import _probe

    _probe.main(PROBE, collect)
