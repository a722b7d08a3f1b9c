"""What a trainer says of its own stragglers is a lead: read where it is fresh and steady, and never a verdict."""

from __future__ import annotations

import pytest
from test_step_lines import megatron, two_speeds, world
from written_evidence import NOW
from written_logs import stamp


def nvrx(at, scores, kind="relative", warning=""):
    """A report as the callback prints it: the warning first, then the scores, undated behind a dated line."""
    head = [f"[NeMo I {stamp(at)[:19]} straggler_det_callback:100] report"]
    lines = [f"STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. Affected ranks: {warning}"]
    rows = [f"  Rank={rank} Node=gpu00{rank // 2 + 1} Score={score:.2f}" for rank, score in scores.items()]
    body = [f"GPU {kind} performance:", f" Worst performing {len(rows)}/{len(rows)} ranks:", *rows] if rows else []
    return head + (lines if warning else []) + body


def heimdall(at, least, most, data=(1.0, 5.0, 3), clock=(1950, 7)):
    """Megatron's line; least and most are (ms, rank)."""
    return (
        f" 0: INFO:megatron.core.utils:[{stamp(at)[:19]}] | MnRtt/Rnk: {least[0]:.2f}ms/{least[1]} | MxRtt/Rnk: {most[0]:.2f}ms/{most[1]} "
        "| MnPwr/Rnk: 601796.00W/8 | MxPwr/Rnk: 683801.00W/18 | MnTmp/Rnk: 52.00C/0 | MxTmp/Rnk: 78.00C/1 | MnUtl/Rnk: 97.00%/8 "
        f"| MxUtl/Rnk: 100.00%/6 | MnClk/Rnk: {clock[0]:.2f}MHz/{clock[1]} | MxClk/Rnk: 1980.00MHz/0 "
        f"| MnDRtt/Rnk: {data[0]:.2f}ms/0 | MxDRtt/Rnk: {data[1]:.2f}ms/{data[2]} | MnEtpt/Rnk: 264.00TF/{most[1]} | MxEtpt/Rnk: 300.00TF/{least[1]}"
    )


def minute(count):
    return [NOW - 60 * (count - i) for i in range(count)]


def ranks_of(made, name="pace.reported"):
    found = made.fact(name)
    return None if found.value is None else [part.rank for part in found.parts]


HEALTHY = {0: 1.00, 1: 0.99, 2: 0.98, 3: 0.99, 4: 1.00, 5: 0.99, 6: 0.99, 7: 0.98}


def test_a_rank_at_88_percent_is_reported_by_its_score_though_no_warning_names_it():
    made = world(nvrx(NOW - 100, {**HEALTHY, 5: 0.88}))
    assert ranks_of(made) == [5] and "0.88" in made.fact("pace.reported").text
    assert made.fact("pace.slow").value is None  # a line in a log is no rank's own time


def test_ranks_that_differ_as_healthy_ones_do_are_not_reported():
    assert ranks_of(world(nvrx(NOW - 100, HEALTHY))) == []
    told = {76: 0.94, 13: 0.94, 45: 0.94, 433: 0.95, 308: 0.95, 432: 0.99, 376: 0.98, 487: 0.98, 369: 0.98, 361: 0.98}
    assert ranks_of(world(nvrx(NOW - 100, told), nodes=256, per_node=2)) == []


def test_only_the_newest_report_counts():
    lines = nvrx(NOW - 700, {**HEALTHY, 5: 0.70}, warning="{StragglerId(rank=5, node='gpu003')}") + nvrx(
        NOW - 100, HEALTHY
    )
    assert ranks_of(world(lines)) == []


def test_a_report_of_an_hour_ago_says_nothing_of_now():
    made = world(nvrx(NOW - 3000, {**HEALTHY, 5: 0.70}))
    assert ranks_of(made) is None and "old" in made.fact("pace.reported").reason


def test_scores_against_a_rank_s_own_past_are_not_taken_for_those_against_its_peers():
    lines = nvrx(NOW - 100, HEALTHY) + nvrx(NOW - 100, {**HEALTHY, 2: 0.60}, kind="individual")[1:]
    assert ranks_of(world(lines)) == []


@pytest.mark.parametrize("named", ["{StragglerId(rank=6, node='gpu004')}", "[6]"])
def test_a_detector_that_prints_no_scores_is_taken_at_its_word(named):
    assert ranks_of(world(nvrx(NOW - 100, {}, warning=named))) == [6]


def test_a_list_that_the_probe_cut_loses_its_last_number():
    ranks = list(range(100, 164))
    found = ranks_of(world(nvrx(NOW - 100, {}, warning=str(ranks)), nodes=128, per_node=2))
    assert found and found == ranks[: len(found)]


def test_a_rank_that_the_job_does_not_have_is_not_reported():
    assert ranks_of(world(nvrx(NOW - 100, {}, warning="[6, 800]"))) == [6]


def test_the_same_rank_slowest_in_every_report_of_megatron_is_reported():
    lines = [heimdall(at, (3050, i % 4), (3450, 5)) for i, at in enumerate(minute(8))]
    made = world(lines)
    assert ranks_of(made) == [5] and "+13.1%" in made.fact("pace.reported").text


def test_whoever_happens_to_be_slowest_is_not_reported():
    assert ranks_of(world([heimdall(at, (3453 + i, 1), (3468, 5)) for i, at in enumerate(minute(8))])) == []  # +0.4 %
    assert ranks_of(world([heimdall(at, (3050, 1), (3450, i % 8)) for i, at in enumerate(minute(8))])) == []
    assert ranks_of(world([heimdall(at, (3050 + i, 1), (3450, 5)) for i, at in enumerate(minute(2))])) == []  # a hiccup


def test_the_members_of_its_group_are_told_with_the_slowest():
    lines = [heimdall(at, (3050 + i, 1), (3450, 4)) for i, at in enumerate(minute(5))]
    lines.append(
        " 0: INFO:megatron.core.utils:^^^^ Bottom 4 Ranks with lowest  Etpt(TF): 264.02/4, 264.17/5, 299.23/1, 299.23/2,"
    )
    assert "ranks 5 are as slow" in made_text(world(lines))


def made_text(made):
    return made.fact("pace.reported").text


def test_a_rank_whose_batch_takes_a_tenth_of_a_step_is_a_lead_to_its_input():
    made = world([heimdall(at, (3400, 1), (3468, i % 8), data=(2.0, 400.0, 3)) for i, at in enumerate(minute(8))])
    assert ranks_of(made, "pace.reported_input") == [3]
    assert ranks_of(made) == []


def test_a_batch_that_is_fetched_ahead_is_no_lead():
    made = world([heimdall(at, (3400, 1), (3468, 2), data=(2.0, 40.0 + i, 3)) for i, at in enumerate(minute(8))])
    assert ranks_of(made, "pace.reported_input") == []


def test_without_any_report_nothing_is_known():
    made = world(two_speeds(lambda n, at: megatron(n, at, 2000.0)))
    assert made.fact("pace.reported").value is None and made.fact("pace.spread").value is None
    assert made.fact("pace.reduce_share").value is None


def timers(at, forward, backward):
    return [
        megatron(1, at, 2000.0),
        "(min, max) time across ranks (ms):",
        f"    forward-compute ................................: ({forward[0]:.2f}, {forward[1]:.2f})",
        f"    backward-compute ...............................: ({backward[0]:.2f}, {backward[1]:.2f})",
    ]


def test_megatron_s_timers_tell_how_far_ranks_are_apart_and_name_nobody():
    lines = [line for i, at in enumerate(minute(8)) for line in timers(at, (210.0 + i / 100, 239.0), (420.0, 430.0))]
    made = world(lines)
    assert made.fact("pace.spread").value == pytest.approx(239 / 210, rel=0.01)
    assert not made.fact("pace.spread").parts and ranks_of(made) is None


def breakdown(at, reduce, micro=""):
    return (
        f"[{stamp(at).replace('.', ',')}] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd{micro}: {6567.0 + at % 10:.2f} | "
        f"bwd{micro}: 17950.36 | bwd_inner{micro}: 17711.20 | bwd_allreduce{micro}: {reduce + at % 7:.2f} | step{micro}: 1139.27"
    )


def test_deepspeed_s_breakdown_tells_that_the_time_goes_into_reducing_gradients():
    lines = [breakdown(NOW - 2000 + 25 * i, 240.0 if i < 40 else 4240.0) for i in range(80)]
    made = world(lines)
    assert made.fact("pace.reduce_share").value == pytest.approx(1.0, abs=0.02)
    assert "4243 ms" in made.fact("pace.reduce_share").text


def test_a_breakdown_that_stays_as_it_was_shows_nothing():
    made = world([breakdown(NOW - 2000 + 25 * i, 240.0) for i in range(80)])
    assert made.fact("pace.reduce_share").value is None


def test_a_case_with_lines_of_any_shape_is_no_error():
    made = world(nvrx(NOW - 100, {**HEALTHY, 5: 0.88}) + [heimdall(at, (3050, 1), (3450, 5)) for at in minute(5)])
    for sample in made.samples:
        for hit in sample.data.get("hits", ()) if sample.probe == "joblog" else ():
            hit["groups"] = {}
    for name in ("pace.reported", "pace.reported_input", "pace.spread", "pace.reduce_share"):
        assert "could not be computed" not in (made.fact(name).reason or "")
