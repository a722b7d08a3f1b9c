"""`triage watch JOBID`: cheap looks again and again, a line each."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from triage.commands.flags import (
    HostsOption,
    InventoryOption,
    JobArgument,
    KeyOption,
    NodesOption,
    ProfileOption,
    SchedulerOption,
    StateOption,
    TransportOption,
    UserOption,
)
from triage.commands.saying import begin, say, write


class Lines(str, Enum):
    text = "text"
    ndjson = "ndjson"


class Until(str, Enum):
    never = "never"
    change = "change"
    escalate = "escalate"


def watch(
    jobid: JobArgument,
    inventory: InventoryOption = None,
    scheduler: SchedulerOption = None,
    nodes: NodesOption = None,
    profile: ProfileOption = None,
    transport: TransportOption = None,
    user: UserOption = None,
    key: KeyOption = None,
    known_hosts: HostsOption = None,
    state_dir: StateOption = None,
    every: Annotated[str, typer.Option("--every", help="From the begin of a round to the next, 10s and more.")] = "60s",
    until: Annotated[Until, typer.Option("--until", help="When to stop, beside the end of the job.")] = Until.never,
    rounds: Annotated[int, typer.Option("--rounds", min=0, help="Stop after so many; 0 = no limit.")] = 0,
    output: Annotated[Lines, typer.Option("--output", help="Form of the lines on stdout.")] = Lines.text,
) -> None:
    """Look again and again with cheap probes; speak up when something changes or a step is due."""
    import json
    import signal
    import time

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
    from triage import watch as watching
    from triage.errors import UsageError
    from triage.inputs import seconds, watched

    every_s = seconds(every)
    if not 10.0 <= every_s <= 86_400.0:
        raise UsageError(f"--every {every}: give a duration between 10s and 24h")
    made = 0

    def emit(this: watching.Round) -> None:
        nonlocal made
        made = this.number
        if output is Lines.ndjson:
            write(json.dumps(watching.document(this)) + "\n")
        else:
            write(watching.line(this) + "\n" + "".join(f"  ! {words}\n" for words in this.said))

    clock = watching.Clock(time.monotonic, time.sleep)
    look = watched(jobid, nodes, flags, run_s=min(60.0, every_s), say=say)
    try:
        end = watching.watch(look, emit, clock, every_s=every_s, until=until.value, rounds=rounds)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        say(f"{jobid}: interrupted after {made} round{'' if made == 1 else 's'}; what was seen is in the record")
        raise typer.Exit(130) from None
    say(f"{end.why}; see it whole: triage frozen-job {jobid}")
    raise typer.Exit(end.exit_code)


def add(app: typer.Typer) -> None:
    app.command("watch")(watch)
