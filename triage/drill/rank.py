"""One rank of a synchronous training job, as its process: compute, a ring all-reduce in two groups, a step record.

Standard library only. What lies on a node is a bare copy of diary.py and this file (no docstring, no comment: `plan.bare_source`),
started by the launcher with an environment like torchrun's. Its plan and whatever is asked of it later come as JSON
lines on stdin, so that nobody who looks at the node can read what was asked; EOF there means that the launcher is
gone, and ends the rank.

The ring behaves as NCCL does and not as TCP does (notes/prototype-findings.md 1.3): a peer that went away is silence,
never an error; a message with a foreign tag is never repaired. The flight recorder answers on its FIFO while the
collective hangs (notes/flight-recorder.md 1, 2.1).

Plan (first line): {"rank", "world", "listen_fd", "report_fd", "compute_ms", "data_ms", "chunk_bytes", "groups":
[{"name", "desc", "ranks", "each_step", "right": [host, port]}]}, the groups in the order in which a step enters them.
Later lines, heeded at the next step's start: {"pace": 0.88} (speed of compute), {"first": "<group>"} (enter that group
first), {"skip": "<desc>"} (leave such a group's collective out, once), {"enter": "<desc>"} (take another branch: enter that
group instead), {"compile": seconds} (compile for so long before the collectives), {"last": step} (training ends there).
From the fabric, at once: {"nccl": [{"peer", "port", "status"}]} (a completion error), {"nccl_port": "error" | "active"}.
"""

from __future__ import annotations

import collections
import ctypes
import gc
import json
import operator
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable
from typing import Any

from triage.drill.diary import ITERATIONS, Diary

RING = 2000  # entries kept by torch 2.13's recorder (notes/flight-recorder.md 2)
HEAD = struct.Struct("!16sQII")  # operation, number in the group, hop, bytes that follow
TIMEOUT_MS = 600000
THREAD = "pt_main_thread"
FRAMES = [
    {"name": name, "filename": f"/opt/venv/lib/python3.11/site-packages/{path}.py", "line": line}
    for name, path, line in (
        ("all_reduce", "torch/distributed/distributed_c10d", 2907),
        ("wrapper", "torch/distributed/c10d_logger", 81),
        ("train_step", "megatron/training/training", 1377),
    )
]


def rest() -> None:
    """Never return. Blocked in recv on a socket on which nothing will ever arrive, as a rank in a collective looks."""
    mine, other = socket.socketpair()
    while True:
        mine.recv(1)
        other.fileno()  # keeps the far end open: without it recv would see EOF


class Recorder:
    """The ring of flight records of one rank, dumped in PyTorch's pickle format 2.10."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.lock = threading.Lock()
        self.entries: collections.deque[dict[str, Any]] = collections.deque(maxlen=RING)
        self.groups = groups
        self.local_ids = {group["name"]: number for number, group in enumerate(groups)}
        self.enqueued = {group["name"]: 0 for group in groups}
        self.completed = {group["name"]: 0 for group in groups}
        self.count = 0

    def enter(self, group: dict[str, Any], numel: int) -> dict[str, Any]:
        """The entry of a collective that starts now. Written before any work, as torch does at enqueue."""
        name = group["name"]
        with self.lock:
            self.enqueued[name] += 1
            entry = {
                "frames": FRAMES,
                "record_id": self.count,
                "pg_id": self.local_ids[name],
                "process_group": (name, group["desc"]),
                "collective_seq_id": self.enqueued[name],
                "p2p_seq_id": 0,
                "op_id": self.enqueued[name],
                "profiling_name": "nccl:all_reduce",
                "time_created_ns": time.time_ns(),
                "input_sizes": [[numel]],
                "input_dtypes": ["Double"],
                "output_sizes": [[numel]],
                "output_dtypes": ["Double"],
                "state": "scheduled",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None,
                "retired": False,
                "timeout_ms": TIMEOUT_MS,
                "is_p2p": False,
                "thread_id": str(threading.get_ident()),
                "thread_name": THREAD,
            }
            self.count += 1
            self.entries.append(entry)
        return entry

    def leave(self, entry: dict[str, Any]) -> None:
        """The collective is done. `started` never shows: timing is off by default (notes/flight-recorder.md 0.3)."""
        with self.lock:
            entry["state"] = "completed"
            entry["time_discovered_completed_ns"] = time.time_ns()
            entry["retired"] = True
            name = entry["process_group"][0]
            self.completed[name] = entry["collective_seq_id"]

    def dump(self) -> bytes:
        """All of it, as `torch._C._distributed_c10d._dump_nccl_trace` gives it: protocol 2, builtins only."""
        with self.lock:
            entries = [dict(entry) for entry in self.entries]
            status = {
                str(number): {
                    "last_enqueued_collective": self.enqueued[name] or -1,
                    "last_started_collective": -1,
                    "last_completed_collective": self.completed[name] or -1,
                }
                for name, number in self.local_ids.items()
            }
        config = {
            group["name"]: {"name": group["name"], "desc": group["desc"], "ranks": str(group["ranks"])}
            for group in self.groups
        }
        return pickle.dumps(
            {
                "version": "2.10",
                "pg_config": config,
                "pg_status": status,
                "comm_lib_version": "2.27.5",
                "entries": entries,
            },
            protocol=2,
        )


class Ring:
    """One process group: a connection to the right neighbour, one from the left, and the all-reduce over them."""

    def __init__(self, rank: int, group: dict[str, Any], chunk_bytes: int, recorder: Recorder) -> None:
        self.group = group
        self.members: list[int] = group["ranks"]
        self.place = self.members.index(rank)
        self.per_chunk = max(1, chunk_bytes // 8)
        self.recorder = recorder
        self.number = 0
        self.right: socket.socket | None = None
        self.left: socket.socket | None = None

    def connect(self, rank: int) -> None:
        """Reach the right neighbour. The first line says who is wanted: a relay may stand in between."""
        right = self.members[(self.place + 1) % len(self.members)]
        self.right = socket.create_connection(tuple(self.group["right"]))
        self.right.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = {"to": right, "from": rank, "group": self.group["name"]}
        self.right.sendall(json.dumps(line).encode() + b"\n")

    def all_reduce(self, values: array[float]) -> array[float]:
        """The sum of `values` over all members. Does not return if a peer went away or is elsewhere."""
        entry = self.recorder.enter(self.group, len(values))
        self.number += 1
        size = len(self.members)
        step = self.per_chunk
        parts = [values[at * step : (at + 1) * step] for at in range(size)]
        for hop in range(2 * (size - 1)):
            gather = hop >= size - 1
            outgoing = (self.place - hop) % size
            incoming = (outgoing - 1) % size
            self.send(hop, parts[outgoing])
            arrived = self.receive(hop, len(parts[incoming]) * 8)
            parts[incoming] = arrived if gather else array("d", map(operator.add, parts[incoming], arrived))
        total = array("d")
        for part in parts:
            total.extend(part)
        self.recorder.leave(entry)
        return total

    def send(self, hop: int, part: array[float]) -> None:
        assert self.right is not None
        try:
            self.right.sendall(HEAD.pack(b"all_reduce", self.number, hop, len(part) * 8) + part.tobytes())
        except OSError:
            # A reset or broken pipe would end a real TCP program; over InfiniBand it is silence. The socket stays open,
            # or the reset would travel round the ring and every rank would know.
            rest()

    def receive(self, hop: int, expected: int) -> array[float]:
        wanted = HEAD.pack(b"all_reduce", self.number, hop, expected)
        message = self.read(HEAD.size + expected)
        if not message.startswith(wanted):
            rest()  # NCCL does not notice a foreign operation either: both sides wait for what never comes
        part: array[float] = array("d")
        part.frombytes(message[HEAD.size :])
        return part

    def read(self, count: int) -> bytes:
        assert self.left is not None
        got = bytearray()
        while len(got) < count:
            try:
                piece = self.left.recv(count - len(got))
            except OSError:
                piece = b""
            if not piece:
                rest()
            got += piece
        return bytes(got)


def accept_all(listener: socket.socket, rings: dict[str, Ring]) -> None:
    """Take the connection of every left neighbour; its first line says for which group it is."""
    waiting = {name for name, ring in rings.items() if len(ring.members) > 1}
    while waiting:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = b""
        while not line.endswith(b"\n"):
            byte = connection.recv(1)
            if not byte:
                break
            line += byte
        if line.endswith(b"\n"):
            name = json.loads(line)["group"]
            rings[name].left = connection
            waiting.discard(name)


def answer_pipe(prefix: str, dump_prefix: str, rank: int, dump: Callable[[], bytes]) -> None:
    """torch's monitor thread: any byte on the FIFO makes a dump; up to 128 are drained at a time."""
    path = f"{prefix}{rank}.pipe"
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    os.mkfifo(path, 0o666)
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    while True:
        time.sleep(0.25)
        try:
            asked = os.read(pipe, 128)
        except BlockingIOError:
            continue
        if asked:
            raw = dump()
            # Plainly opened, cut and filled, with no rename: a reader may meet half a file, as with torch.
            with open(f"{dump_prefix}{rank}", "wb") as out:
                out.write(raw)


def follow(source: Any, asked: list[dict[str, Any]]) -> None:
    """Collect what is asked of this rank until the launcher is gone; then go too. The fabric's events are told at once,
    as NCCL's own threads do."""
    for line in source:
        wish = json.loads(line)
        for error in wish.pop("nccl", ()):
            hca = os.environ.get("NCCL_IB_HCA", "mlx5_0")
            warn(
                f"NET/IB: Got completion from peer {error['peer']}<{error['port']}> with status={error['status']} opcode=0"
                f" len=0 vendor err 129 (Send) localGid ::ffff:{error['peer']} remoteGids::ffff:{error['peer']} hca {hca}"
            )
        if event := wish.pop("nccl_port", ""):
            warn(f"NET/IB : {os.environ.get('NCCL_IB_HCA', 'mlx5_0')}:1 Got async error event: port {event}")
        if wish:
            asked.append(wish)
    os._exit(1)


def warn(text: str) -> None:
    """A warning as NCCL 2.27 prints it: dated, with host, process, thread and device."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    who = f"{os.environ.get('SLURMD_NODENAME', 'localhost')}:{os.getpid()}:{threading.get_native_id()}"
    line = f"[{stamp}] {who} [{os.environ.get('LOCAL_RANK', '0')}] transport/net_ib.cc:1307 NCCL WARN {text}\n"
    os.write(1, line.encode())


def compile_for(seconds: float) -> None:
    """What torch.compile does in front of a step: a worker process compiles kernels into the cache, and the rank waits."""
    here = os.path.dirname(os.path.abspath(__file__))
    worker = os.path.join(here, "torch", "_inductor", "compile_worker", "__main__.py")
    options = ["--kind=fork", "--workers=1", f"--parent={os.getpid()}"]
    with subprocess.Popen([sys.executable, "-I", "-S", worker, *options], stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.write(b"%f\n" % seconds)
        child.stdin.close()
        child.wait()


class Orders:
    """What was asked of this rank so far, as it holds for the step that begins."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.usual = [group["name"] for group in groups if group["each_step"]]
        self.names = {group["desc"]: group["name"] for group in groups}
        self.turns = self.usual
        self.pace = 1.0
        self.last = ITERATIONS
        self.compile_s = 0.0

    def heed(self, asked: list[dict[str, Any]]) -> None:
        """Only here, at a step boundary: the ring knows no half steps."""
        self.turns, self.compile_s = self.usual, 0.0
        while asked:
            wish = asked.pop(0)
            self.pace = wish.get("pace", self.pace)
            self.last = wish.get("last", self.last)
            self.compile_s = wish.get("compile", 0.0)
            if "first" in wish:
                self.turns = self.usual = sorted(self.usual, key=lambda name: name != wish["first"])
            if "skip" in wish:
                self.turns = [name for name in self.usual if name != self.names[wish["skip"]]]
            if "enter" in wish:
                self.turns = [self.names[wish["enter"]]]


def train(plan: dict[str, Any], rings: dict[str, Ring], asked: list[dict[str, Any]]) -> None:
    """Step after step: data, compute, the collectives of every group, one record; at the end, the teardown."""
    rank, world = plan["rank"], plan["world"]
    orders = Orders(plan["groups"])
    diary = Diary(plan)
    if rank == world - 1:
        print(f"[before the start of training step] datetime: {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())}")
    for step in range(1, ITERATIONS + 1):
        orders.heed(asked)
        if step > orders.last:
            break
        began = time.time()
        at_start = time.perf_counter()
        time.sleep(plan["data_ms"] / 1000)
        at_data = time.perf_counter()
        if orders.compile_s:
            compile_for(orders.compile_s)
        time.sleep(plan["compute_ms"] / 1000 / orders.pace)
        at_compute = time.perf_counter()
        for name in orders.turns:
            ring = rings[name]
            total = ring.all_reduce(array("d", [rank + 1.0]) * (ring.per_chunk * len(ring.members)))
            if total[0] != sum(ring.members) + len(ring.members):
                raise ArithmeticError(f"all_reduce of group {name} gave {total[0]}")
        diary.keep(step, began, at_start, at_data, at_compute, time.perf_counter())
    if rank == world - 1:
        print(f"[after training is done] datetime: {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())}")
    rest()  # destroying the communicators may take for ever: that is no frozen training


def end_with_parent() -> None:
    """The launcher's end is ours, even in a hang."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        pass


def main() -> None:
    end_with_parent()
    source = sys.stdin.buffer
    first = source.readline()
    if not first:
        return
    plan = json.loads(first)
    gc.disable()  # no cycles here; a pause of one rank is a pause of all
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    asked: list[dict[str, Any]] = []
    threading.Thread(target=follow, args=(source, asked), daemon=True).start()
    recorder = Recorder(sorted(plan["groups"], key=lambda group: str(group["name"])))
    rings = {group["name"]: Ring(plan["rank"], group, plan["chunk_bytes"], recorder) for group in plan["groups"]}
    pipe, dump = os.environ.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE"), os.environ.get("TORCH_FR_DUMP_TEMP_FILE")
    if pipe and dump:
        threading.Thread(target=answer_pipe, args=(pipe, dump, plan["rank"], recorder.dump), daemon=True).start()
    for ring in rings.values():
        if len(ring.members) > 1:
            ring.connect(plan["rank"])
    accept_all(socket.socket(fileno=plan["listen_fd"]), rings)
    train(plan, rings, asked)


if __name__ == "__main__":
    main()
