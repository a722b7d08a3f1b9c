"""What a command says: progress and warnings on stderr, the answer on stdout."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import TYPE_CHECKING

import typer

from triage.commands.flags import Color, Form

if TYPE_CHECKING:
    from triage.investigate import Result


FIRST_WORDS_S = 3.5  # DESIGN section 5 wants words within 5 s; what is asked of our own files has 2 s each


def patience() -> None:
    """Nothing was said yet, and what comes first touches this machine's own files: on stuck storage say so before long.

    By a timer of the process and not a thread: those files are touched by forked children, which inherit neither.
    """
    import signal

    def still_waiting(number: int, frame: object) -> None:
        say(
            "this machine's own files (keys, agent, configuration, state folder) have not answered yet: waiting for them"
        )

    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGALRM, still_waiting)
        signal.setitimer(signal.ITIMER_REAL, FIRST_WORDS_S)


def begin(**flags: str | None) -> dict[str, str | None]:
    """What a command that asks nodes does first: its own files are touched in the background. The flags, by their settings."""
    from triage import config

    patience()
    config.begin(flags)
    return flags


def say(line: str) -> None:
    """Progress and warnings: stderr only, one line each."""
    import signal

    from triage.render.clean import clean

    signal.setitimer(signal.ITIMER_REAL, 0)
    if sys.stderr is None:  # closed by the caller; print() would then write to stdout
        return
    with contextlib.suppress(OSError):  # nobody may be there to read it, or the disk behind it is full
        sys.stderr.write(f"triage: {clean(line, 800)}\n")  # in one piece: Ctrl-C shall not come between
        sys.stderr.flush()


def write(text: str) -> None:
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


def answer(result: Result, output: Form, color: Color, explain: bool, plot: str | None = None) -> None:
    show(result, output, color, explain)
    if plot:
        from triage import ownfiles, picture

        ownfiles.write_new(plot, picture.of_result(result))
    raise typer.Exit(result.report.exit_code)


def show(result: Result, output: Form, color: Color, explain: bool) -> None:
    from triage.render import render
    from triage.render.color import use_color

    terminal = sys.stdout is not None and sys.stdout.isatty()
    write(render(output.value, result.report, color=use_color(color.value, terminal), explain=explain))
    if result.folder:
        say(f"case {result.folder}")
