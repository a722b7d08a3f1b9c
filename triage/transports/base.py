"""What a transport is: something that starts one command on a node and carries bytes both ways until a deadline.

A transport is one file of this folder, found by its name, with a function `make(options) -> Transport`. There is
nothing to register. `options` is the `ssh:` map of the inventory (DESIGN section 12) and what the command line adds;
a transport takes the keys that it knows and ignores the rest.

Deadlines are `time.monotonic()` values. Every call keeps its deadline whatever the far side does: that is the whole
point of this layer (notes/fanout-and-schedulers.md 1.4 lists the calls that would never return).
"""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from triage.errors import Silence, UsageError
from triage.model import Node

PHASES = ("resolve", "tcp", "banner", "kex", "auth", "channel", "exec", "read")


@dataclass
class Contact:
    """How far the connection to one node came. Filled while it happens, so that it can be read at a deadline.

    phase        the phase that runs now, or in which it failed
    seconds      phase -> seconds it took
    banner       what the server called itself (its kernel lives), or the text a command printed instead of our answer
    fingerprint  of the host key offered, "SHA256:..."
    """

    phase: str = "resolve"
    seconds: dict[str, float] = field(default_factory=dict)
    banner: str = ""
    fingerprint: str = ""
    error: str = ""
    _since: float = field(default_factory=time.monotonic)

    def enter(self, phase: str) -> None:
        """The phase before is over; `phase` begins."""
        now = time.monotonic()
        self.seconds[self.phase] = round(self.seconds.get(self.phase, 0.0) + now - self._since, 4)
        self.phase, self._since = phase, now

    def data(self) -> dict[str, Any]:
        """The data of a `contact` sample, with the running phase's time so far."""
        seconds = dict(self.seconds)
        seconds[self.phase] = round(seconds.get(self.phase, 0.0) + time.monotonic() - self._since, 4)
        return {
            "phase": self.phase,
            "error": self.error,
            "banner": self.banner,
            "seconds": seconds,
            "fingerprint": self.fingerprint,
        }


class Unreached(Silence):
    """A `Silence` that knows whether it was waited out ("timeout") or refused, closed or broken ("error")."""

    def __init__(self, node: str, phase: str, why: str, status: str = "error") -> None:
        super().__init__(node, phase, why)
        self.status = status


class Session(Protocol):
    """One running command on one node. Used by one thread; `close` may be called from any."""

    def send(self, data: bytes, deadline: float) -> None:
        """Write all of `data` to the command's standard input, which stays open. Raises Unreached."""

    def read(self, deadline: float) -> bytes:
        """The next piece of standard output; b"" at its end. Raises Unreached when the deadline passes."""

    def complaint(self) -> str:
        """The head of standard error and the exit code, as one short line; "" if there is nothing to say."""

    def close(self) -> None:
        """End it now, without waiting; the command sees the end of its input. Never raises, may be repeated."""


class Line(Protocol):
    """A TCP connection that a node makes for us. All calls end at the time-out, with an OSError."""

    def settimeout(self, seconds: float) -> None:
        """For each of the calls that follow."""

    def sendall(self, data: bytes) -> None:
        """Write all of it."""

    def recv(self, most: int) -> bytes:
        """What is there, at least a byte; b"" at the end."""

    def close(self) -> None:
        """Never raises."""


class Dialler(Protocol):
    """A session that can also connect from its node (not every transport's can): `dial`."""

    def dial(self, host: str, port: int, deadline: float) -> Line:
        """Connect from the node to a place that it reaches, beside the command that runs.

        ConnectionRefusedError: nobody listens there. PermissionError: the node connects for nobody. Else an OSError.
        """


class Transport(Protocol):
    """Opens sessions. `open` is called from many threads at once."""

    name: str

    def open(self, node: Node, command: str, deadline: float, contact: Contact) -> Session:
        """Start `command` (one string for the login shell) on `node`; fills `contact` as phases pass.

        Raises Unreached with the phase in which it ended.
        """

    def close(self) -> None:
        """Give back what all sessions share. Never waits."""


def load(name: str, options: Mapping[str, Any] | None = None) -> Transport:
    """The transport of the file `name`.py of this folder. UsageError, with the list, if there is none."""
    found = {m.name for m in pkgutil.iter_modules(importlib.import_module("triage.transports").__path__)}
    if name in found:
        module = importlib.import_module(f"triage.transports.{name}")
        if hasattr(module, "make"):
            transport: Transport = module.make(dict(options or {}))
            return transport
    known = [n for n in sorted(found) if hasattr(importlib.import_module(f"triage.transports.{n}"), "make")]
    raise UsageError(f"no transport is called {name!r}; there are: {', '.join(known)}")


def plain(text: str, most: int = 300) -> str:
    """What a node said, as one bounded line without control characters: it goes into messages."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:most]


def left(deadline: float) -> float:
    """Seconds until `deadline`, never negative."""
    return max(0.0, deadline - time.monotonic())
