"""One event of PagerDuty's Events API v2, for POST https://events.pagerduty.com/v2/enqueue.

    {"event_action": "trigger", "dedup_key": "triage:lab:slurm:4711:0", "payload": {"summary": ..., "source": "gpu003",
     "severity": "critical", ...}}

`routing_key` is a secret and is not in it: `--post` puts it in as the event is sent. A healthy job resolves.
Limits: notes/peers-and-style.md section 3 (PagerDuty/developer-docs, events-API-v2).
"""

from __future__ import annotations

import json
from typing import Any

from triage.model import Report
from triage.render import brief
from triage.render.clean import clean

SUMMARY, KEY, TEXT = 1024, 255, 255


def render(report: Report) -> str:
    return json.dumps(event(report), indent=2, allow_nan=False) + "\n"


def event(report: Report) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "summary": brief.summary(report, SUMMARY),
        "source": clean(brief.node(report) or brief.job(report), TEXT),
        "severity": brief.severity(report),
        "timestamp": clean(report.observed, 40),
        "component": clean(brief.component(report), TEXT),
        "group": brief.group(report),
        "class": clean(report.verdict.cause, TEXT),
        "custom_details": brief.details(report),
    }
    return {
        "event_action": "resolve" if brief.settled(report) else "trigger",
        "dedup_key": brief.key(report, KEY),
        "client": "triage",
        "payload": {name: value for name, value in payload.items() if value != ""},
    }
