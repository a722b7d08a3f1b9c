"""The command as a subprocess of this machine: `--transport local`, and the plainest thing to test against.

Options: `env` (a map added to the command's environment, e.g. TRIAGE_PROCFS).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
from collections.abc import Mapping
from typing import Any

from triage.model import Node
from triage.transports.base import Contact, Unreached, left, plain

MAX_STDERR = 64 << 10


class LocalSession:
    """A child in its own session; see base.Session."""

    def __init__(self, node: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin and process.stdout and process.stderr
        self._node, self._process = node, process
        self._in, self._out, self._err = process.stdin.fileno(), process.stdout.fileno(), process.stderr.fileno()
        self._complaint = b""
        self._closed = False
        for fd in (self._in, self._out, self._err):
            os.set_blocking(fd, False)

    def send(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            self._wait(self._in, select.POLLOUT, deadline)
            try:
                view = view[os.write(self._in, view) :]
            except BlockingIOError:
                continue
            except OSError as exc:
                raise Unreached(self._node, "read", f"the command is gone: {exc.strerror}") from exc

    def read(self, deadline: float) -> bytes:
        while True:
            self._wait(self._out, select.POLLIN, deadline)
            with contextlib.suppress(BlockingIOError):
                return os.read(self._out, 65536)

    def _wait(self, fd: int, event: int, deadline: float) -> None:
        # poll, not select: with a thousand nodes descriptors pass 1023.
        # In slices: `close` from another thread must be noticed, and its descriptors never read again.
        poll = select.poll()
        poll.register(fd, event)
        while not self._closed:
            if poll.poll(min(left(deadline), 0.5) * 1000) and not self._closed:
                return
            if not left(deadline):
                raise Unreached(self._node, "read", "no answer in time", "timeout")
        raise Unreached(self._node, "read", "closed")

    def complaint(self) -> str:
        with contextlib.suppress(OSError):
            self._complaint += os.read(self._err, MAX_STDERR)
        with contextlib.suppress(subprocess.TimeoutExpired):  # its output ends a moment before it does
            self._process.wait(timeout=0.5)
        code = self._process.poll()
        text = plain(self._complaint[:2000].decode("utf-8", "replace"))
        return " ".join(part for part in (text, f"exit {code}" if code is not None else "") if part)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError, ValueError):
            assert self._process.stdin
            self._process.stdin.close()  # the end of its input: the runner kills its probes and goes
        threading.Thread(target=self._bury, daemon=True).start()

    def _bury(self) -> None:
        """Reap the command; what ignores the end of its input is killed after 2 s."""
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


class LocalTransport:
    """Starts the command here, whatever the node's address says."""

    name = "local"

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = {**os.environ, **env}

    def open(self, node: Node, command: str, deadline: float, contact: Contact) -> LocalSession:
        contact.enter("exec")
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._env,
                start_new_session=True,
            )
        except OSError as exc:
            raise Unreached(node.name, "exec", str(exc)) from exc
        contact.enter("read")
        return LocalSession(node.name, process)

    def close(self) -> None:
        return None


def make(options: Mapping[str, Any]) -> LocalTransport:
    return LocalTransport({str(k): str(v) for k, v in dict(options.get("env") or {}).items()})
