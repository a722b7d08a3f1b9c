"""How long the transport retries: a range, of the ranks' own values, as NCCL reads them (notes/network.md 4.2)."""

import pytest
from written_dumps import add_dumps, everyone
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


# ---------------------------------------------------------------- the release's own default


def released(*releases, env=None, by="log"):
    """The budget of a job whose library is of these releases."""
    made = Roce()
    for rank in range(8):
        made.environments[rank] = env or {"NCCL_DEBUG": "VERSION"}
    for release in releases:
        made.hit("nccl_version", "gpu001", 6000, "", {"version": release}, own=False)
        made.hits[-1]["text"] = f"NCCL version {release}+cuda12.9"
    if by == "dumps":
        made.hits.clear()
        w = add_dumps(made.made(), everyone(["0 1 all_reduce", "0 2 all_reduce open"]), lib=releases[0])
        return w.evidence().derive(budget)
    return made.made().evidence().derive(budget)


@pytest.mark.parametrize(
    ("release", "exponent"),
    [
        ("2.3.5", 14),
        ("2.13.4", 14),
        ("2.14.3", 18),
        ("2.22.3", 18),
        ("2.23.4", 20),
        ("2.30.7", 20),
        ("2.100.1", 20),
    ],
)
def test_a_value_that_nobody_set_is_the_default_of_the_jobs_own_release(release, exponent):
    found, told = released(release), limits({"NCCL_IB_TIMEOUT": str(exponent)})
    assert (round(found.least, 3), round(found.worst, 3)) == told
    assert release in found.text and f"({exponent})" in found.text


def test_the_release_may_stand_in_the_flight_records_alone():
    assert released("2.21.5", by="dumps").least == pytest.approx(7.516, abs=0.001)


def test_two_releases_in_one_job_widen_the_range():
    found = released("2.21.5", "2.27.5")
    assert (round(found.least, 3), round(found.worst, 3)) == (7.516, 120.259)


def test_a_value_that_is_set_needs_no_release():
    found = released("2.13.4", env={"NCCL_IB_TIMEOUT": "22"})
    assert round(found.least, 3) == 120.259 and "2.13.4" not in found.text


def test_a_file_of_nccl_counts_where_the_environment_says_nothing():
    made = Roce(env={"NCCL_IB_TIMEOUT": ""})
    for rank in range(8):
        made.environments[rank] = {"NCCL_DEBUG": "WARN"}
        for look in "AB":
            made.world.change[(rank, look)] = {"conf": {"NCCL_IB_TIMEOUT": "22", "RANK": "9"}}
    found = made.made().evidence().derive(budget)
    assert round(found.least, 3) == 120.259 and found.sure


def test_one_try_bounds_how_long_after_the_link_is_back_it_must_be_resent():
    assert Roce(env={"NCCL_IB_TIMEOUT": "20"}).made().evidence().derive(budget).a_try == pytest.approx(17.18, abs=0.01)
