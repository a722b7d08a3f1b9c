"""Ports: absent is unknown, stuck counters say so, restricted functions are left alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from triage.probes import nic
from triage.probes._probe import Absent, Ctx


class Sysfs:
    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def port(self, device: str, state: str = "4: ACTIVE", phys: str = "5: LinkUp", **counters: str) -> None:
        base = f"class/infiniband/{device}/ports/1/"
        for name, text in (
            ("state", state),
            ("phys_state", phys),
            ("link_layer", "InfiniBand"),
            ("rate", "400 Gb/sec (4X NDR)"),
        ):
            self.write(base + name, text)
        for name, text in counters.items():
            self.write(base + "counters/" + name, text)

    def netdev(self, name: str, **files: str) -> None:
        for key, text in {"type": "1", "operstate": "up", "carrier": "1", "speed": "200000", **files}.items():
            self.write(f"class/net/{name}/{key.replace('__', '/')}", text)

    def look(self) -> list[dict[str, Any]]:
        data = nic.collect(Ctx(sysfs=str(self.root), procfs=str(self.root / "proc")))
        json.dumps(data, allow_nan=False)
        return data["nics"]  # type: ignore[no-any-return]


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def test_an_infiniband_port_tells_state_speed_and_bytes(sysfs) -> None:
    sysfs.port("mlx5_0", port_rcv_data="811", port_xmit_data="900", link_downed="3", symbol_error="N/A (no PMA)")
    (told,) = sysfs.look()
    assert (told["kind"], told["state"], told["phys_state"], told["port"]) == ("infiniband", "ACTIVE", "LinkUp", 1)
    assert (told["rx_bytes"], told["tx_bytes"], told["speed_mbps"]) == (3244, 3600, 400000)
    assert told["counters"]["link_downed"] == 3 and told["counters"]["symbol_error"] is None and told["saturated"] == []


def test_a_counter_that_stands_at_its_maximum_says_so_and_its_delta_is_unknown(sysfs) -> None:
    sysfs.port(
        "mlx5_0", link_downed="255", symbol_error="65535", local_link_integrity_errors="15", port_rcv_errors="255"
    )
    assert sysfs.look()[0]["saturated"] == ["link_downed", "local_link_integrity_errors", "symbol_error"]
    assert nic.delta("link_downed", 254, 255) is None and nic.delta("link_downed", 3, 4) == 1
    assert nic.delta("link_downed", 4, 3) is None and nic.delta("link_downed", None, 3) is None


def test_a_port_without_counters_as_in_a_vm_has_unknown_bytes_and_not_zero(sysfs) -> None:
    sysfs.port("rdmap0s31")
    (told,) = sysfs.look()
    assert told["rx_bytes"] is None and told["tx_bytes"] is None and told["counters"] == {}


def test_a_port_that_trains_or_is_down_is_told_as_it_is(sysfs) -> None:
    sysfs.port("mlx5_0", state="1: DOWN", phys="2: Polling")
    sysfs.port("mlx5_1", state="2: INIT")
    assert [(n["state"], n["phys_state"]) for n in sysfs.look()] == [("DOWN", "Polling"), ("INIT", "LinkUp")]


def test_a_restricted_function_is_left_alone_after_two_refusals(sysfs) -> None:
    sysfs.port("mlx5_9")
    counters = sysfs.root / "class/infiniband/mlx5_9/ports/1/counters"
    for name in ("a", "b", "c", "d"):
        (counters / name).mkdir(parents=True)  # a folder in the place of a file reads as an I/O error
    (told,) = sysfs.look()
    assert told["counters"] == {"a": None, "b": None}


def test_a_netdev_tells_carrier_and_bytes_and_an_unreadable_carrier_is_unknown(sysfs) -> None:
    sysfs.netdev(
        "eth0", carrier_changes="4", carrier_down_count="2", statistics__rx_bytes="100", statistics__tx_bytes="200"
    )
    sysfs.netdev("eth1", operstate="down", speed="-1")
    (sysfs.root / "class/net/eth1/carrier").unlink()
    (sysfs.root / "class/net/eth1/carrier").mkdir()  # EINVAL while administratively down
    first, second = sysfs.look()
    assert (first["state"], first["carrier"], first["carrier_changes"], first["carrier_down_count"]) == ("up", 1, 4, 2)
    assert (first["rx_bytes"], first["tx_bytes"], first["speed_mbps"], first["kind"]) == (100, 200, 200000, "ethernet")
    assert (second["state"], second["carrier"], second["speed_mbps"], second["rx_bytes"]) == ("down", None, None, None)


def test_devices_without_a_wire_are_left_out_and_ipoib_is_no_ethernet(sysfs) -> None:
    for name in ("lo", "docker0", "veth12ab", "cali99", "eth0"):
        sysfs.netdev(name)
    sysfs.netdev("ib0", type="32")
    sysfs.write("class/net/bonding_masters", "bond0")
    assert [(n["name"], n["kind"]) for n in sysfs.look()] == [("eth0", "ethernet"), ("ib0", "infiniband")]


def test_a_driver_is_named_through_its_link(sysfs) -> None:
    sysfs.netdev("eth0")
    (sysfs.root / "class/net/eth0/device").mkdir()
    os.symlink("../../bus/pci/drivers/mlx5_core", sysfs.root / "class/net/eth0/device/driver")
    assert sysfs.look()[0]["driver"] == "mlx5_core"


def test_a_node_without_any_port_is_absent_and_not_healthy(sysfs) -> None:
    with pytest.raises(Absent):
        sysfs.look()


def test_this_machine_is_read() -> None:
    for told in nic.collect(Ctx())["nics"]:
        assert told["name"] != "lo" and told["carrier"] in (0, 1, None)
