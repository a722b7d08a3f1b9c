"""How a fact is declared, found and computed.

A fact is one decorated function of the Evidence, anywhere in this folder; nothing else to register:

    @fact("ranks.gone", type="number", unit="ranks", parts="rank")
    def gone(ev: Evidence) -> Fact:
        '''Ranks whose process is gone from a node that we see fully and that is known to have hosted them.'''

The first docstring line is what `triage playbook show` and the manual say of it. A function answers with `known(...)`
or `unknown(reason)`; the registry puts the name and unit on it. A fact that raises is a bug, reported as unknown
with its error so that one bad fact cannot take the run down.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from triage.model import Fact, FactSpec, Part, Provenance, Value

if TYPE_CHECKING:
    from triage.facts.evidence import Evidence

FactFunction = Callable[["Evidence"], Fact]

_specs: dict[str, FactSpec] = {}
_functions: dict[str, FactFunction] = {}


def known(
    value: Value = None,
    *,
    parts: Iterable[Part] | None = None,
    text: str = "",
    provenance: Iterable[Provenance] = (),
    contradicted_by: Iterable[str] = (),
) -> Fact:
    """A fact that is known. With `parts` and no value, the value is their number."""
    held = tuple(parts or ())
    if value is None:
        if parts is None:
            raise ValueError("known() needs a value or parts")
        value = len(held)
    return Fact("", value, parts=held, text=text, provenance=tuple(provenance), contradicted_by=tuple(contradicted_by))


def unknown(reason: str, *, provenance: Iterable[Provenance] = ()) -> Fact:
    """A fact that is not known, and why: the report repeats the reason."""
    return Fact("", None, reason=reason, provenance=tuple(provenance))


def fact(
    name: str, *, type: Literal["bool", "number", "text", "list"], unit: str = "", parts: str = ""
) -> Callable[[FactFunction], FactFunction]:
    """Register the decorated function as the fact `name`."""

    def register(function: FactFunction) -> FactFunction:
        if name in _functions and _functions[name].__module__ != function.__module__:
            raise ValueError(f"two functions compute the fact {name}")
        says = (function.__doc__ or name).strip().splitlines()  # python -OO strips docstrings; a test demands them
        _specs[name] = FactSpec(name, type, unit, parts, says[0])
        _functions[name] = function
        return function

    return register


def _load_all() -> None:
    package = importlib.import_module("triage.facts")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"triage.facts.{module.name}")


def catalogue() -> dict[str, FactSpec]:
    """Every fact that can be computed: what a playbook is checked against."""
    _load_all()
    return dict(sorted(_specs.items()))


def compute(evidence: Evidence) -> dict[str, Fact]:
    """All facts of this evidence, by name."""
    _load_all()
    return {name: _one(name, evidence) for name in sorted(_functions)}


def other(evidence: Evidence, name: str) -> Fact:
    """Another fact, for one that is made of facts. A name that does not exist is a bug and raises KeyError."""
    _load_all()
    return _one(name, evidence)


def _one(name: str, evidence: Evidence) -> Fact:
    try:
        found = _functions[name](evidence)
    except Exception as error:  # one bad fact must not take the run down
        found = unknown(f"could not be computed ({error.__class__.__name__}: {str(error)[:120]}); please report this")
    return replace(found, name=name, unit=_specs[name].unit)
