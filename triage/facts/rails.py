"""Which ports of different nodes are alike, and what each one's counters say between the two looks.

Port i of every node hangs on leaf switch i, and NCCL keeps its traffic on that rail: so a port is compared with the ports of
the same place over the nodes, never with the other ports of its own node (notes/network.md 3). The place is the order of the
PCI addresses, not the name: mlx5_2 may be a storage port here and a rail there.
What can fool it: nodes that are not built alike (those whose number of ports or addresses differ from the rest's are left
out, and said); a job that names no ports, whose storage ports are taken for rails of their own; bonds, whose members share
a name; Ethernet ports of an InfiniBand job and the reverse, which are left out.
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from triage.facts.evidence import Evidence
from triage.facts.ports import Port, Record, job_ports
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Sample
from triage.readers.counters import Counter, grown, load, reset_of

_BOND = re.compile(r"(?:^|_)(?:bond|team)\d*")
_DIGITS = re.compile(r"\d+")
_UPWARDS = ("rx_packets", "tx_packets")
MOST_SOURCES = 8


@dataclass(frozen=True)
class Rail:
    """The ports at one place of their nodes, by node."""

    index: int
    ports: tuple[Port, ...]

    def says(self) -> str:
        return f"rail {self.index}"


@dataclass(frozen=True)
class Rails:
    """rails    in the order of their places
    left_out  node -> why its ports are compared with nobody's
    by        "PCI address" or "name", where some node does not tell addresses
    """

    rails: tuple[Rail, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    by: str = "PCI address"
    named: bool = True  # the job names its ports; else all that it may use are taken

    def ports(self) -> Iterator[Port]:
        for rail in self.rails:
            yield from rail.ports

    @property
    def nodes(self) -> int:
        return len({port.node for port in self.ports()})


def rails(ev: Evidence) -> Rails:
    """To be called through `ev.derive`."""
    found = [port for port in job_ports(ev) if port.now and not _is_bond(port)]
    named = [port for port in found if port.use == "named"]
    found = named or found
    layers = Tally(port.layer for port in found if port.layer)
    if len(layers) > 1:
        # A job with InfiniBand ports does not carry its payload over an Ethernet one that it may use as well.
        wanted = "InfiniBand" if layers["InfiniBand"] * 2 >= layers.total() else "Ethernet"
        found = [port for port in found if port.layer == wanted]
    nodes: dict[str, list[Port]] = {}
    for port in found:
        nodes.setdefault(port.node, []).append(port)
    if not nodes:
        return Rails()
    by_pci = all(port.pci for port in found)
    order = {node: sorted(told, key=_by_pci if by_pci else _by_name) for node, told in nodes.items()}
    # A node that shows fewer ports than most has lost one, or is another machine: only its addresses tell which is which.
    size = max(Tally(len(told) for told in order.values()).items(), key=lambda pair: (pair[1], pair[0]))[0]
    usual = [told for told in order.values() if len(told) == size]
    places = Tally(tuple(p.pci for p in told) for told in usual).most_common(1)[0][0] if by_pci else ()
    rows: list[list[Port]] = [[] for _ in range(size)]
    left_out: dict[str, str] = {}
    for node, told in order.items():
        if len(told) == size:
            for row, port in zip(rows, told, strict=True):
                row.append(port)
        elif by_pci and {port.pci for port in told} <= set(places) and len({p.pci for p in told}) == len(told):
            for port in told:
                rows[places.index(port.pci)].append(port)
        else:
            left_out[node] = f"it shows {len(told)} ports, most nodes {size}"
    made = tuple(Rail(index, tuple(row)) for index, row in enumerate(rows))
    return Rails(made, left_out, "PCI address" if by_pci else "name", bool(named))


def _is_bond(port: Port) -> bool:
    return any(name is not None and _BOND.search(name) for name in (port.device, port.netdev))


def _by_pci(port: Port) -> tuple[str, str]:
    # Some machines write the domain with eight digits; two ports of one function are told apart by name.
    domain, _, rest = (port.pci or "").partition(":")
    return f"{domain.rjust(8, '0')}:{rest}", port.device or ""


def _by_name(port: Port) -> tuple[str, tuple[int, ...]]:
    name = port.device or port.name
    return _DIGITS.sub("#", name), tuple(int(run[:18]) for run in _DIGITS.findall(name))


# ---------------------------------------------------------------- what counters say


@dataclass(frozen=True)
class Told:
    """One port between the looks.

    window_s  seconds, by its node's clock
    values    our name of a counter -> events; only those that can tell
    why       our name -> "stuck" or "reset" of those that cannot
    meaning   our name -> what it is
    """

    port: Port
    window_s: float
    values: Mapping[str, int]
    why: Mapping[str, str]
    meaning: Mapping[str, Counter]

    def per_s(self, name: str) -> float | None:
        return self.values[name] / self.window_s if name in self.values else None

    def of(self, role: str, side: str = "") -> dict[str, int]:
        """Our name -> events of the counters of this role that are evidence and can tell."""
        return {
            name: value
            for name, value in self.values.items()
            if (c := self.meaning[name]).role == role and c.side == side and not c.noise
        }

    def total(self, role: str, unit: str = "") -> int | None:
        """The most that one counter of this role and unit says; None where none can tell."""
        told = [v for n, v in self.values.items() if self.meaning[n].role == role and self.meaning[n].unit == unit]
        return max(told, default=None)


def told(ev: Evidence) -> dict[tuple[str, str], Told]:
    """(node, port) -> what it says, of the job's ports that both looks show; to be called through `ev.derive`."""
    found: dict[tuple[str, str], Told] = {}
    for port in job_ports(ev):
        window = port.window_s
        if window is not None and window >= ev.limit("wire_min_s"):
            found[(port.node, port.name)] = _of_port(port, window)
    return found


def _of_port(port: Port, window: float) -> Told:
    values: dict[str, int] = {}
    why: dict[str, str] = {}
    meaning: dict[str, Counter] = {}
    faces = list(port.pairs())
    rows = [(record, *_rows(record, old)) for record, old in faces]
    if any(reset for _, _, reset in rows):
        return Told(port, window, {}, {"all counters": "reset"}, {})
    for _, lines, _ in rows:
        for counter, value, reason in lines:
            if value is None:
                if not counter.noise:
                    why.setdefault(counter.name, reason)
                continue
            values[counter.name] = max(value, values.get(counter.name, 0))  # both faces may tell of the same event
            meaning[counter.name] = counter
    return Told(port, window, {n: v for n, v in values.items() if n not in why}, why, meaning)


def _rows(record: Record, old: Record) -> tuple[list[tuple[Counter, int | None, str]], bool]:
    """([(counter, events or None, why not)], whether the counters of this face began anew)."""
    now, before = record.get("counters"), old.get("counters")
    if not isinstance(now, Mapping) or not isinstance(before, Mapping):
        return [], False
    table, driver = load(), record.get("driver")
    told = [
        (
            name,
            table.of(name, driver if isinstance(driver, str) else None),
            _whole(before.get(name)),
            _whole(now.get(name)),
        )
        for name in now
        if name in before and isinstance(name, str)
    ]
    # A driver tells gauges as well, which fall without any reset: only what surely counts upwards says that it began anew.
    sure = [(c, was, new) for n, c, was, new in told if n in _UPWARDS or (c is not None and c.role != "meta")]
    if reset_of(sure):
        return [], True
    sums: dict[tuple[str, str], tuple[Counter, int | None, str]] = {}
    for name, counter, was, new in told:
        if counter is None or was is None or new is None:
            continue
        step = grown(counter, was, new)
        # Priorities and classes of one pattern add up; synonyms tell the same events, and stay apart until the caller.
        key = (counter.name, _DIGITS.sub("#", name))
        _, sofar, why = sums.get(key, (counter, 0, ""))
        value = None if step.value is None or sofar is None else sofar + step.value
        sums[key] = (counter, value, why or step.why)
    return list(sums.values()), False


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def at_rails(ev: Evidence) -> list[tuple[Rail, list[Told]]]:
    """Each rail with what its ports say, of those that can be compared; to be called through `ev.derive`."""
    heard = ev.derive(told)
    return [
        (rail, [heard[(p.node, p.name)] for p in rail.ports if (p.node, p.name) in heard and p.down is not True])
        for rail in ev.derive(rails).rails
    ]


def sources(ports: list[Port]) -> list[Sample]:
    """The newest samples of these ports, each once."""
    return list({id(p.sample): p.sample for p in ports if p.sample is not None}.values())[:MOST_SOURCES]


@fact("wire.rails", type="text")
def rails_text(ev: Evidence) -> Fact:
    """How the job's ports are lined up: port i of each node, in the order of their PCI addresses, is rail i."""
    found = ev.derive(rails)
    if not found.rails:
        return unknown("no port that the job is known to use was seen")
    aside = f"; left out: {', '.join(sorted(found.left_out)[:4])}" if found.left_out else ""
    count = len(found.rails)
    all_of = "" if found.named else "; the job names no ports: all that it may use"
    says = f"{count} rail{'s' if count != 1 else ''} over {found.nodes} nodes, by {found.by}{all_of}{aside}"
    return known(says, text=says, provenance=ev.seen(*sources(list(found.ports()))))


@fact("wire.rail_ports", type="number", unit="ports")
def rail_ports(ev: Evidence) -> Fact:
    """How many ports can be compared on the smallest rail: with few of them an outlier is a guess."""
    sizes = [len(heard) for _, heard in ev.derive(at_rails)]
    if not sizes or not max(sizes):
        return unknown("no port of the job was seen in both looks")
    return known(min(sizes))
