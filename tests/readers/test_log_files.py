"""Logs beside dumps: whose they are by their names, on which clock their times are, and what is no log at all."""

from __future__ import annotations

import calendar
import time

import pytest

from triage.model import Sample
from triage.readers.log_files import Logs, host_of, is_text, own_rank, reduce
from triage.readers.shapes import problem

AT = float(calendar.timegm((2026, 11, 29, 3, 4, 11)))
KATHMANDU = 5.75 * 3600


def gave_up(rank, zone=0.0, seq=78, at=AT, tag=True, op="ALLREDUCE"):
    when = time.gmtime(at + zone)
    head = f"[rank{rank}]:" if tag else ""
    stamp = f"[E{when.tm_mon}{when.tm_mday:02d} {time.strftime('%H:%M:%S', when)}.061727741 ProcessGroupNCCL.cpp:683]"
    return (
        f"{head}{stamp} [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, "
        "NumelIn=80, NumelOut=80, Timeout(ms)=600000) ran for 600000 milliseconds before timing out.\n"
    )


def read(files, dumps=None, mtime=AT + 86400):
    logs = Logs()
    for name, text in files.items():
        logs.take(name, text.encode() if isinstance(text, str) else text, mtime)
    sample = logs.sample(dumps)
    if sample is not None:
        assert problem("joblog", sample.data) is None
    return logs, sample


def opened(seq=78, at=AT - 600):
    """A folder's flight records: one rank waits in that number since then."""
    rows = [{"rank": 0, "record": {"open": [{"seq": seq, "at": at}]}}]
    return Sample("flight_recorder", "", "C", "ok", {"ranks": rows})


def begun(sample):
    return [row[17] for row in sample.data["watchdog"]["rows"] if row[0] == "timeout"]


@pytest.mark.parametrize(
    "name",
    [
        "rank3.err", "rank_3.log", "logs/rank-3.txt", "log_3.txt", "out.3", "stderr_3.log", "3.log", "job.rank3.err",
        "attempt_0/3/stderr.log", "tmp/run_abc/attempt_0/3/stdout.log", "gpu001/rank3.log", "rank_3/stderr.log",
    ],
)  # fmt: skip
def test_the_rank_is_in_the_logs_name(name):
    text = gave_up(3, tag=False)
    assert own_rank(name, reduce(text.encode(), AT)) == 3
    _, sample = read({name: text})
    assert [row[12] for row in sample.data["watchdog"]["rows"]] == ["3"]
    assert sample.data["hits"][0]["prefix"] == "rank3" and sample.data["heard"] == [3]


def test_a_number_in_a_name_that_the_lines_contradict_is_no_rank():
    # log_0.txt of a node: its lines are of ranks 0 to 3.
    text = "".join(gave_up(rank) for rank in range(4))
    assert own_rank("log_0.txt", reduce(text.encode(), AT)) is None
    untagged = "".join(gave_up(rank, tag=False) for rank in range(4))
    assert own_rank("log_0.txt", reduce(untagged.encode(), AT)) is None
    _, sample = read({"log_0.txt": text})
    assert [row[12] for row in sample.data["watchdog"]["rows"]] == ["0+4"] and sample.data["heard"] == []


@pytest.mark.parametrize("name", ["job.log", "slurm-4711.out", "train.log", "epoch_3_of_9.log", "log.txt"])
def test_other_numbers_are_no_ranks(name):
    assert own_rank(name, reduce(gave_up(3, tag=False).encode(), AT)) is None


def test_of_torchelastics_folders_the_newest_attempt_counts():
    logs, sample = read(
        {"a/attempt_0/0/stderr.log": gave_up(0, seq=9, tag=False), "a/attempt_1/0/stderr.log": gave_up(0, tag=False)}
    )
    assert [row[4] for row in sample.data["watchdog"]["rows"]] == [78]
    assert any("attempts 0 to 0 are not used" in said for said in logs.said)


def test_torchelastics_folders_of_two_nodes_are_numbered_by_the_nodes_own_ranks():
    files = {f"{node}/run/attempt_0/0/stderr.log": gave_up(0, tag=False) for node in ("gpu001", "gpu002")}
    logs, sample = read(files)
    assert {row[12] for row in sample.data["watchdog"]["rows"]} == {""}  # whose it is nobody knows
    assert any("no global ranks" in said for said in logs.said)
    tagged = {f"gpu00{r}/run/attempt_0/0/stderr.log": gave_up(r) for r in (1, 2)}
    assert {row[12] for row in read(tagged)[1].data["watchdog"]["rows"]} == {"1", "2"}


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("gpu001.rank3.err", "gpu001"),
        ("node-a_rank_3.log", "node-a"),
        ("rank3.err", ""),
        ("log_rank3.txt", ""),
        ("job_rank3.log", ""),
    ],
)
def test_the_host_in_a_name_is_told(name, host):
    assert host_of(name) == host


def test_what_is_no_text_is_no_log():
    for raw in (b"\x80\x02]q\x00.", b"PK\x03\x04" + b"\0" * 40, b"", b"   \n", b'{"entries": [], "pg_config": {}}'):
        assert not is_text(raw)
    assert is_text(b"\x1b[31mstep: 1\x1b[0m\r\n") and is_text("schön".encode())


def test_a_text_without_a_known_line_is_left_and_its_rank_is_heard_all_the_same():
    logs, sample = read({"README.md": "how to run\n", "rank0.log": "epoch 0: nothing more\n", "rank1.log": gave_up(1)})
    assert dict(logs.left) == dict.fromkeys(
        ("README.md", "rank0.log"), "neither a dump nor a log with a line that is known"
    )
    assert sample.data["heard"] == [0, 1]
    assert read({"README.md": "how to run\n"})[1] is None


# ---------------------------------------------------------------- clocks


def test_one_log_alone_is_its_own_clock():
    _, sample = read({"job.log": gave_up(0, zone=KATHMANDU)})
    assert sample.data["zone"] == "utc" and begun(sample) == [pytest.approx(AT + KATHMANDU - 600, abs=1)]


@pytest.mark.parametrize("zone", [KATHMANDU, -8 * 3600.0, 9.5 * 3600, 0.0])
def test_a_logs_zone_is_laid_on_the_flight_records_clock_whatever_its_copys_time_says(zone):
    _, sample = read({"job.log": gave_up(0, zone=zone)}, opened(), mtime=AT + 3 * 86400)
    assert sample.data["zone"] == "utc" and sample.data["offset_s"] == zone
    assert begun(sample) == [pytest.approx(AT - 600, abs=1)]
    assert sample.data["hits"][0]["at"] == pytest.approx(AT, abs=1)


def test_a_log_that_no_flight_record_confirms_loses_its_times_and_keeps_its_lines():
    # 78 was never open in these records; the copy's time lies a whole number of hours away by chance.
    logs, sample = read({"job.log": gave_up(0, zone=3600.0)}, opened(seq=12), mtime=AT)
    assert sample.data["zone"] == "unknown" and begun(sample) == [None] and sample.data["newest_at"] is None
    assert [row[4] for row in sample.data["watchdog"]["rows"]] == [78]
    assert any("zone unknown" in said for said in logs.said)


def test_a_difference_that_is_no_zone_is_none():
    _, sample = read({"job.log": gave_up(0)}, opened(at=AT - 600 - 440.0))
    assert sample.data["zone"] == "unknown"


def test_logs_of_two_zones_are_laid_on_each_other_by_the_call_that_both_gave_up():
    files = {
        "rank0.err": gave_up(0, zone=KATHMANDU),
        "rank1.err": gave_up(1, zone=-3600.0),
        "rank2.err": gave_up(2, seq=5, zone=3600.0),
    }
    logs, sample = read(files)
    rows = {row[12]: row for row in sample.data["watchdog"]["rows"]}
    assert rows["0"][15] == pytest.approx(rows["1"][15], abs=1)
    assert rows["2"][15] is None and rows["2"][19] is False  # nothing ties it to the others
    assert any("rank2.err" in said for said in logs.said)


def test_a_line_without_a_year_is_of_the_year_of_the_whole_dates_beside_it_and_not_of_the_copys():
    new_year = float(calendar.timegm((2026, 12, 31, 23, 59, 30)))
    text = "[2026-12-31 23:50:00.000] iteration        7/  100 | elapsed time per iteration (ms): 500.0 | x |\n"
    _, sample = read({"job.log": text + gave_up(0, at=new_year)}, mtime=new_year + 400 * 86400.0)
    assert begun(sample) == [pytest.approx(new_year - 600, abs=1)]
    # E321 is the 21st of March: the month is not padded.
    march = float(calendar.timegm((2026, 3, 21, 2, 7, 8)))
    assert "[E321 02:07:08" in gave_up(0, at=march)
    assert begun(read({"job.log": gave_up(0, at=march)}, mtime=march + 60)[1]) == [pytest.approx(march - 600, abs=1)]


# ---------------------------------------------------------------- one sample


def test_only_the_lines_behind_the_last_start_of_each_log_are_told():
    start = "> initializing torch distributed ...\n"
    files = {"rank0.log": gave_up(0, seq=9) + start + gave_up(0), "rank1.log": gave_up(1)}
    _, sample = read(files)
    assert {(row[12], row[4]) for row in sample.data["watchdog"]["rows"]} == {("0", 78), ("1", 78)}
    lines = [hit["line_no"] for hit in sample.data["hits"]]
    assert lines == sorted(lines) and len(set(lines)) == len(lines)


def test_the_log_that_tells_the_steps_comes_last_so_that_no_other_log_ends_behind_its_steps():
    step = "[2026-11-29 02:50:00.000] iteration        7/  100 | elapsed time per iteration (ms): 500.0 | x |\n"
    _, sample = read({"rank0.log": step * 2 + gave_up(0), "rank1.log": gave_up(1)})
    assert sample.data["iterations"]["series"][-1][0] == 7
    other = next(hit for hit in sample.data["hits"] if hit["prefix"] == "rank1")
    assert other["line_no"] < sample.data["iterations"]["last_line_no"]


def test_a_log_that_is_larger_than_what_is_read_is_read_from_its_end():
    text = "x" * 99 + "\n"
    _, sample = read({"job.log": text * 90_000 + gave_up(0)})
    assert sample.data["truncated_head"] is True and [row[4] for row in sample.data["watchdog"]["rows"]] == [78]
