"""Keys and ports for the sshd of each node of a lab."""

import contextlib
import socket
import subprocess


def keygen(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def public(path):
    """Type and key of a public key file, without its comment."""
    with open(f"{path}.pub") as file:
        return " ".join(file.read().split()[:2])


def free_ports(count):
    """Ports of this machine that nobody listens on, all different."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("0.0.0.0", 0))
        return [each.getsockname()[1] for each in held]
