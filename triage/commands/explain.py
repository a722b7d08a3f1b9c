"""`triage explain FOLDER`: the same from evidence that somebody collected."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from triage.commands.flags import Color, ColorOption, ExplainOption, Form, FormOption, ProfileOption, StateOption
from triage.commands.saying import answer, say


def explain_files(
    folder: Annotated[
        str, typer.Argument(help="Folder with the flight-recorder dumps or logs that somebody collected.")
    ],
    profile: ProfileOption = None,
    state_dir: StateOption = None,
    output: FormOption = Form.text,
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
    answer(investigate.explain(job, samples, observed, chosen), output, color, explain)


def add(app: typer.Typer) -> None:
    app.command("explain")(explain_files)
