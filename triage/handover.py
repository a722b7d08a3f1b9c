"""What the next shift must know of a job: from the record of incidents and the last case; nothing is asked of any node."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triage import incidents, memory, ownfiles
from triage.errors import UnknownJob

SCHEMA = "triage.handover/1"
MOST = 12


def handover(state_dir: str, job_id: str, now: float | None = None) -> tuple[dict[str, Any], list[str]]:
    """The hand-over as a document, and warnings. Raises UnknownJob when no look at such a job is on record."""
    now = time.time() if now is None else now
    try:
        found = incidents.jobs_called(state_dir, job_id)
        warnings = [found.warning] if found.warning else []
        if not found.value:
            raise UnknownJob(
                f"job {job_id}: no look at it is on record in {state_dir}; run: triage frozen-job {job_id}"
            )
        me = found.value[0]
        got = incidents.recall(state_dir, me, now)
    except incidents.Unavailable as why:
        raise UnknownJob(f"job {job_id}: the record of incidents cannot be read: {why}") from None
    if not got.value.get("last"):
        raise UnknownJob(f"job {job_id}: the last look at it is too old to hand over; run: triage frozen-job {job_id}")
    others = {each.cluster for each in found.value} - {me.cluster}
    if others:
        warnings.append(
            f"job {job_id} was also looked at on {', '.join(sorted(others))}; this is of {me.cluster or '-'}"
        )
    report, missing = _report(state_dir, got.value["last"]["case"])
    if missing:
        warnings.append(missing)
    return document(me, got.value, report, now), warnings


def _report(state_dir: str, case: str) -> tuple[Mapping[str, Any], str]:
    """report.json of a case of ours; {} and the reason where there is none."""
    if not case or "/" in case or case.startswith("."):
        return {}, "the last case is not known: what was ruled out is in no record"
    path = Path(state_dir, "cases", case, "report.json")
    try:
        value = json.loads(ownfiles.read_plain(str(path), 16 << 20))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)[:100]
        return {}, f"the last case cannot be read ({path}: {reason}): what was ruled out is not told"
    return (value, "") if isinstance(value, dict) else ({}, f"{path} is no report")


def document(me: incidents.Who, known: Mapping[str, Any], report: Mapping[str, Any], now: float) -> dict[str, Any]:
    """`triage.handover/1`. Pure."""
    last, incident = known["last"], known.get("incident")
    return {
        "schema_version": SCHEMA,
        "job": me.job,
        "cluster": me.cluster or None,
        "restart": me.restart,
        "written": memory.iso(now),
        "last_look": {
            "at": memory.iso(last["at"]), "age_s": max(0.0, round(now - last["at"], 1)), "case": last["case"] or None,
            "state": last["state"], "cause": last["cause"], "title": last["title"], "confidence": last["confidence"],
            "culprits": last["culprits"],
        },
        "incident": None if not incident else {
            "onset": memory.iso(incident["onset"]), "seen": memory.iso(incident["seen"]), "state": incident["state"],
            "rent_job_min": incident["rent_job_min"],
        },
        "course": _course(known["looks"]),
        "ruled_out": _pairs(report.get("ruled_out"), "verdict", "why"),
        "tried": list(memory.tried(known)),
        "watch_for": _pairs(report.get("deadlines"), "what", "at") + _pairs(report.get("unknown"), "what", "why")[:3],
        "do_not": [memory.words(text, 300) for text in _list(report.get("do_not"))[:MOST]],
        "act": {
            "strategy": last["strategy"] or None, "summary": last["summary"] or None,
            "wait_until": memory.iso(last["wait_until"]), "next_strategy": last["next_strategy"] or None,
            "next_at": memory.iso(last["next_at"]),
        },
        "confirm": f"triage frozen-job {memory.words(me.job, 120)}",
    }  # fmt: skip


def _course(looks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The looks in the order of time, of equal ones in a row only the first."""
    told: list[dict[str, Any]] = []
    for look in sorted(looks, key=lambda each: each["at"]):
        entry = {"at": memory.iso(look["at"]), "state": look["state"], "cause": look["cause"]}
        if not told or (told[-1]["state"], told[-1]["cause"]) != (entry["state"], entry["cause"]):
            told.append(entry)
    return told[-MOST:]


def _pairs(value: Any, *keys: str) -> list[dict[str, str]]:
    entries = [entry for entry in _list(value)[:MOST] if isinstance(entry, Mapping)]
    return [{key: memory.words(entry.get(key), 300) for key in keys} for entry in entries]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def text(told: Mapping[str, Any], width: int = 80) -> str:
    """The paragraphs for a person who was asleep until now."""
    from triage.render.clean import clean
    from triage.render.layout import duration, wrap

    look, incident, act = told["last_look"], told["incident"], told["act"]
    who = f" It names {', '.join(look['culprits'])}." if look["culprits"] else " Nobody is named."
    began = f" It began {incident['onset']}." if incident and incident["onset"] else ""
    lost = incident["rent_job_min"] if incident else None
    cost = f" {lost:.1f} job-minutes were lost until {incident['seen']}." if lost is not None else ""
    title = (look["title"] or look["cause"]).rstrip(".")
    happened = (
        f"Job {told['job']}{' on ' + told['cluster'] if told['cluster'] else ''}, restart {told['restart']}, was "
        f"{look['state']} when it was last looked at, {duration(look['age_s'])} ago: {title} (confidence "
        f"{look['confidence']}).{who}{began}{cost}"
    )
    course = "; then ".join(f"{each['at'][11:]} {each['state']}, {each['cause']}" for each in told["course"])
    watch_for = [f"{e['what']}{' at ' + e['at'] if e.get('at') else ''}{': ' + e['why'] if e.get('why') else ''}"
                 for e in told["watch_for"]]  # fmt: skip
    when = f" Until {act['wait_until']}." if act["wait_until"] else ""
    then = (
        f" Then {act['next_strategy']}{' at ' + act['next_at'] if act['next_at'] else ''}."
        if act["next_strategy"]
        else ""
    )
    parts = [
        ("HAPPENED", [happened]),
        ("COURSE", [course] if len(told["course"]) > 1 else []),
        ("RULED OUT", [f"{each['verdict']}: {each['why']}" for each in told["ruled_out"]]),
        ("TRIED", told["tried"] or ["nothing that a look could see"]),
        ("WATCH", watch_for),
        ("DO NOT", told["do_not"]),
        ("ACT", [f"{act['summary'] or act['strategy'] or 'no step is recommended'}.".replace("..", ".") + when + then,
                 f"First see whether it is still so: {told['confirm']}"]),
    ]  # fmt: skip
    lines: list[str] = []
    for name, entries in parts:
        head = name.ljust(11)
        for entry in entries:
            for piece in wrap(clean(entry, 1500), width - 11, "", ""):
                lines.append((head + piece).rstrip())
                head = " " * 11
    return "\n".join(lines) + "\n"
