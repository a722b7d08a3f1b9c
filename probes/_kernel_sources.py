"""Where the lines of the kernel stand, each source read from its newest end: journal, dmesg, /dev/kmsg, syslog files.

Every reader gives (readable, why not, does it reach back to `since` or to boot; None if that cannot be told).
Fooled by   a journal that another user may not see (journalctl then ends well, without a line); a container, whose /dev/kmsg
            and dmesg are closed; a ring that wrapped; files that were rotated away.

(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import errno
import os
import re
import stat
import time
from collections import deque
from functools import partial

import _kernel_lines

clean = _kernel_lines.clean

PIECE = 256 << 10
MOST_BYTES = 128 << 20  # of a file, or of what journalctl tells
MOST_RING = 8 << 20  # of the kernel's ring, which is read oldest first and so held whole
OTHER_USERS = "not seeing messages from other users"


def covered(since, oldest, from_boot):
    """Does what was read reach back to `since`? From boot on, or an older line was seen; None if nothing was dated."""
    if from_boot:
        return True
    if oldest is None:
        return None
    return since is not None and oldest <= since


def backwards(pieces):
    """Lists of lines in the order of the log, newest list first, of bytes that came with the newest line first."""
    held, size, rest = [], 0, b""
    for piece in pieces:
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        held.extend(lines)
        size += len(piece)
        if size >= PIECE:
            yield held[::-1]
            held, size = [], 0
    if rest:
        held.append(rest)
    if held:
        yield held[::-1]


def bounded(stream, most):
    """The pieces of a stream until it has told so many bytes."""
    size = 0
    for piece in stream:
        yield piece
        size += len(piece)
        if size >= most:
            return


def from_journal(ctx, events, since):
    """The newest lines first: what the time limit cuts off is the oldest."""
    # Not -k, which is this boot alone: a node that was booted since may have told why.
    which = ["-k"] if since is None else ["_TRANSPORT=kernel", "--since=@%d" % int(since)]
    stream = ctx.stream(["journalctl"] + which + ["-o", "short-unix", "--no-pager", "-r"], min(2.5, ctx.left() * 0.6))
    events.split = partial(_kernel_lines.split_line, now=ctx.now(), mono_base=None, local=True)
    head = []

    def lines():
        for held in backwards(bounded(stream, MOST_BYTES)):
            if not head:
                head.extend(line for line in held[-2:] if line.startswith((b"-- ", b"No journal")))
            kept = [line for line in held if not line.startswith(b"-- ")]
            if kept:
                yield kept

    how = events.feed_all(lines())
    told = stream.err + b" ".join(head).decode("utf-8", "replace")
    if (stream.code is None and not events.lines) or stream.code not in (0, None):
        return False, "journal: %s" % clean((stream.why or told).strip().split("\n")[0], 120), None
    if "No journal files were" in told or OTHER_USERS in told:
        return False, "journal: %s" % clean(told.strip().split("\n")[0], 120), None
    if not events.lines and since is None:
        return False, "journal: holds no kernel line", None
    if how == "since":
        return True, "", True
    if stream.code is None or how == "cpu":
        ctx.note("the journal was not read to its beginning: %s" % (stream.why or "over the bound of CPU time"))
        return True, "", False
    if since is None:
        return True, "", True
    # An older line that is still kept proves that nothing since then was rotated away.
    argv = ["journalctl", "_TRANSPORT=kernel", "-o", "short-unix", "--no-pager", "-n", "1", "--until=@%d" % int(since)]
    code, out, _ = ctx.run(argv, min(1.5, ctx.left() * 0.5))
    if code is None:
        return True, "", None
    return True, "", any(re.match(r"\d{9,11}\.", line) for line in out.split("\n"))


def clock_base(ctx):
    """(epoch seconds when the kernel's clock was 0, or None; seconds asleep since boot).

    printk follows the monotonic clock, not the boot clock: it stands still while the host sleeps.
    """
    if not ctx.real:
        try:
            return ctx.now() - float((ctx.read(ctx.proc("uptime"), 64) or "").split()[0]), 0.0
        except (ValueError, IndexError):
            return None, 0.0
    monotonic = time.clock_gettime(time.CLOCK_MONOTONIC)
    try:
        asleep = time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", 7)) - monotonic
    except OSError:
        asleep = 0.0
    if asleep > 1.0:
        ctx.note("this host was suspended for %d s since boot: times of older lines are late by up to that" % asleep)
    return time.time() - monotonic, (asleep if asleep > 1.0 else 0.0)


def from_dmesg(ctx, events, since, base):
    stream = ctx.stream(["dmesg"], min(2.0, ctx.left() * 0.6))
    kept, size, cut, first = deque(), 0, False, b""
    for piece in stream:
        first = first if len(first) > 64 else first + piece[:256]
        kept.append(piece)
        size += len(piece)
        while size > MOST_RING:
            size -= len(kept.popleft())
            cut = True
    if stream.code != 0:
        why = stream.why or stream.err or b"".join(kept)[:200].decode("utf-8", "replace")
        return False, "dmesg: %s" % clean(why.strip().split("\n")[0], 120), None
    lines = b"".join(kept).split(b"\n")
    kept.clear()
    events.split = partial(_kernel_lines.split_line, now=ctx.now(), mono_base=base, local=True)
    if cut:
        lines = lines[1:]
    how = events.feed_all(in_pieces(lines))
    return True, "", ended(events, since, how, cut)


def ended(events, since, how, cut):
    """Does what was read of a ring reach back far enough?"""
    first = events.first_mono
    return covered(since, events.oldest, how != "cpu" and not cut and first is not None and first < 1.0)


def in_pieces(lines, most=8192):
    """The lines of a whole log as pieces, newest first."""
    for end in range(len(lines), 0, -most):
        yield lines[max(0, end - most) : end]


def from_kmsg(ctx, events, since, base):
    """/dev/kmsg without blocking; one read is one record."""
    try:
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return False, "kmsg: %s" % error.strerror, None
    records, size, cut = deque(), 0, False
    try:
        while ctx.left() > 0.5:
            try:
                record = os.read(handle, 8192)
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # overwritten while we read: the next record follows
                break
            if not record:  # a container's stand-in for it: /dev/null, or a file
                break
            records.append(record.split(b"\n")[0])
            size += len(records[-1])
            while size > MOST_RING:
                size -= len(records.popleft())
                cut = True
    finally:
        os.close(handle)
    if not records:
        return False, "kmsg: it tells nothing", None
    events.split = lambda line, anybody=False: _kernel_lines.split_kmsg(line, base)
    how = events.feed_all(in_pieces(list(records)))
    return True, "", ended(events, since, how, cut)


def file_pieces(handle, size):
    """Lists of lines of an open file, newest list first, each from a line's beginning on."""
    end, rest = size, b""
    while end > 0:
        start = max(0, end - PIECE)
        raw = os.pread(handle, end - start, start) + rest
        end = start
        if start:
            cut = raw.find(b"\n") + 1
            if not cut and len(raw) <= 4 * PIECE:
                rest = raw  # one line, longer than a piece: nobody's
                continue
            rest, raw = raw[:cut], raw[cut:]
        lines = raw.split(b"\n")
        if lines and not lines[-1]:
            lines.pop()
        if lines:
            yield lines


def from_file(ctx, events, since, base, path):
    """The end of a syslog file, and of the one that was rotated last; plain files only."""
    handles, why = [], ""
    for name in (path, path + ".1"):
        try:
            real = ctx.root(name)
            if not stat.S_ISREG(os.stat(real).st_mode):
                why = why or "%s: not a plain file" % name
                break
            handles.append(os.open(real, os.O_RDONLY | os.O_NONBLOCK))
        except OSError as error:
            why = why or "%s: %s" % (name, error.strerror)
            break
    if not handles:
        return False, why, None
    events.split = partial(_kernel_lines.split_line, now=ctx.now(), mono_base=base, local=ctx.real)
    bytes_left, cut = MOST_BYTES, False

    def pieces():
        for handle in handles:
            size = os.fstat(handle).st_size
            for lines in file_pieces(handle, size):
                yield lines

    def within():
        nonlocal bytes_left, cut
        for lines in pieces():
            if bytes_left <= 0:
                cut = True
                return
            bytes_left -= sum(map(len, lines))
            yield lines

    try:
        how = events.feed_all(within())
    except OSError as error:
        return False, "%s: %s" % (path, error.strerror), None
    finally:
        for handle in handles:
            os.close(handle)
    if how == "cpu" or cut:
        ctx.note(
            "%s was not read to its beginning: over the bound of %s" % (path, "CPU time" if how == "cpu" else "size")
        )
    # A test folder's log is whole by construction; a syslog file is rotated, so an older line must prove it.
    whole = how != "cpu" and not cut and not ctx.real
    first = events.first_mono
    return (
        True,
        "",
        covered(since, events.oldest, whole or (how != "cpu" and not cut and first is not None and first < 1.0)),
    )
