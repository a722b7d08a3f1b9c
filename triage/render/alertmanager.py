"""One alert for Alertmanager, for POST to /api/v2/alerts (a JSON array).

    [{"labels": {"alertname": "TriageFrozenJob", "job_id": "4711", ...}, "annotations": {...}, "startsAt": ..., "endsAt": ...}]

Labels are the alert's identity: what changes from run to run (verdict, confidence, node, time) stands in annotations.
`endsAt` is set, since an alert that is sent once ends by itself after resolve_timeout, 5 minutes
(notes/peers-and-style.md section 3). A healthy job ends the alert at once.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from triage.model import Report
from triage.render import brief
from triage.render.clean import clean

LASTS = timedelta(hours=4)
_FALLBACK = "1970-01-01T00:00:00Z"


def render(report: Report) -> str:
    return json.dumps([alert(report)], indent=2, allow_nan=False) + "\n"


def alert(report: Report) -> dict[str, Any]:
    labels = {
        "alertname": "TriageFrozenJob",
        "job_id": clean(report.job.get("id") or "", 200),
        "cluster": clean(report.job.get("cluster") or "", 200),
        "scheduler": clean(report.job.get("scheduler") or "", 200),
        "restart": clean(report.job.get("restart") or 0, 20),
    }
    annotations = {
        "summary": brief.summary(report, 1000),
        "description": brief.body(report, 4000),
        "severity": brief.severity(report),
        "verdict": clean(report.verdict.cause, 100),
        "confidence": clean(report.verdict.confidence, 8),
        "node": brief.node(report),
        "component": brief.component(report),
        "dedup_key": brief.key(report, 255),
        "replay": brief.replay(report),
    }
    begun = _time(report.observed)
    return {
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {name: value for name, value in annotations.items() if value},
        "startsAt": _iso(begun),
        "endsAt": _iso(begun if brief.settled(report) else begun + LASTS),
    }


def _time(iso: str) -> datetime:
    try:
        return datetime.fromisoformat(iso.replace("Z", "+00:00"))
    except ValueError:
        return datetime.fromisoformat(_FALLBACK.replace("Z", "+00:00"))


def _iso(when: datetime) -> str:
    return when.isoformat().replace("+00:00", "Z")
