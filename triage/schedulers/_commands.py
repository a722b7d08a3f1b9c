"""Running a scheduler's commands: several at once, each bounded in time and in what it may say, and none left behind.

A command that waits for a dead daemon is killed at the deadline with its whole session (a wrapper's children too). What a
child that left the session holds open is not waited for.
What can fool it: a program on storage that stands still; `locate` touches it first, in a child with a deadline.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from triage import ownfiles

MOST_OUT = 16 << 20  # `squeue --json` of one job of 4,000 nodes is some 2 MB
MOST_ERR = 64 << 10
AFTER_END_S = 0.2  # what was written before the end lies in the pipe by then
LATE_S = 1.0  # of silence before it is said whom we wait for
PIECE = 1 << 16


@dataclass(frozen=True)
class Said:
    """What one command came to. `code` is None where it was killed (`why` tells: timeout, overflow) or did not start."""

    code: int | None
    out: str = ""
    err: str = ""
    why: str = ""

    @property
    def ok(self) -> bool:
        return self.code == 0


def locate(name: str) -> str:
    """The path of a program on PATH, "" if there is none. Raises ownfiles.TooSlow where a folder of PATH stands still."""

    def look() -> bytes:
        path = shutil.which(name) or ""
        if path:
            with open(path, "rb") as file:  # what cannot be read cannot be started either
                file.read(1)
        return os.fsencode(path)

    try:
        return os.fsdecode(ownfiles.compute(look, f"the folder of PATH that holds {name}"))
    except ownfiles.TooSlow:
        raise
    except OSError:
        return ""


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    open: int = 2
    ended: float | None = None
    why: str = ""


def run_all(
    lines: Sequence[Sequence[str]], limit_s: float, env: Mapping[str, str], late: Callable[[], None] = lambda: None
) -> list[Said]:
    """Run these commands at once, all within `limit_s`, and say what each came to; in their order.

    `late` is called once where they take longer than LATE_S: somebody waits for us.
    """
    deadline = time.monotonic() + limit_s
    running: list[_Running | Said] = []
    try:
        for argv in lines:
            running.append(_start(argv, env))
        _listen([each for each in running if isinstance(each, _Running)], deadline, late)
    finally:
        for each in running:
            if isinstance(each, _Running):
                _end(each)
    return [each if isinstance(each, Said) else _said(each) for each in running]


def _start(argv: Sequence[str], env: Mapping[str, str]) -> _Running | Said:
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            cwd="/",  # ours may lie on the storage that stands still
            start_new_session=True,
        )
    except OSError as error:
        return Said(None, err=f"{argv[0]}: {error.strerror}", why="absent")
    return _Running(process)


def _listen(all_: list[_Running], deadline: float, late: Callable[[], None]) -> None:
    begun, told = time.monotonic(), False
    with selectors.DefaultSelector() as selector:
        for each in all_:
            for pipe, kept, most in (
                (each.process.stdout, each.out, MOST_OUT),
                (each.process.stderr, each.err, MOST_ERR),
            ):
                assert pipe is not None
                selector.register(pipe, selectors.EVENT_READ, (each, kept, most))
        while any(_wanted(each) for each in all_):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            if not told and time.monotonic() - begun > LATE_S:
                told = True
                late()
            # In slices: a child that was left behind may hold the pipe of a command that has ended.
            for key, _ in selector.select(min(left, 0.05)):
                each, kept, most = key.data
                piece = os.read(key.fd, PIECE)
                kept += piece
                if not piece:
                    selector.unregister(key.fileobj)
                    each.open -= 1
                elif len(kept) > most:
                    if kept is each.out:
                        each.why = "overflow"
                    del kept[most:]
        for each in all_:
            if not each.why and _wanted(each):
                each.why = "timeout"


def _wanted(each: _Running) -> bool:
    """Is there more to come?"""
    if each.why:
        return False
    if each.process.poll() is None:
        return True
    each.ended = each.ended or time.monotonic()
    return each.open > 0 and time.monotonic() < each.ended + AFTER_END_S


def _end(each: _Running) -> None:
    """Kill what is left of its session; a process that the kernel does not let go is not waited for."""
    with contextlib.suppress(OSError):
        os.killpg(each.process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        each.process.wait(0.5)
    for pipe in (each.process.stdout, each.process.stderr):
        assert pipe is not None
        pipe.close()


def _said(each: _Running) -> Said:
    out, err = (bytes(kept).decode("utf-8", "replace") for kept in (each.out, each.err))
    return Said(None if each.why else each.process.returncode, out, err, each.why)
