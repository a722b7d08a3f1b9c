"""Bytes of a node -> lines -> samples. A node is untrusted input: what is too long, too deep or no envelope is refused.

Pure. The wire is described in probes/_probe.py.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from triage.model import Sample

LINE_BYTES = (1 << 20) + (64 << 10)  # one probe's megabyte and its envelope
MAX_DEPTH = 40
STATUSES = frozenset(("ok", "absent", "denied", "timeout", "malformed", "error"))
MAX_NOTES, MAX_NOTE = 20, 300

_NOT_BRACKETS = bytes(b for b in range(256) if b not in b"[]{}")
# What a float cannot hold would become infinite, and a long integer costs quadratic time: neither is a measurement.
_HUGE_NUMBER = re.compile(rb"[0-9][eE]\+?[0-9]{3}|[0-9]{200}")


class BadLine(ValueError):
    """A line that is no answer; the text says why."""


class Lines:
    """Cuts a stream into lines without ever holding more than one line's limit."""

    def __init__(self, limit: int = LINE_BYTES) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False

    def feed(self, chunk: bytes) -> list[bytes | None]:
        """The lines that this chunk completes, without their newline; None stands for one over the limit."""
        lines: list[bytes | None] = []
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._add(end)
            if self._skipping:
                lines.append(None)
            else:
                lines.append(b"".join(self._parts))
            self._parts, self._size, self._skipping = [], 0, False
        self._add(rest)
        return lines

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            self._parts, self._skipping = [], True
        elif part:
            self._parts.append(part)


def parse(raw: bytes) -> dict[str, Any]:
    """One JSON object, bounded in depth, without NaN or infinity, without lone surrogates. Raises BadLine."""
    outside = _outside_strings(raw)
    if _too_deep(outside):
        raise BadLine(f"nested deeper than {MAX_DEPTH}")
    if _HUGE_NUMBER.search(outside):
        raise BadLine("a number beyond any measurement")
    try:
        value: object = json.loads(raw.decode("utf-8"), parse_constant=_refuse)
    except UnicodeDecodeError as exc:
        raise BadLine("no UTF-8") from exc
    except (ValueError, RecursionError) as exc:
        raise BadLine(f"no JSON: {str(exc)[:80]}") from exc
    if not isinstance(value, dict):
        raise BadLine("no JSON object")
    if b"\\ud" in raw or b"\\uD" in raw:
        return dict(_without_surrogates(value))
    return value


def to_sample(node: str, line: Mapping[str, Any], received: float) -> Sample:
    """The sample that an envelope holds. `node` is ours: the line's own word is never believed. Raises BadLine."""
    status, data, notes = line.get("status"), line.get("data"), line.get("notes", [])
    took, at, version = line.get("took_s"), line.get("at"), line.get("version", 1)
    if status not in STATUSES:
        raise BadLine(f"unknown status {str(status)[:40]!r}")
    if not isinstance(data, dict):
        raise BadLine("data is no map")
    if not isinstance(notes, list):
        raise BadLine("notes are no list")
    if not isinstance(version, int) or isinstance(version, bool):
        raise BadLine("version is no whole number")
    return Sample(
        probe=str(line["probe"]),
        node=node,
        look=str(line["look"]),
        status=status,
        data=data,
        version=version,
        took_s=_seconds(took, "took_s"),
        at=_seconds(at, "at"),
        received=received,
        notes=tuple(str(note)[:MAX_NOTE] for note in notes[:MAX_NOTES]),
    )


def _seconds(value: object, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise BadLine(f"{name} is no time")
    return float(value)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no value")


def _outside_strings(raw: bytes) -> bytes:
    """The line without its strings. Linear whatever the line holds (a regular expression would not be)."""
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in raw else raw
    return b"".join(plain.split(b'"')[::2])


def _too_deep(outside: bytes) -> bool:
    if outside.count(b"[") + outside.count(b"{") <= MAX_DEPTH:
        return False
    brackets = outside.translate(None, _NOT_BRACKETS)
    for _ in range(MAX_DEPTH):
        # Each turn takes the innermost pairs away; what is still there after MAX_DEPTH turns is deeper than that.
        smaller = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if not smaller:
            return False
        if len(smaller) == len(brackets):
            raise BadLine("no JSON: brackets do not match")
        brackets = smaller
    return True


def _without_surrogates(value: Any) -> Any:
    """Half a surrogate pair cannot be written as UTF-8: it would break the report at the last moment."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value
