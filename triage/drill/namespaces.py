"""Backend `namespaces`: each node has a network, processes, mounts and a name of its own, real cables and a real sshd.

Root on Linux with iproute2, nftables, util-linux and openssh-server; netlab.py builds the network, machine.py stands in it. What
passes between the ranks of two nodes goes over the fabric's cables, still by the relays (fabric.py): real cards retry, and give up,
as they do. The names of the nodes and of their ports are as in every plan.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from triage.drill import netlab
from triage.drill.backends import LOOPBACK, Address, NodeProcess, Processes, Wiring
from triage.drill.netlab import FABRIC, MANAGEMENT, STORAGE, Lab, address
from triage.drill.plan import MANAGEMENT_NIC, Plan
from triage.errors import UsageError

SSH_PORT, FABRIC_PORT, RANK_PORT = 22, 18515, 29600
# Views that only the other backend can take away: here they are the kernel's own.
NOT_BLIND = ("ranks", "nic")
# Its first process collects what others leave behind: sshd's sessions, probes that a cut cable ended.
FIRST = ("/bin/sh", "-c", '"$@"; exit $?', "init")


class Namespaces(Processes):
    """Nodes as machines of their own."""

    def __init__(self) -> None:
        super().__init__()
        if why := netlab.why_not():
            raise UsageError(
                f"drill: --backend namespaces cannot be had here: {why}; --backend processes needs nothing"
            )
        self.lab: Lab | None = None

    def wire(self, plan: Plan) -> Wiring:
        """Every node has its own addresses, so that the ports are the same on all."""
        if hidden := sorted(plan.blind.intersection(NOT_BLIND)):
            raise UsageError(f"drill: --backend namespaces cannot hide {hidden[0]}; --backend processes can")
        self.lab = Lab()
        places = dict(enumerate(plan.nodes))
        return Wiring(
            {node: (address(MANAGEMENT, at), SSH_PORT) for at, node in places.items()},
            {node: (address(FABRIC, at), FABRIC_PORT) for at, node in places.items()},
            {place.rank: (LOOPBACK, RANK_PORT + place.local_rank) for place in plan.ranks},
        )

    def stand(self, plan: Plan, node: str, orders: list[dict[str, Any]]) -> dict[str, Any]:
        index = plan.nodes.index(node)
        networks = {MANAGEMENT: MANAGEMENT_NIC, FABRIC: plan.nic, STORAGE: plan.spare_nic}
        return {
            "lab": {
                "networks": [[network, name, address(network, index)] for network, name in networks.items()],
                "index": index,
                "fabric_port": FABRIC_PORT,
                "hosts": [[address(MANAGEMENT, at), name] for at, name in enumerate(plan.nodes)],
            },
            # Over sockets nothing gives up: TCP sends again for a quarter of an hour.
            "acknowledged": not plan.sockets,
        }

    def begin(self, plan: Plan, node: str, config: dict[str, Any], keep: list[int]) -> NodeProcess:
        assert self.lab is not None
        descriptor = os.open(self.lab.path, os.O_RDONLY)  # by which the node pulls its own cables
        try:
            errors = plan.folder / "operator" / f"{node}.err"
            config["lab"]["descriptor"] = descriptor
            process = NodeProcess(node, config, [*keep, descriptor], errors, [*netlab.ISOLATE, *FIRST])
            self.nodes[node] = process
            netlab.wait_apart(process.process)
            networks = {network: name for network, name, _ in config["lab"]["networks"]}
            self.lab.wire(config["lab"]["index"], process.process.pid, networks)
            process.begin(config)
        finally:
            os.close(descriptor)
        return process

    def rank_order(self, plan: Plan, place: Any, wiring: Wiring, report_fd: int) -> dict[str, Any]:
        order = super().rank_order(plan, place, wiring, report_fd)
        if plan.engine == "torch":
            order["env"]["GLOO_SOCKET_IFNAME"] = plan.nic
        return order

    def store(self, plan: Plan, wiring: Wiring) -> Address:
        return wiring.fabric[plan.nodes[0]][0], wiring.ranks[0][1]

    def pids(self) -> dict[int, int]:
        """As this machine sees them; the nodes know their processes by other numbers."""
        found: dict[int, int] = {}
        for node in self.nodes.values():
            seen = outer_pids(node.process.pid)
            found.update({rank: seen[pid] for rank, pid in node.pids.items() if pid in seen})
        return found

    def processes(self) -> list[int]:
        return [
            pid for node in self.nodes.values() for pid in (node.process.pid, *outer_pids(node.process.pid).values())
        ]

    def inside(self) -> contextlib.AbstractContextManager[None]:
        return self.lab.inside() if self.lab else contextlib.nullcontext()

    def prefix(self) -> list[str]:
        return ["nsenter", f"--net={self.lab.path}"] if self.lab else []

    def stop(self) -> None:
        super().stop()
        if self.lab:
            self.lab.close()
            self.lab = None


def outer_pids(ancestor: int) -> dict[int, int]:
    """Number inside -> number here, of all processes in the pid namespace that the children of a process stand in."""
    with contextlib.suppress(OSError):
        space = os.readlink(f"/proc/{ancestor}/ns/pid_for_children")
        found: dict[int, int] = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{name}/ns/pid") == space:
                    line = next(
                        x for x in Path(f"/proc/{name}/status").read_text().splitlines() if x.startswith("NSpid")
                    )
                    found[int(line.split()[-1])] = int(name)
        return found
    return {}
