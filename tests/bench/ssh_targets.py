"""Many SSH targets in one light process, for benches: real SSH by paramiko's server, and a node that is a few lines of Python.

    python tests/bench/ssh_targets.py         prints "good 40001 ssh-ed25519 AAAA…", one line for each way to behave; ends with its stdin

A target takes the payload as a node does, answers each request with one prepared record, and starts no process. All targets
share a port; a port for each of the ways to misbehave beside it (tests/transports/ssh_servers.py).
"""

import json
import os
import resource
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "transports"))
import ssh_servers

MISBEHAVING = ("tcp", "silent", "kex", "auth", "channel", "exec", "output", "endless")
ANSWER = {"rows": [{"rank": i, "wchan": "do_select", "cmd": "x" * 100} for i in range(128)]}


class Target(ssh_servers.Behaviour):
    """Answers the payload's requests without running it."""

    def _really(self, channel, command):
        def take(size):
            data = b""
            while len(data) < size:
                piece = channel.recv(min(65536, size - len(data)))
                if not piece:
                    raise EOFError
                data += piece
            return data

        try:
            take(int(take(9)))
            channel.sendall(b'\n{"_begin":{"protocol":1,"pid":1,"python":"3.11","at":%.3f}}\n' % time.time())
            line = b""
            while True:
                piece = channel.recv(65536)
                if not piece:
                    return
                line += piece
                while b"\n" in line:
                    request, _, line = line.partition(b"\n")
                    self._answer(channel, json.loads(request))
        except (OSError, EOFError, ValueError):
            return

    def _answer(self, channel, request):
        envelope = {
            "version": 1,
            "node": "",
            "look": request["look"],
            "id": request["id"],
            "status": "ok",
            "took_s": 0.01,
        }
        for probe in request["probes"]:
            record = {"probe": probe, **envelope, "at": time.time(), "data": ANSWER, "notes": []}
            channel.sendall(json.dumps(record).encode() + b"\n")
        channel.sendall(json.dumps({"_done": request["look"], "id": request["id"]}).encode() + b"\n")


def main():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    threading.stack_size(256 << 10)
    sys.setswitchinterval(0.1)  # as triage/gather.py: else its threads cost more than their work
    ssh_servers.Behaviour = Target
    import paramiko

    paramiko.util.logging.getLogger("paramiko").setLevel(100)
    key = ssh_servers.host_key()
    servers = []  # held: a socket that nobody holds is closed
    for how in ("", *MISBEHAVING):
        server = ssh_servers.Server(how, key=key)
        servers.append(server)
        if how != "tcp":  # that one is deaf because its queue is full
            server.socket.listen(4096)
        print(how or "good", server.port, key.get_name(), key.get_base64(), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
