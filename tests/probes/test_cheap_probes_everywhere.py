"""All probes that need nothing of a GPU run under every Python from 3.6 on that is here."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHEAP = ("reach", "ranks", "kernel", "nic", "joblog", "steps")
ASKED = ("activity", "peers")  # on some ranks, about some nodes


def interpreters() -> dict[str, str]:
    """version -> path: this one, pyenv's, and those on the PATH; one of each minor version, 3.6 or newer."""
    found = {".".join(map(str, sys.version_info[:2])): sys.executable}
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for path in sorted(home.glob("3.*/bin/python3")):
        found.setdefault(".".join(path.parts[-3].split(".")[:2]), str(path))
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        for path in Path(folder).glob("python3.*") if folder else []:
            if re.fullmatch(r"python3\.\d+", path.name) and os.access(path, os.X_OK) and "shims" not in path.parts:
                found.setdefault(path.name[6:], str(path))
    return {v: p for v, p in found.items() if int(v.split(".")[1]) >= 6}


INTERPRETERS = interpreters()


@pytest.mark.parametrize("version", sorted(INTERPRETERS, key=lambda v: int(v.split(".")[1])))
def test_every_cheap_probe_runs_alone_and_answers_with_one_envelope(version, tmp_path) -> None:
    log = tmp_path / "job.log"
    log.write_bytes((ROOT / "tests/captures/job_megatron_dead_rank.log").read_bytes())
    kernel_log = tmp_path / "var" / "log" / "kern.log"
    kernel_log.parent.mkdir(parents=True)
    kernel_log.write_bytes((ROOT / "tests/captures/kern_syslog.log").read_bytes())
    (tmp_path / "tmp" / "step_times").mkdir(parents=True)
    (tmp_path / "tmp" / "step_times" / "rank_0.log").write_text("503.9\n")
    # All signatures must compile in the regex engine of that Python, too.
    from triage.readers.signatures import for_probe

    args = {
        "joblog": {"path": "/job.log", "signatures": for_probe("joblog")},
        "kernel": {"signatures": for_probe("kernel")},
        "activity": {"ranks": [{"rank": 3, "pid": os.getpid()}], "window_s": 0.1},
        "peers": {
            "targets": [{"node": "n2", "management": ["localhost:1"], "fabric": ["127.0.0.1:1"]}],
            "timeout_s": 1,
        },
    }
    for name in CHEAP + ASKED:
        argv = [INTERPRETERS[version], str(ROOT / "probes" / f"{name}.py"), "--rootfs", str(tmp_path)]
        argv += ["--args", json.dumps(args.get(name, {}))]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        (line,) = done.stdout.strip().splitlines()
        envelope = json.loads(line)
        assert envelope["probe"] == name and envelope["status"] == "ok", (name, envelope["notes"])
        if name == "joblog":
            assert len(envelope["data"]["hits"]) == 7 and envelope["data"]["iterations"]["series"][-1][0] == 12
        if name == "kernel":
            assert len(envelope["data"]["events"]) == 5
        if name == "activity":
            assert [row["rank"] for row in envelope["data"]["ranks"]] == [3], envelope["data"]["unseen"]
        if name == "peers":
            (told,) = envelope["data"]["targets"]
            assert [told[side][0]["result"] for side in ("management", "fabric")] == ["refused", "refused"]


@pytest.mark.parametrize("name", CHEAP + ASKED)
def test_a_probe_says_what_it_answers_and_what_fools_it(name) -> None:
    tree = ast.parse((ROOT / "probes" / f"{name}.py").read_text("utf-8"))
    text = ast.get_docstring(tree) or ""
    assert text.splitlines()[0].endswith("?") and "Reads " in text and "Fooled by " in text
    literal = next(n.value for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "PROBE")  # type: ignore[attr-defined]
    probe = ast.literal_eval(literal)
    assert probe["name"] == name and probe["cost"] in ("cheap", "slow", "intrusive") and probe["fields"]


@pytest.mark.parametrize("name", CHEAP + ASKED)
def test_every_field_of_a_probe_stands_in_the_manual(name) -> None:
    import importlib

    page = (ROOT / "man" / "triage-probes.7").read_text("utf-8").replace("\\-", "-").replace("\\_", "_")
    for field in importlib.import_module(f"triage.probes.{name}").PROBE["fields"]:
        assert re.search(rf"\b{field}\b", page), f"{name}: {field} is not on the page"
