"""A real Slurm on this machine: munged, slurmctld, and a slurmd and an sshd for each node, which has processes of its own.

Every node is a pid namespace with its own /proc: a probe that comes by its sshd sees the ranks of that node and no others. All
share the network: node nI is 127.X.Y.I, which is no name of it. Nothing outlives the test: each daemon dies with its parent
(PR_SET_PDEATHSIG) also when that is killed, and with a node's first process all others of the node.
Root, and Debian's slurm-wlm, munge, openssh-server, util-linux.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from sshd_of_nodes import free_ports, keygen, public

NODES = ("n1", "n2", "n3", "n4")
WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"]
APART = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
BINARIES = ("munged", "slurmctld", "slurmd", "squeue", "scontrol", "sinfo", "sbatch", "scancel", "sshd", "ssh-keygen", "setpriv", "unshare")  # fmt: skip


def why_not():
    """Why there can be no lab here, "" if there can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in BINARIES if not shutil.which(name, path=path)]
    if missing:
        return f"needs {', '.join(missing)} (slurm-wlm, munge, openssh-server, util-linux)"
    if os.geteuid() != 0:
        return "needs root"
    made = subprocess.run([*APART, "true"], capture_output=True, text=True)
    return f"no namespaces here: {made.stderr.strip()}" if made.returncode else ""


class Lab:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons: dict[str, subprocess.Popen] = {}
        self.conf = folder / "slurm.conf"
        net = f"127.{20 + os.getpid() % 200}.{1 + time.monotonic_ns() // 1000 % 200}"
        self.addresses = {name: f"{net}.{at}" for at, name in enumerate(NODES, 1)}
        self.ctld_port, self.ssh_port, *slurmd_ports = free_ports(2 + len(NODES))
        self.slurmd_ports = dict(zip(NODES, slurmd_ports))
        self.env = {**os.environ, "SLURM_CONF": str(self.conf), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        for name in ("state", "spool", "log", "run", "munge", "ssh"):
            (folder / name).mkdir()
        folder.chmod(0o755)
        (folder / "munge").chmod(0o700)  # or munged refuses its key

    # ------------------------------------------------------------ configuration

    def configure(self) -> None:
        host, folder = socket.gethostname().partition(".")[0], self.folder
        key = folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        for at in range(8):  # Slurm wants to see a file for each of them, whatever it is
            (folder / f"gpu{at}").touch()
        (folder / "gres.conf").write_text(f"Name=gpu Type=h100 File={folder}/gpu[0-7]\n")
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr={self.addresses[name]} Port={self.slurmd_ports[name]} "
            "CPUs=8 RealMemory=64000 Gres=gpu:h100:8 State=UNKNOWN"
            for name in NODES
        )
        self.conf.write_text(
            f"""ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job waits for the life of its credential: 5 s instead of two minutes.
AuthInfo=socket={folder}/run/munge.sock,cred_expire=5
CredType=cred/munge
SlurmctldPort={self.ctld_port}
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmctldLogFile={folder}/log/slurmctld.log
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmdLogFile={folder}/log/slurmd-%n.log
SlurmdSpoolDir={folder}/spool/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherParams=OverMemoryKill
JobAcctGatherFrequency=task=1
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerNode=1000
GresTypes=gpu
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1,requeue_setup_env_fail
RequeueExit=137
MpiDefault=none
ReturnToService=2
InactiveLimit=0
KillWait=2
SlurmctldTimeout=60
SlurmdTimeout=20
MailProg=/bin/true
SwitchType=switch/none
{nodes}
PartitionName=debug Nodes=n[1-4] Default=YES MaxTime=INFINITE OverSubscribe=YES State=UP
PartitionName=other Nodes=n[1-4] MaxTime=INFINITE OverSubscribe=YES State=UP
"""
        )
        self._configure_ssh()

    def _configure_ssh(self) -> None:
        folder = self.folder / "ssh"
        keygen(folder / "id")
        keygen(folder / "host")
        (folder / "authorized").write_text(f"{public(folder / 'id')}\n")
        known = "".join(f"[{name}]:{self.ssh_port} {public(folder / 'host')}\n" for name in NODES)
        (folder / "known_hosts").write_text(known)
        # Slurm tells no port of an sshd: where it is not 22 the operator's ssh_config says it.
        (folder / "config").write_text(f"Host n*\n  Port {self.ssh_port}\n")
        for name in NODES:
            (folder / name).write_text(
                f"Port {self.ssh_port}\nListenAddress {self.addresses[name]}\nHostKey {folder}/host\n"
                f"AuthorizedKeysFile {folder}/authorized\nPidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
                "PasswordAuthentication no\nKbdInteractiveAuthentication no\nMaxStartups 200\n"
            )

    # ------------------------------------------------------------ daemons

    def start(self) -> None:
        self.configure()
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        run, log = self.folder / "run", self.folder / "log"
        self._daemon(
            "munged", "munged", "--foreground", "--force", f"--key-file={self.folder}/munge/key",
            f"--socket={run}/munge.sock", f"--pid-file={run}/munged.pid", f"--log-file={log}/munged.log",
            f"--seed-file={self.folder}/munge/seed", "--num-threads=2",
        )  # fmt: skip
        self.until(lambda: (run / "munge.sock").exists(), "munged makes its socket")
        self.start_slurmctld()
        for name in NODES:
            self.start_node(name)
        self.until(
            lambda: self.words("sinfo", "-h", "-p", "debug", "-N", "-o", "%T") == ["idle"] * len(NODES),
            "all nodes are idle",
        )

    def start_slurmctld(self) -> None:
        self._daemon("slurmctld", "slurmctld", "-D", "-f", self.conf)
        self.until(lambda: self.run("scontrol", "ping").returncode == 0, "slurmctld answers", 20)

    def start_node(self, name: str) -> None:
        (self.folder / "spool" / name).mkdir(exist_ok=True)
        # A shell is the node's first process: it collects what others leave, and slurmd may die without its ranks.
        script = '"$1" -D -e -f "$2" & slurmd -D -N "$3" -f "$4" & while :; do wait; sleep 1; done'
        sshd = shutil.which("sshd", path=self.env["PATH"])
        self._daemon(name, *APART, "/bin/sh", "-c", script, "init", sshd, self.folder / "ssh" / name, name, self.conf)

    def _daemon(self, key: str, *argv) -> None:
        with open(self.folder / "log" / f"{key}.out", "ab") as out:
            self.daemons[key] = subprocess.Popen(
                [*WITH_PARENT, *map(str, argv)], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.env, cwd="/"
            )

    def pids(self, node: str, word: str) -> list[int]:
        """The processes of a node whose command line holds the word, by their numbers out here."""
        space = os.readlink(f"/proc/{self.daemons[node].pid}/ns/pid_for_children")
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{name}/ns/pid") == space and word in Path(
                    f"/proc/{name}/cmdline"
                ).read_text().replace("\0", " "):
                    found.append(int(name))
        return found

    def slurmd(self, node: str) -> int:
        return next(
            pid
            for pid in sorted(self.pids(node, f"slurmd -D -N {node}"))
            if "/bin/sh" not in Path(f"/proc/{pid}/cmdline").read_text()
        )

    def stop(self) -> None:
        """Kill all, by pid; with a node's first process the kernel ends the rest of it."""
        for key in reversed(list(self.daemons)):
            daemon = self.daemons.pop(key)
            with contextlib.suppress(OSError):
                os.kill(daemon.pid, signal.SIGCONT)
            daemon.kill()
            daemon.wait(10)

    # ------------------------------------------------------------ commands

    def run(self, *argv, timeout: float = 30) -> subprocess.CompletedProcess:
        return subprocess.run(
            list(map(str, argv)), capture_output=True, text=True, env=self.env, cwd=self.folder, timeout=timeout
        )

    def words(self, *argv) -> list[str]:
        return self.run(*argv).stdout.split()

    def submit(self, script: str, *options) -> str:
        """The id of a new batch job."""
        file = self.folder / f"job-{time.monotonic_ns()}.sh"
        file.write_text(f"#!/bin/bash\n{script}\n")
        done = self.run("sbatch", "--parsable", *options, file)
        assert done.returncode == 0, done.stderr
        return re.match(r"\d+", done.stdout)[0]

    def state(self, job: str) -> list[str]:
        return self.words("squeue", "-h", "-t", "all", "-j", job, "-o", "%T")

    def wait_for(self, job: str, *states: str, limit_s: float = 40) -> None:
        self.until(
            lambda: set(self.state(job)) & set(states) and set(self.state(job)) <= set(states),
            f"job {job} is {' or '.join(states)}",
            limit_s,
        )

    def until(self, done, what: str, limit_s: float = 40) -> None:
        deadline = time.monotonic() + limit_s
        while not done():
            if time.monotonic() > deadline:
                tails = {p.name: p.read_text(errors="replace")[-400:] for p in sorted((self.folder / "log").iterdir())}
                raise AssertionError(f"it did not come to this: {what}; {self.words('squeue', '-h')} {tails}")
            time.sleep(0.2)


RANK = f"{sys.executable} -c 'import time; print(\"step\", flush=True); time.sleep(600)'"
