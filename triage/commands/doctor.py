"""`triage doctor JOBID`: before the incident, will this job be diagnosable when it hangs?"""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from triage.commands.flags import (
    InventoryOption,
    NodesOption,
    Output,
    OutputOption,
    ProfileOption,
    SchedulerOption,
    StateOption,
)
from triage.commands.saying import patience, say, write

# ruff: noqa: UP045


def doctor(
    jobid: Annotated[str, typer.Argument(help="The job's id; with --nodes any word will do.")] = "-",
    inventory: InventoryOption = None,
    scheduler: SchedulerOption = None,
    nodes: NodesOption = None,
    profile: ProfileOption = None,
    transport: Annotated[Optional[str], typer.Option("--transport", help="How to reach nodes: ssh or local.")] = None,
    user: Annotated[Optional[str], typer.Option("--user", help="User name on the nodes.")] = None,
    key: Annotated[Optional[str], typer.Option("--key", help="Private key file.")] = None,
    known_hosts: Annotated[Optional[str], typer.Option("--known-hosts", help="known_hosts file.")] = None,
    state_dir: StateOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Say what would be missing if this job hung now, which verdicts that costs, and the line that mends it."""
    from triage import config

    flags = {"inventory": inventory, "scheduler": scheduler, "profile": profile, "transport": transport, "user": user, "key": key,
             "known_hosts": known_hosts, "state_dir": state_dir}  # fmt: skip
    patience()
    config.begin(flags)
    import json

    from triage import checkup, investigate
    from triage.inputs import find_job, options

    found = find_job(jobid, nodes, flags, warn=say)
    chosen = options("doctor", found, poke=False, run_s=None, looks=1, say=say)
    made = checkup.examine(investigate.live(found.job, chosen))
    write(json.dumps(checkup.document(made), indent=2) + "\n" if output is Output.json else checkup.text(made))
    raise typer.Exit(made.exit_code)


def add(app: typer.Typer) -> None:
    app.command("doctor")(doctor)
