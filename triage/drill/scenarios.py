"""The scenarios of `triage drill`: what is broken, and what triage must say of it. One declarative entry each.

A fault is data: messages to the node of a rank that the seed chooses, or to all ranks (see node.py, launcher.py and rank.py
for what they understand). A new scenario is a new entry here; nothing else to register.
"""

from __future__ import annotations

import difflib
import random
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from triage.drill.plan import DEFAULT_GROUP, EVAL_GROUP, TENSOR_GROUPS, Plan
from triage.errors import UsageError

Blame = Literal["nobody", "rank", "cycle", "node", "nic", "path", "fabric"]
ENGINES = ("ring", "torch")


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
        raise UsageError(_unknown(f"fault of {self.name}", name, [fault.name for fault in self.faults]))


KILLED = {"signal": int(signal.SIGKILL)}

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "healthy",
        (
            Fault("none", "nothing: the job trains", (), Expect("healthy", "", "-", "S1", 0, "nobody"), shows="steps"),
            Fault(
                "counter",
                "a port counter rises and no cable was cut",
                ({"count_only": True},),
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
                (KILLED,),
                Expect("dead_rank", "dead_rank/killed", "rank", "S4", 10, "rank"),
                shows="frozen",
            ),
        ),
    ),
    Scenario(
        "node-down",
        (
            Fault(
                "down",
                "one node is gone with its ranks; nothing answers at its addresses any more",
                ({"node": "down"},),
                Expect("dead_rank", "dead_rank/node_unreachable", "node", "S4", 10, "node"),
                shows="frozen",
                needs_nodes=3,
            ),
        ),
    ),
    Scenario(
        "management-cut",
        (
            Fault(
                "cut",
                "one node cannot be reached by SSH; its ranks compute on",
                ({"ssh": "down"},),
                Expect("healthy", "", "-", "S1", 0, "nobody", finding="node"),
                shows="steps",
                needs_nodes=2,
            ),
        ),
    ),
    Scenario(
        "link-flap",
        (
            Fault(
                "down",
                "the port of one node loses its link and stays down",
                ({"link": "down"},),
                Expect("link_flap", "link_flap/down_now", "nic", "S4", 10, "nic"),
                shows="frozen",
                needs_nodes=2,
            ),
            Fault(
                "long",
                "the port is down for longer than the transport retries; link is back, the ring never resumes",
                ({"flap": {"for_s": 4.0}},),
                Expect("link_flap", "link_flap/never_failed_back", "nic", "S4", 10, "nic"),
                shows="frozen",
                needs_nodes=2,
            ),
            Fault(
                "short",
                "the port is down for less than the transport retries; the ring resumes",
                ({"flap": {"for_s": 0.3}},),
                Expect("healthy", "", "-", "S1", 0, "nobody", finding="nic"),
                shows="steps",
                needs_nodes=2,
            ),
        ),
    ),
    Scenario(
        "flap-and-death",
        (
            Fault(
                "before",
                "the port of one node flaps and the ring resumes; later one rank of it is killed",
                ({"flap": {"for_s": 0.3}}, {"pause": 8.0}, KILLED),
                Expect("dead_rank", "dead_rank/killed", "rank", "S4", 10, "rank", finding="nic"),
                shows="frozen",
                needs_nodes=2,
            ),
            Fault(
                "after",
                "one rank is killed; later the port of its node flaps, and nobody waits for that",
                (KILLED, {"pause": 8.0}, {"flap": {"for_s": 3.0}}, {"pause": 3.5}),
                Expect("dead_rank", "dead_rank/killed", "rank", "S4", 10, "rank", finding="nic"),
                shows="frozen",
                needs_nodes=2,
            ),
        ),
    ),
    Scenario(
        "network",
        (
            Fault(
                "halves",
                "the fabric falls into two halves; every port has its link, and both halves answer over management",
                ({"bridge": 1},),
                Expect("link_flap", "link_flap/partition", "fabric", "S4", 10, "fabric"),
                shows="frozen",
                needs_nodes=4,
                half=True,
                real_cables=True,
            ),
            Fault(
                "narrow",
                "the fabric's port of one node lets through 20 Mbit/s (tbf), the others what they can",
                ({"shape": ["rate", "20mbit", "burst", "16kb", "latency", "2s"]},),
                Expect(
                    "straggler",
                    "straggler/narrow_path",
                    "link",
                    "S1",
                    10,
                    "path",
                    or_else=(Expect("straggler", "straggler/narrow_link", "nic", "S1", 10, "nic"),),
                ),
                shows="longer",
                needs_nodes=6,
                sockets=True,
                real_cables=True,
                chunk_bytes=32768,
            ),
            Fault(
                "lossy",
                "of what reaches the fabric's port of one node, a fifth is lost (nftables)",
                ({"lose": 20},),
                Expect("straggler", "straggler/lossy_path", "link", "S1", 10, "path"),
                shows="longer",
                needs_nodes=6,
                sockets=True,
                real_cables=True,
                chunk_bytes=32768,
            ),
        ),
    ),
    Scenario(
        "deadlock",
        (
            Fault(
                "order",
                "one rank enters its two groups in the opposite order",
                ({"tell": {"first": DEFAULT_GROUP}},),
                Expect("deadlock", "deadlock/order", "rank", "S4", 10, "cycle"),
                shows="frozen",
                needs_ranks_per_node=2,
            ),
            Fault(
                "missing",
                "one rank leaves out a collective of its tensor group",
                ({"tell": {"skip": TENSOR_GROUPS}},),
                Expect("deadlock", "deadlock/order", "rank", "S4", 10, "cycle"),
                shows="frozen",
                needs_ranks_per_node=2,
            ),
            Fault(
                "conditional",
                "one rank takes another branch, with a collective that no other rank enters",
                ({"tell": {"enter": EVAL_GROUP}},),
                Expect("deadlock", "deadlock/conditional", "rank", "S4", 10, "rank"),
                shows="frozen",
            ),
        ),
    ),
    Scenario(
        "stopped-rank",
        (
            Fault(
                "stopped",
                "the process of one rank is stopped (SIGSTOP)",
                ({"signal": int(signal.SIGSTOP)},),
                Expect("stuck_rank", "stuck_rank/stopped", "rank", "S4", 10, "rank"),
                shows="frozen",
            ),
        ),
    ),
    Scenario(
        "busy",
        (
            Fault(
                "compile",
                "one rank compiles for a minute, all others wait for it; then all goes on",
                ({"tell": {"compile": 60.0}},),
                Expect("busy", "busy/compile", "-", "S1", 0, "nobody"),
                shows="frozen",
            ),
        ),
    ),
    Scenario(
        "finished",
        (
            Fault(
                "teardown",
                "training is done; the processes hang in their teardown",
                ({"tell": {"last": "SOON"}},),
                Expect("busy", "busy/teardown", "-", "S1", 0, "nobody"),
                shows="frozen",
                everybody=True,
            ),
        ),
    ),
    Scenario(
        "straggler",
        (
            Fault(
                "compute",
                "one rank computes at 88 % of the others' speed (--speed)",
                ({"tell": {"pace": "SPEED"}},),
                # Within seconds no overhead is repaid: the arithmetic itself must say "nothing yet".
                Expect("straggler", "straggler/compute", "rank", "S1", 10, "rank"),
                shows="slow",
            ),
        ),
        compute_ms=500.0,
    ),
    Scenario(
        "two-faults",
        (
            Fault(
                "killed",
                "one rank is killed, and at that time a port that the job does not use loses its link on its node",
                ({"spare_flap": {"for_s": 1.0}}, KILLED),
                Expect("dead_rank", "dead_rank/killed", "rank", "S4", 10, "rank", finding="nic"),
                shows="frozen",
            ),
        ),
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
    engine: str = "ring"
    or_else: tuple[str, ...] = ()  # causes that are right as well
    real_cables: bool = False


def all_of(engine: str) -> tuple[Scenario, ...]:
    """The scenarios of an engine. Raises UsageError with the nearest name."""
    if engine == "ring":
        return SCENARIOS
    if engine == "torch":
        from triage.drill.torch_faults import TORCH_SCENARIOS

        return TORCH_SCENARIOS
    raise UsageError(f"drill: no engine is called {engine}{did_you_mean(engine, list(ENGINES))}")


def list_scenarios(engine: str = "ring") -> list[Row]:
    """Every scenario and fault of an engine, in the order of its file."""
    return [
        Row(
            scenario.name,
            fault.name,
            fault.breaks,
            fault.expect.verdict,
            cause(fault.expect),
            fault.expect.culprit_kind,
            fault.expect.strategy,
            fault.expect.exit_code,
            engine,
            tuple(cause(other) for other in fault.expect.or_else),
            fault.real_cables,
        )
        for scenario in all_of(engine)
        for fault in scenario.faults
    ]


def cause(expect: Expect) -> str:
    return expect.cause or f"{expect.verdict}/..."


def find(name: str, engine: str = "ring") -> Scenario:
    """The scenario of that name. Raises UsageError with the nearest name."""
    known = all_of(engine)
    for scenario in known:
        if scenario.name == name:
            return scenario
    what = "scenario" if engine == "ring" else f"scenario of --engine {engine}"
    raise UsageError(_unknown(what, name, [scenario.name for scenario in known]))


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


def _unknown(what: str, name: str, known: list[str]) -> str:
    return f"drill: no {what} is called {name}{did_you_mean(name, known)}"
