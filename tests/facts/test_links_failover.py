"""Port failover and recovery: a give-up that costs speed and no job (notes/network.md 4.2)."""

import pytest
from written_dumps import add_dumps, everyone, report
from written_ports import DEVICE, STALL, Roce, long_outage, where

ON = {"NCCL_IB_RESILIENCY_PORT_FAILOVER": "1"}


def failed(made, node="gpu002", ago=STALL - 1.4, device="0", recovery="No", **how):
    text = f"NET/IB: Device {device} marked as failed. Initiating recovery? {recovery} (send comm=0x7f12, …)"
    groups = {"device": device, "recovery": recovery, "way": "send"}
    return made.hit("nccl_port_failed", node, ago, text, groups, **how)


def recovered(made, what="recovered", node="gpu002", ago=STALL - 9, device="0"):
    return made.hit(
        "nccl_port_recovered", node, ago, f"NET/IB: x: Device {device} {what}", {"device": device, "what": what}
    )


def speed(made, was, now, node="gpu002", ago=STALL - 9):
    text = f"NET/IB : {DEVICE}:1 speed change detected: {was} -> {now} Mbps"
    return made.hit("nccl_speed_change", node, ago, text, {"nic": DEVICE, "port": "1", "was": was, "now": now})


def outage(**env):
    """An outage of 60 s, whatever the budget says of it, tied by NCCL's own event."""
    made = Roce(env=env).outage("gpu002", STALL - 0.5, 60.0)
    return made.event("gpu002", "error", STALL - 0.5)


def test_an_outage_beyond_every_retry_ends_the_job_unless_nccl_may_go_on_over_another_port():
    assert outage().fact("links.outlasted").value is True
    found = outage(**ON).fact("links.outlasted")
    assert not found.known and "another port" in found.reason


def test_a_release_that_is_too_old_for_failover_gives_up_all_the_same():
    made = outage(**ON)
    made.hit("nccl_version", "gpu001", 6000, "", {}, own=False)
    made.hits[-1]["text"] = "NCCL version 2.27.5+cuda12.9"
    on, outlasted = made.facts("links.failover_on", "links.outlasted")
    assert on.value is False and "2.27.5" in on.text and outlasted.value is True


def test_the_setting_alone_does_not_tell_that_there_is_another_port():
    made = Roce(env=ON)
    made.hit("nccl_version", "gpu001", 6000, "", {}, own=False)
    made.hits[-1]["text"] = "NCCL version 2.29.7+cuda12.9"
    found = made.fact("links.failover_on")
    assert not found.known and "merged" in found.reason


@pytest.mark.parametrize("value", ["0", "", " ", "off"])
def test_a_setting_that_is_off_is_no_failover(value):
    # NCCL takes for 0 what is no number.
    made = outage(NCCL_IB_RESILIENCY_PORT_FAILOVER=value)
    on, outlasted = made.facts("links.failover_on", "links.outlasted")
    assert on.value is False and outlasted.value is True


def test_its_own_line_shows_that_it_went_on_and_the_port_stays_failed():
    on, moved = failed(outage(**ON)).facts("links.failover_on", "links.failover")
    assert on.value is True and [part.node for part in moved.parts] == ["gpu002"]
    assert "will not take it back" in moved.text


def test_a_port_that_was_taken_back_is_none_any_more():
    made = recovered(failed(outage(**ON), recovery="Yes"))
    assert made.fact("links.failover").value == 0


def test_a_port_whose_recovery_failed_stays_one():
    for what in ("failed", "permanently failed"):
        made = recovered(failed(outage(**ON), recovery="Yes"), what)
        assert "lost for good" in made.fact("links.failover").text


def test_a_port_that_failed_anew_after_its_recovery_counts():
    made = failed(recovered(failed(outage(**ON), recovery="Yes"), ago=STALL - 9), ago=STALL - 20)
    assert made.fact("links.failover").value == 1


def test_two_failed_devices_are_a_give_up_in_spite_of_failover():
    made = outage(**ON)
    text = "NET/IB: The error is fatal (No functional devices left). Cannot continue."
    made.hit("nccl_failover_failed", "gpu002", STALL - 1.4, text, {"why": "No functional devices left"})
    found = made.fact("links.outlasted")
    assert found.value is True and "gave up" in found.text and "never resumes" in found.text


def test_a_host_of_another_job_fails_over_for_itself():
    made = failed(outage(**ON), node="login1")
    assert made.fact("links.failover").value == 0


def test_a_port_that_came_back_slower_is_told_until_it_is_fast_again():
    assert where(speed(Roce(), "400000", "100000").fact("links.slower")) == [("gpu002", DEVICE)]
    both = speed(speed(Roce(), "400000", "100000"), "100000", "400000", ago=STALL - 20)
    assert both.fact("links.slower").value == 0
    assert speed(Roce(), "400000", "N/A").fact("links.slower").value == 0


def test_a_job_without_a_log_knows_nothing_of_it():
    made = Roce()
    made.log = False
    for name in ("links.failover", "links.slower"):
        assert not made.fact(name).known


def test_a_port_that_is_down_ends_no_job_that_went_on_over_another_one():
    """The verdict is not the port: all have joined, nobody finishes, and what holds the job is not told."""
    from written_ports import MANAGEMENT, faces

    def verdict(made):
        dead = [*faces(up=False), MANAGEMENT]
        made.shows("gpu002", dead, dead).says("gpu002", "link_down", STALL - 0.5)
        w = add_dumps(made.made(), everyone(["0 1 all_reduce", "0 2 all_reduce open"]))
        return report(w).verdict

    assert verdict(Roce()).cause == "link_flap/down_now"
    assert verdict(failed(Roce(env=ON))).id == "inconclusive"


def test_the_words_of_the_report_hold_the_outage_against_the_budget():
    found = long_outage().fact("links.outlasted")
    assert "for 4.0s" in found.text and "0.47s to 3.5s" in found.text and found.text.endswith("never resumes")
