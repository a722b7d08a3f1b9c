"""What does NCCL's own RAS network say: who is missing, and who has launched less than its peers?

Reads    two reports of the RAS thread that each process of a NCCL job (2.24 and later) runs, some seconds apart, over TCP on
         this very node (NCCL_RAS_ADDR, else localhost:28028), and only where a process of the job listens:
         {"ranks": [{"rank": 0, "pid": 4001, "ns_pid": 41}], "world": 16, "gap_s": 10, "init": "past"}
         /proc/<pid>/net/tcp "0: 0100007F:6D7C 00000000:0000 0A ... 48213"   /proc/<pid>/fd/7 -> "socket:[48213]"
         One report tells of all processes of the job. Counts are launches on the host, not completions.
Sends    the four lines of _ras.py, which ask for the report and change nothing; never while communicators may be set up by a
         NCCL that cannot bear it (before 2.27.3, and of any release while the job is known to be in its set-up).
Fooled by   a hang in flight, where all ranks have launched alike ("RUNNING OK" in a real hang); sends, receives, all-to-all
            and CUDA graphs, which are not counted; a rank that was stopped for a minute and stays DEAD for ever; the network
            of the bootstrap, which is not the one that trains; a second job of the same user on the port.
"""

import errno
import os
import re
import socket
import time

PROBE = {
    "name": "ras",
    "version": 1,
    "needs": [],
    "timeout_s": 19,
    "cost": "intrusive",
    "fields": {
        "outcome": "ok, no_listener, handshake_silent, foreign_job, garbage, too_old, skipped_init_risk, timeout",
        "why": "text: the reason of all but ok; of ok, why there is no second report",
        "address": "text: where it was asked",
        "tries": "connections that were made; silent: of them met silence; foreign: told of another job",
        "road": "text: node (asked by this probe), ssh (asked by the operator through the connection)",
        "queries": "reports that were asked for in all; each makes all processes of the job answer",
        "gap_s": "s between the end of the first report and the beginning of the second; null with one",
        "nccl": "text: release of the library, if it had to be known before asking",
        "first": "reduced report; second the same later. Their shape is told in triage-probes(7)",
    },
}

PORT = 28028
FIRST_WITH_RAS, SAFE_IN_INIT = (2, 24), (2, 27, 3)  # notes/nccl-ras-and-logs.md 1.4
GAP_S, LONGEST_GAP_S = 10.0, 15.0
MOST_RANKS, MOST_FDS = 64, 4096
CLONE_NEWNET = 0x40000000
VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?")
WRAPPERS = frozenset("sh bash dash zsh srun slurmstepd numactl env timeout tini dumb-init".split())
NAMES = ("RANK", "WORLD_SIZE", "NCCL_RAS_ADDR", "NCCL_RAS_ENABLE", "NCCL_RAS_TIMEOUT_FACTOR")


# ---------------------------------------------------------------- pure


def whole(value):
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def release(text):
    """(2, 28, 9) of "2.28.9+cuda12.9"; None where it is no release."""
    found = VERSION.match(text) if isinstance(text, str) else None
    return tuple(int(part or 0) for part in found.groups()) if found else None


def risk(init, version):
    """Why RAS may not be asked now; "" where it may.

    init   "past": communicators are known to have worked; "during": the job is in its set-up; else nobody knows
    """
    if init == "past":
        return ""
    if init == "during":
        return "the job is setting its communicators up, and a query may end it then"
    if version is None:
        return "communicators may be in their set-up, and the release of NCCL is not known"
    if version < SAFE_IN_INIT:
        return "communicators may be in their set-up, and before NCCL 2.27.3 a query may end the job then"
    return ""


def environment(data):
    env = {}
    for item in (data or b"").split(b"\0"):
        name, mark, value = item.partition(b"=")
        name = name.decode("ascii", "replace")
        if mark and name in NAMES and name not in env:
            env[name] = value[:256].decode("utf-8", "replace")
    return env


def port_of(env):
    """The port of NCCL_RAS_ADDR ("localhost:28028", "[::1]:28028"), or None where it tells none."""
    told = env.get("NCCL_RAS_ADDR")
    if told is None:
        return PORT
    digits = told.rpartition(":")[2]
    return int(digits) if digits.isdigit() and len(digits) < 6 and 0 < int(digits) < 65536 else None


def host_of(hexed):
    """An address of /proc/net/tcp ("0100007F", 32 digits of IPv6) as text: words of four bytes, each turned round."""
    raw = b"".join(bytes.fromhex(hexed[i : i + 8])[::-1] for i in range(0, len(hexed), 8))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def listeners(text, port):
    """{inode: host} of the sockets that listen on a port, of /proc/<pid>/net/tcp or tcp6."""
    found = {}
    for line in (text or "").splitlines()[1:]:
        field = line.split()
        if len(field) < 10 or field[3] != "0A":
            continue
        host, _, number = field[1].partition(":")
        try:
            if int(number, 16) == port:
                found[field[9]] = host_of(host)
        except (ValueError, OSError):
            continue
    return found


def reachable(host):
    """Whom to connect to for a socket that listens there: every address means this node."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def library(maps):
    """Path of NCCL's library in /proc/<pid>/maps, or ""."""
    for line in (maps or "").splitlines():
        path = line.partition("/")[2]
        if "libnccl.so" in path:
            return "/" + path.replace(" (deleted)", "")
    return ""


def release_of(path, siblings):
    """Release of a library by its name (libnccl.so.2.27.3), or by the package's record beside it
    (nvidia_nccl_cu12-2.27.3.dist-info); None where neither tells."""
    found = release(os.path.basename(path).partition("libnccl.so.")[2])
    if found and found[:2] != (2, 0):
        return found
    told = [
        release(name.split("-")[1]) for name in siblings if re.match(r"nvidia[_-]nccl[^-]*-[\d.]+\.dist-info$", name)
    ]
    return told[0] if len(told) == 1 else None


# ---------------------------------------------------------------- the node


class Rank(object):
    def __init__(self, rank, pid, ns_pid):
        self.rank, self.pid, self.ns_pid, self.env = rank, pid, ns_pid, {}


def status_of(ctx, pid):
    """(parent, pid as the process itself knows it) of a process; None where it is gone."""
    parent, inner = None, None
    for line in (ctx.read(ctx.proc("%d/status" % pid), 4096) or "").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if name == "PPid" and words and words[0].isdigit():
            parent = int(words[0])
        elif name == "NSpid" and words and words[-1].isdigit():
            inner = int(words[-1])
    return None if parent is None else (parent, inner or pid)


def told_ranks(ctx):
    rows = ctx.args.get("ranks")
    found = []
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and whole(row.get("rank")) is not None and whole(row.get("pid")):
            found.append(Rank(row["rank"], row["pid"], whole(row.get("ns_pid"))))
    return found[:256]


def seen_ranks(ctx):
    """Without an operator: the topmost processes that wear a RANK."""
    wearing = {}
    for name in ctx.listdir(ctx.procfs):
        data = ctx.read_bytes(ctx.proc(name + "/environ"), 1 << 17) if name.isdigit() else None
        if data and b"RANK=" in data and (ctx.read(ctx.proc(name + "/comm"), 64) or "").strip() not in WRAPPERS:
            env = environment(data)
            if env.get("RANK", "").isdigit() and len(env["RANK"]) < 8:
                wearing[int(name)] = env
    found = []
    for pid, env in sorted(wearing.items()):
        status = status_of(ctx, pid)
        if status and wearing.get(status[0], {}).get("RANK") != env["RANK"]:
            found.append(Rank(int(env["RANK"]), pid, status[1]))
    return found[:256]


def ranks(ctx):
    """The job's live ranks on this node, with their environment."""
    found = []
    for rank in told_ranks(ctx) if isinstance(ctx.args.get("ranks"), list) else seen_ranks(ctx):
        status = status_of(ctx, rank.pid)
        if status is not None:
            rank.ns_pid = rank.ns_pid or status[1]
            rank.env = environment(ctx.read_bytes(ctx.proc("%d/environ" % rank.pid), 1 << 17))
            found.append(rank)
    return found


def target_of(path):
    try:
        return os.readlink(path)
    except OSError:
        return ""


def holds(ctx, pid, inodes):
    """The inode among these that the process has open; None where we may not look; "" where none is."""
    folder = ctx.proc("%d/fd" % pid)
    try:
        names = os.listdir(folder)[:MOST_FDS]
    except OSError:
        return None
    for name in names:
        target = target_of(os.path.join(folder, name))
        if target.startswith("socket:[") and target[8:-1] in inodes:
            return target[8:-1]
    return ""


def mixed_up(ctx, found, rank, port):
    """Why a report could be another job's without our seeing it; "" where its processes would tell.

    All of one user listen on one port, and the pids of a report are a container's own: those of two jobs are the same there.
    """
    if rank.ns_pid == rank.pid:
        return ""
    there = {}
    for name in ("tcp", "tcp6"):
        there.update(listeners(ctx.read(ctx.proc("%d/net/%s" % (rank.pid, name)), 1 << 22), port))
    ours = {holds(ctx, one.pid, there) for one in found[:MOST_RANKS]}
    if set(there) <= ours:
        return ""
    return "others listen on port %d as well, and process numbers of a container do not tell whose report it is" % port


def listening(ctx, found):
    """(rank, [host], port, "") of a process of the job that listens for RAS, or (None, [], None, why not)."""
    why = "no process of the job listens for RAS"
    for rank in found[:MOST_RANKS]:
        if rank.env.get("NCCL_RAS_ENABLE") == "0":
            why = "the job has switched RAS off (NCCL_RAS_ENABLE=0)"
            continue
        port = port_of(rank.env)
        if port is None:
            why = "NCCL_RAS_ADDR names no port"
            continue
        there = {}
        for name in ("tcp", "tcp6"):
            there.update(listeners(ctx.read(ctx.proc("%d/net/%s" % (rank.pid, name)), 1 << 22), port))
        if not there:
            why = "nobody listens on port %d" % port
            continue
        inode = holds(ctx, rank.pid, there)
        if inode:
            return rank, sorted({there[inode]}), port, ""
        why = (
            "somebody listens on port %d, and we may not see whether it is the job" % port
            if inode is None
            else "another job or service listens on port %d" % port
        )
    return None, [], None, why


def enter_network(ctx, pid):
    """Enter the network of a container, if it has one of its own: "" or why not. We are a child of our own: nobody else moves."""
    theirs = target_of(ctx.proc("%d/ns/net" % pid))
    if theirs and theirs == target_of("/proc/self/ns/net"):
        return ""
    if not theirs:
        return ""  # not ours to look at: the connection will tell
    import ctypes

    try:
        handle = os.open(ctx.proc("%d/ns/net" % pid), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        return "its container has a network of its own, which we may not enter (%s)" % exc.strerror
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(handle, CLONE_NEWNET) != 0:
            return "its container has a network of its own, which we may not enter (root may)"
    except (OSError, AttributeError):
        return "its container has a network of its own, and this Python cannot enter it"
    finally:
        os.close(handle)
    ctx.note("entered the network of the job's container (pid %d)" % pid)
    return ""


def connector(hosts, port, nobody):
    """seconds -> a connected socket; raises `nobody` where it is refused, OSError where silence came."""

    def connect(seconds):
        refused = None
        for host in hosts:
            line = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
            line.settimeout(seconds)
            code = line.connect_ex((host, port))
            if code == 0:
                return line
            line.close()
            if code != errno.ECONNREFUSED:
                raise OSError(code, "no connection")
            refused = nobody("the connection to %s port %d is refused" % (host, port))
        raise refused

    return connect


def nccl_release(ctx, rank):
    """Release of the library that the process has mapped; None where it does not show."""
    path = library(ctx.read(ctx.proc("%d/maps" % rank.pid), 1 << 22))
    if not path:
        return None
    folder = ctx.proc("%d/root" % rank.pid) + os.path.dirname(path)
    target = os.path.basename(target_of(os.path.join(folder, os.path.basename(path)))) or os.path.basename(path)
    packages = os.path.join(folder, "..", "..", "..")  # site-packages/nvidia/nccl/lib/libnccl.so.2
    return release_of(target, ctx.listdir(packages) if "/nvidia/nccl/lib/" in path else ())


def answer(outcome, why, **more):
    row = {
        "road": "node",
        "outcome": outcome,
        "why": why,
        "address": "",
        "tries": 0,
        "silent": 0,
        "foreign": 0,
        "queries": 0,
    }
    return dict(row, gap_s=None, nccl="", **more)


def collect(ctx):
    import _ras
    import _ras_report
    import _ras_text

    found = ranks(ctx)
    if not found:
        raise ctx.Absent("no rank of a job is seen on this node")
    if not ctx.real:
        return answer("no_listener", "not asked: the processes are read below another root")
    rank, hosts, port, why = listening(ctx, found)
    version, init = release(ctx.args.get("nccl")), ctx.args.get("init")
    if version is None and (rank is None or init != "past"):
        version = nccl_release(ctx, rank or found[0])
    words = ".".join(map(str, version)) if version else ""
    if rank is None:
        old = version is not None and version[:2] < FIRST_WITH_RAS
        return dict(
            answer("too_old" if old else "no_listener", "NCCL %s has no RAS" % words if old else why), nccl=words
        )
    refused = risk(init, version)
    if refused:
        return dict(answer("skipped_init_risk", refused), nccl=words)
    why = mixed_up(ctx, found, rank, port)
    if why:
        return dict(answer("foreign_job", why), nccl=words)
    why = enter_network(ctx, rank.pid)
    if why:
        return dict(answer("no_listener", why), nccl=words)
    if rank.env.get("NCCL_RAS_TIMEOUT_FACTOR", "1") not in ("", "1"):
        ctx.note("NCCL_RAS_TIMEOUT_FACTOR is %s: RAS takes that much longer" % rank.env["NCCL_RAS_TIMEOUT_FACTOR"][:16])
    world = whole(ctx.args.get("world")) or whole(
        int(rank.env["WORLD_SIZE"]) if rank.env.get("WORLD_SIZE", "").isdigit() else None
    )
    procs = [(one.rank, one.ns_pid) for one in found]

    def judge(raw, form):
        return _ras_report.judge(raw, form, world, procs, _ras_text.parse)

    gap = ctx.args.get("gap_s", GAP_S)
    gap = min(max(float(gap), 0.0), LONGEST_GAP_S) if isinstance(gap, (int, float)) else GAP_S
    places = [reachable(host) for host in hosts]
    client = _ras.Client(
        connector(places, port, _ras.Nobody), judge, time.monotonic, time.monotonic() + ctx.left() - 0.5
    )
    told = client.two(time.sleep, gap)
    return dict(told, road="node", address="%s port %d" % (", ".join(places), port), nccl=words)


if __name__ == "__main__":
    import _probe

    _probe.main(PROBE, collect)
