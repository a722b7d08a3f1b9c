"""What stayed unread on the nodes for want of rights, in one line for each reason: `--sudo` would read it, or was refused. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from triage.model import Sample
from triage.schedulers.hostlist import fold

NOT_SUDO = "sudo -n is refused"  # how the note of a contact begins (gather.py)
MAY_NOT = "may not read "  # how a probe's note begins (probes/_probe.py)
# What a probe reads, as an operator would say it.
WORDS = {
    "kernel": "the kernel log",
    "ranks": "other users' processes",
    "flight_recorder": "flight records",
    "joblog": "the job log",
    "steps": "step logs",
    "storage": "mounts",
    "activity": "what silent ranks do",
}


def unread(samples: Iterable[Sample], sudo: bool) -> list[str]:
    """The lines to tell after the first look; none where all could be read."""
    refused: dict[str, dict[str, None]] = {}
    limited: dict[tuple[str, ...], list[str]] = {}
    closed: dict[str, dict[str, None]] = {}
    for sample in samples:
        if sample.probe == "contact":
            for note in sample.notes:
                if note.startswith(NOT_SUDO):
                    refused.setdefault(note, {})[sample.node] = None
        elif sample.node and (sample.status == "denied" or any(note.startswith(MAY_NOT) for note in sample.notes)):
            closed.setdefault(sample.node, {})[WORDS.get(sample.probe, sample.probe)] = None
    for node, what in closed.items():
        limited.setdefault(tuple(sorted(what)), []).append(node)
    lines = [
        f"{fold(nodes)}: {note}. Without it what only root may read stays unread; a line for sudoers stands in triage(1)"
        for note, nodes in refused.items()
    ]
    for unseen, alike in limited.items():
        how = "" if sudo else "; --sudo reads more, where sudo asks for no password"
        lines.append(f"{fold(alike)}: not all could be read of {', '.join(unseen)} by this user{how}")
    return lines
