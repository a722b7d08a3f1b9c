"""The network cards of a fake node, as its sysfs shows them: netdevs, and the RDMA device of a RoCE port.

The layout is the kernel's: what stands in class/net and class/infiniband are links to devices/pci..., where the netdev
and the RDMA device of one port are neighbours (that is how `device/net/<nic>` below the RDMA device leads to the netdev).
Files change by rename: nobody ever reads half of one. A card that lives since boot has a history (from the seed): only
what changes between two looks says anything.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Way = Literal["rx", "tx"]
WAYS: tuple[Way, Way] = ("rx", "tx")
TICK_S = 0.2
RDMA_MTU = 4096
LINK_DOWNED_STICKS_AT = 255  # notes/network.md 1.2
# NCCL's RAS keep-alives and the store's heartbeats: some 100 bytes a second (notes/nccl-ras-and-logs.md 1.3).
KEEP_ALIVE_BYTES = (60, 140)
# notes/network.md 1.2 and 1.3: what an mlx5 port has besides.
CONSTANT_COUNTERS = (
    "symbol_error link_error_recovery port_rcv_errors port_rcv_remote_physical_errors port_rcv_switch_relay_errors "
    "port_xmit_discards port_xmit_constraint_errors port_rcv_constraint_errors local_link_integrity_errors "
    "excessive_buffer_overrun_errors VL15_dropped port_xmit_wait multicast_rcv_packets multicast_xmit_packets"
)
HARDWARE_COUNTERS = (
    "local_ack_timeout_err packet_seq_err out_of_sequence implied_nak_seq_err duplicate_request rnr_nak_retry_err "
    "out_of_buffer req_transport_retries_exceeded req_rnr_retries_exceeded req_cqe_error req_cqe_flush_error "
    "resp_cqe_error resp_cqe_flush_error roce_adp_retrans roce_adp_retrans_to np_ecn_marked_roce_packets np_cnp_sent "
    "rp_cnp_handled rp_cnp_ignored rx_icrc_encapsulated lifespan"
)


@dataclass(frozen=True)
class Model:
    """What kind of card it is, and what its driver says of its link."""

    driver: str
    pci: str
    speed_mbps: int
    says_up: str
    says_down: str


FABRIC = Model(
    "mlx5_core", "0000:17:00.0", 100_000, "mlx5_core {pci} {name}: Link up", "mlx5_core {pci} {name}: Link down"
)
SPARE = Model(
    "i40e",
    "0000:65:00.1",
    10_000,
    "i40e {pci} {name}: NIC Link is Up, 10 Gbps Full Duplex, Flow Control: None",
    "i40e {pci} {name}: NIC Link is Down",
)
MANAGEMENT = Model(
    "igb",
    "0000:01:00.0",
    1000,
    "igb {pci} {name}: igb: {name} NIC Link is Up 1000 Mbps Full Duplex, Flow Control: RX/TX",
    "igb {pci} {name}: igb: {name} NIC Link is Down",
)


class Card:
    """One Ethernet port: class/net/<name>."""

    def __init__(self, sysfs: Path, spool: Path, name: str, model: Model, seed: int) -> None:
        self.name, self.model = name, model
        self.spool = spool / f"{name}.new"
        self.written: dict[Path, str] = {}
        self.lock = threading.RLock()
        self.up = True
        rng = random.Random(f"{seed}/{name}")
        self.device = sysfs / "devices" / f"pci{model.pci[:7]}:00" / model.pci
        self.folder = self.device / "net" / name
        (self.folder / "statistics").mkdir(parents=True)
        link(sysfs / "class" / "net" / name, self.folder)
        link(self.folder / "device", self.device)
        driver = sysfs / "bus" / "pci" / "drivers" / model.driver
        driver.mkdir(parents=True, exist_ok=True)
        link(self.device / "driver", driver)
        # The first "down" is booked when the netdev is made (notes/network.md 1.4).
        self.ups = self.downs = rng.randint(1, 4)
        self.counters = dict.fromkeys(("rx_dropped", "tx_dropped", "rx_errors", "tx_errors", "multicast"), 0)
        self.counters |= {f"{way}_bytes": rng.randrange(10**8, 10**11) for way in ("rx", "tx")}
        self.counters |= {f"{way}_packets": self.counters[f"{way}_bytes"] // 800 for way in ("rx", "tx")}
        self.counters["rx_dropped"] = rng.randint(0, 2000)
        mac = [0x0C, 0x42, 0xA1, *(rng.randrange(256) for _ in range(3))]
        fixed = {"mtu": 9000, "type": 1, "address": ":".join(f"{byte:02x}" for byte in mac), "duplex": "full"}
        for file, value in (fixed | {"dev_id": "0x0", "flags": "0x1003"}).items():
            self.put(self.folder / file, value)
        self.write_link()
        self.write_counters()

    def put(self, path: Path, value: object) -> None:
        """The new content of one file. Only while the lock is held: the spool file is one."""
        text = str(value)
        if self.written.get(path) == text:
            return
        try:
            self.spool.write_text(text + "\n")
            os.replace(self.spool, path)
            self.written[path] = text
        except OSError:
            pass  # the folder goes away when the cluster closes

    def set_link(self, up: bool) -> None:
        """The link is lost, or is back: state and counters in one act."""
        with self.lock:
            self.up = up
            self.book(up)
            self.write_link()

    def count_only(self) -> None:
        """Book a loss of link that never was, as some drivers do (notes/network.md 1.4): the state stays what it is."""
        with self.lock:
            self.book(not self.up)
            self.book(self.up)
            self.write_link()

    def book(self, up: bool) -> None:
        self.ups += up
        self.downs += not up

    def write_link(self) -> None:
        up = self.up
        values = {"operstate": "up" if up else "down", "carrier": int(up), "speed": self.model.speed_mbps if up else -1}
        counts = {
            "carrier_up_count": self.ups,
            "carrier_down_count": self.downs,
            "carrier_changes": self.ups + self.downs,
        }
        for file, value in (values | counts).items():
            self.put(self.folder / file, value)

    def chat(self, way: Way, count: int) -> None:
        """One small packet through the netdev itself; none without link."""
        with self.lock:
            if self.up:
                self.counters[f"{way}_bytes"] += count
                self.counters[f"{way}_packets"] += 1

    def write_counters(self) -> None:
        with self.lock:
            for name, value in self.counters.items():
                self.put(self.folder / "statistics" / name, value)

    def says(self, up: bool) -> str:
        """The line that the driver writes to the kernel log when the link changes."""
        return (self.model.says_up if up else self.model.says_down).format(pci=self.model.pci, name=self.name)


class RoceCard(Card):
    """A port that does RDMA over Ethernet: the netdev, and beside it class/infiniband/<hca>.

    Payload bypasses the netdev's own counters, as with RoCE: it is counted on the RDMA device alone, in units of 4 bytes.
    """

    def __init__(self, sysfs: Path, spool: Path, name: str, hca: str, model: Model, seed: int, firmware: str) -> None:
        rng = random.Random(f"{seed}/{hca}")
        self.hca = sysfs / "devices" / f"pci{model.pci[:7]}:00" / model.pci / "infiniband" / hca
        self.port = self.hca / "ports" / "1"
        self.payload: dict[Way, int] = {way: rng.randrange(10**12, 10**14) for way in WAYS}
        self.packets = {way: count // RDMA_MTU for way, count in self.payload.items()}
        self.link_downed = rng.randint(0, 3)
        self.errors = dict.fromkeys(HARDWARE_COUNTERS.split(), 0) | {
            "local_ack_timeout_err": rng.randint(0, 40),
            "out_of_sequence": rng.randint(0, 900),
            "packet_seq_err": rng.randint(0, 300),
            "duplicate_request": rng.randint(0, 300),
            "np_cnp_sent": rng.randint(0, 10**6),
            "rp_cnp_handled": rng.randint(0, 10**6),
            "lifespan": 10,
        }
        for folder in ("counters", "hw_counters", "gids", "gid_attrs/ndevs", "gid_attrs/types"):
            (self.port / folder).mkdir(parents=True)
        super().__init__(sysfs, spool, name, model, seed)
        link(sysfs / "class" / "infiniband" / hca, self.hca)
        link(self.hca / "device", self.device)
        guid = f"0c42:a103:00{rng.randrange(256):02x}:{rng.randrange(1 << 16):04x}"
        device = {"node_type": "1: CA", "fw_ver": firmware, "hca_type": "MT4129", "board_id": "MT_0000000838"}
        for file, value in (device | {"node_guid": guid, "sys_image_guid": guid}).items():
            self.put(self.hca / file, value)
        gid = "0000:0000:0000:0000:0000:ffff:7f00:0001"
        port = {"rate": "100 Gb/sec (4X EDR)", "link_layer": "Ethernet", "lid": "0x0", "gids/0": gid}
        for file, value in (port | {"gid_attrs/ndevs/0": name, "gid_attrs/types/0": "RoCE v2"}).items():
            self.put(self.port / file, value)
        for file in CONSTANT_COUNTERS.split():
            self.put(self.port / "counters" / file, 0)

    def book(self, up: bool) -> None:
        super().book(up)
        self.link_downed = min(LINK_DOWNED_STICKS_AT, self.link_downed + (not up))

    def write_link(self) -> None:
        super().write_link()
        # What mlx5 says of a RoCE port without carrier; Polling is for native InfiniBand.
        self.put(self.port / "state", "4: ACTIVE" if self.up else "1: DOWN")
        self.put(self.port / "phys_state", "5: LinkUp" if self.up else "3: Disabled")
        self.put(self.port / "counters" / "link_downed", self.link_downed)

    def add(self, way: Way, count: int) -> None:
        """Payload of the job: `count` bytes."""
        with self.lock:
            self.payload[way] += count
            self.packets[way] += -(-count // RDMA_MTU)

    def error(self, *names: str) -> None:
        """One more of each of these hardware counters."""
        with self.lock:
            for name in names:
                self.errors[name] += 1

    def write_counters(self) -> None:
        super().write_counters()
        with self.lock:
            for way in WAYS:
                word = "rcv" if way == "rx" else "xmit"
                self.put(self.port / "counters" / f"port_{word}_data", self.payload[way] // 4)
                for kind in ("port", "unicast"):
                    self.put(self.port / "counters" / f"{kind}_{word}_packets", self.packets[way])
            for name, value in self.errors.items():
                self.put(self.port / "hw_counters" / name, value)


def link(place: Path, target: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(os.path.relpath(target, place.parent))


def tick(cards: Sequence[Card], management: Card, fabric: Card, dead: threading.Event) -> None:
    """Write all counters a few times a second until the node is dead.

    Management always chatters a little, and so do keep-alives on the fabric's netdev: neither is progress.
    """
    rng = random.Random(management.name)
    while not dead.wait(TICK_S):
        management.chat("rx", rng.randrange(60, 400))
        if rng.random() < TICK_S:
            for way in WAYS:
                fabric.chat(way, rng.randrange(*KEEP_ALIVE_BYTES))
        for card in cards:
            card.write_counters()
