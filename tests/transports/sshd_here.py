"""A real sshd of the test's own on loopback, and the keys, certificates and files around it."""

import os
import shutil
import socket
import subprocess
import time

import pytest

SSHD = shutil.which("sshd") or ("/usr/sbin/sshd" if os.path.exists("/usr/sbin/sshd") else None)


def keygen(path, *more):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path, *more], check=True)


def public(path):
    """Type and key of a public key file, without its comment."""
    return " ".join(open(f"{path}.pub").read().split()[:2])


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Sshd:
    """Runs until `stop`. `settings` are lines of its configuration; `log` is what it says of each connection."""

    def __init__(self, folder, name, settings="", authorized=""):
        if not SSHD:
            pytest.skip("needs sshd (openssh-server)")
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # sshd's privilege separation wants it
        self.folder = folder / name
        self.folder.mkdir()
        self.port = free_port()
        self.key = self.folder / "host"
        keygen(self.key)
        (self.folder / "authorized").write_text(authorized)
        (self.folder / "config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {self.key}\n"
            f"AuthorizedKeysFile {self.folder}/authorized\nPidFile {self.folder}/pid\nStrictModes no\nUsePAM no\n"
            f"PermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nMaxStartups 200\n"
            f"LogLevel VERBOSE\nAllowTcpForwarding yes\n{settings}\n"
        )
        self.daemon = subprocess.Popen([SSHD, "-D", "-f", self.folder / "config", "-E", self.folder / "log"])
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self.daemon.poll() is not None:
                pytest.skip(f"sshd does not start here: {self.log[:200]}")
            time.sleep(0.05)

    @property
    def log(self):
        return (self.folder / "log").read_text()

    def known(self, name=None):
        """Its line of a known_hosts file."""
        return f"{name or f'[127.0.0.1]:{self.port}'} {public(self.key)}\n"

    def stop(self):
        self.daemon.terminate()
        self.daemon.wait(5)
