"""The job's own ports: down now, or changed between the looks.

What can fool it: a port that the job does not use (only ports that the ranks' NCCL environment names, or InfiniBand, are
the job's; the others are findings); totals since boot (only the delta between the looks counts here); carrier_changes of
an interface that was just configured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from triage.facts.clocks import our_time
from triage.facts.evidence import Evidence
from triage.facts.progress import fabric, onset_interval
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Part, Sample


def is_down(nic: Mapping[str, Any]) -> bool | None:
    """Is the port without link? None where it does not tell."""
    state = str(nic.get("state") or "").lower()
    if nic.get("kind") == "infiniband":
        return None if not state else state not in ("active", "armed", "init")
    if nic.get("carrier") in (0, 1):
        return bool(nic["carrier"] == 0)
    return {"down": True, "lowerlayerdown": True, "up": False}.get(state)


def _ports(
    ev: Evidence, fabric_only: bool
) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any] | None, Sample]]:
    """(node, port in the newest look, the same port in look A, sample) of the ports that the job may use, or of the others."""
    first = {s.node: s for s in ev.of("nic", "A")}
    for node, sample in ev.latest("nic").items():
        own = fabric(ev, node)
        before = first.get(node) if sample.look != "A" else None
        old = {n.get("name"): n for n in before.data.get("nics") or () if isinstance(n, Mapping)} if before else {}
        for nic in sample.data.get("nics") or ():
            if isinstance(nic, Mapping) and own.may_use(nic) is fabric_only:
                yield node, nic, old.get(nic.get("name")), sample


def went_down(ev: Evidence, node: str, name: str) -> bool:
    """Does this node's kernel say that the port lost its link near the onset?"""
    interval = ev.derive(onset_interval)
    kernel = ev.latest("kernel").get(node)
    if interval is None or kernel is None:
        return False
    window = ev.limit("link_budget_s") + 5.0
    for event in kernel.data.get("events") or ():
        groups = event.get("groups") or {}
        at = event.get("last_at", event.get("at"))
        if event.get("id") != "link_down" or name not in groups.values() or not isinstance(at, int | float):
            continue
        if interval[0] - window <= our_time(ev, node, float(at)) <= interval[1] + 5.0:
            return True
    return False


@fact("links.down_now", type="number", unit="ports", parts="nic")
def down_now(ev: Evidence) -> Fact:
    """Ports that the job uses and that are without link in both looks.

    A port that the job names counts; one that it only may use (InfiniBand, none named) counts when its kernel dates the
    loss near the onset: a port that was never cabled is down in both looks too.
    """
    parts, seen, told = [], [], 0
    for node, nic, before, sample in _ports(ev, True):
        state = is_down(nic)
        if state is None or before is None:  # one look may have met a flap that is over
            continue
        told += 1
        name = str(nic.get("name"))
        if state and is_down(before) and (fabric(ev, node).names(nic) or went_down(ev, node, name)):
            parts.append(Part("nic", node=node, nic=name, why=f"{name} of {node} has no link in both looks"))
            seen.append(sample)
    if not told:
        return unknown("no port that the job is known to use was seen in both looks")
    return known(parts=parts, provenance=ev.seen(*seen[:8]))


@fact("links.flapped", type="number", unit="ports", parts="nic")
def flapped(ev: Evidence) -> Fact:
    """Ports that the job uses and whose link changed between the looks."""
    parts, seen, told = [], [], 0
    for node, nic, before, sample in _ports(ev, True):
        if before is None:
            continue
        for counter in ("carrier_changes", "link_downed"):
            new, old = _count(nic, counter), _count(before, counter)
            if new is None or old is None:
                continue
            told += 1
            if new > old:
                name = str(nic.get("name"))
                parts.append(Part("nic", node=node, nic=name, why=f"{counter} of {name} rose from {old} to {new}"))
                seen.append(sample)
    if not told:
        return unknown("no counter of a port that the job is known to use was seen in both looks")
    return known(parts=parts, provenance=ev.seen(*seen[:8]))


@fact("links.other_down", type="number", unit="ports", parts="nic")
def other_down(ev: Evidence) -> Fact:
    """Ports that the job does not use and that changed between the looks: a finding, never a verdict."""
    if not ev.of("nic"):
        return unknown("no node told its ports")
    parts = []
    for node, nic, before, _ in _ports(ev, False):
        new, old = _count(nic, "carrier_changes"), _count(before or {}, "carrier_changes")
        if new is not None and old is not None and new > old:
            name = str(nic.get("name"))
            parts.append(
                Part("nic", node=node, nic=name, why=f"carrier_changes rose from {old} to {new}; not the job's")
            )
    return known(parts=parts)


def _count(nic: Mapping[str, Any], name: str) -> int | None:
    value = nic.get(name, (nic.get("counters") or {}).get(name))
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@fact("links.budget_s", type="number", unit="s")
def budget(ev: Evidence) -> Fact:
    """How long the transport retries silently before it gives up on a port (notes/network.md 4.2).

    InfiniBand and RoCE: 4.096 us x 2^NCCL_IB_TIMEOUT x about 7 retries; NCCL's default time-out is 20 since 2.23 (about
    30 s). Over TCP the kernel retries for many minutes, and the collective's own time-out comes first.
    """
    for row in ev.derive(rank_table).rows.values():
        value = row.env.get("NCCL_IB_TIMEOUT", "")
        if value.isdigit() and 0 < int(value) < 32:
            retries = row.env.get("NCCL_IB_RETRY_CNT", "7")
            count = int(retries) if retries.isdigit() else 7
            return known(4.096e-6 * 2 ** int(value) * max(1, count), text=f"NCCL_IB_TIMEOUT={value}")
    return known(ev.limit("link_budget_s"), text="NCCL's default")
