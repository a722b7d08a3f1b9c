"""A training network that really falls apart: network namespaces, real carriers, the real probe, the real facts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from triage.probes import peers as probe
from written_dumps import add_dumps, everyone, report
from written_evidence import NOW, World

from triage.asking import plan
from triage.model import Node, Part
from triage.tree.walk import Request

OPEN = ["0 1 all_reduce", "0 2 all_reduce open"]
LISTEN = "import socket,time\ns=socket.create_server(('', 22))\nprint('up', flush=True)\nwhile True: c,_=s.accept(); c.close()"


def ip(*words, check=True):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=check)


class Fabric:
    """Four nodes, each in a network of its own, on one switch; a second switch to cut them apart with carriers up."""

    def __init__(self, tag):
        self.tag, self.servers = tag, []
        self.switches = [f"{tag}s{i}" for i in range(2)]
        self.spaces = {f"gpu{i:03d}": f"{tag}n{i}" for i in range(1, 5)}

    def build(self):
        for switch in self.switches:
            ip("link", "add", switch, "type", "bridge")
            ip("link", "set", switch, "up")
        for number, space in enumerate(self.spaces.values(), 1):
            ip("netns", "add", space)
            ip("link", "add", f"{self.tag}v{number}", "type", "veth", "peer", "name", "fab0", "netns", space)
            ip("link", "set", f"{self.tag}v{number}", "master", self.switches[0], "up")
            ip("-n", space, "addr", "add", f"10.88.0.{number}/24", "dev", "fab0")
            ip("-n", space, "link", "set", "fab0", "up")
            words = ["ip", "netns", "exec", space, sys.executable, "-c", LISTEN]
            server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            self.servers.append(server)
            assert server.stdout.readline() == "up\n"

    def tear_down(self):
        for server in self.servers:
            server.kill()
            server.wait()
        for space in self.spaces.values():
            ip("netns", "del", space, check=False)
        for switch in self.switches:
            ip("link", "del", switch, check=False)

    def move(self, *numbers, switch=1):
        """Plug the nodes' cables into the other switch: their links stay up."""
        for number in numbers:
            ip("link", "set", f"{self.tag}v{number}", "master", self.switches[switch])

    def cable(self, number, what):
        ip("link", "set", f"{self.tag}v{number}", what)


@pytest.fixture(scope="module")
def built():
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root and iproute2: makes network namespaces")
    made = Fabric(f"q{os.getpid() % 100000}")
    try:
        try:
            made.build()
        except (subprocess.CalledProcessError, OSError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield made
    finally:
        made.tear_down()


@pytest.fixture
def fabric(built):
    yield built
    built.move(1, 2, 3, 4, switch=0)
    for number in range(1, 5):
        built.cable(number, "up")


def world():
    w = World()
    told = tuple(Node(name, f"10.1.0.{i}", fabric=(f"10.88.0.{i}:22",)) for i, name in enumerate(w.names, 1))
    w.job = replace(w.job, nodes=told)
    return w.processes().fabric(0).log(last_ago=400)


def asked(fabric, w):
    """What the probe tells from inside each node, asked as the playbook asks it."""
    parts = tuple(Part("rank", node=name, rank=i) for i, name in enumerate(w.names))
    told = plan(Request("peers", parts, 0, "frozen-job:cut", {"pairs": 6}), w.evidence())

    def one(name):
        words = [
            "ip",
            "netns",
            "exec",
            fabric.spaces[name],
            sys.executable,
            probe.__file__,
            "--args",
            json.dumps(told[name]),
        ]
        return name, json.loads(subprocess.run(words, capture_output=True, text=True, timeout=30).stdout)

    with ThreadPoolExecutor(4) as pool:
        for name, answer in pool.map(one, told):
            assert answer["status"] == "ok", answer
            w.add("peers", name, "C", answer["data"], at=NOW, received=NOW)
    return w


def cause(w):
    return report(add_dumps(w, everyone(OPEN))).verdict.cause


def test_a_whole_network_is_whole(fabric):
    w = asked(fabric, world())
    parts, off = w.fact("links.partition"), w.fact("links.cut_off")
    assert parts.value == 0 and off.value == 0 and "12 connects" in parts.text
    assert cause(w) == "inconclusive/in_flight"


@pytest.mark.parametrize("side", [(3, 4), (2, 4), (1, 4)])
def test_two_halves_with_every_carrier_up_are_a_partition(fabric, side):
    fabric.move(*side)
    w = asked(fabric, world())
    name = w.fact("links.partition").parts[0].name
    assert ", ".join(f"gpu{i:03d}" for i in side) in name
    assert cause(w) == "link_flap/partition"


@pytest.mark.parametrize("how", ["another switch", "no carrier"])
def test_one_node_that_lost_its_way_is_cut_off(fabric, how):
    if how == "another switch":
        fabric.move(3)
    else:
        fabric.cable(3, "down")
    w = asked(fabric, world())
    assert [part.node for part in w.fact("links.cut_off").parts] == ["gpu003"]
    assert cause(w) == "link_flap/cut_off"


def test_a_network_that_is_mended_is_whole_again(fabric):
    fabric.move(3, 4)
    fabric.move(3, 4, switch=0)
    time.sleep(0.2)
    assert cause(asked(fabric, world())) == "inconclusive/in_flight"
