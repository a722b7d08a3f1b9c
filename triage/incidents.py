"""The record of incidents: what a run leaves for the next one on the same job (incidents.sqlite in the state folder).

    recall(state_dir, who, now)      what is remembered of this attempt of this job: memory.py says its shape
    record(state_dir, who, look)     this look; opens, continues or ends the incident
    claim_poke(state_dir, who, onset, now)   once per incident: is it us who may poke?
    jobs_called(state_dir, job_id)   whose records there are of this id, newest first, for `triage handover`

An incident begins with a look that finds the job frozen or slow and ends with one that finds it healthy. Its onset is the
earliest that any look found, its rent the most: neither is ever reset while it lasts. A look between two of another
operator's is ordered by the file: each write is one immediate transaction (a rollback journal, for write-ahead logging
needs shared memory and the home may lie on a network file system).

Only a child with a deadline touches the file (ownfiles.py). What cannot be used raises Unavailable with the reason, and the
run goes on without; a file that is no database, or another one, is set aside under a name that says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from triage import memory, ownfiles
from triage.model import Job

NAME = "incidents.sqlite"
FORMAT = 1
BUSY_S = 1.2  # how long another operator's transaction is waited for: below the child's deadline
# Without the start of an attempt nothing tells a job from one of the same id: what is older is another incident.
STALE_S = 24 * 3600.0
KEPT_LOOKS = 200  # of one attempt
KEPT_S = 400 * 86400.0
LIMIT = 4 << 20  # bytes of an answer

SCHEMA = """
create table if not exists incidents (
  id integer primary key, cluster text not null, scheduler text not null, job text not null, restart integer not null,
  started integer not null, onset real, opened real not null, seen real not null, ended real, how text,
  state text not null default '', rent real, rent_at real, kind text, gpus integer, poked integer not null default 0);
create table if not exists looks (
  id integer primary key, cluster text not null, scheduler text not null, job text not null, restart integer not null,
  started integer not null, at real not null, command text not null, cause text not null, doc text not null);
create index if not exists incidents_of on incidents (cluster, scheduler, job, restart, started);
create index if not exists looks_of on looks (cluster, scheduler, job, restart, started, at);
"""
MINE = "cluster = ? and scheduler = ? and job = ? and restart = ? and started = ?"


class Unavailable(Exception):
    """The record cannot be used; the message says why, for people."""


class _Broken(Exception):
    """It is no database of ours."""


@dataclass(frozen=True)
class Who:
    """One attempt of one job. `started` is -1 where nothing tells it."""

    cluster: str
    scheduler: str
    job: str
    restart: int = 0
    started: int = -1

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.cluster, self.scheduler, self.job, self.restart, self.started)


@dataclass(frozen=True)
class Answer:
    """What the record said, and what was wrong with it ("" = nothing)."""

    value: Any
    warning: str = ""


def who(job: Job) -> Who:
    started = job.attempt.started
    begun = -1 if started is None else int(started)
    return Who(memory.words(job.cluster, 80), memory.words(job.scheduler, 40), memory.words(job.id, 120),
               job.attempt.restart or 0, begun)  # fmt: skip


def recall(state_dir: str, me: Who, now: float) -> Answer:
    """What is remembered, bounded; {} where nothing is. Raises Unavailable."""
    got = _ask(state_dir, lambda db: _recall(db, me, now), write=False)
    return Answer(memory.bounded(got.value), got.warning)


def record(state_dir: str, me: Who, look: Mapping[str, Any], keep_look: bool = True) -> Answer:
    """Keep this look (memory.look_of); without `keep_look` only the incident goes on. Raises Unavailable."""
    return _ask(state_dir, lambda db: _record(db, me, look, keep_look), write=True)


def claim_poke(state_dir: str, me: Who, onset: float | None, now: float) -> Answer:
    """True for the first who asks in this incident, False for all others. Raises Unavailable."""
    return _ask(state_dir, lambda db: _claim(db, me, onset, now), write=True)


def jobs_called(state_dir: str, job_id: str) -> Answer:
    """The attempts (Who) of this job id that were looked at, the latest first; at most 50. Raises Unavailable."""
    got = _ask(state_dir, lambda db: _called(db, job_id), write=False)
    found = [
        Who(memory.words(row[0], 80), memory.words(row[1], 40), memory.words(row[2], 120), row[3], row[4])
        for row in got.value or ()
        if len(row) == 5 and all(type(n) is int for n in row[3:])
    ]
    return Answer(found, got.warning)


# ---------------------------------------------------------------- the file, in a child with a deadline


def _ask(state_dir: str, work: Callable[[sqlite3.Connection], Any], *, write: bool) -> Answer:
    if not state_dir:
        raise Unavailable("there is no state folder")
    path = os.path.join(state_dir, NAME)

    def attempt() -> bytes:
        if write:
            os.makedirs(state_dir, mode=0o700, exist_ok=True)
        elif not os.path.exists(path):
            return b'{"value": null, "warning": ""}'
        warning = ""
        try:
            value = _transact(path, work, write)
        except _Broken as why:
            warning = _set_aside(path, str(why), work)
            value = _transact(path, work, write=True)
        return json.dumps({"value": value, "warning": warning}).encode()[:LIMIT]

    try:
        answer = json.loads(ownfiles.compute(attempt, path))
        return Answer(answer["value"], memory.words(answer["warning"], 300))
    except ownfiles.TooSlow as error:
        raise Unavailable(f"{error}: shared storage may be stuck") from None
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise Unavailable(f"{path}: {memory.words(why, 200)}") from None


def _transact(path: str, work: Callable[[sqlite3.Connection], Any], write: bool) -> Any:
    """One transaction. OSError for what another moment may mend, _Broken for what is no record of ours."""
    try:
        with contextlib.closing(_open(path, write)) as db:
            if write:
                db.execute("begin immediate")
            version = db.execute("pragma user_version").fetchone()[0]
            if version > FORMAT:
                raise OSError(0, f"written by a newer triage (format {version})")
            if write and version < FORMAT:
                for statement in SCHEMA.split(";"):
                    db.execute(statement)
                db.execute(f"pragma user_version = {FORMAT}")
            elif version < FORMAT:
                return None  # nothing was ever written
            value = work(db)
            if write:
                db.execute("commit")
            return value
    except sqlite3.OperationalError as error:
        said = str(error)
        if said.startswith("no such") or "has no column" in said:
            raise _Broken(said) from None
        raise OSError(0, "another run holds it" if "locked" in said else said) from None
    except (sqlite3.DatabaseError, TypeError, UnicodeError, OverflowError) as error:
        raise _Broken(str(error)) from None


def _open(path: str, write: bool) -> sqlite3.Connection:
    if write:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    name = "file:" + path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    db = sqlite3.connect(f"{name}?mode={'rw' if write else 'ro'}", uri=True, timeout=BUSY_S, isolation_level=None)
    db.execute("pragma trusted_schema = off")
    return db


def _set_aside(path: str, why: str, work: Callable[[sqlite3.Connection], Any]) -> str:
    """Rename what is no record. Under a lock: of two who find it broken, the second must not rename the first one's new."""
    with _only_us(path + ".lock"):
        try:
            _transact(path, work=lambda db: db.execute("select count(*) from incidents, looks").fetchone(), write=False)
        except _Broken:
            aside = f"{path}.broken-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
            os.replace(path, aside)
            for journal in ("-journal", "-wal", "-shm"):
                with contextlib.suppress(OSError):
                    os.replace(path + journal, aside + journal)
            return f"the incident record was no record ({why}) and was set aside as {aside}; a new one begins"
    return ""


@contextlib.contextmanager
def _only_us(path: str) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # the child's deadline ends a wait for ever
        yield
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------- inside a transaction


def _open_incident(db: sqlite3.Connection, me: Who, now: float) -> tuple[Any, ...] | None:
    row = db.execute(
        "select id, onset, opened, seen, state, rent, rent_at, poked from incidents "
        f"where {MINE} and ended is null and (started >= 0 or seen >= ?) order by id desc limit 1",
        (*me.key, now - STALE_S),
    ).fetchone()
    return tuple(row) if row else None


def _still(
    db: sqlite3.Connection, row: tuple[Any, ...] | None, state: str, onset: float | None
) -> tuple[Any, ...] | None:
    """The open incident, unless the job stood still in both looks and moved in between: that is another one."""
    if row is None or onset is None or state != "frozen" or row[4] != "frozen" or onset <= row[3]:
        return row
    db.execute("update incidents set ended = ?, how = 'moved' where id = ?", (onset, row[0]))
    return None


def _recall(db: sqlite3.Connection, me: Who, now: float) -> dict[str, Any]:
    row = _open_incident(db, me, now)
    names = ("onset", "opened", "seen", "state", "rent_job_min", "rent_at", "poked")
    # A watch looks every minute: "the last look" of a person is the last that was no round of a watch.
    looks = db.execute(
        f"select doc from looks where {MINE} and (started >= 0 or at >= ?) order by command = 'watch', at desc limit ?",
        (*me.key, now - STALE_S, memory.MAX_LOOKS),
    ).fetchall()
    docs = [_doc(text) for (text,) in looks]
    count = db.execute(f"select count(*) from looks where {MINE}", me.key).fetchone()[0]
    attempts = db.execute(
        "select restart, started, min(at), max(at), cause from looks where cluster = ? and scheduler = ? and job = ? "
        "and not (restart = ? and started = ?) and at >= ? group by restart, started order by max(at) desc limit ?",
        (*me.key, now - 30 * 86400.0, memory.MAX_ATTEMPTS),
    ).fetchall()
    durations = db.execute(
        "select kind, gpus, (seen - onset) / 60.0, (ended - onset) / 60.0 from incidents where cluster = ? and "
        "how = 'healthy' and onset is not null and kind is not null order by ended desc limit ?",
        (me.cluster, memory.MAX_DURATIONS),
    ).fetchall()
    return {
        "incident": dict(zip(names, row[1:])) if row else None,
        "last": docs[0] if docs else None,
        "looks": docs,
        "count": count,
        "attempts": [dict(zip(("restart", "started", "first", "last", "cause"), a)) for a in attempts],
        "durations": [list(d) for d in durations],
    }


def _doc(text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None


def _record(db: sqlite3.Connection, me: Who, look: Mapping[str, Any], keep_look: bool) -> None:
    at = look["at"]
    row = _still(db, _open_incident(db, me, at), look["state"], look["onset"])
    if look["state"] in ("frozen", "slow"):
        key = _begin(db, me, look["onset"], at) if row is None else row[0]
        db.execute(
            "update incidents set onset = min(coalesce(onset, ?2), coalesce(?2, onset)), seen = max(seen, ?3), state = ?4, "
            "rent = max(coalesce(rent, ?5), coalesce(?5, rent)), rent_at = case when ?5 is null then rent_at else ?3 end, "
            "kind = ?6, gpus = ?7 where id = ?1",
            (key, look["onset"], at, look["state"], look["rent_job_min"], look["kind"], look["gpus"]),
        )
    elif look["verdict"] == "healthy" and row is not None:
        db.execute("update incidents set ended = ?, how = 'healthy' where id = ?", (at, row[0]))
    if not keep_look:
        return
    db.execute(
        "insert into looks (cluster, scheduler, job, restart, started, at, command, cause, doc) values (?,?,?,?,?,?,?,?,?)",
        (*me.key, at, look["command"], look["cause"], json.dumps(dict(look))),
    )
    db.execute(
        f"delete from looks where {MINE} and id not in (select id from looks where {MINE} order by at desc limit ?)",
        (*me.key, *me.key, KEPT_LOOKS),
    )
    db.execute("delete from looks where at < ?", (at - KEPT_S,))
    db.execute("delete from incidents where seen < ?", (at - KEPT_S,))


def _begin(db: sqlite3.Connection, me: Who, onset: float | None, at: float) -> int:
    cursor = db.execute(
        "insert into incidents (cluster, scheduler, job, restart, started, onset, opened, seen) values (?,?,?,?,?,?,?,?)",
        (*me.key, onset, at, at),
    )
    return int(cursor.lastrowid or 0)


def _claim(db: sqlite3.Connection, me: Who, onset: float | None, now: float) -> bool:
    row = _still(db, _open_incident(db, me, now), "frozen", onset)
    key = _begin(db, me, onset, now) if row is None else row[0]
    return db.execute("update incidents set poked = 1 where id = ? and poked = 0", (key,)).rowcount == 1


def _called(db: sqlite3.Connection, job_id: str) -> list[list[Any]]:
    rows = db.execute(
        "select cluster, scheduler, job, restart, started from looks where job = ? "
        "group by cluster, scheduler, job, restart, started order by max(at) desc limit 50",
        (job_id,),
    ).fetchall()
    return [list(row) for row in rows]
