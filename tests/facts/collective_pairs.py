"""Random jobs with two faults at once: the machine of collective_machine.py with more than one thing put wrong.

Of two faults one may hide the other (a rank that died before it came to the collective that it would have skipped), so that
only a name outside of the two is wrong.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import collective_judge as judge
import collective_recorder as recorder
import collective_simulator as simulator
from collective_machine import Machine
from written_evidence import World

HOST = ("host", "dead", "stopped")
KINDS = (*HOST, "gpu", "wrong", "skip", "swap")


class TwoFaults(Machine):
    """Runs a job into several faults, each {"fault", "rank", "at"} as the simulator's truth."""

    def __init__(self, job: simulator.Job, faults: list[dict[str, Any]]) -> None:
        self.held = {f["rank"]: f["at"] for f in faults if f["fault"] in HOST}
        self.off = {f["rank"] for f in faults if f["fault"] in ("dead", "stopped")}
        self.gpus = [job.programs[f["rank"]][f["at"]] for f in faults if f["fault"] == "gpu"]
        self.odd = {f["rank"] for f in faults if f["fault"] == "wrong"}
        self.finish = next((f["finishes"] for f in faults if f["fault"] == "wrong"), "nobody")
        job.truth = {"fault": "two", "rank": -1, "at": -1}
        super().__init__(job)

    def _down(self, rank: int) -> bool:
        return rank in self.off and self.enqueued[rank] >= self.held[rank]

    def _enqueue(self) -> bool:
        whole = {rank: self.job.programs[rank] for rank in self.held}
        for rank, at in self.held.items():  # its host comes no further
            self.job.programs[rank] = whole[rank][: max(at, self.enqueued[rank])]
        try:
            return super()._enqueue()
        finally:
            self.job.programs.update(whole)

    def _passes(self, rank: int) -> bool:
        return (self.finish == "others" and rank not in self.odd) or (self.finish == "one" and rank in self.odd)

    def _collective_ends(self, rank: int, op: simulator.Op) -> bool:
        return not any(op is stuck for stuck in self.gpus) and super()._collective_ends(rank, op)

    def _exchange_ends(self, op: simulator.Op) -> bool:
        return not any(op is stuck for stuck in self.gpus) and super()._exchange_ends(op)


@dataclass(frozen=True)
class Pair:
    faults: list[dict[str, Any]]
    world: World

    @property
    def guilty(self) -> set[int]:
        return {fault["rank"] for fault in self.faults}


def pair(seed: int, *, wide: bool = False, lost: float = 0.0) -> Pair | None:
    """The hung job of this seed as its dumps and processes show it; None where a fault has no place, or nothing hangs."""
    rng = random.Random(seed)
    job = simulator.make_job(rng, wide)
    faults = []
    # What changes a program goes first: the places of the others are counted in it.
    for kind in sorted((rng.choice(KINDS) for _ in range(2)), key=lambda kind: kind in (*HOST, "gpu")):
        if not simulator.break_job(job, kind, rng):
            return None
        faults.append(dict(job.truth))
    lengths = [len(job.programs[f["rank"]]) for f in faults]
    if faults[0]["rank"] == faults[1]["rank"] or any(f["at"] >= n for f, n in zip(faults, lengths)):
        return None
    machine = TwoFaults(job, faults).run()
    if not machine.hung():
        return None
    how = judge._how(rng, wide, machine)
    return Pair(faults, _world(rng, job, machine, faults, lost, how))


def _world(
    rng: random.Random,
    job: simulator.Job,
    machine: Machine,
    faults: list[dict[str, Any]],
    lost: float,
    how: dict[str, Any],
) -> World:
    per_node = next(n for n in (8, 4, 3, 2, 1) if job.ranks % n == 0)
    began = recorder.START_NS / 1e9
    w = World(nodes=job.ranks // per_node, per_node=per_node, started=began - 600)
    for rank in range(job.ranks):
        for look in "AB":
            w.change[rank, look] = {"start_s": began - 300}
    silent = set()
    for fault in faults:
        if fault["fault"] == "dead":
            w.dead[fault["rank"]] = "A"
        elif fault["fault"] == "stopped":
            for look in "AB":
                w.change[fault["rank"], look]["state"] = "T"
        if fault["fault"] in ("dead", "stopped"):
            silent.add(fault["rank"])
    w.processes().log(last_ago=100).fabric(0)
    for node, name in enumerate(w.names):
        rows = []
        for rank in range(node * per_node, (node + 1) * per_node):
            gone = rng.random() < lost or rank in silent
            rows.append(judge._row(rank, None if gone else judge._record(job, machine, rank, how), how))
        w.add("flight_recorder", name, "C", {"ranks": rows})
    return w
