"""One record of ServiceNow's em_event, for POST to /api/global/em/jsonv2 (`{"records": [...]}`).

    {"records": [{"source": "triage", "node": "gpu003", "type": "dead_rank", "severity": "1", "message_key": ...}]}

`additional_info` is a JSON text, as the table wants it. Limits: notes/peers-and-style.md section 3; where none is known
to us (description, additional_info), 4,000 characters are kept.
"""

from __future__ import annotations

import json

from triage.model import Report
from triage.render import brief
from triage.render.clean import clean

NAME, TEXT = 100, 4000
# 0 is "clear": it closes the alert of the same key. 5 is "OK", an event that opens nothing.
SEVERITY = {"critical": "1", "error": "2", "warning": "4", "info": "5"}


def render(report: Report) -> str:
    return json.dumps({"records": [record(report)]}, indent=2, allow_nan=False) + "\n"


def record(report: Report) -> dict[str, str]:
    severity = brief.severity(report)
    info = {"triage_severity": severity, **brief.details(report)}
    while len(json.dumps(info)) > TEXT:
        info.popitem()  # the last are the least: evidence and the step stand before them
    told = {
        "source": "triage",
        "event_class": clean(report.job.get("cluster") or "", NAME) or "triage",
        "node": clean(brief.node(report), NAME),
        "type": clean(report.verdict.id, NAME),
        "resource": clean(brief.component(report) or brief.job(report), NAME),
        "metric_name": "frozen-job",
        "severity": "0" if brief.settled(report) else SEVERITY[severity],
        "message_key": brief.key(report, 255),
        "description": clean(brief.summary(report, 300), 300) + "\n" + brief.body(report, TEXT - 301),
        "time_of_event": clean(report.observed, 40)[:19].replace("T", " "),
        "additional_info": json.dumps(info, allow_nan=False),
    }
    return {name: value for name, value in told.items() if value}
