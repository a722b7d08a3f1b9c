"""The finished report as events, one JSON object a line; the first says the version.

    {"type": "version", "schema_version": "triage.report/1", "tool": {...}}
    {"type": "job", ...} {"type": "tree.step", ...} {"type": "evidence", ...} {"type": "verdict", ...} {"type": "report", ...}

The last line holds the whole document of `--output json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from triage.model import Report
from triage.render.json import as_json


def render(report: Report) -> str:
    return "".join(json.dumps(event, allow_nan=False) + "\n" for event in events(report))


def events(report: Report) -> Iterator[dict[str, Any]]:
    whole = as_json(report)
    yield {"type": "version", "schema_version": whole["schema_version"], "tool": whole["tool"]}
    yield {"type": "job", **{k: whole[k] for k in ("job", "state", "observed", "case", "dedup_key")}}
    for step in whole["walk"]:
        yield {"type": "tree.step", **step}
    for line in whole["evidence"]:
        yield {"type": "evidence", **line}
    yield {"type": "verdict", **{k: whole[k] for k in ("verdict", "culprits", "exit_code")}}
    yield {"type": "report", "report": whole}
