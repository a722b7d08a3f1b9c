"""`triage cost`: what a person types, and the seed's exercises as the code computes them and as the manual tells them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import triage
from triage.cost.calculator import Flags, increase_of, minutes, recovery, request_of, seconds, with_switches
from triage.cost.escalate import Option, break_even, decide, worst_ratio
from triage.cost.loss import lost_fraction, lost_minutes
from triage.cost.plans import plan
from triage.cost.profile import load_profile
from triage.errors import UsageError
from triage.schema import cost_schema, cost_schema_text

ROOT = Path(__file__).parents[2]
DEFAULTS = (ROOT / "playbooks" / "costs.yaml").read_text()
NOW = 1_795_917_600.0  # 2026-11-29T02:00:00Z


def asked(**said: Any) -> dict[str, Any]:
    flags = Flags(**said)
    return plan(request_of(flags, NOW), with_switches(load_profile(DEFAULTS), flags))


def step(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(s for s in found["strategies"] if s["id"] == name)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "triage", "cost", *words], capture_output=True, text=True, timeout=120)


# ---------------------------------------------------------------- what is typed


@pytest.mark.parametrize(
    ("said", "x", "s"),
    [
        ({"speed": 0.88}, 0.1364, 0.12),
        ({"mfu": "44:37"}, 0.189, 0.159),
        ({"rate": "17.1:14.8"}, 0.155, 0.1345),
        ({"healthy_step": "1.76s", "slow_step": "2000ms"}, 0.1364, 0.12),
    ],
)
def test_a_slowdown_may_be_told_in_four_ways(said: dict[str, Any], x: float, s: float) -> None:
    increase, _, _ = increase_of(Flags(**said))
    assert increase == pytest.approx(x, abs=6e-4)
    assert lost_fraction(increase or 0) == pytest.approx(s, abs=6e-4)


def test_a_duration_with_a_range_keeps_its_ends() -> None:
    found = minutes("--restart", "5m,10m,40m")
    assert (found.low, found.value, found.high, found.source) == (5, 10, 40, "flag")
    assert seconds("--x", "90") == 90 and seconds("--x", "2h") == 7200 and seconds("--x", "1.5d") == 129600


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({}, "say how slow it is"),
        ({"speed": 0.9, "mfu": "44:37"}, "one way only: --speed, --mfu"),
        ({"speed": 0.0}, "0 is --frozen"),
        ({"speed": float("nan")}, "share of the healthy speed"),
        ({"speed": 1.2}, "above 0 to 1"),
        ({"mfu": "37:44"}, "the order is healthy:now"),
        ({"mfu": "44"}, "give healthy:now"),
        ({"rate": "nan:1"}, "give healthy:now"),
        ({"rate": "1:2:3:4"}, "give healthy:now"),
        ({"healthy_step": "2s", "slow_step": "1s"}, "nothing is lost"),
        ({"healthy_step": "2s"}, "belong together"),
        ({"healthy_step": "0s", "slow_step": "1s"}, "nothing is lost"),
        ({"speed": 0.9, "since": "soon"}, "--since 'soon' is not a duration"),
        ({"speed": 0.9, "restart": "10m,5m,1m"}, "low,middle,high"),
        ({"speed": 0.9, "restart": "1m,2m"}, "low,middle,high"),
        ({"speed": 0.9, "gpus": 0}, "--gpus 0"),
        ({"speed": 0.9, "kind": "heat"}, "compute, network"),
        ({"speed": 0.9, "tried": ("S9",)}, "none of S2, S3, S4"),
        ({"speed": 0.9, "price": float("inf")}, "no price"),
        ({"speed": 0.9, "slow": ("n1=0.5",)}, "with --nodes"),
        ({"speed": 0.9, "nodes": ("n1", "n2"), "slow": ("n3=0.5",)}, "none of --nodes"),
        ({"speed": 0.9, "nodes": ("n1", "n2"), "slow": ("n1=fast",)}, "NODE=SPEED"),
        ({"speed": 0.9, "nodes": ("n1", "n1")}, "a node twice"),
        ({"speed": 0.9, "nodes": ("n1", "n2"), "gpus": 16, "pipeline": 0}, "--pp 0"),
        ({"speed": 0.9, "nodes": ("n1", "n2"), "gpus": 16, "tensor": 8, "pipeline": 4}, "no plan for these nodes"),
        ({"speed": 0.9, "data": 65536, "micro_batches": 65536}, "4 million"),
    ],
)
def test_a_number_that_makes_no_sense_is_one_line(said: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        asked(**said)
    assert says in str(caught.value) and "\n" not in str(caught.value)


# ---------------------------------------------------------------- what is answered


def test_the_issues_example_priced_by_hand() -> None:
    words = (
        "--healthy-step 1.76s --slow-step 2.00s --gpus 512 --since 48m --price 2.50 --checkpoint-dump 100m --restart 10m "
        "--output json --at 2026-11-29T02:00:00Z"
    )
    done = run(*words.split())
    found = json.loads(done.stdout)
    jsonschema.Draft202012Validator(cost_schema()).validate(found)
    assert found["schema_version"] == "triage.cost/1"
    assert found["loss"]["step_increase"] == pytest.approx(0.1364, abs=1e-4)
    assert found["loss"]["accumulated_job_min"] == 5.76
    assert found["loss"]["usd"] == pytest.approx(122.88)
    assert step(found, "S4")["overhead_job_min"]["mid"] == 110
    assert step(found, "S4")["break_even_incident_min"] == pytest.approx(916.7, abs=0.1)
    assert found["restart"]["choice"] == "dump_now"
    assert found["recommended"]["strategy"] == "S1"
    assert found["loss"]["onset"] == "2026-11-29T01:12:00Z"
    assert {told["source"] for told in found["inputs"].values()} <= {"flag", "default"}
    assert found["inputs"]["healthy_step_s"]["source"] == "flag"


def test_only_a_dump_that_was_told_counts_against_ages_that_nobody_told() -> None:
    alone = asked(speed=0.88, since="1h", checkpoint_dump="100m", restart="10m")
    assert alone["restart"]["choice"] == "dump_now" and "checkpoint_interval_min" not in alone["inputs"]
    assert [way["assumed"] for way in alone["restart"]["ways"]] == [False, True, True]
    known = asked(speed=0.88, since="1h", checkpoint_dump="100m", restart="10m", checkpoint_every="60m")
    assert known["restart"]["choice"] == "wait_next"
    assert step(known, "S4")["overhead_job_min"]["mid"] == pytest.approx(10 + 0.12 * 30)


def test_without_since_nothing_is_claimed_of_what_is_lost_and_no_time_is_promised() -> None:
    found = asked(speed=0.88, checkpoint_dump="100m", restart="0s")
    assert found["loss"]["accumulated_job_min"] is None and found["loss"]["gpu_hours"] is None
    assert found["confidence"] == "low" and found["sensitivity"]["flips_if"] == []
    assert found["next_escalation"]["in_min"] is None
    assert "833 min after it" in found["next_escalation"]["condition"]


def test_a_clock_alone_gives_bounds_and_no_price() -> None:
    found = asked(clock="1410:1230", since="48m", s2=True, micro_batches=32, data=8)
    assert found["loss"]["lost_fraction"] is None and found["loss"]["accumulated_job_min"] is None
    assert found["inputs"]["lost_fraction"]["low"] == 0
    assert found["inputs"]["lost_fraction"]["high"] == pytest.approx(1 - 1230 / 1410, abs=1e-4)
    assert found["inputs"]["lost_job_min"]["high"] == pytest.approx(48 * (1 - 1230 / 1410), abs=1e-3)
    assert found["confidence"] == "low" and found["recommended"]["strategy"] == "S1"
    assert "cannot judge" in step(found, "S2")["reason"]
    assert found["next_escalation"]["condition"].endswith("job-minutes are lost since the onset")
    assert any("Its clock alone" in line and "at most 12.8 %" in line for line in found["arithmetic"])


def test_a_frozen_job_is_waited_for_no_longer_than_a_flap_is_worth() -> None:
    young, old = asked(frozen=True, since="3m"), asked(frozen=True, since="30m")
    assert young["recommended"]["action"] == "wait" and old["recommended"]["strategy"] == "S4"
    assert young["loss"]["lost_fraction"] == 1.0


def test_stock_frameworks_have_the_ladder_s1_s4_and_able_ones_the_whole() -> None:
    stock = asked(speed=0.88, since="1h", micro_batches=32, data=8)
    assert stock["recommended"]["strategy"] == "S1"
    assert "not supported here" in step(stock, "S2")["reason"] and step(stock, "S2")["plan"] is None
    able = asked(speed=0.88, since="1h", micro_batches=32, data=8, s2=True)
    assert able["recommended"]["strategy"] == "S2"
    assert sum(step(able, "S2")["plan"]["micro_batches"]) == 256
    assert step(able, "S2")["residual_lost_fraction"] == pytest.approx(lost_fraction(1 / 32), abs=1e-4)


LAID_OUT: dict[str, Any] = {
    "healthy_step": "1.76s", "slow_step": "2.00s", "since": "48m", "gpus": 64,
    "nodes": tuple(f"n{i}" for i in range(8)), "tensor": 8, "pipeline": 2, "s2": True, "s3": True, "micro_batches": 32,
}  # fmt: skip


def test_s2_names_the_slow_group_where_the_layout_is_known() -> None:
    found = step(asked(**LAID_OUT, slow=("n1=0.88",)), "S2")["plan"]
    assert found["slow_groups"] == [1] and found["slow_group_known"]
    assert found["micro_batches"][1] == min(found["micro_batches"]) < 32
    assert found["predicted_step_s"] == pytest.approx(1.76 * (1 + 1 / 33), abs=0.005)
    lines = asked(**LAID_OUT, slow=("n1=0.88",))["arithmetic"]
    assert any(line == "S2 in full: group 1: 29; groups 0, 2, 3: 33." for line in lines)


def test_s3_gathers_two_slow_nodes_into_one_stage_and_predicts_the_step() -> None:
    found = step(asked(**LAID_OUT, layers=32, slow=("n1=0.88", "n6=0.88")), "S3")
    assert found["applicable"]
    assert found["plan"]["slow_stages"] in ([0], [1]) and len(found["plan"]["moves"]) == 2
    assert sum(found["plan"]["layers"]) == 32
    assert 1.76 < found["plan"]["predicted_step_s"] < 1.95


def test_s3_says_so_where_no_order_helps() -> None:
    found = step(asked(**LAID_OUT, slow=("n1=0.88",)), "S3")
    assert not found["applicable"] and "no order" in found["reason"]


def test_s3_parts_the_ends_of_a_slow_link_and_s2_is_no_remedy_for_it() -> None:
    found = asked(**LAID_OUT, kind="network", slow=("n1~n2=0.5",))
    assert step(found, "S3")["plan"]["predicted_step_s"] == 1.76
    assert not step(found, "S2")["applicable"]
    assert found["recommended"]["strategy"] == "S3"


def test_a_node_that_is_named_is_excluded_and_too_few_idle_ones_are_said_first() -> None:
    found = asked(speed=0.5, since="10h", exclude=("n7",), idle_nodes=0)
    assert found["restart"]["exclude_nodes"] == ["n7"]
    assert found["arithmetic"][0].startswith("Too few idle nodes")


def test_where_restarting_at_once_wins_on_average_the_answer_says_so_and_still_follows_the_rule() -> None:
    """Set H of the simulation: 36 job-minutes against 8."""
    found = asked(speed=0.5, since="5m", gpus=512, checkpoint_age="0m", checkpoint_every="60m", restart="8m")
    assert found["recommended"]["strategy"] == "S1"
    assert any("restarting at once would win" in line for line in found["arithmetic"])
    mild = asked(speed=0.88, since="5m", gpus=512, checkpoint_dump="100m")
    assert not any("would win" in line for line in mild["arithmetic"])


def test_the_text_is_at_most_80_columns_and_says_the_step_first_and_last() -> None:
    lines = run("--speed", "0.88", "--since", "48m", "--gpus", "512").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("DO THIS") and any(line.startswith("DO THIS") for line in lines[-2:])


def test_a_hostile_name_reaches_neither_terminal_nor_advice() -> None:
    done = run("--speed", "0.5", "--since", "9h", "--exclude", "n\x1b[31m;rm -rf /")
    assert "\x1b" not in done.stdout + done.stderr


def test_the_shipped_schema_is_that_of_the_code() -> None:
    assert (Path(triage.__file__).parent / "cost.schema.json").read_text() == cost_schema_text(), (
        "write it anew: triage schema cost > triage/cost.schema.json"
    )
    jsonschema.Draft202012Validator.check_schema(cost_schema())


def test_every_answer_keeps_to_the_schema() -> None:
    validator = jsonschema.Draft202012Validator(cost_schema())
    for said in (LAID_OUT, {"frozen": True}, {"speed": 0.5, "kind": "network", "s3": True}, {"mfu": "44:37"}):
        validator.validate({"schema_version": "triage.cost/1", **asked(**said)})


# ---------------------------------------------------------------- the seed's exercises, and the manual's words for them

PAGE = re.sub(r"\\f.|\\(?=-)", "", (ROOT / "man" / "triage-cost.1").read_text())


def on_page(*texts: str) -> None:
    words = " ".join(re.sub(r"^\.\w+ ", "", PAGE, flags=re.M).replace('"', "").split())
    assert [text for text in texts if text not in words] == []


def test_beginner_every_step_takes_13_64_percent_longer_and_not_1_256_of_them() -> None:
    increase, _, _ = increase_of(Flags(speed=0.88))
    assert increase is not None
    on_page(
        f"{1 + increase:.4f} times",
        f"+{increase:.2%}".replace("%", " %"),
        f"{lost_fraction(increase):.2%}".replace("%", " %"),
    )
    steps = [max(1 / 0.88 if rank == 17 else 1.0 for rank in range(256)) for _ in range(100)]
    assert all(took == pytest.approx(1 + increase) for took in steps)  # each of them, whoever it is


def test_intermediate_break_even_is_100_minutes_at_a_full_stop_and_833_at_12_percent() -> None:
    assert break_even(100, 1.0, 0.0) == 100
    waiting = lost_minutes(0.12, 72)
    on_page(f"{100 - 72} min more than waiting", f"{waiting:.2f} job-minutes", f"{100 / waiting:.1f} times")
    found = {
        "833": break_even(100, 0.12, 0),
        "917": break_even(110, 0.12, 0),
        "4.17": break_even(0.5, 0.12, 0),
        "5.56": break_even(0.5, 0.12, 0.03),
    }
    for text, value in found.items():
        assert value is not None and f"{value:.3g}" == text
        on_page(text)
    told = asked(speed=0.88, gpus=256, checkpoint_dump="100m", restart="0s", s2=True, micro_batches=64)
    assert step(told, "S4")["break_even_incident_min"] == pytest.approx(833.3, abs=0.1)
    assert step(told, "S2")["break_even_incident_min"] == pytest.approx(0.5 / (0.12 - lost_fraction(1 / 64)), abs=0.01)


def test_advanced_the_rule_enters_a_step_at_its_price_and_stays_within_its_bound() -> None:
    rungs = (Option("S1", 0, 0.12), Option("S2", 0.5, 0.03), Option("S3", 1, 0.02), Option("S4", 110, 0.0))
    assert [decide(rungs, rent).id for rent in (0.4, 0.5)] == ["S1", "S2"]
    assert worst_ratio(rungs) == 2.5 and worst_ratio(rungs[3:]) == 2
    on_page(
        "enter step i when the rent reaches ci",
        "1 + max over k of (c2 + ... + ck) / ck",
        "2.5 for 0.5, 1 and 1.5 or more",
    )


def test_the_mean_rest_of_a_heavy_tailed_incident_grows_as_the_manual_says() -> None:
    from statistics import NormalDist

    mu, normal = 4.2767 - 1.125, NormalDist()  # log 72 - sigma^2 / 2
    spread = sorted(2.718281828 ** (mu + 1.5 * normal.inv_cdf((i + 0.5) / 200_000)) for i in range(200_000))
    after = [length - 60 for length in spread if length > 60]
    assert sum(spread) / len(spread) == pytest.approx(72, abs=0.5)
    assert sum(after) / len(after) == pytest.approx(160, abs=4)
    on_page("72 min are still to come at its onset, and 160 after one hour")


def test_a_remedy_from_14_8_to_16_2_of_17_1_took_60_87_percent_away() -> None:
    found = recovery(17.1, 14.8, 16.2)
    on_page(f"{found.by_rate:.2%}".replace("%", " %"), f"{found.by_time:.2%}".replace("%", " %"))
    assert found.by_rate == pytest.approx(0.6087, abs=5e-5)
    low, high = recovery(17.15, 14.85, 16.15), recovery(17.05, 14.75, 16.25)
    assert low.by_rate < 0.601 < high.by_rate
    assert "60.87 %" in run("--rate", "17.1:14.8:16.2").stdout.replace("%", " %").replace("  %", " %")


# ---------------------------------------------------------------- files


def step_files(folder: Path, slow: bool = True, ranks: int = 4, plain: bool = False) -> Path:
    """400 steps of 1.76 s, the last 150 of 2 s for rank 2's sake."""
    for rank in range(ranks):
        at, rows = NOW - 600.0, []
        for number in range(400):
            late = slow and number >= 250
            total = 2000.0 if late else 1760.0
            own = (1500.0 / 0.88 if late and rank == 2 else 1500.0) + (number * 7 + rank) % 5
            row = {"step": number, "rank": rank, "t_start": at, "compute_ms": own, "total_ms": total}
            rows.append(f"{total}" if plain else json.dumps(row))
            at += total / 1000
        (folder / f"rank_{rank}.{'log' if plain else 'jsonl'}").write_text("\n".join(rows) + "\n")
    return folder


@pytest.mark.parametrize("plain", [False, True])
def test_step_files_tell_healthy_and_slow_step_and_since_when(tmp_path: Path, plain: bool) -> None:
    found = json.loads(run("--steps", str(step_files(tmp_path, plain=plain)), "--output", "json").stdout)
    assert found["loss"]["healthy_step_s"] == pytest.approx(1.76, abs=0.001)
    assert found["loss"]["slow_step_s"] == pytest.approx(2.0, abs=0.001)
    assert found["loss"]["elapsed_min"] == pytest.approx(149 * 2 / 60, abs=0.05)


def test_step_files_without_a_slowdown_are_told_in_one_line(tmp_path: Path) -> None:
    done = run("--steps", str(step_files(tmp_path, slow=False)))
    assert done.returncode == 2 and "nothing is lost" in done.stderr and "Traceback" not in done.stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no step times in it" in run("--steps", str(empty)).stderr
    assert "no such folder" in run("--steps", str(tmp_path / "none")).stderr


def test_the_picture_names_the_slow_rank_and_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    folder, svg = str(step_files(tmp_path / "steps")), tmp_path / "a.svg"
    assert run("--steps", folder, "--plot", str(svg)).returncode == 0
    text = svg.read_text()
    assert ">rank 2<" in text and ">3 others<" in text and ">rank 1<" not in text and "own compute" in text
    done = run("--steps", folder, "--plot", str(tmp_path / "no" / "a.svg"))
    assert done.returncode == 3 and "a.svg: No such file" in done.stderr
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / "link.svg").symlink_to(target)
    assert run("--steps", folder, "--plot", str(tmp_path / "link.svg")).returncode == 3
    assert target.read_text() == "mine"


def test_totals_alone_draw_no_rank_as_the_slow_one(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    svg = tmp_path / "a.svg"
    run("--steps", str(step_files(tmp_path / "steps", plain=True)), "--plot", str(svg))
    assert ">4 ranks<" in svg.read_text()


def test_a_tracker_gives_the_age_of_the_last_checkpoint_and_a_torn_one_a_warning(tmp_path: Path) -> None:
    import os

    (tmp_path / "iter_0003000").mkdir()
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    tracker.write_text("3000")
    os.utime(tracker, (NOW - 1200, NOW - 1200))
    words = ["--speed", "0.88", "--since", "48m", "--at", "2026-11-29T02:00:00Z", "--checkpoint-dir", str(tmp_path)]
    found = json.loads(run(*words, "--output", "json").stdout)
    assert found["restart"]["age_min"] == 20 and found["restart"]["last_checkpoint_step"] == 3000
    assert found["inputs"]["checkpoint_age_min"]["source"] == "filesystem"
    tracker.write_text("")
    done = run(*words, "--output", "json")
    assert json.loads(done.stdout)["restart"]["age_min"] is None and "names no iteration" in done.stderr
    assert "no such folder" in run("--speed", "0.88", "--checkpoint-dir", str(tmp_path / "none")).stderr
