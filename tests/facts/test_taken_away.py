"""A node that was taken away or booted: told by words and by uptimes, and never against who only seems so."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from written_attempts import LAST, ended, log, value
from written_dumps import add_dumps, everyone, report
from written_evidence import NOW, World
from written_logs import stamp, steps

OPEN = ["0 1 all_reduce", "0 2 all_reduce open"]
STOOD = 100.0


def booted(ago, node="gpu003", dead=(4, 5), dumps=True, started=NOW - 3600, skew=0.0):
    """This node was booted `ago` seconds before now, and none of its ranks is left; the others began at NOW - 3500."""
    w = World(started=started)
    w.dead = dict.fromkeys(dead, "A")
    w.processes().fabric(0).log(last_ago=STOOD)
    shown = {s.node: {**s.data, "uptime_s": ago if s.node == node else 9e5} for s in w.samples if s.probe == "reach"}
    w.samples = [replace(s, data=shown[s.node]) if s.probe == "reach" else s for s in w.samples]
    if skew:
        w.samples = [replace(s, at=s.at + skew) if s.node == node and s.at is not None else s for s in w.samples]
    return add_dumps(w, {**everyone(OPEN), **dict.fromkeys(dead)}, lib="2.27.5") if dumps else w


def test_a_node_that_was_booted_while_the_job_ran_says_why_its_ranks_are_gone():
    told = report(booted(60))
    assert (told.verdict.cause, [(c.kind, c.node) for c in told.culprits]) == (
        "dead_rank/node_rebooted",
        [("node", "gpu003")],
    )
    assert told.mitigation["restart"]["exclude_nodes"] == ["gpu003"]
    assert any("sources agree" in why and "reach" in why for why in told.verdict.why)


@pytest.mark.parametrize("stood_s, ago, cause", [
    (2000.0, 60.0, "inconclusive/rebooted_since"),
    (2000.0, 1000.0, "dead_rank/node_rebooted"),  # it may have gone down first, and tested itself for long
    (100.0, 60.0, "dead_rank/node_rebooted"),
])  # fmt: skip
def test_a_node_that_somebody_booted_long_after_the_job_stood_still_is_not_its_cause(monkeypatch, stood_s, ago, cause):
    monkeypatch.setattr(sys.modules[__name__], "STOOD", stood_s)
    told = report(booted(ago))
    assert told.verdict.cause == cause
    if cause.startswith("inconclusive"):
        assert not told.culprits and not told.mitigation["restart"]["exclude_nodes"]


@pytest.mark.parametrize("skew", [-300.0, 300.0])
def test_a_clock_that_is_minutes_off_changes_nothing(skew):
    assert [p.node for p in booted(60, skew=skew).fact("hosts.rebooted").parts] == ["gpu003"]
    assert booted(3550, skew=skew).fact("hosts.rebooted").value == 0


@pytest.mark.parametrize("ago", [3500 + 30, 3600 - 10, 9e5])
def test_a_node_that_was_booted_before_the_ranks_began_is_not_said_to_be(ago):
    """A scheduler stamps the start when it hands the nodes out; machines of a cloud boot after that."""
    w = booted(ago)
    assert w.fact("hosts.rebooted").value == 0 and report(w).verdict.cause == "dead_rank/gone"


def test_a_node_whose_ranks_live_was_not_booted_under_them():
    assert booted(60, dead=()).fact("hosts.rebooted").value == 0


def test_where_ranks_of_other_nodes_are_gone_as_well_the_boot_is_not_the_answer():
    w = booted(60, dead=(0, 4, 5))
    assert value(w, "hosts.rebooted_all") is False and report(w).verdict.cause != "dead_rank/node_rebooted"


def test_without_an_uptime_nothing_is_said():
    w = booted(60)
    w.samples = [s for s in w.samples if s.probe != "reach"]
    assert w.fact("hosts.rebooted").value is None


# ---------------------------------------------------------------- preemption


def over(*lines, at=LAST + 0.2):
    w = ended(World()).processes()
    return log(w, steps(1, 50, LAST), [line.format(when=stamp(at, "%Y-%m-%dT%H:%M:%S")[:19]) for line in lines])


SLURM = "slurmstepd: error: *** JOB 4711 ON gpu001 CANCELLED AT {when} DUE TO PREEMPTION ***"


def test_a_job_that_slurm_preempted_was_ended_on_purpose_and_no_node_is_blamed():
    told = report(over(SLURM))
    assert told.verdict.cause == "dead_rank/preempted"
    assert [(c.kind, c.name, c.node) for c in told.culprits] == [("service", "slurm", None)]
    assert not told.mitigation["restart"]["exclude_nodes"]


@pytest.mark.parametrize(
    "why", ["DUE TO TIME LIMIT ***", "***", "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"]
)
def test_another_reason_of_the_scheduler_is_no_preemption(why):
    assert value(over(SLURM.replace("DUE TO PREEMPTION ***", why)), "hard.preempted") == 0


def gone_with_a_notice(line, ago=STOOD + 30, dead=(4, 5)):
    """The ranks of gpu003 are gone; this line stood in the job log so many seconds ago."""
    w = World()
    w.dead = dict.fromkeys(dead, "A")
    hit = {
        "id": "preempt_notice", "at": NOW - ago, "last_at": NOW - ago, "count": 1, "line_no": 900, "prefix": "",
        "dated": True, "text": line, "groups": {}, **({"groups": {"node": "gpu003"}} if "gpu003" in line else {}),
    }  # fmt: skip
    w.processes().fabric(0).log(last_ago=STOOD, hits=[hit])
    return add_dumps(w, {**everyone(OPEN), **dict.fromkeys(dead)}, lib="2.27.5")


def test_a_node_that_the_cloud_took_away_is_named_as_such_and_not_as_dead_for_no_reason():
    told = report(gone_with_a_notice("Preempted by batch/x on node gpu003"))
    assert (told.verdict.cause, [c.node for c in told.culprits]) == ("dead_rank/preempted", ["gpu003"])


@pytest.mark.parametrize("change", [{"ago": 3000}, {"ago": 10}, {"dead": (0, 1)}])
def test_a_notice_of_another_time_or_node_explains_nothing(change):
    told = report(gone_with_a_notice("Preempted by batch/x on node gpu003", **change))
    assert told.verdict.cause == "dead_rank/gone"


def test_a_notice_that_names_no_node_explains_nothing_by_itself():
    w = gone_with_a_notice("Spot interruption payload received")
    assert value(w, "hard.preempted") == 1 and value(w, "hard.preempted_explains") is False
    assert report(w).verdict.cause == "dead_rank/gone"
