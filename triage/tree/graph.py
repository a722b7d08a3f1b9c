"""Can the walk go astray? Names that lead nowhere, questions that nothing leads to, ways that never end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from triage.tree.expr import did_you_mean
from triage.tree.playbook import WEAK, Arm, Place, Playbook, place
from triage.tree.words import clean

Complain = Callable[[str, str, str], None]  # (playbook, where, what)


def shown(value: Any) -> str:
    """A value as an error message shows it."""
    if isinstance(value, str):
        return f'"{clean(value, 60)}"'
    if value is None:
        return "nothing"
    words = {dict: "a mapping", list: "a list", bool: str(value).lower()}
    return words.get(type(value), clean(repr(value), 40))


def check_graph(playbooks: Mapping[str, Playbook], complain: Complain, unread: bool) -> None:
    """Names that lead nowhere, questions and verdicts that nothing leads to, and ways that never end."""
    edges: dict[Place, list[Place]] = {}
    broken = unread  # an arm that leads nowhere makes what stands behind it unreachable: one mistake, one line
    for book in playbooks.values():
        used = {WEAK}
        for question in book.questions.values():
            edges[(book.name, question.name)] = []
            for answer, arm in question.arms.items():
                where = f"question {clean(question.name, 60)}, {answer}"
                used.add(arm.verdict or "")
                target = place(playbooks, arm)
                if target is not None:
                    edges[(book.name, question.name)].append(target)
                for what in _nowhere(playbooks, book, arm, unread):
                    broken = broken or arm.question is not None
                    complain(book.name, where, what)
        for spec in book.verdicts.values():
            for lead in spec.leads:
                used.add(lead.verdict)
                if lead.verdict.startswith("inconclusive/") or lead.verdict not in book.verdicts:
                    hint = did_you_mean(lead.verdict, book.verdicts)
                    complain(book.name, f"verdict {spec.cause}, leads", f"no verdict {shown(lead.verdict)}{hint}")
        if book.start not in book.questions:
            complain(book.name, "start", f"no question {shown(book.start)}{did_you_mean(book.start, book.questions)}")
        if "start" in book.questions and book.start != "start":
            complain(book.name, "question start", "this name means the first question; call it otherwise")
        if WEAK not in book.verdicts:
            complain(book.name, "verdicts", f"{WEAK} missing: what to say when a score is below 0.50")
        for cause in book.verdicts:
            if cause not in used:
                complain(book.name, f"verdict {clean(cause, 60)}", "is unused: no arm leads to it")
    reached = _reached(edges, [(b.name, b.start) for b in playbooks.values()])
    for name, question_name in edges:
        if (name, question_name) not in reached and not broken:
            complain(name, f"question {clean(question_name, 60)}", "is unreachable: nothing leads to it")
    for cycle in _cycles(edges):
        circle = " -> ".join(f"{book}:{name}" if book != cycle[0][0] else name for book, name in [*cycle, cycle[0]])
        complain(cycle[0][0], f"question {cycle[0][1]}", f"the walk would never end: {clean(circle, 300)}")


def _nowhere(playbooks: Mapping[str, Playbook], book: Playbook, arm: Arm, unread: bool) -> Iterable[str]:
    if arm.verdict is not None and arm.verdict not in book.verdicts:
        yield f"no verdict {shown(arm.verdict)}{did_you_mean(arm.verdict, book.verdicts)}"
    if arm.question is not None and arm.playbook not in playbooks:
        if not unread:  # it may be the one that could not be read
            yield f"no playbook {shown(arm.playbook)}{did_you_mean(arm.playbook, playbooks)}"
    elif arm.question is not None and place(playbooks, arm) is None:
        names = playbooks[arm.playbook].questions
        hint = "; a verdict is written {verdict: id/leaf}" if "/" in arm.question else did_you_mean(arm.question, names)
        yield f"no question {shown(arm.question)}{hint}"
    for ruled, _ in arm.rules_out:
        if "/" in ruled and ruled not in book.verdicts:
            yield f"rules out {shown(ruled)}, which is no verdict here{did_you_mean(ruled, book.verdicts)}"


def _reached(edges: Mapping[Place, list[Place]], starts: Iterable[Place]) -> set[Place]:
    reached: set[Place] = set()
    ahead = list(starts)
    while ahead:
        here = ahead.pop()
        if here not in reached and here in edges:
            reached.add(here)
            ahead += edges[here]
    return reached


def _cycles(edges: Mapping[Place, list[Place]]) -> list[list[Place]]:
    """Every way back to a question that is still open on the way to itself; by a stack, as a file may be long."""
    found: list[list[Place]] = []
    done: set[Place] = set()
    for root in edges:
        trail: list[Place] = []
        stack = [(root, iter(edges[root]))] if root not in done else []
        open_ = {root}
        trail.append(root)
        while stack:
            here, ahead = stack[-1]
            target = next(ahead, None)
            if target is None:
                stack.pop()
                open_.discard(trail.pop())
                done.add(here)
            elif target in open_:
                found.append(trail[trail.index(target) :])
            elif target not in done:
                stack.append((target, iter(edges[target])))
                trail.append(target)
                open_.add(target)
    return found
