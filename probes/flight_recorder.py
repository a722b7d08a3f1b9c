"""What has each rank's flight recorder written: where does the rank wait, and what came before?

Reads    the dump of every rank on this node, a pickle or JSON of PyTorch's flight recorder, format 2.3 to 2.10:
         {"version": "2.10", "pg_status": {...},
          "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
          "entries": [{"record_id": 86694, "process_group": ("35", "TP"), "collective_seq_id": 39408, "retired": False,
                       "profiling_name": "nccl:_all_gather_base", "input_sizes": [[4096, 512]], "state": "scheduled"}]}
         and reduces it to at most 4 KB. A rank whose process has opened PyTorch's control plane is asked there for the
         same as JSON, without stacks (which would need the interpreter lock); see _control_plane.py for what proves it.
         If told to, it pokes the FIFO of the others and waits for the new file: this is the one thing that triage ever
         writes to on a node (one byte, never blocking, into an existing FIFO only).
Fooled by   a dump of an earlier attempt or of another job in the shared cache folder (no job id inside: its age is
            compared with the process); a file that is being written (truncated first, then filled in place); `started`,
            which never appears without timing; gloo, whose ops stay `scheduled` for ever and are `retired` also when
            they failed; names that two groups share; local group ids that differ between ranks; a hostile pickle; a
            stopped rank, whose kernel takes a connection to the control plane that nobody answers.
"""

import errno
import os
import stat
import time

PROBE = {
    "name": "flight_recorder",
    "version": 1,
    "needs": [],
    "timeout_s": 12,
    "cost": "intrusive",
    "fields": {
        "ranks": "list, one a rank of this node: rank, pid, state, and what follows",
        "source": "none | file (it lay there) | poked (it was written for us) | http (the control plane told it)",
        "mtime": "epoch s, the file system's clock (http: the moment of the answer)",
        "age_s": "s between mtime and the moment of reading",
        "stale": "bool: older than the process that should have written it, so of another attempt",
        "poke": "text: written, no_reader (no live monitor thread), no_fifo, not_a_fifo, denied, not_asked, skipped_state, not_needed (http)",
        "http": "text: none (no control plane), answered, or why it did not answer",
        "before": "what the dump that the poke overwrote had said: mtime, and [enqueued, done] of each group",
        "record": "reduced dump, <= 4 KB; its shape is told at reduce_dump()",
    },
}

HTTP_S = 2.5  # a control plane that does not answer by then is evidence, and no reason to wait
STANDS = ("T", "t", "Z", "X")  # states in which a process answers nothing


def _records():
    """The reader of dumps: it lies beside this file, and travels in the payload with it."""
    import _records

    return _records


def _places():
    """Where dumps lie, beside this file as well."""
    import _dump_places

    return _dump_places


# ---------------------------------------------------------------- files


def take(place, path, source, cache):
    """Read, reduce and remember one file; False (with the reason kept) where it cannot be used."""
    try:
        raw, mtime = _places().read_file(path)
        record = _records().read_dump(raw, place.rank, cache)
    except _records().BadDump as error:
        place.why = str(error)
        if place.path is None:
            place.path = path
        return False
    except OSError as error:
        place.why = "cannot be read (%s)" % errno.errorcode.get(error.errno, error.errno)
        return False
    place.path, place.mtime, place.record, place.source, place.why = path, round(mtime, 3), record, source, ""
    return True


def outline(place):
    """What the dump that a poke overwrites had said: progress since then shows without a copy of it."""
    rows = [r for r in place.record["groups"] if "enq" in r][:12]
    return {
        "mtime": place.mtime,
        "newest_s": place.record["newest_s"],
        "groups": {r["name"]: [r["enq"], r.get("last_done")] for r in rows},
    }


def poke(path):
    """One byte into an existing FIFO, never blocking, never creating: what became of it."""
    try:
        seen = os.lstat(path)
    except OSError as error:
        return "denied" if error.errno == errno.EACCES else "no_fifo"
    if not stat.S_ISFIFO(seen.st_mode):
        return "not_a_fifo"  # a shell's `echo 1 > path` made it, when there was no FIFO
    try:
        # The one place where a probe opens anything for writing: without O_CREAT, and never through a link.
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return {errno.ENXIO: "no_reader", errno.ENOENT: "no_fifo", errno.ELOOP: "not_a_fifo"}.get(error.errno, "denied")
    try:
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            return "not_a_fifo"
        os.write(fd, b"1")
        return "written"
    except OSError as error:
        # A full pipe _records().holds bytes that nobody has read: the reader has the FIFO open and does not poll it.
        return "no_reader" if error.errno in (errno.EAGAIN, errno.EPIPE) else "denied"
    finally:
        os.close(fd)


# ---------------------------------------------------------------- collect


def collect(ctx):
    found = _places().places(ctx)
    if not found:
        raise ctx.Absent("no rank of a job is seen on this node")
    cache = {}
    for place in found:
        for path in place.paths:
            place.marks[path] = _places().mark(path)
        there = [p for p in place.paths if place.marks[p]]
        if not there:
            place.why = place.why or "no dump in %d places" % len(place.paths)
            continue
        # The job's own setting first; among the defaults the newest.
        told = [p for p in there if place.paths.index(p) < place.told()]
        path = told[0] if told else max(there, key=lambda p: place.marks[p][0])
        take(place, path, "file", cache)
    if ctx.args.get("http", True):
        ask_all(ctx, found, cache)
    if ctx.args.get("poke"):
        poke_all(ctx, found, cache)
    now = ctx.now()
    return {"ranks": [place.row(now) for place in found]}


def ask_all(ctx, found, cache):
    """The control planes of all ranks at once, each for the recorder of its communication library, then the CPU's.

    The first answer that holds operations counts: a build for GPUs has both recorders, and a job may use either.
    """
    import _control_plane

    planes = {}
    for place in found:
        if place.gone or place.state in STANDS:
            continue
        plane, place_why = _control_plane.find(ctx, place.pid, place.env)
        if plane is not None:
            planes[place] = plane
        elif place_why:
            place.http = place_why
    for handler in ("dump_nccl_trace_json", "fr_trace_json"):
        limit_s = min(HTTP_S, max(0.0, ctx.left() - 1.0))
        wanted = {place: (plane, handler) for place, plane in planes.items() if place.source != "http"}
        if not wanted or limit_s < 0.2:
            break
        for place, answer in _control_plane.ask_all(wanted, limit_s).items():
            hear(ctx, place, answer, cache)
            if answer.why:
                del planes[place]  # one that is silent is not asked twice


def hear(ctx, place, answer, cache):
    """Take one answer of a control plane for the dump of its rank, if it is one."""
    if answer.why:
        place.http = answer.why
        return
    if answer.status == 404:
        place.http = place.http if place.http != "none" else "it keeps no flight record"
        return
    if not answer.good:
        place.http = "its control plane answered with status %d" % answer.status
        return
    try:
        record = _records().read_dump(answer.body, place.rank, cache)
    except _records().BadDump as error:
        place.http = "its control plane's answer: %s" % error
        return
    place.http = "answered"
    if not record["n"] and place.record:
        return  # an empty recorder beside a dump that lay there: the job uses the other one
    if place.record and place.source == "file":
        place.before = outline(place)
    place.path, place.mtime, place.record, place.why = "", round(ctx.now(), 3), record, ""
    place.source = "http" if record["n"] else "none"


def poke_all(ctx, found, cache):
    """All pokes first, then one wait for all: a node costs one wait, not one a rank."""
    wait_s = ctx.args.get("wait_s", 4.0)
    wait_s = min(max(float(wait_s), 0.0), 30.0) if isinstance(wait_s, (int, float)) else 4.0
    waiting, late = [], []
    for place in found:
        if place.gone:
            place.poke = "skipped_state"
        elif place.source == "http" and not place.record.get("active_only"):
            place.poke = "not_needed"
        elif place.state in STANDS:
            place.poke = "skipped_state"  # a stopped rank takes the byte and dumps when it is woken, if ever
        elif place.fifo is None:
            place.poke = "no_fifo"
        else:
            place.poke = poke(place.fifo)
            if place.poke == "written":
                # A rank in D may still dump (the monitor is another thread) but is not worth waiting for.
                (late if place.state == "D" else waiting).append(place)
    end = time.monotonic() + min(wait_s, max(0.0, ctx.left() - 1.0))
    pause = 0.05
    while waiting and time.monotonic() < end:
        waiting = [place for place in waiting if not fresh(place, cache)]
        if waiting:
            time.sleep(min(pause, max(0.0, end - time.monotonic())))
            pause = min(pause * 1.5, 0.25)
    for place in waiting + late:
        if not fresh(place, cache):
            if "half written" not in place.why:
                place.why = "poked, and no new dump came within %.1f s" % wait_s


def fresh(place, cache):
    """Has the poke made a new, complete dump? Then it is taken."""
    for path in place.paths:
        now = _places().mark(path)
        if now is None or now == place.marks.get(path):
            continue
        if not _records().looks_finished(_places().last_byte(path)):
            place.why = "the new dump is only half written"
            continue
        before = outline(place) if place.record and place.source == "file" else place.before
        if take(place, path, "poked", cache):
            place.before = before
            return True
    return False


if __name__ == "__main__":
    import _probe

    _probe.main(PROBE, collect)
