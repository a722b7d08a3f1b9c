"""The whole walk where NCCL's RAS is the road: what it may name alone, how surely, and where it only leads."""

from __future__ import annotations

import json

import pytest
from ras_server import Comm, Report
from triage.probes import _ras_report, _ras_text
from written_activity import cache, compiler, compiles, doing, watch
from written_dumps import add_dumps, everyone, report
from written_evidence import NOW, World
from written_stacks import LOADING, stacked, stands

from triage.case import CaseFile
from triage.conclude import conclude
from triage.investigate import probe_names, shipped_playbooks

WAITS = ["0 1 all_reduce", "0 2 all_reduce open"]


def stalled(**more):
    """A job of eight ranks whose last step ended ten minutes ago; nothing else is amiss."""
    w = World(**more).processes()
    w.log(step_s=1.0, steps=50, last_ago=600.0)
    return w


def heard(w, first, second=None, form="json"):
    found = []
    for one in (first, second or first):
        raw = one.json() if form == "json" else one.text()
        found.append(_ras_report.judge(raw, form, 8, [(0, 1000), (1, 1001)], _ras_text.parse))
    assert [verdict for verdict, _ in found] == ["ok", "ok"]
    data = {"outcome": "ok", "gap_s": 10.0, "first": found[0][1], "second": found[1][1]}
    w.add("ras", "gpu001", "C", json.loads(json.dumps(data)))
    return w


def comm(*args, **more):
    return Comm(*args, pid=1000, **more)


def told(w):
    found = report(w)
    return found.verdict.cause, [c.rank for c in found.culprits], found.verdict.confidence


@pytest.mark.parametrize("form", ["json", "text"])
def test_the_one_laggard_whose_stack_shows_it_held_on_its_host_is_named_without_any_flight_record(form):
    w = stacked(heard(stalled(), Report(comm().more(5, by=-1)), form=form), stands(5, LOADING))
    cause, ranks, confidence = told(w)
    assert (cause, ranks) == ("stuck_rank/launches", [5]) and confidence in ("low", "medium")
    assert any(line.startswith("2 sources agree: ras, stacks") for line in report(w).verdict.why)
    assert not any("drain" in command.run or "exclude" in command.run for command in report(w).commands)


@pytest.mark.parametrize("form", ["json", "text"])
def test_by_launch_counts_alone_nobody_is_named_and_the_command_that_would_tell_is_printed(form):
    w = heard(stalled(), Report(comm().more(5, by=-1)), form=form)
    assert told(w)[:2] == ("inconclusive/arrival_unknown", [])
    assert "stuck_rank/launches" in [a.cause for a in report(w).alternatives]
    assert any("py-spy dump" in (each.run or "") and "1005" in (each.run or "") for each in report(w).unknown)


def test_several_laggards_are_leads_and_nobody_is_named():
    w = heard(stalled(), Report(comm().more(4, by=-1).more(5, by=-1)))
    assert told(w)[:2] == ("inconclusive/arrival_unknown", [])
    assert [a.cause for a in report(w).alternatives if "ranks 4, 5" in a.why_not or "4-5" in a.why_not] == [
        "stuck_rank/launches"
    ]


def test_equal_counts_of_a_hang_in_flight_name_nobody_and_are_no_health():
    assert told(heard(stalled(), Report(comm())))[:2] == ("inconclusive/arrival_unknown", [])


def test_one_that_leads_accuses_nobody():
    assert told(heard(stalled(), Report(comm().more(3))))[:2] == ("inconclusive/arrival_unknown", [])


def test_a_missing_rank_is_a_lead_and_laggards_are_then_not_named():
    w = heard(stalled(), Report(comm().lose(6).more(5, by=-1)))
    assert told(w)[:2] == ("inconclusive/arrival_unknown", [])
    assert any("rank 6" in a.why_not for a in report(w).alternatives)


def test_launches_that_rise_while_the_log_is_silent_are_no_frozen_job():
    w = heard(stalled(), Report(comm()), Report(comm(counts=(0, 0, 13, 0, 52))))
    found = report(w)
    assert found.verdict.fail != "stop" or found.verdict.id == "inconclusive"
    assert not found.culprits and found.state in ("running", "slow", "unknown")


def test_a_laggard_that_waits_by_its_own_flight_record_is_not_named():
    w = add_dumps(stalled(), everyone(WAITS, r6=None), lib="2.27.5")
    heard(w, Report(comm().more(5, by=-1)))
    assert 5 not in told(w)[1]


def test_a_laggard_that_the_flight_records_leave_open_is_named_by_two_sources():
    w = add_dumps(stalled(), everyone(WAITS, r6=None), lib="2.27.5")
    heard(w, Report(comm().more(6, by=-1)))
    cause, ranks, _ = told(w)
    assert (cause, ranks) == ("stuck_rank/launches", [6])
    assert any(line.startswith("2 sources agree: flight_recorder, ras") for line in report(w).verdict.why)


def test_where_only_another_job_answered_nothing_is_said_of_ours():
    w = stalled()
    w.add("ras", "gpu001", "C", {"outcome": "foreign_job", "why": "0 of the 2 processes of this node are in it"})
    assert told(w)[:2] == ("inconclusive/arrival_unknown", [])


# ---------------------------------------------------------------- when it is asked


def wished(w):
    """The probes that a live run asks for, in order, where none of them tells anything more than is there."""
    asked = []
    while True:
        case = CaseFile(
            "c", "frozen-job", w.job, NOW, shipped_playbooks(), asked=tuple(asked), samples=tuple(w.samples)
        )
        found = conclude(case, probes=probe_names(), can_ask=True)
        if found.request is None:
            return asked
        asked.append(found.request.probe)


def test_where_nothing_else_tells_ras_is_asked_last():
    assert wished(stalled())[-1] == "ras"


def test_where_the_flight_records_name_the_rank_nobody_is_asked_through_ras():
    w = add_dumps(stalled(), everyone(WAITS, r5=["0 1 all_reduce"]), lib="2.27.5")
    assert "flight_recorder" in wished(w) and "ras" not in wished(w)


def test_of_a_job_that_advances_nobody_is_asked():
    w = World().processes().log(step_s=1.0, steps=50, last_ago=0.5).log(step_s=1.0, steps=40, last_ago=10.0, look="A")
    assert "ras" not in wished(w)


# ---------------------------------------------------------------- what else the laggard may do


@pytest.mark.parametrize(
    "row", [compiles(5), doing(5, [compiler()]), doing(5, caches=[cache(files=2, newest_ago=1.0)])]
)
def test_a_laggard_that_compiles_is_not_called_stuck(row):
    w = watch(heard(stalled(), Report(comm().more(5, by=-1))), row, everybody=True)
    cause, ranks, _ = told(w)
    assert cause != "stuck_rank/launches" and (ranks == [] or cause.startswith("busy"))


def test_a_laggard_that_nobody_watched_is_not_named():
    w = watch(heard(stalled(), Report(comm().more(5, by=-1))), *(doing(rank) for rank in range(8) if rank != 5))
    assert told(w)[:2] == ("inconclusive/arrival_unknown", [])
