"""Several questions side by side, each in a child of its own: one that never ends costs nothing but its own answer.

    told = apart({"0000:3b:00.0": function(say), ...}, left)
    told["0000:3b:00.0"].pieces   what the function said, each `say({...})` at once
    .ended   did the child fall silent by itself?    .whole   did the function return?    .failed   text of its exception
    .state, .wchan   of a child that did not end: D = it hangs in the kernel

A call into a driver may block for 45 s under a lock, or for ever (notes/gpu-health.md 1.2); a thread that waits there cannot be
ended, and a signal is not heard. A child has its own session and no descriptor of ours but its pipe, and dies with us.
Fooled by   a child that is at its end and does not die: what it closes last is the driver, which may block as well.
(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import ctypes
import json
import os
import select
import signal
import time

PR_SET_PDEATHSIG = 1
MOST_BYTES = 262144  # that one child may say
MARGIN_S = 0.3  # before our own end
BURY_S = 0.2  # that we wait for the dead


class Told(object):
    """What one child said."""

    def __init__(self, pid):
        self.pid, self.raw, self.ended, self.state, self.wchan = pid, b"", False, None, None

    @property
    def pieces(self):
        found = []
        for line in self.raw.split(b"\n")[:-1]:  # what stands behind the last newline was cut off
            try:
                piece = json.loads(line.decode("ascii"))
            except ValueError:
                continue
            if isinstance(piece, dict):
                found.append(piece)
        return found

    @property
    def whole(self):
        return any("whole" in piece for piece in self.pieces)

    @property
    def failed(self):
        return next((str(piece["failed"]) for piece in self.pieces if "failed" in piece), "")


def apart(jobs, left, procfs="/proc"):
    """{key: Told} of {key: function(say)}. Returns when all have ended, or MARGIN_S before `left()` is 0."""
    told, pipes = {}, {}
    for key, job in jobs.items():
        rfd, wfd = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_child(job, wfd)
        os.close(wfd)
        told[key] = pipes[rfd] = Told(pid)
    while pipes and left() > MARGIN_S:
        for rfd in select.select(list(pipes), [], [], max(0.0, left() - MARGIN_S))[0]:
            piece = os.read(rfd, 65536)
            one = pipes[rfd]
            one.raw += piece
            if not piece or len(one.raw) > MOST_BYTES:
                one.ended = not piece
                os.close(rfd)
                del pipes[rfd]
    left_over = _unburied([one for one in told.values() if one.ended])
    for one in told.values():
        if not one.ended:
            one.state, one.wchan = _where(one.pid, procfs)
            left_over.append(one)
    for one in left_over:
        os.kill(one.pid, signal.SIGKILL)  # in D state it is heard later, or never: nobody waits for it
        os.waitpid(one.pid, os.WNOHANG)
    for rfd in pipes:
        os.close(rfd)
    return told


def _unburied(ones):
    """Those that are not dead within BURY_S: to end, a process closes the driver, and that may block after its last word."""
    until = time.monotonic() + BURY_S
    while True:
        ones = [one for one in ones if os.waitpid(one.pid, os.WNOHANG)[0] == 0]
        if not ones or time.monotonic() > until:
            return ones
        time.sleep(0.002)


def _be_child(job, wfd):
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) != wfd:
                try:
                    os.close(int(name))
                except OSError:
                    pass
        try:
            job(lambda piece: _say(wfd, piece))
            _say(wfd, {"whole": True})
        except Exception as error:  # whatever a library of another age throws: it is this child's answer
            _say(wfd, {"failed": ascii("%s: %s" % (type(error).__name__, error))[1:-1][:160]})
    finally:
        os._exit(0)


def _say(wfd, piece):
    raw = json.dumps(piece, allow_nan=False).encode("ascii") + b"\n"
    while raw:
        raw = raw[os.write(wfd, raw) :]


def _where(pid, procfs):
    """(state, wait channel) of a process, None where they cannot be read."""
    found = []
    for name in ("stat", "wchan"):
        try:
            with open("%s/%d/%s" % (procfs, pid, name)) as file:
                found.append(file.read(4096))
        except OSError:
            found.append("")
    return (found[0].rpartition(")")[2].split() or [None])[0], found[1].strip()[:64] or None
