"""What the watchdogs of PyTorch print, of all ranks, folded: who gave up where, and how far each says that it came.

Input: lines that joblog.py knows by signature, in the order of the log:
    [rank3]:[E1129 02:30:58.4 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(
        SeqNum=40112, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800040 milliseconds …
    [rank3]:[E1129 02:30:58.4 ProcessGroupNCCL.cpp:2271] [PG ID 0 PG GUID 0(default_pg) Rank 3]  failure detected by …
Output: rows of COLUMNS, one for all ranks that say the same. Thousands of ranks print within a second; they come to some
rows. Pure, Python 3.6.
Fooled by   the rank in brackets, which is that in the group: the global one is the line's prefix "[rank3]:", and without one
            (before 2.2) is not known; a time-out line, which does not name its group (its status line does, told later by the
            same rank for the same number); two attempts in one file that stopped at the same number (a line that only a
            start prints parts them, and so does a gap of five minutes).
"""

import re

COLUMNS = (
    "kind", "guid", "pg", "desc", "seq", "op", "numel_in", "numel_out", "timeout_ms", "enqueued", "completed", "started",
    "ranks", "group_ranks", "untold", "at", "last_at", "begun", "last_begun", "dated", "count", "first_line", "line_no",
)  # fmt: skip
# Signatures that are read, and what their rows are called. The last ones tell where a rank was when the others gave up.
KINDS = {
    "watchdog_timeout": "timeout",
    "watchdog_status": "status",
    "watchdog_dump_signal": "dump",
    "watchdog_desync": "desync",
    "heartbeat_stuck": "stuck",
    "gloo_wait_ended": "gloo",
}
# Of these nothing is told in the single lines that the rows do not hold.
FOLDED = ("watchdog_timeout", "watchdog_status", "watchdog_dump_signal")
START = "attempt_start"
MOST_ROWS = 200  # some 160 bytes each: an answer stays below 64 KiB
MOST_KEPT = 4000  # while reading
MOST_MOMENTS = 16
GAP_S = 300.0  # all ranks of a group give up within a second; dumps and aborts follow within a minute or two
MOST_SEQ = 1 << 64
# torch's own tag; Ray's "(Worker[rank=9] pid=1)" where torch prints none.
TAG = re.compile(r"\[rank(\d{1,7})\]:")
RAY = re.compile(r"^\([\w.]{1,80}\[rank=(\d{1,7})\]")
FAR = 200  # how far into a line a tag may stand: behind the prefixes of launchers and log collectors


def rank_of(line, prefix=""):
    """The global rank that printed a line, or None. A launcher's own number of a task is no rank for certain."""
    found = TAG.search(line, 0, FAR) or RAY.match(line)
    if found:
        return int(found.group(1))
    return int(prefix[4:]) if re.match(r"rank\d{1,7}$", prefix) else None


def number(text):
    """A whole number of a line, or None: it may be absent, or nonsense of any length."""
    if not text or not re.match(r"-?\d{1,20}$", text):
        return None
    value = int(text)
    return value if -MOST_SEQ < value < MOST_SEQ else None


class Table(object):
    """What has been told so far. `rank`: of a file that is known to be one rank's."""

    def __init__(self, rank=None):
        self.rank = rank
        self.attempt = 0
        self.rows = {}  # key -> [COLUMNS…] with sets of ranks
        self.gaps = {}  # key without its generation -> generation
        self.moments = set()
        self.left_out = 0

    def take(self, name, groups, line, prefix, at, dated, line_no):
        """One line, behind all that were taken before. groups: named groups of its signature, whole texts."""
        if name == START:
            self.attempt += 1
            return
        kind = KINDS[name]
        rank = rank_of(line, prefix)
        rank = self.rank if rank is None else rank
        own = number(groups.get("pg_rank"))
        named, op = "", groups.get("op")
        if kind == "desync":
            named, op = groups.get("ranks") or "", "never" if groups.get("never") else None
        elif kind == "stuck":
            named = self.moment(at if dated else None)
        told = (
            kind, groups.get("guid"), groups.get("pg"), groups.get("desc"),
            number(groups.get("missed") if kind == "desync" else groups.get("seq")), op,
            number(groups.get("numel_in")), number(groups.get("numel_out")), number(groups.get("timeout_ms")),
            number(groups.get("enqueued")), number(groups.get("completed")), number(groups.get("started")),
        )  # fmt: skip
        row = self.row(told + (named,), at if dated else None)
        if row is None:
            self.left_out += 1
            return
        if kind == "desync":
            row["named"].update(int(n) for n in re.findall(r"\d{1,7}", named))
        if rank is not None:
            row["ranks"][rank] = own
        elif own is not None:
            row["untold"].add(own)
        self.date(row, at, dated, number(groups.get("ran_ms")))
        row["count"] += 1
        row["first_line"] = line_no if row["first_line"] is None else row["first_line"]
        row["line_no"] = line_no

    def moment(self, at):
        """Which ranks said so first matters: the first moments keep rows of their own, what comes later is one."""
        if at is None:
            return "undated"
        second = str(int(at // 2))
        if second not in self.moments and len(self.moments) < MOST_MOMENTS:
            self.moments.add(second)
        return second if second in self.moments else "later"

    def row(self, told, at):
        """The row for such lines of this attempt and of this moment."""
        base = (self.attempt,) + told
        key = base + (self.gaps.get(base, 0),)
        row = self.rows.get(key)
        if row is not None and at is not None and row["last_at"] is not None and at - row["last_at"] > GAP_S:
            self.gaps[base] = self.gaps.get(base, 0) + 1
            key, row = base + (self.gaps[base],), None
        if row is None:
            if len(self.rows) >= MOST_KEPT:
                return None
            row = self.rows[key] = {
                "told": told[:-1], "ranks": {}, "untold": set(), "named": set(), "at": None, "last_at": None, "begun": None,
                "last_begun": None, "dated": True, "count": 0, "first_line": None, "line_no": None,
            }  # fmt: skip
        return row

    def date(self, row, at, dated, ran_ms):
        if at is None:
            row["dated"] = False
            return
        row["dated"] = row["dated"] and bool(dated)
        row["at"] = at if row["at"] is None else min(at, row["at"])
        row["last_at"] = at if row["last_at"] is None else max(at, row["last_at"])
        if ran_ms is not None:
            # When it failed is not when it was told: the wait of ten or thirty minutes lies before the line.
            begun = at - ran_ms / 1000.0
            row["begun"] = begun if row["begun"] is None else min(begun, row["begun"])
            row["last_begun"] = begun if row["last_begun"] is None else max(begun, row["last_begun"])

    def told(self, fold, shift=0.0):
        """{"columns", "rows", "left_out"}: the oldest rows of the newest attempts first to stay; times less `shift`."""
        rows = sorted(self.rows.items(), key=lambda item: (-item[0][0], item[1]["first_line"] or 0))
        kept = sorted(rows[:MOST_ROWS], key=lambda item: item[1]["first_line"] or 0)
        left = self.left_out + sum(row["count"] for _, row in rows[MOST_ROWS:])
        return {"columns": list(COLUMNS), "rows": [flat(row, fold, shift) for _, row in kept], "left_out": left}


def flat(row, fold, shift):
    """A row as it is told. group_ranks: the ranks in the group, in the order of `ranks`; "=" if they are the same."""
    ranks = sorted(row["ranks"])
    own = [row["ranks"][rank] for rank in ranks]
    if row["told"][0] == "desync":
        places = fold(sorted(row["named"]))
    elif own == ranks:
        places = "="
    elif None in own or sorted(set(own)) != own:
        places = ""  # not told, or in no order that a group has
    else:
        places = fold(own)
    times = [
        None if row[name] is None else round(row[name] - shift, 3) for name in ("at", "last_at", "begun", "last_begun")
    ]
    return (
        list(row["told"])
        + [fold(ranks), places, fold(sorted(row["untold"]))]
        + times
        + [row["dated"], row["count"], row["first_line"], row["line_no"]]
    )
