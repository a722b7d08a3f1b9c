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
import selectors
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


class Link:
    """One direction of a relayed connection: bytes read from `source` and owed to `sink`."""

    def __init__(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        self.source, self.sink, self.way = source, sink, way
        self.owed = b""


class Relay:
    """All relayed connections of a node in one thread.

    `ranks` gives the port of each rank of this node, `routes` the relay of each other rank. Bytes are counted on `nic`:
    `tx` from a rank of this node outwards, `rx` the other way.
    """

    def __init__(
        self, listener: socket.socket, ranks: Mapping[int, Address], routes: Mapping[int, Address], nic: Nic
    ) -> None:
        self.listener, self.ranks, self.routes, self.nic = listener, ranks, routes, nic
        self.up = threading.Event()
        self.up.set()
        self.selector = selectors.DefaultSelector()
        self.wake, self.waker = socket.socketpair()
        self.kept: list[socket.socket] = []  # ends of connections that died: never closed, so nobody learns of it

    def start(self) -> None:
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(self.wake, selectors.EVENT_READ)
        threading.Thread(target=self.run, daemon=True).start()

    def set_link(self, up: bool) -> None:
        """Cut the cable, or plug it in again."""
        if up != self.up.is_set():
            (self.up.set if up else self.up.clear)()
            self.nic.set_link(up)
            self.waker.send(b"x")

    def run(self) -> None:
        while True:
            self.up.wait()
            for key, _ in self.selector.select():
                if not self.up.is_set():
                    break
                if key.fileobj is self.wake:
                    self.wake.recv(4096)
                elif key.fileobj is self.listener:
                    self.accept()
                else:
                    self.forward(key.data)

    def accept(self) -> None:
        try:
            incoming, _ = self.listener.accept()
        except OSError:
            return
        # The opening is rare and short; a thread for it keeps one that says nothing from holding up the others.
        threading.Thread(target=self.open, args=(incoming,), daemon=True).start()

    def open(self, incoming: socket.socket) -> None:
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
            outgoing = socket.create_connection(self.ranks[wanted] if here else self.routes[wanted], timeout=10)
            outgoing.sendall(line)
        except (OSError, ValueError, KeyError, TypeError):
            return incoming.close()
        for end in (incoming, outgoing):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.add(incoming, outgoing, "rx" if here else "tx")
        self.add(outgoing, incoming, "tx" if here else "rx")
        self.waker.send(b"x")

    def add(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        self.selector.register(source, selectors.EVENT_READ, Link(source, sink, way))

    def forward(self, link: Link) -> None:
        try:
            link.owed = link.source.recv(PIECE)
        except BlockingIOError:
            return
        except OSError:
            link.owed = b""
        if not link.owed:
            # EOF or reset: swallowed. The socket is kept, for to close it would tell the other side.
            self.selector.unregister(link.source)
            self.kept.append(link.source)
            return
        self.nic.add(link.way, len(link.owed))
        if not self.deliver(link):
            self.selector.unregister(link.source)
            threading.Thread(target=self.drain, args=(link,), daemon=True).start()

    def deliver(self, link: Link) -> bool:
        """Send what is owed. True when nothing is left; what is meant for a sink that is gone is lost in silence."""
        try:
            link.owed = link.owed[link.sink.send(link.owed) :]
        except BlockingIOError:
            pass
        except OSError:
            link.owed = b""
        return not link.owed

    def drain(self, link: Link) -> None:
        """A full sink is rare (the ring's messages are small): wait for it in a thread, then read on."""
        with selectors.DefaultSelector() as writable:
            writable.register(link.sink, selectors.EVENT_WRITE)
            while not self.deliver(link):
                writable.select()
                self.up.wait()
        self.selector.register(link.source, selectors.EVENT_READ, link)
        self.waker.send(b"x")


def tick(nics: list[Nic], management: Nic) -> None:
    """Write the counters a few times a second, for ever. Management always chatters a little: that is no progress."""
    rng = random.Random(management.name)
    while True:
        time.sleep(TICK_S)
        management.add("rx", rng.randrange(60, 400))
        for nic in nics:
            nic.write_counters()
