"""What a counter of a network port means, how far it counts, and what happened between two looks: `playbooks/counters.yaml`.

    table = load()
    table.of("rx_prio3_pause", driver="mlx5_core")    ->  Counter(name="rx_pause", role="paused", ...)
    grown(counter, 4294967290, 10)                    ->  Grown(16)        a 32-bit counter of mlx5 wrapped
    grown(counter, 254, 255)                          ->  Grown(None, "stuck")
    grown(counter, 40, 3)                             ->  Grown(None, "reset")

Fooled by   a wrap and a reset look alike: a smaller value counts as a wrap only where the step that it would mean is small;
            whoever compares a whole port asks for more (`reset_of`), since a reset takes all of its counters at once;
            firmware that tells PMA counters wider than the standard's: above the width nothing sticks. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from triage.readers.strict_yaml import load_table

ROLES = ("flap", "loss", "congestion_rx", "congestion_tx", "paused", "pausing", "traffic", "meta")
SIDES = ("own", "peer", "receiver")
ENDS = ("sticks", "wraps")
UNITS = ("us", "ms", "words", "ticks")
KEYS = ("name", "role", "side", "names", "drivers", "width", "ends", "unit", "per_s", "noise", "says")
# A step of more than this share of the range is no wrap between two looks but a counter that began anew.
WRAP_SHARE = 1 / 16
_LITERAL = re.compile(r"[A-Za-z0-9_.: #-]{1,64}")


@dataclass(frozen=True)
class Counter:
    """One meaning. `side`, `unit` and `per_s` are as the file says; `ends` is "" for a counter that neither sticks nor wraps."""

    name: str
    role: str
    side: str = ""
    width: int = 64
    ends: str = ""
    unit: str = ""
    per_s: float | None = None
    noise: bool = False
    says: str = ""

    @property
    def most(self) -> int:
        return (1 << self.width) - 1


@dataclass(frozen=True)
class Grown:
    """Events between two looks; None where the counter cannot tell, and why: absent, stuck, reset."""

    value: int | None
    why: str = ""


def grown(counter: Counter, before: int | None, after: int | None) -> Grown:
    """What a counter says between two looks of one boot."""
    if before is None or after is None:
        return Grown(None, "absent")
    if counter.ends == "sticks" and after == counter.most:
        return Grown(None, "stuck")
    if after >= before:
        return Grown(after - before)
    if counter.ends == "wraps" and before <= counter.most:
        step = after + counter.most + 1 - before
        if step <= counter.most * WRAP_SHARE:
            return Grown(step)
    return Grown(None, "reset")


def reset_of(pairs: Iterable[tuple[Counter | None, int | None, int | None]]) -> bool:
    """Did the counters of a port begin anew between the looks? Then none of them tells, also those that seem to have grown."""
    for counter, before, after in pairs:
        if before is None or after is None or after >= before:
            continue
        if counter is None or grown(counter, before, after).value is None:
            return True
    return False


@dataclass(frozen=True)
class Table:
    """The whole file: how each driver calls what."""

    exact: Mapping[str, tuple[tuple[frozenset[str], Counter], ...]] = field(default_factory=dict)
    numbered: tuple[tuple[re.Pattern[str], frozenset[str], Counter], ...] = ()

    def of(self, name: str, driver: str | None = None) -> Counter | None:
        """The meaning of a driver's own name; None for one that the table does not know, or not of this driver."""
        for drivers, counter in self.exact.get(name, ()):
            if not drivers or driver in drivers:
                return counter
        if any(c.isdigit() for c in name) and len(name) <= 64:
            for pattern, drivers, counter in self.numbered:
                if (not drivers or driver in drivers) and pattern.fullmatch(name):
                    return counter
        return None


# ---------------------------------------------------------------- the file


@lru_cache(maxsize=4)
def load(path: Path | None = None) -> Table:
    """Read and check a table (default: the one that ships). ConfigError names each problem on its own line."""
    return load_table("counters.yaml", path, read)


def read(data: object) -> tuple[Table, list[str]]:
    """(table, problems) of what the YAML held. The pure heart of `load`."""
    if not isinstance(data, Mapping) or not isinstance(data.get("counters"), list):
        return Table(), ["has no list `counters`"]
    problems: list[str] = []
    if data.get("version") != 1:
        problems.append(f"version is {data.get('version')!r}, this program reads version 1")
    exact: dict[str, list[tuple[frozenset[str], Counter]]] = {}
    numbered: list[tuple[re.Pattern[str], frozenset[str], Counter]] = []
    by_name: dict[str, Counter] = {}
    for place, raw in enumerate(data["counters"], 1):
        found = _entry(raw, place, problems)
        if found is None:
            continue
        counter, names, drivers = found
        other = by_name.setdefault(counter.name, counter)
        if (other.role, other.side, other.unit, other.noise) != (
            counter.role,
            counter.side,
            counter.unit,
            counter.noise,
        ):
            problems.append(f"{counter.name}: two entries of one name differ in what it means")
        for name in names:
            if "#" in name:
                pattern = re.compile(r"\d{1,4}".join(re.escape(piece) for piece in name.split("#")))
                numbered.append((pattern, drivers, counter))
                continue
            for other_drivers, _ in exact.get(name, ()):
                if not drivers or not other_drivers or drivers & other_drivers:
                    problems.append(f"{counter.name}: {name!r} has a meaning already")
            exact.setdefault(name, []).append((drivers, counter))
    return Table({name: tuple(told) for name, told in exact.items()}, tuple(numbered)), problems


def _entry(raw: object, place: int, problems: list[str]) -> tuple[Counter, list[str], frozenset[str]] | None:
    """(counter, its names, its drivers) of one entry, or None with its problems told."""
    if not isinstance(raw, Mapping) or not isinstance(raw.get("name"), str):
        problems.append(f"entry {place} is no mapping with a name")
        return None
    before, name = len(problems), raw["name"]
    problems.extend(f"{name}: unknown key {key!r}" for key in raw if key not in KEYS)
    problems.extend(_wrong(raw, name))
    names, drivers = raw.get("names"), raw.get("drivers", [])
    for key, value, needed in (("names", names, True), ("drivers", drivers, False)):
        good = isinstance(value, list) and all(isinstance(v, str) and _LITERAL.fullmatch(v) for v in value)
        if not good or (needed and not value):
            problems.append(f"{name}: {key} is no list of names")
    if len(problems) > before or not isinstance(names, list):
        return None
    per_s = raw.get("per_s")
    counter = Counter(
        name, raw["role"], raw.get("side", ""), raw.get("width", 64), raw.get("ends", ""), raw.get("unit", ""),
        None if per_s is None else float(per_s), raw.get("noise", False), raw["says"],
    )  # fmt: skip
    return counter, names, frozenset(drivers)


def _wrong(raw: Mapping[str, Any], name: str) -> Iterable[str]:
    for key, known in (("role", ROLES), ("side", SIDES), ("ends", ENDS), ("unit", UNITS)):
        value = raw.get(key)
        if (value is None and key == "role") or (value is not None and value not in known):
            yield f"{name}: {key} {value!r} is none of {', '.join(known)}"
    if (raw.get("role") == "loss") != ("side" in raw):
        yield f"{name}: side belongs to loss, and loss has a side"
    width = raw.get("width", 64)
    if isinstance(width, bool) or not isinstance(width, int) or not 4 <= width <= 64:
        yield f"{name}: width is no number of bits from 4 to 64"
    if "ends" in raw and "width" not in raw:
        yield f"{name}: what sticks or wraps has a width"
    per_s = raw.get("per_s", 1)
    if isinstance(per_s, bool) or not isinstance(per_s, int | float) or per_s <= 0:
        yield f"{name}: per_s is no rate above 0"
    if not isinstance(raw.get("noise", False), bool):
        yield f"{name}: noise is neither true nor false"
    if not isinstance(raw.get("says"), str) or not raw["says"].strip():
        yield f"{name}: says is missing"
