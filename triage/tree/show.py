"""A playbook as people read it: `triage playbook show` (an indented tree, ≤ 80 columns) and the lines of `lint`.

Each question stands once, below the first question that leads to it; later answers name it. What `lint` finds here
are no errors (load.py refuses those): places where a playbook says less, or more surely, than its author may think.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

from triage.tree.playbook import ANSWERS, Arm, Place, Playbook, Question, VerdictSpec, is_seconds, place
from triage.tree.walk import FLOOR
from triage.tree.words import duration, value_text

WIDTH = 80
STEP = 2  # columns a level
DEEPEST = 24  # further levels are not indented more: the names still tell where an answer leads


def show(playbook: Playbook, playbooks: Mapping[str, Playbook] | None = None) -> str:
    """The tree, the verdicts and the thresholds of one playbook as plain text."""
    playbooks = playbooks or {playbook.name: playbook}
    lines = [f"{playbook.name}, version {playbook.version}"]
    if playbook.says:
        lines += _wrapped(playbook.says, 0)
    lines += ["", f"QUESTIONS, from {playbook.start}", *_tree(playbook, playbooks), "", "VERDICTS"]
    for spec in playbook.verdicts.values():
        lines += _leaf(spec)
    if playbook.thresholds:
        lines += ["", "THRESHOLDS"]
        widest = min(max(map(len, playbook.thresholds)), 40)
        for limit in playbook.thresholds.values():
            value = value_text(limit.value)
            if is_seconds(limit.name) and abs(limit.value) >= 120:
                value += f" ({duration(limit.value)})"
            said = f": {limit.says}" if limit.says else ""
            source = f" [{limit.source}]" if limit.source else ""
            lines += _wrapped(f"{limit.name.ljust(widest)}  {value}{said}{source}", STEP)
    return "\n".join(lines) + "\n"


def _wrapped(text: str, indent: int, more: int = STEP) -> list[str]:
    """Lines of at most WIDTH columns; what follows the first stands `more` deeper. Inner blanks are kept."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + more), break_on_hyphens=False
    )


def _tree(playbook: Playbook, playbooks: Mapping[str, Playbook]) -> Iterator[str]:
    """Each question, its three answers, and below them the questions that stand here first. By a stack."""
    placed = {playbook.start}
    stack = [(playbook.start, 0)]
    while stack:
        name, level = stack.pop()
        question = playbook.questions[name]
        indent = min(STEP * (level + 1), DEEPEST)
        yield from _head(question, indent)
        below: list[tuple[str, int]] = []
        for answer in ANSWERS:
            arm = question.arms[answer]
            yield from _wrapped(f"{answer:<7} {_target(arm, playbook)}", indent + STEP, 8)
            target = place(playbooks, arm)
            if target and target[0] == playbook.name and target[1] not in placed:
                placed.add(target[1])
                below.append((target[1], level + 1))
        stack += reversed(below)


def _head(question: Question, indent: int) -> list[str]:
    lines = _wrapped(f"{question.name}: {question.ask}", indent)
    lines += _wrapped(f"when {question.when.text}", indent + STEP)
    if question.ask_for:
        wish = question.ask_for
        peers = f" and {wish.peers} peers" if wish.peers else ""
        lines += _wrapped(f"asks {wish.probe} of {wish.on}{peers}", indent + STEP)
    return lines


def _target(arm: Arm, playbook: Playbook) -> str:
    own = arm.playbook == playbook.name
    target = f"=> {arm.verdict}" if arm.verdict else f"-> {'' if own else arm.playbook + ':'}{arm.question}"
    if arm.costs:
        target += f", costs {arm.costs:.2f}"
    if arm.rules_out:
        target += f", rules out {', '.join(verdict for verdict, _ in arm.rules_out)}"
    return target


def _leaf(spec: VerdictSpec) -> list[str]:
    base = f"base {spec.base:.2f}, " if spec.base else ""
    lines = _wrapped(f"{spec.cause}  {base}fail {spec.fail}, {spec.mitigate}", STEP)
    lines += _wrapped(spec.title.text, 2 * STEP, 0)
    if spec.culprits:
        lines += _wrapped(f"culprit: {spec.culprits}", 2 * STEP)
    if spec.involved:
        lines += _wrapped(f"involved: {spec.involved}", 2 * STEP)
    return lines


# ---------------------------------------------------------------- lint


def lint_lines(playbooks: Mapping[str, Playbook]) -> list[str]:
    """One summary line for each playbook, then the warnings of all."""
    lines = []
    for playbook in playbooks.values():
        longest = _longest(playbooks, (playbook.name, playbook.start))
        lines.append(
            f"{playbook.name}: {len(playbook.questions)} questions, {len(playbook.verdicts)} verdicts, "
            f"{len(playbook.thresholds)} thresholds, at most {longest} questions in a walk"
        )
    return lines + warnings(playbooks)


def warnings(playbooks: Mapping[str, Playbook]) -> list[str]:
    """What may be meant, but is worth a second look."""
    found: list[str] = []
    order = _in_order(playbooks)
    after = _verdicts_after(playbooks, order)
    cheapest = _cheapest(playbooks, order)
    for name, question_name in order:
        question = playbooks[name].questions[question_name]
        for answer, arm in question.arms.items():
            where = f"{name}: question {question_name}, {answer}"
            for ruled, _ in arm.rules_out:
                for cause in sorted(_ahead(playbooks, arm, after)):
                    if ruled in (cause, cause.partition("/")[0]):
                        found.append(f"{where}: rules out {ruled}, but {cause} can follow")
            if answer == "unknown" and arm.verdict and not arm.verdict.startswith("inconclusive/") and not arm.costs:
                found.append(f"{where}: concludes {arm.verdict} at no cost")
    for name, playbook in playbooks.items():
        for spec in playbook.verdicts.values():
            least = cheapest.get((name, spec.cause))
            if spec.base and least is not None and round(spec.base - least, 4) < FLOOR:
                left = spec.base - least
                found.append(f"{name}: verdict {spec.cause}: scores at most {left:.2f}, so it is never said")
            if spec.id != "inconclusive" and not spec.evidence:
                found.append(f"{name}: verdict {spec.cause}: shows no evidence")
    return found


def _ahead(playbooks: Mapping[str, Playbook], arm: Arm, after: Mapping[Place, set[str]]) -> set[str]:
    target = place(playbooks, arm)
    return {arm.verdict} if arm.verdict else after.get(target, set()) if target else set()


def _in_order(playbooks: Mapping[str, Playbook]) -> list[Place]:
    """Every question after all those that lead to it (the graph has no cycle)."""
    done: dict[Place, None] = {}
    for start in [(book.name, name) for book in playbooks.values() for name in book.questions]:
        stack: list[tuple[Place, bool]] = [(start, False)]
        while stack:
            here, left = stack.pop()
            if left:
                done[here] = None
            elif here not in done:
                stack.append((here, True))
                arms = playbooks[here[0]].questions[here[1]].arms.values()
                targets = (place(playbooks, arm) for arm in arms)
                stack += [(target, False) for target in targets if target and target not in done]
    return list(reversed(done))


def _verdicts_after(playbooks: Mapping[str, Playbook], order: list[Place]) -> dict[Place, set[str]]:
    after: dict[Place, set[str]] = {}
    for here in reversed(order):
        arms = playbooks[here[0]].questions[here[1]].arms.values()
        after[here] = set().union(*(_ahead(playbooks, arm, after) for arm in arms))
    return after


def _cheapest(playbooks: Mapping[str, Playbook], order: list[Place]) -> dict[Place, float]:
    """(playbook, cause) -> the least that a walk from the start of any playbook must pay to get there."""
    paid = {(book.name, book.start): 0.0 for book in playbooks.values()}
    leaves: dict[Place, float] = {}
    for here in order:
        if here not in paid:
            continue
        for arm in playbooks[here[0]].questions[here[1]].arms.values():
            total = paid[here] + arm.costs
            target = place(playbooks, arm)
            if arm.verdict:
                leaves[(here[0], arm.verdict)] = min(total, leaves.get((here[0], arm.verdict), total))
            elif target:
                paid[target] = min(total, paid.get(target, total))
    return leaves


def _longest(playbooks: Mapping[str, Playbook], start: Place) -> int:
    """Questions on the longest walk from here."""
    length: dict[Place, int] = {}
    for here in reversed(_in_order(playbooks)):
        arms = playbooks[here[0]].questions[here[1]].arms.values()
        targets = (place(playbooks, arm) for arm in arms)
        length[here] = 1 + max((length[target] for target in targets if target), default=0)
    return length[start]
