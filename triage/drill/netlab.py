"""A network of its own for an embedded cluster: switches (bridges) and cables (veth pairs) in an outer network namespace.

Nothing of it is seen outside: no address, no interface, no name on this machine. It lives as long as a process stands in it;
the one that holds it open ends at the EOF of its stdin, so whatever ends the drill ends the network.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from triage.errors import TriageError

CLONE_NEWNET = 0x40000000
START_S = 10.0
TOOLS = ("unshare", "nsenter", "ip", "tc", "nft")
MANAGEMENT, FABRIC, STORAGE = "mgmt", "fab", "stor"
# Private networks; nobody outside of the namespace sees them.
NETWORKS = {MANAGEMENT: "10.66.0", FABRIC: "10.88.0", STORAGE: "10.99.0"}
OPERATOR = "10.66.0.250"
ISOLATE = ("unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child")


@functools.cache
def why_not() -> str:
    """Why nodes cannot have namespaces of their own here; "" if they can."""
    if os.geteuid() != 0:
        return "it needs root"
    missing = [tool for tool in TOOLS if not shutil.which(tool)] + [
        name for name in (sshd(),) if not os.path.exists(name)
    ]
    if missing:
        return f"missing here: {', '.join(missing)} (iproute2, nftables, util-linux, openssh-server)"
    tried = subprocess.run([*ISOLATE, "true"], capture_output=True, text=True, timeout=START_S, check=False)
    return "" if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()[-160:]}"


def sshd() -> str:
    """The path of OpenSSH's server; it wants to be started by its absolute path."""
    return shutil.which("sshd") or "/usr/sbin/sshd"


def address(network: str, index: int) -> str:
    """Of the node of that place, on one of the networks."""
    return f"{NETWORKS[network]}.{index + 1}"


def run(words: Sequence[str], text: str = "", keep: Sequence[int] = ()) -> None:
    """Run a tool to its end, with these descriptors. Raises TriageError with what it says."""
    done = subprocess.run(
        words, input=text, capture_output=True, text=True, timeout=START_S, pass_fds=keep, check=False
    )
    if done.returncode != 0:
        raise TriageError(f"drill: {' '.join(words[:6])}: {done.stderr.strip()[-300:] or done.returncode}")


class Lab:
    """The outer network namespace: a management switch, two of the fabric (they are not joined), one for storage."""

    def __init__(self) -> None:
        self.holder = subprocess.Popen(
            ["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
        wait_apart(self.holder)
        self.path = f"/proc/{self.holder.pid}/ns/net"
        lines = ["link set lo up"]
        for switch in (MANAGEMENT, f"{FABRIC}0", f"{FABRIC}1", STORAGE):
            lines += [f"link add {switch} type bridge mcast_snooping 0", f"link set {switch} up"]
        lines.append(f"addr add {OPERATOR}/24 dev {MANAGEMENT}")
        self.ip(lines)

    def ip(self, lines: Sequence[str]) -> None:
        """Commands of ip(8), all at once."""
        run(["nsenter", f"--net={self.path}", "ip", "-batch", "-"], "\n".join(lines) + "\n")

    def wire(self, index: int, pid: int, names: dict[str, str]) -> None:
        """One cable from each network's switch into the namespace of a node: {network: name of the port there}."""
        lines = []
        for network, name in names.items():
            lines.append(f"link add {outer(network, index)} type veth peer name {name} netns {pid}")
            lines.append(f"link set {outer(network, index)} master {switch_of(network)} up")
        self.ip(lines)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This thread, and those that it starts meanwhile, stand in the lab's network."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            enter(self.path)
            try:
                yield
            finally:
                set_namespace(home)
        finally:
            os.close(home)

    def close(self) -> None:
        if self.holder.stdin is not None:
            self.holder.stdin.close()
        try:
            self.holder.wait(2.0)
        except subprocess.TimeoutExpired:
            self.holder.kill()
            self.holder.wait()


def outer(network: str, index: int) -> str:
    """The far end of a node's cable, at the switch."""
    return f"{network}n{index}"


def switch_of(network: str) -> str:
    return f"{FABRIC}0" if network == FABRIC else network


def wait_apart(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process that begins with `unshare` stands in a network namespace of its own."""
    until = time.monotonic() + START_S
    ours = os.readlink("/proc/self/ns/net")
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{process.pid}/ns/net") != ours and Path(f"/proc/{process.pid}/comm").read_text():
                return
        time.sleep(0.005)
    raise TriageError("drill: no namespace came up; is the machine overloaded?")


def enter(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        set_namespace(descriptor)
    finally:
        os.close(descriptor)


def set_namespace(descriptor: int) -> None:
    """setns(2), which Python has from 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        raise TriageError(f"drill: setns: {os.strerror(ctypes.get_errno())}")
