"""`triage slow-job JOBID`: the same as frozen-job for a job that is known to advance."""

from __future__ import annotations

import typer

from triage.commands.flags import (
    CarryOption,
    Color,
    ColorOption,
    ExplainOption,
    Form,
    FormOption,
    HostsOption,
    InventoryOption,
    JobArgument,
    KeyOption,
    LooksOption,
    NodesOption,
    NoPokeOption,
    PlotOption,
    ProfileOption,
    SchedulerOption,
    StateOption,
    SudoOption,
    TimeoutOption,
    TransportOption,
    UserOption,
)
from triage.commands.saying import answer, begin, say


def slow_job(
    jobid: JobArgument,
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
    timeout: TimeoutOption = 0.0,
    looks: LooksOption = 2,
    no_poke: NoPokeOption = False,
    carry_py_spy: CarryOption = None,
    output: FormOption = Form.text,
    color: ColorOption = Color.auto,
    explain: ExplainOption = False,
    plot: PlotOption = None,
) -> None:
    """Who makes a job slow, since when, and what it costs; a job that stands still is asked as frozen."""
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
    from triage import investigate
    from triage.inputs import find_job, options

    found = find_job(jobid, nodes, flags, warn=say)
    chosen = options(
        "slow-job",
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
    app.command("slow-job")(slow_job)
