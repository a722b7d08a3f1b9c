"""`triage cost`: what a slowdown costs and which step that justifies, without a cluster; `triage cost simulate`."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer

from triage.commands.flags import Color, ColorOption, NodesOption, Output, OutputOption, PlotOption, ProfileOption
from triage.commands.saying import say, write

# ruff: noqa: UP045

group = typer.Typer(rich_markup_mode=None, help="What a slowdown costs, and which step that justifies; no cluster.")
Text = Optional[str]


def _flag(name: str, says: str, **more: Any) -> Any:
    return typer.Option(name, help=says, **more)


HealthyStep = Annotated[Text, _flag("--healthy-step", "Duration of a step when all was well, e.g. 1.76s.")]
SlowStep = Annotated[Text, _flag("--slow-step", "Duration of a step now.")]
Speed = Annotated[Optional[float], _flag("--speed", "Instead: the slow part's share of its peers' speed, e.g. 0.88.")]
Mfu = Annotated[Text, _flag("--mfu", "Instead: MFU healthy:now, e.g. 44:37.")]
Rate = Annotated[Text, _flag("--rate", "Instead: throughput healthy:now[:after a remedy], e.g. 17.1:14.8:16.2.")]
Clock = Annotated[Text, _flag("--clock", "Instead: SM clock of its peers and of the slow GPU, 1410:1230; bounds only.")]
Frozen = Annotated[bool, _flag("--frozen", "Instead: nothing moves, and it may come back.")]
Kind = Annotated[str, _flag("--kind", "What is slow: compute or network.")]
Gpus = Annotated[Optional[int], _flag("--gpus", "GPUs of the job.")]
Since = Annotated[Text, _flag("--since", "How long it has lasted, e.g. 48m.")]
Price = Annotated[Optional[float], _flag("--price", "Dollars for a GPU-hour; unset: no money is told.")]
Dump = Annotated[Text, _flag("--checkpoint-dump", "A dump on demand blocks so long; low,middle,high is a range.")]
Every = Annotated[Text, _flag("--checkpoint-every", "Interval of the scheduled checkpoints.")]
Age = Annotated[Text, _flag("--checkpoint-age", "Age of the last complete checkpoint.")]
Restart = Annotated[Text, _flag("--restart", "Requeue, start, load, warm up; low,middle,high is a range.")]
Micro = Annotated[Optional[int], _flag("--micro-batches", "Micro-batches of a data-parallel group in a step (for S2).")]
Tensor = Annotated[Optional[int], _flag("--tp", "Tensor-parallel size.")]
Pipeline = Annotated[int, _flag("--pp", "Pipeline stages.")]
Data = Annotated[Optional[int], _flag("--dp", "Data-parallel groups.")]
Layers = Annotated[Optional[int], _flag("--layers", "Layers of the model, if they may be shared out otherwise (S3).")]
RankOrder = Annotated[str, _flag("--rank-order", "How ranks are counted: tp-dp-pp (Megatron's) or tp-pp-dp.")]
CanS2 = Annotated[bool, _flag("--s2", "The framework can move micro-batches between groups.")]
CanS3 = Annotated[bool, _flag("--s3", "The framework can change the topology.")]
Slow = Annotated[Optional[list[str]], _flag("--slow", "NODE=SPEED, or NODE~NODE=SPEED for a link; may be repeated.")]
Exclude = Annotated[Optional[list[str]], _flag("--exclude", "Node that a restart would leave out; may be repeated.")]
Idle = Annotated[Optional[int], _flag("--idle-nodes", "Idle nodes that a restart could take instead.")]
Tried = Annotated[Optional[list[str]], _flag("--tried", "Step that was tried in this incident and did not help.")]
CheckpointDir = Annotated[Text, _flag("--checkpoint-dir", "Folder of checkpoints: the age of the last complete one.")]
Steps = Annotated[Text, _flag("--steps", "Folder of rank_N.jsonl or rank_N.log: step times, healthy, now and since.")]
At = Annotated[Text, _flag("--at", "Pretend that it is then, e.g. 2026-11-29T02:00:00Z.")]


@group.callback(invoke_without_command=True)
def cost(
    context: typer.Context,
    healthy_step: HealthyStep = None,
    slow_step: SlowStep = None,
    speed: Speed = None,
    mfu: Mfu = None,
    rate: Rate = None,
    clock: Clock = None,
    frozen: Frozen = False,
    kind: Kind = "compute",
    gpus: Gpus = None,
    since: Since = None,
    price: Price = None,
    checkpoint_dump: Dump = None,
    checkpoint_every: Every = None,
    checkpoint_age: Age = None,
    checkpoint_dir: CheckpointDir = None,
    restart: Restart = None,
    micro_batches: Micro = None,
    tp: Tensor = None,
    pp: Pipeline = 1,
    dp: Data = None,
    layers: Layers = None,
    rank_order: RankOrder = "tp-dp-pp",
    s2: CanS2 = False,
    s3: CanS3 = False,
    nodes: NodesOption = None,
    slow: Slow = None,
    exclude: Exclude = None,
    idle_nodes: Idle = None,
    tried: Tried = None,
    steps: Steps = None,
    plot: PlotOption = None,
    at: At = None,
    profile: ProfileOption = None,
    output: OutputOption = Output.text,
    color: ColorOption = Color.auto,
) -> None:
    """What a slowdown costs, and which step that justifies."""
    asked = dict(locals())
    del asked["context"]
    if context.invoked_subcommand is not None:
        context.obj = asked  # nothing is read yet: `cost simulate --help` shall be as quick as any other
        return
    from triage.pricing import priced

    flags, costs, now, log = _read(asked)
    mitigation = priced(flags, costs, now)
    if plot:
        from triage.ownfiles import write_new
        from triage.render.plot import drawn, picture_of

        write_new(plot, drawn(picture_of(mitigation, log.lines if log else (), what=log.what if log else "")))
    _print(mitigation, output, color)


def _read(asked: dict[str, Any]) -> tuple[Any, Any, float, Any]:
    """The flags, the site's costs under them, now, and the step times that a folder told."""
    from triage import config

    profile = {"profile": asked["profile"]}
    config.begin(profile)
    from triage.pricing import flags_of, profile_of, with_folders

    costs, warnings = profile_of(profile)
    flags, now, log, warning = with_folders(flags_of(asked), asked["steps"], asked["checkpoint_dir"], asked["at"])
    for line in (*warnings, *([warning] if warning else ())):
        say(line)
    return flags, costs, now, log


def _print(mitigation: dict[str, Any], output: Output, color: Color) -> None:
    if output is Output.json:
        import json

        write(json.dumps(mitigation, indent=2, allow_nan=False) + "\n")
        return
    import sys

    from triage.render.color import use_color
    from triage.render.text import priced as page

    terminal = sys.stdout is not None and sys.stdout.isatty()
    write(page(mitigation, color=use_color(color.value, terminal)))


@group.command()
def simulate(
    context: typer.Context,
    incidents: Annotated[int, typer.Option("--incidents", help="How many incidents.")] = 100_000,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same incidents.")] = 1,
    mean: Annotated[str, typer.Option("--mean", help="Their mean length.")] = "72m",
    sigma: Annotated[float, typer.Option("--sigma", help="Spread of the log-normal; 0 = exponential.")] = 1.5,
    output: OutputOption = Output.text,
) -> None:
    """Replay each policy over many incidents: what it costs on average, and against hindsight."""
    from triage.cost.calculator import seconds
    from triage.cost.simulate import SETS, table
    from triage.pricing import is_told, lengths, own_setting, simulated

    flags, costs, now, _ = _read(context.obj)
    settings = (*SETS, own_setting(flags, costs, now)) if is_told(flags) else SETS
    minutes = seconds("--mean", mean) / 60.0
    rows = table(lengths(incidents, seed, minutes, sigma), settings)
    if output is Output.json:
        import json

        write(json.dumps(simulated(rows, incidents, seed, minutes, sigma), indent=2, allow_nan=False) + "\n")
        return
    from triage.render.costtable import drawn

    write(drawn(rows, incidents, seed, minutes, sigma))


def add(app: typer.Typer) -> None:
    app.add_typer(group, name="cost")
