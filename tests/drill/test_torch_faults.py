"""What is told of the drills with real PyTorch, and what they need: all that can be seen without PyTorch."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from drill_helpers import TELLING

from triage.drill.backends import SOURCES
from triage.drill.faults import choose, ground_truth
from triage.drill.plan import bare_source, make_plan
from triage.drill.run import DrillOptions, run_drill
from triage.drill.scenarios import find, list_scenarios
from triage.drill.table import table
from triage.errors import UsageError

ROOT = Path(__file__).parents[2]
ASKED = [
    "order", "shape", "dtype", "skip", "conditional", "uneven", "exception", "sigkill", "sigstop", "p2p", "tp-dp",
    "save-on-rank0", "loader", "gil",
]  # fmt: skip


def plan(seed: int = 1, **shape: Any) -> Any:
    return make_plan(
        Path("/tmp/x"), **({"seed": seed, "nodes": 2, "ranks_per_node": 2, "compute_ms": 100, "engine": "torch"} | shape)
    )  # fmt: skip


def drill(**options: Any) -> int:
    return run_drill(DrillOptions(**options), lambda *told: 0, progress=lambda line: None)


def test_without_pytorch_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        drill(scenario="deadlock", engine="torch", fault="order")
    command = re.search(r"pip install '([\w-]+)\[([\w-]+)\]'$", str(caught.value))
    assert command and caught.value.code == 2 and "\n" not in str(caught.value)
    # The name is the one under which this package is published: another would install a stranger's.
    project = (ROOT / "pyproject.toml").read_text()
    assert f'name = "{command[1]}"\n' in project and f"{command[2]} = [" in project


def test_every_fault_can_be_asked_for_and_stands_in_the_list_and_in_the_manual() -> None:
    rows = list_scenarios("torch")
    assert sorted(row.fault for row in rows if row.scenario == "deadlock") == sorted([*ASKED, "pipeline"])
    listed, page = table(), (ROOT / "man" / "triage-drill.1").read_text().replace("\\-", "-")
    section = page[page.index(".SH REAL PYTORCH") : page.index(".SH OPTIONS")]
    for row in rows:
        line = f"{row.scenario} --engine torch" + (f" --fault {row.fault}" if row.fault != "none" else "")
        assert f"{line}\n" in listed
        assert row.fault == "none" or re.search(rf"^\.BR? (.*, \" )?{row.fault}\b", section, re.MULTILINE), row.fault
        assert row.verdict in section
        assert all(cause.rstrip("./") in section for cause in row.or_else)


def test_the_drills_without_an_engine_are_what_they_were() -> None:
    assert not [row for row in list_scenarios() if row.engine != "ring" or (row.or_else and not row.real_cables)]
    assert [fault.name for fault in find("deadlock").faults] == ["order", "missing", "conditional"]
    assert DrillOptions().engine == "ring"


def test_a_scenario_that_the_engine_does_not_have_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(UsageError, match=r"no scenario of --engine torch is called link-flap.*healthy, deadlock"):
        drill(scenario="link-flap", engine="torch")
    with pytest.raises(UsageError, match="did you mean sigkill"):
        drill(scenario="deadlock", engine="torch", fault="sigkil")


def test_one_that_differs_is_told_from_a_majority_only_on_three_ranks_or_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    for shape in ({"nodes": 1}, {"ranks_per_node": 1}):
        with pytest.raises(UsageError, match="needs 2"):
            drill(scenario="deadlock", engine="torch", fault="order", **shape)


def test_the_truth_of_a_left_out_exchange_is_who_left_it_out_or_nobody_and_never_the_neighbour() -> None:
    fault = find("deadlock", "torch").fault("p2p")
    truth = ground_truth("deadlock", fault, plan(), 2, 0.0)
    assert (truth["verdict"], truth["culprit"], truth["broken_rank"]) == ("inconclusive", None, 2)
    assert truth["victims"] == [0, 1, 2, 3]
    (itself,) = truth["or_else"]
    assert (itself["verdict"], itself["culprit"]["rank"], itself["victims"]) == ("deadlock", 2, [0, 1, 3])


def test_a_rank_without_a_neighbour_is_never_chosen_to_leave_its_exchange_out() -> None:
    deadlock = find("deadlock", "torch")
    chosen = {choose(deadlock.fault("p2p"), plan(seed, nodes=3, ranks_per_node=3)) for seed in range(200)}
    assert chosen == set(range(8))
    assert {choose(deadlock.fault("save-on-rank0"), plan(seed)) for seed in range(20)} == {0}
    assert {choose(deadlock.fault("order"), plan(seed)) for seed in range(60)} == {0, 1, 2, 3}


def test_the_program_of_the_ranks_is_one_file_that_says_nothing_of_what_it_is_for() -> None:
    source = bare_source(*SOURCES["torch"])
    assert "#" not in source and '"""' not in source and "triage." not in source
    assert TELLING.findall(source) == []
    tree = ast.parse(source)
    assert source.startswith("from __future__") and source.count("__future__") == 1
    assert sum(isinstance(part, ast.If) for part in tree.body) == 1
    # Where both files define a name, the later one holds; nothing of the first is missing.
    names = [part.name for part in tree.body if isinstance(part, ast.FunctionDef | ast.ClassDef)]
    assert names.count("main") == 2 and {"Diary", "follow", "answer_pipe", "Trainer"} <= set(names)


def test_only_a_job_with_a_control_plane_says_where_it_is() -> None:
    for wanted in (False, True):
        shape = plan(control_plane=wanted)
        told = {shape.rank_environment(place).get("TORCH_WORKER_SERVER_SOCKET") for place in shape.ranks}
        assert (told == {None}) is not wanted and len(told) == (4 if wanted else 1)
    asking = [fault.name for fault in find("deadlock", "torch").faults if fault.control_plane]
    assert asking == ["p2p", "pipeline", "tp-dp", "loader", "gil"]  # where a stack tells more than a record
