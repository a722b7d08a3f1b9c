"""What an Xid means, and whether it may be called a cause: `playbooks/xid.yaml`, checked when it is read.

    load().meaning(144, driver="550.90", arch=9, fatal=None)
        ->  Meaning(role="cause", name="key rotation (confidential computing)", cls="confidential", ...)

The number alone does not tell: 144 was another event on drivers of the 550 branch, 56 means nothing from Ampere on, and
145 to 150 are a cause only where the line says Fatal. Where what it depends on is not known, the role is "unknown" and
`why` says what is missing. Also what an Xid 154 asks for.
Fooled by   numbers of drivers newer than the table (role "unknown"); a driver's release that is told for the library and
            not for the module that runs. Pure; the file is read once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from triage.readers.strict_yaml import load_table

ROLES = ("cause", "symptom", "application", "info", "unknown")
CLASSES = (
    "memory", "bus", "nvlink", "firmware", "driver", "power", "engine", "program", "confidential", "c2c", "other",
)  # fmt: skip
KEYS = (
    "codes", "name", "role", "class", "action", "weak", "alone", "severity", "by_driver", "by_arch", "remarks",
)  # fmt: skip
CHANGES = ("name", "role", "class", "action", "severity")
FORM_SINCE = (560, 28)  # the first release whose lines say Fatal or Nonfatal
HIGHEST = 9999  # four digits, as the kernel signature reads them

_DRIVER = re.compile(r"(\d{1,5})(?:\.(\d{1,5}))?(?:\.(\d{1,5}))?(?!\d)")
_CHANGED = re.compile(
    r"GPU recovery action changed from 0x[0-9a-fA-F]{1,8} \((?P<before>[^)]{0,64})\) to 0x[0-9a-fA-F]{1,8} \((?P<after>[^)]{0,64})\)"
)


@dataclass(frozen=True)
class Meaning:
    """What one Xid means on one driver and GPU.

    role     one of ROLES; "unknown" with `why` where it cannot be told
    weak     peers call it harmless: alone it needs a second word
    alone    a cause only where no other cause is told on its node
    """

    code: int
    name: str
    role: str
    cls: str
    action: str
    weak: bool = False
    alone: bool = False
    remarks: str = ""
    why: str = ""

    def says(self) -> str:
        """`Xid 79 (the GPU has fallen off the bus)`."""
        return f"Xid {self.code} ({self.name})"


@dataclass(frozen=True)
class Change:
    """What an entry says otherwise for drivers below a release, or for GPUs from a generation on."""

    below: tuple[int, ...] = ()
    from_arch: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """One entry of xid.yaml, for one number."""

    meaning: Meaning
    severity: bool = False
    by_driver: tuple[Change, ...] = ()
    by_arch: tuple[Change, ...] = ()


@dataclass(frozen=True)
class Recovery:
    """An Xid 154: the recovery action that the driver now asks for. `none`: none any more, so that it is no fault."""

    text: str
    says: str
    none: bool


@dataclass(frozen=True)
class Table:
    """The whole file."""

    entries: Mapping[int, Entry]
    recoveries: Mapping[str, Recovery]

    def meaning(
        self, code: int, *, driver: str | None = None, arch: int | None = None, fatal: bool | None = None
    ) -> Meaning:
        """What this number means there.

        driver   the release of the kernel module, "570.133.20"; None = not known
        arch     NVML's number of the generation (9 Hopper, 10 Blackwell); None = not known
        fatal    does the line say Fatal (True) or Nonfatal (False)? None: neither word
        """
        entry = self.entries.get(code)
        if entry is None:
            return Meaning(code, "a number that is not in the table", "unknown", "other", "look it up", why="no entry")
        found, severity = entry.meaning, entry.severity
        if entry.by_driver:
            release = release_of(driver)
            if release is None and severity and fatal is not None:
                release = FORM_SINCE  # the very form of the line tells that much
            if release is None:
                return replace(
                    found,
                    role="unknown",
                    why="it means other things on other drivers, and the driver's release is not known",
                )
            for change in entry.by_driver:
                if release < change.below:
                    found, severity = _changed(found, severity, change)
                    break
        if entry.by_arch:
            if arch is None:
                return replace(found, role="unknown", why="it depends on the GPU's generation, which is not known")
            for change in entry.by_arch:
                if arch >= change.from_arch:
                    found, severity = _changed(found, severity, change)
                    break
        if severity and found.role == "cause":
            if fatal is None:
                return replace(found, role="unknown", why="its line says neither Fatal nor Nonfatal")
            if not fatal:
                return replace(found, role="info")
        if found.role == "unknown" and not found.why:
            return replace(found, why=found.name)
        return found


def _changed(found: Meaning, severity: bool, change: Change) -> tuple[Meaning, bool]:
    told = {("cls" if key == "class" else key): value for key, value in change.values.items() if key != "severity"}
    return replace(found, **told), bool(change.values.get("severity", severity))


def release_of(driver: str | None) -> tuple[int, ...] | None:
    """(570, 133, 20) of "570.133.20", or None for what is no release."""
    found = _DRIVER.match((driver or "").strip())
    return tuple(int(part) for part in found.groups() if part is not None) if found else None


# ---------------------------------------------------------------- the words of one line


def recovery_of(text: str, table: Table) -> Recovery | None:
    """What an Xid 154 asks for now; None for another line. A text that is not in the table asks for what it says."""
    found = _CHANGED.search(text)
    if found is None:
        return None
    after = found.group("after").strip()
    return table.recoveries.get(after.lower(), Recovery(after, after, False))


# ---------------------------------------------------------------- the file


@lru_cache(maxsize=4)
def load(path: Path | None = None) -> Table:
    """Read and check a table (default: the one that ships). ConfigError names each problem on its own line."""
    return load_table("xid.yaml", path, read)


def read(data: object) -> tuple[Table, list[str]]:
    """(table, problems) of what the YAML held. The pure heart of `load`."""
    problems: list[str] = []
    if not isinstance(data, Mapping) or not isinstance(data.get("xids"), list):
        return Table({}, {}), ["has no list `xids`"]
    if data.get("version") != 1:
        problems.append(f"version is {data.get('version')!r}, this program reads version 1")
    entries: dict[int, Entry] = {}
    for place, raw in enumerate(data["xids"], 1):
        for entry in _entries(raw, place, problems):
            if entry.meaning.code in entries:
                problems.append(f"Xid {entry.meaning.code} stands there twice")
            entries[entry.meaning.code] = entry
    recoveries: dict[str, Recovery] = {}
    told = data.get("recovery_actions")
    for raw in told if isinstance(told, list) else ():
        if not isinstance(raw, Mapping) or not all(isinstance(raw.get(key), str) for key in ("text", "says")):
            problems.append("recovery_actions: each is {text, says}")
            continue
        recoveries[raw["text"].lower()] = Recovery(raw["text"], raw["says"], raw.get("none") is True)
    if not recoveries:
        problems.append("has no list `recovery_actions`")
    return Table(entries, recoveries), problems


def _entries(raw: object, place: int, problems: list[str]) -> Iterable[Entry]:
    """One entry for each of its numbers."""
    if not isinstance(raw, Mapping):
        problems.append(f"entry {place} is no mapping")
        return
    codes = raw.get("codes")
    good = isinstance(codes, list) and bool(codes) and all(
        isinstance(code, int) and not isinstance(code, bool) and 0 < code <= HIGHEST for code in codes
    )  # fmt: skip
    if not isinstance(codes, list) or not good:
        problems.append(f"entry {place}: codes is no list of numbers from 1 to {HIGHEST}")
        return
    name = f"Xid {codes[0]}"
    before = len(problems)
    problems.extend(f"{name}: unknown key {key!r}" for key in raw if key not in KEYS)
    problems.extend(_wrong(raw, name, required=True))
    for key in ("weak", "alone", "severity"):
        if not isinstance(raw.get(key, False), bool):
            problems.append(f"{name}: {key} is neither true nor false")
    by_driver = tuple(_changes(raw, "by_driver", "below", name, problems))
    by_arch = tuple(_changes(raw, "by_arch", "from", name, problems))
    if [change.below for change in by_driver] != sorted(change.below for change in by_driver):
        problems.append(f"{name}: by_driver is not in the order of the releases, so that a later one never counts")
    if len(problems) > before:
        return
    for code in codes:
        meaning = Meaning(
            code, raw["name"], raw["role"], raw["class"], raw["action"], raw.get("weak", False), raw.get("alone", False),
            raw.get("remarks", ""),
        )  # fmt: skip
        yield Entry(meaning, raw.get("severity", False), by_driver, by_arch)


def _wrong(raw: Mapping[str, Any], name: str, required: bool = False) -> Iterable[str]:
    for key in ("name", "action", "role", "class", "remarks"):
        value = raw.get(key)
        if value is None and required and key != "remarks":
            yield f"{name}: {key} is missing"
        elif value is not None and (not isinstance(value, str) or not value.strip()):
            yield f"{name}: {key} is no text"
    if isinstance(raw.get("role"), str) and raw["role"] not in ROLES:
        yield f"{name}: role {raw['role']!r} is none of {', '.join(ROLES)}"
    if isinstance(raw.get("class"), str) and raw["class"] not in CLASSES:
        yield f"{name}: class {raw['class']!r} is none of {', '.join(CLASSES)}"


def _changes(raw: Mapping[str, Any], key: str, bound: str, name: str, problems: list[str]) -> Iterable[Change]:
    """The list `by_driver` (bound `below`, a release) or `by_arch` (bound `from`, a number)."""
    told = raw.get(key)
    if told is None:
        return
    if not isinstance(told, list) or not told:
        problems.append(f"{name}: {key} is no list")
        return
    for item in told:
        if not isinstance(item, Mapping) or set(item) - {bound, *CHANGES}:
            problems.append(f"{name}: {key}: each is {{{bound}, {', '.join(CHANGES)}}}")
            continue
        problems.extend(_wrong(item, f"{name}: {key}"))
        values = {k: v for k, v in item.items() if k != bound}
        limit = item.get(bound)
        release = release_of(limit) if isinstance(limit, str) else None
        if bound == "below" and release is not None:
            yield Change(below=release, values=values)
        elif bound == "from" and isinstance(limit, int) and not isinstance(limit, bool):
            yield Change(from_arch=limit, values=values)
        else:
            problems.append(f"{name}: {key}: {bound} is no {'release in quotes' if bound == 'below' else 'number'}")
