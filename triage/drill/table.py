"""`triage drill --list`: every scenario and fault, and what triage must say of it."""

from __future__ import annotations

from triage.drill.scenarios import Row, list_scenarios


def table() -> str:
    """One paragraph a fault, at most 80 columns."""
    return "\n".join(_paragraph(row) for row in list_scenarios())


def _paragraph(row: Row) -> str:
    fault = f" --fault {row.fault}" if row.fault not in ("none", "") else ""
    return (
        f"{row.scenario}{fault}\n"
        f"    broken    {row.breaks}\n"
        f"    expected  {row.verdict}, cause {row.cause}, culprit {row.culprit_kind}, "
        f"{row.strategy}, exit {row.exit_code}"
    )
