"""Runs a simulated job to its standstill, by the rules under which NCCL's kernels start, meet and end.

Read in NCCL's source and answers of its authors, not in the wait graph that this tests:
- operations of one communicator run in the order of enqueueing; nothing orders two communicators, unless
  NCCL_LAUNCH_ORDER_IMPLICIT is set (off by default; src/enqueue.cc: launch order, or one after the other on old drivers);
- the compute stream waits for what is in line, and each communicator's stream for the compute stream at enqueueing;
- calls inside a group progress independently and end together (user guide, point-to-point communication);
- a single send or receive of ProcessGroupNCCL runs on a communicator of its two ranks, a batch on that of the group;
- a send may end once its bytes are in transport buffers, which nobody promises (NCCL issue 1252);
- an operation with a root ends on a member when its own part is through: gather and scatter are sends and receives, the
  data of a broadcast goes from member to member;
- the host runs ahead of the device by a limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from collective_simulator import Job, Op

SMALL = 1 << 16  # elements that fit in transport buffers
IN_BUFFERS = 2  # small sends of one pair that may lie there


class Machine:
    """The state of all ranks. `enqueued` says how far each host has come; each Op knows when it was done."""

    def __init__(self, job: Job) -> None:
        self.job, self.round = job, 0
        self.enqueued = dict.fromkeys(job.programs, 0)
        self.begun: dict[int, list[int]] = {r: [] for r in job.programs}  # enqueued and not done, by rank
        self.meets: dict[tuple[str, int], dict[int, tuple[Op, int]]] = {}
        self.sent: set[tuple[str, int, int, int]] = set()  # messages that have left, and that have been taken
        self.taken: set[tuple[str, int, int, int]] = set()
        truth = job.truth
        self.fault, self.bad, self.at = truth.get("fault"), truth.get("rank", -1), truth.get("at", -1)
        self._number()
        self.stuck: Any = None
        if self.fault == "unit":
            op = job.programs[self.bad][self.at]
            side = op.parts[0] if op.parts else None
            self.stuck = (op.group, op.seq) if side is None else (op.group, side[1], side[2], op.ordinals[0])
            truth["unit"] = (op.group, op.seq if op.name else None)
            truth["members"] = job.groups[op.group][1] if side is None else sorted(side[1:])

    def _number(self) -> None:
        """Sequence numbers, and the count of each pair's messages."""
        for rank, program in self.job.programs.items():
            seqs: dict[str, int] = {}
            count: dict[tuple[str, str, int, int], int] = {}
            for i, op in enumerate(program):
                if op.name:
                    op.seq = seqs[op.group] = seqs.get(op.group, 0) + 1
                    self.meets.setdefault((op.group, op.seq), {})[rank] = (op, i)
                    continue
                ordinals = []
                for side, a, b in op.parts:
                    key = (op.group, side, a, b)
                    count[key] = count.get(key, 0) + 1
                    ordinals.append(count[key])
                op.ordinals, op.seq = tuple(ordinals), seqs.get(op.group, 0)

    # ------------------------------------------------------------ hosts and devices

    def _down(self, rank: int) -> bool:
        return self.fault in ("dead", "stopped") and rank == self.bad and self.enqueued[rank] >= self.at

    def _enqueue(self) -> bool:
        moved = False
        for rank, program in self.job.programs.items():
            begun = self.begun[rank] = [i for i in self.begun[rank] if not program[i].done]
            while self.enqueued[rank] < len(program) and len(begun) < self.job.run_ahead:
                if self.fault in ("host", "dead", "stopped") and rank == self.bad and self.enqueued[rank] >= self.at:
                    break
                program[self.enqueued[rank]].created = self.round
                begun.append(self.enqueued[rank])
                self.enqueued[rank] += 1
                moved = True
        return moved

    def _stream(self, op: Op) -> tuple[Any, ...]:
        if not op.name and not op.batched and self.job.pair_comms:
            return ("pair", op.group, *sorted(op.parts[0][1:]))
        return (op.group,)

    def _running(self, rank: int) -> list[int]:
        """Operations whose kernels the device of this rank has started."""
        out: list[int] = []
        closed: set[tuple[Any, ...]] = set()
        for i in self.begun[rank]:
            op = self.job.programs[rank][i]
            stream = self._stream(op)
            if stream not in closed:
                out.append(i)
            elif self.job.order != "free":
                break
            closed.add(stream)
            if op.in_line or self.job.order == "serial":
                break
        return out

    # ------------------------------------------------------------ meeting

    def _joined(self, members: Iterable[int], meeting: dict[int, tuple[Op, int]]) -> bool:
        return all(m in meeting and ((m, meeting[m][1]) in self.here or meeting[m][0].done) for m in members)

    def _collective_ends(self, rank: int, op: Op) -> bool:
        meeting, members = self.meets[op.group, op.seq], self.job.groups[op.group][1]
        if (op.group, op.seq) == self.stuck:
            return False
        kinds = {(meeting[m][0].name, meeting[m][0].shape) for m in members if m in meeting}
        if len(kinds) > 1 and not self._passes(rank):
            return False
        if op.root is None or len(kinds) > 1 or _size(op) > SMALL:
            return self._joined(members, meeting)
        return self._joined(self._needs(rank, op, members), meeting)

    def _needs(self, rank: int, op: Op, members: list[int]) -> list[int]:
        """Whom this member's part of a small operation with a root waits for."""
        root, eager, start = op.root, self.job.eager, members.index(op.root if op.root is not None else members[0])
        ring = members[start:] + members[:start]
        place = ring.index(rank)
        if op.name == "broadcast":
            return ring[: place + 1] if self.job.chain else [rank, ring[0]]
        if op.name == "reduce":
            return members if rank == root else ring[place:] if self.job.chain else [rank]
        if op.name == "gather":
            return members if rank == root else [rank] if eager else [rank, ring[0]]
        if op.name == "scatter":
            return ([rank] if eager else members) if rank == root else [rank, ring[0]]
        return members

    def _passes(self, rank: int) -> bool:
        """What NCCL does with a mismatch is not defined: nobody, the others or only the odd one may get through."""
        how = self.job.truth.get("finishes", "nobody")
        return (how == "others" and rank != self.bad) or (how == "one" and rank == self.bad)

    def _messages(self) -> bool:
        """Pass on what both sides have posted, and what may lie in buffers."""
        moved = False
        posted: dict[tuple[str, int, int, int], set[str]] = {}
        small: set[tuple[str, int, int, int]] = set()
        for rank, i in self.here:
            op = self.job.programs[rank][i]
            for (side, a, b), ordinal in zip(op.parts, op.ordinals):
                message = (op.group, a, b, ordinal)
                posted.setdefault(message, set()).add(side)
                if _size(op) <= SMALL:
                    small.add(message)
        for message, sides in posted.items():
            if message == self.stuck:
                continue
            if "s" in sides and message not in self.sent:
                lying = sum(1 for n in range(1, message[3]) if (*message[:3], n) in self.sent - self.taken)
                if "r" in sides or (self.job.eager and message in small and lying < IN_BUFFERS):
                    self.sent.add(message)
                    moved = True
            if "r" in sides and message in self.sent and message not in self.taken:
                self.taken.add(message)
                moved = True
        return moved

    def _exchange_ends(self, op: Op) -> bool:
        return all(
            (op.group, a, b, n) in (self.sent if side == "s" else self.taken)
            for (side, a, b), n in zip(op.parts, op.ordinals)
        )

    # ------------------------------------------------------------ time

    def step(self) -> bool:
        """One round; False at the standstill."""
        self.round += 1
        moved = self._enqueue()
        running = {rank: [] if self._down(rank) else self._running(rank) for rank in self.job.programs}
        self.here = {(rank, i) for rank, ops in running.items() for i in ops}
        moved = self._messages() or moved
        for rank, i in sorted(self.here):
            op = self.job.programs[rank][i]
            if self.fault == "gpu" and rank == self.bad and i == self.at:
                continue
            if self._collective_ends(rank, op) if op.name else self._exchange_ends(op):
                op.over = self.round
                moved = True
        return moved

    def run(self) -> Machine:
        while self.step():
            pass
        return self

    def hung(self) -> bool:
        return any(not op.done for program in self.job.programs.values() for op in program)


def _size(op: Op) -> int:
    size = 1
    for dim in op.shape:
        size *= dim
    return size
