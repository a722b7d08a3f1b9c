"""`triage schema`: the JSON Schema of the report."""

from __future__ import annotations

import typer

from triage.commands.saying import write


def print_schema() -> None:
    """Print the JSON Schema of the report."""
    import json

    from triage.schema import schema

    write(json.dumps(schema(), indent=2) + "\n")


def add(app: typer.Typer) -> None:
    app.command("schema")(print_schema)
