"""The table of counters, and what one says between two looks: wraps, clamps, resets."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from triage.errors import ConfigError
from triage.readers.counters import Counter, grown, load, read, reset_of

WRAPS = Counter("q", "loss", "peer", 32, "wraps")
STICKS = Counter("pma", "flap", "", 8, "sticks")
PLAIN = Counter("cnp", "congestion_rx")


# ---------------------------------------------------------------- the table


@pytest.mark.parametrize(
    ("name", "driver", "ours", "role"),
    [
        ("local_ack_timeout_err", "mlx5_core", "local_ack_timeout_err", "loss"),
        ("to_retransmits", "bnxt_re", "local_ack_timeout_err", "loss"),
        ("RTO", "irdma", "local_ack_timeout_err", "loss"),
        ("Nak Sequence Error", "irdma", "packet_seq_err", "loss"),
        ("np_cnp_pkts", "bnxt_re", "np_cnp_sent", "congestion_rx"),
        ("tx_cnp_pkts", "bnxt_en", "np_cnp_sent", "congestion_rx"),
        ("rx_cnp_pkts", "bnxt_re", "rp_cnp_handled", "congestion_tx"),
        ("cnpHandled", "irdma", "rp_cnp_handled", "congestion_tx"),
        ("rx_prio3_pause", "mlx5_core", "rx_pause", "paused"),
        ("rx_prio3_pause_duration", "mlx5_core", "rx_pause_us", "paused"),
        ("tx_pfc_ena_frames_pri7", "bnxt_en", "tx_pause", "pausing"),
        ("tx_priority_0_xoff.nic", "ice", "tx_pause", "pausing"),
        ("hni_pause_recv_5", "cxi_ss1", "rx_pause", "paused"),
        ("rh_sct_timeouts", "cxi_ss1", "sct_timeouts", "flap"),
        ("unresponsive_remote_events", "efa", "efa_timeouts", "loss"),
        ("port_xmit_wait", "mlx5_core", "port_xmit_wait", "congestion_tx"),
    ],
)
def test_each_generation_of_a_driver_is_understood(name, driver, ours, role):
    found = load().of(name, driver)
    assert found is not None and (found.name, found.role) == (ours, role)


def test_a_name_that_means_other_things_elsewhere_is_read_for_its_driver_only():
    assert load().of("rx_cnp_pkts", "mlx5_core") is None and load().of("rx_cnp_pkts", None) is None


def test_names_of_single_queues_and_unknown_ones_have_no_meaning():
    for name in (
        "rx3_packets",
        "ch12_events",
        "rx_prioX_pause",
        "rx_prio12345_pause",
        "",
        "x" * 5000,
        "rx_prio3_pause\n",
    ):
        assert load().of(name, "mlx5_core") is None, name


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"role": "lost"}, "none of flap"),
        ({"role": "loss"}, "loss has a side"),
        ({"side": "own"}, "side belongs to loss"),
        ({"ends": "wraps"}, "has a width"),
        ({"width": 65}, "width"),
        ({"names": []}, "names is no list"),
        ({"names": ["(a+)+"]}, "names is no list"),
        ({"per_s": 0}, "per_s"),
        ({"colour": "red"}, "unknown key"),
        ({"says": ""}, "says is missing"),
        ({"noise": "yes"}, "noise"),
    ],
)
def test_a_wrong_entry_is_named(entry, problem):
    good = {"name": "x", "role": "flap", "names": ["x"], "says": "it happens"}
    assert read({"version": 1, "counters": [good]})[1] == []
    problems = read({"version": 1, "counters": [{**good, **entry}]})[1]
    assert any(problem in told for told in problems), problems


def test_a_name_may_not_have_two_meanings_for_one_driver():
    rows = [{"name": n, "role": "flap", "names": ["x"], "says": "s"} for n in "ab"]
    assert "has a meaning already" in read({"version": 1, "counters": rows})[1][0]
    rows[0]["drivers"], rows[1]["drivers"] = ["one"], ["two"]
    assert read({"version": 1, "counters": rows})[1] == []


def test_a_file_that_is_no_table_is_an_error_with_its_name(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("counters: [1]\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        load(path)


# ---------------------------------------------------------------- two looks


def test_a_narrow_counter_at_its_maximum_is_stuck_and_above_it_is_wider_firmware():
    assert grown(STICKS, 254, 255).why == "stuck" and grown(STICKS, 255, 255).why == "stuck"
    assert grown(STICKS, 300, 302).value == 2


@given(before=st.integers(0, 2**32 - 1), events=st.integers(0, 2**32 // 16 - 1))
def test_a_wrapping_counter_never_loses_what_happened(before, events):
    assert grown(WRAPS, before, (before + events) % 2**32).value == events


@given(before=st.integers(0, 2**70), after=st.integers(0, 2**70))
def test_what_a_counter_says_is_never_negative_and_never_more_than_its_range(before, after):
    for counter in (WRAPS, STICKS, PLAIN):
        found = grown(counter, before, after)
        assert (found.value is None) == bool(found.why)
        if found.value is not None:
            assert found.value >= 0 and (after >= before or found.value <= counter.most)


@given(before=st.integers(0, 254), events=st.integers(0, 600))
def test_a_clamped_counter_says_the_truth_or_nothing(before, events):
    found = grown(STICKS, before, min(255, before + events))
    assert found.value in (events, None) and (found.value == events or before + events >= 255)


@given(before=st.integers(1, 2**63), after=st.integers(0, 2**63))
def test_a_smaller_value_of_a_plain_counter_is_a_reset(before, after):
    assume(after < before)
    assert grown(PLAIN, before, after).why == "reset"


@given(
    before=st.lists(st.integers(1, 2**31), min_size=2, max_size=6),
    since=st.lists(st.integers(0, 10**6), min_size=6, max_size=6),
)
def test_a_reset_of_a_port_is_seen_by_its_other_counters(before, since):
    after = since[: len(before)]
    rows = [(PLAIN, b, a) for b, a in zip(before, after, strict=True)]
    assert reset_of(rows) == any(a < b for b, a in zip(before, after, strict=True))


def test_absent_is_unknown_and_not_zero():
    assert grown(PLAIN, None, 5).why == "absent" and grown(PLAIN, 5, None).why == "absent"
    assert not reset_of([(PLAIN, 7, None), (PLAIN, None, 3)])
