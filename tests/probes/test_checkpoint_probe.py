"""The last complete checkpoint of a folder, and the layout that a command line names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from triage.probes import _checkpoints, checkpoint
from triage.probes._probe import Absent, Ctx

from triage.readers.shapes import problem

NOW = 1_790_000_000.0


def put(path: Path, text: str = "x", ago: float = 0.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (NOW - ago, NOW - ago))
    return path


def dated(path: Path, ago: float) -> None:
    path.mkdir(parents=True, exist_ok=True)
    os.utime(path, (NOW - ago, NOW - ago))


def megatron(folder: Path, tracker: str) -> Path:
    for step, ago in ((1000, 10800), (2000, 7200), (3000, 3600), (4000, 30)):
        put(folder / f"iter_{step:07d}" / "common.pt", ago=ago)
        dated(folder / f"iter_{step:07d}", ago)
    put(folder / "latest_checkpointed_iteration.txt", tracker, 3590)
    return folder


def test_megatrons_tracker_tells_the_last_whole_one_and_not_the_newest_folder(tmp_path: Path) -> None:
    found = _checkpoints.last(str(megatron(tmp_path, "3000\n")), NOW)
    assert (found["kind"], found["step"], found["at"]) == ("megatron", 3000, NOW - 3590)
    assert found["gap_s"] == [3600.0, 3600.0, 3600.0]  # 4000 is being written: its time is no interval


@pytest.mark.parametrize("tracker", ["", "release", "30\x0000", "5000", "../../etc", "9" * 40, "3e3"])
def test_a_tracker_that_is_torn_or_names_what_is_not_there_tells_nothing(tmp_path: Path, tracker: str) -> None:
    found = _checkpoints.last(str(megatron(tmp_path, tracker)), NOW)
    assert found["at"] is None and found["step"] is None and found["why"]


def deepspeed(folder: Path, newest_ago: float) -> Path:
    for step, ago in ((100, 5000), (200, 3000)):
        put(folder / f"global_step{step}" / "mp_rank_00_model_states.pt", ago=ago)
        dated(folder / f"global_step{step}", ago)
    put(folder / "global_step300" / "mp_rank_00_model_states.pt", ago=1000)
    put(folder / "global_step300" / "zero_pp_rank_7_mp_rank_00_optim_states.pt", ago=newest_ago)
    dated(folder / "global_step300", 1000)
    put(folder / "latest", "global_step300", 990)
    return folder


def test_deepspeeds_latest_counts_from_the_newest_file_of_its_folder(tmp_path: Path) -> None:
    """Rank 0 writes `latest` when it is through itself; the others may still write."""
    found = _checkpoints.last(str(deepspeed(tmp_path, 940)), NOW)
    assert (found["kind"], found["step"], found["at"]) == ("deepspeed", 300, NOW - 940)


def test_deepspeeds_folder_that_still_grows_is_not_told(tmp_path: Path) -> None:
    found = _checkpoints.last(str(deepspeed(tmp_path, 5)), NOW)
    assert found["at"] is None and "may still be written" in found["why"]


@pytest.mark.parametrize("tag", ["", "global_step999", "/etc", "..", "a\nb"])
def test_a_latest_that_names_no_folder_tells_nothing(tmp_path: Path, tag: str) -> None:
    put(deepspeed(tmp_path, 940) / "latest", tag, 990)
    assert _checkpoints.last(str(tmp_path), NOW)["at"] is None


def test_torchs_metadata_comes_last_and_a_folder_without_it_is_half_written(tmp_path: Path) -> None:
    for step, ago in ((10, 900), (20, 600), (30, 300)):
        put(tmp_path / f"step-{step}" / "__0_0.distcp", ago=ago + 5)
        put(tmp_path / f"step-{step}" / ".metadata", ago=ago)
    put(tmp_path / "step-40" / "__0_0.distcp", ago=1)
    put(tmp_path / "step-40" / ".metadata.tmp", ago=1)
    found = _checkpoints.last(str(tmp_path), NOW)
    assert (found["kind"], found["step"], found["at"], found["gap_s"]) == ("dcp", 30, NOW - 300, [300.0, 300.0, 300.0])


def test_a_folder_named_latest_is_no_tracker(tmp_path: Path) -> None:
    put(tmp_path / "latest" / "model.pt")
    assert _checkpoints.last(str(tmp_path), NOW)["why"] == "no tracker and no .metadata in it"


@pytest.mark.parametrize("name", ["latest_checkpointed_iteration.txt", "latest"])
def test_a_fifo_in_the_place_of_a_tracker_blocks_nobody(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert _checkpoints.last(str(tmp_path), NOW)["at"] is None


def test_an_absent_or_closed_folder_tells_nothing(tmp_path: Path) -> None:
    for path in (tmp_path / "none", put(tmp_path / "file"), "\0"):
        assert _checkpoints.last(str(path), NOW)["at"] is None


def test_two_checkpoints_tell_no_interval(tmp_path: Path) -> None:
    for step, ago in ((10, 900), (20, 600)):
        put(tmp_path / f"step-{step}" / ".metadata", ago=ago)
    assert _checkpoints.last(str(tmp_path), NOW)["gap_s"] is None


def test_the_layout_is_read_from_either_spelling() -> None:
    argv = ["python", "pretrain_gpt.py", "--tensor-model-parallel-size", "8", "--pipeline-model-parallel-size=4",
            "--num-layers", "96", "--global-batch-size", "1024", "--micro-batch-size", "1", "--use-tp-pp-dp-mapping"]  # fmt: skip
    assert _checkpoints.launch_of(argv) == {
        "tp": 8, "pp": 4, "layers": 96, "global_batch": 1024, "micro_batch": 1, "order": "tp-pp-dp",
    }  # fmt: skip
    assert _checkpoints.launch_of(["x", "--parallelism.tensor_parallel_degree", "4"]) == {"tp": 4}
    assert _checkpoints.launch_of(["--num-layers", "many", "--tensor-model-parallel-size=0", "--num-layers"]) == {}


@given(st.lists(st.text(max_size=30), max_size=20))
def test_any_command_line_gives_plain_numbers(argv: list[str]) -> None:
    assert all(isinstance(v, int) or k == "order" for k, v in _checkpoints.launch_of(argv).items())


# ---------------------------------------------------------------- on a node


def process(root: Path, pid: int, rank: str | None, argv: list[str], job: str = "4711", **more: str) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    env = {"SLURM_JOB_ID": job, **({"RANK": rank} if rank is not None else {}), **more}
    (folder / "environ").write_bytes(b"\0".join(f"{k}={v}".encode() for k, v in env.items()) + b"\0")
    (folder / "cmdline").write_bytes(b"\0".join(a.encode() for a in argv) + b"\0")
    (folder / "cwd").symlink_to("/train")
    numbers = ["0"] * 48
    numbers[0], numbers[17], numbers[19] = "1", "8", str(pid)  # parent, threads, start
    (folder / "stat").write_text(f"{pid} ({argv[0]}) S {' '.join(numbers)}\n")


def ctx(root: Path, **args: object) -> Ctx:
    return Ctx(procfs=str(root / "proc"), rootfs=str(root), args={"job_id": "4711", **args})


def test_rank_0_tells_its_folder_and_its_layout(tmp_path: Path) -> None:
    megatron(tmp_path / "ckpt" / "run7", "3000")
    process(tmp_path, 100, None, ["bash", "run.sh", "--save", "/elsewhere"])
    process(tmp_path, 101, "0", ["python", "p.py", "--save", "/ckpt/run7", "--tensor-model-parallel-size", "8"])
    process(tmp_path, 102, "1", ["python", "p.py", "--save", "/ckpt/other"])
    data = checkpoint.collect(ctx(tmp_path))
    assert [(f["path"], f["step"]) for f in data["folders"]] == [("/ckpt/run7", 3000)]
    assert data["launch"] == {"tp": 8}
    assert problem("checkpoint", json.loads(json.dumps(data))) is None


def test_a_path_is_taken_from_the_ranks_own_folder(tmp_path: Path) -> None:
    megatron(tmp_path / "train" / "ckpt", "3000")
    process(tmp_path, 101, "0", ["python", "p.py", "--save-dir=ckpt"])
    assert checkpoint.collect(ctx(tmp_path))["folders"][0]["path"] == "/train/ckpt"


@pytest.mark.parametrize(
    "args", [{"job_id": "99"}, {"match": {"SLURM_JOB_ID": "99"}}, {"job_id": "4711", "match": {"MASTER_PORT": "1"}}]
)
def test_another_jobs_rank_0_is_not_asked(tmp_path: Path, args: dict[str, object]) -> None:
    process(tmp_path, 101, "0", ["python", "p.py", "--save", "/ckpt/run7"])
    with pytest.raises(Absent):
        checkpoint.collect(ctx(tmp_path, **args))


def test_a_node_without_rank_0_says_so_and_touches_no_folder(tmp_path: Path) -> None:
    process(tmp_path, 101, "8", ["python", "p.py", "--save", "/ckpt/run7"])
    with pytest.raises(Absent):
        checkpoint.collect(ctx(tmp_path))


def test_a_rank_0_that_names_nothing_is_no_answer(tmp_path: Path) -> None:
    process(tmp_path, 101, "0", ["python", "p.py", "--config", "x.yaml"])
    with pytest.raises(Absent):
        checkpoint.collect(ctx(tmp_path))


def test_a_loader_worker_that_wears_rank_0_too_is_not_asked(tmp_path: Path) -> None:
    """Children have the environment of their rank; what they save is their own business."""
    megatron(tmp_path / "ckpt" / "run7", "3000")
    process(tmp_path, 101, "0", ["python", "p.py", "--save", "/ckpt/run7"])
    process(tmp_path, 90, "0", ["python", "-c", "spawn_main", "--save", "/elsewhere"])
    stat = tmp_path / "proc" / "90" / "stat"
    stat.write_text(stat.read_text().replace(" S 1 ", " S 101 ", 1))
    assert [f["path"] for f in checkpoint.collect(ctx(tmp_path))["folders"]] == ["/ckpt/run7"]


def test_a_launcher_that_wears_rank_0_too_does_not_hide_the_rank(tmp_path: Path) -> None:
    process(tmp_path, 50, None, ["srun"], SLURM_PROCID="0")
    process(tmp_path, 101, "0", ["python", "p.py", "--save", "/ckpt/run7"])
    assert checkpoint.collect(ctx(tmp_path))["folders"][0]["path"] == "/ckpt/run7"
