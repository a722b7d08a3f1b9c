"""One port has two names, a list of NCCL's has three forms, and a peer is an address: who is meant, and when nobody is."""

from dataclasses import replace

import pytest
from written_evidence import World
from written_ports import DEVICE, NETDEV, STALL, Roce, faces, where

from triage.facts.fabric import Fabric, choice
from triage.facts.ports import ports
from triage.facts.transport import spoken


def use(env, *nics):
    """name -> use of the ports of a node whose ranks export this."""
    made = Roce(env={"NCCL_IB_HCA": "", "NCCL_SOCKET_IFNAME": "", **env})
    made.shows("gpu002", list(nics), list(nics))
    return {port.name: port.use for port in made.made().evidence().derive(ports)["gpu002"]}


ONE, TWO, TEN = faces("mlx5_1", "ens1f0np0"), faces("mlx5_2", "ens2f0np0"), faces("mlx5_10", "ens3f0np0")
ETH = {"name": "eth0", "kind": "ethernet", "carrier": 1, "state": "up"}


@pytest.mark.parametrize(
    ("hca", "named"),
    [
        ("mlx5_1", {"mlx5_1", "mlx5_10"}),  # a prefix
        ("=mlx5_1", {"mlx5_1"}),
        ("=mlx5_1:1", {"mlx5_1"}),
        ("=mlx5_1:2", set()),
        ("mlx5_2,mlx5_10", {"mlx5_2", "mlx5_10"}),
        (" mlx5_2 ", {"mlx5_2"}),
    ],
)
def test_the_job_names_devices_by_prefix_or_exactly(hca, named):
    found = use({"NCCL_IB_HCA": hca}, *ONE, *TWO, *TEN)
    assert {name for name, how in found.items() if how == "named"} == named
    assert set(found.values()) <= {"named", "no"}


@pytest.mark.parametrize(
    ("hca", "left"),
    [
        ("^mlx5_2", {"ens1f0np0", "ens3f0np0"}),
        ("^mlx5_1", {"ens2f0np0"}),  # as a prefix, mlx5_10 too
        ("^=mlx5_1", {"ens2f0np0", "ens3f0np0"}),
        ("^=mlx5_1:1,mlx5_2", {"ens3f0np0"}),
    ],
)
def test_an_exclusion_leaves_the_others_which_nccl_may_take(hca, left):
    found = use({"NCCL_IB_HCA": hca}, *ONE, *TWO, *TEN)
    assert {name for name, how in found.items() if how == "may"} == left and "named" not in found.values()


def test_each_rank_may_have_a_device_of_its_own():
    made = Roce()
    made.environments = {rank: {"NCCL_IB_HCA": f"=mlx5_{1 + rank % 2}"} for rank in range(8)}
    made.shows("gpu002", [*ONE, *TWO, *TEN], [*ONE, *TWO, *TEN])
    found = {port.name: port.use for port in made.made().evidence().derive(ports)["gpu002"]}
    assert found == {"mlx5_1": "named", "mlx5_2": "named", "ens3f0np0": "no"}


def test_an_rdma_device_and_its_netdev_are_one_port():
    assert use({"NCCL_IB_HCA": "mlx5_1", "NCCL_SOCKET_IFNAME": "ens1f0np0"}, *ONE) == {"mlx5_1": "named"}


def test_a_port_that_the_job_names_only_by_its_netdev_is_told_by_it():
    assert use({"NCCL_SOCKET_IFNAME": "ens1f0np0"}, *ONE) == {"ens1f0np0": "named"}


def test_a_netdev_beside_the_devices_only_sets_connections_up():
    assert use({"NCCL_IB_HCA": "mlx5_1", "NCCL_SOCKET_IFNAME": "eth0"}, *ONE, ETH) == {
        "mlx5_1": "named",
        "eth0": "setup",
    }
    assert use({"NCCL_SOCKET_IFNAME": "eth0"}, *ONE, ETH) == {"ens1f0np0": "may", "eth0": "setup"}


@pytest.mark.parametrize("off", [{"NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "Socket"}])
def test_a_job_that_leaves_rdma_alone_runs_over_its_netdev(off):
    found = use({"NCCL_IB_HCA": "mlx5_1", "NCCL_SOCKET_IFNAME": "eth0", **off}, *ONE, ETH)
    assert found == {"ens1f0np0": "no", "eth0": "named"}


def test_a_device_whose_link_is_down_carries_nothing_so_the_netdev_does():
    dead = faces("mlx5_1", "ens1f0np0", up=False)
    assert use({"NCCL_SOCKET_IFNAME": "eth0"}, *dead, ETH)["eth0"] == "named"


def test_two_ports_of_one_device_are_two():
    both = [*faces("mlx5_1", "ens1f0np0"), *faces("mlx5_1", "ens1f1np1", up=False, number=2)]
    assert use({"NCCL_IB_HCA": "mlx5_1:1"}, *both) == {"mlx5_1:1": "named", "ens1f1np1": "no"}
    assert use({"NCCL_IB_HCA": "mlx5_1"}, *both) == {"mlx5_1:1": "named", "mlx5_1:2": "named"}


def test_an_ipoib_netdev_that_was_never_brought_up_does_not_take_its_port_down():
    device, netdev = faces("mlx5_1", "ib0", layer="InfiniBand")
    netdev |= {"kind": "infiniband", "state": "down", "carrier": None}
    made = Roce(env={"NCCL_IB_HCA": "mlx5_1"}).shows("gpu002", [device, netdev], [device, netdev])
    found = made.made().evidence().derive(ports)["gpu002"]
    assert [(port.name, port.down) for port in found] == [("mlx5_1", False)]


def test_two_faces_that_contradict_each_other_tell_nothing():
    device, netdev = faces(up=True)
    netdev |= {"carrier": 0, "state": "down"}
    made = Roce().shows("gpu002", [device, netdev], [device, netdev])
    assert made.made().evidence().derive(ports)["gpu002"][0].down is None
    assert where(made.fact("links.down_now")) == []


@pytest.mark.parametrize("value", ["", "^", "=", ",", "^=,"])
def test_a_list_of_nothing_chooses_nothing(value):
    assert choice(value) is None


def test_a_node_whose_ranks_nobody_saw_names_nothing():
    nobody = Fabric()
    assert not nobody.names_device("mlx5_0") and not nobody.names_netdev("eth0") and nobody.may_use_device("mlx5_0")


# ---------------------------------------------------------------- the two faces are counted once


def test_the_two_faces_of_a_port_are_not_two_ports_full_of_bytes():
    # 10 kB/s on one port is under the floor of 16 kB/s; counted twice it would be progress.
    made = Roce(last_ago=5.0)
    for name in made.world.names:
        made.shows(name, faces(rx=0, tx=0), faces(rx=80_000, tx=0))
    assert made.fact("progress.advancing").value is not True
    for name in made.world.names:
        made.shows(name, faces(rx=0, tx=0), faces(rx=160_000, tx=0))
    assert made.fact("progress.advancing").value is True


def test_bytes_on_the_netdev_that_only_sets_connections_up_are_no_progress():
    made = Roce(env={"NCCL_SOCKET_IFNAME": "eth0"}, last_ago=5.0)
    for name in made.world.names:
        busy = [{**ETH, "rx_bytes": n, "tx_bytes": 0} for n in (0, 10**9)]
        made.shows(name, [*faces(), busy[0]], [*faces(), busy[1]])
    assert made.fact("progress.advancing").value is not True


# ---------------------------------------------------------------- peers and printers


def peer(told, port="47", gid=None, nodes=None):
    """The node that a status 12 names as its peer."""
    made = Roce().gave_up("gpu001", told, STALL - 1, port=port, gid=gid)
    w = made.made()
    if nodes:
        w.job = replace(w.job, nodes=tuple(nodes(node) for node in w.job.nodes))
    return w.evidence().derive(spoken).gave_up[0].peer


@pytest.mark.parametrize(
    ("told", "node"),
    [("10.88.0.3", "gpu003"), ("gpu003", "gpu003"), ("GPU003.cluster.local", "gpu003"), ("::ffff:10.88.0.3", "gpu003"),
     ("10.88.0.9", None), ("gpu03", None), ("", None)],
)  # fmt: skip
def test_a_peer_is_named_by_its_address_or_its_host_name(told, node):
    assert peer(told) == node


def test_an_address_that_several_nodes_share_names_nobody():
    assert peer("10.1.1.1", nodes=lambda node: replace(node, fabric=("10.1.1.1:22",))) is None


def loopback(node):
    return replace(node, address="127.0.0.1", fabric=(f"127.0.0.1:4123{node.name[-1]}",))


def test_on_a_loopback_the_port_tells_who_is_meant():
    assert peer("127.0.0.1", port="41233", nodes=loopback) == "gpu003"
    assert peer("127.0.0.1", port="40000", nodes=loopback) is None


def test_a_loopback_address_is_every_machines_own_even_if_one_node_alone_has_it():
    def one(node):
        return replace(node, address="127.0.0.1" if node.name == "gpu003" else "10.0.0.1", fabric=())

    assert peer("127.0.0.1", nodes=one) is None


def test_the_address_of_the_very_port_tells_the_peer_where_that_of_its_socket_is_unknown():
    assert peer("192.168.7.7", gid="::ffff:10.88.0.3") == "gpu003"


@pytest.mark.parametrize("door", ["fd00::3", "[fd00::3]:22", "[FD00:0::3]:22"])
def test_an_ipv6_address_is_one_in_all_its_spellings(door):
    def six(node):
        return replace(node, fabric=(door,)) if node.name == "gpu003" else node

    assert peer("fd00::3", nodes=six) == "gpu003"


def test_two_nodes_of_one_short_name_are_not_told_apart_by_it():
    made = Roce().event("gpu002", "error", STALL - 0.5)
    w = made.made()
    w.job = replace(w.job, nodes=tuple(replace(n, name="gpu002.b") if n.name == "gpu004" else n for n in w.job.nodes))
    assert w.evidence().derive(spoken).events == ()


def test_a_host_that_is_no_node_of_the_job_names_no_port():
    made = Roce().event("login1", "error", STALL - 0.5)
    assert made.made().evidence().derive(spoken).events == ()
    assert made.fact("links.flapped_in_onset").value == 0


def test_the_launchers_prefix_tells_the_host_where_the_line_does_not():
    made = Roce().event("gpu002", "error", STALL - 0.5)
    hit = made.hits[0]
    made.hits = [{**hit, "prefix": "gpu002", "groups": {k: v for k, v in hit["groups"].items() if k != "host"}}]
    assert [event.node for event in made.made().evidence().derive(spoken).events] == ["gpu002"]


def test_hostile_answers_are_left_out():
    made = Roce().outage("gpu002", STALL - 0.5, 4.0)
    made.events["gpu003"] = [
        {"id": "link_down", "at": True, "groups": {"nic": NETDEV}}, {"id": "link_down", "at": 1e300, "groups": {"nic": NETDEV}},
        {"id": "link_down", "at": "x", "groups": None}, "text", None,
        {"id": "link_down", "at": STALL, "groups": {"nic": 7}, "times": {"a": 1}, "count": "many"},
    ]  # fmt: skip
    made.shows("gpu004", "no list", [{"name": 7}, None, {"name": "mlx5_0", "kind": "infiniband", "counters": []}])
    made.hits = [
        {"id": "nccl_ib_port_event", "groups": "x"},
        {"id": "nccl_ib_retry_exceeded", "groups": {"peer": 3}},
        7,
    ]
    flapped, tied, survived = made.facts("links.flapped_in_onset", "links.tied", "links.survived")
    assert where(flapped) == [("gpu002", DEVICE)] and tied.value == 0 and survived.value == 0


def test_a_job_without_ports_or_logs_knows_nothing():
    w = World()
    for name in (
        "links.flapped_in_onset",
        "links.tied",
        "links.named",
        "links.outlasted",
        "links.survived",
        "links.down_now",
    ):
        found = w.fact(name)
        assert not found.known and found.reason and "please report" not in found.reason
