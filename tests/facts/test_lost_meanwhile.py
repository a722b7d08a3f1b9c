"""A part of the job is lost while one looks: the last steps are fresh, and the job is not healthy for it."""

from __future__ import annotations

import pytest
from written_dumps import report
from written_evidence import World
from written_ports import Roce, faces, where


def stopped(looks, state="T", rank=5):
    w = World()
    w.change = {(rank, look): {"state": state} for look in looks}
    return w.processes().fabric(1e6).log(last_ago=0.5)


@pytest.mark.parametrize("looks", ["B", "AB"])
@pytest.mark.parametrize("state", ["T", "t"])
def test_a_rank_that_is_stopped_now_makes_a_job_that_was_seen_to_advance_undecided(looks, state):
    told = report(stopped(looks, state))
    assert told.verdict.cause == "inconclusive/just_now" and told.exit_code == 11 and not told.culprits
    assert "stuck_rank/stopped" in [lead.cause for lead in told.alternatives]


def test_a_rank_that_was_stopped_and_runs_again_is_health():
    w = stopped("A")
    assert w.fact("ranks.stopped_now").value == 0
    assert report(w).verdict.id == "healthy"


def test_nobody_is_known_to_be_stopped_where_no_process_was_seen():
    assert World().fact("ranks.stopped_now").value is None


def test_a_rank_whose_state_could_not_be_read_is_not_one_that_runs():
    found = stopped("AB", state=None).fact("ranks.stopped_now")
    assert found.value is None and "1 of 8" in found.reason


def test_a_port_of_the_job_that_loses_its_link_between_the_looks_makes_it_undecided():
    made = Roce(last_ago=0.5, moving=True).shows("gpu002", [*faces()], [*faces(up=False, changes=4)])
    found = made.fact("links.just_down")
    assert [node for node, _ in where(found)] == ["gpu002"]
    told = report(made.made())
    assert told.verdict.cause == "inconclusive/just_now" and not told.culprits
    assert "link_flap/down_now" in [lead.cause for lead in told.alternatives]


@pytest.mark.parametrize("was, now", [(True, True), (False, False), (False, True)])
def test_a_port_that_did_not_lose_its_link_between_the_looks_is_not_just_down(was, now):
    made = Roce(last_ago=0.5, moving=True).shows("gpu002", [*faces(up=was)], [*faces(up=now)])
    assert made.fact("links.just_down").value == 0
    assert report(made.made()).verdict.cause != "inconclusive/just_now"


def test_a_port_that_the_job_does_not_use_may_lose_its_link():
    spare = faces("mlx5_7", "ens9f0np0")
    lost = faces("mlx5_7", "ens9f0np0", up=False)
    made = Roce(last_ago=0.5, moving=True).shows("gpu002", [*faces(), *spare], [*faces(), *lost])
    assert made.fact("links.just_down").value == 0
    assert report(made.made()).verdict.id == "healthy"
