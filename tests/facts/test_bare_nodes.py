"""A list of nodes and an id, without a scheduler: nobody says that the job exists, runs, or is what is seen there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from written_dumps import report
from written_evidence import World


def bare(job_id="4711", state="unknown", scheduler="nodes", dead=False):
    w = World()
    w.job = replace(w.job, id=job_id, state=state, scheduler=scheduler, match={})
    w.dead = dict.fromkeys(range(8), "A") if dead else {}
    return w.processes().fabric(1e6).log(last_ago=0.5 if not dead else 900)


def doubts(told):
    return [found.text for found in told.findings if found.cls == "job"]


def test_ranks_that_wear_another_id_are_said_to_be_unconfirmed():
    assert "nothing there says that it is job 4711" in doubts(report(bare()))[0]


@pytest.mark.parametrize("how", [{"job_id": "48213"}, {"scheduler": "inventory", "state": "running"}])
def test_ranks_that_wear_the_id_or_that_a_scheduler_told_of_are_not_doubted(how):
    assert doubts(report(bare(**how))) == []


@pytest.mark.parametrize(("state", "code"), [("unknown", 11), ("running", 11), ("ended", 0)])
def test_no_process_left_is_no_good_news_unless_the_scheduler_says_that_the_job_is_over(state, code):
    told = report(bare(state=state, dead=True))
    assert told.verdict.id == "inconclusive" and told.exit_code == code
