"""Which interfaces carry a job's collectives, as the NCCL environment of its ranks says.

NCCL_IB_HCA chooses among RDMA devices (mlx5_0), NCCL_SOCKET_IFNAME among netdevs (ens1f0np0). Where a node has an RDMA
port that NCCL takes, the netdev of NCCL_SOCKET_IFNAME only sets the connections up and carries no payload.
What can fool it: ~/.nccl.conf and network plugins, which can say otherwise and are not read (a file of NCCL below /etc is).
"""

from __future__ import annotations

from dataclasses import dataclass

from triage.facts.evidence import Evidence
from triage.facts.ranktable import rank_table
from triage.probes import _nic_chosen


@dataclass(frozen=True)
class Choice:
    """One value of NCCL_IB_HCA or NCCL_SOCKET_IFNAME, as NCCL reads it (probes/_nic_chosen.py).

    words     (name, port or None for any port)
    exact     "=": whole names; else the words are prefixes, and mlx5_1 is also mlx5_10
    excluded  "^": all but these
    """

    words: tuple[tuple[str, int | None], ...]
    exact: bool = False
    excluded: bool = False

    def lists(self, name: str, port: int | None = None) -> bool:
        """Do its words match this name, whatever the list is for?"""
        return bool(_nic_chosen.lists((self.words, self.exact, self.excluded), name, port))


def choice(value: str) -> Choice | None:
    """The list of an environment value; None for one that chooses nothing. "^=mlx5_2:1" is exact and excludes."""
    found = _nic_chosen.choice(value)
    return Choice(*found) if found is not None else None


@dataclass(frozen=True)
class Fabric:
    """What the ranks of one node say of its interfaces; each rank may have a list of its own.

    no_rdma   they tell NCCL to leave RDMA alone (NCCL_IB_DISABLE, NCCL_NET=Socket)
    """

    hca: tuple[Choice, ...] = ()
    socket: tuple[Choice, ...] = ()
    no_rdma: bool = False

    @property
    def names_rdma(self) -> bool:
        """Does the job name RDMA devices at all?"""
        return not self.no_rdma and any(not one.excluded for one in self.hca)

    def names_device(self, device: str, port: int | None = None) -> bool:
        """Does the job name this RDMA device?"""
        return not self.no_rdma and any(not one.excluded and one.lists(device, port) for one in self.hca)

    def may_use_device(self, device: str, port: int | None = None) -> bool:
        """Named, or of a job that names none: NCCL then takes every port that is up."""
        if self.no_rdma or self.names_rdma:
            return self.names_device(device, port)
        return not any(one.lists(device, port) for one in self.hca)

    def names_netdev(self, netdev: str) -> bool:
        """Does the job name this netdev for its sockets?"""
        return any(not one.excluded and one.lists(netdev) for one in self.socket)


def fabrics(ev: Evidence) -> dict[str, Fabric]:
    """node -> what its ranks say; to be called through `ev.derive`. Nodes whose ranks' environment nobody saw are left out."""
    seen: dict[str, tuple[dict[str, None], dict[str, None], list[bool]]] = {}
    for row in ev.derive(rank_table).rows.values():
        if row.node and row.env:
            hca, socket, off = seen.setdefault(row.node, ({}, {}, []))
            hca[row.env.get("NCCL_IB_HCA", "")] = None
            socket[row.env.get("NCCL_SOCKET_IFNAME", "")] = None
            off.append(_nic_chosen.rdma_off(row.env))
    return {
        node: Fabric(
            tuple(one for value in hca if (one := choice(value))),
            tuple(one for value in socket if (one := choice(value))),
            all(off),
        )
        for node, (hca, socket, off) in seen.items()
    }


def fabric(ev: Evidence, node: str) -> Fabric:
    """What the ranks of this node say of their interfaces."""
    return ev.derive(fabrics).get(node, Fabric())
