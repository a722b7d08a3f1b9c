"""The words of triage as frozen dataclasses. A leaf: imports nothing of the project.

Times are seconds since the epoch (float, UTC) inside the program and ISO 8601 with `Z` in JSON. Units stand in names.
Unknown is None with a reason beside it, never 0 and never NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Value = bool | float | int | str | list[Any] | None


# ---------------------------------------------------------------- the job and its machines


@dataclass(frozen=True)
class Node:
    """A machine of the job, as the scheduler or inventory knows it."""

    name: str
    address: str = ""  # where SSH connects; "" = the name
    port: int = 22
    user: str = ""
    fabric: tuple[str, ...] = ()  # addresses on the training network, "host:port"
    state: str = ""  # the scheduler's word, e.g. "idle", "mixed*", "down"
    state_reason: str = ""
    gpus: int | None = None  # that the job has there, by the scheduler; None: nobody told


@dataclass(frozen=True)
class Attempt:
    """One run of a job id: its restart count and when it began and ended (epoch seconds). None: nobody told."""

    restart: int | None = None
    started: float | None = None
    ended: float | None = None


@dataclass(frozen=True)
class Job:
    """What a scheduler knows of a job. `nodes` keep the scheduler's order: rank mapping depends on it."""

    id: str
    scheduler: str
    nodes: tuple[Node, ...]
    cluster: str = ""
    state: str = "running"  # running pending suspended completing ended unknown
    attempt: Attempt = Attempt()
    log: str = ""
    user: str = ""
    match: Mapping[str, str] = field(default_factory=dict)  # environment names and values that mark this job's ranks
    deadline: float | None = None  # the scheduler's wall-time limit, epoch seconds
    workdir: str = ""  # where the job was started

    def node(self, name: str) -> Node | None:
        return next((n for n in self.nodes if n.name == name), None)


# ---------------------------------------------------------------- what probes say


@dataclass(frozen=True)
class Sample:
    """What one probe returned once on one node. Everything that triage ever sees of a node is a Sample.

    `node` is set on the operator's side and never believed from the wire. `at` is the node's clock, `received` ours.
    Two probes exist only on our side: `contact` (how far the connection came; data: phase, error, banner) and
    `joblog` of node "" (the log read on our own machine).
    """

    probe: str
    node: str
    look: str  # "A", "B" (the two cheap rounds) or "C" (a costly probe that the tree asked for)
    status: str  # ok absent denied timeout malformed error
    data: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1
    took_s: float | None = None
    at: float | None = None
    received: float | None = None
    notes: tuple[str, ...] = ()


# ---------------------------------------------------------------- facts


@dataclass(frozen=True)
class Part:
    """A thing that a fact can point at, and a verdict accuse. Unused coordinates stay None."""

    kind: str  # rank node gpu nic link group service fabric
    node: str | None = None
    rank: int | None = None
    gpu: int | None = None
    nic: str | None = None
    name: str | None = None
    why: str = ""

    def label(self) -> str:
        """`rank 5 (gpu003)`, `gpu003`, `nic mlx5_0 of gpu003`: how a person would say it."""
        where = f" ({self.node})" if self.node else ""
        if self.kind == "rank":
            return f"rank {self.rank}{where}"
        if self.kind == "gpu":
            return f"gpu {self.name or '?' if self.gpu is None else self.gpu}{where}"
        if self.kind in ("nic", "link"):
            return f"{self.kind} {self.nic or self.name}{where}"
        if self.kind == "node":
            return str(self.node)
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Provenance:
    """Where a fact comes from: which probe, on which node, when (the operator's clock)."""

    probe: str
    node: str | None = None
    at: float | None = None


@dataclass(frozen=True)
class Fact:
    """A named, typed value with a unit, or unknown (value None) with a reason.

    A fact that points at things carries `parts`; its value is then their number, which is what conditions compare.
    `text` is how the report says it; empty = the value and unit.
    """

    name: str
    value: Value
    unit: str = ""
    parts: tuple[Part, ...] = ()
    reason: str = ""
    text: str = ""
    contradicted_by: tuple[str, ...] = ()
    provenance: tuple[Provenance, ...] = ()

    @property
    def known(self) -> bool:
        return self.value is not None


@dataclass(frozen=True)
class FactSpec:
    """What the catalogue says of a fact: the type that conditions may rely on, its unit, the kind of its parts."""

    name: str
    type: Literal["bool", "number", "text", "list"]
    unit: str = ""
    parts: str = ""  # "" = holds no parts and may not stand under culprits, victims, on
    says: str = ""


# ---------------------------------------------------------------- verdict and report (triage.report/1)


@dataclass(frozen=True)
class WalkStep:
    """One question of the walk: what was asked, what the facts were, which way it went."""

    playbook: str
    question: str
    ask: str
    when: str
    answer: Literal["yes", "no", "unknown"]
    facts: tuple[str, ...]  # "waits.absent = 1 ranks"
    goto: str
    cost: float = 0.0


@dataclass(frozen=True)
class RuledOut:
    verdict: str
    why: str
    question: str


@dataclass(frozen=True)
class Alternative:
    verdict: str
    cause: str
    score: float
    why_not: str


@dataclass(frozen=True)
class Verdict:
    id: str
    kind: str | None
    cause: str
    title: str
    fail: Literal["stop", "slow", "none"]
    confidence: Literal["high", "medium", "low", "none"]
    score: float
    why: tuple[str, ...] = ()


@dataclass(frozen=True)
class Culprit:
    kind: str
    role: Literal["culprit", "involved"]
    node: str | None = None
    rank: int | None = None
    gpu: int | None = None
    nic: str | None = None
    name: str | None = None
    why: str = ""


@dataclass(frozen=True)
class EvidenceLine:
    fact: str
    text: str
    side: Literal["for", "against"]
    node: str | None = None
    rank: int | None = None
    probe: str | None = None
    at: str | None = None
    age_s: float | None = None


@dataclass(frozen=True)
class Finding:
    """True, worth knowing, and not the cause."""

    cls: str = field(metadata={"json": "class"})
    part: str | None = None
    text: str = ""
    run: str | None = None


@dataclass(frozen=True)
class Unknown:
    """What is not known, why not, which question it would answer, and the command that would tell."""

    what: str
    why: str
    tells: str | None = None
    run: str | None = None


@dataclass(frozen=True)
class Moment:
    at: str
    what: str
    err_s: float | None = None
    node: str | None = None
    rank: int | None = None
    role: str | None = None


@dataclass(frozen=True)
class Deadline:
    """When something will kill or end the job by itself: collective time-out, heartbeat, wall time."""

    what: str
    at: str | None
    in_s: float | None
    source: str


@dataclass(frozen=True)
class Command:
    why: str
    run: str
    effect: str
    cost: str


@dataclass(frozen=True)
class StackGroup:
    """Ranks whose main threads stand at one place of their program."""

    ranks: tuple[int, ...]
    role: Literal["suspect", "peer"]
    cls: str = field(metadata={"json": "class"})  # collective gloo data_loader storage ...; "" = unknown
    says: str
    frames: tuple[str, ...]  # "function (file)", the outermost first; nobody's lines, nobody's variables


@dataclass(frozen=True)
class Change:
    """What is another than at the last look; texts for people."""

    what: str
    before: str
    now: str


@dataclass(frozen=True)
class SinceLast:
    """What the record of incidents told of the last look at this attempt, and what changed since."""

    case: str | None
    at: str
    age_s: float
    looks: int  # at this attempt, before this one
    incident_onset: str | None
    changes: tuple[Change, ...]
    tried: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The answer, as printed and as JSON; `triage schema` is made from these type hints."""

    schema_version: str
    tool: dict[str, Any]  # name, version, playbook, probes, transport, pokes
    case: str | None
    job: dict[str, Any]  # id scheduler cluster attempt nodes ranks log
    observed: str
    state: Literal["frozen", "slow", "running", "busy", "pending", "suspended", "completing", "ended", "unknown"]
    verdict: Verdict
    culprits: tuple[Culprit, ...]
    victims: tuple[Culprit, ...]
    evidence: tuple[EvidenceLine, ...]
    findings: tuple[Finding, ...]
    ruled_out: tuple[RuledOut, ...]
    alternatives: tuple[Alternative, ...]
    unknown: tuple[Unknown, ...]
    walk: tuple[WalkStep, ...]
    timeline: tuple[Moment, ...]
    deadlines: tuple[Deadline, ...]
    mitigation: dict[str, Any]  # shape: cost/plans.py, notes/straggler-and-cost.md section 4
    commands: tuple[Command, ...]
    do_not: tuple[str, ...]
    took_s: dict[str, float]  # seconds per phase
    exit_code: int
    dedup_key: str
    since_last: SinceLast | None = None  # null at the first look
    stacks: tuple[StackGroup, ...] = ()  # of suspects and of some peers, where they were read
