"""What NCCL itself said in the job log about ports and peers, whose words they are, and when.

    [2026-11-29 01:55:27] gpu003:4242:4300 [0] transport/net_ib.cc:212 NCCL WARN NET/IB : mlx5_0:1 Got async error event: port error
    gpu002:141:158 [0] transport/net_ib.cc:2451 NCCL WARN NET/IB: Got completion from peer 10.0.0.7<47> with status=12 … hca mlx5_0
The printer names itself by host name, the peer by the address of its socket (notes/network.md 4.2).
What can fool it: a line without a date of its own, which was written at some time after the dated line above it and before
the one below; a host name or address that several nodes share, which then names nobody; a device with two ports, whose
events NCCL may print under either number (NVIDIA/nccl issue 1819); whatever a rank chooses to print.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from triage.facts.clocks import clock_err, clock_offsets, log_sample, log_time, our_time
from triage.facts.evidence import Evidence
from triage.model import Provenance, Sample

# NCCL dates a line to the second (since 2.26, by its own host's clock).
STAMP_S = 1.0
OWN_STAMP = re.compile(r"\[20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,\d]{0,10}\] ([\w.-]{1,64}):\d{1,8}:\d{1,8} \[")


IDS = ("nccl_ib_port_event", "nccl_ib_retry_exceeded", "nccl_failover_failed")


@dataclass(frozen=True)
class Span:
    """Some moment between `lo` and `hi`, on our clock."""

    lo: float
    hi: float

    def inside(self, lo: float, hi: float) -> bool:
        return lo <= self.lo and self.hi <= hi

    def meets(self, lo: float, hi: float) -> bool:
        return self.lo <= hi and lo <= self.hi


@dataclass(frozen=True)
class PortEvent:
    """ "port error" (up False) or "port active": the card told NCCL that a port of the printer's node lost or has link.

    times   when: of many lines alike the first and the last
    more    further ones lie between them, at unknown times
    """

    node: str
    device: str | None  # None in old releases, which did not name it
    up: bool
    times: tuple[Span, ...]
    more: bool


@dataclass(frozen=True)
class GaveUp:
    """Status 12: the printer's card got no answer within the retry budget. The peer, or the path to it, is the suspect."""

    node: str | None  # the printer's
    device: str | None  # the printer's
    peer: str | None  # the peer's node
    told: str  # the peer as the line has it
    times: tuple[Span, ...]


@dataclass(frozen=True)
class Spoken:
    """All of it, and the reading of the log that holds it."""

    events: tuple[PortEvent, ...] = ()
    gave_up: tuple[GaveUp, ...] = ()
    sample: Sample | None = None

    def devices(self, node: str) -> set[str]:
        """RDMA devices that NCCL itself names on this node: it opens only those that the job uses."""
        told = [event.device for event in self.events if event.node == node]
        told += [line.device for line in self.gave_up if line.node == node]
        return {device for device in told if device}

    def provenance(self, ev: Evidence) -> tuple[Provenance, ...]:
        return ev.seen(self.sample) if self.sample else ()


def spoken(ev: Evidence) -> Spoken:
    """To be called through `ev.derive`."""
    sample = log_sample(ev)
    if sample is None:
        return Spoken()
    who = ev.derive(directory)
    events: list[PortEvent] = []
    gave_up: list[GaveUp] = []
    for hit in _hits(sample):
        groups = hit.get("groups")
        if not isinstance(groups, Mapping):
            continue
        host = _text(groups.get("host")) or _text(hit.get("prefix")) or ""
        node = who.host(host)
        times = times_of(ev, sample, hit, node)
        if hit["id"] == "nccl_ib_port_event" and node and times:
            count = hit.get("count")
            more = isinstance(count, int) and count > 2 and len(times) > 1
            events.append(PortEvent(node, _text(groups.get("nic")), groups.get("what") == "active", times, more))
        elif hit["id"] != "nccl_ib_port_event" and times:
            told = _text(groups.get("peer")) or ""
            peer = who.peer(told, _text(groups.get("peer_port")) or "", _text(groups.get("gid")) or "")
            gave_up.append(GaveUp(node, _text(groups.get("hca")), peer, told, times))
    return Spoken(tuple(events), tuple(gave_up), sample)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _hits(sample: Sample) -> Iterator[Mapping[str, Any]]:
    hits = sample.data.get("hits")
    for hit in hits if isinstance(hits, list) else ():
        if isinstance(hit, Mapping) and hit.get("id") in IDS:
            yield hit


# ---------------------------------------------------------------- when


def times_of(ev: Evidence, sample: Sample, hit: Mapping[str, Any], node: str | None) -> tuple[Span, ...]:
    """When the first and the last of these lines were written; () where nothing dates them."""
    told = [hit.get("at")]
    if isinstance(hit.get("count"), int) and hit["count"] > 1:
        told.append(hit.get("last_at"))
    found = []
    for at in told:
        ours = log_time(ev, at)
        if ours is None or not isinstance(at, int | float):
            continue
        if not hit.get("dated", True):
            found.append(Span(ours, max(ours, _written_before(ev, sample, hit))))
            continue
        own = OWN_STAMP.search(str(hit.get("text", "")))
        if node is None:
            found.append(Span(ours, ours + STAMP_S))
        elif own:  # NCCL's own date is by the clock of its own host
            there, err = our_time(ev, node, float(at)), _unmeasured(ev, node)
            found.append(Span(there - err, there + STAMP_S + err))
        else:
            there, err = our_time(ev, node, float(at)), _unmeasured(ev, node)
            found.append(Span(min(ours, there - err), max(ours, there + err) + STAMP_S))
    return tuple(sorted(set(found), key=lambda span: span.lo))


def _unmeasured(ev: Evidence, node: str) -> float:
    """How far the clock of a node that was never measured may be off; 0 where it was."""
    return 0.0 if node in ev.derive(clock_offsets) else clock_err(ev, node)


def _written_before(ev: Evidence, sample: Sample, hit: Mapping[str, Any]) -> float:
    """The latest moment at which an undated line can have been written: a dated line below it, or the file's last change."""
    bounds = [ev.observed]
    changed = log_time(ev, sample.data.get("mtime"))
    if changed is not None:
        bounds.append(changed)
    line = hit.get("line_no")
    if isinstance(line, int):
        for other in sample.data.get("hits") or ():
            if isinstance(other, Mapping) and other.get("dated") and isinstance(other.get("line_no"), int):
                below = log_time(ev, other.get("last_at"))
                if other["line_no"] > line and below is not None:
                    bounds.append(below)
        steps = sample.data.get("iterations") or {}
        series = steps.get("series") or []
        last = series[-1][1] if series and isinstance(series[-1], list) and len(series[-1]) > 1 else None
        below = log_time(ev, last)
        if isinstance(steps.get("last_line_no"), int) and steps["last_line_no"] > line and below is not None:
            bounds.append(below)
    return min(bounds)


# ---------------------------------------------------------------- who


class _Directory:
    """Host names and addresses of the job's nodes. What fits several nodes fits none."""

    def __init__(self, ev: Evidence) -> None:
        self.hosts: dict[str, set[str]] = {}
        self.places: dict[str, set[str]] = {}  # address -> nodes
        self.doors: dict[tuple[str, str], set[str]] = {}  # (address, port) -> nodes
        for node in ev.job.nodes:
            names = {node.name.lower()}
            if not _is_address(node.name):
                names.add(node.name.lower().partition(".")[0])
            for name in names:
                self.hosts.setdefault(name, set()).add(node.name)
            for door in node.fabric:
                address, _, port = (door, "", "") if _is_address(door) or ":" not in door else door.rpartition(":")
                self.places.setdefault(_plain(address), set()).add(node.name)
                self.doors.setdefault((_plain(address), port), set()).add(node.name)
            if node.address:
                self.places.setdefault(_plain(node.address), set()).add(node.name)

    def host(self, name: str) -> str | None:
        """The node of this host name, whole or short (NCCL cuts it at the first dot)."""
        whole = name.lower()
        for form in (whole, whole.partition(".")[0]):
            found = self.hosts.get(form, set())
            if len(found) == 1:
                return next(iter(found))
        return None

    def peer(self, told: str, port: str, gid: str) -> str | None:
        """The node of a peer as NCCL writes it: address or name, port, and on RoCE the address of the very port (GID)."""
        for address, door in ((_plain(told), port), (_plain(gid), "")):
            if not address:
                continue
            found = self.doors.get((address, door), set())
            if len(found) == 1:
                return next(iter(found))
            found = self.places.get(address, set())
            if _is_local(address) or len(found) > 1:
                return None
            if found:
                return next(iter(found))
            if not _is_address(address) and (node := self.host(address)):
                return node
        return None


def directory(ev: Evidence) -> _Directory:
    """To be called through `ev.derive`."""
    return _Directory(ev)


def _plain(address: str) -> str:
    """One spelling of an address: no brackets, no scope, IPv4 out of ::ffff:10.0.0.7."""
    text = address.strip().strip("[]").partition("%")[0].lower()
    try:
        found = ip_address(text)
    except ValueError:
        return text
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)


def _is_address(text: str) -> bool:
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_local(address: str) -> bool:
    """Loopback and link-local addresses are another machine on every machine."""
    if not _is_address(address):
        return address == "localhost"
    found = ip_address(address)
    return found.is_loopback or found.is_unspecified or found.is_link_local
