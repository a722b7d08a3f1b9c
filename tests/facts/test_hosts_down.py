"""Which silent node is gone? Only by the rule of DESIGN section 2 (Silence): whoever is merely silent is not accused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_settle import cases
from written_dumps import report
from written_evidence import NOW, World, exit_line
from written_silence import LATE, OPEN, address, ask, down, dumps, gone, nodes_of, recorded, world

from triage.facts.collectives import decode
from triage.facts.ordertrail import overtakers
from triage.facts.settle import settle

# ---------------------------------------------------------------- the rule itself


def test_a_silent_node_that_no_peer_reaches_and_whose_ranks_all_others_wait_for_is_gone():
    w = gone(dumps(world("gpu003")))
    told = w.fact("hosts.down")
    assert nodes_of(told) == ["gpu003"] and told.contradicted_by == ()
    assert "wait for its ranks 4, 5" in told.parts[0].why and "10.88.0.3:22" in told.parts[0].why
    assert {p.probe for p in told.provenance} == {"peers", "flight_recorder", "contact"}
    assert (nodes_of(w.fact("hosts.peers_blind")), w.fact("hosts.peers_see").value) == (["gpu003"], 0)


def test_an_address_without_a_route_back_is_in_vain_as_a_time_out_is():
    w = dumps(world("gpu003"))
    for peer in ("gpu001", "gpu002"):
        ask(w, peer, {"gpu003": "unreachable"})
    assert down(w) == ["gpu003"]


def test_where_every_node_answers_none_is_gone():
    assert (world().fact("hosts.down").value, world().fact("hosts.silent").value) == (0, 0)
    assert world().fact("hosts.same_phase").value is False


def test_without_any_contact_nothing_is_known_of_the_nodes():
    w = world("gpu003")
    w.samples = [s for s in w.samples if s.probe != "contact"]
    for name in ("silent", "down", "peers_see", "peers_blind", "same_phase"):
        assert w.fact(f"hosts.{name}").reason == "no node was asked"


# ---------------------------------------------------------------- traps: who must not be accused


def test_a_cut_management_network_accuses_nobody_while_the_job_advances():
    w = world("gpu003", frozen=False)
    for peer in ("gpu001", "gpu002"):
        ask(w, peer, {"gpu003": "open"})
    assert "only if the job stands still" in down(w)
    assert nodes_of(w.fact("hosts.peers_see")) == ["gpu003"]


@pytest.mark.parametrize("result", ["open", "refused"])
def test_a_node_whose_fabric_a_peer_reaches_is_not_gone_although_the_job_stands(result):
    w = gone(dumps(world("gpu003", states={"gpu003": "down*"})))
    ask(w, "gpu002", {"gpu003": result})
    assert "gpu002 reaches 10.88.0.3:22" in down(w) and "its kernel lives" in down(w)
    assert (nodes_of(w.fact("hosts.peers_see")), w.fact("hosts.peers_blind").value) == (["gpu003"], 0)


def test_one_peer_that_lies_of_a_time_out_is_outweighed_by_one_that_gets_through():
    w = dumps(world("gpu003"))
    ask(w, "gpu001", {"gpu003": "timeout"})
    ask(w, "gpu002", {"gpu003": "open"})
    ask(w, "gpu004", {"gpu003": "timeout"})
    assert "its kernel lives" in down(w)


def test_not_even_peers_accuse_while_progress_is_unknown_or_goes_on():
    w = gone(dumps(world("gpu003", frozen=False)))
    assert "only if the job stands still" in down(w)
    w.samples = [s for s in w.samples if s.probe not in ("joblog", "nic")]
    assert w.fact("progress.advancing").value is None
    assert "only if the job stands still" in down(w)


def test_a_dead_rank_elsewhere_is_what_the_others_wait_for_and_the_silent_node_is_innocent():
    w = World()
    w.dead = {1: "A"}
    base = world("gpu003")
    w.skip_nodes, w.job = base.skip_nodes, base.job
    w.processes().fabric(0).log(last_ago=100, hits=[exit_line(4001, -9, 1, NOW - 99.5)])
    gone(dumps(w, r1=None))
    assert "rank 1 is waited for and lives on gpu001, which answered" in down(w)


def test_a_rank_elsewhere_that_has_not_come_is_what_the_others_wait_for():
    assert "lives on gpu002, which answered" in down(gone(dumps(world("gpu003"), r2=LATE)))


def test_a_survivor_without_a_record_might_be_it_too():
    assert "rank 0 is waited for and lives on gpu001" in down(gone(dumps(world("gpu003"), r0=None)))


def test_survivors_whose_calls_differ_explain_the_stall_without_the_silent_node():
    w = gone(dumps(world("gpu003"), r1=["0 1 all_reduce", "0 2 broadcast open"]))
    assert w.fact("waits.mismatch").parts
    assert "differ at one place" in down(w)


def test_survivors_in_a_circle_explain_the_stall_without_the_silent_node():
    w = gone(dumps(world("gpu003"), r0=["0 1 all_reduce", "1 1 all_reduce open"]))
    assert nodes_of(w.fact("waits.cycle")) == ["gpu001", "gpu001"]
    assert "show a circle" in down(w)


def test_a_survivor_that_passed_by_what_it_owed_a_silent_rank_may_be_half_of_a_circle():
    """Rank 0 has left out its exchange with rank 4, which all other pairs made: rank 4 may wait for it there."""
    pairs = {str(n + 1): ("PP", [n, n + 4]) for n in range(4)}
    groups = {"0": ("default_pg", list(range(8))), **pairs}
    programs = {rank: [OPEN[0], f"{rank % 4 + 1} 1 all_reduce", OPEN[1]] for rank in (0, 1, 2, 3, 6, 7)}
    assert down(gone(recorded(world("gpu003"), programs, groups))) == ["gpu003"]
    told = down(gone(recorded(world("gpu003"), {**programs, 0: OPEN}, groups)))
    assert "rank 0 " in told and "it may be a circle" in told


def test_an_honest_death_of_a_whole_node_is_never_taken_for_half_of_a_circle():
    """Random jobs (TP x PP x DP) of which a node of 4 ranks is dead: the one road that asks for order must not close."""
    seen = 0
    for _, job, fault, guilty, records in cases(60):
        if fault != "dead" or job.ranks < 12:
            continue
        first = 4 * (guilty // 4)
        lost = set(range(first, min(first + 4, job.ranks)))
        left = decode({rank: made for rank, made in records.items() if rank not in lost}, job.ranks)
        picture = settle(left, {}, {})
        waiting = {rank: unit.key for rank, unit in picture.waiting.items()}
        assert picture.possible <= lost and not picture.roots
        assert overtakers(left, waiting, sorted(lost)) == {}
        seen += bool(picture.possible)
    assert seen >= 3


def test_no_record_tells_whom_the_others_wait_for_so_peers_alone_accuse_nobody():
    assert "nothing points at its ranks" in down(gone(world("gpu003")))


def test_a_node_whose_fabric_is_not_known_cannot_be_accused_by_silence():
    w = gone(dumps(world("gpu003", fabric=False)))
    assert "no fabric address of it is known" in down(w)
    assert "no fabric address" in w.fact("hosts.peers_see").reason
    assert "no fabric address" in w.fact("hosts.peers_blind").reason


def test_where_no_peer_could_be_asked_nobody_is_accused():
    w = dumps(world("gpu003"))
    assert "no peer was asked about it" in down(w)
    w.add("peers", "gpu001", "C", {}, status="timeout")
    assert "or none answered" in down(w)
    assert "or none answered" in w.fact("hosts.peers_see").reason


def test_the_management_side_alone_tells_nothing_of_the_fabric():
    w = dumps(world("gpu003"))
    for peer in ("gpu001", "gpu002"):
        ask(w, peer, {"gpu003": []})
    assert "no peer tried its fabric address" in down(w)


def test_a_peer_that_reaches_no_other_node_either_may_have_lost_its_own_fabric():
    w = ask(dumps(world("gpu003")), "gpu001", {"gpu003": "timeout"}, controls="timeout")
    assert "gpu001) reach no other node either" in down(w)
    assert w.fact("hosts.peers_blind").value is None
    ask(w, "gpu002", {"gpu003": "timeout"})
    ask(w, "gpu004", {"gpu003": "timeout"})
    assert down(w) == ["gpu003"]


def test_a_peer_that_was_given_no_control_proves_nothing():
    w = dumps(world("gpu003"))
    target = {"node": "gpu003", "management": [], "fabric": [{"address": address("gpu003"), "result": "timeout"}]}
    for peer in ("gpu001", "gpu002"):
        w.add("peers", peer, "C", {"targets": [target]})
    assert "reach no other node either" in down(w)


@pytest.mark.parametrize("control", [("gpu001", "gpu001"), ("gpu002", "gpu001"), ("gpu002", "gpu009")])
def test_a_peer_is_no_control_of_itself_whatever_it_calls_the_address(control):
    name, of = control
    w = dumps(world("gpu003"))
    rows = [
        {"node": name, "fabric": [{"address": address(of), "result": "open"}]},
        {"node": "gpu003", "fabric": [{"address": address("gpu003"), "result": "timeout"}]},
    ]
    w.add("peers", "gpu001", "C", {"targets": rows})
    assert "reach no other node either" in down(w)


def test_an_inventory_that_gives_two_nodes_one_address_makes_no_peer_its_own_control():
    w = dumps(world("gpu003"))
    same = address("gpu001")
    w.job = replace(w.job, nodes=tuple(replace(n, fabric=(same,)) if n.name == "gpu002" else n for n in w.job.nodes))
    rows = [
        {"node": "gpu002", "fabric": [{"address": same, "result": "open"}]},
        {"node": "gpu003", "fabric": [{"address": address("gpu003"), "result": "timeout"}]},
    ]
    w.add("peers", "gpu001", "C", {"targets": rows})
    assert "reach no other node either" in down(w)


@pytest.mark.parametrize("result", ["resolve", "bad_address", "local", "", "a word of tomorrow"])
def test_a_try_that_never_left_the_peer_is_neither_reach_nor_silence(result):
    w = dumps(world("gpu003"))
    for peer in ("gpu001", "gpu002", "gpu004"):
        ask(w, peer, {"gpu003": result})
    assert "no peer that reaches others tried all" in down(w)
    assert w.fact("hosts.peers_blind").value is None


def test_one_rail_in_vain_is_no_dead_node():
    w = dumps(world("gpu003", rails=2))
    ask(w, "gpu001", {"gpu003": ["timeout", "open"]})
    ask(w, "gpu002", {"gpu003": ["timeout"]})
    assert "its kernel lives" in down(w)
    w = dumps(world("gpu003", rails=2))
    ask(w, "gpu002", {"gpu003": ["timeout"]})
    assert "tried all of its fabric addresses" in down(w)
    ask(w, "gpu001", {"gpu003": ["timeout", "unreachable"]})
    ask(w, "gpu004", {"gpu003": ["timeout", "unreachable"]})
    assert down(w) == ["gpu003"]


def test_an_address_that_is_not_the_nodes_says_nothing_of_it():
    w = dumps(world("gpu003"))
    for peer in ("gpu001", "gpu002"):
        ask(w, peer, {})
        w.samples[-1].data["targets"].append(
            {"node": "gpu003", "fabric": [{"address": "10.99.0.3:22", "result": "timeout"}]}
        )
    assert "no peer tried its fabric address" in down(w)


def test_a_silent_nodes_own_word_from_before_is_not_asked_for():
    w = dumps(world("gpu003"))
    ask(w, "gpu003", {"gpu003": "timeout", "gpu001": "open"})
    moved = w.samples.pop()
    w.samples.insert(0, moved)  # it answered once, and then was silent
    assert "no peer was asked" in down(w)


# ---------------------------------------------------------------- kernels that live


@pytest.mark.parametrize(
    "phase, error",
    [
        ("tcp", "Connection refused"),
        ("banner", "no SSH banner within 6.0 s"),
        ("auth", "no end of the login within 8.0 s"),
        ("exec", "the command is not started"),
    ],
)
def test_a_kernel_that_refuses_or_takes_our_connection_lives_whatever_the_scheduler_says(phase, error):
    w = dumps(world("gpu003", phase=phase, error=error, states={"gpu003": "down"}))
    assert "no peer was asked about it" in down(w)
    w = world("gpu003", phase=phase, error=error, states={"gpu003": "down"})
    assert not isinstance(down(w), list)
    told = gone(dumps(w)).fact("hosts.down")
    assert nodes_of(told) == ["gpu003"]  # its fabric is gone by all peers; that its kernel lives is held against it
    assert len(told.contradicted_by) == 1 and "kernel of gpu003" in told.contradicted_by[0]


def test_a_kernel_that_answers_the_peers_on_the_management_side_is_held_against_its_death():
    w = dumps(world("gpu003", states={"gpu003": "down"}))
    for peer in ("gpu001", "gpu002"):
        ask(w, peer, {"gpu003": "timeout"}, management="open")
    told = w.fact("hosts.down")
    assert nodes_of(told) == ["gpu003"]
    assert "gpu001 reaches 10.1.0.3:22" in told.contradicted_by[0]


def test_one_peer_alone_is_believed_with_a_reservation():
    w = ask(dumps(world("gpu003")), "gpu001", {"gpu003": "timeout"})
    told = w.fact("hosts.down")
    assert nodes_of(told) == ["gpu003"] and "only peer" in told.contradicted_by[0]


def test_a_rank_that_waits_for_nothing_is_held_against_the_death_of_a_node():
    w = world("gpu003")
    lines = {rank: [LATE[0], "1 1 all_reduce open"] if rank in (2, 3) else LATE for rank in (0, 1, 2, 3, 6, 7)}
    recorded(w, lines, {"0": ("default_pg", list(range(8))), "1": ("DP", [2, 3, 4, 5])})
    told = gone(w).fact("hosts.down")
    assert (nodes_of(told), told.contradicted_by) == (["gpu003"], ("a rank that answered and waits for nothing",))


# ---------------------------------------------------------------- several silent nodes


def test_two_nodes_are_gone_if_both_are_waited_for_and_reached_by_no_peer():
    assert down(gone(dumps(world("gpu002", "gpu003")))) == ["gpu002", "gpu003"]


def test_two_that_are_waited_for_and_one_of_them_lives_accuse_nobody():
    w = dumps(world("gpu002", "gpu003"))
    for peer in ("gpu001", "gpu004"):
        ask(w, peer, {"gpu002": "refused", "gpu003": "timeout"})
    assert down(w).startswith("gpu002 hosts rank 2, which is waited for")
    assert nodes_of(w.fact("hosts.peers_blind")) == ["gpu003"]


def test_a_silent_node_whose_ranks_nobody_waits_for_is_no_culprit():
    # The survivors have nothing open at all.
    w = dumps(world("gpu002", "gpu004"), dict.fromkeys((0, 1, 4, 5), LATE))
    told = gone(w).fact("hosts.down")
    assert told.value is None and "point at no rank of a silent node" in told.reason


def test_a_node_that_is_silent_and_not_waited_for_is_left_out_beside_one_that_is():
    w = world("gpu003", "gpu004")
    groups = {"0": ("default_pg", list(range(8))), "1": ("DP", [0, 1, 2, 3, 4, 5])}
    recorded(w, {rank: [LATE[0], "1 1 all_reduce open"] for rank in range(4)}, groups)
    assert down(gone(w)) == ["gpu003"]
    assert sorted(nodes_of(w.fact("hosts.peers_blind"))) == ["gpu003", "gpu004"]


# ---------------------------------------------------------------- what the report makes of it


def culprits(w):
    told = report(w)
    return told.verdict.cause, [(c.kind, c.node) for c in told.culprits]


def test_the_report_names_the_node_that_is_gone_and_says_what_speaks_for_it():
    told = report(gone(dumps(world("gpu003"))))
    assert (told.verdict.cause, told.verdict.confidence, told.exit_code) == ("dead_rank/node_unreachable", "high", 10)
    assert [(c.kind, c.role, c.node) for c in told.culprits] == [("node", "culprit", "gpu003")]
    assert {v.rank for v in told.victims} == {0, 1, 2, 3, 6, 7}
    assert told.mitigation["recommended"]["strategy"] == "S4"
    assert told.mitigation["restart"]["exclude_nodes"] == ["gpu003"]


@pytest.mark.parametrize("trap", ["seen", "shared", "deaf", "unasked", "elsewhere", "no fabric"])
def test_the_report_accuses_no_silent_node_by_its_silence(trap):
    w = world(*(("gpu003", "gpu002") if trap == "shared" else ("gpu003",)), fabric=trap != "no fabric",
              phase="auth" if trap == "shared" else "tcp")  # fmt: skip
    w = dumps(w, r2=LATE) if trap == "elsewhere" else dumps(w)
    if trap == "seen":
        ask(w, "gpu001", {"gpu003": "refused"})
    elif trap == "deaf":
        ask(w, "gpu001", {"gpu003": "timeout"}, controls="timeout")
    elif trap != "unasked":
        gone(w)
    cause, accused = culprits(w)
    assert cause != "dead_rank/node_unreachable"
    assert ("node", "gpu003") not in accused and not {n for _, n in accused} & w.skip_nodes


def test_a_frozen_job_whose_silent_node_is_reached_by_its_peers_is_told_not_to_restart_for_that():
    """Management alone is cut: the node computes, or waits as the others do."""
    w = dumps(world("gpu003"))
    for peer in ("gpu001", "gpu002", "gpu004"):
        ask(w, peer, {"gpu003": "refused"})
    found = report(w)
    assert found.verdict.id != "dead_rank" and not found.mitigation["restart"]["exclude_nodes"]
    told = [finding.text for finding in found.findings]
    assert any("the management path to it is dead, not the node; do not restart or drain it" in text for text in told)


def test_a_node_that_its_peers_reach_on_the_management_network_is_behind_a_door_of_ours():
    w = ask(dumps(world("gpu003")), "gpu001", {"gpu003": "refused"}, management="open")
    assert nodes_of(w.fact("hosts.our_way")) == ["gpu003"]
    told = [finding.text for finding in report(w).findings]
    assert any("our own way to it is closed" in text for text in told)


@pytest.mark.parametrize("phase", ["banner", "kex", "auth"])
def test_a_door_that_opened_to_us_is_not_closed(phase):
    w = ask(dumps(world("gpu003", phase=phase)), "gpu001", {"gpu003": "timeout"}, management="open")
    assert w.fact("hosts.our_way").value == 0


def test_a_loopback_address_is_the_peer_itself():
    w = dumps(world("gpu003"))
    nodes = [replace(n, address="127.0.0.1", port=2203) if n.name == "gpu003" else n for n in w.job.nodes]
    w.job = replace(w.job, nodes=tuple(nodes))
    row = {"address": "127.0.0.1:2203", "result": "open", "errno": None}
    w.add("peers", "gpu001", "C", {"targets": [{"node": "gpu003", "management": [row], "fabric": []}]})
    assert w.fact("hosts.our_way").value == 0
