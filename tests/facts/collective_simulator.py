"""Random training programs with one fault, and the flight records that each rank would dump.

A small model of the rules that make a job hang, written from NCCL's contract and not from the wait graph that it tests:
operations of one communicator run in order; one runs when the compute stream has come to it; a collective finishes when all
members run it; a send when its receive runs; a batched exchange when all its parts have met; the host runs ahead of the
device by a limit. A program is TP x PP x DP (GPipe or 1F1B), with gradients reduced in line or overlapped.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

FAULTS = ("host", "dead", "stopped", "gpu", "unit", "wrong", "skip", "swap")
START_NS = 1_790_000_000_000_000_000


@dataclass
class Op:
    """One launch of one rank: a collective, or a batch of sends and receives."""

    group: str
    name: str = ""  # "" = exchange
    shape: tuple[int, ...] = ()
    parts: tuple[tuple[str, int, int], ...] = ()  # ("s" | "r", from, to)
    in_line: bool = True  # later work waits for it
    seq: int = 0
    ordinals: tuple[int, ...] = ()
    done: bool = False


@dataclass
class Job:
    ranks: int
    groups: dict[str, tuple[str, list[int]]]  # name -> (desc, members)
    programs: dict[int, list[Op]]
    run_ahead: int
    truth: dict[str, Any] = field(default_factory=dict)


def make_job(rng: random.Random) -> Job:
    """A random layout of at most 40 ranks and one or two steps of its program, without a fault."""
    while True:
        tp, pp, dp = rng.choice((1, 2, 4)), rng.choice((1, 2, 3, 4)), rng.choice((1, 2, 3, 4))
        ranks = tp * pp * dp
        if 4 <= ranks <= 40:
            break

    def rank_of(t: int, p: int, d: int) -> int:
        return (p * dp + d) * tp + t

    groups: dict[str, tuple[str, list[int]]] = {"0": ("default_pg", list(range(ranks)))}
    member: dict[tuple[str, int], str] = {}
    number = 1
    for role, spans in (
        ("TP", [[rank_of(t, p, d) for t in range(tp)] for p in range(pp) for d in range(dp)]),
        ("DP", [[rank_of(t, p, d) for d in range(dp)] for p in range(pp) for t in range(tp)]),
        ("PP", [[rank_of(t, p, d) for p in range(pp)] for d in range(dp) for t in range(tp)]),
    ):
        for span in spans:
            if len(span) > 1:
                groups[str(number)] = (role, sorted(span))
                member.update({(role, r): str(number) for r in span})
            number += 1
    micro, layers = rng.choice((2, 3, 4)), rng.choice((1, 2))
    steady = rng.random() < 0.5  # 1F1B with batched exchanges, else GPipe
    overlap = rng.random() < 0.4
    fat = rng.random() < 0.5  # activations beyond what lies in transport buffers
    tp_style = rng.choice(("ar", "agrs"))
    steps = rng.choice((1, 2))
    programs: dict[int, list[Op]] = {}
    for p in range(pp):
        for d in range(dp):
            for t in range(tp):
                r = rank_of(t, p, d)
                here: list[Op] = []
                up = rank_of(t, p - 1, d) if p > 0 else None
                down = rank_of(t, p + 1, d) if p + 1 < pp else None

                def exchange(*parts, r=r, here=here):
                    kept = tuple((side, a, b) for side, a, b in parts if a is not None and b is not None)
                    if kept:
                        shape = (8192, 2, 2048) if fat else (64, 8)
                        here.append(Op(member["PP", r], "", shape, kept))

                def layer(backward, r=r, here=here):
                    if ("TP", r) not in member:
                        return
                    for i in range(layers):
                        if tp_style == "ar":
                            here.append(Op(member["TP", r], "all_reduce", (128 + i, 64)))
                        else:
                            here.append(Op(member["TP", r], "_all_gather_base", (64 + i, 64)))
                            here.append(Op(member["TP", r], "_reduce_scatter_base", (64 + i, 64)))
                        if backward and overlap and ("DP", r) in member:
                            here.append(Op(member["DP", r], "all_reduce", (1000 + i,), in_line=False))

                for _ in range(steps):
                    if ("TP", r) in member:
                        here.append(Op(member["TP", r], "broadcast", (4, 128)))
                    if steady and pp > 1:
                        warm = min(micro, pp - 1 - p)
                        for _ in range(warm):
                            exchange(("r", up, r))
                            layer(False)
                            exchange(("s", r, down))
                        rest = micro - warm
                        if rest:
                            exchange(("r", up, r))
                        for i in range(rest):
                            layer(False)
                            exchange(("s", r, down), ("r", down, r))
                            layer(True)
                            if i + 1 < rest:
                                exchange(("s", r, up), ("r", up, r))
                            else:
                                exchange(("s", r, up))
                        for _ in range(warm):
                            exchange(("r", down, r))
                            layer(True)
                            exchange(("s", r, up))
                    else:
                        for _ in range(micro):
                            exchange(("r", up, r))
                            layer(False)
                            exchange(("s", r, down))
                        for _ in range(micro):
                            exchange(("r", down, r))
                            layer(True)
                            exchange(("s", r, up))
                    if ("DP", r) in member:
                        if not overlap:
                            here.append(Op(member["DP", r], "_reduce_scatter_base", (5000,)))
                        here.append(Op(member["DP", r], "_all_gather_base", (5001,)))
                    here.append(Op("0", "all_reduce", (1,)))
                programs[r] = here
    return Job(ranks, groups, programs, rng.choice((1, 6, 10_000)))


def break_job(job: Job, fault: str, rng: random.Random) -> bool:
    """Put one fault into the program; False where this program has no place for it."""
    rank = rng.randrange(job.ranks)
    program = job.programs[rank]
    # Not the very end: training goes on, somebody always comes to wait.
    at = rng.randrange(len(program) // 4, max(len(program) // 4 + 1, len(program) - 3))
    collectives = [i for i, op in enumerate(program) if op.name and len(job.groups[op.group][1]) > 1 and i >= 1]
    job.truth = {"fault": fault, "rank": rank, "at": at}
    if fault == "wrong":
        at = rng.choice(collectives)
        op = program[at]
        if rng.random() < 0.5:
            op.shape = (op.shape[0] + 7, *op.shape[1:])
        else:
            op.name = "all_reduce" if op.name != "all_reduce" else "_all_gather_base"
        job.truth.update(at=at, finishes=rng.choice(("nobody", "others", "one")))
    elif fault == "skip":
        at = rng.choice(collectives[:-1] or collectives)
        del program[at]
        job.truth["at"] = at
    elif fault == "swap":
        places = [
            i
            for i in collectives
            if i + 1 < len(program) and program[i + 1].name and program[i + 1].group != program[i].group
        ]
        if not places:
            return False
        at = rng.choice(places)
        program[at], program[at + 1] = program[at + 1], program[at]
        job.truth["at"] = at
    return True


def run(job: Job) -> dict[int, int]:
    """Run to the standstill. rank -> how many operations its host has enqueued; each Op knows whether it is done."""
    truth = job.truth
    fault, bad, at = truth.get("fault"), truth.get("rank", -1), truth.get("at", -1)
    pair_count: dict[tuple[int, str, int, int], int] = {}
    meets: dict[tuple[Any, ...], dict[int, tuple[Op, int]]] = {}
    for rank, program in job.programs.items():
        seqs: dict[str, int] = {}
        for i, op in enumerate(program):
            if op.name:
                op.seq = seqs[op.group] = seqs.get(op.group, 0) + 1
                meets.setdefault((op.group, op.seq), {})[rank] = (op, i)
            else:
                ordinals = []
                for side, a, b in op.parts:
                    key = (rank, side, a, b)
                    pair_count[key] = pair_count.get(key, 0) + 1
                    ordinals.append(pair_count[key])
                op.ordinals = tuple(ordinals)
                op.seq = seqs.get(op.group, 0)
    met: set[tuple[int, int, int]] = set()  # (from, to, ordinal) of exchanged messages
    stuck_unit: Any = None
    if fault == "unit":
        op = job.programs[bad][at]
        stuck_unit = (op.group, op.seq) if op.name else (op.parts[0][1], op.parts[0][2], op.ordinals[0])
        truth["unit"] = (op.group, op.seq if op.name else None)
        truth["members"] = job.groups[op.group][1] if op.name else sorted({op.parts[0][1], op.parts[0][2]})
    enqueued = dict.fromkeys(job.programs, 0)
    begun: dict[int, list[int]] = {r: [] for r in job.programs}  # first operations that are not done, by rank

    def running(rank: int) -> list[int]:
        """Operations that the device has come to: earlier ones of the communicator and of the compute stream are done."""
        out, closed = [], set()
        for i in begun[rank]:
            op = job.programs[rank][i]
            if op.group not in closed:
                out.append(i)
            closed.add(op.group)
            if op.in_line:
                break
        return out

    changed = True
    while changed:
        changed = False
        for rank, program in job.programs.items():
            begun[rank] = [i for i in begun[rank] if not program[i].done]
            while enqueued[rank] < len(program) and len(begun[rank]) < job.run_ahead:
                if fault in ("host", "dead", "stopped") and rank == bad and enqueued[rank] >= at:
                    break
                begun[rank].append(enqueued[rank])
                enqueued[rank] += 1
                changed = True
        live = {}
        for rank in job.programs:
            if fault in ("dead", "stopped") and rank == bad and enqueued[rank] >= at:
                live[rank] = []
                continue
            live[rank] = running(rank)
        here = {(rank, i) for rank, ops in live.items() for i in ops}
        posted: dict[tuple[int, int, int], set[str]] = {}
        for rank, i in here:
            op = job.programs[rank][i]
            for (side, a, b), ordinal in zip(op.parts, op.ordinals):
                posted.setdefault((a, b, ordinal), set()).add(side)
        for message, sides in posted.items():
            if len(sides) == 2 and message != stuck_unit and message not in met:
                met.add(message)
                changed = True
        for rank, i in sorted(here):
            op = job.programs[rank][i]
            hangs = fault == "gpu" and rank == bad and i == at
            if op.done or hangs:
                continue
            if op.name:
                meeting = meets[op.group, op.seq]
                members = job.groups[op.group][1]
                if any(
                    m not in meeting or ((m, meeting[m][1]) not in here and not meeting[m][0].done) for m in members
                ):
                    continue
                if (op.group, op.seq) == stuck_unit:
                    continue
                kinds = {(meeting[m][0].name, meeting[m][0].shape) for m in members}
                if len(kinds) > 1 and not _passes(truth, rank, bad, rng_key=op.seq):
                    continue
                op.done = True
                changed = True
            elif all((a, b, n) in met for (_, a, b), n in zip(op.parts, op.ordinals)):
                op.done = True
                changed = True
    return enqueued


def _passes(truth: dict[str, Any], rank: int, bad: int, rng_key: int) -> bool:
    """What NCCL does with a mismatch is not defined: nobody, the others or only the odd one may get through."""
    how = truth.get("finishes", "nobody")
    return (how == "others" and rank != bad) or (how == "one" and rank == bad)


def hung(job: Job) -> bool:
    return any(not op.done for program in job.programs.values() for op in program)


def dump(job: Job, rank: int, enqueued: int, ring: int = 2000, first: int = 0) -> dict[str, Any]:
    """What this rank's recorder would write: format 2.9, no stacks, the last `ring` entries."""
    entries: list[dict[str, Any]] = []
    ids, p2p = first, {}
    local = {name: {r: i for i, r in enumerate(members)} for name, (_, members) in job.groups.items()}
    names = sorted((n for n, (_, m) in job.groups.items() if rank in m), key=int)
    for op in job.programs[rank][:enqueued]:
        base = {
            "pg_id": names.index(op.group),
            "process_group": (op.group, job.groups[op.group][0]),
            "collective_seq_id": op.seq,
            "time_created_ns": START_NS + ids * 1_000_000,
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": START_NS + ids * 1_000_000 + 500_000 if op.done else None,
            "state": "completed" if op.done else "scheduled",
            "retired": op.done,
            "timeout_ms": 600_000,
            "input_dtypes": ["BFloat16"],
            "output_dtypes": ["BFloat16"],
            "input_sizes": [list(op.shape)],
            "output_sizes": [list(op.shape)],
        }
        if op.name:
            entries.append(
                dict(base, record_id=ids, p2p_seq_id=0, op_id=ids, profiling_name=f"nccl:{op.name}", is_p2p=False)
            )
            ids += 1
            continue
        p2p[op.group] = p2p.get(op.group, 0) + 1
        spots = local[op.group]
        for side, a, b in op.parts:
            name = f"nccl:send {spots[a]}->{spots[b]}" if side == "s" else f"nccl:recv {spots[b]}<-{spots[a]}"
            entries.append(
                dict(base, record_id=ids, p2p_seq_id=p2p[op.group], op_id=ids, profiling_name=name, is_p2p=True)
            )
            ids += 1
    status = {}
    for i, name in enumerate(names):
        mine = [e for e in entries if e["process_group"][0] == name]
        over = [e for e in mine if e["retired"]]

        def number(e: dict[str, Any]) -> int:
            return e["p2p_seq_id"] if e["is_p2p"] else e["collective_seq_id"]

        status[str(i)] = {
            "last_enqueued_collective": number(mine[-1]) if mine else -1,
            "last_started_collective": -1,
            "last_completed_collective": number(over[-1]) if over else -1,
        }
    config = {n: {"name": n, "desc": job.groups[n][0], "ranks": str(job.groups[n][1])} for n in names}
    return {
        "version": "2.9",
        "pg_config": config,
        "nccl_version": "2.27.3",
        "pg_status": status,
        "entries": entries[-ring:],
    }
