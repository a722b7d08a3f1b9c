"""How NCCL's RAS is asked: the dialogue over one connection, and how often it is tried. Pure: connections and clock are given.

    send  CLIENT PROTOCOL 2     reply  SERVER PROTOCOL 2       (within a second, or the process behind it stands still)
    send  TIMEOUT 3             reply  OK
    send  SET FORMAT json       reply  OK, or before 2.28.7  ERROR: Unknown command set format json
    send  STATUS                reply  the report, and then the end (VERBOSE STATUS in text: more ranks are listed)

Nothing else is ever sent; one report a connection; no more than FEW in all, so that nobody is polled (notes/
nccl-ras-and-logs.md 1.2 to 1.4: each query makes all processes of the job work).
Fooled by   the port, which all processes of a node share: a connection may reach one that is stopped (silence, the next one
            may answer) or another job of the same user (its report is told as such and another connection is tried).

(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

HANDSHAKE_S, CONNECT_S, LEG_S = 1.0, 2.0, 3
TRIES = 8  # connections for one report: of 8 processes with one stopped, 2 of 14 connections met silence
FEW = 4  # reports in all: two that are compared, and two that were another job's or not readable
MOST_LINE, MOST_JSON, MOST_TEXT = 256, 16 << 20, 4 << 20
PIECE = 65536


class Nobody(Exception):
    """Nothing listens there, or we may not connect: why. Trying again would not help."""


class Client(object):
    """Asks for one or two reports and keeps count.

    connect  seconds -> a line with settimeout, sendall, recv, close; raises Nobody, or OSError where silence came
    judge    (bytes, "json" | "text") -> ("ok", report) or ("broken" | "garbage" | "foreign", why)
    clock    seconds of any clock that does not jump;  until  its reading at which all must be over
    """

    def __init__(self, connect, judge, clock, until):
        self.connect, self.judge, self.clock, self.until = connect, judge, clock, until
        self.tries = self.silent = self.strange = self.queries = 0
        self.json, self.outcome, self.why = True, "", ""

    def left(self):
        return self.until - self.clock()

    def two(self, wait, gap_s):
        """The data of a `ras` answer: two reports `gap_s` apart, or what came of it. `wait` sleeps."""
        found = {"gap_s": None}
        first = self.report()
        if first is not None:
            found["first"], asked = first, self.clock()
            gap = min(gap_s, self.left() - 1.5)
            if gap >= gap_s / 3.0 and gap > 0:
                wait(gap)
                found["gap_s"] = round(self.clock() - asked, 2)
                tries, silent = self.tries, self.silent
                second = self.report()
                if second is not None:
                    found["second"] = second
                else:  # one report is still a report
                    self.why = "no second report: %s (%d of %d silent)" % (
                        self.why or self.outcome, self.silent - silent, self.tries - tries,
                    )  # fmt: skip
            else:
                self.why = "no time for a second report"
            self.outcome = "ok"
        found.update(outcome=self.outcome, why=self.why, tries=self.tries, silent=self.silent, foreign=self.strange)
        found["queries"] = self.queries
        return found

    def report(self):
        """One reduced report, or None; then `outcome` and `why` say what came instead."""
        self.outcome, self.why = "timeout", "no time was left"
        for _ in range(TRIES):
            if self.left() <= 0.1:
                break
            if self.queries >= FEW:
                self.why = self.why or "asked %d times" % FEW
                break
            self.tries += 1
            try:
                line = self.connect(min(CONNECT_S, self.left()))
            except Nobody as exc:
                self.outcome, self.why = "no_listener", str(exc)[:200]
                return None
            except OSError as exc:
                self.hush("a connection came to nothing (%s)" % exc.__class__.__name__)
                continue
            try:
                found = self.talk(line)
            finally:
                line.close()
            if found is not None or self.outcome == "garbage":
                return found
        return None

    def hush(self, why):
        self.silent += 1
        self.outcome, self.why = "handshake_silent", why

    def talk(self, line):
        """The dialogue of one connection: the report, or None (outcome and why are set)."""
        hello = self.exchange(line, b"CLIENT PROTOCOL 2\n")
        if hello is None:
            return self.hush("no answer to our first line within %g s" % HANDSHAKE_S)
        if not hello.startswith(b"SERVER PROTOCOL "):
            return self.end("garbage", "what listens there does not speak NCCL's protocol")
        form = "text"
        for words in (b"TIMEOUT %d\n" % LEG_S,) + ((b"SET FORMAT json\n",) if self.json else ()):
            answer = self.exchange(line, words)
            if answer is None:
                return self.hush("it fell silent before it was asked for a report")
            if answer != b"OK" and not answer.startswith(b"ERROR: "):
                return self.end("garbage", "what listens there does not speak NCCL's protocol")
            form = "json" if answer == b"OK" and words.startswith(b"SET") else "text"
        self.queries += 1
        raw, why = self.all(line, b"STATUS\n" if form == "json" else b"VERBOSE STATUS\n", form)
        if raw is None:
            if why == "large" and form == "json":
                self.json = False
                return self.end("timeout", "its JSON is larger than %d MiB" % (MOST_JSON >> 20))
            return self.end("garbage" if why == "large" else "timeout", "it did not come to the end of its report")
        verdict, said = self.judge(raw, form)
        if verdict == "ok":
            self.outcome, self.why = "ok", ""
            return said
        if verdict == "foreign":
            self.strange += 1
            return self.end("foreign_job", said)
        if verdict == "broken" and form == "json":
            self.json = False  # the other form may do
            return self.end("timeout", said)
        return self.end("garbage", said)

    def end(self, outcome, why):
        self.outcome, self.why = outcome, why

    def exchange(self, line, words):
        """The reply's line without its end, within the handshake's second; None where none came."""
        until = min(self.until, self.clock() + HANDSHAKE_S)
        held = b""
        try:
            line.settimeout(max(0.01, until - self.clock()))
            line.sendall(words)
            while b"\n" not in held:
                left = until - self.clock()
                if left <= 0 or len(held) > MOST_LINE:
                    # A line without an end is no answer of RAS's; whoever it is must not be asked anything more.
                    return None if len(held) <= MOST_LINE else b"?"
                line.settimeout(left)
                piece = line.recv(MOST_LINE)  # what follows a reply unasked is dropped with it
                if not piece:
                    return None
                held += piece
        except (OSError, EOFError):
            return None
        return held.split(b"\n", 1)[0].rstrip(b"\r")

    def all(self, line, words, form):
        """(bytes up to the end of the stream, "") or (None, why: large, late)."""
        pieces, held, most = [], 0, MOST_JSON if form == "json" else MOST_TEXT
        try:
            line.settimeout(max(0.01, self.left()))
            line.sendall(words)
            while True:
                left = self.left()
                if left <= 0:
                    return None, "late"
                line.settimeout(left)
                piece = line.recv(PIECE)
                if not piece:
                    return b"".join(pieces), ""
                held += len(piece)
                if held > most:
                    return None, "large"
                pieces.append(piece)
        except (OSError, EOFError):
            return None, "late"
