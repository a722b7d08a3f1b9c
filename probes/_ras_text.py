"""What does a text report of NCCL's RAS say? From 2.24 on, the only form before 2.28.7. Pure.

    #0-0 (00000000000000a1) MISMATCH
      Communicator ranks have different AllReduce operation counts
      3 ranks have launched up to operation 42
      Rank 2 has launched up to operation 41 -- GPU 0 managed by process 4003 on node 10.0.0.12

Grammar as src/ras/client_support.cc prints it, read at 2.24.3, 2.26.2, 2.27.3, 2.28.9 and 2.30.7
(notes/nccl-ras-and-logs.md 1.5). parse() gives (NCCL version, time-outs, table, communicators); a communicator has the
attributes of _ras_report.Comm.
Fooled by   which ranks are listed: the fewer ones, be they behind or ahead, and nobody where it is half and half; numbers
            that are equal are not told at all; 2.24 and 2.25 count all operations together ("all") and call NOCOMM UNKNOWN;
            group numbers, which change from query to query (the hash is the name).

(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import re

MOST_RANKS, MOST_COUNT = 1 << 18, 1 << 48
# Ranks of all listed communicators together: 8,192 in 64 each; a line can claim 262,143 in 60 bytes.
MOST_SHOWN = 1 << 19
ERRORS = (
    "Unhandled CUDA error",
    "System error",
    "Internal error",
    "Invalid argument",
    "Invalid usage",
    "Remote process error",
)
UNNAMED = 8  # an error in other words


class Broken(ValueError):
    """Cut off, or no such report."""

    verdict = "broken"


class Garbage(ValueError):
    """A report without sense: all of it is thrown away."""

    verdict = "garbage"


def clean(text, limit=64):
    return "".join(c if c.isprintable() else " " for c in text[:limit])


N = r"(\d{1,18})"
ROW = re.compile(r"\s*%s\s+%s\s+%s\s+(\d{1,9}(?:-\d{1,9})?)\s+%s\s+%s\s+([A-Z]+)\s+([A-Z,]+)$" % (N, N, N, N, N))
VERSION = re.compile(r"NCCL version (\S{1,64}) compiled with CUDA")
HEAD = re.compile(r"#%s-%s \(([0-9a-f]{16})\) (INCOMPLETE|ERROR|MISMATCH)$" % (N, N))
PROCESS = re.compile(r"  Process %s on node (\S{1,255}) managing GPUs? " % N)
RANK = re.compile(r"  Rank %s -- (.*)$" % N)
LISTED = re.compile(r"  The (?:missing|unknown) ranks?: ([\d,]{1,65536})$")
MISSING = re.compile(r"  Missing communicator data from %s ranks?$" % N)
OP = re.compile(r"  Communicator ranks have different (\w{1,32}) operation counts$")
KIND = re.compile(r"  (Initialization|Asynchronous) errors? on %s ranks?$" % N)
MANAGED = re.compile(r"GPU (\d{1,4})\b.* managed by process %s on node (\S{1,255})$" % N)
SAYS = (
    r"(?:ha(?:s|ve) (?:launched up to operation %s|(not) launched any operations|status ([A-Z]+))|reported (.+?))" % N
)
MANY, ONE = re.compile(r"  %s ranks %s$" % (N, SAYS)), re.compile(r"  Rank %s %s(?: -- (.*))?$" % (N, SAYS))
STATES = ("NOCOMM", "UNKNOWN", "INIT", "RUNNING", "FINALIZE", "ABORT")
VERDICTS = ("OK", "INCOMPLETE", "ERROR", "MISMATCH")


class Group(object):
    """So many ranks of which one thing is said; the ranks themselves stand there only if they are few."""

    def __init__(self, value, count):
        self.value, self.count, self.ranks = value, count, set()


def parse(text):
    """(version, time-outs, table, communicators) of a (VERBOSE) STATUS in text. Raises Broken or Garbage."""
    lines = [line.rstrip() for line in text.splitlines()]
    found = VERSION.match(lines[0]) if lines else None
    if found is None:
        raise Broken("does not begin as a report of NCCL")
    if "Errors" not in lines or "Warnings" not in lines or not text.endswith("\n"):
        raise Broken("it is cut off")
    bounds = lines.index("Errors")  # both headings always stand there, also above nothing
    rows = table(lines[:bounds])
    comms, here, process, dead, timeouts, sections, shown = {}, None, None, set(), 0, {}, 0
    for line in lines[bounds:]:
        head = HEAD.match(line)
        if head:
            group, _, ident, kind = head.groups()
            if int(group) >= len(rows):
                raise Garbage("a communicator of group %s, which there is not" % group)
            sections[(int(group), kind)] = sections.get((int(group), kind), 0) + 1
            if ident not in comms:
                comms[ident] = Comm(ident, rows[int(group)][1])
                shown += comms[ident].size
                if shown > MOST_SHOWN:
                    raise Garbage("communicators of %d ranks in all" % shown)
            here, process = comms[ident], None
            here.enter(kind)
        elif line in ("INCOMPLETE", "DEAD"):
            here, process = None, dead if line == "DEAD" else set()
        elif line in ("Warnings", "TIMEOUT"):
            here, process = None, None
            timeouts += line == "TIMEOUT"
        elif here is not None and line:
            here.take(line)
        elif process is not None:
            told = PROCESS.match(line)
            if told:
                process.add((clean(told.group(2)), int(told.group(1))))
    for group, row in enumerate(rows):
        # Each communicator of a group has one section for each word of its row.
        if any(sections.get((group, kind), 0) != row[0] for kind in row[3].split(",") if kind != "OK"):
            raise Broken("its sections do not belong to its table: it is cut off")
    for comm in comms.values():
        comm.close(dead)
    return clean(found.group(1)), timeouts, rows, list(comms.values())


def table(lines):
    """[(communicators, size, status, errors)] of the summary, by group."""
    rows = []
    for line in lines:
        found = ROW.match(line)
        if found is None:
            continue
        group, comms, nodes, _, size, ranks, status, errors = found.groups()
        told = [int(n) for n in (comms, nodes, size, ranks)]
        if int(group) != len(rows) or not told[0] or not 0 < told[2] <= MOST_RANKS or told[3] > told[0] * told[2]:
            raise Garbage("a row of %s communicators of %s ranks" % (comms, size))
        if status not in STATES or any(word not in VERDICTS for word in errors.split(",")):
            raise Garbage("a row of status %s %s" % (clean(status, 16), clean(errors, 40)))
        if not told[1] and status not in ("NOCOMM", "UNKNOWN"):
            raise Garbage("a row without any node")
        rows.append((told[0], told[2], status, errors))
    if not rows and not any("No communicator data collected!" in line for line in lines):
        raise Broken("no table of communicators")
    return rows


class Comm(object):
    """One communicator, gathered line by line; see _ras_report.Comm for what its attributes mean."""

    def __init__(self, ident, size):
        self.ident, self.size, self.ops = ident, size, ("all",)
        self.rows, self.vectors, self.status, self.errors, self.missing = {}, {}, {}, {}, {}
        self.missing_n, self.unlisted = 0, ""
        # What the sections say, as it comes: operation -> groups, states, kind of error -> groups.
        self.told, self.states, self.faults = {}, [], {}
        self.section, self.op, self.kind, self.group = "", None, "async", None

    def enter(self, section):
        self.section, self.group, self.op = section, None, None

    def take(self, line):
        one, many, rank = ONE.match(line), MANY.match(line), RANK.match(line)
        if rank:
            self.place(self.listed(int(rank.group(1))), rank.group(2))
        elif one or many:
            number_, launched, none, status, error = (one or many).groups()[:5]
            value = int(launched) if launched else 0 if none else status or error
            if isinstance(value, int) and value >= MOST_COUNT:
                raise Garbage("%d launches" % value)
            self.group = Group(value, 1 if one else int(number_))
            self.into(status, error).append(self.group)
            if one:
                self.place(self.listed(int(number_)), one.group(6) or "")
        elif MISSING.match(line):
            self.missing_n = int(MISSING.match(line).group(1))
            self.group = Group("silent", self.missing_n)
        elif LISTED.match(line):
            for word in LISTED.match(line).group(1).split(","):
                self.listed(int(word[:18] or MOST_RANKS))
        elif OP.match(line):
            op = OP.match(line).group(1)
            self.op = "all" if op == "collective" else op
            self.told.setdefault(self.op, [])
        elif KIND.match(line):
            self.kind = "init" if line.startswith("  Init") else "async"

    def into(self, status, error):
        if status:
            if status not in STATES:
                raise Garbage("status %s" % clean(status, 16))
            return self.states
        if error:
            return self.faults.setdefault(self.kind, [])
        if self.op is None:
            raise Garbage("launches of no operation")
        return self.told[self.op]

    def check(self, rank):
        if not 0 <= rank < self.size:
            raise Garbage("rank %d in a communicator of %d" % (rank, self.size))

    def listed(self, rank):
        self.check(rank)
        if self.section == "INCOMPLETE":
            self.missing.setdefault(rank, ("silent", "", -1, -1))
        elif self.group is None or rank in self.group.ranks:
            raise Garbage("rank %d is listed out of place" % rank)
        else:
            self.group.ranks.add(rank)
            if len(self.group.ranks) > self.group.count:
                raise Garbage("more ranks than are counted")
        return rank

    def place(self, rank, words):
        found = MANAGED.match(words)
        if found is None:
            return
        where = (clean(found.group(3)), int(found.group(2)), int(found.group(1)))
        if self.section == "INCOMPLETE":
            self.missing[rank] = ("silent",) + where
        else:
            self.rows[rank] = where

    def close(self, dead):
        """All lines are read: make of them what a reader of JSON would know."""
        for rank, (how, host, pid, dev) in list(self.missing.items()):
            self.missing[rank] = ("dead" if (host, pid) in dead else how, host, pid, dev)
        gone = self.missing_n if len(self.missing) == self.missing_n else None
        incomplete = self.missing_n
        for group in self.states:
            absent = group.value in ("NOCOMM", "UNKNOWN")
            if group.value == "UNKNOWN" and incomplete:
                continue  # before 2.26 the silent ranks are told here a second time
            for rank in group.ranks:
                if absent:
                    self.missing[rank] = ("left",) + self.rows.pop(rank, ("", -1, -1))
                else:
                    self.status[rank] = group.value
            if absent:
                self.missing_n += group.count
                gone = gone + group.count if gone is not None and len(group.ranks) == group.count else None
        if self.missing_n > self.size:
            raise Garbage("more ranks are missing than there are")
        for kind, groups in self.faults.items():
            for group in groups:
                code = ERRORS.index(group.value) + 1 if group.value in ERRORS else UNNAMED
                self.errors[(kind, code)] = sorted(group.ranks.union(self.errors.get((kind, code), ())))
        self.ops = tuple(self.told) or ("all",)
        self.resolve(gone)

    def resolve(self, gone):
        """Launches per rank, where all groups but one are listed; else only how many ranks stand where."""
        told = {}
        absent = set(self.missing) if gone is not None else None
        for op, groups in self.told.items():
            counted = sum(group.count for group in groups)
            if counted > self.size or len(groups) < 2:
                raise Garbage("%d ranks told of %d" % (counted, self.size))
            open_ = [group for group in groups if len(group.ranks) < group.count]
            listed = {rank for group in groups for rank in group.ranks}
            if len(listed) != sum(len(group.ranks) for group in groups):
                raise Garbage("a rank in two places")
            rest = set(range(self.size)) - listed - (absent or set())
            if len(open_) > 1 or (open_ and (open_[0].ranks or len(rest) != open_[0].count)):
                self.unlisted = clean(
                    "%s: %s" % (op, ", ".join("%d ranks at %d" % (g.count, g.value) for g in groups[:8])), 200
                )
                return
            for group in groups:
                for rank in group.ranks if group not in open_ else rest:
                    told.setdefault(rank, {})[op] = group.value
        if any(len(values) != len(self.told) for values in told.values()):
            raise Garbage("not every operation counts the same ranks")
        self.vectors = {rank: tuple(values[op] for op in self.ops) for rank, values in told.items()}
