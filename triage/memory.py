"""What is remembered of a job between looks, as plain values: read from hostile files, compared with a report. Pure.

    memory = bounded(document)         whatever a file held, as a map of known keys with bounded values
    since_last(memory, report)         what changed since the last look
    look_of(report)                    what the next look is to know of this one

    {"incident": {"onset", "opened", "seen", "state", "rent_job_min", "rent_at", "poked"} or null,
     "last": look or null, "looks": [look, newest first], "count": looks of this attempt,
     "attempts": [{"restart", "started", "first", "last", "cause"}], "durations": [[kind, gpus, low_min, high_min]]}

Times are epoch seconds; what is not known is null. incidents.py keeps it, the case holds what a run was given of it, so
that a replay says the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from triage.model import Change, Culprit, Report, SinceLast

MAX_LOOKS, MAX_ATTEMPTS, MAX_DURATIONS, MAX_CULPRITS = 20, 20, 200, 8
MAX_TIME = 4e9  # the year 2096
MAX_MINUTES = 1e7
KINDS = ("compute", "network", "frozen")
_LOOK_WORDS = {"case": 120, "command": 20, "state": 20, "verdict": 60, "cause": 120, "title": 200, "confidence": 10,
               "strategy": 4, "action": 20, "summary": 400, "next_strategy": 4}  # fmt: skip
_LOOK_TIMES = ("at", "onset", "wait_until", "next_at")
RENT_STEP = 0.1  # job-minutes below which a change of the rent is not worth a line: it grows all the time


def bounded(value: Any) -> dict[str, Any]:
    """A document of somebody else as a memory: unknown keys gone, texts of one line, numbers finite. {} = nothing."""
    if not isinstance(value, Mapping) or not value:
        return {}
    looks = [look for look in map(_look, _list(value.get("looks"))[:MAX_LOOKS]) if look]
    return {
        "incident": _incident(value.get("incident")),
        "last": _look(value.get("last")),
        "looks": looks,
        "count": _whole(value.get("count")),
        "attempts": [_attempt(a) for a in _list(value.get("attempts"))[:MAX_ATTEMPTS] if isinstance(a, Mapping)],
        "durations": [d for d in map(_duration, _list(value.get("durations"))[:MAX_DURATIONS]) if d],
    }


def _incident(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, Mapping):
        return None
    return {
        **{name: time_of(value.get(name)) for name in ("onset", "opened", "seen", "rent_at")},
        "state": words(value.get("state"), 20),
        "rent_job_min": _minutes(value.get("rent_job_min")),
        "poked": value.get("poked") in (True, 1),
    }


def _look(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, Mapping) or time_of(value.get("at")) is None:
        return None
    return {
        **{name: words(value.get(name), most) for name, most in _LOOK_WORDS.items()},
        **{name: time_of(value.get(name)) for name in _LOOK_TIMES},
        "culprits": [words(c, 120) for c in _list(value.get("culprits"))[:MAX_CULPRITS]],
        "rent_job_min": _minutes(value.get("rent_job_min")),
        "lost_fraction": _share(value.get("lost_fraction")),
        "last_step": _whole(value.get("last_step")),
        "pokes": _whole(value.get("pokes")) or 0,
        "kind": value.get("kind") if value.get("kind") in KINDS else None,
        "gpus": _whole(value.get("gpus")),
    }


def _attempt(value: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "restart": _whole(value.get("restart")) or 0,
        **{name: time_of(value.get(name)) for name in ("started", "first", "last")},
        "cause": words(value.get("cause"), 120),
    }


def _duration(value: Any) -> list[Any] | None:
    if not isinstance(value, list | tuple) or len(value) != 4 or value[0] not in KINDS:
        return None
    low, high = _minutes(value[2]), _minutes(value[3])
    return None if low is None or high is None or low > high else [value[0], _whole(value[1]), low, high]


# ---------------------------------------------------------------- this look, and what changed since the last one


def look_of(report: Report, command: str) -> dict[str, Any]:
    """What is kept of a report."""
    plan = report.mitigation
    loss, step, then = (_map(plan.get(key)) for key in ("loss", "recommended", "next_escalation"))
    frozen = report.state == "frozen"
    kind = "frozen" if frozen else "network" if report.verdict.kind == "network" else "compute"
    look = _look(
        {
            "at": seconds(report.observed),
            "case": report.case,
            "command": command,
            "state": report.state,
            "verdict": report.verdict.id,
            "cause": report.verdict.cause,
            "title": report.verdict.title,
            "confidence": report.verdict.confidence,
            "culprits": [name_of(each) for each in report.culprits],
            "onset": seconds(loss.get("onset")),
            "rent_job_min": loss.get("accumulated_job_min"),
            "lost_fraction": loss.get("lost_fraction"),
            "strategy": step.get("strategy"),
            "action": step.get("action"),
            "summary": step.get("summary"),
            "wait_until": seconds(step.get("wait_until")),
            "next_strategy": then.get("strategy"),
            "next_at": seconds(then.get("at")),
            "last_step": report.job.get("last_step"),
            "pokes": report.tool.get("pokes"),
            "kind": kind,
            "gpus": report.job.get("ranks"),
        }
    )
    return look or {}


def name_of(culprit: Culprit) -> str:
    """`rank 5 (gpu003)`, `nic mlx5_0 (gpu003)`."""
    what = {"rank": culprit.rank, "gpu": culprit.gpu, "nic": culprit.nic, "node": culprit.node}.get(culprit.kind)
    text = f"{culprit.kind} {culprit.name if what is None else what}"
    return f"{text} ({culprit.node})" if culprit.node and culprit.kind != "node" else text


def since_last(memory: Mapping[str, Any], report: Report) -> SinceLast | None:
    """What changed since the last look at this attempt of the job; None where there was none."""
    last, incident = memory.get("last"), memory.get("incident")
    now_at = seconds(report.observed)
    if not last or now_at is None:
        return None
    now = look_of(report, "")
    changes = [
        Change(what, _said(last[key]), _said(now[key]))
        for what, key in (("state", "state"), ("verdict", "cause"), ("culprits", "culprits"), ("step", "strategy"))
        if last[key] != now[key]
    ]
    if _said(last["last_step"]) != _said(now["last_step"]):
        changes.append(Change("last training step", _said(last["last_step"]), _said(now["last_step"])))
    was, grown = last["rent_job_min"], now["rent_job_min"]
    if (was is None) != (grown is None) or (was is not None and abs(grown - was) >= RENT_STEP):
        changes.append(Change("lost job-minutes", _said(was), _said(grown)))
    return SinceLast(
        case=last["case"] or None,
        at=iso(last["at"]) or "",
        age_s=max(0.0, round(now_at - last["at"], 1)),
        looks=memory.get("count") or 1,
        incident_onset=iso(incident["onset"]) if incident else None,
        changes=tuple(changes),
        tried=tried(memory),
    )


def tried(memory: Mapping[str, Any]) -> tuple[str, ...]:
    """What was done about this job as far as looks saw it: restarts are attempts, the poke is ours."""
    found = [
        f"an attempt (restart {a['restart']}) was last seen {iso(a['last']) or 'at an unknown time'}"
        + (f" with {a['cause']}" if a["cause"] else "")
        for a in memory.get("attempts") or ()
    ]
    incident = memory.get("incident")
    if incident and incident["poked"]:
        found.append("the flight recorders were asked for a fresh dump once in this incident, and are not asked again")
    return tuple(found)


def _said(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "nobody"
    if isinstance(value, float):
        return f"{value:.1f}"
    return "unknown" if value is None or value == "" else str(value)


# ---------------------------------------------------------------- values


def words(value: Any, most: int) -> str:
    """Bounded text of one line without control characters; what is no text is ""."""
    return "".join(c if c.isprintable() else " " for c in value[:most]) if isinstance(value, str) else ""


def number(value: Any, low: float, high: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        return None
    return float(value) if math.isfinite(value) else None


def time_of(value: Any) -> float | None:
    """Epoch seconds of a possible date, else None."""
    return number(value, 0.0, MAX_TIME)


def _minutes(value: Any) -> float | None:
    return number(value, 0.0, MAX_MINUTES)


def _share(value: Any) -> float | None:
    return number(value, 0.0, 1.0)


def _whole(value: Any) -> int | None:
    found = number(value, 0, 1e12)
    return None if found is None else int(found)


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def iso(at: float | None) -> str | None:
    return None if at is None else f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def seconds(text: Any) -> float | None:
    """The epoch seconds of our own ISO times; None for what is none."""
    if not isinstance(text, str):
        return None
    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return time_of((when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp())
