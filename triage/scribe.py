"""Writing a folder through a child, so that no write ever holds the run: the storage may stop in the middle of it.

    scribe = Scribe("/shared/state/cases/20261130T214001Z-48213-7f3a")
    scribe.append("samples.jsonl", b"...\\n")     goes into a pipe; the child writes
    scribe.put("case.json", b"...")              whole or not at all
    scribe.settle()                              all written by now? `trouble` says what was not

The first failure is the one that explains the others: after it nothing more is appended, for a torn line in the middle and
lines after it would look like a file that holds everything. What is put is tried all the same.

What can fool it: storage that takes longer than the patience for one write, and lives: it is given up like a dead one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import select
import signal
import struct
import time
import weakref
from pathlib import Path

from triage.ownfiles import PATIENCE_S, bury, let_go

ORDER = struct.Struct("!cHI")  # what to do, bytes of the name, bytes of the data
APPEND, END_APPEND, PUT, SUMS, SETTLE = b"a", b"e", b"w", b"s", b"?"
ROOM = 1 << 20  # what may wait in the pipe
APPENDING = "be written on in"
SAVING = "be saved in"


class Scribe:
    """One folder that does not exist yet, and the child that alone touches it.

    trouble    "" or (what could not be done, why), in the words of the file system: the first failure
    stalled    it did not take what was sent, or did not answer, within the patience: nothing more is sent
    """

    def __init__(self, folder: Path, patience_s: float = PATIENCE_S) -> None:
        self.trouble: tuple[str, str] | None = None
        self.stalled = False
        self._patience_s = patience_s
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            _work(folder, orders, answers)
        os.close(orders)
        os.close(answers)
        os.set_blocking(self._orders, False)
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(self._orders, fcntl.F_SETPIPE_SZ, ROOM)
        weakref.finalize(self, _end, os.getpid(), self._child, self._orders, self._answers)

    def append(self, name: str, data: bytes) -> None:
        """Add to the end of a file."""
        self._send(APPEND, name, data, APPENDING)

    def end_append(self) -> None:
        """No more will be appended: network storage tells of a full disk only when the file is closed."""
        self._send(END_APPEND, "", b"", APPENDING)

    def put(self, name: str, data: bytes) -> None:
        """Write a file, whole or not at all: a reader never sees half of it."""
        self._send(PUT, name, data, SAVING)

    def sums(self, name: str) -> None:
        """Write the SHA-256 sums of all that is in the folder."""
        self._send(SUMS, name, b"", SAVING)

    def settle(self) -> None:
        """Wait until all is written that was sent, and learn what was not."""
        self._send(SETTLE, "", b"", SAVING)
        if self.stalled:
            return
        answer, end = b"", time.monotonic() + self._patience_s
        while not answer.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not _ready(self._answers, select.POLLIN, left):
                self._stall(SAVING)
                return
            piece = os.read(self._answers, 4096)
            if not piece:
                self.trouble = self.trouble or (SAVING, "its writer died")
                return
            answer += piece
        what, _, why = answer.decode("utf-8", "replace").rstrip("\n").partition("\0")
        if what and self.trouble is None:
            self.trouble = (what, why)

    def _send(self, order: bytes, name: str, data: bytes, what: str) -> None:
        label = name.encode()
        view = memoryview(ORDER.pack(order, len(label), len(data)) + label + data)
        while view and not self.stalled:
            try:
                view = view[os.write(self._orders, view) :]
            except BlockingIOError:
                if not _ready(self._orders, select.POLLOUT, self._patience_s):
                    self._stall(what)
            except OSError:
                self.trouble = self.trouble or (what, "its writer died")
                return

    def _stall(self, what: str) -> None:
        self.stalled = True
        self.trouble = self.trouble or (what, f"it did not answer within {self._patience_s:g}s")
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGKILL)  # what it still does when the storage is back would only be half


def _ready(descriptor: int, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(seconds * 1000))


def _end(owner: int, child: int, *descriptors: int) -> None:
    """The child sees the end of its orders, finishes what it has, and ends."""
    if os.getpid() != owner:
        return
    for descriptor in descriptors:
        os.close(descriptor)
    bury(child)


# ---------------------------------------------------------------- in the child


class _Folder:
    """The folder, made with the first order; remembers the first failure."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.first = ""
        self.open: dict[str, int] = {}
        self.appends = True
        self._try(SAVING, lambda: folder.mkdir(mode=0o700, parents=True, exist_ok=False))
        self.made = not self.first

    def _try(self, what: str, work: object) -> bool:
        try:
            work()  # type: ignore[operator]
            return True
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)[:120] or type(error).__name__
            self.first = self.first or f"{what}\0{why}"
            return False

    def take(self, order: bytes, name: str, data: bytes) -> None:
        if order == APPEND and self.appends and self.made:
            self.appends = self._try(APPENDING, lambda: self._append(name, data))
            if not self.appends:
                self._close()
        elif order == END_APPEND:
            self._close()
        elif order == PUT:
            self._try(SAVING, lambda: self._put(name, data))
        elif order == SUMS:
            self._try(SAVING, lambda: self._put(name, self._sums(name)))

    def _append(self, name: str, data: bytes) -> None:
        if name not in self.open:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self.open[name] = os.open(self.folder / name, flags, 0o600)
        # No buffer of ours: what a failed write leaves in one would be written again, or fail again, at the end.
        view = memoryview(data)
        while view:
            view = view[os.write(self.open[name], view) :]

    def _close(self) -> None:
        while self.open:
            descriptor = self.open.popitem()[1]
            self._try(APPENDING, lambda descriptor=descriptor: os.close(descriptor))

    def _put(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        draft = path.with_name(path.name + ".part")
        draft.write_bytes(data)
        os.replace(draft, path)

    def _sums(self, name: str) -> bytes:
        lines = []
        for path in sorted(p for p in self.folder.rglob("*") if p.is_file() and p.name != name):
            lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(self.folder)}\n")
        return "".join(lines).encode()


def _work(folder: Path, orders: int, answers: int) -> None:
    """Take orders until their end. Never returns."""
    try:
        os.setsid()  # Ctrl-C and a closed terminal are for the run; what it saw is still to be written
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        orders, answers = let_go(orders, answers)
        desk = _Folder(folder)
        with os.fdopen(orders, "rb") as incoming:
            while head := incoming.read(ORDER.size):
                order, label, size = ORDER.unpack(head)
                name, data = incoming.read(label).decode(), incoming.read(size)
                if order == SETTLE:
                    os.write(answers, desk.first.encode("utf-8", "replace") + b"\n")
                else:
                    desk.take(order, name, data)
    finally:
        os._exit(0)
