"""`triage replay CASE`: conclude again from a saved case."""

from __future__ import annotations

import os
from typing import Annotated, Optional

import typer

from triage.commands.flags import (
    Color,
    ColorOption,
    ExplainOption,
    Form,
    FormOption,
    PlaybookOption,
    PlotOption,
    StateOption,
)
from triage.commands.saying import answer, say

# ruff: noqa: UP045


def replay(
    case: Annotated[str, typer.Argument(help="A case folder, a case id, or the beginning of one.")],
    playbook: PlaybookOption = None,
    until: Annotated[Optional[str], typer.Option("--until", help="Stop the walk after this question.")] = None,
    state_dir: StateOption = None,
    output: FormOption = Form.text,
    color: ColorOption = Color.auto,
    explain: ExplainOption = False,
    plot: PlotOption = None,
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
    answer(result, output, color, explain, plot)


def add(app: typer.Typer) -> None:
    app.command("replay")(replay)
