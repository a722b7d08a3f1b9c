"""`triage frozen-job JOBID`: the culprit of a frozen or slow job, live."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from triage.commands.flags import (
    Color,
    ColorOption,
    ExplainOption,
    Form,
    FormOption,
    InventoryOption,
    NodesOption,
    PlotOption,
    ProfileOption,
    SchedulerOption,
    StateOption,
)
from triage.commands.saying import answer, patience, say

# ruff: noqa: UP045


def frozen_job(
    jobid: Annotated[str, typer.Argument(help="The job's id, as the scheduler or the inventory knows it.")],
    inventory: InventoryOption = None,
    scheduler: SchedulerOption = None,
    nodes: NodesOption = None,
    profile: ProfileOption = None,
    transport: Annotated[
        Optional[str], typer.Option("--transport", help="How to reach nodes: ssh, openssh, srun, local.")
    ] = None,
    user: Annotated[Optional[str], typer.Option("--user", help="User name on the nodes.")] = None,
    key: Annotated[Optional[str], typer.Option("--key", help="Private key file.")] = None,
    known_hosts: Annotated[Optional[str], typer.Option("--known-hosts", help="known_hosts file.")] = None,
    sudo: Annotated[bool, typer.Option("--sudo", help="Read as root where `sudo -n` lets us; never asks.")] = False,
    state_dir: StateOption = None,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds for the whole run; 0 = 60, or 120 above 128 nodes.")
    ] = 0.0,
    looks: Annotated[
        int, typer.Option("--looks", min=1, max=2, help="How often to look; 1 is quicker, and tells less.")
    ] = 2,
    no_poke: Annotated[bool, typer.Option("--no-poke", help="Do not ask a flight recorder for a fresh dump.")] = False,
    carry_py_spy: Annotated[
        Optional[str], typer.Option("--carry-py-spy", help="A py-spy binary to run from memory on suspected nodes.")
    ] = None,
    output: FormOption = Form.text,
    color: ColorOption = Color.auto,
    explain: ExplainOption = False,
    plot: PlotOption = None,
) -> None:
    """Find the culprit of a frozen or slow job: read-only, over SSH, within a minute."""
    from triage import config

    flags = {"inventory": inventory, "scheduler": scheduler, "profile": profile, "transport": transport, "user": user, "key": key,
             "known_hosts": known_hosts, "state_dir": state_dir}  # fmt: skip
    patience()
    config.begin(flags)
    from triage import investigate
    from triage.inputs import find_job, options

    found = find_job(jobid, nodes, flags, warn=say)
    chosen = options(
        "frozen-job",
        found,
        poke=not no_poke,
        run_s=timeout or None,
        looks=looks,
        carry=carry_py_spy,
        sudo=sudo,
        say=say,
    )
    answer(investigate.live(found.job, chosen), output, color, explain, plot)


def add(app: typer.Typer) -> None:
    app.command("frozen-job")(frozen_job)
