"""Touching files of our own machine without hanging on them.

The state folder, keys, known_hosts, configuration and the job log may lie on the shared storage that froze the job. So
each is read first by a child with a deadline; when it passes, triage goes on without the file and says so: that is
itself evidence of a shared-storage stall (DESIGN section 5).

What can fool it: a child in uninterruptible sleep cannot be killed; it is left to the kernel and never waited for.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable

PATIENCE_S = 2.0


class TooSlow(OSError):
    """The file did not answer within the deadline."""


def read(path: str, limit: int = 8 << 20, patience_s: float = PATIENCE_S, tail: bool = False) -> bytes:
    """The first (or, with `tail`, the last) `limit` bytes of a file. Raises OSError, or TooSlow."""
    return _in_child(lambda: _read(path, limit, tail), patience_s, path)


def exists(path: str, patience_s: float = PATIENCE_S) -> bool:
    """Is there something at this path? Raises TooSlow when the file system does not answer."""
    return _in_child(lambda: b"1" if os.path.exists(path) else b"", patience_s, path) == b"1"


def listing(folder: str, patience_s: float = PATIENCE_S) -> list[str]:
    """Names in a folder. Raises OSError, or TooSlow."""
    data = _in_child(lambda: b"\0".join(os.fsencode(name) for name in os.listdir(folder)), patience_s, folder)
    return sorted(os.fsdecode(name) for name in data.split(b"\0") if name)


def writable_folder(path: str, patience_s: float = PATIENCE_S) -> bool:
    """Make the folder (mode 0700) if need be; can we write there? Raises TooSlow."""

    def attempt() -> bytes:
        os.makedirs(path, mode=0o700, exist_ok=True)
        return b"1" if os.access(path, os.W_OK | os.X_OK) else b""

    try:
        return _in_child(attempt, patience_s, path) == b"1"
    except TooSlow:
        raise
    except OSError:
        return False


def compute(work: Callable[[], bytes], path: str, patience_s: float = PATIENCE_S) -> bytes:
    """Run `work` (which reads `path`) in the child: its bytes, OSError, or TooSlow."""
    return _in_child(work, patience_s, path)


def _read(path: str, limit: int, tail: bool) -> bytes:
    # O_NONBLOCK: a FIFO put in the place of a file must not hold us.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if tail:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - limit))
        return file.read(limit)


def _in_child(work: Callable[[], bytes], patience_s: float, path: str) -> bytes:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            try:
                answer = b"+" + work()
            except OSError as error:
                answer = b"-%d" % (error.errno or 0)
            view = memoryview(answer)
            while view:
                view = view[os.write(writer, view[: 1 << 16]) :]
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    parts: list[bytes] = []
    end = time.monotonic() + patience_s
    try:
        while True:
            left = end - time.monotonic()
            if left <= 0 or not select.select([reader], [], [], left)[0]:
                os.kill(child, signal.SIGKILL)
                raise TooSlow(f"{path} did not answer within {patience_s:g}s")
            piece = os.read(reader, 1 << 16)
            if not piece:
                break
            parts.append(piece)
    finally:
        os.close(reader)
        _reap(child)
    answer = b"".join(parts)
    if answer[:1] == b"+":
        return answer[1:]
    number = int(answer[1:] or 0) if answer[:1] == b"-" else 0
    raise OSError(number, os.strerror(number) if number else "the reader died", path)


def _reap(child: int) -> None:
    """Collect the child if it ends at once; a child in uninterruptible sleep is not waited for."""
    for _ in range(20):
        try:
            if os.waitpid(child, os.WNOHANG)[0]:
                return
        except ChildProcessError:
            return
        time.sleep(0.005)
