"""The case on disk: all that one run saw and concluded, written while it happens (triage-case(5)).

    <state>/cases/20261130T214001Z-48213-7f3a/
      case.json       what was asked, of which job, when; thresholds, costs, time per phase
      samples.jsonl   one line a sample, as it arrived
      playbooks/      the playbooks and costs in force, so that a replay judges by the same rules
      facts.json  report.json     what was concluded
      SHA256SUMS      of all the above

An interrupted run leaves case.json and samples.jsonl: enough to replay. Everything in a case of somebody else is hostile
input: sizes are bounded, lines that are no samples are counted and skipped, links are not followed.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from triage.errors import ConfigError, UsageError
from triage.model import Attempt, Fact, Job, Node, Sample

SCHEMA = "triage.case/1"
MAX_FILE = 64 << 20
MAX_LINE = 2 << 20
MAX_SAMPLES = 400_000
STATUSES = ("ok", "absent", "denied", "timeout", "malformed", "error")


@dataclass(frozen=True)
class CaseFile:
    """What case.json and the files beside it say: the whole input of a conclusion."""

    case: str
    command: str  # frozen-job, explain …: which playbook the walk starts in
    job: Job
    observed: float
    playbooks: Mapping[str, str]
    profile: str = ""  # the site's overrides of costs and thresholds, as text; "" = none
    asked: tuple[str, ...] = ()  # costly probes that were asked for
    took_s: Mapping[str, float] = field(default_factory=dict)
    pokes: int = 0
    transport: str = ""
    warnings: tuple[str, ...] = ()
    again: str = ""  # the command line that looks again, "" where there is nothing to look at
    tool_version: str = ""
    complete: bool = True
    samples: tuple[Sample, ...] = ()
    skipped: int = 0  # lines of samples.jsonl that were no samples


def new_id(job_id: str, now: float) -> str:
    safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in job_id)[:40]
    return f"{datetime.fromtimestamp(now, timezone.utc):%Y%m%dT%H%M%SZ}-{safe}-{secrets.token_hex(2)}"


class CaseWriter:
    """Writes a case while it happens. Every failure to write is remembered, never raised: diagnosing goes first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trouble = ""
        self._samples: Any = None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=False)
            self._samples = open(folder / "samples.jsonl", "w", encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            self.trouble = f"the case could not be saved in {folder}: {error.strerror}"

    def sample(self, sample: Sample) -> None:
        if self._samples is None:
            return
        try:
            self._samples.write(json.dumps(asdict(sample), sort_keys=True, allow_nan=False) + "\n")
            self._samples.flush()
        except (OSError, ValueError) as error:
            self.trouble = f"the case could not be written on: {error}"

    def save(self, content: CaseFile, facts: Mapping[str, Fact], report_json: str | None) -> None:
        """case.json and, when there are any, facts and report; then the sums."""
        head = {
            "schema": SCHEMA,
            **{f.name: getattr(content, f.name) for f in fields(content) if f.name not in ("samples", "job", "playbooks", "skipped")},
            "job": asdict(content.job),
        }  # fmt: skip
        files = {"case.json": json.dumps(head, indent=1, sort_keys=True, allow_nan=False) + "\n"}
        for name, text in content.playbooks.items():
            files[f"playbooks/{name}.yaml"] = text
        if facts:
            files["facts.json"] = json.dumps({k: asdict(v) for k, v in facts.items()}, indent=1, sort_keys=True) + "\n"
        if report_json is not None:
            files["report.json"] = report_json
        try:
            for name, text in files.items():
                _write(self.folder / name, text)
            _write(self.folder / "SHA256SUMS", self._sums())
        except OSError as error:
            self.trouble = f"the case could not be written on: {error.strerror}"

    def close(self) -> None:
        if self._samples is not None:
            self._samples.close()

    def _sums(self) -> str:
        lines = []
        for path in sorted(p for p in self.folder.rglob("*") if p.is_file() and p.name != "SHA256SUMS"):
            lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(self.folder)}\n")
        return "".join(lines)


def _write(path: Path, text: str) -> None:
    """Whole or not at all: a reader never sees half a file."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def read(folder: Path) -> CaseFile:
    """A case, however it came to us. Raises ConfigError with the one thing that is wrong."""
    head = _object(_text(folder / "case.json"), f"{folder}/case.json")
    if head.get("schema") != SCHEMA:
        raise ConfigError(f"{folder}/case.json: schema {str(head.get('schema'))[:40]!r} is not {SCHEMA}")
    samples, skipped = _samples(folder / "samples.jsonl")
    books: dict[str, str] = {}
    if (folder / "playbooks").is_dir():
        for path in sorted((folder / "playbooks").iterdir()):
            if path.suffix == ".yaml" and len(books) < 32:
                books[path.stem] = _text(path)
    took = head.get("took_s")
    return CaseFile(
        case=str(head.get("case", folder.name))[:120],
        command=str(head.get("command", "frozen-job"))[:40],
        job=_job(head.get("job"), folder),
        observed=_number(head.get("observed"), folder),
        playbooks=books,
        profile=str(head.get("profile") or ""),
        asked=tuple(str(a)[:40] for a in _list(head.get("asked"))),
        took_s={str(k)[:40]: float(v) for k, v in took.items() if _is_number(v)} if isinstance(took, dict) else {},
        pokes=int(head["pokes"]) if isinstance(head.get("pokes"), int) else 0,
        transport=str(head.get("transport") or "")[:40],
        warnings=tuple(str(w)[:300] for w in _list(head.get("warnings"))[:50]),
        again=str(head.get("again") or "")[:2000],
        tool_version=str(head.get("tool_version") or "")[:40],
        complete=head.get("complete") is True,
        samples=samples,
        skipped=skipped,
    )


def damaged(folder: Path) -> list[str]:
    """Files of the case that do not match SHA256SUMS, or are not named there."""
    try:
        lines = _text(folder / "SHA256SUMS").splitlines()
    except ConfigError:
        return ["SHA256SUMS"]
    wrong = []
    for line in lines:
        digest, _, name = line.partition("  ")
        path = folder / name
        if not name or ".." in Path(name).parts or Path(name).is_absolute():
            wrong.append(name[:80])
            continue
        try:
            if hashlib.sha256(_bytes(path)).hexdigest() != digest:
                wrong.append(name)
        except ConfigError:
            wrong.append(name)
    return wrong


def find(state_dir: str, name: str) -> Path:
    """A case by its path, its id, or the beginning of its id."""
    direct = Path(name)
    if (direct / "case.json").is_file():
        return direct
    folder = Path(state_dir, "cases")
    matches = sorted(p for p in folder.glob(f"{_plain(name)}*") if (p / "case.json").is_file()) if _plain(name) else []
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(f"{name} fits {len(matches)} cases, for example {matches[-1].name}; give more of the id")
    raise UsageError(f"no case {name}: neither a case folder nor an id under {folder}")


def _plain(name: str) -> str:
    return "".join(c for c in name if c.isalnum() or c in "-_")


def _bytes(path: Path) -> bytes:
    try:
        # No link is followed and no FIFO waited for: a case may have been made by somebody else.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; is it a triage case?") from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ConfigError(f"{path} is not a plain file")
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise ConfigError(f"{path} is larger than {MAX_FILE >> 20} MiB")
    return data


def _text(path: Path) -> str:
    return _bytes(path).decode("utf-8", "replace")


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {str(error)[:80]}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is not a JSON object")
    return value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _samples(path: Path) -> tuple[tuple[Sample, ...], int]:
    if not path.exists():
        return (), 0
    found: list[Sample] = []
    skipped = 0
    for line in _bytes(path).split(b"\n"):
        if not line.strip():
            continue
        sample = _sample(line) if len(line) <= MAX_LINE and len(found) < MAX_SAMPLES else None
        if sample is None:
            skipped += 1
        else:
            found.append(sample)
    return tuple(found), skipped


def _sample(line: bytes) -> Sample | None:
    try:
        value = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("data"), dict) or value.get("status") not in STATUSES:
        return None
    return Sample(
        probe=str(value.get("probe"))[:40],
        node=str(value.get("node") or "")[:253],
        look=str(value.get("look") or "")[:8],
        status=value["status"],
        data=value["data"],
        version=value["version"] if isinstance(value.get("version"), int) else 1,
        took_s=_maybe(value.get("took_s")),
        at=_maybe(value.get("at")),
        received=_maybe(value.get("received")),
        notes=tuple(str(n)[:300] for n in _list(value.get("notes"))[:20]),
    )


def _job(value: Any, folder: Path) -> Job:
    if not isinstance(value, dict):
        raise ConfigError(f"{folder}/case.json: job is missing")
    nodes = []
    for entry in _list(value.get("nodes"))[:65_536]:
        if isinstance(entry, dict) and entry.get("name"):
            nodes.append(
                Node(
                    name=str(entry["name"])[:253],
                    address=str(entry.get("address") or "")[:253],
                    port=entry["port"] if isinstance(entry.get("port"), int) else 22,
                    user=str(entry.get("user") or "")[:64],
                    fabric=tuple(str(f)[:253] for f in _list(entry.get("fabric"))[:64]),
                    state=str(entry.get("state") or "")[:64],
                    state_reason=str(entry.get("state_reason") or "")[:200],
                )
            )
    attempt, match = _dict(value.get("attempt")), _dict(value.get("match"))
    return Job(
        id=str(value.get("id") or "")[:120],
        scheduler=str(value.get("scheduler") or "")[:40],
        nodes=tuple(nodes),
        cluster=str(value.get("cluster") or "")[:80],
        state=str(value.get("state") or "unknown")[:20],
        attempt=Attempt(
            attempt["restart"] if isinstance(attempt.get("restart"), int) else 0,
            _maybe(attempt.get("started")),
            _maybe(attempt.get("ended")),
        ),
        log=str(value.get("log") or "")[:1000],
        user=str(value.get("user") or "")[:64],
        match={str(k)[:80]: str(v)[:200] for k, v in list(match.items())[:20]},
        deadline=_maybe(value.get("deadline")),
    )


def _dict(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


def _maybe(value: Any) -> float | None:
    return float(value) if _is_number(value) else None


def _number(value: Any, folder: Path) -> float:
    if not _is_number(value):
        raise ConfigError(f"{folder}/case.json: observed is not a time")
    return float(value)
