"""The payload on a node, under every Python at hand: probes that hang, lie, leak and crash, and an operator who goes.

The table is that of notes/prototype-findings.md 2.2. All hostile probes of one interpreter run in one look.
"""

import contextlib
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from triage.errors import ConfigError, UsageError
from triage.transports import payload


def interpreters():
    """One per minor version, 3.6 and up: those of pyenv, those on PATH, and this one."""
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    found = {}
    for minor in range(6, 15):
        places = sorted(glob.glob(f"{root}/versions/3.{minor}.*/bin/python3"))
        places += [p for p in [shutil.which(f"python3.{minor}")] if p and "shims" not in p]
        if places:
            found[minor] = places[0]
    found[sys.version_info.minor] = sys.executable
    return [pytest.param(path, id=f"py3.{minor}") for minor, path in sorted(found.items())]


PROBE = 'PROBE = {"name": "%s", "version": 3, "timeout_s": 1.0, "cost": "cheap", "needs": [], "fields": {}}\n'

HOSTILE = {
    "sleeps": "import time\ndef collect(ctx): time.sleep(600)",
    "deaf": """
import signal, time
def collect(ctx):
    for number in range(1, 65):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    while True: time.sleep(600)""",
    "leaves_a_grandchild": """
import os, time
def collect(ctx):
    r, w = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(w, str(os.getpid()).encode())
            time.sleep(600)
        os._exit(0)
    return {"pid": int(os.read(r, 20))}""",
    "only_a_grandchild_is_left": """
import os, time
def collect(ctx):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(600)
        os._exit(0)
    os._exit(7)""",
    "exits": "import os\ndef collect(ctx): os._exit(7)",
    "closes_its_pipe": "import os, time\ndef collect(ctx):\n    os.close(3)\n    time.sleep(600)",
    "garbage": "import os\ndef collect(ctx):\n    os.write(3, b'\\xff\\x00 {{{ no json\\n')\n    return {}",
    "crashes": "import os, signal\ndef collect(ctx): os.kill(os.getpid(), signal.SIGSEGV)",
    "hundred_megabytes": "def collect(ctx): return {'x': 'y' * 100000000}",
    "two_megabytes": "def collect(ctx): return {'x': 'y' * 2000000}",
    "writes_a_file": "def collect(ctx):\n    with open(ctx.args['path'], 'w') as f: f.write('x')\n    return {}",
    "not_a_number": "def collect(ctx): return {'x': float('nan')}",
    "no_dictionary": "def collect(ctx): return [1]",
    "raises": "def collect(ctx): return {'x': 1 / 0}",
    "recurses": "def collect(ctx): return collect(ctx)",
    "no_python_here": "def collect(ctx): return {}\nreturn 1  # parses, and does not compile",
    "absent": "def collect(ctx): raise ctx.Absent('no such card')",
    "denied": "def collect(ctx): raise ctx.Denied('root only')",
    "prints": "import os\ndef collect(ctx):\n    print('x' * 10)\n    os.write(2, b'noise')\n    return {'sees': 1}",
    "tells_its_place": """
import os, resource
def collect(ctx):
    return {"oom": ctx.read("/proc/self/oom_score_adj").strip(), "nice": os.nice(0), "cwd": os.getcwd(),
            "core": resource.getrlimit(resource.RLIMIT_CORE)[0], "file": resource.getrlimit(resource.RLIMIT_FSIZE)[0],
            "fds": sorted(int(n) for n in os.listdir("/proc/self/fd")), "leader": os.getsid(0) == os.getpid(),
            "args": ctx.args, "look": ctx.look, "left": ctx.left(), "real": ctx.real}""",
    "quick": "def collect(ctx): return {'look': ctx.look}",
}
SOURCES = {name: PROBE % name + body for name, body in HOSTILE.items()}


class Node:
    """A payload running here, spoken to over its standard input and output."""

    def __init__(self, argv, load, env=None):
        self.mark = uuid.uuid4().hex
        environ = {"PATH": os.environ["PATH"], **(env or {}), "TRIAGE_TEST_MARK": self.mark}
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
        )
        self.ask(load)

    def ask(self, raw):
        self.process.stdin.write(raw)
        self.process.stdin.flush()

    def lines(self):
        for line in self.process.stdout:
            if line.strip():
                yield json.loads(line)

    def until_done(self, look):
        got = []
        for line in self.lines():
            got.append(line)
            if line.get("_done") == look:
                return got
        raise AssertionError(f"ended before {look} was done: {got}")

    def alive(self):
        """Every process that still wears this test's mark: probes, grandchildren, the runner."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    if self.mark.encode() in Path(f"/proc/{name}/environ").read_bytes():
                        found.append(int(name))
        return found

    def gone_within(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            # As sub-reaper of nobody we may have to bury what the runner could not.
            self.process.poll()
            if not self.alive():
                return True
            time.sleep(0.02)
        return False

    def end(self):
        self.process.stdin.close()
        rest = list(self.lines())
        self.process.wait(5)
        return rest


def start(python, names, env=None, **settings):
    settings.setdefault("nice", 0)
    load = payload.build(names, extra=SOURCES, **settings)
    return Node([python, "-I", "-S", "-c", payload.BOOT], load, env)


@pytest.fixture(scope="module", params=interpreters())
def python(request):
    return request.param


@pytest.fixture(scope="module")
def hostile(python):
    """One look at all hostile probes: {"at": arrival seconds by probe, "said": envelopes by probe, ...}."""
    folder = tempfile.mkdtemp()
    node = start(python, list(SOURCES))
    probes = {name: {} for name in SOURCES}
    probes["writes_a_file"] = {"path": folder + "/written"}
    node.ask(payload.request("A", 7, {**probes, "unheard_of": {}}, 5.0))
    began, said, at, order = time.monotonic(), {}, {}, []
    for line in node.lines():
        order.append(line)
        if "probe" in line:
            assert line["probe"] not in said, "two envelopes of one probe"
            said[line["probe"]], at[line["probe"]] = line, time.monotonic() - began
        if "_done" in line:
            break
    end = node.end()
    yield {"said": said, "at": at, "order": order, "end": end, "node": node, "file": folder + "/written"}
    shutil.rmtree(folder)


def test_every_probe_asked_has_exactly_one_envelope_and_the_look_is_done(hostile):
    assert set(hostile["said"]) == {*SOURCES, "unheard_of"}
    assert "_begin" in hostile["order"][0]
    assert hostile["order"][-1] == {"_done": "A", "id": 7}
    for line in hostile["said"].values():
        assert (line["node"], line["look"], line["id"]) == ("", "A", 7)


@pytest.mark.parametrize("probe", ["sleeps", "deaf"])
def test_a_probe_that_hangs_or_ignores_every_signal_is_a_timeout_at_its_deadline(hostile, probe):
    assert hostile["said"][probe]["status"] == "timeout"
    assert 0.9 < hostile["said"][probe]["took_s"] < 1.6


def test_an_answer_counts_at_once_although_a_grandchild_holds_the_pipe(hostile):
    said = hostile["said"]["leaves_a_grandchild"]
    assert said["status"] == "ok"
    assert hostile["at"]["leaves_a_grandchild"] < hostile["at"]["sleeps"]
    with pytest.raises(ProcessLookupError):
        os.kill(said["data"]["pid"], 0)


@pytest.mark.parametrize("probe, why", [("only_a_grandchild_is_left", "exit 7"), ("exits", "exit 7")])
def test_a_child_that_ends_without_an_answer_is_an_error_in_no_time(hostile, probe, why):
    assert hostile["said"][probe]["status"] == "error"
    assert why in hostile["said"][probe]["notes"][0]
    assert hostile["said"][probe]["took_s"] < 0.9


def test_a_child_that_closes_its_answer_and_lives_on_is_an_error_and_no_timeout(hostile):
    assert hostile["said"]["closes_its_pipe"]["status"] == "error"
    assert hostile["said"]["closes_its_pipe"]["took_s"] < 0.9


def test_garbage_and_a_crash_are_errors_and_the_stream_stays_clean(hostile):
    assert hostile["said"]["garbage"]["notes"] == ["no JSON in the answer"]
    assert f"signal {signal.SIGSEGV.value}" in hostile["said"]["crashes"]["notes"][0]


def test_a_hundred_megabytes_die_of_the_address_space_and_two_of_the_cap(hostile):
    assert hostile["said"]["hundred_megabytes"]["status"] == "error"
    assert "MemoryError" in hostile["said"]["hundred_megabytes"]["notes"][0]
    assert hostile["said"]["two_megabytes"]["status"] == "error"
    assert "over 1048576 bytes" in hostile["said"]["two_megabytes"]["notes"][0]


def test_a_probe_that_writes_a_file_gets_no_byte_out(hostile):
    assert hostile["said"]["writes_a_file"]["status"] == "error"
    # The empty file is there all the same: why probes are also checked by reading their code.
    assert os.path.getsize(hostile["file"]) == 0


@pytest.mark.parametrize(
    "probe, status, note",
    [
        ("not_a_number", "error", "ValueError"),
        ("no_dictionary", "error", "no dictionary"),
        ("raises", "error", "ZeroDivisionError"),
        ("recurses", "error", "RecursionError"),
        ("no_python_here", "error", "under Python 3"),
        ("unheard_of", "error", "no such probe"),
        ("absent", "absent", "no such card"),
        ("denied", "denied", "root only"),
    ],
)
def test_what_a_probe_says_or_gets_wrong_is_told_in_its_envelope(hostile, probe, status, note):
    assert hostile["said"][probe]["status"] == status
    assert note in hostile["said"][probe]["notes"][0]


def test_what_a_probe_prints_goes_nowhere(hostile):
    assert hostile["said"]["prints"]["data"] == {"sees": 1}


def test_a_probe_is_the_first_to_die_of_memory_and_holds_nothing_of_the_connection(hostile):
    data = hostile["said"]["tells_its_place"]["data"]
    assert (data["oom"], data["core"], data["file"], data["cwd"]) == ("1000", 0, 0, "/")
    assert data["leader"] and data["real"] and data["look"] == "A" and 0 < data["left"] <= 1.0
    assert data["fds"] == [0, 1, 2, 3] or len(data["fds"]) == 5  # listdir's own descriptor
    assert hostile["said"]["tells_its_place"]["version"] == 3


def test_the_last_line_counts_the_killed_and_nothing_is_left_running(hostile):
    end = hostile["end"][-1]["_end"]
    assert end["killed"] >= 4  # two that hung, two grandchildren
    assert end["unkillable"] == []
    assert end["cpu_s"]["children"] > 0
    assert hostile["node"].process.returncode == 0
    assert hostile["node"].gone_within(1.0)


def test_a_second_look_and_a_costly_question_come_over_the_same_input(python):
    node = start(python, ["quick", "sleeps"])
    # B is sent while A still runs: it waits in the queue.
    node.ask(payload.request("A", 1, {"quick": {}, "sleeps": {}}, 0.4) + payload.request("B", 2, {"quick": {}}, 3))
    first, second = node.until_done("A"), node.until_done("B")
    assert [line.get("probe") for line in first[1:]] == ["quick", "sleeps", None]
    assert first[2]["took_s"] < 0.9, "the request's limit is shorter than the probe's own"
    assert second[0]["data"] == {"look": "B"}
    node.ask(b"{no request}\n" + payload.request("C", 3, {"quick": {}}, 3))
    third = node.until_done("C")
    assert "bad request" in third[0]["_error"]
    assert third[1]["id"] == 3
    assert "_end" in node.end()[-1]


def test_the_end_of_input_kills_everything_within_a_second(python):
    node = start(python, ["deaf", "sleeps"])
    node.ask(payload.request("A", 1, {"deaf": {}, "sleeps": {}}, 30))
    time.sleep(0.4)
    assert len(node.alive()) == 3
    node.process.stdin.close()
    assert node.gone_within(1.0)


def test_a_cut_cable_sends_no_end_of_input_and_the_runner_ends_by_itself(python):
    node = start(python, ["sleeps"], deadline_s=0.6)
    began = time.monotonic()
    node.ask(payload.request("A", 1, {"sleeps": {}}, 30) + payload.request("B", 2, {"sleeps": {}}, 30))
    lines = list(node.lines())  # we keep the input open all the time
    assert time.monotonic() - began < 3
    statuses = [(line["look"], line["status"]) for line in lines if "probe" in line]
    assert statuses == [("A", "timeout"), ("B", "timeout")]
    assert "own deadline" in lines[1]["notes"][0]
    assert "_end" in lines[-1]
    node.process.stdin.close()
    assert node.gone_within(1.0)


def test_a_killed_runner_takes_its_probes_with_it():
    node = start(sys.executable, ["deaf"])
    node.ask(payload.request("A", 1, {"deaf": {}}, 30))
    time.sleep(0.4)
    node.process.kill()
    assert node.gone_within(1.0)


def test_an_operator_that_reads_nothing_does_not_stop_the_runner_from_ending():
    source = PROBE % "big" + "def collect(ctx): return {'x': 'y' * 900000}"
    load = payload.build(["big"], extra={"big": source}, deadline_s=1.0, nice=0)
    node = Node([sys.executable, "-I", "-S", "-c", payload.BOOT], load)
    for ident in (1, 2, 3):
        node.ask(payload.request("A", ident, {"big": {}}, 5))
    node.process.wait(5)  # the pipe holds 64 KiB, the rest never leaves
    assert node.gone_within(1.0)


def test_the_cap_of_a_node_turns_what_is_too_much_into_errors():
    source = PROBE % "big" + "def collect(ctx): return {'x': 'y' * 900}"
    load = payload.build(["big"], extra={"big": source}, node_bytes=2500, nice=0)
    node = Node([sys.executable, "-I", "-S", "-c", payload.BOOT], load)
    seen = []
    for ident in (1, 2, 3):
        node.ask(payload.request("A", ident, {"big": {}}, 5))
        seen += [line["status"] for line in node.until_done("A") if "probe" in line]
    node.end()
    assert seen == ["ok", "ok", "error"]


def test_without_a_limit_of_memory_the_cap_alone_stops_a_big_answer():
    patient = PROBE.replace('"timeout_s": 1.0', '"timeout_s": 5.0')  # 100 MB as JSON, on a machine that has other work
    source = patient % "big" + "def collect(ctx): return {'x': 'y' * 100000000}"
    load = payload.build(["big"], extra={"big": source}, memory_free=["big"], nice=0)
    node = Node([sys.executable, "-I", "-S", "-c", payload.BOOT], load)
    node.ask(payload.request("A", 1, {"big": {}}, 5))
    envelope = node.until_done("A")[1]
    node.end()
    assert (envelope["status"], envelope["notes"]) == ("error", ["answer over 1048576 bytes"])


def test_probes_import_what_travels_with_them():
    source = PROBE % "user" + "def collect(ctx):\n    import helper\n    return {'x': helper.answer()}"
    load = payload.build(["user"], extra={"user": source}, modules={"helper": "def answer(): return 42"}, nice=0)
    node = Node([sys.executable, "-I", "-S", "-c", payload.BOOT], load)
    node.ask(payload.request("A", 1, {"user": {}}, 5))
    assert node.until_done("A")[1]["data"] == {"x": 42}
    node.end()


def test_the_roots_come_from_the_environment_and_then_no_command_of_the_host_is_run(tmp_path):
    source = PROBE % "rooted" + (
        "def collect(ctx):\n    return {'roots': [ctx.proc('1'), ctx.sys('x'), ctx.root('/var/log')],"
        " 'real': ctx.real, 'run': list(ctx.run(['true'], 1)), 'none': ctx.read('/nonexistent'),"
        " 'list': ctx.listdir('/nonexistent')}"
    )
    load = payload.build(["rooted"], extra={"rooted": source}, nice=0)
    env = {"TRIAGE_PROCFS": "/p", "TRIAGE_SYSFS": "/s", "TRIAGE_ROOTFS": str(tmp_path)}
    node = Node([sys.executable, "-I", "-S", "-c", payload.BOOT], load, env)
    node.ask(payload.request("A", 1, {"rooted": {}}, 5))
    data = node.until_done("A")[1]["data"]
    node.end()
    assert data["roots"] == ["/p/1", "/s/x", f"{tmp_path}/var/log"]
    assert data["real"] is False
    assert data["run"] == [None, "", "not run: other root"]
    assert data["none"] is None and data["list"] == []


def test_a_command_of_the_host_is_bounded_in_time_and_size_and_a_fifo_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    source = PROBE % "runs" + (
        "def collect(ctx):\n    return {'echo': list(ctx.run(['sh', '-c', 'echo a; echo b >&2; exit 3'], 2)),"
        " 'sleep': list(ctx.run(['sleep', '60'], 0.1)), 'yes': list(ctx.run(['yes'], 5, 100000))[2],"
        " 'absent': ctx.run(['no-such-command'], 1)[0], 'fifo': ctx.read(ctx.args['fifo'])}"
    )
    load = payload.build(["runs"], extra={"runs": source}, nice=0)
    node = Node([sys.executable, "-I", "-S", "-c", payload.BOOT], load)
    node.ask(payload.request("A", 1, {"runs": {"fifo": str(tmp_path / "fifo")}}, 5))
    envelope = node.until_done("A")[1]
    node.end()
    assert envelope["status"] == "ok", envelope
    data = envelope["data"]
    assert data["echo"] == [3, "a\n", "b\n"]
    assert data["sleep"] == [None, "", "no end after its time limit"]
    assert data["yes"] == "more than 100000 bytes"
    assert data["absent"] is None
    assert data["fifo"] == ""


# The boot command on a node whose system has no Python of its own, wherever these tests run.
NO_SYSTEM = payload.COMMAND.replace(" /usr/", " /absent/usr/")


def test_the_boot_command_finds_the_only_python_even_in_a_strange_place(python, tmp_path):
    # 3.6 hides behind a name further down the list; a first `python3` of another age must be passed over.
    name = "python3." + subprocess.check_output([python, "-c", "import sys; print(sys.version_info[1])"], text=True)
    if int(name[8:]) > 13:
        pytest.skip("newer than the list of names that is tried")
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    (tmp_path / name.strip()).symlink_to(python)
    load = payload.build(["quick"], extra=SOURCES, nice=0)
    node = Node(["/bin/sh", "-c", NO_SYSTEM], load, {"PATH": str(tmp_path)})
    node.ask(payload.request("A", 1, {"quick": {}}, 5))
    begin = node.until_done("A")[0]
    node.end()
    assert begin["_begin"]["python"].startswith(name[6:].strip())


def test_without_any_python_one_line_says_so_with_exit_127(tmp_path):
    done = subprocess.run(
        ["/bin/sh", "-c", NO_SYSTEM], env={"PATH": str(tmp_path)}, capture_output=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 127
    assert done.stdout.decode().strip() == payload.NO_PYTHON


def test_the_boot_command_survives_any_login_shell():
    # One line, single quotes only around the whole: csh knows no newline and expands ! inside them.
    assert "\n" not in payload.COMMAND and "!" not in payload.COMMAND
    assert payload.COMMAND.count("'") == 2
    assert '"' not in payload.BOOT and "$" not in payload.BOOT and "\\" not in payload.BOOT


def test_an_operator_who_goes_before_the_payload_is_whole_leaves_nothing():
    for sent in (b"", b"0000", b"00000100\nprint(1)"):
        done = subprocess.run([sys.executable, "-I", "-S", "-c", payload.BOOT], input=sent, capture_output=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_every_probe_that_ships_answers_under_this_python(python):
    catalogue = payload.probe_catalogue()
    node = start(python, list(catalogue))
    node.ask(payload.request("A", 1, {name: {} for name in catalogue}, 10))
    said = {line["probe"]: line for line in node.until_done("A") if "probe" in line}
    node.end()
    assert set(said) == set(catalogue)
    broken = {name: line["notes"] for name, line in said.items() if line["status"] in ("error", "malformed")}
    assert not broken


def test_the_payload_with_all_that_ships_is_small():
    load = payload.build()
    assert len(load) < 160 * 1024
    assert len(load) == 9 + int(load[:8])


def test_a_probe_without_a_literal_name_of_its_own_is_refused():
    for source in ("x = 1", "PROBE = dict(name='x')", PROBE % "other", "PROBE = {"):
        with pytest.raises(ConfigError, match="probe bad"):
            payload.build(["bad"], extra={"bad": source})
    with pytest.raises(UsageError, match="no probe is called"):
        payload.build(["never_heard_of"])


BARE = """import sys
sys.path.insert(0, {probes!r})
{source}
if __name__ == "__main__":
    import _probe
    _probe.main(PROBE, collect)
"""


def test_a_probe_file_runs_alone_on_a_bare_node(python, tmp_path):
    probes = str(Path(__file__).resolve().parents[2] / "probes")
    for name in ("tells_its_place", "sleeps"):
        (tmp_path / f"{name}.py").write_text(BARE.format(probes=probes, source=SOURCES[name]))
    done = subprocess.run(
        [python, tmp_path / "tells_its_place.py", "--procfs", "/p", "--args", '{"a": 1}', "--look=B"],
        capture_output=True,
        text=True,
    )
    # Below another root /proc/self is another file: nothing to read there, but here the path is literal.
    envelope = json.loads(done.stdout)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    assert envelope["status"] == "ok" and envelope["data"]["args"] == {"a": 1}
    assert (envelope["data"]["look"], envelope["data"]["real"]) == ("B", False)
    hung = subprocess.run([python, tmp_path / "sleeps.py"], capture_output=True, text=True)
    assert json.loads(hung.stdout)["status"] == "timeout"
    for bad in (["--bogus"], ["--args", "{"], ["--look"]):
        assert subprocess.run([python, tmp_path / "sleeps.py", *bad], capture_output=True).returncode == 2


# ---------------------------------------------------------------- a child that cannot die


@pytest.fixture
def frozen_mount(tmp_path):
    """A folder on a frozen file system: whoever makes a directory there waits in state D until the thaw."""
    if os.geteuid() != 0:
        pytest.skip("needs root: freezes a file system on a loop device")
    for tool in ("fsfreeze", "mkfs.ext4", "mount", "umount"):
        if not shutil.which(tool):
            pytest.skip(f"needs {tool}")
    image, folder = tmp_path / "image", tmp_path / "mount"
    folder.mkdir()
    with open(image, "wb") as file:
        file.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True).returncode:
        pytest.skip("no loop mounts here")
    try:
        if subprocess.run(["fsfreeze", "-f", folder], capture_output=True).returncode:
            pytest.skip("this kernel does not freeze file systems")
        yield folder
    finally:
        subprocess.run(["fsfreeze", "-u", folder], capture_output=True)
        for _ in range(50):
            if subprocess.run(["umount", folder], capture_output=True).returncode == 0:
                break
            time.sleep(0.1)


def test_a_probe_in_uninterruptible_sleep_is_a_timeout_that_says_so_and_delays_nobody(frozen_mount):
    source = PROBE % "stuck" + "import os\ndef collect(ctx):\n    os.mkdir(ctx.args['path'])\n    return {}"
    load = payload.build(["stuck", "quick"], extra={**SOURCES, "stuck": source}, nice=0)
    node = Node([sys.executable, "-I", "-S", "-c", payload.BOOT], load)
    began = time.monotonic()
    node.ask(payload.request("A", 1, {"stuck": {"path": str(frozen_mount / "x")}, "quick": {}}, 5))
    said = {line["probe"]: line for line in node.until_done("A") if "probe" in line}
    rest = node.end()
    assert time.monotonic() - began < 3
    assert said["quick"]["status"] == "ok"
    assert said["stuck"]["status"] == "timeout"
    assert "does not die: state D" in said["stuck"]["notes"][1]
    assert len(rest[-1]["_end"]["unkillable"]) == 1
    subprocess.run(["fsfreeze", "-u", frozen_mount], check=True)
    assert node.gone_within(3.0), "it vanishes at the thaw"
