"""The relay and its card behave as two RDMA cards and a cable do: they wait, they give up, they never tell of a death."""

from __future__ import annotations

import json
import random
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from drill_helpers import wait_for
from triage.probes import nic
from triage.probes._nic_counters import whole
from triage.probes._probe import Ctx

from triage.drill import cards, fabric
from triage.drill.cards import RoceCard
from triage.drill.door import Door
from triage.drill.fabric import Address, Relay

BUDGET_S = 0.35


def listening() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    return listener


class End:
    """One node of two: its relay, its card, and a listening socket in the place of its rank."""

    def __init__(self, sysfs: Path, rank: int) -> None:
        (sysfs / "spool").mkdir(parents=True)
        self.sysfs, self.rank = sysfs, rank
        self.card = RoceCard(sysfs, sysfs / "spool", "eth1", "mlx5_3", cards.FABRIC, rank, "28.39.1014")
        self.listener, self.inside = listening(), listening()
        self.address: Address = self.listener.getsockname()
        self.told: list[tuple[int, Address]] = []

    def start(self, other: End) -> None:
        self.relay = Relay(
            Door(self.listener), {self.rank: self.inside.getsockname()}, {other.rank: other.address}, self.card,
            BUDGET_S, lambda rank, peer: self.told.append((rank, peer)),
        )  # fmt: skip
        self.relay.start()

    def errors(self) -> tuple[int, int]:
        """(acknowledgement time-outs, exhausted retries) since the card was made."""
        return self.card.errors["local_ack_timeout_err"], self.card.errors["req_transport_retries_exceeded"]


class Wire:
    """A rank 0 that sends to a rank 1 on another node, through both relays."""

    def __init__(self, folder: Path) -> None:
        self.left, self.right = End(folder / "left", 0), End(folder / "right", 1)
        self.left.start(self.right)
        self.right.start(self.left)
        self.sender = socket.create_connection(self.left.address)
        self.sender.sendall(json.dumps({"to": 1, "from": 0, "group": "0"}).encode() + b"\n")
        self.receiver, _ = self.right.inside.accept()
        hello = b""
        while not hello.endswith(b"\n"):
            hello += self.receiver.recv(1)
        self.ready = self.left.errors(), self.right.errors()

    def arrives(self, within: float) -> bytes:
        """What the receiver gets within that time: b"" is silence. An end of the connection is an error."""
        self.receiver.settimeout(within)
        try:
            piece = self.receiver.recv(1 << 16)
        except TimeoutError:
            return b""
        assert piece, "the receiver sees an end"
        return piece


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    made = Wire(tmp_path)
    yield made
    made.sender.close()
    made.receiver.close()


def test_a_piece_that_waits_for_less_than_the_budget_arrives_and_nobody_is_told(wire: Wire) -> None:
    for end in (wire.left, wire.right):
        end.relay.set_link(False)
        wire.sender.sendall(b"abc")
        assert wire.arrives(0.15) == b""
        end.relay.set_link(True)
        assert wire.arrives(1) == b"abc"
    assert wire.left.told == wire.right.told == []
    timeouts, exhausted = (now - then for now, then in zip(wire.left.errors(), wire.ready[0], strict=True))
    assert timeouts >= 2 and exhausted == 0  # the requester's card counts, whichever cable it was
    assert wire.right.errors() == wire.ready[1]


@pytest.mark.parametrize("cut", ["left", "right"])
def test_a_piece_that_waits_for_longer_is_lost_and_the_connection_is_in_error_for_ever(wire: Wire, cut: str) -> None:
    end = getattr(wire, cut)
    end.relay.set_link(False)
    wire.sender.sendall(b"abc")
    wait_for(lambda: wire.left.told, BUDGET_S + 2)
    end.relay.set_link(True)
    wire.sender.sendall(b"def")
    assert wire.arrives(0.3) == b""
    assert wire.left.told == [(0, wire.right.address)] and wire.right.told == []
    timeouts, exhausted = (now - then for now, then in zip(wire.left.errors(), wire.ready[0], strict=True))
    assert (timeouts, exhausted) == (fabric.TRIES, 1) and wire.right.errors() == wire.ready[1]
    wire.sender.settimeout(0.1)
    with pytest.raises(TimeoutError):  # open and silent, not ended
        wire.sender.recv(1)


def test_a_connection_on_which_nothing_was_sent_survives_the_longest_outage(wire: Wire) -> None:
    for end in (wire.left, wire.right):
        end.relay.set_link(False)
        time.sleep(2 * BUDGET_S)
        end.relay.set_link(True)
        wire.sender.sendall(b"abc")
        assert wire.arrives(1) == b"abc"
    assert wire.left.told == [] and wire.left.errors() == wire.ready[0]


def test_the_budget_is_that_of_the_piece_and_not_of_the_outage(wire: Wire) -> None:
    wire.right.relay.set_link(False)
    time.sleep(BUDGET_S)
    wire.sender.sendall(b"late")
    assert wire.arrives(0.1) == b""
    wire.right.relay.set_link(True)
    assert wire.arrives(1) == b"late" and wire.left.told == []


def test_a_relay_that_wakes_up_late_judges_by_what_was(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine a thread may sleep for a second after the link came back in time.
    waited = fabric.Link.wait

    def late(self: fabric.Link, until: float | None) -> float | None:
        answer = waited(self, until)
        time.sleep(2 * BUDGET_S)
        return answer

    wire.left.relay.set_link(False)
    monkeypatch.setattr(fabric.Link, "wait", late)
    threading.Timer(0.1, wire.left.relay.set_link, (True,)).start()
    wire.sender.sendall(b"abc")
    assert wire.arrives(4) == b"abc" and wire.left.told == []


def test_nobody_learns_of_a_death_by_an_end_or_a_reset(wire: Wire) -> None:
    wire.sender.close()
    assert wire.arrives(0.2) == b""
    other = Wire(wire.left.sysfs.parent / "other")
    other.receiver.close()
    other.sender.sendall(b"abc")
    time.sleep(0.1)
    other.sender.sendall(b"def")
    other.sender.settimeout(0.2)
    with pytest.raises(TimeoutError):
        other.sender.recv(1)
    other.sender.close()


def test_a_fabric_address_without_link_answers_nobody_and_is_there_again_afterwards(wire: Wire) -> None:
    wire.right.relay.set_link(False)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            socket.create_connection(wire.right.address, timeout=0.15)
    late = socket.socket()
    late.setblocking(False)
    late.connect_ex(wire.right.address)  # its SYN is repeated after a second
    wire.right.relay.set_link(True)
    with socket.create_connection(wire.right.address, timeout=1):
        pass
    repeated = select.poll()
    repeated.register(late, select.POLLOUT)
    assert repeated.poll(4000) and late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    late.close()
    wire.sender.sendall(b"abc")
    assert wire.arrives(1) == b"abc"


def test_callers_who_say_nothing_or_nonsense_do_no_harm(wire: Wire) -> None:
    callers = [socket.create_connection(wire.right.address, timeout=1) for _ in range(150)]
    for caller in callers[::2]:
        caller.close()
    for words in (
        b"GET / HTTP/1.0\r\n\r\n",
        b"\0" * 5000,
        b'{"to": 99, "from": 0}\n',
        b'{"to": 1}\n',
        b"[]\n",
        b"null\n",
    ):
        callers.append(socket.create_connection(wire.right.address, timeout=1))
        callers[-1].sendall(words)
    for number in range(50):
        wire.sender.sendall(b"%02d" % number)
        assert wire.arrives(1) == b"%02d" % number
    for caller in callers:
        caller.close()
    with socket.create_connection(wire.right.address, timeout=1) as caller:
        caller.settimeout(0.1)
        with pytest.raises(TimeoutError):
            caller.recv(1)


def test_the_probe_sees_one_port_twice_and_payload_on_the_rdma_device_alone(wire: Wire) -> None:
    def look(end: End) -> dict[str, dict[str, object]]:
        end.card.write_counters()
        return {told["name"]: told for told in whole(nic.collect(Ctx(sysfs=str(end.sysfs), procfs=str(end.sysfs))))}

    before = look(wire.left), look(wire.right)
    sent = 0
    noise = random.Random(1)
    for _ in range(20):
        count = 4 * noise.randrange(1, 9000)
        wire.sender.sendall(b"x" * count)
        sent += count
        got = 0
        while got < count:
            got += len(wire.arrives(1))
    after = look(wire.left), look(wire.right)
    for old, new, way, other in (
        (before[0], after[0], "tx_bytes", "rx_bytes"),
        (before[1], after[1], "rx_bytes", "tx_bytes"),
    ):
        assert set(new) == {"mlx5_3", "eth1"} and new["mlx5_3"]["netdev"] == "eth1"
        assert new["mlx5_3"][way] - old["mlx5_3"][way] == sent and new["mlx5_3"][other] == old["mlx5_3"][other]
        assert new["eth1"] == old["eth1"]
        assert (new["mlx5_3"]["kind"], new["eth1"]["kind"]) == ("infiniband", "ethernet")
        assert (new["mlx5_3"]["state"], new["mlx5_3"]["phys_state"]) == ("ACTIVE", "LinkUp")
        assert new["mlx5_3"]["link_layer"] == "Ethernet" and new["mlx5_3"]["saturated"] == []
        assert {new[name]["speed_mbps"] for name in new} == {100_000}
        assert {new[name]["driver"] for name in new} == {"mlx5_core"}
    wire.left.card.set_link(False)
    down = look(wire.left)
    assert (down["mlx5_3"]["state"], down["mlx5_3"]["phys_state"]) == ("DOWN", "Disabled")
    assert (down["eth1"]["state"], down["eth1"]["carrier"], down["eth1"]["speed_mbps"]) == ("down", 0, None)
    assert down["eth1"]["carrier_changes"] == after[0]["eth1"]["carrier_changes"] + 1
    assert down["eth1"]["carrier_down_count"] == after[0]["eth1"]["carrier_down_count"] + 1
    downed = [looked["mlx5_3"]["counters"]["link_downed"] for looked in (after[0], down)]
    assert downed[1] == downed[0] + 1


def test_link_downed_sticks_at_its_maximum_as_the_real_one_does(tmp_path: Path) -> None:
    end = End(tmp_path / "end", 0)
    end.card.link_downed = 253
    for _ in range(4):
        end.card.count_only()
    answer = nic.collect(Ctx(sysfs=str(end.sysfs), procfs=str(end.sysfs)))  # no process names a device: all are read
    (port,) = (told for told in whole(answer) if told["name"] == "mlx5_3")
    assert port["counters"]["link_downed"] == 255 and port["saturated"] == ["link_downed"]


def test_counts_of_many_threads_are_not_lost(tmp_path: Path) -> None:
    end = End(tmp_path / "end", 0)
    before = end.card.payload["rx"]

    def count() -> None:
        for _ in range(3000):
            end.card.add("rx", 7)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert end.card.payload["rx"] == before + 4 * 3000 * 7
