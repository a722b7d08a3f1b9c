"""`triage schema`: the JSON Schemas of what triage prints."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from triage.commands.saying import write


class Document(str, Enum):
    report = "report"
    cost = "cost"


def print_schema(
    document: Annotated[Document, typer.Argument(help="Of which document: a report, or what `cost` prints.")] = (
        Document.report
    ),
) -> None:
    """Print the JSON Schema of the report, or of what `cost` prints."""
    from triage.schema import cost_schema_text, schema_text

    write(cost_schema_text() if document is Document.cost else schema_text())


def add(app: typer.Typer) -> None:
    app.command("schema")(print_schema)
