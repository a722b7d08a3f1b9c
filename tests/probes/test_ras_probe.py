"""Where may RAS be asked? Real processes that listen, frozen ones, ports of strangers, the set-up of communicators."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ras_server
from triage.probes import ras
from triage.probes._probe import Absent, Ctx

from triage.readers.shapes import problem

PROBES = Path(ras.__file__).parent


@pytest.fixture(autouse=True)
def beside(monkeypatch):
    """A probe finds its helpers beside it, as in the payload."""
    monkeypatch.syspath_prepend(str(PROBES))


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def start(port):
    """Starts processes that listen on one port as the ranks of a node do."""
    running = []

    def begin(rank=0, **env):
        child = subprocess.Popen(
            [sys.executable, ras_server.__file__, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "NCCL_RAS_ADDR": f"localhost:{port}", **env},
        )
        running.append(child)
        assert child.stdout.readline() == "ready\n"
        return child.pid

    yield begin
    for child in running:
        child.send_signal(signal.SIGCONT)
        child.stdin.close()
        child.stdout.close()
        child.wait(5)


def ask(*pids, limit=8.0, **args):
    told = {"ranks": [{"rank": i, "pid": pid} for i, pid in enumerate(pids)], "world": 2, "init": "past", "gap_s": 0.2}
    data = ras.collect(Ctx(args={**told, **args}, deadline=time.monotonic() + limit))
    assert problem("ras", json.loads(json.dumps(data))) is None
    return data


def wears(pid, mark, seconds=5.0):
    """Wait until a process shows its environment: for a moment within exec it is empty."""
    end = time.monotonic() + seconds
    while mark not in Path(f"/proc/{pid}/environ").read_bytes():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_report_of_the_jobs_own_process_is_read_where_its_environment_says(start, port):
    data = ask(start())
    assert (data["outcome"], data["address"]) == ("ok", f"127.0.0.1 port {port}")
    assert data["first"]["comms"][0]["ranks"] == "global"


def test_a_port_on_which_another_process_listens_is_not_asked(start, port):
    stranger = start(NCCL_RAS_ADDR="localhost:1")
    ours = subprocess.Popen(["sleep", "60"], env={**os.environ, "RANK": "0", "NCCL_RAS_ADDR": f"localhost:{port}"})
    try:
        wears(ours.pid, b"NCCL_RAS_ADDR=")
        data = ask(ours.pid)
        assert stranger and (data["outcome"], data["tries"]) == ("no_listener", 0)
        assert data["why"] == f"another job or service listens on port {port}"
    finally:
        ours.kill()
        ours.wait()


def test_where_strangers_share_the_port_a_containers_process_numbers_tell_no_job_from_another(start):
    ours = start()
    rows = [{"rank": 0, "pid": ours, "ns_pid": 41}]
    assert (
        ask(ranks=rows)["outcome"] != "ok" and ask(ranks=rows)["tries"] > 0
    )  # alone: the report is asked for and judged
    start(1)
    data = ask(ranks=rows)
    assert (data["outcome"], data["tries"], data["queries"]) == ("foreign_job", 0, 0) and "container" in data["why"]
    # By process numbers of the node itself, one of the two is told from the other. The kernel deals connections out by chance:
    # all of one run's queries meet the stranger once in 2^4.
    seen = [ask(ours)["outcome"] for _ in range(8)]
    assert "ok" in seen and set(seen) <= {"ok", "foreign_job"}


def test_a_job_that_switched_ras_off_says_so(start):
    assert "NCCL_RAS_ENABLE=0" in ask(start(NCCL_RAS_ENABLE="0"))["why"]


def test_a_process_that_listens_nowhere_is_no_listener():
    ours = subprocess.Popen(["sleep", "60"], env={**os.environ, "RANK": "0"})
    try:
        assert ask(ours.pid)["outcome"] == "no_listener"
    finally:
        ours.kill()
        ours.wait()


def test_one_stopped_process_of_two_on_the_port_costs_a_second_and_shows(start):
    pids = [start(0), start(1)]
    os.kill(pids[1], signal.SIGSTOP)
    seen = []
    for _ in range(6):
        # The report is of the process that answers: its second rank stands for nobody here.
        data = ask(pids[0], gap_s=0.0, limit=9.0)
        assert data["outcome"] == "ok"
        seen.append(data["silent"])
        if any(seen):
            break
    assert any(seen), "the kernel gave the stopped one none of 6 connections"


def test_while_the_job_sets_itself_up_nobody_is_asked(start):
    pid = start()
    for args in (
        {"init": "during", "nccl": "2.30.7"},
        {"init": "unclear"},
        {"init": "unclear", "nccl": "2.27.2"},
        {"init": 7},
    ):
        data = ask(pid, **args)
        assert (data["outcome"], data["tries"]) == ("skipped_init_risk", 0), args
    assert ask(pid, init="unclear", nccl="2.27.3")["outcome"] == "ok"


def test_an_old_release_is_told_as_too_old():
    ours = subprocess.Popen(["sleep", "60"], env={**os.environ, "RANK": "0"})
    try:
        assert ask(ours.pid, nccl="2.21.5")["outcome"] == "too_old"
    finally:
        ours.kill()
        ours.wait()


def test_without_a_rank_there_is_nothing_to_ask():
    with pytest.raises(Absent):
        ask()
    with pytest.raises(Absent):
        ask(2**30)


def test_below_another_root_no_socket_of_this_machine_is_touched(tmp_path):
    (tmp_path / "41").mkdir()
    (tmp_path / "41" / "status").write_text("PPid:\t1\nNSpid:\t41\n")
    ctx = Ctx(procfs=str(tmp_path), args={"ranks": [{"rank": 0, "pid": 41}]})
    assert ras.collect(ctx)["outcome"] == "no_listener"


def test_the_probe_alone_finds_the_ranks_of_this_machine(start, tmp_path):
    """As `python3 probes/ras.py` on a bare node: by the environment, without an operator."""
    pid = start()
    found = [rank for rank in ras.seen_ranks(Ctx()) if rank.pid == pid]
    assert [(rank.rank, rank.ns_pid) for rank in found] == [(0, pid)]


# ---------------------------------------------------------------- pure


@pytest.mark.parametrize(
    "path, siblings, found",
    [
        ("libnccl.so.2.27.3", [], (2, 27, 3)),
        ("libnccl.so.2", ["nvidia_nccl_cu12-2.26.2.dist-info"], (2, 26, 2)),
        ("libnccl.so.2", ["nvidia_nccl_cu12-2.26.2.dist-info", "nvidia_nccl_cu13-2.28.9.dist-info"], None),
        ("libnccl.so.2", [], None),
        ("libnccl.so", [], None),
    ],
)
def test_the_release_is_that_of_the_librarys_name_or_of_the_one_package_beside_it(path, siblings, found):
    assert ras.release_of(path, siblings) == found


def test_the_library_is_found_among_the_mappings():
    maps = "7f00-7f01 r-xp 0 08:01 9 /usr/lib/libc.so.6\n7f02-7f03 r-xp 0 08:01 9 /opt/v/nvidia/nccl/lib/libnccl.so.2\n"
    assert ras.library(maps) == "/opt/v/nvidia/nccl/lib/libnccl.so.2"
    assert ras.library("7f00-7f01 rw-p 0 0:0 0\n") == ""


def test_sockets_that_listen_are_told_by_the_kernels_table():
    table = (
        "  sl  local_address rem_address st tx rx tr tm retr uid timeout inode\n"
        "   0: 0100007F:6D7C 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 111 1 0 100 0 0 10 0\n"
        "   1: 0100007F:6D7C 0100007F:D431 01 00000000:00000000 00:00000000 00000000 0 0 112 1 0 20 4 30 10 -1\n"
        "   2: 00000000000000000000000001000000:6D7C 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 113 1 0\n"
        "   3: nonsense\n"
    )
    assert ras.listeners(table, 28028) == {"111": "127.0.0.1", "113": "::1"}
    assert ras.listeners(None, 28028) == {}


@pytest.mark.parametrize(
    "value, port",
    [(None, 28028), ("localhost:28029", 28029), ("[::1]:7", 7), ("x", None), ("x:0", None), ("x:99999", None)],
)
def test_the_port_is_that_of_the_jobs_environment(value, port):
    assert ras.port_of({} if value is None else {"NCCL_RAS_ADDR": value}) == port


# ---------------------------------------------------------------- networks of containers

CONTAINED = f"""
import os, socket, struct, sys, fcntl
lo = struct.pack("16sH14x", b"lo", 1)  # IFF_UP
with socket.socket() as s:
    fcntl.ioctl(s, 0x8914, lo)  # SIOCSIFFLAGS
os.execv(sys.executable, [sys.executable, {ras_server.__file__!r}, *sys.argv[1:]])
"""


@pytest.fixture
def contained(port):
    """A rank that listens in a network of its own."""
    child = subprocess.Popen(
        ["unshare", "-n", sys.executable, "-c", CONTAINED, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "2", "NCCL_RAS_ADDR": f"localhost:{port}"},
    )
    if child.stdout.readline() != "ready\n":
        pytest.skip(f"no network of its own here: {child.stderr.read()[:200]}")
    yield child.pid
    for pipe in (child.stdin, child.stdout, child.stderr):
        pipe.close()
    child.wait(5)


def alone(pid, *before, **args):
    """The probe as a process of its own: entering a network is for good."""
    told = json.dumps({"ranks": [{"rank": 0, "pid": pid}], "world": 2, "init": "past", "gap_s": 0.1, **args})
    done = subprocess.run(
        [*before, sys.executable, str(PROBES / "ras.py"), "--args", told], capture_output=True, text=True, timeout=30
    )
    return json.loads(done.stdout)


def test_a_containers_own_network_is_entered_where_we_may(contained):
    if os.geteuid():
        pytest.skip("only root enters another network")
    told = alone(contained)
    assert told["data"]["outcome"] == "ok" and "entered the network" in told["notes"][0]


def test_where_we_may_not_enter_it_that_is_the_reason(contained, tmp_path):
    setpriv = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    if os.geteuid() or subprocess.run([*setpriv, "true"], capture_output=True).returncode:
        pytest.skip("needs root and setpriv (util-linux)")
    told = alone(contained, *setpriv)
    assert told["data"]["outcome"] == "no_listener" and "which we may not enter" in told["data"]["why"]
