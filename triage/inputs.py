"""What a command is given, made ready: the job, the options of a run, folders of dumps, playbook files. Effects only."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from triage import carry as carrying
from triage import config, ownfiles
from triage.config import Config
from triage.errors import ConfigError, UsageError
from triage.investigate import Options, live, probe_names, shipped_playbooks
from triage.model import Attempt, Job, Report, Sample
from triage.ownfiles import text_of as text_of
from triage.render.color import use_color as use_color
from triage.resolve import Found
from triage.resolve import find_job as find_job
from triage.schedulers.hostlist import fold

Say = Callable[[str], None]
MAX_DUMP = 64 << 20
USUAL_HOSTS = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
MAX_DUMPS = 20_000


# ------------------------------------------------------------------------------------------------ a live job


def watched(
    job_id: str, nodes: str | None, flags: Mapping[str, str | None], *, run_s: float, say: Say
) -> Callable[[], Report]:
    """What makes one round of a watch: the job is looked up anew (it may have ended), and asked by cheap probes only."""
    told: set[str] = set()

    def once(line: str) -> None:
        if line not in told and len(told) < 1000:
            told.add(line)
            say(line)

    def look() -> Report:
        ownfiles.forget()  # what stood still a round ago may answer again
        found = find_job(job_id, nodes, flags, warn=once)
        chosen = options("watch", found, poke=False, run_s=run_s, say=lambda line: None)
        chosen = replace(chosen, costly=False, keep_case=False, again="")
        return live(found.job, chosen).report

    return look


def options(
    command: str,
    found: Found,
    *,
    poke: bool,
    run_s: float | None,
    looks: int = 2,
    carry: str | None = None,
    sudo: bool = False,
    say: Say,
) -> Options:
    """The options of a live run from flags, environment, files and the inventory."""
    settings, access = found.settings, found.access
    if run_s is not None and not 2.0 <= run_s <= 3600.0:
        raise UsageError(f"--timeout {run_s:g}: give seconds between 2 and 3600")
    keys = [settings.value("key")] if settings.value("key") else list(access.keys)
    hosts = [settings.value("known_hosts")] if settings.value("known_hosts") else list(access.known_hosts)
    keys = [os.path.expanduser(path) for path in keys]
    usual = [os.path.expanduser(path) for path in USUAL_HOSTS]
    ownfiles.ahead(there=[*keys, *(map(os.path.expanduser, hosts) if hosts else usual)])
    slow: list[str] = []
    transport: dict[str, Any] = {"key": _answering(keys, slow)}
    if hosts:
        transport["known_hosts"] = _answering([os.path.expanduser(path) for path in hosts], slow)
    else:
        transport["usual_known_hosts"] = _answering(usual, slow, there=True)
    if config_file := settings.value("ssh_config") or access.config:
        transport["config"] = config_file
    warnings = list(settings.warnings)
    if slow:
        warnings.append(
            f"{'; '.join(slow)}: shared storage may be stuck; going on without {'them' if slow[1:] else 'it'}"
        )
        say(warnings[-1])
    if looks == 1:
        warnings.append("one look only (--looks 1): what takes two looks to tell is unknown")
    if settings.value("user"):
        transport["user"] = settings.value("user")
    return Options(
        command=command,
        transport=settings.value("transport"),
        transport_options=transport,
        state_dir=settings.value("state_dir"),
        profile=_profile(settings),
        poke=poke,
        carry=carrying.read(carry) if carry else None,
        looks=looks,
        run_s=run_s,
        warnings=tuple(warnings),
        sudo=sudo,
        again=_again(command, found, looks, carry, sudo),
        say=say,
    )


def _answering(paths: Sequence[str], slow: list[str], there: bool = False) -> list[str]:
    """Those files that answer: a home folder on dead storage must not hold the run (agent keys may still do).

    `slow` gets the others, but for those below a folder of which it was said; with `there`, absent files are left out.
    """
    found = []
    for path in paths:
        try:
            if not ownfiles.exists(path) and there:
                continue
        except ownfiles.TooSlow as error:
            slow += [] if error.below else [str(error)]
            continue
        found.append(path)
    return found


def _again(command: str, found: Found, looks: int, carry: str | None = None, sudo: bool = False) -> str:
    """The line that repeats a run: what came by a flag is repeated; what comes from files or the environment is there."""
    words = ["triage", command, found.job.id]
    for name, setting in found.settings.settings.items():
        if setting.origin.startswith("--") and name != "state_dir":
            words += [setting.origin, setting.value]
    words += ["--nodes", found.nodes] if found.nodes else []
    words += ["--carry-py-spy", carry] if carry else []
    words += ["--sudo"] if sudo else []
    return shlex.join(words + (["--looks", str(looks)] if looks != 2 else []))


def _profile(settings: Config) -> str:
    path = settings.value("profile")
    return text_of(path, "profile") if path else ""


def options_for_files(command: str, flags: Mapping[str, str | None], warnings: Sequence[str], say: Say) -> Options:
    """The options of a run over files: no transport, nothing to ask."""
    settings = config.load(flags)
    for line in (*settings.warnings, *warnings):
        say(line)
    return Options(
        command=command,
        transport="files",
        state_dir=settings.value("state_dir"),
        profile=_profile(settings),
        poke=False,
        warnings=(*settings.warnings, *warnings),
        say=say,
    )


# ------------------------------------------------------------------------------------------------ a folder of dumps


def dumps(folder: str) -> tuple[Job, list[Sample], float, list[str]]:
    """A folder of flight-recorder dumps and logs as a job of unknown state; the time of its newest line; warnings."""
    from triage.readers.flight_records import read_folder, unpacked
    from triage.readers.log_files import Logs

    if not folder:
        raise UsageError("explain: give the folder that holds the dumps; . is the current one")
    logs = Logs()

    def others() -> Iterator[tuple[str, bytes, float | None]]:
        for name, raw, changed in _files(Path(folder)):
            if not logs.take(*unpacked(name, raw), changed or None):
                yield name, raw, changed

    reading = read_folder(others())
    if twice := reading.mixed:
        listed = ", ".join(sorted(os.path.join(folder, name) for name in twice)[:6])
        raise UsageError(
            f"{folder}: the same ranks have dumps in several folders (another incident each?). Give one: {listed}"
        )
    logs.leave(reading.passed, {name.rpartition("/")[0] or "." for name in reading.recognised})
    log = logs.sample(reading.sample if reading.recognised else None)
    unused = [*reading.unrecognised, *logs.left]
    if not reading.recognised and log is None:
        names = "; ".join(f"{name}: {why}" for name, why in unused[:3]) or "it is empty"
        raise UsageError(
            f"{folder}: no flight-recorder dump and no log of a job in it ({names}); expected names such as _dump_3, rank3.err"
        )
    warnings = [f"{len(reading.recognised)} dumps read, ranks {_ranges(reading.ranks)}"] if reading.recognised else []
    warnings += [f"{len(logs.found)} logs read ({', '.join(each.name for each in logs.found[:3])})"] if log else []
    warnings += [*reading.said, *logs.said]
    warnings += [f"{name}: not read: {why}" for name, why in unused[:4]]
    if len(unused) > 4:
        warnings.append(f"and {len(unused) - 4} more files were not read")
    job = Job(os.path.basename(os.path.abspath(folder)), "files", (), state="unknown", attempt=Attempt())
    samples = ([reading.sample] if reading.recognised else []) + ([log] if log else [])
    return job, samples, _newest(samples), warnings


def _newest(samples: Sequence[Sample]) -> float:
    """Now, for a folder: its newest dated line; without one, the newest change of a file (copying may have made that)."""
    times: list[float] = []
    changed: list[float] = []
    for sample in samples:
        if sample.probe == "joblog" and isinstance(sample.data.get("newest_at"), int | float):
            times.append(float(sample.data["newest_at"]))
        for entry in (sample.data.get("ranks") or ()) if sample.probe == "flight_recorder" else ():
            record = entry.get("record") or {}
            times += [record["newest_s"]] if isinstance(record.get("newest_s"), int | float) else []
            changed += [entry["mtime"]] if isinstance(entry.get("mtime"), int | float) else []
    return max(times or changed or [time.time()])


def _ranges(ranks: Sequence[int]) -> str:
    return re.sub(r"[\[\]]", "", fold(str(rank) for rank in ranks))


def _files(folder: Path) -> Iterator[tuple[str, bytes, float]]:
    """(relative name, content, mtime) of the plain files below a folder, one at a time; links are not followed."""
    away = "copy the dumps to local storage first"
    try:
        if not ownfiles.exists(str(folder)):
            raise UsageError(f"{folder}: no such folder")
        if not ownfiles.is_folder(str(folder)):
            raise UsageError(f"{folder} is a file; give the folder that holds the dumps")
        content = bytearray()
        for piece in ownfiles.stream(partial(_walk, folder), str(folder)):
            if piece[:1] == _CONTENT:
                content += memoryview(piece)[1:]
                continue
            name, changed = json.loads(piece[1:])
            yield name, bytes(content), changed
            content.clear()
    except ownfiles.TooSlow as error:
        raise UsageError(f"{error}: shared storage may be stuck; {away}") from None
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}") from None


_CONTENT, _NAME = b"c", b"n"


def _walk(folder: Path) -> Iterator[bytes]:
    """In a child: of each plain file its content in pieces, then its name and time."""
    count = 0
    for base, folders, names in os.walk(folder, followlinks=False):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(base, name)
            count += 1
            if count > MAX_DUMPS:
                raise ValueError(f"more than {MAX_DUMPS} files; give the folder that holds the dumps only")
            changed, left = 0.0, MAX_DUMP + 1  # one byte more than a dump may have: the reader then says so
            try:
                info = os.lstat(path)
                if not stat.S_ISREG(info.st_mode):
                    continue
                with open(path, "rb", buffering=0) as file:
                    while left > 0 and (piece := file.read(min(left, ownfiles.PIECE - len(_CONTENT)))):
                        left -= len(piece)
                        yield _CONTENT + piece
                changed = info.st_mtime
            except OSError:
                pass  # told by its name and what there was of it
            yield _NAME + json.dumps([os.path.relpath(path, folder), changed]).encode()


# ------------------------------------------------------------------------------------------------ playbooks


def paths(names: Sequence[str] | None) -> list[Path]:
    """Files as the command line names them, none touched."""
    return [Path(name) for name in names or ()]


def playbook_texts(paths: Sequence[Path]) -> dict[str, str]:
    """Playbook files by the name that they carry inside (`playbook: frozen-job`)."""
    return {name: text for name, _, text in _named(paths)}


def _named(paths: Sequence[Path]) -> list[tuple[str, str, str]]:
    """(name inside, path, text) of playbook files; raises ConfigError with a line for each that is none."""
    from triage.readers.strict_yaml import read_yaml

    found: list[tuple[str, str, str]] = []
    problems: list[str] = []
    ownfiles.ahead(read=[os.path.expanduser(path) for path in paths])
    for path in paths:
        try:
            text = text_of(str(path), "playbook")
            document = read_yaml(text)
        except ConfigError as error:
            said = str(error)
            problems.append(said if str(path) in said else f"{path}: {said}")
            continue
        name = document.get("playbook") if isinstance(document, dict) else None
        if isinstance(name, str):
            found.append((name, str(path), text))
        else:
            problems.append(f"{path}: it does not say `playbook: NAME`, so it is no playbook")
    if problems:
        raise ConfigError("\n".join(problems))
    return found


def replacements(paths: Sequence[Path], saved: Mapping[str, str]) -> dict[str, str]:
    """Playbooks that take the place of a case's own; one that would replace nothing is a mistake."""
    texts = playbook_texts(paths)
    for name in texts:
        if name not in saved:
            known = ", ".join(sorted(set(saved) - {"costs"}))
            raise UsageError(
                f"playbook {name} takes the place of none of the case's ({known}); its `playbook:` line names it"
            )
    return texts


def _load(texts: Mapping[str, str]) -> Any:
    """File name -> text, all checked together."""
    from triage.facts import registry
    from triage.tree.load import load_set

    return load_set(texts, registry.catalogue(), probe_names())


def _shipped() -> dict[str, str]:
    return {f"{name}.yaml": text for name, text in shipped_playbooks().items() if name != "costs"}


def playbook_lines() -> list[str]:
    """One line a playbook: its name, version and size."""
    return [
        f"{name}  version {book.version}, {len(book.questions)} questions, {len(book.verdicts)} verdicts"
        for name, book in sorted(_load(_shipped()).items())
    ]


def _with(files: Sequence[tuple[str, str, str]]) -> Any:
    """What ships with these files in the place of those that they name; messages name the files as given."""
    own = {f"{name}.yaml" for name, _, _ in files}
    texts = {name: text for name, text in _shipped().items() if name not in own}
    return _load({**texts, **{path: text for _, path, text in files}})


def playbook_drawing(name: str) -> str:
    """A playbook as a tree; `name` is one that ships, or a file."""
    from triage.tree.expr import did_you_mean
    from triage.tree.show import show

    try:
        given = ownfiles.is_file(name)
    except ownfiles.TooSlow as error:
        raise ConfigError(f"playbook {error}; copy it to local storage and try again") from None
    files = _named([Path(name)]) if given else []
    books = _with(files)
    wanted = files[0][0] if files else name
    if wanted not in books:
        raise UsageError(f'no playbook "{name}"{did_you_mean(name, books)}')
    return show(books[wanted], books)


def playbook_check(paths: Sequence[Path]) -> list[str]:
    """Check files together with those that ship, which they may replace or lead to. ConfigError has every problem."""
    files = _named(paths)
    books = _with(files)
    names = [name for name, _, _ in files] or sorted(books)
    return [f"{name}: no problem in {len(books[name].questions)} questions and {len(books[name].verdicts)} verdicts"
            for name in names]  # fmt: skip


# ------------------------------------------------------------------------------------------------ words


def seconds(text: str) -> float:
    """`8s`, `48m`, `2h`, `90`: seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h|)", text.strip())
    if not match:
        raise UsageError(f"{text!r} is not a duration such as 8s, 48m or 2h")
    return float(match.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600}[match.group(2)]
