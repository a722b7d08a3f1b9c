"""Lines without year and zone are placed by the node's own zone, whatever it is and however its clock is off."""

from __future__ import annotations

import contextlib
import os
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from triage.probes._kernel_lines import split_line

DAY_S = 86400.0
# POSIX zones, so that no time zone database is needed: offset west of Greenwich, and rules of summer time.
ZONES = [
    "UTC0",
    "IST-5:30",
    "NST3:30NDT,M3.2.0,M11.1.0",
    "CET-1CEST,M3.5.0,M10.5.0/3",
    "NZST-12NZDT,M9.5.0,M4.1.0/3",
    "HST10",
]
WORDS = "mlx5_core 0000:17:00.0 ens1f0np0: Link down"
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


@contextlib.contextmanager
def zone(name):
    before = os.environ.get("TZ")
    os.environ["TZ"] = name
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


def syslog(at):
    then = time.localtime(at)
    return f"{MONTHS[then.tm_mon - 1]} {then.tm_mday:2d} {time.strftime('%H:%M:%S', then)} gpu002 kernel: {WORDS}"


def placed(line, now):
    return split_line(line, now, 0.0, local=True)[0]


@pytest.mark.parametrize("name", ZONES)
@settings(max_examples=60, deadline=None)
@given(now=st.floats(1.7e9, 1.9e9), ago=st.floats(0, 360 * DAY_S))
@example(now=1767225600.0 + 60, ago=120.0)  # a minute after New Year: the line is of last year
def test_syslog_is_placed_to_the_second_in_any_zone_and_over_new_year(name, now, ago):
    with zone(name):
        at = placed(syslog(now - ago), now)
        again = placed(syslog(at), now)
    # In autumn an hour comes twice, and nothing in the line tells which.
    assert at is not None and min(abs(at - (now - ago)), abs(abs(at - (now - ago)) - 3600)) <= 1.0
    assert abs(again - at) <= 3600


@settings(max_examples=60, deadline=None)
@given(now=st.floats(1.7e9, 1.9e9), ago=st.floats(0, 30 * DAY_S), skew=st.floats(-900, 900))
def test_a_clock_that_is_off_dates_lines_and_now_alike_so_their_distance_is_right(now, ago, skew):
    """The node's clock stamps the lines and reads "now": its error is taken out by its measured offset, once."""
    with zone("UTC0"):
        at = placed(syslog(now + skew - ago), now + skew)
    assert abs((now + skew - at) - ago) <= 1.0


@settings(max_examples=60, deadline=None)
@given(at=st.floats(1.6e9, 1.9e9), minutes=st.integers(-14 * 4, 14 * 4).map(lambda quarter: quarter * 15))
def test_a_date_with_its_zone_is_placed_by_it_and_not_by_ours(at, minutes):
    then = time.gmtime(int(at) + minutes * 60)
    sign = "+" if minutes >= 0 else "-"
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", then) + f",040034{sign}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
    for name in ZONES[:3]:
        with zone(name):
            found = split_line(f"{stamp} {WORDS}", at + 100, 0.0, local=True)
        assert found[0] == pytest.approx(int(at) + 0.040034, abs=0.001)
