"""The drill bench judges itself: what may be tried again on a crowded machine, and what never is."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TRUTH = {"verdict": "deadlock", "culprit": {"kind": "rank", "rank": 3, "node": "n2", "nics": []}, "victims": [0, 1, 2]}


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(HERE))
    try:
        spec = importlib.util.spec_from_file_location("bench_drills", HERE / "bench_drills.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(HERE))


def report(verdict, rank=None, exclude=()):
    culprits = (
        []
        if rank is None
        else [{"kind": "rank", "role": "culprit", "rank": rank, "node": f"n{rank // 2 + 1}", "nic": None}]
    )
    return {
        "verdict": {"id": verdict},
        "culprits": culprits,
        "victims": [],
        "mitigation": {"restart": {"exclude_nodes": list(exclude)}},
    }


def test_a_run_that_is_inconclusive_may_be_tried_again(bench):
    assert bench.only_unsure("deadlock", report("inconclusive"), TRUTH)


@pytest.mark.parametrize(
    "told",
    [report("healthy"), report("busy"), report("stuck_rank", rank=1), report("inconclusive", exclude=["n1"]), None],
)
def test_a_wrong_verdict_or_name_is_never_tried_again(bench, told):
    assert not bench.only_unsure("deadlock", told, TRUTH)


def test_where_slowness_is_measured_the_percent_may_be_off_and_the_verdict_not(bench):
    slow = {**TRUTH, "verdict": "straggler"}
    assert bench.only_unsure("straggler", report("straggler", rank=3), slow)
    assert not bench.only_unsure("straggler", report("healthy"), slow)
