"""Our own storage stands still, as it does when it froze the job: words come within 5 s all the same, and the run goes on.

On a real mount that never answers and a real file system that freezes in the middle of a run, with the real program.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from stalled_mount import Freezer, Unavailable, stalled

from triage import ownfiles

WORDS_S = 5.0
SILENT = "did not answer within"


@pytest.fixture(autouse=True)
def nothing_has_stalled():
    ownfiles.forget()
    yield
    ownfiles.forget()


@pytest.fixture(scope="module")
def dead(tmp_path_factory):
    """A folder that never answers, in state D."""
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(stalled(tmp_path_factory.mktemp("storage") / "dead"))
        except Unavailable as error:
            pytest.skip(str(error))
        yield folder


@pytest.fixture
def freezer(tmp_path):
    """A file system that can be frozen."""
    try:
        made = Freezer(tmp_path)
    except Unavailable as error:
        pytest.skip(str(error))
    yield made
    made.close()


@dataclass
class Site:
    """A login node on local storage: key, known_hosts, an inventory whose two nodes refuse every connection."""

    room: Path

    def inventory(self, name="i.yaml", log="", ssh=""):
        text = f'jobs:\n  "7": {{nodes: "n[1-2]"{log and f", log: {log}"}}}\n'
        text += 'hosts:\n  "n[1-2]": {address: 127.0.0.1, port: 1}\n' + ssh
        (self.room / name).write_text(text)
        return self.room / name

    @property
    def keys(self):
        return ["--key", self.room / "key", "--known-hosts", self.room / "known"]

    @property
    def environ(self):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TRIAGE_", "XDG_", "SSH_"))}
        return {**kept, "HOME": str(self.room), "TMPDIR": str(self.room), "TRIAGE_STATE_DIR": str(self.room / "state")}


KEY = """
import os, sys
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
raw = Ed25519PrivateKey.generate().private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption())
os.fdopen(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600), "wb").write(raw)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    made = Site(tmp_path_factory.mktemp("login"))
    subprocess.run([sys.executable, "-c", KEY, str(made.room / "key")], check=True)
    (made.room / "known").write_text("")
    made.inventory()
    return made


@dataclass
class Run:
    """One run of the program: every line with the second in which it came."""

    words: list
    environ: dict
    err: list = field(default_factory=list)
    out: str = ""
    code: int | None = None
    end_s: float = 0.0
    closed_s: float = 0.0  # when nobody held its output any more

    def start(self):
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "triage", *map(str, self.words)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environ, start_new_session=True,
        )  # fmt: skip
        self.readers = [threading.Thread(target=self._read, args=(n,), daemon=True) for n in ("stdout", "stderr")]
        for reader in self.readers:
            reader.start()
        return self

    def _read(self, name):
        for line in getattr(self.process, name):
            at = time.monotonic() - self.began
            if name == "stdout":
                self.out += line
            else:
                self.err.append((at, line.strip()))

    def wait_for(self, text, seconds=30.0):
        while not any(text in line for _, line in list(self.err)):
            assert time.monotonic() - self.began < seconds, f"{text!r} was never said: {self.err}"
            time.sleep(0.02)

    def finish(self, seconds=40.0):
        try:
            self.code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"it does not end: {self.err}") from None
        self.end_s = time.monotonic() - self.began
        for reader in self.readers:
            reader.join(10.0)
        self.closed_s = time.monotonic() - self.began
        return self

    @property
    def told_s(self):
        """When it said what does not answer."""
        return min((at for at, line in self.err if SILENT in line), default=float("inf"))

    @property
    def said(self):
        return "\n".join(line for _, line in self.err)


def triage(words, environ):
    """The run, which says what stands still; on a busy machine it is made again instead of being judged."""
    for _ in range(3):
        done = Run(words, environ).start().finish()
        if done.told_s < WORDS_S:
            break
    assert done.told_s < WORDS_S, done.err
    assert done.closed_s - done.end_s < 2.0, "a child that hangs holds the output: `| less` would never end"
    assert "Traceback" not in done.said and "bug" not in done.said
    return done


# name: (options after `frozen-job 7`, changes of the environment); {dead} is the folder that does not answer
PLACES = {
    "home": ("{inventory} {keys}", {"HOME": "{dead}"}),
    "config and state by XDG": (
        "{inventory} {keys}",
        {"XDG_CONFIG_HOME": "{dead}", "XDG_STATE_HOME": "{dead}", "TRIAGE_STATE_DIR": ""},
    ),
    "state folder": ("{inventory} {keys} --state-dir {dead}/state", {}),
    "state and temporary folder": ("{inventory} {keys}", {"TRIAGE_STATE_DIR": "{dead}", "TMPDIR": "{dead}"}),
    "job log": ("--inventory {with_log} {keys}", {}),
    "known_hosts": ("{inventory} --key {room}/key --known-hosts {dead}/known", {}),
    "agent": ("{inventory} {keys}", {"SSH_AUTH_SOCK": "{dead}/agent"}),
    "all at once": (
        "--inventory {all} --key {room}/key",
        {"HOME": "{dead}", "TRIAGE_STATE_DIR": "{dead}/s", "TMPDIR": "{dead}/t", "SSH_AUTH_SOCK": "{dead}/a"},
    ),
}


def made(site, dead, place):
    options, changes = PLACES[place]
    fill = {
        "dead": dead, "room": site.room, "inventory": f"--inventory {site.room}/i.yaml",
        "keys": " ".join(map(str, site.keys)), "with_log": site.inventory("log.yaml", f"{dead}/job.log"),
        "all": site.inventory("all.yaml", f"{dead}/job.log", f"ssh: {{known_hosts: {dead}/known}}\n"),
    }  # fmt: skip
    environ = {**site.environ, **{name: value.format(**fill) for name, value in changes.items()}}
    return ["frozen-job", "7", *options.format(**fill).split(), "--output", "json"], environ


@pytest.mark.parametrize("place", PLACES)
def test_words_come_within_5_s_whatever_stands_still_and_the_run_goes_on_and_says_so(place, site, dead):
    done = triage(*made(site, dead, place))
    assert done.code == 22, done.said
    report = json.loads(done.out)
    told = [f["text"] for f in report["findings"]]
    assert any(SILENT in text or "within its deadline" in text for text in told), told
    assert any("0 of 2 nodes answered" in line for _, line in done.err)
    case = Path(next(line.split(" ", 2)[2] for _, line in done.err if line.startswith("triage: case ")))
    assert (case / "report.json").is_file()
    again = Run(["replay", case, "--output", "json"], site.environ).start().finish()
    assert json.loads(again.out) == report
    if case.parent.name.startswith("triage-"):
        shutil.rmtree(case.parent)


def test_a_home_that_stands_still_and_holds_the_only_keys_is_told_in_one_line_more(site, dead):
    done = triage(["frozen-job", "7", "--inventory", site.room / "i.yaml"], {**site.environ, "HOME": str(dead)})
    assert done.code == 3 and len(done.err) == 2, done.said
    assert "no SSH key to log in with" in done.said and "ssh-add" in done.said


ONE_LINE = [
    (["frozen-job", "7", "--inventory", "{dead}/i.yaml"], 3),
    (["frozen-job", "7", "--inventory", "{room}/i.yaml", "--profile", "{dead}/p.yaml"], 3),
    (["replay", "{dead}/case"], 3),
    (["replay", "2026", "--state-dir", "{dead}"], 3),
    (["explain", "{dead}"], 2),
    (["playbook", "lint", "{dead}/mine.yaml"], 3),
    (["playbook", "show", "{dead}/mine.yaml"], 3),
]


@pytest.mark.parametrize(
    ("words", "code"), ONE_LINE, ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else ""
)
def test_what_cannot_be_done_without_is_told_in_one_line_within_5_s(words, code, site, dead):
    done = triage([word.format(dead=dead, room=site.room) for word in words], site.environ)
    assert done.code == code and len(done.err) == 1 and SILENT in done.said, done.said
    assert done.out == ""


def test_a_replay_from_local_storage_does_not_need_the_home_that_stands_still(site, dead):
    case = Path(__file__).parent / "captures" / "cases" / "dead-rank"
    done = triage(["replay", case, "--output", "json"], {**site.environ, "HOME": str(dead)})
    assert done.code == 10 and json.loads(done.out)["verdict"]["id"] == "dead_rank"
    assert SILENT in done.said


@pytest.mark.parametrize("after_s", [0.6, 2.5])
def test_ctrl_c_while_storage_stands_still_ends_the_run_at_once(after_s, site, dead):
    run = Run(*made(site, dead, "all at once")).start()
    time.sleep(after_s)
    if run.process.poll() is None:
        os.killpg(run.process.pid, signal.SIGINT)
        pressed = time.monotonic() - run.began
        run.finish()
        assert run.end_s - pressed < 4.0 and run.closed_s - run.end_s < 2.0
        assert run.code in (130, -signal.SIGINT), (run.code, run.said)  # -2: Python itself was still starting
        assert run.code != 130 or run.said.endswith("triage: interrupted")
    run.finish()


def test_many_files_that_stand_still_cost_one_wait(dead):
    names = [str(dead / str(number)) for number in range(12)]
    began = time.monotonic()
    ownfiles.ahead(read=names)
    for name in names:
        with pytest.raises(ownfiles.TooSlow):
            ownfiles.read(name)
    assert time.monotonic() - began < 2 * ownfiles.PATIENCE_S


def test_what_lies_below_a_folder_that_stands_still_is_not_waited_for(dead):
    with pytest.raises(ownfiles.TooSlow):
        ownfiles.exists(str(dead), 0.3)
    began = time.monotonic()
    with pytest.raises(ownfiles.TooSlow, match=r"dead did not answer within 0\.3s"):
        ownfiles.read(str(dead / "x" / "y"))
    assert time.monotonic() - began < 0.2


# ---------------------------------------------------------------- storage that stops in the middle of a run


def local(site, freezer, *more):
    """A run against this very machine that finds no rank; there is a wait of 8 s between its looks."""
    path = site.room / "local.yaml"
    path.write_text('jobs:\n  "7": {nodes: n1, match: {SLURM_JOB_ID: "of nobody"}}\n')
    words = ["frozen-job", "7", "--inventory", path, "--transport", "local", "--state-dir", freezer.folder / "state"]
    return Run([*words, "--output", "json", *more], site.environ).start()


def test_a_state_folder_that_freezes_in_the_middle_costs_a_wait_and_the_case_goes_elsewhere(site, freezer):
    run = local(site, freezer)
    run.wait_for("nodes answered")
    freezer.freeze()
    run.finish()
    report = json.loads(run.out)
    assert run.code == report["exit_code"] in (0, 11), run.said
    assert any(SILENT in f["text"] and "the case goes to" in f["text"] for f in report["findings"]), report["findings"]
    assert run.closed_s - run.end_s < 2.0
    case = Path(run.err[-1][1].split(" ", 2)[2])
    assert freezer.folder not in case.parents
    again = Run(["replay", case, "--output", "json"], site.environ).start().finish()
    assert json.loads(again.out) == report and "was changed after the run" not in again.said
    assert {s["look"] for s in map(json.loads, (case / "samples.jsonl").read_text().splitlines())} >= {"A", "B"}


def test_ctrl_c_on_a_frozen_state_folder_still_leaves_a_case(site, freezer):
    run = local(site, freezer)
    run.wait_for("nodes answered")
    freezer.freeze()
    os.killpg(run.process.pid, signal.SIGINT)
    pressed = time.monotonic() - run.began
    run.finish()
    assert run.code == 130 and run.end_s - pressed < 8.0, run.said
    case = Path(next(line for _, line in run.err if "(not complete)" in line).split(" ")[2])
    again = Run(["replay", case], site.environ).start().finish()
    assert again.code in (0, 11) and freezer.folder not in case.parents, again.said


def test_the_first_line_does_not_wait_for_nodes_that_hang_on_the_same_log(site, dead):
    path = site.room / "shared.yaml"
    path.write_text(f'jobs:\n  "7": {{nodes: n1, log: {dead}/job.log, match: {{SLURM_JOB_ID: "of nobody"}}}}\n')
    words = ["frozen-job", "7", "--inventory", path, "--transport", "local", "--looks", "1", "--output", "json"]
    done = triage(words, site.environ)
    line = next(at for at, text in done.err if "nodes answered" in text)
    assert done.end_s - line > 2.0, "the node was not asked for the log, or the line waited for it"
    case = Path(done.err[-1][1].split(" ", 2)[2])
    samples = [json.loads(text) for text in (case / "samples.jsonl").read_text().splitlines()]
    logs = {(s["node"], s["look"], s["status"]) for s in samples if s["probe"] == "joblog"}
    assert logs == {("", "A", "timeout"), ("n1", "A", "timeout")}
    assert any("did not answer on our own machine" in f["text"] for f in json.loads(done.out)["findings"])


# ---------------------------------------------------------------- the same storage froze the job


STEP = (
    " [{at}] iteration {i:8d}/ 1000 | consumed samples: 1 | elapsed time per iteration (ms): 1000.0 | lm loss: 2.0 |\n"
)


@pytest.fixture
def frozen_on_storage(site, dead):
    """(inventory, rank 0): two real ranks of a job whose last step is ten minutes old; rank 0 hangs on the mount."""
    ended = time.time() - 600
    stamps = [time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(ended - 200 + i)) for i in range(1, 201)]
    log = site.room / "stalled.log"
    log.write_text("".join(STEP.format(at=at, i=i) for i, at in enumerate(stamps, 1)))
    os.utime(log, (ended, ended))
    path = site.room / "stalled.yaml"
    match = "{SLURM_JOB_ID: stalled-7}"
    path.write_text(f'jobs:\n  "7": {{nodes: n1, log: {log}, state: running, match: {match}}}\n')
    base = {**site.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "29777"}
    hangs, waits = f"open({str(dead / 'shard')!r})", "import time; time.sleep(300)"
    ranks = []
    try:
        for rank, code in enumerate((hangs, waits)):
            mine = {**base, "SLURM_JOB_ID": "stalled-7", "RANK": str(rank), "LOCAL_RANK": str(rank)}
            ranks.append(subprocess.Popen([sys.executable, "-c", code], env=mine))
        yield path, ranks[0]
    finally:
        for rank in ranks:
            rank.kill()
        ranks[1].wait()  # the other one ends with the mount


@pytest.mark.parametrize("killed", [False, True], ids=["waits", "killed and still there in state D"])
def test_a_job_and_our_home_and_state_on_one_stalled_mount_are_no_dead_rank(killed, site, dead, frozen_on_storage):
    inventory, hung = frozen_on_storage
    if killed:
        time.sleep(1.5)
        hung.kill()  # an operator's kill -9, which ends nobody who waits in state D
        time.sleep(0.2)
        assert ") D " in Path(f"/proc/{hung.pid}/stat").read_text()
    words = ["frozen-job", "7", "--inventory", inventory, "--transport", "local", "--output", "json"]
    environ = {**site.environ, "HOME": str(dead / "home"), "TRIAGE_STATE_DIR": str(dead / "state")}
    done = triage(words, environ)
    assert done.err[0][0] < WORDS_S, done.err
    report = json.loads(done.out)
    assert report["verdict"]["id"] in ("input_stall", "inconclusive"), report["verdict"]
    assert not report["mitigation"]["restart"]["exclude_nodes"]
    told = [f["text"] for f in report["findings"]]
    assert any("shared storage may be stuck" in text for text in told)
    shutil.rmtree(Path(done.err[-1][1].split(" ", 2)[2]).parent)
