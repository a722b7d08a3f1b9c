"""The walk through a playbook: facts in, a conclusion or a request for a costly probe out. Pure.

The walk starts again from the first question each time: facts that a request brought may change an earlier answer.
It ends because the graph has no cycle (load.py checks that; a playbook built by hand is stopped at the first return).

    score       base of the leaf - costs of the arms taken - 0.2 for each source that contradicts a fact of the path
                or of the leaf's evidence (DESIGN section 6)
    confidence  high from 0.8, medium from 0.6, low from 0.5; below, `inconclusive/weak` speaks and the leaf becomes
                an alternative. Every number is told in `verdict.why`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from triage.errors import ConfigError, UsageError
from triage.model import Alternative, Command, Culprit, Fact, Part, RuledOut, Unknown, Verdict, WalkStep
from triage.tree.expr import did_you_mean
from triage.tree.playbook import ANSWERS, WEAK, Arm, Place, Playbook, Question, VerdictSpec, is_seconds, place
from triage.tree.words import clean, fact_line, fold_parts, value_text

CONTRADICTION_COSTS = 0.2
FLOOR = 0.5
LEVELS: tuple[tuple[float, Literal["high", "medium", "low"]], ...] = ((0.8, "high"), (0.6, "medium"), (FLOOR, "low"))
LEAD_AT_MOST = 0.49  # what no path may conclude scores below the floor, however sure the leaf itself would be


# ---------------------------------------------------------------- what a walk says


@dataclass(frozen=True)
class Request:
    """Ask `probe` about these parts and `peers` of their peers, add the facts, name it in `asked` and walk again."""

    probe: str
    parts: tuple[Part, ...]
    peers: int
    question: str  # "playbook:question"
    args: Mapping[str, Any]


@dataclass(frozen=True)
class Conclusion:
    """Where the walk ended.

    leaf            the leaf whose plan is in force: the one reached, or `inconclusive/weak` below the floor
    culprit_parts   who is accused, with `role`: the parts of `leaf.culprits`, else those of `leaf.involved`;
                    `victim_parts` are never among them
    costs           (reason, amount) of all that was taken off, in the order of the path
    contradictions  (source, fact): each source once
    unknown         facts that a question on the path could not do without
    stopped_at      "playbook:question" when `until` ended the walk before a leaf, else None
    """

    playbook: str
    leaf: VerdictSpec
    verdict: Verdict
    says: str
    do_not: tuple[str, ...]
    fix_first: str | None
    culprit_parts: tuple[Part, ...]
    role: Literal["culprit", "involved"]
    victim_parts: tuple[Part, ...]
    evidence: tuple[str, ...]
    steps: tuple[WalkStep, ...]
    ruled_out: tuple[RuledOut, ...]
    alternatives: tuple[Alternative, ...]
    costs: tuple[tuple[str, float], ...]
    contradictions: tuple[tuple[str, str], ...]
    unknown: tuple[Unknown, ...]
    collect: tuple[Command, ...]
    stopped_at: str | None = None

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """The accused as the report has them."""
        return tuple(as_culprit(part, self.role) for part in self.culprit_parts)

    @property
    def victims(self) -> tuple[Culprit, ...]:
        return tuple(as_culprit(part, "involved") for part in self.victim_parts)


def as_culprit(part: Part, role: Literal["culprit", "involved"]) -> Culprit:
    return Culprit(part.kind, role, part.node, part.rank, part.gpu, part.nic, part.name, clean(part.why))


# ---------------------------------------------------------------- the walk


@dataclass
class _Path:
    """What the walk gathered so far."""

    steps: list[WalkStep] = field(default_factory=list)
    facts: dict[str, None] = field(default_factory=dict)
    ruled_out: list[RuledOut] = field(default_factory=list)
    costs: list[tuple[str, float]] = field(default_factory=list)
    unknown: dict[str, Unknown] = field(default_factory=dict)


def walk(
    playbooks: Mapping[str, Playbook],
    facts: Mapping[str, Fact],
    limits: Mapping[str, float],
    *,
    start: str = "frozen-job",
    asked: Collection[str] = (),
    can_ask: bool = False,
    until: str | None = None,
) -> Request | Conclusion:
    """Walk from `start` ("playbook" or "playbook:question") to a leaf.

    limits   thresholds in force by name (`load.limits_of`); a playbook's own value stands where one is absent
    asked    probes that were asked for already; with `can_ask` a question whose probe is not among them, and whose
             `on` fact points at somebody, ends the walk with a Request
    until    a question ("name" or "playbook:name") after which the walk stops, for `replay --until`
    Raises UsageError when `start` or `until` names nothing.
    """
    here = _start(playbooks, start)
    stop = None if until is None else _until(playbooks, until)
    limits = {**{t.name: t.value for p in playbooks.values() for t in p.thresholds.values()}, **limits}
    path = _Path()
    seen: set[Place] = set()
    while True:
        if here in seen:
            raise ConfigError(f"playbook {here[0]} comes back to its question {here[1]}")
        seen.add(here)
        playbook = playbooks[here[0]]
        question = playbook.questions[here[1]]
        if can_ask and question.ask_for and question.ask_for.probe not in asked:
            on = facts.get(question.ask_for.on)
            if on is not None and on.parts:
                wish = question.ask_for
                return Request(wish.probe, on.parts, wish.peers, ":".join(here), wish.args)
        arm = _answer(path, playbook, question, facts, limits)
        if here in (stop or ()):
            return _stopped(path, playbook, here, facts, limits)
        if arm.verdict is not None:
            return _conclude(path, playbook, playbook.verdicts[arm.verdict], facts, limits)
        target = place(playbooks, arm)
        if target is None:
            raise ConfigError(f"playbook {here[0]}: question {here[1]} leads nowhere")
        here = target


def _start(playbooks: Mapping[str, Playbook], start: str) -> Place:
    name, _, question = start.partition(":")
    if name not in playbooks:
        raise UsageError(f'no playbook "{clean(name, 60)}"{did_you_mean(name, playbooks)}')
    found = place(playbooks, Arm(name, question or "start"))
    if found is None:
        raise UsageError(f'no question "{clean(start, 60)}"{did_you_mean(question, playbooks[name].questions)}')
    return found


def _until(playbooks: Mapping[str, Playbook], until: str) -> tuple[Place, ...]:
    """Every place that this name may mean: one with its playbook, or each question of that name."""
    places = [(playbook.name, name) for playbook in playbooks.values() for name in playbook.questions]
    found = tuple(each for each in places if until in (each[1], ":".join(each)))
    if not found:
        names = [*(name for _, name in places), *map(":".join, places)]
        raise UsageError(f'no question "{clean(until, 60)}"{did_you_mean(until, names)}')
    return found


def _answer(
    path: _Path, playbook: Playbook, question: Question, facts: Mapping[str, Fact], limits: Mapping[str, float]
) -> Arm:
    """Answer one question, write it down, and return the arm that it takes."""
    truth = question.when.evaluate(facts, limits)
    answer = ANSWERS[2] if truth is None else ANSWERS[0] if truth else ANSWERS[1]
    arm = question.arms[answer]
    read = [facts.get(name, Fact(name, None, reason="was not computed")) for name in question.when.facts]
    lines = [fact_line(each) for each in read]
    lines += [f"limit.{name} = {_limit_text(name, limits)}" for name in question.when.limits]
    goto = arm.verdict or arm.question or ""
    if arm.verdict is None and arm.playbook != playbook.name:
        goto = f"{arm.playbook}:{goto}"
    path.steps.append(
        WalkStep(playbook.name, question.name, question.ask, question.when.text, answer, tuple(lines), goto, arm.costs)
    )
    path.facts.update(dict.fromkeys(question.when.facts))
    missing = [each for each in read if not each.known]
    if answer == "unknown":
        for each in missing:
            path.unknown.setdefault(each.name, Unknown(each.name, clean(each.reason) or "not known", question.ask))
    if arm.costs:
        path.costs.append((_cost_reason(question, answer, missing), arm.costs))
    for verdict, words in arm.rules_out:
        if words.cites_known(facts):  # never from the absence of a fact
            path.ruled_out.append(RuledOut(verdict, words.render(facts), question.name))
    return arm


def _limit_text(name: str, limits: Mapping[str, float]) -> str:
    return value_text(limits.get(name), "s" if is_seconds(name) else "")


def _cost_reason(question: Question, answer: str, missing: Sequence[Fact]) -> str:
    if answer != "unknown":
        return f"the question {question.name} was answered {answer}"
    if not missing:
        return f"the question {question.name} could not be answered"
    names = " and ".join(fact.name for fact in missing[:3])
    reason = clean(missing[0].reason)
    return f"{names} {'was' if len(missing) == 1 else 'were'} unknown" + (f" ({reason})" if reason else "")


# ---------------------------------------------------------------- the conclusion


def _conclude(
    path: _Path, playbook: Playbook, leaf: VerdictSpec, facts: Mapping[str, Fact], limits: Mapping[str, float]
) -> Conclusion:
    if leaf.id == "inconclusive":
        return _build(path, playbook, leaf, _verdict(leaf, facts, "none", 0.0, _told(path)), facts, limits, leaf)
    score, against = _score(path, leaf, facts)
    why = [f"base {leaf.base:.2f}", *_told(path), *_told_contradictions(against)]
    level = next((word for least, word in LEVELS if score >= least), None)
    if level is not None:
        why.append(f"score {score:.2f}, {level} confidence")
        if leaf.culprits and not _parts(leaf.culprits, facts) and not _parts(leaf.involved, facts):
            why.append(f"nobody is named: {fact_line(facts.get(leaf.culprits, Fact(leaf.culprits, None)))}")
        return _build(path, playbook, leaf, _verdict(leaf, facts, level, score, why), facts, limits, leaf)
    weak = playbook.verdicts.get(WEAK)
    if weak is None:
        raise ConfigError(f"playbook {playbook.name} has no verdict {WEAK}")
    why.insert(0, f"{leaf.cause} scores {score:.2f}, below {FLOOR:.2f}")
    named = _parts(leaf.culprits, facts) or _parts(leaf.involved, facts)
    who = f"it would name {fold_parts(named)}; " if named else ""
    dropped = Alternative(leaf.id, leaf.cause, score, who + "; ".join(why))
    verdict = _verdict(weak, facts, "none", 0.0, why)
    return _build(path, playbook, weak, verdict, facts, limits, leaf, dropped=(dropped,))


def _stopped(
    path: _Path, playbook: Playbook, here: Place, facts: Mapping[str, Fact], limits: Mapping[str, float]
) -> Conclusion:
    weak = playbook.verdicts[WEAK]
    why = (f"the walk was stopped after the question {here[1]}",)
    verdict = Verdict("inconclusive", None, "inconclusive/stopped", f"Stopped at {here[1]}", "none", "none", 0.0, why)
    return _build(path, playbook, weak, verdict, facts, limits, weak, stopped_at=":".join(here))


def _build(
    path: _Path,
    playbook: Playbook,
    leaf: VerdictSpec,
    verdict: Verdict,
    facts: Mapping[str, Fact],
    limits: Mapping[str, float],
    reached: VerdictSpec,
    *,
    dropped: tuple[Alternative, ...] = (),
    stopped_at: str | None = None,
) -> Conclusion:
    culprits = _parts(leaf.culprits, facts)
    role: Literal["culprit", "involved"] = "culprit" if culprits or not leaf.involved else "involved"
    culprits = culprits or _parts(leaf.involved, facts)
    victims = tuple(part for part in _parts(leaf.victims, facts) if not any(_is_or_on(part, c) for c in culprits))
    commands = ((each, each.run.render_command(facts)) for each in leaf.collect)
    return Conclusion(
        playbook=playbook.name,
        leaf=leaf,
        verdict=verdict,
        says=leaf.says.render(facts),
        do_not=tuple(words.render(facts) for words in leaf.do_not),
        fix_first=leaf.fix_first.render(facts) if leaf.fix_first else None,
        culprit_parts=culprits,
        role=role,
        victim_parts=victims,
        evidence=leaf.evidence,
        steps=tuple(path.steps),
        ruled_out=tuple(each for each in path.ruled_out if each.verdict not in (leaf.id, leaf.cause)),
        alternatives=dropped + _leads(path, playbook, leaf, facts, limits, {each.cause for each in dropped}),
        costs=tuple(path.costs),
        contradictions=_contradictions(path, reached, facts),
        unknown=tuple(path.unknown.values()),
        collect=tuple(Command(c.why.render(facts), run, c.effect, c.cost) for c, run in commands if run),
        stopped_at=stopped_at,
    )


def _verdict(
    leaf: VerdictSpec,
    facts: Mapping[str, Fact],
    confidence: Literal["high", "medium", "low", "none"],
    score: float,
    why: Iterable[str],
) -> Verdict:
    fail = cast(Literal["stop", "slow", "none"], leaf.fail)
    return Verdict(leaf.id, leaf.kind, leaf.cause, leaf.title.render(facts), fail, confidence, score, tuple(why))


def _score(path: _Path, leaf: VerdictSpec, facts: Mapping[str, Fact]) -> tuple[float, tuple[tuple[str, str], ...]]:
    against = _contradictions(path, leaf, facts)
    off = sum(amount for _, amount in path.costs) + CONTRADICTION_COSTS * len(against)
    return max(0.0, round(leaf.base - off, 4)), against  # rounded: 0.95 - 0.15 is 0.8, and high


def _contradictions(path: _Path, leaf: VerdictSpec, facts: Mapping[str, Fact]) -> tuple[tuple[str, str], ...]:
    """(source, the first fact that it contradicts): a source counts once however often it disagrees."""
    found: dict[str, str] = {}
    for name in (*path.facts, *leaf.evidence):
        fact = facts.get(name)
        for source in fact.contradicted_by if fact else ():
            found.setdefault(source, name)
    return tuple(found.items())


def _told(path: _Path) -> list[str]:
    return [f"-{amount:.2f} because {reason}" for reason, amount in path.costs]


def _told_contradictions(against: Iterable[tuple[str, str]]) -> list[str]:
    return [f"-{CONTRADICTION_COSTS:.2f} because {clean(source, 60)} contradicts {name}" for source, name in against]


def _leads(
    path: _Path,
    playbook: Playbook,
    leaf: VerdictSpec,
    facts: Mapping[str, Fact],
    limits: Mapping[str, float],
    have: Collection[str],
) -> tuple[Alternative, ...]:
    found: list[Alternative] = []
    for lead in leaf.leads:
        if lead.verdict not in have and lead.when.evaluate(facts, limits) is True:
            spec = playbook.verdicts[lead.verdict]
            score = min(_score(path, spec, facts)[0], LEAD_AT_MOST)
            found.append(Alternative(spec.id, spec.cause, score, lead.why_not.render(facts)))
    return tuple(sorted(found, key=lambda each: -each.score))


def _parts(name: str | None, facts: Mapping[str, Fact]) -> tuple[Part, ...]:
    fact = facts.get(name) if name else None
    return fact.parts if fact is not None and fact.known else ()


def _is_or_on(part: Part, culprit: Part) -> bool:
    """Whether a would-be victim is the culprit itself, or lives on the culprit node."""
    if part.rank is not None and culprit.rank is not None:
        return part.rank == culprit.rank  # a rank number is global; its node may be known in one fact only
    if culprit.kind == "node":
        return part.node is not None and part.node == culprit.node
    coordinates = ("kind", "node", "rank", "gpu", "nic", "name")
    return all(getattr(part, each) == getattr(culprit, each) for each in coordinates)
