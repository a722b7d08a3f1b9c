"""What a fault of a drill is: messages to a node or a rank, and what triage must say of it. The scenarios are made of these.

Pure: a fault is data (scenarios.py, torch_faults.py); `messages` fills it in, `ground_truth` is what really happened.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from triage.drill.plan import Plan
from triage.errors import UsageError

Blame = Literal["nobody", "rank", "cycle", "node", "nic", "path", "fabric"]


@dataclass(frozen=True)
class Expect:
    """What a run of triage against the scenario must end in. `cause` "" = any leaf of the verdict.

    `blame`: nobody; the rank; the rank that exchanges activations with it; its node; the fabric port of its node; a way over the
    network that ends at its node; the network between the halves; or, for a cycle, either the rank alone or all of its cycle as involved. `finding`: the class of a finding that must name the node
    of the rank ("" = none is asked for). `or_else`: what is right as well where the evidence may be less than the truth.
    """

    verdict: str
    cause: str
    culprit_kind: str
    strategy: str
    exit_code: int
    blame: Blame
    finding: str = ""
    or_else: tuple[Expect, ...] = ()


@dataclass(frozen=True)
class Fault:
    """One way to break the job.

    `messages` go to the node of the chosen rank. {"rank": ...} of the kind "tell" or "signal" are for the rank itself; the
    words "SPEED" (--speed) and "SOON" (a step that every rank has still before it) stand for numbers; {"pause": 6.0} lets the job
    go on for so long before the next message. With `everybody` all
    ranks are told; `rank` is the one that it can only be; with `paired` it has a neighbour to exchange activations with.
    """

    name: str
    breaks: str
    messages: tuple[Mapping[str, Any], ...]
    expect: Expect
    shows: Literal["frozen", "slow", "longer", "steps"]  # how it is seen that the fault has come
    needs_ranks_per_node: int = 1
    needs_nodes: int = 1
    everybody: bool = False
    rank: int | None = None
    paired: bool = False
    control_plane: bool = False  # PyTorch's own, in each rank
    half: bool = False  # the first half of the nodes is told, and no rank is chosen
    sockets: bool = False  # the job's payload goes over TCP
    real_cables: bool = False  # backend namespaces alone
    chunk_bytes: int = 2048  # that each hop of a collective carries


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
        raise UsageError(unknown_name(f"fault of {self.name}", name, [fault.name for fault in self.faults]))


def cause(expect: Expect) -> str:
    return expect.cause or f"{expect.verdict}/..."


def messages(fault: Fault, speed: float, soon: int) -> list[dict[str, Any]]:
    """What the node, or each rank, is told: the fault's messages with their numbers filled in."""
    words = {"SPEED": speed, "SOON": soon}

    def fill(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: fill(wish) for name, wish in value.items()}
        return words[value] if isinstance(value, str) and value in words else value

    return [fill(message) for message in fault.messages]


def for_rank(message: Mapping[str, Any]) -> bool:
    """Is the message for a rank (by its launcher), and not for the machine?"""
    return "tell" in message or "signal" in message


def choose(fault: Fault, plan: Plan) -> int:
    """The rank that breaks: the only one that can, or the seed's choice."""
    if fault.rank is not None:
        return fault.rank
    # Of an odd number of ranks the last has no neighbour.
    return random.Random(f"{plan.seed}/rank").randrange(plan.world // 2 * 2 if fault.paired else plan.world)


def ground_truth(scenario: str, fault: Fault, plan: Plan, rank: int | None, at: float) -> dict[str, Any]:
    """What really happened and which answers count as right. Kept on the drill's side, never on a node.

    `culprit` the broken part ({kind, rank, node, nics}; of a way its `ends`, of a fabric its `halves`), or None; `at_node` where it happened; `cycle` the ranks that may be
    named together instead of it (a cycle that nothing separates); `victims` all ranks that may not be named as culprits.
    `or_else`: further answers that are right (each with its verdict, cause, strategy, exit_code, culprit, cycle, victims).
    """
    return {
        "scenario": scenario,
        "fault": fault.name,
        "engine": plan.engine,
        "seed": plan.seed,
        "job": plan.job_id,
        "nodes": list(plan.nodes),
        "finding": fault.expect.finding,
        "at_node": plan.ranks[rank].node if rank is not None else None,
        "broken_rank": rank,
        "at": at,
        **right_answer(fault.expect, plan, rank),
        "or_else": [right_answer(other, plan, rank) for other in fault.expect.or_else],
    }


def right_answer(expect: Expect, plan: Plan, rank: int | None) -> dict[str, Any]:
    """Verdict, culprit and victims by one expectation, with the names of this cluster."""
    ranks = {place.rank: place.node for place in plan.ranks}
    node = ranks[rank] if rank is not None else None
    cycle = plan.tensor_group(node) if node is not None and expect.blame == "cycle" else []
    culprit: dict[str, Any] | None = None
    if rank is not None and expect.blame != "nobody":
        kind = "rank" if expect.blame == "cycle" else expect.blame
        nics = [plan.hca, plan.nic] if kind == "nic" else []
        culprit = {"kind": kind, "rank": rank if kind == "rank" else None, "node": node, "nics": nics}
        if kind == "path":  # in a ring it is one of the two ways that end there
            at, count = plan.nodes.index(plan.ranks[rank].node), len(plan.nodes)
            culprit |= {"kind": "link", "node": None, "ends": [plan.nodes[(at + side) % count] for side in (-1, 0, 1)]}
    if expect.blame == "fabric":
        half = len(plan.nodes) // 2
        halves = [list(plan.nodes[:half]), list(plan.nodes[half:])]
        culprit = {"kind": "fabric", "rank": None, "node": None, "nics": [], "halves": halves}
    innocent = (
        [other for other, home in ranks.items() if home != node]
        if expect.blame in ("node", "nic")
        else [other for other in ranks if other != rank or expect.blame in ("nobody", "path", "fabric")]
    )
    return {
        "verdict": expect.verdict,
        "cause": expect.cause,
        "strategy": expect.strategy,
        "exit_code": expect.exit_code,
        "culprit": culprit,
        "cycle": cycle,
        "victims": [other for other in innocent if other not in cycle],
    }


def check_needs(fault: Fault, nodes: int, ranks_per_node: int) -> None:
    """Raises UsageError for a cluster that is too small for the fault to show."""
    for need, have, what, flag in (
        (fault.needs_nodes, nodes, "nodes", "--nodes"),
        (fault.needs_ranks_per_node, ranks_per_node, "ranks on a node", "--ranks-per-node"),
    ):
        if have < need:
            raise UsageError(f"drill: fault {fault.name} needs {need} {what}: give {flag} {need} or more")


def did_you_mean(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"


def unknown_name(what: str, name: str, known: list[str]) -> str:
    return f"drill: no {what} is called {name}{did_you_mean(name, known)}"
