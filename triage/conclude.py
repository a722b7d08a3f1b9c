"""From all that was seen to the report: facts, walk, price, words. Pure: the same input gives the same report.

    conclude(case, can_ask=True)  -> Outcome(request=...)  a question wants a costly probe; gather it and call again
    conclude(case, can_ask=False) -> Outcome(report=...)

Live runs, replays and folders of dumps all end here (DESIGN section 3: investigate is the one path).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from triage.billing import number, plan_request
from triage.case import CaseFile
from triage.cost.plans import plan
from triage.cost.profile import load_profile
from triage.errors import ConfigError
from triage.facts import registry
from triage.facts.evidence import Evidence
from triage.facts.ranktable import rank_table
from triage.facts.stacks import groups as stack_groups
from triage.memory import since_last
from triage.model import Fact, Finding, Job, Report, Verdict
from triage.narrate import (
    commands,
    deadlines,
    evidence_lines,
    findings,
    iso,
    timeline,
    unknowns,
)
from triage.readers.strict_yaml import read_yaml
from triage.recalled import continued
from triage.schema import SCHEMA_VERSION
from triage.tree.load import limits_of, load_set
from triage.tree.playbook import Playbook
from triage.tree.walk import Conclusion, Request, walk

PHASES = ("connect", "look_a", "window", "look_b", "ask", "total")
# What the profile document may hold; costs are read by cost/profile.py, thresholds here.
PROFILE_KEYS = ("version", "costs", "thresholds")


@dataclass(frozen=True)
class Outcome:
    """Either a report, or a request for a costly probe; and the facts that it was made from."""

    facts: Mapping[str, Fact]
    report: Report | None = None
    request: Request | None = None


def thresholds(profile: str) -> dict[str, float]:
    """The profile's overrides of thresholds. Raises ConfigError for what is none."""
    if not profile.strip():
        return {}
    try:
        document = read_yaml(profile)
    except ConfigError as error:
        raise ConfigError(f"the profile: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError("the profile: expected `costs:` and `thresholds:`")
    for key in document:
        if key not in PROFILE_KEYS:
            raise ConfigError(f"the profile: {str(key)[:40]!r} is not known; known are {', '.join(PROFILE_KEYS)}")
    found = document.get("thresholds") or {}
    if not isinstance(found, dict):
        raise ConfigError("the profile: thresholds: expected `name: number` lines")
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise ConfigError(f"the profile: thresholds: {str(name)[:40]} must be a number from 0 up, not {value!r}")
    return {str(name): float(value) for name, value in found.items()}


@lru_cache(maxsize=4)
def _playbooks(texts: tuple[tuple[str, str], ...], probes: tuple[str, ...]) -> dict[str, Playbook]:
    return load_set({f"{name}.yaml": text for name, text in texts}, registry.catalogue(), probes)


def load_playbooks(texts: Mapping[str, str], probes: tuple[str, ...]) -> dict[str, Playbook]:
    """Checked playbooks from name -> text (without `costs`). Raises ConfigError with every problem."""
    return _playbooks(tuple(sorted(texts.items())), probes)


def playbooks_of(case: CaseFile, probes: tuple[str, ...]) -> dict[str, Playbook]:
    """The checked playbooks of a case. Raises ConfigError with every problem."""
    trees = {name: text for name, text in case.playbooks.items() if name != "costs"}
    return load_playbooks(trees, probes)


def conclude(
    case: CaseFile,
    *,
    probes: tuple[str, ...],
    can_ask: bool,
    until: str | None = None,
    defaults: Mapping[str, float] | None = None,
) -> Outcome:
    """See the module. `probes` are the names that a playbook may ask for; `defaults` stand for thresholds that the case's
    own playbooks do not have (a case of an older triage, a playbook of one's own)."""
    books = playbooks_of(case, probes)
    limits = {**(defaults or {}), **limits_of(books, thresholds(case.profile))}
    evidence = Evidence(case.job, case.samples, case.observed, limits)
    facts = registry.compute(evidence)
    found = walk(books, facts, limits, start=_start(case, books), asked=case.asked, can_ask=can_ask, until=until)
    if isinstance(found, Request):
        return Outcome(facts, request=found)
    return Outcome(facts, report=_report(case, books, evidence, facts, found))


def _start(case: CaseFile, books: Mapping[str, Playbook]) -> str:
    """Where the walk begins: `slow-job` asks first whether the job moves, and goes over to `frozen-job` if it does not."""
    return "slow-job" if case.command == "slow-job" and "slow-job" in books else "frozen-job"


def _report(
    case: CaseFile,
    books: Mapping[str, Playbook],
    ev: Evidence,
    facts: Mapping[str, Fact],
    found: Conclusion,
) -> Report:
    job = case.job
    verdict = replace(found.verdict, why=(*_says(found), *_roads(found, facts), *found.verdict.why))
    limits = deadlines(ev, facts)
    state = _state(job, found, facts)
    roads = len(sources_of(facts, tuple(n for n in found.evidence if facts.get(n) and facts[n].parts)))
    profile = _profile(case)
    asked = plan_request(case, ev, facts, found, verdict, state, roads)
    mitigation = plan(continued(asked, case.memory, profile), profile)
    table = ev.derive(rank_table)
    report = Report(
        schema_version=SCHEMA_VERSION,
        tool={
            "name": "triage",
            "version": case.tool_version,
            "playbooks": {name: book.version for name, book in books.items()},
            "transport": case.transport,
            "pokes": case.pokes,
            "warnings": list(case.warnings),
        },
        case=case.case,
        job={
            "id": job.id,
            "scheduler": job.scheduler,
            "cluster": job.cluster,
            "state": job.state,
            "restart": number(facts, "job.attempt") or 0,
            "started": iso(job.attempt.started),
            "nodes": [node.name for node in job.nodes],
            "ranks": table.world_size,
            "last_step": number(facts, "progress.last_step"),
            "log": job.log or None,
        },
        observed=iso(case.observed) or "",
        state=state,  # type: ignore[arg-type]
        verdict=verdict,
        culprits=found.culprits,
        victims=found.victims,
        evidence=evidence_lines(ev, facts, found),
        findings=(*findings(case, ev, facts, found), *_overrides(case, books)),
        ruled_out=found.ruled_out,
        alternatives=found.alternatives,
        unknown=unknowns(case, facts, found),
        walk=found.steps,
        timeline=timeline(ev, facts),
        deadlines=limits,
        mitigation=mitigation,
        commands=commands(case, ev, found, mitigation),
        do_not=found.do_not,
        took_s={phase: case.took_s[phase] for phase in PHASES if phase in case.took_s},
        exit_code=_exit_code(verdict, state, facts),
        dedup_key=f"triage:{job.cluster or '-'}:{job.scheduler}:{job.id}:{number(facts, 'job.attempt') or 0}",
        stacks=stack_groups(ev),
    )
    return replace(report, since_last=since_last(case.memory, report))


def _overrides(case: CaseFile, books: Mapping[str, Playbook]) -> tuple[Finding, ...]:
    """Thresholds that the profile changed: a verdict by another yardstick must say so."""
    shipped = limits_of(books)
    changed = [(name, value) for name, value in thresholds(case.profile).items() if shipped.get(name) != value]
    return tuple(
        Finding("profile", None, f"{name} is {value:g} by the profile; the playbook says {shipped[name]:g}")
        for name, value in changed
    )


def _profile(case: CaseFile) -> Any:
    return load_profile(case.playbooks.get("costs", ""), case.profile or None)


def sources_of(facts: Mapping[str, Fact], names: tuple[str, ...]) -> set[str]:
    """The probes that the known facts of these names stand on."""
    return {p.probe for name in names if name in facts and facts[name].known for p in facts[name].provenance}


def _says(found: Conclusion) -> tuple[str, ...]:
    return (found.says,) if found.says and found.stopped_at is None else ()


def _roads(found: Conclusion, facts: Mapping[str, Fact]) -> tuple[str, ...]:
    """How many sources name the culprit, or say that nobody is to blame; one alone is said so (two independent roads are
    wanted to each verdict)."""
    if found.verdict.id == "inconclusive":
        return ()
    accused = bool(found.culprit_parts)
    told = [name for name in found.evidence if name in facts and not name.startswith("seen.")]
    sources = sources_of(facts, tuple(name for name in told if facts[name].parts or not accused))
    if len(sources) <= 1:
        only = next(iter(sources), "one fact")
        says = "names the culprit" if accused else "says so"
        return (f"One source alone ({only}) {says}; nothing else confirms it yet.",)
    return (f"{len(sources)} sources agree: {', '.join(sorted(sources))}.",)


def _state(job: Job, found: Conclusion, facts: Mapping[str, Fact]) -> str:
    if found.leaf.state:
        return found.leaf.state
    if job.state in ("pending", "suspended", "completing", "ended"):
        return job.state
    advancing = facts["progress.advancing"].value
    if found.verdict.id == "busy":
        return "busy"
    if found.verdict.id == "healthy":
        return "running"
    if found.verdict.id == "inconclusive":
        if advancing is None:
            return "unknown"
        if advancing is False:
            return "frozen"
        return "slow" if found.verdict.fail == "slow" and (number(facts, "pace.increase") or 0) > 0.05 else "running"
    if found.verdict.id == "stuck_rank" and advancing is None:
        return "unknown"  # one look at a merely slow job shows the same picture
    return "slow" if found.verdict.fail == "slow" else "frozen"


def _exit_code(verdict: Verdict, state: str, facts: Mapping[str, Fact]) -> int:
    """DESIGN section 8. A job that is over and could not be diagnosed is no failure of this run.

    That it is over, its scheduler or its own log must say: that no process is left is what a crash leaves, and a wrong id.
    """
    over = facts["job.state"].value in ("ended", "completing") or facts["job.finished"].value is True
    if state in ("pending", "suspended") or (state == "ended" and verdict.id == "inconclusive" and over):
        return 0
    if verdict.id == "inconclusive" and facts["seen.nodes_share"].value == 0:
        return 22
    return {"healthy": 0, "busy": 0, "inconclusive": 11}.get(verdict.id, 10)
