"""What the cost model is asked, and the few words that all its answers share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Literal

from triage.cost.layout import Grid
from triage.cost.loss import Point
from triage.cost.profile import Quantity, Source

Mitigate = Literal["none", "wait", "price", "restart", "restart_excluding", "fix_then_restart", "repair"]
Case = Literal["none", "unknown", "cause", "slow_compute", "slow_network", "dead", "may_heal"]


@dataclass(frozen=True)
class CulpritNode:
    """A node that the verdict accuses, and how firmly.

    hard       a fact that ends a job by itself stands against it (a kill, a lost GPU, a port down now)
    facts      how many independent facts point at it
    involved   member of a cycle or tie that nothing separates: never excluded
    """

    node: str
    hard: bool = False
    facts: int = 1
    involved: bool = False


@dataclass(frozen=True)
class Shape:
    """How the job lies on its nodes, as far as that is known: what a plan for S2 or S3 is made of.

    order      nodes in the order in which ranks are counted; empty = not known
    grid       which of them holds which pipeline stage; None = not known, or a node holds several
    replicas   data-parallel groups: those among which micro-batches can move
    slow       node -> how much longer its own compute takes, above 1
    links      (node, node) or (node, "") -> how much longer what crosses it takes, above 1
    layers     of the whole model; None = not known, or they cannot be shared out otherwise
    """

    order: tuple[str, ...] = ()
    grid: Grid | None = None
    replicas: int | None = None
    slow: Mapping[str, float] = field(default_factory=dict)
    links: Mapping[tuple[str, str], float] = field(default_factory=dict)
    layers: int | None = None


@dataclass(frozen=True)
class PlanRequest:
    """Everything of a run that decides the price of its remedies. Times are epoch seconds; None = not known."""

    verdict_id: str
    mitigate: Mitigate
    fail: Literal["stop", "slow", "none"]
    confidence: Literal["high", "medium", "low", "none"]
    state: str
    observed: float
    n_nodes: int
    n_gpus: int | None = None
    kind: str | None = None
    culprits: tuple[CulpritNode, ...] = ()
    onset: float | None = None
    t0_s: float | None = None  # healthy step
    t1_s: float | None = None  # step now
    increase: float | None = None  # x told directly, where no step times are known (rates, MFU)
    step_source: Source = "log"
    gpus_source: Source = "scheduler"
    series: tuple[Point, ...] = ()  # (at, ms) of the job's steps, oldest first
    steps_per_point: float = 1.0  # a log line may be the mean over many steps
    slow_fraction: float | None = None  # x of the culprit's own compute against its peers
    slow_by_clock: bool = False  # that x is only what its clock is below its peers': a bound, never a measure
    fix_first: str | None = None
    deadline: float | None = None  # the nearest time-out that ends the job by itself
    deadline_what: str = "deadline"
    retry_budget_s: float | None = None  # how long the transport itself keeps trying
    idle_nodes: int | None = None
    idle_source: str | None = None
    dp_groups: int | None = None
    pp_stages: int = 1
    shape: Shape | None = None
    checkpoint_step: int | None = None
    checkpoint_at: float | None = None  # when the last complete checkpoint ended
    checkpoint_source: Source = "filesystem"
    replaced: bool = False  # the caller vouches that a restart leaves the slow part out, and does not name it
    tried: tuple[str, ...] = ()  # strategies already entered in this incident
    measured: Mapping[str, Quantity] = field(default_factory=dict)  # cost inputs that this run measured, by name
    paid: tuple[float, float] | None = None  # an earlier look: (at, job-minutes lost in this incident until then)
    command_hints: Mapping[str, str] = field(default_factory=dict)  # action -> command line, from the scheduler

    @property
    def case(self) -> Case:
        """Which of the rows of notes/straggler-and-cost.md 3.3 applies."""
        if self.verdict_id == "inconclusive":
            return "unknown"
        if self.mitigate == "repair":
            return "cause"
        if self.mitigate == "none" or (self.fail == "none" and self.mitigate in ("wait", "price")):
            return "none"
        if self.fail == "slow":
            return "slow_network" if self.kind == "network" else "slow_compute"
        return "may_heal" if self.mitigate in ("price", "wait") else "dead"


def iso(at: float | None) -> str | None:
    """Epoch seconds as ISO 8601 UTC to the second, None for what is no date."""
    when = _utc(at)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ") if when else None


def clock(at: float | None) -> str:
    """The time of day, `02:10Z`, with seconds where there are some."""
    when = _utc(at)
    if when is None:
        return "an unknown time"
    return when.strftime("%H:%M:%SZ" if when.second else "%H:%MZ")


def _utc(at: float | None) -> datetime | None:
    if at is None:
        return None
    try:
        return datetime.fromtimestamp(round(at), tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None
