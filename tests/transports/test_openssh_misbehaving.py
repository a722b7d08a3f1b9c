"""The same hosts that misbehave, asked by the system's ssh: each is named by its phase, none outlives the deadline."""

import shutil
import time

import pytest
import ssh_servers
from test_ssh_misbehaving import CASES, load

from triage.gather import Fleet
from triage.model import Node
from triage.transports import base


@pytest.fixture(scope="module")
def hosts():
    if not shutil.which("ssh"):
        pytest.skip("needs ssh (openssh-client)")
    servers = {how: ssh_servers.Server(how) for how in [*CASES, ""]}
    yield servers
    for server in servers.values():
        server.stop()


def node(hosts, how):
    return Node(how.replace(" ", "-") or "good", address="127.0.0.1", port=hosts[how].port)


@pytest.fixture
def options(hosts, tmp_path):
    (tmp_path / "key").write_text(ssh_servers.private_key())
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "known_hosts").write_text("".join(s.known_hosts_line() for s in hosts.values()))
    return {"key": tmp_path / "key", "known_hosts": tmp_path / "known_hosts", "user": "oncall", "config": "none"}


def test_each_phase_is_told_by_what_ssh_says_and_nothing_outlives_the_deadline(hosts, options):
    fleet = Fleet([node(hosts, how) for how in hosts], base.load("openssh", options), load())
    began = time.monotonic()
    contacts = {s.node: s for s in fleet.open(5.0)}
    assert time.monotonic() - began < 6.5
    # ssh answers what it cannot read before a banner by waiting on, or by giving up, version by version.
    wanted = {how.replace(" ", "-"): phase for how, (phase, _) in CASES.items()}
    assert {name: contacts[name].data["phase"] for name in wanted} == wanted
    for how in ("silent", "kex", "auth", "channel", "exec", "output"):
        assert contacts[how].status == "timeout", contacts[how]
    assert (contacts["good"].status, contacts["refuse"].status) == ("ok", "error")
    assert "Permission denied" in contacts["refuse"].data["error"]
    assert contacts["auth"].data["fingerprint"].startswith("SHA256:")
    assert contacts["auth"].data["banner"].startswith("SSH-2.0-")
    assert contacts["silent"].data["banner"] == ""
    samples = {s.node: s for s in fleet.look("A", {"quick": {}}, 4.0)}
    fleet.close()
    assert samples["good"].data == {"sees": "A"}


def test_an_unknown_a_changed_and_a_revoked_key_are_refused_and_nothing_is_added(hosts, options, tmp_path):
    other = ssh_servers.host_key()
    port = hosts[""].port
    lines = {
        "host key is not known (SHA256:": "",
        "HOST KEY HAS CHANGED (SHA256:": f"[127.0.0.1]:{port} ssh-ed25519 {other.get_base64()}\n",
        "HOST KEY IS REVOKED (SHA256:": "@revoked " + hosts[""].known_hosts_line(),
    }
    for says, line in lines.items():
        (tmp_path / "known_hosts").write_text(line)
        fleet = Fleet([node(hosts, "")], base.load("openssh", options), load())
        (contact,) = fleet.open(6.0)
        fleet.close()
        assert (contact.status, contact.data["phase"]) == ("error", "kex"), contact
        assert contact.data["error"].startswith(says)
        assert (tmp_path / "known_hosts").read_text() == line


def test_a_refused_port_and_a_name_that_nobody_knows_are_told_by_phase(options):
    nodes = [Node("refused", address="127.0.0.1", port=1), Node("no-such-host.invalid")]
    fleet = Fleet(nodes, base.load("openssh", options), load())
    contacts = {s.node: s for s in fleet.open(6.0)}
    fleet.close()
    assert (contacts["refused"].data["phase"], contacts["no-such-host.invalid"].data["phase"]) == ("tcp", "resolve")
    assert "Connection refused" in contacts["refused"].data["error"]


def test_a_command_that_prints_sshs_own_lines_turns_no_clock_back(hosts, options):
    says = "echo 'debug1: Connecting to x [1.2.3.4] port 22.' >&2; echo 'debug1: Server host key: ssh-rsa SHA256:lie' >&2; exit 3"
    fleet = Fleet([node(hosts, "")], base.load("openssh", options), load(), command=says)
    (contact,) = fleet.open(6.0)
    fleet.close()
    assert contact.data["phase"] == "read"
    assert contact.data["fingerprint"] == hosts[""].key.fingerprint
