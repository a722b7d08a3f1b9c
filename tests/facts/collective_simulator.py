"""Random training programs with one fault: what each rank enqueues, in which order, and what is put wrong.

Written from NCCL's and PyTorch's contract, not from the wait graph that it tests (it imports nothing of triage). Two kinds:
`plain`   TP x PP x DP, GPipe or 1F1B with batched exchanges, gradients in line or overlapped (prototype-findings 3.4);
`wide`    what that one left out: operations with a root, all_to_all over expert groups, uneven and virtual stages, two
          communicators over the same ranks, coalesced collectives, side streams, single sends on communicators of their own,
          groups without a description, hashed names.
A wide program is a projection of one global order of events onto the ranks, so it cannot hang by itself.
How it runs: collective_machine.py. What the recorder writes: collective_recorder.py.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

FAULTS = ("host", "dead", "stopped", "gpu", "unit", "wrong", "skip", "swap")


@dataclass
class Op:
    """One launch of one rank: a collective, or a batch of sends and receives."""

    group: str
    name: str = ""  # "" = exchange
    shape: tuple[int, ...] = ()
    parts: tuple[tuple[str, int, int], ...] = ()  # ("s" | "r", from, to)
    in_line: bool = True  # later work waits for it
    root: int | None = None
    coalesced: int = 0  # parts of a coalesced collective
    batched: bool = True  # of an exchange: a batch with a closing entry, else a single call
    seq: int = 0
    ordinals: tuple[int, ...] = ()
    created: int = 0  # the round in which it was enqueued
    over: int | None = None  # the round in which it was done

    @property
    def done(self) -> bool:
        return self.over is not None


@dataclass
class Job:
    ranks: int
    groups: dict[str, tuple[str, list[int]]]  # name -> (desc, members)
    programs: dict[int, list[Op]]
    run_ahead: int
    truth: dict[str, Any] = field(default_factory=dict)
    eager: bool = False  # small sends are over before their receive is posted
    pair_comms: bool = False  # single sends and receives run on a communicator of their two ranks
    order: str = "free"  # across communicators: free | launch (starts in order) | serial (one after the other)
    chain: bool = True  # data of a rooted operation goes from member to member, else straight from the root


def make_job(rng: random.Random, wide: bool = False) -> Job:
    """A random layout of at most 40 ranks and one or two steps of its program, without a fault."""
    return _wide(rng) if wide else _plain(rng)


def _layout(rng: random.Random, pps: tuple[int, ...], dps: tuple[int, ...]) -> tuple[int, int, int]:
    while True:
        tp, pp, dp = rng.choice((1, 2, 4)), rng.choice(pps), rng.choice(dps)
        if 4 <= tp * pp * dp <= 40:
            return tp, pp, dp


class _Groups:
    """The process groups of a layout; a rank is (tp, pp, dp)."""

    def __init__(self, tp: int, pp: int, dp: int) -> None:
        self.tp, self.pp, self.dp, self.ranks = tp, pp, dp, tp * pp * dp
        self.groups: dict[str, tuple[str, list[int]]] = {"0": ("default_pg", list(range(self.ranks)))}
        self.member: dict[tuple[str, int], str] = {}
        self.add("TP", [[self.of(t, p, d) for t in range(tp)] for p in range(pp) for d in range(dp)])
        self.add("DP", [[self.of(t, p, d) for d in range(dp)] for p in range(pp) for t in range(tp)])
        self.add("PP", [[self.of(t, p, d) for p in range(pp)] for d in range(dp) for t in range(tp)])

    def of(self, t: int, p: int, d: int) -> int:
        return (p * self.dp + d) * self.tp + t

    def add(self, role: str, spans: list[list[int]]) -> None:
        for span in spans:
            if len(span) > 1:
                name = str(len(self.groups))
                self.groups[name] = (role, sorted(span))
                self.member.update({(role, r): name for r in span})


# ---------------------------------------------------------------- plain programs


def _plain(rng: random.Random) -> Job:
    tp, pp, dp = _layout(rng, (1, 2, 3, 4), (1, 2, 3, 4))
    made = _Groups(tp, pp, dp)
    member = made.member
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
                r = made.of(t, p, d)
                here: list[Op] = []
                up = made.of(t, p - 1, d) if p > 0 else None
                down = made.of(t, p + 1, d) if p + 1 < pp else None

                def exchange(*parts, r=r, here=here):
                    kept = tuple((side, a, b) for side, a, b in parts if a is not None and b is not None)
                    if kept:
                        shape = (8192, 2, 2048) if fat else (64, 8)
                        here.append(Op(member["PP", r], "", shape, kept, batched=steady))

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
                        group = member["TP", r]
                        here.append(Op(group, "broadcast", (4, 128), root=made.groups[group][1][0]))
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
    return Job(made.ranks, made.groups, programs, rng.choice((1, 6, 10_000)), chain=False)


# ---------------------------------------------------------------- wide programs


def _wide(rng: random.Random) -> Job:
    tp, pp, dp = _layout(rng, (1, 2, 3, 4), (1, 2, 4))
    made = _Groups(tp, pp, dp)
    if dp > 1:
        made.add("DP_CP", [[made.of(t, p, d) for d in range(dp)] for p in range(pp) for t in range(tp)])
    if dp % 2 == 0:  # experts are shared by neighbours of a DP group
        pairs = [
            [made.of(t, p, d), made.of(t, p, d + 1)] for p in range(pp) for t in range(tp) for d in range(0, dp, 2)
        ]
        made.add("EP", pairs)
    if tp * pp > 1 and dp > 1:
        made.add("MP", [[made.of(t, p, d) for t in range(tp) for p in range(pp)] for d in range(dp)])
    job = Job(
        made.ranks, made.groups, {r: [] for r in range(made.ranks)}, rng.choice((1, 3, 8, 10_000)),
        eager=rng.random() < 0.5, pair_comms=rng.random() < 0.6, chain=rng.random() < 0.6,
        order=rng.choice(("free", "free", "launch", "serial")),
    )  # fmt: skip
    weave = _Weave(rng, made, job)
    for _ in range(rng.choice((1, 2))):
        weave.step()
    if rng.random() < 0.25:  # nobody gave the groups a description: PyTorch writes "undefined"
        job.groups = {n: (d if d == "default_pg" else "undefined", m) for n, (d, m) in job.groups.items()}
    if rng.random() < 0.2:
        _hash_names(job)
    return job


def _hash_names(job: Job) -> None:
    new = {name: name if name == "0" else f"{(int(name) * 2654435761) & 0xFFFFFFFF:08x}" for name in job.groups}
    job.groups = {new[name]: told for name, told in job.groups.items()}
    for program in job.programs.values():
        for op in program:
            op.group = new[op.group]


class _Weave:
    """One global order of events; each is appended to the programs of all that take part."""

    def __init__(self, rng: random.Random, made: _Groups, job: Job) -> None:
        self.rng, self.made, self.job = rng, made, job
        self.batched = rng.random() < 0.5
        self.virtual = rng.choice((1, 1, 2)) if made.pp > 1 else 1
        self.micro = rng.choice((1, 2, 3))
        self.layers = [rng.choice((1, 1, 2, 3)) for _ in range(made.pp)]  # stages are uneven
        self.shape = (8192, 2, 2048) if rng.random() < 0.4 else (64, 8)
        self.overlap = rng.random() < 0.5
        self.sequence = rng.random() < 0.5  # sequence parallel: gather and scatter instead of all_reduce

    def spans(self, role: str, p: int | None = None) -> list[str]:
        """Names of the groups of a role (of one stage)."""
        names = dict.fromkeys(
            name for (told, r), name in self.made.member.items() if told == role and p in (None, self.stage(r))
        )
        return list(names)

    def stage(self, rank: int) -> int:
        return rank // (self.made.tp * self.made.dp)

    def all(self, group: str, name: str, shape: tuple[int, ...], **more: Any) -> None:
        for rank in self.made.groups[group][1]:
            self.job.programs[rank].append(Op(group, name, shape, **more))

    def rooted(self, role: str) -> None:
        """One operation with a root in all groups of a role: they run the same code."""
        name, place = self.rng.choice(("broadcast", "reduce", "gather", "scatter")), self.rng.random()
        for group in ["0"] if role == "0" else self.spans(role):
            members = self.made.groups[group][1]
            self.all(group, name, (9,), root=members[int(place * len(members))])

    def transfer(self, a: int, b: int) -> None:
        group = self.made.member["PP", a]
        for rank, side in ((a, "s"), (b, "r")):
            self.job.programs[rank].append(Op(group, "", self.shape, ((side, a, b),), batched=self.batched))

    def shift(self) -> None:
        """Every stage sends to the next and receives from the one before, in one batch (interleaved warm-up)."""
        made = self.made
        for d in range(made.dp):
            for t in range(made.tp):
                for p in range(made.pp):
                    r, ahead, behind = (made.of(t, q % made.pp, d) for q in (p, p + 1, p - 1))
                    parts = (("s", r, ahead), ("r", behind, r))
                    self.job.programs[r].append(Op(made.member["PP", r], "", self.shape, parts))

    def layer(self, p: int, backward: bool) -> None:
        for i in range(self.layers[p]):
            for group in self.spans("TP", p):
                if self.sequence:
                    self.all(group, "_all_gather_base", (64 + i, 64))
                    self.all(group, "_reduce_scatter_base", (64 + i, 64))
                else:
                    self.all(group, "all_reduce", (128 + i, 64))
            for group in self.spans("EP", p):
                self.all(group, "all_to_all", (32, 64 + i))
            if backward and self.overlap:
                for group in self.spans("DP", p):
                    self.all(group, "_reduce_scatter_base", (1000 + i,), in_line=False)

    def stages(self, backward: bool) -> None:
        """Micro-batches through all virtual stages, as a wave front."""
        made, count = self.made, self.made.pp * self.virtual
        waves = [(m + s, m, s) for m in range(self.micro) for s in range(count)]
        for _, _, s in sorted(waves):
            here = (count - 1 - s if backward else s) % made.pp
            before = (count - s if backward else s - 1) % made.pp
            if s and before != here:
                for d in range(made.dp):
                    for t in range(made.tp):
                        self.transfer(made.of(t, before, d), made.of(t, here, d))
            self.layer(here, backward)

    def step(self) -> None:
        rng = self.rng
        for group in self.spans("TP"):
            root = self.made.groups[group][1][0]
            self.all(group, "broadcast", (4, 128), root=root)
        if self.batched and self.made.pp > 1 and rng.random() < 0.5:
            self.shift()
        self.stages(False)
        self.stages(True)
        for group in self.spans("DP"):
            if not self.overlap:
                self.all(group, "_reduce_scatter_base", (5000,))
        twin = rng.random() < 0.6
        for group in self.spans("DP_CP"):
            if twin:  # the same ranks by another communicator, on a stream of its own
                self.all(group, "all_reduce", (77,), in_line=False)
        for group in self.spans("DP"):
            self.all(group, "_broadcast_oop", (501,), coalesced=3) if twin else self.all(
                group, "_all_gather_base", (5001,)
            )
        for role in ("MP", "DP", "0"):
            if rng.random() < 0.4:
                self.rooted(role)
        for group in self.spans("MP"):
            self.all(group, "all_reduce", (2,))
        self.all("0", "all_reduce", (1,))


# ---------------------------------------------------------------- faults


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
        if rng.random() < 0.5 and op.name != "all_to_all":
            op.shape = (op.shape[0] + 7, *op.shape[1:])
        else:
            op.name, op.root = "all_reduce" if op.name != "all_reduce" else "_all_gather_base", None
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
