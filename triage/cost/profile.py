"""What does each step cost here? The inputs of the cost model: value, range, unit and where each comes from.

Reads    playbooks/costs.yaml (the defaults) and, over it, the `costs:` map of a site's --profile file:
             costs:
               restart_min: 8                              # a bare value: no range left
               checkpoint_interval_min: {value: 30, low: 25, high: 35, source: history}
               s2_supported: true
         What a run measures goes over both with `CostProfile.measured`.
Errors   ConfigError, one line, for anything that does not fit: an unknown name, a negative cost, low above high.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from triage.errors import ConfigError
from triage.readers.strict_yaml import read_yaml

Source = Literal["measured", "log", "scheduler", "filesystem", "history", "flag", "profile", "default"]
Policy = Literal["ski_rental", "prefer_restart"]

_PARTS = {"value", "low", "high", "unit", "source", "note"}


@dataclass(frozen=True)
class Quantity:
    """A number with its range, its unit and its origin. None = not known (never 0, never NaN)."""

    value: float | None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    source: Source = "default"
    note: str = ""

    @property
    def span(self) -> tuple[float, ...]:
        """The known ends and the middle, for the corners of a decision."""
        return tuple(sorted({v for v in (self.low, self.value, self.high) if v is not None}))

    def told(self) -> str:
        """`default, 5-40` or `log`: how the report names the origin."""
        if self.low is None or self.high is None or self.low == self.high:
            return self.source
        return f"{self.source}, {plain(self.low)}-{plain(self.high)}"


@dataclass(frozen=True)
class Switch:
    """Can the framework do this? `value` is False unless someone said yes."""

    value: bool
    source: Source = "default"
    note: str = ""


@dataclass(frozen=True)
class CostProfile:
    """All inputs of the cost model by name. `quantity(name).value` may be None; `can(name)` may not."""

    quantities: Mapping[str, Quantity]
    switches: Mapping[str, Switch]
    policy: Policy
    policy_source: Source = "default"

    def quantity(self, name: str) -> Quantity:
        return self.quantities[name]

    def number(self, name: str) -> float:
        """A quantity that the default file always knows. A null there is a mistake in the file."""
        value = self.quantities[name].value
        if value is None:
            raise ConfigError(f"cost profile: {name} may not be null")
        return value

    def can(self, name: str) -> bool:
        return self.switches[name].value

    def measured(self, found: Mapping[str, Quantity]) -> CostProfile:
        """The same profile with what this run measured laid over it. An unknown name is a bug of the caller."""
        for name in found:
            if name not in self.quantities:
                raise KeyError(f"no cost input is called {name}")
        kept = {
            name: replace(found[name], unit=known.unit, note=found[name].note or known.note) if name in found else known
            for name, known in self.quantities.items()
        }
        return replace(self, quantities=kept)


def plain(number: float) -> str:
    """`15`, `0.5`, `5.8`, `102`: at most one digit after the point, two below one; no trailing zeros."""
    digits = 2 if abs(number) < 0.995 else 1 if abs(number) < 99.95 else 0
    text = f"{number:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"


def percent(fraction: float) -> str:
    """`13.6 %`."""
    return f"{fraction * 100.0:.1f} %"


def load_profile(text_default: str, text_override: str | None = None) -> CostProfile:
    """The default profile with a site's overrides, checked. `text_override` is the whole --profile document."""
    base = _costs(text_default, "costs.yaml")
    read = {name: _entry(name, raw, "costs.yaml", None) for name, raw in base.items()}
    if text_override is not None:
        for name, raw in _costs(text_override, "profile").items():
            if name not in read:
                raise ConfigError(f"profile: costs.{name} is no input{_did_you_mean(name, read)}")
            read[name] = _entry(name, raw, "profile", read[name])
    quantities: dict[str, Quantity] = {}
    switches: dict[str, Switch] = {}
    policy: Policy = "ski_rental"
    policy_source: Source = "default"
    for name, entry in read.items():
        if isinstance(entry, Quantity):
            quantities[name] = entry
        elif isinstance(entry, Switch):
            switches[name] = entry
        else:
            policy, policy_source = entry
    return CostProfile(quantities, switches, policy, policy_source)


def _costs(text: str, where: str) -> dict[str, Any]:
    try:
        document = read_yaml(text)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: the file must be a map with the key costs")
    costs = document.get("costs")
    if costs is None:
        return {}
    if not isinstance(costs, dict) or not all(isinstance(name, str) for name in costs):
        raise ConfigError(f"{where}: costs must be a map from input names to values")
    return costs


Entry = Quantity | Switch | tuple[Policy, Source]


def _entry(name: str, raw: Any, where: str, under: Entry | None) -> Entry:
    """One input, checked; `under` is what it overrides, whose type and unit it keeps."""
    here = f"{where}: costs.{name}"
    if not isinstance(raw, dict):
        raw = {"value": raw}
    for part in raw:
        if part not in _PARTS:
            raise ConfigError(f"{here}.{part} is no part of an input{_did_you_mean(str(part), _PARTS)}")
    if "value" not in raw:
        raise ConfigError(f"{here} has no value")
    source = raw.get("source", "profile")
    if source not in get_args(Source):
        raise ConfigError(f"{here}.source is {source!r}; use one of {', '.join(get_args(Source))}")
    value = raw["value"]
    note = str(raw.get("note", under.note if isinstance(under, Quantity | Switch) else ""))
    if name == "policy":
        if value not in get_args(Policy):
            raise ConfigError(f"{here} is {value!r}; use one of {', '.join(get_args(Policy))}")
        return value, source
    if isinstance(under, Switch) or (under is None and isinstance(value, bool)):
        if not isinstance(value, bool):
            raise ConfigError(f"{here} must be true or false")
        return Switch(value, source, note)
    middle = _number(here, value)
    low = _number(f"{here}.low", raw["low"]) if "low" in raw else middle
    high = _number(f"{here}.high", raw["high"]) if "high" in raw else middle
    for below, above in ((low, middle), (middle, high), (low, high)):
        if below is not None and above is not None and below > above:
            raise ConfigError(f"{here}: low <= value <= high does not hold ({low}, {middle}, {high})")
    unit = under.unit if isinstance(under, Quantity) else str(raw.get("unit", ""))
    if "unit" in raw and raw["unit"] != unit:
        raise ConfigError(f"{here} is measured in {unit}, not {raw['unit']}")
    if unit in ("fraction", "share", "probability") and any(v is not None and v > 1 for v in (low, middle, high)):
        raise ConfigError(f"{here} is a {unit}: write 0.4 for 40 %")
    return Quantity(middle, low, high, unit, source, note)


def _number(here: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{here} must be a number or null, not {str(value)[:40]!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < 0:
        raise ConfigError(f"{here} must be a finite number, 0 or more")
    return number


def _did_you_mean(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""
