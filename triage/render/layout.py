"""Lines that fit: display width, wrapping, shell lines that stay copy-and-paste when they wrap, folded lists."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def width_of(text: str) -> int:
    """Columns on a terminal: wide characters take two. Expects cleaned text (nothing invisible in it)."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def cut(text: str, width: int) -> str:
    """At most `width` columns, `...` at the end of what was cut."""
    if width_of(text) <= width:
        return text
    if width <= 3:
        return "..."[:width]
    kept, used = "", 0
    for sign in text:
        used += width_of(sign)
        if used > width - 3:
            break
        kept += sign
    return kept.rstrip() + "..."


def wrap(text: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    """Words in lines of at most `width` columns, the first behind `first`, the others behind `rest`."""
    rest = " " * width_of(first) if rest is None else rest
    lines: list[str] = []
    line, room = first, width - width_of(first)
    empty = True
    for word in text.split():
        need = width_of(word)
        if not empty and need + 1 > room:
            lines.append(line)
            line, room, empty = rest, width - width_of(rest), True
        if not empty:
            line, room = line + " ", room - 1
        while need > room:  # a word longer than a line
            piece = _take(word, max(1, room))
            lines.append(line + piece)
            word, line, room = word[len(piece) :], rest, width - width_of(rest)
            need = width_of(word)
        line, room, empty = line + word, room - need, False
    if not empty or not lines:
        lines.append(line)
    return [line.rstrip() for line in lines]


def _take(word: str, room: int) -> str:
    taken, used = "", 0
    for sign in word:
        used += width_of(sign)
        if taken and used > room:
            break
        taken += sign
    return taken


def wrap_shell(command: str, width: int, indent: str = "  ") -> list[str]:
    r"""A shell line over several, joined by `\` at its end, so that pasting it gives the same words.

    Breaks at blanks outside of quotes. A word longer than a line is broken inside, where the next line may not be
    indented: plain and double-quoted text by a `\`, single-quoted text by closing and opening the quote around it.
    A comment at the end goes on lines of its own.
    """
    if width_of(indent + command) <= width:
        return [indent + command]
    lines: list[str] = []
    line, empty = indent, True
    words, comment = _words(command)
    for word in words:
        need = sum(width_of(piece) for piece, _ in word)
        if not empty and width_of(line) + 1 + need > width - 2:
            lines.append(line + " \\")
            line, empty = indent, True
        line, empty = line if empty else line + " ", False
        for piece, quote in word:
            if width_of(line) + width_of(piece) > width - 2:  # room for a closing quote and the backslash
                single = "'" if quote == "'" else ""
                lines.append(line + single + "\\")
                line = single
            line += piece
    if not empty:
        lines.append(line)
    return lines + (wrap(comment.lstrip("# "), width, indent + "# ", indent + "# ") if comment else [])


def _words(command: str) -> tuple[list[list[tuple[str, str]]], str]:
    """Words of a shell line as pieces that must not be torn, each with the quote it stands in; and its comment."""
    words: list[list[tuple[str, str]]] = []
    word: list[tuple[str, str]] = []
    quote = ""
    i = 0
    while i < len(command):
        sign = command[i]
        if sign == "\\" and quote != "'" and i + 1 < len(command):
            word.append((command[i : i + 2], quote))
            i += 2
            continue
        i += 1
        if sign == " " and not quote:
            if word:
                words.append(word)
            word = []
        elif sign == "#" and not quote and not word:
            return words, command[i - 1 :]
        elif sign in "'\"" and quote in ("", sign):
            word.append((sign, quote))  # the closing quote still stands inside
            quote = "" if quote else sign
        else:
            word.append((sign, quote))
    if word:
        words.append(word)
    return words, ""


def ranges(numbers: Sequence[int]) -> str:
    """`0-4,6,8-9`: ranks, sorted, neighbours folded."""
    out: list[str] = []
    ordered = sorted(set(numbers))
    start = 0
    for i, number in enumerate(ordered):
        if i + 1 < len(ordered) and ordered[i + 1] == number + 1:
            continue
        out.append(str(number) if start == i else f"{ordered[start]}-{number}")
        start = i + 1
    return ",".join(out)


def some(items: Sequence[str], most: int = 4) -> str:
    """The first few, and how many more."""
    if len(items) <= most:
        return ", ".join(items)
    return f"{', '.join(items[:most])} and {len(items) - most} more"


def duration(seconds: float) -> str:
    """`90s`, `48m`, `2h`, `3h10m`: as durations are written everywhere in triage."""
    whole = round(abs(seconds))
    sign = "-" if seconds < 0 and whole else ""
    if whole < 120:
        return f"{sign}{whole}s"
    if whole < 7200:
        minutes, rest = divmod(whole, 60)
        return f"{sign}{minutes}m{rest}s" if rest and whole < 900 else f"{sign}{round(whole / 60)}m"
    hours, minutes = divmod(round(whole / 60), 60)
    return f"{sign}{hours}h{minutes}m" if minutes and hours < 48 else f"{sign}{round(whole / 3600)}h"
