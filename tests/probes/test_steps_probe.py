"""Step records of ranks: torn lines, huge files, plain numbers, names from real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triage.probes import steps
from triage.probes._probe import Absent, Ctx


def record(step: int, rank: int = 3, **more: Any) -> str:
    row = {"step": step, "rank": rank, "t_start": 1790000000.0 + step, "compute_ms": 500.1, "collective_ms": 3.2,
           "data_ms": 0.1, "total_ms": 503.9, **more}  # fmt: skip
    return json.dumps(row) + "\n"


def test_the_last_64_steps_are_told_in_columns() -> None:
    told = steps.reduce_records("".join(record(i) for i in range(100)).encode())
    assert told is not None and told["n"] == 64 and told["last_step"] == 99
    assert told["columns"]["step"] == list(range(36, 100)) and told["columns"]["compute_ms"] == [500.1] * 64
    assert told["last_at"] == pytest.approx(1790000099.5039)


def test_a_torn_last_line_is_passed_over() -> None:
    raw = (record(1) + record(2) + record(3)[:40]).encode()
    told = steps.reduce_records(raw)
    assert told is not None and told["last_step"] == 2 and told["n"] == 2


def test_a_cut_first_line_is_passed_over() -> None:
    raw = (record(1)[30:] + record(2)).encode()
    told = steps.reduce_records(raw, from_start=False)
    assert told is not None and told["columns"]["step"] == [2]


def test_a_column_that_some_steps_lack_is_absent_and_not_zero() -> None:
    told = steps.reduce_records((record(1) + '{"step":2,"t_start":1790000002.0,"total_ms":500}\n').encode())
    assert told is not None and set(told["columns"]) == {"step", "t_start", "total_ms"}


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "-5", "true", '"500"', "null", "1e400"])
def test_a_value_that_is_no_number_is_unknown(bad) -> None:
    told = steps.reduce_records(f'{{"step":2,"t_start":1790000002.0,"total_ms":{bad}}}\n'.encode())
    assert told is not None and "total_ms" not in told["columns"] and told["last_at"] is None
    json.dumps(told, allow_nan=False)


def test_a_file_without_records_tells_nothing() -> None:
    for raw in (b"", b"\n\n", b"garbage\n[1,2]\n{}\n", b'{"step":"x"}\n', b"[" * 5000 + b"\n"):
        assert steps.reduce_records(raw) is None


@pytest.mark.parametrize(
    "text, unit, first",
    [("0.5039\n0.5041\n", "s", 503.9), ("503.9\n504.1\n", "assumed_ms", 503.9), ("1503.9\n", "ms", 1503.9),
     ("503.9 ms\n", "ms", 503.9), ("12.5 s\n", "s", 12500.0), ("step 7: 0.25\n", "s", 250.0)],
)  # fmt: skip
def test_plain_numbers_say_what_unit_was_assumed(text, unit, first) -> None:
    told = steps.reduce_numbers(text.encode())
    assert (
        told is not None
        and told["unit"] == unit
        and told["columns"] == {"total_ms": pytest.approx([first] * told["n"], rel=0.01)}
    )


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=2000), st.booleans())
def test_any_bytes_are_read_and_never_fatal(raw, from_start) -> None:
    for told in (steps.reduce_records(raw, from_start), steps.reduce_numbers(raw, from_start)):
        json.dumps(told, allow_nan=False)


def test_the_files_of_real_ranks_are_found_by_their_environment(tmp_path) -> None:
    mark = uuid.uuid4().hex
    env = {"PATH": os.environ["PATH"], "RANK": "3", "TRIAGE_STEP_LOG": f"{tmp_path}/{mark}_"}
    (tmp_path / f"{mark}_3.jsonl").write_text(record(1) + record(2))
    rank = subprocess.Popen(
        [sys.executable, "-c", "import os,time; os.fork(); time.sleep(60)"], env=env, start_new_session=True
    )
    try:
        # exec is done when the environment is there
        end = time.monotonic() + 5
        while mark.encode() not in Path(f"/proc/{rank.pid}/environ").read_bytes() and time.monotonic() < end:
            time.sleep(0.02)
        rows = [r for r in steps.collect(Ctx())["ranks"] if mark in r["path"]]
        assert [(r["rank"], r["kind"], r["last_step"]) for r in rows] == [(3, "records", 2)]
        # The same through a folder of links, as a node of a drill has it.
        proc = tmp_path / "proc"
        proc.mkdir()
        (proc / str(rank.pid)).symlink_to(f"/proc/{rank.pid}")
        again = steps.collect(Ctx(procfs=str(proc), rootfs=str(tmp_path / "nowhere")))
        assert [r["last_step"] for r in again["ranks"]] == [2]
    finally:
        os.killpg(rank.pid, 9)
        rank.wait()


def fake_rank(tmp_path: Path, path: str, rank: int = 3) -> Ctx:
    here = tmp_path / "proc" / "77"
    here.mkdir(parents=True)
    (here / "environ").write_bytes(f"RANK={rank}\0TRIAGE_STEP_LOG={path}\0".encode())
    (tmp_path / "root").mkdir()
    return Ctx(procfs=str(tmp_path / "proc"), rootfs=str(tmp_path / "root"))


def test_only_the_end_of_a_huge_file_is_read(tmp_path) -> None:
    ctx = fake_rank(tmp_path, "/steps_")
    with (tmp_path / "root" / "steps_3.jsonl").open("wb") as file:
        file.seek(5 << 30)
        file.write(("\n" + record(8) + record(9)).encode())
    assert steps.collect(ctx)["ranks"][0]["columns"]["step"] == [8, 9]


def test_a_fifo_in_the_place_of_a_step_file_blocks_nobody(tmp_path) -> None:
    ctx = fake_rank(tmp_path, "/steps_")
    os.mkfifo(tmp_path / "root" / "steps_3.jsonl")
    with pytest.raises(Absent):
        steps.collect(ctx)


def test_a_process_whose_memory_lock_is_held_does_not_hide_the_steps_of_others(tmp_path) -> None:
    ctx = fake_rank(tmp_path, "/steps_")
    (tmp_path / "root" / "steps_3.jsonl").write_text(record(1))
    (tmp_path / "proc" / "5").mkdir()
    os.mkfifo(tmp_path / "proc" / "5" / "environ")  # blocks its reader as the kernel does
    assert [r["last_step"] for r in steps.collect(ctx)["ranks"]] == [1] and "1 do not let" in ctx.notes[0]


def test_plain_number_files_are_found_under_tmp(tmp_path) -> None:
    ctx = fake_rank(tmp_path, "relative/path_")
    folder = tmp_path / "root" / "tmp" / "step_times"
    folder.mkdir(parents=True)
    (folder / "rank_0.log").write_text("503.9\n504.0\n99")
    (folder / "rank_1.log.old").write_text("1\n")
    data = steps.collect(ctx)
    assert [(r["rank"], r["kind"], r["n"], r["last_step"]) for r in data["ranks"]] == [(0, "numbers", 2, 2)]
    assert data["ranks"][0]["columns"] == {"total_ms": [503.9, 504.0]} and data["ranks"][0]["last_at"] > 0


def job(number: str, port: str, rank: int, prefix: str = "/steps_", **more: str) -> dict[str, str]:
    return {"RANK": str(rank), "TRIAGE_STEP_LOG": prefix, "MASTER_ADDR": "n1", "MASTER_PORT": port, "WORLD_SIZE": "4",
            "SLURM_JOB_ID": number, **more}  # fmt: skip


def node(
    tmp_path: Path, processes: dict[int, dict[str, str]], files: dict[str, str], **args: Any
) -> list[dict[str, Any]]:
    for pid, env in processes.items():
        (tmp_path / "proc" / str(pid)).mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "environ").write_bytes(b"".join(f"{k}={v}\0".encode() for k, v in env.items()))
    for path, text in files.items():
        (tmp_path / "root" / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / path.lstrip("/")).write_text(text)
    ctx = Ctx(procfs=str(tmp_path / "proc"), rootfs=str(tmp_path / "root"))
    ctx.args = args
    rows: list[dict[str, Any]] = steps.collect(ctx)["ranks"]
    return rows


TWO = {10: job("1", "29500", 0, "/a_"), 11: job("1", "29500", 0, "/a_"), 20: job("2", "29501", 0, "/b_"), 21: job("2", "29501", 3, "/b_")}  # fmt: skip
FILES = {"/a_0.jsonl": record(5, 0), "/b_0.jsonl": record(90, 0), "/b_3.jsonl": record(90, 3)}


def test_every_file_says_whose_it_is(tmp_path) -> None:
    rows = node(tmp_path, TWO, FILES, job_id="2")
    assert [(r["rank"], r["path"], r["pids"], r["set"]["SLURM_JOB_ID"], r["set"]["MASTER_PORT"]) for r in rows] == [
        (0, "/b_0.jsonl", [20, 21], "2", "29501"),
        (3, "/b_3.jsonl", [21, 20], "2", "29501"),
        (0, "/a_0.jsonl", [10, 11], "1", "29500"),
    ]


def test_with_match_the_files_of_other_jobs_are_left_out(tmp_path) -> None:
    rows = node(tmp_path, TWO, FILES, job_id="x", match={"SLURM_JOB_ID": "1"})
    assert [r["path"] for r in rows] == ["/a_0.jsonl"] and rows[0]["shared"] is False


def test_match_may_name_any_variable_and_only_its_value_leaves_the_node(tmp_path) -> None:
    processes = {10: {**job("1", "1", 0, "/a_"), "MY_RUN": "blue", "SECRET": "s"}, 20: {**job("1", "2", 0, "/b_"), "MY_RUN": "red"}}  # fmt: skip
    rows = node(tmp_path, processes, FILES, match={"MY_RUN": "blue"})
    assert [r["path"] for r in rows] == ["/a_0.jsonl"]
    assert rows[0]["set"]["MY_RUN"] == "blue" and "SECRET" not in json.dumps(rows)


def test_a_file_to_which_two_jobs_write_is_told_so(tmp_path) -> None:
    processes = {10: job("1", "29500", 0), 20: job("2", "29501", 0)}
    files = {"/steps_0.jsonl": record(5, 0) + record(90, 0)}
    both = node(tmp_path, processes, files, job_id="1")
    assert [(r["set"]["SLURM_JOB_ID"], r["shared"]) for r in both] == [("1", False), ("2", False)]
    assert [r["shared"] for r in node(tmp_path / "again", processes, files, match={"SLURM_JOB_ID": "1"})] == [True]


def test_the_file_of_a_rank_that_has_died_is_found_beside_its_siblings(tmp_path) -> None:
    launched = {"GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    files = {"/steps_2.jsonl": record(9, 2), "/steps_3.jsonl": record(8, 3), "/steps_1.jsonl": record(9, 1)}
    rows = node(tmp_path, {10: job("1", "29500", 2, **launched)}, files)
    assert [(r["rank"], r["last_step"], r["pids"]) for r in rows] == [(2, 9, [10]), (3, 8, [10])]


def test_an_agent_with_a_number_of_the_scheduler_is_no_rank_where_its_children_wear_one(tmp_path) -> None:
    agent = {"SLURM_PROCID": "1", "SLURM_JOB_ID": "1", "TRIAGE_STEP_LOG": "/steps_"}
    files = {"/steps_1.jsonl": record(9, 1), "/steps_2.jsonl": record(9, 2)}
    assert [r["rank"] for r in node(tmp_path, {9: agent, 10: job("1", "29500", 2)}, files)] == [2]
    assert [r["rank"] for r in node(tmp_path / "alone", {9: agent}, files)] == [1]


def test_a_hostile_environment_leaves_no_control_character_in_the_answer(tmp_path) -> None:
    rows = node(tmp_path, {10: job("1\x1b[31m", "9" * 5000, 0, "/a_")}, FILES)
    assert "\x1b" not in json.dumps(rows, ensure_ascii=False) and len(rows[0]["set"]["MASTER_PORT"]) == 1024
