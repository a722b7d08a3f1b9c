"""What all probes share: where to read (Ctx), how to be run alone (main), how to be run by an operator (serve).

A probe runs in a forked child of its own: own session, no inherited descriptors, a deadline, and its answer on a pipe.
An NVML call to a dead GPU can block 45 s under a lock, and a stat on a dead mount for ever; neither may hold up the
rest, so one loop (no threads) watches all pipes, kills at the deadline and tells what does not die.

On the wire (standard input and output of the remote command):

    operator -> node   {"look":"A","id":1,"probes":{"reach":{},"ranks":{"job_id":"4711"}},"limit_s":15}
    node -> operator   {"_begin":{"protocol":1,"pid":4242,"python":"3.6.15","at":1790000000.1}}
                       {"probe":"reach","version":1,"node":"","look":"A","id":1,"status":"ok","took_s":0.01,
                        "at":1790000000.2,"data":{...},"notes":[]}
                       {"_done":"A","id":1}
                       {"_end":{"interpreter":"...","cpu_s":{...},"killed":0,"unkillable":[]}}

A program that the operator carries along (py-spy) comes before the request that names it, in lines of their own, and is kept
in memory; it is handed to the probes whose arguments say {"carry": "py-spy"}:

    operator -> node   {"carry":"py-spy","machine":"x86_64","first":true,"last":false,"data":"<base64 of a piece, deflated>"}

End of input means that the operator is gone: everything is killed. A cut cable sends no end of input, so the runner
also has a deadline of its own (notes/prototype-findings.md 2.2). Nothing is written on the node.

Python 3.6 ... 3.13, standard library only. Files with a leading underscore are no probes.
"""

import base64
import errno
import fcntl
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
import types
import zlib

STATUSES = ("ok", "absent", "denied", "timeout", "malformed", "error")
DEFAULTS = {
    "deadline_s": 60.0,  # of the whole runner: a cut cable sends no end of input
    "probe_bytes": 1 << 20,  # largest answer of one probe
    "node_bytes": 4 << 20,  # largest sum of answers
    "memory_bytes": 128 << 20,  # address space a probe may add to what the interpreter has; 0 = no limit
    "memory_free": ["gpu"],  # probes without that limit: NVML maps far more than it uses
    "nice": 19,
}
GRACE_S = 0.25  # from SIGKILL until "does not die" may be said
MAX_REQUEST = 1 << 20
MAX_CARRIED = 32 << 20  # of one program that is carried along
MEMFD = {"x86_64": 319, "aarch64": 279, "ppc64le": 360}
MFD_CLOEXEC, MFD_EXEC = 1, 16
MAX_NOTES, MAX_NOTE = 20, 300
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "ppc64le": 273}
IOPRIO_IDLE = 3 << 13


# ---------------------------------------------------------------- what a probe sees


class Absent(Exception):
    """The thing asked for does not exist on this node. An answer, not a failure."""


class Denied(Exception):
    """It may be there, but this user may not read it. "Could not read" is not "none"."""


class Malformed(Exception):
    """It is there and does not have the form that it should have."""


class Ctx(object):
    """The roots to read below, the operator's arguments, the deadline, and readers that do not raise."""

    Absent = Absent
    Denied = Denied
    Malformed = Malformed

    def __init__(self, procfs="/proc", sysfs="/sys", rootfs="/", args=None, look="A", deadline=None):
        self.procfs, self.sysfs, self.rootfs = procfs, sysfs, rootfs
        self.real = (procfs, sysfs, rootfs) == ("/proc", "/sys", "/")
        self.args = args if isinstance(args, dict) else {}
        self.look = look
        self.deadline = time.monotonic() + 3600.0 if deadline is None else deadline
        self.notes = []
        # A descriptor of the program that was carried along, or why there is none.
        self.carried, self.carried_why = None, ""
        self._told_denied = False

    def left(self):
        """Seconds until collect must be done; never negative."""
        return max(0.0, self.deadline - time.monotonic())

    def now(self):
        return time.time()

    def note(self, text):
        text = str(text)[:MAX_NOTE]
        if text not in self.notes and len(self.notes) < MAX_NOTES:
            self.notes.append(text)

    def root(self, path):
        return os.path.join(self.rootfs, path.lstrip("/"))

    def proc(self, path):
        return os.path.join(self.procfs, path)

    def sys(self, path):
        return os.path.join(self.sysfs, path)

    def read_bytes(self, path, limit=65536):
        """The first `limit` bytes, or None where the file cannot be read. A refusal leaves a note, once."""
        try:
            # O_NONBLOCK: a FIFO in the place of a file would block the open until somebody writes.
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except (OSError, ValueError) as exc:
            self._tell_denied(path, exc)
            return None
        try:
            chunks, left = [], limit
            while left > 0:
                chunk = os.read(fd, min(left, 1 << 20))
                if not chunk:
                    break
                chunks.append(chunk)
                left -= len(chunk)
            return b"".join(chunks)
        except OSError as exc:
            self._tell_denied(path, exc)
            return None
        finally:
            os.close(fd)

    def read(self, path, limit=65536):
        raw = self.read_bytes(path, limit)
        return None if raw is None else raw.decode("utf-8", "replace")

    def listdir(self, path):
        """Sorted names, [] if the folder is absent or closed to us (then with a note)."""
        try:
            return sorted(os.listdir(path))
        except (OSError, ValueError) as exc:
            self._tell_denied(path, exc)
            return []

    def run(self, argv, timeout_s, limit=1 << 20, fds=()):
        """(exit code or None, stdout, stderr) of a command of the host; never run below another root.

        fds   descriptors that it may have beside these: a program in memory is one
        """
        if not self.real:
            return None, "", "not run: other root"
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin", "LC_ALL": "C", "TZ": "UTC"}
        try:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd="/",
                pass_fds=fds,
            )  # fmt: skip
        except (OSError, ValueError) as exc:
            return None, "", "%s: %s" % (argv[0], exc)
        until = time.monotonic() + min(timeout_s, self.left())
        texts, why = _drain(child, until, limit)
        if why:
            child.kill()
        code = None if why else child.wait()
        return code, texts[0].decode("utf-8", "replace"), why or texts[1].decode("utf-8", "replace")

    def stream(self, argv, timeout_s):
        """The standard output of a command of the host, piece by piece; see Stream. Empty below another root."""
        return Stream(argv, min(timeout_s, self.left()) if self.real else 0.0, self.real)

    def _tell_denied(self, path, exc):
        if getattr(exc, "errno", None) in (errno.EACCES, errno.EPERM) and not self._told_denied:
            self._told_denied = True
            self.note("may not read %s (and perhaps others)" % path)


def _drain(child, until, limit):
    """Read both pipes of a command: ([stdout, stderr], why it was given up on, or "")."""
    texts = [b"", b""]
    pipes = {child.stdout.fileno(): 0, child.stderr.fileno(): 1}
    while pipes:
        left = until - time.monotonic()
        ready = select.select(list(pipes), [], [], left)[0] if left > 0 else []
        if not ready:
            return texts, "no end after its time limit"
        for fd in ready:
            chunk = os.read(fd, 65536)
            if not chunk:
                del pipes[fd]
            texts[pipes.get(fd, 0)] += chunk
            if sum(map(len, texts)) > limit:
                return texts, "more than %d bytes" % limit
    while child.poll() is None:
        if time.monotonic() >= until:
            return texts, "no end after its time limit"
        time.sleep(0.002)
    return texts, ""


class Stream(object):
    """Pieces (bytes) of what a command writes, never all of it in memory: a kernel log may be 100 MB.

    code   its exit status once it has ended by itself, else None
    why    why it was given up on or not begun, "" if it was not
    err    the first of its standard error
    """

    MOST_ERR = 4096

    def __init__(self, argv, timeout_s, real=True):
        self.code, self.why, self.err, self.child = None, "" if real else "not run: other root", "", None
        self.until = time.monotonic() + timeout_s
        if not real:
            return
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin", "LC_ALL": "C", "TZ": "UTC"}
        try:
            self.child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd="/"
            )
        except (OSError, ValueError) as exc:
            self.why = "%s: %s" % (argv[0], exc)

    def __iter__(self):
        if self.child is None:
            return
        said, pipes = b"", {self.child.stdout.fileno(), self.child.stderr.fileno()}
        out = self.child.stdout.fileno()
        try:
            while pipes:
                left = self.until - time.monotonic()
                ready = select.select(list(pipes), [], [], left)[0] if left > 0 else []
                if not ready:
                    self.why = "no end after its time limit"
                    return
                for fd in ready:
                    piece = os.read(fd, 1 << 16)
                    if not piece:
                        pipes.discard(fd)
                    elif fd == out:
                        yield piece
                    elif len(said) < self.MOST_ERR:
                        said += piece
            while self.child.poll() is None and time.monotonic() < self.until:
                time.sleep(0.002)
            self.code = self.child.poll()
            self.why = "" if self.code is not None else "no end after its time limit"
        finally:
            # Whoever has read enough, or waited enough, ends it.
            if self.child.poll() is None:
                self.child.kill()
                self.child.wait()
            self.child.stdout.close()
            self.child.stderr.close()
            self.err = said.decode("utf-8", "replace")


def roots(env):
    """procfs, sysfs, rootfs as the environment of the remote command names them."""
    return (
        env.get("TRIAGE_PROCFS") or "/proc",
        env.get("TRIAGE_SYSFS") or "/sys",
        env.get("TRIAGE_ROOTFS") or "/",
    )


# ---------------------------------------------------------------- the child of one probe


def answer_of(collect, ctx):
    """Run collect and say how it went: the part of an envelope that the child knows."""
    began = time.monotonic()
    data, status, notes = {}, "ok", []
    try:
        data = collect(ctx)
        if not isinstance(data, dict):
            data, status, notes = {}, "error", ["collect returned no dictionary"]
    except Absent as exc:
        status, notes = "absent", [str(exc)]
    except Denied as exc:
        status, notes = "denied", [str(exc)]
    except Malformed as exc:
        status, notes = "malformed", [str(exc)]
    except Exception as exc:
        status, notes = "error", [describe(exc)]
    answer = {"status": status, "took_s": round(time.monotonic() - began, 4), "at": round(time.time(), 3)}
    answer["data"] = data
    answer["notes"] = [str(n)[:MAX_NOTE] for n in notes + ctx.notes][:MAX_NOTES]
    return answer


def describe(exc):
    """`KeyError: 'x' (nic.py:42)`: enough to find the line without a traceback."""
    where, tb = "", exc.__traceback__
    while tb is not None:
        where = " (%s:%d)" % (os.path.basename(tb.tb_frame.f_code.co_filename), tb.tb_lineno)
        tb = tb.tb_next
    return ("%s: %s%s" % (type(exc).__name__, exc, where))[:MAX_NOTE]


def encode(answer):
    """One ASCII line. NaN and what JSON cannot hold become an error, never a broken line."""
    try:
        return json.dumps(answer, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (ValueError, TypeError, RecursionError) as exc:
        return json.dumps(dict(answer, status="error", data={}, notes=[describe(exc)])).encode("ascii")


def detach(wfd, memory_bytes, libc, carried=None):
    """Make this child harmless: own session, descriptors 0 to 2 to nowhere, limits, and it dies with the runner.

    Its answer goes to descriptor 3; the program that was carried along for it, if one was, becomes descriptor 4.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    if carried is not None:
        carried = fcntl.fcntl(carried, fcntl.F_DUPFD, 16)  # out of the way of 0 to 4
    if libc is not None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    if wfd != 3:
        os.dup2(wfd, 3)
    os.set_inheritable(3, False)
    if carried is not None:
        os.dup2(carried, 4)
        os.set_inheritable(4, False)
    kept = 3 if carried is None else 4
    try:
        others = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        others = range(4, 256)
    for fd in others:
        if fd > kept:
            try:
                os.close(fd)
            except OSError:
                pass
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if memory_bytes:
        ceiling = own_address_space() + memory_bytes
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        if hard == resource.RLIM_INFINITY or ceiling < hard:
            resource.setrlimit(resource.RLIMIT_AS, (ceiling, hard))


def own_address_space():
    """Bytes mapped now. A locale archive alone maps 200 MB on some hosts: limits must count from here."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 256 << 20


def write_all(fd, raw):
    view = memoryview(raw)
    while view:
        view = view[os.write(fd, view) :]


# ---------------------------------------------------------------- the runner


class Child(object):
    """One probe under way."""

    def __init__(self, name, look, pid, fd, began, deadline):
        self.name, self.look, self.pid, self.fd = name, look, pid, fd
        self.began, self.deadline = began, deadline
        self.answer = bytearray()
        self.killed_at = None
        self.settled = False
        self.reaped = False
        self.mute = False


class Carried(object):
    """A program that comes in pieces, in memory only: no file system is touched, and it is gone with the last descriptor."""

    def __init__(self, libc):
        self.fd, self.why, self.size, self.whole = None, "", 0, False
        self.inflate = zlib.decompressobj()
        machine = os.uname().machine
        if libc is None or machine not in MEMFD:
            self.why = "this interpreter cannot make a file in memory"
            return
        # From Linux 6.3 on a site may say that files in memory are not executable unless asked for; older ones know no such flag.
        for flags in (MFD_CLOEXEC | MFD_EXEC, MFD_CLOEXEC):
            fd = libc.syscall(MEMFD[machine], b"triage", flags)
            if fd >= 0:
                self.fd = fd
                return
        self.why = "the kernel refuses a file in memory"

    def add(self, data, last):
        if self.fd is None or self.whole:
            return
        try:
            raw = self.inflate.decompress(base64.b64decode(data), MAX_CARRIED - self.size + 1)
            self.size += len(raw)
            if self.size > MAX_CARRIED or self.inflate.unconsumed_tail:
                raise ValueError("more than %d MiB" % (MAX_CARRIED >> 20))
            write_all(self.fd, raw)
            if last and not self.inflate.eof:
                raise ValueError("cut off")
        except (ValueError, TypeError, OSError, zlib.error) as exc:
            os.close(self.fd)
            self.fd, self.why = None, "it did not come whole: %s" % exc
            return
        self.whole = last


class Look(object):
    """One request of the operator: probes to run at once, each until its own limit or the request's."""

    def __init__(self, name, ident, probes, deadline):
        self.name, self.ident, self.probes, self.deadline = name, ident, probes, deadline
        self.open = set(probes)


class Runner(object):
    """Runs the looks one after the other and the probes of a look side by side, in one select loop.

    config   DEFAULTS, overridden; "meta": {name: {"version", "timeout_s"}}
    find     name -> function(ctx), called in the child; raises KeyError in the parent if there is no such probe
    stdin    descriptor of requests, or None
    emit     descriptor that gets the lines
    """

    def __init__(self, config, find, stdin, emit):
        self.config = dict(DEFAULTS, **config)
        self.find, self.stdin, self.emit = find, stdin, emit
        self.meta = self.config.get("meta", {})
        self.roots = roots(os.environ)
        self.deadline = time.monotonic() + float(self.config["deadline_s"])
        self.looks, self.children, self.out, self.request = [], {}, bytearray(), bytearray()
        self.sent, self.killed, self.over = 0, 0, False
        self.libc = c_library()
        self.carried = {}  # name -> Carried

    # ---- life

    def start(self):
        """Become small before anything else: first to be killed when memory ends, last to be served."""
        try:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")
        except (OSError, ValueError):
            pass
        try:
            os.nice(int(self.config["nice"]))
        except OSError:
            pass
        if self.libc is not None:
            number = IOPRIO_SET.get(os.uname().machine)
            if number is not None:
                self.libc.syscall(number, 1, 0, IOPRIO_IDLE)
            self.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            os.chdir("/")
        except OSError:
            pass
        self.wake, wake_write = os.pipe()
        for fd in (self.wake, wake_write, self.emit):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write)

    def run(self, until_idle=False):
        """Serve until end of input, the overall deadline, or (until_idle) the last look is done."""
        while not self.over and not (until_idle and not self.looks):
            self.turn()
        self.finish()

    def finish(self):
        for child in self.children.values():
            child.settled = True
            self.kill(child)
        unkillable = self.sweep(0.3)
        own, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        self.say(
            {
                "_end": {
                    "interpreter": "%s %s" % (sys.version.split()[0], sys.executable),
                    "cpu_s": {
                        "own": round(own.ru_utime + own.ru_stime, 4),
                        "children": round(theirs.ru_utime + theirs.ru_stime, 4),
                    },
                    "killed": self.killed,
                    "unkillable": unkillable,
                }
            }
        )
        until = time.monotonic() + 1.0
        while self.out and time.monotonic() < until:
            select.select([], [self.emit], [], 0.1)
            self.flush()

    def turn(self):
        now = time.monotonic()
        ends = [self.deadline]
        for child in self.children.values():
            if not child.settled:
                ends.append(child.deadline if child.killed_at is None else child.killed_at + GRACE_S)
        reading = [c.fd for c in self.children.values() if c.fd is not None] + [self.wake]
        if self.stdin is not None:
            reading.append(self.stdin)
        writing = [self.emit] if self.out else []
        ready, writable, _ = select.select(reading, writing, [], max(0.0, min(ends) - now))
        if writable:
            self.flush()
        for child in list(self.children.values()):
            if child.fd is not None and child.fd in ready:
                self.hear(child)
        if self.wake in ready:
            quietly_read(self.wake)
            self.reap()
        self.keep_deadlines()
        if self.stdin is not None and self.stdin in ready:
            self.listen()

    # ---- requests

    def listen(self):
        chunk = quietly_read(self.stdin)
        if chunk is None:
            return
        if not chunk:
            self.over = True  # the operator is gone
            return
        self.request += chunk
        while b"\n" in self.request:
            line, _, rest = bytes(self.request).partition(b"\n")
            self.request = bytearray(rest)
            if line.strip():
                self.accept(line)
        if len(self.request) > MAX_REQUEST:
            self.over = True

    def accept(self, line):
        try:
            request = json.loads(line.decode("utf-8"))
            if "carry" in request:
                self.take(request)
                return
            look = Look(
                str(request["look"]),
                request.get("id"),
                dict(request["probes"]),
                time.monotonic() + float(request["limit_s"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            self.say({"_error": "bad request: " + describe(exc)})
            return
        self.add(look)

    def take(self, piece):
        """One piece of a program that is carried along. For another machine it is not kept."""
        name = str(piece["carry"])[:32]
        if piece.get("first"):
            old = self.carried.pop(name, None)
            if old is not None and old.fd is not None:
                os.close(old.fd)
            self.carried[name] = Carried(self.libc if piece.get("machine") == os.uname().machine else None)
            if piece.get("machine") != os.uname().machine:
                self.carried[name].why = "it is for %s, and this is %s" % (
                    str(piece.get("machine"))[:32],
                    os.uname().machine,
                )
        if name in self.carried:
            self.carried[name].add(piece.get("data"), bool(piece.get("last")))

    def program_for(self, args):
        """(descriptor or None, why not) of the program that these arguments name."""
        name = args.get("carry") if isinstance(args, dict) else None
        found = self.carried.get(name) if isinstance(name, str) else None
        if found is None:
            return None, ""
        return (found.fd, "") if found.whole else (None, found.why or "it did not come whole")

    def add(self, look):
        self.looks.append(look)
        if len(self.looks) == 1:
            self.begin(look)

    def begin(self, look):
        for name in sorted(look.probes):
            self.spawn(look, name)
        self.close_look(look)

    def close_look(self, look):
        """Say that a look is done once each of its probes has one envelope, and begin the next in the queue."""
        if look.open or not self.looks or self.looks[0] is not look:
            return
        self.sweep(0.0)
        self.say({"_done": look.name, "id": look.ident})
        self.looks.pop(0)
        if self.looks and not self.over:
            self.begin(self.looks[0])

    # ---- probes

    def spawn(self, look, name):
        meta, now = self.meta.get(name, {}), time.monotonic()
        deadline = min(now + float(meta.get("timeout_s", 3)), look.deadline, self.deadline)
        try:
            collect = self.find(name)
        except KeyError:
            self.envelope(look, name, "error", ["no such probe in the payload"], 0.0)
            return
        except SyntaxError as exc:
            self.envelope(look, name, "error", ["%s under Python %s" % (exc, sys.version.split()[0])], 0.0)
            return
        try:
            rfd, wfd = os.pipe()
        except OSError as exc:
            self.envelope(look, name, "error", ["not started: %s" % exc], 0.0)
            return
        try:
            pid = os.fork()
        except OSError as exc:
            os.close(rfd)
            os.close(wfd)
            self.envelope(look, name, "error", ["not started: %s" % exc], 0.0)
            return
        if pid == 0:
            self.be_child(look, name, collect, wfd, deadline)
        os.close(wfd)
        os.set_blocking(rfd, False)
        self.children[pid] = Child(name, look, pid, rfd, now, deadline)

    def be_child(self, look, name, collect, wfd, deadline):
        try:
            free = name in self.config["memory_free"]
            program, why = self.program_for(look.probes[name])
            detach(wfd, 0 if free else int(self.config["memory_bytes"]), self.libc, program)
            ctx = Ctx(*self.roots, args=look.probes[name], look=look.name, deadline=deadline)
            ctx.carried, ctx.carried_why = (None if program is None else 4), why
            write_all(3, encode(answer_of(collect, ctx)) + b"\n")
        except BaseException as exc:
            try:
                answer = {"status": "error", "took_s": None, "at": time.time(), "data": {}, "notes": [describe(exc)]}
                write_all(3, encode(answer) + b"\n")
            except BaseException:
                pass
        finally:
            os._exit(0)

    def hear(self, child):
        """Take what the pipe holds. An answer is complete at its newline, whoever else still holds the pipe."""
        while child.fd is not None and not child.settled:
            chunk = quietly_read(child.fd)
            if chunk is None:
                return
            if not chunk:
                os.close(child.fd)
                child.fd = None
                if not child.reaped and not child.killed_at:
                    # Either about to be reaped, or it closed its pipe and lives on: give it the time of an exit.
                    child.mute = True
                    child.deadline = min(child.deadline, time.monotonic() + GRACE_S)
                return
            child.answer += chunk
            if b"\n" in chunk:
                self.settle(child, *self.judge(bytes(child.answer.partition(b"\n")[0])))
            elif len(child.answer) > int(self.config["probe_bytes"]):
                over = "answer over %d bytes" % int(self.config["probe_bytes"])
                self.settle(child, "error", {}, [over], None)

    def judge(self, raw):
        if len(raw) > int(self.config["probe_bytes"]):
            return "error", {}, ["answer over %d bytes" % int(self.config["probe_bytes"])], None
        try:
            answer = json.loads(raw.decode("ascii"))
            if answer["status"] not in STATUSES or not isinstance(answer["data"], dict):
                raise ValueError("no envelope")
            return answer["status"], answer["data"], list(answer["notes"]), answer
        except (ValueError, KeyError, TypeError, RecursionError):
            return "error", {}, ["no JSON in the answer"], None

    def reap(self):
        while True:
            try:
                pid, code = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self.children.get(pid)
            if child is None:
                continue  # a grandchild that was left to us
            child.reaped = True
            if not child.settled:
                self.hear(child)
            if not child.settled:
                if child.killed_at is not None:
                    self.time_out(child)
                else:
                    self.settle(child, "error", {}, ["ended without an answer (%s)" % how_ended(code)], None)
            self.children.pop(pid, None)

    def keep_deadlines(self):
        now = time.monotonic()
        for child in list(self.children.values()):
            if child.settled:
                continue
            if child.killed_at is None and now >= child.deadline:
                child.killed_at = now
                self.killed += 1
                self.kill(child)
            elif child.killed_at is not None and now >= child.killed_at + GRACE_S:
                self.time_out(child)
        if now >= self.deadline and not self.over:
            self.over = True
            for child in list(self.children.values()):
                if not child.settled:
                    self.kill(child)
                    self.settle(child, "timeout", {}, ["the runner's own deadline passed"], None)
            for look in list(self.looks):
                for name in sorted(look.open):
                    self.envelope(look, name, "timeout", ["the runner's own deadline passed"], 0.0)
                self.close_look(look)

    def time_out(self, child):
        if child.mute:
            self.settle(child, "error", {}, ["closed its answer and lived on; killed"], None)
            return
        notes = ["killed at its deadline after %.1f s" % (child.killed_at - child.began)]
        if not child.reaped:
            state, where = process_state(child.pid)
            notes.append("does not die: state %s%s" % (state, " in " + where if where else ""))
        self.settle(child, "timeout", {}, notes, None)

    def settle(self, child, status, data, notes, answer):
        """One envelope per probe and look. What the probe left behind in its session ends with it."""
        child.settled = True
        if child.fd is not None:
            os.close(child.fd)
            child.fd = None
        self.kill(child)
        took = answer.get("took_s") if answer else None
        if took is None:
            took = round((child.killed_at or time.monotonic()) - child.began, 4)
        at = answer.get("at") if answer else None
        self.envelope(child.look, child.name, status, notes, took, data, at)
        self.close_look(child.look)

    def kill(self, child):
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except OSError:
            if not child.reaped:
                try:
                    os.kill(child.pid, signal.SIGKILL)
                except OSError:
                    pass

    def sweep(self, wait_s):
        """Kill what left its session and was handed to us as sub-reaper; pids that do not die."""
        known = {pid for pid, child in self.children.items() if not child.settled}
        until, killed = time.monotonic() + wait_s, set()
        while True:
            found = set(own_children(bool(wait_s))) - known
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue
                if pid not in self.children and pid not in killed:
                    self.killed += 1
                killed.add(pid)
            if wait_s:
                self.reap()
            if not found or time.monotonic() >= until:
                return sorted(pid for pid in found if process_state(pid)[0] not in ("Z", "?"))
            time.sleep(0.01)

    # ---- what goes out

    def envelope(self, look, name, status, notes, took_s, data=None, at=None):
        look.open.discard(name)
        line = {
            "probe": name,
            "version": self.meta.get(name, {}).get("version", 1),
            "node": "",
            "look": look.name,
            "status": status,
            "took_s": took_s,
            "at": round(time.time(), 3) if at is None else at,
            "data": data or {},
            "notes": notes,
        }
        if look.ident is not None:
            line["id"] = look.ident
        raw = encode(line)
        if self.sent + len(raw) > int(self.config["node_bytes"]):
            line.update(status="error", data={}, notes=["over the node's %d bytes" % int(self.config["node_bytes"])])
            raw = encode(line)
        self.sent += len(raw)
        self.out += raw + b"\n"
        self.flush()

    def say(self, line):
        self.out += encode(line) + b"\n"
        self.flush()

    def flush(self):
        try:
            while self.out:
                del self.out[: os.write(self.emit, self.out)]
        except BlockingIOError:
            pass
        except OSError:
            self.out, self.over = bytearray(), True  # nobody reads any more


def quietly_read(fd):
    """Bytes, b"" at the end, None if there is nothing now."""
    try:
        return os.read(fd, 65536)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        return b""


def how_ended(code):
    return "signal %d" % os.WTERMSIG(code) if os.WIFSIGNALED(code) else "exit %d" % os.WEXITSTATUS(code)


def process_state(pid):
    """("D", "folio_wait_bit_common"): why a process does not die; ("?", "") once it is gone."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            state = file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?", ""
    try:
        with open("/proc/%d/wchan" % pid) as file:
            return state, file.read(64).strip("0\n")
    except OSError:
        return state, ""


def own_children(thorough):
    """Pids whose parent is this process. The kernel's own list where it has one; else, if thorough, all of /proc."""
    me = os.getpid()
    try:
        with open("/proc/self/task/%d/children" % me) as file:
            return [int(pid) for pid in file.read().split()]
    except (OSError, ValueError):
        pass
    found = []
    if thorough:
        for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
            if name.isdigit():
                try:
                    with open("/proc/%s/stat" % name) as file:
                        if int(file.read().rpartition(")")[2].split()[1]) == me:
                            found.append(int(name))
                except (OSError, ValueError, IndexError):
                    pass
    return found


def c_library():
    """The C library through ctypes, or None: without it there is no sub-reaper and no idle I/O class."""
    try:
        import ctypes

        return ctypes.CDLL(None, use_errno=True)
    except Exception:
        return None


# ---------------------------------------------------------------- the two ways in


class Importer(object):
    """Makes the sources that came with the payload importable by name; nothing is written to disk."""

    def __init__(self, sources):
        self.sources = sources

    def find_spec(self, name, path=None, target=None):
        if name not in self.sources:
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(compile(self.sources[module.__name__], module.__name__ + ".py", "exec"), module.__dict__)  # noqa: S102


def serve(config):
    """Run as the payload: requests on standard input, lines on standard output, then os._exit."""
    sources = dict(config.get("modules", {}), **config["probes"])
    sys.meta_path.insert(0, Importer(sources))
    compiled = {}

    def find(name):
        if name not in compiled:
            compiled[name] = compile(config["probes"][name], name + ".py", "exec")

        def collect(ctx):
            module = sys.modules[name] = types.ModuleType(name)
            exec(compiled[name], module.__dict__)  # noqa: S102
            return module.collect(ctx)

        return collect

    # The belt to the loop's braces: if the loop itself is stuck, the kernel ends it, and the children with it.
    signal.alarm(int(float(config.get("deadline_s", DEFAULTS["deadline_s"]))) + 15)
    runner = Runner(config, find, 0, 1)
    runner.start()
    # The newline first: a banner may end without one.
    runner.out += b"\n"
    begin = {"protocol": 1, "pid": os.getpid(), "python": sys.version.split()[0], "at": round(time.time(), 3)}
    runner.say({"_begin": begin})
    try:
        runner.run()
    finally:
        os._exit(0)


USAGE = "usage: %s [--procfs DIR] [--sysfs DIR] [--rootfs DIR] [--look A|B|C] [--args JSON]"


def main(PROBE, collect):
    """`python3 probes/nic.py [--procfs DIR] ...` on a bare node: one envelope on standard output, exit 0."""
    options, argv = {"look": "A", "args": "{}"}, sys.argv[1:]
    while argv:
        key, _, value = argv.pop(0).partition("=")
        if key not in ("--procfs", "--sysfs", "--rootfs", "--look", "--args") or not (value or argv):
            sys.stderr.write(USAGE % sys.argv[0] + "\n")
            sys.exit(0 if key in ("-h", "--help") else 2)
        options[key[2:]] = value or argv.pop(0)
    for name in ("procfs", "sysfs", "rootfs"):
        if name in options:
            os.environ["TRIAGE_" + name.upper()] = options[name]
    try:
        args = json.loads(options["args"])
    except ValueError as exc:
        sys.stderr.write("--args is no JSON: %s\n" % exc)
        sys.exit(2)
    sys.stdout.flush()
    limit = float(PROBE.get("timeout_s", 3))
    runner = Runner({"deadline_s": limit + 5, "meta": {PROBE["name"]: PROBE}}, lambda name: collect, None, 1)
    runner.say = lambda line: None  # a person reads this: the envelope alone
    runner.start()
    os.set_blocking(1, True)  # a terminal's descriptor is shared with the shell, and a pager may read slowly
    runner.add(Look(options["look"], None, {PROBE["name"]: args}, time.monotonic() + limit))
    runner.run(until_idle=True)
    os._exit(0)
