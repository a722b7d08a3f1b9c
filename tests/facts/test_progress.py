"""Progress: one positive sign is yes, no needs time, everything else is unknown."""

from written_evidence import NOW, World


def test_a_step_number_that_rose_between_the_looks_is_progress():
    world = World().processes().log(last_ago=9.0, look="A").log(last_ago=1.0, look="B", first=9)
    assert world.fact("progress.advancing").value is True


def test_payload_on_the_jobs_own_fabric_is_progress():
    assert World().processes().fabric(1e6).fact("progress.advancing").value is True


def test_payload_on_one_node_is_enough():
    assert World().processes().fabric(1e6, only=["gpu003"]).fact("progress.advancing").value is True


def test_bytes_on_a_port_that_the_job_does_not_name_are_no_progress():
    world = World().processes().log(last_ago=5.0)
    for look, count in (("A", 0), ("B", 10**9)):
        for name in world.names:
            world.add("nic", name, look, {"nics": [{"name": "eth0", "kind": "ethernet", "rx_bytes": count}]})
    assert world.fact("progress.advancing").value is None


def test_keep_alives_on_the_fabric_are_no_progress():
    assert World().processes().fabric(800).log(last_ago=5).fact("progress.advancing").value is not True


def test_an_old_last_step_is_no_progress():
    fact = World().processes().log(step_s=1.0, last_ago=61.0).fact("progress.advancing")
    assert fact.value is False
    assert "no step for 61s" in fact.text


def test_a_job_of_long_steps_is_given_ten_of_them():
    assert World().processes().log(step_s=30.0, last_ago=200.0).fact("progress.advancing").value is None
    assert World().processes().log(step_s=30.0, last_ago=301.0).fact("progress.advancing").value is False


def test_two_looks_shorter_than_three_steps_leave_progress_unknown():
    world = World(window=8.0).processes().fabric(0).log(step_s=4.0, last_ago=10.0)
    assert world.fact("progress.advancing").value is None


def test_a_still_fabric_alone_is_no_proof_for_a_job_of_short_steps():
    # One evaluation, one long step: the fabric of a healthy job stands still for many steps, too.
    world = World(window=8.0).processes().fabric(0).log(step_s=0.5, last_ago=10.0)
    assert world.fact("progress.advancing").value is None


def test_a_still_fabric_and_a_last_step_older_than_the_floor_are_no_progress():
    world = World(window=20.0).processes().fabric(0).log(step_s=6.5, last_ago=62.0)
    assert world.fact("progress.advancing").value is False


def test_one_rank_of_eight_that_claims_a_step_is_no_progress_of_the_job():
    world = World().processes().log(last_ago=100.0)
    for look, step in (("A", 10), ("B", 11)):
        for index, name in enumerate(world.names):
            rows = [{"rank": 2 * index, "last_step": step if index == 0 else 10, "last_at": NOW - 100}]
            world.add("steps", name, look, {"ranks": rows})
    assert world.fact("progress.advancing").value is False


def test_a_still_fabric_says_nothing_while_a_node_is_silent():
    world = World(window=8.0)
    world.skip_nodes = {"gpu002"}
    world.processes().fabric(0).log(step_s=0.5, last_ago=10.0)
    assert world.fact("progress.advancing").value is None


def test_without_a_healthy_step_time_five_minutes_are_given():
    assert World().processes().log(steps=3, last_ago=290.0).fact("progress.advancing").value is None
    assert World().processes().log(steps=3, last_ago=310.0).fact("progress.advancing").value is False


def test_a_log_in_an_unknown_zone_dates_nothing():
    world = World().processes()
    world.log(last_ago=2000.0, zone="unknown")
    data = dict(world.samples[-1].data)
    data["mtime"] = NOW - 1.0  # written to just now, but the newest dated line reads two thousand seconds old
    world.samples.pop()
    world.add("joblog", "", "B", data)
    assert world.fact("progress.advancing").value is None


def test_payload_that_moves_while_steps_stand_is_told_as_a_contradiction():
    fact = World().processes().fabric(1e6).log(last_ago=100.0).fact("progress.advancing")
    assert fact.value is True
    assert fact.contradicted_by == ("step times",)


def test_a_node_whose_clock_is_an_hour_off_does_not_make_the_last_step_fresh():
    world = World().processes()
    world.samples = [s for s in world.samples if s.node != "gpu001"]
    world.add("contact", "gpu001", "A", {}, at=world.a + 3600, received=world.a)
    world.add("steps", "gpu001", "B", {"ranks": [{"rank": 0, "last_step": 7, "last_at": NOW + 3600 - 400}]},
              at=world.b + 3600, received=world.b)  # fmt: skip
    assert 399 < world.fact("progress.stall_age_s").value < 401
    assert world.fact("progress.advancing").value is False


def test_nothing_seen_is_unknown():
    assert World().fact("progress.advancing").value is None
    assert World().fact("progress.collective_ever").value is None


def test_the_onset_is_an_interval_from_the_last_step_on():
    world = World().processes().log(step_s=1.0, last_ago=100.0)
    assert world.fact("progress.onset").value == [NOW - 100.0, NOW - 97.0]
