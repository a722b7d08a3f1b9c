"""The faults of `--engine torch`: what goes wrong in a real PyTorch job (gloo), and what triage must say of it.

What is expected is what happened, not what is easy to see. Where the truth cannot be had from flight records alone, what
is provable is right as well (`or_else`), and "inconclusive" is; a wrong name never is.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from triage.drill.faults import Expect, Fault, Scenario

MISMATCH = Expect("deadlock", "deadlock/mismatch", "rank", "S4", 10, "rank")
CONDITIONAL = Expect("deadlock", "deadlock/conditional", "rank", "S4", 10, "rank")
HOST = Expect("stuck_rank", "stuck_rank/host", "rank", "S4", 10, "rank")
CANNOT_TELL = Expect("inconclusive", "", "-", "S1", 11, "nobody")


def fault(name: str, breaks: str, message: Mapping[str, Any], expect: Expect, **more: Any) -> Fault:
    """A fault of one rank that stops a job of two nodes and four ranks at least: of three, one differs from a majority."""
    return Fault(name, breaks, (message,), expect, shows="frozen", needs_nodes=2, needs_ranks_per_node=2, **more)


WAITS: tuple[Fault, ...] = (
    fault(
        "order",
        "one rank broadcasts before it sums a gradient bucket, all others after",
        {"tell": {"early": True}},
        MISMATCH,
    ),
    fault(
        "shape",
        "one rank sums a bucket of another size; a neighbour aborts over it (SIGABRT), others lose their connection",
        {"tell": {"reshape": True}},
        MISMATCH,
    ),
    fault(
        "dtype",
        "one rank sums a bucket of another type; a neighbour aborts over it (SIGABRT), others lose their connection",
        {"tell": {"retype": True}},
        MISMATCH,
    ),
    fault(
        "skip",
        "one rank leaves out a bucket; it shows only at the broadcast after the next, which is another operation",
        {"tell": {"skip": True}},
        MISMATCH,
    ),
    fault(
        "conditional",
        "one rank takes another branch, with a barrier of a group that no other rank enters",
        {"tell": {"enter": True}},
        CONDITIONAL,
    ),
    fault(
        "uneven",
        "one rank has one batch less, leaves the loop and says that it is done",
        {"tell": {"leave": True}},
        Expect("deadlock", "deadlock/uneven_inputs", "rank", "S4", 10, "rank"),
    ),
    # What failed counts as done in gloo's records: of the peers of one that ended, those that failed look as if they had
    # come and gone, and others wait for them.
    fault(
        "exception",
        "one rank ends by an exception of its own; its peers lose their connections, log that and stay",
        {"tell": {"raise": True}},
        Expect("dead_rank", "dead_rank/exception", "rank", "S4", 10, "rank"),
    ),
    fault(
        "sigkill",
        "one rank is killed (SIGKILL); its peers lose their connections, log that and stay",
        {"signal": int(signal.SIGKILL)},
        Expect("dead_rank", "dead_rank/killed", "rank", "S4", 10, "rank"),
    ),
    fault(
        "sigstop",
        "the process of one rank is stopped (SIGSTOP)",
        {"signal": int(signal.SIGSTOP)},
        # gloo's records tell no members: whoever gave none, and is stopped, may be the one that has not come.
        Expect("stuck_rank", "stuck_rank/stopped", "rank", "S4", 10, "rank"),
    ),
    fault(
        "p2p",
        "one rank leaves out its exchange with a neighbour, who waits in a send or receive that gloo does not record",
        {"tell": {"neglect": True}},
        # The records show one rank that has not come: the neighbour, a victim. Who let it wait, only its stack leads to.
        replace(CANNOT_TELL, or_else=(Expect("deadlock", "", "rank", "S4", 10, "rank"),)),
        paired=True,
        control_plane=True,
    ),
    fault(
        "pipeline",
        "one rank never comes out of a phase of its own; its neighbour waits for it in a send or receive, unrecorded",
        {"tell": {"linger": True}},
        # By the records two have not come. Their stacks tell that one of them waits, and not for certain for whom.
        replace(HOST, or_else=(CANNOT_TELL,)),
        paired=True,
        control_plane=True,
    ),
    fault(
        "tp-dp",
        "one rank never comes out of a phase of its own; its tensor group waits, then the data groups",
        {"tell": {"evaluate": True}},
        HOST,
        control_plane=True,  # without a stack it may as well wait in a receive that gloo does not record
    ),
    fault(
        "save-on-rank0",
        "rank 0 alone saves a checkpoint, which ends in a barrier of a group of its own",
        {"tell": {"save": True}},
        # gloo tells no members: a group that nobody else ever entered is one of a single rank in its records.
        replace(CONDITIONAL, or_else=(CANNOT_TELL,)),
        rank=0,
    ),
    fault(
        "loader",
        "the data loader of one rank gets no batch: its worker waits for a read that does not return",
        {"tell": {"starve": True}},
        Expect(
            "stuck_rank",
            "stuck_rank/host",
            "rank",
            "S4",
            10,
            "rank",
            or_else=(
                Expect("input_stall", "", "rank", "S4", 10, "rank"),
                Expect("input_stall", "", "rank", "S1", 10, "rank"),
            ),
        ),
        control_plane=True,
    ),
    fault(
        "gil",
        "a C call of one rank keeps the GIL: none of its Python threads runs, its control plane answers",
        {"tell": {"seize": True}},
        Expect(
            "deadlock",
            "deadlock/host_lock",
            "rank",
            "S4",
            10,
            "rank",
        ),
        control_plane=True,
    ),
)

TORCH_SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "healthy",
        (
            Fault(
                "none",
                "nothing: the job trains",
                (),
                Expect("healthy", "", "-", "S1", 0, "nobody"),
                shows="steps",
            ),
        ),
    ),
    Scenario("deadlock", WAITS),
)
