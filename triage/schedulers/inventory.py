"""The plainest scheduler: a YAML file that says which nodes a job has (DESIGN section 12).

    version: 1
    jobs:
      "4711": {nodes: "gpu[001-004]", log: /shared/job/4711.log, match: {SLURM_JOB_ID: "4711"}}
    hosts:
      "gpu[001-004]": {address: "127.0.0.1", port: 2201, user: oncall, fabric: ["10.88.0.11:22"], state: idle}
    ssh: {key: ~/.ssh/id_ed25519, known_hosts: ~/.ssh/known_hosts}

Only `nodes` is required. Every mistake is one line with the place where it stands. Times that contradict each other are a
mistake of the one job: it is refused when it is asked for, and the other jobs of the file are not.
What can fool it: an inventory of yesterday (the nodes are asked, and processes that are not of this attempt are told); local
time written with a Z, which puts evidence outside of the attempt: what begins in the future is refused.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from triage.errors import ConfigError, UnknownJob, UsageError
from triage.model import Attempt, Job, Node
from triage.ownfiles import text_of
from triage.readers.strict_yaml import read_yaml
from triage.schedulers.base import Access, Answer, Ask
from triage.schedulers.hostlist import expand

_JOB_KEYS = {"nodes", "log", "state", "started", "ended", "cluster", "match", "user", "restart", "deadline"}
_HOST_KEYS = {"address", "port", "user", "fabric", "state", "reason"}
_STATES = ("running", "pending", "suspended", "completing", "ended", "unknown")
# Clocks of a login node and of whoever wrote the file differ by seconds, zones by half an hour at least.
AHEAD_S = 300.0


@dataclass(frozen=True)
class Inventory:
    jobs: Mapping[str, Job] = field(default_factory=dict)
    access: Access = field(default_factory=Access)
    origin: str = ""
    mistakes: Mapping[str, str] = field(default_factory=dict)  # job -> why its times cannot be
    notes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # job -> what is missing and will be missed

    def job(self, job_id: str) -> Job:
        if job_id in self.mistakes:
            raise ConfigError(self.mistakes[job_id])
        if job_id in self.jobs:
            return self.jobs[job_id]
        near = difflib.get_close_matches(job_id, self.jobs, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; it knows {', '.join(list(self.jobs)[:5]) or 'no job'}"
        raise UnknownJob(f"job {job_id} is not in {self.origin}{hint}")


def claims(job_id: str) -> bool:
    """Never by itself: an inventory is asked where one is given."""
    return False


def find(ask: Ask) -> Answer:
    """The job of that id in the inventory that is given."""
    read = parse(text_of(ask.path, "inventory"), ask.path, time.time())
    return Answer(read.job(ask.job_id), read.notes.get(ask.job_id, ()), read.access)


def from_nodes(job_id: str, node_list: str) -> Job:
    """A job of which only the nodes are known (`--nodes gpu[001-004]`)."""
    return Job(job_id, "nodes", tuple(Node(name) for name in expand(node_list)), state="unknown")


def parse(text: str, origin: str, now: float | None = None) -> Inventory:
    """Read an inventory. `origin` is the file's name, for messages; `now` (epoch s) finds times of the future."""
    try:
        document = read_yaml(text, number_keys=True)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from None
    top = _mapping(document, origin, {"version", "jobs", "hosts", "ssh"})
    if top.get("version", 1) != 1:
        raise ConfigError(f"{origin}: version {top.get('version')!r} is not known; this triage reads version 1")
    hosts = _hosts(_mapping(top.get("hosts") or {}, f"{origin}: hosts", None), origin)
    jobs: dict[str, Job] = {}
    for key, value in _mapping(top.get("jobs") or {}, f"{origin}: jobs", None).items():
        jobs[str(key)] = _job(str(key), _mapping(value, f"{origin}: job {key}", _JOB_KEYS), hosts, origin)
    if not jobs:
        raise ConfigError(f"{origin}: no jobs in it; see `man triage-frozen-job`, INVENTORY")
    ssh = _mapping(top.get("ssh") or {}, f"{origin}: ssh", {"key", "known_hosts", "config"})
    mistakes = {name: why for name, job in jobs.items() if (why := _contradiction(job, f"{origin}: job {name}", now))}
    notes = {name: told for name, job in jobs.items() if (told := _missing(job, f"{origin}: job {name}"))}
    access = Access(
        _texts(ssh.get("key"), origin), _texts(ssh.get("known_hosts"), origin), str(ssh.get("config") or "")
    )
    return Inventory(jobs, access, origin, mistakes, notes)


def _contradiction(job: Job, where: str, now: float | None) -> str:
    """Why this job's state and times cannot all be true, in one line; "" if they can."""
    started, ended = job.attempt.started, job.attempt.ended
    if started is not None and ended is not None and ended < started:
        return f"{where}: it ended before it started; write the times of one attempt"
    if ended is not None and job.state in ("running", "suspended"):
        return f"{where}: state {job.state} and an end; leave one out (a wall-time limit is `deadline`)"
    for name, at in (("started", started), ("ended", ended)):
        if (
            at is not None
            and now is not None
            and at > now + AHEAD_S
            and not (name == "started" and job.state == "pending")
        ):
            ahead = at - now
            by = f"{ahead / 60:.0f}m" if ahead < 7200 else f"{ahead / 3600:.0f}h"
            hint = "a wall-time limit is `deadline`" if name == "ended" else "is it local time? Z is UTC"
            return f"{where}: {name} lies {by} ahead of this machine's clock; {hint}"
    return ""


def _missing(job: Job, where: str) -> tuple[str, ...]:
    """What is allowed to be missing, and what cannot be told without it."""
    out = []
    if job.attempt.restart and job.attempt.started is None:
        out.append(
            f"{where}: restart {job.attempt.restart} without `started`: what its log holds of earlier attempts is told "
            "apart by the start of its processes only"
        )
    if job.state == "ended" and job.attempt.ended is None:
        out.append(f"{where}: state ended without `ended`: what came after its end cannot be told apart from it")
    return tuple(out)


def _hosts(entries: Mapping[str, Any], origin: str) -> dict[str, dict[str, Any]]:
    hosts: dict[str, dict[str, Any]] = {}
    for key, value in entries.items():
        details = _mapping(value or {}, f"{origin}: host {key}", _HOST_KEYS)
        port = details.get("port", 22)
        if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
            raise ConfigError(f"{origin}: host {key}: port {port!r} is not a port")
        for name in _expand(str(key), f"{origin}: hosts"):
            hosts.setdefault(name, {}).update(details)
    return hosts


def _job(job_id: str, entry: Mapping[str, Any], hosts: Mapping[str, Mapping[str, Any]], origin: str) -> Job:
    where = f"{origin}: job {job_id}"
    listed = entry.get("nodes")
    names = [str(n) for n in listed] if isinstance(listed, list) else [str(listed)] if listed else []
    if not names:
        raise ConfigError(f'{where}: nodes is empty; write for example nodes: "gpu[001-004]"')
    expanded = [name for text in names for name in _expand(text, where)]
    started, ended = (_time(entry.get(name), where, name) for name in ("started", "ended"))
    state = str(entry.get("state", "running" if ended is None else "ended"))
    if state not in _STATES:
        raise ConfigError(f"{where}: state {state!r} is not one of {', '.join(_STATES)}")
    match = _mapping(entry.get("match") or {}, f"{where}: match", None)
    restart = entry.get("restart")
    if restart is not None and (not isinstance(restart, int) or isinstance(restart, bool) or restart < 0):
        raise ConfigError(f"{where}: restart {restart!r} is not a count")
    return Job(
        id=job_id,
        scheduler="inventory",
        nodes=tuple(_node(name, hosts.get(name, {}), where) for name in dict.fromkeys(expanded)),
        cluster=str(entry.get("cluster", "")),
        state=state,
        attempt=Attempt(restart, started, ended),
        log=str(entry.get("log") or ""),
        user=str(entry.get("user") or ""),
        match={str(k): str(v) for k, v in match.items()},
        deadline=_time(entry.get("deadline"), where, "deadline"),
    )


def _node(name: str, details: Mapping[str, Any], where: str) -> Node:
    fabric = details.get("fabric") or []
    if not isinstance(fabric, list):
        raise ConfigError(f'{where}: fabric of {name} must be a list such as ["10.88.0.11:22"]')
    return Node(
        name=name,
        address=str(details.get("address") or ""),
        port=int(details.get("port", 22)),
        user=str(details.get("user") or ""),
        fabric=tuple(str(address) for address in fabric),
        state=str(details.get("state") or ""),
        state_reason=str(details.get("reason") or ""),
    )


def _expand(text: str, where: str) -> list[str]:
    try:
        return expand(text)
    except UsageError as error:
        raise ConfigError(f"{where}: {error}") from None


def _mapping(value: Any, where: str, allowed: set[str] | None) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected `name: value` lines, found {type(value).__name__}")
    if allowed is not None:
        for key in value:
            if key not in allowed:
                near = difflib.get_close_matches(str(key), allowed, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(allowed))}"
                raise ConfigError(f"{where}: {str(key)[:40]!r} is not known here; {hint}")
    return value


def _texts(value: Any, origin: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise ConfigError(f"{origin}: ssh: key and known_hosts are a path or a list of paths")


def _time(value: Any, where: str, name: str) -> float | None:
    """Epoch seconds of an ISO 8601 time; YAML may have made a datetime of it. A time without a zone is UTC."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            raise ConfigError(f"{where}: {name} {value[:40]!r} is not a time such as 2026-11-29T01:10:00Z") from None
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
    raise ConfigError(f"{where}: {name} {value!r} is not a time such as 2026-11-29T01:10:00Z")
