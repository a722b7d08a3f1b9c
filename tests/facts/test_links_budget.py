"""How long the transport retries: a range, of the ranks' own values, as NCCL reads them (notes/network.md 4.2)."""

import pytest
from written_ports import STALL, Roce

from triage.facts.budget import budget


def limits(*environments):
    made = Roce()
    for rank in range(8):
        made.environments[rank] = environments[rank % len(environments)]
    found = made.made().evidence().derive(budget)
    return round(found.least, 3), round(found.worst, 3)


@pytest.mark.parametrize(
    ("timeout", "least", "worst"),
    [
        ("14", 0.470, 3.5),  # the table says 1.9 at the worst, but no card gives up a try before its floor
        ("16", 1.879, 7.516),
        ("18", 7.516, 30.065),
        ("20", 30.065, 120.259),
        ("22", 120.259, 481.036),
        ("23", 240.518, 962.073),
        ("0x0e", 0.470, 3.5),
        ("024", 30.065, 120.259),  # octal, as strtoll reads it
    ],
)
def test_the_range_of_a_time_out(timeout, least, worst):
    assert limits({"NCCL_IB_TIMEOUT": timeout}) == (least, worst)


def test_without_a_time_out_it_is_the_default_of_older_and_newer_releases():
    assert limits({"NCCL_DEBUG": "WARN"}) == (7.5, 120.0)


@pytest.mark.parametrize("timeout", ["99", "32", "-1", "300", " "])
def test_a_time_out_that_no_card_can_be_told_is_the_default(timeout):
    assert limits({"NCCL_IB_TIMEOUT": timeout, "NCCL_DEBUG": "WARN"}) == (7.5, 120.0)


@pytest.mark.parametrize("timeout", ["0", "00", "never"])
def test_a_time_out_of_nothing_retries_for_ever(timeout):
    # NCCL takes for 0 what is no number.
    made = Roce(env={"NCCL_IB_TIMEOUT": timeout})
    found = made.fact("links.budget_s")
    assert not found.known and "for ever" in found.reason


def test_ranks_that_export_different_values_are_taken_at_their_longest_and_their_shortest():
    assert limits({"NCCL_IB_TIMEOUT": "14"}, {"NCCL_IB_TIMEOUT": "20"}) == (0.470, 120.259)
    assert limits({"NCCL_IB_TIMEOUT": "14"}, {"NCCL_DEBUG": "WARN"}) == (0.470, 120.0)


def test_one_rank_that_retries_for_ever_is_enough_to_outlast_everything():
    assert limits({"NCCL_IB_TIMEOUT": "14"}, {"NCCL_IB_TIMEOUT": "0"}) == (0.470, float("inf"))


@pytest.mark.parametrize(("retries", "tries"), [("7", 7), ("15", 7), ("1", 1), ("0", 1), ("3", 3), ("-2", 7), ("", 7)])
def test_retries_are_a_field_of_three_bits(retries, tries):
    least, worst = limits({"NCCL_IB_TIMEOUT": "20", "NCCL_IB_RETRY_CNT": retries})
    assert (least, worst) == (round(tries * 4.096e-6 * 2**20, 3), round(tries * 4.096e-6 * 2**22, 3))


def test_the_fact_is_the_worst_case_and_says_the_range():
    found = Roce(env={"NCCL_IB_TIMEOUT": "20"}).fact("links.budget_s")
    assert found.value == pytest.approx(120.26, abs=0.01)
    assert found.text == "NCCL_IB_TIMEOUT=20: 30.1s to 120s"


def test_where_no_environment_was_seen_the_default_proves_nothing_of_an_outage():
    made = Roce().outage("gpu002", STALL - 0.5, 0.2).gave_up("gpu001", "10.88.0.2", STALL - 1.4)
    made.blind = {"ranks"}
    found, budget_s = made.facts("links.outlasted", "links.budget_s")
    assert found.value is True and not found.contradicted_by
    assert budget_s.value == 120.0 and "no rank's environment was seen" in budget_s.text
