"""No verdict rests on the launcher's exit line alone: evidence is taken away source by source, and nobody else is accused."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from pathlib import Path

import pytest
from written_dumps import add_dumps, everyone, named
from written_evidence import NOW, World
from written_logs import block, failed, log_sample, steps

from triage.case import CaseFile, read
from triage.conclude import conclude
from triage.investigate import probe_names, shipped_playbooks
from triage.model import Attempt

STALL = NOW - 100.0
WAITS = ["0 1 all_reduce", "0 2 all_reduce open"]
CASES = Path(__file__).parents[1] / "captures" / "cases"
# What tells of ranks: without all of these the launcher's line stands alone.
WITNESSES = ("ranks", "flight_recorder", "kernel", "steps", "nic")


def killed():
    """Rank 5 was killed: its launcher says so, its process is gone, and the survivors wait for it."""
    w = World()
    w.dead = {5: "A"}
    w.processes().fabric(0).steps(lambda rank, i: 500.0, last_ago=100, ranks=[r for r in range(8) if r != 5])
    line = [failed(STALL + 0.5, -9, 1, 1005), *block(STALL + 1, "gpu003", 5, 1, -9, 1005)]
    w.samples.append(log_sample([*steps(1, 50, STALL), *line]))
    return add_dumps(w, everyone(WAITS, r5=None), lib="2.27.5")


def without(w, *probes):
    w.samples = [s for s in w.samples if s.probe not in probes]
    return w


def test_with_all_sources_the_rank_is_named():
    assert named(killed()) == ("dead_rank/killed", [5], "high")


@pytest.mark.parametrize("taken", [c for n in range(1, 6) for c in combinations(WITNESSES, n)], ids="-".join)
def test_whatever_is_taken_away_nobody_else_is_accused(taken):
    cause, ranks, _ = named(without(killed(), *taken))
    assert ranks in ([], [5]), cause
    if not ranks:
        assert cause.startswith(("inconclusive", "healthy"))


def test_the_launchers_line_alone_accuses_nobody():
    cause, ranks, _ = named(without(killed(), *WITNESSES))
    assert ranks == [] and not cause.startswith("dead_rank")


@pytest.mark.parametrize("kept", WITNESSES)
def test_the_launchers_line_and_a_source_that_does_not_tell_of_ranks_accuse_nobody(kept):
    cause, ranks, _ = named(without(killed(), *(name for name in WITNESSES if name != kept)))
    assert ranks == [] or kept in ("ranks", "flight_recorder"), cause


def test_a_launchers_line_that_the_processes_contradict_accuses_nobody():
    w = killed()
    w.dead = {}
    w.samples = [s for s in w.samples if s.probe not in ("ranks", "contact", "reach", "kernel")]
    w.processes()
    assert named(without(w, "flight_recorder"))[1] == []


@pytest.mark.parametrize("code", [-6, -15, 134, 143])
def test_an_aftermath_line_alone_accuses_nobody(code):
    w = World().processes().fabric(0)
    w.samples.append(log_sample([*steps(1, 50, STALL), failed(STALL + 0.5, code, 1, 1005)]))
    assert named(w)[1] == []


@pytest.mark.parametrize("taken", [(), ("kernel",), ("ranks",), ("flight_recorder", "nic", "steps")])
def test_of_an_ended_attempt_the_launchers_line_alone_accuses_nobody(taken):
    w = killed()
    w.job = replace(w.job, state="ended", attempt=Attempt(0, NOW - 3600, NOW - 90))
    cause, ranks, _ = named(without(w, *taken))
    assert ranks == [] and cause == "inconclusive/ended"


# ---------------------------------------------------------------- a run that really happened


@lru_cache(maxsize=1)
def captured() -> CaseFile:
    case = read(CASES / "dead-rank")
    return replace(case, playbooks={**shipped_playbooks()})


def conclusion(case):
    told = conclude(case, probes=tuple(probe_names()), can_ask=False).report
    return told.verdict.cause, [c.rank for c in told.culprits]


def test_the_captured_run_names_its_rank():
    assert conclusion(captured()) == ("dead_rank/killed", [3])


@pytest.mark.parametrize("taken", [c for n in (1, 2, 4, 5) for c in combinations(WITNESSES, n)], ids="-".join)
def test_of_the_captured_run_no_missing_source_makes_another_the_culprit(taken):
    case = captured()
    cause, ranks = conclusion(replace(case, samples=tuple(s for s in case.samples if s.probe not in taken)))
    assert ranks in ([], [3]), cause
    if {"ranks", "flight_recorder"} <= set(taken):
        assert ranks == []


def test_of_the_captured_run_without_the_launchers_line_the_rank_is_still_named():
    case = captured()
    silent = tuple(
        replace(s, data={**s.data, "hits": []}) if s.probe == "joblog" and s.status == "ok" else s for s in case.samples
    )
    assert conclusion(replace(case, samples=silent)) == ("dead_rank/gone", [3])
