"""The words in which readers/shapes.py says what an answer looks like: each makes a check of one value.

A check raises Bad with the place and the reason, built from the inside out, so that the good case costs a comparison.
Scalars of a record may be null, containers may not; numbers are finite, no bool is a number, texts and depths are bounded.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], None]  # raises Bad

COUNTER = 1 << 70  # 64 bits, and InfiniBand's words counted in bytes
MOST_DEPTH = 12
MOST_TEXT = 65_536


class Bad(Exception):
    """Where (built from the inside out) and why a value is not what the spec says."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why, self.where = why, ""

    def inside(self, step: str) -> Bad:
        dot = "." if self.where and not self.where.startswith("[") else ""
        self.where = step + dot + self.where
        return self


def whole(low: int = 0, high: int = COUNTER) -> Check:
    """An int that is no bool."""

    def check(value: Any) -> None:
        if type(value) is not int:
            raise Bad("is no whole number")
        if not low <= value <= high:
            raise Bad("is a number beyond all sense")

    return check


def number(low: float = 0.0, high: float = 1e15) -> Check:
    """A finite int or float that is no bool (no comparison with NaN is true)."""

    def check(value: Any) -> None:
        if type(value) is not float and type(value) is not int:
            raise Bad("is no number")
        if not low <= value <= high:
            raise Bad("is a number beyond all sense")

    return check


def text(most: int = 4096) -> Check:
    def check(value: Any) -> None:
        if type(value) is not str:
            raise Bad("is no text")
        if len(value) > most:
            raise Bad(f"is longer than {most} characters")

    return check


def flag(value: Any) -> None:
    if type(value) is not bool:
        raise Bad("is neither true nor false")


class Container:
    """A check of a list or map: a field of that kind is never null."""

    def __init__(self, check: Check) -> None:
        self.check = check

    def __call__(self, value: Any) -> None:
        self.check(value)


def maybe(check: Check) -> Check:
    """Null, or what `check` wants."""

    def or_null(value: Any) -> None:
        if value is not None:
            check(value)

    return or_null


class must:
    """A field of a record that may be neither missing nor null."""

    def __init__(self, check: Check) -> None:
        self.check = check


def each(check: Check, most: int = 4096) -> Check:
    """A list of such items."""

    def check_list(value: Any) -> None:
        if not isinstance(value, list | tuple):
            raise Bad("is no list")
        if len(value) > most:
            raise Bad(f"has more than {most} items")
        index = 0
        try:
            for index, item in enumerate(value):  # noqa: B007  (the index is for the message)
                check(item)
        except Bad as bad:
            raise bad.inside(f"[{index}]") from None

    return Container(check_list)


def column(low: float = 0.0, high: float = 1e15, most: int = 4096, *, ints: bool = False) -> Check:
    """A list of numbers, looked at in one go: step columns are most of what a healthy node sends."""
    slow = each(whole(int(low), int(high)) if ints else number(low, high), most)
    kinds = {int} if ints else {int, float}

    def check(value: Any) -> None:
        quick = type(value) is list and 0 < len(value) <= most and kinds.issuperset(map(type, value))
        # min and max may pass over a NaN; the sum is then one, and is within no bounds.
        if quick and low <= min(value) and max(value) <= high and -math.inf < sum(value) < math.inf:
            return
        slow(value)  # it finds where

    return Container(check)


def row(*checks: Check) -> Check:
    """A list of exactly these items."""

    def check(value: Any) -> None:
        if not isinstance(value, list | tuple):
            raise Bad("is no list")
        if len(value) != len(checks):
            raise Bad(f"has {len(value)} items and not {len(checks)}")
        for index, (item, one) in enumerate(zip(value, checks)):
            try:
                one(item)
            except Bad as bad:
                raise bad.inside(f"[{index}]") from None

    return Container(check)


def named(check: Check, most: int = 4096) -> Check:
    """A map from any bounded text to such items."""

    def check_map(value: Any) -> None:
        if not isinstance(value, Mapping):
            raise Bad("is no map")
        if len(value) > most:
            raise Bad(f"has more than {most} entries")
        for name, item in value.items():
            if type(name) is not str or len(name) > 256:
                raise Bad("has a name that is no short text")
            try:
                check(item)
            except Bad as bad:
                raise bad.inside(printable(name)) from None

    return Container(check_map)


def record(fields: Mapping[str, Check | must]) -> Check:
    """A map with these fields; others may be there and are only bounded."""
    checks = {name: one.check if isinstance(one, must) else one for name, one in fields.items()}
    needed = [name for name, one in fields.items() if isinstance(one, must)]

    def check(value: Any) -> None:
        if not isinstance(value, Mapping):
            raise Bad("is no map")
        for name in needed:
            if value.get(name) is None:
                raise Bad("is missing").inside(name)
        if len(value) > 512:
            raise Bad("has more than 512 fields")
        for name, item in value.items():
            one = checks.get(name)
            if item is None and not isinstance(one, Container):
                continue
            try:
                if one is not None:
                    one(item)
                elif type(name) is not str or len(name) > 256:
                    raise Bad("has a name that is no short text")
                else:
                    plain(item, 1)
            except Bad as bad:
                raise bad.inside(printable(name)) from None

    return Container(check)


def printable(name: object) -> str:
    """A key in a message: keys of a hostile map are as hostile as its values."""
    return "".join(c if c.isprintable() else "?" for c in str(name)[:40])


def plain(value: Any, depth: int) -> None:
    """JSON of bounded depth, finite numbers and bounded texts."""
    kind = type(value)
    if value is None or kind is bool:
        return
    if kind is str:
        if len(value) > MOST_TEXT:
            raise Bad(f"is longer than {MOST_TEXT} characters")
    elif kind is int or kind is float:
        if not -1e30 <= value <= 1e30:
            raise Bad("is a number beyond all sense")
    elif depth > MOST_DEPTH:
        raise Bad(f"is nested deeper than {MOST_DEPTH}")
    elif isinstance(value, list | tuple):
        for item in value:
            plain(item, depth + 1)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if type(name) is not str or len(name) > 1024:
                raise Bad("has a name that is no short text")
            plain(item, depth + 1)
    else:
        raise Bad("is no JSON")
