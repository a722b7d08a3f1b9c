"""One drill from start to end, with a stand-in for the command line at its far end only."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from drill_helpers import TELLING, alive, wait_for

from triage.drill.run import STILL_S, DrillOptions, run_drill


def test_a_drill_breaks_the_job_calls_triage_once_it_shows_and_returns_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth_file = tmp_path / "facts.json"
    asked: list[tuple[str, str, str]] = []

    def investigate(job: str, inventory: Path, profile: Path, looks: int) -> int:
        asked.append((job, inventory.read_text(), profile.read_text()))
        return 42

    options = DrillOptions("dead-rank", nodes=2, ranks_per_node=2, after_s=0.3, seed=5, truth=truth_file)
    assert run_drill(options, investigate) == 42
    (job, inventory, profile), truth = asked[0], json.loads(truth_file.read_text())
    assert job == truth["job"] and f'"{job}"' in inventory and "progress_floor_s: 5" in profile
    # Only now is the job frozen by any reading: nobody had finished a step for longer than the floor.
    last = max(rows[-1]["t_start"] for rows in truth["steps"].values())
    assert truth["at"] - last < 1.5 and truth["investigation_s"] < 1
    assert (truth["verdict"], truth["exit_code"], truth["scenario"]) == ("dead_rank", 10, "dead-rank")
    assert truth["left_on_nodes"] == [] and truth["gone_from_nodes"] == []
    assert len({row["step"] for rows in truth["steps"].values() for row in rows[-1:]}) == 1
    # What triage is given says nothing of what was done.
    assert TELLING.findall(inventory + profile.replace("progress_floor_s", "")) == []
    out, err = capsys.readouterr()
    assert out == "" and f"{STILL_S:g} s" in err and all(line.startswith("drill: ") for line in err.splitlines())
    wait_for(lambda: not [pid for pid in truth["processes"] if alive(pid)] and not Path(truth["folder"]).exists(), 5)


def test_an_error_of_the_investigation_still_ends_the_cluster(tmp_path: Path) -> None:
    seen: list[Path] = []

    def investigate(job: str, inventory: Path, profile: Path, looks: int) -> int:
        seen.append(inventory)
        raise LookupError(job)

    with pytest.raises(LookupError):
        run_drill(DrillOptions("healthy", nodes=1, ranks_per_node=1, after_s=0), investigate)
    assert not seen[0].exists()


def test_the_line_of_hold_is_one_that_a_shell_understands(tmp_path: Path) -> None:
    from triage.drill.cluster import Cluster
    from triage.drill.run import hold_line

    cluster = Cluster(nodes=1, ranks_per_node=1)
    words = shlex.split(hold_line(cluster))
    assert words[words.index("frozen-job") :] == [
        "frozen-job", cluster.job_id, "--inventory", str(cluster.inventory_path), "--profile",
        str(cluster.profile_path),
    ]  # fmt: skip
    # The program is named as it was called: a venv's triage is on no PATH.
    program = words[: words.index("frozen-job")]
    assert program[-1].endswith("triage") and (len(program) == 1 or program == [sys.executable, "-m", "triage"])
    cluster.close()


def test_the_truth_that_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    from triage.errors import UsageError

    options = DrillOptions("healthy", nodes=1, ranks_per_node=1, after_s=0, truth=tmp_path / "no" / "facts.json")
    with pytest.raises(UsageError, match="give --truth a file"):
        run_drill(options, lambda job, inventory, profile, looks: 0)
