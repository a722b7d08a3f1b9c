"""What the GPU of a slow rank shows names the cause, if it is enough to be one; without the ranks' own times it is a lead."""

import pytest
from written_dumps import report
from written_evidence import World
from written_gpus import BRAKED, THROTTLED, job

SLOW = {3: 480.0}  # rank 3 computes a fifth longer than its peers


def verdict(w):
    told = report(w)
    return told.verdict.cause, [c.rank for c in told.culprits], told


def cause(w):
    return w.fact("gpus.slow_cause").value


def ns(**shares):
    """Time within a window of six seconds."""
    return {name: int(share * 6e9) for name, share in shares.items()}


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        (THROTTLED, "thermal"),
        ({**THROTTLED, "reasons": {"sw_thermal": 0.6}}, "thermal"),  # the memory may be what is hot
        (BRAKED, "power_brake"),
        ({**THROTTLED, "reasons": {}, "reasons_any": None, "limited_window_ns": ns(hw_thermal=0.9)}, "thermal"),
        ({**THROTTLED, "reasons": {}, "reasons_any": None, "limited_window_ns": ns(thermal=0.9)}, "thermal"),
        ({**THROTTLED, "reasons": {}, "reasons_any": None, "limited_window_ns": ns(power_brake=0.9)}, "power_brake"),
        ({"clock": 1400, "power": 440, "power_limit_w": 450}, "power_limit"),
        ({"clock": 1410, "sm_clock_loaded": [1410] * 5, "power": 420, "reasons": {}, "reasons_any": 0}, "clock_lock"),
        ({"pcie_gen": 1}, "pcie"),
        ({"pcie_width": 4}, "pcie"),
        ({"remap_pending": True}, "ecc_remap"),
        ({"A": {"ecc_corr": 1000}, "B": {"ecc_corr": 41_000}}, "ecc_remap"),
        ({"tensor": 40}, "host_cpu"),
        ({"util": 84}, "host_cpu"),
        ({}, "none"),
        ({"temp_c": 92}, "none"),
        ({"A": {"ecc_corr": 0}, "B": {"ecc_corr": 400}}, "none"),
        ({"A": {"ecc_corr": 900_000}, "B": {"ecc_corr": 4}}, "none"),  # set back
        ({**THROTTLED, "reasons": {"hw_thermal": 0.1}}, "none"),  # a flash
        ({"reasons": {"hw_thermal": 1.0}, "reasons_any": 0x40}, "none"),  # held back, and at its peers' clock
        ({"clock": 1400}, "none"),  # slower, and nothing says why
        ({"reasons": {"power_cap": 1.0}}, "none"),  # at its limit, as its peers are
    ],
)
def test_the_slow_ranks_gpu_names_the_cause_or_says_that_it_shows_none(card, expected):
    w = job({3: card}, SLOW)
    assert cause(w) == expected
    named, ranks, told = verdict(w)
    assert named == ("straggler/compute" if expected == "none" else f"straggler/{expected}") and ranks == [3]
    assert told.verdict.confidence in ("high", "medium")


def test_time_that_a_limiter_held_counts_between_the_looks_where_the_window_was_not_read():
    card = {**THROTTLED, "reasons": {}, "reasons_any": None, "limited_window_ns": {}}
    held = {
        "A": {"limited_ns": {"hw_thermal": 5 * 10**12}},
        "B": {"limited_ns": {"hw_thermal": 5 * 10**12 + 7 * 10**9}},
    }
    assert cause(job({3: {**card, **held}}, SLOW)) == "thermal"  # 7 of the 8 s between the looks
    assert cause(job({3: {**card, "limited_ns": {"hw_thermal": 5 * 10**12}}}, SLOW)) == "none"  # a total since boot


@pytest.mark.parametrize(("ms", "expected"), [(425, "clock_lock"), (600, "none")])
def test_a_clock_four_percent_lower_is_no_cause_of_a_rank_that_takes_half_as_long_again(ms, expected):
    lock = {"clock": 1870, "sm_clock_loaded": [1870] * 5, "power": 500, "reasons": {}, "reasons_any": 0}
    w = job({3: lock}, {3: float(ms)})
    assert cause(w) == expected
    if expected == "none":
        assert "too little for a rank that is 50% slower" in w.fact("gpus.of_slow").text


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ({"util": 96}, "none"),  # as busy as utilisation is exact
        ({"util": 93}, "none"),  # idle for 6 %: too little for a rank that is a fifth slower
        ({"util": 84, "clock": 1500}, "none"),  # and slower as well: two stories
        ({"util": 84, **{k: v for k, v in THROTTLED.items() if k != "clock"}}, "none"),
        ({"util": 84, "pcie_gen": 1}, "none"),  # a card with gaps may have lowered its link by itself
        ({"util": 30, "pcie_gen": 1}, "none"),
        ({"util": 84, "n": 3}, "none"),  # hardly seen
        ({"util": 84, "mig": True}, None),
        ({"util_pct": None, "sm_clock_loaded": None, "loaded_share": None, "loaded_n": 0}, "none"),
    ],
)
def test_a_gpu_that_stands_idle_beside_spinning_peers_waits_for_its_host_only_if_nothing_else_speaks(card, expected):
    w = job({3: card}, SLOW)
    assert cause(w) == expected
    assert verdict(w)[:2] == ("straggler/compute", [3])


def test_gaps_of_a_gpu_whose_rank_is_not_slow_say_nothing():
    w = job({5: {"util": 40}, 9: {"util": 70, "pcie_gen": 1}})
    assert [len(w.fact(f"gpus.{name}").parts) for name in ("starved", "pcie", "slow_clock", "limited")] == [0] * 4
    assert verdict(w)[1] == []


def test_all_ranks_of_a_node_under_a_power_brake_are_one_story():
    w = job(dict.fromkeys(range(8, 16), BRAKED), dict.fromkeys(range(8, 16), 780.0), nodes=4)
    named, ranks, told = verdict(w)
    assert named == "straggler/power_brake" and ranks == list(range(8, 16))
    assert {c.node for c in told.culprits} == {"gpu002"}


def test_two_slow_ranks_with_two_causes_have_no_common_cause():
    w = job({3: THROTTLED, 12: {"tensor": 40}}, {3: 480.0, 12: 480.0})
    assert "differ" in w.fact("gpus.slow_cause").reason
    assert verdict(w)[:2] == ("straggler/compute", [3, 12])


# ---------------------------------------------------------------- nobody's own times


def test_without_the_ranks_own_times_a_gpu_with_two_signs_is_a_lead_and_accuses_nobody():
    w = job({3: THROTTLED}, SLOW, told=False)
    assert [(part.rank, part.gpu) for part in w.fact("gpus.probable").parts] == [(3, 3)]
    named, ranks, told = verdict(w)
    assert named == "inconclusive/slow_who" and ranks == []
    (lead,) = [each for each in told.alternatives if each.cause == "straggler/compute"]
    assert "hw_thermal" in lead.why_not and "compute time" in lead.why_not


@pytest.mark.parametrize(
    ("card", "count"),
    [
        (THROTTLED, 1),
        ({"clock": 1400, "power": 430}, 1),  # slower and at lower peaks, no limiter told
        ({"clock": 1400}, 0),  # slower alone
        ({"power": 430}, 0),
        ({"reasons": {"hw_thermal": 1.0}, "reasons_any": 0x40, "temp_c": 90}, 0),
        ({"temp_c": 95}, 0),
        ({"util": 60, "clock": 1400, "power": 400}, 0),
    ],
)
def test_a_lead_needs_a_slow_clock_under_load_and_a_second_sign(card, count):
    w = job({3: card}, SLOW, told=False)
    assert len(w.fact("gpus.probable").parts) == count
    assert verdict(w)[1] == []


# ---------------------------------------------------------------- which GPU is a rank's


def placed(w, change):
    """The same job, its processes told otherwise. change: (rank, look) -> changes of its record."""
    fresh = World(nodes=2, per_node=8)
    fresh.change = change
    w.samples = [s for s in w.samples if s.probe != "ranks"]
    w.samples += [s for s in fresh.processes().samples if s.probe == "ranks"]
    return w


def seeing(word):
    """Each rank sees one GPU, by a word made of its local number."""
    plain = World(nodes=2, per_node=8)
    env = {
        rank: {**plain.record(rank, "A")["env"], "CUDA_VISIBLE_DEVICES": word.format(rank % 8)} for rank in range(16)
    }
    return {(rank, look): {"env": env[rank]} for rank in range(16) for look in "AB"}


@pytest.mark.parametrize(
    ("pids", "change"), [(True, {}), (False, {}), (False, seeing("{}")), (False, seeing("GPU-{}"))],
    ids=["nvml", "local_rank", "visible", "visible_uuid"],
)  # fmt: skip
def test_each_road_from_a_rank_to_its_gpu_gives_the_same_verdict(pids, change):
    assert verdict(placed(job({3: THROTTLED}, SLOW, pids=pids), change))[:2] == ("straggler/thermal", [3])


def test_an_index_inside_a_container_places_no_rank_and_the_cause_stays_open():
    inside = {(rank, look): {"ns_pid": 7 + rank} for rank in range(16) for look in "AB"}
    w = placed(job({3: THROTTLED}, SLOW, pids=False), inside)
    assert "is not known" in w.fact("gpus.slow_cause").reason
    assert verdict(w)[:2] == ("straggler/compute", [3])


def test_ranks_that_reorder_their_devices_are_believed_by_their_processes_and_not_by_order():
    w = job({3: THROTTLED}, SLOW)
    for sample in w.samples:
        if sample.probe == "gpu" and sample.node == "gpu001":
            for row in sample.data["gpus"]:
                row["pids"] = [1007 - row["index"]]  # rank 4 works on GPU 3
    assert cause(w) == "none" and verdict(w)[:2] == ("straggler/compute", [3])


# ---------------------------------------------------------------- who is compared with whom


def test_fewer_than_four_loaded_gpus_of_a_kind_are_not_compared():
    w = job({rank: {"name": f"kind {rank}"} for rank in range(16) if rank not in (3, 4, 5)} | {3: THROTTLED}, SLOW)
    assert "fewer than 4" in w.fact("gpus.slow_cause").reason and verdict(w)[:2] == ("straggler/compute", [3])


def test_another_kind_of_gpu_that_is_slower_by_design_is_compared_with_its_own_kind():
    old = {
        "name": "NVIDIA A100-SXM4-80GB",
        "clock": 1410,
        "power": 390,
        "power_limit_w": 400,
        "reasons": {"power_cap": 1.0},
    }
    w = job(dict.fromkeys(range(8, 16), old), dict.fromkeys(range(8, 16), 780.0), nodes=4)
    assert cause(w) == "none" and verdict(w)[0] == "straggler/compute"


def test_an_idle_cohort_is_not_measurable():
    w = job({rank: {"util": 3, "clock": 345 + 300 * (rank % 3), "pcie_gen": rank % 5 + 1} for rank in range(16)}, SLOW)
    assert "fewer than 4" in w.fact("gpus.slow_cause").reason and verdict(w)[:2] == ("straggler/compute", [3])
