"""Logs that somebody put beside the dumps (or alone) -> one Sample as the probe `joblog` would have sent of one log.

Input: (relative name, bytes, mtime) of each file, one after the other; nothing is kept but what they tell. A file is a log if
it is text in which at least one line is known (signatures.yaml) or tells a step. Whose it is: the rank in its name
(`rank3.err`, `log_3.txt`, torchelastic's `attempt_0/3/stderr.log`), where no line in it says otherwise.
Times: a file that was handed on may be of any zone, and its mtime is often that of the copy. So each log's times are laid on
the flight records' clock, or on another log's, by the collective that both tell of (every rank gives up within a second), to
a quarter of an hour. A log that cannot be laid so keeps its lines and loses its times, unless it is the only source there is.
What can fool it: a number in a name that is no rank (a node's); several attempts in one file (the lines before the last line
that only a start prints are left out); torchelastic's folders of several nodes, which are numbered by the node's own ranks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from triage.model import Sample
from triage.probes import joblog
from triage.probes._watchdog import COLUMNS, START
from triage.readers.signatures import for_probe

RANK_NAMES = (
    re.compile(r"(?:^|[._/-])rank[_.-]?(\d{1,7})(?!\d)", re.IGNORECASE),
    re.compile(r"^(?:log|out|err|stdout|stderr|output|worker)[_.-]?(\d{1,7})(?=\.|$)", re.IGNORECASE),
    re.compile(r"^(\d{1,7})\.(?:log|out|err|txt)$", re.IGNORECASE),
)
# torchelastic: <log dir>/<run>_<random>/attempt_<restart>/<rank on its node>/{stdout,stderr}.log
ELASTIC = re.compile(r"(?:^|/)attempt_(\d{1,4})/(\d{1,6})/(?:stdout|stderr)\.log$")
QUARTER_S = 900.0
NEAR_S = 30.0  # all waiting ranks give up within a second; clocks of nodes differ by less than this, or by far more
WRITTEN_ON_S = 30 * 86400.0  # a log that goes on without a whole date for longer than this is none of a training job
MOST_LOGS = 20_000
MOST_HITS = 4000
MOST_ROWS = 1000
AT, LAST_AT, BEGUN, LAST_BEGUN, DATED, FIRST_LINE, LINE = (
    COLUMNS.index(name) for name in ("at", "last_at", "begun", "last_begun", "dated", "first_line", "line_no")
)
TIMES = (AT, LAST_AT, BEGUN, LAST_BEGUN)


@dataclass
class Log:
    """One file, reduced."""

    name: str
    data: dict[str, Any]
    size: int
    rank: int | None = None
    attempt: int | None = None  # torchelastic's folder
    host: str = ""
    shift: float | None = None  # to be taken off its times; None: they cannot be compared with others
    plain: dict[str, Any] = field(default_factory=dict)  # the same without the rank of its name

    def begun(self) -> dict[tuple[Any, ...], float]:
        """(call and its number) -> when its ranks began to wait, by this log's clock."""
        found: dict[tuple[Any, ...], float] = {}
        for row in self.data["watchdog"]["rows"]:
            if row[0] == "timeout" and row[4] is not None and row[BEGUN] is not None and row[DATED]:
                found.setdefault((row[4], row[5], row[6], row[8]), row[BEGUN])
        return found


@dataclass
class Logs:
    """Collects the logs of a folder; `left`: (name, why) of texts that are none."""

    found: list[Log] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)
    quiet: list[tuple[str, int]] = field(default_factory=list)  # texts without a known line that a rank's name is on
    said: list[str] = field(default_factory=list)

    def take(self, name: str, raw: bytes, mtime: float | None) -> bool:
        """Is this file a text, so that no dump needs to be looked for in it? A log among them is kept."""
        if not is_text(raw):
            return False
        data = reduce(raw, mtime)
        if not (data["hits"] or data["iterations"]["series"] or data["watchdog"]["rows"]):
            self.left.append((name, "neither a dump nor a log with a line that is known"))
            rank = own_rank(name, data)
            self.quiet += [(name, rank)] if rank is not None else []
        elif len(self.found) >= MOST_LOGS:
            self.left.append((name, f"more than {MOST_LOGS} logs"))
        else:
            rank = own_rank(name, data)
            elastic = ELASTIC.search(name)
            attempt = int(elastic.group(1)) if elastic else None
            own = reduce(raw, mtime, rank) if rank is not None else data
            self.found.append(Log(name, own, len(raw), rank, attempt, host_of(name), plain=data))
        return True

    def leave(self, passed: Collection[str], used: Collection[str]) -> None:
        """Logs that lie beside dumps which are not used are of another attempt or job: they are not read either.

        Of the folders above a log the nearest that holds dumps decides; a folder of logs alone is kept.
        """

        def away(name: str) -> bool:
            above = _folder(name)
            while above not in passed and above not in used and above != ".":
                above = _folder(above)
            return above in passed and above not in used

        if lost := [log.name for log in self.found if away(log.name)]:
            self.said.append(f"logs beside dumps that were not used: not read ({_names(lost)})")
        self.found = [log for log in self.found if not away(log.name)]
        self.quiet = [pair for pair in self.quiet if not away(pair[0])]

    def sample(self, dumps: Sample | None) -> Sample | None:
        """All logs as one; None where there is none. Says in `said` what a reader of the report should know."""
        logs = self._newest_attempt()
        if not logs:
            return None
        _calibrate(logs, dumps)
        lost = [log.name for log in logs if log.shift is None]
        if lost and len(lost) < len(logs):
            self.said.append(f"the times of {_names(lost)} cannot be compared with the others: zone unknown")
        elif lost:
            self.said.append("the logs' times cannot be compared with the flight records: zone unknown")
        heard = {log.rank for log in logs if log.rank is not None} | {rank for _, rank in self.quiet}
        return _merged(logs, sorted(heard)[:4096])

    def _newest_attempt(self) -> list[Log]:
        attempts = {log.attempt for log in self.found if log.attempt is not None}
        roots = {ELASTIC.sub("", log.name) for log in self.found if log.attempt is not None}
        if len(roots) > 1:
            # One launcher a node: its folders are numbered by local rank.
            for log in self.found:
                if log.attempt is not None and log.rank is not None:
                    log.rank, log.data = None, log.plain
            self.quiet = [pair for pair in self.quiet if not ELASTIC.search(pair[0])]
            self.said.append("torchelastic folders of several launchers: their numbers are no global ranks")
        if len(attempts) < 2:
            return list(self.found)
        last = max(attempts)
        self.said.append(f"logs of attempts {min(attempts)} to {last - 1} are not used: {last} is the newest")
        return [log for log in self.found if log.attempt in (None, last)]


def _folder(name: str) -> str:
    return name.rpartition("/")[0] or "."


def _names(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def is_text(raw: bytes) -> bool:
    """Text, as far as its beginning tells. A flight record in JSON is none: it is a dump."""
    head = raw[:8192]
    if not head.strip() or b"\0" in head or head[:1] == b"\x80":
        return False
    if head.lstrip()[:1] == b"{" and (b'"entries"' in raw or b'"pg_config"' in raw or b'"pg_status"' in raw):
        return False
    odd = sum(1 for c in head if c < 32 and c not in b"\t\n\r\x1b\x08\x0c")
    return odd * 50 < len(head)


def reduce(raw: bytes, mtime: float | None, rank: int | None = None) -> dict[str, Any]:
    """What a log tells; its mtime gives the year of dates without one and nothing else, for it may be that of a copy."""
    tail = raw[-joblog.MAX_BYTES :]
    cut = len(raw) > len(tail)
    if cut:
        tail = tail[tail.find(b"\n") + 1 :]
    now = _year_of(tail, mtime)
    return dict(joblog.reduce_log(tail, for_probe("joblog"), now=now, truncated_head=cut, rank=rank))


def _year_of(raw: bytes, mtime: float | None) -> float | None:
    """A moment that no line is much later than: the file's time, or the newest whole date in it if it was copied long after."""
    for line in reversed(raw[-262144:].splitlines()[-2000:]):
        found = joblog.stamp_of(joblog.text_of(line), None)  # without a moment to go by only whole dates are read
        if found:
            latest = float(found[0]) + WRITTEN_ON_S
            return latest if mtime is None else min(mtime, latest)
    return mtime


def own_rank(name: str, data: Mapping[str, Any]) -> int | None:
    """The rank in a log's name, unless a line in it is another rank's."""
    base = name.rsplit("/", 1)[-1]
    elastic = ELASTIC.search(name)
    found = elastic.group(2) if elastic else next((m.group(1) for p in RANK_NAMES if (m := p.search(base))), None)
    if found is None:
        found = next(
            (m.group(1) for part in name.split("/")[:-1] if (m := re.fullmatch(r"rank[_.-]?(\d{1,7})", part))), None
        )
    if found is None:
        return None
    rank = int(found)
    told: set[int] = set()
    untold: set[str] = set()
    for row in data["watchdog"]["rows"]:
        told |= {n for n in (rank_in(part) for part in str(row[12]).split(",")) if n is not None}
        untold |= {part for part in str(row[14]).split(",") if part}
    for hit in data["hits"]:
        prefix = str(hit["prefix"])
        told |= {int(prefix[4:])} if re.fullmatch(r"rank\d{1,7}", prefix) else set()
    return rank if told <= {rank} and len(untold) <= 1 and not any("+" in part for part in untold) else None


def rank_in(part: str) -> int | None:
    """The number of "5"; of a run ("0+8") none that could be a single rank's."""
    return int(part) if part.isdigit() else -1 if part else None


def host_of(name: str) -> str:
    """The host in `nccl_trace_rank_<host>_3`, `<host>.rank3.err`, "" where none is told."""
    base = name.rsplit("/", 1)[-1]
    found = re.match(r"(?P<host>[A-Za-z][\w-]{0,62}(?:\.[\w-]{1,62}){0,6}?)[._-]rank[_-]?\d{1,7}(?!\d)", base)
    host = found.group("host") if found else ""
    return (
        ""
        if re.fullmatch(r"(?i)(?:log|out|err|std\w{3}|output|worker|job|train\w*|nccl\w*|comm\w*|slurm[-\w]*)", host)
        else host
    )


# ---------------------------------------------------------------- one clock


def quarter(seconds: float) -> float | None:
    """The zone that this difference is, or None: too far from a whole quarter of an hour, or from any zone."""
    whole = round(seconds / QUARTER_S) * QUARTER_S
    return whole if abs(seconds - whole) <= NEAR_S and abs(whole) <= 14 * 3600 else None


def _calibrate(logs: list[Log], dumps: Sample | None) -> None:
    """Set each log's shift: told by its lines, by the flight records, or by a log that has one."""
    opened = _opened(dumps)
    for log in logs:
        if log.data["zone"] == "utc":
            log.shift = 0.0
        elif opened:
            # One number may be open in several groups: only differences that are a zone at all are compared.
            apart = (begun - at for key, begun in log.begun().items() for at in opened.get(key[0], ()))
            log.shift = _agreed(each for each in apart if quarter(each) is not None)
    if not opened and not any(log.shift is not None for log in logs):
        # Nothing here has another clock: the log that tells most is the reference.
        most = max(logs, key=lambda log: (len(log.begun()), log.size))
        most.shift = 0.0
    # All ranks of a group give up at once: what two logs say of one call lays one on the other.
    while True:
        known = [log for log in logs if log.shift is not None]
        new = 0
        for log in logs:
            if log.shift is None:
                own = log.begun()
                ways = [
                    own[key] - (at - (other.shift or 0.0))
                    for other in known
                    for key, at in other.begun().items()
                    if key in own
                ]
                log.shift = _agreed(ways)
                new += log.shift is not None
        if not new:
            return


def _agreed(differences: Iterable[float]) -> float | None:
    """The zone that all these differences tell alike, or None."""
    found = {quarter(each) for each in differences}
    return found.pop() if len(found) == 1 else None


def _opened(dumps: Sample | None) -> dict[int, list[float]]:
    """number -> when ranks entered the operation of that number which is still open in their flight records (epoch s)."""
    out: dict[int, list[float]] = {}
    for row in dumps.data.get("ranks") or () if dumps is not None else ():
        for entry in row["record"].get("open") or ():
            if isinstance(entry.get("seq"), int) and isinstance(entry.get("at"), int | float):
                out.setdefault(entry["seq"], []).append(float(entry["at"]))
    return out


# ---------------------------------------------------------------- one sample


def _merged(logs: list[Log], heard: list[int]) -> Sample:
    """One answer of `joblog`. The log that tells the steps comes last: a line of another is then never behind its steps."""
    main = max(logs, key=lambda log: (len(log.data["iterations"]["series"]), log.size))
    data = dict(main.data)
    hits: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    before, left = 0, 0
    newest: list[float] = []
    steps = dict(main.data["iterations"])
    for log in [log for log in logs if log is not main] + [main]:
        mark = max((hit["line_no"] for hit in log.data["hits"] if hit["id"] == START), default=0)
        last = log is main
        for hit in log.data["hits"]:
            if hit["line_no"] >= mark and (last or hit["id"] != START):
                hits.append(_moved_hit(hit, log, before))
        for row in log.data["watchdog"]["rows"]:
            if (row[LINE] or 0) >= mark:
                rows.append(_moved_row(row, log, before))
        if last:
            steps["series"] = [
                [n, None if log.shift is None or at is None else at - log.shift, took]
                for n, at, took in steps["series"]
            ]
            steps["lines"] = [line + before for line in steps["lines"]]
            if isinstance(steps.get("last_line_no"), int):
                steps["last_line_no"] += before
        if log.shift is not None and isinstance(log.data["newest_at"], int | float):
            newest.append(log.data["newest_at"] - log.shift)
        left += log.data["watchdog"]["left_out"]
        before += log.data["lines"] + 1
    data.update(
        hits=hits[-MOST_HITS:], iterations=steps, lines=before, size=sum(log.size for log in logs), path=main.name, exists=True,
        mtime=None, newest_at=max(newest, default=None), zone="utc" if newest else "unknown", offset_s=main.shift or 0.0,
        complete=all(log.data["complete"] for log in logs),
        watchdog={"columns": list(COLUMNS), "rows": rows[:MOST_ROWS], "left_out": left + max(0, len(rows) - MOST_ROWS)},
        heard=heard,
        hosts={str(log.rank): log.host for log in logs if log.rank is not None and log.host},
    )  # fmt: skip
    if main.shift is None:
        data["first_at"] = None
    elif isinstance(data["first_at"], int | float):
        data["first_at"] -= main.shift
    said = f"{len(logs)} logs" if len(logs) > 1 else main.name
    return Sample("joblog", "", "C", "ok", data, notes=(said,))


def _moved_hit(hit: Mapping[str, Any], log: Log, before: int) -> dict[str, Any]:
    out = dict(hit)
    out["line_no"] = hit["line_no"] + before
    if not out["prefix"] and log.rank is not None:
        out["prefix"] = f"rank{log.rank}"
    for name in ("at", "last_at"):
        out[name] = None if log.shift is None or out[name] is None else out[name] - log.shift
    return out


def _moved_row(row: list[Any], log: Log, before: int) -> list[Any]:
    out = list(row)
    for place in TIMES:
        out[place] = None if log.shift is None or out[place] is None else out[place] - log.shift
    if log.shift is None:
        out[DATED] = False
    for place in (FIRST_LINE, LINE):
        out[place] = None if out[place] is None else out[place] + before
    return out
