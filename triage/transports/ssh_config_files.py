"""The files of an ssh_config themselves: which there are, which names they tell apart, and paramiko's reading of them.

    Include conf.d/*
    Host gpu* !gpu099
        HostName %h.cluster       # a comment
    Match host login* exec "test -f /etc/inside"
        ProxyJump none

Only where the ssh binary is absent are they read for what they say (`by_paramiko`); else for `Apart`.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import partial

import paramiko

from triage import ownfiles

MAX_FILE = 1 << 20
MAX_FILES = 64
BY_NAME = ("host", "originalhost")
UNDERSTOOD = frozenset((*BY_NAME, "user", "localuser", "all", "final", "canonical"))


class CannotRead(Exception):
    """A line that paramiko would read wrongly; the text says which."""


def read_all(roots: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """(path, text) of these files and of all that they include, and who of them did not answer. Absent ones are left out."""
    found: dict[str, str] = {}
    stuck: list[str] = []
    ownfiles.ahead(read=roots)
    todo = list(roots)
    while todo and len(found) < MAX_FILES:
        path = todo.pop(0)
        if path in found:
            continue
        try:
            found[path] = ownfiles.read(path, MAX_FILE).decode("utf-8", "replace")
            for _, key, value in lines(found[path]):
                if key == "include":
                    todo += [name for word in words(value) for name in included(word, path)]
        except ownfiles.TooSlow as exc:
            stuck += [] if exc.below else [f"ssh_config {exc}"]
        except OSError:
            continue
    return list(found.items()), stuck


def included(word: str, by: str) -> list[str]:
    """The files that an `Include` names; what is relative lies beside the user's or the system's own configuration."""
    path = os.path.expanduser(word)
    if not os.path.isabs(path):
        system = by.startswith("/etc/ssh/")
        path = os.path.join("/etc/ssh" if system else os.path.expanduser("~/.ssh"), path)
    work = partial(_matching, path)
    return [name for name in ownfiles.compute(work, path).decode("utf-8", "surrogateescape").split("\0") if name]


def _matching(path: str) -> bytes:
    return "\0".join(sorted(glob.glob(path))).encode("utf-8", "surrogateescape")


def lines(text: str) -> Iterator[tuple[int, str, str]]:
    """(number, lower-case keyword, rest without its comment) of each line that says something."""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        line = re.sub(r'^((?:[^"#]|"[^"]*")*?)\s#.*$', r"\1", line).strip()
        key, _, value = line.replace("\t", " ").partition(" ")
        if "=" in key:
            key, _, more = line.partition("=")
            value = more
        yield number, key.strip().lower(), value.strip().removeprefix("=").strip()


def words(value: str) -> list[str]:
    return [part.strip('"') for part in re.findall(r'"[^"]*"|\S+', value)]


def says_anything(text: str) -> bool:
    return any(True for _ in lines(text))


def criteria(value: str) -> Iterator[tuple[str, str]]:
    """(name, argument) of the conditions of a `Match` line."""
    todo = words(value)
    while todo:
        name = todo.pop(0).lstrip("!").lower()
        if "=" in name:
            name, _, argument = name.partition("=")
            yield name, argument
        elif name in ("all", "canonical", "final"):
            yield name, ""
        else:
            yield name, todo.pop(0) if todo else ""


@dataclass(frozen=True)
class Apart:
    """Which names a configuration can tell apart."""

    exact: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]
    each: bool  # there are conditions that may see any difference

    @classmethod
    def of(cls, texts: Sequence[str]) -> Apart:
        told: list[str] = []
        each = False
        for text in texts:
            for _, key, value in lines(text):
                if key == "host":
                    told += words(value)
                elif key == "match":
                    for name, argument in criteria(value):
                        told += argument.split(",") if name in BY_NAME else []
                        each = each or name not in UNDERSTOOD
        plain = {word.lstrip("!") for word in told}
        wild = sorted(word for word in plain if "*" in word or "?" in word)
        compiled = tuple(re.compile(translate(word.replace("[", "[[]"))) for word in wild)
        return cls(frozenset(plain) - frozenset(wild), compiled, each)

    def of_name(self, name: str) -> object:
        """Names of one class are equal here."""
        if self.each or name in self.exact:
            return name
        return tuple(bool(pattern.fullmatch(name)) for pattern in self.patterns)


def by_paramiko(texts: Sequence[tuple[str, str]], name: str, user: str) -> str:
    """What `ssh -G` would print, as far as it is used here. CannotRead where paramiko would be wrong."""
    known = dict(texts)
    roots = [path for path, _ in texts if path in _roots(texts)]
    whole = "\n".join(_spliced(path, known[path], known, 0) for path in roots)
    told = paramiko.SSHConfig.from_text(whole).lookup(name)
    out = []
    for key, value in told.items():
        for each in value if isinstance(value, list) else [value]:
            out.append(f"{key} {str(each).strip()}")
    if user:
        out = [line for line in out if not line.startswith("user ")] + [f"user {user}"]
    return "\n".join(out)


def _roots(texts: Sequence[tuple[str, str]]) -> set[str]:
    """Those files that no other includes."""
    inner = {
        name for path, text in texts for _, key, value in lines(text) if key == "include"
        for word in words(value) for name in included(word, path)
    }  # fmt: skip
    return {path for path, _ in texts} - inner


def _spliced(path: str, text: str, known: dict[str, str], depth: int) -> str:
    """The text with its `Include`d files in place. An Include inside a block holds for that block only: not read here."""
    out: list[str] = []
    inside = False
    for number, key, value in lines(text):
        place = f"{path}:{number}"
        if key == "include":
            names = [name for word in words(value) for name in included(word, path) if name in known]
            if names and (inside or depth > 8):
                raise CannotRead(f"{place} has an Include inside of a block")
            out += [f"{_spliced(name, known[name], known, depth + 1)}\nHost *" for name in names]
            continue
        if key == "match":
            odd = [name for name, _ in criteria(value) if name not in UNDERSTOOD]
            if odd:
                raise CannotRead(f"{place} has a Match by {odd[0]}")
        inside = inside or key in ("host", "match")
        out.append(f"{key} {value}")
    return "\n".join([*out, "Host *"])
