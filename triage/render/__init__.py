"""One file an output format: a module here with a function `render(report, ...) -> str`. Nothing to register."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

from triage.errors import UsageError
from triage.model import Report

Renderer = Callable[..., str]


def renderers() -> dict[str, Renderer]:
    """Every format by name. A module without `render` (clean, layout) is no format."""
    found: dict[str, Renderer] = {}
    for module in pkgutil.iter_modules(__path__):
        function = getattr(importlib.import_module(f"{__name__}.{module.name}"), "render", None)
        if callable(function):
            found[module.name] = function
    return found


def get(name: str) -> Renderer:
    """The renderer called `name`; UsageError with the nearest name if there is none."""
    if name.isidentifier() and importlib.util.find_spec(f"{__name__}.{name}"):  # the others need not be loaded
        function = getattr(importlib.import_module(f"{__name__}.{name}"), "render", None)
        if callable(function):
            return function  # type: ignore[no-any-return]
    known = renderers()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(known)}"
        raise UsageError(f"no output format is called {name!r}; {hint}")
    return known[name]


def render(name: str, report: Report, **options: Any) -> str:
    """The report in one format. Options that the format does not know (color for json) are left out."""
    function = get(name)
    taken = inspect.signature(function).parameters
    return function(report, **{key: value for key, value in options.items() if key in taken})
