"""What ties a flap to the stall beside its time, what does not, and whether the transport gave up on it."""

import written_dumps
from written_dumps import add_dumps
from written_evidence import exit_line
from written_ports import DEVICE, LAST, MANAGEMENT, STALL, Roce, faces, sources, where

from triage.facts import blame, flaps

A = [("gpu002", DEVICE)]


# ---------------------------------------------------------------- what is no second sign


def test_whoever_waits_for_a_dead_process_gets_no_answer_either():
    made = Roce().outage("gpu002", STALL - 0.5, 0.2)
    made.gave_up("gpu002", "10.88.0.3", STALL - 1.4).gave_up("gpu001", "10.88.0.2", STALL - 1.4)
    assert where(made.fact("links.tied")) == A
    made.world.dead = {4: "A", 5: "A"}
    made.hits += [exit_line(1004, -9, 0, LAST + 0.2), exit_line(1005, -9, 1, LAST + 0.2)]
    made.hits = [hit for hit in made.hits if hit["groups"].get("host") != "gpu001"]
    assert made.fact("links.tied").value == 0


def test_a_status_12_without_any_flap_ties_nothing():
    flapped, tied, named = (
        Roce().gave_up("gpu001", "10.88.0.2", STALL - 1.4).facts("links.flapped_in_onset", "links.tied", "links.named")
    )
    assert (flapped.value, tied.value) == (0, 0)
    assert {part.node for part in named.parts} == {"gpu001", "gpu002"}


def test_counters_since_boot_are_no_flap():
    old = [*faces(changes=41, downed=9), MANAGEMENT]
    made = Roce().shows("gpu002", old, old).gave_up("gpu001", "10.88.0.2", STALL - 1.4)
    between, flapped, tied = made.facts("links.flapped", "links.flapped_in_onset", "links.tied")
    assert (between.value, flapped.value, tied.value) == (0, 0, 0)


def test_a_counter_that_rises_while_the_job_moves_is_told_and_dates_nothing():
    made = Roce(last_ago=0.5, moving=True)
    made.shows("gpu002", [*faces(changes=3), MANAGEMENT], [*faces(changes=5, rx=10**8), MANAGEMENT])
    between, flapped, tied, advancing = made.facts(
        "links.flapped", "links.flapped_in_onset", "links.tied", "progress.advancing"
    )
    assert where(between) == A and advancing.value is True
    assert not flapped.known and not tied.known


def test_a_counter_that_rises_between_the_looks_is_long_after_the_stall_began():
    made = Roce().shows("gpu002", [*faces(changes=3), MANAGEMENT], [*faces(changes=5), MANAGEMENT])
    made.gave_up("gpu001", "10.88.0.2", STALL - 1.4)
    between, flapped, tied = made.facts("links.flapped", "links.flapped_in_onset", "links.tied")
    assert where(between) == A and (flapped.value, tied.value) == (0, 0)


def test_a_counter_that_sticks_at_its_maximum_tells_nothing():
    stuck = faces(downed=255)
    stuck[0]["saturated"] = ["link_downed"]
    made = Roce().shows("gpu002", faces(downed=200), stuck)
    assert made.fact("links.flapped").value == 0


# ---------------------------------------------------------------- the stalled group, the bytes

PART = {"0": ("default_pg", list(range(8))), "1": ("DP", [2, 3, 4, 5]), "2": ("DP", [0, 1, 6, 7])}
LOCAL = {"0": ("default_pg", list(range(8))), "1": ("TP", [2, 3]), "2": ("TP", [0, 1, 4, 5, 6, 7])}


def stalled(monkeypatch, groups, stuck, idle):
    """gpu002 flapped; the ranks of `stuck` wait in a group, the others have nothing open."""
    monkeypatch.setattr(written_dumps, "GROUPS", groups)
    made = Roce().outage("gpu002", STALL - 0.5, 4.0).made()
    return add_dumps(made, {**dict.fromkeys(range(8), idle), **stuck}, created=LAST + 0.2)


def test_a_stalled_group_that_is_a_part_of_the_job_and_runs_over_the_node_ties_its_port(monkeypatch):
    w = stalled(
        monkeypatch,
        PART,
        {rank: ["0 1 all_reduce", "1 1 all_reduce open"] for rank in (2, 3, 4, 5)},
        ["0 1 all_reduce"],
    )
    tied = w.fact("links.tied")
    assert where(tied) == A and "part of the job" in tied.parts[0].why
    assert sources(tied) == ["flight_recorder", "kernel"]


def test_a_stalled_group_of_other_nodes_ties_nothing(monkeypatch):
    w = stalled(
        monkeypatch,
        PART,
        {rank: ["0 1 all_reduce", "2 1 all_reduce open"] for rank in (0, 1, 6, 7)},
        ["0 1 all_reduce"],
    )
    assert w.fact("links.tied").value == 0


def test_a_stalled_group_that_is_the_whole_job_ties_nothing(monkeypatch):
    w = stalled(monkeypatch, PART, {}, ["0 1 all_reduce", "0 2 all_reduce open"])
    assert w.fact("waits.all_joined").value is True
    assert w.fact("links.tied").value == 0


def test_a_stalled_group_within_one_node_needs_no_port(monkeypatch):
    w = stalled(
        monkeypatch, LOCAL, {rank: ["0 1 all_reduce", "1 1 all_reduce open"] for rank in (2, 3)}, ["0 1 all_reduce"]
    )
    assert w.fact("links.tied").value == 0


def test_zero_bytes_on_exactly_that_port_while_all_others_move_tie_it():
    made = Roce().outage("gpu002", STALL - 0.5, 4.0)
    for name in made.world.names:
        made.shows(name, faces(rx=1000), faces(rx=1000 if name == "gpu002" else 10**9))

    def reasons():
        ev = made.made().evidence()
        loss = next(loss for trace in ev.derive(flaps.traces)["gpu002"] for loss in trace.losses)
        return [tie.why for tie in blame.ties(ev, loss)]

    assert reasons() == ["no byte moves on it while the job's other ports move"]
    made.shows("gpu003", faces(), faces())  # a second one stands still as well
    assert reasons() == []


# ---------------------------------------------------------------- for how long


def test_a_flap_shorter_than_the_retries_is_not_outlasted():
    made = Roce().outage("gpu002", STALL - 0.5, 0.3).event("gpu002", "error", STALL - 0.5)
    tied, outlasted = made.facts("links.tied", "links.outlasted")
    assert where(tied) == A and outlasted.value is False


def test_between_the_shortest_and_the_longest_budget_nothing_is_decided():
    made = Roce().outage("gpu002", STALL - 0.5, 2.0).event("gpu002", "error", STALL - 0.5)
    found = made.fact("links.outlasted")
    assert not found.known and "0.47s to 3.5s" in found.reason


def test_an_outage_longer_than_the_longest_budget_is_outlasted_without_a_word_of_nccl():
    made = Roce().outage("gpu002", STALL - 0.5, 4.0).event("gpu002", "error", STALL - 0.5)
    assert made.fact("links.outlasted").value is True


def test_giving_up_on_an_outage_shorter_than_the_budget_is_doubtful():
    made = Roce().outage("gpu002", STALL - 0.5, 0.2).gave_up("gpu001", "10.88.0.2", STALL - 1.4)
    found = made.fact("links.outlasted")
    assert found.value is True and found.contradicted_by


def test_nothing_outlasts_a_transport_that_retries_for_ever():
    made = Roce(env={"NCCL_IB_TIMEOUT": "0"}).outage("gpu002", STALL - 0.5, 60.0)
    made.event("gpu002", "error", STALL - 0.5)
    tied, outlasted, budget = made.facts("links.tied", "links.outlasted", "links.budget_s")
    assert where(tied) == A and outlasted.value is False
    assert not budget.known and "for ever" in budget.reason


def test_a_transport_that_retries_for_ever_does_not_make_every_flap_of_the_day_one_of_the_onset():
    made = Roce(env={"NCCL_IB_TIMEOUT": "0"}).says("gpu002", "link_down", STALL + 1000)
    assert made.fact("links.flapped_in_onset").value == 0


def test_of_two_tied_ports_the_one_that_the_retries_outlast_is_left_out():
    made = Roce().outage("gpu002", STALL - 0.5, 4.0).outage("gpu004", STALL - 0.7, 0.2)
    made.event("gpu002", "error", STALL - 0.5).event("gpu004", "error", STALL - 0.7)
    assert where(made.fact("links.tied")) == A


def test_over_tcp_an_outage_of_minutes_may_still_be_waited_for(monkeypatch):
    # TCP retries for a quarter of an hour; RDMA would have given up after 120 s at the latest.
    monkeypatch.setattr(written_dumps, "GROUPS", PART)
    programs = {rank: ["0 1 all_reduce", *(["1 1 all_reduce open"] if 2 <= rank <= 5 else [])] for rank in range(8)}
    found = []
    for over_tcp in (True, False):
        env = {"NCCL_IB_HCA": "", "NCCL_IB_DISABLE": "1"} if over_tcp else {}
        made = Roce(env={"NCCL_IB_TIMEOUT": "20", **env}).outage("gpu002", STALL - 0.5, 200.0)
        for name in made.world.names if over_tcp else ():
            made.shows(name, faces()[1:], faces()[1:])
        w = add_dumps(made.made(), programs, created=LAST + 0.2)
        assert [part.node for part in w.fact("links.tied").parts] == ["gpu002"]
        found.append(w.fact("links.outlasted").value)
    assert found == [None, True]
