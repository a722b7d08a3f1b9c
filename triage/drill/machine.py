"""What a node in namespaces of its own makes of them, from within: mounts, name, network, a real sshd, cables to pull.

It sees its own processes, interfaces and shared memory; of the file system it has its own /run, /var/log and /sys/class (with
the fake RDMA device of its fabric's port, which goes on counting), and shares the rest. The kernel's own log is the machine's
and tells nothing here: the node has /var/log/kern.log, as one without journal and dmesg.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

from triage.drill import netlab
from triage.drill.cards import FABRIC as FABRIC_CARD
from triage.drill.door import Door
from triage.drill.netlab import FABRIC, MANAGEMENT, outer
from triage.drill.plan import MANAGEMENT_NIC
from triage.drill.roots import boot_id, log_line
from triage.errors import TriageError

SSHD = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
UseDNS no
PidFile none
PrintMotd no
MaxStartups 100:30:200
ListenAddress {address}
"""


class MachineView:
    """The view of the node is the kernel's own, but for its log. `folder` is the drill's, for what counts."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.node: str = config["node"]
        self.silent = "kernel" in config["blind"]
        self.folder = Path(config["folder"])
        self.spool = self.folder / "spool"

    def kernel(self, text: str, at: float | None = None) -> None:
        if not self.silent:
            log_line(Path("/var/log/kern.log"), self.node, text, at)

    def show(self, pid: int) -> None:
        pass

    def hide(self, pid: int) -> None:
        pass


class Machine:
    """A place of its own (node.Place). Raises TriageError, with the tool's words, where something cannot be made."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config, self.lab = config, config["lab"]
        line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("NSpid"))
        if len(line.split()) < 3:
            raise TriageError("drill: a node of namespaces was started outside of one")
        self.roots = MachineView(config)
        self.sysfs = self.roots.folder / "cards"
        for folder in (self.sysfs, self.roots.spool, *(Path(config["scratch"]) / name for name in ("comm", "steps"))):
            folder.mkdir(parents=True)
        (self.sysfs / "class" / "net").mkdir(parents=True)
        self.mount()
        self.connect()
        self.listen()

    # ------------------------------------------------------------ made once

    def mount(self) -> None:
        """Its own /proc, /sys, /run, /var/log and /dev/shm; its own boot; the machine's log out of sight."""
        socket.sethostname(self.config["node"])
        mount("--make-rprivate", "/")
        for what, where in (("proc", "/proc"), ("sysfs", "/sys")):
            mount("-t", what, what, where)
        for where in ("/run", "/var/log", "/dev/shm"):
            mount("-t", "tmpfs", "-o", "size=64m,mode=1777", "tmpfs", where)
        made = Path("/run/site")
        (made / "class" / "infiniband").mkdir(parents=True)  # sysfs has no such folder to mount on
        mount("-t", "overlay", "overlay", "-o", f"lowerdir={made / 'class'}:/sys/class", "/sys/class")
        devices = self.sysfs / "devices" / f"pci{FABRIC_CARD.pci[:7]}:00" / FABRIC_CARD.pci / "infiniband"
        devices.mkdir(parents=True)
        mount("--bind", str(devices), "/sys/class/infiniband")
        (made / "boot_id").write_text(boot_id(self.config["seed"], self.config["node"]) + "\n")
        mount("--bind", str(made / "boot_id"), "/proc/sys/kernel/random/boot_id")
        # Over the whole of /etc: a file that is bound alone is gone when this machine's own is replaced.
        etc = made / "etc"
        etc.mkdir()
        hosts = [["127.0.0.1", "localhost"], *self.lab["hosts"]]
        (etc / "hosts").write_text("".join(f"{at} {name}\n" for at, name in hosts))
        (etc / "passwd").write_text(Path("/etc/passwd").read_text() + f"{self.config['user']}:x:0:0::/root:/bin/sh\n")
        mount("-t", "overlay", "overlay", "-o", f"lowerdir={etc}:/etc", "/etc")
        for tool in ("journalctl", "dmesg"):
            if found := shutil.which(tool):
                mount("--bind", "/dev/null", os.path.realpath(found))
        if os.path.exists("/dev/kmsg"):
            mount("--bind", "/dev/null", "/dev/kmsg")

    def connect(self) -> None:
        """Addresses for the cables that lead here."""
        for name in ("all", "default"):
            switch = Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
            if switch.exists():
                switch.write_text("1\n")  # its announcements would be bytes on a quiet fabric
        lines = ["link set lo up"]
        for _, name, address in self.lab["networks"]:
            lines += [f"addr add {address}/24 dev {name}", f"link set {name} up"]
        netlab.run(["ip", "-batch", "-"], "\n".join(lines) + "\n")

    def listen(self) -> None:
        """A listening socket for each rank: for its neighbours here; PyTorch's store is reached from other nodes as well."""
        for (_, _, port), order in zip(self.config["ports"], self.config["launcher"]["ranks"], strict=True):
            listener = socket.create_server(("", port), backlog=128)
            order["plan"]["listen_fd"] = listener.detach()

    # ------------------------------------------------------------ node.Place

    def door(self) -> Door:
        return Door(socket.create_server(("", self.lab["fabric_port"])))

    def serve(self) -> RealServer:
        (self.sysfs / "unused").mkdir()
        for device in Path("/sys/class/infiniband").iterdir():
            (device / "device").unlink()  # it would lead astray here; gid_attrs tell the netdev as well
        return RealServer(self)

    def cable(self, name: str, up: bool) -> None:
        """At the far end: here the port has lost its carrier, and nobody has set it down."""
        network = next(network for network, nic, _ in self.lab["networks"] if nic == name)
        self.far("ip", "link", "set", outer(network, self.lab["index"]), "up" if up else "down")

    def command(self, message: dict[str, Any]) -> None:
        far, nic = outer(FABRIC, self.lab["index"]), self.config["nic"]
        if "bridge" in message:
            self.far("ip", "link", "set", far, "master", f"{FABRIC}{int(message['bridge'])}")
        elif "shape" in message:
            netlab.run(["tc", "qdisc", "replace", "dev", nic, "root", "tbf", *map(str, message["shape"])])
        else:
            chain = f"type filter hook ingress device {nic} priority 0; numgen random mod 100 < {int(message['lose'])} drop;"
            netlab.run(["nft", "-f", "-"], f"table netdev site {{ chain in {{ {chain} }}; }}\n")

    def far(self, *words: str) -> None:
        """Run a tool at the far ends of the cables."""
        descriptor = self.lab["descriptor"]
        netlab.run(["nsenter", f"--net=/proc/self/fd/{descriptor}", *words], keep=[descriptor])


class RealServer:
    """OpenSSH's own server on the management address."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        folder, config = Path("/run/site/ssh"), machine.config
        folder.mkdir()
        Path("/run/sshd").mkdir(exist_ok=True)
        for name, text in (("host_key", config["host_key"]), ("authorized_keys", config["authorized"] + "\n")):
            with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600), "w") as out:
                out.write(text)
        networks = {network: address for network, _, address in machine.lab["networks"]}
        (folder / "sshd_config").write_text(SSHD.format(folder=folder, address=networks[MANAGEMENT]))
        self.process = subprocess.Popen(
            [netlab.sshd(), "-D", "-e", "-f", str(folder / "sshd_config")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(folder / "log").open("wb"),
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
            start_new_session=True,
        )
        # A node is ready when its server answers.
        until = threading.Event()
        while self.process.poll() is None and not until.wait(0.02):
            try:
                socket.create_connection((networks[MANAGEMENT], 22), timeout=1.0).close()
                break
            except OSError:
                continue

    def vanish(self) -> None:
        self.machine.cable(MANAGEMENT_NIC, False)

    def die(self) -> None:
        """Its cables are pulled already; whatever it serves ends with it."""
        self.end()

    def end(self) -> None:
        """Every process of the node but this one and its first, in whatever session it is."""
        os.kill(-1, signal.SIGKILL)  # of this pid namespace alone: Machine has looked that it is one


def mount(*words: str) -> None:
    netlab.run(["mount", *words])
