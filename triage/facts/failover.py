"""Does NCCL go on over another port where one fails, has it done so, and did a port come back slower?

    [2026-11-29 01:55:27] gpu002:141:158 [0] … NCCL WARN NET/IB: Device 0 marked as failed. Initiating recovery? No (send …
    gpu002:141:158 [0] … NCCL INFO NET/IB: …: Device 0 has been recovered for resiliency context (send …
    gpu002:141:158 [0] … NCCL INFO NET/IB : mlx5_0:1 speed change detected: 400000 -> 100000 Mbps
NCCL_IB_RESILIENCY_PORT_FAILOVER=1 (from 2.29.7, off by default) makes of a give-up a loss of speed: NCCL goes on over the
other device of a merged pair. NCCL_IB_RESILIENCY_PORT_RECOVERY=1 (from 2.30.3) takes the port back once it answers again;
without it, and after five attempts in vain, the port stays failed although its link is back (notes/network.md 4.2; read in
NVIDIA/nccl src/transport/net_ib/p2p_resiliency*.cc).
What can fool it: the setting alone proves nothing (a device that is not merged has no other); the number is a place in the
merged device, no name of a port; what is told at INFO only, which most jobs do not print.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from triage.facts.budget import whole_of
from triage.facts.clocks import log_sample
from triage.facts.evidence import Evidence
from triage.facts.launches import nccl_releases
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, other, unknown
from triage.facts.transport import Span, directory, times_of
from triage.model import Fact, Part

SETTING = "NCCL_IB_RESILIENCY_PORT_FAILOVER"
FIRST = (2, 29, 7)
LINES = ("nccl_port_failed", "nccl_port_recovered", "nccl_speed_change")
MOST_PARTS = 64


@dataclass(frozen=True)
class Word:
    """One such line: what it tells (failed, recovered, lost for good, slower, faster) of which device of which node."""

    node: str
    what: str
    device: str
    text: str
    times: tuple[Span, ...]
    line_no: int


def words(ev: Evidence) -> list[Word]:
    """In the log's order; to be called through `ev.derive`. Lines of hosts that are no node of the job are left out."""
    sample = log_sample(ev)
    if sample is None:
        return []
    who, found = ev.derive(directory), []
    hits = sample.data.get("hits")
    for hit in hits if isinstance(hits, list) else ():
        groups = hit.get("groups") if isinstance(hit, Mapping) and hit.get("id") in LINES else None
        if not isinstance(groups, Mapping):
            continue
        node = who.host(str(groups.get("host") or hit.get("prefix") or ""))
        told = _told(str(hit["id"]), groups)
        if node is None or told is None:
            continue
        line = hit.get("line_no")
        times = times_of(ev, sample, hit, node)
        found.append(Word(node, *told, times, line if isinstance(line, int) else 0))
    return sorted(found, key=lambda word: word.line_no)


def _told(name: str, groups: Mapping[str, object]) -> tuple[str, str, str] | None:
    """(what, device, words) of one line."""
    device = str(groups.get("device") or groups.get("nic") or "?")[:32]
    if name == "nccl_port_failed":
        back = "and tries to take it back" if groups.get("recovery") == "Yes" else "and will not take it back"
        return "failed", device, f"NCCL gave up on its device {device}, goes on over another one {back}"
    if name == "nccl_port_recovered":
        what = "recovered" if groups.get("what") in ("succeeded", "recovered") else "lost for good"
        return what, device, f"NCCL's device {device} is {what}"
    was, now = str(groups.get("was")), str(groups.get("now"))
    if not (was.isdigit() and now.isdigit()):
        return None
    what = "slower" if int(now) < int(was) else "faster"
    return what, device, f"{device} came back at {int(now) / 1000:g} instead of {int(was) / 1000:g} Gbit/s"


def may_fail_over(ev: Evidence) -> bool:
    """May NCCL have gone on over another port? True where a rank asks for it and its release is not too old for it."""
    if any(word.what == "failed" for word in ev.derive(words)):
        return True
    asked = any(_on(row.env.get(SETTING, "")) for row in ev.derive(rank_table).rows.values() if row.env)
    releases = nccl_releases(ev)
    return asked and not (releases and releases[-1] < FIRST)


def _on(value: str) -> bool:
    return bool(whole_of(value.strip()))


@fact("links.failover", type="number", unit="ports", parts="nic")
def failover(ev: Evidence) -> Fact:
    """Ports on which NCCL gave up and went on over another one, by its own line, and that it has not taken back since."""
    if log_sample(ev) is None:
        return unknown("the job log could not be read")
    return _fact(ev, ev.derive(moved))


def moved(ev: Evidence) -> list[Word]:
    """The newest word of each device that was given up and not taken back; to be called through `ev.derive`."""
    newest: dict[tuple[str, str], Word] = {}
    for word in ev.derive(words):
        if word.what not in ("slower", "faster"):
            newest[(word.node, word.device)] = word
    return [word for word in newest.values() if word.what != "recovered"]


def _fact(ev: Evidence, found: list[Word]) -> Fact:
    parts = [Part("nic", node=word.node, name=f"{word.device} of NCCL", why=word.text) for word in found]
    text = "; ".join(f"{part.node}: {part.why}" for part in parts[:3])
    sample = log_sample(ev)
    return known(parts=parts[:MOST_PARTS], text=text, provenance=ev.seen(sample) if sample and parts else ())


@fact("links.failover_slows", type="number", unit="ports", parts="nic")
def failover_slows(ev: Evidence) -> Fact:
    """Those of links.failover that NCCL gave up about when the present, slower pace began."""
    if log_sample(ev) is None:
        return unknown("the job log could not be read")
    began = other(ev, "pace.onset")
    if not isinstance(began.value, int | float):
        return unknown(began.reason) if ev.derive(moved) else known(parts=[])
    slack, at = ev.limit("failover_slack_s"), float(began.value)
    # The newest word may be of a recovery that failed much later; the give-up itself must lie there.
    still = {(word.node, word.device) for word in ev.derive(moved)}
    found = [
        word
        for word in ev.derive(words)
        if word.what == "failed"
        and (word.node, word.device) in still
        and any(span.meets(at - slack, at + slack) for span in word.times)
    ]
    return _fact(ev, list({(word.node, word.device): word for word in found}.values()))


@fact("links.failover_on", type="bool")
def failover_on(ev: Evidence) -> Fact:
    """Does NCCL go on over another port where one fails? True where its own line shows it; a setting alone leaves it open."""
    gone_on = failover(ev)
    if gone_on.parts:
        return known(True, text=gone_on.text, provenance=gone_on.provenance)
    rows = [row for row in ev.derive(rank_table).rows.values() if row.env]
    if not rows:
        return unknown("no rank's environment was seen")
    if not any(_on(row.env.get(SETTING, "")) for row in rows):
        return known(False, text=f"{SETTING} is not set: NCCL gives up with the port")
    releases = nccl_releases(ev)
    if releases and releases[-1] < FIRST:
        return known(False, text=f"NCCL {'.'.join(map(str, releases[-1]))} does not know {SETTING} yet")
    return unknown(f"{SETTING} is set; whether the devices are merged, so that there is another one, is not told")


@fact("links.slower", type="number", unit="ports", parts="nic")
def slower(ev: Evidence) -> Fact:
    """Ports that came back at a lower speed, by NCCL's own line, and have not returned to it since."""
    sample = log_sample(ev)
    if sample is None:
        return unknown("the job log could not be read")
    newest = {(w.node, w.device): w for w in ev.derive(words) if w.what in ("slower", "faster")}
    found = [word for word in newest.values() if word.what == "slower"]
    parts = [Part("nic", node=word.node, nic=word.device, why=word.text) for word in found]
    return known(parts=parts[:MOST_PARTS], provenance=ev.seen(sample) if parts else ())
