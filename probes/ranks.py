"""Which ranks live on this node, and in what state is each?

Reads    /proc/<pid>/{stat,environ}   of every process: "4242 (python) S 4200 4242 4242 0 -1 4194304 …", "RANK=3\\0…"
         /proc/<pid>/{status,cmdline,wchan,io}   of the ranks only;  /proc/stat "btime 1790000000";  /proc/mounts
         /proc/<pid>/root/etc/nccl.conf   "NCCL_IB_TIMEOUT=22": what NCCL takes beside the environment (_nccl_conf.py)
A rank is the topmost process of those with one (MASTER_ADDR, MASTER_PORT, WORLD_SIZE, run id, RANK), shells and
wrappers passed over. Loader workers, trackers and compilers wear the same environment: they are children, or orphans
once their rank is gone.
Fooled by   a process that sets RANK inside itself (torch.multiprocessing.spawn, Ray): /proc shows only the environment
            at exec, so it is not seen; a zombie, whose environ is empty (listed under `zombies`, rank unknown);
            a script with RANK that starts the real trainer as a child and waits: the script is the topmost;
            environ that we may not read: counted in `unreadable`, and then absence is no proof (`sees_all`); a process
            in D state that holds its memory lock (passed over, listed under `stuck`);
            any user who exports RANK: compare uid and the job's own marks; a tracer outside of the rank's pid namespace
            (tracer_pid is 0 then, and a rank that it holds is in state t all the same).
"""

import json
import os

if __package__:  # read as a part of triage (tests)
    from ._nccl_conf import read as read_conf
    from ._processes import (
        ENV_NAMES,
        FALLBACKS,
        clean,
        find_ranks,
        is_launcher,
        own_line,
        parse_stat,
        parse_times,
        read_table,
        set_keys,
        slurp,
        whole,
    )
    from ._stuck import guarded
else:  # beside this file, or in the payload
    from _nccl_conf import read as read_conf
    from _processes import (
        ENV_NAMES,
        FALLBACKS,
        clean,
        find_ranks,
        is_launcher,
        own_line,
        parse_stat,
        parse_times,
        read_table,
        set_keys,
        slurp,
        whole,
    )
    from _stuck import guarded

PROBE = {
    "name": "ranks",
    "version": 1,
    "needs": [],
    "timeout_s": 5,
    "cost": "cheap",
    "fields": {
        "sees_all": "bool, node: every process visible and its environment readable; else absence proves nothing",
        "unreadable": "count, node: processes whose environment we may not read",
        "ranks": "list, one a rank: identity, state (R S D T, t = held by a tracer), wchan, start_s epoch s, node's clock",
        "tracer_pid": "pid of the debugger or profiler that has attached to the rank, 0 = none, null if unreadable",
        "tracer": "text, name of that process; null if there is none or it cannot be read",
        "utime_s": "s since process start, all threads of the rank, user mode",
        "stime_s": "s since process start, all threads of the rank, kernel mode",
        "rchar": "bytes since process start, read calls of the rank (page cache included)",
        "read_bytes": "bytes since process start, fetched from storage by the rank",
        "conf": "text by name, of the rank: what NCCL's configuration file below /etc sets beside its environment",
        "orphans": "list: processes that wear a rank's environment while that rank's own process is gone",
        "wrappers": "list: shells that wear a rank's environment and run no rank now",
        "stuck": "list: processes that do not let their environment be read (memory lock held in D state); rank unknown",
        "zombies": "list: dead children that a launcher has not reaped; their rank number is not known",
        "launchers": "list: parents of ranks, and launchers known by their command line",
        "truncated": "bool: not every process or rank is in the answer",
    },
}

MAX_RANKS = 256
CONF_NAMES = frozenset(name for name in ENV_NAMES if name.startswith("NCCL_"))
MAX_BYTES = 700000  # of the rank rows, so that a hostile node stays under the envelope's 1 MiB
MAX_LIST = 64
MAX_CHILDREN = 16
# ---------------------------------------------------------------- pure


def descendants(pid, children, limit=MAX_CHILDREN):
    """Processes below a rank, nearest first; where some are left out, those in D, T or Z are kept."""
    found, todo, seen = [], [pid], {pid}
    while todo:
        nearer = []
        for here in todo:
            for child in children.get(here, ()):
                if child.pid not in seen:
                    seen.add(child.pid)
                    found.append(child)
                    nearer.append(child.pid)
        todo = nearer
    if len(found) > limit:
        found.sort(key=lambda p: p.state not in ("D", "T", "t", "Z"))
    return [{"pid": p.pid, "comm": clean(p.comm, 32), "state": p.state} for p in found[:limit]]


def fits(env, job_id, match):
    """Is this environment the job's? Only to decide whom to keep when a node has too many ranks."""
    if match:
        return all(env.get(name) == value for name, value in match.items())
    return bool(job_id) and job_id in (env.get("SLURM_JOB_ID"), env.get("TORCHELASTIC_RUN_ID"))


def hidepid_of(mounts):
    """0, 1 or 2 (4 = ptraceable) from /proc/mounts text; None if no proc mount is listed."""
    words = {"off": 0, "noaccess": 1, "invisible": 2, "ptraceable": 4}
    for line in (mounts or "").splitlines():
        part = line.split()
        if len(part) >= 4 and part[2] == "proc" and part[1] == "/proc":
            for option in part[3].split(","):
                name, _, value = option.partition("=")
                if name == "hidepid":
                    return words[value] if value in words else whole(value)
            return 0
    return None


# ---------------------------------------------------------------- edge


def lines(ctx, path, names, separator=":"):
    """First words of `name: value` lines of a procfs file, as a dict."""
    found = {}
    for line in (ctx.read(path) or "").splitlines():
        name, _, value = line.partition(separator)
        if name in names:
            found[name] = value.split()
    return found


def configured(ctx, ranks):
    """{pid: what NCCL's configuration file adds}; of ranks whose file was not read, nothing."""
    envs = {proc.pid: proc.env for proc, _ in ranks[:MAX_RANKS]}
    found, _, _ = guarded(list(envs), lambda pid: read_conf(ctx, pid, envs[pid], CONF_NAMES), ctx.left, 0.3, 1)
    return found


def row(ctx, proc, top, children, btime, tick):
    """One rank in full, or None if it ended while we looked."""
    base = "%d/" % proc.pid
    data, _ = slurp(ctx.proc(base + "stat"), 4096)
    now = parse_stat(data.decode("utf-8", "replace")) if data else None
    if now is None or now.start != proc.start:
        return None
    utime, stime = parse_times(data.decode("utf-8", "replace"))
    status = lines(ctx, ctx.proc(base + "status"), ("Uid", "NSpid", "TracerPid"))
    io = lines(ctx, ctx.proc(base + "io"), ("rchar", "wchar", "read_bytes", "write_bytes"))
    env = proc.env
    size, local = "WORLD_SIZE", "LOCAL_RANK"
    for name, size_name, local_name in FALLBACKS:
        if proc.source == name:
            size, local = (size_name or size), (local_name or local)

    tracer = whole(status["TracerPid"][0]) if status.get("TracerPid") else None

    def last(words):
        return whole(words[-1]) if words else None

    def number(name):
        words = io.get(name)
        return int(words[0]) if words and words[0].isdigit() else None

    return {
        "rank": proc.key[-1],
        "rank_from": proc.source,
        "local_rank": whole(env.get(local)),
        "world_size": whole(env.get(size)),
        "local_world_size": whole(env.get("LOCAL_WORLD_SIZE")),
        "group_rank": whole(env.get("GROUP_RANK")),
        "pid": proc.pid,
        "top_pid": top.pid,
        "ppid": now.ppid,
        "uid": whole(status["Uid"][0]) if status.get("Uid") else None,
        "state": now.state,
        "wchan": clean((ctx.read(ctx.proc(base + "wchan"), 128) or "").strip(), 64),
        "start_s": None if btime is None else round(btime + float(proc.start) / tick, 2),
        "start_ticks": proc.start,
        "utime_s": None if utime is None else round(float(utime) / tick, 2),
        "stime_s": None if stime is None else round(float(stime) / tick, 2),
        "threads": now.threads,
        "rchar": number("rchar"),
        "wchar": number("wchar"),
        "read_bytes": number("read_bytes"),
        "write_bytes": number("write_bytes"),
        "cmd": clean(" ".join(proc.argv or [proc.comm]), 160),
        "ns_pid": last(status.get("NSpid")),
        "tracer_pid": tracer,
        "tracer": name_of(ctx, tracer) if tracer else None,
        "children": descendants(proc.pid, children),
        "env": env,
    }


def name_of(ctx, pid):
    found = parse_stat(ctx.read(ctx.proc("%d/stat" % pid), 4096) or "")
    return clean(found.comm, 32) if found else None


def unhidden(ctx, uid, hidepid):
    """Are the processes of all users in the list? Root sees through hidepid."""
    if ctx.real:
        return uid == 0 or hidepid == 0
    # A folder in the place of /proc: what its own mounts file says counts; a link to the machine's speaks of the machine.
    return hidepid in (None, 0) or os.path.realpath(ctx.proc("mounts")).startswith("/proc/")


def brief(proc):
    return {
        "rank": proc.key[-1] if proc.key else None,
        "pid": proc.pid,
        "ppid": proc.ppid,
        "comm": clean(proc.comm, 32),
        "state": proc.state,
    }


def collect(ctx):
    procs, unreadable, stuck, complete = read_table(ctx)
    mine = own_line(procs) if ctx.real else set()
    for pid in mine:
        if pid in procs:
            procs[pid].env = None
    set_keys(procs)
    ranks, orphans, wrappers = find_ranks(procs)
    children = {}
    for proc in procs.values():
        children.setdefault(proc.ppid, []).append(proc)
    job_id, match = str(ctx.args.get("job_id") or ""), ctx.args.get("match") or {}
    ranks.sort(key=lambda pair: (not fits(pair[0].env, job_id, match), pair[0].key[-1], pair[0].pid))
    btime = lines(ctx, ctx.proc("stat"), ("btime",), " ").get("btime")
    tick = os.sysconf("SC_CLK_TCK")
    rows, room, truncated = [], MAX_BYTES, not complete
    conf = configured(ctx, ranks)
    for proc, top in ranks:
        if len(rows) >= MAX_RANKS or room < 0 or ctx.left() < 0.2:
            truncated = True
            ctx.note("%d ranks found, %d told" % (len(ranks), len(rows)))
            break
        found = row(ctx, proc, top, children, int(btime[0]) if btime else None, tick)
        if found is not None:
            if conf.get(proc.pid):
                found["conf"] = conf[proc.pid]
            rows.append(found)
            room -= len(json.dumps(found))
    parents = {top.ppid for _, top in ranks} | {p.pid for p in procs.values() if p.argv and is_launcher(p)}
    launchers = [procs[pid] for pid in sorted(parents) if pid in procs and pid > 1 and pid not in mine]
    agents = {p.pid for p in launchers}
    zombies = [p for p in procs.values() if p.state == "Z" and p.ppid in agents]
    uid = os.geteuid()
    hidepid = hidepid_of(ctx.read(ctx.proc("mounts"), 1 << 18))
    # Everything that was listed could be read, and nothing is kept out of the list.
    everything = complete and not truncated and not unreadable and not stuck and unhidden(ctx, uid, hidepid)
    return {
        "sees_all": everything,
        "own_uid": uid,
        "hidepid": hidepid,
        "processes": len(procs),
        "unreadable": sum(unreadable.values()),
        "unreadable_uids": sorted(unreadable)[:MAX_LIST],
        "ranks": rows,
        "orphans": [brief(p) for p in orphans[:MAX_LIST]],
        "wrappers": [brief(p) for p in wrappers[:MAX_LIST]],
        "zombies": [brief(p) for p in zombies[:MAX_LIST]],
        "stuck": [brief(p) for p in stuck],
        "launchers": [{"pid": p.pid, "cmd": clean(" ".join(p.argv or [p.comm]), 160)} for p in launchers[:MAX_LIST]],
        "truncated": truncated,
    }


if __name__ == "__main__":
    import _probe

    _probe.main(PROBE, collect)
