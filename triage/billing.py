"""From the facts of a run and its verdict to the question that the cost model answers. Pure.

What the run measured goes over the profile: the age and the interval of checkpoints, how long a save takes, the
micro-batches of rank 0's command line. What it could not measure stays with the profile or the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from statistics import median

from triage.case import CaseFile
from triage.cost.layout import Grid, grid_of
from triage.cost.plans import CulpritNode, PlanRequest
from triage.cost.profile import Quantity, Source
from triage.cost.request import Shape
from triage.facts.checkpoints import Launch, launch, saves
from triage.facts.evidence import Evidence
from triage.facts.limiters import cohorts
from triage.facts.limiters import slow as slow_clock
from triage.facts.pace import Series, job_series, outliers
from triage.facts.ranktable import rank_table
from triage.model import Fact, Verdict
from triage.tree.walk import Conclusion

# Only the share of traffic that is left counts, and of one port the factor cancels: any above 1 does.
_SOME_SLOWNESS = 2.0
_MOST_PORTS = 4


def plan_request(
    case: CaseFile,
    ev: Evidence,
    facts: Mapping[str, Fact],
    found: Conclusion,
    verdict: Verdict,
    state: str,
    roads: int,
) -> PlanRequest:
    """`state` is the report's; `roads` how many independent sources name the culprit."""
    series = ev.derive(job_series)
    onset = facts["progress.onset"].value
    began = onset[0] if isinstance(onset, list) and onset else number(facts, "pace.onset")
    hard = {part.node for part in facts["hard.parts"].parts}
    accused = {part.node: part for part in found.culprit_parts if part.node}
    ratio = number(facts, "pace.slow_ratio")
    deficit = _clock_deficit(ev) if ratio is None and facts["pace.t0_s"].value is None else None
    stop = number(facts, "waits.timeout_at")
    ends = [(at, what) for at, what in ((stop, "collective time-out"), (case.job.deadline, "wall-time limit")) if at]
    nearest = min(ends, default=(None, "deadline"))
    world = ev.derive(rank_table).world_size
    laid_out = ev.derive(launch)
    saved = ev.derive(saves)
    return PlanRequest(
        verdict_id=verdict.id,
        mitigate=found.leaf.mitigate,  # type: ignore[arg-type]
        fail=verdict.fail,
        confidence=verdict.confidence,
        state=state,
        observed=case.observed,
        n_nodes=len(case.job.nodes),
        n_gpus=world,
        kind=verdict.kind,
        culprits=tuple(
            CulpritNode(str(node), hard=node in hard, facts=max(1, roads), involved=found.role == "involved")
            for node in accused
        ),
        onset=float(began) if began is not None else None,
        t0_s=number(facts, "pace.t0_s"),
        t1_s=number(facts, "pace.t1_s"),
        steps_per_point=_steps_per_point(series),
        series=tuple((at, seconds * 1000.0) for at, seconds in series.steps if at is not None) if series else (),
        slow_fraction=ratio - 1.0 if ratio is not None else deficit,
        slow_by_clock=deficit is not None,
        fix_first=found.fix_first,
        deadline=nearest[0],
        deadline_what=nearest[1],
        retry_budget_s=number(facts, "links.budget_s"),
        dp_groups=laid_out.replicas(world) if laid_out and world else None,
        pp_stages=laid_out.pipeline if laid_out else 1,
        shape=_shape(ev, verdict, tuple(str(node) for node in accused), laid_out, world),
        checkpoint_step=saved.step,
        checkpoint_at=saved.at,
        checkpoint_source="log" if saved.source == "log" else "filesystem",
        measured=_measured(ev, laid_out, world),
    )


def number(facts: Mapping[str, Fact], name: str) -> int | float | None:
    value = facts[name].value if name in facts else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _clock_deficit(ev: Evidence) -> float | None:
    """How much longer the GPU with the lowest clock of its kind would take, if its clock were all: a bound of the loss."""
    clocks = [one.clock for one in ev.derive(cohorts).judged if slow_clock(ev, one) and one.clock > 0]
    return 1.0 / min(clocks) - 1.0 if clocks else None


def _steps_per_point(series: Series | None) -> float:
    """A log line may be the mean over many steps (Megatron's log interval): how many, by its own numbers."""
    if series is None or len(series.numbers) < 2:
        return 1.0
    return max(1.0, float(median(b - a for a, b in pairwise(series.numbers))))


def _measured(ev: Evidence, laid_out: Launch | None, world: int | None) -> dict[str, Quantity]:
    saved = ev.derive(saves)
    source: Source = "log" if saved.source == "log" else "filesystem"
    found: dict[str, Quantity] = {}
    if saved.gap_s is not None:
        middle, low, high = (seconds / 60.0 for seconds in saved.gap_s)
        found["checkpoint_interval_min"] = Quantity(middle, low, high, "min", source)
    if saved.took_s is not None:
        middle, low, high = (seconds / 60.0 for seconds in saved.took_s)
        found["dump_min"] = Quantity(middle, low, high, "min", "log")
    count = laid_out.micro_batches(world) if laid_out and world else None
    if count:
        found["micro_batches"] = Quantity(float(count), float(count), float(count), "", "measured")
    return found


def _shape(
    ev: Evidence, verdict: Verdict, accused: tuple[str, ...], laid_out: Launch | None, world: int | None
) -> Shape | None:
    """The job on its nodes; None unless every rank's node is known and the command line tells the layout."""
    if laid_out is None or not world:
        return None
    first: dict[str, int] = {}
    table = ev.derive(rank_table)
    for rank in range(world):
        node = table.node_of(rank)
        if node is None:
            return None
        first.setdefault(node, rank)
    order = tuple(sorted(first, key=lambda node: first[node]))
    grid = grid_of(
        len(order), world, laid_out.tensor * laid_out.context, laid_out.pipeline, laid_out.stage_outermost
    )  # fmt: skip
    slow: dict[str, float] = {}
    for rank, ratio in ev.derive(outliers).ratios.items():
        node = table.node_of(rank)
        if node is not None:
            slow[node] = max(slow.get(node, 1.0), ratio)
    links = {(node, ""): _SOME_SLOWNESS for node in accused if node in first} if verdict.kind == "network" else {}
    links = links if len(links) <= _MOST_PORTS else {}  # so many are not moved out of the way; and it would take long
    return Shape(
        order=order,
        grid=grid if isinstance(grid, Grid) else None,
        replicas=laid_out.replicas(world),
        slow=slow,
        links=links,
        layers=laid_out.layers,
    )
