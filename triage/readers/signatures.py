"""Which log lines mean something, and what: `playbooks/signatures.yaml`, checked when it is read.

A signature carries its own test: the lines that it must match and the near-misses that it must not. A file that breaks
that promise is refused, with one line a problem.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from triage.readers.strict_yaml import load_table

SOURCES = ("kernel", "joblog")
ROLES = ("culprit", "victim", "points_at_peer", "infrastructure", "context")
KEYS = ("id", "source", "class", "role", "hint", "pattern", "says", "era", "also", "samples", "not", "above")
REQUIRED = ("id", "source", "class", "role", "pattern", "says", "samples")
# What Python 3.6 on a node does not know: possessive repeats and atomic groups (3.11).
TOO_NEW = re.compile(r"(?<!\\)(?:[*+?}]\+|\(\?>)")


@dataclass(frozen=True)
class Sample:
    """A line that a signature must match, and values that its groups must then have."""

    line: str
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Signature:
    """One entry of signatures.yaml."""

    id: str
    source: str
    cls: str
    role: str
    pattern: str
    says: str
    hints: tuple[str, ...] = ()
    era: str = ""
    also: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()
    near_misses: tuple[str, ...] = ()
    above: str = ""  # searched in the lines before, for the groups that the line itself lacks

    def match(self, line: str) -> dict[str, str] | None:
        """Named groups of the line as a probe would tell them, or None if it does not match."""
        if self.hints and not any(hint in line for hint in self.hints):
            return None
        found = re.search(self.pattern, line)
        if found is None:
            return None
        return {name.split("__")[0]: value for name, value in found.groupdict().items() if value is not None}

    def say(self, groups: Mapping[str, Any]) -> str:
        """The sentence, with what is not known of the line said as "unknown"."""
        return re.sub(r"\{(\w+)\}", lambda m: str(groups.get(m.group(1)) or "unknown"), self.says)


@dataclass(frozen=True)
class Signatures:
    """All entries, in the order of the file."""

    entries: tuple[Signature, ...]

    def __getitem__(self, name: str) -> Signature:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def get(self, name: str) -> Signature | None:
        return next((s for s in self.entries if s.id == name), None)

    def of(self, source: str) -> tuple[Signature, ...]:
        return tuple(s for s in self.entries if s.source == source)

    def for_probe(self, source: str) -> list[dict[str, Any]]:
        """The `signatures` argument of the probe `kernel` or `joblog`."""
        return [
            {
                "id": s.id,
                "pattern": s.pattern,
                "kind": s.cls,
                "hint": list(s.hints),
                **({"above": s.above} if s.above else {}),
            }
            for s in self.of(source)
        ]


@lru_cache(maxsize=4)
def load(path: Path | None = None) -> Signatures:
    """Read and check a signature file (default: the one that ships). ConfigError names each problem on its own line."""
    return Signatures(tuple(load_table("signatures.yaml", path, read)))


def for_probe(source: str) -> list[dict[str, Any]]:
    """The `signatures` argument of a probe, from the file that ships."""
    return load().for_probe(source)


def read(data: object) -> tuple[list[Signature], list[str]]:
    """(signatures, problems) of what safe_load gave. The pure heart of `load`, also for a linter."""
    if not isinstance(data, Mapping) or not isinstance(data.get("signatures"), list):
        return [], ["has no list `signatures`"]
    problems: list[str] = []
    if data.get("version") != 1:
        problems.append(f"version is {data.get('version')!r}, this program reads version 1")
    entries: list[Signature] = []
    for number, raw in enumerate(data["signatures"], 1):
        entry = _entry(raw, number, problems)
        if entry is None:
            continue
        if any(other.id == entry.id for other in entries):
            problems.append(f"{entry.id}: there are two of this id")
            continue
        entries.append(entry)
    names = {entry.id for entry in entries}
    for entry in entries:
        problems.extend(f"{entry.id}: `also` names {name!r}, which is none" for name in entry.also if name not in names)
    return entries, problems


def _entry(raw: object, number: int, problems: list[str]) -> Signature | None:
    if not isinstance(raw, Mapping):
        problems.append(f"entry {number} is no mapping")
        return None
    name = raw.get("id")
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]{1,60}", name):
        problems.append(f"entry {number}: id {name!r} is not lower-case words joined by _")
        return None
    before = len(problems)
    for key in raw:
        if key not in KEYS:
            near = difflib.get_close_matches(str(key), KEYS, 1)
            problems.append(f"{name}: unknown key {key!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    for key in REQUIRED:
        if not raw.get(key):
            problems.append(f"{name}: {key} is missing")
    for key in ("class", "pattern", "says", "era", "above"):
        if not isinstance(raw.get(key, ""), str):
            problems.append(f"{name}: {key} is no text")
    if raw.get("source") and raw["source"] not in SOURCES:
        problems.append(f"{name}: source {raw['source']!r} is none of {', '.join(SOURCES)}")
    if raw.get("role") and raw["role"] not in ROLES:
        problems.append(f"{name}: role {raw['role']!r} is none of {', '.join(ROLES)}")
    hints, also, misses = (_texts(raw, key, name, problems) for key in ("hint", "also", "not"))
    samples = _samples(raw.get("samples"), name, problems)
    if len(problems) > before:
        return None
    entry = Signature(
        name,
        raw["source"],
        raw["class"],
        raw["role"],
        raw["pattern"],
        raw["says"],
        hints,
        raw.get("era", ""),
        also,
        samples,
        misses,
        raw.get("above", ""),
    )
    problems.extend(_pattern_problems(entry))
    return entry if len(problems) == before else None


def _texts(raw: Mapping[str, Any], key: str, name: str, problems: list[str]) -> tuple[str, ...]:
    value = raw.get(key)
    if value is None:
        return ()
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
        problems.append(f"{name}: {key} is neither a text nor a list of texts")
        return ()
    return tuple(items)


def _samples(value: object, name: str, problems: list[str]) -> tuple[Sample, ...]:
    found: list[Sample] = []
    for item in value if isinstance(value, list) else []:
        if isinstance(item, str):
            found.append(Sample(item))
        elif isinstance(item, Mapping) and isinstance(item.get("line"), str) and set(item) <= {"line", "groups"}:
            found.append(Sample(item["line"], {str(k): str(v) for k, v in (item.get("groups") or {}).items()}))
        else:
            problems.append(f"{name}: a sample is neither a line nor {{line, groups}}")
    if value is not None and not isinstance(value, list):
        problems.append(f"{name}: samples is no list")
    return tuple(found)


def _pattern_problems(entry: Signature) -> Iterable[str]:
    """What the entry promises and does not keep."""
    try:
        regex = re.compile(entry.pattern)
        re.compile(entry.above)
    except re.error as error:
        yield f"{entry.id}: bad pattern: {error}"
        return
    for pattern in (entry.pattern, entry.above):
        if TOO_NEW.search(pattern):
            yield f"{entry.id}: the pattern uses what Python 3.6 does not know"
        if slow := slow_part(pattern):
            yield f"{entry.id}: the pattern could become slow: {slow}"
    if entry.above and entry.source != "kernel":
        yield f"{entry.id}: only kernel lines are read with those above"
    groups = {name.split("__")[0] for name in regex.groupindex}
    for word in re.findall(r"\{(\w+)\}", entry.says):
        if word not in groups:
            yield f"{entry.id}: says speaks of {{{word}}}, which is no group of the pattern"
    for sample in entry.samples:
        if not regex.search(sample.line):
            yield f"{entry.id}: does not match its sample {sample.line[:60]!r}"
            continue
        told = entry.match(sample.line)
        if told is None:
            yield f"{entry.id}: no hint stands in its sample {sample.line[:60]!r}"
            continue
        for key, value in sample.groups.items():
            if told.get(key) != value:
                yield f"{entry.id}: {key} is {told.get(key)!r} and not {value!r} in its sample {sample.line[:60]!r}"
    for line in entry.near_misses:
        if entry.match(line) is not None:
            yield f"{entry.id}: matches its near-miss {line[:60]!r}"


def slow_part(pattern: str) -> str:
    """Why a hostile line could make this pattern slow, or "". A repeat within a repeat is the classic way."""
    try:
        from re import _parser as parser  # type: ignore[attr-defined]
    except ImportError:  # Python 3.10
        import sre_parse as parser
    return _nested(parser.parse(pattern), False)


BIG = 9  # a small outer repeat ({0,8} of dotted names) multiplies the work by a constant only


def _nested(tree: Any, inside: bool) -> str:
    for code, argument in tree:
        kind = str(code)
        if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            low, high, body = argument
            if inside and int(high) > 1 and low != high:
                return "a repeat within a repeat"
            problem = _nested(body, inside or int(high) > BIG)
        elif kind == "SUBPATTERN":
            problem = _nested(argument[-1], inside)
        elif kind == "BRANCH":
            problem = next((p for p in (_nested(branch, inside) for branch in argument[1]) if p), "")
        elif kind in ("ASSERT", "ASSERT_NOT"):
            problem = _nested(argument[1], inside)
        else:
            problem = ""
        if problem:
            return problem
    return ""
