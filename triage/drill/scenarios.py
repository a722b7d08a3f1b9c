"""The scenarios of `triage drill`: what is broken, and what triage must say of it. One declarative entry each.

A fault is data: messages to the node of a rank that the seed chooses, or to all ranks (see node.py, launcher.py and rank.py
for what they understand). A new scenario is a new entry here; nothing else to register.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from triage.drill.faults import Expect, Fault, Scenario, cause, did_you_mean, unknown_name
from triage.drill.plan import DEFAULT_GROUP, EVAL_GROUP, TENSOR_GROUPS
from triage.errors import UsageError

ENGINES = ("ring", "torch")

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


def find(name: str, engine: str = "ring") -> Scenario:
    """The scenario of that name. Raises UsageError with the nearest name."""
    known = all_of(engine)
    for scenario in known:
        if scenario.name == name:
            return scenario
    what = "scenario" if engine == "ring" else f"scenario of --engine {engine}"
    raise UsageError(unknown_name(what, name, [scenario.name for scenario in known]))
