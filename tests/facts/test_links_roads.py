"""What still tells of a flap when a source is missing, and what lines without a date of their own are worth."""

import pytest
from written_evidence import NOW
from written_ports import DEVICE, STALL, Roce, faces, long_outage, sources, where

A = [("gpu002", DEVICE)]


# ---------------------------------------------------------------- roads that are missing


def test_with_the_kernel_log_unreadable_nccls_own_events_are_one_road():
    made = long_outage()
    made.kernel = dict.fromkeys(made.kernel, False)
    flapped, tied, outlasted = made.facts("links.flapped_in_onset", "links.tied", "links.outlasted")
    assert where(flapped) == where(tied) == A and outlasted.value is True
    assert sources(flapped) == sources(tied) == sources(outlasted) == ["joblog"]


def test_nccl_dates_its_lines_by_the_clock_of_its_own_host():
    made = Roce()
    made.clock["gpu002"] = 30.0
    made.kernel = dict.fromkeys(made.kernel, False)
    made.event("gpu002", "error", STALL - 0.5).gave_up("gpu002", "10.88.0.3", STALL - 1.4)
    assert where(made.fact("links.tied")) == A


def test_an_event_that_alone_dates_a_flap_does_not_tie_it_too():
    made = Roce().event("gpu002", "error", STALL - 0.5).event("gpu002", "active", STALL - 4.5)
    made.kernel = dict.fromkeys(made.kernel, False)
    flapped, tied = made.facts("links.flapped_in_onset", "links.tied")
    assert where(flapped) == A and tied.value == 0


def test_with_the_job_log_unreadable_the_kernel_dates_the_flap_and_nothing_ties_it():
    made = Roce().outage("gpu002", STALL - 0.5, 4.0)
    made.log = False
    flapped, tied, named = made.facts("links.flapped_in_onset", "links.tied", "links.named")
    assert where(flapped) == A and sources(flapped) == ["kernel"]
    assert not tied.known and not named.known


def test_without_any_kernel_log_no_flap_is_not_known_to_be_none():
    made = Roce()
    made.kernel["gpu003"] = False
    found = made.fact("links.flapped_in_onset")
    assert not found.known and "gpu003" in found.reason
    assert Roce().fact("links.flapped_in_onset").value == 0


def test_a_kernel_log_that_does_not_reach_back_is_not_known_to_hold_nothing():
    made = Roce()
    made.covered = False
    assert not made.fact("links.flapped_in_onset").known


def test_infiniband_of_which_the_kernel_logs_nothing_is_not_known_to_have_held():
    made = Roce()
    for name in made.world.names:
        device = [faces(layer="InfiniBand")[0]]
        made.shows(name, device, device)
    found = made.fact("links.flapped_in_onset")
    assert not found.known and "logs nothing" in found.reason
    made.event("gpu002", "error", STALL - 0.5).gave_up("gpu001", "10.88.0.2", STALL - 1.4)
    assert where(made.fact("links.tied")) == A


def test_with_its_ports_unreadable_the_two_names_of_a_port_are_one_by_the_time_of_their_words():
    made = long_outage()
    made.blind = {"nic"}
    flapped, tied = made.facts("links.flapped_in_onset", "links.tied")
    assert where(flapped) == where(tied) == A and sources(tied) == ["joblog", "kernel"]


def test_with_its_ports_unreadable_a_netdev_that_flapped_at_another_time_is_another_port():
    made = Roce().outage("gpu002", STALL - 0.5, 4.0)
    made.event("gpu002", "error", STALL + 1800).event("gpu002", "active", STALL + 1790)
    made.gave_up("gpu002", "10.88.0.3", STALL - 1.4)
    made.blind = {"nic"}
    flapped, tied, survived = made.facts("links.flapped_in_onset", "links.tied", "links.survived")
    assert not flapped.known and not tied.known
    assert where(survived) == A  # the event of the RDMA device is another loss than the netdev's


def test_with_the_ranks_hidden_nccls_lines_still_say_which_port_is_the_jobs():
    made = long_outage()
    made.blind = {"ranks"}
    tied, outlasted = made.facts("links.tied", "links.outlasted")
    assert where(tied) == A and outlasted.value is True


def test_an_event_that_the_whole_kernel_log_does_not_know_of_is_contradicted():
    made = Roce().event("gpu002", "error", STALL - 0.5).gave_up("gpu001", "10.88.0.2", STALL - 1.4)
    flapped, tied = made.facts("links.flapped_in_onset", "links.tied")
    assert where(tied) == A and flapped.contradicted_by == tied.contradicted_by == ("the kernel log",)


# ---------------------------------------------------------------- lines without a date of their own


def undated(made, changed):
    made.changed = changed
    made.event("gpu002", "error", STALL, dated=False).gave_up("gpu001", "10.88.0.2", STALL, dated=False)
    return made


def test_undated_lines_at_the_end_of_a_log_that_nobody_wrote_to_since_are_of_the_stalls_beginning():
    made = undated(Roce(), changed=STALL - 2)
    made.kernel = dict.fromkeys(made.kernel, False)
    assert where(made.fact("links.tied")) == A


def test_undated_lines_in_a_log_that_was_written_to_since_date_nothing_by_themselves():
    made = undated(Roce(), changed=100)
    made.kernel = dict.fromkeys(made.kernel, False)
    flapped, tied, named = made.facts("links.flapped_in_onset", "links.tied", "links.named")
    assert not flapped.known and not tied.known and named.value == 0


def test_a_dated_line_below_dates_undated_ones_above_it():
    made = undated(Roce(), changed=100)
    made.kernel = dict.fromkeys(made.kernel, False)
    made.hits.append({"id": "watchdog_timeout", "at": NOW - STALL + 3, "last_at": NOW - STALL + 3, "dated": True, "count": 1,
                      "line_no": 900, "prefix": "", "text": "", "groups": {}})  # fmt: skip
    assert where(made.fact("links.tied")) == A


def test_undated_lines_are_dated_by_the_only_loss_that_the_kernel_knows():
    made = undated(Roce().outage("gpu002", STALL - 0.5, 4.0), changed=100)
    tied = made.fact("links.tied")
    assert where(tied) == A and sources(tied) == ["joblog", "kernel"]


def test_undated_lines_may_be_of_the_reseating_as_well_and_then_name_nobody():
    made = Roce().outage("gpu002", STALL - 0.5, 4.0).outage("gpu002", 200, 20.0)
    undated(made, changed=100)
    flapped, named, tied = made.facts("links.flapped_in_onset", "links.named", "links.tied")
    assert where(flapped) == A and sources(flapped) == ["kernel"]
    assert named.value == 0 and tied.value == 0


@pytest.mark.parametrize(("off", "tied"), [(0.0, 1), (30.0, 0)])
def test_a_date_that_somebody_else_wrote_before_the_line_is_by_the_log_or_by_the_node(off, tied):
    # A launcher's or a collector's stamp: whose clock it is nobody knows, so both readings must fit.
    made = Roce()
    made.clock["gpu002"] = off
    made.outage("gpu002", STALL - 0.5, 4.0).gave_up("gpu002", "10.88.0.3", STALL - 1.4, own=False)
    assert made.fact("links.tied").value == tied
