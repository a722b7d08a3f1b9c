"""Counters of ports on the node: whose are read, how they are sent, and trees that want to harm."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_nic_probe import Sysfs
from triage.probes import _nic_chosen, _nic_counters, _nic_ethtool, _nic_sockets, nic
from triage.probes._probe import Absent, Ctx

from triage.facts.ports import _whole_record
from triage.readers.shapes import problem


class Node(Sysfs):
    """A sysfs, and a procfs with ranks in it."""

    def rank(self, pid: int, **env: str) -> None:
        folder = self.root / "proc" / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_text(f"{pid} (python3) S 1 1 1 0 -1 0 " + "0 " * 8 + "20 0 4 0 100 0 0\n")
        (folder / "environ").write_bytes(b"\0".join(f"{k}={v}".encode() for k, v in {"RANK": "0", **env}.items()))
        (folder / "cmdline").write_bytes(b"python3\0train.py\0")

    def answer(self, seconds: float = 3.0) -> dict[str, Any]:
        until = time.monotonic() + seconds
        data = nic.collect(
            Ctx(sysfs=str(self.root), procfs=str(self.root / "proc"), rootfs=str(self.root / "fs"), deadline=until)
        )
        assert problem("nic", json.loads(json.dumps(data, allow_nan=False))) is None
        return data  # type: ignore[no-any-return]

    def told(self, name: str) -> dict[str, Any]:
        """A port as the facts see it, its zeros put back."""
        data = self.answer()
        record = next(n for n in data["nics"] if n["name"] == name)
        return dict(_whole_record(record, data["names"]))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


# ---------------------------------------------------------------- whose


def test_only_the_devices_that_the_ranks_name_have_their_counters_read(node) -> None:
    for device in ("mlx5_0", "mlx5_1", "mlx5_10"):
        node.port(device, link_downed="3", port_rcv_data="5")
    node.rank(100, NCCL_IB_HCA="=mlx5_0,mlx5_1")
    data = node.answer()
    assert data["chosen"] == "environment"
    assert {n["name"]: (n["unread"], n["counters"].get("link_downed")) for n in data["nics"]} == {
        "mlx5_0": (None, 3),
        "mlx5_1": (None, 3),
        "mlx5_10": (nic.NOT_NAMED, None),
    }
    assert [n["state"] for n in data["nics"]] == ["ACTIVE"] * 3  # whether it has link is asked of all


def test_without_a_name_in_the_environment_all_are_read_and_it_says_so(node) -> None:
    node.port("mlx5_0", link_downed="3")
    node.rank(100)
    data = node.answer()
    assert data["chosen"] == "nobody" and data["nics"][0]["counters"]["link_downed"] == 3


def test_one_rank_without_a_list_may_use_every_device(node) -> None:
    node.port("mlx5_0", link_downed="3")
    node.rank(100, NCCL_IB_HCA="mlx5_7")
    node.rank(101, RANK="1")
    assert node.answer()["nics"][0]["unread"] is None


@pytest.mark.parametrize(
    ("hca", "device", "mine"),
    [
        ("mlx5_1", "mlx5_10", True),  # a prefix
        ("=mlx5_1", "mlx5_10", False),
        ("mlx5_1:1", "mlx5_1", True),
        ("^mlx5_9", "mlx5_9", False),
        ("^mlx5_9", "mlx5_1", True),
        ("^=mlx5_1", "mlx5_10", True),
        ("", "mlx5_10", True),
        (",,", "mlx5_10", True),
    ],
)
def test_a_list_is_read_as_nccl_reads_it(hca: str, device: str, mine: bool) -> None:
    assert _nic_chosen.Chosen([{"NCCL_IB_HCA": hca}]).device(device) is mine


def test_a_job_that_leaves_rdma_alone_has_no_device(node) -> None:
    node.port("mlx5_0", link_downed="3")
    node.rank(100, NCCL_IB_DISABLE="1")
    assert node.answer()["nics"][0]["unread"] == nic.NOT_NAMED


def test_drivers_are_asked_for_the_statistics_of_the_jobs_netdevs_only() -> None:
    def row(name: str, netdev: str | None = None, unread: str | None = None, carrier: int | None = 1) -> dict[str, Any]:
        device = netdev is not None
        return {
            "name": name, "netdev": netdev if device else name, "link_layer": "Ethernet", "unread": unread,
            "driver": "mlx5_core", "carrier": None if device else carrier, "kind": "infiniband" if device else "ethernet",
        }  # fmt: skip

    nics = [
        row("mlx5_0", "rail0"),
        row("mlx5_9", "restricted0", nic.NOT_NAMED),
        row("rail0"),
        row("restricted0"),
        row("eno1"),
    ]
    chosen = _nic_chosen.Chosen([{"NCCL_IB_HCA": "mlx5_0", "NCCL_SOCKET_IFNAME": "=eno1"}])
    assert nic.wanted(chosen, nics) == ["rail0", "eno1"]
    nobody = _nic_chosen.Chosen([])
    assert nic.wanted(nobody, [row("eth0"), row("eth1", carrier=0)]) == ["eth0"]


def test_ranks_that_do_not_let_themselves_be_read_do_not_cost_the_ports(node, monkeypatch) -> None:
    node.port("mlx5_0", link_downed="3")
    for pid in range(100, 116):
        node.rank(pid, RANK=str(pid), NCCL_IB_HCA="mlx5_0")
    read = nic.slurp

    def hangs(path: str, limit: int = 262144) -> Any:
        while int(path.split("/")[-2]) > 103:
            time.sleep(0.02)
        return read(path, limit)

    monkeypatch.setattr(nic, "slurp", hangs)
    began = time.monotonic()
    data = node.answer()
    assert data["nics"][0]["counters"]["link_downed"] == 3 and time.monotonic() - began < 2.0


# ---------------------------------------------------------------- on the wire


@given(
    st.lists(
        st.dictionaries(st.text("abcdef_0123", min_size=1, max_size=6), st.none() | st.integers(0, 3), max_size=12),
        max_size=6,
    )
)
def test_what_was_packed_comes_back_and_absent_unread_and_zero_stay_apart(ports: list[dict[str, int | None]]) -> None:
    names, rest, zeros, values = _nic_counters.pack(ports)
    for sent, whole in zip(zip(rest, zeros, values), ports, strict=True):
        record = dict(zip(("counters", "zeros", "values"), sent))
        assert _whole_record(record, names)["counters"] == whole


@given(st.lists(st.integers(-5, 9), max_size=9), st.lists(st.text(max_size=3), max_size=4))
def test_values_at_places_that_are_not_there_are_left_out(values: list[int], names: list[str]) -> None:
    assert set(_nic_counters.unpack(names, {}, "", values)) <= set(names)


@given(st.text(max_size=40), st.lists(st.text(max_size=4), max_size=5))
def test_places_that_a_node_makes_up_never_name_more_than_there_is(text: str, names: list[str]) -> None:
    assert len(_nic_counters.unfold(text, names)) <= len(names)


@pytest.mark.parametrize("text", ["0+99999", "0+2,0+2,0+2", "7", "1+0", "-1", "0+2,x", "٣"])
def test_wrong_places_are_left_out(text: str) -> None:
    assert (
        set(_nic_counters.unfold(text, ["a", "b"])) <= {"a", "b"} and len(_nic_counters.unfold(text, ["a", "b"])) <= 2
    )


def test_a_node_with_eight_healthy_ports_sends_little(node) -> None:
    for index in range(8):
        zeros = {f"hardware_counter_number_{i}": "0" for i in range(60)}
        counts = {f"another_counter_number_{i}": str(10**11 + index) for i in range(20)}
        node.port(f"mlx5_{index}", port_rcv_data="81100000", **zeros, **counts)
    assert len(json.dumps(node.answer(), separators=(",", ":"))) < 10_000


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("rx_prio3_pause", True),
        ("tx_pfc_ena_frames_pri7", True),
        ("rx_crc_errors_phy", True),
        ("link_down_events_phy", True),
        ("bw_in_allowance_exceeded", True),
        ("rx_priority_0_xoff.nic", True),
        ("rx3_xdp_drops", False),
        ("rx_queue_3_drops", False),
        ("[12]: rx_discards", False),
        ("ch7_poll_errs", False),
        ("tx_256_to_511_bytes_phy", False),
        ("x_err" * 40, False),
    ],
)
def test_of_thousands_of_statistics_those_of_the_wire_are_kept(name: str, kept: bool) -> None:
    assert _nic_counters.keep(name) is kept


def test_more_statistics_than_an_answer_holds_are_counted() -> None:
    found, more = _nic_counters.kept({f"some_err_{i}": i for i in range(500)})
    assert len(found) == 128 and more == 372


# ---------------------------------------------------------------- TCP

SNMP = "Ip: Forwarding\nIp: 1\nTcp: RtoAlgorithm OutSegs RetransSegs MaxConn\nTcp: 1 3831442 678 -1\n"
NETSTAT = "TcpExt: SyncookiesSent TCPTimeouts TCPSynRetrans\nTcpExt: 0 9 2\nIpExt: InNoRoutes InCEPkts\nIpExt: 0 4\n"


def test_tcp_is_read_by_names_and_never_by_column() -> None:
    assert _nic_counters.tcp(SNMP, NETSTAT) == {
        "OutSegs": 3831442, "RetransSegs": 678, "TCPTimeouts": 9, "TCPSynRetrans": 2, "InCEPkts": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", [None, "", "Tcp:", "Tcp: OutSegs\n", "Tcp: OutSegs\nTcp: 1 2\n", "Tcp: 1\nTcp: 2\n", "\n\n:\n:"]
)
def test_a_broken_table_of_tcp_tells_nothing(text: str | None) -> None:
    assert _nic_counters.tcp(text) == {}


SS = """0      0      127.0.0.1:47895 127.0.0.1:37024
\t bbr wscale:10,10 rto:204 segs_out:51 segs_in:53 retrans:0/9 rcv_space:65483
0      0      10.88.0.11%rail0:40212 10.88.0.12:29600
\t cubic wscale:7,7 rto:204 bytes_sent:9 bytes_retrans:7 segs_out:81234 segs_in:5 busy:5140ms rwnd_limited:20ms(0.4%) retrans:1/37 rcv_space:1
ESTAB 0      0      [::ffff:10.88.0.11]:22 [::ffff:10.88.0.1]:50123
\t cubic segs_out:9 segs_in:5
0 0 [fe80::1%eno1]:5 [fe80::2]:6 cubic segs_out:70
0      0      10.88.0.11:1 10.88.0.13:2
0      0      10.88.0.11:3 10.88.0.13:4
\t cubic no details
"""


def test_connections_are_read_with_their_peers_and_what_was_sent_again() -> None:
    assert _nic_sockets.parse(SS) == [
        ["10.88.0.11%rail0:40212", "10.88.0.12:29600", 81234, 37, 5120],
        ["[fe80::1%eno1]:5", "[fe80::2]:6", 70, 0, 0],
        ["[::ffff:10.88.0.11]:22", "[::ffff:10.88.0.1]:50123", 9, 0, 0],
    ]
    assert [_nic_sockets.host(row[0]) for row in _nic_sockets.parse(SS)] == ["10.88.0.11", "fe80::1", "10.88.0.11"]


@given(st.text(max_size=300))
def test_whatever_the_list_of_connections_holds_it_is_read_without_harm(text: str) -> None:
    assert len(_nic_sockets.parse(text)) <= _nic_sockets.MOST


def test_of_many_connections_the_busiest_are_told() -> None:
    lines = "".join(f"0 0 10.0.0.1:{i} 10.0.0.2:9\n\t cubic segs_out:{i}\n" for i in range(5000))
    found = _nic_sockets.parse(lines)
    assert len(found) == _nic_sockets.MOST and found[0][2] == 4999


# ---------------------------------------------------------------- statistics of drivers


def test_names_and_values_of_a_driver_are_put_together() -> None:
    raw = b"rx_packets".ljust(32, b"\0") + b"tx_prio3_pause".ljust(32, b"\0") + b"\xff\x01".ljust(32, b"\0")
    names = _nic_ethtool.names_of(raw, 3)
    assert names == ["rx_packets", "tx_prio3_pause", None]
    assert _nic_ethtool.pairs(names, _nic_ethtool.values_of(struct.pack("=3Q", 7, 2**64 - 1, 9), 3)) == {
        "rx_packets": 7,
        "tx_prio3_pause": 2**64 - 1,
    }


def test_a_name_that_a_driver_uses_twice_tells_nothing() -> None:
    assert _nic_ethtool.pairs(["a", "b", "a", "a"], [1, 2, 3, 4]) == {"b": 2}


def test_this_machines_drivers_are_asked_and_one_that_is_not_there_is_no_error() -> None:
    found, stuck = _nic_ethtool.statistics(["lo", "no-such-netdev-here", "x" * 300], lambda: 3.0)
    assert stuck == [] and set(found) == {"lo", "no-such-netdev-here", "x" * 300}
    assert found["no-such-netdev-here"] == {}


def test_a_driver_that_never_answers_costs_only_itself(monkeypatch) -> None:
    def asked(sock: Any, device: str) -> dict[str, int]:
        while device == "hangs":
            time.sleep(0.05)
        return {"rx_crc_errors_phy": 1}

    monkeypatch.setattr(_nic_ethtool, "of_device", asked)
    found, stuck = _nic_ethtool.statistics(["rail0", "hangs", "rail1"], lambda: 3.0)
    assert stuck == ["hangs"] and set(found) == {"rail0", "rail1"}


# ---------------------------------------------------------------- Slingshot


def test_slingshot_tells_its_telemetry_and_its_retry_handler_on_its_netdev(node) -> None:
    pci = node.root / "devices" / "0000:17:00.0"
    pci.mkdir(parents=True)
    node.netdev("hsn0")
    os.symlink(pci, node.root / "class/net/hsn0/device")
    node.write("class/cxi/cxi0/name", "x")
    os.symlink(pci, node.root / "class/cxi/cxi0/device")
    (pci / "telemetry").mkdir()
    (pci / "telemetry" / "hni_pause_recv_3").write_text("811@1790000000.000000001\n")
    (pci / "telemetry" / "hni_unrelated").write_text("5@1790000000.0\n")
    (node.root / "fs/run/cxi/cxi0").mkdir(parents=True)
    (node.root / "fs/run/cxi/cxi0/sct_timeouts").write_text("4\n")
    counters = node.told("hsn0")["counters"]
    assert counters["hni_pause_recv_3"] == 811 and counters["rh_sct_timeouts"] == 4
    assert "hni_unrelated" not in counters


# ---------------------------------------------------------------- trees that want to harm


def test_a_folder_of_ten_thousand_counters_is_cut_and_ends_in_time(node) -> None:
    node.port("mlx5_0")
    folder = node.root / "class/infiniband/mlx5_0/ports/1/counters"
    folder.mkdir()
    for index in range(10_000):
        (folder / f"c{index:05d}").write_text("1\n")
    began = time.monotonic()
    (told,) = node.answer()["nics"]
    assert len(told["counters"]) == nic.MAX_COUNTERS and time.monotonic() - began < 3.0


def test_ten_thousand_devices_are_cut_and_said(node) -> None:
    folder = node.root / "class/infiniband"
    for index in range(10_000):
        (folder / f"mlx5_{index}").mkdir(parents=True)
    node.port("mlx5_0")
    began = time.monotonic()
    assert len(node.answer()["nics"]) <= nic.MAX_NICS and time.monotonic() - began < 4.0


def test_links_in_a_circle_pipes_and_folders_in_the_place_of_files_are_unreadable_and_no_more(node) -> None:
    node.port("mlx5_0", link_downed="3", aaa="1")
    folder = node.root / "class/infiniband/mlx5_0/ports/1/counters"
    os.symlink("circle", folder / "circle")
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    os.symlink("/dev/zero", folder / "zero")
    os.symlink(node.root / "class", node.root / "class/infiniband/mlx5_0/device")
    told = node.told("mlx5_0")
    assert told["counters"]["link_downed"] == 3
    assert [told["counters"].get(n, "absent") for n in ("circle", "pipe", "folder", "zero")] == [None] * 4
    assert told["pci"] is None


def test_a_value_that_is_no_number_or_a_huge_one_is_unknown(node) -> None:
    node.port("mlx5_0", a="1" * 400, b="-5", c="0x10", d="٣", e="7\n8", f="18446744073709551615")
    counters = node.told("mlx5_0")["counters"]
    assert [counters[n] for n in "abcde"] == [None] * 5 and counters["f"] == 2**64 - 1


def test_names_with_blanks_and_control_characters_are_bounded_text(node) -> None:
    node.port("mlx5_0", **{"RNR received": "4"})
    folder = node.root / "class/infiniband/mlx5_0/ports/1/counters"
    (folder / ("n" * 200)).write_text("1\n")
    told = node.told("mlx5_0")
    assert told["counters"]["RNR received"] == 4 and max(map(len, told["counters"])) <= 64


def test_a_probe_whose_time_is_nearly_over_tells_what_it_has(node) -> None:
    for index in range(40):
        node.port(f"mlx5_{index}", **{f"c{i}": "1" for i in range(20)})
    assert node.answer(seconds=0.35)["nics"]


def test_nothing_there_at_all_is_absent(node) -> None:
    with pytest.raises(Absent):
        node.answer()
