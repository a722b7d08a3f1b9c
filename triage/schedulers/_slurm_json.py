"""What `squeue --json` tells beyond the text form, in the shapes of the versions. Pure.

    22.05   {"jobs": [{"job_id": 9, "restart_cnt": 0, "job_state": "RUNNING", "array_task_id": null, …}]}
    23.02   numbers that may be missing are {"set": true, "infinite": false, "number": 0}
    23.11   "job_state": ["RUNNING"], perhaps ["RUNNING", "COMPLETING"]
    25.05   "stdout_expanded": "/home/a/out" beside "standard_output": "/home/a/%x"
    gres_detail: one entry for each node of `nodes`, in its order: ["gpu:h100:8(IDX:0-7)", …]

`nodes` is a folded list in all of them (job_resources.nodes became an object in 24.05). notes/fanout-and-schedulers.md 3.1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triage.schedulers._slurm_text import gpus_of, hosts, path, plain, state_of


@dataclass(frozen=True)
class Extra:
    """What is told of one job; None and "" = it is not."""

    restarts: int | None = None
    stdout: str = ""  # a name with its patterns in it, unless `expanded`
    expanded: bool = False
    name: str = ""
    workdir: str = ""
    state: str = ""
    nodes: tuple[str, ...] = ()
    gpus: Mapping[str, int] | None = None


def num(value: Any) -> int | None:
    """A number of any version; None where it is not set, infinite, or no number."""
    if isinstance(value, Mapping):
        if value.get("set") is not True or value.get("infinite") is True:
            return None
        value = value.get("number")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def state(value: Any) -> str:
    """Our word for the state of any version: of several flags the one that says what the job does now."""
    words = [str(word) for word in value] if isinstance(value, list) else [str(value or "")]
    told = [state_of(word) for word in words[:8]]
    return next((word for word in ("completing", "suspended") if word in told), told[0] if told else "unknown")


def extras(text: str) -> dict[int, Extra]:
    """Job (raw id) -> what is told of it; {} for what is not such a document."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    jobs = document.get("jobs") if isinstance(document, dict) else None
    found: dict[int, Extra] = {}
    for job in jobs if isinstance(jobs, list) else ():
        raw = num(job.get("job_id")) if isinstance(job, dict) else None
        if raw is not None:
            found[raw] = _extra(job)
    return found


def _extra(job: Mapping[str, Any]) -> Extra:
    whole, template = job.get("stdout_expanded"), job.get("standard_output")
    expanded = isinstance(whole, str) and bool(path(whole))
    stdout = whole if expanded else template
    names = hosts(job["nodes"]) if isinstance(job.get("nodes"), str) else []
    gres = job.get("gres_detail")
    counts = None
    if isinstance(gres, list) and len(gres) == len(names) and all(isinstance(each, str) for each in gres):
        counts = {name: gpus_of(each) for name, each in zip(names, gres)}
    restarts = num(job.get("restart_cnt"))
    return Extra(
        restarts if restarts is not None and 0 <= restarts < 1_000_000 else None,
        stdout if isinstance(stdout, str) and len(stdout) <= 1000 and stdout.isprintable() else "",
        expanded,
        plain(str(job.get("name") or ""), 200),
        path(str(job.get("current_working_directory") or "")),
        state(job.get("job_state")),
        tuple(names),
        counts if counts and any(counts.values()) else None,
    )
