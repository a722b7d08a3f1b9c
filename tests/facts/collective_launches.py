"""What NCCL's RAS and the GPUs would show of a simulated job that hangs: launches are what the hosts have handed over.

Hosts run ahead of their devices, and not all of them alike: one that reads its loss (`limits`) waits for its device at every
operation, so that in a hang in flight it has launched the least of all, and is as healthy as any.
"""

from __future__ import annotations

import json
import random
from typing import Any

import collective_judge as judge
import collective_recorder as recorder
import collective_simulator as simulator
from collective_machine import Machine
from ras_server import OPS, Comm, Report
from triage.probes import _ras_report, _ras_text
from written_evidence import World

COUNTED = {
    "broadcast": "Broadcast", "_broadcast_oop": "Broadcast", "reduce": "Reduce", "all_reduce": "AllReduce",
    "_all_gather_base": "AllGather", "_reduce_scatter_base": "ReduceScatter",
}  # fmt: skip


class Uneven(Machine):
    """Hosts that run ahead by limits of their own."""

    def __init__(self, job: simulator.Job, limits: dict[int, int]) -> None:
        self.limits = limits
        super().__init__(job)

    def _enqueue(self) -> bool:
        most, moved = self.job.run_ahead, False
        whole = dict(self.job.programs)
        for rank, limit in {**dict.fromkeys(whole, most), **self.limits}.items():
            self.job.programs, self.job.run_ahead = {rank: whole[rank]}, limit
            moved = super()._enqueue() or moved
        self.job.programs, self.job.run_ahead = whole, most
        return moved


def hung(seed: int, wide: bool) -> tuple[simulator.Job, Uneven, random.Random] | None:
    rng = random.Random(seed)
    job = simulator.make_job(rng, wide)
    if not simulator.break_job(job, rng.choice(simulator.FAULTS), rng):
        return None
    slow = rng.sample(range(job.ranks), rng.choice((0, 1, 1, 2)))
    machine = Uneven(job, dict.fromkeys(slow, 1)).run()
    return (job, machine, rng) if machine.hung() else None


def world(job: simulator.Job, machine: Uneven, rng: random.Random, lost: float, gpus: bool) -> World:
    """Processes, a log that ended long ago, two reports of RAS, and what else was seen."""
    per_node = next(n for n in (8, 4, 3, 2, 1) if job.ranks % n == 0)
    began, bad, fault = recorder.START_NS / 1e9, job.truth["rank"], job.truth["fault"]
    w = World(nodes=job.ranks // per_node, per_node=per_node, started=began - 600)
    for rank in range(job.ranks):
        for look in "AB":
            w.change[rank, look] = {
                "start_s": began - 300,
                **({"state": "T"} if (fault, bad) == ("stopped", rank) else {}),
            }
    if fault == "dead":
        w.dead[bad] = "A"
    w.processes().log(last_ago=500, steps=20).fabric(0)
    if gpus:
        _gpus(w, machine)
    if lost < 1:
        for node, name in enumerate(w.names):
            rows = []
            for rank in range(node * per_node, (node + 1) * per_node):
                gone = rng.random() < lost or (fault in ("dead", "stopped") and rank == bad)
                rows.append(judge._row(rank, None if gone else judge._record(job, machine, rank, {}), {}))
            w.add("flight_recorder", name, "C", {"ranks": rows})
    report = Report(*_comms(job, machine, per_node, bad if fault in ("dead", "stopped") else None))
    here = [(rank, 1000 + rank) for rank in range(per_node) if (fault, bad) != ("dead", rank)]
    verdict, told = _ras_report.judge(report.json(), "json", job.ranks, here, _ras_text.parse)
    assert verdict == "ok", told
    told = json.loads(json.dumps(told))
    w.add("ras", w.names[0], "C", {"outcome": "ok", "gap_s": 10.0, "first": told, "second": told})
    return w


def _comms(job: simulator.Job, machine: Uneven, per_node: int, gone: int | None) -> list[Comm]:
    made = []
    for number, (name, (_, members)) in enumerate(sorted(job.groups.items())):
        comm = Comm(0xA0 + number, len(members), counts=(0, 0, 0, 0, 0), members=members, per_node=per_node, pid=1000)
        for place, rank in enumerate(members):
            for op in job.programs[rank][: machine.enqueued[rank]]:
                if op.group == name and op.name in COUNTED:
                    comm.counts[place][OPS.index(COUNTED[op.name])] += op.coalesced or 1
        if gone in members:
            comm.lose(members.index(gone), dead=True)
        made.append(comm)
    return made


def _gpus(w: World, machine: Uneven) -> None:
    for look in "AB":
        for node, name in enumerate(w.names):
            cards: list[dict[str, Any]] = []
            for rank in range(node * w.per_node, (node + 1) * w.per_node):
                load = 100.0 if machine._running(rank) else 0.0
                cards.append(
                    {"bdf": f"0000:{rank % w.per_node + 16:02x}:00.0", "index": rank % w.per_node, "status": "ok",
                     "util_pct": [load] * 5, "power_w": [110.0] * 5, "power_limit_w": 700.0, "mem_util_pct": [0.0] * 5,
                     "pids": [1000 + rank]}
                )  # fmt: skip
            w.add("gpu", name, look, {"nvml": "ok", "gpus": cards})
