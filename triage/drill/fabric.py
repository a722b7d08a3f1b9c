"""One fake node's training network: the relay that all its traffic to other nodes takes.

A connection that enters the relay begins with one JSON line {"to": rank, "from": rank, ...}. For a rank of this node it
goes on to that rank, else to the relay of the rank's node. It stands for a reliable connection of two RDMA cards, and
behaves like one (notes/prototype-findings.md 1.3, notes/network.md 4.2): bytes go one way only, from sender to receiver;
an EOF or reset of one side is swallowed and the other side left open and silent; while the link of either card is down
nothing moves and nothing is lost; a piece that had to wait for longer than the card retries is never delivered, and then
the connection is in error for ever, also when the link is back.

A real sender's card learns by a missing acknowledgement that nobody answers. Here the relay at whose link the piece waits
says so on the way back, which nobody else uses (RETRIED, GAVE_UP): a busy machine must not look like a cut cable, as it
would if missing answers were timed.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from triage.drill.cards import RoceCard, Way
from triage.drill.door import Door

Address = tuple[str, int]
PIECE = 1 << 16
TRIES = 7  # NCCL_IB_RETRY_CNT (notes/network.md 4.2)
RETRIED, GAVE_UP = b"t", b"x"
HELLO_S = 10.0
START_S = 20.0
HEAR_MS = 100
QUIET_MS = 60  # longer than an acknowledgement is held back


class Link:
    """The cable of a node's fabric port. Times are kept, so that a thread that wakes up late judges by what was."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.up = True
        self.since = time.monotonic()

    def set(self, up: bool) -> None:
        with self.changed:
            self.up, self.since = up, time.monotonic()
            self.changed.notify_all()

    def wait(self, until: float | None) -> float | None:
        """When the link came up (long ago, if it is up), or None if it is still down at `until`."""
        with self.changed:
            left = None if until is None else max(0.0, until - time.monotonic())
            self.changed.wait_for(lambda: self.up, left)
            return self.since if self.up else None


@dataclass
class Connection:
    """One way from a sending rank to a receiving rank, as one of the two cards sees it.

    `peer` is the receiving node's fabric address where the sender lives on this node, else None.
    """

    sender: int
    source: socket.socket
    sink: socket.socket
    peer: Address | None
    broken: bool = False
    silent_since: float | None = None  # unacknowledged, over real cables
    tries: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def way(self) -> Way:
        return "rx" if self.peer is None else "tx"


class Relay:
    """All relayed connections of a node: one or two threads each, blocked in recv most of the time.

    `ranks` gives the port of each rank of this node, `routes` the relay of each other rank; payload is counted on `card`.
    `gave_up(rank, peer)` is called once for each connection of a rank of this node whose retries are exhausted.
    """

    def __init__(
        self,
        door: Door,
        ranks: Mapping[int, Address],
        routes: Mapping[int, Address],
        card: RoceCard,
        budget_s: float,
        gave_up: Callable[[int, Address], None],
    ) -> None:
        self.door, self.ranks, self.routes, self.card = door, ranks, routes, card
        self.budget_s, self.gave_up = budget_s, gave_up
        self.counts = True  # payload is counted on the card: it goes by RDMA
        self.link = Link()
        self.sending: list[Connection] = []
        self.kept: list[socket.socket] = []  # every end ever opened: none is closed, so nobody learns of a death

    def start(self) -> None:
        threading.Thread(target=self.door.serve, args=(self.enter,), daemon=True).start()

    def set_link(self, up: bool) -> None:
        """Cut the cable, or plug it in again. Without link the node's fabric address answers nobody."""
        self.link.set(up)
        if up:
            self.door.open()
        else:
            self.door.shut()

    def enter(self, incoming: socket.socket) -> None:
        """Read who is wanted, connect to there, and pass on. Who says nothing or nonsense is let go without harm."""
        try:
            incoming.settimeout(HELLO_S)
            line = b""
            while not line.endswith(b"\n") and len(line) < 4096:
                byte = incoming.recv(1)
                if not byte:
                    return incoming.close()
                line += byte
            hello = json.loads(line)
            wanted, sender = int(hello["to"]), int(hello["from"])
            here = wanted in self.ranks
            self.link.wait(None)
            outgoing = reach(self.ranks[wanted] if here else self.routes[wanted])
            outgoing.sendall(line)
        except (OSError, ValueError, KeyError, TypeError):
            return incoming.close()
        for end in (incoming, outgoing):
            end.settimeout(None)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.kept.append(end)
        connection = Connection(sender, incoming, outgoing, None if here else self.routes[wanted])
        if not here:
            self.sending.append(connection)
            threading.Thread(target=self.hear_back, args=(connection,), daemon=True).start()
        self.forward(connection)

    def forward(self, connection: Connection) -> None:
        """Pass on what comes until it ends, and then do not pass on the end."""
        try:
            while piece := connection.source.recv(PIECE):
                if not self.passes(connection):
                    return
                if self.counts:
                    self.card.add(connection.way, len(piece))
                connection.sink.sendall(piece)
        except OSError:
            return

    def passes(self, connection: Connection) -> bool:
        """Wait with a piece until the link is up. False if the retries ran out first, or had before."""
        began = time.monotonic()
        for number in range(1, TRIES + 1):
            up_at = self.link.wait(began + number * self.budget_s / TRIES)
            if up_at is not None:
                break
            if number < TRIES:
                self.no_answer(connection)
        if up_at is None or up_at - began > self.budget_s:
            self.exhausted(connection)
        return not connection.broken

    def no_answer(self, connection: Connection) -> None:
        """One more time-out of the sender's card."""
        if connection.peer is not None:
            self.card.error("local_ack_timeout_err")
        else:
            tell_back(connection, RETRIED)

    def exhausted(self, connection: Connection) -> None:
        """The sender's card gives up: the connection is in error, and stays open."""
        with connection.lock:
            if connection.broken:
                return
            connection.broken = True
        if connection.peer is not None:
            self.card.error("local_ack_timeout_err", "req_transport_retries_exceeded", "req_cqe_error")
            self.gave_up(connection.sender, connection.peer)
        else:
            tell_back(connection, GAVE_UP)

    def hear_back(self, connection: Connection) -> None:
        """What the other card's relay says of the pieces of a rank of this node."""
        waiting = select.poll()
        waiting.register(connection.sink, select.POLLIN)
        try:
            while True:
                # Never blocked in recv: a socket that a thread still reads is not closed, and goes on sending again.
                if not waiting.poll(HEAR_MS):
                    if connection.broken:
                        return
                    continue
                if not (words := connection.sink.recv(64)):
                    return
                for at in range(len(words)):
                    if words[at : at + 1] == RETRIED:
                        self.no_answer(connection)
                    elif words[at : at + 1] == GAVE_UP:
                        self.exhausted(connection)
        except OSError:
            return

    def watch(self) -> None:
        """Over real cables: what nobody acknowledges is sent again, and given up, as by a sender's card. Does not return.

        TCP's own acknowledgements are those of the peer's kernel, which a busy machine does not delay.
        """
        step = self.budget_s / TRIES
        while True:
            time.sleep(step / 3)
            now = time.monotonic()
            for connection in [one for one in self.sending if not one.broken]:
                if not unacknowledged(connection.sink):
                    connection.silent_since, connection.tries = None, 0
                    continue
                connection.silent_since = since = connection.silent_since or now
                while connection.tries < min(TRIES - 1, int((now - since) / step)):
                    connection.tries += 1
                    self.no_answer(connection)
                if now - since > self.budget_s:
                    self.exhausted(connection)
                    discard(connection.sink)


def reach(address: Address) -> socket.socket:
    """Connect; a node that is not up yet is tried again, as NCCL does."""
    until = time.monotonic() + START_S
    while True:
        try:
            return socket.create_connection(address, timeout=HELLO_S)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def unacknowledged(end: socket.socket) -> bool:
    """Is something under way of which TCP has heard nothing for a while?

    struct tcp_info (linux/tcp.h): unacked stands at 24, the milliseconds since the last acknowledgement at 56. Its count of
    retransmissions does not tell: it rests while the own port has no carrier.
    """
    try:
        told = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64)
    except OSError:
        return False
    return bool(struct.unpack_from("I", told, 24)[0]) and struct.unpack_from("I", told, 56)[0] >= QUIET_MS


def discard(end: socket.socket) -> None:
    """What was never acknowledged is never delivered either."""
    try:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.close()
    except OSError:
        pass


def tell_back(connection: Connection, word: bytes) -> None:
    try:
        connection.source.sendall(word)
    except OSError:
        pass  # the sender's node is gone
