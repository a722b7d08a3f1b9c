"""Did anything grow in a folder between two walks? Never through a link, never for ever: shared by probes that ask so.

    before = walk("/scratch/triton", until)          names of all files, sizes of the newest
    after = walk("/scratch/triton", until, before)
    growth(before, after)                            {"files_new": 3, "bytes_grown": 81234, "newest_at": 1790000000.5, …}

Only what is certain counts. A file is new where its folder was listed whole before and did not name it; a file grew where
its size was read twice. So a walk that had to stop early misses growth and never invents it (`truncated`).
Fooled by   locks: a process that waits for a lock file touches it again and again, for ever. Empty files, names of locks
            and new times alone therefore count nothing; a file that is replaced by one of the same size or smaller.

(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import heapq
import itertools
import os
import stat
import time

MOST_NAMES = 150000  # of one walk; 100 bytes each
MOST_SIZES = 20000  # files whose size is read, those in the newest folders first
DEEPEST = 16  # folders below the top
LAST_TIME = 1e10  # a file may claim any time: the year 2286 and later is none
MOST_BYTES = 1 << 60  # and any size


class Snapshot(object):
    """What one walk saw."""

    def __init__(self):
        self.listed = {}  # folder, relative, newest first -> {name: is it a folder}; only folders that were listed whole
        self.sizes = {}  # file, relative -> (size, mtime)
        self.names = 0
        self.whole = True
        self.absent = False  # there was nothing at this path
        self.why = ""  # why nothing can be said at all

    def files(self):
        for folder, names in self.listed.items():
            for name, is_folder in names.items():
                if not is_folder:
                    yield os.path.join(folder, name)


def resolve_in(root, path):
    """`path` below `root`, with absolute links taken as below root too: a container's links must not lead out of it.

    root   "/" or "" means that the kernel resolves the path as usual
    """
    if root in ("", "/"):
        return path
    done, rest, links = [], [p for p in path.split("/") if p], 0
    while rest:
        name = rest.pop(0)
        if name == ".":
            continue
        if name == "..":
            done = done[:-1]
            continue
        here = root.rstrip("/") + "/" + "/".join(done + [name])
        try:
            target = os.readlink(here)
        except OSError:
            done.append(name)
            continue
        links += 1
        if links > 40:
            break
        if target.startswith("/"):
            done = []
        rest = [p for p in target.split("/") if p] + rest
    return root.rstrip("/") + "/" + "/".join(done)


def walk(top, until, before=None, most=MOST_NAMES):
    """Snapshot of a folder. Stops at `until` (time.monotonic); `before`, the earlier one, says whose sizes matter."""
    shot = Snapshot()
    try:
        device = os.stat(top).st_dev
    except OSError as exc:
        shot.absent = isinstance(exc, (FileNotFoundError, NotADirectoryError))
        shot.why = "" if shot.absent else exc.strerror or "cannot be read"
        return shot
    todo = [(0, 0, "")]  # (minus mtime, depth, folder): the newest first
    while todo and shot.names < most and time.monotonic() < until:
        _, depth, folder = heapq.heappop(todo)
        inner = _list(shot, top, folder, device, most, until)
        if depth < DEEPEST:
            for mtime, path in inner:
                heapq.heappush(todo, (-mtime, depth + 1, path))
        elif inner:
            shot.whole = False
    shot.whole = shot.whole and not todo
    if not shot.listed and not shot.why and not shot.absent:
        shot.why = "too large to be listed in time"
    wanted = shot.files() if before is None else itertools.chain(_fresh(before, shot), before.sizes)
    for count, path in enumerate(wanted):
        if count >= MOST_SIZES or (count % 256 == 255 and time.monotonic() > until):
            shot.whole = False
            break
        try:
            seen = os.lstat(os.path.join(top, path))
        except OSError:
            continue
        if stat.S_ISREG(seen.st_mode):
            shot.sizes[path] = (seen.st_size, seen.st_mtime)
    return shot


def _list(shot, top, folder, device, most, until):
    """Read one folder, and say [(mtime, path)] of the folders in it. One that is not read to its end is left out."""
    names, inner = {}, []
    try:
        with os.scandir(os.path.join(top, folder)) as entries:
            for entry in entries:
                shot.names += 1
                if shot.names > most or (shot.names % 256 == 0 and time.monotonic() > until):
                    shot.whole = False
                    return []
                try:
                    names[entry.name] = is_folder = entry.is_dir(follow_symlinks=False)
                    if is_folder:
                        seen = entry.stat(follow_symlinks=False)
                        if seen.st_dev == device:
                            inner.append((seen.st_mtime, os.path.join(folder, entry.name)))
                except OSError:
                    names.setdefault(entry.name, False)  # it went away meanwhile, as temporary ones do
    except OSError as exc:
        if isinstance(exc, FileNotFoundError):
            shot.absent = shot.absent or not folder
        else:
            shot.whole = False
            shot.why = shot.why if folder else exc.strerror or "cannot be read"
        return []
    shot.listed[folder] = names
    return inner


def _fresh(before, after):
    """Files of `after` that were surely not there before."""
    for folder, names in after.listed.items():
        old = before.listed.get(folder)
        if old is None and not _is_new(folder, before):
            continue
        for name, is_folder in names.items():
            if not is_folder and (old is None or name not in old):
                yield os.path.join(folder, name)


def _is_new(folder, before):
    """Was this folder surely not there? Known where it, or a folder above it, is missing in a listing that was whole."""
    while folder:
        folder, name = os.path.split(folder)
        if folder in before.listed:
            return name not in before.listed[folder]
    return before.absent


def is_lock(path):
    name = os.path.basename(path)
    return name.endswith((".lock", ".lck")) or name == "lock"


def unknown(why):
    return {"files_new": None, "bytes_grown": None, "newest_at": None, "truncated": True, "why": why}


def growth(before, after):
    """{files_new, bytes_grown, newest_at, truncated, why}: what was written between two walks; null where nothing is known.

    after        the walk that was given `before`: it read the sizes of what is new or was read before, and of nothing else
    files_new    files made or grown (with content, no locks)
    newest_at    epoch s of the newest such file, by the clock of the file system
    """
    why = before.why or after.why or ("it is gone" if after.absent else "")
    if why:
        return unknown(why)
    files, grown = 0, 0
    for path, (size, _) in after.sizes.items():
        old = before.sizes.get(path, (0,))[0]
        if size > old and not is_lock(path):
            files += 1
            grown += size - old
    times = [at for path, (size, at) in after.sizes.items() if size and not is_lock(path) and 0 <= at < LAST_TIME]
    return {
        "files_new": files,
        "bytes_grown": min(grown, MOST_BYTES),
        "newest_at": round(max(times), 3) if times else None,
        "truncated": not (before.whole and after.whole),
        "why": "",
    }


def tail(path, limit):
    """The last bytes of a regular file, or None. A FIFO would block, a device may act."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        seen = os.fstat(handle)
        return os.pread(handle, limit, max(0, seen.st_size - limit)) if stat.S_ISREG(seen.st_mode) else None
    except OSError:
        return None
    finally:
        os.close(handle)
