"""The report as one JSON document (`triage.report/1`; the schema is triage/schema.py).

Keys of the report stand in the order of the model, keys of free maps are sorted, so the same report is the same
bytes. Non-ASCII is escaped: no byte of a node's log can reach a terminal as a control sequence. NaN and infinity are
refused: unknown is null.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from triage.model import Report


def render(report: Report) -> str:
    """One document and a newline. ValueError names the place of a value that JSON cannot hold."""
    return json.dumps(as_json(report), indent=2, allow_nan=False) + "\n"


def as_json(value: Any, where: str = "report") -> Any:
    """Dataclasses, tuples and maps as plain JSON values; a field may carry its own name in metadata `json`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [(field.name, field.metadata.get("json", field.name)) for field in dataclasses.fields(value)]
        return {told: as_json(getattr(value, name), f"{where}.{told}") for name, told in names}
    if isinstance(value, dict):
        return {str(key): as_json(value[key], f"{where}.{key}") for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [as_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}: unknown must be null")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{where} holds a {type(value).__name__}, which JSON cannot hold")
