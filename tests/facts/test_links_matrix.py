"""Who reaches whom on the training network: a cut, a node cut off, a rail that is down, and what is none of them."""

import itertools
import random
from dataclasses import replace

import pytest
import written_dumps
from written_dumps import add_dumps, everyone, report
from written_evidence import NOW, World

from triage.facts import matrix
from triage.model import Node

OPEN = ["0 1 all_reduce", "0 2 all_reduce open"]


def address(name, rail=0):
    return f"10.88.{rail}.{int(name[3:])}:22"


def world(nodes=4, rails=1, last_ago=400.0):
    w = World(nodes=nodes)
    told = tuple(Node(n, f"10.1.0.{int(n[3:])}", fabric=tuple(address(n, r) for r in range(rails))) for n in w.names)
    w.job = replace(w.job, nodes=told)
    return w.processes().fabric(0).log(last_ago=last_ago)


def ask(w, joined, rails=1, fail="timeout", pairs=None):
    """Every node tries every other one (or `pairs`); `joined(a, b, rail)`: does that connect come through?"""
    for a in w.names:
        targets = []
        for b in w.names:
            if a == b or (pairs is not None and (a, b) not in pairs):
                continue
            rows = [
                {"address": address(b, r), "result": "open" if joined(a, b, r) else fail, "errno": None}
                for r in range(rails)
            ]
            targets.append({"node": b, "management": [], "fabric": rows})
        w.add("peers", a, "C", {"targets": targets}, at=NOW, received=NOW)
    return w


def halves(a, b, _rail=0):
    return (a <= "gpu002") == (b <= "gpu002")


def alone(name):
    return lambda a, b, _rail=0: name not in (a, b)


def told(w):
    """(partition's parts, nodes cut off)"""
    parts, off = w.fact("links.partition"), w.fact("links.cut_off")
    if not parts.known:
        return parts.reason
    return [part.name for part in parts.parts], [part.node for part in off.parts]


# ---------------------------------------------------------------- the facts


def test_two_halves_that_are_joined_inside_are_a_cut():
    assert told(ask(world(), halves)) == (["gpu001, gpu002 | gpu003, gpu004"], [])


def test_one_node_that_nobody_reaches_is_cut_off():
    assert told(ask(world(), alone("gpu003"))) == ([], ["gpu003"])


def test_where_all_reach_each_other_nothing_is_cut():
    assert told(ask(world(), lambda *_: True)) == ([], [])


def test_where_nobody_reaches_anybody_the_addresses_may_be_wrong():
    assert "wrong, or closed" in told(ask(world(), lambda *_: False))


def test_nothing_is_said_before_the_nodes_were_asked():
    assert "not asked" in told(world())


def test_a_firewall_on_one_node_that_itself_reaches_others_cuts_nothing():
    assert told(ask(world(), lambda a, b, _: b != "gpu003")) == ([], [])


def test_a_node_that_reaches_nobody_but_is_reached_is_not_cut_off():
    assert told(ask(world(), lambda a, b, _: a != "gpu003")) == ([], [])


def test_of_two_nodes_neither_can_be_told_to_be_cut_off():
    assert "wrong, or closed" in told(ask(world(nodes=2), lambda *_: False))


def test_what_the_node_itself_could_not_send_says_nothing_of_the_other():
    assert told(ask(world(), lambda a, b, _: a != "gpu003" and b != "gpu003", fail="local"))[1] == []


def test_a_rail_on_which_nobody_is_reached_is_down_while_the_other_works():
    w = ask(world(rails=2), lambda a, b, rail: rail == 0, rails=2)
    assert told(w) == (["rail 1"], [])


def test_a_cut_of_one_rail_is_named_with_its_rail():
    w = ask(world(rails=2), lambda a, b, rail: rail == 0 or halves(a, b), rails=2)
    assert told(w) == (["gpu001, gpu002 | gpu003, gpu004 on rail 1"], [])


def test_an_address_that_two_nodes_share_joins_nobody():
    w = world()
    nodes = [
        replace(node, fabric=("10.88.0.9:22",)) if node.name in ("gpu001", "gpu004") else node for node in w.job.nodes
    ]
    w.job = replace(w.job, nodes=tuple(nodes))
    for a in w.names:
        row = {"address": "10.88.0.9:22", "result": "open", "errno": None}
        w.add(
            "peers", a, "C", {"targets": [{"node": "gpu004", "management": [], "fabric": [row]}]}, at=NOW, received=NOW
        )
    assert "wrong, or closed" in told(w)


@pytest.mark.parametrize("seed", range(12))
def test_a_ring_and_some_random_pairs_find_every_cut_in_halves_and_invent_none(seed):
    from triage.asking import plan
    from triage.model import Part
    from triage.tree.walk import Request

    rng = random.Random(seed)
    w = world(nodes=40)
    parts = tuple(Part("node", node=name) for name in w.names)
    asked = plan(Request("peers", parts, 0, "frozen-job:cut", {"pairs": 6}), w.evidence())
    pairs = {(a, target["node"]) for a, args in asked.items() for target in args["targets"]}
    assert len(pairs) <= 8 * 40
    left = set(rng.sample(w.names, 20))
    cut = told(ask(w, lambda a, b, _: (a in left) == (b in left), pairs=pairs))[0]
    assert len(cut) == 1 and cut[0].count("|") == 1
    assert told(ask(world(nodes=40), lambda *_: True, pairs=pairs)) == ([], [])


def test_the_parts_are_always_a_partition_of_the_nodes_and_each_is_joined_inside():
    rng = random.Random(7)
    nodes = [f"n{i}" for i in range(9)]
    for _ in range(400):
        tried = [pair for pair in itertools.permutations(nodes, 2) if rng.random() < 0.5]
        group = {node: rng.randrange(3) for node in nodes}
        up = {p for p in tried if group[p[0]] == group[p[1]] and rng.random() < 0.9}
        found = matrix.cut_of(matrix.Tries(None, up, set(tried) - up))
        if found is None:
            continue
        everybody = [node for side in found.sides for node in side] + list(found.alone)
        assert len(everybody) == len(set(everybody))
        for side in found.sides:
            assert len({group[node] for node in side}) == 1 and len(side) > 1
        # Nobody is put apart from one that it reaches.
        where = {node: i for i, side in enumerate(found.sides) for node in side}
        assert not any(where.get(a, a) != where.get(b, b) for a, b in up)


# ---------------------------------------------------------------- the verdicts


def verdict(w, programs=None):
    add_dumps(w, programs or everyone(OPEN))
    return report(w)


def test_a_network_in_two_halves_under_a_frozen_job_is_the_verdict_and_no_node_is_blamed():
    found = verdict(ask(world(), halves))
    assert found.verdict.cause == "link_flap/partition" and found.verdict.confidence == "high"
    assert [part.kind for part in found.culprits] == ["fabric"]
    assert found.mitigation["recommended"]["strategy"] == "S4" and not found.mitigation["restart"]["exclude_nodes"]


def test_a_node_cut_off_under_a_frozen_job_is_named_and_must_be_mended_first():
    found = verdict(ask(world(), alone("gpu003")))
    assert found.verdict.cause == "link_flap/cut_off"
    assert [part.node for part in found.culprits] == ["gpu003"]
    told = found.mitigation["recommended"]
    assert told["strategy"] == "S4" and "without it" in told["fix_first"]


def test_a_cut_is_no_cause_where_a_group_that_stalls_lies_on_one_side(monkeypatch):
    groups = {"0": ("default_pg", list(range(8))), "1": ("TP", [0, 1, 2, 3])}
    monkeypatch.setattr(written_dumps, "GROUPS", groups)
    # Ranks 0 to 3 live on gpu001 and gpu002; the others have nothing open.
    programs = {rank: ["0 1 all_reduce", *(["1 1 all_reduce open"] if rank < 4 else [])] for rank in range(8)}
    w = add_dumps(ask(world(), halves), programs)
    across = w.fact("links.cut_across")
    assert across.value is False and "one side" in across.text
    assert report(w).verdict.id == "inconclusive"


def test_a_job_that_advances_over_closed_ports_is_healthy_and_not_cut():
    w = ask(world(last_ago=0.5), halves)
    w.samples = [s for s in w.samples if s.probe != "nic"]
    w.fabric(10**9)
    found = report(w)
    assert found.verdict.id in ("healthy", "inconclusive") and found.verdict.cause != "link_flap/partition"


def test_without_any_record_a_cut_is_seen_all_the_same_with_less_confidence():
    found = report(ask(world(), halves))
    assert found.verdict.cause == "link_flap/partition" and found.verdict.confidence in ("medium", "low")
