"""What a person or a script gets: one document, the right exit code, one line for each mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def triage(*words, env=None, cwd=None):
    import os

    return subprocess.run(
        [sys.executable, "-m", "triage", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        timeout=120,
    )


@pytest.fixture
def inventory(tmp_path):
    path = tmp_path / "inventory.yaml"
    path.write_text('jobs:\n  "4711": {nodes: "n[1-2]"}\nhosts:\n  "n[1-2]": {address: 127.0.0.1, port: 1}\n')
    return path


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["frozen-job", "1"], 2, "nothing tells its nodes"),
        (["frozen-job", "1", "--nodes", "n[3-1]"], 2, "runs backwards"),
        (["frozen-job", "1", "--inventory", "/nowhere/x.yaml"], 3, "/nowhere/x.yaml: No such file"),
        (["frozen-job", "1", "--nodes", "n1", "--transport", "carrier-pigeon"], 2, "no transport is called"),
        (["frozen-job", "1", "--nodes", "n1", "--timeout", "0.5"], 2, "between 2 and 3600"),
        (["frozen-job", "1", "--nodes", "n1", "--profile", "/nowhere"], 3, "profile /nowhere"),
        (["frozen-job", "1", "--nodes", "n1", "--looks", "0"], 2, "Invalid value for '--looks': 0"),
        (["frozen-job", "1", "--nodes", "n1", "--looks", "3"], 2, "Invalid value for '--looks': 3"),
        (["frozen-job", "1", "--nodes", "n1", "--looks", "x"], 2, "Invalid value for '--looks': 'x'"),
        (["frozen-job"], 2, "Missing argument"),
        (["frozen-job", "1", "--nods", "n1"], 2, "No such option"),
        (["frozen-jb"], 2, "No such command"),
        (["explain", "/nowhere"], 2, "no such folder"),
        (["replay", "nothing"], 2, "no case nothing"),
        (["drill", "deadrank"], 2, "did you mean dead-rank"),
        (["drill", "dead-rank", "--after", "soon"], 2, "not a duration"),
        (["drill"], 2, "--list"),
        (["playbook", "show", "frozen-jb"], 2, 'did you mean "frozen-job"'),
        (["playbook", "lint", "/nowhere.yaml"], 3, "/nowhere.yaml"),
    ],
)
def test_every_mistake_is_told_in_one_line_with_its_exit_code(words, code, says, tmp_path):
    done = triage(*words, env={"TRIAGE_STATE_DIR": str(tmp_path)})
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_an_unknown_job_names_the_nearest_one_and_is_20(inventory):
    done = triage("frozen-job", "471", "--inventory", inventory)
    assert done.returncode == 20 and "did you mean 4711" in done.stderr


def test_a_broken_inventory_is_3(tmp_path):
    (tmp_path / "i.yaml").write_text("jobs: {a: {nodes: n1}")
    done = triage("frozen-job", "a", "--inventory", tmp_path / "i.yaml")
    assert done.returncode == 3 and "line 2, not YAML" in done.stderr


def test_errors_too_are_one_json_document_when_json_was_asked(inventory):
    done = triage("frozen-job", "9", "--inventory", inventory, "--output", "json")
    assert json.loads(done.stdout) == {
        "schema_version": "triage.error/1", "exit_code": 20, "error": done.stderr.removeprefix("triage: ").strip(),
    }  # fmt: skip


def test_no_node_reachable_is_22_and_still_a_whole_report(inventory, tmp_path):
    import jsonschema

    from triage.schema import schema

    (tmp_path / "known").write_text("")
    key = tmp_path / "key"
    subprocess.run([sys.executable, "-c", KEY, str(key)], check=True)
    done = triage(
        "frozen-job", "4711", "--inventory", inventory, "--key", key, "--known-hosts", tmp_path / "known",
        "--output", "json", env={"TRIAGE_STATE_DIR": str(tmp_path / "state")},
    )  # fmt: skip
    assert done.returncode == 22, done.stderr
    report = json.loads(done.stdout)
    jsonschema.validate(report, schema())
    assert report["verdict"]["id"] == "inconclusive" and report["culprits"] == []
    assert report["exit_code"] == 22
    assert [f["class"] for f in report["findings"]].count("node") == 1


KEY = """
import os, sys
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
raw = Ed25519PrivateKey.generate().private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption())
os.fdopen(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600), "wb").write(raw)
"""


def test_no_file_of_the_current_folder_is_read(tmp_path):
    (tmp_path / "config.yaml").write_text("inventory: /evil.yaml\n")
    (tmp_path / "triage.yaml").write_text("inventory: /evil.yaml\n")
    done = triage("frozen-job", "1", cwd=tmp_path, env={"XDG_CONFIG_HOME": str(tmp_path / "none")})
    assert "evil" not in done.stderr and done.returncode == 2


def test_a_flag_wins_over_the_environment_and_that_over_the_users_file(tmp_path):
    from triage import config

    folder = tmp_path / "triage"
    folder.mkdir()
    (folder / "config.yaml").write_text("inventory: from-file\nuser: from-file\nkey: from-file\n")
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "TRIAGE_INVENTORY": "from-env", "TRIAGE_USER": "from-env"}
    found = config.load({"inventory": "from-flag"}, environ)
    assert (found.value("inventory"), found.origin("inventory")) == ("from-flag", "--inventory")
    assert (found.value("user"), found.origin("user")) == ("from-env", "TRIAGE_USER")
    assert found.value("key") == "from-file" and found.origin("key").endswith("config.yaml")
    assert (found.value("transport"), found.origin("transport")) == ("ssh", "built-in")


def test_a_wrong_setting_is_told_with_the_nearest_name(tmp_path):
    (tmp_path / "triage").mkdir()
    (tmp_path / "triage" / "config.yaml").write_text("inventry: x\n")
    done = triage("frozen-job", "1", env={"XDG_CONFIG_HOME": str(tmp_path)})
    assert done.returncode == 3 and "did you mean inventory" in done.stderr


def test_the_playbooks_that_ship_have_no_problem_and_can_be_drawn():
    listed = triage("playbook", "list")
    assert listed.returncode == 0 and "frozen-job" in listed.stdout
    assert triage("playbook", "lint").returncode == 0
    drawn = triage("playbook", "show", "frozen-job")
    assert drawn.returncode == 0
    assert max(map(len, drawn.stdout.splitlines())) <= 80


def test_a_site_playbook_with_mistakes_gets_all_of_them_one_a_line(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("playbook: mine\nversion: 1\nstart: a\nquestions:\n  a: {ask: x, when: ranks.ded > 0, yes: b}\n")
    done = triage("playbook", "lint", path)
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) > 2
    assert 'no fact "ranks.ded"' in done.stderr


def test_the_schema_is_valid_json_schema():
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(json.loads(triage("schema").stdout))


def test_colour_is_never_written_to_a_pipe_and_no_color_is_kept():
    from triage.inputs import use_color

    assert use_color("auto", True, {"TERM": "xterm"})
    assert not use_color("auto", True, {"TERM": "xterm", "NO_COLOR": "1"})
    assert not use_color("auto", False, {"TERM": "xterm"})
    assert not use_color("auto", True, {"TERM": "dumb"})
    assert use_color("always", False, {"NO_COLOR": "1"})


@pytest.mark.parametrize("redirect", ["| head -c 0", "> /dev/full", ">&-", "2>&-", "2>/dev/full"])
def test_streams_that_are_closed_or_full_change_no_exit_code_and_trace_nothing(redirect, tmp_path):
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m triage playbook show {redirect}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stdout + done.stderr
    assert "triage:" not in done.stdout


def test_an_error_asked_as_json_on_a_full_disk_is_no_traceback():
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m triage frozen-job 1 --output json > /dev/full"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_stripped_docstrings_break_nothing():
    done = subprocess.run([sys.executable, "-OO", "-m", "triage", "playbook", "lint"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_fact_says_what_it_means():
    from triage.facts import registry

    assert not [name for name, spec in registry.catalogue().items() if spec.says in ("", name)]


def test_a_log_that_moves_while_no_node_answers_is_healthy_with_a_finding(tmp_path):
    import threading
    import time

    log = tmp_path / "job.log"
    stop = threading.Event()

    def train():
        for step in range(1, 4000):
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
            with log.open("a") as file:
                file.write(f" [{stamp}.000] iteration {step:8d}/   90000 | elapsed time per iteration (ms): 100.0 |\n")
            if stop.wait(0.1):
                return

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    time.sleep(2.0)
    (tmp_path / "i.yaml").write_text(
        f'jobs:\n  "7": {{nodes: "n[1-2]", log: {log}}}\nhosts:\n  "n[1-2]": {{address: 127.0.0.1, port: 1}}\n'
    )
    (tmp_path / "known").write_text("")
    key = tmp_path / "key"
    subprocess.run([sys.executable, "-c", KEY, str(key)], check=True)
    done = triage(
        "frozen-job", "7", "--inventory", tmp_path / "i.yaml", "--key", key, "--known-hosts", tmp_path / "known",
        "--output", "json", env={"TRIAGE_STATE_DIR": str(tmp_path / "state")},
    )  # fmt: skip
    stop.set()
    thread.join()
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert report["verdict"]["cause"] == "healthy/unreachable"
    assert [f["part"] for f in report["findings"] if f["class"] == "node"] == ["n1, n2"]


def test_one_look_is_one_in_the_report_the_case_and_its_replay_and_is_repeated_by_the_line_that_looks_again(tmp_path):
    # This very machine, and a job that has no process on it.
    path = tmp_path / "i.yaml"
    path.write_text('jobs:\n  "7": {nodes: n1, match: {SLURM_JOB_ID: "of nobody"}}\n')
    state = {"TRIAGE_STATE_DIR": str(tmp_path / "state")}
    words = ["frozen-job", "7", "--inventory", path, "--transport", "local", "--output", "json"]
    done = triage(*words, "--looks", "1", env=state)
    report = json.loads(done.stdout)
    assert done.returncode == report["exit_code"], done.stderr
    assert "second look" not in done.stderr and "window" not in report["took_s"]
    again = [command["run"] for command in report["commands"] if command["run"].startswith("triage frozen-job")]
    assert again == [f"triage frozen-job 7 --inventory {path} --transport local --looks 1"]
    assert any("one look only" in finding["text"] for finding in report["findings"])
    (case,) = (tmp_path / "state" / "cases").iterdir()
    assert json.loads((case / "case.json").read_text())["looks"] == 1
    assert json.loads((case / "facts.json").read_text())["seen.looks"]["value"] == 1
    assert json.loads(triage("replay", case, "--output", "json", env=state).stdout) == report


@pytest.mark.parametrize(("told", "kept"), [(1, 1), (2, 2), (0, 2), (3, 2), (True, 2), ("1", 2), (None, 2)])
def test_a_case_of_somebody_else_had_one_look_or_two(told, kept, tmp_path):
    import shutil
    from pathlib import Path

    from triage import case as cases

    shutil.copytree(Path(__file__).parent / "captures" / "cases" / "dead-rank", tmp_path / "case")
    head = json.loads((tmp_path / "case" / "case.json").read_text())
    (tmp_path / "case" / "case.json").write_text(json.dumps({**head, "looks": told}))
    assert cases.read(tmp_path / "case").looks == kept


def test_a_replay_draws_the_steps_of_its_ranks(tmp_path):
    from pathlib import Path
    from xml.etree import ElementTree

    case, svg = Path(__file__).parent / "captures" / "cases" / "dead-rank", tmp_path / "a.svg"
    assert triage("replay", case, "--plot", svg).returncode == 10
    words = [e.text for e in ElementTree.parse(svg).getroot().iter("{http://www.w3.org/2000/svg}text")]
    assert "onset" in words and [word for word in words if word.startswith("rank ")] == ["rank 3 (n888)"]
    assert "7 others" in words


SLOW_START = """
import signal, sys, time
from triage.commands import saying
saying.FIRST_WORDS_S = 0.2
saying.patience()
time.sleep(0.5)
{after}
time.sleep(0.5)
"""


@pytest.mark.parametrize(
    ("after", "lines"), [("", 1), ("saying.say('first'); saying.patience(); saying.say('second')", 3)]
)
def test_before_anything_is_said_a_wait_for_our_own_files_is_told_once_and_after_words_it_is_not(after, lines):
    words = [sys.executable, "-c", SLOW_START.format(after=after)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=True)
    assert len(done.stderr.splitlines()) == lines and "have not answered yet" in done.stderr.splitlines()[0]
