"""A job on several rails whose counters a test can bend: nodes x rails of RoCE or InfiniBand ports, seen in two looks."""

from __future__ import annotations

import random

from written_evidence import World

PEAK = {"rx_packets": 500_000, "tx_packets": 500_000}  # RDMA packets a second of a busy port
SLOW = [0.5] * 300 + [0.6] * 200  # step times: +20 % for two minutes
EVEN = [0.5] * 500


def pci(rail):
    return f"0000:{0x17 + 0x11 * rail:02x}:00.0"


class Fabric:
    """`shown[(node, rail)]` holds what look B adds to look A's counters; `base` what all of them start from."""

    def __init__(self, nodes=6, rails=4, layer="Ethernet", window=8.0, seed=0, elapsed=SLOW, hca=None):
        self.rng = random.Random(seed)
        self.nodes, self.rails, self.layer, self.window, self.elapsed = nodes, rails, layer, window, elapsed
        self.hca = ",".join(f"mlx5_{i}" for i in range(rails)) if hca is None else hca
        self.speed, self.board, self.pci, self.name = {}, {}, {}, {}
        self.base, self.grew, self.netdev_grew, self.extra = {}, {}, {}, {}
        self.state, self.tcp_grew, self.boot, self.gpus, self.sockets = {}, {}, {}, {}, {}
        self.rate = 2.0e9  # bytes a second of each port
        self.driver = "mlx5_core"
        self.log = True
        self.compute = lambda rank, i: 300.0 + (rank * 7 + i * 3) % 5 * 0.2
        self.node_names = [f"gpu{i:03d}" for i in range(1, nodes + 1)]
        self.one_look = False

    def all(self):
        return [(node, rail) for node in self.node_names for rail in range(self.rails)]

    def grow(self, node, rail, **counters):
        self.grew.setdefault((node, rail), {}).update(counters)
        return self

    def everywhere(self, **counters):
        for node, rail in self.all():
            self.grew.setdefault((node, rail), {}).update(counters)
        return self

    def records(self, node, look):
        rows = []
        for rail in range(self.rails):
            if (node, rail) in self.extra.get("missing", ()):
                continue
            later = look == "B"
            moved = int(self.rate * self.window) if later else 0
            words, packets = moved // 4, moved // 4096
            counters = {
                "port_rcv_data": 10**12 + words, "port_xmit_data": 10**12 + words, "port_rcv_packets": 10**9 + packets,
                "port_xmit_packets": 10**9 + packets, "link_downed": 1, "link_error_recovery": 0, "symbol_error": 40,
                "port_rcv_errors": 2, "port_xmit_wait": 1000, "local_ack_timeout_err": 12, "packet_seq_err": 3,
                "rx_icrc_encapsulated": 0, "np_cnp_sent": 5000, "rp_cnp_handled": 4000, "np_ecn_marked_roce_packets": 9000,
                "out_of_sequence": 800, "rnr_nak_retry_err": 0, "lifespan": 10, "req_transport_retries_exceeded": 0,
            }  # fmt: skip
            counters.update(self.base.get((node, rail), {}))
            if later:
                for name, value in self.grew.get((node, rail), {}).items():
                    counters[name] = counters.get(name, 0) + value
            name = self.name.get((node, rail), f"mlx5_{rail}")
            up = self.state.get((node, rail), True)
            speed = self.speed.get((node, rail), 400_000)
            rows.append(
                {"name": name, "kind": "infiniband", "driver": self.driver, "state": "ACTIVE" if up else "DOWN",
                 "phys_state": "LinkUp" if up else "Polling", "carrier": None, "carrier_changes": None,
                 "rx_bytes": counters["port_rcv_data"] * 4, "tx_bytes": counters["port_xmit_data"] * 4,
                 "speed_mbps": speed, "rate": f"{speed // 1000} Gb/sec (4X)", "link_layer": self.layer, "port": 1,
                 "netdev": f"rail{rail}" if self.layer == "Ethernet" else None, "pci": self.pci.get((node, rail), pci(rail)),
                 "board": self.board.get((node, rail), "MT_0000000838"), "virtual": False, "counters": counters,
                 "saturated": []}
            )  # fmt: skip
            if self.layer == "Ethernet":
                ethtool = {"rx_packets": 10, "tx_packets": 10, "rx_prio3_pause": 7, "tx_prio3_pause": 7,
                           "rx_prio3_pause_duration": 70, "tx_prio3_pause_duration": 70, "rx_crc_errors_phy": 0}  # fmt: skip
                if later:
                    for key, value in self.netdev_grew.get((node, rail), {}).items():
                        ethtool[key] = ethtool.get(key, 0) + value
                rows.append(
                    {"name": f"rail{rail}", "kind": "ethernet", "driver": self.driver, "state": "up" if up else "down",
                     "carrier": int(up), "carrier_changes": 3, "rx_bytes": 1000, "tx_bytes": 1000, "speed_mbps": speed,
                     "link_layer": "Ethernet", "port": None, "netdev": f"rail{rail}",
                     "pci": self.pci.get((node, rail), pci(rail)), "counters": ethtool, "saturated": []}
                )  # fmt: skip
        return [*rows, *self.extra.get((node, look), [])]

    def made(self):
        world = World(nodes=self.nodes, per_node=2, window=self.window)
        for rank in range(self.nodes * 2):
            for look in "AB":
                env = {**world.record(rank, look)["env"], "NCCL_SOCKET_IFNAME": "eno1"}
                if self.hca:
                    env["NCCL_IB_HCA"] = self.hca
                env.update(self.extra.get("env", {}))
                world.change[(rank, look)] = {"env": env}
        world.processes()
        for node in self.node_names:
            for look in "A" if self.one_look else "AB":
                tcp = {"InSegs": 10**6, "OutSegs": 10**6, "RetransSegs": 100, "TCPTimeouts": 40, "TCPSynRetrans": 30}
                if look == "B":
                    for key, value in {"OutSegs": 10**6, **self.tcp_grew.get(node, {})}.items():
                        tcp[key] += value
                data = {"nics": self.records(node, look), "boot_id": self.boot.get((node, look), "b"), "tcp": tcp,
                        "sockets": self.sockets.get((node, look), [])}  # fmt: skip
                world.add("nic", node, look, data)
            if node in self.gpus:
                world.add("gpu", node, "B", {"gpus": self.gpus[node]})
        if self.log:
            world.log(step_s=self.elapsed[-1], steps=len(self.elapsed), elapsed=self.elapsed, last_ago=0.2)
            world.steps(self.compute, lambda rank, i: 5.0, n=40)
        return world

    def fact(self, name, **limits):
        return self.made().fact(name, **limits)


def where(found):
    """[(node, port)] of a fact."""
    return [(part.node, part.nic) for part in found.parts]
