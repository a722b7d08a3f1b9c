"""What does one report of NCCL's RAS say, in a few hundred bytes? Pure.

    {"nccl_version": "2.28.9", "communicators": [{"hash": "0xa1", "secondary_hash": "0x1:0x2", "size": 4, "ranks": [
      {"rank": 0, "host": "10.0.0.11", "pid": 4001, "cuda_dev": 0, "status": {...}, "collective_counts": {...}}], ...

judge() answers ("ok", report), or what is wrong ("broken", "garbage", "foreign") and why. A report
counts launches on the host, no completions; equal counts are no health. Formats as src/ras/client_support.cc writes them,
2.28.7 to 2.30.7 (notes/nccl-ras-and-logs.md 1.6); the text of all releases is read in _ras_text.py.
Fooled by   a rank of a communicator that is no rank of the job (only a communicator of the world's size maps them, and only
            where the processes of this node agree); the listed minority, which may be the leader (counts are compared by
            others); a report made while communicators were being set up (rows without sense: all of it is thrown away);
            JSON of 2.28.7 and 2.28.9, which lacks a comma just where a rank is missing.

(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import json
import re

MOST_RANKS = 1 << 18
MOST_COUNT = 1 << 48  # launches of one rank: a million a second for nine years
MOST_COMMS, MOST_GROUPS, MOST_WHO, MOST_MISSING = 64, 32, 16, 256
MOST_FOLDED, MOST_CHARS = 2000, 100000  # of one group, of one report's folded ranks
OPS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
IN_PROGRESS = 7  # ncclInProgress


class Broken(ValueError):
    """Not readable as what it should be: cut off, or another syntax. Another format may still work."""

    verdict = "broken"


class Garbage(ValueError):
    """Readable, and senseless: the visible form of a memory bug (nccl issue 2346). Nothing of it is used."""

    verdict = "garbage"


def judge(raw, form, world, procs, parse_text):
    """("ok", reduced report) | ("broken" | "garbage" | "foreign", why).

    raw    bytes of the whole report;  form  "json" or "text" (for which parse_text is _ras_text.parse)
    world  ranks of the job, or None;  procs  [(rank, pid as the process itself knows it)] of the job's ranks on the node
    """
    try:
        text = raw.decode("utf-8")
        report = parse_json(text) if form == "json" else Report("text", *parse_text(text))
        why = foreign(report, world, procs)
        return ("foreign", why) if why else ("ok", reduce_report(report, world, procs))
    except ValueError as exc:
        return getattr(exc, "verdict", "broken"), clean(str(exc), 160)


def clean(text, limit=64):
    return "".join(c if c.isprintable() else " " for c in text[:limit])


def fold(ranks):
    """Sorted ranks as text of runs: [0, 1, 2] "0+3", [3, 7, 11] "3+3*4", [5] "5"."""
    out, i, n = [], 0, len(ranks)
    while i < n:
        j = i + 1
        step = ranks[j] - ranks[i] if j < n else 1
        while j < n and ranks[j] - ranks[j - 1] == step:
            j += 1
        if j - i == 2 and step != 1:  # two apart are no run
            j = i + 1
        out.append("%d" % ranks[i] if j == i + 1 else "%d+%d%s" % (ranks[i], j - i, "" if step == 1 else "*%d" % step))
        i = j
    return ",".join(out)


class Comm(object):
    """One communicator as a report shows it; ranks are its own.

    rows     rank -> (host, pid, device) of those that told
    vectors  rank -> launches per op of `ops` (None: the report does not tell, they are equal)
    status   rank -> INIT RUNNING FINALIZE ABORT;  errors  (init | async, code) -> ranks
    missing  rank -> (dead | silent | left, host, pid, device);  unlisted  what is told of numbers without their ranks
    """

    def __init__(self, ident, size):
        if not 0 < size <= MOST_RANKS:
            raise Garbage("a communicator of %d ranks" % size)
        self.ident, self.size, self.ops = ident, size, OPS
        self.rows, self.vectors, self.status, self.errors, self.missing = {}, {}, {}, {}, {}
        self.missing_n, self.unlisted = 0, ""

    def check(self, rank):
        if not 0 <= rank < self.size:
            raise Garbage("rank %d in a communicator of %d" % (rank, self.size))
        return rank


class Report(object):
    """All that one report tells; `table` only in text: [(communicators, size, status, errors)] by group."""

    def __init__(self, form, nccl="", timeouts=0, table=(), comms=()):
        self.form, self.nccl, self.timeouts, self.table = form, nccl, timeouts, list(table)
        self.comms, self.repaired = list(comms), False


# ---------------------------------------------------------------- JSON, from 2.28.7 on


def _int(digits):
    # int() of a million digits takes minutes on an old Python.
    if len(digits) > 20:
        raise Garbage("a number of %d digits" % len(digits))
    return int(digits)


def _constant(name):
    raise Garbage("the number %s" % name)


DECODER = json.JSONDecoder(parse_int=_int, parse_constant=_constant)
LIST = re.compile(r'"communicators"\s*:\s*\[')
LACKS_COMMA = re.compile(r'("nvml_dev"\s*:\s*-?\d{1,9})(\s+"status"\s*:)')
BLANK = re.compile(r"[\s,]*")


def number(record, name, low=0, high=MOST_COUNT):
    value = record.get(name) if isinstance(record, dict) else None
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Garbage("%s is %s" % (name, clean(repr(value), 40)))
    return value


def decode(text, at=0):
    try:
        return DECODER.raw_decode(text, at)
    except Garbage:
        raise
    except (ValueError, RecursionError) as exc:
        raise Broken("no JSON: %s" % exc)


def parse_json(text):
    """Report of a JSON report, one communicator in memory at a time."""
    report = Report("json")
    text = text.strip()
    # A row of a rank is some 480 bytes with 3 containers and 50 quotes: what has far more is made to fill memory.
    if text.count("{") + text.count("[") > len(text) // 40 + 1000 or text.count('"') > len(text) // 4 + 1000:
        raise Garbage("more containers or texts than a report has")
    mended = LACKS_COMMA.sub(r"\1,\2", text)
    report.repaired, text = len(mended) != len(text), mended
    found = LIST.search(text)
    if found is None:
        raise Broken("no list of communicators")
    at, seen = found.end(), set()
    while True:
        at = BLANK.match(text, at).end()
        if text[at : at + 1] == "]":
            break
        entry, at = decode(text, at)
        comm = json_comm(entry)
        if comm.ident in seen:
            raise Garbage("communicator %s stands there twice" % comm.ident)
        seen.add(comm.ident)
        report.comms.append(comm)
    rest = text[: found.end()] + text[at:]
    top, end = decode(rest)
    if not isinstance(top, dict) or rest[end:].strip():
        raise Broken("something follows the report")
    if number(top, "communicators_count") != len(report.comms):
        raise Garbage("%s communicators of %d" % (len(report.comms), top["communicators_count"]))
    version = top.get("nccl_version")
    report.nccl = clean(version) if isinstance(version, str) else ""
    network = top.get("ras")
    report.timeouts = number(network, "timeouts_count") if isinstance(network, dict) else 0
    return report


def json_comm(entry):
    if not isinstance(entry, dict):
        raise Garbage("a communicator that is none")
    names = [entry.get("hash"), entry.get("secondary_hash")]
    if not all(isinstance(name, str) and 2 < len(name) < 64 for name in names):
        raise Garbage("a communicator without its hash")
    comm = Comm(clean("/".join(names), 130), number(entry, "size"))
    ranks, missing = entry.get("ranks"), entry.get("missing_ranks")
    for rows, name in ((ranks, "ranks_count"), (missing, "missing_ranks_count")):
        if not isinstance(rows, list) or len(rows) != number(entry, name):
            raise Garbage("%s does not count its ranks" % name)
    for row in ranks:
        rank = comm.check(number(row, "rank"))
        if rank in comm.rows:
            raise Garbage("rank %d stands there twice" % rank)
        comm.rows[rank] = place(row, 1)
        status, counts = row.get("status"), row.get("collective_counts")
        code, later = number(status, "init_state", 0, 8), number(status, "async_error", 0, 8)
        comm.status[rank] = state(status, code)
        for kind, what in (("init", code), ("async", later)):
            if what not in (0, IN_PROGRESS):
                comm.errors.setdefault((kind, what), []).append(rank)
        comm.vectors[rank] = tuple(number(counts, op) for op in OPS)
    for row in missing:
        rank = comm.check(number(row, "rank"))
        if rank in comm.rows or rank in comm.missing:
            raise Garbage("rank %d stands there twice" % rank)
        status = row.get("status")
        flags = [status.get(n) for n in ("considered_dead", "unresponsive")] if isinstance(status, dict) else [None]
        if not all(isinstance(flag, bool) for flag in flags):
            raise Garbage("a missing rank without its status")
        comm.missing[rank] = ("dead" if flags[0] else "silent" if flags[1] else "left",) + place(row, -1)
    comm.missing_n = len(comm.missing)
    return comm


def place(row, least):
    host = row.get("host")
    if not isinstance(host, str) or len(host) > 255:
        raise Garbage("a rank without its host")
    return clean(host), number(row, "pid", least, 1 << 31), number(row, "cuda_dev", -1, 4096)


def state(status, code):
    """As client_support.cc ranks them: ABORT before FINALIZE before RUNNING before INIT."""
    flags = [status.get(name) for name in ("abort_flag", "finalize_called", "destroy_flag")]
    if not all(isinstance(flag, bool) for flag in flags):
        raise Garbage("a rank without its status")
    return "ABORT" if flags[0] else "FINALIZE" if flags[1] or flags[2] else "INIT" if code else "RUNNING"


# ---------------------------------------------------------------- whose it is, and what remains of it


def hosts_of(report):
    """host -> pids, as the report tells them."""
    found = {}
    for comm in report.comms:
        for host, pid, _ in comm.rows.values():
            found.setdefault(host, set()).add(pid)
        for _, host, pid, _ in comm.missing.values():
            found.setdefault(host, set()).add(pid)
    return found


def foreign(report, world, procs):
    """Why this is the report of another job; "" where it may be ours: two jobs of one user share the port."""
    largest = max([comm.size for comm in report.comms] + [row[1] for row in report.table] + [0])
    if world and largest > world:
        return "it tells of a communicator of %d ranks; the job has %d" % (largest, world)
    pids = {pid for _, pid in procs}
    if not pids:
        return ""
    if report.form == "json":
        known = max([len(pids & told) for told in hosts_of(report).values()] or [0])
        if 2 * known < len(pids):
            return "%d of the %d processes of this node are in it" % (known, len(pids))
        return ""
    for comm in report.comms:
        for rank, pid in procs if comm.size == world else ():
            if rank in comm.rows and comm.rows[rank][1] != pid:
                return "its rank %d is process %d; ours is %d" % (rank, comm.rows[rank][1], pid)
    return ""


def world_map(report, world, procs):
    """((host, pid, device) -> global rank, idents of the communicators that tell it), or None.

    Only a communicator of the world's size tells it, and only where each rank that this node hosts is the process that
    we know; several of that size must agree.
    """
    turned, idents = {}, set()
    for comm in report.comms:
        if comm.size != world:
            continue
        where = {rank: row[1:] for rank, row in comm.missing.items() if row[2] > 0}
        where.update(comm.rows)
        ours = [where[rank][1] == pid for rank, pid in procs if rank in where]
        if not ours or not all(ours) or len(set(where.values())) != len(where):
            continue
        if any(turned.get(place_, rank) != rank for rank, place_ in where.items()):
            return None  # the ranks are ordered differently in two of them
        turned.update((place_, rank) for rank, place_ in where.items())
        idents.add(comm.ident)
    return (turned, idents) if idents else None


def reduce_report(report, world, procs):
    """The part of the answer that one report becomes; its shape is told in triage-probes(7), ras."""
    mapped = world_map(report, world, procs) if world else None
    comms = sorted(report.comms, key=lambda comm: (not stands_out(comm), -comm.size, comm.ident))
    rows, chars, left, launches = [], 0, 0, 0
    for comm in comms:
        row = reduce_comm(comm, mapped, world)
        size = sum(len(group[2]) + 60 for name in ("groups", "status", "errors") for group in row[name]) + 200
        size += 60 * (len(row["who"]) + len(row["missing"]))
        if len(rows) < MOST_COMMS and chars + size <= MOST_CHARS:
            rows.append(row)
            chars += size
        else:
            left += 1
            launches += sum(map(launches_of, comm.vectors.values()))
    return {
        "format": report.form, "nccl": report.nccl, "repaired": report.repaired, "timeouts": min(report.timeouts, 1 << 30),
        "comms": rows, "left_out": left, "left_launches": min(launches, 1 << 69),
        "table": [list(row) for row in report.table[:MOST_COMMS]],
    }  # fmt: skip


def stands_out(comm):
    uneven = comm.unlisted or len(set(comm.vectors.values())) > 1
    return bool(uneven or comm.missing_n or comm.errors or set(comm.status.values()) - {"RUNNING"})


def launches_of(vector):
    return sum(value or 0 for value in vector)


def reduce_comm(comm, mapped, world):
    numbers = translation(comm, mapped)
    how = "global" if numbers is not None else "world" if comm.size == world else "comm"

    def name(rank):
        return rank if numbers is None else numbers[rank]

    def counted(ranks):
        text = fold(sorted(name(rank) for rank in ranks))
        return [len(ranks), text if len(text) <= MOST_FOLDED else ""]

    groups, states = {}, {}
    for rank, vector in comm.vectors.items():
        groups.setdefault(vector, []).append(rank)
    for rank, word in comm.status.items():
        states.setdefault(word, []).append(rank)
    ordered = sorted(groups, key=lambda vector: (launches_of(vector), vector))
    kept = ordered if len(ordered) <= MOST_GROUPS else ordered[: MOST_GROUPS // 2] + ordered[-MOST_GROUPS // 2 :]
    return {
        "id": comm.ident, "size": comm.size, "ranks": how, "ops": list(comm.ops), "present": comm.size - comm.missing_n,
        "groups": [[list(vector)] + counted(groups[vector]) for vector in kept],
        "more_groups": len(ordered) - len(kept), "unlisted": comm.unlisted,
        "status": [[word] + counted(ranks) for word, ranks in sorted(states.items())],
        "errors": [["%s %d" % key] + counted(ranks) for key, ranks in sorted(comm.errors.items())],
        "missing": [
            [name(rank), row[0], row[1], max(row[2], 0)] for rank, row in sorted(comm.missing.items())[:MOST_MISSING]
        ],
        "missing_n": comm.missing_n,
        "who": [[name(rank)] + list(comm.rows[rank][:2]) for rank in standing_out(comm, ordered, groups)],
    }  # fmt: skip


def standing_out(comm, ordered, groups):
    """Ranks whose process is told beside them, so that others can check whom a number means: the fewest launches first."""
    found = [rank for vector in ordered for rank in sorted(groups[vector]) if 2 * len(groups[vector]) <= comm.size]
    found += sorted(rank for rank, word in comm.status.items() if word != "RUNNING")
    found += [rank for ranks in comm.errors.values() for rank in ranks]
    return [rank for rank in dict.fromkeys(found) if rank in comm.rows][:MOST_WHO]


def translation(comm, mapped):
    """rank of this communicator -> global rank, of all whom it shows; None where one of them is not known."""
    if mapped is None:
        return None
    turned, idents = mapped
    shown = set(comm.vectors) | set(comm.status) | set(comm.missing) | set(comm.rows)
    if comm.ident in idents:
        return {rank: rank for rank in shown}
    where = {rank: row[1:] for rank, row in comm.missing.items()}
    where.update(comm.rows)
    found = {rank: turned.get(where.get(rank)) for rank in shown}
    return None if None in found.values() or len(set(found.values())) != len(found) else found
