"""Touching files of our own machine without hanging on them.

The state folder, keys, known_hosts, configuration and the job log may lie on the shared storage that froze the job. So
each is touched first by a child with a deadline; when it passes, triage goes on without the file and says so: that is
itself evidence of a shared-storage stall (DESIGN section 5). Only children may touch them: a thread in uninterruptible
sleep would keep our own process from ending.

The first words must come within 5 s, whatever stands still: what is known to be needed is begun at once (`ahead`), what
lies below a folder that did not answer is not asked again, and after a first stall the patience is shorter.

What can fool it: a child in uninterruptible sleep cannot be killed. It is left to the kernel and never waited for, and it
holds nothing of ours: neither the terminal nor the pipe behind `| less`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import select
import signal
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from triage.errors import ConfigError

PATIENCE_S = 2.0
SHORT_S = 1.0  # once something stalled; storage that lives answers within milliseconds
LIMIT = 8 << 20
PIECE = 1 << 20
PIECES, FAILED, END = b"+", b"-", b"."
FRAME = struct.Struct("!cI")  # kind; bytes that follow (of a failure: errno, 16 bits, and bytes)

Work = Callable[[], Iterable[bytes]]


class TooSlow(OSError):
    """The file did not answer within the deadline. `below`: it was not asked, for a folder above it had not answered."""

    below = ""


class Touch:
    """A child that touches something of ours, begun at once; its answer is asked for later."""

    def __init__(self, work: Work, path: str, patience_s: float) -> None:
        self.path, self.patience_s = path, patience_s
        self._end = time.monotonic() + patience_s
        self._pipe, writer = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            _serve(work, writer, patience_s)
        os.close(writer)

    def pieces(self) -> Iterator[bytes]:
        """What the child reads, as it comes; each piece has the same patience. Raises the child's OSError, or TooSlow."""
        try:
            while True:
                kind, size = FRAME.unpack(self._take(FRAME.size))
                if kind == END:
                    return
                if kind == FAILED:
                    number, why = size >> 16, self._take(size & 0xFFFF).decode("utf-8", "replace")
                    raise OSError(number, why, self.path)
                yield self._take(size)
                # The time that the reader of the pieces takes is not the file's.
                self._end = time.monotonic() + self.patience_s
        finally:
            self.give_up()

    def _take(self, size: int) -> bytes:
        # poll, not select: with a thousand nodes descriptors pass 1023.
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        got = bytearray()
        while len(got) < size:
            # What was begun long ago may be asked for late: its answer then lies here.
            if not poll.poll(max(0.0, self._end - time.monotonic()) * 1000):
                _STALLED[self.path] = self.patience_s
                raise TooSlow(f"{self.path} did not answer within {self.patience_s:g}s")
            piece = os.read(self._pipe, min(PIECE, size - len(got)))
            if not piece:
                raise OSError(0, "the reader died", self.path)
            got += piece
            self._end = time.monotonic() + self.patience_s
        return bytes(got)

    def give_up(self) -> None:
        """The child is not needed any more; one that cannot be killed is left to the kernel."""
        os.close(self._pipe)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGKILL)
        bury(self._child)


def bury(child: int) -> None:
    """Collect a child that ends by now; one in uninterruptible sleep is not waited for."""
    for turn in range(8):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(child, os.WNOHANG)[0]:
                return
            time.sleep(0.0004 * 2**turn)


_AHEAD: dict[tuple[str, str], Touch] = {}
_STALLED: dict[str, float] = {}


def forget() -> None:
    """Nothing has stalled and nothing was begun: as at the beginning of a run."""
    while _AHEAD:
        _AHEAD.popitem()[1].give_up()
    _STALLED.clear()


def ahead(*, read: Iterable[str] = (), there: Iterable[str] = (), opens: Iterable[str] = ()) -> None:
    """Begin to touch these now, all at once: `read`, `exists` and `opens_plain` of them will find the answer there."""
    works: list[tuple[str, Iterable[str], Callable[[str], Iterable[bytes]]]]
    works = [("read", read, _read), ("exists", there, _exists), ("opens", opens, _opens)]
    for kind, paths, work in works:
        for path in paths:
            if path and (kind, path) not in _AHEAD:
                _AHEAD[kind, path] = Touch(partial(work, path), path, PATIENCE_S)


def read(path: str, limit: int = LIMIT, patience_s: float | None = None, tail: bool = False) -> bytes:
    """The first (or, with `tail`, the last) `limit` bytes of a file. Raises OSError, or TooSlow."""
    if tail or limit > LIMIT:
        return b"".join(_ask(partial(_read, path, limit, tail), path, patience_s))
    return b"".join(_ask(partial(_read, path), path, patience_s, "read"))[:limit]


def text_of(path: str, what: str) -> str:
    """A text file of the operator, read with patience. Every failure is one line."""
    try:
        data = read(os.path.expanduser(path), limit=4 << 20)
    except TooSlow as error:
        raise ConfigError(f"{what} {error}; copy it to local storage and try again") from None
    except OSError as error:
        raise ConfigError(f"{what} {path}: {error.strerror}") from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{what} {path} is not text") from None


def write_new(path: str, text: str) -> None:
    """A text into a new file, or over an old one that the user named; a link there is not followed to somewhere else."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(os.path.expanduser(path), flags, 0o644), "w", encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def read_plain(path: str, limit: int) -> bytes:
    """The first `limit` bytes of a plain file: no link is followed, no FIFO waited for. Raises OSError, or TooSlow."""
    return b"".join(_ask(partial(_read, path, limit, follow=False), path))


def exists(path: str, patience_s: float | None = None) -> bool:
    """Is there something at this path? Raises TooSlow when the file system does not answer."""
    return b"".join(_ask(partial(_exists, path), path, patience_s, "exists")) == b"1"


def opens_plain(path: str) -> bool:
    """Is there a plain file that we may read? Raises TooSlow."""
    return b"".join(_ask(partial(_opens, path), path, None, "opens")) == b"1"


def is_file(path: str) -> bool:
    """Is there a file at this path? Raises TooSlow."""
    return compute(lambda: b"1" if os.path.isfile(path) else b"", path) == b"1"


def is_folder(path: str) -> bool:
    """Is there a folder at this path? Raises TooSlow."""
    return compute(lambda: b"1" if os.path.isdir(path) else b"", path) == b"1"


def listing(folder: str, patience_s: float | None = None) -> list[str]:
    """Names in a folder. Raises OSError, or TooSlow."""
    data = compute(lambda: b"\0".join(os.fsencode(name) for name in os.listdir(folder)), folder, patience_s)
    return sorted(os.fsdecode(name) for name in data.split(b"\0") if name)


def writable_folder(path: str, patience_s: float | None = None) -> bool:
    """Make the folder (mode 0700) if need be; can we write there? Raises TooSlow."""

    def attempt() -> bytes:
        os.makedirs(path, mode=0o700, exist_ok=True)
        return b"1" if os.access(path, os.W_OK | os.X_OK) else b""

    try:
        return compute(attempt, path, patience_s) == b"1"
    except TooSlow:
        raise
    except OSError:
        return False


def private_folder() -> str:
    """A new folder that only we may read, on storage that answers. OSError where there is none."""
    trouble = OSError(0, "no temporary folder")
    for base in dict.fromkeys((os.environ.get("TMPDIR") or "/tmp", "/tmp", "/var/tmp", "/dev/shm")):
        make = partial(tempfile.mkdtemp, prefix="triage-", dir=base)
        try:
            return os.fsdecode(compute(lambda make=make: os.fsencode(make()), base))  # type: ignore[misc]
        except OSError as error:
            trouble = error
    raise trouble


def mark(path: str) -> bool:
    """Leave an empty file there, and its folder if need be: is it new? Raises OSError, or TooSlow."""

    def attempt() -> bytes:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        return b"1"

    try:
        return compute(attempt, path) == b"1"
    except FileExistsError:
        return False


def compute(work: Callable[[], bytes], path: str, patience_s: float | None = None) -> bytes:
    """Run `work` (which touches `path`) in the child: its bytes, OSError (also for a ValueError), or TooSlow."""
    return b"".join(_ask(lambda: (work(),), path, patience_s))


def stream(work: Work, path: str, patience_s: float | None = None) -> Iterator[bytes]:
    """The pieces that `work` yields in the child, each with the patience of one touch. Raises as `compute`."""
    return _ask(work, path, patience_s)


def _ask(work: Work, path: str, patience_s: float | None = None, kind: str = "") -> Iterator[bytes]:
    begun = _AHEAD.pop((kind, path), None)
    stuck = next((folder for folder in _STALLED if path.startswith(folder.rstrip("/") + "/")), None)
    if stuck is not None:
        if begun:
            begun.give_up()
        slow = TooSlow(f"{path}: {stuck} did not answer within {_STALLED[stuck]:g}s")
        slow.below = stuck
        raise slow
    patience_s = patience_s if patience_s is not None else SHORT_S if _STALLED else PATIENCE_S
    return (begun or Touch(work, path, patience_s)).pieces()


# ---------------------------------------------------------------- in the child


def _read(path: str, limit: int = LIMIT, tail: bool = False, follow: bool = True) -> Iterator[bytes]:
    # O_NONBLOCK: a FIFO put in the place of a file must not hold us.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    info = os.fstat(descriptor)
    if not follow and not stat.S_ISREG(info.st_mode):
        raise ValueError("is not a plain file")
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if tail:
            file.seek(max(0, info.st_size - limit))
        while limit > 0 and (piece := file.read(min(PIECE, limit))):
            limit -= len(piece)
            yield piece


def _exists(path: str) -> Iterator[bytes]:
    yield b"1" if os.path.exists(path) else b""


def _opens(path: str) -> Iterator[bytes]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        plain = stat.S_ISREG(os.fstat(descriptor).st_mode)
        yield b"1" if plain and os.pread(descriptor, 1, 0) is not None else b""
    except OSError:
        yield b""


def let_go(*keep: int) -> list[int]:
    """In a new child: hold nothing but these descriptors, which are returned under their new numbers.

    Whoever waits for the end of our output, and the nodes that wait for the end of theirs, must not wait for a child
    that hangs.
    """
    first = 3 + len(keep)
    aside = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, first) for number in keep]
    for target, number in enumerate(aside, 3):
        os.dup2(number, target, inheritable=False)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.closerange(first, 65536 if most == resource.RLIM_INFINITY else min(most, 65536))
    return list(range(3, first))


def _serve(work: Work, writer: int, patience_s: float) -> None:
    """Do the work and end. Never returns."""
    try:
        (writer,) = let_go(writer)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        # Whoever is stuck ends as soon as the kernel lets it, also when nobody is left to kill it.
        alarm = int(patience_s) + 2
        signal.alarm(alarm)
        try:
            for piece in work():
                signal.alarm(0)  # the reader may take its time
                for start in range(0, len(piece), PIECE):
                    part = piece[start : start + PIECE]
                    _write(writer, FRAME.pack(PIECES, len(part)) + part)
                signal.alarm(alarm)
            _write(writer, FRAME.pack(END, 0))
        except (OSError, ValueError) as error:
            number = error.errno or 0 if isinstance(error, OSError) else 0
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            text = why.encode("utf-8", "replace")[:400]
            _write(writer, FRAME.pack(FAILED, (number & 0x7FFF) << 16 | len(text)) + text)
    finally:
        os._exit(0)


def _write(writer: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(writer, view) :]
