"""Folded host lists: `gpu[001-128,200]` to names and back, order kept.

Order matters: it maps ranks to nodes, so this is no set (ClusterShell sorts). Zero padding is the width of the low
bound. Refused, each with its column: unbalanced brackets, reversed ranges, empty parts, more than 65,536 names, and the
words that schedulers print for "none" (notes/fanout-and-schedulers.md, sections 3.1 and 5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from triage.errors import UsageError

LIMIT = 65_536
NOT_A_HOST = ("(null)", "None assigned", "n/a", "none")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z|[A-Za-z0-9]\Z")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?\Z")


def expand(text: str) -> list[str]:
    """All names of a folded list, in its order, duplicates dropped after their first mention."""
    text = text.strip()
    if not text or text in NOT_A_HOST:
        raise UsageError(f"host list {text[:40]!r} names no host")
    names: dict[str, None] = {}
    for word in _split(text, text):
        for name in _expand_word(word, text):
            if not _NAME.match(name) or len(name) > 253:
                raise UsageError(f"host list: {name[:60]!r} is not a host name")
            names.setdefault(name)
            if len(names) > LIMIT:
                raise UsageError(f"host list: more than {LIMIT} names")
    return list(names)


def _split(text: str, whole: str) -> Iterator[str]:
    """Cut at commas and blanks that stand outside of brackets."""
    depth, word = 0, ""
    for column, sign in enumerate(text, 1):
        if sign == "[":
            depth += 1
        elif sign == "]":
            depth -= 1
        if depth not in (0, 1):
            raise UsageError(f"host list: unbalanced bracket at column {column} of {whole[:60]!r}")
        if sign in ", \t\n" and depth == 0:
            if word:
                yield word
            word = ""
        else:
            word += sign
    if depth:
        raise UsageError(f"host list: a bracket is not closed in {whole[:60]!r}")
    if word:
        yield word


def _expand_word(word: str, whole: str) -> Iterator[str]:
    pieces = re.split(r"\[([^\]]*)\]", word)
    choices = [[piece] if place % 2 == 0 else list(_numbers(piece, whole)) for place, piece in enumerate(pieces)]
    total = 1
    for choice in choices:
        total *= len(choice)
        if total > LIMIT:
            raise UsageError(f"host list: more than {LIMIT} names")
    names = [""]
    for choice in choices:
        names = [name + piece for name in names for piece in choice]
    yield from names


def _numbers(text: str, whole: str) -> Iterator[str]:
    for part in text.split(","):
        match = _RANGE.match(part.strip())
        if not match:
            raise UsageError(f"host list: {part[:40]!r} in {whole[:60]!r} is no number or range")
        low, high = match.group(1), match.group(2) or match.group(1)
        if int(high) < int(low):
            raise UsageError(f"host list: the range {part[:40]!r} in {whole[:60]!r} runs backwards")
        if int(high) - int(low) >= LIMIT:
            raise UsageError(f"host list: more than {LIMIT} names")
        for number in range(int(low), int(high) + 1):
            yield str(number).zfill(len(low))


_TAIL = re.compile(r"(.*?)(\d{1,18})(\D*)\Z", re.DOTALL)


def fold(names: Iterable[str]) -> str:
    """The shortest plain form of these names, order kept: neighbours that count up become one range."""
    out: list[str] = []
    run: list[tuple[str, str, str]] = []

    def flush() -> None:
        if not run:
            return
        head, first, tail = run[0]
        last = run[-1][1]
        out.append(f"{head}{first}{tail}" if len(run) == 1 else f"{head}[{first}-{last}]{tail}")
        run.clear()

    for name in names:
        match = _TAIL.match(name)
        if not match:
            flush()
            out.append(name)
            continue
        head, number, tail = match.groups()
        if run:
            before = run[-1]
            follows = (before[0], before[2]) == (head, tail) and number == str(int(before[1]) + 1).zfill(len(before[1]))
            if not follows:
                flush()
        run.append((head, number, tail))
    flush()
    return ",".join(_merge(out))


_FOLDED = re.compile(r"([^\[\]]*?)(\[[^\]]+\]|\d+)(\D*)\Z")


def _merge(words: list[str]) -> list[str]:
    """`gpu[001-003]`, `gpu007` -> `gpu[001-003,007]` where they are neighbours."""
    merged: list[tuple[str, str, list[str]] | str] = []
    for word in words:
        match = _FOLDED.match(word)
        if not match:
            merged.append(word)
            continue
        head, inner, tail = match.group(1), match.group(2).strip("[]"), match.group(3)
        previous = merged[-1] if merged else None
        if isinstance(previous, tuple) and previous[0] == head and previous[1] == tail:
            previous[2].append(inner)
        else:
            merged.append((head, tail, [inner]))
    return [
        word
        if isinstance(word, str)
        else f"{word[0]}[{','.join(word[2])}]{word[1]}"
        if len(word[2]) > 1 or "-" in word[2][0]
        else f"{word[0]}{word[2][0]}{word[1]}"
        for word in merged
    ]
