"""Which control plane has a rank's own process opened, and what does it answer? Never a byte to any other socket.

PyTorch's `_WorkerServer` is an HTTP server in a C++ thread of the rank; it answers while the main thread is blocked
(notes/flight-recorder.md 2.2).  POST /handler/<name>, no authentication, opened by the job's own code only:

    TORCH_WORKER_SERVER_SOCKET=/run/rank3.sock   worker_main() of torch.distributed.elastic.control_plane: a unix socket
    start_debug_server()                         a TCP port that the kernel chose, on [::]

What proves that a socket is one, since a port of NCCL, a TCPStore or a user's server must never be spoken to:

    unix   the rank's own environment names it, and the kernel says that this very process listens on it (SO_PEERCRED)
    both   a thread of the process that is called `pt_workerserver` (WorkerServer.cpp gives that name to the thread that
           accepts, and to no other but those it starts) stands in accept() on this very socket:
           /proc/<pid>/task/<tid>/{comm,syscall} -> /proc/<pid>/fd/<n> -> /proc/<pid>/net/{tcp,tcp6,unix}

Refused, with the reason told: a socket that another process listens on (ranks that inherited one name: only one of them
could bind it), a port in another network namespace (a container's port of the same number here is somebody else's), a
process whose system calls may not be read (then nothing proves a port), port 25999 of the front end (it would ask all
ranks), any port that is only guessed.  Only the handlers of HANDLERS are asked: the others write files, start a profiler
or a second py-spy inside the job.

Fooled by   an older control plane without a handler (404: the next name is tried); a stopped rank, whose kernel takes the
            connection and never answers; `dump_traceback`, which needs the interpreter lock and is silent where that is
            held, while `ping` answers: that is evidence by itself; a program that names a thread of its own pt_workerserver.

(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import errno
import os
import select
import socket
import struct
import time

SOCKET_NAME = "TORCH_WORKER_SERVER_SOCKET"
THREAD = "pt_workerserver"
# What may be asked: each only reads.
HANDLERS = {
    "ping": "",
    "dump_nccl_trace_json": "includecollectives=true&onlyactive=false",  # CUDA builds; JSON never holds stacks
    "fr_trace_json": "",
    "dump_traceback": "",
}
ACCEPT = {"x86_64": ("43", "288"), "aarch64": ("202", "242")}  # accept, accept4
MOST_HEAD, MOST_BODY = 16384, 32 << 20
MOST_THREADS = 4096


class Plane(object):
    """A proven control plane: where it listens."""

    def __init__(self, pid, family, address, shown):
        self.pid, self.family, self.address, self.shown = pid, family, address, shown
        self.inode = None  # of the listening socket, where a thread proved it


class Answer(object):
    """status: HTTP's, or None where none came; why says then what happened; body is at most MOST_BYTES."""

    def __init__(self, status=None, body=b"", why="", took_s=None):
        self.status, self.body, self.why, self.took_s = status, body, why, took_s
        self.silent = False  # it took the connection and did not answer

    @property
    def good(self):
        return self.status == 200


# ---------------------------------------------------------------- whose socket is it?


def find(ctx, pid, environ):
    """(Plane or None, why not; "" where the process shows no sign of one).

    environ   the rank's environment, of which only SOCKET_NAME is read here
    """
    named = environ.get(SOCKET_NAME) or ""
    if not ctx.real and os.path.realpath(ctx.proc(str(pid))) != "/proc/%d" % pid:
        # A folder of files is no process; a folder of links to processes of this host (a drill's node) is.
        return None, "not asked: other root" if named else ""
    threads, readable = accepting(ctx, pid)
    for fd in threads:
        inode = inode_of(ctx, pid, fd)
        plane, why = (None, "") if inode is None else of_inode(ctx, pid, inode)
        if plane is not None:
            plane.inode = inode
            return plane, ""
        if why:
            return None, why
    if named.startswith("/"):
        return of_path(ctx, pid, named)
    if readable is False:
        return None, "its control plane's socket cannot be told: system calls of its threads may not be read"
    return None, ""


def accepting(ctx, pid):
    """(descriptors on which a thread called pt_workerserver stands in accept, could its system call be read)."""
    found, readable = [], None
    calls = ACCEPT.get(os.uname().machine, ())
    for tid in ctx.listdir(ctx.proc("%d/task" % pid))[:MOST_THREADS]:
        base = ctx.proc("%d/task/%s/" % (pid, tid))
        if (ctx.read(base + "comm", 64) or "").strip() != THREAD:
            continue
        words = (ctx.read(base + "syscall", 512) or "").split()
        readable = bool(words) or bool(readable)
        if len(words) > 1 and words[0] in calls and words[1].startswith("0x"):
            found.append(int(words[1], 16) & 0xFFFFFFFF)
    return found, readable


def inode_of(ctx, pid, fd):
    try:
        target = os.readlink(ctx.proc("%d/fd/%d" % (pid, fd)))
    except OSError:
        return None
    return target[8:-1] if target.startswith("socket:[") and target.endswith("]") else None


def of_inode(ctx, pid, inode):
    """(Plane or None, why) of a listening socket of the process."""
    for name, family in (("tcp6", socket.AF_INET6), ("tcp", socket.AF_INET)):
        for line in (ctx.read(ctx.proc("%d/net/%s" % (pid, name)), 16 << 20) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[9] == inode and words[3] == "0A":
                if not same_network(ctx, pid):
                    return None, "its control plane listens in a container's own network; not reached from the node"
                return of_port(pid, family, words[1])
    for line in (ctx.read(ctx.proc("%d/net/unix" % pid), 16 << 20) or "").splitlines()[1:]:
        words = line.split(None, 7)
        if len(words) > 7 and words[6] == inode and words[7].startswith("/"):
            return of_path(ctx, pid, words[7])
    return None, ""


def of_port(pid, family, told):
    """A Plane for `0100007F:1F90` or the 32 digits of IPv6: each word in the byte order of this machine."""
    host, _, port = told.partition(":")
    raw = b"".join(struct.pack("=I", int(host[i : i + 8], 16)) for i in range(0, len(host), 8))
    text = socket.inet_ntop(family, raw)
    if not any(raw):
        family, text = socket.AF_INET, "127.0.0.1"  # a wildcard takes both, unless it was told not to
    return Plane(pid, family, (text, int(port, 16)), "%s port %d" % (text, int(port, 16))), ""


def same_network(ctx, pid):
    try:
        return os.readlink(ctx.proc("%d/ns/net" % pid)) == os.readlink("/proc/self/ns/net")
    except OSError:
        return False


def of_path(ctx, pid, path):
    """A Plane for a unix socket as the process names it; whether it listens is asked when it is connected to."""
    import _folders

    root = ctx.proc("%d/root" % pid)
    return Plane(pid, socket.AF_UNIX, _folders.resolve_in(root, path), path[:200]), ""


# ---------------------------------------------------------------- one question each to many


class Call(object):
    """One request on its way: connect, prove, send, read; never blocking."""

    def __init__(self, plane, handler, limit=MOST_BODY):
        query = HANDLERS[handler]
        self.plane, self.limit, self.sock, self.folder = plane, limit, None, None
        self.request = (
            "POST /handler/%s%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            % (handler, "?" + query if query else "")
        ).encode("ascii")
        self.sent, self.got, self.answer, self.connected = 0, bytearray(), None, False
        self.began = time.monotonic()

    def start(self):
        try:
            self.sock = socket.socket(self.plane.family, socket.SOCK_STREAM)
            self.sock.setblocking(False)
            code = self.sock.connect_ex(self.target())
        except OSError as error:
            self.end(why="its control plane cannot be reached: %s" % (error.strerror or error))
            return
        # A full backlog of a unix socket says EAGAIN at once: a process that accepts nobody any more.
        if code == errno.EAGAIN:
            self.end(why="its control plane takes no connection", silent=True)
        elif code not in (0, errno.EINPROGRESS):
            self.end(why="its control plane cannot be reached: %s" % os.strerror(code))

    def target(self):
        if self.plane.family != socket.AF_UNIX or len(os.fsencode(self.plane.address)) < 100:
            return self.plane.address
        # The name of a unix socket has room for 107 bytes: a long one is reached through its folder.
        folder, name = os.path.split(self.plane.address)
        self.folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return "/proc/self/fd/%d/%s" % (self.folder, name)

    def prove(self):
        """Why not a byte may be sent, or "": is it this process that listens?"""
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            return "its control plane cannot be reached: %s" % os.strerror(code)
        if self.plane.family == socket.AF_UNIX:
            size = struct.calcsize("=iII")
            pid = struct.unpack("=iII", self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0]
            if pid != self.plane.pid:
                return "the socket that its environment names belongs to process %d; nothing was sent" % pid
        elif not self.still_listens():
            return "its control plane is gone; nothing was sent"
        return ""

    def still_listens(self):
        """Does the process still hold the socket that was proven? Its port may be another's since."""
        folder = "/proc/%d/fd/" % self.plane.pid
        try:
            return any(self.held(folder + name) for name in os.listdir(folder))
        except OSError:
            return False

    def held(self, path):
        try:
            return os.readlink(path) == "socket:[%s]" % self.plane.inode
        except OSError:
            return False

    def writable(self):
        if not self.connected:
            why = self.prove()
            if why:
                self.end(why=why)
                return
            self.connected = True
        try:
            # The one place where anything is sent: a request made of HANDLERS, to a socket that was proven above.
            self.sent += self.sock.send(self.request[self.sent :])
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINTR):
                self.end(why="its control plane closed the connection")

    def readable(self):
        try:
            chunk = self.sock.recv(1 << 18)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR):
                return
            chunk = b""
        self.got += chunk
        if len(self.got) > self.limit + MOST_HEAD:
            self.end(why="its control plane sent more than %d MiB" % (self.limit >> 20))
            return
        status, body, whole = parse(self.got)
        if whole or not chunk:
            if status is None or (not whole and body is None):
                self.end(why="its control plane sent no whole answer of HTTP")
            else:
                self.end(status=status, body=body or b"")
        elif status is None and len(self.got) > MOST_HEAD:
            self.end(why="its control plane sent no answer of HTTP")

    def end(self, status=None, body=b"", why="", silent=False):
        self.answer = Answer(status, body, why, round(time.monotonic() - self.began, 3))
        self.answer.silent = silent
        for close in (self.sock.close if self.sock else None, self.close_folder):
            if close:
                close()

    def close_folder(self):
        if self.folder is not None:
            os.close(self.folder)
            self.folder = None


def parse(raw):
    """(status, body, is it whole) of an HTTP answer; body None while it is not known where it ends.

    A body without a length ends with the connection: it is handed out and not called whole.
    """
    head, mark, body = bytes(raw[: MOST_HEAD + 4]).partition(b"\r\n\r\n")
    if not mark:
        return None, None, False
    body = bytes(raw[len(head) + 4 :])
    lines = head.split(b"\r\n")
    words = lines[0].split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit() or len(words[1]) != 3:
        return None, None, True
    fields = {}
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        fields[name.strip().lower()] = value.strip().lower()
    status = int(words[1])
    if b"chunked" in fields.get(b"transfer-encoding", b""):
        body, whole = unchunk(body)
        return status, body if whole else None, whole
    length = fields.get(b"content-length", b"")
    if length.isdigit() and len(length) < 12:
        whole = len(body) >= int(length)
        return status, body[: int(length)] if whole else None, whole
    return status, body, False


def unchunk(raw):
    parts, at = [], 0
    while True:
        line = raw.find(b"\r\n", at, at + 64)
        if line < 0:
            return b"", False
        try:
            size = int(raw[at:line].partition(b";")[0], 16)
        except ValueError:
            return b"", False
        at = line + 2
        if size <= 0:
            return b"".join(parts), size == 0
        if at + size + 2 > len(raw):
            return b"", False
        parts.append(raw[at : at + size])
        at += size + 2


def ask_all(wanted, limit_s, limit=MOST_BODY):
    """{key: Answer} for {key: (Plane, handler)}: all at once, none longer than `limit_s`. Raises nothing."""
    calls, until = {}, time.monotonic() + limit_s
    for key, (plane, handler) in wanted.items():
        calls[key] = Call(plane, handler, limit)
        calls[key].start()
    while True:
        open_calls = [call for call in calls.values() if call.answer is None]
        left = until - time.monotonic()
        if not open_calls or left <= 0:
            break
        poll, by_fd = select.poll(), {}
        for call in open_calls:
            by_fd[call.sock.fileno()] = call
            sending = not call.connected or call.sent < len(call.request)
            poll.register(call.sock.fileno(), select.POLLOUT if sending else select.POLLIN)
        for fd, _ in poll.poll(left * 1000.0):
            call = by_fd[fd]
            if not call.connected or call.sent < len(call.request):
                call.writable()
            else:
                call.readable()
    for call in calls.values():
        if call.answer is None:
            asked = "took the question and" if call.sent else "took no connection and"
            call.end(why="its control plane %s did not answer within %.1f s" % (asked, limit_s), silent=True)
    return {key: call.answer for key, call in calls.items()}
