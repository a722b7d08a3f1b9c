"""The house: rooms import one way, pure rooms reach for nothing outside, and the top level holds what it should."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PURE = ("readers", "facts", "tree", "cost")
PURE_FILES = (
    "asking.py",
    "billing.py",
    "conclude.py",
    "narrate.py",
    "model.py",
    "errors.py",
    "schema.py",
    "memory.py",
    "recalled.py",
    "unread.py",
)
OUTSIDE = {"socket", "subprocess", "paramiko", "rich", "time", "threading", "asyncio", "requests", "random", "os"}
# A room may import those below it (DESIGN section 3).
ORDER = {
    "model": 0, "errors": 0, "ownfiles": 1, "scribe": 2, "memory": 1, "incidents": 4, "ledger": 5, "probes": 1, "playbooks": 1, "readers": 2, "facts": 3, "schedulers": 3,
    "transports": 3, "tree": 4, "cost": 4, "case": 4, "carry": 4, "ownlog": 4, "gather": 5, "asking": 5, "forward": 5, "unread": 5, "schema": 5, "narrate": 5, "billing": 5, "recalled": 5, "conclude": 6,
    "render": 6, "investigate": 7, "config": 7, "lastseen": 7, "drill": 7, "resolve": 8, "watch": 8, "handover": 8, "checkup": 8, "inputs": 9, "picture": 10, "pricing": 11, "commands": 12, "cli": 13, "__main__": 14,
}  # fmt: skip


def modules(folder: Path):
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(path: Path) -> str:
    return path.relative_to(ROOT / "triage").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", [p for name in PURE for p in modules(ROOT / "triage" / name)], ids=str)
def test_pure_rooms_reach_for_nothing_outside(path):
    reached = {name.split(".")[0] for name in imports(path)} & OUTSIDE
    assert not reached, f"{path.name} imports {reached}"


@pytest.mark.parametrize("name", PURE_FILES)
def test_pure_files_reach_for_nothing_outside(name):
    assert not {n.split(".")[0] for n in imports(ROOT / "triage" / name)} & OUTSIDE


@pytest.mark.parametrize("path", modules(ROOT / "triage"), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_one_way(path):
    here = room(path)
    if here == "__init__":
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "triage" or len(parts) < 2 or parts[1] not in ORDER or parts[1] == here:
            continue
        assert ORDER[parts[1]] < ORDER[here], f"{here} imports {name}, which stands above it or beside it"


@pytest.mark.parametrize("path", modules(ROOT / "probes"), ids=lambda p: p.name)
def test_probes_import_nothing_of_triage(path):
    assert not [name for name in imports(path) if name.split(".")[0] == "triage"]


def test_nobody_imports_click():
    # typer vendors it from 0.26 on and depends on it before: neither may be relied on.
    for path in modules(ROOT / "triage"):
        assert "click" not in {name.split(".")[0] for name in imports(path)}, path


HELPS = [
    [],
    ["frozen-job"],
    ["doctor"],
    ["slow-job"],
    ["watch"],
    ["handover"],
    ["explain"],
    ["replay"],
    ["drill"],
    ["schema"],
    ["playbook"],
    ["playbook", "show"],
    ["cost"],
    ["cost", "simulate"],
]


@pytest.mark.parametrize("command", HELPS, ids=" ".join)
def test_help_loads_nothing_heavy(command):
    code = (
        "import sys; from triage.cli import run; run(sys.argv[1:]); "
        "heavy = {'paramiko', 'rich', 'yaml', 'pynvml', 'asyncio', 'pydantic', 'cryptography', 'importlib.metadata'}; "
        "sys.exit(','.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage: triage" in done.stdout


def test_version_is_told_without_any_import():
    code = (
        "import sys; sys.argv = ['triage', '--version']; from triage.__main__ import main; main(); "
        "sys.exit('typer' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("triage ")


def test_the_top_level_holds_what_it_should():
    wanted = {"pyproject.toml", "README.md", "triage", "playbooks", "probes", "tests", "man"}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout: nothing tells which files belong to the project")
    found = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert {name for name in found if not name.startswith(".")} == wanted


def test_no_two_test_files_share_a_name():
    """pytest imports each by its bare name: two of one name stop the whole suite, not each room alone."""
    names = [path.name for path in modules(ROOT / "tests") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))


def test_every_finding_and_every_hint_is_about_a_fact_that_exists():
    from triage.facts import registry
    from triage.narrate import FINDINGS, LEARN

    known = registry.catalogue()
    assert not [name for name in (*(f[0] for f in FINDINGS), *LEARN) if name not in known]
    assert not [name for name, _, _ in FINDINGS if not known[name].parts]
