"""A port without link: since when, and does that explain the stall?"""

from written_ports import DEVICE, STALL, Roce, faces, sources, where

A = [("gpu002", DEVICE)]


# ---------------------------------------------------------------- still down


def test_a_port_that_went_down_at_the_onset_and_stays_down_is_down_now_and_no_flap():
    made = Roce().says("gpu002", "link_down", STALL - 0.5).event("gpu002", "error", STALL - 0.5)
    made.shows("gpu002", faces(up=False), faces(up=False)).gave_up("gpu002", "10.88.0.3", STALL - 1.4)
    down, flapped, tied = made.facts("links.down_now", "links.flapped_in_onset", "links.tied")
    assert where(down) == A and sources(down) == ["joblog", "kernel", "nic"]
    assert (flapped.value, tied.value) == (0, 0)


def test_with_its_ports_unreadable_the_kernels_last_word_says_that_a_port_is_down():
    made = Roce().says("gpu002", "link_down", STALL - 0.5).event("gpu002", "error", STALL - 0.5)
    made.gave_up("gpu002", "10.88.0.3", STALL - 1.4)
    made.blind = {"nic"}
    down, flapped = made.facts("links.down_now", "links.flapped_in_onset")
    assert where(down) == A and sources(down) == ["joblog", "kernel"]
    assert not flapped.known


def test_a_cable_pulled_long_after_the_stall_does_not_explain_it():
    made = Roce().says("gpu002", "link_down", 200).shows("gpu002", faces(up=False), faces(up=False))
    down, apart = made.facts("links.down_now", "links.down_apart")
    assert down.value == 0 and where(apart) == A


def test_a_port_that_went_down_an_hour_before_the_stall_does_not_explain_it():
    made = Roce().says("gpu002", "link_down", 4000).shows("gpu002", faces(up=False), faces(up=False))
    assert made.fact("links.down_now").value == 0


def test_a_named_port_that_never_had_a_cable_in_this_attempt_does_not_explain_it():
    spare = faces("mlx5_0_spare", "ens9np0", up=False)  # the prefix mlx5_0 names it too
    made = Roce().shows("gpu002", [*faces(), *spare], [*faces(), *spare])
    down, apart = made.facts("links.down_now", "links.down_apart")
    assert down.value == 0 and where(apart) == [("gpu002", "mlx5_0_spare")]
    made.covered = None  # and a log of which nobody knows how far it reaches denies nothing
    assert where(made.fact("links.down_now")) == [("gpu002", "mlx5_0_spare")]


def test_a_port_that_flapped_at_the_onset_and_is_down_again_is_down_now():
    made = Roce().outage("gpu002", STALL - 0.5, 4.0).says("gpu002", "link_down", 100)
    made.shows("gpu002", faces(up=False), faces(up=False))
    down, flapped = made.facts("links.down_now", "links.flapped_in_onset")
    assert where(down) == A and flapped.value == 0
