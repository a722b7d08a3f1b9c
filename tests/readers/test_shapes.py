"""Answers that are no answers: what a hostile node or a case of somebody else may put where facts will read."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import pytest

from triage.model import Sample
from triage.readers.flight_records import read_folder
from triage.readers.shapes import LAST_TIME, MOST_RANKS, SHAPES, checked, problem
from triage.transports.payload import probe_catalogue

CASE = Path(__file__).parents[1] / "captures" / "cases" / "dead-rank" / "samples.jsonl"
REAL = [json.loads(line) for line in CASE.read_text().splitlines()]
RANK = {"rank": 3, "pid": 4242, "state": "S", "start_s": 1796077385.4, "env": {"RANK": "3", "SLURM_JOB_ID": "48213"}}
GROUP = {"name": "0", "desc": "default_pg", "ranks": "0+8", "enq": 76, "first_open": 76, "status": [76, 75]}
RECORD = {
    "v": 1, "rank": 3, "ids": [0, 151], "groups": [GROUP], "sigs": ["all_reduce|8|8|Float|Float"], "pairs": [],
    "open": [{"g": 0, "seq": 76, "id": 151, "at": 1796077394.4, "ms": 600000, "sig": 0}],
}  # fmt: skip


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


def test_every_probe_that_ships_has_a_spec():
    assert set(probe_catalogue()) | {"contact"} <= set(SHAPES)


def test_all_that_real_nodes_sent_is_fine():
    for line in REAL:
        assert problem(line["probe"], line["data"]) is None, line["probe"]
        sample = Sample(line["probe"], line["node"], line["look"], line["status"], line["data"], at=line["at"])
        assert checked(sample) is sample


@pytest.mark.parametrize(
    "probe, data, why",
    [
        ("ranks", {"ranks": 5}, "ranks is no list"),
        ("ranks", {"ranks": None}, "ranks is no list"),
        ("ranks", {"ranks": ["a"]}, "ranks[0] is no map"),
        ("ranks", {"ranks": [RANK, {}]}, "ranks[1].rank is missing"),
        ("ranks", {"ranks": [{**RANK, "rank": True}]}, "ranks[0].rank is no whole number"),
        ("ranks", {"ranks": [{**RANK, "rank": 3.0}]}, "ranks[0].rank is no whole number"),
        ("ranks", {"ranks": [{**RANK, "rank": -1}]}, "ranks[0].rank is a number beyond all sense"),
        ("ranks", {"ranks": [{**RANK, "world_size": 10**6}]}, "ranks[0].world_size is a number beyond all sense"),
        ("ranks", {"ranks": [{**RANK, "pid": [1]}]}, "ranks[0].pid is no whole number"),
        ("ranks", {"ranks": [{**RANK, "start_s": math.nan}]}, "ranks[0].start_s is a number beyond all sense"),
        ("ranks", {"ranks": [{**RANK, "start_s": math.inf}]}, "ranks[0].start_s is a number beyond all sense"),
        ("ranks", {"ranks": [{**RANK, "env": ["RANK=3"]}]}, "ranks[0].env is no map"),
        ("ranks", {"ranks": [{**RANK, "env": None}]}, "ranks[0].env is no map"),
        ("ranks", {"ranks": [{**RANK, "env": {"RANK": 3}}]}, "ranks[0].env.RANK is no text"),
        ("ranks", {"sees_all": "yes"}, "sees_all is neither true nor false"),
        ("ranks", {"ranks": [RANK] * 5000}, "ranks has more than 4096 items"),
        ("nic", {"nics": [{"name": {}}]}, "nics[0].name is no text"),
        ("nic", {"nics": [{"kind": "ethernet"}]}, "nics[0].name is missing"),
        ("nic", {"nics": [{"name": "ib0", "rx_bytes": "9"}]}, "nics[0].rx_bytes is no whole number"),
        ("kernel", {"readable": True, "events": 9}, "events is no list"),
        ("kernel", {"events": [{"at": 1e14}]}, "events[0].at is a number beyond all sense"),
        ("joblog", {"iterations": []}, "iterations is no map"),
        ("joblog", {"iterations": {"series": [5]}}, "iterations.series[0] is no list"),
        ("joblog", {"iterations": {"series": [[1, 2.0]]}}, "iterations.series[0] has 2 items and not 3"),
        ("joblog", {"hits": [{"id": "x", "groups": {"code": -9}}]}, "hits[0].groups.code is no text"),
        ("joblog", {"tail": ["x" * 5000]}, "tail[0] is longer than 4096 characters"),
        ("steps", {"ranks": 7}, "ranks is no list"),
        ("steps", {"ranks": [{"rank": 1, "columns": {"total_ms": [1.0, math.nan]}}]},
         "ranks[0].columns.total_ms[1] is a number beyond all sense"),
        ("steps", {"ranks": [{"rank": 1, "columns": {"total_ms": [1.0, "2"]}}]}, "ranks[0].columns.total_ms[1] is no number"),
        ("ranks", {"ranks": [{**RANK, "tracer_pid": "7"}]}, "ranks[0].tracer_pid is no whole number"),
        ("ranks", {"ranks": [{**RANK, "tracer": ["gdb"]}]}, "ranks[0].tracer is no text"),
        ("activity", {"window_s": math.nan}, "window_s is a number beyond all sense"),
        ("activity", {"ranks": [{"pid": 7}]}, "ranks[0].rank is missing"),
        ("activity", {"ranks": [{"rank": 3, "compilers": None}]}, "ranks[0].compilers is no list"),
        ("activity", {"ranks": [{"rank": 3, "compilers": [{"cpu_s": "1"}]}]}, "ranks[0].compilers[0].cpu_s is no number"),
        ("activity", {"ranks": [{"rank": 3, "compilers": [{"cpu_s": -1.0}]}]},
         "ranks[0].compilers[0].cpu_s is a number beyond all sense"),
        ("activity", {"ranks": [{"rank": 3, "caches": [{"files_new": True}]}]},
         "ranks[0].caches[0].files_new is no whole number"),
        ("activity", {"ranks": [{"rank": 3, "caches": [{"newest_at": LAST_TIME * 2}]}]},
         "ranks[0].caches[0].newest_at is a number beyond all sense"),
        ("activity", {"ranks": [{"rank": 3, "wchar_grown": -5}]}, "ranks[0].wchar_grown is a number beyond all sense"),
        ("activity", {"ranks": [{"rank": 3, "progress_line": 5}]}, "ranks[0].progress_line is no text"),
        ("activity", {"unseen": {"rank": 3}}, "unseen is no list"),
        ("peers", {"targets": [{"management": []}]}, "targets[0].node is missing"),
        ("peers", {"targets": [{"node": "n", "fabric": None}]}, "targets[0].fabric is no list"),
        ("peers", {"targets": [{"node": "n", "fabric": [{"address": "a:1"}]}]}, "targets[0].fabric[0].result is missing"),
        ("peers", {"targets": [{"node": "n", "fabric": [{"address": 5, "result": "open"}]}]},
         "targets[0].fabric[0].address is no text"),
        ("peers", {"targets": [{"node": "n", "fabric": [{"address": "a:1", "result": "open", "errno": "111"}]}]},
         "targets[0].fabric[0].errno is no whole number"),
        ("contact", {"phase": ["tcp"]}, "phase is no text"),
        ("gpu", {"whatever": nested(30)}, "whatever is nested deeper than 12"),
        ("gpu", {"whatever": {"x": math.inf}}, "whatever is a number beyond all sense"),
        ("gpu", {"a\x1b[31m": "x" * 70_000}, "a?[31m is longer than 65536 characters"),
    ],
)  # fmt: skip
def test_an_answer_of_another_shape_is_told_by_its_first_fault(probe, data, why):
    assert problem(probe, data) == why


def told(change):
    record = copy.deepcopy(RECORD)
    change(record)
    return problem("flight_recorder", {"ranks": [{"rank": 3, "stale": False, "record": record}]})


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda r: r.update(groups=None), "groups is missing"),
        (lambda r: r.pop("groups"), "groups is missing"),
        (lambda r: r["groups"][0].pop("ranks"), "groups[0].ranks is missing"),
        (lambda r: r["groups"][0].update(ranks="0+1000000"), "names ranks that no job has"),
        (lambda r: r["groups"][0].update(ranks="0+9*9999999"), "names ranks that no job has"),
        (lambda r: r["groups"][0].update(ranks="all of them"), "is no folded list of ranks"),
        (lambda r: r["groups"][0].update(status=[76]), "has 1 items and not 2"),
        (lambda r: r["groups"][0].update(first_open="76"), "first_open is no whole number"),
        (lambda r: r["open"][0].update(g=-1), "open[0].g is a number beyond all sense"),
        (lambda r: r["open"][0].update(p2p=[["s", 0]]), "has 2 items and not 4"),
        (lambda r: r["open"][0].update(p2p=[["s", 0, 1, [1, 2]]]), "has 2 items and not 3"),
        (lambda r: r.update(pairs=[[0, "s", None, 1, None, None, None]]), "pairs[0][2] is no whole number"),
        (lambda r: r.update(sigs=[1]), "sigs[0] is no text"),
        (lambda r: r.update(v=None), "v is missing"),
    ],
)
def test_a_flight_record_is_looked_into_as_deep_as_the_wait_graph_reads_it(change, why):
    assert told(lambda record: None) is None
    assert why in (told(change) or "")


def test_a_newer_probe_may_tell_more():
    data = {"ranks": [{**RANK, "numa": [0, 1], "gpu": {"uuid": "GPU-1", "busy": 0.5}}], "containers": None}
    assert problem("ranks", data) is None
    assert problem("gpu", {"gpus": [{"temperature_c": 61, "clocks": {"sm": 1980}}]}) is None


def test_what_is_unknown_is_null_and_fine():
    assert (
        problem("ranks", {"ranks": [{**RANK, "start_s": None, "wchan": None, "rchar": None}], "hidepid": None}) is None
    )
    assert problem("flight_recorder", {"ranks": [{"rank": 3, "record": None, "mtime": None}]}) is None
    idle = {"files_new": None, "bytes_grown": None, "newest_at": None, "truncated": True, "why": "it did not answer"}
    row = {"rank": 3, "caches": [idle], "wchar_grown": None, "progress_line": None, "progress_moved": None}
    assert problem("activity", {"window_s": 1.5, "ranks": [row], "unseen": []}) is None
    way = {"address": "10.0.0.1:22", "result": "timeout", "errno": None, "took_s": None}
    assert problem("peers", {"targets": [{"node": "n", "management": [way], "fabric": []}]}) is None
    assert problem("ranks", {"ranks": [{**RANK, "rank": MOST_RANKS - 1, "world_size": MOST_RANKS}]}) is None


def test_a_sample_of_bad_shape_keeps_who_sent_it_and_loses_what_it_said():
    sample = Sample("ranks", "gpu001", "B", "ok", {"ranks": 5}, at=1796077403.0, received=1796077403.1, notes=("x",))
    held = checked(sample)
    assert (held.probe, held.node, held.look, held.status, held.data) == ("ranks", "gpu001", "B", "malformed", {})
    assert held.notes == ("x", "answer not used: ranks is no list")


def test_a_failed_contact_stays_a_failed_contact():
    held = checked(Sample("contact", "gpu001", "A", "timeout", {"phase": 7}))
    assert (held.status, held.data) == ("timeout", {})
    sample = Sample("contact", "gpu001", "A", "timeout", {"phase": "kex", "error": "timed out"})
    assert checked(sample) is sample


@pytest.mark.parametrize("at", [math.nan, math.inf, -5.0, LAST_TIME * 2])
def test_a_clock_that_is_no_clock_makes_no_offset(at):
    held = checked(Sample("reach", "gpu001", "A", "ok", {"root": True}, at=at, received=1796077403.1))
    assert (held.status, held.at, held.received, held.data) == ("malformed", None, 1796077403.1, {})


def test_reasons_are_short_and_hold_no_control_character():
    why = problem("ranks", {"ranks": [{**RANK, "env": {"\x1b]0;x\x07" + "K" * 200: 1}}]})
    assert why and len(why) < 120 and why.isprintable()


@pytest.mark.shared
def test_records_of_real_dumps_are_fine(shared_data):
    for folder in ("gloo-4-ranks", "nccl-16-ranks"):
        for inner in sorted({path.parent for path in (shared_data / "flight-recorder" / folder).rglob("*")})[:6]:
            files = [(f.name, f.read_bytes(), None) for f in sorted(inner.iterdir()) if f.is_file()]
            assert problem("flight_recorder", read_folder(files).sample.data) is None, inner
