"""What tickets and chats say of a report: one line, a severity, who it is about, a few lines of evidence. All of it cleaned.

A changed verdict of the same attempt keeps its key, so that it updates the incident and opens no second one
(notes/peers-and-style.md section 3).
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from triage.model import Report
from triage.render import folding
from triage.render.clean import clean, clean_command

Severity = Literal["critical", "error", "warning", "info"]
LINES = 5  # of evidence: the rest stays in the case


def severity(report: Report) -> Severity:
    """A job that stands still is critical, a slow one an error, one of which nothing is proven a warning."""
    if report.exit_code == 0:
        return "info"
    if report.verdict.id == "inconclusive":
        return "warning"
    return "error" if report.verdict.fail == "slow" else "critical"


def settled(report: Report) -> bool:
    """May this report close an incident? Only if the job was seen to run well, never for lack of evidence."""
    healthy = report.verdict.id == "healthy" and report.exit_code == 0 and report.state == "running"
    return healthy and report.verdict.confidence == "high" and report.verdict.cause != "healthy/unreachable"


def summary(report: Report, limit: int) -> str:
    """`job 4711: rank 5 (gpu003) is dead (confidence high)`; the title gives way, the rest is never cut."""
    head = f"job {clean(report.job.get('id', '?'), 60)}: "
    tail = f" (confidence {clean(report.verdict.confidence, 8)})"
    title = (clean(report.verdict.title, 900) or clean(report.verdict.id, 100)).rstrip(".")
    return clean(head + clean(title, max(4, limit - len(head) - len(tail))) + tail, limit)


def step(report: Report, limit: int = 400) -> str:
    """What to do."""
    recommended = report.mitigation.get("recommended")
    told = recommended.get("summary") if isinstance(recommended, dict) else None
    return clean(told or "see the commands of the report", limit)


def node(report: Report) -> str:
    """The culprit's node; "" if none is named."""
    return next((name for c in report.culprits if c.role == "culprit" and (name := clean(c.node or "", 200))), "")


def component(report: Report) -> str:
    """The culprit as a person would say it; "" if none is named."""
    return next((folding.label(c) for c in report.culprits if c.role == "culprit"), "")


def job(report: Report) -> str:
    return f"job {clean(report.job.get('id', '?'), 60)}"


def group(report: Report) -> str:
    """The job's name, where somebody told it, or its id."""
    return clean(report.job.get("name") or report.job.get("id") or "?", 100)


def key(report: Report, limit: int) -> str:
    """The dedup key; one that is too long or not plain ends in a digest of the whole, so that two jobs never share it."""
    whole = report.dedup_key
    plain = clean(whole, 4000)
    if plain and plain == whole and len(plain) <= limit:
        return plain
    digest = hashlib.sha256(whole.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    return plain[: limit - 17] + "~" + digest


def pro(report: Report, most: int = LINES) -> list[str]:
    return folding.evidence([line for line in report.evidence if line.side == "for"])[:most]


def contra(report: Report, most: int = LINES) -> list[str]:
    return folding.evidence([line for line in report.evidence if line.side != "for"])[:most]


def replay(report: Report) -> str:
    """The line that prints the whole report again; "" without a case."""
    import shlex

    return clean_command(f"triage replay {shlex.quote(clean(report.case, 500))}") if report.case else ""


def details(report: Report) -> dict[str, Any]:
    """The bounded rest of an event: texts, and lists of at most five texts."""
    told: dict[str, Any] = {
        "verdict": clean(report.verdict.cause, 100),
        "confidence": clean(report.verdict.confidence, 8),
        "do_this": step(report),
        "state": report.state,
        "culprits": folding.parts([c for c in report.culprits if c.role == "culprit"])[:500],
        "involved": folding.parts([c for c in report.culprits if c.role != "culprit"])[:500],
        "victims": len(report.victims),
        "evidence": pro(report),
        "against": contra(report),
        "ruled_out": [f"{clean(r.verdict, 60)}: {clean(r.why, 200)}" for r in report.ruled_out[:LINES]],
        "do_not": [clean(line, 200) for line in report.do_not[:LINES]],
        "deadlines": [f"{clean(d.what, 60)} {clean(d.at or 'at an unknown time', 40)}" for d in report.deadlines[:3]],
        "unknown": len(report.unknown),
        "replay": replay(report),
        "observed": clean(report.observed, 40),
    }
    return {name: value for name, value in told.items() if value not in ("", [])}


def body(report: Report, limit: int) -> str:
    """The story in lines: the step, evidence for and against, what not to do, how to read the whole."""
    lines = [f"Do this: {step(report)}"]
    lines += [f"Seen: {line}" for line in pro(report)]
    lines += [f"But: {line.removeprefix('but: ')}" for line in contra(report, 3)]
    lines += [f"Ruled out: {clean(r.verdict, 60)}, {clean(r.why, 200)}" for r in report.ruled_out[:3]]
    lines += [f"Do not: {clean(line, 200)}" for line in report.do_not[:3]]
    if report.case:
        lines.append(f"Whole report: {replay(report)}")
    kept, room = [], limit
    for line in lines:
        if len(line) + 1 > room:
            break
        kept.append(line)
        room -= len(line) + 1
    return "\n".join(kept) if kept else clean(lines[0], limit)
