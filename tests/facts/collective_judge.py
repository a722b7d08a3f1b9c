"""A simulated job through the product's own path, and whether what is said of it is right.

Each rank's dump is written as bytes, read, reduced and sent as JSON as its node would; then all facts are computed from
the samples, processes included. `case()` is one seed; `judge()` compares with the fault that was put in.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import collective_recorder as recorder
import collective_simulator as simulator
from collective_machine import Machine
from triage.probes import _records as probe
from written_evidence import NOW, World, limits

from triage.facts.branches import apart
from triage.facts.dumps import Waits, waits
from triage.facts.evidence import Evidence
from triage.facts.waitgraph import Picture

WROTE = NOW - 1.0


@dataclass(frozen=True)
class Case:
    seed: int
    job: simulator.Job
    found: Waits
    how: dict[str, Any]  # what was special about its dumps

    @property
    def picture(self) -> Picture | None:
        return self.found.picture


def case(seed: int, *, wide: bool = False, lost: float = 0.0, faults: Sequence[str] = simulator.FAULTS) -> Case | None:
    """The job of this seed, hung, as its dumps and processes show it; None where its fault has no place or does no harm."""
    rng = random.Random(seed)
    job, fault = simulator.make_job(rng, wide), rng.choice(faults)
    if not simulator.break_job(job, fault, rng):
        return None
    machine = Machine(job).run()
    if not machine.hung():
        return None
    how = _how(rng, wide, machine)
    return Case(seed, job, Evidence(*_world(rng, job, machine, lost, how)).derive(waits), how)


def _how(rng: random.Random, wide: bool, machine: Machine) -> dict[str, Any]:
    if not wide:
        return {}
    # A file that lay there is of a moment at which hosts still enqueued; they are never far ahead of their devices.
    newest = sorted(
        max(op.created for op in program[: machine.enqueued[r]])
        for r, program in machine.job.programs.items()
        if machine.enqueued[r]
    )
    last = newest[-3] - 1 if machine.job.run_ahead <= 8 and len(newest) > 2 else 0
    early = rng.sample(sorted(machine.enqueued), 2) if last > 0 and rng.random() < 0.15 else []
    return {
        "active": rng.random() < 0.15,
        "ring": rng.randrange(24, 80) if rng.random() < 0.2 else 2000,
        "first": rng.choice((0, 0, 500)),
        "json": rng.random() < 0.1,
        "early": {rank: rng.randint(1, last) for rank in early},  # files of an earlier moment
    }


@cache
def _limits() -> dict[str, float]:
    return limits()


def _world(
    rng: random.Random, job: simulator.Job, machine: Machine, lost: float, how: dict[str, Any]
) -> tuple[Any, ...]:
    per_node = next(n for n in (8, 4, 3, 2, 1) if job.ranks % n == 0)
    w = World(nodes=job.ranks // per_node, per_node=per_node, started=recorder.START_NS / 1e9 - 600)
    for rank in range(job.ranks):
        for look in "AB":
            w.change[rank, look] = {"start_s": recorder.START_NS / 1e9 - 300}
    bad, fault = job.truth["rank"], job.truth["fault"]
    if fault == "dead":
        w.dead[bad] = "A"
    elif fault == "stopped":
        for look in "AB":
            w.change[bad, look]["state"] = "T"
    w.processes()
    for node, name in enumerate(w.names):
        rows = []
        for rank in range(node * per_node, (node + 1) * per_node):
            gone = rng.random() < lost or (fault in ("dead", "stopped") and rank == bad)
            rows.append(_row(rank, None if gone else _record(job, machine, rank, how), how))
        w.add("flight_recorder", name, "C", {"ranks": rows})
    return w.job, w.samples, NOW, _limits()


def _record(job: simulator.Job, machine: Machine, rank: int, how: dict[str, Any]) -> Any:
    ring = how.get("ring", 2000)
    made = recorder.dump(
        job, rank, machine.enqueued[rank], ring=ring, active=how.get("active", False), until=how.get("early", {}).get(rank),
        first=how.get("first", 0) if ring < 2000 or how.get("active") else 0,
    )  # fmt: skip
    obj, kind = probe.load_dump(recorder.as_bytes(made, how.get("json", False)))
    return json.loads(json.dumps(probe.reduce_dump(obj, rank, kind)))


def _row(rank: int, record: Any, how: dict[str, Any]) -> dict[str, Any]:
    until = how.get("early", {}).get(rank)
    early = until is not None and record is not None
    at = recorder.START_NS / 1e9 + (until + 0.5) * recorder.ROUND_S if early else WROTE
    return {
        "rank": rank, "pid": 1000 + rank, "state": "S", "source": "file" if early else "poked", "path": f"/d{rank}",
        "mtime": at if record else None, "age_s": NOW - at, "stale": False, "why": "" if record else "no dump",
        "poke": "no_reader" if early else "written", "record": record,
    }  # fmt: skip


def named(p: Picture) -> tuple[set[int], set[int]]:
    """(accused, involved) as the playbook asks: mismatches first, then roots, then circles."""
    if p.mismatches:
        return p.named_by_mismatch, p.tied_by_mismatch
    if p.roots:
        return set(p.roots), set()
    one = p.swapper if p.swapper is not None else apart(p)
    return (set() if one is None else {one}), {rank for circle in p.cycles for rank in circle}


def judge(one: Case) -> str:
    """ "exact", "open" (a tie, circle or unit that holds the culprit), "possible", "nothing" or "WRONG"."""
    truth, p = one.job.truth, one.picture
    if p is None:
        return "nothing"
    accused, involved = named(p)
    if truth["fault"] == "unit":
        if accused:
            return "WRONG"
        hit = [u for u in p.stuck_units if u.key[0] == truth["unit"][0] and (u.seq == truth["unit"][1] or u.pair)]
        return "exact" if len(hit) == 1 == len(p.stuck_units) else "open" if hit else "nothing"
    if accused:
        return "exact" if accused == {truth["rank"]} else "WRONG"
    if truth["rank"] in involved or any(truth["rank"] in p.group(u.key).members for u in p.stuck_units):
        return "open"
    return "possible" if p.possible else "nothing"
