"""Every option, exit code and variable stands in the manual, and the manual is well-formed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer.main

from triage import errors
from triage.cli import app
from triage.config import SETTINGS

MAN = Path(__file__).parents[1] / "man"
COMMANDS = typer.main.get_command(app).commands
PAGES = sorted(MAN.glob("*.[1357]"))


def text(name: str) -> str:
    """A page as a reader sees its words: escapes and fonts gone."""
    raw = (MAN / name).read_text()
    return re.sub(r"\\f.|\\(?=-)", "", raw).replace("\\(dq", '"')


def options(command):
    found = [name for param in command.params for name in (*param.opts, *param.secondary_opts) if name.startswith("--")]
    return found + [name for inner in getattr(command, "commands", {}).values() for name in options(inner)]


@pytest.mark.parametrize("name", ["frozen-job", "slow-job", "watch", "handover", "explain", "replay", "drill", "cost"])
def test_every_option_of_a_command_is_on_its_page(name):
    page = text(f"triage-{name}.1")
    missing = [option for option in options(COMMANDS[name]) if option not in page]
    assert not missing


def test_every_command_is_on_the_first_page():
    page = text("triage.1")
    for name, command in COMMANDS.items():
        for sub in getattr(command, "commands", {"": None}):
            assert f"{name} {sub}".strip() in page, f"{name} {sub}"


def codes():
    found = {0, 10, 11, 130}
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.TriageError):
            found.add(value.code)
    return found


@pytest.mark.parametrize(
    "name", ["triage.1", "triage-frozen-job.1", "triage-replay.1", "triage-drill.1", "triage-explain.1"]
)
def test_every_exit_code_is_on_the_page(name):
    page = text(name)
    section = page[page.index("EXIT STATUS") :]
    missing = [code for code in sorted(codes()) if not re.search(rf"\b{code}\b", section)]
    assert not missing


def test_every_environment_variable_is_on_the_first_page():
    page = text("triage.1")
    assert not [name for name in SETTINGS if f"TRIAGE_{name.upper()}" not in page]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_pages_are_well_formed(path):
    if not shutil.which("mandoc"):
        pytest.skip("mandoc is not installed (Debian: mandoc)")
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", str(path)], capture_output=True, text=True)
    # An empty date is meant: a page is as old as its file.
    problems = [line for line in done.stdout.splitlines() if "missing date" not in line]
    assert not problems


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_pages_that_are_named_exist(path):
    for name, section in re.findall(r"^\.BR (triage[a-z\\-]*) \((\d)\)", path.read_text(), re.MULTILINE):
        plain = name.replace("\\", "")
        assert (MAN / f"{plain}.{section}").exists(), f"{path.name} names {plain}({section})"


def test_every_leaf_that_is_no_shrug_is_on_the_page_of_the_verdicts():
    from triage.conclude import load_playbooks
    from triage.investigate import probe_names, shipped_playbooks

    texts = {name: body for name, body in shipped_playbooks().items() if name != "costs"}
    books = load_playbooks(texts, probe_names())
    leaves = {leaf for book in books.values() for leaf in book.verdicts if not leaf.startswith("inconclusive/")}
    page = text("triage-verdicts.7")
    assert not [leaf for leaf in sorted(leaves) if leaf not in page]


def test_every_name_of_the_recorder_and_of_its_records_is_on_its_page():
    from triage.probes.steps import NUMBERS

    from triage import steplog

    page = text("triage-steplog.3")
    calls = [name for name in vars(steplog.StepLog) if not name.startswith("_")]
    assert len(calls) >= 6 and not [name for name in calls if f"{name}(" not in page]
    assert not [
        name for name in ("step", "rank", *NUMBERS) if not re.search(rf"^\.\w+ .*\b{name}\b", page, re.MULTILINE)
    ]
