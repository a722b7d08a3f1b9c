"""`triage handover JOBID`: the paragraph for the next shift."""

from __future__ import annotations

from typing import Annotated

import typer

from triage.commands.flags import Output, OutputOption, StateOption
from triage.commands.saying import say, write


def handover(
    jobid: Annotated[str, typer.Argument(help="The job's id, as the earlier looks gave it.")],
    state_dir: StateOption = None,
    output: OutputOption = Output.text,
) -> None:
    """What the next shift must know of a job, from earlier looks; no node is asked."""
    import json

    from triage import config
    from triage import handover as handing

    settings = config.load({"state_dir": state_dir})
    told, warnings = handing.handover(settings.value("state_dir"), jobid)
    for line in (*settings.warnings, *warnings):
        say(line)
    write(json.dumps(told, indent=2) + "\n" if output is Output.json else handing.text(told))


def add(app: typer.Typer) -> None:
    app.command("handover")(handover)
