"""Hosts that misbehave (notes/fanout-and-schedulers.md 1.4): each is named by its phase, none delays the others."""

import logging
import socket
import time

import paramiko
import pytest
import ssh_servers

from triage.errors import ConfigError
from triage.gather import Fleet
from triage.model import Node
from triage.transports import base, payload, ssh

PROBE = """
PROBE = {"name": "quick", "version": 1, "timeout_s": 1.0, "cost": "cheap", "needs": [], "fields": {}}
def collect(ctx): return {"sees": ctx.look}
"""

# how it misbehaves: (phase, status) of its contact
CASES = {
    "tcp": ("tcp", "timeout"),
    "silent": ("banner", "timeout"),
    "pre-banner lines": ("banner", "timeout"),
    "kex": ("kex", "timeout"),
    "auth": ("auth", "timeout"),
    "channel": ("channel", "timeout"),
    "exec": ("exec", "timeout"),
    "output": ("read", "timeout"),
    "endless": ("read", "error"),
    # and three that end at once
    "pre-banner flood": ("banner", "error"),
    "closes": ("banner", "error"),
    "refuse": ("auth", "error"),
}


@pytest.fixture(autouse=True)
def quiet_servers():
    logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)


@pytest.fixture(scope="module")
def hosts():
    servers = {how: ssh_servers.Server(how) for how in [*CASES, ""]}
    yield servers
    for server in servers.values():
        server.stop()


@pytest.fixture
def options(hosts, tmp_path):
    (tmp_path / "key").write_text(ssh_servers.private_key())
    (tmp_path / "known_hosts").write_text("".join(s.known_hosts_line() for s in hosts.values()))
    return {"key": str(tmp_path / "key"), "known_hosts": str(tmp_path / "known_hosts"), "user": "oncall"}


def node(hosts, how):
    return Node(how or "good", address="127.0.0.1", port=hosts[how].port)


def load():
    return payload.build(["quick"], extra={"quick": PROBE}, nice=0)


def test_each_is_named_by_its_phase_within_the_limit_and_the_good_node_is_not_delayed(hosts, options):
    arrived = {}
    began = time.monotonic()
    fleet = Fleet(
        [node(hosts, how) for how in hosts],
        ssh.make(options),
        load(),
        on_sample=lambda s: arrived.setdefault((s.node, s.probe), time.monotonic() - began),
    )
    contacts = {s.node: s for s in fleet.open(2.5)}
    assert time.monotonic() - began < 3.0
    assert set(contacts) == {*CASES, "good"}
    assert {n: (contacts[n].data["phase"], contacts[n].status) for n in CASES} == CASES
    assert contacts["good"].status == "ok"
    assert arrived[("good", "contact")] < 2.0
    for how in ("kex", "auth", "channel", "exec", "output", "endless"):
        assert contacts[how].data["banner"].startswith("SSH-2.0-"), "a banner means that the kernel lives"
    for how in ("tcp", "silent"):
        assert contacts[how].data["banner"] == ""
        assert contacts[how].data["error"]
    assert contacts["auth"].data["fingerprint"].startswith("SHA256:")

    began = time.monotonic()
    samples = {s.node: s for s in fleet.look("A", {"quick": {}}, 3.0)}
    assert time.monotonic() - began < 1.5, "who is lost is not waited for again"
    assert samples["good"].data == {"sees": "A"}
    for how, (phase, status) in CASES.items():
        assert (samples[how].status, samples[how].data) == (status, {})
        assert f"phase {phase}" in samples[how].notes[0]
    fleet.close()


def test_each_phase_keeps_its_own_limit_long_before_the_deadline(hosts, options):
    limits = dict.fromkeys(ssh.PHASE_S, 0.5)
    hung = [how for how, (phase, status) in CASES.items() if status == "timeout" and phase != "read"]
    fleet = Fleet([node(hosts, how) for how in hung], ssh.make({**options, "limits": limits}), load())
    began = time.monotonic()
    contacts = {s.node: s for s in fleet.open(20.0)}
    assert time.monotonic() - began < 4.0
    for how in hung:
        phase = CASES[how][0]
        assert (contacts[how].data["phase"], contacts[how].status) == (phase, "timeout")
        assert 0.4 < contacts[how].data["seconds"][phase] < 2.0
        assert "within 0.5 s" in contacts[how].data["error"]
    fleet.close()


def test_more_slow_handshakes_than_places_do_not_starve_a_good_node(hosts, options, monkeypatch):
    monkeypatch.setattr(ssh, "HANDSHAKES", 2)
    monkeypatch.setattr(ssh, "SLOT_S", 0.3)
    stuck = [Node(f"stuck{i}", address="127.0.0.1", port=hosts["auth"].port) for i in range(6)]
    fleet = Fleet([*stuck, node(hosts, "")], ssh.make(options), load())
    contacts = {s.node: s for s in fleet.open(4.0)}
    assert contacts["good"].status == "ok"
    assert {contacts[n.name].data["phase"] for n in stuck} == {"auth"}
    fleet.close()


def test_a_refused_port_and_a_name_that_nobody_knows_end_at_once(options):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = [
        Node("refused", address="127.0.0.1", port=port),
        Node("nameless", address="no-such-host.invalid"),
        Node("odd", address="x" * 300),
    ]
    fleet = Fleet(nodes, ssh.make(options), load())
    contacts = {s.node: s for s in fleet.open(5.0)}
    assert (contacts["refused"].data["phase"], contacts["refused"].data["error"]) == ("tcp", "Connection refused")
    assert contacts["nameless"].data["phase"] == "resolve"
    assert contacts["odd"].data["phase"] == "resolve"
    fleet.close()


def test_an_unknown_host_key_is_refused_with_its_fingerprint_and_the_one_fix(hosts, options, tmp_path):
    (tmp_path / "known_hosts").write_text("")
    fleet = Fleet([node(hosts, "")], ssh.make(options), load())
    (contact,) = fleet.open(3.0)
    fleet.close()
    port = hosts[""].port
    assert (contact.status, contact.data["phase"]) == ("error", "kex")
    assert contact.data["error"] == (
        f"host key is not known ({contact.data['fingerprint']}). "
        f"Check it, then: ssh-keyscan -p {port} 127.0.0.1 >> ~/.ssh/known_hosts"
    )
    assert (tmp_path / "known_hosts").read_text() == "", "nothing is ever added by us"


def test_a_changed_and_a_revoked_host_key_are_told_louder(hosts, options, tmp_path):
    other = ssh_servers.host_key()
    port = hosts[""].port
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} ssh-ed25519 {other.get_base64()}\n")
    fleet = Fleet([node(hosts, "")], ssh.make(options), load())
    (contact,) = fleet.open(3.0)
    fleet.close()
    assert contact.data["error"].startswith("HOST KEY HAS CHANGED")
    assert f"known_hosts:1 says {other.fingerprint}" in contact.data["error"]
    assert f"ssh-keygen -R '[127.0.0.1]:{port}' -f " in contact.data["error"]
    (tmp_path / "known_hosts").write_text("@revoked " + hosts[""].known_hosts_line())
    fleet = Fleet([node(hosts, "")], ssh.make(options), load())
    (contact,) = fleet.open(3.0)
    fleet.close()
    assert contact.data["error"].startswith("HOST KEY IS REVOKED")


def test_a_hashed_entry_of_another_key_type_makes_us_ask_for_that_type(options, tmp_path):
    # The server has two keys and would show ed25519; only the other one is known, behind a hash.
    import base64
    import hmac
    import os

    server = ssh_servers.Server()
    ecdsa = paramiko.ECDSAKey.generate()
    both = paramiko.Transport.add_server_key

    def add_both(self, key):
        both(self, key)
        both(self, ecdsa)

    salt = os.urandom(20)
    name = f"[127.0.0.1]:{server.port}"
    digest = hmac.digest(salt, name.encode(), "sha1")
    hashed = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
    (tmp_path / "known_hosts").write_text(f"{hashed} {ecdsa.get_name()} {ecdsa.get_base64()}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paramiko.Transport, "add_server_key", add_both)
        fleet = Fleet([Node("good", address="127.0.0.1", port=server.port)], ssh.make(options), load())
        (contact,) = fleet.open(4.0)
        fleet.close()
    server.stop()
    assert contact.status == "ok", contact
    assert contact.data["fingerprint"] == ecdsa.fingerprint


def test_what_the_shell_says_before_it_ends_is_the_reason(hosts, options):
    command = "echo This account is currently not available.; echo ask your admin >&2; exit 1"
    fleet = Fleet([node(hosts, "")], ssh.make(options), load(), command=command)
    (contact,) = fleet.open(3.0)
    fleet.close()
    assert (contact.status, contact.data["phase"]) == ("error", "read")
    assert "This account is currently not available." in contact.data["error"]
    assert "ask your admin" in contact.data["error"] and "exit 1" in contact.data["error"]


def test_a_key_that_cannot_be_used_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(ConfigError, match="no such file"):
        ssh.make({"key": str(tmp_path / "absent")})
    (tmp_path / "locked").write_text(ssh_servers.private_key(b"secret"))
    with pytest.raises(ConfigError, match=f"is encrypted and no agent holds it. Do: ssh-add {tmp_path}/locked"):
        ssh.make({"key": str(tmp_path / "locked")})
    (tmp_path / "broken").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nno\n-----END OPENSSH PRIVATE KEY-----\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        ssh.make({"key": str(tmp_path / "broken")})
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="no SSH key to log in with"):
        ssh.make({})
    for bad in ({"key": 3}, {"key": str(tmp_path / "locked"), "limits": {"kex": -1}}, {"limits": 3}):
        with pytest.raises(ConfigError):
            ssh.make({"known_hosts": [], **bad})


def test_an_agent_that_never_answers_is_given_up_and_told(tmp_path, monkeypatch):
    from triage.transports import ssh_keys

    monkeypatch.setattr(ssh_keys, "PATIENCE_S", 0.3)
    (tmp_path / "key").write_text(ssh_servers.private_key())
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(tmp_path / "agent"))
        agent.listen(1)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        began = time.monotonic()
        transport = ssh.make({"key": str(tmp_path / "key"), "known_hosts": str(tmp_path / "none")})
        assert time.monotonic() - began < 1.5
    assert any("agent does not answer" in p for p in transport.problems)


def test_a_transport_is_found_by_the_name_of_its_file():
    assert base.load("local").name == "local"
    with pytest.raises(Exception, match=r"no transport is called 'carrier-pigeon'; there are: .*local.*ssh"):
        base.load("carrier-pigeon")
