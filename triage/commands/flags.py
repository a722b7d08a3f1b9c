"""Flags that several commands share."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Optional

import typer

# `Optional[...]` and not `... | None` in the commands: typer evaluates the hints, and this reads the same everywhere.
# ruff: noqa: UP045


class Output(str, Enum):
    text = "text"
    json = "json"


class Form(str, Enum):
    """How a report is told: the names of the files in triage/render/."""

    text = "text"
    json = "json"
    ndjson = "ndjson"
    markdown = "markdown"
    pagerduty = "pagerduty"
    servicenow = "servicenow"
    alertmanager = "alertmanager"
    jsm = "jsm"


class Color(str, Enum):
    auto = "auto"
    always = "always"
    never = "never"


OutputOption = Annotated[Output, typer.Option("--output", help="Form of the answer on stdout.")]
FormOption = Annotated[Form, typer.Option("--output", help="Form of the report on stdout.")]
ColorOption = Annotated[Color, typer.Option("--color", help="Colour on stdout; NO_COLOR is honoured.")]
ExplainOption = Annotated[bool, typer.Option("--explain", help="Print the walk: every question and its answer.")]
ProfileOption = Annotated[Optional[str], typer.Option("--profile", help="YAML with this site's costs and thresholds.")]
PlotOption = Annotated[Optional[str], typer.Option("--plot", help="Write a picture of the steps and the rent (SVG).")]
StateOption = Annotated[Optional[str], typer.Option("--state-dir", help="Folder of the saved cases.")]
InventoryOption = Annotated[Optional[str], typer.Option("--inventory", help="YAML that says which nodes a job has.")]
SchedulerOption = Annotated[Optional[str], typer.Option("--scheduler", help="Who knows the job: slurm or inventory.")]
NodesOption = Annotated[Optional[str], typer.Option("--nodes", help="The job's nodes, e.g. 'gpu[001-128]'.")]
# Texts and not `Path`: typer touches those by itself, and on dead storage that never returns.
PlaybookOption = Annotated[Optional[list[str]], typer.Option("--playbook", help="A playbook instead of the saved one.")]
FilesArgument = Annotated[Optional[list[str]], typer.Argument(help="Playbook files; none = those that ship.")]
