"""Whom does a costly probe ask, and what is it told there?"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from facts.written_evidence import World

from triage import investigate
from triage.asking import ASKED, MOST_TARGETS, plan, spread, whom
from triage.incidents import Who
from triage.ledger import Ledger
from triage.model import Fact, Node, Part, Sample
from triage.readers.shapes import checked
from triage.tree.walk import Request


def world(*silent, nodes=8, fabric=True):
    w = World(nodes=nodes)
    w.skip_nodes = set(silent)
    w.job = replace(
        w.job,
        nodes=tuple(
            Node(name, f"10.1.0.{i}", port=2200 + i, fabric=(f"10.88.0.{i}:22",) if fabric else ())
            for i, name in enumerate(w.names)
        ),
    )
    return w.processes()


def request(probe, *parts, peers=0, **args):
    return Request(probe, parts, peers, "frozen-job:q", args)


def nodes(*names):
    return [Part("node", node=name) for name in names]


def ranks(*numbers):
    return [Part("rank", node=f"gpu{rank // 2 + 1:03d}", rank=rank) for rank in numbers]


def asked(told, node):
    """The nodes that `node` is to try, in their order."""
    return [target["node"] for target in told[node]["targets"]]


# ---------------------------------------------------------------- whom


def test_the_suspects_that_answer_are_asked_and_peers_over_the_whole_job():
    w = world("gpu003")
    assert whom(request("stacks", *ranks(2, 3, 4), peers=3), w.evidence()) == ["gpu002", "gpu001", "gpu005", "gpu008"]


def test_without_peers_only_suspects_are_asked():
    assert whom(request("stacks", *ranks(2, 15)), world().evidence()) == ["gpu002", "gpu008"]


def test_of_a_silent_node_its_peers_are_asked_and_never_itself():
    assert whom(request("peers", *nodes("gpu003"), peers=3), world("gpu003").evidence()) == [
        "gpu001", "gpu005", "gpu008",
    ]  # fmt: skip


def test_a_node_that_went_silent_between_the_looks_is_no_peer():
    w = world("gpu003")
    w.samples = [
        replace(s, status="timeout", data={}) if s.node == "gpu001" and s.look == "B" else s for s in w.samples
    ]
    assert whom(request("peers", *nodes("gpu003"), peers=2), w.evidence()) == ["gpu002", "gpu008"]


def test_where_nobody_answers_nobody_is_asked():
    w = world(*(f"gpu{i:03d}" for i in range(1, 9)))
    assert plan(request("peers", *nodes("gpu003"), peers=3), w.evidence()) == {}


def test_a_rank_of_unknown_place_is_asked_nowhere():
    assert plan(request("activity", Part("rank", rank=4)), world().evidence()) == {}


@pytest.mark.parametrize(
    "count, chosen",
    [(-1, ""), (0, ""), (1, "a"), (2, "ag"), (3, "adg"), (4, "aceg"), (7, "abcdefg"), (9, "abcdefg")],
)
def test_a_spread_takes_the_first_the_last_and_evenly_between(count, chosen):
    assert "".join(spread("abcdefg", count)) == chosen
    assert spread("", count) == []


# ---------------------------------------------------------------- what they are told


def test_a_peer_is_told_the_silent_nodes_and_two_that_answer_as_controls():
    told = plan(request("peers", *nodes("gpu003", "gpu004"), peers=3), world("gpu003", "gpu004").evidence())
    assert sorted(told) == ["gpu001", "gpu005", "gpu008"]
    assert asked(told, "gpu001") == ["gpu002", "gpu008", "gpu003", "gpu004"]
    assert asked(told, "gpu008") == ["gpu001", "gpu007", "gpu003", "gpu004"]
    assert told["gpu001"]["targets"][2] == {
        "node": "gpu003", "management": ["10.1.0.2:2202"], "fabric": ["10.88.0.2:22"],
    }  # fmt: skip
    assert told["gpu001"]["timeout_s"] == ASKED["peers"].defaults["timeout_s"]


def test_a_peer_that_is_a_suspect_is_told_of_the_others_and_not_of_itself():
    told = plan(request("peers", *nodes("gpu002", "gpu003")), world("gpu003").evidence())
    assert list(told) == ["gpu002"]
    assert "gpu002" not in asked(told, "gpu002") and asked(told, "gpu002")[-1] == "gpu003"


def test_nodes_without_a_fabric_address_are_no_controls_and_come_last_among_the_suspects():
    w = world("gpu003", "gpu004")
    bare = {"gpu001", "gpu003", "gpu008"}
    w.job = replace(w.job, nodes=tuple(replace(n, fabric=()) if n.name in bare else n for n in w.job.nodes))
    told = plan(request("peers", *nodes("gpu003", "gpu004"), peers=2), w.evidence())
    assert asked(told, "gpu001") == ["gpu002", "gpu007", "gpu004", "gpu003"]


def test_no_peer_is_told_more_than_the_probe_takes():
    w = World(nodes=100, per_node=1)
    w.skip_nodes = set(w.names[10:])
    w.job = replace(w.job, nodes=tuple(replace(n, fabric=(f"{n.name}-ib:22",)) for n in w.job.nodes))
    told = plan(request("peers", *nodes(*w.names[10:]), peers=3), w.processes().evidence())
    assert {len(args["targets"]) for args in told.values()} == {MOST_TARGETS}


def test_an_address_of_many_colons_is_told_in_brackets():
    w = world("gpu003")
    w.job = replace(w.job, nodes=tuple(replace(n, address="fd00::3") if n.name == "gpu003" else n for n in w.job.nodes))
    told = plan(request("peers", *nodes("gpu003"), peers=1), w.evidence())
    assert told["gpu001"]["targets"][-1]["management"] == ["[fd00::3]:2202"]


def test_what_a_peer_answers_to_its_arguments_is_what_the_facts_judge():
    w = world("gpu003")
    for node, args in plan(request("peers", *nodes("gpu003"), peers=3), w.evidence()).items():
        targets = [
            {
                "node": target["node"],
                **{
                    side: [{"address": a, "result": "timeout" if target["node"] == "gpu003" else "refused"} for a in target[side]]
                    for side in ("management", "fabric")
                },
            }
            for target in args["targets"]
        ]  # fmt: skip
        assert checked(Sample("peers", node, "C", "ok", {"targets": targets})).status == "ok"
        w.add("peers", node, "C", {"targets": targets})
    blind = w.fact("hosts.peers_blind")
    assert [part.node for part in blind.parts] == ["gpu003"]
    assert blind.parts[0].why == "gpu001, gpu005, gpu008 reach others, but not 10.88.0.2:22"


def test_activity_is_told_the_suspected_ranks_and_of_a_peer_all():
    told = plan(request("activity", *ranks(2), peers=1), world().evidence())
    assert told == {
        "gpu002": {"window_s": 1.5, "ranks": [{"rank": 2, "pid": 1002}]},
        "gpu001": {"window_s": 1.5, "ranks": [{"rank": 0, "pid": 1000}, {"rank": 1, "pid": 1001}]},
    }


def test_activity_is_not_asked_of_ranks_that_are_gone():
    w = World()
    w.dead = {2: "A", 3: "A"}
    told = plan(request("activity", *ranks(0, 2, 3)), w.processes().evidence())
    assert list(told) == ["gpu001"]


def test_the_playbook_overrides_a_default_and_never_what_the_evidence_says():
    told = plan(request("activity", *ranks(2), window_s=3.0, ranks=[]), world().evidence())
    assert told["gpu002"] == {"window_s": 3.0, "ranks": [{"rank": 2, "pid": 1002}]}


def test_a_probe_without_an_entry_gets_the_playbooks_arguments():
    told = plan(request("storage", *ranks(2), deep=True), world().evidence())
    assert told == {"gpu002": {"deep": True}}


# ---------------------------------------------------------------- the investigation that asks


class Fleet:
    """Remembers what was asked, and answers what it was told to."""

    def __init__(self, *answers):
        self.asked, self.answers = [], list(answers)

    def ask(self, probe, names, args=None, *, args_by_node=None, limit_s, look="C"):
        self.asked.append((probe, sorted(names), dict(args_by_node or {})))
        return self.answers


def run_of(w, tmp_path):
    return SimpleNamespace(
        asked=[], pokes=0, job=w.job, evidence=w.evidence, left=lambda: 30.0,
        options=SimpleNamespace(poke=True, say=lambda line: None), ledger=Ledger("", Who("", "", "")),
        writer=SimpleNamespace(folder=tmp_path / "cases" / "one"),
    )  # fmt: skip


def outcome(advancing=False):
    facts = {name: Fact(name, None) for name in ("progress.onset", "job.attempt")}
    return SimpleNamespace(facts={**facts, "progress.advancing": Fact("progress.advancing", advancing)})


def test_the_peers_of_a_silent_node_are_asked_about_it(tmp_path):
    fleet, run = Fleet(), run_of(world("gpu003"), tmp_path)
    investigate._ask(run, fleet, request("peers", *nodes("gpu003"), peers=3), outcome())
    [(probe, names, args)] = fleet.asked
    assert (probe, names) == ("peers", ["gpu001", "gpu005", "gpu008"])
    assert all("poke" not in told for told in args.values())
    assert run.asked == ["peers"]


def test_a_probe_that_nobody_can_answer_is_not_asked_again(tmp_path):
    fleet, run = Fleet(), run_of(world("gpu003"), tmp_path)
    investigate._ask(run, fleet, request("stacks", *nodes("gpu003")), outcome())
    assert (fleet.asked, run.asked) == ([], ["stacks"])


@pytest.mark.parametrize("advancing, poke", [(False, True), (True, False), (None, False)])
def test_the_flight_recorders_are_poked_only_where_progress_is_answered_no(advancing, poke, tmp_path):
    fleet, run = Fleet(), run_of(world(), tmp_path)
    investigate._ask(run, fleet, request("flight_recorder", *ranks(2, 3), poke=True), outcome(advancing))
    [(_, _, args)] = fleet.asked
    assert args["gpu002"] == {
        "wait_s": 6.0, "poke": poke, "ranks": [{"rank": 2, "pid": 1002}, {"rank": 3, "pid": 1003}],
    }  # fmt: skip


@pytest.mark.parametrize("told", [None, 5, [5, None, "x"], [{"poke": "written"}, {"poke": "no"}]])
def test_only_records_that_say_so_count_as_pokes(told, tmp_path):
    answer = Sample("flight_recorder", "gpu002", "C", "ok", {"ranks": told})
    liar = Sample("stacks", "gpu001", "C", "ok", {"ranks": [{"poke": "written"}]})
    run = run_of(world(), tmp_path)
    investigate._ask(run, Fleet(answer, liar), request("flight_recorder", *ranks(2)), outcome())
    assert run.pokes == (1 if isinstance(told, list) and isinstance(told[0], dict) else 0)


# ---------------------------------------------------------------- stacks


def test_the_suspects_ranks_are_looked_at_and_of_each_peers_node_one_rank():
    told = plan(request("stacks", *ranks(4), peers=2), world().evidence())
    assert told == {
        "gpu003": {"ranks": [{"rank": 4, "pid": 1004}]},
        "gpu001": {"ranks": [{"rank": 0, "pid": 1000}]},
        "gpu008": {"ranks": [{"rank": 14, "pid": 1014}]},
    }


def test_where_all_ranks_live_on_the_suspects_node_its_others_are_the_peers():
    w = World(nodes=1)
    w.per_node = 8
    told = plan(request("stacks", Part("rank", node="gpu001", rank=5), peers=2), w.processes().evidence())
    assert [row["rank"] for row in told["gpu001"]["ranks"]] == [5, 0, 1]


def test_no_other_rank_of_a_suspects_node_is_looked_at_where_other_nodes_have_peers():
    told = plan(request("stacks", *ranks(4, 5), peers=2), world().evidence())
    assert [row["rank"] for row in told["gpu003"]["ranks"]] == [4, 5]


def test_a_suspect_without_a_process_is_not_looked_at_in_place_of_its_neighbour():
    w = World(nodes=8)
    w.dead = {4: "A"}
    told = plan(request("stacks", *ranks(4), peers=2), w.processes().evidence())
    assert "gpu003" not in told and set(told) == {"gpu001", "gpu008"}


# ---------------------------------------------------------------- a network that may be cut


def test_of_a_small_job_every_node_tries_every_other_one_on_the_fabric_alone():
    told = plan(request("peers", *ranks(*range(16)), pairs=6), world("gpu003").evidence())
    assert sorted(told) == sorted({f"gpu{i:03d}" for i in range(1, 9)} - {"gpu003"})
    assert sorted(asked(told, "gpu002")) == ["gpu001", "gpu004", "gpu005", "gpu006", "gpu007", "gpu008"]
    assert not any(target["management"] for args in told.values() for target in args["targets"])


def test_of_a_large_job_each_tries_its_neighbours_and_a_few_more_the_same_in_every_run():
    w = world(nodes=400)
    told = plan(request("peers", *nodes(*w.names), pairs=6), w.evidence())
    assert len(told) == 400 and max(len(args["targets"]) for args in told.values()) <= 8
    assert asked(told, "gpu400")[:2] == ["gpu001", "gpu002"] and "gpu400" not in asked(told, "gpu400")
    assert told == plan(request("peers", *nodes(*w.names), pairs=6), w.evidence())
    # Nobody is left to its neighbours: all of them are tried by others of the job as well.
    tried = {target["node"] for args in told.values() for target in args["targets"][2:]}
    assert len(tried) > 380


def test_without_fabric_addresses_or_with_two_nodes_nobody_is_asked_for_a_cut():
    w = world(fabric=False)
    assert plan(request("peers", *nodes(*w.names), pairs=6), w.evidence()) == {}
    w = world(nodes=2)
    assert plan(request("peers", *nodes(*w.names), pairs=6), w.evidence()) == {}


# ---------------------------------------------------------------- GPUs that hang


def gpu(node, *statuses, look="A", status="ok"):
    rows = [{"bdf": f"0000:{i:02x}:00.0", "status": one} for i, one in enumerate(statuses)]
    return checked(Sample("gpu", node, look, status, data={"nvml": "ok", "gpus": rows}))


def test_a_gpu_that_hung_once_is_not_asked_again_by_the_second_look_nor_by_a_question():
    w = world()
    w.samples += [
        gpu("gpu002", "ok", "hung", "lost"),
        gpu("gpu003", "ok", "ok"),
        gpu("gpu001", "hung", status="timeout"),
    ]
    told = investigate._without_hung_gpus(SimpleNamespace(samples=w.samples))
    assert told == {"gpu002": {"gpu": {"skip": ["0000:01:00.0"]}}}
    # A question's own arguments stand, but not against this.
    told = plan(request("gpu", *nodes("gpu002"), peers=1, window_s=6, skip=[]), w.evidence())
    assert told["gpu002"] == {"window_s": 6, "skip": ["0000:01:00.0"]}
    assert [args["skip"] for node, args in told.items() if node != "gpu002"] == [[]]
