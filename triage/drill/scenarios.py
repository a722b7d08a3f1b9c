"""The scenarios of `triage drill`: what is broken, and what triage must say of it. One declarative entry each.

A fault is data: a message to the node of a rank that the seed chooses (see node.py and launcher.py for what they
understand). A new scenario is a new entry here; nothing else to register.
"""

from __future__ import annotations

import difflib
import signal
from dataclasses import dataclass
from typing import Any, Literal

from triage.drill.plan import DEFAULT_GROUP, Plan
from triage.errors import UsageError

Blame = Literal["nobody", "rank", "cycle"]


@dataclass(frozen=True)
class Expect:
    """What a run of triage against the scenario must end in. `cause` "" = any leaf of the verdict.

    `blame`: nobody; the rank; or, for a cycle, either the rank alone or all of its cycle as involved.
    """

    verdict: str
    cause: str
    culprit_kind: str
    strategy: str
    exit_code: int
    blame: Blame


@dataclass(frozen=True)
class Fault:
    """One way to break the job. `message` goes to the node of the chosen rank; "SPEED" in it stands for --speed."""

    name: str
    breaks: str
    message: dict[str, Any]
    expect: Expect
    shows: Literal["frozen", "slow", "steps"]  # how it is seen that the fault has come
    needs_ranks_per_node: int = 1


@dataclass(frozen=True)
class Scenario:
    name: str
    faults: tuple[Fault, ...]  # the first is the one without --fault
    compute_ms: float = 100.0

    def fault(self, name: str) -> Fault:
        """The fault of that name, or the first for "". Raises UsageError with the nearest name."""
        if not name:
            return self.faults[0]
        for fault in self.faults:
            if fault.name == name:
                return fault
        raise UsageError(_unknown(f"fault of {self.name}", name, [fault.name for fault in self.faults]))


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "healthy",
        (
            Fault(
                "none",
                "nothing: the job trains",
                {},
                Expect("healthy", "", "-", "S1", 0, "nobody"),
                shows="steps",
            ),
        ),
    ),
    Scenario(
        "dead-rank",
        (
            Fault(
                "killed",
                "one rank is killed (SIGKILL), the launcher does not end the others",
                {"signal": int(signal.SIGKILL)},
                Expect("dead_rank", "dead_rank/killed", "rank", "S4", 10, "rank"),
                shows="frozen",
            ),
        ),
    ),
    Scenario(
        "deadlock",
        (
            Fault(
                "order",
                "one rank enters its two groups in the opposite order",
                {"tell": {"first": DEFAULT_GROUP}},
                Expect("deadlock", "deadlock/order", "rank", "S4", 10, "cycle"),
                shows="frozen",
                needs_ranks_per_node=2,
            ),
        ),
    ),
    Scenario(
        "straggler",
        (
            Fault(
                "compute",
                "one rank computes at 88 % of the others' speed (--speed)",
                {"tell": {"pace": "SPEED"}},
                # Within seconds no overhead is repaid: the arithmetic itself must say "nothing yet".
                Expect("straggler", "straggler/compute", "rank", "S1", 10, "rank"),
                shows="slow",
            ),
        ),
        compute_ms=500.0,
    ),
)


@dataclass(frozen=True)
class Row:
    """One line of `triage drill --list`."""

    scenario: str
    fault: str
    breaks: str
    verdict: str
    cause: str
    culprit_kind: str
    strategy: str
    exit_code: int


def list_scenarios() -> list[Row]:
    """Every scenario and fault, in the order of this file."""
    return [
        Row(
            scenario.name,
            fault.name,
            fault.breaks,
            fault.expect.verdict,
            fault.expect.cause or f"{fault.expect.verdict}/...",
            fault.expect.culprit_kind,
            fault.expect.strategy,
            fault.expect.exit_code,
        )
        for scenario in SCENARIOS
        for fault in scenario.faults
    ]


def find(name: str) -> Scenario:
    """The scenario of that name. Raises UsageError with the nearest name."""
    for scenario in SCENARIOS:
        if scenario.name == name:
            return scenario
    raise UsageError(_unknown("scenario", name, [scenario.name for scenario in SCENARIOS]))


def message(fault: Fault, rank: int, speed: float) -> dict[str, Any]:
    """What the node of `rank` is told."""
    told = {
        key: ({name: speed if wish == "SPEED" else wish for name, wish in value.items()} if key == "tell" else value)
        for key, value in fault.message.items()
    }
    return {"rank": rank} | told


def ground_truth(scenario: str, fault: Fault, plan: Plan, rank: int | None, at: float) -> dict[str, Any]:
    """What really happened and which answers count as right. Kept on the drill's side, never on a node.

    `culprit` the broken rank, or None; `cycle` the ranks that may be named together instead of it (a cycle that
    nothing separates); `victims` all ranks that may not be named as culprits.
    """
    ranks = {place.rank: place.node for place in plan.ranks}
    cycle = plan.tensor_group(ranks[rank]) if rank is not None and fault.expect.blame == "cycle" else []
    return {
        "scenario": scenario,
        "fault": fault.name,
        "seed": plan.seed,
        "job": plan.job_id,
        "nodes": list(plan.nodes),
        "verdict": fault.expect.verdict,
        "cause": fault.expect.cause,
        "strategy": fault.expect.strategy,
        "exit_code": fault.expect.exit_code,
        "culprit": None if rank is None else {"kind": "rank", "rank": rank, "node": ranks[rank]},
        "cycle": cycle,
        "victims": [other for other in ranks if other != rank and other not in cycle],
        "at": at,
    }


def did_you_mean(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"


def _unknown(what: str, name: str, known: list[str]) -> str:
    return f"drill: no {what} is called {name}{did_you_mean(name, known)}"
