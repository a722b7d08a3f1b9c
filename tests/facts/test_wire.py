"""Wires while the job moves: what runs below its rail, what loses packets, and what may not be said of them."""

import pytest
from written_rails import EVEN, Fabric, where


def test_ports_are_lined_up_by_their_addresses_and_not_by_their_names():
    fabric = Fabric(hca="^nothing")
    for node in fabric.node_names[:3]:  # names skip where a storage port sits between
        for rail in range(fabric.rails):
            fabric.name[(node, rail)] = f"mlx5_{rail * 2 + 1}"
    fabric.speed[("gpu002", 2)] = 200_000
    said = fabric.fact("wire.rails").value
    assert said == "4 rails over 6 nodes, by PCI address; the job names no ports: all that it may use"
    assert where(fabric.fact("wire.degraded")) == [("gpu002", "rail2")]


def test_a_node_with_fewer_ports_keeps_its_rails_by_their_addresses():
    fabric = Fabric()
    fabric.extra["missing"] = {("gpu003", 1)}
    fabric.speed[("gpu003", 2)] = 100_000
    assert where(fabric.fact("wire.degraded")) == [("gpu003", "mlx5_2")]


def test_a_node_that_is_built_otherwise_is_left_out_and_said():
    fabric = Fabric()
    fabric.extra["missing"] = {("gpu003", 1)}
    for rail in range(4):
        fabric.pci[("gpu003", rail)] = f"0001:{rail:02x}:00.0"
        fabric.speed[("gpu003", rail)] = 100_000
    assert "left out: gpu003" in fabric.fact("wire.rails").value
    assert fabric.fact("wire.degraded").value == 0


def test_bonds_and_ports_of_the_other_kind_of_fabric_are_no_rail():
    fabric = Fabric(layer="InfiniBand", hca="")
    for node in fabric.node_names:
        for look in "AB":
            fabric.extra[(node, look)] = [
                {"name": "mlx5_bond_0", "kind": "infiniband", "driver": "mlx5_core", "state": "ACTIVE", "port": 1,
                 "link_layer": "Ethernet", "speed_mbps": 25_000, "pci": "0000:01:00.0", "counters": {}},
                {"name": "mlx5_9", "kind": "infiniband", "driver": "mlx5_core", "state": "ACTIVE", "port": 1,
                 "link_layer": "Ethernet", "speed_mbps": 100_000, "pci": "0000:02:00.0", "counters": {}},
            ]  # fmt: skip
    assert fabric.fact("wire.rails").value.startswith("4 rails over 6 nodes, by PCI address")


# ---------------------------------------------------------------- speed


def test_a_port_below_the_speed_of_its_rail_is_degraded():
    fabric = Fabric()
    fabric.speed[("gpu004", 1)] = 100_000
    found = fabric.fact("wire.degraded")
    assert where(found) == [("gpu004", "mlx5_1")]
    assert found.parts[0].why == "100 Gb/sec (4X), its rail 400 Gb/s"


def test_half_a_job_of_slower_cards_is_another_kind_of_node_and_nobody_is_degraded():
    fabric = Fabric()
    for node in fabric.node_names[:3]:
        for rail in range(4):
            fabric.speed[(node, rail)] = 200_000
    assert fabric.fact("wire.degraded").value == 0


def test_a_slower_board_is_compared_with_its_like_only():
    fabric = Fabric()
    for rail in range(4):
        fabric.speed[("gpu004", rail)] = 100_000
        fabric.board[("gpu004", rail)] = "MT_0000000010"
    assert fabric.fact("wire.degraded").value == 0


def test_of_two_ports_on_one_rail_neither_is_odd():
    fabric = Fabric(nodes=2, rails=1)
    fabric.speed[("gpu002", 0)] = 100_000
    found = fabric.fact("wire.degraded")
    assert not found.known and "too few ports" in found.reason


def test_on_two_nodes_of_many_like_rails_the_odd_port_shows():
    fabric = Fabric(nodes=2, rails=8)
    fabric.speed[("gpu002", 5)] = 200_000
    assert where(fabric.fact("wire.degraded")) == [("gpu002", "mlx5_5")]


def test_a_port_that_is_down_or_that_the_job_does_not_name_is_not_degraded():
    fabric = Fabric(rails=5, hca="mlx5_0,mlx5_1,mlx5_2,mlx5_3")
    fabric.speed[("gpu004", 4)] = 100_000
    fabric.speed[("gpu004", 1)] = 10_000
    fabric.state[("gpu004", 1)] = False
    assert fabric.fact("wire.degraded").value == 0


def test_a_speed_that_an_old_kernel_does_not_know_is_unknown_and_not_slow():
    fabric = Fabric(layer="InfiniBand")
    world = fabric.made()
    for sample in world.samples:
        if sample.probe == "nic" and sample.node == "gpu002":
            for record in sample.data["nics"]:
                record["rate"], record["speed_mbps"] = "10 Gb/sec (4X SDR)", 10_000
    assert world.fact("wire.degraded").value == 0


def test_a_slower_port_that_carries_next_to_nothing_says_so():
    fabric = Fabric()
    fabric.speed[("gpu004", 1)] = 100_000
    fabric.rate = 1e8  # 0.8 of 100 Gb/s
    assert fabric.fact("wire.degraded_load").value == pytest.approx(0.008, rel=0.01)


# ---------------------------------------------------------------- loss


def test_errors_that_rise_on_one_port_of_a_rail_are_its_own():
    fabric = Fabric(layer="InfiniBand").grow("gpu002", 3, port_rcv_errors=900).everywhere(symbol_error=50)
    found = fabric.fact("wire.lossy")
    assert where(found) == [("gpu002", "mlx5_3")]
    assert "port_rcv_errors +900 in 8s (bad packets received)" in found.parts[0].why


def test_symbol_errors_and_packets_out_of_order_are_normal_on_healthy_fabrics():
    fabric = Fabric().grow("gpu002", 3, symbol_error=9000, out_of_sequence=10**6, duplicate_request=5000)
    assert fabric.fact("wire.lossy").value == 0 and fabric.fact("wire.retries").value == 0


def test_errors_below_the_rate_that_counts_as_active_are_none():
    assert Fabric().grow("gpu002", 3, port_rcv_errors=30).fact("wire.lossy").value == 0


def test_errors_that_all_ports_of_a_rail_count_alike_are_not_one_ports():
    fabric = Fabric()
    for node in fabric.node_names:
        fabric.grow(node, 2, port_rcv_errors=1000)
    assert fabric.fact("wire.lossy").value == 0


def test_errors_on_every_rail_of_many_nodes_accuse_no_node():
    fabric = Fabric(nodes=10)
    for index, node in enumerate(fabric.node_names[:4]):
        fabric.grow(node, index, port_rcv_errors=1000)
    found = fabric.fact("wire.lossy")
    assert found.value == 0 and "not one port's fault" in found.text


def test_who_waits_for_an_answer_is_not_who_spoils_it():
    fabric = Fabric().grow("gpu001", 0, local_ack_timeout_err=40)
    assert fabric.fact("wire.lossy").value == 0
    assert where(fabric.fact("wire.retries")) == [("gpu001", "mlx5_0")]
    path = fabric.fact("wire.lossy_path")
    assert [(p.kind, p.node, p.name) for p in path.parts] == [("link", None, "from mlx5_0 of gpu001 to its peer")]


def test_a_port_that_trains_again_while_the_job_moves_is_lossy():
    fabric = Fabric(layer="InfiniBand").grow("gpu001", 0, link_error_recovery=2)
    assert where(fabric.fact("wire.lossy")) == [("gpu001", "mlx5_0")]


def test_a_receiver_that_is_not_ready_is_a_slow_program_and_no_bad_cable():
    fabric = Fabric().grow("gpu001", 0, rnr_nak_retry_err=5000)
    assert fabric.fact("wire.lossy").value == 0 and where(fabric.fact("wire.slow_takers")) == [("gpu001", "mlx5_0")]


def test_totals_since_boot_are_no_loss():
    fabric = Fabric()
    fabric.base[("gpu001", 0)] = {"port_rcv_errors": 60_000, "local_ack_timeout_err": 10**6, "rx_icrc_encapsulated": 99}
    assert fabric.fact("wire.lossy").value == 0 and fabric.fact("wire.retries").value == 0


def test_a_counter_at_its_maximum_is_unknown_and_not_zero():
    fabric = Fabric(layer="InfiniBand")
    fabric.base[("gpu001", 0)] = {"port_rcv_errors": 65535}
    assert where(fabric.fact("wire.saturated")) == [("gpu001", "mlx5_0")]
    assert "port_rcv_errors stuck" in fabric.fact("wire.saturated").parts[0].why
    assert fabric.fact("wire.lossy").value == 0


def test_a_port_whose_counters_began_anew_tells_nothing_even_where_they_rose():
    fabric = Fabric(layer="InfiniBand").grow("gpu001", 0, port_xmit_packets=-(10**9), port_rcv_errors=5000)
    assert fabric.fact("wire.lossy").value == 0
    assert fabric.fact("wire.saturated").parts[0].why == "all counters reset"


def test_counters_of_another_boot_are_not_compared():
    fabric = Fabric().grow("gpu001", 0, port_rcv_errors=5000)
    fabric.boot[("gpu001", "B")] = "another"
    assert fabric.fact("wire.lossy").value == 0


def test_a_counter_of_32_bits_that_wraps_has_lost_what_it_says():
    fabric = Fabric().grow("gpu001", 0, local_ack_timeout_err=-(2**32) + 200)
    fabric.base[("gpu001", 0)] = {"local_ack_timeout_err": 2**32 - 100}
    found = fabric.fact("wire.retries")
    assert where(found) == [("gpu001", "mlx5_0")] and "+200" in found.parts[0].why


def test_one_look_tells_nothing_of_a_wire_but_its_speed():
    fabric = Fabric().grow("gpu001", 0, port_rcv_errors=5000)
    fabric.one_look = True
    for name in ("wire.lossy", "wire.retries", "wire.saturated", "wire.congested", "wire.pausing", "wire.traffic"):
        assert not fabric.fact(name).known, name
    assert fabric.fact("wire.degraded").value == 0


def test_ports_without_counters_as_in_a_virtual_machine_are_unknown_and_not_clean():
    fabric = Fabric(layer="InfiniBand")
    world = fabric.made()
    for sample in world.samples:
        if sample.probe == "nic":
            for record in sample.data["nics"]:
                record["counters"] = {}
    assert not world.fact("wire.lossy").known and not world.fact("wire.congested").known


# ---------------------------------------------------------------- TCP


def over_tcp(**how):
    fabric = Fabric(rails=1, **how)
    fabric.extra["env"] = {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "rail0"}
    return fabric


def test_a_node_that_sends_much_again_over_tcp_names_a_path_and_no_node():
    fabric = over_tcp()
    fabric.tcp_grew["gpu003"] = {"RetransSegs": 9000, "TCPTimeouts": 9}
    found = fabric.fact("wire.lossy_path")
    assert [(p.node, p.name) for p in found.parts] == [(None, "from gpu003 to its peers over TCP")]
    assert "sent 9000 of 1000000 segments again" in found.parts[0].why


def test_a_clean_run_at_line_rate_sends_some_again_and_is_clean():
    fabric = over_tcp()
    fabric.tcp_grew["gpu003"] = {"OutSegs": 3_830_000, "RetransSegs": 678}
    assert fabric.fact("wire.lossy_path").value == 0


def test_one_time_out_is_no_lossy_path():
    fabric = over_tcp()
    fabric.tcp_grew["gpu003"] = {"TCPTimeouts": 1, "RetransSegs": 2}
    assert fabric.fact("wire.lossy_path").value == 0


def test_what_sends_next_to_nothing_between_the_looks_does_not_tell_that_nothing_is_lost():
    fabric = over_tcp()
    for node in fabric.node_names:
        fabric.tcp_grew[node] = {"OutSegs": 300, "RetransSegs": 40}
    found = fabric.fact("wire.lossy_path")
    assert found.value is None and "too little" in found.reason


def test_openings_that_nobody_answers_are_no_loss_of_the_job():
    fabric = over_tcp()
    fabric.tcp_grew["gpu003"] = {"RetransSegs": 9000, "TCPTimeouts": 9000, "TCPSynRetrans": 9000}
    assert fabric.fact("wire.lossy_path").value == 0


def test_tcp_of_a_node_whose_payload_goes_over_rdma_is_not_looked_at():
    fabric = Fabric()
    fabric.tcp_grew["gpu003"] = {"RetransSegs": 9000, "TCPTimeouts": 9}
    assert fabric.fact("wire.lossy_path").value == 0


def ring(fabric, again, waits=None, usual=0.1):
    """A ring of TCP connections: (source, target) -> segments sent again, of 20,000; and share of the time it waited."""
    names = fabric.node_names
    address = {name: f"10.88.0.{10 + i}" for i, name in enumerate(names)}
    for index, node in enumerate(names):
        for look in "AB":
            rows = []
            for peer, port in ((names[(index + 1) % len(names)], 40_000), (names[index - 1], 29_600)):
                later = look == "B"
                lost = again.get((node, peer), 0) if later else 0
                ms = 500 + int(later * 1000 * fabric.window * (waits or {}).get((node, peer), usual))
                ends = [f"{address[node]}:{port}", f"{address[peer]}:{69_600 - port}"]
                rows.append([*ends, 10**6 + 20_000 * later, 50 + lost, ms])
            fabric.sockets[(node, look)] = rows
    for node in names:
        lost = sum(count for (source, _), count in again.items() if source == node)
        fabric.tcp_grew[node] = {"OutSegs": 40_000, "RetransSegs": lost}
    return fabric


def test_two_lossy_ways_that_meet_in_one_node_name_its_port():
    fabric = ring(over_tcp(), {("gpu002", "gpu003"): 900, ("gpu003", "gpu004"): 700})
    (part,) = fabric.fact("wire.lossy").parts
    assert (part.node, part.nic) == (
        "gpu003",
        "rail0",
    ) and "gpu002 sent 900 of 20000 segments to gpu003 again" in part.why
    assert fabric.fact("wire.lossy_path").value == 0


def test_a_way_that_loses_waits_for_what_it_sends_again_and_is_not_narrow():
    fabric = ring(over_tcp(), {("gpu002", "gpu003"): 900}, {("gpu002", "gpu003"): 0.95, ("gpu001", "gpu002"): 0.4})
    assert fabric.fact("wire.narrow").value == 0 and fabric.fact("wire.narrow_path").value == 0
    assert [part.name for part in fabric.fact("wire.lossy_path").parts] == ["from gpu002 to gpu003 over TCP"]


def test_one_lossy_way_of_a_ring_leaves_both_its_ends_in_doubt():
    fabric = ring(over_tcp(), {("gpu002", "gpu003"): 900})
    assert fabric.fact("wire.lossy").value == 0
    assert [(p.node, p.name) for p in fabric.fact("wire.lossy_path").parts] == [
        (None, "from gpu002 to gpu003 over TCP")
    ]


def test_lossy_ways_that_meet_nowhere_or_in_two_nodes_name_none():
    apart = ring(over_tcp(), {("gpu001", "gpu002"): 900, ("gpu004", "gpu005"): 900})
    both = ring(over_tcp(), {("gpu001", "gpu002"): 900, ("gpu002", "gpu001"): 900})
    for fabric in (apart, both):
        assert fabric.fact("wire.lossy").value == 0


def test_where_every_way_passes_a_node_it_is_not_named_for_that():
    fabric = ring(over_tcp(nodes=3), {("gpu001", "gpu002"): 900, ("gpu002", "gpu003"): 900})
    for look in "AB":
        for node in ("gpu001", "gpu003"):
            peer = "10.88.0.12" if node == "gpu001" else "10.88.0.10"
            fabric.sockets[(node, look)] = [r for r in fabric.sockets[(node, look)] if not r[1].startswith(peer)]
    assert fabric.fact("wire.lossy").value == 0


def test_an_address_that_two_nodes_show_is_nobodys():
    fabric = ring(over_tcp(), {("gpu002", "gpu003"): 900, ("gpu003", "gpu004"): 700})
    for key in list(fabric.sockets):
        fabric.sockets[key] = [["172.17.0.1:1", *row[1:]] for row in fabric.sockets[key]]
    assert fabric.fact("wire.lossy").value == 0


def test_one_way_that_waits_for_the_network_while_the_others_wait_for_it_is_narrow():
    fabric = ring(over_tcp(), {}, {("gpu002", "gpu003"): 0.97})
    (part,) = fabric.fact("wire.narrow_path").parts
    assert (part.node, part.name) == (None, "from gpu002 to gpu003 over TCP") and "waited 97% of the time" in part.why
    assert fabric.fact("wire.narrow").value == 0


def test_two_narrow_ways_that_meet_in_one_node_name_its_port():
    fabric = ring(over_tcp(), {}, {("gpu002", "gpu003"): 0.97, ("gpu003", "gpu004"): 0.9})
    assert where(fabric.fact("wire.narrow")) == [("gpu003", "rail0")] and fabric.fact("wire.narrow_path").value == 0


def test_a_link_that_is_narrow_one_way_delays_the_acknowledgements_of_the_other_way_and_so_names_its_node():
    """Measured: ingress of gpu003 limited to 50 Mbit/s, in a ring of five."""
    into = ring(over_tcp(), {}, {("gpu002", "gpu003"): 0.98, ("gpu003", "gpu004"): 0.45}, 0.01)
    out_of = ring(over_tcp(), {}, {("gpu003", "gpu004"): 0.98, ("gpu002", "gpu003"): 0.45}, 0.01)
    for fabric in (into, out_of):
        assert where(fabric.fact("wire.narrow")) == [("gpu003", "rail0")]


def test_where_every_way_waits_alike_none_is_narrow():
    for usual in (0.1, 0.5, 0.95):
        fabric = ring(over_tcp(), {}, {}, usual)
        assert fabric.fact("wire.narrow").value == 0 and fabric.fact("wire.narrow_path").value == 0


def test_without_connections_to_look_at_nothing_is_known_of_narrow_ways():
    assert not over_tcp().fact("wire.narrow").known and not Fabric().fact("wire.narrow_path").known


def test_traffic_is_summed_over_the_ports_of_the_job():
    fabric = Fabric(elapsed=EVEN)
    assert fabric.fact("wire.traffic").value == pytest.approx(6 * 4 * 2 * 2000, rel=0.01)
