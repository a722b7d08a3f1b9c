"""Fan-out: ask many nodes at once and come back at the deadline with one record per node and probe, always.

    fleet = Fleet(job.nodes, transport, payload.build(...))
    contacts = fleet.open(10.0)                           # one `contact` sample per node
    first = fleet.look("A", {"reach": {}, "ranks": {"job_id": "4711"}}, 15.0)
    second = fleet.look("B", {...}, 10.0)                 # over the connections that are still open
    more = fleet.ask("stacks", ["gpu007"], {}, limit_s=20.0)
    fleet.close()

Each node has a daemon thread of its own, which nobody ever waits for: a thread that hangs in a library call is left
behind, and the record of its node says in which phase. Callbacks run on the caller's thread, in the order of arrival.

Statuses of what did not come: "timeout" (waited for until the limit) or "error" (refused, closed, broken), with a
note that names the phase. A node that never connected has its one `contact` record and, for each probe asked of it,
a record with the same status and no data. Lines that are no answer become records of the probe "wire", status
"malformed", at most 20 per node; then its connection is closed.
"""

from __future__ import annotations

import contextlib
import queue
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from triage.errors import UsageError
from triage.model import Node, Sample
from triage.transports import answers, payload
from triage.transports.base import Contact, Line, Session, Transport, Unreached, left, plain

Args = Mapping[str, Any]


@dataclass(frozen=True)
class Limits:
    """What one node may send, and how much sooner than we the node is told to give up."""

    node_bytes: int = (4 << 20) + (256 << 10)  # the runner's own 4 MiB and its envelopes
    malformed: int = 20
    margin_s: float = 0.5  # so that the node's own time-out records arrive before ours are made
    banner_bytes: int = 64 << 10  # what may stand before the first line of the payload


@dataclass(frozen=True)
class Progress:
    """How far one step is: `step` is "open" or the look, `done` of `of` nodes have nothing more to say."""

    step: str
    done: int
    of: int


@dataclass
class _Ask:
    """One request as one node gets it."""

    ident: int
    look: str
    probes: Mapping[str, Args]
    deadline: float
    before: Sequence[bytes] = ()  # lines that go ahead of it: a program that is carried along


@dataclass
class _Link:
    """One node: its thread, its connection, and how its story ended."""

    node: Node
    contact: Contact = field(default_factory=Contact)
    inbox: queue.SimpleQueue[_Ask | None] = field(default_factory=queue.SimpleQueue)
    session: Session | None = None
    lines: answers.Lines = field(default_factory=answers.Lines)
    bytes_read: int = 0
    malformed: int = 0
    began: bool = False
    head: str = ""  # what was printed before the payload's first line
    sudo: str | None = None  # what sudo said when it did not let us
    lost: tuple[str, str] | None = None  # (status, why) once nothing more can come
    abandoned: bool = False


# A thousand threads that want the interpreter at once each wake every 5 ms to ask for it, which costs more than the work
# (measured: 37 ms of system time a node, not 1.6). So they are not all woken at once, and each waits longer.
MANY = 128
INTERVAL_S = 0.1
AT_ONCE, PAUSE_S = 32, 0.01

# What a node's thread tells the caller: (request number, link, what)
_Report = tuple[int, _Link, "Sample | str"]
_DONE, _LATE = "done", "late"  # it said that it was done; it did not in time, or is lost
NOT_SUDO = "sudo -n is refused"  # read by unread.py
_CONTACT = 0  # the request number of `open`


class Fleet:
    """The nodes of a job while they are being asked.

    nodes        in the scheduler's order, names unique
    transport    see transports.base; used from many threads
    load         the payload, from transports.payload.build
    on_sample    called with every record as it arrives (the case is written while gathering)
    on_progress  called when a node is done with a step
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        transport: Transport,
        load: bytes,
        *,
        limits: Limits | None = None,
        command: str = payload.COMMAND,
        on_sample: Callable[[Sample], None] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._links = {node.name: _Link(node) for node in nodes}
        if len(self._links) != len(nodes):
            raise UsageError("a node stands twice in the list of nodes")
        self._transport, self._load, self._command = transport, load, command
        self._limits = limits or Limits()
        self._on_sample, self._on_progress = on_sample, on_progress
        self._reports: queue.SimpleQueue[_Report] = queue.SimpleQueue()
        self._ident = _CONTACT
        _allow_descriptors(len(nodes) + 256)
        self._interval = sys.getswitchinterval()
        if len(nodes) > MANY:
            sys.setswitchinterval(INTERVAL_S)

    # ---------------------------------------------------------------- the caller's side

    def open(self, limit_s: float) -> list[Sample]:
        """Connect to all nodes and start the payload there: one `contact` sample per node."""
        deadline = time.monotonic() + limit_s
        for link in self._links.values():
            link.contact = Contact()  # its clock starts now
            thread = threading.Thread(target=self._live, args=(link, deadline), daemon=True)
            try:
                thread.start()
            except RuntimeError:  # `ulimit -u`, or the login node's limit of tasks
                link.contact.error = "no thread to ask it with; raise `ulimit -u`"
                link.lost = ("error", link.contact.error)
                self._reports.put((_CONTACT, link, _LATE))
        waiting = dict.fromkeys(self._links, frozenset(("contact",)))
        return self._collect(_CONTACT, "open", "A", waiting, deadline, limit_s)

    def look(
        self,
        look: str,
        probes: Mapping[str, Args],
        limit_s: float,
        args_by_node: Mapping[str, Mapping[str, Args]] | None = None,
    ) -> list[Sample]:
        """Ask every node the same probes: exactly one record per node and probe (and those of "wire").

        args_by_node   node -> {probe: args} in the place of the common ones; probes that are not asked are not added
        """
        own = args_by_node or {}
        wanted = {
            node: {name: own.get(node, {}).get(name, args) for name, args in probes.items()} if node in own else probes
            for node in self._links
        }
        return self._request(look, wanted, limit_s)

    def ask(
        self,
        probe: str,
        nodes: Iterable[str],
        args: Args | None = None,
        *,
        args_by_node: Mapping[str, Args] | None = None,
        limit_s: float,
        look: str = "C",
        before: Mapping[str, Sequence[bytes]] | None = None,
    ) -> list[Sample]:
        """Ask some nodes one costly probe; `args_by_node` overrides `args` for the nodes it names.

        before   node -> lines that are sent to it ahead of the request (a program that is carried along)
        """
        by_node = args_by_node or {}
        return self._request(look, {n: {probe: by_node.get(n, args or {})} for n in nodes}, limit_s, before)

    def dial(self, node: str, host: str, port: int, deadline: float) -> Line:
        """A TCP connection that the node makes for us over the connection that is open; see base.Dialler."""
        link = self._links[node]
        dial = None if link.lost else getattr(link.session, "dial", None)
        if dial is None:
            raise PermissionError(f"{node} cannot be asked to connect for us")
        line: Line = dial(host, port, deadline)
        return line

    def close(self) -> None:
        """End all sessions without waiting for any. The nodes see the end of their input and kill what runs."""
        for link in self._links.values():
            link.abandoned = True
            link.inbox.put(None)
            if link.session is not None:
                link.session.close()
        self._transport.close()
        sys.setswitchinterval(self._interval)

    def phase(self, node: str) -> str:
        """The phase in which a node's connection is or ended."""
        return self._links[node].contact.phase

    def _request(
        self,
        look: str,
        wanted: Mapping[str, Mapping[str, Args]],
        limit_s: float,
        before: Mapping[str, Sequence[bytes]] | None = None,
    ) -> list[Sample]:
        strangers = [name for name in wanted if name not in self._links]
        if strangers:
            raise UsageError(f"{strangers[0]} is no node of this job")
        self._ident += 1
        deadline = time.monotonic() + limit_s
        for place, (name, probes) in enumerate(wanted.items(), 1):
            if place % AT_ONCE == 0:
                time.sleep(PAUSE_S)
            self._links[name].inbox.put(_Ask(self._ident, look, probes, deadline, (before or {}).get(name, ())))
        waiting = {name: frozenset(probes) for name, probes in wanted.items()}
        return self._collect(self._ident, look, look, waiting, deadline, limit_s)

    def _collect(
        self,
        ident: int,
        step: str,
        look: str,
        waiting: Mapping[str, frozenset[str]],
        deadline: float,
        limit_s: float,
    ) -> list[Sample]:
        """Take reports until all nodes are done or the deadline passes, then make the records that are missing."""
        missing = {name: set(probes) for name, probes in waiting.items()}
        got: list[Sample] = []

        def keep(sample: Sample) -> None:
            got.append(sample)
            missing.get(sample.node, set()).discard(sample.probe)
            if self._on_sample:
                self._on_sample(sample)

        open_nodes = set(missing)
        for name in [n for n in missing if ident != _CONTACT and self._links[n].lost]:
            open_nodes.discard(name)
            for sample in self._absences(name, look, missing[name], limit_s):
                keep(sample)
        while open_nodes:
            try:
                number, link, what = self._reports.get(timeout=left(deadline) or 0.000001)
            except queue.Empty:
                break
            name = link.node.name
            if number != ident or name not in open_nodes:
                continue  # a late word of an earlier look
            if isinstance(what, Sample):
                keep(what)
                continue
            open_nodes.discard(name)
            for sample in self._absences(name, look, missing[name], limit_s, forgot=what == _DONE):
                keep(sample)
            if self._on_progress:
                self._on_progress(Progress(step, len(missing) - len(open_nodes), len(missing)))
        for name in sorted(open_nodes):
            if ident == _CONTACT:
                self._give_up(self._links[name])
            for sample in self._absences(name, look, missing[name], limit_s):
                keep(sample)
        return got

    def _absences(
        self, name: str, look: str, probes: Iterable[str], limit_s: float, forgot: bool = False
    ) -> list[Sample]:
        """Records for what did not come from one node, with the reason."""
        link = self._links[name]
        phase = link.contact.phase
        now = time.time()
        silent = (
            ("error", "said that it was done, without this")
            if forgot
            else ("timeout", f"no answer within {limit_s:g} s")
        )
        status, why = link.lost or silent
        samples = []
        for probe in sorted(probes):
            data = {**link.contact.data(), "error": link.contact.error or why} if probe == "contact" else {}
            note = f"phase {phase}: {why}"
            samples.append(Sample(probe, name, look, status, data, received=now, notes=(note,)))
        return samples

    def _give_up(self, link: _Link) -> None:
        """The limit of `open` passed: whatever its thread still does, this node is not in the run."""
        link.abandoned = True
        link.lost = ("timeout", link.contact.error or "no contact in time")
        if link.session is not None:
            link.session.close()

    # ---------------------------------------------------------------- a node's thread

    def _live(self, link: _Link, deadline: float) -> None:
        """From connecting to the end: the whole life of one node's thread."""
        report = self._reports.put
        try:
            report((_CONTACT, link, self._connect(link, deadline)))
        except Unreached as exc:
            self._lose(link, exc)
        except Exception as exc:  # a bug of ours or of a library must not take the other nodes with it
            self._lose(link, Unreached(link.node.name, link.contact.phase, f"{type(exc).__name__}: {exc}"))
        report((_CONTACT, link, _LATE))
        while not link.abandoned:
            ask = link.inbox.get()
            if ask is None:
                return
            end = _LATE
            if not link.lost:
                try:
                    self._serve(link, ask)
                    end = _DONE
                except Unreached as exc:
                    if exc.status != "timeout":
                        self._lose(link, exc)
                except Exception as exc:
                    self._lose(link, Unreached(link.node.name, "read", f"{type(exc).__name__}: {exc}"))
            report((ask.ident, link, end))

    def _connect(self, link: _Link, deadline: float) -> Sample:
        contact = link.contact
        link.session = session = self._transport.open(link.node, self._command, deadline, contact)
        if link.abandoned:
            session.close()
            raise Unreached(link.node.name, contact.phase, "no contact in time", "timeout")
        try:
            session.send(self._load, deadline)
        except Unreached as exc:
            if exc.status == "timeout":
                raise
            # It ended before it had read everything: what it said meanwhile tells why.
        while True:
            received, lines = self._read(link, deadline)
            for line in lines:
                if link.began or line is None or not line.startswith(payload.BEGIN):
                    self._before_begin(link, line)
                    continue
                link.began = True
                data = contact.data()
                notes = (f"{NOT_SUDO}: {link.sudo or 'it says nothing'}",) if link.sudo is not None else ()
                return Sample(
                    "contact", link.node.name, "A", "ok", data, at=_begin_time(line), received=received, notes=notes
                )

    def _before_begin(self, link: _Link, line: bytes | None) -> None:
        """A banner or a .bashrc speaks first: kept for the case that nothing else ever comes."""
        if line and line.startswith(payload.NO_SUDO.encode()):
            link.sudo = link.sudo or plain(line[len(payload.NO_SUDO) : 200].decode("utf-8", "replace"))
            return
        if line and len(link.head) < 300:
            link.head = f"{link.head} {plain(line[:200].decode('utf-8', 'replace'))}".strip()
            link.contact.banner = link.contact.banner or link.head

    def _read(self, link: _Link, deadline: float) -> tuple[float, list[bytes | None]]:
        """When the next piece arrived, and the lines that it completes. Raises Unreached at its end or its cap."""
        assert link.session is not None
        name, limits = link.node.name, self._limits
        chunk = link.session.read(deadline)
        received = time.time()
        if not chunk:
            said = " ".join(part for part in (link.head, link.session.complaint()) if part)
            raise Unreached(name, "read", f"the command ended{': ' + said[:300] if said else ''}")
        link.bytes_read += len(chunk)
        most = limits.node_bytes if link.began else limits.banner_bytes
        if link.bytes_read > most:
            raise Unreached(name, "read", f"more than {most} bytes of output; connection closed")
        return received, link.lines.feed(chunk)

    def _serve(self, link: _Link, ask: _Ask) -> None:
        """Send one request and report its answers until the node says that it is done."""
        assert link.session is not None
        time_left = left(ask.deadline)
        if not time_left:
            raise Unreached(link.node.name, "read", "not asked in time", "timeout")
        for piece in ask.before:
            link.session.send(piece, ask.deadline)
        time_left = left(ask.deadline)
        margin = min(self._limits.margin_s, time_left / 5)
        link.session.send(payload.request(ask.look, ask.ident, ask.probes, time_left - margin), ask.deadline)
        seen: set[str] = set()
        while True:
            received, lines = self._read(link, ask.deadline)
            done = False
            for line in lines:
                try:
                    done = self._take(link, ask, line, seen, received) or done
                except answers.BadLine as exc:
                    self._malformed(link, ask, str(exc), received)
            if done:
                return

    def _take(self, link: _Link, ask: _Ask, line: bytes | None, seen: set[str], received: float) -> bool:
        """Use one line; True if it ends the request. Raises BadLine."""
        if line is None:
            raise answers.BadLine("a line over its limit")
        if not line.strip():
            return False
        record = answers.parse(line)
        if "_end" in record:
            raise Unreached(link.node.name, "read", "the runner on the node ended")
        ident = record.get("id")
        if isinstance(ident, int) and 0 < ident < ask.ident:
            return False  # late: its record was made when its look ended
        if ident != ask.ident:
            raise answers.BadLine("answers no request")
        if "_done" in record:
            return True
        probe = record.get("probe")
        if not isinstance(probe, str) or probe not in ask.probes:
            raise answers.BadLine(f"unasked probe {str(probe)[:40]!r}")
        if probe in seen:
            raise answers.BadLine(f"second answer of {probe}")
        seen.add(probe)
        try:
            sample = answers.to_sample(link.node.name, {**record, "look": ask.look}, received)
        except answers.BadLine as exc:
            sample = Sample(probe, link.node.name, ask.look, "malformed", received=received, notes=(str(exc),))
        self._reports.put((ask.ident, link, sample))
        return False

    def _malformed(self, link: _Link, ask: _Ask, why: str, received: float) -> None:
        link.malformed += 1
        if link.malformed > self._limits.malformed:
            raise Unreached(link.node.name, "read", "too many malformed lines; connection closed")
        sample = Sample("wire", link.node.name, ask.look, "malformed", received=received, notes=(why,))
        self._reports.put((ask.ident, link, sample))

    def _lose(self, link: _Link, why: Unreached) -> None:
        """Nothing more will come from this node."""
        if link.abandoned and link.lost:
            return  # given up at its deadline: that its session was then closed under it is no news
        link.contact.error = link.contact.error or why.why
        if why.phase != link.contact.phase:
            link.contact.enter(why.phase)
        link.lost = (why.status, why.why)
        if link.session is not None:
            with contextlib.suppress(Exception):
                link.session.close()


def _begin_time(line: bytes) -> float | None:
    """The node's clock in the payload's first line, if it holds one."""
    try:
        at = answers.parse(line)["_begin"]["at"]
    except (answers.BadLine, KeyError, TypeError):
        return None
    return float(at) if isinstance(at, (int, float)) else None


def _allow_descriptors(wanted: int) -> None:
    """Lift the soft limit of open files, often 1024, as far as we may: one socket per node."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
