"""An ssh_config with Include, Match, two jump hosts, an alias and a certificate, over real sshds: right, or refused with words."""

import base64
import hmac
import os
import shutil
import subprocess

import pytest
import ssh_servers
from sshd_here import Sshd, keygen, public

from triage.gather import Fleet
from triage.model import Node
from triage.transports import base, payload, ssh_config

PROBE = """
PROBE = {"name": "quick", "version": 1, "timeout_s": 5.0, "cost": "cheap", "needs": [], "fields": {}}
def collect(ctx): return {"sees": ctx.look}
"""
LOAD = payload.build(["quick"], extra={"quick": PROBE}, nice=0)


def hashed(name):
    salt = os.urandom(20)
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


class Site:
    """A node behind two jump hosts; its sshd takes certificates only; its home is a folder of the test."""

    def __init__(self, folder):
        self.folder, self.home = folder, folder / "home" / ".ssh"
        self.home.mkdir(parents=True, mode=0o700)
        for name in ("user", "jump", "ca", "host_ca"):
            keygen(folder / name)
        subprocess.run(
            ["ssh-keygen", "-q", "-s", folder / "ca", "-I", "me", "-n", "root", folder / "user.pub"], check=True
        )
        shutil.move(folder / "user-cert.pub", folder / "signed.pub")  # not where it would be found by itself
        jump = public(folder / "jump") + "\n"
        self.jump1 = Sshd(folder, "jump1", authorized=jump)
        self.jump2 = Sshd(folder, "jump2", authorized=jump)
        self.node = Sshd(folder, "node", f"TrustedUserCAKeys {folder}/ca.pub")
        self.config(
            f"Include conf.d/*\nMatch originalhost gpu0* user root\n  HostKeyAlias the-node\n  UserKnownHostsFile {folder}/known\n",
            f"Host gpu*  # the nodes\n  HostName 127.0.0.1\n  Port {self.node.port}\n  ProxyJump root@first,second\n"
            f"  IdentityFile {folder}/user\n  CertificateFile {folder}/signed.pub\n  IdentitiesOnly yes\n"
            f"Host first second\n  HostName 127.0.0.1\n  IdentityFile {folder}/jump\n  UserKnownHostsFile {folder}/jumps\n"
            f"  User root\nHost first\n  Port {self.jump1.port}\nHost second\n  Port {self.jump2.port}\n",
        )
        (folder / "jumps").write_text(self.jump1.known() + self.jump2.known())
        (folder / "known").write_text(
            f"@cert-authority *.other.site {public(folder / 'host_ca')}\n" + self.node.known(hashed("the-node"))
        )

    def config(self, text, included):
        (self.home / "conf.d").mkdir(exist_ok=True)
        (self.home / "config").write_text(text)
        (self.home / "conf.d" / "site").write_text(included)

    def stop(self):
        for server in (self.jump1, self.jump2, self.node):
            server.stop()


@pytest.fixture
def site(tmp_path, monkeypatch):
    if not shutil.which("ssh"):
        pytest.skip("needs ssh (openssh-client)")
    made = Site(tmp_path)
    # Both ssh and we find the home in the password file, or in HOME: ssh -F stands for it here.
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    text = (made.home / "config").read_text().replace("conf.d", f"{made.home}/conf.d")
    (made.home / "config").write_text(text)
    yield made
    made.stop()


def contacts(nodes, name="ssh", **options):
    transport = base.load(name, {"config": None, "user": "root", "nodes": tuple(nodes), **options})
    fleet = Fleet(nodes, transport, LOAD)
    found = {sample.node: sample for sample in fleet.open(15.0)}
    sees = {sample.node: sample.data for sample in fleet.look("A", {"quick": {}}, 8.0)}
    fleet.close()
    return transport, found, sees


def test_two_jumps_an_alias_and_a_certificate_are_followed_by_our_own_client(site):
    nodes = [Node(f"gpu0{i}") for i in range(1, 5)]
    transport, found, sees = contacts(nodes, config=site.home / "config")
    assert {name: s.status for name, s in found.items()} == dict.fromkeys(sees, "ok"), found
    assert sees["gpu03"] == {"sees": "A"}
    assert transport.choices == {}
    for jump in (site.jump1, site.jump2):
        assert jump.log.count("Accepted publickey") == 1, "one connection carries all nodes"
    assert "CERT ID me" in site.node.log or "ED25519-CERT" in site.node.log


def test_the_same_without_the_ssh_binary_is_read_from_the_files(site, monkeypatch):
    monkeypatch.setattr(ssh_config.shutil, "which", lambda name: None)
    _, found, sees = contacts([Node("gpu01")], config=site.home / "config")
    assert (found["gpu01"].status, sees["gpu01"]) == ("ok", {"sees": "A"}), found


def test_the_ssh_binary_agrees(site):
    _, found, sees = contacts([Node("gpu01"), Node("gpu02")], "openssh", config=site.home / "config")
    assert {s.status for s in found.values()} == {"ok"}, found
    assert sees["gpu02"] == {"sees": "A"}


@pytest.mark.parametrize("name", ["ssh", "openssh"])
def test_another_key_under_the_alias_is_told_and_not_accepted(site, name):
    keygen(site.folder / "other")
    (site.folder / "known").write_text(f"{hashed('the-node')} {public(site.folder / 'other')}\n")
    _, found, _ = contacts([Node("gpu01")], name, config=site.home / "config")
    assert (found["gpu01"].status, found["gpu01"].data["phase"]) == ("error", "kex")
    assert found["gpu01"].data["error"].startswith("HOST KEY HAS CHANGED")


@pytest.mark.parametrize("name", ["ssh", "openssh"])
def test_a_jump_host_whose_key_is_unknown_is_refused_whatever_the_file_would_allow(site, name):
    (site.folder / "jumps").write_text(site.jump1.known())
    included = site.home / "conf.d" / "site"
    included.write_text("StrictHostKeyChecking no\n" + included.read_text())
    _, found, _ = contacts([Node("gpu01"), Node("gpu02")], name, config=site.home / "config")
    assert {s.status for s in found.values()} == {"error"}
    if name == "ssh":
        assert {s.data["phase"] for s in found.values()} == {"resolve"}, "the nodes were not even asked"
        assert "jump host second: host key is not known (SHA256:" in found["gpu01"].data["error"]
    assert (site.folder / "jumps").read_text() == site.jump1.known()
    assert "Accepted" not in site.node.log


def test_a_host_whose_key_only_an_authority_vouches_for_goes_by_the_ssh_binary_and_it_is_said(site, tmp_path):
    sign = [
        "ssh-keygen",
        "-q",
        "-s",
        site.folder / "host_ca",
        "-h",
        "-I",
        "node",
        "-n",
        "gpu01",
        f"{site.node.key}.pub",
    ]
    subprocess.run(sign, check=True)
    server = Sshd(tmp_path, "certified", authorized=public(site.folder / "jump") + "\n")
    try:
        subprocess.run([*sign[:-1], f"{server.key}.pub"], check=True)
        server.stop()
        with (server.folder / "config").open("a") as file:
            file.write(f"HostCertificate {server.key}-cert.pub\n")
        server = restarted(server)
        (tmp_path / "known2").write_text(
            f"@cert-authority [gpu01]:{server.port},gpu01 {public(site.folder / 'host_ca')}\n"
        )
        (tmp_path / "config2").write_text(
            f"Host gpu01\n  HostName 127.0.0.1\n  HostKeyAlias gpu01\n  Port {server.port}\n"
        )
        options = {"config": tmp_path / "config2", "known_hosts": tmp_path / "known2", "key": site.folder / "jump"}
        transport, found, sees = contacts([Node("gpu01")], **options)
        assert (found["gpu01"].status, sees["gpu01"]) == ("ok", {"sees": "A"}), found
        (why,) = transport.choices
        assert "known2:1 trusts a @cert-authority" in why
        assert transport.choices[why] == ["gpu01"]
    finally:
        server.stop()


def restarted(server):
    import time

    from sshd_here import SSHD

    server.daemon = subprocess.Popen([SSHD, "-D", "-f", server.folder / "config", "-E", server.folder / "log"])
    time.sleep(0.3)
    return server


def test_where_the_binary_is_missing_an_authority_is_a_reason_to_refuse(site, monkeypatch):
    monkeypatch.setattr(ssh_config.shutil, "which", lambda name: None)
    (site.folder / "known").write_text(f"@cert-authority the-node {public(site.folder / 'host_ca')}\n")
    _, found, _ = contacts([Node("gpu01")], config=site.home / "config")
    assert found["gpu01"].status == "error"
    assert (
        "trusts a @cert-authority for it: this takes the ssh binary, which is not installed here"
        in (found["gpu01"].data["error"])
    )


@pytest.mark.parametrize(
    "setting", ["ProxyCommand nc %h %p", "KnownHostsCommand /bin/true", "HostbasedAuthentication yes"]
)
def test_what_paramiko_cannot_do_goes_by_the_binary_and_the_reason_is_said(site, setting):
    (site.folder / "needy").write_text(f"Host gpu*\n  HostName 127.0.0.1\n  {setting}\n")
    key = {"key": site.folder / "jump", "known_hosts": []}
    transport = base.load("ssh", {"config": site.folder / "needy", "user": "root", "nodes": (Node("gpu01"),), **key})
    transport.close()
    ((why, nodes),) = transport.choices.items()
    assert why.startswith(setting.split()[0].lower()) and nodes == ["gpu01"]


def test_a_proxy_command_is_run_by_the_binary(site):
    (site.folder / "needy").write_text(
        f"Host gpu*\n  ProxyCommand ssh -F {site.home}/config -W 127.0.0.1:{site.jump2.port} first\n"
        f"  HostKeyAlias second\n  IdentityFile {site.folder}/jump\n  UserKnownHostsFile {site.folder}/alias\n"
    )
    (site.folder / "alias").write_text(site.jump2.known("second"))
    transport, found, sees = contacts([Node("gpu01")], config=site.folder / "needy")
    assert (found["gpu01"].status, sees["gpu01"]) == ("ok", {"sees": "A"}), found
    assert "proxycommand" in next(iter(transport.choices))


def test_a_match_exec_that_hangs_refuses_the_nodes_and_not_the_run(site, monkeypatch):
    monkeypatch.setattr(ssh_config, "PATIENCE_S", 0.5)
    (site.folder / "slow").write_text('Match exec "sleep 60"\n  User other\n')
    _, found, _ = contacts(
        [Node("gpu01"), Node("gpu02"), Node("gpu03")], config=site.folder / "slow", key=site.folder / "jump"
    )
    assert {s.status for s in found.values()} == {"error"}
    assert (
        "does not answer within 0.5 s: look at Match exec" in found["gpu02"].data["error"]
        or "was not reached" in (found["gpu02"].data["error"])
    )


def test_a_jump_host_that_hangs_costs_its_time_limit_and_accuses_no_node(site, monkeypatch):
    silent = ssh_servers.Server("silent")
    try:
        (site.folder / "through").write_text(f"Host gpu*\n  ProxyJump root@127.0.0.1:{silent.port}\n")
        options = {"config": site.folder / "through", "key": site.folder / "jump", "limits": {"banner": 0.5}}
        _, found, _ = contacts([Node("gpu01"), Node("gpu02")], **options)
    finally:
        silent.stop()
    assert {s.data["phase"] for s in found.values()} == {"resolve"}
    assert "jump host 127.0.0.1: no SSH banner within 0.5 s (its phase banner)" in found["gpu01"].data["error"]


def test_a_node_that_is_down_behind_a_jump_host_is_refused_in_phase_tcp(site):
    site.node.stop()
    _, found, _ = contacts([Node("gpu01")], config=site.home / "config")
    assert (found["gpu01"].data["phase"], found["gpu01"].status) == ("tcp", "error")
    assert "cannot connect to 127.0.0.1 port" in found["gpu01"].data["error"]
