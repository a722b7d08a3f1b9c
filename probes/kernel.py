"""What did the kernel of this node say about the job's processes, GPUs, links and mounts?

Reads    journalctl -k -o short-unix   "1790000000.123456 gpu003 kernel: Out of memory: Killed process 4242 (python) …"
         else dmesg                    "[12345.678901] NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, GPU has fallen off …"
         else /dev/kmsg                "6,339,5140900,-;mlx5_core 0000:9a:00.0 eth2: Link down"
         else /var/log/kern.log, /var/log/messages   (below another root only kern.log, times without zone are UTC)
         /proc/vmstat "oom_kill 3";  memory.events or memory.oom_control of the ranks' cgroups
Answers with the lines that args["signatures"] know, one per (id, groups), counted.
Fooled by   a log that may not be read (`readable` false is not "nothing happened"); a ring that has wrapped
            (`boot_covered`); rate-limited or switched-off lines (hung tasks: 10 a boot; segfaults of a process with a
            handler: none); stamps of a host that was suspended; syslog, which has no year and local time; oom_kill
            since boot (only a delta speaks).
"""

import calendar
import errno
import os
import re
import stat
import threading
import time

PROBE = {
    "name": "kernel",
    "version": 1,
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
        "than two: epoch s of the newest 16)",
        "lines_read": "count",
        "oom_kill": "count since boot, node: OOM kills of any process; null if the kernel does not count",
        "cgroup_oom_kill": "count since the cgroup was made, by pid of a rank: OOM kills in its job's cgroup",
    },
}

MAX_EVENTS = 200
FIRST_EVENTS, LAST_EVENTS = 20, 40  # of one signature
NEWEST_TIMES = 16  # of one event: a port that flaps all day does so at the moment in question as well
MAX_LINES = 50000
MAX_BYTES = 8 << 20
LINE = 2048
MONTHS = {m: i + 1 for i, m in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split())}
# All the ways in which one and the same line may be dated; `kernel:` follows a host name, never a user's process.
HEAD = re.compile(
    r"(?:<\d{1,4}>)?(?:"
    r"(?P<unix>\d{9,11}\.\d{1,9})"
    r"|(?P<iso>20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,](?P<f>\d{1,9}))?(?P<z>Z|[+-]\d\d:?\d\d)?"
    r"|(?P<sm>[A-Z][a-z]{2}) {1,2}(?P<sd>\d{1,2}) (?P<st>\d\d:\d\d:\d\d)"
    r"|\[[A-Z][a-z]{2} (?P<cm>[A-Z][a-z]{2}) {1,2}(?P<cd>\d{1,2}) (?P<ct>\d\d:\d\d:\d\d) (?P<cy>20\d\d)\]"
    r")(?: (?P<who>\S{1,255} \S{1,64}:))?(?= |$)"
)
MONO = re.compile(r"\s?(?:<\d{1,4}>)?\[ {0,12}(?P<mono>\d{1,12}\.\d{1,9})\](?:\[ {0,8}[TC]\d{1,10}\])? ?")
# A cgroup that belongs to one job: Slurm job or step, pod, container.
JOB_CGROUP = re.compile(
    r"^(?:job_\d|step_|slurm_step|kubepods[\w.-]{0,60}pod[0-9a-f]|pod[0-9a-f_-]{8}|(?:docker|libpod|cri-\w{1,20})-\w)"
)


# ---------------------------------------------------------------- pure


def clean(text, limit=300):
    return "".join(c if c.isprintable() else " " for c in text[:limit]).rstrip()


def to_epoch(parts, local):
    """Epoch seconds of a broken-down time, in the node's zone or UTC; None for a date that does not exist."""
    year, month, day, hour, minute, second = parts
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 62):
        return None
    try:
        if local:
            return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
        return float(calendar.timegm((year, month, day, hour, minute, second)))
    except (OverflowError, ValueError):
        return None


def split_line(line, now, mono_base, local=False):
    """(epoch seconds or None, monotonic seconds or None, kernel text), or None for a line of a user's process.

    mono_base  epoch seconds at which the kernel's own clock stood at 0, or None
    local      dates without a zone are in the node's zone, not UTC
    """
    at, mono, found = None, None, HEAD.match(line)
    if found:
        part = found.groupdict()
        if part["who"] and not part["who"].endswith(" kernel:"):
            return None
        if part["unix"]:
            at = float(part["unix"])
        elif part["iso"]:
            numbers = [int(x) for x in re.split("[-T :]", part["iso"])]
            zone = part["z"]
            at = to_epoch(numbers, local and not zone)
            if at is not None and zone and zone != "Z":
                away = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
                at -= away if zone[0] == "+" else -away
            if at is not None and part["f"]:
                at += float("0." + part["f"])
        else:
            month = MONTHS.get(part["sm"] or part["cm"])
            clock = [int(x) for x in (part["st"] or part["ct"]).split(":")]
            day = int(part["sd"] or part["cd"])
            if month:
                year = int(part["cy"]) if part["cy"] else time.gmtime(now).tm_year
                at = to_epoch([year, month, day] + clock, local)
                # No year in syslog: the latest one that is not ahead of us.
                if at is not None and not part["cy"] and at > now + 2 * 86400:
                    at = to_epoch([year - 1, month, day] + clock, local)
        line = line[found.end() :]
    behind = MONO.match(line)
    if behind:
        mono = float(behind.group("mono"))
        if at is None and mono_base is not None:
            at = mono_base + mono
        line = line[behind.end() :]
    return at, mono, line.strip()


def split_kmsg(record, mono_base):
    """The same for one record of /dev/kmsg, "6,339,5140900,-;text"; None for what a user wrote there."""
    head, mark, text = record.partition(";")
    field = head.split(",")
    if not mark or len(field) < 3 or not (field[0].isdigit() and field[2].isdigit()) or int(field[0]) >> 3:
        return None
    mono = int(field[2]) / 1e6
    return (None if mono_base is None else mono_base + mono), mono, text.split("\n")[0].strip()


def compile_signatures(signatures):
    ready = []
    for item in signatures:
        hints = item.get("hint") or []
        hints = [hints] if isinstance(hints, str) else hints
        ready.append((item["id"], item.get("kind"), hints, re.compile(item["pattern"])))
    return ready


class Events(object):
    """Known lines, one per (id, groups); of each id the first and the last ones."""

    def __init__(self, signatures, since):
        self.signatures, self.since = compile_signatures(signatures), since
        hints = [hint for _, _, several, _ in self.signatures for hint in several]
        # One search tells that a line is none of ours, which nearly all are.
        every = all(several for _, _, several, _ in self.signatures)
        self.any_hint = re.compile("|".join(re.escape(h) for h in hints)) if hints and every else None
        self.found, self.left_out = {}, {}
        self.lines, self.oldest = 0, None

    def take(self, split):
        if split is None:
            return
        at, _, text = split
        self.lines += 1
        if at is not None and (self.oldest is None or at < self.oldest):
            self.oldest = at
        if not text or (self.since is not None and at is not None and at < self.since):
            return
        text = text[:LINE]
        if self.any_hint is not None and not self.any_hint.search(text):
            return
        for name, kind, hints, regex in self.signatures:
            if hints and not any(hint in text for hint in hints):
                continue
            found = regex.search(text)
            if not found:
                continue
            groups = {k.split("__")[0]: clean(v, 128) for k, v in found.groupdict().items() if v is not None}
            kept = self.found.setdefault(name, {})
            key = tuple(sorted(groups.items()))
            event = kept.get(key)
            if event is None:
                if len(kept) >= FIRST_EVENTS + LAST_EVENTS:
                    self.drop_middle(name)
                event = kept[key] = {
                    "id": name,
                    "kind": kind,
                    "at": at,
                    "last_at": at,
                    "count": 0,
                    "text": clean(text),
                    "groups": groups,
                    "_order": self.lines,
                    "_times": [],
                }
            event["count"] += 1
            if at is not None:
                event["last_at"] = at
                event["_times"] = event["_times"][1 - NEWEST_TIMES :] + [at]

    def drop_middle(self, name):
        """Forget the oldest event behind the first ones of a signature; it stays counted."""
        kept = self.found[name]
        key = sorted(kept, key=lambda k: kept[k]["_order"])[min(FIRST_EVENTS, len(kept) - 1)]
        self.left_out[name] = self.left_out.get(name, 0) + kept.pop(key)["count"]

    def told(self):
        """The events in the order in which they began; the noisiest signature gives way."""
        while sum(len(kept) for kept in self.found.values()) > MAX_EVENTS:
            self.drop_middle(max(self.found, key=lambda n: len(self.found[n])))
        events = [event for kept in self.found.values() for event in kept.values()]
        events.sort(key=lambda e: e["_order"])
        for event in events:
            del event["_order"]
            times = event.pop("_times")
            if event["count"] > 2:
                event["times"] = times
        return events


def covered(since, oldest, from_boot):
    """Does what was read reach back to `since`? From boot on, or an older line was seen; None if nothing was dated."""
    if from_boot:
        return True
    if oldest is None:
        return None
    return since is not None and oldest <= since


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


def from_journal(ctx, events, since):
    """(readable, why not, covered)"""
    argv = ["journalctl", "-k", "-o", "short-unix", "--no-pager", "-n", str(MAX_LINES)]
    if since is not None:
        argv.append("--since=@%d" % int(since))
    code, out, err = ctx.run(argv, min(2.5, ctx.left() * 0.6), limit=MAX_BYTES)
    if code is None:
        return False, "journal: %s" % clean(err.strip(), 120), None
    told = err + out[:400]
    if code != 0 or "No journal files were" in told or "not seeing messages from other users" in told:
        return False, "journal: %s" % clean(told.strip().split("\n")[0], 120), None
    lines = [line for line in out.split("\n") if line and not line.startswith("-- ")]
    if not lines and since is None:
        return False, "journal: holds no kernel line", None
    for line in lines:
        events.take(split_line(line, ctx.now(), None, local=True))
    if since is None:
        return True, "", len(lines) < MAX_LINES
    if len(lines) >= MAX_LINES:
        return True, "", False
    # An older line of this boot that is still kept proves that nothing since then was rotated away.
    argv = ["journalctl", "-k", "-o", "short-unix", "--no-pager", "-n", "1", "--until=@%d" % int(since)]
    code, out, _ = ctx.run(argv, min(1.5, ctx.left() * 0.5))
    if code is None:
        return True, "", None
    return True, "", any(re.match(r"\d{9,11}\.", line) for line in out.split("\n"))


def clock_base(ctx):
    """Epoch seconds when the kernel's clock was 0, or None. printk follows the monotonic clock, not the boot clock."""
    if not ctx.real:
        try:
            return ctx.now() - float((ctx.read(ctx.proc("uptime"), 64) or "").split()[0])
        except (ValueError, IndexError):
            return None
    monotonic = time.clock_gettime(time.CLOCK_MONOTONIC)
    try:
        asleep = time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", 7)) - monotonic
    except OSError:
        asleep = 0.0
    if asleep > 1.0:
        ctx.note("this host was suspended for %d s since boot: times of older lines are late by up to that" % asleep)
    return time.time() - monotonic


def from_dmesg(ctx, events, since, base):
    code, out, err = ctx.run(["dmesg"], min(2.0, ctx.left() * 0.6), limit=MAX_BYTES)
    if code != 0:
        return False, "dmesg: %s" % clean((err or out).strip().split("\n")[0], 120), None
    first = None
    for line in out.split("\n"):
        split = split_line(line, ctx.now(), base, local=True)
        if split and first is None:
            first = split[1]
        events.take(split)
    return True, "", covered(since, events.oldest, first is not None and first < 1.0)


def from_kmsg(ctx, events, since, base):
    """/dev/kmsg without blocking; one read is one record."""
    try:
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return False, "kmsg: %s" % error.strerror, None
    first = None
    try:
        while events.lines < MAX_LINES and ctx.left() > 0.5:
            try:
                record = os.read(handle, 8192)
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # overwritten while we read: the next record follows
                break
            split = split_kmsg(record.decode("utf-8", "replace"), base)
            if split and first is None:
                first = split[1]
            events.take(split)
    finally:
        os.close(handle)
    return True, "", covered(since, events.oldest, first is not None and first < 1.0)


def from_file(ctx, events, since, base, path):
    """The end of a syslog file; a plain file only."""
    real = ctx.root(path)
    try:
        if not stat.S_ISREG(os.stat(real).st_mode):
            return False, "%s: not a plain file" % path, None
        handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return False, "%s: %s" % (path, error.strerror), None
    try:
        size = os.fstat(handle).st_size
        start = max(0, size - MAX_BYTES)
        raw = os.pread(handle, MAX_BYTES, start)
    except OSError as error:
        return False, "%s: %s" % (path, error.strerror), None
    finally:
        os.close(handle)
    lines = raw.decode("utf-8", "replace").split("\n")[1 if start else 0 :]
    first = None
    for line in lines[-MAX_LINES:]:
        split = split_line(line[:LINE], ctx.now(), base, local=ctx.real)
        if split and first is None and split[2]:
            first = split[1]
        events.take(split)
    # A test folder's log is whole by construction; a syslog file is rotated, so an older line must prove it.
    whole = start == 0 and len(lines) <= MAX_LINES and not ctx.real
    return True, "", covered(since, events.oldest, whole or (first is not None and first < 1.0))


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


def collect(ctx):
    since = ctx.args.get("since")
    since = float(since) if isinstance(since, (int, float)) and not isinstance(since, bool) else None
    signatures = ctx.args.get("signatures") or []
    base = clock_base(ctx)
    if ctx.real:
        ways = [
            ("journal", lambda e: from_journal(ctx, e, since)),
            ("dmesg", lambda e: from_dmesg(ctx, e, since, base)),
            ("kmsg", lambda e: from_kmsg(ctx, e, since, base)),
            ("kern.log", lambda e: from_file(ctx, e, since, base, "/var/log/kern.log")),
            ("kern.log", lambda e: from_file(ctx, e, since, base, "/var/log/messages")),
        ]
    else:
        ways = [("kern.log", lambda e: from_file(ctx, e, since, base, "/var/log/kern.log"))]
    source, whys, reaches = "none", [], None
    for name, way in ways:
        events = Events(signatures, since)
        readable, why, reaches = way(events)
        if readable:
            source = name
            break
        whys.append(why)
    return {
        "readable": source != "none",
        "source": source,
        "why": "; ".join(whys)[:400],
        "boot_covered": reaches,
        "oldest_at": events.oldest,
        "events": events.told(),
        "events_left_out": events.left_out,
        "lines_read": events.lines,
        "oom_kill": counter(ctx.read(ctx.proc("vmstat"), 65536), "oom_kill"),
        "cgroup_oom_kill": cgroup_kills(ctx),
    }


if __name__ == "__main__":
    import _probe

    _probe.main(PROBE, collect)
