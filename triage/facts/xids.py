"""What the NVIDIA driver said in the kernel log, and whether one of it may be the cause of the stall.

A cause is a cause-role Xid (playbooks/xid.yaml) on a GPU that the job uses, dated before the end of the stall's beginning
and not long before the last progress. Symptom roles (45, 43, 137 ...) never are: they come with every kill, and they are not
even told where a cause is known, or once a process of the job has ended. What the number means on this driver and GPU, or
whether the job uses that GPU, may not be known: then nothing is said of it but that.
What can fool it: a kernel log that may not be read or does not reach back (unknown, and not none); Xids that the driver
printed at a lower rate; clocks (a node's is measured, the kernel's own drifts); an Xid of another job on a shared node; an
event of the GPU minutes ago that the job survived (steps that ended after it are told as a contradiction).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from triage.facts.activity import number, rows_of
from triage.facts.clocks import clock_offsets, our_time
from triage.facts.ends import stall_window
from triage.facts.evidence import Evidence
from triage.facts.exits import first_timeout, log_exits
from triage.facts.gpuplaces import GpuPlace, arch_of, driver_of, gpu_place, short_bdf
from triage.facts.pace import job_change
from triage.facts.progress import pulse
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Part, Provenance, Sample
from triage.readers.xid import Meaning, load, recovery_of

OFF_BUS = 79  # also told without a number, in three lines
RECOVERY = 154  # told by a fact of its own
CODES = {
    "xid": "xid",
    "xid_cascade": "previous",
}  # signature -> the group that holds a number; a 45 may name what it follows
MOST = 8


@dataclass(frozen=True)
class Xid:
    """One Xid of one GPU: what, where, when on our clock (`err_s`: beside the error of its node's clock), by which sample."""

    code: int
    meaning: Meaning
    place: GpuPlace
    times: tuple[float, ...]  # first, newest ones, last; sorted; empty: undated
    err_s: float
    count: int
    text: str
    sample: Sample

    def part(self) -> Part:
        return Part(
            "gpu", self.place.node, self.place.rank, self.place.index, name=self.place.bdf or None, why=self.why()
        )

    def why(self) -> str:
        many = f", {self.count} times" if self.count > 1 else ""
        ours = f"; {self.place.why}" if self.place.ours else ""
        return f"{self.meaning.says()}{many}: {self.text[:120]}{ours}"


def xids(ev: Evidence) -> tuple[Xid, ...]:
    """Every Xid of the attempt that the kernels of the job's nodes tell. To be called through `ev.derive`."""
    found: list[Xid] = []
    for node, sample in ev.latest("kernel").items():
        events = rows_of(sample.data.get("events"))
        fatal = _severities(events)
        told = [
            (event.get("id"), one) for event in events if (one := _read(ev, node, sample, event, fatal)) is not None
        ]
        # The same thing is told by its number, and once more: without it, or by the 45 that follows it.
        numbered = {(one.place.bdf, one.code) for name, one in told if name == "xid"}
        found += [one for name, one in told if name == "xid" or (one.place.bdf, one.code) not in numbered]
    return tuple(found)


def _severities(events: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], bool]:
    """(address, number) -> did any of its lines say Fatal?"""
    found: dict[tuple[str, str], bool] = {}
    for event in events:
        groups = event.get("groups")
        if event.get("id") == "xid_nvlink" and isinstance(groups, Mapping):
            key = short_bdf(groups.get("bdf")), str(groups.get("xid"))
            found[key] = found.get(key, False) or groups.get("severity") == "Fatal"
    return found


def _read(
    ev: Evidence, node: str, sample: Sample, event: Mapping[str, Any], fatal: Mapping[tuple[str, str], bool]
) -> Xid | None:
    groups = event.get("groups")
    groups = groups if isinstance(groups, Mapping) else {}
    text = str(event.get("text") or "")
    bdf, told = short_bdf(groups.get("bdf")), str(groups.get(CODES.get(str(event.get("id")), "")) or "")
    if event.get("id") == "gpu_off_bus":
        told = str(OFF_BUS)
    if not re.fullmatch(r"[0-9]{1,4}", told):
        return None
    code = int(told)
    pid = str(groups.get("pid") or "")
    place = gpu_place(ev, node, bdf, int(pid) if re.fullmatch(r"[0-9]{1,9}", pid) else None)
    meaning = load().meaning(
        code, driver=driver_of(ev, node), arch=arch_of(ev, node, bdf), fatal=fatal.get((bdf, told))
    )  # fmt: skip
    times = tuple(our_time(ev, node, at) for at in _dates(event))
    count = event.get("count")
    return Xid(
        code, meaning, place, times, number(event.get("err_s")) or 0.0,
        count if isinstance(count, int) and count > 0 else 1, text, sample,
    )  # fmt: skip


def _dates(event: Mapping[str, Any]) -> list[float]:
    told = event.get("times")
    every = [event.get("at"), *(told if isinstance(told, list) else ()), event.get("last_at")]
    return sorted({at for one in every if (at := number(one)) is not None and at > 0})


# ---------------------------------------------------------------- which of them may be a cause


@dataclass(frozen=True)
class Judged:
    """The Xids near the stall: those that are causes, and those of which something is missing (with what)."""

    causes: tuple[Xid, ...] = ()
    perhaps: tuple[tuple[Xid, str], ...] = ()
    why_none: str = ""  # why "none" may not be said, "" if it may


def judged(ev: Evidence) -> Judged:
    """See the module. To be called through `ev.derive`."""
    near = [one for one in ev.derive(xids) if moment(ev, one) is not None]
    strong = [one for one in near if one.meaning.role == "cause" and not one.meaning.alone]
    causes, perhaps = [], []
    for one in near:
        role, why = one.meaning.role, ""
        if role not in ("cause", "unknown") or one.place.ours is False:
            continue
        if role == "unknown":
            why = one.meaning.why
        elif one.meaning.alone and any(other.place.node == one.place.node for other in strong):
            continue  # it follows the other
        elif one.place.ours is None:
            why = one.place.why
        elif one.meaning.weak and one.count < 2 and not _ended(ev, one):
            why = "others call that number harmless, it came once, and nothing else tells of that GPU"
        if why:
            perhaps.append((one, why))
        else:
            causes.append(one)
    return Judged(
        tuple(sorted(causes, key=lambda one: moment(ev, one) or 0.0)), tuple(perhaps), _why_none(ev)
    )  # fmt: skip


def moment(ev: Evidence, one: Xid) -> float | None:
    """The first of its times that lies where a cause of this stall must lie; None: undated, elsewhere, or no known stall."""
    found = _bounds(ev, one)
    return next((at for at in one.times if found is not None and found[0] <= at <= found[1]), None)


def _bounds(ev: Evidence, one: Xid) -> tuple[float, float] | None:
    slack = ev.limit("hard_slack_s") + one.err_s
    offset = ev.derive(clock_offsets).get(one.place.node)
    slack += offset.err_s if offset else 0.0
    window = ev.derive(stall_window)
    if window is None:
        found = ev.derive(pulse)
        if found.last is None or found.yes:
            return None
        window = found.last[0], found.last[0] + found.limit_s
    latest = [window[1]]
    timed_out, change = ev.derive(first_timeout), ev.derive(job_change)
    if timed_out is not None:
        # Whoever waits longest entered some steps before the one that failed on its way there, at most.
        latest.append(timed_out + ev.limit("still_factor") * (change.healthy if change else 0.0))
    # What killed a process came before its launcher told of its end; what came after another's end is a consequence.
    latest += [end.at for end in ev.derive(log_exits) if end.at is not None]
    return window[0] - ev.limit("xid_before_s") - slack, min(latest) + slack


def _ended(ev: Evidence, one: Xid) -> bool:
    """Did the rank on that GPU, or (where the rank is not known) a process of that node, end by the job log?"""
    return any(
        end.code and (end.rank == one.place.rank if one.place.rank is not None else end.node == one.place.node)
        for end in ev.derive(log_exits)
    )


def _why_none(ev: Evidence) -> str:
    """Why "no Xid" may not be said: a kernel log that could not be read, or not back to the attempt's start."""
    told = ev.latest("kernel")
    for node in ev.job.nodes:
        sample = told.get(node.name)
        if sample is None or not sample.data.get("readable"):
            return f"the kernel log of {node.name} could not be read"
        if sample.data.get("boot_covered") is False:
            return f"the kernel log of {node.name} does not reach back to the attempt's start"
    return "" if ev.job.nodes else "no kernel log was read"


def _sources(ev: Evidence, found: Iterable[Xid]) -> tuple[Provenance, ...]:
    return ev.seen(*{id(one.sample): one.sample for one in found}.values())[:MOST]


def _parts(found: Iterable[Xid]) -> list[Part]:
    """One part a GPU, of its first Xid."""
    unique: dict[tuple[str, str], Part] = {}
    for one in found:
        unique.setdefault((one.place.node, one.place.bdf), one.part())
    return list(unique.values())


def _fact(ev: Evidence, found: Iterable[Xid], against: Iterable[str] = ()) -> Fact:
    told = list(found)
    text = "; ".join(f"{part.label()}: {part.why}" for part in _parts(told)[:3])
    return known(parts=_parts(told), text=text, provenance=_sources(ev, told), contradicted_by=against)


def against(ev: Evidence, one: Xid) -> list[str]:
    """What speaks against this Xid as the cause: steps that ended after it, or a GPU that answers after it was gone."""
    found = []
    window = ev.derive(stall_window)
    change = ev.derive(job_change)
    at = moment(ev, one)
    late = ev.limit("still_factor") * (change.healthy if change else 0.0) + one.err_s + ev.limit("hard_slack_s")
    if window is not None and at is not None and at < window[0] - late:
        found.append(f"the steps that ended up to {window[0] - at:.0f}s after Xid {one.code}")
    gpu = ev.latest("gpu").get(one.place.node)
    for row in rows_of(gpu.data.get("gpus")) if gpu is not None and one.code == OFF_BUS else ():
        if short_bdf(row.get("bdf")) == one.place.bdf and row.get("status") == "ok":
            found.append(f"NVML, to which the GPU at {one.place.bdf} answers")
    return found


# ---------------------------------------------------------------- facts


@fact("xids.cause", type="number", unit="gpus", parts="gpu")
def cause(ev: Evidence) -> Fact:
    """GPUs of the job with an Xid that is a cause, dated near the stall's beginning. Unknown where one could not be read."""
    found = ev.derive(judged)
    if found.causes:
        words = dict.fromkeys(word for one in found.causes[:1] for word in against(ev, one))
        return _fact(ev, found.causes, words)
    if found.perhaps:
        one, why = found.perhaps[0]
        return unknown(f"Xid {one.code} on {one.part().label()}: {why}", provenance=_sources(ev, [one]))
    return unknown(found.why_none) if found.why_none else _fact(ev, ())


@fact("xids.perhaps", type="number", unit="gpus", parts="gpu")
def perhaps(ev: Evidence) -> Fact:
    """GPUs with an Xid near the stall that could be a cause, if what is missing were known (driver, generation, whose GPU)."""
    found = ev.derive(judged)
    parts = {
        (one.place.node, one.place.bdf): Part(
            "gpu",
            one.place.node,
            one.place.rank,
            one.place.index,
            name=one.place.bdf or None,
            why=f"{one.why()}; but {why}",
        )
        for one, why in reversed(found.perhaps)
    }
    if not parts and not ev.of("kernel"):
        return unknown("no kernel log was read")
    text = "; ".join(part.why for part in parts.values())
    return known(parts=parts.values(), text=text[:300], provenance=_sources(ev, (one for one, _ in found.perhaps)))


@fact("xids.first", type="number", unit="gpus", parts="gpu")
def first(ev: Evidence) -> Fact:
    """Of several GPUs with a cause: the one whose Xid came first. Unknown where the clocks cannot tell."""
    found = ev.derive(judged)
    if not found.causes:
        fact_ = cause(ev)
        return unknown(fact_.reason) if not fact_.known else _fact(ev, ())
    one = found.causes[0]
    for other in found.causes[1:]:
        if (other.place.node, other.place.bdf) == (one.place.node, one.place.bdf):
            continue
        same = other.place.node == one.place.node  # one log, one clock
        doubt = 0.0 if same else _clock_err(ev, one) + _clock_err(ev, other)
        if (moment(ev, other) or 0.0) - (moment(ev, one) or 0.0) <= doubt:
            return unknown(
                f"{one.part().label()} and {other.part().label()} tell theirs within the error of the clocks"
            )
    return _fact(ev, [one])


def _clock_err(ev: Evidence, one: Xid) -> float:
    offset = ev.derive(clock_offsets).get(one.place.node)
    return one.err_s + (offset.err_s if offset else 0.0)


def _of_role(ev: Evidence, role: str) -> list[Xid]:
    return [one for one in ev.derive(xids) if one.meaning.role == role and one.place.ours is not False]


def _readable(ev: Evidence) -> bool:
    return any(sample.data.get("readable") for sample in ev.of("kernel"))


@fact("xids.symptom", type="number", unit="gpus", parts="gpu")
def symptom(ev: Evidence) -> Fact:
    """GPUs with an Xid that only follows something else, before any end of the job, where no cause is told. Accuses nobody."""
    if not _readable(ev):
        return unknown("no kernel log could be read")
    ends = [end.at for end in ev.derive(log_exits) if end.at is not None]
    begins = min(ends) - ev.limit("hard_slack_s") if ends else None
    found = [
        one
        for one in _of_role(ev, "symptom")
        if not ev.derive(judged).causes and one.times and (begins is None or one.times[0] < begins)
    ]
    return _fact(ev, found)


@fact("xids.application", type="number", unit="gpus", parts="gpu")
def application(ev: Evidence) -> Fact:
    """GPUs with an Xid that mostly is the program's own error. No step against the hardware."""
    return _fact(ev, _of_role(ev, "application")) if _readable(ev) else unknown("no kernel log could be read")


@fact("xids.info", type="number", unit="gpus", parts="gpu")
def info(ev: Evidence) -> Fact:
    """GPUs with an Xid that is worth a note (a remap recorded, corrected errors). Accuses nobody."""
    if not _readable(ev):
        return unknown("no kernel log could be read")
    return _fact(ev, (one for one in _of_role(ev, "info") if one.code != RECOVERY))


@fact("xids.told_action", type="number", unit="gpus", parts="gpu")
def told_action(ev: Evidence) -> Fact:
    """GPUs for which the driver asks for a reset, a reboot or a drain, by its newest Xid 154. None of it: it has recovered."""
    if not _readable(ev):
        return unknown("no kernel log could be read")
    parts: list[Part] = []
    seen: list[Sample] = []
    for node, sample in ev.latest("kernel").items():
        newest: dict[str, tuple[float, Mapping[str, Any]]] = {}
        for event in rows_of(sample.data.get("events")):
            groups = event.get("groups")
            if event.get("id") == "xid_recovery" and isinstance(groups, Mapping):
                at, bdf = number(event.get("last_at")) or 0.0, short_bdf(groups.get("bdf"))
                if bdf not in newest or at >= newest[bdf][0]:
                    newest[bdf] = (at, event)
        for bdf, (_, event) in newest.items():
            action = recovery_of(str(event.get("text") or ""), load())
            place = gpu_place(ev, node, bdf)
            if action is None or action.none or place.ours is False:
                continue
            why = f"its driver says {action.text!r}: {action.says}"
            parts.append(Part("gpu", node, place.rank, place.index, name=bdf or None, why=why))
            seen.append(sample)
    text = "; ".join(f"{part.label()}: {part.why}" for part in parts[:3])
    return known(parts=parts, text=text, provenance=_seen(ev, seen))


def _seen(ev: Evidence, samples: list[Sample]) -> tuple[Provenance, ...]:
    return ev.seen(*{id(sample): sample for sample in samples}.values())[:MOST]


@fact("xids.switch", type="number", unit="nodes", parts="node")
def switch(ev: Evidence) -> Fact:
    """Nodes whose NVSwitch told a fatal error (SXid). All GPUs behind it may be hit; a finding beside their own Xids."""
    if not _readable(ev):
        return unknown("no kernel log could be read")
    parts, seen = [], []
    for node, sample in ev.latest("kernel").items():
        told = [
            event
            for event in rows_of(sample.data.get("events"))
            if event.get("id") == "sxid" and (event.get("groups") or {}).get("severity") == "Fatal"
        ]
        if told:
            parts.append(Part("node", node, why=str(told[0].get("text") or "")[:160]))
            seen.append(sample)
    return known(parts=parts, text="; ".join(part.why for part in parts[:3]), provenance=_seen(ev, seen))
