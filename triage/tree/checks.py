"""Will a job be diagnosable? `playbooks/doctor.yaml`: what may be missing, what that costs, and the line that mends it.

    - id: pipe
      asks: Can a rank be asked for its flight record?
      lack: switches.no_pipe > 0                     # a condition over facts, as in a playbook
      says: "{switches.no_pipe.text} have no FIFO"   # with the playbooks' slots
      loses: [waits.roots, waits.cycle]              # facts that are then unknown in a hang
      where: job | nodes | operator                  # whose line it is
      set: "export TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/nccl_pipe_rank_"

Which verdicts a lack costs is not written down but worked out: those that the walk can no longer reach when every question that
reads a lost fact can only be answered by "unknown". Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triage.errors import ConfigError
from triage.model import Fact, FactSpec
from triage.readers.strict_yaml import load_table
from triage.tree.expr import Condition, ConditionError, compile_condition, did_you_mean
from triage.tree.playbook import Place, Playbook, place
from triage.tree.words import Words, WordsError, compile_words

WHERES = ("job", "nodes", "operator")
KEYS = ("id", "asks", "lack", "says", "loses", "where", "set")


@dataclass(frozen=True)
class Check:
    """One line of doctor.yaml."""

    id: str
    asks: str
    lack: Condition
    says: Words
    loses: tuple[str, ...]
    where: str
    set: Words

    def lacks(self, facts: Mapping[str, Fact]) -> bool | None:
        """True where it is missing, None where that cannot be told."""
        return self.lack.evaluate(facts, {})

    def why_unknown(self, facts: Mapping[str, Fact]) -> str:
        """The reason of the first fact of the condition that is not known."""
        return next((facts[n].reason for n in self.lack.facts if n in facts and not facts[n].known), "")


def load_checks(catalogue: Mapping[str, FactSpec], path: Path | None = None) -> tuple[Check, ...]:
    """The checks in their order. Raises ConfigError with every mistake."""

    def read(data: object) -> tuple[tuple[Check, ...], list[str]]:
        rows = data.get("checks") if isinstance(data, dict) else None
        if not isinstance(rows, list) or not rows:
            return (), ["it has no checks"]
        made, problems = [], []
        for number, row in enumerate(rows, 1):
            try:
                made.append(_check(row, catalogue))
            except (ConfigError, KeyError, TypeError) as error:
                name = row.get("id") if isinstance(row, dict) else None
                problems.append(f"check {name or number}: {error}")
        doubled = sorted({c.id for c in made if sum(o.id == c.id for o in made) > 1})
        return tuple(made), problems + [f"two checks are called {name}" for name in doubled]

    return load_table("doctor.yaml", path, read)


def _check(row: Any, catalogue: Mapping[str, FactSpec]) -> Check:
    if not isinstance(row, dict) or sorted(row) != sorted(KEYS):
        raise ConfigError(f"must have exactly {', '.join(KEYS)}")
    loses = row["loses"]
    if not isinstance(loses, list) or not all(isinstance(name, str) for name in loses):
        raise ConfigError("`loses` is a list of facts")
    for name in loses:
        if name not in catalogue:
            raise ConfigError(f'no fact "{name}"{did_you_mean(name, catalogue)}')
    if row["where"] not in WHERES:
        raise ConfigError(f"`where` is one of {', '.join(WHERES)}")
    try:
        lack = compile_condition(str(row["lack"]), catalogue)
        says, line = compile_words(str(row["says"]), catalogue), compile_words(str(row["set"]), catalogue)
    except (ConditionError, WordsError) as error:
        raise ConfigError(str(error)) from None
    return Check(str(row["id"]), str(row["asks"]), lack, says, tuple(loses), row["where"], line)


def lost_verdicts(playbooks: Mapping[str, Playbook], facts: Collection[str]) -> tuple[str, ...]:
    """Causes that no walk reaches any more while these facts are unknown, sorted; inconclusive ones are no loss."""
    starts = [(book.name, book.start) for book in playbooks.values()]
    reached = _verdicts(playbooks, starts, frozenset())
    left = _verdicts(playbooks, starts, frozenset(facts))
    return tuple(sorted(cause for cause in reached - left if not cause.startswith("inconclusive/")))


def _verdicts(playbooks: Mapping[str, Playbook], starts: Iterable[Place], lost: frozenset[str]) -> set[str]:
    found: set[str] = set()
    done: set[Place] = set()
    ahead = list(starts)
    while ahead:
        here = ahead.pop()
        question = playbooks[here[0]].questions.get(here[1]) if here not in done else None
        done.add(here)
        if question is None:
            continue
        blind = not lost.isdisjoint(question.when.facts)
        for answer, arm in question.arms.items():
            if blind and answer != "unknown":
                continue
            if arm.verdict is not None:
                found.add(arm.verdict)
            elif (target := place(playbooks, arm)) is not None:
                ahead.append(target)
    return found
