"""What the drill's tests share: reading a cluster from outside, and waiting."""

from __future__ import annotations

import io
import os
import pickle
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paramiko

from triage.drill.cluster import Cluster

# What would give a scenario away. `default` is not `fault`: a word may not begin or end inside another.
TELLING = re.compile(
    r"(?<![a-z])(dead|deadlock\w*|straggl\w*|drill\w*|faults?|faulty|slow\w*|healthy|swap\w*|killed|victims?|culprits?"
    r"|scenario\w*|opposite|order|frozen|hang|hung|inject\w*|blind\w*)(?![a-z])",
    re.IGNORECASE,
)


def wait_for(done: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Wait until `done()` is true, and return that; fail with what it was waiting for otherwise."""
    until = time.monotonic() + seconds
    while not (answer := done()):
        assert time.monotonic() < until, f"waited {seconds} s in vain"
        time.sleep(0.05)
    return answer


def moving(cluster: Cluster, steps: int = 3) -> None:
    """Wait until every rank has finished that many steps."""
    wait_for(lambda: len(seen := cluster.steps()) == cluster.plan.world and min(seen.values()) >= steps)


def still(cluster: Cluster, seconds: float = 2.0) -> None:
    """Wait until no rank has finished a step for that long."""
    wait_for(lambda: cluster.still_s() >= seconds)


def alive(pid: int) -> bool:
    """Does this process run? A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


class RefuseAll(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"the dump asks for {module}.{name}")


def environment(pid: int) -> dict[str, str]:
    """The environment with which a process was started."""
    raw = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(pair.split("=", 1) for pair in raw.split("\0") if "=" in pair)


def poke(cluster: Cluster, rank: int) -> dict[str, Any]:
    """One byte into the FIFO of a rank, and the dump that it then writes; read by an unpickler that refuses globals."""
    env = environment(cluster.pids()[rank])
    path = Path(env["TORCH_FR_DUMP_TEMP_FILE"] + str(rank))
    path.unlink(missing_ok=True)
    pipe = os.open(f"{env['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
    os.write(pipe, b"1")
    os.close(pipe)
    raw = wait_for(lambda: path.exists() and (data := path.read_bytes()).endswith(b".") and data)
    return RefuseAll(io.BytesIO(raw)).load()


def open_operations(dump: dict[str, Any]) -> list[tuple[str, int]]:
    """(group, number) of what is not done in a dump, oldest first."""
    return [(e["process_group"][0], e["collective_seq_id"]) for e in dump["entries"] if not e["retired"]]


def connect(cluster: Cluster, node: int = 0) -> paramiko.SSHClient:
    """An SSH connection as triage would make it: the drill's key, strict host keys."""
    host, folder = cluster.hosts[node], cluster.folder / "operator"
    client = paramiko.SSHClient()
    client.load_host_keys(str(folder / "known_hosts"))
    client.connect(
        host.address, host.port, cluster.plan.user, key_filename=str(folder / "id_ed25519"), look_for_keys=False,
        allow_agent=False, timeout=10,
    )  # fmt: skip
    return client


def told_on_nodes(cluster: Cluster) -> list[str]:
    """Everything that a probe on a node could read, as `where: word in context` for each word that gives it away."""
    texts: dict[str, str] = {}
    for node in cluster.plan.nodes:
        for top in (cluster.plan.node_folder(node), cluster.folder / "shared"):
            for folder, folders, files in os.walk(top):
                for name in (*folders, *files):
                    path = Path(folder) / name
                    texts[f"name {path}"] = name
                    if path.is_symlink():
                        texts[f"link {path}"] = os.readlink(path)
                    elif path.is_file():
                        texts[str(path)] = path.read_bytes().decode("utf-8", "replace")
    for pid in cluster.processes()[len(cluster.plan.nodes) :]:  # the node servers stand in no node's procfs root
        for name in ("environ", "cmdline", "comm", "cwd", "exe"):
            try:
                path = Path(f"/proc/{pid}/{name}")
                texts[f"{name} of {pid}"] = os.readlink(path) if name in ("cwd", "exe") else path.read_text()
            except OSError:
                continue
    with connect(cluster) as client:
        _, out, _ = client.exec_command("env; pwd; cat /proc/$$/cmdline; cat /proc/$$/comm")
        texts["a command over SSH"] = out.read().decode()
    found = []
    for where, text in texts.items():
        for hit in TELLING.finditer(text):
            found.append(f"{where}: {text[max(0, hit.start() - 40) : hit.end() + 40]!r}")
    assert len(texts) > 100, "the search has lost its targets"
    return found
