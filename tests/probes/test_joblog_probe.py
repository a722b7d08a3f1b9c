"""The job's log: torn lines, progress bars, colours, huge files, zones, launchers' prefixes."""

from __future__ import annotations

import calendar
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triage.probes import joblog
from triage.probes._probe import Absent, Ctx, Denied

from triage.readers.signatures import for_probe

CAPTURES = Path(__file__).parents[1] / "captures"
SIGNATURES = for_probe("joblog")
NOW = float(calendar.timegm((2026, 11, 30, 22, 0, 0)))


def at(hour: int, minute: int, second: float) -> float:
    return calendar.timegm((2026, 11, 30, hour, minute, 0)) + second


def megatron(number: int, when: float, took: float = 503.9, prefix: str = "") -> str:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(when)) + f".{int(when * 1000) % 1000:03d}"
    return (
        f"{prefix} [{stamp}] iteration {number:8d}/  100000 | consumed samples: {number * 32:12d} |"
        f" elapsed time per iteration (ms): {took} | learning rate: 1.0E-04 | lm loss: 2.3E+00 | grad norm: 1.2 |\n"
    )


def reduce(text: str | bytes, **more: Any) -> dict[str, Any]:
    raw = text.encode() if isinstance(text, str) else text
    return joblog.reduce_log(raw, SIGNATURES, **{"now": NOW, **more})


def ids(data: dict[str, Any]) -> list[str]:
    return [hit["id"] for hit in data["hits"]]


def test_a_megatron_log_tells_its_steps_its_death_and_the_victims_after_it() -> None:
    data = reduce((CAPTURES / "job_megatron_dead_rank.log").read_bytes())
    assert data["iterations"]["total"] == 100000 and data["iterations"]["source"] == "megatron"
    assert data["iterations"]["series"][-1] == [12, pytest.approx(at(21, 40, 1.123)), 503.9]
    assert ids(data) == [
        "checkpoint_load_begin", "checkpoint_load_end", "checkpoint_save_begin", "checkpoint_save_end",
        "torchelastic_failed", "watchdog_timeout", "watchdog_status",
    ]  # fmt: skip
    failed = data["hits"][4]
    assert failed["groups"] == {"code": "-9", "lr": "1", "pid": "4242"}
    assert failed["at"] == pytest.approx(at(21, 40, 2.034)) and failed["dated"] and failed["line_no"] == 9
    assert data["hits"][5]["prefix"] == "rank0" and data["hits"][5]["groups"]["ran_ms"] == "600040"
    assert data["newest_at"] == pytest.approx(at(21, 50, 2.413313), abs=1e-3)
    assert data["first_at"] == at(21, 30, 0) and data["zone"] == "unknown" and data["complete"]
    # An undated line takes the time of the nearest dated one above, and says so.
    assert data["hits"][2]["at"] == pytest.approx(at(21, 39, 59.605)) and data["hits"][2]["dated"] is False


@pytest.mark.parametrize("prefix", ["", "3: ", "[rank3]:", "gpu003: ", "[default3]:", "[1,3]<stdout>:", "  12: "])
def test_a_launchers_prefix_hides_no_step_and_no_death(prefix) -> None:
    data = reduce(
        megatron(7, at(21, 0, 0), prefix=prefix)
        + prefix + "E1130 21:40:02.034000 4240 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 4242) of binary: x\n"
    )  # fmt: skip
    assert data["iterations"]["series"] == [[7, at(21, 0, 0), 503.9]]
    assert ids(data) == ["torchelastic_failed"] and data["hits"][0]["at"] == pytest.approx(at(21, 40, 2.034))


STEP_LINES = [
    (megatron(12, at(21, 40, 1.5)), "megatron", 12, 100000, 503.9),
    (megatron(12, at(21, 40, 1.5)).replace("(ms): 503.9", "(s): 1.5"), "megatron", 12, 100000, 1500.0),
    # A fork prints the running mean behind the slash, one without an end counts to infinity, one writes names and values.
    (megatron(12, at(21, 40, 1.5)).replace("(ms): 503.9", "(ms): 503.9/498.2"), "megatron", 12, 100000, 503.9),
    (megatron(12, at(21, 40, 1.5)).replace("/  100000 |", "/infinity |"), "megatron", 12, None, 503.9),
    (
        "[2024-09-16 22:59:19.287338][INFO][training_log:661] -  iteration=       1/  635782 | consumed_samples=         768 | "
        "consumed_tokens=     3145728 | elapsed_time_per_iteration_ms=29570.0 | learning_rate=9.4372e-09 | lm loss=11.167250 |\n",
        "megatron", 1, 635782, 29570.0,
    ),
    (
        "[titan] 2026-11-30 21:40:01,500 - root - INFO - \x1b[31mstep: 20  \x1b[32mloss:  8.1234  \x1b[33mmemory:  1.21GiB"
        "(1.2%)  \x1b[34mtps: 12,345  \x1b[36mmfu: 40.1%\x1b[39m\n",
        "torchtitan", 20, None, None,
    ),
    (
        "Training epoch 0, iteration 11/99 | lr: 1e-05 | global_batch_size: 8 | global_step: 11 | reduced_train_loss: 11.03"
        " | train_step_timing in s: 0.52 | consumed_samples: 96\n",
        "nemo", 11, 99, 520.0,
    ),
    # Lightning's bar in NeMo. global_step is rounded to three digits once that is shorter, so that the bar's own count is read.
    (
        "\rEpoch 0: :   0%|          | 1999/603000 [1:03:15<317:00:58, v_num=, reduced_train_loss=2.600, global_step=1998.0, "
        "consumed_samples=1.28e+6, train_step_timing in s=1.910]"
        "\rEpoch 0: :   0%|          | 2001/603000 [1:03:17<317:00:58, v_num=, reduced_train_loss=2.600, global_step=2e+3, "
        "consumed_samples=1.28e+6, train_step_timing in s=1.900, val_loss=2.800]\n",
        "nemo", 2001, 603000, 1900.0,
    ),
    (
        "Epoch 1: : 1it [00:04,  4.36s/it, v_num=d3c7, reduced_train_loss=0.674, global_step=1.000, consumed_samples=128.0, "
        "train_step_timing in s=3.370, batch_time=4.400]\n",
        "nemo", 1, None, 3370.0,
    ),
    ("Epoch 0:   4%|4         | 350/8000 [00:09<03:23, 37.50it/s, v_num=0]\n", "tqdm", 350, 8000, 1000 / 37.5),
    # A rate of two decimals tells no time to a per cent below one step in two seconds.
    ("Epoch 0:   3%|3         | 8/260 [17:04<8:57:59,  0.01it/s, v_num=2ch5]\n", "tqdm", 8, 260, None),
    (
        "[2026-11-30 21:40:01,500] [INFO] [timer.py:264:stop] epoch=0/micro_step=40/global_step=40, "
        "RunningAvgSamplesPerSec=22.1, CurrSamplesPerSec=22.3, MemAllocated=1.0GB\n",
        "deepspeed", 40, None, None,
    ),
    ("[2026-11-30 21:40:01,500] [INFO] [timer.py:187:stop] 0/50, SamplesPerSec=4.1\n", "deepspeed", 50, None, None),
    ("\r 12%|#2        | 12/100 [00:24<02:56,  2.00s/it]\r 13%|#3        | 13/100 [00:26<02:54,  2.00s/it]\n", "tqdm", 13, 100, 2000.0),
    ("{'loss': 2.1}\n  5%|5 | 50/1000 [00:25<07:55,  2.00it/s]\n", "tqdm", 50, 1000, 500.0),
]  # fmt: skip


@pytest.mark.parametrize("text, source, number, total, elapsed", STEP_LINES)
def test_steps_of_the_usual_trainers_are_read(text, source, number, total, elapsed) -> None:
    told = reduce(text)["iterations"]
    assert (told["source"], told["series"][-1][0], told["total"]) == (source, number, total)
    assert told["series"][-1][2] == elapsed


@pytest.mark.parametrize(
    "bar",
    [
        "Map: 45%|####5 | 450/1000 [00:01<00:01, 300.00it/s]",
        "Loading checkpoint shards: 50%|5 | 1/2 [00:01<00:01, 1.00s/it]",
    ],
)
def test_a_progress_bar_of_other_work_is_no_training_step(bar) -> None:
    assert reduce(bar + "\n")["iterations"]["series"] == []


@pytest.mark.parametrize(
    "line",
    [
        "(min, max) time across ranks (ms):",
        "timing_pattern = 'train_step_timing in s=([0-9.]+)'",
        "wandb:     train_step_timing in s 4e-05",
        "Epoch 0: : 7/15 [06:19<07:13, reduced_train_loss=11.50] train_step_timing in s=49.50",
        "Step Time : 1.63s GPU utilization: 409.3MODEL_TFLOP/s/GPU",
        "iteration=12 | elapsed_time_per_iteration_ms=29570.0 |",
        " iteration 12/ infinitely | elapsed time per iteration (ms): 503.9 |",
    ],
)
def test_a_line_that_is_nearly_a_step_line_is_none(line) -> None:
    assert reduce(line + "\n")["iterations"]["series"] == []


def test_a_torn_last_line_gives_no_step_and_hides_none_before_it() -> None:
    text = megatron(1, at(21, 0, 0)) + megatron(2, at(21, 0, 1)).rstrip("\n")
    cut = text[: text.rindex("503.9") + 2]  # "elapsed time per iteration (ms): 50"
    assert [row[0] for row in reduce(cut)["iterations"]["series"]] == [1]
    assert [row[0] for row in reduce(text)["iterations"]["series"]] == [1]
    assert reduce(cut)["tail"][-1].endswith("(ms): 50")


def test_a_restart_shows_as_steps_that_go_back() -> None:
    text = "".join(megatron(i, at(21, 0, i)) for i in (1, 2, 3)) + "".join(megatron(i, at(21, 10, i)) for i in (2, 3))
    assert [row[0] for row in reduce(text)["iterations"]["series"]] == [1, 2, 3, 2, 3]


def test_hits_of_an_earlier_attempt_are_left_out_on_request() -> None:
    line = "E1130 %s.034000 4240 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: %d) of binary: x\n"
    text = line % ("20:00:00", 1) + line % ("21:00:00", 2)
    for told in ({"offset_s": 0.0}, {"mtime": at(21, 0, 1)}):
        data = reduce(text, since=at(20, 30, 0), **told)
        assert [hit["groups"]["pid"] for hit in data["hits"]] == ["2"]


def test_a_log_written_west_of_greenwich_loses_no_hit_to_the_attempts_start() -> None:
    # Written at 21:00 UTC by a job in UTC-8; taken as UTC it would seem hours older than the attempt.
    text = "E1130 13:00:00.034000 4240 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 2) of binary: x\n"
    data = reduce(text, since=at(20, 30, 0), mtime=at(21, 0, 0))
    assert ids(data) == ["torchelastic_failed"] and data["hits"][0]["at"] == pytest.approx(at(21, 0, 0.034))
    unknown = reduce(text + "no date\n", since=at(20, 30, 0), mtime=at(21, 7, 0))
    assert ids(unknown) == ["torchelastic_failed"] and unknown["zone"] == "unknown"


def test_a_phase_that_began_twice_stands_at_its_second_beginning() -> None:
    begin, end = (
        "Saving the checkpoint (or staging if async is enabled).\n",
        "Finished saving the checkpoint in 3 seconds.\n",
    )
    data = reduce(begin + end + begin)
    assert [(h["id"], h["count"], h["line_no"]) for h in data["hits"]] == [
        ("checkpoint_save_end", 1, 2), ("checkpoint_save_begin", 2, 3),
    ]  # fmt: skip


def test_of_a_thousand_alike_lines_the_first_and_the_last_are_told_and_the_rest_is_counted() -> None:
    line = "[rank%d]:[E1130 21:50:02.4 ProcessGroupNCCL.cpp:632] [Rank %d] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600%03d milliseconds before timing out.\n"
    death = "E1130 21:40:02.034000 4240 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 4242) of binary: x\n"
    data = reduce("".join(line % (i, i, i % 1000) for i in range(1000)) + death)
    timeouts = [h for h in data["hits"] if h["id"] == "watchdog_timeout"]
    assert [h["prefix"] for h in timeouts[:3]] == ["rank0", "rank1", "rank2"] and timeouts[-1]["prefix"] == "rank999"
    assert len(timeouts) + data["hits_left_out"]["watchdog_timeout"] == 1000
    assert "torchelastic_failed" in ids(data) and len(data["hits"]) <= 200


def test_what_a_rank_prints_is_bounded_and_cannot_colour_our_terminal() -> None:
    data = reduce("ValueError: \x1b[31mred\x1b[0m \x1b]0;title\x07 \x00\x07 " + "x" * 9000 + "\n" + "y" * 9000 + "\n")
    assert all("\x1b" not in t and "\x07" not in t and "\x00" not in t and len(t) <= 300 for t in data["tail"])
    assert (
        ids(data) == ["python_exception"] and len(data["hits"][0]["text"]) <= 300 and "red" in data["hits"][0]["text"]
    )


def test_a_date_that_a_line_talks_about_is_not_when_it_was_written() -> None:
    data = reduce(
        megatron(1, at(21, 0, 0)) + "shard of 2031-01-01 00:00:00 read\n" + "x" * 120 + " 2026-11-30 21:59:00\n"
    )
    assert data["newest_at"] == at(21, 0, 0)


@pytest.mark.parametrize(
    "line, expected",
    [
        ("[2026-11-30 21:40:01.123] x", at(21, 40, 1.123)),
        ("2026-11-30T21:40:01Z x", at(21, 40, 1)),
        ("2026-11-30 22:40:01,500+01:00 x", at(21, 40, 1.5)),
        ("[rank3]:[E1130 21:40:01.123456789 ProcessGroupNCCL.cpp:1] x", at(21, 40, 1.123456789)),
        ("[rank3]:[E321 21:40:01.5 x.cpp:1] x", float(calendar.timegm((2026, 3, 21, 21, 40, 1))) + 0.5),
        ("E1129 17:17:31.034000 4240 api.py:1] x", float(calendar.timegm((2026, 11, 29, 17, 17, 31))) + 0.034),
        ("Nov 30 21:40:01 gpu003 kernel: x", at(21, 40, 1)),
        ("[Mon Nov 30 21:40:01 2026] x", at(21, 40, 1)),
        ("11/30/2026 21:40:01 - INFO - x", at(21, 40, 1)),
        ("I1231 23:59:59.0 x", float(calendar.timegm((2025, 12, 31, 23, 59, 59)))),  # not ahead of now: last year's
        ("1.2026-11-30 21:40:01", None),
        ("2026-13-30 21:40:01 x", None),
        ("E9999 99:99:99.0 x", None),
        ("no date", None),
    ],
)
def test_dates_of_all_writers_become_one_clock(line, expected) -> None:
    found = joblog.stamp_of(line, NOW)
    assert (found and found[0]) == (expected and pytest.approx(expected, abs=1e-3))


def test_a_log_in_local_time_is_measured_against_its_files_own_time() -> None:
    # Written at 21:00:01 UTC by a job in UTC+1.
    text = megatron(1, at(22, 0, 0)) + megatron(2, at(22, 0, 1))
    data = reduce(text, mtime=at(21, 0, 1.2))
    assert data["offset_s"] == 3600 and data["zone"] == "utc" and data["newest_at"] == at(21, 0, 1)
    assert [row[1] for row in data["iterations"]["series"]] == [at(21, 0, 0), at(21, 0, 1)]
    # A last line without a date proves nothing: it may have been written hours after the dated one.
    undated = reduce(text + "still here\n", mtime=at(21, 0, 1.2))
    assert undated["offset_s"] == 0 and undated["zone"] == "unknown"
    assert reduce(text, mtime=at(22, 4, 0))["zone"] == "unknown"


def test_blocks_do_not_change_what_is_told() -> None:
    raw = (CAPTURES / "job_megatron_dead_rank.log").read_bytes()
    whole = reduce(raw)
    for size in (1, 7, 100, 1000):
        chunks = [raw[i : i + size] for i in range(0, len(raw), size)]
        assert joblog.reduce_log(chunks, SIGNATURES, now=NOW) == whole


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=3000), st.integers(1, 400))
def test_any_bytes_are_read_and_never_fatal(raw, size) -> None:
    data = joblog.reduce_log([raw[i : i + size] for i in range(0, len(raw), size)], SIGNATURES, now=NOW)
    assert len(data["tail"]) <= 20


# ---------------------------------------------------------------- the file


def collect(path: Path | str, **args: Any) -> dict[str, Any]:
    return joblog.collect(Ctx(args={"path": str(path), "signatures": SIGNATURES, **args}))


def test_of_a_ten_gigabyte_log_only_the_end_is_read(tmp_path) -> None:
    path = tmp_path / "job.log"
    with path.open("wb") as file:
        file.write(megatron(1, at(20, 0, 0)).encode())
        file.seek(10 << 30)  # sparse
        file.write(b"\n" + megatron(2, at(21, 0, 0)).encode())
    began = time.process_time()
    data = collect(path)
    assert data["size"] > 10 << 30 and data["truncated_head"] is True
    assert [row[0] for row in data["iterations"]["series"]] == [2]
    assert time.process_time() - began < 3.0


def test_the_cut_first_line_of_a_tail_is_not_taken_for_a_line(tmp_path) -> None:
    path = tmp_path / "job.log"
    path.write_text("".join(megatron(i, at(21, 0, 0) + i) for i in range(100)))
    data = collect(path, max_bytes=5000)
    lines = path.read_text().splitlines()
    assert data["truncated_head"] and len(data["iterations"]["series"]) >= 20
    assert all(line in [x.rstrip() for x in lines] for line in data["tail"])


def test_a_log_that_is_not_there_or_no_file_is_absent_and_never_blocks(tmp_path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "none", tmp_path / "fifo", tmp_path, "/dev/zero"):
        with pytest.raises(Absent):
            collect(path)
    with pytest.raises(Absent):
        joblog.collect(Ctx(args={}))


def test_a_log_that_may_not_be_read_is_denied_and_not_absent(tmp_path) -> None:
    path = tmp_path / "job.log"
    path.write_text("x\n")
    path.chmod(0)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        with pytest.raises(Denied):
            collect(path)
    finally:
        if root:
            os.seteuid(0)


def test_a_log_below_another_root_is_read_there(tmp_path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "job.log").write_text(megatron(3, at(21, 0, 0)))
    data = joblog.collect(Ctx(rootfs=str(tmp_path), args={"path": "/shared/job.log"}))
    assert data["path"] == "/shared/job.log" and data["exists"] is True and data["iterations"]["series"][0][0] == 3


DONE = [{"id": "done", "pattern": r"after training is done|Training completed", "hint": ["raining"]}]


def order(text: str, **more: Any) -> tuple[int | None, int]:
    """(line of the newest step, line of the word that all is done)"""
    told = joblog.reduce_log(text.encode(), DONE, now=at(22, 0, 0), **more)
    return told["iterations"]["last_line_no"], told["hits"][0]["line_no"]


def test_lines_are_numbered_alike_for_steps_and_known_lines() -> None:
    done = "[after training is done]\n"
    some = "".join(megatron(i, at(21, 0, 0) + i) for i in range(3))
    more = "".join(megatron(i, at(21, 1, 0) + i) for i in range(3, 5))
    assert order(some + done) == (3, 4)
    assert order(done + some) == (4, 1)
    assert order("x\n" + some + done + "y\n" + more) == (8, 5)


def test_each_step_tells_its_line_whatever_stands_between_and_however_few_are_asked_for() -> None:
    text = (
        "one\n" + megatron(1, at(21, 0, 0)) + "two\nthree\n" + megatron(2, at(21, 0, 1)) * 2 + megatron(3, at(21, 0, 2))
    )
    told = reduce(text)["iterations"]
    assert [row[0] for row in told["series"]] == [1, 2, 3] and told["lines"] == [2, 5, 7]
    assert told["last_line_no"] == 7 and reduce(text, series=2)["iterations"]["lines"] == [5, 7]
    assert reduce("nothing\n")["iterations"]["lines"] == []


def test_lines_are_numbered_across_blocks() -> None:
    filler = "nothing to see here, move on\n" * 60_000  # more than one block
    text = filler + megatron(1, at(21, 0, 0)) + filler + "[after training is done]\n" + filler
    assert len(text) > 3 * joblog.BLOCK
    assert order(text) == (60_001, 120_002)


def test_a_bar_that_is_drawn_once_more_when_all_is_done_is_no_new_step() -> None:
    def bar(n: int) -> str:
        return f"100%|####| {n}/265 [11:16:47<00:00, 29.74s/it]"

    text = bar(264) + "\r" + bar(265) + "\nTraining completed.\n{'train_runtime': 40607.5}\n" + bar(265) + "\n"
    assert order(text) == (1, 2)
    assert order("Training completed.\n" + bar(1) + "\r" + bar(2) + "\n") == (2, 1)


def test_without_step_lines_there_is_no_last_one() -> None:
    assert order("Training completed.\nstep 3: loss 2.0\n") == (None, 1)


def test_a_log_that_begins_with_hundreds_of_undated_lines_has_its_zone_measured_all_the_same() -> None:
    # 21:40:01 in the log, changed at 19:40:01 UTC: a log of UTC+2.
    text = "booting\n" * 5000 + "x" * 200_000 + "\n" + megatron(1, at(21, 40, 1))
    told = joblog.reduce_log(text.encode(), [], mtime=at(19, 40, 1))
    assert (told["zone"], told["offset_s"], told["first_at"]) == ("utc", 7200.0, None)


def test_of_lines_that_come_with_every_step_the_first_and_the_last_are_looked_at_and_the_log_counts_as_read() -> None:
    line = "[Rank 0] time (ms) | fwd: %d.00 | bwd: 1.00 | bwd_inner: 1.00 | bwd_allreduce: 1.00 | step: 1.00\n"
    data = reduce("".join(line % i for i in range(30000)))
    told = [float(hit["groups"]["fwd"]) for hit in data["hits"]]
    assert told[:20] == list(range(20)) and told[-40:] == list(range(29960, 30000))
    assert len(told) == 60 and data["complete"]
