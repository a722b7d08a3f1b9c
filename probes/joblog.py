"""What does the job's log say, how far did it get, and what are its last words?

Reads    the file in args["path"], its last 8 MiB:
         " [2026-11-30 21:40:01.123] iteration       12/  100000 | … | elapsed time per iteration (ms): 503.9 | …"
         "E1129 17:17:31.034000 4240 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) …"
         "[rank3]:[E1129 17:17:31.412727749 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective …"
A line may wear a launcher's prefix ("3: ", "[rank3]:", "gpu003: "), colours, or be a progress bar (carriage returns).
`reduce_log` is pure and serves the operator's side for offline files as well.
Fooled by   a job that prints nothing between steps, or whose output is buffered (silence is no stall); lines without a
            date (they take the time of the nearest dated line above, `dated` is false); a log in local time (its zone
            is measured against the file's mtime where the last line is dated, else it is `unknown`); earlier attempts
            in the same file (`since` leaves out hits that are dated before it, never steps nor undated lines: cut those
            at the line_no of the newest `attempt_start`; what a line said of the end is over when steps follow it); a
            progress bar that is drawn once more when all is done (not a new step); whatever a rank chooses to print: a
            line is a claim, never a proof.
"""

import calendar
import importlib
import itertools
import os
import re
import stat
import time

PROBE = {
    "name": "joblog",
    "version": 1,
    "needs": [],
    "timeout_s": 5,
    "cost": "cheap",
    "fields": {
        "size": "bytes, of the whole file",
        "mtime": "epoch s, clock of the file server",
        "truncated_head": "bool: only the last max_bytes were read",
        "first_at": "epoch s, first dated line of what was read",
        "newest_at": "epoch s, newest dated line",
        "zone": "utc (told by the lines, or measured against mtime) or unknown (taken as UTC)",
        "offset_s": "s, already subtracted from every time in the answer; 0 unless measured or told",
        "iterations": "training steps that the log tells: total planned, series of [iteration, at epoch s, elapsed ms], "
        "lines: line of each of them, counted as in hits",
        "last_line_no": "of iterations: line of the newest step (of the first line that tells its number), counted as in hits",
        "hits": "known lines, one per (id, groups, prefix): at of the first, last_at and line_no of the last",
        "timers": "Megatron's timers of each rank: step, and of compute_ms, data_ms, collective_ms a list a rank (_timers.py)",
        "watchdog": "what the watchdogs of all ranks say, folded: columns, rows, left_out (_watchdog.py)",
        "tail": "last lines, 300 characters each",
    },
}

MAX_BYTES = 8 << 20
BLOCK = 1 << 20
LINE = 4096  # what of a line is looked at
MAX_HITS = 200
FIRST_HITS, LAST_HITS = 20, 40  # of one signature: how it began and where it stands now; the middle is counted only
FEW_FIRST, FEW_LAST = 4, 8  # of one whose lines are folded in the table as well
MAX_LINES_OF_ONE = 20000  # lines of one block that one signature may look at
MAX_SERIES = 2000  # steps told, unless args["series"] asks for fewer
DAY = 86400.0
ZONES = 14 * 3600.0
SET_BACK_S = 1200.0  # no writer's lines are out of order by so much; Lord Howe Island sets back by a half hour

ANSI = re.compile("\x1b(?:\\[[0-9;?]{0,16}[ -/]?[@-~]|\\][^\x07\x1b]{0,256}(?:\x07|\x1b\\\\)?|[@-Z\\\\^_])")
# Who printed: srun -l "3: ", torch "[rank3]:", torchrun --tee "[default3]:", mpirun "[1,3]<stdout>:", pdsh "gpu003: ".
PREFIX = re.compile(
    r"^\s{0,8}(?:\[(?P<tag>(?:rank|default|trainer|worker)\d{1,7})\]:|\[\d+,(?P<mpi>\d{1,7})\]<std\w{3}>:"
    r"|(?P<task>\d{1,7}): |(?P<host>[A-Za-z][\w.-]{0,62}): (?=\S))"
)
NOT_A_HOST = re.compile(
    r"(?:\w{1,40}\.){0,8}\w{0,40}(?:Error|Exception|Warning|Interrupt|Exit|Iteration)$|srun$|slurmstepd$"
)
MONTHS = {m: i + 1 for i, m in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split())}
STAMP = re.compile(
    r"(?<![\w.])(?:"
    r"(?P<y>20\d\d)-(?P<m>\d\d)-(?P<d>\d\d)[ T_](?P<t>\d\d:\d\d:\d\d)(?:[.,](?P<f>\d{1,9}))?(?P<z>Z|[+-]\d\d:?\d\d)?"
    r"|(?P<gm>[EWIFDV]\d{3,4}) (?P<gt>\d\d:\d\d:\d\d)(?:\.(?P<gf>\d{1,9}))?"
    r"|(?P<sm>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}(?P<sd>\d{1,2}) "
    r"(?P<st>\d\d:\d\d:\d\d)(?: (?P<sy>20\d\d))?"
    r"|(?P<um>\d\d)/(?P<ud>\d\d)/(?P<uy>20\d\d)[ ,]{1,2}(?P<ut>\d\d:\d\d:\d\d)"
    r")(?!\d)"
)
STAMP_WITHIN = 96  # a date further inside a line is what the line talks about, not when it was written

# Training steps, best teller first (notes/nccl-ras-and-logs.md 3). A progress bar counts where nothing better talks.
ITERATIONS = (
    (
        "megatron",
        b"elapsed time per iteration",
        re.compile(
            r"iteration\s{1,20}(?P<it>\d{1,12})\s{0,20}/\s{0,20}(?:(?P<tot>\d{1,12})|infinity) \|.{0,1500}?"
            r"elapsed time per iteration \((?P<u>ms|s)\): (?P<el>\d{1,12}(?:\.\d{0,9})?)(?:/[\d.]{1,24})?(?=\s)"
        ),
    ),
    (
        "megatron",
        b"elapsed_time_per_iteration_ms=",
        re.compile(
            r"iteration=\s{0,20}(?P<it>\d{1,12})\s{0,20}/\s{0,20}(?P<tot>\d{1,12}) \|.{0,1500}?"
            r"elapsed_time_per_iteration_ms=(?P<el>\d{1,12}(?:\.\d{0,9})?)(?=\s)"
        ),
    ),
    (
        "nemo",
        b"Training epoch ",
        re.compile(
            r"Training epoch \d{1,9}, iteration (?P<it0>\d{1,12})/(?P<tot>\d{1,12}) \|"
            r"(?:.{0,1500}?global_step: (?P<it>\d{1,12}))?"
            r"(?:.{0,1500}?train_step_timing in s: (?P<els>\d{1,9}(?:\.\d{0,9})?))?"
        ),
    ),
    (
        "nemo",
        b"train_step_timing in s=",
        re.compile(
            r"(?<![\d/])(?P<it>\d{1,12})(?:/(?P<tot>\d{1,12})|it) \[[^\]]{0,600}?"
            r"train_step_timing in s=(?P<els>\d{1,9}(?:\.\d{0,9})?)(?=[\s,\]])"
        ),
    ),
    (
        "deepspeed",
        b"[timer.py:",
        re.compile(
            r"\[timer\.py:\d{1,6}:stop\] (?:epoch=\d{1,9}/micro_step=\d{1,12}/global_step=(?P<it>\d{1,12}), "
            r"|(?P<it0>0)/(?P<it1>\d{1,12}), )(?:RunningAvg)?SamplesPerSec="
        ),
    ),
    (
        "torchtitan",
        b"step:",
        re.compile(r"\bstep:\s{0,8}(?P<it>\d{1,12})\s{1,8}loss:\s{0,8}\S{1,24}\s.{0,400}?\btps:\s{0,8}[\d,]{1,16}"),
    ),
    (
        "tqdm",
        b"it",
        re.compile(
            r"(?P<bar>[^|]{0,60}\|)?[^|]{0,200}\|?\s{0,2}(?<![\d/.])(?P<it>\d{1,12})/(?P<tot>\d{1,12}) "
            r"\[[\d:]{4,12}<[\d:?]{1,12}, {1,4}"
            r"(?:(?P<els>\d{1,9}(?:\.\d{0,9})?)s/it|(?P<ips>\d{1,9}(?:\.\d{0,9})?)it/s)"
        ),
    ),
)
# Bars of other work: data preparation and loading say nothing of training.
NOT_TRAINING = re.compile("(?i)map|load|token|generat|filter|shard|sav|eval|valid|predict|fetch|pack|group|cast")


# ---------------------------------------------------------------- pure: lines and times


def _helper(name):
    """A helper beside this file: on a node by its name, on the operator's side as a part of the package."""
    return importlib.import_module("%s.%s" % (__package__, name) if __package__ else name)


def clean(text, limit=300):
    """Bounded text without colour codes and control characters: what a rank prints is untrusted input."""
    text = text[: limit * 4]
    text = ANSI.sub("", text) if "\x1b" in text else text
    if text.isprintable():  # nearly every line
        return text[:limit].rstrip()
    return "".join(c if c.isprintable() else " " for c in text[:limit]).rstrip()


def text_of(raw):
    """One line as text, colours stripped; of a progress bar (carriage returns) its last state."""
    line = raw[:LINE].decode("utf-8", "replace")
    if "\r" in line:
        parts = [p for p in line.split("\r") if p.strip()]
        line = parts[-1] if parts else ""
    return ANSI.sub("", line) if "\x1b" in line else line


def prefix_of(line):
    """(who printed the line: "rank3", "3", "gpu003" or "", the line behind that prefix)."""
    found = PREFIX.match(line)
    if not found:
        return "", line
    host = found.group("host")
    if host and NOT_A_HOST.match(host):
        return "", line
    return found.group("tag") or found.group("mpi") or found.group("task") or host, line[found.end() :]


def stamp_of(line, reference):
    """(epoch seconds taken as UTC, True if the line tells its zone), or None for a line without a date.

    `reference` (epoch s, e.g. the mtime) gives the year where the line has none: the latest that is not ahead of it.
    """
    found = STAMP.search(line, 0, STAMP_WITHIN + 40)
    if not found or found.start() > STAMP_WITHIN:
        return None
    part = found.groupdict()
    year, fraction, zone = None, None, None
    if part["y"]:
        year, month, day, clock = int(part["y"]), int(part["m"]), int(part["d"]), part["t"]
        fraction, zone = part["f"], part["z"]
    elif part["gm"]:
        # c10d does not pad the month (E321 is 21 March), torchelastic pads both: the last two digits are the day.
        month, day, clock, fraction = int(part["gm"][1:-2]), int(part["gm"][-2:]), part["gt"], part["gf"]
    elif part["sm"]:
        month, day, clock = MONTHS[part["sm"]], int(part["sd"]), part["st"]
        year = int(part["sy"]) if part["sy"] else None
    else:
        year, month, day, clock = int(part["uy"]), int(part["um"]), int(part["ud"]), part["ut"]
    hour, minute, second = (int(x) for x in clock.split(":"))
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    if year is None:
        if reference is None:
            return None
        year = time.gmtime(reference).tm_year
        if calendar.timegm((year, month, day, hour, minute, second)) > reference + 2 * DAY:
            year -= 1
    at = float(calendar.timegm((year, month, day, hour, minute, second)))
    if fraction:
        at += float("0." + fraction)
    if zone and zone != "Z":
        away = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        at -= away if zone[0] == "+" else -away
    # A date far ahead is something that the line talks about.
    if reference is not None and at > reference + 1.5 * DAY:
        return None
    return at, zone is not None


def measured_offset(newest, mtime, last_is_dated):
    """The log's zone in seconds east of UTC, or None if it cannot be told.

    Where the very last line is dated, it was written when the file was last changed: what is left between the two is
    the zone, a multiple of 15 minutes, give or take the file server's clock.
    """
    if newest is None or mtime is None or not last_is_dated:
        return None
    away = newest - mtime
    quarter = round(away / 900.0) * 900.0
    if abs(away - quarter) > 30.0 or abs(quarter) > ZONES:
        return None
    return quarter


def undate_before_a_jump(series):
    """Take the times off the steps before the clock was set back (the end of summer time): they are of another zone."""
    for i in range(len(series) - 1, 0, -1):
        at, above = series[i][1], series[i - 1][1]
        if at is not None and above is not None and at < above - SET_BACK_S and series[i][0] > series[i - 1][0]:
            for row in series[:i]:
                row[1] = None
            return


def step_above(block):
    """Number of the last of Megatron's step lines in these bytes, or None."""
    pos = block.rfind(ITERATIONS[0][1])
    found = ITERATIONS[0][2].search(text_of(block[slice(*line_around(block, pos))]) + " ") if pos >= 0 else None
    return int(found.group("it")) if found else None


def compile_signatures(signatures):
    """[(id, [hint bytes], regex)]; each matching line holds one of the hints, so that most lines cost nothing."""
    ready = []
    for item in signatures:
        hints = item.get("hint") or []
        hints = [hints] if isinstance(hints, str) else hints
        ready.append((item["id"], [h.encode() for h in hints], re.compile(item["pattern"])))
    return ready


def groups_of(found):
    """Named groups that took part, bounded; `seq__2` is another place of `seq` in the pattern."""
    return {k.split("__")[0]: clean(v, 128) for k, v in found.groupdict().items() if v is not None}


def line_around(block, pos):
    """(start, end) of the line of `block` that holds `pos`; at most LINE bytes to each side."""
    low = max(0, pos - LINE)
    start = max(block.rfind(b"\n", low, pos), block.rfind(b"\r", low, pos)) + 1
    high = min(len(block), pos + LINE)
    end = block.find(b"\n", pos, high)
    high = end if end >= 0 else high
    end = block.find(b"\r", pos, high)
    return max(start, low), (end if end >= 0 else high)


def lines_with(block, hints, limit=MAX_LINES_OF_ONE):
    """(start, end) of the lines of a block that hold one of the hints, in order; every line where there is no hint."""
    spans = set()
    for hint in hints or [b"\n"]:
        pos = block.find(hint)
        while pos >= 0 and len(spans) < limit:
            span = line_around(block, pos if hints else max(pos - 1, 0))
            spans.add(span)
            pos = block.find(hint, max(span[1], pos + 1))
    return sorted(spans)


# ---------------------------------------------------------------- pure: the reducer


class _Log(object):
    """What has been learnt of a log so far, block after block."""

    def __init__(self, signatures, reference, since, told_offset, rank=None):
        self.signatures = compile_signatures(signatures)
        helper = _helper("_watchdog")
        self.table, self.folded = helper.Table(rank), frozenset(helper.FOLDED)
        self.tabled = frozenset(helper.KINDS) | {helper.START}
        self.reference = reference
        # The zone is measured at the end: until then a line may be dated up to 14 hours too early.
        self.since = None if since is None else since - (ZONES if told_offset is None else 0.0)
        self.offset, self.zone_told = told_offset or 0.0, told_offset is not None
        self.first_at = self.newest_at = None
        self.before = None  # time of the last dated line of the blocks before
        self.explicit = self.plain = False  # lines that tell their zone; lines that do not
        self.pairs = set()  # zones that a line of one kind next to one of the other kind comes to
        self.newlines = self.order = 0
        self.hits, self.left_out = {}, {}
        self.series = {}  # format -> prefix -> [[iteration, at, elapsed ms, line], …]
        self.totals, self.last_line = {}, {}  # format -> steps planned; -> line of its newest step
        self.cut = False
        self.timers = []  # of Megatron's ranks (_timers.py)

    def at(self, block, start, end):
        """(time of a line or of the nearest dated one above, is it the line's own)."""
        line = text_of(block[start:end])
        found = stamp_of(line, self.reference)
        if found:
            self.explicit = self.explicit or found[1]
            return found[0] - (0.0 if found[1] else self.offset), True
        for above in reversed(block[max(0, start - 16384) : start].split(b"\n")[-60:]):
            found = stamp_of(text_of(above), self.reference)
            if found:
                return found[0] - (0.0 if found[1] else self.offset), False
        return self.before, False

    def pair(self, block):
        """Lay lines that tell no zone beside neighbours that do; the first block's word is taken for the whole log."""
        before = None
        found = set()
        for raw in (block[:131072] + b"\n" + block[-131072:]).split(b"\n")[:800]:
            stamp = stamp_of(text_of(raw), self.reference)
            if not stamp:
                continue
            self.explicit, self.plain = self.explicit or stamp[1], self.plain or not stamp[1]
            if before is not None and before[1] != stamp[1]:
                away = (before[0] - stamp[0]) if stamp[1] else (stamp[0] - before[0])
                whole = round(away / 900.0) * 900.0
                # A line may be minutes younger than the one above it: only neighbours of one moment speak.
                if abs(away - whole) <= 30.0 and abs(whole) <= ZONES:
                    found.add(whole)
            before = stamp
        if not self.newlines and not self.zone_told and len(found) == 1:
            self.offset = next(iter(found))
            self.pairs = found
        elif found and found != self.pairs:
            self.pairs |= found

    def feed(self, block, last):
        """Take a block of whole lines (the very last one may be torn)."""
        self.pair(block)
        self.dates(block)
        self.find_hits(block)
        self.find_iterations(block, last)
        _helper("_timers").take(self.timers, block, lambda raw: prefix_of(text_of(raw))[1].rstrip(), step_above)
        self.newlines += block.count(b"\n")
        if self.newest_here is not None:
            self.before = self.newest_here

    def dates(self, block):
        self.newest_here = None
        if self.first_at is None:
            for raw in block[:131072].split(b"\n")[:400]:
                found = stamp_of(text_of(raw), self.reference)
                if found:
                    self.first_at = found[0] - (0.0 if found[1] else self.offset)
                    break
        for raw in reversed(block[-131072:].split(b"\n")[-400:]):
            found = stamp_of(text_of(raw), self.reference)
            if found:
                self.explicit = self.explicit or found[1]
                at = found[0] - (0.0 if found[1] else self.offset)
                # Lines of several writers are not in order to the millisecond: the newest of the last few.
                self.newest_here = at if self.newest_here is None else max(at, self.newest_here)
                if found[0] < self.newest_here - 5:
                    break
        if self.newest_here is not None:
            self.newest_at = max(self.newest_here, self.newest_at or self.newest_here)

    def find_hits(self, block):
        touched, tabled = [], []
        for name, hints, regex in self.signatures:
            if name.startswith("pace_"):  # they come with every step: the first and the last of a block tell enough
                far = max(0, len(block) - 65536)
                spans = [(a + far, b + far) for a, b in lines_with(block[far:], hints)[-LAST_HITS:]]
                spans = sorted(set(spans + lines_with(block, hints, FIRST_HITS)))
            else:
                spans = lines_with(block, hints)
            if len(spans) >= MAX_LINES_OF_ONE:
                self.cut = True
            kept = self.hits.setdefault(name, {})
            for start, end in spans:
                line = text_of(block[start:end])
                found = regex.search(line)
                if not found:
                    continue
                groups, prefix = groups_of(found), prefix_of(line)[0]
                key = (prefix, tuple(sorted(groups.items())))
                hit = kept.get(key)
                if hit is None or name in self.tabled:
                    at, dated = self.at(block, start, end)
                    if self.since is not None and at is not None and at < self.since:
                        continue
                    if name in self.tabled:
                        tabled.append((start, name, found, line, prefix, at, dated))
                if hit is None:
                    hit = kept[key] = {
                        "id": name,
                        "at": at,
                        "last_at": at,
                        "dated": dated,
                        "count": 0,
                        "text": clean(line),
                        "prefix": prefix,
                        "groups": groups,
                        "_order": self.order,
                    }
                    self.order += 1
                    if len(kept) > sum(self.room(name)):
                        self.drop_middle(name)
                hit["count"] += 1
                if "_span" not in hit:
                    touched.append(hit)
                hit["_span"] = (start, end)
        # A hit's place is where its line stood last: a phase that began twice is open from its second beginning.
        touched.sort(key=lambda h: h["_span"])
        pos, number = 0, self.newlines + 1
        for hit in touched:
            start, end = hit.pop("_span")
            number, pos = number + block.count(b"\n", pos, start), start
            hit["line_no"] = number
            if hit["count"] > 1:
                hit["last_at"] = self.at(block, start, end)[0]
        self.fill_table(block, tabled)

    def fill_table(self, block, tabled):
        """Hand the lines of all watchdogs to the table, in the order of the log."""
        pos, number = 0, self.newlines + 1
        for start, name, found, line, prefix, at, dated in sorted(tabled, key=lambda item: item[0]):
            number, pos = number + block.count(b"\n", pos, start), start
            groups = {k.split("__")[0]: v for k, v in found.groupdict().items() if v is not None}
            self.table.take(name, groups, line, prefix, at, dated, number)

    def room(self, name):
        """How many of its first and of its last hits are kept of a signature."""
        return (FEW_FIRST, FEW_LAST) if name in self.folded else (FIRST_HITS, LAST_HITS)

    def drop_middle(self, name):
        """Forget the oldest hit behind the first ones of a signature; it stays counted."""
        kept = self.hits[name]
        key = next(itertools.islice(kept, self.room(name)[0], None))  # they stand in the order in which they came
        self.left_out[name] = self.left_out.get(name, 0) + max(1, kept.pop(key)["count"])

    def told_hits(self):
        """All hits in the order of the log, at most MAX_HITS: the noisiest signature gives way."""
        while sum(len(kept) for kept in self.hits.values()) > MAX_HITS:
            noisy = max(self.hits, key=lambda n: len(self.hits[n]))
            if len(self.hits[noisy]) > self.room(noisy)[0]:
                self.drop_middle(noisy)
            else:
                self.hits[noisy].popitem()
        hits = [hit for kept in self.hits.values() for hit in kept.values()]
        for hit in hits:
            hit.pop("_order", None)
        return sorted(hits, key=lambda h: h["line_no"])

    def find_iterations(self, block, last):
        """The last MAX_SERIES step lines of a block, from its end backwards. A torn line may hold a torn number."""
        whole = len(block) if not last else max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        for name, hint, regex in ITERATIONS:
            if name == "tqdm" and any(self.series.get(n) for n, _, _ in ITERATIONS if n != "tqdm"):
                continue
            rows, pos = [], whole
            tries = 0
            while len(rows) < MAX_SERIES and tries < 2 * MAX_SERIES:
                pos = block.rfind(hint, 0, pos)
                if pos < 0:
                    break
                start, end = line_around(block, pos)
                pos = start
                tries += 1
                line = text_of(block[start:end])
                # `s/it` and `it/s` are short: let the cheap test speak before the regex.
                if name == "tqdm" and ("s/it" not in line and "it/s" not in line):
                    continue
                found = regex.search(line + " ")
                row = found and self.row(name, found)
                if row:
                    stamp = stamp_of(line, self.reference)
                    row[1] = stamp[0] - (0.0 if stamp[1] else self.offset) if stamp else None
                    rows.append((prefix_of(line)[0], row, start))
            line_no, here = self.newlines + 1, 0
            for prefix, row, start in reversed(rows):
                kept = self.series.setdefault(name, {}).setdefault(prefix, [])
                if not kept or kept[-1][0] != row[0]:
                    line_no, here = line_no + block.count(b"\n", here, start), start
                    kept.append(row + [line_no])
                    del kept[:-MAX_SERIES]
                    self.last_line[name] = line_no

    def row(self, name, found):
        part = found.groupdict()
        if name == "tqdm" and NOT_TRAINING.search(part["bar"] or ""):
            return None
        number = part.get("it") or part.get("it1") or part.get("it0")
        if number is None:
            return None
        if part.get("tot"):
            self.totals[name] = int(part["tot"])
        elapsed = None
        if part.get("el"):
            elapsed = float(part["el"]) * (1000.0 if part.get("u") == "s" else 1.0)
        elif part.get("els"):
            elapsed = float(part["els"]) * 1000.0
        elif part.get("ips") and float(part["ips"]) >= 0.5:  # two decimals: a lower rate is too rough for a time
            elapsed = 1000.0 / float(part["ips"])
        return [int(number), None, elapsed]

    def iterations(self):
        """The best teller's series: of several ranks that print, the one that printed most."""
        for name, _, _ in ITERATIONS:
            by_prefix = self.series.get(name)
            if by_prefix:
                prefix = max(by_prefix, key=lambda p: (len(by_prefix[p]), by_prefix[p][-1][0]))
                return {
                    "source": name,
                    "prefix": prefix,
                    "total": self.totals.get(name),
                    "series": [row[:3] for row in by_prefix[prefix]],
                    "lines": [row[3] for row in by_prefix[prefix]],
                    "last_line_no": self.last_line.get(name),
                }
        return {"source": None, "prefix": "", "total": None, "series": [], "lines": [], "last_line_no": None}


def whole_lines(chunks):
    """(block of whole lines, is it the last) of any chunks of bytes; a line without end is cut after 1 MiB."""
    rest = b""
    for chunk in chunks:
        block = rest + chunk
        cut = block.rfind(b"\n") + 1
        if not cut and len(block) < BLOCK:
            rest = block
            continue
        cut = cut or len(block)
        rest = block[cut:]
        yield block[:cut], False
    yield rest, True


def tail_of(raw, count):
    """The last `count` lines, bounded, a progress bar as its last state."""
    found = [clean(text_of(line[-LINE:] if b"\r" in line else line)) for line in raw.split(b"\n")]
    return [line for line in found if line][-count:] if count > 0 else []


def reduce_log(
    chunks,
    signatures,
    now=None,
    mtime=None,
    offset_s=None,
    tail=20,
    since=None,
    truncated_head=False,
    left=None,
    series=MAX_SERIES,
    rank=None,
):
    """What a log tells, from its bytes (one bytes object, or an iterable of chunks in order).

    signatures  [{id, pattern, hint: literal or list of literals}]
    now, mtime  epoch s: give the year of dates without one; mtime also measures the zone (None for a copied file)
    offset_s    the log's zone, seconds east of UTC, where it is known
    since       epoch s: hits dated before it belong to an earlier attempt and are left out; where the zone cannot be
                told, only those more than 14 hours before it. Steps are never left out: each has its line and its date
    left        a function: seconds left (the reading stops early, `complete` is then false)
    series      training steps told, the last ones
    rank        the global rank whose log it is, where that is known: lines without a tag are then its own
    Returns the keys of the probe's data that need no file: truncated_head, complete, first_at, newest_at, zone,
    offset_s, tail, iterations, hits, hits_left_out, lines, timers, watchdog.
    """
    if isinstance(chunks, (bytes, bytearray)):
        chunks = [bytes(chunks[i : i + BLOCK]) for i in range(0, len(chunks), BLOCK)]
    log = _Log(signatures, mtime if mtime is not None else now, since, offset_s, rank)
    recent, complete = b"", True
    for block, last in whole_lines(chunks):
        recent = (recent + block)[-65536:]
        if block:
            log.feed(block, last)
        if left is not None and left() < 0.3:
            complete = last
            break
    told = [line for line in recent.split(b"\n") if line.strip()]
    last_is_dated = bool(told) and stamp_of(text_of(told[-1][-LINE:]), log.reference) is not None
    # Lines of both kinds: what those without a zone mean is told by their neighbours, or not at all.
    told = log.explicit and (not log.plain or len(log.pairs) == 1)
    zone = "utc" if told or offset_s is not None else "unknown"
    shift = None if zone == "utc" or log.explicit else measured_offset(log.newest_at, mtime, last_is_dated)
    iterations = log.iterations()
    for name in ("series", "lines"):
        iterations[name] = iterations[name][-series:]
    undate_before_a_jump(iterations["series"])
    hits = log.told_hits()
    if shift is not None:
        zone = "utc"
        log.newest_at -= shift
        log.first_at = None if log.first_at is None else log.first_at - shift  # its first hundreds of lines undated
        for hit in hits:
            for name in ("at", "last_at"):
                hit[name] = None if hit[name] is None else hit[name] - shift
        for row in iterations["series"]:
            row[1] = None if row[1] is None else row[1] - shift
    if since is not None and zone == "utc":
        hits = [hit for hit in hits if hit["last_at"] is None or hit["last_at"] >= since]
    return {
        "truncated_head": bool(truncated_head),
        "complete": complete and not log.cut,
        "first_at": log.first_at,
        "newest_at": log.newest_at,
        "zone": zone,
        "offset_s": shift if shift is not None else (offset_s or 0.0),
        "lines": log.newlines,
        "tail": tail_of(recent, tail),
        "iterations": iterations,
        "hits": hits,
        "hits_left_out": log.left_out,
        "timers": _helper("_timers").told(log.timers),
        "watchdog": log.table.told(_helper("_records").fold, shift or 0.0),
    }


# ---------------------------------------------------------------- edge


def open_regular(path):
    """(file descriptor, stat) of a plain file, else OSError or ValueError: a FIFO would block, a device may act."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("not a plain file")
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    info = os.fstat(handle)
    if not stat.S_ISREG(info.st_mode):
        os.close(handle)
        raise ValueError("not a plain file")
    return handle, info


def chunks_of(handle, start, end):
    """Blocks of a file between two offsets; what is appended meanwhile is left for the next look."""
    os.lseek(handle, start, os.SEEK_SET)
    while start < end:
        chunk = os.read(handle, min(BLOCK, end - start))
        if not chunk:
            return
        start += len(chunk)
        yield chunk


def read_log(path, signatures, max_bytes=MAX_BYTES, copied=False, **more):
    """The probe's data of a log file. Raises OSError, or ValueError for what is no plain file.

    copied  the file is a copy: its mtime says nothing of the zone
    more    as for reduce_log: now, offset_s, tail, since, left, series
    """
    handle, info = open_regular(path)
    try:
        start = max(0, info.st_size - max_bytes)
        skip = 0
        if start:
            # Begin at a line: the first one that is whole.
            head = os.pread(handle, 65536, start)
            skip = head.find(b"\n") + 1
        data = reduce_log(
            chunks_of(handle, start + skip, info.st_size),
            signatures,
            mtime=None if copied else info.st_mtime,
            truncated_head=start > 0,
            **more,
        )
    finally:
        os.close(handle)
    data.update({"path": path, "exists": True, "size": info.st_size, "mtime": info.st_mtime})
    return data


def collect(ctx):
    path = ctx.args.get("path")
    if not path or not isinstance(path, str):
        raise ctx.Absent("no log path was given")
    wanted = ctx.args.get("max_bytes")
    try:
        data = read_log(
            ctx.root(path),
            ctx.args.get("signatures") or [],
            max_bytes=max(4096, min(int(wanted or MAX_BYTES), MAX_BYTES)),
            series=max(1, min(int(ctx.args.get("series") or MAX_SERIES), MAX_SERIES)),
            tail=max(0, min(int(ctx.args.get("tail", 20)), 200)),
            now=ctx.now(),
            offset_s=ctx.args.get("offset_s"),
            since=ctx.args.get("since"),
            left=ctx.left,
        )
    except PermissionError:
        raise ctx.Denied("the log may not be read: %s" % clean(path))
    except (OSError, ValueError) as error:
        raise ctx.Absent("no log here: %s: %s" % (clean(path), getattr(error, "strerror", None) or error))
    data["path"] = path
    return data


if __name__ == "__main__":
    import _probe

    _probe.main(PROBE, collect)
