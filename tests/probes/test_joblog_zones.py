"""Which zone are a log's times of? Quarter hours, summer time, the turn of the year, two writers in one file."""

from __future__ import annotations

import calendar
import time

import pytest
from triage.probes import joblog

from triage.readers.signatures import for_probe

SIGNATURES = for_probe("joblog")


def utc(*when):
    return float(calendar.timegm((*when, 0, 0, 0, 0)[:6]))


def step(number, at, zone=0.0, form="%Y-%m-%d %H:%M:%S"):
    return f" [{time.strftime(form, time.gmtime(at + zone))}] iteration {number:8d}/  100000 | elapsed time per iteration (ms): 500.0 | x |\n"


def reduce(text, **more):
    return joblog.reduce_log(text.encode(), SIGNATURES, **more)


@pytest.mark.parametrize("zone", [5.75 * 3600, 12.75 * 3600, -9.5 * 3600, 14 * 3600.0, -12 * 3600.0])
def test_zones_of_quarter_hours_are_measured(zone):
    end = utc(2026, 11, 30, 21, 0, 1)
    told = reduce(step(1, end - 1, zone) + step(2, end, zone), mtime=end + 0.4)
    assert (told["zone"], told["offset_s"], told["newest_at"]) == ("utc", zone, end)
    assert [row[1] for row in told["iterations"]["series"]] == [end - 1, end]


def test_a_copys_time_that_is_no_zone_away_tells_none():
    end = utc(2026, 11, 30, 21, 0, 1)
    assert reduce(step(1, end), mtime=end + 440.0)["zone"] == "unknown"
    assert reduce(step(1, end), mtime=end + 15 * 3600.0)["zone"] == "unknown"  # no zone is so far away


def test_the_turn_of_the_year_is_none_of_the_log():
    end = utc(2027, 1, 1, 0, 0, 5)
    lines = "E1231 23:59:58.034000 4240 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 4242) of binary: x\n"
    lines += "[rank0]:[E11 00:00:05.412 ProcessGroupNCCL.cpp:632] [PG ID 0 PG GUID 0 Rank 0] First PG on this rank to signal dumping.\n"
    told = reduce(lines, mtime=end)
    assert told["hits"][0]["at"] == pytest.approx(utc(2026, 12, 31, 23, 59, 58) + 0.034)
    # "E11" is no date that anybody prints (1 January is E101): it must not be read as one.
    assert told["hits"][1]["dated"] is False
    first = reduce(lines.replace("E11 ", "E101 "), mtime=end)
    assert first["hits"][1]["at"] == pytest.approx(utc(2027, 1, 1, 0, 0, 5) + 0.412)


@pytest.mark.parametrize(
    ("stamp", "month", "day"),
    [
        ("E321", 3, 21),
        ("E0321", 3, 21),
        ("E111", 1, 11),
        ("E1101", 11, 1),
        ("E129", 1, 29),
        ("E1129", 11, 29),
        ("E909", 9, 9),
    ],
)
def test_the_month_of_a_c10d_line_is_not_padded_and_the_day_is(stamp, month, day):
    found = joblog.stamp_of(f"[rank0]:[{stamp} 02:07:08.408271257 ProcessGroupNCCL.cpp:607]", utc(2026, 12, 1))
    assert found[0] == pytest.approx(utc(2026, month, day, 2, 7, 8) + 0.408, abs=1e-3)


def test_the_29th_of_february_stands_in_a_leap_year():
    found = joblog.stamp_of("[rank0]:[E229 02:07:08.4 ProcessGroupNCCL.cpp:607]", utc(2028, 3, 1))
    assert found[0] == pytest.approx(utc(2028, 2, 29, 2, 7, 8) + 0.4)


def test_when_summer_time_ends_the_steps_before_it_lose_their_times_and_are_not_reckoned_with():
    # 02:59:50 summer time, then 02:00:00 winter time: a step of minus an hour.
    change = utc(2026, 10, 25, 1, 0, 0)
    lines = "".join(step(n, change - 30 + 10 * n, 7200.0) for n in range(3))
    lines += "".join(step(n, change - 30 + 10 * n, 3600.0) for n in range(3, 6))
    told = reduce(lines, mtime=change + 20.3)
    assert told["offset_s"] == 3600
    assert [row[1] for row in told["iterations"]["series"]] == [None] * 3 + [change, change + 10, change + 20]


def test_steps_of_an_attempt_before_keep_their_times_when_a_later_one_begins_lower():
    # The step number falls: that is a restart and not a clock.
    at = utc(2026, 11, 30, 12)
    told = reduce(step(90, at) + step(10, at - 4000), mtime=at)
    assert [row[1] for row in told["iterations"]["series"]] == [at, at - 4000]


def test_lines_with_a_zone_and_lines_without_one_are_one_clock_where_they_stand_side_by_side():
    # A collector's stamp before some lines, the job's own local time (UTC+8) in the others.
    at = utc(2026, 11, 24, 3, 20, 21)
    plain = step(7, at + 1, 8 * 3600.0)
    text = "2026-11-24T03:20:21.001125857Z gpu001 NCCL INFO misc/socket.cc:64 -> 6\n" + plain
    told = reduce(text, mtime=at + 5 * 86400)
    assert told["zone"] == "utc" and told["iterations"]["series"][0][1] == at + 1


def test_a_zone_that_only_some_lines_tell_says_nothing_of_the_others():
    at = utc(2026, 11, 24, 3, 20, 21)
    text = "2026-11-24T03:20:21Z gpu001 NCCL INFO misc/socket.cc:64 -> 6\n" + step(7, at + 400, 8 * 3600.0)
    assert reduce(text, mtime=at + 5 * 86400)["zone"] == "unknown"
    both = step(7, at, 8 * 3600.0) + "2026-11-24T03:20:22Z x\n" + step(8, at + 2, 9 * 3600.0)
    assert reduce(both, mtime=at + 5 * 86400)["zone"] == "unknown"


def test_a_zone_that_was_told_is_not_measured_again():
    at = utc(2026, 11, 24, 3, 20, 21)
    text = "2026-11-24T03:20:21Z x\n" + step(7, at, 3600.0)
    told = reduce(text, mtime=at, offset_s=3600.0)
    assert told["zone"] == "utc" and told["iterations"]["series"][0][1] == at
