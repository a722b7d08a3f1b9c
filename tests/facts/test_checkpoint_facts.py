"""The last checkpoint by log and by tracker, and what both and the layout make of the priced plan."""

from __future__ import annotations

from importlib import resources
from typing import Any

import pytest
from written_evidence import NOW, World

from triage.case import CaseFile
from triage.conclude import conclude
from triage.facts.checkpoints import Launch
from triage.investigate import probe_names


def hit(kind: str, at: float, step: int | None, **more: Any) -> dict[str, Any]:
    groups = {} if step is None else {"iteration": str(step)}
    return {
        "id": f"checkpoint_save_{kind}", "at": at, "last_at": at, "dated": True, "count": 1, "groups": groups,
        "text": "x", "prefix": "", "line_no": step or 1, **more,
    }  # fmt: skip


def saved(world: World, *ago: float, took: float = 60.0) -> list[dict[str, Any]]:
    return [
        row
        for i, seconds in enumerate(ago)
        for row in (hit("begin", NOW - seconds - took, 100 * (i + 1)), hit("end", NOW - seconds, 100 * (i + 1)))
    ]


def test_the_log_tells_age_interval_and_duration_of_saves() -> None:
    world = World(started=NOW - 20_000)
    world.log(hits=saved(world, 9000, 5400, 1800))
    assert world.fact("checkpoint.age_s").value == pytest.approx(1800, abs=1)
    assert world.fact("checkpoint.interval_s").value == pytest.approx(3600, abs=1)
    assert "of step 300" in world.fact("checkpoint.age_s").text


def test_a_save_that_began_and_did_not_end_is_no_checkpoint() -> None:
    world = World(started=NOW - 20_000)
    world.log(hits=[*saved(world, 5400), hit("begin", NOW - 30, 200)])
    assert world.fact("checkpoint.age_s").value == pytest.approx(5400, abs=1)


def test_undated_lines_tell_no_age() -> None:
    world = World().log(hits=[hit("end", NOW - 30, 100, dated=False)])
    assert not world.fact("checkpoint.age_s").known


def tracker(
    world: World, ago: float | None, node: str = "gpu001", gap: list[float] | None = None, **launch: Any
) -> World:
    row = {"path": "/ckpt", "kind": "megatron", "step": 700, "at": None if ago is None else NOW - ago, "gap_s": gap,
           "why": "" if ago is not None else "the tracker names no iteration"}  # fmt: skip
    return world.add("checkpoint", node, "A", {"folders": [row], "launch": launch})


def test_a_tracker_that_is_later_than_the_log_counts_and_adds_what_it_knows() -> None:
    world = World(started=NOW - 20_000)
    world.log(hits=saved(world, 5400))
    tracker(world, 600, gap=[3000.0, 2900.0, 3100.0])
    assert world.fact("checkpoint.age_s").value == pytest.approx(600, abs=1)
    assert world.fact("checkpoint.interval_s").value == 3000


def test_a_tracker_that_is_torn_leaves_the_age_unknown_with_its_reason() -> None:
    fact = tracker(World(), None).fact("checkpoint.age_s")
    assert not fact.known and "names no iteration" in fact.reason


def test_a_file_server_ahead_of_us_makes_no_negative_age() -> None:
    assert tracker(World(), -300).fact("checkpoint.age_s").value == 0


def test_micro_batches_follow_from_the_batch_sizes_only_where_they_divide() -> None:
    assert Launch(tensor=8, pipeline=4, global_batch=1024, micro_batch=1).micro_batches(512) == 64
    assert Launch(tensor=8, pipeline=4, global_batch=1000, micro_batch=3).micro_batches(512) is None
    assert Launch(tensor=8, pipeline=3).replicas(512) is None
    assert Launch(tensor=8, pipeline=4, context=2).replicas(512) == 8


# ---------------------------------------------------------------- in a report


def slow_job(costs: str = "", gap: list[float] | None = None, **launch: Any) -> dict[str, Any]:
    """8 ranks on 8 nodes, rank 5 at 88 % for 100 of 300 steps of half a second; checkpoint 20 min old."""
    world = World(nodes=8, per_node=1).processes().fabric(1e6)
    world.log(step_s=0.568, steps=400, elapsed=[0.5] * 250 + [0.568] * 150, last_ago=0.2)
    world.steps(lambda rank, i: 568.0 if rank == 5 else 500.0, lambda rank, i: 5.0 if rank == 5 else 73.0, n=40)
    tracker(world, 1200, gap=gap or [3600.0, 3500.0, 3700.0], **launch)
    names = ("frozen-job", "slow-job", "costs")
    books = {n: (resources.files("triage.playbooks") / f"{n}.yaml").read_text() for n in names}
    case = CaseFile("c", "slow-job", world.job, NOW, books, costs, samples=tuple(world.samples))
    report = conclude(case, probes=tuple(probe_names()), can_ask=False).report
    assert report is not None and report.verdict.id == "straggler"
    return report.mitigation


def step(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(s for s in found["strategies"] if s["id"] == name)


def test_a_report_prices_the_restart_with_the_age_that_the_tracker_tells() -> None:
    found = slow_job()
    assert found["restart"]["age_min"] == pytest.approx(20, abs=0.1)
    assert found["restart"]["last_checkpoint_step"] == 700
    assert found["inputs"]["checkpoint_age_min"]["source"] == "filesystem"
    interval = found["inputs"]["checkpoint_interval_min"]
    assert (interval["value"], interval["source"]) == (60, "filesystem")
    assert found["restart"]["choice"] == "wait_next"  # 20 min is more than s I = 7.2


def test_a_report_gives_the_plan_of_s2_with_the_slow_group_named() -> None:
    found = slow_job("costs: {s2_supported: true}", tp=1, pp=2, global_batch=128, micro_batch=1)
    plan = step(found, "S2")["plan"]
    assert found["inputs"]["micro_batches"] == {
        "value": 32.0, "low": 32.0, "high": 32.0, "unit": "per group", "source": "measured",
    }  # fmt: skip
    assert plan["slow_groups"] == [1]  # rank 5 is node 5: stage 1, second of four
    assert plan["micro_batches"][1] == min(plan["micro_batches"]) < 32 and sum(plan["micro_batches"]) == 128
    assert 0.5 < plan["predicted_step_s"] < 0.568


def test_a_report_gives_the_plan_of_s3_with_the_layers_of_each_stage() -> None:
    found = slow_job("costs: {s3_supported: true}", tp=1, pp=2, global_batch=128, micro_batch=1, layers=64)
    plan = step(found, "S3")["plan"]
    assert plan["slow_stages"] == [1] and plan["layers"][1] < 32 < plan["layers"][0]
    assert plan["node_order"] == [f"gpu00{i}" for i in range(1, 9)]  # one slow node need not move


def test_without_a_layout_there_is_no_plan_and_s2_cannot_be_judged() -> None:
    found = slow_job("costs: {s2_supported: true, s3_supported: true}")
    assert step(found, "S2")["plan"] is None and "cannot judge" in step(found, "S2")["reason"]
    assert step(found, "S3")["plan"] is None


def test_a_layout_that_does_not_divide_makes_no_plan() -> None:
    found = slow_job("costs: {s3_supported: true}", tp=3, pp=2, layers=64)
    assert step(found, "S3")["plan"] is None


@pytest.mark.parametrize("huge", [{"global_batch": 1 << 60}, {"layers": 1 << 60, "pp": 8}, {"tp": 1 << 60}, {"pp": 0}])
def test_absurd_numbers_of_a_command_line_make_no_plan_and_take_no_time(huge: dict[str, Any]) -> None:
    found = slow_job("costs: {s2_supported: true, s3_supported: true}", **{"tp": 1, "pp": 2, "micro_batch": 1, **huge})
    assert step(found, "S2")["plan"] is None


def test_a_gap_that_is_none_is_not_believed() -> None:
    assert not tracker(World(), 600, gap=[-5.0, -9.0, 3.0]).fact("checkpoint.interval_s").known
