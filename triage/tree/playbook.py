"""What a checked playbook is made of: questions with three arms, verdicts, thresholds. Data only.

`load.load_set` makes these from YAML; `walk.walk` goes through them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from triage.tree.expr import Condition
from triage.tree.words import Words

ANSWERS: tuple[Literal["yes"], Literal["no"], Literal["unknown"]] = ("yes", "no", "unknown")
WEAK = "inconclusive/weak"  # where a leaf goes whose score is too low; every playbook has it


@dataclass(frozen=True)
class Threshold:
    """A number that conditions read as `limit.NAME` and facts as `ev.limit(NAME)`; a profile may replace it."""

    name: str
    value: float
    says: str = ""
    source: str = ""


@dataclass(frozen=True)
class AskFor:
    """A costly probe that a question wants on its suspects: the parts of the fact `on`, and some of their peers."""

    probe: str
    on: str
    peers: int = 0
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Arm:
    """Where an answer leads: a question of `playbook` (its own, if not told otherwise) or a verdict of its own."""

    playbook: str
    question: str | None = None
    verdict: str | None = None
    rules_out: tuple[tuple[str, Words], ...] = ()  # (verdict id or cause, why)
    costs: float = 0.0


@dataclass(frozen=True)
class Question:
    """A node of the tree. `arms` holds exactly yes, no and unknown."""

    name: str
    ask: str
    when: Condition
    arms: Mapping[str, Arm]
    ask_for: AskFor | None = None


@dataclass(frozen=True)
class Collect:
    """A command that an on-call engineer may run to learn what is missing; what `run` interpolates is quoted."""

    why: Words
    run: Words
    effect: str = "reads only"
    cost: str = "none"


@dataclass(frozen=True)
class Lead:
    """A leaf that soft facts point at (`when`) though no path may conclude it: it becomes an alternative."""

    verdict: str
    when: Condition
    why_not: Words


@dataclass(frozen=True)
class VerdictSpec:
    """A leaf. `cause` is id/leaf; `base` is 0 for inconclusive ones, which have no score."""

    cause: str
    title: Words
    says: Words
    fail: str
    mitigate: str
    base: float = 0.0
    do_not: tuple[Words, ...] = ()
    culprits: str | None = None
    involved: str | None = None  # who is named, as involved, where nothing separates a culprit among them
    victims: str | None = None
    evidence: tuple[str, ...] = ()
    fix_first: Words | None = None
    kind: str | None = None
    state: str | None = None
    exclude: bool = False
    collect: tuple[Collect, ...] = ()
    leads: tuple[Lead, ...] = ()

    @property
    def id(self) -> str:
        return self.cause.partition("/")[0]

    @property
    def leaf(self) -> str:
        return self.cause.partition("/")[2]


@dataclass(frozen=True)
class Playbook:
    """A checked tree. `thresholds` are this file's; conditions may read those of the whole set."""

    name: str
    version: int
    start: str
    questions: Mapping[str, Question]
    verdicts: Mapping[str, VerdictSpec]
    thresholds: Mapping[str, Threshold]
    says: str = ""
    file: str = ""


Place = tuple[str, str]  # (playbook, question)


def is_seconds(threshold: str) -> bool:
    """Whether a threshold's name says that it is a time; `bytes_per_s` is a rate."""
    return threshold.endswith("_s") and not threshold.endswith("_per_s")


def place(playbooks: Mapping[str, Playbook], arm: Arm) -> Place | None:
    """The question that an arm leads to; `NAME:start` is where playbook NAME starts. None if it leads to none."""
    target = playbooks.get(arm.playbook)
    if arm.question is None or target is None:
        return None
    name = target.start if arm.question == "start" else arm.question
    return (target.name, name) if name in target.questions else None
