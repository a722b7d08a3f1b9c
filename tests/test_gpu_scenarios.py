"""The real pynvml on a fake driver, beside the ranks' own times: each state of a GPU gives its verdict, and heat gives none.

Two nodes of eight ranks each; the first node's driver says what the scenario says, the second one's is healthy.
"""

from __future__ import annotations

import random
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path

import fake_nvml
import pytest

sys.path.insert(0, str(Path(__file__).parent / "facts"))

from written_dumps import report
from written_evidence import World

from triage.facts import registry
from triage.readers.shapes import problem

SLOW_MS, STEP_MS = 470.0, 400.0
SCENARIOS = {
    **fake_nvml.SCENARIOS,
    "gsp hang": lambda: fake_nvml.gsp_hang(block_ms=60_000),
    "starved by its host": lambda: fake_nvml.healthy().gpu(4, util="84|82|85"),
}


@cache
def told(name, node):
    """Looks A and B of one node for a scenario: two runs of the probe at once, since they mostly wait."""
    made = SCENARIOS[name]()
    for index in range(8):
        made.gpu(index, pids=1000 + 8 * node + index)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        made.write(Path(folder))
        return list(pool.map(lambda look: made.run_probe(Path(folder), look, window_s=2.0), "AB"))


def answers(name):
    """Of both nodes: the first one's GPUs are as the scenario says."""
    return [told(name, 0), told("healthy", 1)]


def slow_world(slow=None, scenario=None, ms=SLOW_MS, n=20, jitter=0.004, seed=1):
    """A job that advances; rank `slow` computes longer, and its GPUs are as the scenario says."""
    rng = random.Random(seed)
    w = World(nodes=2, per_node=8).processes().fabric(1e8)
    compute = {r: ms if r == slow else STEP_MS for r in range(16)}
    times = {(r, i): compute[r] * rng.uniform(1 - jitter, 1 + jitter) for r in range(16) for i in range(n)}
    longest = [max(times[(r, i)] for r in range(16)) for i in range(n)]
    step = (ms if slow is not None else STEP_MS) + 50
    w.log(step_s=step / 1000, steps=140, elapsed=[0.45] * 70 + [step / 1000] * 70 if slow is not None else [0.45] * 140)
    w.steps(lambda r, i: times[(r, i)], lambda r, i: longest[i] - times[(r, i)] + 50, n=n, step_s=step / 1000)
    if scenario is not None:
        for node, looks in zip(w.names, answers(scenario)):
            for look, data in zip("AB", looks):
                w.add("gpu", node, look, data)
    return w


def verdict(w):
    told = report(w)
    return told.verdict.cause, [c.rank for c in told.culprits], told


@pytest.mark.parametrize(
    ("scenario", "slow", "cause"),
    [
        ("thermal straggler", 3, "straggler/thermal"),
        ("driver 575", 3, "straggler/thermal"),
        ("one low limit", 5, "straggler/power_limit"),
        ("clock lock", 2, "straggler/clock_lock"),
        ("pcie gen 1 under load", 2, "straggler/pcie"),
        ("remap pending", 0, "straggler/ecc_remap"),
        ("remap failed", 0, "straggler/ecc_remap"),
        ("starved by its host", 4, "straggler/host_cpu"),
        ("healthy", 4, "straggler/compute"),
        ("hot but fine", 3, "straggler/compute"),
        ("mig", 4, "straggler/compute"),
        ("old driver", 4, "straggler/compute"),
        ("no library", 4, "straggler/compute"),
        ("mismatch", 4, "straggler/compute"),
    ],
)
def test_the_rank_that_is_slow_by_its_own_times_is_named_and_its_gpu_names_the_cause(scenario, slow, cause):
    found, ranks, told = verdict(slow_world(slow, scenario))
    assert (found, ranks) == (cause, [slow]), told.verdict.why
    assert told.verdict.confidence in ("high", "medium")


def test_a_power_brake_of_a_whole_node_is_told_where_the_other_node_runs_free():
    w = slow_world(1, "power brake")
    fact = w.fact("gpus.brake")
    assert [part.node for part in fact.parts] == [w.names[0]] * 8
    assert verdict(w)[0] == "straggler/power_brake"


@pytest.mark.parametrize(
    "scenario", ["thermal straggler", "one low limit", "clock lock", "hot but fine", "capped all alike", "power brake"]
)
def test_without_a_rank_that_is_slow_by_its_own_times_no_gpu_is_accused(scenario):
    found, ranks, told = verdict(slow_world(None, scenario))
    assert ranks == [] and found == "healthy/advancing", told.verdict.why


def test_another_ranks_gpu_that_is_throttled_does_not_move_the_blame():
    found, ranks, _ = verdict(slow_world(6, "thermal straggler"))
    assert (found, ranks) == ("straggler/compute", [6])


def test_a_starved_gpu_points_at_its_host():
    w = slow_world(4, "healthy")
    for sample in w.samples:
        if sample.probe == "gpu" and sample.node == w.names[0]:
            sample.data["gpus"] = [
                dict(gpu, tensor_pct=[30.0] * 5) if gpu["index"] == 4 else gpu for gpu in sample.data["gpus"]
            ]
    assert verdict(w)[:2] == ("straggler/host_cpu", [4])


SLOW_BY = {
    "thermal straggler": (3, "straggler/thermal"), "one low limit": (5, "straggler/power_limit"),
    "clock lock": (2, "straggler/clock_lock"), "power brake": (1, "straggler/power_brake"),
    "pcie gen 1 under load": (2, "straggler/pcie"), "remap pending": (0, "straggler/ecc_remap"),
    "starved by its host": (4, "straggler/host_cpu"),
}  # fmt: skip


def without(*fields, empty=None):
    def take(w):
        for sample in w.samples:
            if sample.probe == "gpu":
                told = [{**gpu, **dict.fromkeys(fields, empty)} for gpu in sample.data["gpus"]]
                w.samples[w.samples.index(sample)] = replace(sample, data={**sample.data, "gpus": told})

    return take


def dropped(test):
    def take(w):
        w.samples = [sample for sample in w.samples if not test(w, sample)]

    return take


def denied(w):
    """NVML answers nobody but root on the first node: the PCI bus alone tells of its GPUs."""
    for at, sample in enumerate(w.samples):
        if sample.probe == "gpu" and sample.node == w.names[0]:
            bare = [{"bdf": gpu["bdf"], "status": "denied", "nulls": {}} for gpu in sample.data["gpus"]]
            w.samples[at] = replace(sample, data={**sample.data, "nvml": "denied", "gpus": bare})


WITHHELD = {
    "the reasons": without("reasons", "limited_ns", "limited_window_ns", empty={}),
    "the mask": without("reasons_any"),
    "the times": without("limited_ns", "limited_window_ns", empty={}),
    "the power": without("power_w"),
    "the clocks": without("sm_clock_mhz", "sm_clock_loaded"),
    "the utilisation": without("util_pct", "loaded_share", "loaded_n"),
    "the tensor cores": without("tensor_pct"),
    "the processes on them": without("pids"),
    "the links": without("pcie_gen", "pcie_width", "nvlinks"),
    "the memory's state": without("remap_pending", "remap_failed", "ecc_corr", "recovery_action"),
    "look A": dropped(lambda w, s: s.probe == "gpu" and s.look == "A"),
    "look B": dropped(lambda w, s: s.probe == "gpu" and s.look == "B"),
    "the other node": dropped(lambda w, s: s.probe == "gpu" and s.node == w.names[1]),
    "its own node": dropped(lambda w, s: s.probe == "gpu" and s.node == w.names[0]),
    "nvml, denied": denied,
    "the collective times": lambda w: [
        entry["columns"].pop("collective_ms") for s in w.samples if s.probe == "steps" for entry in s.data["ranks"]
    ],
}


@pytest.mark.parametrize("missing", WITHHELD)
@pytest.mark.parametrize("scenario", SLOW_BY)
def test_with_one_source_missing_the_verdict_is_the_same_or_the_cause_is_not_told_and_never_another_one(
    scenario, missing
):
    slow, cause = SLOW_BY[scenario]
    whole = verdict(slow_world(slow, scenario))[2]
    w = slow_world(slow, scenario)
    WITHHELD[missing](w)
    found, ranks, told = verdict(w)
    assert ranks == [slow] and found in (cause, "straggler/compute"), (found, told.verdict.why)
    levels = ["none", "low", "medium", "high"]
    if found == cause:
        assert levels.index(told.verdict.confidence) <= levels.index(whole.verdict.confidence)


@pytest.mark.parametrize("scenario", ["thermal straggler", "one low limit", "clock lock"])
def test_with_the_gpus_withheld_the_rank_is_the_same_and_the_cause_is_not_told(scenario):
    w = slow_world(fake_slow(scenario), scenario)
    w.samples = [s for s in w.samples if s.probe != "gpu"]
    found, ranks, _ = verdict(w)
    assert (found, ranks) == ("straggler/compute", [fake_slow(scenario)])


def fake_slow(scenario):
    return {"thermal straggler": 3, "one low limit": 5, "clock lock": 2}[scenario]


@pytest.mark.parametrize("scenario", ["thermal straggler", "one low limit", "clock lock"])
def test_with_the_ranks_own_times_withheld_nobody_is_accused(scenario):
    w = slow_world(fake_slow(scenario), scenario)
    w.samples = [s for s in w.samples if s.probe != "steps"]
    found, ranks, told = verdict(w)
    assert ranks == [] and found.startswith(("inconclusive/", "healthy/", "slow_everywhere/")), (
        found,
        told.verdict.why,
    )


# ---------------------------------------------------------------- a frozen job


def frozen(scenario, programs=None, **kw):
    w = World(nodes=2, per_node=8, **kw).processes()
    w.log(step_s=1.0, last_ago=400.0)
    w.fabric(0)
    for node, looks in zip(w.names, answers(scenario)):
        for look, data in zip("AB", looks):
            w.add("gpu", node, look, data)
    return w


def test_in_a_frozen_job_the_gpu_without_work_beside_spinning_ones_is_a_lead_and_no_verdict():
    w = frozen("spin hang")
    fact = w.fact("gpus.absent")
    assert [(part.gpu, part.rank) for part in fact.parts] == [(6, 6)]
    assert len(w.fact("gpus.spin").parts) == 7
    told = report(w)
    assert told.verdict.id == "inconclusive" and not told.culprits
    assert ("stuck_rank", "stuck_rank/host") in [(a.verdict, a.cause) for a in told.alternatives]


def test_a_lost_gpu_is_a_hard_fact_of_the_rank_that_works_on_it():
    w = frozen("lost")
    (part,) = w.fact("gpus.lost").parts
    assert (part.node, part.name) == (w.names[0], fake_nvml.address(1))
    told = report(w)
    assert told.verdict.cause == "dead_rank/gpu_lost" and [(c.node, c.rank) for c in told.culprits] == [(w.names[0], 1)]
    assert told.verdict.confidence == "medium"  # NVML alone says it


def test_a_gpu_whose_firmware_hangs_is_a_finding_with_the_state_of_who_asked():
    w = frozen("gsp hang")
    (part,) = w.fact("gpus.hung").parts
    assert part.gpu == 4 and part.rank == 4 and "state S" in part.why
    told = report(w)
    assert not told.culprits and any("does not answer its driver" in finding.text for finding in told.findings)


@pytest.mark.parametrize(
    ("scenario", "name", "count"),
    [("remap pending", "gpus.remap", 1), ("remap failed", "gpus.recovery", 1), ("nvlink one lane down", "gpus.nvlink_down", 1),
     ("healthy", "gpus.remap", 0), ("healthy", "gpus.recovery", 0), ("healthy", "gpus.nvlink_down", 0), ("healthy", "gpus.lost", 0),
     ("mismatch", "gpus.driver_mismatch", 1), ("no library", "gpus.unseen", 1)],
)  # fmt: skip
def test_what_is_true_of_a_gpu_and_not_the_cause_is_a_finding(scenario, name, count):
    assert len(frozen(scenario).fact(name).parts) == count


# ---------------------------------------------------------------- healthy worlds


def healthy_variant(seed):
    """A healthy job whose GPUs vary as healthy ones do: heat, caps alike, flashes, silicon, idle links, corrected errors."""
    rng = random.Random(seed)
    w = slow_world(None, "healthy", seed=seed, jitter=0.01)
    flavour = rng.choice(["hot", "capped", "flash", "silicon", "idle", "ecc", "mixed", "lock_all", "unsupported"])
    for sample in w.samples:
        if sample.probe != "gpu":
            continue
        gpus = []
        for gpu in sample.data["gpus"]:
            gpu = dict(gpu)
            clock = 1950 * rng.uniform(0.97, 1.0)
            gpu["sm_clock_loaded"] = gpu["sm_clock_mhz"] = [round(clock * f) for f in (0.98, 0.99, 1.0, 1.0, 1.0)]
            gpu["power_w"] = [round(rng.uniform(600, 690) * f) for f in (0.9, 0.95, 1.0, 1.0, 1.0)]
            gpu["temp_c"] = rng.randint(50, 90) if flavour == "hot" else rng.randint(50, 80)
            if flavour == "capped":
                gpu["reasons"], gpu["reasons_any"] = {"power_cap": rng.uniform(0.8, 1.0)}, 4
            elif flavour == "flash" and rng.random() < 0.2:
                gpu["reasons"], gpu["reasons_any"] = {"hw_slowdown": 0.04, "power_cap": 0.9}, 12
            elif flavour == "idle":
                gpu["pcie_gen"] = rng.choice([1, 5])
                gpu["loaded_share"], gpu["loaded_n"], gpu["sm_clock_loaded"] = 0.1, 1, [345] * 5
            elif flavour == "ecc":
                gpu["ecc_corr"] = rng.randint(0, 5000)
            elif flavour == "mixed" and rng.random() < 0.5:
                gpu["name"] = "NVIDIA H200"
            elif flavour == "lock_all":
                gpu["sm_clock_loaded"] = gpu["sm_clock_mhz"] = [1410] * 5
                gpu["reasons"], gpu["reasons_any"] = {}, 0
            elif flavour == "unsupported":
                for name in rng.sample(["reasons", "power_w", "temp_c", "tensor_pct", "limited_ns", "reasons_any"], 3):
                    gpu[name] = {} if name in ("reasons", "limited_ns") else None
            gpus.append(gpu)
        sample.data["gpus"] = gpus
    return w


@pytest.mark.parametrize("block", range(10))
def test_none_of_two_hundred_healthy_variants_is_accused(block):
    for seed in range(20 * block, 20 * block + 20):
        found, ranks, told = verdict(healthy_variant(seed))
        assert ranks == [] and told.verdict.id == "healthy", (seed, found, told.verdict.why)


@pytest.mark.parametrize("block", range(5))
def test_a_slow_rank_keeps_its_name_whatever_healthy_gpus_show(block):
    for seed in range(1000 + 8 * block, 1000 + 8 * block + 8):
        w = healthy_variant(seed)
        slow = slow_world(9, None, seed=seed)
        w.samples = [s for s in w.samples if s.probe == "gpu"] + [s for s in slow.samples if s.probe != "gpu"]
        found, ranks, told = verdict(w)
        assert ranks == [9] and found == "straggler/compute", (seed, found, told.verdict.why)


# ---------------------------------------------------------------- hostile answers

JUNK = [None, 0, -1, 1, 1e15, "x", [], {}, [0] * 5, [5, 4, 3, 2, 1], True, "\x1b", [[0, 0]]]


def spoilt(rng, gpu):
    gpu = dict(gpu)
    for _ in range(rng.randint(1, 6)):
        name = rng.choice(sorted(gpu))
        if rng.random() < 0.3:
            del gpu[name]
        else:
            gpu[name] = rng.choice([*JUNK, gpu[rng.choice(sorted(gpu))]])
        if not gpu:
            break
    return gpu


@pytest.mark.parametrize("seed", range(40))
def test_an_answer_of_nonsense_is_malformed_or_makes_facts_and_never_breaks_one(seed):
    rng = random.Random(seed)
    w = slow_world(3)
    for node, looks in zip(w.names, answers(rng.choice(["thermal straggler", "spin hang"]))):
        for look, data in zip("AB", looks):
            bad = dict(data, gpus=[spoilt(rng, gpu) if rng.random() < 0.4 else gpu for gpu in data["gpus"]])
            w.add("gpu", node, look, data if problem("gpu", bad) else bad)
    ev = w.evidence()
    for name in (name for name in registry.catalogue() if name.startswith("gpus.")):
        assert "could not be computed" not in (registry.other(ev, name).reason or ""), name
