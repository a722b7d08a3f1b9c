"""Real processes that hold a control plane, or what could be taken for one: written for the tests of probes.

python control_planes.py KIND PLACE      prints `ready PLACE` once it listens, and runs until its input ends
"""

from __future__ import annotations

import ctypes
import json
import socket
import sys
import threading
import time

ENTRY = {
    "record_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 1, "p2p_seq_id": 0, "op_id": 0,
    "profiling_name": "gloo:all_reduce", "time_created_ns": 1_790_000_000 * 10**9, "input_sizes": [[4]],
    "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"], "state": "scheduled",
    "time_discovered_started_ns": 0, "time_discovered_completed_ns": 0, "retired": False, "timeout_ms": 60000, "is_p2p": False,
}  # fmt: skip
DUMP = {
    "version": "2.10", "comm_lib_version": "", "pg_status": {},
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}, "entries": [ENTRY],
}  # fmt: skip
TRACE = """Thread 0x00007f0000000001 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/debug/__init__.py", line 9 in handler

Thread 0x00007f0000000000 (most recent call first):
  File "/job/train.py", line 41 in save_checkpoint
  File "/job/train.py", line 50 in <module>
"""


def answer_of(request: bytes) -> tuple[int, bytes]:
    name = request.split(b" ")[1].partition(b"?")[0].rpartition(b"/")[2] if request.count(b" ") > 1 else b""
    known = {b"fr_trace_json": json.dumps(DUMP).encode(), b"dump_traceback": TRACE.encode(), b"ping": b"pong"}
    return (200, known[name]) if name in known else (404, b"Handler not found")


def speak(server: socket.socket, kind: str) -> None:
    while True:
        conn, _ = server.accept()
        if kind == "mute":
            continue
        request = conn.recv(65536)
        if kind == "log":  # somebody's own server: what it hears is told
            print("heard", request, flush=True)
            continue
        status, body = answer_of(request)
        if kind == "held" and b"dump_traceback" in request:
            continue  # the interpreter lock is held: `ping` answers, and this does not
        if kind == "flood":
            conn.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            with_junk = b"x" * (1 << 20)
            try:
                while True:
                    conn.sendall(with_junk)
            except OSError:
                continue
        if kind == "garbage":
            conn.sendall(b"\x80\x04SSH-2.0 not http\r\n\r\n")
        elif kind == "chunked":
            chunks = [body[i : i + 40] for i in range(0, len(body), 40)]
            told = b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"
            conn.sendall(b"HTTP/1.1 %d OK\r\nTransfer-Encoding: chunked\r\n\r\n" % status + told)
        else:
            conn.sendall(b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
        conn.close()


def name_thread(name: str) -> None:
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)


def main(kind: str, place: str, named: str) -> None:
    if place.startswith("/"):
        server = socket.socket(socket.AF_UNIX)
        server.bind(place)
    else:
        server = socket.socket(socket.AF_INET)
        server.bind((place, 0))
        place = str(server.getsockname()[1])
    server.listen(8)
    stands = threading.Event()

    def run() -> None:
        if named:
            name_thread(named)
        stands.set()
        speak(server, kind)

    threading.Thread(target=run, daemon=True).start()
    stands.wait()
    time.sleep(0.05)  # until it stands in accept
    print("ready", place, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:4])
