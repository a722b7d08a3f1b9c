"""Connections to other nodes: real sockets on the loopback, a black hole, a network of its own."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from triage.probes import peers
from triage.probes._probe import Ctx

from triage.readers.shapes import problem

PROBE = Path(peers.__file__)


def ask(*targets: dict[str, Any], timeout_s: float = 1.0) -> dict[str, Any]:
    data = peers.collect(Ctx(args={"targets": list(targets), "timeout_s": timeout_s}))
    assert problem("peers", json.loads(json.dumps(data))) is None
    return data


def one(address: str, side: str = "fabric", timeout_s: float = 1.0) -> dict[str, Any]:
    """The row of one address."""
    (row,) = ask({"node": "gpu002", side: [address]}, timeout_s=timeout_s)["targets"][0][side]
    assert row["address"] == address
    return row


class Server:
    """Listens, says `banner` to whoever comes, and keeps what it hears until the other side ends."""

    def __init__(self, banner: bytes = b"", family: int = socket.AF_INET) -> None:
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        self.socket.listen(64)
        self.port = self.socket.getsockname()[1]
        self.banner, self.heard, self.ended = banner, [], threading.Event()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                peer, _ = self.socket.accept()
            except OSError:
                return
            with peer:
                peer.sendall(self.banner)
                peer.settimeout(10)
                self.heard.append(peer.recv(100))
                self.ended.set()


@pytest.fixture
def server() -> Iterator[Any]:
    made: list[Server] = []

    def make(*args: Any) -> Server:
        made.append(Server(*args))
        return made[-1]

    yield make
    for each in made:
        each.socket.close()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is taken (so nobody else gets it) and on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def black_hole() -> Iterator[int]:
    """A listener whose queue is full: its kernel drops every further SYN, as a dead host does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
            waiting.append(client)
        time.sleep(0.05)
        yield listener.getsockname()[1]
        for client in waiting:
            client.close()


def test_a_port_that_takes_the_connection_is_open_and_hears_not_a_byte(server) -> None:
    there = server()
    row = one(f"127.0.0.1:{there.port}")
    assert (row["result"], row["errno"]) == ("open", None) and 0 <= row["took_s"] < 1 and "banner" not in row
    assert there.ended.wait(5) and there.heard == [b""]


def test_of_a_management_address_the_banner_is_read_if_it_comes(server) -> None:
    talks, silent = server(b"SSH-2.0-OpenSSH_9.6\r\n"), server()
    data = ask(
        {"node": "a", "management": [f"127.0.0.1:{talks.port}"]},
        {"node": "b", "management": [f"127.0.0.1:{silent.port}"]},
        timeout_s=1.5,
    )
    rows = [target["management"][0] for target in data["targets"]]
    assert [(row["result"], row["banner"]) for row in rows] == [("open", True), ("open", False)]
    assert talks.ended.wait(5) and talks.heard == [b""]
    assert rows[1]["took_s"] < 1.2, "the time of the connection, not of the wait for the banner"


def test_a_server_that_closes_at_once_is_open_and_has_no_banner() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True).start()
        began = time.monotonic()
        row = one(f"127.0.0.1:{listener.getsockname()[1]}", "management", 5.0)
    assert (row["result"], row["banner"]) == ("open", False) and time.monotonic() - began < 4


def test_a_kernel_that_refuses_lives(closed_port) -> None:
    row = one(f"127.0.0.1:{closed_port}")
    assert (row["result"], row["errno"]) == ("refused", errno.ECONNREFUSED)


def test_nothing_at_all_within_the_time_is_a_timeout(black_hole) -> None:
    began = time.monotonic()
    row = one(f"127.0.0.1:{black_hole}", timeout_s=0.6)
    assert (row["result"], row["errno"]) == ("timeout", None)
    assert row["took_s"] > 0.3 and time.monotonic() - began < 3


@pytest.mark.parametrize("address", ["224.0.0.1:22", "255.255.255.255:22", "0.0.0.0:22", "[::]:22"])
def test_what_this_node_cannot_even_try_is_no_word_on_the_other_node(address) -> None:
    assert one(address, timeout_s=0.5)["result"] == "local"


def test_an_address_of_ipv6_stands_in_brackets(server) -> None:
    try:
        there = server(b"", socket.AF_INET6)
    except OSError:
        assert one("[::1]:22")["result"] in ("local", "refused", "open")
        return
    assert one(f"[::1]:{there.port}")["result"] == "open"


@pytest.mark.parametrize(
    "address",
    [
        "", ":", ":22", "10.0.0.1", "10.0.0.1:", "10.0.0.1:x", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:-1", "::1:22",
        "fe80::1", "[::1]", "[]:22", "10.0.0.1:22 ", "10.0.0.1:٢٢", "a\x00b:22", "x" * 400 + ":22", "10.0.0.1:+22",
    ],
)  # fmt: skip
def test_what_is_no_address_is_told_as_such_and_tried_nowhere(address) -> None:
    (row,) = ask({"node": "n", "fabric": [address]})["targets"][0]["fabric"]
    assert (row["result"], row["errno"], row["took_s"]) == ("bad_address", None, None)


def test_a_name_is_resolved(server) -> None:
    assert one(f"localhost:{server().port}")["result"] == "open"


def test_a_name_that_has_no_address_is_told_as_such(monkeypatch) -> None:
    real = socket.getaddrinfo

    def nobody(host: str, *args: Any, **more: Any) -> Any:
        if host == "gone" and not more.get("flags"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    began = time.monotonic()
    assert one("gone:22", timeout_s=5.0)["result"] == "resolve"
    assert time.monotonic() - began < 4


def test_a_directory_service_that_never_answers_costs_only_the_names(monkeypatch, server, closed_port) -> None:
    forever, real = threading.Event(), socket.getaddrinfo

    def hangs(host: str, *args: Any, **more: Any) -> Any:
        if not more.get("flags"):
            forever.wait(30)
        return real(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    targets = [{"node": f"n{i}", "management": [f"node{i}:22"]} for i in range(20)]
    targets.append(
        {"node": "ip", "management": [f"127.0.0.1:{server(b'SSH').port}"], "fabric": [f"127.0.0.1:{closed_port}"]}
    )
    began = time.monotonic()
    data = ask(*targets, timeout_s=0.7)
    assert time.monotonic() - began < 3
    forever.set()
    assert {t["management"][0]["result"] for t in data["targets"][:20]} == {"resolve"}
    assert data["targets"][20]["management"][0]["result"] == "open"
    assert data["targets"][20]["fabric"][0]["result"] == "refused"


def test_a_name_that_is_resolved_too_late_makes_no_node_unreachable(monkeypatch, black_hole) -> None:
    real = socket.getaddrinfo

    def slow(host: str, *args: Any, **more: Any) -> Any:
        if not more.get("flags"):
            time.sleep(0.7)
        return real(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    assert one(f"localhost:{black_hole}", timeout_s=1.0)["result"] == "resolve"


def test_a_machine_too_busy_to_look_in_time_still_tells_what_was_answered(monkeypatch, server) -> None:
    there, real = server(), peers.Asking.run

    def late(self: Any) -> None:
        time.sleep(0.4)
        real(self)

    monkeypatch.setattr(peers.Asking, "run", late)
    assert one(f"127.0.0.1:{there.port}", timeout_s=0.2)["result"] == "open"


def test_a_name_with_two_addresses_is_reached_if_one_of_them_is(monkeypatch, server, black_hole) -> None:
    there, real = server(), socket.getaddrinfo

    def two(host: str, port: int, *args: Any, **more: Any) -> Any:
        if host != "gpu002" or more.get("flags"):
            return real(host, port, *args, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", p)) for p in (black_hole, there.port, closed)]

    closed = 1
    monkeypatch.setattr(socket, "getaddrinfo", two)
    assert one("gpu002:22", timeout_s=0.5)["result"] == "open"


def test_sixty_four_nodes_are_asked_at_once(server, black_hole, closed_port) -> None:
    port = {0: server().port, 1: black_hole, 2: closed_port}
    targets = [{"node": f"n{i:02}", "fabric": [f"127.0.0.1:{port[i % 3]}"] * 2} for i in range(70)]
    began = time.monotonic()
    data = ask(*targets, timeout_s=1.0)
    assert time.monotonic() - began < 5
    assert len(data["targets"]) == 64 and data["truncated"] is True
    told = [row["result"] for target in data["targets"] for row in target["fabric"]]
    assert told == [("open", "timeout", "refused")[i % 3] for i in range(64) for _ in range(2)]


def test_all_asked_is_answered_in_its_order_and_nothing_is_left_out_unsaid(closed_port) -> None:
    data = ask(
        {"node": "b", "management": ["x"], "fabric": []},
        {"node": "a\x1b[31m", "fabric": [f"127.0.0.1:{closed_port}", "y", 5, None]},
        {"management": ["10.0.0.1:22"]},
        "gpu003",
    )
    assert [t["node"] for t in data["targets"]] == ["b", "a [31m"] and data["truncated"] is False
    assert [r["result"] for r in data["targets"][1]["fabric"]] == ["refused", "bad_address"]
    assert ask({"node": "c", "fabric": ["z"] * 9})["truncated"] is True


@pytest.mark.parametrize("args", [{}, {"targets": []}, {"targets": 5}, {"targets": [5]}, {"targets": None}])
def test_asked_about_nobody_it_says_how_to_ask(args) -> None:
    with pytest.raises(Ctx.Absent, match="targets"):
        peers.collect(Ctx(args=args))


@pytest.mark.parametrize("timeout_s", ["2", None, True, -5, 1e9, float("nan")])
def test_no_time_limit_of_the_request_makes_it_hang_or_fail(timeout_s, closed_port) -> None:
    data = peers.collect(
        Ctx(args={"targets": [{"node": "n", "fabric": [f"127.0.0.1:{closed_port}"]}], "timeout_s": timeout_s})
    )
    assert data["targets"][0]["fabric"][0]["result"] == "refused"


@pytest.mark.parametrize(
    "code, at_once, result",
    [
        (0, False, "open"),
        (errno.ECONNREFUSED, False, "refused"),
        (errno.ECONNREFUSED, True, "refused"),
        (errno.ETIMEDOUT, False, "timeout"),
        (errno.EHOSTUNREACH, False, "unreachable"),
        (errno.ENETUNREACH, False, "unreachable"),
        (errno.ENETUNREACH, True, "local"),
        (errno.EHOSTUNREACH, True, "local"),
        (errno.EPERM, False, "local"),
        (errno.EACCES, True, "local"),
        (errno.EADDRNOTAVAIL, True, "local"),
        (errno.ENOBUFS, False, "local"),
    ],
)
def test_only_what_comes_back_from_the_network_speaks_of_the_other_node(code, at_once, result) -> None:
    assert peers.verdict(code, at_once) == result


IN_A_NETWORK_OF_ITS_OWN = """
import json, subprocess, sys
def sh(line):
    subprocess.run(line.split(), check=True)
sh("ip link set lo up")
sh("ip link add v0 type veth peer name v1")
sh("ip addr add 10.99.0.1/24 dev v0")
for name, value in (("retrans_time_ms", "100"), ("mcast_solicit", "1"), ("app_solicit", "0")):
    open("/proc/sys/net/ipv4/neigh/v0/" + name, "w").write(value)
open("/proc/sys/net/ipv4/ip_local_port_range", "w").write("40000 40001")
sh("ip link set v0 up"); sh("ip link set v1 up")
targets = [{"node": "gone", "fabric": ["10.99.0.2:22"]}, {"node": "no route", "fabric": ["10.98.0.2:22"]},
           {"node": "itself", "fabric": ["127.0.0.1:40000", "127.0.0.1:40001"]}]
args = json.dumps({"targets": targets, "timeout_s": 4})
print(subprocess.run([sys.executable, sys.argv[1], "--args", args], stdout=subprocess.PIPE, check=True).stdout.decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes a network of its own")
def test_a_host_that_is_not_there_a_route_that_is_missing_and_a_port_that_meets_itself() -> None:
    done = subprocess.run(
        ["unshare", "-n", sys.executable, "-c", IN_A_NETWORK_OF_ITS_OWN, str(PROBE)], capture_output=True, text=True
    )
    if "unshare failed" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip("no network namespaces here: " + done.stderr[-200:])
    assert done.returncode == 0, done.stderr
    gone, no_route, itself = json.loads(done.stdout)["data"]["targets"]
    assert (gone["fabric"][0]["result"], gone["fabric"][0]["errno"]) == ("unreachable", errno.EHOSTUNREACH)
    assert (no_route["fabric"][0]["result"], no_route["fabric"][0]["errno"]) == ("local", errno.ENETUNREACH)
    assert [row["result"] for row in itself["fabric"]] == ["refused", "refused"]
