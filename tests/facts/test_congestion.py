"""Congestion and pause: one port, many onto one, a whole rail, all alike; and a frozen job, which shows none."""

from written_rails import Fabric, where


def noisy(seed=1, **how):
    """Every port has notices, as on a healthy busy fabric: some 80 to 120 a million packets."""
    fabric = Fabric(seed=seed, **how)
    for node, rail in fabric.all():
        fabric.grow(node, rail, np_cnp_sent=fabric.rng.randint(300, 470), rp_cnp_handled=fabric.rng.randint(300, 470))
    return fabric


def test_one_port_that_is_slowed_down_far_more_than_its_rail_is_congested():
    found = noisy().grow("gpu005", 2, rp_cnp_handled=40_000).fact("wire.congested")
    assert where(found) == [("gpu005", "mlx5_2")] and "was told to slow down" in found.parts[0].why


def test_a_busy_port_with_more_packets_has_more_notices_and_is_not_congested():
    fabric = noisy()
    fabric.grow("gpu005", 2, rp_cnp_handled=4000, port_xmit_packets=40_000_000)
    assert fabric.fact("wire.congested").value == 0


def test_noise_alone_is_no_outlier():
    for seed in range(20):
        fabric = noisy(seed)
        assert fabric.fact("wire.congested").value == 0 and fabric.fact("wire.incast").value == 0


def test_a_few_notices_on_a_silent_rail_are_none():
    assert Fabric().grow("gpu005", 2, rp_cnp_handled=60).fact("wire.congested").value == 0


def test_many_that_send_onto_one_port_accuse_the_traffic_and_not_its_receiver():
    fabric = noisy().grow("gpu002", 1, np_cnp_sent=60_000)
    for node in fabric.node_names:
        if node != "gpu002":
            fabric.grow(node, 1, rp_cnp_handled=12_000)
    assert fabric.fact("wire.congested").value == 0
    (part,) = fabric.fact("wire.incast").parts
    assert (part.kind, part.node, part.name) == ("fabric", None, "traffic of many onto mlx5_1 of gpu002")


def test_one_sender_and_one_receiver_leave_the_path_between_them_in_doubt():
    fabric = noisy().grow("gpu005", 2, rp_cnp_handled=40_000).grow("gpu001", 2, np_cnp_sent=40_000)
    found = fabric.fact("wire.congested")
    assert where(found) == [("gpu005", "mlx5_2")]
    assert found.contradicted_by == ("the notices of mlx5_2 of gpu001",)
    assert fabric.fact("wire.incast").value == 0


def test_a_rail_that_is_congested_as_a_whole_names_no_port():
    fabric = noisy(rails=8)
    for node in fabric.node_names:
        fabric.grow(node, 6, rp_cnp_handled=20_000 + int(node[3:]), np_cnp_sent=20_000)
    assert fabric.fact("wire.congested").value == 0
    assert [(p.kind, p.name, p.node) for p in fabric.fact("wire.rail_wide").parts] == [("fabric", "rail 6", None)]


def test_ports_that_are_all_congested_alike_are_nobodys():
    fabric = noisy()
    for node, rail in fabric.all():
        fabric.grow(node, rail, rp_cnp_handled=50_000, np_cnp_sent=50_000)
    for name in ("wire.congested", "wire.incast", "wire.rail_wide"):
        assert fabric.fact(name).value == 0, name


def test_outliers_on_many_nodes_share_one_cause_and_accuse_none():
    fabric = noisy(nodes=12)
    for index in range(4):
        fabric.grow(fabric.node_names[index], index, rp_cnp_handled=40_000)
    found = fabric.fact("wire.congested")
    assert found.value == 0 and "not one port's" in found.text


def test_a_frozen_job_sends_nothing_and_congestion_does_not_apply():
    fabric = Fabric()
    fabric.rate = 0.0
    found = fabric.fact("wire.congested")
    assert not found.known and found.reason.startswith("not applicable: no traffic")


def test_on_infiniband_missing_credits_a_word_stand_in_for_notices():
    fabric = Fabric(layer="InfiniBand")
    for node, rail in fabric.all():
        fabric.grow(node, rail, port_xmit_wait=fabric.rng.randint(900_000, 1_100_000))
    fabric.grow("gpu006", 3, port_xmit_wait=900_000_000)
    assert where(fabric.fact("wire.congested")) == [("gpu006", "mlx5_3")]


def test_on_infiniband_a_wait_counter_at_its_end_is_unknown_and_no_outlier():
    fabric = Fabric(layer="InfiniBand")
    fabric.base[("gpu006", 3)] = {"port_xmit_wait": 2**32 - 1}
    assert fabric.fact("wire.congested").value == 0


def test_the_port_that_pauses_is_accused_and_not_the_one_that_is_paused():
    fabric = Fabric()
    fabric.netdev_grew[("gpu003", 1)] = {"tx_prio3_pause": 90_000, "tx_prio3_pause_duration": 1_200_000}
    fabric.netdev_grew[("gpu001", 1)] = {"rx_prio3_pause": 80_000, "rx_prio3_pause_duration": 900_000}
    assert where(fabric.fact("wire.pausing")) == [("gpu003", "mlx5_1")]
    assert where(fabric.fact("wire.paused")) == [("gpu001", "mlx5_1")]
    assert "15 % of the time" in fabric.fact("wire.pausing").parts[0].why


def test_pauses_that_all_send_alike_are_nobodys():
    fabric = Fabric()
    for key in fabric.all():
        fabric.netdev_grew[key] = {"tx_prio3_pause": 90_000, "tx_prio3_pause_duration": 1_200_000}
    assert fabric.fact("wire.pausing").value == 0


def test_without_counters_of_pause_nobody_is_known_not_to_pause():
    assert not Fabric(layer="InfiniBand").fact("wire.pausing").known


def test_activity_is_shown_as_support_and_says_so():
    fabric = noisy().grow("gpu005", 2, rp_cnp_handled=40_000)
    for node in fabric.node_names:
        fabric.gpus[node] = [{"index": 0, "sm_pct": [30, 35, 41 if node == "gpu005" else 40, 45, 50]}]
    found = fabric.fact("wire.activity")
    assert found.value.startswith("SM activity, %: gpu005 41, the other nodes 40") and "support only" in found.value
