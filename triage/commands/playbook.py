"""`triage playbook list|show|lint`: the decision trees."""

from __future__ import annotations

from typing import Annotated

import typer

from triage.commands.flags import FilesArgument
from triage.commands.saying import write

playbooks = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="The decision trees: list, show, lint.")


@playbooks.command("list")
def list_() -> None:
    """The playbooks that ship, with their questions and verdicts."""
    from triage.inputs import playbook_lines

    write("".join(f"{line}\n" for line in playbook_lines()))


@playbooks.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Name of a playbook that ships, or a file.")] = "frozen-job",
) -> None:
    """Draw a playbook as a tree of questions."""
    from triage.inputs import playbook_drawing

    write(playbook_drawing(name))


@playbooks.command("lint")
def lint(files: FilesArgument = None) -> None:
    """Check playbooks: every name, type, arm and verdict."""
    from triage.inputs import paths, playbook_check

    write("".join(f"{line}\n" for line in playbook_check(paths(files))))


def add(app: typer.Typer) -> None:
    app.add_typer(playbooks, name="playbook")
