"""Bytes on the fabric while no step ends: storage over the same port, an evaluation, and never proof of health."""

from __future__ import annotations

from written_dumps import report
from written_evidence import World


def test_traffic_over_a_port_of_a_job_whose_steps_are_overdue_does_not_make_it_healthy():
    told = report(World().processes().fabric(1e6).log(last_ago=120))
    assert told.verdict.cause == "inconclusive/traffic_only" and told.exit_code == 11
    assert not told.culprits


def test_traffic_beside_fresh_steps_is_health():
    w = World().processes().fabric(1e6).log(last_ago=0.5)
    assert w.fact("progress.traffic_only").value is False
    assert report(w).verdict.id == "healthy"


def test_traffic_of_a_job_that_stands_and_has_lost_a_rank_points_at_the_rank_as_a_lead():
    w = World()
    w.dead = {3: "A"}
    told = report(w.processes().fabric(1e6).log(last_ago=120))
    assert told.verdict.cause == "inconclusive/just_now" and not told.culprits
    assert [lead.cause for lead in told.alternatives] == ["dead_rank/gone"]
