"""The launcher of one node's ranks, as torchrun is: starts them, reaps them, says in the job log who ended and how.

Standard library only; what lies on a node is a bare copy (see rank.py). It does not propagate a death: the other
ranks stay where they are, as with a launcher that is stuck itself or a job that was started by srun.

stdin, JSON lines: first {"ranks": [{"rank", "local_rank", "listen_fd", "env", "plan"}], "python", "script", "args",
"log", "folder"}; later {"rank": 5, "tell": {...}} passes a line on to that rank, {"rank": 5, "signal": 9} sends it a
signal. EOF ends all ranks and the launcher. stdout, JSON lines: {"started": rank, "pid"} and {"ended": rank, "pid"}; for
what ranks start themselves {"child": rank, "pid"} and {"child_ended": rank, "pid"}.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

WATCH_S = 0.2
lock = threading.Lock()
children: dict[int, subprocess.Popen[bytes]] = {}
leaving = threading.Event()


def say(message: dict[str, Any]) -> None:
    with lock:
        try:
            os.write(1, json.dumps(message).encode() + b"\n")
        except OSError:
            pass


def elastic_line(code: int, local_rank: int, pid: int, binary: str) -> str:
    """What torchelastic's api.py logs for a process that ended (glog prefix, UTC here)."""
    now = time.time()
    stamp = time.strftime("%m%d %H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}000"
    return (
        f"E{stamp} {os.getpid()} torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code})"
        f" local_rank: {local_rank} (pid: {pid}) of binary: {binary}\n"
    )


def start(job: dict[str, Any], rank: dict[str, Any], log: int) -> None:
    """One rank in a session of its own, its plan on its stdin, its output in the job log."""
    plan = rank["plan"]
    keep = [fd for fd in (plan["listen_fd"], plan["report_fd"]) if fd >= 0]
    child = subprocess.Popen(
        [job["python"], "-I", "-S", "-u", job["script"], *job["args"]],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env=rank["env"],
        cwd=job["folder"],
        pass_fds=keep,
        start_new_session=True,
    )
    os.close(plan["listen_fd"])
    children[rank["rank"]] = child
    tell(rank["rank"], plan)
    say({"started": rank["rank"], "pid": child.pid})
    # Reaped at once: a rank left as a zombie has an empty environ and is invisible to the search for ranks.
    threading.Thread(target=reap, args=(rank, child, job["python"], log), daemon=True).start()


def reap(rank: dict[str, Any], child: subprocess.Popen[bytes], binary: str, log: int) -> None:
    code = child.wait()
    if not leaving.is_set():
        os.write(log, elastic_line(code, rank["local_rank"], child.pid, binary).encode())
    say({"ended": rank["rank"], "pid": child.pid, "code": code})


def tell(rank: int, message: dict[str, Any]) -> None:
    pipe = children[rank].stdin
    assert pipe is not None
    try:
        pipe.write(json.dumps(message).encode() + b"\n")
        pipe.flush()
    except OSError:
        pass


def watch() -> None:
    """Tell of the processes that ranks start: whoever looks at the node sees them too."""
    known: dict[int, int] = {}
    while True:
        time.sleep(WATCH_S)
        seen: dict[int, int] = {}
        for rank, child in list(children.items()):
            try:
                for task in os.listdir(f"/proc/{child.pid}/task"):
                    with open(f"/proc/{child.pid}/task/{task}/children") as file:
                        seen.update({int(word): rank for word in file.read().split()})
            except OSError:
                continue
        for pid in seen.keys() - known.keys():
            say({"child": seen[pid], "pid": pid})
        for pid in known.keys() - seen.keys():
            say({"child_ended": known[pid], "pid": pid})
        known = seen


def main() -> None:
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (OSError, AttributeError):
        pass
    first = sys.stdin.buffer.readline()
    if not first:
        return
    job = json.loads(first)
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for rank in job["ranks"]:
        start(job, rank, log)
    threading.Thread(target=watch, daemon=True).start()
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "tell" in message:
            tell(message["rank"], message["tell"])
        elif "signal" in message and children[message["rank"]].poll() is None:
            os.kill(children[message["rank"]].pid, message["signal"])
    leaving.set()
    for child in children.values():
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except OSError:
            pass
    os._exit(0)


if __name__ == "__main__":
    main()
