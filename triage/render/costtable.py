"""The table of `triage cost simulate`: mean job-minutes lost under each policy, and how many times hindsight that is."""

from __future__ import annotations

from collections.abc import Sequence

from triage.cost.simulate import POLICIES, Row
from triage.render.clean import clean

_WIDTH = 12
_HEADS = {"oracle": "hindsight", "never act": "never act", "restart at once": "restart now", "R1": "R1",
          "wall-clock rule": "by clock", "S1->S4 only": "R1 of S4"}  # fmt: skip


def drawn(rows: Sequence[Row], incidents: int, seed: int, mean_min: float, sigma: float) -> str:
    """At most 80 columns; the policy that triage follows is R1."""
    law = f"log-normal, sigma {sigma:g}" if sigma else "exponential"
    lines = [
        f"{incidents} incidents of {mean_min:g} min on average ({law}), seed {seed}.",
        "Mean job-minutes lost (times hindsight). R1 is what triage does.",
        "",
        "      " + "".join(f"{_HEADS[name]:>{_WIDTH}}" for name in POLICIES),
    ]
    for row in rows:
        cells = [f"{_short(row.means[POLICIES[0]])}"]
        cells += [f"{_short(row.means[name])} ({_short(row.ratios.get(name, 0.0))})" for name in POLICIES[1:]]
        lines.append(f"{clean(row.setting.name, 5):<6}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells))
    lines += ["", *(f"{clean(row.setting.name, 5):<6}{clean(row.setting.says, 200)}" for row in rows)]
    return "\n".join(lines) + "\n"


def _short(number: float) -> str:
    """Three digits that count."""
    return f"{number:.3g}" if number < 999.5 else f"{number:.0f}"
