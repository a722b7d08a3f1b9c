"""The control plane of a rank: asked where it is proven to be the rank's own, and never a byte to anything else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import _control_plane as plane
import pytest
from control_planes import DUMP
from triage.probes import flight_recorder as probe
from triage.probes._probe import Ctx

from triage.readers.shapes import problem

SCRIPT = Path(__file__).with_name("control_planes.py")
TORCHS = "pt_workerserver"


class Server:
    """A child that listens; `place` is its path or port."""

    def __init__(self, kind, place, named="", environ=None, rank=None):
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **(environ or {})}
        if rank is not None:
            env.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
        self.child = subprocess.Popen(
            [sys.executable, str(SCRIPT), kind, str(place), named],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True,
        )  # fmt: skip
        self.pid, self.env = self.child.pid, env
        self.place = self.child.stdout.readline().split()[1]

    def end(self):
        self.child.kill()
        return self.child.communicate()[0]


@contextmanager
def serving(*args, **kwargs):
    server = Server(*args, **kwargs)
    try:
        yield server
    finally:
        server.end()


def find(server, environ=None):
    return plane.find(Ctx(), server.pid, server.env if environ is None else environ)


def ask(found, handler="fr_trace_json", limit_s=2.5, **more):
    return plane.ask_all({0: (found, handler)}, limit_s, **more)[0]


@pytest.fixture
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("s")


# ---------------------------------------------------------------- what proves it


def test_a_unix_socket_that_the_environment_names_and_the_rank_itself_holds_is_asked(folder):
    path = folder / "s"
    with serving("ok", path, environ={plane.SOCKET_NAME: str(path)}) as server:
        found, why = find(server)
        answer = ask(found)
    assert (why, answer.status, answer.why) == ("", 200, "") and json.loads(answer.body) == DUMP


def test_a_name_that_two_ranks_inherited_is_asked_of_neither_but_the_one_that_could_bind_it(folder):
    path = folder / "s"
    with serving("log", path) as owner, serving("ok", folder / "t", environ={plane.SOCKET_NAME: str(path)}) as other:
        found, _ = find(other)
        answer = ask(found)
        heard = owner.end()
    assert (
        answer.status is None and f"belongs to process {owner.pid}" in answer.why and "nothing was sent" in answer.why
    )
    assert heard.replace("heard b''\n", "") == ""  # whose server it is, only a connection tells; nothing was said


def test_a_port_is_asked_where_the_thread_that_pytorch_names_so_accepts_on_it():
    with serving("ok", "127.0.0.1", TORCHS) as server:
        found, _ = find(server, {})
        answer = ask(found)
    assert found.address == ("127.0.0.1", int(server.place)) and answer.good


def test_a_server_on_the_wildcard_is_reached_over_the_loopback():
    with serving("ok", "0.0.0.0", TORCHS) as server:
        found, _ = find(server, {})
        answer = ask(found)
    assert found.address == ("127.0.0.1", int(server.place)) and answer.good


@pytest.mark.parametrize("named", ["", "pt_workerserve", "store", "uvicorn"])
def test_a_port_of_a_users_server_a_store_or_nccl_gets_no_connection_at_all(named):
    with serving("log", "127.0.0.1", named) as server:
        found, why = find(server, {})
        heard = server.end()
    assert (found, why) == (None, "") and heard == ""


def test_a_socket_that_the_program_named_after_it_began_is_known_by_its_thread(folder):
    with serving("ok", folder / "s", TORCHS) as server:
        found, _ = find(server, {})
        assert ask(found, "ping").body == b"pong"


def test_a_long_path_is_reached_all_the_same(folder):
    deep = folder / ("d" * 120)
    deep.mkdir()
    os.symlink(deep, folder / "l")
    with serving("ok", folder / "l" / "s") as server:
        found, _ = find(server, {plane.SOCKET_NAME: str(deep / "s")})
        assert ask(found).good


def test_a_port_that_another_process_has_since_the_proof_gets_no_byte():
    with serving("ok", "127.0.0.1", TORCHS) as server:
        found, _ = find(server, {})
        found.inode = "1"
        answer = ask(found)
    assert answer.status is None and "nothing was sent" in answer.why


def test_a_control_plane_in_another_network_namespace_is_not_looked_for_in_ours(tmp_path):
    with serving("ok", "127.0.0.1", TORCHS) as server:
        fake = tmp_path / str(server.pid)
        for name in ("task", "fd", "net"):
            fake.mkdir(exist_ok=True)
            os.symlink(f"/proc/{server.pid}/{name}", fake / name)
        (fake / "ns").mkdir()
        os.symlink("net:[1]", fake / "ns" / "net")
        ctx = Ctx(procfs=str(tmp_path))
        ctx.real = True
        found, why = plane.find(ctx, server.pid, {})
    assert found is None and "network" in why


def test_in_a_folder_of_files_nobody_is_asked_and_in_one_of_links_to_processes_they_are(folder, tmp_path):
    path = str(folder / "s")
    with serving("ok", path, environ={plane.SOCKET_NAME: path}) as server:
        (tmp_path / "files" / str(server.pid)).mkdir(parents=True)
        (tmp_path / "links").mkdir()
        os.symlink(f"/proc/{server.pid}", tmp_path / "links" / str(server.pid))
        files, links = (Ctx(procfs=str(tmp_path / name)) for name in ("files", "links"))
        assert plane.find(files, server.pid, server.env) == (None, "not asked: other root")
        assert ask(plane.find(links, server.pid, server.env)[0], "ping").good


# ---------------------------------------------------------------- what may come back


def test_a_stopped_process_whose_kernel_takes_the_connection_costs_its_limit_and_is_evidence(folder):
    path = folder / "s"
    with serving("ok", path, environ={plane.SOCKET_NAME: str(path)}) as server:
        found, _ = find(server)
        os.kill(server.pid, signal.SIGSTOP)
        while Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
        began = time.monotonic()
        answer = ask(found, limit_s=0.4)
    assert answer.silent and "did not answer within 0.4 s" in answer.why and time.monotonic() - began < 1.5


def test_a_socket_file_whose_process_is_gone_is_said_so(folder):
    path = folder / "s"
    with serving("ok", path, environ={plane.SOCKET_NAME: str(path)}) as server:
        found, _ = find(server)
    answer = ask(found)
    assert answer.status is None and "cannot be reached" in answer.why


def test_an_answer_that_never_ends_is_cut(folder):
    path = folder / "s"
    with serving("flood", path, environ={plane.SOCKET_NAME: str(path)}) as server:
        answer = ask(find(server)[0], limit=4 << 20)
    assert answer.status is None and "more than 4 MiB" in answer.why


def test_what_is_no_http_is_no_answer(folder):
    path = folder / "s"
    with serving("garbage", path, environ={plane.SOCKET_NAME: str(path)}) as server:
        answer = ask(find(server)[0])
    assert answer.status is None and "HTTP" in answer.why


def test_chunks_are_put_together(folder):
    path = folder / "s"
    with serving("chunked", path, environ={plane.SOCKET_NAME: str(path)}) as server:
        assert json.loads(ask(find(server)[0]).body) == DUMP


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"HTTP/1.1", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nabc",
    ],
)  # fmt: skip
def test_half_an_answer_is_not_a_whole_one(raw):
    assert plane.parse(raw)[2] is False


def test_many_are_asked_side_by_side(folder):
    with (
        serving("mute", folder / "a") as one,
        serving("mute", folder / "b") as two,
        serving("ok", folder / "c") as three,
    ):
        wanted = {}
        for key, server in enumerate((one, two, three)):
            wanted[key] = (find(server, {plane.SOCKET_NAME: server.place})[0], "ping")
        began = time.monotonic()
        answers = plane.ask_all(wanted, 0.5)
        took = time.monotonic() - began
    assert answers[2].body == b"pong" and answers[0].silent and answers[1].silent and took < 0.95


# ---------------------------------------------------------------- the flight recorder


def collected(servers, **args):
    ranks = [{"rank": rank, "pid": server.pid} for rank, server in enumerate(servers)]
    data = probe.collect(Ctx(args={"ranks": ranks, **args}, deadline=time.monotonic() + 10))
    assert problem("flight_recorder", data) is None
    return data["ranks"]


def test_a_rank_with_a_control_plane_tells_its_record_without_a_file_or_a_poke(folder):
    path = folder / "s"
    with serving("ok", path, environ={plane.SOCKET_NAME: str(path)}, rank=0) as server:
        (row,) = collected([server], poke=True)
    assert (row["source"], row["http"], row["poke"], row["stale"]) == ("http", "answered", "not_needed", False)
    assert row["record"]["n"] == 1 and row["record"]["open"][0]["seq"] == 1 and row["age_s"] < 5


def test_what_the_old_file_had_said_is_kept_beside_the_answer(folder):
    path, prefix = folder / "s", folder / "d_"
    (folder / "d_0").write_text(json.dumps(DUMP))
    env = {plane.SOCKET_NAME: str(path), "TORCH_FR_DUMP_TEMP_FILE": str(prefix)}
    with serving("ok", path, environ=env, rank=0) as server:
        os.utime(folder / "d_0", (time.time() + 5, time.time() + 5))
        (row,) = collected([server])
    assert row["source"] == "http" and row["before"]["groups"] == {"0": [1, None]}


def test_a_silent_control_plane_leaves_the_file_in_force_and_is_told(folder):
    path, prefix = folder / "s", folder / "d_"
    (folder / "d_0").write_text(json.dumps(DUMP))
    env = {plane.SOCKET_NAME: str(path), "TORCH_FR_DUMP_TEMP_FILE": str(prefix)}
    with serving("mute", path, environ=env, rank=0) as server:
        os.utime(folder / "d_0", (time.time() + 5, time.time() + 5))
        began = time.monotonic()
        (row,) = collected([server])
    assert row["source"] == "file" and "did not answer within 2.5 s" in row["http"]
    assert time.monotonic() - began < 4.5  # and it is not asked a second time


def test_a_rank_without_a_control_plane_is_none_and_no_note(folder):
    with serving("ok", folder / "s", rank=0) as server:
        (row,) = collected([server])
    assert (row["source"], row["http"], row["poke"]) == ("none", "none", "not_asked")


def test_a_dump_that_is_no_dump_is_told_and_not_believed(folder):
    path = folder / "s"
    with serving("chunked", path, environ={plane.SOCKET_NAME: str(path)}, rank=0) as server:
        assert collected([server])[0]["source"] == "http"
    bad = plane.Answer(200, b"[" * 100000)
    place = probe._places().Place(0, 1)
    probe.hear(Ctx(), place, bad, {})
    assert place.source == "none" and "cannot be read" in place.http


# ---------------------------------------------------------------- PyTorch's own

TORCH_RANK = """
import sys, threading
from torch._C._distributed_c10d import _WorkerServer
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
import torch
dist.all_reduce(torch.ones(4))
server = _WorkerServer(*([sys.argv[1]] if sys.argv[1].startswith("/") else ["::", 0]))
print("ready", flush=True)
def wait_for_ever():
    threading.Event().wait()
wait_for_ever()
"""


@contextmanager
def torch_rank(place):
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    if place.startswith("/"):
        env[plane.SOCKET_NAME] = place
    child = subprocess.Popen(
        [python_with_torch(), "-c", TORCH_RANK, place],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
        text=True,
    )
    try:
        assert child.stdout.readline() == "ready\n"
        child.env = env
        yield child
    finally:
        child.kill()
        child.communicate()


def python_with_torch():
    """This interpreter where it has torch, else one that the environment names for these tests."""
    told = os.environ.get("TRIAGE_TEST_TORCH_PYTHON")
    if told:
        return told
    pytest.importorskip("torch", reason="PyTorch is not installed here")
    return sys.executable


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_pytorchs_own_worker_server_is_proven_and_tells_the_flight_record_and_the_traceback(folder, kind):
    with torch_rank(str(folder / "s") if kind == "unix" else "tcp") as child:
        end = time.monotonic() + 10.0
        while (told := plane.find(Ctx(), child.pid, child.env))[0] is None and time.monotonic() < end:
            time.sleep(0.05)  # its thread may not have come to accept() yet
        found, why = told
        assert found is not None, why
        trace = ask(found, "dump_traceback", 10.0)
        (row,) = collected([child], poke=True)
    assert row["http"] == "answered" and row["source"] == "http" and row["record"]["n"] == 1
    assert b"wait_for_ever" in trace.body
