"""`triage drill SCENARIO`: break a real job on an embedded cluster and diagnose it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from triage.commands.flags import Color, ColorOption, ExplainOption, Form, FormOption, StateOption
from triage.commands.saying import say, show, write
from triage.errors import UsageError

# ruff: noqa: UP045


def drill(
    scenario: Annotated[Optional[str], typer.Argument(help="What to break; see --list.")] = None,
    fault: Annotated[str, typer.Option("--fault", help="Which fault of the scenario.")] = "",
    nodes: Annotated[
        Optional[int], typer.Option("--nodes", help="Fake nodes: 4, or 2 with torch, if not given.")
    ] = None,
    ranks_per_node: Annotated[int, typer.Option("--ranks-per-node", help="Ranks on each node.")] = 2,
    speed: Annotated[
        float, typer.Option("--speed", help="Speed of the slow rank as a share of the others, 0.01 to below 1.")
    ] = 0.88,
    after: Annotated[str, typer.Option("--after", help="How long the job trains before it breaks, e.g. 8s.")] = "8s",
    seed: Annotated[Optional[int], typer.Option("--seed", help="Repeat the same names and culprit.")] = None,
    hold: Annotated[
        bool, typer.Option("--hold", help="Keep the cluster up and print the line to diagnose it.")
    ] = False,
    blind: Annotated[
        Optional[list[str]], typer.Option("--blind", help="Hide a source from triage; repeatable.")
    ] = None,
    backend: Annotated[
        str, typer.Option("--backend", help="What the fake nodes are: processes, namespaces, or auto.")
    ] = "auto",
    engine: Annotated[str, typer.Option("--engine", help="What the job is made of: ring or torch.")] = "ring",
    truth: Annotated[Optional[str], typer.Option("--truth", help="Write what really happened to this file.")] = None,
    state_dir: StateOption = None,
    output: FormOption = Form.text,
    color: ColorOption = Color.auto,
    explain: ExplainOption = False,
    list_: Annotated[bool, typer.Option("--list", help="List scenarios and faults with what triage must say.")] = False,
) -> None:
    """Break a real training job on an embedded cluster, and run frozen-job against it."""
    from dataclasses import replace

    from triage.drill import run as drills
    from triage.drill.table import table

    if list_:
        write(table() + "\n")
        return
    if not scenario:
        raise UsageError("say which scenario; see: triage drill --list")
    from triage.inputs import find_job, options, seconds

    def diagnose(job_id: str, inventory: Path, profile: Path, looks: int) -> int:
        from triage import investigate

        flags = {"inventory": str(inventory), "profile": str(profile), "state_dir": state_dir}
        found = find_job(job_id, None, flags, warn=say)
        chosen = options("frozen-job", found, poke=True, run_s=None, looks=looks, say=say)
        # The cluster is gone when the report is read: it prints no line that would ask it again.
        result = investigate.live(found.job, replace(chosen, again="", remember=False))
        show(result, output, color, explain)
        return result.report.exit_code

    wanted = drills.DrillOptions(
        scenario=scenario, fault=fault, nodes=nodes, ranks_per_node=ranks_per_node, speed=speed,
        after_s=seconds(after), seed=seed, hold=hold, blind=tuple(blind or ()), backend=backend, engine=engine,
        truth=Path(truth) if truth else None,
    )  # fmt: skip
    raise typer.Exit(drills.run_drill(wanted, diagnose))


def add(app: typer.Typer) -> None:
    app.command("drill")(drill)
