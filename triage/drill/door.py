"""A listening port of a fake node that can become a black hole, and be a port again.

A dead machine or a cut cable neither accepts nor refuses: whoever connects waits. Without root this is had from the
kernel: `listen(0)` on the same socket admits one more connection, and while that one is not accepted all further SYNs
are dropped (notes/prototype-findings.md 1.5). A caller that retries gets in as soon as the door opens again.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable

BACKLOG = 512
SETTLE_MS = 20  # loopback answers a SYN in microseconds


class Door:
    """Accepts on a listening socket while it is open; `welcome` gets each connection in a thread of its own."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.listener.listen(BACKLOG)
        self.listener.setblocking(False)  # what poll promised may have gone again
        self.lock = threading.Lock()
        self.opened = threading.Event()
        self.opened.set()
        self.fillers: list[socket.socket] = []

    def serve(self, welcome: Callable[[socket.socket], None]) -> None:
        """Accept until the process ends."""
        waiting = select.poll()
        waiting.register(self.listener, select.POLLIN)
        while True:
            self.opened.wait()
            waiting.poll()
            with self.lock:
                if not self.opened.is_set():
                    continue  # what waits there is what keeps the door shut
                try:
                    connection, _ = self.listener.accept()
                except OSError:  # the caller has changed his mind
                    continue
            connection.setblocking(True)
            threading.Thread(target=welcome, args=(connection,), daemon=True).start()

    def shut(self) -> None:
        """From now on whoever connects hears nothing. Connections that were accepted are not touched."""
        with self.lock:
            if not self.opened.is_set():
                return
            self.opened.clear()
            self.listener.listen(0)
            while self.fill():
                pass

    def fill(self) -> bool:
        """One connection of our own into the queue. False once the kernel takes no more."""
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(self.listener.getsockname())
        waiting = select.poll()
        waiting.register(filler, select.POLLOUT)
        if waiting.poll(SETTLE_MS):
            self.fillers.append(filler)
            return True
        filler.close()
        return False

    def open(self) -> None:
        """Accept again. The connections that kept it shut are closed: to `welcome` they are callers who say nothing."""
        with self.lock:
            self.listener.listen(BACKLOG)
            for filler in self.fillers:
                filler.close()
            self.fillers.clear()
            self.opened.set()
