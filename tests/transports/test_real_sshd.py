"""Against OpenSSH's own sshd on loopback: what our embedded servers might be too kind to show."""

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest
import ssh_servers

from triage.gather import Fleet
from triage.model import Node
from triage.transports import payload, ssh

SSHD = shutil.which("sshd") or ("/usr/sbin/sshd" if os.path.exists("/usr/sbin/sshd") else None)
HEAD = 'PROBE = {"name": "%s", "version": 1, "timeout_s": %s, "cost": "cheap", "needs": [], "fields": {}}\n'
SOURCES = {
    "runner": HEAD % ("runner", 2) + "import os\ndef collect(ctx): return {'pid': os.getppid(), 'pad': 'x' * 200000}",
    "sleeps": HEAD % ("sleeps", 60) + "import time\ndef collect(ctx): time.sleep(600)",
}


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    if not SSHD:
        pytest.skip("needs sshd (openssh-server)")
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # sshd's privilege separation wants it
    folder = tmp_path_factory.mktemp("sshd")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        f"PidFile {folder}/pid\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\n"
        "KexAlgorithms curve25519-sha256\nMaxStartups 100\n"
    )
    daemon = subprocess.Popen([SSHD, "-D", "-f", folder / "config", "-E", folder / "log"])
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        if daemon.poll() is not None:
            pytest.skip(f"sshd does not start here: {(folder / 'log').read_text()[:200]}")
        time.sleep(0.05)
    public = " ".join((folder / "host.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {public}\n")
    yield {"port": port, "folder": folder}
    daemon.terminate()
    daemon.wait(5)


def transport(sshd, **more):
    folder = sshd["folder"]
    return ssh.make({"key": folder / "user", "known_hosts": folder / "known_hosts", **more})


def load(**settings):
    return payload.build(list(SOURCES), extra=SOURCES, nice=0, **settings)


def gone(pid, seconds):
    until = time.monotonic() + seconds
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
        time.sleep(0.02)
    return not os.path.exists(f"/proc/{pid}")


def test_two_looks_over_a_real_sshd_that_knows_only_the_plain_name_of_curve25519(sshd):
    nodes = [Node(f"gpu{i}", address="127.0.0.1", port=sshd["port"]) for i in range(4)]
    fleet = Fleet(nodes, transport(sshd), load())
    assert [c.status for c in fleet.open(10.0)] == ["ok"] * 4
    first, second = fleet.look("A", {"runner": {}}, 5.0), fleet.look("B", {"runner": {}}, 5.0)
    assert {s.status for s in [*first, *second]} == {"ok"}
    assert {s.data["pid"] for s in first} == {s.data["pid"] for s in second}
    fleet.close()
    assert all(gone(s.data["pid"], 3.0) for s in first)


def test_an_operator_that_is_killed_leaves_nothing_on_the_node(sshd):
    folder, port = sshd["folder"], sshd["port"]
    code = f"""
import sys
from triage.gather import Fleet
from triage.model import Node
from triage.transports import payload, ssh
sources = {SOURCES!r}
made = ssh.make({{"key": "{folder}/user", "known_hosts": "{folder}/known_hosts"}})
fleet = Fleet([Node("n", address="127.0.0.1", port={port})], made, payload.build(list(sources), extra=sources))
fleet.open(10.0)
print(fleet.look("A", {{"runner": {{}}}}, 5.0)[0].data["pid"], flush=True)
fleet.look("B", {{"sleeps": {{}}}}, 60.0)
"""
    operator = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(operator.stdout.readline())
    time.sleep(0.3)
    operator.kill()
    operator.wait()
    assert gone(pid, 2.0)
    operator.stdout.close()


def test_a_login_that_is_refused_names_user_and_key(sshd, tmp_path):
    (tmp_path / "other").write_text(ssh_servers.private_key())
    made = transport(sshd, key=tmp_path / "other", agent=False)
    fleet = Fleet([Node("gpu1", address="127.0.0.1", port=sshd["port"])], made, load())
    (contact,) = fleet.open(5.0)
    fleet.close()
    assert (contact.status, contact.data["phase"]) == ("error", "auth")
    assert contact.data["error"] == f"{getpass.getuser()} may not log in with key {tmp_path}/other"


def test_a_locked_key_works_if_an_agent_holds_it(sshd, tmp_path, monkeypatch):
    if not shutil.which("ssh-agent"):
        pytest.skip("needs ssh-agent (openssh-client)")
    folder = sshd["folder"]
    shutil.copy(folder / "user", tmp_path / "locked")
    shutil.copy(folder / "user.pub", tmp_path / "locked.pub")
    socket_path = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket_path], stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            if socket_path.exists():
                break
            time.sleep(0.02)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket_path))
        subprocess.run(["ssh-add", "-q", tmp_path / "locked"], check=True, capture_output=True)
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", tmp_path / "locked"], check=True)
        nodes = [Node(f"gpu{i}", address="127.0.0.1", port=sshd["port"]) for i in range(6)]
        fleet = Fleet(nodes, transport(sshd, key=tmp_path / "locked"), load())
        assert [c.status for c in fleet.open(10.0)] == ["ok"] * 6, "six threads share one agent"
        fleet.close()
    finally:
        agent.terminate()
        agent.wait(5)
