"""Who are we on this node, how much of it may we see, and what does its clock say?

Reads    /proc/uptime "5025.12 9876.10"   /proc/loadavg "0.52 …"   /proc/mounts   /proc/cpuinfo or the affinity mask
         /proc/sys/kernel/random/boot_id   /proc/sys/kernel/hostname
Fooled by   a container, which has its own hostname and its own list of processes; hidepid, under which another user's
            processes do not exist for us; a security module that hides environments even from root (`ranks` counts what
            it could not read: believe that number over `sees_all` here).
"""

import os
import sys

PROBE = {
    "name": "reach",
    "version": 1,
    "needs": [],
    "timeout_s": 2,
    "cost": "cheap",
    "fields": {
        "boot_id": "text, changes with each boot; null if unreadable",
        "uptime_s": "s since boot",
        "now_s": "epoch s, the node's clock",
        "uid": "number, effective user of the probe",
        "machine": "text: x86_64, aarch64, as uname -m says it",
        "root": "bool",
        "hidepid": "0 1 2 4 of the /proc mount; null if unknown",
        "sees_all": "bool: every process is listed and every environment readable to us",
        "cpus": "count that this process may use",
        "load1": "run queue length, average of one minute (D state counts in)",
    },
}

HIDEPID = {"off": 0, "noaccess": 1, "invisible": 2, "ptraceable": 4}
CAP_SYS_PTRACE = 19


def clean(text, limit=128):
    return None if text is None else "".join(c if c.isprintable() else " " for c in text.strip()[:limit])


def hidepid_of(mounts):
    """0, 1, 2 or 4 from /proc/mounts text; None if it lists no proc."""
    for line in (mounts or "").splitlines():
        part = line.split()
        if len(part) >= 4 and part[2] == "proc" and part[1] == "/proc":
            for option in part[3].split(","):
                name, _, value = option.partition("=")
                if name == "hidepid":
                    return HIDEPID[value] if value in HIDEPID else int(value) if value.isdigit() else None
            return 0
    return None


def may_trace(status):
    """Does /proc/self/status show the capability that reading others' environments takes? None if it does not say."""
    for line in (status or "").splitlines():
        if line.startswith("CapEff:"):
            try:
                return bool(int(line.split()[1], 16) >> CAP_SYS_PTRACE & 1)
            except (ValueError, IndexError):
                return None
    return None


def first_number(text):
    try:
        return float(text.split()[0])
    except (AttributeError, ValueError, IndexError):
        return None


def user_name(uid, passwd):
    # pwd asks the directory service, which may be what is broken: only the local file is read.
    for line in (passwd or "").splitlines():
        part = line.split(":")
        if len(part) > 2 and part[2] == str(uid):
            return part[0]
    return os.environ.get("USER") or str(uid)


def collect(ctx):
    uid = os.geteuid()
    hidepid = hidepid_of(ctx.read(ctx.proc("mounts"), 1 << 18))
    able = may_trace(ctx.read(ctx.proc("self/status"), 8192))
    try:
        cpus = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cpus = os.cpu_count()
    return {
        "boot_id": clean(ctx.read(ctx.proc("sys/kernel/random/boot_id"), 64)),
        "uptime_s": first_number(ctx.read(ctx.proc("uptime"), 64)),
        "now_s": ctx.now(),
        "hostname": clean(ctx.read(ctx.proc("sys/kernel/hostname"), 256)) or clean(os.uname()[1]),
        "user": clean(user_name(uid, ctx.read(ctx.root("/etc/passwd"), 1 << 20)), 64),
        "uid": uid,
        "root": uid == 0,
        "hidepid": hidepid,
        "sees_all": uid == 0 and able is not False,
        "ptrace_capable": able,
        "kernel": clean(os.uname()[2]),
        "machine": clean(os.uname()[4], 32),
        "python": sys.version.split()[0],
        "cpus": cpus,
        "load1": first_number(ctx.read(ctx.proc("loadavg"), 128)),
    }


if __name__ == "__main__":
    import _probe

    _probe.main(PROBE, collect)
