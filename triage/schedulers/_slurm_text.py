"""What Slurm's commands print, read. Pure.

squeue, sinfo and sacct (_slurm_past.py) are asked for columns that SEPARATOR divides (no user can type that into a column that is not the last):

    squeue -o ROW          2_1 · 8 · 2 · 1 · RUNNING · n[1-4] · n1 · 4 · 2026-12-01T14:52:40 · NONE · UNLIMITED · root · None
    sinfo -N -o NODE       n3 · 127.0.1.3 · vm · mixed* · 2026-12-01T14:57:30 · root · Not responding
    scontrol show job -d -o    JobId=8 ArrayJobId=2 … Restarts=0 … Nodes=n[1-4] CPU_IDs=0 Mem=0 GRES=gpu:h100:8(IDX:0-7) … StdOut=/home/a/out

Times are UTC: the commands run with TZ=UTC0.
What can fool it: job names and comments, which may hold ` StdOut=/etc/shadow` (a key that is told twice is not used); the words
for "no node" (`(null)`, `None assigned`), which are no hosts; squeue's rows of an array that hold many tasks (`2_[5-9%2]`);
`squeue -j 3+1`, which some versions answer with all components of the job; states that say what a job does now in the place of
what it is (COMPLETING). notes/fanout-and-schedulers.md 3.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from triage.errors import UsageError
from triage.schedulers.hostlist import expand

SEPARATOR = "\x1f"
ROW = SEPARATOR.join(("%i", "%A", "%F", "%K", "%T", "%N", "%B", "%D", "%S", "%e", "%l", "%u", "%r"))
NODE = SEPARATOR.join(("%N", "%o", "%n", "%T", "%H", "%u", "%E"))
STEP = SEPARATOR.join(("%i", "%N"))

MOST_ROWS = 100_000

_STATES: Mapping[str, str] = {
    "RUNNING": "running", "SIGNALING": "running", "RESIZING": "running", "STAGE_OUT": "completing",
    "PENDING": "pending", "CONFIGURING": "pending", "REQUEUED": "pending", "REQUEUE_HOLD": "pending",
    "REQUEUE_FED": "pending", "SPECIAL_EXIT": "pending", "RESV_DEL_HOLD": "pending", "POWER_UP_NODE": "pending",
    "SUSPENDED": "suspended", "STOPPED": "suspended", "COMPLETING": "completing",
    "COMPLETED": "ended", "CANCELLED": "ended", "FAILED": "ended", "TIMEOUT": "ended", "NODE_FAIL": "ended",
    "PREEMPTED": "ended", "BOOT_FAIL": "ended", "DEADLINE": "ended", "OUT_OF_MEMORY": "ended", "REVOKED": "ended",
    "LAUNCH_FAILED": "ended", "RECONFIG_FAIL": "ended",
}  # fmt: skip


# ---------------------------------------------------------------- ids

_ID = re.compile(
    r"(?:(?P<cluster>[A-Za-z][A-Za-z0-9_.-]{0,39}):)?(?P<job>\d{1,10})"
    r"(?:_(?P<task>\d{1,10})|\+(?P<part>\d{1,5}))?(?:\.(?P<step>\d{1,10}|batch|extern|interactive))?",
    re.ASCII,
)


@dataclass(frozen=True)
class Id:
    """`lab:4711_3.0`: cluster, job, array task, component of a heterogeneous job (`+1`), step."""

    job: int
    cluster: str = ""
    task: int | None = None
    part: int | None = None
    step: str = ""

    @property
    def query(self) -> str:
        """As squeue and sacct take it; the component is picked out of the answer."""
        return f"{self.job}" if self.task is None else f"{self.job}_{self.task}"


def parse_id(text: str) -> Id | None:
    """The parts of a job id, None if it is not one of Slurm's."""
    found = _ID.fullmatch(text.strip())
    if not found:
        return None
    task, part = found["task"], found["part"]
    return Id(
        int(found["job"]),
        found["cluster"] or "",
        None if task is None else int(task),
        None if part is None else int(part),
        found["step"] or "",
    )


# ---------------------------------------------------------------- words


def state_of(word: str) -> str:
    """Our word for a state of Slurm's (`CANCELLED by 0`, `RUNNING`); "unknown" for one that is not known."""
    return _STATES.get((word.split() or [""])[0].rstrip("+"), "unknown")


def time_of(text: str) -> float | None:
    """Epoch seconds of `2026-12-01T14:52:40`; None for `Unknown`, `NONE`, `N/A`."""
    try:
        return datetime.strptime(text.strip()[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def hosts(text: str) -> list[str]:
    """The nodes of a folded list in its order; [] for the words that say "none", and for what is no host list."""
    text = text.strip()
    if not text or text.lower() in ("(null)", "none assigned", "n/a", "none", "unknown"):
        return []
    try:
        return expand(text)
    except UsageError:
        return []


def plain(text: str, most: int = 200) -> str:
    """One bounded line without control characters: it goes into messages and into the case."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * most]).split())[:most]


# ---------------------------------------------------------------- squeue


@dataclass(frozen=True)
class Row:
    """One job as squeue tells it. `id` is its own form (`2_1`, `3+0`), `raw` what its processes wear as SLURM_JOB_ID."""

    id: str
    raw: int
    leader: int  # the first component of a heterogeneous job, whose id all its processes wear; else `raw`
    array: int | None
    task: str  # "" = no array; "5" or, of waiting ones, "5-9%2"
    part: int | None
    word: str
    nodes: tuple[str, ...]
    batch_host: str
    started: float | None
    ended: float | None  # when it ended, or when its time is over
    limited: bool
    user: str
    reason: str

    @property
    def state(self) -> str:
        return state_of(self.word)


def rows(text: str) -> list[Row]:
    """squeue's rows; what is no row is passed over."""
    every = [row for line in text.split("\n")[:MOST_ROWS] if (row := _row(line))]
    found = list({row.id: row for row in reversed(every)}.values())[::-1]  # the first of one id counts
    leaders = {row.id.partition("+")[0]: row.raw for row in found if row.part == 0}
    # `squeue -j 4` tells of component `3+1` alone: its leader's id stands in its own.
    return [
        row
        if row.part is None
        else Row(**{**vars(row), "leader": leaders.get(row.id.partition("+")[0], int(row.id.partition("+")[0]))})
        for row in found
    ]


def _row(line: str) -> Row | None:
    cells = [cell.strip() for cell in line.split(SEPARATOR)]
    if len(cells) < 13:
        return None
    name, raw, array, task, word, listed, batch, _, start, end, limit, user = cells[:12]
    reason = SEPARATOR.join(cells[12:])
    if not raw.isascii() or not raw.isdigit() or len(raw) > 10 or not re.match(r"\d{1,10}(?:[_+][\d\[]|\Z)", name):
        return None
    part = name.partition("+")[2]
    in_array = task not in ("", "N/A") and array.isdigit()
    return Row(
        id=plain(name, 80),
        raw=int(raw),
        leader=int(raw),
        array=int(array) if in_array else None,
        task=task if in_array else "",
        part=int(part) if part.isascii() and part.isdigit() else None,
        word=plain(word, 30),
        nodes=tuple(hosts(listed)),
        batch_host=batch if hosts(batch) == [batch] else "",
        started=time_of(start),
        ended=time_of(end),
        limited=limit not in ("UNLIMITED", "NOT_SET", "INVALID", "Partition_Limit", "N/A", ""),
        user=plain(user, 64),
        reason="" if reason in ("None", "(null)") else plain(reason, 120),
    )


def path(text: str) -> str:
    """An absolute path of bounded length, or ""."""
    text = text.strip()
    return text if text.startswith("/") and text.isprintable() and len(text) <= 1000 else ""


def steps(text: str) -> dict[str, list[str]]:
    """`squeue -s`: step ("0", "batch") -> its nodes, over the components of the job."""
    found: dict[str, list[str]] = {}
    for line in text.split("\n")[:MOST_ROWS]:
        name, _, listed = line.partition(SEPARATOR)
        job, dot, step = name.strip().partition(".")
        if dot and step and job[:1].isdigit():
            found.setdefault(plain(step, 20), []).extend(hosts(listed))
    return found


# ---------------------------------------------------------------- sinfo


@dataclass(frozen=True)
class Machine:
    """A node as sinfo tells it. `state` is Slurm's word with its mark: `mixed*` does not respond."""

    name: str
    address: str
    hostname: str
    state: str
    reason: str


def machines(text: str) -> dict[str, Machine]:
    """sinfo's rows by node; a node has a row for each of its partitions."""
    found: dict[str, Machine] = {}
    for line in text.split("\n")[:MOST_ROWS]:
        cells = [cell.strip() for cell in line.split(SEPARATOR)]
        if len(cells) < 7 or hosts(cells[0]) != [cells[0]] or cells[0] in found:
            continue
        name, address, hostname, state, at, who = cells[:6]
        why = plain(SEPARATOR.join(cells[6:]), 120)
        found[name] = Machine(
            name,
            # An IPv6 address is no host name; no address begins with a minus, which ssh would take for an option.
            address if re.fullmatch(r"[A-Za-z0-9:][A-Za-z0-9:._-]{0,252}", address) else "",
            hostname if hosts(hostname) == [hostname] else "",
            plain(state.lower(), 30),
            "" if why.lower() in ("", "none") else f"{why}{_by(who, at)}",
        )
    return found


def _by(who: str, at: str) -> str:
    told = [word for word, known in ((plain(who, 32), who), (f"{at}Z", time_of(at) is not None)) if known]
    told = [word for word in told if word.lower() != "unknown"]
    return f" ({' '.join(told)})" if told else ""


# ---------------------------------------------------------------- scontrol show job

_KEY = re.compile(r"(?:^|\s)([A-Z][A-Za-z_/:]*)=")
_PER_NODE = re.compile(r"\sNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")


@dataclass(frozen=True)
class Shown:
    """What `scontrol show job -d -o` tells beyond squeue. None and "" = it did not tell, or told it twice."""

    restarts: int | None = None
    stdout: str = ""
    workdir: str = ""
    name: str = ""
    gpus: Mapping[str, int] | None = None


def shown(text: str) -> dict[int, Shown]:
    """Job (raw id) -> what is told of it."""
    found: dict[int, Shown] = {}
    for line in text.split("\n")[:MOST_ROWS]:
        job = re.match(r"JobId=(\d{1,10})\s", line)
        if job:
            found.setdefault(int(job[1]), _shown(line))
    return found


def _shown(line: str) -> Shown:
    marks = [(found[1], found.start(), found.end()) for found in _KEY.finditer(line)]
    values: dict[str, list[str]] = {}
    for at, (key, _, begins) in enumerate(marks):
        ends = marks[at + 1][1] if at + 1 < len(marks) else len(line)
        values.setdefault(key, []).append(line[begins:ends].strip())

    def once(key: str) -> str:
        told = values.get(key, [])
        return told[0] if len(told) == 1 and told[0] != "(null)" else ""

    restarts = once("Restarts")
    return Shown(
        int(restarts) if restarts.isascii() and restarts.isdigit() and len(restarts) < 7 else None,
        path(once("StdOut")),
        path(once("WorkDir")),
        once("JobName") if _name_is_whole([key for key, *_ in marks]) else "",
        _gpus(line) if len(values.get("JOB_GRES", [])) <= 1 else None,
    )


def _name_is_whole(keys: Sequence[str]) -> bool:
    """A name may hold ` Key=`: then another key stands behind it than Slurm's own."""
    at = keys.index("JobName") if "JobName" in keys else -1
    return at >= 0 and keys[at + 1 : at + 2] in (["UserId"], ["HetJobIdSet"])


def _gpus(line: str) -> Mapping[str, int] | None:
    """node -> GPUs that the job has there; None where no GPU is told of (a cluster may hand out whole nodes)."""
    counts: dict[str, int] = {}
    _, told, rest = line.partition(" JOB_GRES=")
    # Between these two no user's words stand.
    for listed, gres in _PER_NODE.findall(rest.partition(" MinCPUsNode=")[0] if told else ""):
        count = gpus_of(gres)
        for node in hosts(listed):
            # A node may stand there twice: its cores differ, and the GPUs stand in each of the rows once.
            counts[node] = counts.get(node, 0) + count
    return counts if any(counts.values()) else None


def gpus_of(gres: str) -> int:
    """The GPUs in `gpu:h100:8(IDX:0-7),nic:1(IDX:0)`."""
    bare = re.sub(r"\([^)]*\)", "", gres)
    found = (re.fullmatch(r"(?:gres/)?gpu(?:[:=][^:=,]+)?[:=](\d{1,4})", word.strip()) for word in bare.split(","))
    return sum(int(match[1]) for match in found if match)


# ---------------------------------------------------------------- stdout's name

_PATTERN = re.compile(r"%(\d*)([A-Za-z%])")


def expand_path(template: str, *, row: Row, name: str = "", hostname: str = "", workdir: str = "") -> tuple[str, str]:
    """The file behind `/home/a/%x-%j.out`, or "" and why not. sbatch(1), FILENAME PATTERN.

    `%t %n %s %J` name a file for each task, node or step, of which none is the job's.
    """
    if not template or template == "/dev/null":
        return "", ""
    if "\\" in template:
        return _absolute(template.replace("\\", ""), workdir), ""
    task = row.task if row.task.isdigit() else ""
    values = {
        "A": str(row.array if row.array is not None else row.leader),
        "a": task if row.task else "0",
        "b": str(int(task) % 10) if task else "",
        "j": str(row.raw),
        "u": row.user,
        "x": name,
        "N": hostname.partition(".")[0] or row.batch_host.partition(".")[0],
        "%": "%",
    }
    missing = [f"%{sign}" for _, sign in _PATTERN.findall(template) if not values.get(sign)]
    if missing:
        return "", f"its output goes to {plain(template, 120)}, and nothing tells what {missing[0]} stands for"

    def put(match: re.Match[str]) -> str:
        width, value = min(int(match[1] or 0), 10), values[match[2]]
        return value.zfill(width) if value.isdigit() else value

    return _absolute(_PATTERN.sub(put, template), workdir), ""


def _absolute(name: str, workdir: str) -> str:
    return path(name if name.startswith("/") else f"{workdir.rstrip('/')}/{name}" if workdir else "")
