"""The program: its commands (triage/commands/, one file each), its exit codes, and what it says when something fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer

from triage.commands.saying import say, write
from triage.errors import TriageError

# The files of triage/commands/, in the order of `--help`.
COMMANDS = (
    "frozen_job",
    "slow_job",
    "watch",
    "handover",
    "doctor",
    "explain",
    "replay",
    "drill",
    "cost",
    "schema",
    "playbook",
)

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
    help="From the id of a frozen training job to the culprit, what was ruled out, and the cheapest step worth taking.",
    epilog="Exit codes: 0 healthy or busy, 10 a fault was found, 11 inconclusive, 2 usage, 3 configuration, "
    "20 job unknown, 21 scheduler silent, 22 no node reachable, 130 interrupted. See `man triage`.",
)


@app.callback()
def triage(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    # __main__ answers a bare --version before this is even imported; here it is for --help, and for other places.
    if version:
        from triage import __version__

        print(f"triage {__version__}")
        raise typer.Exit


for _name in COMMANDS:
    import_module(f"triage.commands.{_name}").add(app)

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

        write(json.dumps({"schema_version": "triage.error/1", "exit_code": code, "error": message}) + "\n")
    return code


def _wants_json(argv: list[str]) -> bool:
    return "--output=json" in argv or ["--output", "json"] in [argv[i : i + 2] for i in range(len(argv))]
