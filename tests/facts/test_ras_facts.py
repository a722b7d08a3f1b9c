"""What two reports of NCCL's RAS prove of a job, and what they do not."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ras_server import Comm, Report
from triage.probes import _ras_report, _ras_text
from written_evidence import NOW, World, limits

from triage.facts import registry
from triage.facts.evidence import Evidence
from triage.readers.shapes import checked, problem

NODES = {0: "gpu001", 2: "gpu002", 4: "gpu003", 6: "gpu004"}
HERE = [(0, 1000), (1, 1001)]  # what gpu001 hosts
LIMITS = limits()  # reading the playbooks takes longer than all the facts
FORMS = pytest.mark.parametrize("form", ["json", "text"])


def evidence(w):
    return Evidence(w.job, w.samples, NOW, LIMITS)


def comm(ident=0xA1, size=8, **more):
    return Comm(ident, size, pid=more.pop("pid", 1000), **more)


def reduced(report, form="json", world=8, procs=HERE):
    raw = report.json() if form == "json" else report.text()
    verdict, found = _ras_report.judge(raw, form, world, procs, _ras_text.parse)
    assert verdict == "ok", found
    return json.loads(json.dumps(found))


def facts(first, second=None, form="json", w=None, **procs):
    """All facts of a job of which gpu001 was asked; without `second` nothing moved between the reports."""
    w = w or World().processes()
    data = {"outcome": "ok", "gap_s": 10.0, "queries": 2, "first": reduced(first, form, **procs)}
    data["second"] = reduced(second or copy.deepcopy(first), form, **procs)
    assert problem("ras", data) is None
    w.add("ras", "gpu001", "C", data)
    return registry.compute(evidence(w))


def one(first, second=None, name="ras.laggards", **more):
    return facts(first, second, **more)[name]


def ranks(fact):
    return [part.rank for part in fact.parts]


def test_while_nobody_was_asked_nothing_is_known():
    found = registry.compute(World().processes().evidence())
    assert all(not found[name].known for name in found if name.startswith("ras."))
    assert found["ras.asked"].reason == "NCCL's RAS was not asked"


@pytest.mark.parametrize("outcome", ["no_listener", "handshake_silent", "foreign_job", "garbage", "skipped_init_risk"])
def test_an_answer_without_a_report_says_why_and_proves_nothing(outcome):
    w = World().processes()
    w.add("ras", "gpu001", "C", {"outcome": outcome, "why": "because"})
    found = registry.compute(evidence(w))
    assert (found["ras.asked"].value, found["ras.outcome"].value) == (False, outcome)
    assert found["ras.laggards"].reason == f"RAS on gpu001: {outcome} (because)"
    assert not found["ras.even"].known and not found["ras.advancing"].known


def test_a_probe_that_came_to_its_time_limit_is_told_as_that():
    w = World().processes()
    w.add("ras", "gpu001", "C", {}, status="timeout")
    assert registry.compute(evidence(w))["ras.outcome"].value == "timeout"


@FORMS
def test_the_one_that_launched_less_is_the_laggard_with_its_node_and_both_counts(form):
    found = one(Report(comm().more(5, by=-1)), form=form)
    assert [(part.rank, part.node) for part in found.parts] == [(5, "gpu003")]
    assert found.parts[0].why == (
        "has launched less: 41 AllReduce where others launched 42 (of 8 ranks, alike in both reports)"
    )


@FORMS
def test_of_one_that_is_ahead_all_others_lag_although_nccl_lists_the_leader(form):
    found = one(Report(comm().more(3)), form=form)
    if form == "json":
        assert ranks(found) == [0, 1, 2, 4, 5, 6, 7]
    else:  # of the many the text names no process, and a number alone proves nobody
        assert not found.known


def test_half_against_half_names_the_half_that_launched_less_or_nobody():
    half = comm()
    for rank in range(4):
        half.more(rank)
    assert ranks(one(Report(half))) == [4, 5, 6, 7]
    assert not one(Report(half), form="text").known


def test_whoever_lags_in_one_communicator_and_waits_in_another_is_no_suspect():
    # Pairs 0-1 and 1-2: 1 waits for 0, and 2 waits for 1.
    first = comm(0xB1, 2, members=[0, 1]).more(1)
    second = comm(0xB2, 2, members=[1, 2]).more(1)
    assert ranks(one(Report(comm(), first, second))) == [0]


def test_a_circle_of_laggards_names_nobody():
    pairs = [comm(0xB0 + i, 2, members=[i, (i + 1) % 3]).more(1) for i in range(3)]
    found = one(Report(comm(), *pairs))
    assert found.parts == () and found.text == "whoever lags in one communicator waits in another"


def test_counts_that_move_accuse_nobody():
    first, second = comm().more(5, by=-1), comm(counts=(0, 0, 12, 0, 52)).more(5, by=-1)
    found = facts(Report(first), Report(second))
    assert found["ras.laggards"].parts == () and found["ras.advancing"].value is True


def test_one_report_alone_shows_nothing_stand_still():
    w = World().processes()
    w.add("ras", "gpu001", "C", {"outcome": "ok", "gap_s": None, "first": reduced(Report(comm().more(5, by=-1)))})
    found = registry.compute(evidence(w))
    assert found["ras.asked"].value is True and not found["ras.laggards"].known and not found["ras.advancing"].known


def test_where_a_rank_is_missing_the_others_may_lag_for_it_and_nobody_is_a_laggard():
    found = facts(Report(comm().lose(6).more(5, by=-1)))
    assert not found["ras.laggards"].known and ranks(found["ras.missing"]) == [6]


def test_a_rank_that_aborts_stops_counting_and_is_no_laggard():
    aborting = comm().more(5, by=-1)
    aborting.status[5] = "ABORT"
    assert one(Report(aborting)).parts == ()


def test_equal_and_still_is_even_and_not_health():
    found = facts(Report(comm()))
    assert (found["ras.even"].value, found["ras.advancing"].value) == (True, False)
    assert found["progress.advancing"].value is not True


def test_equal_counts_in_text_are_not_told_and_therefore_not_known_to_stand_still():
    found = facts(Report(comm()), form="text")
    assert not found["ras.even"].known and not found["ras.advancing"].known and found["ras.laggards"].parts == ()


def test_rising_launches_are_progress_of_the_job():
    found = facts(Report(comm()), Report(comm(counts=(0, 0, 13, 0, 45))))
    assert found["progress.advancing"].value is True
    assert found["progress.advancing"].text == "launches rose in a communicator between two RAS reports 10s apart"


def test_launches_that_rise_on_a_few_ranks_only_are_no_progress():
    second = comm().more(0).more(1)
    found = facts(Report(comm()), Report(second))
    assert not found["ras.advancing"].known and found["progress.advancing"].value is not True


@FORMS
def test_another_order_of_calls_is_no_lag(form):
    found = facts(Report(comm().more(2, "AllGather").more(2, "AllReduce", -1)), form=form)
    assert ranks(found["ras.crossed"]) == [2] and not found["ras.laggards"].known
    assert "13 AllGather where others launched 12" in found["ras.crossed"].parts[0].why


def test_two_that_launched_each_others_operation_are_both_told():
    crossed = comm(0xB1, 2, members=[2, 3])
    crossed.more(0, "AllGather").more(1, "AllReduce")
    assert ranks(one(Report(comm(), crossed), name="ras.crossed")) == [2, 3]


def test_two_that_each_lack_another_operation_went_different_ways():
    found = facts(Report(comm().more(2, "AllGather", -1).more(5, "AllReduce", -1)))
    assert ranks(found["ras.crossed"]) == [2, 5] and not found["ras.laggards"].known


# ---------------------------------------------------------------- who is gone


@FORMS
def test_missing_and_dead_are_told_with_what_became_of_the_process(form):
    w = World()
    w.dead = {6: "B"}
    found = facts(Report(comm().lose(6, dead=True)), form=form, w=w.processes())
    assert ranks(found["ras.dead"]) == ranks(found["ras.missing"]) == [6]
    assert (
        found["ras.dead"]
        .parts[0]
        .why.startswith("RAS could not reach it for a minute, once (10.0.0.14); its process is no")
    )


def test_one_that_was_stopped_for_a_minute_once_and_runs_again_is_not_dead():
    found = facts(Report(comm().lose(6, dead=True)))["ras.dead"]
    assert found.parts == () and found.text == "rank 6 was unreachable once, and its process runs"


def test_one_that_is_still_stopped_is_told_as_unreachable():
    w = World()
    w.change = {(6, look): {"state": "T"} for look in "AB"}
    assert ranks(one(Report(comm().lose(6, dead=True)), name="ras.dead", w=w.processes())) == [6]


def test_a_whole_node_that_is_missing_is_said_so():
    w = World()
    w.skip_nodes = {"gpu003"}
    w.add("contact", "gpu003", "A", {"phase": "tcp", "error": "timed out"}, status="timeout")
    found = one(Report(comm().lose(4, 5)), name="ras.missing", w=w.processes())
    assert ranks(found) == [4, 5] and found.text == "RAS could not reach ranks 4, 5: all ranks of gpu003"


def test_one_that_left_a_communicator_in_order_is_not_missing():
    assert one(Report(comm().lose(6, unresponsive=False)), name="ras.missing").parts == ()


def test_errors_are_told_with_their_role():
    failing = comm()
    failing.asynchronous = {0: 6, 5: 1}
    found = one(Report(failing), name="ras.errors")
    assert [(part.rank, "symptom" in part.why) for part in found.parts] == [(0, True), (5, False)]


def test_only_who_is_in_the_set_up_in_both_reports_is_stuck_there():
    early, late = comm(), comm()
    early.status.update({2: "INIT", 3: "INIT"})
    late.status[2] = "INIT"
    assert ranks(one(Report(early), Report(late), name="ras.initialising")) == [2]


# ---------------------------------------------------------------- whom a number means


def test_a_number_whose_process_is_another_ranks_names_nobody():
    w = World()
    w.change = {(5, look): {"pid": 7777} for look in "AB"}
    assert not one(Report(comm().more(5, by=-1)), w=w.processes()).known


def test_in_a_container_the_pid_is_the_one_that_the_rank_sees_itself():
    w = World()
    w.change = {(rank, look): {"ns_pid": 40 + rank} for rank in range(8) for look in "AB"}
    found = one(Report(comm(pid=40).more(5, by=-1)), w=w.processes(), procs=[(0, 40), (1, 41)])
    assert ranks(found) == [5]


def test_without_a_communicator_of_all_ranks_a_pid_that_fits_one_rank_names_it():
    assert ranks(one(Report(comm(0xB1, 4, members=[1, 3, 5, 7]).more(2, by=-1)))) == [5]


def test_and_a_pid_that_two_containers_share_names_nobody():
    w = World()
    w.change = {(rank, look): {"ns_pid": 40 + rank % 2} for rank in range(8) for look in "AB"}
    small = comm(0xB1, 4, members=[1, 3, 5, 7], pid=40)
    small.where = {rank: (host, 41, dev) for rank, (host, _, dev) in small.where.items()}
    found = one(Report(small.more(2, by=-1)), w=w.processes(), procs=[(1, 41)])
    assert not found.known and "not known to be one rank" in found.reason


def test_nor_one_where_a_rank_without_a_known_process_could_be_meant():
    w = World()
    w.skip_nodes = {"gpu004"}
    found = one(Report(comm(0xB1, 3, members=[1, 3, 5]).more(2, by=-1)), w=w.processes())
    assert not found.known


def test_an_answer_with_a_senseless_report_is_not_used_at_all():
    w = World().processes()
    data = {"outcome": "ok", "first": reduced(Report(comm())), "second": reduced(Report(comm()))}
    data["second"]["comms"][0]["groups"] = [[[1, 2, 3, 4, 5], 8, "0+9999999"]]
    w.add("ras", "gpu001", "C", data)
    w.samples[-1] = checked(w.samples[-1])
    assert w.samples[-1].status == "malformed"
    found = registry.compute(evidence(w))
    assert not found["ras.laggards"].known and found["ras.asked"].value is False


def test_launches_that_rise_while_steps_are_long_overdue_are_contradicted_by_the_steps():
    w = World().processes()
    w.log(step_s=1.0, steps=50, last_ago=600.0)
    found = facts(Report(comm()), Report(comm(counts=(0, 0, 13, 0, 45))), w=w)["progress.advancing"]
    assert found.value is True and found.contradicted_by == ("step times",)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_whatever_a_node_answers_no_fact_fails_and_nobody_outside_of_the_job_is_named(data):
    small = comm(0xB2, 4, members=[1, 3, 5, 7]).more(2, by=-1)
    first = reduced(Report(comm().more(5, by=-1).lose(6), small))
    answer = {"outcome": "ok", "gap_s": 10.0, "first": first, "second": copy.deepcopy(first)}
    for _ in range(data.draw(st.integers(1, 6))):
        here, path = answer, []
        while isinstance(here, (dict, list)) and here:
            keys = sorted(here) if isinstance(here, dict) else range(len(here))
            path.append(data.draw(st.sampled_from(list(keys))))
            parent, here = here, here[path[-1]]
        strange = st.sampled_from([0, 1, 7, 8, 1000, -1, 2**62, None, True, "", "0+8", "0+4*2", "dead", "comm", [], {}])
        parent[path[-1]] = data.draw(strange)
    w = World().processes()
    w.add("ras", "gpu001", "C", answer)
    w.samples[-1] = checked(w.samples[-1])
    ev = evidence(w)
    told = [registry.other(ev, name) for name in registry.catalogue() if name.startswith("ras.")]
    assert not [fact for fact in told if "could not be computed" in fact.reason]
    assert all(part.rank in range(8) for fact in told for part in fact.parts)
