"""Where does a rank stand, by its stack: a class and the place, after `playbooks/stacks.yaml`, which carries its own tests.

    place_of(row)  ->  Place(cls="checkpoint", says="saving or loading a checkpoint", top="save (torch/serialization.py:967)",
                             inside="save_checkpoint (train.py:41)")

`row` is one rank of the probe `stacks`. The innermost frame that an entry knows tells the class. A frame that waits on
somebody's behalf (a queue, an event) is passed by as long as the frames outside of it are no code of the job: a data loader
that waits in `queue.get` is a data loader. Another thread of the rank that stands in a collective is told beside (`aside`):
the main one may wait for it. A class says where a rank stands, and never by itself that it is stuck there.
Fooled by   functions of the job that are called like those of a library's checkpointing; C code, which has no frame.
Pure; a stack is a node's word: bounded by its shape before it comes here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from triage.probes import _frames
from triage.readers.signatures import TOO_NEW, slow_part
from triage.readers.strict_yaml import load_table

CLASSES = (
    "collective", "gloo", "data_loader", "storage", "compile", "checkpoint", "launch", "teardown", "lock", "wait", "user_code",
)  # fmt: skip
COMMUNICATION = ("collective", "gloo")
ON = ("frame", "verb", "kernel")
KEYS = {"id", "class", "where", "pattern", "weak", "says", "stacks", "not"}

Frame = Sequence[Any]  # function, file, line, is it the job's own code


@dataclass(frozen=True)
class Entry:
    """One entry of stacks.yaml."""

    id: str
    cls: str
    on: str
    regex: re.Pattern[str]
    says: str
    weak: bool
    stacks: tuple[str, ...]
    near_misses: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """Where a rank stands.

    cls      one of CLASSES, "" where its stack tells none
    says     that in a phrase
    top      its innermost frame, "function (file:line)"
    inside   its innermost frame of the job's own code, "" if none
    held     why its interpreter lock is known to be held, "" if it is not
    how      what told the stack: py-spy, or the control plane
    aside    what another thread of it is in, where that is a collective: `... , in thread "checkpoint"`; "" if none is
    verb     what the line of the main thread calls (a word of the probe's VERBS), syscall  the call of the kernel it is in
    frames   all frames, innermost first, as text without lines: equal for ranks that stand at one place
    """

    cls: str
    says: str
    top: str
    inside: str
    held: str
    how: str
    frames: tuple[str, ...]
    aside: str = ""
    verb: str = ""
    syscall: str = ""

    @property
    def communicates(self) -> bool:
        """Does it wait for other ranks, itself or through a thread of its own (backward hooks, a checkpoint's barrier)?"""
        return self.cls in COMMUNICATION or bool(self.aside)

    def words(self) -> str:
        """`saving or loading a checkpoint, in save_checkpoint (train.py:41)`."""
        says = self.held or self.says
        where = self.inside or self.top
        return "; ".join(word for word in (", in ".join(word for word in (says, where) if word), self.aside) if word)


def place_of(row: Mapping[str, Any], entries: Iterable[Entry] | None = None) -> Place | None:
    """Where this rank of the probe `stacks` stands; None without a Python stack or a sign of a held interpreter lock."""
    known = tuple(load() if entries is None else entries)
    threads = row.get("threads") or []
    main = next((thread for thread in threads if thread.get("main") and thread.get("frames")), None)
    held = str(row.get("gil_held") or "")
    frames: list[Frame] = list(main["frames"]) if main else []
    if not frames and not held:
        return None
    kernel: Mapping[str, Any] = next(iter(row.get("kernel") or []), {})
    entry = _entry_of(frames, _kernel_words(kernel), f"{row.get('verb') or ''} {kernel.get('syscall') or ''}", known)
    own = [frame for frame in frames if frame[3]]
    cls, says = (entry.cls, entry.says) if entry else ("user_code", "in its own code") if own else ("", "")
    aside, holder = "", main if main and main.get("gil") else None
    for thread in threads:
        if thread is not main and thread.get("frames"):
            its = _entry_of(thread["frames"], "", "", known)
            if its and its.cls in COMMUNICATION:
                aside = aside or f'{its.says}, in another thread ("{thread.get("name") or ""}")'
    if held and not (holder is not None and cls in COMMUNICATION):
        # Whoever keeps the interpreter lock while it waits for others is held by them, and not by the lock.
        cls, says = "lock", ""
    return Place(
        cls, says, text_of(frames[0]) if frames else "", text_of(own[0]) if own else "", held, str(row.get("how") or ""),
        tuple(name_of(frame) for frame in frames), aside, str(row.get("verb") or ""), str(kernel.get("syscall") or ""),
    )  # fmt: skip


def _kernel_words(kernel: Mapping[str, Any]) -> str:
    return f"{kernel.get('state') or ''} {kernel.get('wchan') or ''} {kernel.get('syscall') or ''}"


def _entry_of(frames: Sequence[Frame], kernel: str, verb: str, known: Sequence[Entry]) -> Entry | None:
    """The entry of the innermost place that one knows."""
    by = {on: [entry for entry in known if entry.on == on] for on in ON}
    weak: Entry | None = None
    for number, frame in enumerate(frames):
        if weak and frame[3]:
            return weak  # the job's own code called what waits
        text = name_of(frame)
        found = next((entry for entry in by["frame"] if entry.regex.search(text)), None)
        if found and not found.weak:
            return found
        weak = weak or found
        if number == 0:
            # What the kernel shows, and the word of the line, are of the innermost frame.
            below = [e for e in by["kernel"] if e.regex.search(kernel)]
            below += [e for e in by["verb"] if frame[3] and e.regex.search(verb)]
            if below:
                return below[0]
    return weak


def text_of(frame: Frame) -> str:
    """`save (torch/serialization.py:967)`."""
    where = str(frame[1]) + (f":{frame[2]}" if frame[2] else "")
    return f"{frame[0]} ({where})"


def name_of(frame: Frame) -> str:
    """`save (torch/serialization.py)`: without the line, which may differ between ranks that wait at one place."""
    return f"{frame[0]} ({frame[1]})"


# ---------------------------------------------------------------- the file


@lru_cache(maxsize=4)
def load(path: Path | None = None) -> tuple[Entry, ...]:
    """Read and check a file of stack classes (default: the one that ships). ConfigError names each problem on its line."""
    return load_table("stacks.yaml", path, read)


def read(data: object) -> tuple[tuple[Entry, ...], list[str]]:
    """(entries, problems) of what safe_load gave; an entry that breaks what its own stacks promise is a problem."""
    if not isinstance(data, Mapping) or not isinstance(data.get("stacks"), list) or data.get("version") != 1:
        return (), ["is no map with `version: 1` and a list `stacks`"]
    problems: list[str] = []
    entries = [entry for raw in data["stacks"] if (entry := _entry(raw, problems)) is not None]
    ids = [entry.id for entry in entries]
    problems += [f"{name}: there are two of this id" for name in sorted({n for n in ids if ids.count(n) > 1})]
    for entry in entries:
        problems += _broken(entry, entries)
    return tuple(entries), problems


def _entry(raw: object, problems: list[str]) -> Entry | None:
    if not isinstance(raw, Mapping) or not isinstance(raw.get("id"), str):
        problems.append("an entry without an id")
        return None
    name, before = raw["id"], len(problems)
    problems += [f"{name}: unknown key {key!r}" for key in raw if key not in KEYS]
    problems += [
        f"{name}: {key} is no text"
        for key in ("class", "where", "pattern", "says")
        if not isinstance(raw.get(key), str)
    ]
    if raw.get("class") not in CLASSES[:-1]:
        problems.append(f"{name}: class {raw.get('class')!r} is none of {', '.join(CLASSES[:-1])}")
    if raw.get("where") not in ON:
        problems.append(f"{name}: where {raw.get('on')!r} is none of {', '.join(ON)}")
    told = {key: raw.get(key) for key in ("stacks", "not")}
    problems += [f"{name}: {k} is no list of stacks" for k, v in told.items() if not isinstance(v, list) or not v]
    if len(problems) > before:
        return None
    try:
        regex = re.compile(raw["pattern"])
    except re.error as error:
        problems.append(f"{name}: bad pattern: {error}")
        return None
    if TOO_NEW.search(raw["pattern"]) or slow_part(raw["pattern"]):
        problems.append(f"{name}: the pattern could become slow, or is too new")
    return Entry(
        name, raw["class"], raw["where"], regex, raw["says"], bool(raw.get("weak")),
        tuple(map(str, raw["stacks"])), tuple(map(str, raw["not"])),
    )  # fmt: skip


def _broken(entry: Entry, entries: Sequence[Entry]) -> Iterable[str]:
    for text in entry.stacks:
        place = place_of(row_of(text), entries)
        if place is None or place.cls != entry.cls:
            yield f"{entry.id}: its stack {_head(text)!r} is of class {place.cls if place else None!r}"
    for text in entry.near_misses:
        place = place_of(row_of(text), entries)
        if place is not None and place.cls == entry.cls:
            yield f"{entry.id}: its near-miss {_head(text)!r} is of its class"


def _head(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[1].strip()[:60] if len(lines) > 1 else text[:60]


def row_of(text: str) -> dict[str, Any]:
    """A stack as it stands in the file, as the row that the probe would send."""
    lines = text.splitlines()
    kernel = next((line[7:].split(" ") for line in lines if line.startswith("kernel:")), [])
    words = list(kernel[1:]) if kernel[:1] == [""] else kernel
    words += [""] * (3 - len(words))
    verb = next((line[5:].strip() for line in lines if line.startswith("verb:")), "")
    row = {"threads": _frames.parse_text(text), "verb": verb, "gil_held": "", "how": "py-spy"}
    return {**row, "kernel": [{"state": words[0], "wchan": words[1], "syscall": words[2]}]}
