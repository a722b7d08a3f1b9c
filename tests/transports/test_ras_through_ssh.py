"""NCCL's RAS through the connection that is open: OpenSSH's own sshd, one that forwards nothing, a transport that cannot."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
import time

import pytest
import ras_server
import ssh_servers
from ras_server import Comm, Report
from test_real_sshd import SSHD, sshd, transport  # noqa: F401  (a fixture)

from triage import forward
from triage.asking import ASKED
from triage.gather import Fleet
from triage.model import Node, Sample
from triage.readers.shapes import problem
from triage.transports import local, payload, ssh

SPY = shutil.which("py-spy", path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]))
RANKS = [{"rank": 0, "pid": 40, "ns_pid": 40}, {"rank": 1, "pid": 41, "ns_pid": 41}]


def args(port, **more):
    told = {"ranks": RANKS, "world": 8, "init": "past", "gap_s": 0.2, "address": f"localhost:{port}"}
    return {**told, **more}


def fleet_of(made, *names, port=22):
    kept = []
    nodes = [Node(name, address="127.0.0.1", port=port) for name in names]
    fleet = Fleet(nodes, made, payload.build(["ras"], nice=0, deadline_s=30), on_sample=kept.append)
    assert [c.status for c in fleet.open(10.0)] == ["ok"] * len(names)
    kept.clear()
    return fleet, kept


def ask(fleet, kept, by_node, limit=8.0) -> list[Sample]:
    began = time.monotonic()
    forward.ask(fleet, by_node, limit, kept.append)
    assert time.monotonic() - began < limit + 1.5
    assert not [problem("ras", sample.data) for sample in kept if problem("ras", sample.data)]
    return [sample for sample in kept if sample.probe == "ras"]


def test_a_real_sshd_carries_the_dialogue_and_the_sample_is_the_probes_own(sshd, served):  # noqa: F811
    server = served(Report(Comm().more(5, by=-1)))
    fleet, kept = fleet_of(transport(sshd), "gpu1", "gpu2", port=sshd["port"])
    (sample,) = ask(fleet, kept, {name: args(server.port) for name in ("gpu1", "gpu2")})
    fleet.close()
    assert (sample.probe, sample.node, sample.look, sample.status) == ("ras", "gpu1", "C", "ok")
    assert (sample.data["outcome"], sample.data["road"], sample.data["queries"]) == ("ok", "ssh", 2)
    assert sample.data["first"]["comms"][0]["groups"][0][2] == "5" and "second" in sample.data
    assert sample.notes == ("asked through the SSH connection; nothing ran on the node",)
    assert server.heard.count("status") == 2, "the second node is not asked when the first has told"


def test_of_ranks_in_containers_the_node_is_asked_which_sees_who_else_listens(sshd, served):  # noqa: F811
    server = served(Report(Comm()))
    fleet, kept = fleet_of(transport(sshd), "gpu1", port=sshd["port"])
    rows = [{"rank": 0, "pid": 4000001, "ns_pid": 40}]
    forward.ask(fleet, {"gpu1": args(server.port, ranks=rows)}, 8.0, kept.append)
    fleet.close()
    assert [sample.status for sample in kept] == ["absent"]  # the node saw no such process
    assert not server.heard and server.connections == 0


def test_the_connection_is_good_for_looks_after_that(sshd, served):  # noqa: F811
    server = served(Report(Comm()), ways=["endless"])
    fleet, kept = fleet_of(transport(sshd), "gpu1", port=sshd["port"])
    (sample,) = ask(fleet, kept, {"gpu1": args(server.port)}, limit=4.0)
    assert sample.data["outcome"] in ("garbage", "timeout")
    (after,) = fleet.ask("ras", ["gpu1"], {"ranks": []}, limit_s=5.0)
    fleet.close()
    assert after.status == "absent"


def test_one_node_whose_processes_are_frozen_is_followed_by_the_next(sshd, served):  # noqa: F811
    frozen, well = served(Report(Comm()), ways=["silent"]), served(Report(Comm()))
    fleet, kept = fleet_of(transport(sshd), "gpu1", "gpu2", port=sshd["port"])
    first, second = ask(fleet, kept, {"gpu1": args(frozen.port), "gpu2": args(well.port)}, limit=14.0)
    fleet.close()
    assert (first.data["outcome"], second.data["outcome"]) == ("handshake_silent", "ok")


def test_where_nobody_listens_the_node_itself_says_why(sshd):  # noqa: F811
    child = subprocess.Popen(["sleep", "30"], env={**os.environ, "RANK": "0", "NCCL_RAS_ENABLE": "0"})
    try:
        fleet, kept = fleet_of(transport(sshd), "gpu1", port=sshd["port"])
        told = args(1, ranks=[{"rank": 0, "pid": child.pid, "ns_pid": child.pid}])
        (sample,) = ask(fleet, kept, {"gpu1": told})
        fleet.close()
    finally:
        child.kill()
        child.wait()
    assert (sample.data["outcome"], sample.data["road"]) == ("no_listener", "node")
    assert "NCCL_RAS_ENABLE=0" in sample.data["why"]


def answers(port, daemon, seconds=10.0):
    """Does this daemon come to listen, before it ends?"""
    end = time.monotonic() + seconds
    while daemon.poll() is None and time.monotonic() < end:
        with socket.socket() as line:
            if line.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.05)
    return False


@pytest.fixture
def forwards_nothing(sshd, tmp_path):  # noqa: F811
    """The same server, but without forwarding."""
    folder = sshd["folder"]
    lines = [line for line in (folder / "config").read_text().splitlines() if not line.startswith(("Port", "PidFile"))]
    public = (folder / "known_hosts").read_text().split(maxsplit=1)[1]
    for _ in range(10):  # whoever chose a free port may find it taken a moment later
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (tmp_path / "config").write_text(
            "\n".join([*lines, f"Port {port}", f"PidFile {tmp_path}/pid", "AllowTcpForwarding no"]) + "\n"
        )
        daemon = subprocess.Popen([SSHD, "-D", "-f", tmp_path / "config", "-E", tmp_path / "log"])
        if answers(port, daemon):
            break
    else:
        pytest.fail(f"a second sshd does not start here: {(tmp_path / 'log').read_text()[-200:]}")
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {public}")
    yield transport(sshd, known_hosts=tmp_path / "known_hosts"), port
    daemon.terminate()
    daemon.wait(5)


@pytest.fixture
def rank():
    """A process of the job that listens for RAS, on a port of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    child = subprocess.Popen(
        [sys.executable, ras_server.__file__, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "2", "NCCL_RAS_ADDR": f"localhost:{port}"},
    )
    assert child.stdout.readline() == "ready\n"
    yield child.pid, port
    child.stdin.close()
    child.stdout.close()
    child.wait(5)


def test_a_server_that_forwards_nothing_leaves_it_to_the_probe_on_the_node(forwards_nothing, rank):
    made, port = forwards_nothing
    pid, listening = rank
    fleet, kept = fleet_of(made, "gpu1", port=port)
    with pytest.raises(PermissionError):
        fleet.dial("gpu1", "127.0.0.1", listening, time.monotonic() + 3)
    told = args(listening, world=2, ranks=[{"rank": 0, "pid": pid, "ns_pid": pid}])
    (sample,) = ask(fleet, kept, {"gpu1": told})
    fleet.close()
    assert (sample.data["outcome"], sample.data["road"], sample.data["queries"]) == ("ok", "node", 2)


def test_a_transport_that_cannot_dial_leaves_it_to_the_probe_on_the_node(rank):
    pid, listening = rank
    fleet, kept = fleet_of(local.make({}), "here")
    told = args(listening, world=2, ranks=[{"rank": 0, "pid": pid, "ns_pid": pid}])
    (sample,) = ask(fleet, kept, {"here": told})
    fleet.close()
    assert (sample.data["outcome"], sample.data["road"]) == ("ok", "node")


class Dialled:
    """A fleet that only counts where it was sent."""

    def __init__(self):
        self.dialled, self.asked = [], []

    def dial(self, node, host, port, deadline):
        self.dialled.append((host, port))
        raise ConnectionRefusedError

    def ask(self, probe, nodes, args, *, limit_s):
        self.asked += nodes
        return [Sample(probe, nodes[0], "C", "ok", {"outcome": "no_listener"})]


@pytest.mark.parametrize(
    "more",
    [
        {"address": "10.0.0.5:22"},  # an environment of a node must not send us through it to another machine
        {"address": "gpu002:28028"},
        {"address": "localhost:0"},
        {"init": "during", "nccl": "2.30.7"},
        {"init": "unclear"},
        {"init": "unclear", "nccl": "2.26.2"},
    ],
)
def test_where_it_could_go_wrong_nobody_is_dialled_from_here_and_the_node_decides(more):
    fleet = Dialled()
    forward.ask(fleet, {"gpu1": args(28028, **more)}, 8.0, lambda sample: None)
    assert (fleet.dialled, fleet.asked) == ([], ["gpu1"])


def test_without_a_setting_both_loopbacks_are_tried_at_the_usual_port():
    fleet = Dialled()
    forward.ask(fleet, {"gpu1": args(0, address="")}, 8.0, lambda sample: None)
    assert fleet.dialled == [("127.0.0.1", 28028), ("::1", 28028)]


def test_two_nodes_are_asked_at_most():
    assert ASKED["ras"].most == 2


def test_a_server_that_never_answers_a_forwarding_costs_its_time_limit_and_no_more(tmp_path, monkeypatch):
    asked_for = threading.Event()

    def hangs(self, chanid, origin, destination):
        asked_for.set()
        self.release.wait()
        return 1

    monkeypatch.setattr(ssh_servers.Behaviour, "check_channel_direct_tcpip_request", hangs)
    server = ssh_servers.Server()
    (tmp_path / "key").write_text(ssh_servers.private_key())
    (tmp_path / "known_hosts").write_text(server.known_hosts_line())
    made = ssh.make({"key": tmp_path / "key", "known_hosts": tmp_path / "known_hosts", "agent": False})
    fleet, _ = fleet_of(made, "gpu1", port=server.port)
    began = time.monotonic()
    with pytest.raises(OSError):
        fleet.dial("gpu1", "127.0.0.1", 28028, time.monotonic() + 1.0)
    assert asked_for.is_set() and time.monotonic() - began < 2.5
    fleet.close()
    server.stop()


@pytest.fixture
def job(tmp_path):
    """Two ranks of a job on this machine: alive, without a flight recorder; by NCCL's counts rank 1 is behind."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "MASTER_ADDR": "gpu001", "MASTER_PORT": "29"}
    env.update({"SLURM_JOB_ID": "4711", "NCCL_RAS_ADDR": f"localhost:{port}", "HOME": str(tmp_path)})
    running = [
        subprocess.Popen(
            [sys.executable, ras_server.__file__, str(port), "tell"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], **env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    for child in running:
        child.stdin.write(f"{running[0].pid} {running[1].pid} 1\n")
        child.stdin.flush()
        assert child.stdout.readline() == "ready\n"
    yield
    for child in running:
        child.stdin.close()
        child.stdout.close()
        child.wait(5)


@pytest.mark.skipif(SPY is None, reason="py-spy is not installed (pip install -e '.[dev]')")
def test_a_job_without_flight_records_is_asked_through_the_connection_and_the_laggard_is_named_with_its_stack(
    sshd,  # noqa: F811
    job,
    tmp_path,
):
    time.sleep(2.5)  # steps are dated to a second, and those before the processes began are of another attempt
    last = int(time.time())
    lines = [
        f"[{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(last - (i < 10)))}] iteration {i}/1000 | "
        "elapsed time per iteration (ms): 100.0 | lm loss: 2.0E+00 |\n"
        for i in range(1, 21)
    ]
    log = tmp_path / "job.log"
    log.write_text("".join(lines))
    (tmp_path / "profile.yaml").write_text("version: 1\nthresholds: {progress_floor_s: 5}\n")
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(last - 30))
    document = {
        "version": 1,
        "jobs": {"4711": {"nodes": "gpu001", "log": str(log), "state": "running", "started": began,
                          "match": {"SLURM_JOB_ID": "4711"}}},
        "hosts": {"gpu001": {"address": "127.0.0.1", "port": sshd["port"], "user": getpass.getuser()}},
        "ssh": {"key": str(sshd["folder"] / "user"), "known_hosts": str(sshd["folder"] / "known_hosts")},
    }  # fmt: skip
    (tmp_path / "inventory.yaml").write_text(json.dumps(document))
    done = subprocess.run(
        [sys.executable, "-m", "triage", "frozen-job", "4711", "--inventory", tmp_path / "inventory.yaml",
         "--state-dir", tmp_path / "state", "--profile", tmp_path / "profile.yaml", "--no-poke", "--output", "json"],
        capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["verdict"]["cause"] == "stuck_rank/launches", found["walk"][-3:]
    assert [c["rank"] for c in found["culprits"]] == [1] and found["verdict"]["confidence"] in ("low", "medium")
    assert any(line.startswith("2 sources agree: ras, stacks") for line in found["verdict"]["why"])
    (case,) = (tmp_path / "state" / "cases").iterdir()
    samples = [json.loads(line) for line in (case / "samples.jsonl").read_text().splitlines()]
    (told,) = [sample["data"] for sample in samples if sample["probe"] == "ras"]
    assert (told["outcome"], told["road"], told["queries"]) == ("ok", "ssh", 2) and told["gap_s"] >= 10
    replayed = subprocess.run(
        [sys.executable, "-m", "triage", "replay", case, "--output", "json"], capture_output=True, text=True, timeout=60
    )
    assert replayed.stdout == done.stdout
