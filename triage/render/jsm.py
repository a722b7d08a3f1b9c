"""One alert of Jira Service Management, for POST to /jsm/ops/integration/v2/alerts (header `Authorization: GenieKey <key>`).

    {"message": ..., "alias": "triage:lab:slurm:4711:0", "priority": "P1", "extraProperties": {"verdict": "dead_rank/killed"}}

The limits are Opsgenie's, whose fields these are; JSM's page states none (notes/peers-and-style.md section 3).
"""

from __future__ import annotations

import json
from typing import Any

from triage.model import Report
from triage.render import brief
from triage.render.clean import clean

MESSAGE, ALIAS, DESCRIPTION, ENTITY, SOURCE, TAG, EXTRA = 130, 512, 15_000, 512, 100, 50, 8_000
PRIORITY = {"critical": "P1", "error": "P2", "warning": "P3", "info": "P5"}


def render(report: Report) -> str:
    return json.dumps(alert(report), indent=2, allow_nan=False) + "\n"


def alert(report: Report) -> dict[str, Any]:
    tags = ("triage", report.verdict.id, brief.severity(report))
    told = {
        "message": brief.summary(report, MESSAGE),
        "alias": brief.key(report, ALIAS),
        "description": brief.body(report, DESCRIPTION),
        "priority": PRIORITY[brief.severity(report)],
        "entity": clean(brief.component(report) or brief.job(report), ENTITY),
        "source": clean(brief.node(report) or "triage", SOURCE),
        "tags": [clean(tag, TAG).replace(",", " ") for tag in tags if clean(tag, TAG)],
        "extraProperties": _extra(brief.details(report)),
    }
    return {name: value for name, value in told.items() if value not in ("", [])}


def _extra(details: dict[str, Any]) -> dict[str, str]:
    """Texts only, in all at most 8,000 characters of names and values; what does not fit is left out whole."""
    kept: dict[str, str] = {}
    room = EXTRA
    for name, value in details.items():
        text = "\n".join(value) if isinstance(value, list) else str(value)
        if len(name) + len(text) <= room:
            kept[name] = text
            room -= len(name) + len(text)
    return kept
