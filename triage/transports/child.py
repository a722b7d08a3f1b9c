"""A session whose command is a child of this machine: the node's shell itself (local), or a program that reaches it.

The child's standard error is read along with its output: unread it would fill its pipe and stall the child. What it says is
handed to `hear` line by line, or kept for `complaint`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence

from triage.model import Node
from triage.transports.base import Contact, Unreached, left, plain

MAX_STDERR = 64 << 10
MAX_LINE = 4 << 10


class ChildSession:
    """A child in its own session; see base.Session.

    hear    gets each line of standard error; False = keep it for `complaint`
    """

    def __init__(
        self, node: str, process: subprocess.Popen[bytes], hear: Callable[[str], bool] = lambda line: False
    ) -> None:
        assert process.stdin and process.stdout and process.stderr
        self._node, self._process, self._hear = node, process, hear
        self._in, self._out, self._err = process.stdin.fileno(), process.stdout.fileno(), process.stderr.fileno()
        self._said: list[str] = []
        self._said_size = 0
        self._line = b""
        self._err_open = True
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

    def wait_until(self, done: Callable[[], bool], deadline: float) -> bool:
        """Hear what standard error says until `done`: True. False once it ended, or the deadline passed."""
        while not done():
            if not self._err_open or self._closed or not left(deadline):
                return False
            poll = select.poll()
            poll.register(self._err, select.POLLIN)
            if poll.poll(min(left(deadline), 0.5) * 1000) and not self._closed:
                self._listen()
        return True

    @property
    def ended(self) -> bool:
        return not self._err_open

    def _wait(self, fd: int, event: int, deadline: float) -> None:
        # poll, not select: with a thousand nodes descriptors pass 1023.
        # In slices: `close` from another thread must be noticed, and its descriptors never read again.
        poll = select.poll()
        poll.register(fd, event)
        if self._err_open:
            poll.register(self._err, select.POLLIN)
        while not self._closed:
            ready = dict(poll.poll(min(left(deadline), 0.5) * 1000))
            if self._closed:
                break
            if self._err in ready:
                self._listen()
                if not self._err_open:
                    poll.unregister(self._err)
            if fd in ready:
                return
            if not left(deadline):
                raise Unreached(self._node, "read", "no answer in time", "timeout")
        raise Unreached(self._node, "read", "closed")

    def _listen(self) -> None:
        """Take what stands in standard error."""
        try:
            piece = os.read(self._err, 65536)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._err_open = False
        *lines, rest = (self._line + piece).split(b"\n")
        self._line = rest[:MAX_LINE]
        if not piece and rest:
            lines.append(rest)
            self._line = b""
        for raw in lines:
            line = raw[:MAX_LINE].decode("utf-8", "replace").rstrip("\r")
            if not self._hear(line) and self._said_size < MAX_STDERR:
                self._said.append(line)
                self._said_size += len(line) + 1

    def complaint(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):  # its output ends a moment before it does
            self._process.wait(timeout=0.5)
        code = self._process.poll()
        for _ in range(16):
            if self._closed or not self._err_open:
                break
            poll = select.poll()
            poll.register(self._err, select.POLLIN)
            if not poll.poll(0):
                break
            self._listen()
        text = plain(" ".join([*self._said, self._line.decode("utf-8", "replace")])[:2000])
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


def start(
    node: Node,
    argv: Sequence[str],
    contact: Contact,
    env: Mapping[str, str] | None = None,
    hear: Callable[[str], bool] = lambda line: False,
) -> ChildSession:
    """Start a program for one node. Unreached, in the phase that `contact` is in, where it does not start."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )
    except OSError as exc:
        raise Unreached(node.name, contact.phase, f"{argv[0]}: {exc.strerror}") from exc
    return ChildSession(node.name, process, hear)
