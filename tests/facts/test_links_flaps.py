"""A port lost its link and has it again: did that cause the stall? Only by its time, and as the job's own port."""

import pytest
from written_ports import DEVICE, MANAGEMENT, STALL, Roce, faces, long_outage, sources, where

A = [("gpu002", DEVICE)]


def test_a_cut_longer_than_the_retries_names_exactly_that_port_by_two_roads():
    flapped, tied, outlasted, down = long_outage().facts(
        "links.flapped_in_onset", "links.tied", "links.outlasted", "links.down_now"
    )
    assert where(flapped) == where(tied) == A
    assert sources(flapped) == sources(tied) == ["joblog", "kernel"]
    assert outlasted.value is True and sources(outlasted) == ["joblog", "kernel"]
    assert down.value == 0 and not tied.contradicted_by and not outlasted.contradicted_by
    assert "4.0s" in tied.parts[0].why and "0.47s to 3.5s" in outlasted.text


def test_the_port_that_lost_its_link_does_not_accuse_the_peer_behind_it():
    named = long_outage().fact("links.named")
    assert ("gpu002", DEVICE) in where(named) and "gpu003" not in [part.node for part in named.parts]


def test_a_cut_shorter_than_the_retries_is_a_finding_of_a_job_that_goes_on():
    made = Roce(last_ago=0.5, moving=True).outage("gpu002", 20.0, 0.3)
    survived, flapped, tied = made.facts("links.survived", "links.flapped_in_onset", "links.tied")
    assert where(survived) == A and "0.3s" in survived.parts[0].why and sources(survived) == ["kernel"]
    assert not flapped.known and not tied.known


def test_the_finding_of_a_survived_cut_counts_all_that_were():
    made = Roce(last_ago=0.5, moving=True).outage("gpu002", 900.0, 0.2).outage("gpu002", 20.0, 0.3)
    assert "2 times" in made.fact("links.survived").parts[0].why


# ---------------------------------------------------------------- when


def test_a_flap_of_an_hour_before_the_stall_is_survived_and_no_cause():
    made = Roce().outage("gpu002", 4000, 2.0).gave_up("gpu001", "10.88.0.2", STALL - 1)
    flapped, tied, survived = made.facts("links.flapped_in_onset", "links.tied", "links.survived")
    assert (flapped.value, tied.value, where(survived)) == (0, 0, A)


def test_a_flap_of_last_month_is_not_of_this_attempt():
    made = Roce().outage("gpu002", 30 * 86400, 2.0).gave_up("gpu001", "10.88.0.2", STALL - 1)
    flapped, tied, survived = made.facts("links.flapped_in_onset", "links.tied", "links.survived")
    assert (flapped.value, tied.value, survived.value) == (0, 0, 0)


def test_an_event_that_also_happened_before_the_attempt_counts_only_what_is_of_the_attempt():
    made = Roce().says("gpu002", "link_down", 9000, last_ago=3000, count=3, times=[9000, 8000, 3000])
    survived = made.fact("links.survived")
    assert where(survived) == A and "times" not in survived.parts[0].why


def test_a_cable_that_was_reseated_after_the_stall_is_a_consequence():
    made = Roce().outage("gpu002", 200, 20.0).event("gpu002", "error", 200).gave_up("gpu002", "10.88.0.3", 190)
    flapped, tied, named, survived = made.facts("links.flapped_in_onset", "links.tied", "links.named", "links.survived")
    assert (flapped.value, tied.value, named.value) == (0, 0, 0)
    assert where(survived) == A and "consequence" in survived.parts[0].why


def test_whole_steps_after_the_link_was_back_prove_that_the_job_survived_it():
    # 6 s before the last step and back for 5: inside the rule's window of 8.5 s, and yet five steps were made since.
    made = Roce().outage("gpu002", STALL + 6, 1.0).gave_up("gpu001", "10.88.0.2", STALL - 1)
    flapped, survived = made.facts("links.flapped_in_onset", "links.survived")
    assert flapped.value == 0 and where(survived) == A


def test_a_loss_that_began_just_before_the_last_step_and_held_is_of_the_onset():
    assert where(Roce().outage("gpu002", STALL + 6, 9.0).fact("links.flapped_in_onset")) == A


def test_a_port_that_flaps_all_day_did_so_at_the_stall_too_if_the_dates_say_so():
    told = Roce().says("gpu002", "link_down", 3000, count=40, last_ago=100, times=[3000, 900, STALL - 1, 100])
    told.gave_up("gpu001", "10.88.0.2", STALL - 2)
    assert where(told.fact("links.tied")) == A
    untold = Roce().says("gpu002", "link_down", 3000, count=40, last_ago=100)
    untold.gave_up("gpu001", "10.88.0.2", STALL - 2)
    found = untold.fact("links.flapped_in_onset")
    assert not found.known and "not all of the dates" in found.reason


@pytest.mark.parametrize("off", [30.0, -30.0])
def test_a_clock_that_is_half_a_minute_off_moves_nothing(off):
    made = Roce()
    made.clock["gpu002"] = off
    made.outage("gpu002", STALL - 0.5, 4.0).event("gpu002", "error", STALL - 0.5)
    made.gave_up("gpu002", "10.88.0.3", STALL - 1.4)
    tied = made.fact("links.tied")
    assert where(tied) == A and sources(tied) == ["joblog", "kernel"]


@pytest.mark.parametrize("off", [30.0, -30.0])
def test_a_clock_that_is_half_a_minute_off_does_not_move_an_innocent_flap_to_the_stall(off):
    made = Roce()
    made.clock["gpu002"] = off
    made.outage("gpu002", STALL - 0.5 - off, 2.0).gave_up("gpu001", "10.88.0.2", STALL - 1.4)
    assert made.fact("links.tied").value == 0


def test_without_a_dated_sign_of_life_nothing_is_near_the_onset():
    made = long_outage()
    made.log = False
    w = made.made()
    w.samples = [s for s in w.samples if s.probe != "steps"]
    found = w.fact("links.flapped_in_onset")
    assert not found.known and "when its stall began" in found.reason
    assert not w.fact("links.tied").known and not w.fact("links.outlasted").known


# ---------------------------------------------------------------- whose


def test_a_flap_of_a_port_that_the_job_does_not_use_is_a_finding_and_never_tied():
    made = Roce().outage("gpu002", STALL - 0.5, 4.0, name="ens9f1np1").gave_up("gpu001", "10.88.0.2", STALL - 1)
    spare = faces("mlx5_7", "ens9f1np1")
    made.shows("gpu002", [*faces(), *spare, MANAGEMENT], [*faces(), *spare, MANAGEMENT])
    flapped, tied, other = made.facts("links.flapped_in_onset", "links.tied", "links.other_down")
    assert (flapped.value, tied.value) == (0, 0)
    assert where(other) == [("gpu002", "ens9f1np1")] and "not the job's" in other.parts[0].why
    assert sources(other) == ["kernel"]


def test_the_management_port_only_sets_connections_up_and_explains_no_stall():
    made = Roce(env={"NCCL_SOCKET_IFNAME": "eno1"}).outage("gpu002", STALL - 0.5, 4.0, name="eno1")
    made.gave_up("gpu001", "10.88.0.2", STALL - 1)
    flapped, other = made.facts("links.flapped_in_onset", "links.other_down")
    assert flapped.value == 0 and where(other) == [("gpu002", "eno1")] and "sets up" in other.parts[0].why


def test_two_ports_flapped_and_the_transport_named_one():
    made = Roce().outage("gpu002", STALL - 0.5, 4.0).outage("gpu004", STALL - 0.7, 4.0)
    made.gave_up("gpu001", "10.88.0.2", STALL - 1.4)
    flapped, tied = made.facts("links.flapped_in_onset", "links.tied")
    assert where(flapped) == [*A, ("gpu004", DEVICE)] and where(tied) == A


def two_ports(made, node="gpu002"):
    both = [*faces(), *faces("mlx5_1", "ens2f0np0")]
    made.env |= {"NCCL_IB_HCA": "mlx5_0,mlx5_1"}
    return made.shows(node, both, both)


def test_of_two_ports_of_a_node_the_one_that_flapped_is_named():
    made = two_ports(Roce()).outage("gpu002", STALL - 0.5, 4.0, name="ens2f0np0")
    made.gave_up("gpu002", "10.88.0.3", STALL - 1.4, device="mlx5_1")
    assert where(made.fact("links.tied")) == [("gpu002", "mlx5_1")]


def test_a_node_whose_other_port_gave_up_ties_nothing_to_the_one_that_flapped():
    made = two_ports(Roce()).outage("gpu002", STALL - 0.5, 4.0, name="ens2f0np0")
    made.gave_up("gpu002", "10.88.0.3", STALL - 1.4, device="mlx5_0")
    assert made.fact("links.tied").value == 0


def test_a_peer_on_another_rail_ties_nothing():
    made = two_ports(Roce()).outage("gpu002", STALL - 0.5, 4.0, name="ens2f0np0")
    made.gave_up("gpu001", "10.88.0.2", STALL - 1.4, device="mlx5_0")
    named, tied = made.facts("links.named", "links.tied")
    assert tied.value == 0
    assert [part.name for part in named.parts if part.node == "gpu002"] == ["one of mlx5_0, mlx5_1"]


def test_a_device_with_two_ports_is_not_named_by_an_event_of_either():
    # NCCL may print a port's event under the number of the other one (NVIDIA/nccl issue 1819).
    both = [*faces(), *faces(DEVICE, "ens1f1np1", number=2)]
    made = Roce().shows("gpu002", both, both).event("gpu002", "error", STALL - 0.5)
    assert made.fact("links.flapped_in_onset").value == 0
    made.outage("gpu002", STALL - 0.5, 4.0, name="ens1f1np1")
    tied = made.fact("links.tied")
    assert where(tied) == [("gpu002", "mlx5_0:2")] and sources(tied) == ["joblog", "kernel"]


def test_an_old_nccl_names_no_device_and_means_the_only_port_there_is():
    made = Roce().outage("gpu002", STALL - 0.5, 4.0).event("gpu002", "error", STALL - 0.5, device=None)
    tied = made.fact("links.tied")
    assert where(tied) == A and sources(tied) == ["joblog", "kernel"]


def test_an_old_nccl_on_a_node_with_two_ports_means_the_one_that_its_kernel_dates():
    made = two_ports(Roce()).outage("gpu002", STALL - 0.5, 4.0, name="ens2f0np0")
    made.event("gpu002", "error", STALL - 0.5, device=None)
    assert where(made.fact("links.tied")) == [("gpu002", "mlx5_1")]
