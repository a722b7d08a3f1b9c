"""Equal stacks of many ranks as one tree of prefixes, folded to a page: where they part is where they differ.

    fold(groups)  ->  ["[0-3] <module> (train.py)",
                       "      train (train.py)",
                       "  [0,2-3] all_reduce (torch/distributed/distributed_c10d.py)  <- collective",
                       "  [1] save_checkpoint (train.py)  <- checkpoint"]

Frames that all ranks of a branch share stand below each other at one depth; only where ranks part does the depth grow, so
that a stack of forty frames stays on the page. Of a long run the first and the last frames are shown. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from triage.model import StackGroup
from triage.render.clean import clean
from triage.render.layout import cut, width_of
from triage.schedulers.hostlist import fold as fold_names

HEAD, TAIL = 2, 4  # frames of a run that are always shown
MOST_LINES = 48
DEEPEST = 12


class _Node:
    """One frame and the groups whose stacks go on from it."""

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.inner: dict[str, _Node] = {}
        self.ends: list[str] = []  # what the groups are that end here


def fold(groups: Sequence[StackGroup], width: int = 80) -> list[str]:
    """The lines, none wider than `width`; an empty list without stacks."""
    root = _Node()
    for group in groups:
        node = root
        node.ranks += group.ranks
        for frame in group.frames or ("(no Python frame)",):
            node = node.inner.setdefault(clean(frame, 160), _Node())
            node.ranks += group.ranks
        node.ends.append(clean(group.says or group.cls, 80))
    lines: list[str] = []
    for frame, node in _widest_first(root):
        _draw(lines, frame, node, 0, width)
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], "... (--output json has all)"]
    return lines


def _widest_first(node: _Node) -> list[tuple[str, _Node]]:
    return sorted(node.inner.items(), key=lambda item: (-len(item[1].ranks), min(item[1].ranks), item[0]))


def _draw(lines: list[str], frame: str, node: _Node, depth: int, width: int) -> None:
    run = [frame]
    while len(node.inner) == 1 and not node.ends:
        frame, node = next(iter(node.inner.items()))
        run.append(frame)
    indent = "  " * min(depth, DEEPEST)
    head = f"[{ranges(node.ranks)}] "
    if width_of(head) > width // 2:
        head = f"[{len(node.ranks)} ranks] "
    shown: list[str] = run
    if len(run) > HEAD + TAIL + 1:
        shown = [*run[:HEAD], f"... {len(run) - HEAD - TAIL} frames ...", *run[-TAIL:]]
    tail = f"  <- {'; '.join(dict.fromkeys(node.ends))}" if any(node.ends) else ""
    for number, text in enumerate(shown):
        start = indent + (head if number == 0 else " " * min(width_of(head), 6))
        end = tail if number == len(shown) - 1 else ""
        room = width - width_of(start)
        if end and width_of(text) + width_of(end) > room:
            lines.append(start + cut(text, room))
            lines.append(cut(" " * width_of(start) + end.strip(), width))
        else:
            lines.append(start + cut(text, room - width_of(end)) + end)
    for inner_frame, inner in _widest_first(node):
        _draw(lines, inner_frame, inner, depth + 1, width)


def ranges(ranks: Sequence[int]) -> str:
    """`0-3,7`, as cluster tools write it."""
    return re.sub(r"[\[\]]", "", fold_names(str(rank) for rank in sorted(set(ranks))))
