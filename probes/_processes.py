"""Which processes of this node are ranks? Shared by the probes that must know.

    procs, unreadable, stuck, complete = read_table(ctx)    every process that the procfs shows
    set_keys(procs)                                         who each says it is
    ranks, orphans, wrappers = find_ranks(procs)            [(process, topmost process)], ...

A rank is the topmost process of those with one (MASTER_ADDR, MASTER_PORT, WORLD_SIZE, run id, RANK), shells and wrappers
passed over (DESIGN section 2). What fools it stands in ranks.py.
(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import errno
import os
import re

if __package__:  # read as a part of triage (tests)
    from ._stuck import guarded
else:  # beside this file, or in the payload
    from _stuck import guarded

# The only names that ever leave a node. No other variable is read out: secrets live in environments.
ENV_NAMES = (
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID "
    "TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS SLURM_JOB_ID SLURM_STEP_ID SLURM_PROCID SLURM_LOCALID "
    "SLURM_NTASKS SLURM_RESTART_COUNT SLURMD_NODENAME OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE PMIX_RANK "
    "TORCH_FR_BUFFER_SIZE TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_FR_DUMP_TEMP_FILE TORCH_NCCL_DEBUG_INFO_TEMP_FILE "
    "TORCH_FR_DUMP_DYNAMIC_FILE_NAME TORCH_NCCL_DEBUG_INFO_PIPE_FILE TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_NCCL_ASYNC_ERROR_HANDLING NCCL_ASYNC_ERROR_HANDLING "
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC XDG_CACHE_HOME HOME NCCL_SOCKET_IFNAME NCCL_IB_HCA NCCL_DEBUG NCCL_DEBUG_FILE "
    "NCCL_IB_TIMEOUT NCCL_IB_RETRY_CNT NCCL_IB_DISABLE NCCL_NET NCCL_RAS_ADDR NCCL_RAS_ENABLE NCCL_CONF_FILE "
    "NCCL_IB_RESILIENCY_PORT_FAILOVER NCCL_IB_RESILIENCY_PORT_RECOVERY "
    "TORCH_WORKER_SERVER_SOCKET CUDA_VISIBLE_DEVICES JOB_COMPLETION_INDEX TRIAGE_STEP_LOG"
).split()

SET_NAMES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")
# Where RANK is unset: name of the rank, of the size, of the local rank.
FALLBACKS = (
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ""),
    ("PMIX_RANK", "", ""),
)

MAX_STUCK = 8  # processes that do not let themselves be read, before we give up
STALL_S = 0.4
PF_KTHREAD = 0x00200000  # linux/sched.h: a kernel thread has no environment
PF_FORKNOEXEC = 0x00000040  # linux/sched.h: forked and never ran a program of its own, so it wears its parent's environ

WRAPPERS = frozenset(
    "sh bash dash ash zsh ksh csh tcsh fish busybox srun slurmstepd slurm_script mpirun mpiexec mpiexec.hydra "
    "orterun prterun orted prted hydra_pmi_proxy numactl env timeout time nice ionice taskset chrt stdbuf "
    "unbuffer setsid nohup script tini dumb-init docker-init catatonit sudo su runuser gosu setpriv unshare "
    "nsenter singularity apptainer starter starter-suid enroot nsys ncu perf strace ltrace gdb catchsegv uv "
    "poetry pdm hatch pixi conda mamba micromamba dotenv".split()
)
LAUNCHERS = frozenset("torchrun accelerate deepspeed composer horovodrun pt_elastic torchx".split())
LAUNCHER_MODULES = re.compile(
    r"^(?:torch\.distributed\.(?:run|launch|elastic\b.*)|accelerate(?:\.commands\.launch)?|deepspeed(?:\.launcher\.\w+)?"
    r"|horovod\.runner\S*|composer\.cli\S*|torch_xla\.distributed\.\S*)$"
)
LAUNCHER_PATHS = re.compile(
    r"(?:^|/)(?:torchrun|accelerate|deepspeed|composer|horovodrun)$"
    r"|torch/distributed/(?:run|launch)\.py$|deepspeed/launcher/\w+\.py$|accelerate/commands/launch\.py$"
)
# What Python and its trackers run beside a rank (all started by it, all with its environment).
HELPER_ARGS = re.compile(
    r"multiprocessing[. ](?:spawn|forkserver|resource_tracker|semaphore_tracker|resource_sharer)"
    r"|--multiprocessing-fork|_inductor/compile_worker|loky\.backend|wandb[/ -](?:service|core)|tensorboard"
)
# Programs that are never a rank once they have lost their parent.
TOOLS = frozenset(
    "tee tail cat grep sed awk ts sleep watch top less ssh sshd scp rsync nc nvidia-smi dcgmi rocm-smi nvcc ptxas cicc "
    "cudafe++ fatbinary nvlink gcc g++ cc c++ cc1 cc1plus as ld collect2 clang clang++ ninja make cmake ccache "
    "wandb-core wandb-service gpu_stats wandb-xpu inotifywait sh bash dash git".split()
)
REAPERS = frozenset("systemd init tini dumb-init docker-init catatonit s6-svscan (sd-pam) pause".split())


class Proc(object):
    """One process, as /proc/<pid>/stat and environ tell it."""

    __slots__ = ("argv", "comm", "env", "flags", "key", "pid", "ppid", "source", "start", "state", "threads")

    def __init__(self, pid, ppid, comm, state, flags, threads, start):
        self.pid, self.ppid, self.comm, self.state = pid, ppid, comm, state
        self.flags, self.threads, self.start = flags, threads, start
        self.env, self.key, self.source, self.argv = None, None, "", None

    @property
    def forked(self):
        return bool(self.flags & PF_FORKNOEXEC)


# ---------------------------------------------------------------- pure


def clean(text, limit=256):
    """Bounded text without control characters: nodes are untrusted input."""
    return "".join(c if c.isprintable() else " " for c in text[:limit])


def whole(text):
    """A plain non-negative decimal number of at most nine digits, or None (no sign, no blanks, no other digits)."""
    return int(text) if _digits(text) else None


def _digits(text):
    return bool(text) and len(text) <= 9 and all(c in "0123456789" for c in text)


def parse_stat(text):
    """Proc from the text of /proc/<pid>/stat, or None. A name may hold blanks and parentheses: the last ')' ends it."""
    head, _, tail = text.rpartition(")")
    pid, _, comm = head.partition("(")
    field = tail.split()
    try:
        return Proc(int(pid), int(field[1]), comm, field[0], int(field[6]), int(field[17]), int(field[19]))
    except (ValueError, IndexError):
        return None


def parse_times(text):
    """(user ticks, system ticks) of the whole thread group."""
    field = text.rpartition(")")[2].split()
    try:
        return int(field[11]), int(field[12])
    except (ValueError, IndexError):
        return None, None


_WANTED = {name.encode(): name for name in ENV_NAMES}


def parse_environ(data):
    """The variables of ENV_NAMES in an environment block, first value wins as in getenv; values bounded."""
    env = {}
    # Most processes of a node are no part of any job: skip their blocks without splitting them.
    if b"RANK=" not in data and b"SLURM_PROCID=" not in data:
        return env
    for item in data.split(b"\0"):
        name, mark, value = item.partition(b"=")
        wanted = _WANTED.get(name)
        if mark and wanted and wanted not in env:
            env[wanted] = clean(value[:1024].decode("utf-8", "replace"))
    return env


def program(proc):
    """What runs: the base name of the first argument that is no interpreter, or of `-m module` the module."""
    argv = proc.argv or [proc.comm]
    name = os.path.basename(argv[0].lstrip("-"))
    if not re.match(r"(?:python|pypy|platform-python)[\d.]*$", name):
        return name
    rest = argv[1:]
    while rest:
        word = rest.pop(0)
        if word == "-m" and rest:
            return rest[0]
        if word in ("-X", "-W"):
            rest = rest[1:]
        elif word == "-c" or not word.startswith("-"):
            return word
    return name


def is_launcher(proc):
    if proc.comm in LAUNCHERS:
        return True
    what = program(proc)
    return bool(LAUNCHER_MODULES.match(what) or LAUNCHER_PATHS.search(what))


def is_wrapper(proc):
    return proc.comm in WRAPPERS or os.path.basename(program(proc)) in WRAPPERS


def is_helper(proc):
    return proc.forked or bool(HELPER_ARGS.search(" ".join(proc.argv or ())))


def set_keys(procs):
    """Give each process its key: who it says it is. RANK first; a scheduler's number only where no RANK is in play."""
    wearing = [p for p in procs.values() if p.env]
    ranked_jobs = set()
    for proc in wearing:
        if whole(proc.env.get("RANK")) is not None:
            proc.source = "RANK"
            proc.key = ("RANK",) + tuple(proc.env.get(n, "") for n in SET_NAMES) + (int(proc.env["RANK"]),)
            ranked_jobs.update((name, proc.env.get("SLURM_JOB_ID", "")) for name, _, _ in FALLBACKS if name in proc.env)
    for proc in wearing:
        if proc.key or "RANK" in proc.env:
            continue
        for name, size, _ in FALLBACKS:
            number = whole(proc.env.get(name))
            # A torchrun agent under srun has SLURM_PROCID and no RANK; its children carry RANK. It is no rank.
            if number is None or (name, proc.env.get("SLURM_JOB_ID", "")) in ranked_jobs:
                continue
            if is_launcher(proc) or (proc.comm in TOOLS and not is_wrapper(proc)):
                continue
            job, step = proc.env.get("SLURM_JOB_ID", ""), proc.env.get("SLURM_STEP_ID", "")
            proc.source = name
            proc.key = (name, job, step, proc.env.get(size, "") if size else "", number)
            break


def find_ranks(procs):
    """(ranks [(Proc, top Proc)], orphans [Proc], wrappers [Proc]) of a process table whose keys are set."""
    children = {}
    for proc in procs.values():
        children.setdefault(proc.ppid, []).append(proc)
    tops, orphans, wrappers = {}, [], []
    for proc in sorted(procs.values(), key=lambda p: (p.start, p.pid)):
        if proc.key is None or (proc.ppid in procs and procs[proc.ppid].key == proc.key):
            continue
        if is_helper(proc) or (reparented(proc, procs) and proc.comm in TOOLS and not runs_rank(proc, children)):
            orphans.append(proc)
        elif not is_launcher(proc):
            tops.setdefault(proc.key, []).append(proc)
    ranks = []
    for group in tops.values():
        found = []
        for top in group:
            if is_wrapper(top):
                inner = best(inside(top, children))
                if inner is None:
                    wrappers.append(top)
                else:
                    found.append((inner, top))
            else:
                found.append((top, top))
        if not found:
            continue
        # Two tops of one rank: a live parent speaks for the rank, then age (a rank starts before what it starts).
        found.sort(key=lambda pair: (reparented(pair[1], procs), pair[1].comm in TOOLS, pair[0].start, pair[0].pid))
        ranks.append(found[0])
        orphans.extend(pair[0] for pair in found[1:] if reparented(pair[1], procs))
    return ranks, orphans, wrappers


def reparented(proc, procs):
    """Has it lost its parent? (Its parent is an init; a folder that shows only the ranks does not say so.)"""
    parent = procs.get(proc.ppid)
    return parent.comm in REAPERS if parent is not None else proc.ppid == 1


def inside(wrapper, children):
    """Processes that a shell or wrapper runs under the same key, further wrappers passed over (subshells too)."""
    found, todo, seen = [], [wrapper], set()
    while todo:
        here = todo.pop()
        if here.pid in seen:
            continue
        seen.add(here.pid)
        for child in children.get(here.pid, ()):
            if child.key != wrapper.key:
                continue
            if is_wrapper(child):
                todo.append(child)
            elif not is_helper(child):
                found.append(child)
    return found


def runs_rank(proc, children):
    return is_wrapper(proc) and bool(inside(proc, children))


def best(candidates):
    """Of several programs under one shell (`python train.py | tee log`) the trainer: no tool, most threads, oldest."""
    if not candidates:
        return None
    return min(candidates, key=lambda p: (p.comm in TOOLS, -p.threads, p.start, p.pid))


# ---------------------------------------------------------------- edge


def slurp(path, limit=262144):
    """(bytes, None) or (None, errno). Only for files of procfs: a path that others name could be a FIFO."""
    try:
        with open(path, "rb") as handle:
            return handle.read(limit), None
    except OSError as error:
        return None, error.errno


def own_line(procs):
    """This probe's own process and its ancestors: the shell of an operator inside the job is no rank."""
    mine, pid = set(), os.getpid()
    while pid and pid not in mine:
        mine.add(pid)
        parent = procs.get(pid)
        pid = parent.ppid if parent else (os.getppid() if len(mine) == 1 else 0)
    return mine


def read_one(ctx, name):
    """(Proc or None, uid of a process whose environment we may not read or None) of /proc/<name>."""
    data, _ = slurp(ctx.proc(name + "/stat"), 4096)
    proc = parse_stat(data.decode("utf-8", "replace")) if data else None
    if proc is None:
        return None, None  # it ended between the listing and the reading
    proc.pid = int(name)
    if proc.flags & PF_KTHREAD or proc.ppid == 2:
        return proc, None
    data, why = slurp(ctx.proc(name + "/environ"))
    if why in (errno.EACCES, errno.EPERM):
        try:
            uid = os.stat(ctx.proc(name)).st_uid
        except OSError:
            return None, None
        # In a container even root may not read the init that was started from outside; an init is no rank.
        if proc.pid != 1 or proc.comm.startswith("python"):
            return proc, uid
    elif data:
        proc.env = parse_environ(data) or None
    if proc.env or proc.comm in LAUNCHERS or proc.comm.startswith("python"):
        data, _ = slurp(ctx.proc(name + "/cmdline"), 4096)
        if data:
            proc.argv = [clean(a, 512) for a in data.decode("utf-8", "replace").rstrip("\0").split("\0")]
    return proc, None


def read_table(ctx):
    """(procs by pid, {uid: unreadable processes}, [stuck Proc], complete) of every process that the procfs shows."""
    names = [name for name in ctx.listdir(ctx.procfs) if _digits(name)]
    found, stuck, complete = guarded(names, lambda name: read_one(ctx, name), ctx.left, STALL_S, MAX_STUCK)
    procs, unreadable = {}, {}
    for proc, uid in found.values():
        if proc is not None:
            procs[proc.pid] = proc
        if uid is not None:
            unreadable[uid] = unreadable.get(uid, 0) + 1
    hung = []
    for name in stuck:
        data, _ = slurp(ctx.proc(name + "/stat"), 4096)  # takes no lock
        proc = parse_stat(data.decode("utf-8", "replace")) if data else None
        if proc is not None:
            hung.append(proc)
            ctx.note("process %s (%s, state %s) does not let itself be read" % (name, clean(proc.comm, 32), proc.state))
    return procs, unreadable, hung, complete
