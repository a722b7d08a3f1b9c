"""Names, plans and choices of a drill, and the ring's arithmetic: what needs no cluster."""

from __future__ import annotations

import ast
import json
import random
import re
import socket
import threading
from array import array
from pathlib import Path
from typing import Any

import pytest

from triage.drill import rank as rank_module
from triage.drill.faults import ground_truth, messages
from triage.drill.plan import bare_source, folded, make_plan
from triage.drill.rank import Recorder, Ring
from triage.drill.run import DrillOptions, run_drill
from triage.drill.scenarios import SCENARIOS, find, list_scenarios
from triage.errors import UsageError


def plan(seed: int = 1, **shape: Any) -> Any:
    return make_plan(Path("/tmp/x"), **({"seed": seed, "nodes": 4, "ranks_per_node": 2, "compute_ms": 100} | shape))


def test_the_seed_decides_every_name_and_other_seeds_give_other_names() -> None:
    assert plan(7, now=0.0) == plan(7, now=0.0)
    assert len({plan(seed).nodes for seed in range(50)}) > 45
    assert len({plan(seed).job_id for seed in range(50)}) == 50
    for seed in range(200):
        nodes = plan(seed, nodes=64, ranks_per_node=1).nodes
        assert len(set(nodes)) == 64 and len({len(name) for name in nodes}) == 1


def test_ranks_stand_in_blocks_in_the_order_of_their_nodes() -> None:
    shape = plan(3)
    assert [place.node for place in shape.ranks] == [node for node in shape.nodes for _ in range(2)]
    assert [place.local_rank for place in shape.ranks] == [0, 1] * 4
    groups = shape.groups(shape.ranks[5])
    assert [(group["ranks"], group["each_step"]) for group in groups] == [
        ([4, 5], True), (list(range(8)), True), (list(range(8)), False)
    ]  # fmt: skip
    assert len({group["name"] for place in shape.ranks for group in shape.groups(place)}) == 4 + 2


def test_a_folded_list_unfolds_to_the_same_nodes() -> None:
    from triage.schedulers.hostlist import expand

    for seed in range(60):
        shape = plan(seed, nodes=1 + seed % 12)
        assert tuple(expand(folded(shape.nodes))) == shape.nodes


def test_what_a_node_may_hold_of_the_drill_has_no_comment_and_no_docstring() -> None:
    for name in ("rank.py", "launcher.py", "compiler.py"):
        source = bare_source(name)
        assert "#" not in source and '"""' not in source
        tree = ast.parse(source)
        assert not [node for node in ast.walk(tree) if hasattr(node, "body") and _docstring(node)]
        imported = {
            alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
        } | {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        import sys

        assert imported <= set(sys.stdlib_module_names)


def _docstring(node: ast.AST) -> bool:
    kinds = (ast.Module, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
    return isinstance(node, kinds) and ast.get_docstring(node) is not None


def test_a_mistyped_name_gets_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="did you mean dead-rank"):
        find("dead_rank")
    with pytest.raises(UsageError, match="did you mean order"):
        find("deadlock").fault("ordr")
    with pytest.raises(UsageError, match="known: healthy, dead-rank"):
        find("zzz")
    with pytest.raises(UsageError, match="did you mean dumps"):
        run_drill(DrillOptions(blind=("dump",)), lambda job, inventory, profile, looks: 0)
    with pytest.raises(UsageError, match="did you mean ring"):
        run_drill(DrillOptions(engine="rings"), lambda job, inventory, profile, looks: 0)


def test_what_cannot_be_done_is_refused_before_a_cluster_starts() -> None:
    for wrong in (
        DrillOptions("straggler", speed=1.0),
        DrillOptions("straggler", speed=0.0),
        DrillOptions(after_s=-1),
        DrillOptions("deadlock", ranks_per_node=1),
        DrillOptions("node-down", nodes=2),
        DrillOptions("link-flap", fault="long", nodes=1),
        DrillOptions(nodes=0),
        DrillOptions(backend="namespace"),
    ):
        with pytest.raises(UsageError):
            run_drill(wrong, lambda job, inventory, profile, looks: 0, progress=lambda line: None)


def test_the_list_has_a_row_for_every_fault() -> None:
    rows = list_scenarios()
    assert [(row.scenario, row.fault) for row in rows] == [
        (scenario.name, fault.name) for scenario in SCENARIOS for fault in scenario.faults
    ]
    wanted = {
        "healthy": {("healthy", "S1", 0)},
        "dead-rank": {("dead_rank", "S4", 10)},
        "node-down": {("dead_rank", "S4", 10)},
        "management-cut": {("healthy", "S1", 0)},
        "link-flap": {("link_flap", "S4", 10), ("healthy", "S1", 0)},
        "flap-and-death": {("dead_rank", "S4", 10)},
        "network": {("link_flap", "S4", 10), ("straggler", "S1", 10)},
        "deadlock": {("deadlock", "S4", 10)},
        "stopped-rank": {("stuck_rank", "S4", 10)},
        "busy": {("busy", "S1", 0)},
        "finished": {("busy", "S1", 0)},
        "straggler": {("straggler", "S1", 10)},
        "two-faults": {("dead_rank", "S4", 10)},
    }
    assert {
        name: {(row.verdict, row.strategy, row.exit_code) for row in rows if row.scenario == name} for name in wanted
    } == wanted
    assert {row.scenario for row in rows} == set(wanted)
    assert all(row.breaks and row.culprit_kind and row.cause for row in rows)


def test_the_truth_names_the_broken_rank_its_cycle_and_no_other() -> None:
    shape = plan(1, ranks_per_node=3)
    truth = ground_truth("deadlock", find("deadlock").fault("order"), shape, 4, 0.0)
    assert truth["culprit"] == {"kind": "rank", "rank": 4, "node": shape.nodes[1], "nics": []}
    assert truth["cycle"] == [3, 4, 5] and truth["victims"] == [0, 1, 2, 6, 7, 8, 9, 10, 11]
    assert ground_truth("healthy", find("healthy").fault(""), shape, None, 0.0)["victims"] == list(range(12))
    down = ground_truth("node-down", find("node-down").fault(""), shape, 4, 0.0)
    assert down["culprit"] == {"kind": "node", "rank": None, "node": shape.nodes[1], "nics": []}
    assert down["victims"] == [0, 1, 2, 6, 7, 8, 9, 10, 11]
    cut = ground_truth("management-cut", find("management-cut").fault(""), shape, 4, 0.0)
    assert cut["culprit"] is None and cut["at_node"] == shape.nodes[1] and cut["victims"] == list(range(12))
    flap = ground_truth("link-flap", find("link-flap").fault("long"), shape, 4, 0.0)
    assert flap["culprit"] == {"kind": "nic", "rank": None, "node": shape.nodes[1], "nics": [shape.hca, shape.nic]}


def test_numbers_reach_the_messages() -> None:
    assert messages(find("straggler").fault(""), 0.7, 9) == [{"tell": {"pace": 0.7}}]
    assert messages(find("finished").fault(""), 0.7, 42) == [{"tell": {"last": 42}}]
    assert messages(find("dead-rank").fault(""), 0.7, 9) == [{"signal": 9}]


def test_the_outages_lie_on_both_sides_of_what_the_fabric_retries() -> None:
    flaps = {name: find("link-flap").fault(name).messages[0]["flap"]["for_s"] for name in ("short", "long")}
    budget = plan().budget_s
    # Not by a hair: sleeps of a busy machine are long; and "long" beyond the worst that cards are known to do (x4).
    assert flaps["short"] * 2 < budget < budget * 2 < flaps["long"]


# ---------------------------------------------------------------- the ring, in threads


def wire(size: int) -> list[Ring]:
    """A ring of `size` members over real sockets."""
    group = {"name": "0", "desc": "default_pg", "ranks": list(range(size))}
    rings = [Ring(rank, group, 64, Recorder([group])) for rank in range(size)]
    for rank, ring in enumerate(rings):
        ring.right, rings[(rank + 1) % size].left = socket.socketpair()
    return rings


@pytest.mark.parametrize("size", [2, 3, 8])
def test_the_all_reduce_gives_the_sum_to_every_member(size: int) -> None:
    rng = random.Random(size)
    values = [array("d", (float(rng.randrange(1000)) for _ in range(8 * size))) for _ in range(size)]
    wanted = [sum(column) for column in zip(*values, strict=True)]
    rings = wire(size)
    results: dict[int, list[float]] = {}

    def member(rank: int) -> None:
        for _ in range(3):
            results[rank] = list(rings[rank].all_reduce(values[rank]))

    threads = [threading.Thread(target=member, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert results == dict.fromkeys(range(size), wanted)
    assert all(ring.recorder.completed == {"0": 3} for ring in rings)


@pytest.mark.parametrize("event", ["closed", "reset", "foreign number", "foreign operation", "half a message"])
def test_a_peer_that_went_away_or_is_elsewhere_is_waited_for_for_ever(
    event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Resting(Exception):
        pass

    def rest() -> None:
        raise Resting

    (left, right), (mine, theirs) = socket.socketpair(), socket.socketpair()
    group = {"name": "0", "desc": "default_pg", "ranks": [0, 1]}
    ring = Ring(0, group, 64, Recorder([group]))
    ring.right, ring.left = right, mine
    head = rank_module.HEAD
    if event == "closed":
        theirs.close()
    elif event == "reset":
        left.close()
    elif event == "foreign number":
        theirs.sendall(head.pack(b"all_reduce", 7, 0, 64) + bytes(64))
    elif event == "foreign operation":
        theirs.sendall(head.pack(b"broadcast", 1, 0, 64) + bytes(64))
    else:
        theirs.sendall(head.pack(b"all_reduce", 1, 0, 64) + bytes(10))
        theirs.close()
    monkeypatch.setattr(rank_module, "rest", rest)
    with pytest.raises(Resting):
        ring.all_reduce(array("d", [1.0]) * 16)
    entry = ring.recorder.entries[-1]
    assert (entry["state"], entry["retired"], entry["time_discovered_completed_ns"]) == ("scheduled", False, None)
    assert ring.recorder.enqueued == {"0": 1} and ring.recorder.completed == {"0": 0}


def test_the_ring_of_records_keeps_the_newest_2000_and_their_numbers() -> None:
    import pickle

    groups = [{"name": "0", "desc": "default_pg", "ranks": [0]}]
    recorder = Recorder(groups)
    for _ in range(2300):
        recorder.leave(recorder.enter(groups[0], 4))
    dump = pickle.loads(recorder.dump())
    assert [dump["entries"][at]["record_id"] for at in (0, -1)] == [300, 2299] and len(dump["entries"]) == 2000
    assert len(recorder.dump()) < 400_000


def test_the_options_are_plain_data() -> None:
    assert json.dumps(DrillOptions().__dict__)
    assert DrillOptions().scenario == "dead-rank" and DrillOptions().after_s == 8


def test_the_manual_names_every_scenario_fault_and_source() -> None:
    from triage.drill.plan import BLINDABLE

    page = (Path(__file__).parents[2] / "man" / "triage-drill.1").read_text().replace("\\-", "-")
    for row in list_scenarios():
        assert re.search(rf"^\.BR? {row.scenario}\b", page, re.MULTILINE), row.scenario
        assert row.fault == "none" or re.search(rf"\b{row.fault}\b", page), row.fault
        assert row.cause.rstrip("./") in page and f"exit {row.exit_code}" in page
    for source in BLINDABLE:
        assert f".B {source}\n" in page
