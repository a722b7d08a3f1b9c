"""The SSH server of a fake node behaves as a real one where triage can tell the difference."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest
from drill_helpers import alive, connect, wait_for

from triage.drill.cluster import Cluster
from triage.drill.sshd import GRACE_S


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, ranks_per_node=1, seed=21) as running:
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[paramiko.SSHClient]:
    with connect(cluster) as connected:
        yield connected


def run(client: paramiko.SSHClient, command: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    send, out, err = client.exec_command(command, timeout=20)
    if stdin:
        send.write(stdin)
    send.channel.shutdown_write()
    # Read first: the window of a channel is 2 MB, and a command that cannot write does not end.
    text = out.read()
    return out.channel.recv_exit_status(), text, err.read()


def test_exit_status_output_and_errors_come_back(client: paramiko.SSHClient) -> None:
    assert run(client, "echo out; echo err >&2; exit 37") == (37, b"out\n", b"err\n")
    assert run(client, "true") == (0, b"", b"")
    assert run(client, "no-such-command-here")[0] == 127
    assert run(client, "kill -9 $$")[0] == 128 + 9


def test_the_end_of_the_clients_input_is_the_end_of_the_commands(client: paramiko.SSHClient) -> None:
    assert run(client, "cat; echo done", b"abc\n") == (0, b"abc\ndone\n", b"")
    _, out, _ = client.exec_command("cat; echo done")
    assert not out.channel.exit_status_ready()
    out.channel.shutdown_write()
    assert out.read() == b"done\n"


def test_a_command_answers_while_its_input_stays_open(client: paramiko.SSHClient) -> None:
    send, out, _ = client.exec_command("while read line; do echo got $line; done; echo over")
    for word in ("one", "two"):
        send.write(word + "\n")
        send.flush()
        assert out.readline() == f"got {word}\n"
    send.channel.shutdown_write()
    assert out.read() == b"over\n" and out.channel.recv_exit_status() == 0


def test_large_outputs_and_inputs_arrive_whole(client: paramiko.SSHClient) -> None:
    code, out, _ = run(client, "head -c 8000000 /dev/zero")
    assert code == 0 and len(out) == 8_000_000
    code, out, _ = run(client, "wc -c", b"x" * 3_000_000)
    assert code == 0 and int(out) == 3_000_000


def test_commands_of_one_connection_run_side_by_side(client: paramiko.SSHClient) -> None:
    began = time.monotonic()
    outs = [client.exec_command("sleep 1; echo $SLURMD_NODENAME")[1] for _ in range(4)]
    assert len({out.read() for out in outs}) == 1
    assert time.monotonic() - began < 3


def test_the_environment_is_short_and_points_to_the_nodes_own_roots(
    cluster: Cluster, client: paramiko.SSHClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.plan.nodes[0]
    folder = cluster.plan.node_folder(node)
    env = dict(line.split("=", 1) for line in run(client, "env")[1].decode().splitlines())
    assert env["SLURMD_NODENAME"] == node
    assert [env[f"TRIAGE_{name}"] for name in ("PROCFS", "SYSFS", "ROOTFS")] == [
        str(folder / name) for name in ("proc", "sys", "root")
    ]
    assert set(env) <= {
        "PATH", "HOME", "SHELL", "LANG", "PWD", "OLDPWD", "SHLVL", "_", "SLURMD_NODENAME",
        "TRIAGE_PROCFS", "TRIAGE_SYSFS", "TRIAGE_ROOTFS",
    }  # fmt: skip
    # A session of its own, without a terminal and without foreign descriptors.
    assert run(client, "ps -o pid= -o sid= -p $$ 2>/dev/null || echo $$ $$")[1].split()[0:1] != []
    assert run(client, "ls /proc/$$/fd")[1].split()[:3] == [b"0", b"1", b"2"]


def test_a_command_dies_when_its_client_is_cut_off(cluster: Cluster) -> None:
    client = connect(cluster)
    _, out, _ = client.exec_command("echo $$; trap '' HUP TERM; while :; do sleep 0.2; done")
    pid = int(out.readline())
    assert alive(pid)
    transport = client.get_transport()
    assert transport is not None
    transport.sock.close()  # no goodbye
    client.close()
    wait_for(lambda: not alive(pid), GRACE_S + 3)


def test_a_command_that_ends_by_itself_on_eof_is_not_waited_for(cluster: Cluster) -> None:
    client = connect(cluster)
    _, out, _ = client.exec_command("echo $$; exec cat >/dev/null")
    pid = int(out.readline())
    client.close()
    wait_for(lambda: not alive(pid), 1.5)


def test_only_the_drills_key_and_user_come_in(cluster: Cluster) -> None:
    host = cluster.hosts[0]
    with pytest.raises(paramiko.AuthenticationException), paramiko.SSHClient() as client:
        client.load_host_keys(str(cluster.folder / "operator" / "known_hosts"))
        client.connect(host.address, host.port, "root", key_filename=str(cluster.folder / "operator" / "id_ed25519"),
                       look_for_keys=False, allow_agent=False)  # fmt: skip
    with pytest.raises(paramiko.AuthenticationException), paramiko.SSHClient() as client:
        client.load_host_keys(str(cluster.folder / "operator" / "known_hosts"))
        client.connect(host.address, host.port, cluster.plan.user, pkey=paramiko.RSAKey.generate(2048),
                       look_for_keys=False, allow_agent=False)  # fmt: skip


def test_no_shell_no_terminal_and_no_file_transfer(client: paramiko.SSHClient) -> None:
    with pytest.raises(paramiko.SSHException):
        client.invoke_shell()
    with pytest.raises(paramiko.SSHException):
        client.open_sftp()


def test_clients_that_say_nothing_or_rubbish_keep_nobody_out(cluster: Cluster) -> None:
    host = cluster.hosts[0]
    silent = [socket.create_connection((host.address, host.port)) for _ in range(5)]
    silent[0].sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
    with connect(cluster) as client:
        assert run(client, "echo here")[1] == b"here\n"
    for connection in silent:
        connection.close()


def test_many_connections_at_once_are_all_answered(cluster: Cluster) -> None:
    answers: list[bytes] = []

    def ask(number: int) -> None:
        with connect(cluster) as client:
            answers.append(run(client, f"echo {number}")[1])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(int(answer) for answer in answers) == list(range(8))


@pytest.mark.skipif(not shutil.which("ssh"), reason="OpenSSH's client is not installed")
def test_the_client_of_openssh_gets_in_with_strict_host_keys(cluster: Cluster) -> None:
    host, folder = cluster.hosts[0], cluster.folder / "operator"
    done = subprocess.run(
        ["ssh", "-F", "/dev/null", "-p", str(host.port), "-i", folder / "id_ed25519", "-o", "BatchMode=yes",
         "-o", "IdentitiesOnly=yes", "-o", f"UserKnownHostsFile={folder / 'known_hosts'}",
         "-o", "StrictHostKeyChecking=yes", f"{cluster.plan.user}@{host.address}", "cat; exit 5"],
        input=b"hello", capture_output=True, timeout=20, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (5, b"hello"), done.stderr


def test_nothing_that_was_started_here_is_left(cluster: Cluster) -> None:
    mark = str(cluster.folder).encode()
    known = set(cluster.processes())

    def strangers() -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes() and int(path.parent.name) not in known:
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    wait_for(lambda: not strangers(), GRACE_S + 4)


def test_a_cut_cable_is_silence_and_not_an_end() -> None:
    with Cluster(nodes=1, ranks_per_node=1, seed=22) as cluster:
        client = connect(cluster)
        send, out, _ = client.exec_command("echo $$; while read line; do echo got $line; done")
        pid = int(out.readline())
        fresh = socket.create_connection((cluster.hosts[0].address, cluster.hosts[0].port))
        cluster.send(cluster.plan.nodes[0], {"ssh": "down"})
        with pytest.raises(TimeoutError):
            wait_for(lambda: not socket.create_connection(fresh.getpeername(), timeout=0.3))
        # Who is connected hears nothing more, whatever he says, in every phase; the server does not notice, so the
        # command runs on and still waits for its input.
        send.write("hello\n")
        send.flush()
        out.channel.settimeout(0.5)
        with pytest.raises(TimeoutError):
            out.channel.recv(1)
        transport = client.get_transport()
        assert transport is not None and transport.is_active() and not out.channel.closed
        transport.close()
        time.sleep(GRACE_S + 0.7)  # a server that notices has killed it by then
        assert alive(pid)
        fresh.settimeout(0.2)
        heard = b""
        with pytest.raises(TimeoutError):
            while piece := fresh.recv(100):
                heard += piece
        assert heard in (b"", b"SSH-2.0-OpenSSH_9.2p1\r\n")  # the banner may have left before the cut
        fresh.close()
    assert not alive(pid) and not cluster.folder.exists()
