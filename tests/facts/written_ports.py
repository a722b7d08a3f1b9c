"""Ports, kernel lines and NCCL lines of a written world: RoCE, one port a node, exported as a real job does."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import datetime, timezone

from written_evidence import NOW, World

from triage.model import Attempt

STALL = 400.0  # seconds since the last step
LAST = NOW - STALL  # when it ended: the onset's earliest
DEVICE, NETDEV = "mlx5_0", "ens1f0np0"
NCCL_ENV = {"NCCL_IB_TIMEOUT": "14", "NCCL_IB_HCA": DEVICE, "NCCL_SOCKET_IFNAME": NETDEV}
WARN = "transport/net_ib.cc:2451 NCCL WARN "


def faces(device=DEVICE, netdev=NETDEV, up=True, number=1, changes=3, downed=0, rx=1000, tx=1000, layer="Ethernet"):
    """One physical port as sysfs shows it: an RDMA device and a netdev."""
    return [
        {"name": device, "kind": "infiniband", "driver": "mlx5_core", "state": "ACTIVE" if up else "DOWN",
         "carrier": None, "carrier_changes": None, "rx_bytes": rx, "tx_bytes": tx, "link_layer": layer, "port": number,
         "netdev": netdev, "counters": {"link_downed": downed}, "saturated": []},
        {"name": netdev, "kind": "ethernet", "driver": "mlx5_core", "state": "up" if up else "down",
         "carrier": int(up), "carrier_changes": changes, "rx_bytes": rx, "tx_bytes": tx, "link_layer": layer,
         "port": None, "netdev": netdev, "counters": {}, "saturated": []},
    ]  # fmt: skip


MANAGEMENT = {
    "name": "eno1", "kind": "ethernet", "driver": "igb", "state": "up", "carrier": 1, "carrier_changes": 1,
    "rx_bytes": 5, "tx_bytes": 5, "link_layer": "Ethernet", "netdev": "eno1", "port": None, "counters": {},
}  # fmt: skip


class Roce:
    """4 nodes x 2 ranks over RoCE that stand since `LAST`; every node is shown, healthy, until something is said."""

    def __init__(self, env=None, last_ago=STALL, moving=False, started=NOW - 7000):
        self.world = World(started=started)
        self.env = {**NCCL_ENV, **({} if env is None else env)}
        self.last_ago, self.moving = last_ago, moving
        self.ports = {name: ([*faces(), MANAGEMENT], [*faces(), MANAGEMENT]) for name in self.world.names}
        self.events = {name: [] for name in self.world.names}
        self.kernel = dict.fromkeys(self.world.names, True)
        self.covered = True
        self.clock = dict.fromkeys(self.world.names, 0.0)
        self.hits = []
        self.log = True
        self.blind = set()
        self.silent = set()
        self.changed = None  # the log file's last change
        self.environments = {}  # rank -> its own

    def says(self, node, what, ago, name=NETDEV, last_ago=None, count=1, times=None, **more):
        """The kernel of a node: "link_down" or "link_up", by its own clock."""
        at = NOW - ago + self.clock[node]
        last = at if last_ago is None else NOW - last_ago + self.clock[node]
        event = {"id": what, "kind": "link", "at": at, "last_at": last, "count": count, "groups": {"nic": name, **more}}
        if times:
            event["times"] = [NOW - t + self.clock[node] for t in times]
        self.events[node].append({**event, "text": f"mlx5_core 0000:17:00.0 {name}: Link"})
        return self

    def outage(self, node, ago, for_s, name=NETDEV):
        self.says(node, "link_down", ago, name)
        return self.says(node, "link_up", ago - for_s, name)

    def hit(self, name, node, ago, text, groups, dated=True, count=1, last_ago=None, line_no=None, own=True):
        at = NOW - ago + (self.clock.get(node, 0.0) if own and dated else 0.0)
        last = at if last_ago is None else NOW - last_ago + (self.clock.get(node, 0.0) if own and dated else 0.0)
        stamp = datetime.fromtimestamp(at, timezone.utc).strftime("[%Y-%m-%d %H:%M:%S] ") if own and dated else ""
        self.hits.append(
            {"id": name, "at": at, "last_at": last, "dated": dated, "count": count, "prefix": "",
             "line_no": len(self.hits) + 500 if line_no is None else line_no,
             "text": f"{stamp}{node}:4242:4300 [0] {WARN}{text}", "groups": {"host": node, **groups}}
        )  # fmt: skip
        return self

    def event(self, node, what, ago, device=DEVICE, **how):
        """NCCL's own port event: what is "error" or "active"."""
        groups = {"what": what, **({"nic": device, "port": "1"} if device else {})}
        return self.hit("nccl_ib_port_event", node, ago, f"NET/IB : Got async error event: port {what}", groups, **how)

    def gave_up(self, node, peer, ago, device=DEVICE, port="47", gid=None, **how):
        groups = {
            "peer": peer,
            "peer_port": port,
            **({"hca": device} if device else {}),
            **({"gid": gid} if gid else {}),
        }
        return self.hit(
            "nccl_ib_retry_exceeded", node, ago, f"NET/IB: Got completion from peer {peer}<{port}> with status=12",
            groups, **how,
        )  # fmt: skip

    def shows(self, node, *looks):
        """The ports of a node in looks A and B."""
        self.ports[node] = looks
        return self

    def made(self):
        w = copy.copy(self.world)  # each question gets a world of its own
        w.samples, w.change, w.skip_nodes = [], dict(self.world.change), self.silent
        for rank in range(len(w.names) * w.per_node):
            for look in "AB":
                base = {k: v for k, v in w.record(rank, look)["env"].items() if not k.startswith("NCCL")}
                own = self.environments.get(rank, self.env)
                w.change[(rank, look)] = {
                    **w.change.get((rank, look), {}),
                    "env": {**base, **own},
                    "start_s": NOW - 6900 + self.clock[w.names[rank // w.per_node]],
                }
        w.job = replace(
            w.job, nodes=tuple(self.node(n) for n in w.job.nodes), attempt=Attempt(0, w.job.attempt.started)
        )
        w.processes()
        w.samples = [s for s in w.samples if s.probe != "kernel" and not (s.probe == "ranks" and "ranks" in self.blind)]
        for name in w.names:
            if name in self.silent:
                continue
            off = self.clock[name]
            for index, sample in enumerate(w.samples):
                if sample.node == name:
                    w.samples[index] = replace(sample, at=sample.at + off)
            events = self.events[name] if self.kernel[name] else []
            told = {"readable": self.kernel[name], "events": events, "boot_covered": self.covered}
            w.add("kernel", name, "B", told, at=w.b + off, received=w.b)
            if "nic" not in self.blind:
                for look, nics in zip("AB", self.ports[name]):
                    at = {"A": w.a, "B": w.b}[look]
                    w.add("nic", name, look, {"nics": nics}, at=at + off, received=at)
        if self.log:
            if self.moving:
                w.log(last_ago=self.last_ago + 8, look="A", hits=self.hits)
            w.log(last_ago=self.last_ago, hits=self.hits, first=9 if self.moving else 1)
            if self.changed is not None:
                newest = w.samples[-1]
                w.samples[-1] = replace(newest, data={**newest.data, "mtime": NOW - self.changed})
        else:
            w.steps(lambda r, i: 100, last_ago=self.last_ago)
        return w

    def node(self, node):
        return replace(node, address="127.0.0.1", fabric=(f"10.88.0.{int(node.name[3:])}:22",))

    def fact(self, name, **changes):
        return self.made().fact(name, **changes)

    def facts(self, *names):
        evidence = self.made().evidence()
        from triage.facts import registry

        return [registry.other(evidence, name) for name in names]


def where(found):
    """[(node, port)] of a fact."""
    return [(part.node, part.nic) for part in found.parts]


def sources(found):
    return sorted({p.probe for p in found.provenance})


def long_outage(**how):
    """Scenario `long`: the cable of gpu002 is out for longer than the transport retries, then back; the ring never resumes."""
    made = Roce(**how).outage("gpu002", STALL - 0.5, 4.0)
    made.event("gpu002", "error", STALL - 0.5).event("gpu002", "active", STALL - 4.5)
    return made.gave_up("gpu002", "10.88.0.3", STALL - 1.4).gave_up("gpu001", "10.88.0.2", STALL - 1.4)
