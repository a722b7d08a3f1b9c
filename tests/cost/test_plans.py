"""From a verdict to a priced step: which rule speaks, what is excluded, what is printed, what is never invented."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triage.cost.options import after_rebalance
from triage.cost.plans import CulpritNode, PlanRequest, plan
from triage.cost.profile import CostProfile, Quantity, load_profile
from triage.errors import ConfigError

DEFAULTS = (Path(__file__).parents[2] / "playbooks" / "costs.yaml").read_text()
ONSET = 1_795_914_720.0  # 2026-11-29T01:12:00Z


def profile(**costs: object) -> CostProfile:
    return load_profile(DEFAULTS, json.dumps({"costs": costs}))


def slow(**changed: Any) -> PlanRequest:
    """The straggler of the print-out: 512 GPUs, 1.76 s -> 2.00 s for 48 minutes, checkpoint 35 of 60 min old."""
    given_: dict[str, Any] = {
        "verdict_id": "straggler",
        "mitigate": "price",
        "fail": "slow",
        "confidence": "high",
        "state": "slow",
        "observed": ONSET + 48 * 60,
        "n_nodes": 64,
        "n_gpus": 512,
        "kind": "compute",
        "culprits": (CulpritNode("n04", facts=2),),
        "onset": ONSET,
        "t0_s": 1.76,
        "t1_s": 2.00,
        "slow_fraction": 1 / 0.88 - 1,
        "checkpoint_at": ONSET + 13 * 60,
        "measured": {"checkpoint_interval_min": Quantity(60, 60, 60, "min", "log")},
    }
    return PlanRequest(**{**given_, **changed})


def dead(**changed: Any) -> PlanRequest:
    given_: dict[str, Any] = {
        "verdict_id": "dead_rank",
        "mitigate": "restart_excluding",
        "fail": "stop",
        "confidence": "high",
        "state": "frozen",
        "observed": ONSET + 600,
        "n_nodes": 4,
        "n_gpus": 8,
        "culprits": (CulpritNode("gpu003", hard=True),),
        "onset": ONSET,
    }
    return PlanRequest(**{**given_, **changed})


def step(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(s for s in found["strategies"] if s["id"] == name)


# ---------------------------------------------------------------- the print-out of the notes


def test_the_print_out_s2_now_and_s4_in_6_8_hours() -> None:
    found = plan(slow(), profile(s2_supported=True, micro_batches=32, gpu_hour_usd=2.5))
    assert found["recommended"]["strategy"] == "S2"
    assert found["recommended"]["action"] == "rebalance"
    assert found["loss"]["lost_fraction"] == 0.12
    assert found["loss"]["accumulated_job_min"] == 5.76
    assert found["loss"]["gpu_hours"] == pytest.approx(49.2, abs=0.05)
    assert found["loss"]["usd"] == pytest.approx(123, abs=0.5)
    assert step(found, "S2")["residual_lost_fraction"] == pytest.approx(0.03, abs=0.001)
    assert step(found, "S4")["overhead_job_min"]["mid"] == 18.0
    assert step(found, "S4")["break_even_incident_min"] == 150.0
    assert found["next_escalation"]["strategy"] == "S4"
    assert found["next_escalation"]["in_min"] / 60 == pytest.approx(6.8, abs=0.1)
    assert found["restart"]["choice"] == "wait_next"
    assert any("under 5.8 job-min" in flip["text"] for flip in found["sensitivity"]["flips_if"])
    assert found["failure_class"] == "compute_straggler"
    assert any("49.2 GPU-hours ($123 at $2.50, profile)" in line for line in found["arithmetic"])


def test_stock_megatron_knows_neither_s2_nor_s3_so_the_ladder_is_s1_to_s4_in_102_minutes() -> None:
    found = plan(slow(), profile())
    assert found["recommended"]["strategy"] == "S1"
    assert found["next_escalation"]["in_min"] == pytest.approx(102)
    assert "not supported here (default)" in step(found, "S2")["reason"]
    assert step(found, "S4")["justified"] is False


def test_a_restart_is_entered_once_the_loss_has_reached_its_price_at_the_next_checkpoint() -> None:
    late = slow(observed=ONSET + 160 * 60, checkpoint_at=ONSET + 125 * 60)
    found = plan(late, profile())
    assert found["loss"]["accumulated_job_min"] == pytest.approx(19.2)
    assert found["recommended"]["strategy"] == "S4"
    assert found["recommended"]["action"] == "restart_excluding"
    assert found["recommended"]["wait_until"] == "2026-11-29T04:17:00Z"  # 35 of 60 min: the next one is 25 min away
    assert found["recommended"]["urgency"] == "when_due"


def test_rent_is_not_reset_by_a_step_that_was_tried_and_failed() -> None:
    late = slow(observed=ONSET + 160 * 60, checkpoint_at=ONSET + 125 * 60)
    able = profile(s2_supported=True, micro_batches=32)
    assert plan(late, able)["recommended"]["strategy"] == "S2"
    assert plan(replace(late, tried=("S2",)), able)["recommended"]["strategy"] == "S4"


def test_the_seed_100_minute_dump_against_a_72_minute_slowdown_costs_11_6_times_doing_nothing() -> None:
    seed = profile(
        dump_on_demand=True,
        dump_min=100,
        restart_min=0,
        checkpoint_interval_min=10_000,
        checkpoint_age_min=5_000,
        s2_supported=True,
        micro_batches=32,
    )
    found = plan(slow(observed=ONSET + 72 * 60, measured={}), seed)
    s4, s2 = step(found, "S4"), step(found, "S2")
    assert found["restart"]["choice"] == "dump_now"
    assert found["loss"]["accumulated_job_min"] == pytest.approx(8.64)
    assert s4["overhead_job_min"]["mid"] == 100
    assert s4["overhead_job_min"]["mid"] / found["loss"]["accumulated_job_min"] == pytest.approx(11.6, abs=0.05)
    assert s4["break_even_incident_min"] == pytest.approx(833, abs=0.5)
    assert 149 < s4["break_even_incident_min"] / s2["break_even_incident_min"] < 200
    assert found["recommended"]["strategy"] == "S2"


# ---------------------------------------------------------------- S2, S3


@pytest.mark.parametrize(
    ("speed", "row"),
    [
        (0.95, [None, None, None, 3.1, 1.6]),
        (0.88, [None, 12.5, 6.2, 3.1, 1.6]),
        (0.80, [None, 12.5, 6.2, 3.1, 1.6]),
        (0.50, [25, 12.5, 6.2, 3.1, 3.1]),
    ],
)
def test_what_whole_micro_batches_leave(speed: float, row: list[float | None]) -> None:
    for count, expected in zip((4, 8, 16, 32, 64), row):
        left = after_rebalance(speed, count, 32)
        if expected is None:
            assert left == pytest.approx(1 / speed - 1)
        else:
            assert left * 100 == pytest.approx(expected, abs=0.06)


def test_few_groups_take_more_micro_batches_each() -> None:
    assert after_rebalance(0.5, 16, 8) == pytest.approx(0.125)
    assert after_rebalance(0.5, 32, 8) == pytest.approx(0.094, abs=0.001)


def test_a_single_group_has_nobody_to_give_to() -> None:
    assert after_rebalance(0.5, 16, 1) == pytest.approx(1.0)


@pytest.mark.parametrize("count", [1, 4, 7])
def test_too_few_micro_batches_for_s2(count: int) -> None:
    found = plan(slow(), profile(s2_supported=True, micro_batches=count))
    assert not step(found, "S2")["applicable"]


def test_s2_with_8_micro_batches_improves_13_6_to_12_5_percent_and_is_not_worth_a_try() -> None:
    found = plan(slow(), profile(s2_supported=True, micro_batches=8))
    assert not step(found, "S2")["applicable"]
    assert "not worth a try" in step(found, "S2")["reason"]


def test_s2_without_a_known_number_of_micro_batches_cannot_be_judged() -> None:
    assert "cannot judge" in step(plan(slow(), profile(s2_supported=True)), "S2")["reason"]


def test_micro_batches_do_not_relieve_a_slow_link_but_topology_may() -> None:
    able = profile(s2_supported=True, s3_supported=True, micro_batches=64)
    found = plan(slow(kind="network", slow_fraction=None, t1_s=1.76 * 1.3459), able)
    assert not step(found, "S2")["applicable"]
    assert step(found, "S3")["residual_lost_fraction"] == pytest.approx(0.103, abs=0.001)
    assert found["recommended"]["strategy"] == "S3"
    assert found["failure_class"] == "network_straggler"


def test_a_slow_down_that_returns_after_a_restart_is_mended_and_not_restarted() -> None:
    found = plan(
        slow(verdict_id="input_stall", kind=None, mitigate="repair", fix_first="Add loader workers.", culprits=()),
        profile(),
    )
    assert found["recommended"]["strategy"] == "S1"
    assert found["recommended"]["action"] == "repair"
    assert found["recommended"]["fix_first"] == "Add loader workers."
    assert [s["applicable"] for s in found["strategies"]] == [True, False, False, False]


# ---------------------------------------------------------------- frozen


def test_a_dead_rank_restarts_at_once_however_young_the_incident() -> None:
    found = plan(dead(observed=ONSET + 1), profile())
    assert found["recommended"]["strategy"] == "S4"
    assert found["recommended"]["urgency"] == "now"
    assert found["restart"]["choice"] == "from_last"
    assert found["restart"]["exclude_nodes"] == ["gpu003"]
    assert not step(found, "S1")["applicable"]
    assert found["loss"]["lost_fraction"] == 1.0


def test_a_deadlock_says_fix_first_and_excludes_nobody() -> None:
    found = plan(
        dead(verdict_id="deadlock", mitigate="fix_then_restart", fix_first="Enter the groups in one order."), profile()
    )
    assert found["recommended"]["strategy"] == "S4"
    assert found["recommended"]["action"] == "fix_then_restart"
    assert found["recommended"]["fix_first"] == "Enter the groups in one order."
    assert found["restart"]["exclude_nodes"] == []


def test_the_age_of_a_frozen_jobs_checkpoint_ends_with_the_stall() -> None:
    found = plan(dead(checkpoint_at=ONSET - 1200, checkpoint_step=400), profile())
    assert found["restart"]["age_min"] == 20
    assert found["restart"]["work_lost_min"] == 20
    assert found["restart"]["last_checkpoint_step"] == 400
    assert found["inputs"]["checkpoint_age_min"]["source"] == "filesystem"


def test_a_flap_is_waited_for_up_to_10_minutes_and_then_restarted() -> None:
    flap = dead(verdict_id="link_flap", mitigate="price", observed=ONSET + 60)
    found = plan(flap, profile())
    assert found["recommended"]["strategy"] == "S1"
    assert found["recommended"]["action"] == "wait"
    assert found["recommended"]["wait_until"] == "2026-11-29T01:22:00Z"
    assert found["next_escalation"]["in_min"] == pytest.approx(9.0)
    assert plan(replace(flap, observed=ONSET + 601), profile())["recommended"]["strategy"] == "S4"


def test_a_wait_never_runs_into_the_deadline() -> None:
    flap = dead(verdict_id="link_flap", mitigate="price", observed=ONSET + 60, deadline=ONSET + 300)
    assert plan(flap, profile())["next_escalation"]["in_min"] == pytest.approx(2.0)


def test_a_wait_is_at_least_the_transports_own_retry_budget() -> None:
    quick = profile(flap_stuck_p=0.95, checkpoint_age_min=0, restart_min=5)
    flap = dead(verdict_id="link_flap", mitigate="price", observed=ONSET + 30)
    assert plan(flap, quick)["recommended"]["strategy"] == "S4"
    assert plan(replace(flap, retry_budget_s=132.0), quick)["next_escalation"]["in_min"] == pytest.approx(1.7)


def test_a_verdict_that_says_wait_is_s1_even_when_the_wait_is_over() -> None:
    found = plan(dead(verdict_id="link_flap", mitigate="wait", observed=ONSET + 7200), profile())
    assert found["recommended"]["strategy"] == "S1"
    assert "is justified" in found["recommended"]["summary"]
    assert step(found, "S4")["justified"]


# ---------------------------------------------------------------- inconclusive, healthy


def test_inconclusive_collects_until_5_minutes_after_the_onset_and_then_restarts_without_excluding() -> None:
    found = plan(dead(verdict_id="inconclusive", mitigate="none", confidence="none", observed=ONSET + 60), profile())
    assert found["recommended"]["strategy"] == "S1"
    assert found["recommended"]["action"] == "collect"
    assert found["recommended"]["wait_until"] == found["next_escalation"]["at"]
    assert found["next_escalation"]["in_min"] == pytest.approx(4.0)
    assert found["next_escalation"]["strategy"] == "S4"
    assert found["restart"]["exclude_nodes"] == []
    assert found["confidence"] == "low"


def test_inconclusive_stops_collecting_2_minutes_before_the_deadline() -> None:
    found = plan(
        dead(verdict_id="inconclusive", mitigate="wait", confidence="none", observed=ONSET + 60, deadline=ONSET + 240),
        profile(),
    )
    assert found["next_escalation"]["in_min"] == pytest.approx(1.0)


def test_inconclusive_about_a_job_that_moves_never_ends_in_a_restart() -> None:
    found = plan(slow(verdict_id="inconclusive", mitigate="none", state="running"), profile())
    assert found["recommended"]["action"] == "collect"
    assert found["next_escalation"] is None


def test_a_healthy_job_has_a_plan_too_and_it_is_nothing() -> None:
    found = plan(slow(verdict_id="healthy", mitigate="none", fail="none", state="running", culprits=()), profile())
    assert found["recommended"]["strategy"] == "S1"
    assert found["loss"]["accumulated_job_min"] == 0.0
    assert found["restart"]["exclude_nodes"] == []


# ---------------------------------------------------------------- exclusion, spares


@pytest.mark.parametrize(
    ("culprits", "confidence", "nodes", "excluded"),
    [
        ((CulpritNode("a", hard=True),), "high", 4, ["a"]),
        ((CulpritNode("a", facts=2),), "high", 4, ["a"]),
        ((CulpritNode("a", facts=1),), "high", 4, []),
        ((CulpritNode("a", hard=True),), "medium", 4, []),
        ((CulpritNode("a", hard=True, involved=True),), "high", 4, []),
        ((CulpritNode("a", hard=True), CulpritNode("b", facts=1)), "high", 4, ["a"]),
        (tuple(CulpritNode(n, hard=True) for n in "abc"), "high", 100, []),
        (tuple(CulpritNode(n, hard=True) for n in "abc"), "high", 150, ["a", "b", "c"]),
        ((CulpritNode("a", hard=True), CulpritNode("a", hard=True)), "high", 4, ["a"]),
        ((), "high", 4, []),
    ],
)
def test_who_may_be_excluded(
    culprits: tuple[CulpritNode, ...], confidence: Any, nodes: int, excluded: list[str]
) -> None:
    found = plan(dead(culprits=culprits, confidence=confidence, n_nodes=nodes), profile())
    assert found["restart"]["exclude_nodes"] == excluded
    assert found["recommended"]["strategy"] == "S4"
    assert (found["restart"]["not_excluded_because"] is None) == bool(excluded)


def test_a_straggler_that_may_not_be_excluded_is_not_restarted_because_it_would_come_back() -> None:
    found = plan(slow(confidence="medium", observed=ONSET + 10 * 3600), profile())
    assert found["recommended"]["strategy"] == "S1"
    assert "would come back" in step(found, "S4")["reason"]


def test_too_few_idle_nodes_is_said_first() -> None:
    found = plan(dead(idle_nodes=0, idle_source="scheduler"), profile())
    assert found["restart"]["spares"] == {"needed": 1, "idle": 0, "source": "scheduler"}
    assert found["arithmetic"][0].startswith("Too few idle nodes")
    assert "free 1 node first" in found["recommended"]["summary"]


def test_an_unknown_number_of_idle_nodes_is_null_and_no_shortage() -> None:
    found = plan(dead(), profile())
    assert found["restart"]["spares"]["idle"] is None
    assert "free" not in found["recommended"]["summary"]


def test_a_straggler_with_a_hard_fault_is_drained_at_once_whatever_it_has_cost() -> None:
    young = slow(culprits=(CulpritNode("n04", hard=True),), observed=ONSET + 60)
    found = plan(young, profile(s2_supported=True, micro_batches=32))
    assert found["recommended"]["strategy"] == "S4"
    assert found["recommended"]["action"] == "restart_excluding"
    assert found["restart"]["exclude_nodes"] == ["n04"]
    assert not step(found, "S1")["applicable"] and "hard fault" in step(found, "S1")["reason"]
    assert step(found, "S2")["applicable"]  # a stopgap
    unsure = plan(replace(young, confidence="medium"), profile())
    assert unsure["recommended"]["strategy"] == "S1"  # nobody is excluded, so it would come back


def test_the_ways_to_a_checkpoint_stand_side_by_side_the_chosen_one_first() -> None:
    found = plan(slow(), profile(dump_on_demand=True, dump_min=1))
    ways = {way["choice"]: way for way in found["restart"]["ways"]}
    assert found["restart"]["ways"][0]["choice"] == found["restart"]["choice"] == "dump_now"
    assert ways["dump_now"]["overhead_job_min"] == 16 and ways["wait_next"]["overhead_job_min"] == 18
    assert ways["from_last"]["overhead_job_min"] == pytest.approx(15 + 0.88 * 35)
    assert ways["wait_next"]["break_even_incident_min"] == pytest.approx(150)


# ---------------------------------------------------------------- what is not known


def test_without_a_healthy_step_time_there_are_bounds_and_no_price() -> None:
    found = plan(slow(t0_s=None, t1_s=None), profile())
    assert found["loss"]["accumulated_job_min"] is None
    assert found["loss"]["lost_fraction"] is None
    assert found["inputs"]["lost_fraction"]["low"] == 0 and found["inputs"]["lost_fraction"]["high"] == 0.12
    assert found["inputs"]["lost_job_min"]["high"] == pytest.approx(5.76)
    assert found["confidence"] == "low"
    assert found["recommended"]["strategy"] == "S1"
    assert any("at most 12.0 %" in line for line in found["arithmetic"])


def test_without_an_onset_the_loss_is_bounded_by_what_the_log_still_shows() -> None:
    series = tuple((None, 2000.0) for _ in range(100))
    found = plan(slow(onset=None, series=series), profile())
    assert found["loss"]["onset"] is None and found["loss"]["accumulated_job_min"] is None
    assert found["inputs"]["lost_job_min"]["low"] == pytest.approx(100 * 0.24 / 60)
    assert found["confidence"] == "low"


def test_no_price_per_gpu_hour_means_no_dollars() -> None:
    found = plan(dead(), profile())
    assert found["loss"]["usd"] is None
    assert not any("$" in line for line in found["arithmetic"])


def test_an_unknown_number_of_gpus_means_no_gpu_hours() -> None:
    found = plan(dead(n_gpus=None), profile())
    assert found["loss"]["gpu_hours"] is None
    assert "gpus" not in found["inputs"]


def test_disagreeing_corners_lower_the_confidence_and_are_printed() -> None:
    found = plan(slow(observed=ONSET + 90 * 60, checkpoint_at=ONSET + 55 * 60), profile())
    assert found["recommended"]["strategy"] == "S1"  # 10.8 lost, a restart 8 to 43
    assert found["sensitivity"]["corners_agree"] is False
    assert found["confidence"] == "low"
    assert any("S1 or S4" in line for line in found["arithmetic"])


def test_the_other_policy_restarts_at_once_where_incidents_last_long_on_average() -> None:
    found = plan(slow(observed=ONSET + 60), profile(policy="prefer_restart", restart_min=2, duration_large_min=100))
    assert found["recommended"]["strategy"] == "S4"
    assert plan(slow(observed=ONSET + 60), profile(restart_min=2))["recommended"]["strategy"] == "S1"


def test_every_input_carries_its_source_and_range() -> None:
    found = plan(slow(), profile(restart_min={"value": 12, "low": 10, "high": 20, "source": "history"}))
    assert found["inputs"]["restart_min"] == {
        "value": 12.0,
        "low": 10.0,
        "high": 20.0,
        "unit": "min",
        "source": "history",
    }
    assert found["inputs"]["checkpoint_interval_min"]["source"] == "log"
    assert found["inputs"]["s2_supported"]["value"] is False


def test_an_unknown_measured_input_is_a_bug_of_the_caller() -> None:
    with pytest.raises(KeyError, match="restart_minutes"):
        plan(slow(measured={"restart_minutes": Quantity(1)}), profile())


# ---------------------------------------------------------------- any request

people = st.builds(CulpritNode, st.sampled_from("abc"), st.booleans(), st.integers(0, 3))
points = st.tuples(st.none() | st.floats(ONSET - 1e4, ONSET + 1e3), st.floats(0, 1e6))
requests = st.builds(
    PlanRequest,
    verdict_id=st.sampled_from(["dead_rank", "deadlock", "straggler", "link_flap", "inconclusive", "healthy", "busy"]),
    mitigate=st.sampled_from(["none", "wait", "price", "restart", "restart_excluding", "fix_then_restart", "repair"]),
    fail=st.sampled_from(["stop", "slow", "none"]),
    confidence=st.sampled_from(["high", "medium", "low", "none"]),
    state=st.sampled_from(["frozen", "slow", "running", "unknown", "ended"]),
    observed=st.just(ONSET + 600),
    n_nodes=st.integers(1, 1024),
    n_gpus=st.none() | st.integers(1, 8192),
    kind=st.none() | st.sampled_from(["compute", "network"]),
    culprits=st.lists(people, max_size=3).map(tuple),
    onset=st.none() | st.floats(ONSET - 1e6, ONSET + 1e4),
    t0_s=st.none() | st.floats(0.001, 100),
    t1_s=st.none() | st.floats(0.001, 100),
    series=st.lists(points, max_size=5).map(tuple),
    slow_fraction=st.none() | st.floats(-0.5, 20),
    deadline=st.none() | st.floats(ONSET, ONSET + 1e5),
    idle_nodes=st.none() | st.integers(0, 3),
    checkpoint_at=st.none() | st.floats(ONSET - 1e5, ONSET + 1e4),
)
PROFILES = [profile(), profile(s2_supported=True, s3_supported=True, micro_batches=16, dump_on_demand=True)]


@settings(max_examples=150, deadline=None)
@given(requests, st.sampled_from(PROFILES))
def test_any_request_gets_a_whole_plan(request: PlanRequest, costs: CostProfile) -> None:
    found = plan(request, costs)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert plan(request, costs) == found
    strategy, action = found["recommended"]["strategy"], found["recommended"]["action"]
    assert [s["id"] for s in found["strategies"]] == ["S1", "S2", "S3", "S4"]
    if request.verdict_id == "inconclusive":
        assert (strategy, action) == ("S1", "collect")
    elif request.mitigate in ("none", "wait", "repair"):
        assert strategy == "S1"
    elif request.mitigate != "price":
        assert strategy == "S4"
    excluded = found["restart"]["exclude_nodes"]
    assert len(excluded) <= max(2, 0.02 * request.n_nodes)
    if excluded:
        assert request.confidence == "high"
    assert found["recommended"]["summary"].startswith(f"{strategy}: ")


# ---------------------------------------------------------------- the profile


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("costs: {restart_minn: 8}", "did you mean restart_min?"),
        ("costs: {restart_min: {valu: 8}}", "did you mean value?"),
        ("costs: {restart_min: -1}", "0 or more"),
        ("costs: {restart_min: .nan}", "must be a number"),
        ("costs: {restart_min: .inf}", "must be a number"),
        (f"costs: {{restart_min: 1{'0' * 400}}}", "must be a number"),
        ("costs: {restart_min: soon}", "must be a number"),
        ("costs: {restart_min: true}", "must be a number"),
        ("costs: {restart_min: {value: 8, low: 9}}", "low <= value <= high"),
        ("costs: {restart_min: {value: 8, unit: hours}}", "measured in min"),
        ("costs: {restart_min: {low: 9}}", "has no value"),
        ("costs: {s2_supported: 1}", "true or false"),
        ("costs: {policy: hope}", "ski_rental, prefer_restart"),
        ("costs: {restart_min: {value: 8, source: rumour}}", "use one of"),
        ("costs: {flap_stuck_p: 40}", "write 0.4"),
        ("costs: [1]", "must be a map"),
        ("[1, 2]", "must be a map"),
        ("costs: {a: [", "not YAML"),
        ("costs: !!python/object/apply:os.system [id]", "the tag"),
        ("[" * 3000, "profile: "),
        ("costs: {2026-99-99: 1}", "is no input"),
        ("a: \x00", "not YAML"),
    ],
)
def test_a_profile_that_does_not_fit_is_one_clear_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_profile(DEFAULTS, text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bare_number_leaves_no_range_and_names_the_profile() -> None:
    found = load_profile(DEFAULTS, "thresholds: {x: 1}\ncosts: {restart_min: 8}").quantity("restart_min")
    assert (found.value, found.low, found.high, found.source) == (8, 8, 8, "profile")


def test_an_empty_profile_changes_nothing() -> None:
    for text in ("", "{}", "costs:", "thresholds: {}"):
        assert load_profile(DEFAULTS, text) == load_profile(DEFAULTS)


def test_a_null_where_a_number_is_needed_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="gain_min may not be null"):
        plan(slow(), load_profile(DEFAULTS, "costs: {gain_min: null, s2_supported: true, micro_batches: 32}"))


def test_every_default_has_a_note_a_unit_and_a_range_around_its_value() -> None:
    defaults = load_profile(DEFAULTS)
    for name, found in defaults.quantities.items():
        assert found.note and found.unit, name
        if found.value is not None:
            assert found.low is not None and found.high is not None and found.low <= found.value <= found.high, name
    assert all(switch.note and not switch.value for switch in defaults.switches.values())
