"""The ports of each node as one thing each, whether the job uses them, and whether they have link.

One physical RoCE port shows twice in sysfs: as an RDMA device (class/infiniband/mlx5_0) and as a netdev
(class/net/ens1f0np0). The kernel's lines name the netdev, NCCL's lines the device. Here it is one port, told by the device
if the job names that, else by the netdev.
What can fool it: a node that shows no RDMA devices (a container), a device with two ports, EFA, which always says ACTIVE;
counters since boot, of which only the difference between the looks says anything, and none while they stick at their
maximum (notes/network.md 1.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from triage.facts.evidence import Evidence
from triage.facts.fabric import Fabric, fabric
from triage.facts.transport import spoken
from triage.model import Part, Sample
from triage.probes._nic_counters import unpack

Record = Mapping[str, Any]
# named: the job names it, or NCCL itself spoke of it. may: NCCL takes it if it is up. setup: it only sets connections up.
Use = Literal["named", "may", "setup", "no"]
LINKED = (
    "active",
    "active_defer",
    "armed",
    "init",
)  # notes/network.md 1.1; INIT and ARMED miss a subnet manager, not a cable
# Drivers whose netdevs say so in the kernel log when their link goes (notes/network.md 2). InfiniBand ports say nothing.
TELLS_THE_LOG = frozenset({"mlx5_core", "mlx4_en", "bnxt_en", "ice", "i40e", "ixgbe", "igb", "gve"})


@dataclass(frozen=True)
class Port:
    """One physical port of a node.

    device    RDMA device, with ":2" behind it where that has several ports; `netdev`: its name as a network interface
    by_device the job names the device
    now       its records of the newest look (RDMA first); () where the node's ports could not be read
    before    the same of look A, () if there was one look only
    """

    node: str
    device: str | None
    netdev: str | None
    use: Use
    by_device: bool = False
    now: tuple[Record, ...] = ()
    before: tuple[Record, ...] = ()
    sample: Sample | None = None
    first: Sample | None = None

    @property
    def name(self) -> str:
        ethernet = self.netdev is not None and not any(r.get("link_layer") == "InfiniBand" for r in self.now)
        best = self.device if self.by_device or not ethernet else self.netdev
        return best or self.netdev or self.device or "?"

    @property
    def the_jobs(self) -> bool:
        return self.use in ("named", "may")

    @property
    def down(self) -> bool | None:
        """Is it without link in the newest look? None where its records do not tell, or contradict each other."""
        return _down(self.now)

    @property
    def down_before(self) -> bool | None:
        return _down(self.before)

    @property
    def tells_the_log(self) -> bool:
        """Would the kernel log tell of a loss of its link?"""
        return self.netdev is not None and any(
            r.get("driver") in TELLS_THE_LOG and r.get("link_layer") == "Ethernet" for r in self.now
        )

    def answers_to(self, name: str) -> bool:
        return name in (self.device, self.netdev) or (self.device or "").partition(":")[0] == name

    @property
    def pci(self) -> str | None:
        """The address of its PCI function, where its node tells it."""
        return next((r["pci"] for r in self.now if isinstance(r.get("pci"), str) and r["pci"]), None)

    @property
    def layer(self) -> str | None:
        """InfiniBand or Ethernet."""
        return next((r["link_layer"] for r in self.now if r.get("link_layer") in ("InfiniBand", "Ethernet")), None)

    @property
    def speed_mbps(self) -> int | None:
        """Speed of its link now; None while it has none, or where nothing tells it.

        A kernel that does not know a speed calls it SDR, the first of all (notes/network.md 1.1): that is no speed.
        """
        told = (_count(r, "speed_mbps") for r in self.now if "SDR" not in str(r.get("rate") or ""))
        return next((value for value in told if value), None)

    def part(self, why: str = "") -> Part:
        return Part("nic", node=self.node, nic=self.name, why=why)

    def counter_rises(self, *names: str) -> list[tuple[str, int, int]]:
        """(counter, before, after) of those that rose between the looks. Stuck and reset counters tell nothing."""
        return [told for told in self.counter_pairs(*names) if told[2] > told[1]]

    def counter_pairs(self, *names: str) -> list[tuple[str, int, int]]:
        """(counter, before, after) of those that can tell."""
        found = []
        for record, old in self.pairs():
            for name in names:
                new, was = _count(record, name), _count(old, name)
                if new is not None and was is not None and name not in (record.get("saturated") or ()):
                    found.append((name, was, new))
        return found

    def growths(self) -> dict[str, float]:
        """{"rx_bytes", "tx_bytes"}: bytes between the looks; the two faces of a RoCE port count some of them twice."""
        ways: dict[str, float] = {}
        for record, old in self.pairs():
            for way in ("rx_bytes", "tx_bytes"):
                new, was = _count(record, way), _count(old, way)
                if new is not None and was is not None and new >= was:
                    ways[way] = max(ways.get(way, 0.0), float(new - was))
        return ways

    def growth(self) -> float | None:
        """Bytes in both directions between the looks, or None."""
        ways = self.growths()
        return sum(ways.values()) if ways else None

    @property
    def window_s(self) -> float | None:
        """Seconds between its two looks, by its node's clock."""
        a, b = self.first, self.sample
        if a is None or b is None or a.at is None or b.at is None or b.at <= a.at:
            return None
        return b.at - a.at

    def pairs(self) -> Iterator[tuple[Record, Record]]:
        """(record of now, the same of look A) of each face that both looks show."""
        old = {_key(record): record for record in self.before}
        for record in self.now:
            if _key(record) in old:
                yield record, old[_key(record)]


def _key(record: Record) -> tuple[bool, str, Any]:
    return _is_netdev(record), str(record.get("name")), record.get("port")


def _is_netdev(record: Record) -> bool:
    """IPoIB netdevs are of the kind infiniband too; a netdev is its own netdev."""
    return record.get("kind") != "infiniband" or record.get("netdev") == record.get("name")


def _count(record: Record, name: str) -> int | None:
    counters = record.get("counters")
    value = record.get(name, counters.get(name) if isinstance(counters, Mapping) else None)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def is_down(record: Record) -> bool | None:
    """Is this one record of a port without link? None where it does not tell."""
    state = str(record.get("state") or "").lower()
    if not _is_netdev(record):
        return None if state in ("", "nop") else state not in LINKED
    if record.get("carrier") in (0, 1):
        return bool(record["carrier"] == 0)
    return {"down": True, "lowerlayerdown": True, "up": False}.get(state)


def _down(records: tuple[Record, ...]) -> bool | None:
    if records and records[0].get("link_layer") == "InfiniBand":
        records = records[:1]  # ib0 may never have been brought up on a port that works
    told = {state for record in records if (state := is_down(record)) is not None}
    return told.pop() if len(told) == 1 else None


# ---------------------------------------------------------------- all ports of a run


def ports(ev: Evidence) -> dict[str, tuple[Port, ...]]:
    """node -> its ports, for every node that told them; to be called through `ev.derive`."""
    first = {sample.node: sample for sample in ev.of("nic", "A")}
    return {
        node: _of_node(ev, node, sample, first.get(node) if sample.look != "A" else None)
        for node, sample in ev.latest("nic").items()
    }


def job_ports(ev: Evidence) -> list[Port]:
    """The ports that the job uses, or may use, of all nodes that told their ports."""
    return [port for told in ev.derive(ports).values() for port in told if port.the_jobs]


def _of_node(ev: Evidence, node: str, sample: Sample, first: Sample | None) -> tuple[Port, ...]:
    records = _records(sample)
    before = {_key(record): record for record in _records(first)} if first and _one_boot(first, sample) else {}
    netdevs = {str(record["name"]): record for record in records if _is_netdev(record)}
    devices = [record for record in records if not _is_netdev(record)]
    several = {d.get("name") for d in devices if d.get("port") not in (None, 1)}
    own, heard = fabric(ev, node), ev.derive(spoken).devices(node)
    made: list[Port] = []
    for record in devices:
        name, number = str(record["name"]), record.get("port")
        twin = netdevs.pop(str(record.get("netdev")), None)
        faces = (record, twin) if twin is not None else (record,)
        number = number if isinstance(number, int) else None
        by_device = own.names_device(name, number) or (name in heard and name not in several)
        made.append(
            Port(
                node,
                f"{name}:{number}" if name in several else name,
                str(record["netdev"]) if record.get("netdev") else None,
                _use(own, name, number, record.get("netdev"), by_device),
                by_device,
                faces,
                tuple(before[_key(face)] for face in faces if _key(face) in before),
                sample,
                first,
            )
        )
    over_rdma = own.names_rdma or bool(heard)
    rdma = any(port.use == "named" if over_rdma else port.use == "may" and port.down is not True for port in made)
    for name, record in netdevs.items():
        use: Use = "no"
        if own.names_netdev(name):
            use = "setup" if rdma else "named"
        old = tuple(before[_key(r)] for r in (record,) if _key(r) in before)
        made.append(Port(node, None, name, use, False, (record,), old, sample, first))
    return tuple(made)


def _use(own: Fabric, device: str, number: int | None, netdev: object, by_device: bool) -> Use:
    socket = isinstance(netdev, str) and own.names_netdev(netdev)
    if by_device:
        return "named"
    taken = own.may_use_device(device, number)
    if socket:
        return "named" if own.no_rdma or taken else "setup"
    return "may" if taken else "no"


def _one_boot(first: Sample, sample: Sample) -> bool:
    """Are both looks of one boot? Counters of another one began anew (notes/network.md 1.2)."""
    a, b = first.data.get("boot_id"), sample.data.get("boot_id")
    return not a or not b or a == b


def _records(sample: Sample) -> list[Record]:
    told = sample.data.get("nics")
    names = sample.data.get("names")
    names = [n for n in names if isinstance(n, str)] if isinstance(names, list | tuple) else []
    return [
        _whole_record(record, names)
        for record in (told if isinstance(told, list | tuple) else ())
        if isinstance(record, Mapping) and isinstance(record.get("name"), str)
    ]


def _whole_record(record: Record, names: list[str]) -> Record:
    """The record with the counters in it that the node sent as places of its list of names (probes/_nic_counters.py)."""
    zeros, values, counters = record.get("zeros"), record.get("values"), record.get("counters")
    if not zeros and not values:
        return record
    told = unpack(names, counters if isinstance(counters, Mapping) else {}, zeros or "", list(values or ()))
    return {**record, "counters": told}
