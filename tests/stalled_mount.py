"""Storage that went away: whoever touches it waits in state D, and not even SIGKILL ends that.

`stalled`  a FUSE file system whose daemon says hello to the kernel and answers nothing else, as an NFS or Lustre client
           sees servers that are gone. When the daemon ends, by whatever death, the kernel fails all requests with
           ENOTCONN, and everybody who waited is free again: no test can leave a process behind.
`Freezer`  a file system that works, until it is frozen: from then on every write waits.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PR_SET_PDEATHSIG, SIGKILL, MNT_DETACH = 1, 9, 2
INIT = 26  # FUSE's first request
MAX_WRITE = 65536


class Unavailable(Exception):
    """This machine cannot make such a file system; the text says why."""


def serve(folder: str) -> None:
    """The daemon: mounts, prints "ready", takes every request and answers none."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    if libc.mount(b"stalled", folder.encode(), b"fuse", 0, options.encode()):
        sys.exit(os.strerror(ctypes.get_errno()))
    while True:
        request = os.read(device, MAX_WRITE + 8192)
        _, op, unique = struct.unpack_from("<IIQ", request)
        if op == INIT:
            _, minor, ahead, _ = struct.unpack_from("<IIII", request, 40)
            answer = struct.pack("<IIIIHHII", 7, min(minor, 31), ahead, 0, 12, 10, MAX_WRITE, 1) + b"\0" * 32
            os.write(device, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)
            print("ready", flush=True)


@contextlib.contextmanager
def stalled(folder: Path) -> Iterator[Path]:
    """`folder` does not answer while this lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid():
        raise Unavailable("needs root: mounts a file system")
    if not os.path.exists("/dev/fuse"):
        raise Unavailable("needs /dev/fuse")
    with subprocess.Popen(
        [sys.executable, __file__, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as daemon:
        try:
            if daemon.stdout.readline().strip() != "ready":
                raise Unavailable(f"no FUSE mount here: {daemon.stderr.read().strip()}")
            yield folder
        finally:
            ctypes.CDLL(None).umount2(str(folder).encode(), MNT_DETACH)
            daemon.kill()


class Freezer:
    """An ext4 file system on a loop device below `room`: `folder` is where it is mounted."""

    def __init__(self, room: Path) -> None:
        if os.geteuid():
            raise Unavailable("needs root: freezes a file system on a loop device")
        for tool in ("fsfreeze", "mkfs.ext4", "mount", "umount"):
            if not shutil.which(tool):
                raise Unavailable(f"needs {tool}")
        self.folder = room / "mount"
        self.folder.mkdir(parents=True)
        (room / "image").write_bytes(b"")
        os.truncate(room / "image", 16 << 20)
        for command in (["mkfs.ext4", "-q", room / "image"], ["mount", "-o", "loop", room / "image", self.folder]):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise Unavailable(f"no loop device here: {done.stderr.strip()[:200]}")

    def freeze(self) -> None:
        subprocess.run(["fsfreeze", "-f", self.folder], check=True)

    def close(self) -> None:
        subprocess.run(["fsfreeze", "-u", self.folder], capture_output=True)
        subprocess.run(["umount", "-l", self.folder], capture_output=True)


if __name__ == "__main__":
    serve(sys.argv[1])
