"""YAML, the part of it that is data.

Read as events, not objects: no tag, anchor, alias, merge key or second document is accepted and no key may stand twice, so
that neither an alias bomb nor a constructor gets anywhere. Plain `yes no on off` stay words (YAML 1.1 makes them booleans,
and a question's arms are called yes and no), as do dates and 1:30.
"""

from __future__ import annotations

import importlib.resources
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from triage.errors import ConfigError

MAX_BYTES = 4 << 20
MAX_NESTING = 20
T = TypeVar("T")


def load_table(name: str, path: Path | None, read: Callable[[object], tuple[T, list[str]]]) -> T:
    """A file of `playbooks/` by its name, or another one in its place, read and checked.

    read    (what it makes of the data, its problems). ConfigError names each problem on its own line.
    """
    where = str(path) if path else f"playbooks/{name}"
    try:
        place = path or importlib.resources.files("triage.playbooks").joinpath(name)
        text = place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: cannot be read: {error}") from error
    try:
        data = read_yaml(text)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    made, problems = read(data)
    if problems:
        raise ConfigError("\n".join(f"{where}: {problem}" for problem in problems))
    return made


def clean(text: str, limit: int = 160) -> str:
    """Text of a file as a message may show it: printable, one line, bounded."""
    return "".join(c if c.isprintable() else " " for c in text[:limit]).strip()


_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")


def read_yaml(text: str, *, number_keys: bool = False) -> Any:
    """dict, list, str, int, float, bool or None from one YAML document. Raises ConfigError only, with the line.

    number_keys   a plain number may be a key (a job's id), and is then the text that stands there
    """
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise ConfigError(f"is larger than {MAX_BYTES >> 20} MiB")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # seven times faster where libyaml is there
    try:
        return _document(yaml.parse(text, Loader=loader), number_keys)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, " if mark else ""
        raise ConfigError(f"{where}not YAML: {clean(str(error.problem or error.context))}") from None
    except ConfigError:
        raise
    except Exception as error:  # PyYAML leaks ValueError, UnicodeError and more on garbage
        raise ConfigError(f"not YAML: {clean(str(error), 120)}") from None


def _document(events: Iterable[Any], number_keys: bool) -> Any:
    """Build the tree with a stack of its own (no recursion, so nesting cannot exhaust ours)."""
    root: list[Any] = []
    stack: list[tuple[Any, list[Any]]] = [(root, [])]  # (container, [pending key])
    documents = 0
    for event in events:
        line = f"line {event.start_mark.line + 1}"
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise ConfigError(f"{line}: a second document begins; one file holds one")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise ConfigError(f"{line}: anchors and aliases (& and *) are not accepted")
        if isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            stack.pop()
        elif isinstance(event, yaml.NodeEvent):
            tag = getattr(event, "tag", None)
            if tag is not None and tag != "!":
                raise ConfigError(f"{line}: the tag {clean(str(tag), 60)} is not accepted; write plain data")
            value = _scalar(event) if isinstance(event, yaml.ScalarEvent) else None
            if isinstance(event, yaml.MappingStartEvent):
                value = {}
            elif isinstance(event, yaml.SequenceStartEvent):
                value = []
            container, pending = stack[-1]
            if number_keys and isinstance(container, dict) and not pending and isinstance(value, int | float):
                value = str(getattr(event, "value", ""))
            _put(stack[-1], value, line)
            if isinstance(value, (dict, list)):
                if len(stack) > MAX_NESTING:
                    raise ConfigError(f"{line}: is nested too deeply")
                stack.append((value, []))
    return root[0] if root else None


def _put(holder: tuple[Any, list[Any]], value: Any, line: str) -> None:
    container, pending = holder
    if isinstance(container, list):
        container.append(value)
    elif pending:
        container[pending.pop()] = value
    elif not isinstance(value, str):
        raise ConfigError(f"{line}: a key is a word, not {clean(repr(value), 40)}; put it in quotes")
    elif value == "<<":
        raise ConfigError(f"{line}: merge keys (<<) are not accepted")
    elif value in container:
        raise ConfigError(f'{line}: the key "{clean(value, 60)}" stands twice')
    else:
        pending.append(value)


def _scalar(event: Any) -> Any:
    text = str(event.value)
    if event.style not in (None, "") or event.tag == "!":
        return text
    if text in ("", "~", "null"):
        return None
    if text in ("true", "True", "false", "False"):
        return text in ("true", "True")
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text
