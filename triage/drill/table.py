"""`triage drill --list`: every scenario and fault of both engines, and what triage must say of it."""

from __future__ import annotations

import textwrap

from triage.drill.scenarios import ENGINES, Row, list_scenarios

WIDTH = 80


def table() -> str:
    """One paragraph a fault, at most 80 columns."""
    return "\n".join(_paragraph(row) for engine in ENGINES for row in list_scenarios(engine))


def _paragraph(row: Row) -> str:
    engine = f" --engine {row.engine}" if row.engine != ENGINES[0] else ""
    real = " --backend namespaces" if row.real_cables else ""
    fault = f" --fault {row.fault}" if row.fault not in ("none", "") else ""
    also = "".join(f", or {cause}" for cause in dict.fromkeys(row.or_else))
    expected = (
        f"{row.verdict}, cause {row.cause}, culprit {row.culprit_kind}, {row.strategy}, exit {row.exit_code}{also}"
    )
    return "\n".join(
        (f"{row.scenario}{engine}{real}{fault}", _entry("broken", row.breaks), _entry("expected", expected))
    )


def _entry(head: str, text: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=f"    {head:<10}", subsequent_indent=" " * 14, break_on_hyphens=False
    )
