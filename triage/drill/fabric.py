"""One fake node's training network: the relay that all its traffic to other nodes takes, and the NIC that counts it.

A connection that enters the relay begins with one JSON line {"to": rank, ...}. For a rank of this node it goes on to
that rank, else to the relay of the rank's node. Behaves as a lossless fabric does (notes/prototype-findings.md 1.3): an
EOF or reset of one side is swallowed and the other side left open and silent; while the link is down nothing moves and
no byte is lost.
"""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

Address = tuple[str, int]
PIECE = 1 << 16
TICK_S = 0.2


class Nic:
    """A network card in a sysfs folder: class/net/<name>. Files change by rename: nobody ever reads half of one."""

    def __init__(self, sysfs: Path, name: str, spool: Path, *, driver: str, speed_mbps: int, seed: int) -> None:
        rng = random.Random(f"{seed}/{name}")
        self.folder = sysfs / "class" / "net" / name
        self.name = name
        self.spool = spool / f"{name}.new"
        self.written: dict[str, str] = {}
        (self.folder / "statistics").mkdir(parents=True)
        driver_folder = sysfs / "bus" / "pci" / "drivers" / driver
        driver_folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "device").mkdir()
        (self.folder / "device" / "driver").symlink_to(os.path.relpath(driver_folder, self.folder / "device"))
        # A card that lives since boot has a history: only what changes between two looks says anything.
        ups = rng.randint(1, 4)
        self.ups, self.downs = ups, ups - 1
        self.counters = dict.fromkeys(("rx_dropped", "tx_dropped", "rx_errors", "tx_errors", "multicast"), 0)
        self.counters |= {"rx_bytes": rng.randrange(10**12, 10**14), "tx_bytes": rng.randrange(10**12, 10**14)}
        self.counters |= {f"{way}_packets": self.counters[f"{way}_bytes"] // 3000 for way in ("rx", "tx")}
        self.counters["rx_dropped"] = rng.randint(0, 2000)
        mac = [0x0C, 0x42, 0xA1, *(rng.randrange(256) for _ in range(3))]
        fixed = {"speed": speed_mbps, "mtu": 9000, "type": 1, "address": ":".join(f"{byte:02x}" for byte in mac)}
        for file, value in (fixed | {"duplex": "full", "dev_id": "0x0", "flags": "0x1003"}).items():
            self.put(file, str(value))
        self.set_link(True, count=False)
        self.write_counters()

    def put(self, file: str, value: str) -> None:
        if self.written.get(file) == value:
            return
        try:
            self.spool.write_text(value + "\n")
            os.replace(self.spool, self.folder / file)
            self.written[file] = value
        except OSError:
            pass  # the folder goes away when the cluster closes

    def set_link(self, up: bool, count: bool = True) -> None:
        if count:
            self.ups += up
            self.downs += not up
        self.put("operstate", "up" if up else "down")
        self.put("carrier", "1" if up else "0")
        self.put("carrier_up_count", str(self.ups))
        self.put("carrier_down_count", str(self.downs))
        self.put("carrier_changes", str(self.ups + self.downs))

    def add(self, way: str, count: int) -> None:
        self.counters[f"{way}_bytes"] += count
        self.counters[f"{way}_packets"] += 1

    def write_counters(self) -> None:
        for name, value in self.counters.items():
            self.put(f"statistics/{name}", str(value))


class Relay:
    """All relayed connections of a node: two threads each, one a direction, blocked in recv most of the time.

    `ranks` gives the port of each rank of this node, `routes` the relay of each other rank. Bytes are counted on `nic`:
    `tx` from a rank of this node outwards, `rx` the other way.
    """

    def __init__(
        self, listener: socket.socket, ranks: Mapping[int, Address], routes: Mapping[int, Address], nic: Nic
    ) -> None:
        self.listener, self.ranks, self.routes, self.nic = listener, ranks, routes, nic
        self.up = threading.Event()
        self.up.set()
        self.kept: list[socket.socket] = []  # every end ever opened: none is closed, so nobody learns of a death

    def start(self) -> None:
        threading.Thread(target=self.accept_all, daemon=True).start()

    def set_link(self, up: bool) -> None:
        """Cut the cable, or plug it in again."""
        if up != self.up.is_set():
            self.nic.set_link(up)
            (self.up.set if up else self.up.clear)()

    def accept_all(self) -> None:
        while True:
            try:
                incoming, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.open, args=(incoming,), daemon=True).start()

    def open(self, incoming: socket.socket) -> None:
        """Read who is wanted, connect to there, and pass on both ways. What makes no sense is closed."""
        line = b""
        try:
            incoming.settimeout(10)
            while not line.endswith(b"\n") and len(line) < 4096:
                byte = incoming.recv(1)
                if not byte:
                    return incoming.close()
                line += byte
            wanted = int(json.loads(line)["to"])
            here = wanted in self.ranks
            self.up.wait()
            outgoing = socket.create_connection(self.ranks[wanted] if here else self.routes[wanted], timeout=10)
            outgoing.sendall(line)
        except (OSError, ValueError, KeyError, TypeError):
            return incoming.close()
        for end in (incoming, outgoing):
            end.settimeout(None)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.kept.append(end)
        ways = ("rx", "tx") if here else ("tx", "rx")
        threading.Thread(target=self.forward, args=(outgoing, incoming, ways[1]), daemon=True).start()
        self.forward(incoming, outgoing, ways[0])

    def forward(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        """Pass on what comes until it ends, and then do not pass on the end. A cut holds back, it does not lose."""
        try:
            while piece := source.recv(PIECE):
                self.up.wait()
                self.nic.add(way, len(piece))
                sink.sendall(piece)
        except OSError:
            return


def tick(nics: list[Nic], management: Nic) -> None:
    """Write the counters a few times a second, for ever. Management always chatters a little: that is no progress."""
    rng = random.Random(management.name)
    while True:
        time.sleep(TICK_S)
        management.add("rx", rng.randrange(60, 400))
        for nic in nics:
            nic.write_counters()
