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


JobArgument = Annotated[str, typer.Argument(help="The job's id, as the scheduler or the inventory knows it.")]
TransportOption = Annotated[
    Optional[str], typer.Option("--transport", help="How to reach nodes: ssh, openssh, srun, local.")
]
UserOption = Annotated[Optional[str], typer.Option("--user", help="User name on the nodes.")]
KeyOption = Annotated[Optional[str], typer.Option("--key", help="Private key file.")]
HostsOption = Annotated[Optional[str], typer.Option("--known-hosts", help="known_hosts file.")]
SudoOption = Annotated[bool, typer.Option("--sudo", help="Read as root where `sudo -n` lets us; never asks.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", help="Seconds for the whole run; 0 = 60, or 120 above 128 nodes.")
]
LooksOption = Annotated[
    int, typer.Option("--looks", min=1, max=2, help="How often to look; 1 is quicker, and tells less.")
]
NoPokeOption = Annotated[bool, typer.Option("--no-poke", help="Do not ask a flight recorder for a fresh dump.")]
CarryOption = Annotated[
    Optional[str], typer.Option("--carry-py-spy", help="A py-spy binary to run from memory on suspected nodes.")
]
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
