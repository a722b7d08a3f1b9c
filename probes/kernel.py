"""What did the kernel of this node say about the job's processes, GPUs, links and mounts?

Reads    journalctl -o short-unix      "1790000000.123456 gpu003 kernel: Out of memory: Killed process 4242 (python) …"
         else dmesg                    "[12345.678901] NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, GPU has fallen off …"
         else /dev/kmsg                "6,339,5140900,-;mlx5_core 0000:9a:00.0 eth2: Link down"
         else /var/log/kern.log, /var/log/messages, and the one rotated last
                                       (below another root only kern.log, times without zone are UTC)
         /proc/vmstat "oom_kill 3";  memory.events or memory.oom_control of the ranks' cgroups
         /proc/driver/nvidia/version   "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  …"
         /proc/driver/nvidia/gpus/     folders "0000:3b:00.0", one per GPU that the driver holds
Answers with the lines that args["signatures"] know, one per (id, groups), counted. Read from the newest end: what a bound of
time, size or CPU cuts off is the oldest (_kernel_lines.py, _kernel_events.py, _kernel_sources.py).
Fooled by   a log that may not be read (`readable` false is not "nothing happened"); a ring that has wrapped
            (`boot_covered`); rate-limited or switched-off lines (hung tasks: 10 a boot; segfaults of a process with a
            handler: none; Xids after three time-outs of the GSP); stamps of a host that was suspended; syslog, which has no
            year and local time; oom_kill since boot (only a delta speaks).
"""

import re
import threading

PROBE = {
    "name": "kernel",
    "version": 2,
    "needs": [],
    "timeout_s": 6,
    "cost": "cheap",
    "fields": {
        "readable": "bool: some source of kernel lines could be read",
        "source": "journal, dmesg, kmsg, kern.log or none",
        "why": "text: why a better source, or all, could not be read",
        "boot_covered": "bool: what was read reaches back to `since` (or to boot); null if that cannot be told",
        "oldest_at": "epoch s of the oldest dated line read",
        "events": "lines that a signature knows: at and last_at epoch s (node clock), count, text, groups; times (of more "
        "than two: epoch s of the newest 16); err_s: how wrong the times may be, where they come of the kernel's own clock",
        "events_left_out": "count of lines that are not told one by one, by signature",
        "lines_read": "count",
        "oom_kill": "count since boot, node: OOM kills of any process; null if the kernel does not count",
        "cgroup_oom_kill": "count since the cgroup was made, by pid of a rank: OOM kills in its job's cgroup",
        "nvidia": "driver: release of the module that runs, null if none; gpus: PCI addresses that it holds",
    },
}

CPU_S = 0.8  # of reading; what is left over is older
MOST_GPUS = 64
# printk's clock and the monotonic one part by up to this on hosts that were measured: notes/network.md 2
DRIFT, LEAST_ERR_S = 50e-6, 0.05
RELEASE = re.compile(r"Kernel Module\s{1,8}(?:for \w{1,16}\s{1,8})?(\d{1,5}(?:\.\d{1,5}){1,3})")
ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\Z")
# A cgroup that belongs to one job: Slurm job or step, pod, container.
JOB_CGROUP = re.compile(
    r"^(?:job_\d|step_|slurm_step|kubepods[\w.-]{0,60}pod[0-9a-f]|pod[0-9a-f_-]{8}|(?:docker|libpod|cri-\w{1,20})-\w)"
)


# ---------------------------------------------------------------- pure


def cgroup_files(cgroup_text):
    """Files below /sys/fs/cgroup that count the OOM kills of a process's job, best first, from /proc/<pid>/cgroup."""
    files = []
    for line in cgroup_text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not path.startswith("/") or "/.." in path:
            continue
        part = [p for p in path.split("/") if p]
        # A killed rank may have sat in a sibling: count at the topmost group that belongs to the job alone.
        top = next((i for i, name in enumerate(part) if JOB_CGROUP.match(name)), len(part) - 1)
        group = "/".join(part[: top + 1])
        if number == "0" and not controllers and group:
            files.append("fs/cgroup/%s/memory.events" % group)
        elif "memory" in controllers.split(",") and group:
            files.append("fs/cgroup/memory/%s/memory.oom_control" % group)
    return files


def counter(text, name):
    for line in (text or "").splitlines():
        part = line.split()
        if len(part) == 2 and part[0] == name and part[1].isdigit():
            return int(part[1])
    return None


# ---------------------------------------------------------------- edge


WEARS_RANK = re.compile(rb"(?:^|\0)(?:RANK|SLURM_PROCID|OMPI_COMM_WORLD_RANK|PMIX_RANK)=")


def rank_pids(ctx):
    wanted = ctx.args.get("pids")
    if isinstance(wanted, list):
        return [str(p) for p in wanted if isinstance(p, int)][:64]
    found = []
    for pid in ctx.listdir(ctx.procfs):
        if pid.isdigit() and len(found) < 64 and ctx.left() > 1.0:
            try:
                with open(ctx.proc(pid + "/environ"), "rb") as handle:
                    if WEARS_RANK.search(handle.read(262144)):
                        found.append(pid)
            except OSError:
                continue
    return found


def cgroup_kills(ctx):
    counts, seen = {}, {}

    def count():
        for pid in rank_pids(ctx):
            for name in cgroup_files(ctx.read(ctx.proc(pid + "/cgroup"), 16384) or ""):
                if name not in seen:
                    seen[name] = counter(ctx.read(ctx.sys(name), 4096), "oom_kill")
                if seen[name] is not None:
                    counts[pid] = seen[name]
                    break

    # A process in D state may hold its memory lock, and then reading its environment does not end: that must not cost
    # what the kernel said.
    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    thread.join(max(0.1, min(1.5, ctx.left() - 0.5)))
    if thread.is_alive():
        ctx.note("a process does not let itself be read: cgroup_oom_kill is not complete")
    return dict(counts)


def nvidia(ctx):
    """The driver that runs, by /proc alone: NVML may hang with a dead GPU, and a folder's name does not."""
    found = RELEASE.search(ctx.read(ctx.proc("driver/nvidia/version"), 4096) or "")
    names = [name for name in ctx.listdir(ctx.proc("driver/nvidia/gpus")) if ADDRESS.match(name)]
    return {"driver": found.group(1) if found else None, "gpus": [name.lower() for name in names[:MOST_GPUS]]}


def collect(ctx):
    import _kernel_events  # beside this file, and in the payload
    import _kernel_sources

    since = ctx.args.get("since")
    since = float(since) if isinstance(since, (int, float)) and not isinstance(since, bool) else None
    signatures = ctx.args.get("signatures") or []
    base, asleep = _kernel_sources.clock_base(ctx)
    read = _kernel_sources
    if ctx.real:
        ways = [
            ("journal", lambda e: read.from_journal(ctx, e, since)),
            ("dmesg", lambda e: read.from_dmesg(ctx, e, since, base)),
            ("kmsg", lambda e: read.from_kmsg(ctx, e, since, base)),
            ("kern.log", lambda e: read.from_file(ctx, e, since, base, "/var/log/kern.log")),
            ("kern.log", lambda e: read.from_file(ctx, e, since, base, "/var/log/messages")),
        ]
    else:
        ways = [("kern.log", lambda e: read.from_file(ctx, e, since, base, "/var/log/kern.log"))]
    source, whys, reaches = "none", [], None
    for name, way in ways:
        events = _kernel_events.Events(signatures, since, cpu_s=CPU_S)
        readable, why, reaches = way(events)
        if readable:
            source = name
            break
        whys.append(why)
    err_of = None
    if source in ("dmesg", "kmsg"):
        now = ctx.now()
        err_of = lambda at: max(LEAST_ERR_S, DRIFT * max(0.0, now - at)) + asleep  # noqa: E731
    return {
        "readable": source != "none",
        "source": source,
        "why": "; ".join(whys)[:400],
        "boot_covered": reaches,
        "oldest_at": events.oldest,
        "events": events.told(err_of),
        "events_left_out": events.left_out,
        "lines_read": events.lines,
        "oom_kill": counter(ctx.read(ctx.proc("vmstat"), 65536), "oom_kill"),
        "cgroup_oom_kill": cgroup_kills(ctx),
        "nvidia": nvidia(ctx),
    }


if __name__ == "__main__":
    import _probe

    _probe.main(PROBE, collect)
