"""The commands: parse, call, print, exit. No logic here; heavy imports live inside the command bodies."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from triage.errors import TriageError, UsageError

if TYPE_CHECKING:
    from triage.investigate import Result

# `Optional[...]` and not `... | None` in the commands: typer evaluates the hints, and this reads the same everywhere.
# ruff: noqa: UP045

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
    help="From the id of a frozen training job to the culprit, what was ruled out, and the cheapest step worth taking.",
    epilog="Exit codes: 0 healthy or busy, 10 a fault was found, 11 inconclusive, 2 usage, 3 configuration, "
    "20 job unknown, 21 scheduler silent, 22 no node reachable, 130 interrupted. See `man triage`.",
)
playbook_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="The decision trees: list, show, lint.")
app.add_typer(playbook_app, name="playbook")


class Output(str, Enum):
    text = "text"
    json = "json"


class Color(str, Enum):
    auto = "auto"
    always = "always"
    never = "never"


OutputOption = Annotated[Output, typer.Option("--output", help="Form of the answer on stdout.")]
ColorOption = Annotated[Color, typer.Option("--color", help="Colour on stdout; NO_COLOR is honoured.")]
ExplainOption = Annotated[bool, typer.Option("--explain", help="Print the walk: every question and its answer.")]
ProfileOption = Annotated[Optional[str], typer.Option("--profile", help="YAML with this site's costs and thresholds.")]
StateOption = Annotated[Optional[str], typer.Option("--state-dir", help="Folder of the saved cases.")]
InventoryOption = Annotated[Optional[str], typer.Option("--inventory", help="YAML that says which nodes a job has.")]
NodesOption = Annotated[Optional[str], typer.Option("--nodes", help="The job's nodes, e.g. 'gpu[001-128]'.")]
# Texts and not `Path`: typer touches those by itself, and on dead storage that never returns.
PlaybookOption = Annotated[Optional[list[str]], typer.Option("--playbook", help="A playbook instead of the saved one.")]
FilesArgument = Annotated[Optional[list[str]], typer.Argument(help="Playbook files; none = those that ship.")]


@app.callback()
def triage(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    # __main__ answers a bare --version before this is even imported; here it is for --help, and for other places.
    if version:
        from triage import __version__

        print(f"triage {__version__}")
        raise typer.Exit


@app.command("frozen-job")
def frozen_job(
    jobid: Annotated[str, typer.Argument(help="The job's id, as the scheduler or the inventory knows it.")],
    inventory: InventoryOption = None,
    nodes: NodesOption = None,
    profile: ProfileOption = None,
    transport: Annotated[Optional[str], typer.Option("--transport", help="How to reach nodes: ssh or local.")] = None,
    user: Annotated[Optional[str], typer.Option("--user", help="User name on the nodes.")] = None,
    key: Annotated[Optional[str], typer.Option("--key", help="Private key file.")] = None,
    known_hosts: Annotated[Optional[str], typer.Option("--known-hosts", help="known_hosts file.")] = None,
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
    output: OutputOption = Output.text,
    color: ColorOption = Color.auto,
    explain: ExplainOption = False,
) -> None:
    """Find the culprit of a frozen or slow job: read-only, over SSH, within a minute."""
    from triage import config

    flags = {"inventory": inventory, "profile": profile, "transport": transport, "user": user, "key": key,
             "known_hosts": known_hosts, "state_dir": state_dir}  # fmt: skip
    config.begin(flags)
    from triage import investigate
    from triage.inputs import find_job, options

    found = find_job(jobid, nodes, flags, warn=say)
    chosen = options(
        "frozen-job", found, poke=not no_poke, run_s=timeout or None, looks=looks, carry=carry_py_spy, say=say
    )
    _answer(investigate.live(found.job, chosen), output, color, explain)


@app.command("explain")
def explain_command(
    folder: Annotated[
        str, typer.Argument(help="Folder with the flight-recorder dumps or logs that somebody collected.")
    ],
    profile: ProfileOption = None,
    state_dir: StateOption = None,
    output: OutputOption = Output.text,
    color: ColorOption = Color.auto,
    explain: ExplainOption = False,
) -> None:
    """Find the culprit from a folder of flight-recorder dumps and logs; no cluster needed."""
    from triage import config

    flags = {"profile": profile, "state_dir": state_dir}
    config.begin(flags, os.environ, folder)
    from triage import investigate
    from triage.inputs import dumps, options_for_files

    job, samples, observed, warnings = dumps(folder)
    chosen = options_for_files("explain", flags, warnings, say)
    _answer(investigate.explain(job, samples, observed, chosen), output, color, explain)


@app.command("replay")
def replay(
    case: Annotated[str, typer.Argument(help="A case folder, a case id, or the beginning of one.")],
    playbook: PlaybookOption = None,
    until: Annotated[Optional[str], typer.Option("--until", help="Stop the walk after this question.")] = None,
    state_dir: StateOption = None,
    output: OutputOption = Output.text,
    color: ColorOption = Color.auto,
    explain: ExplainOption = False,
) -> None:
    """Conclude again from a saved case: the same report, byte for byte, with the same playbook."""
    from triage import config

    flags = {"state_dir": state_dir}
    config.begin(flags, os.environ, os.path.join(case, "case.json"))
    from triage import case as cases
    from triage import investigate
    from triage.inputs import paths, replacements

    settings = config.load(flags)
    for line in settings.warnings:
        say(line)
    folder = cases.find(settings.value("state_dir"), case)
    for name in cases.damaged(folder)[:5]:
        say(
            f"{folder.name}: {name} does not match SHA256SUMS; it was changed after the run, or the run was interrupted"
        )
    content = cases.read(folder)
    if content.skipped:
        say(f"{folder.name}: {content.skipped} lines of samples.jsonl are no samples and were skipped")
    say(f"replay of {folder.name}: times are of then, nothing is asked of any node")
    result = investigate.replay(content, playbooks=replacements(paths(playbook), content.playbooks), until=until)
    asked = {name for step in result.report.walk for name in (step.question, f"{step.playbook}:{step.question}")}
    if until and until not in asked:
        say(f"the walk ended before it came to {until}: this is its whole conclusion")
    _answer(result, output, color, explain)


@app.command("drill")
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
    backend: Annotated[str, typer.Option("--backend", help="What the fake nodes are made of.")] = "processes",
    engine: Annotated[str, typer.Option("--engine", help="What the job is made of: ring or torch.")] = "ring",
    truth: Annotated[Optional[str], typer.Option("--truth", help="Write what really happened to this file.")] = None,
    state_dir: StateOption = None,
    output: OutputOption = Output.text,
    color: ColorOption = Color.auto,
    explain: ExplainOption = False,
    list_: Annotated[bool, typer.Option("--list", help="List scenarios and faults with what triage must say.")] = False,
) -> None:
    """Break a real training job on an embedded cluster, and run frozen-job against it."""
    from dataclasses import replace

    from triage.drill import run as drills
    from triage.drill.table import table

    if list_:
        _write(table() + "\n")
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
        result = investigate.live(found.job, replace(chosen, again=""))
        _print(result, output, color, explain)
        return result.report.exit_code

    wanted = drills.DrillOptions(
        scenario=scenario, fault=fault, nodes=nodes, ranks_per_node=ranks_per_node, speed=speed,
        after_s=seconds(after), seed=seed, hold=hold, blind=tuple(blind or ()), backend=backend, engine=engine,
        truth=Path(truth) if truth else None,
    )  # fmt: skip
    raise typer.Exit(drills.run_drill(wanted, diagnose))


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of the report."""
    import json

    from triage.schema import schema as make

    _write(json.dumps(make(), indent=2) + "\n")


@playbook_app.command("list")
def playbook_list() -> None:
    """The playbooks that ship, with their questions and verdicts."""
    from triage.inputs import playbook_lines

    _write("".join(f"{line}\n" for line in playbook_lines()))


@playbook_app.command("show")
def playbook_show(
    name: Annotated[str, typer.Argument(help="Name of a playbook that ships, or a file.")] = "frozen-job",
) -> None:
    """Draw a playbook as a tree of questions."""
    from triage.inputs import playbook_drawing

    _write(playbook_drawing(name))


@playbook_app.command("lint")
def playbook_lint(files: FilesArgument = None) -> None:
    """Check playbooks: every name, type, arm and verdict."""
    from triage.inputs import paths, playbook_check

    _write("".join(f"{line}\n" for line in playbook_check(paths(files))))


def say(line: str) -> None:
    """Progress and warnings: stderr only, one line each."""
    from triage.render.clean import clean

    if sys.stderr is None:  # closed by the caller; print() would then write to stdout
        return
    with contextlib.suppress(OSError):  # nobody may be there to read it, or the disk behind it is full
        sys.stderr.write(f"triage: {clean(line, 800)}\n")  # in one piece: Ctrl-C shall not come between
        sys.stderr.flush()


def _write(text: str) -> None:
    """The answer, to whoever still reads it: `| head`, a closed stdout or a full disk do not change the exit code."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.EPIPE:
            say(f"the answer could not be written: {error.strerror}; it is in the case")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter complains once more when it ends


def _answer(result: Result, output: Output, color: Color, explain: bool) -> None:
    _print(result, output, color, explain)
    raise typer.Exit(result.report.exit_code)


def _print(result: Result, output: Output, color: Color, explain: bool) -> None:
    from triage.inputs import use_color
    from triage.render import get

    if output is Output.json:
        text = get("json")(result.report)
    else:
        terminal = sys.stdout is not None and sys.stdout.isatty()
        text = get("text")(result.report, color=use_color(color.value, terminal), explain=explain)
    _write(text)
    if result.folder:
        say(f"case {result.folder}")


INTERRUPTED = "interrupted"


def run(argv: list[str]) -> int:
    """The whole program: the exit code. Errors are one line on stderr; with --output json also one document on stdout."""
    try:
        code: Any = app(argv, standalone_mode=False, prog_name="triage")
        if code == 130:  # typer turns Ctrl-C into this
            return _fail(INTERRUPTED, 130, argv)
        return code if isinstance(code, int) else 0
    except TriageError as error:
        return _fail(str(error), error.code, argv)
    except KeyboardInterrupt:
        return _fail(INTERRUPTED, 130, argv)
    except Exception as error:
        return _unexpected(error, argv)


def _unexpected(error: Exception, argv: list[str]) -> int:
    # typer vendors click from 0.26 on and imports the real one before: its usage errors are known by their shape.
    show: Callable[[], str] | None = getattr(error, "format_message", None)
    if type(error).__name__ == "NoArgsIsHelpError" and show is not None:
        print(show(), file=sys.stderr)
        return 2
    if show is not None:
        code = getattr(error, "exit_code", 2)
        path = getattr(getattr(error, "ctx", None), "command_path", "triage")
        return _fail(f"{show()} (see {path} --help)", code if isinstance(code, int) else 2, argv)
    if type(error).__name__ == "Abort":
        return _fail(INTERRUPTED, 130, argv)
    import traceback

    if os.environ.get("TRIAGE_DEBUG"):
        traceback.print_exc()
    where = traceback.extract_tb(error.__traceback__)[-1]
    return _fail(
        f"this is a bug of triage: {type(error).__name__}: {error} ({where.name}, line {where.lineno}). "
        "Please report it with the case; TRIAGE_DEBUG=1 prints more",
        1,
        argv,
    )


def _fail(message: str, code: int, argv: list[str]) -> int:
    for line in message.splitlines() or [""]:
        say(line)
    if _wants_json(argv):
        import json

        _write(json.dumps({"schema_version": "triage.error/1", "exit_code": code, "error": message}) + "\n")
    return code


def _wants_json(argv: list[str]) -> bool:
    return "--output=json" in argv or ["--output", "json"] in [argv[i : i + 2] for i in range(len(argv))]
