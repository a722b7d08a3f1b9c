"""The case on disk: all that one run saw and concluded, written while it happens (triage-case(5)).

    <state>/cases/20261130T214001Z-48213-7f3a/
      case.json       what was asked, of which job, when; thresholds, costs, time per phase
      samples.jsonl   one line a sample, as it arrived
      playbooks/      the playbooks and costs in force, so that a replay judges by the same rules
      facts.json  report.json     what was concluded
      SHA256SUMS      of all the above

An interrupted run leaves case.json and samples.jsonl: enough to replay. Everything in a case of somebody else is hostile
input: sizes are bounded, links are not followed, lines that are no samples of the job's nodes are counted and skipped,
samples are held to the shape of their probe, names of nodes to that of hosts, and the command line that looks again is
quoted anew: what a report prints is meant to be pasted.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from triage import memory, ownfiles
from triage.errors import ConfigError, UsageError
from triage.model import Attempt, Fact, Job, Node, Sample
from triage.readers.shapes import checked
from triage.schedulers import hostlist
from triage.scribe import Scribe

SCHEMA = "triage.case/1"
SAMPLES = "samples.jsonl"
MAX_FILE = 64 << 20
MAX_LINE = 2 << 20
MAX_SAMPLES = 400_000
STATUSES = ("ok", "absent", "denied", "timeout", "malformed", "error")
LOOKS = ("A", "B", "C")
MAX_AGAIN = 2000


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
    looks: int = 2  # how many were to be made (frozen-job --looks)
    transport: str = ""
    warnings: tuple[str, ...] = ()
    again: str = ""  # the command line that looks again, "" where there is nothing to look at
    tool_version: str = ""
    memory: Mapping[str, Any] = field(default_factory=dict)  # what the record of incidents told this run (memory.py)
    complete: bool = True
    samples: tuple[Sample, ...] = ()
    skipped: int = 0  # lines of samples.jsonl that were no samples of this job's nodes


def new_id(job_id: str, now: float) -> str:
    safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in job_id)[:40]
    return f"{datetime.fromtimestamp(now, timezone.utc):%Y%m%dT%H%M%SZ}-{safe}-{secrets.token_hex(2)}"


class CaseWriter:
    """Writes a case while it happens. Every failure to write is remembered, never raised: diagnosing goes first.

    After the first failure (a full disk, a limit on file sizes) no further sample is written, and the case is saved as
    not complete. Storage that stops answering in the middle of a run costs one wait (scribe.py).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trouble = ""
        self._scribe = Scribe(folder)
        self._scribe.append(SAMPLES, b"")

    @property
    def stalled(self) -> bool:
        """Does the folder not answer any more?"""
        return self._scribe.stalled

    def sample(self, sample: Sample) -> None:
        try:
            line = json.dumps(asdict(sample), sort_keys=True, allow_nan=False) + "\n"
            self._scribe.append(SAMPLES, line.encode())
        except (ValueError, TypeError, RecursionError) as error:  # what is no JSON never was a sample
            self._failed("hold all samples in", str(error)[:120] or error.__class__.__name__)

    def check(self) -> None:
        """Wait until all is written by now, and learn in `trouble` and `stalled` whether it was."""
        self._scribe.settle()
        if self._scribe.trouble:
            self._failed(*self._scribe.trouble)

    def save(self, content: CaseFile, facts: Mapping[str, Fact], report_json: str | None) -> None:
        """case.json and, when there are any, facts and report; then the sums."""
        self.check()
        head = {
            "schema": SCHEMA,
            **{f.name: getattr(content, f.name) for f in fields(content) if f.name not in ("samples", "job", "playbooks", "skipped")},
            "job": asdict(content.job),
            "complete": content.complete and not self.trouble,
        }  # fmt: skip
        try:
            files = {"case.json": json.dumps(head, indent=1, sort_keys=True, allow_nan=False) + "\n"}
            for name, text in content.playbooks.items():
                files[f"playbooks/{name}.yaml"] = text
            if facts:
                told = {name: asdict(fact) for name, fact in facts.items()}
                files["facts.json"] = json.dumps(told, indent=1, sort_keys=True) + "\n"
            if report_json is not None:
                files["report.json"] = report_json
            for name, text in files.items():
                self._scribe.put(name, text.encode())
            self._scribe.sums("SHA256SUMS")
        except (ValueError, TypeError, RecursionError) as error:
            self._failed("be saved in", str(error)[:120] or error.__class__.__name__)
        self.check()

    def close(self) -> None:
        """There will be no more samples."""
        self._scribe.end_append()

    def _failed(self, what: str, why: str) -> None:
        """The first failure is the one that explains the others."""
        self.trouble = self.trouble or f"the case could not {what} {self.folder}: {why}"


class NoCase(CaseWriter):
    """A run of which nothing is kept."""

    def __init__(self) -> None:
        self.folder, self.trouble = Path(), ""

    @property
    def stalled(self) -> bool:
        return False

    def sample(self, sample: Sample) -> None:
        """Nothing is kept."""

    def check(self) -> None:
        """Nothing was written."""

    def save(self, content: CaseFile, facts: Mapping[str, Fact], report_json: str | None) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is open."""


def read(folder: Path) -> CaseFile:
    """A case, however it came to us. Raises ConfigError with the one thing that is wrong."""
    head = _object(_text(folder / "case.json"), f"{folder}/case.json")
    if head.get("schema") != SCHEMA:
        raise ConfigError(f"{folder}/case.json: schema {str(head.get('schema'))[:40]!r} is not {SCHEMA}")
    job = job_of(head.get("job"), folder)
    samples, skipped = _samples(folder, {node.name for node in job.nodes})
    books: dict[str, str] = {}
    for path in _inside(folder / "playbooks"):
        if path.suffix == ".yaml" and len(books) < 32:
            books[path.stem] = _text(path)
    took = head.get("took_s")
    return CaseFile(
        case=_words(head.get("case") or folder.name, 120),
        command=_words(head.get("command") or "frozen-job", 40),
        job=job,
        observed=_number(head.get("observed"), folder),
        playbooks=books,
        profile=str(head.get("profile") or ""),
        asked=tuple(_words(a, 40) for a in _list(head.get("asked"))[:50]),
        took_s={_words(k, 40): float(v) for k, v in list(took.items())[:50] if _is_number(v)}
        if isinstance(took, dict)
        else {},
        pokes=_whole(head.get("pokes"), 0, 1_000_000),
        looks=1 if _whole(head.get("looks"), 2, 2) == 1 else 2,
        transport=_words(head.get("transport"), 40),
        warnings=tuple(_words(w, 300) for w in _list(head.get("warnings"))[:50]),
        again=_again(head.get("again")),
        tool_version=_words(head.get("tool_version"), 40),
        memory=memory.bounded(head.get("memory")),
        complete=head.get("complete") is True,
        samples=samples,
        skipped=skipped,
    )


def _again(value: Any) -> str:
    """The command line that looks again, quoted anew; "" for what would run anything but a diagnosis."""
    if not isinstance(value, str) or len(value) > MAX_AGAIN:
        return ""
    try:
        words = shlex.split(value)
    except ValueError:
        return ""
    if (
        words[:1] != ["triage"]
        or words[1:2] not in (["frozen-job"], ["slow-job"])
        or not all(word.isprintable() for word in words)
    ):
        return ""
    return shlex.join(words)


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
    direct, folder = Path(name), Path(state_dir, "cases")
    try:
        if ownfiles.exists(str(direct / "case.json")):
            return direct
        ownfiles.exists(state_dir)  # begun when the command was read
        matches = [folder / id_ for id_ in _ids(folder, _plain(name))] if _plain(name) else []
    except OSError as error:
        raise _unread(folder, error) from None
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(f"{name} fits {len(matches)} cases, for example {matches[-1].name}; give more of the id")
    raise UsageError(f"no case {name}: neither a case folder nor an id under {folder}")


def _ids(folder: Path, beginning: str) -> list[str]:
    """Ids of the cases in the state folder that begin so. Raises TooSlow."""

    def search() -> bytes:
        found = sorted(p.name for p in folder.glob(f"{beginning}*") if (p / "case.json").is_file())
        return json.dumps(found).encode()

    return [str(name) for name in json.loads(ownfiles.compute(search, str(folder)))]


def _plain(name: str) -> str:
    return "".join(c for c in name if c.isalnum() or c in "-_")


def _bytes(path: Path) -> bytes:
    """A file of a case that may have been made by somebody else, on storage that may stand still."""
    try:
        data = ownfiles.read_plain(str(path), MAX_FILE + 1)
    except OSError as error:
        raise _unread(path, error) from None
    if len(data) > MAX_FILE:
        raise ConfigError(f"{path} is larger than {MAX_FILE >> 20} MiB")
    return data


def _inside(folder: Path) -> list[Path]:
    """What is in a folder of a case, sorted; nothing where there is none."""
    try:
        return [folder / name for name in ownfiles.listing(str(folder))]
    except ownfiles.TooSlow as error:
        raise _unread(folder, error) from None
    except OSError:
        return []


def _unread(path: Path, error: OSError) -> ConfigError:
    if isinstance(error, ownfiles.TooSlow):
        return ConfigError(f"{error}: shared storage may be stuck; give a copy of the case on local storage")
    return ConfigError(f"{path}: {error.strerror}" + ("; is it a triage case?" if error.errno else ""))


def _text(path: Path) -> str:
    return _bytes(path).decode("utf-8", "replace")


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {str(error)[:80]}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is not a JSON object")
    return dict(_whole_signs(value)) if "\\ud" in text.lower() else value


def _whole_signs(value: Any) -> Any:
    """Half a surrogate pair, which JSON can escape, cannot be written as UTF-8: it would break the report at its end."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_whole_signs(item) for item in value]
    if isinstance(value, dict):
        return {_whole_signs(name): _whole_signs(item) for name, item in value.items()}
    return value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _samples(folder: Path, nodes: set[str]) -> tuple[tuple[Sample, ...], int]:
    path = folder / SAMPLES
    if path not in _inside(folder):
        return (), 0
    found: list[Sample] = []
    skipped = 0
    for line in _bytes(path).split(b"\n"):
        if not line.strip():
            continue
        sample = _sample(line) if len(line) <= MAX_LINE and len(found) < MAX_SAMPLES else None
        # "" is our own machine (the job log) or a folder of dumps; any other name must be one of the job's nodes.
        if sample is None or (sample.node and sample.node not in nodes):
            skipped += 1
        else:
            found.append(sample)
    return tuple(found), skipped


def _sample(line: bytes) -> Sample | None:
    try:
        value = json.loads(line, parse_constant=_refuse)
        if isinstance(value, dict) and b"\\ud" in line.lower():
            value = _whole_signs(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("data"), dict):
        return None
    status, look, probe, node = value.get("status"), value.get("look"), value.get("probe"), value.get("node") or ""
    if status not in STATUSES or look not in LOOKS or not isinstance(probe, str) or not isinstance(node, str):
        return None
    return checked(
        Sample(
            probe=_words(probe, 40),
            node=node,
            look=look,
            status=status,
            data=value["data"],
            version=_whole(value.get("version"), 1, 1_000_000),
            took_s=_maybe(value.get("took_s")),
            at=_maybe(value.get("at")),
            received=_maybe(value.get("received")),
            notes=tuple(_words(n, 300) for n in _list(value.get("notes"))[:20]),
        )
    )


def job_of(value: Any, folder: Path) -> Job:
    """The job of a case.json, each value checked. ConfigError where it holds none."""
    if not isinstance(value, dict):
        raise ConfigError(f"{folder}/case.json: job is missing")
    nodes = []
    for entry in _list(value.get("nodes"))[:65_536]:
        if isinstance(entry, dict) and entry.get("name"):
            nodes.append(
                Node(
                    name=_host(entry["name"], folder),
                    address=_words(entry.get("address"), 253),
                    port=_whole(entry.get("port"), 22, 65_535),
                    user=_words(entry.get("user"), 64),
                    fabric=tuple(_words(f, 253) for f in _list(entry.get("fabric"))[:64]),
                    state=_words(entry.get("state"), 64),
                    state_reason=_words(entry.get("state_reason"), 200),
                    gpus=None if entry.get("gpus") is None else _whole(entry.get("gpus"), 0, 1024),
                )
            )
    attempt, match = _dict(value.get("attempt")), _dict(value.get("match"))
    return Job(
        id=_words(value.get("id"), 120),
        scheduler=_words(value.get("scheduler"), 40),
        nodes=tuple(nodes),
        cluster=_words(value.get("cluster"), 80),
        state=_words(value.get("state") or "unknown", 20),
        attempt=Attempt(
            None if attempt.get("restart") is None else _whole(attempt.get("restart"), 0, 1_000_000),
            _maybe(attempt.get("started")),
            _maybe(attempt.get("ended")),
        ),
        log=_words(value.get("log"), 1000),
        user=_words(value.get("user"), 64),
        match={_words(k, 80): _words(v, 200) for k, v in list(match.items())[:20]},
        deadline=_maybe(value.get("deadline")),
        workdir=_words(value.get("workdir"), 1000),
    )


def _host(name: Any, folder: Path) -> str:
    """A node's name as hostlist would give it. `-oProxyCommand=…` is an option of ssh, and `a;b` two commands."""
    try:
        if isinstance(name, str) and hostlist.expand(name) == [name]:
            return name
    except UsageError:
        pass
    raise ConfigError(f"{folder}/case.json: {_words(name, 60)!r} is not a host name")


def _words(value: Any, most: int) -> str:
    """Bounded text of one line, without control characters; null is ""."""
    return "".join(c if c.isprintable() else " " for c in ("" if value is None else str(value)[:most]))


def _whole(value: Any, otherwise: int, most: int) -> int:
    return value if type(value) is int and 0 <= value <= most else otherwise


def _dict(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e10


def _maybe(value: Any) -> float | None:
    return float(value) if _is_number(value) else None


def _number(value: Any, folder: Path) -> float:
    if not _is_number(value):
        raise ConfigError(f"{folder}/case.json: observed is not a time")
    return float(value)
