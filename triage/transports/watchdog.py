"""One daemon thread that does at a deadline what the thread it concerns can no longer do for itself."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Guard:
    """One deadline. `fired` says whether it came before `cancel`."""

    action: Callable[[], None] | None
    fired: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cancel(self) -> None:
        with self._lock:
            self.action = None

    def fire(self) -> None:
        with self._lock:
            action, self.action = self.action, None
            self.fired = action is not None
        if action:
            with contextlib.suppress(Exception):
                action()


class Watchdog:
    """A heap of deadlines and the thread that keeps them. Actions must not block: they share that thread."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Guard]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._closed = False
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def at(self, deadline: float, action: Callable[[], None]) -> Guard:
        """Do `action` at `deadline` (monotonic) unless the guard is cancelled before."""
        guard = Guard(action)
        with self._changed:
            heapq.heappush(self._heap, (deadline, next(self._order), guard))
            if self._heap[0][2] is guard:
                self._changed.notify()
        return guard

    def after(self, seconds: float, action: Callable[[], None]) -> Guard:
        return self.at(time.monotonic() + seconds, action)

    def close(self) -> None:
        """End the thread; deadlines that have not come are forgotten."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (not self._heap or self._heap[0][0] > time.monotonic()):
                    self._changed.wait(self._heap[0][0] - time.monotonic() if self._heap else None)
                if self._closed:
                    return
                guard = heapq.heappop(self._heap)[2]
            guard.fire()
