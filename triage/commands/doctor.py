"""`triage doctor JOBID`: before the incident, will this job be diagnosable when it hangs?"""

from __future__ import annotations

from typing import Annotated

import typer

from triage.commands.flags import (
    HostsOption,
    InventoryOption,
    KeyOption,
    NodesOption,
    Output,
    OutputOption,
    ProfileOption,
    SchedulerOption,
    StateOption,
    SudoOption,
    TransportOption,
    UserOption,
)
from triage.commands.saying import begin, say, write


def doctor(
    jobid: Annotated[str, typer.Argument(help="The job's id; with --nodes any word will do.")] = "-",
    inventory: InventoryOption = None,
    scheduler: SchedulerOption = None,
    nodes: NodesOption = None,
    profile: ProfileOption = None,
    transport: TransportOption = None,
    user: UserOption = None,
    key: KeyOption = None,
    known_hosts: HostsOption = None,
    sudo: SudoOption = False,
    state_dir: StateOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Say what would be missing if this job hung now, which verdicts that costs, and the line that mends it."""
    flags = begin(
        inventory=inventory,
        scheduler=scheduler,
        profile=profile,
        transport=transport,
        user=user,
        key=key,
        known_hosts=known_hosts,
        state_dir=state_dir,
    )
    import json

    from triage import checkup, investigate
    from triage.inputs import find_job, options

    found = find_job(jobid, nodes, flags, warn=say)
    chosen = options("doctor", found, poke=False, run_s=None, looks=1, sudo=sudo, say=say)
    made = checkup.examine(investigate.live(found.job, chosen))
    write(json.dumps(checkup.document(made), indent=2) + "\n" if output is Output.json else checkup.text(made))
    raise typer.Exit(made.exit_code)


def add(app: typer.Typer) -> None:
    app.command("doctor")(doctor)
