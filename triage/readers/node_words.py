"""What schedulers say of a node, in words: Slurm's states with their marks (sinfo(1), NODE STATE CODES). Pure.

    "mixed*"    works, and its slurmd does not respond        "down"    not used; its reason says why        "idle~"   powered off

An inventory uses the same words.
"""

from __future__ import annotations

import re

# Marks behind a state.
MARKS = {"*": "its daemon does not respond", "~": "powered off", "#": "powering up", "%": "powering down",
         "!": "to be powered down", "$": "reserved for maintenance", "@": "waits for a reboot", "^": "reboots"}  # fmt: skip
# `-` (planned for another job) and `+` (more flags follow) say nothing.
_BAD = frozenset(
    ("down", "drain", "drained", "draining", "drng", "fail", "failing", "error", "future", "inval", "maint", "no_respond",
     "not_responding", "perfctrs", "powered_down", "powering_down", "powering_up", "power_down", "power_up", "reboot_issued",
     "reboot_requested", "unknown", "blocked")
)  # fmt: skip
_WORD = re.compile(r"([a-z_]+)([*~#%!$@^+-]*)\Z")


def unwell(state: str) -> str:
    """Why a node of this state is not as it should be ("down", "mixed*: its daemon does not respond"), or "".

    A word that is not known says nothing.
    """
    told = [match for token in state.strip().lower().split("+") if token and (match := _WORD.match(token))]
    marks = [MARKS[sign] for match in told for sign in match[2] if sign in MARKS]
    words = [match[1] for match in told if match[1] in _BAD]
    if not marks and not words:
        return ""
    return f"{state.strip()}: {', '.join(dict.fromkeys(marks))}" if marks else state.strip()
