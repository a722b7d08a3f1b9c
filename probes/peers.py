"""Can this node reach those nodes, on their management and on their fabric addresses?

Reads    one TCP connection to each address, all at once, given up after timeout_s; nothing is sent, and of a management
         address that opens the first bytes are read, if they come in time:  "SSH-2.0-OpenSSH_9.6"
         {"targets": [{"node": "gpu002", "management": ["10.0.0.12:22"], "fabric": ["10.88.0.12:22", "[fd00::12]:22"]}]}
A connection that opens or is refused shows a living kernel. Nothing at all (timeout) or "no host there" (unreachable) from
several nodes shows a node, or a network, that is gone; from one node it may as well be that node's own network.
Fooled by   a firewall that drops (a timeout, and the node is well) or that answers for others (refused, and the node is
            dead); an address that has been given to another machine; a proxy or a load balancer that opens for what
            stands behind it; a name that means this very node here; a full queue of a busy server (its kernel drops what it cannot take: a timeout);
            this node itself (`local`: no route, no permission, no free port: says nothing about the other one).
"""

import errno
import select
import socket
import threading
import time

PROBE = {
    "name": "peers",
    "version": 1,
    "needs": [],
    "timeout_s": 14,
    "cost": "slow",
    "fields": {
        "targets": "list, one a node that was asked about: node, management and fabric, each a list of rows",
        "address": "text, as it was asked: host:port or [IPv6]:port",
        "result": "open, refused, timeout, unreachable, resolve (no address for the name, or too late), bad_address, local",
        "errno": "number of the kernel's error, null where there was none",
        "took_s": "s until the result; null where nothing was tried",
        "banner": "bool, management that opened: did the server say anything in time",
        "truncated": "bool: more was asked than 64 targets, or than 8 addresses of one",
    },
}

TIMEOUT_S, SHORTEST_S, LONGEST_S = 2.0, 0.1, 10.0
LISTS = ("management", "fabric")
MAX_TARGETS, MAX_ADDRESSES, MAX_SOCKETS = 64, 8, 512
MAX_RESOLVERS, MAX_PER_NAME = 8, 2
TURN_S = 0.02  # how often to look for names that have been resolved meanwhile

UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
NOBODY = ("0.0.0.0", "::")
WAITING = (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK)
BEST_FIRST = ("open", "refused", "unreachable", "timeout", "local", "resolve")  # of a name with several addresses


# ---------------------------------------------------------------- pure


def clean(text, limit=256):
    return "".join(c if c.isprintable() else " " for c in text[:limit])


def split_address(text):
    """(host, port) of "host:port" or "[IPv6]:port"; None where it is neither (a bare IPv6 address tells no port)."""
    if not isinstance(text, str) or len(text) > 300 or not text.isprintable() or " " in text:
        return None
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    if not host or not port or len(port) > 5 or any(c not in "0123456789" for c in port):
        return None
    return (host, int(port)) if 0 < int(port) < 65536 else None


def verdict(code, at_once):
    """What an error of connect says: about the other node, or (local) about this one only.

    at_once   the kernel answered from its own tables: it has no route, or its port is down, and asked nobody
    """
    if code == 0:
        return "open"
    if code in (errno.ECONNREFUSED, errno.ECONNRESET):
        return "refused"
    if code == errno.ETIMEDOUT:
        return "timeout"
    return "unreachable" if code in UNREACHABLE and not at_once else "local"


def asked_targets(args):
    """([(node, {list: [address]})], whether that is all) of the request, without what is none."""
    found, whole = [], True
    given = args.get("targets")
    for item in given if isinstance(given, (list, tuple)) else ():
        if not isinstance(item, dict) or not isinstance(item.get("node"), str):
            continue
        if len(found) == MAX_TARGETS:
            return found, False
        lists = {}
        for name in LISTS:
            addresses = item.get(name) if isinstance(item.get(name), (list, tuple)) else ()
            addresses = [one for one in addresses if isinstance(one, str)]
            whole = whole and len(addresses) <= MAX_ADDRESSES
            lists[name] = addresses[:MAX_ADDRESSES]
        found.append((item["node"], lists))
    return found, whole


# ---------------------------------------------------------------- one address


class Attempt(object):
    """One address of one node, and the connections that are made to it (a name may stand for several)."""

    def __init__(self, text, hear):
        self.text, self.hear = text, hear
        self.place = split_address(text)
        self.result, self.code, self.took_s, self.banner = None, None, None, False
        if self.place is None:
            self.result = "bad_address"

    def settle(self, result, code, took_s):
        """Keep the best of what the connections to this address say."""
        if self.result is None or BEST_FIRST.index(result) < BEST_FIRST.index(self.result):
            self.result, self.code, self.took_s = result, code or None, round(took_s, 4)

    def row(self):
        row = {"address": clean(self.text), "result": self.result, "errno": self.code, "took_s": self.took_s}
        if self.hear and self.result == "open":
            row["banner"] = self.banner
        return row


class Line(object):
    """One connection under way."""

    def __init__(self, attempt, sock, began):
        self.attempt, self.sock, self.began, self.connected = attempt, sock, began, False


def numeric(host, port):
    """[(family, address)] of a host told in numbers, [] of a name. Asks nobody."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return []
    return [(entry[0], entry[4]) for entry in found]


class Names(object):
    """Resolves names beside the main loop: a directory service may be what is broken, and then it never answers."""

    def __init__(self, names):
        self.todo, self.done, self.took_s = list(names), {}, {}
        self.began = time.monotonic()
        threading.stack_size(262144)
        for _ in range(min(MAX_RESOLVERS, len(self.todo))):
            threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        while True:
            try:
                host, port = self.todo.pop(0)
            except IndexError:
                return
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError):
                found = []
            self.took_s[(host, port)] = time.monotonic() - self.began
            self.done[(host, port)] = [(entry[0], entry[4]) for entry in found][:MAX_PER_NAME]


# ---------------------------------------------------------------- all at once


class Asking(object):
    """All connections, in one poll loop."""

    def __init__(self, attempts, limit):
        self.until, self.limit, self.lines, self.poll = time.monotonic() + limit, limit, {}, select.poll()
        self.waiting = {}  # (host, port) -> attempts that wait for its addresses
        for attempt in attempts:
            if attempt.place is None:
                continue
            places = numeric(*attempt.place)
            if not places:
                self.waiting.setdefault(attempt.place, []).append(attempt)
            for family, place in places[:1]:
                self.begin(attempt, family, place)
        self.names = Names(self.waiting)

    def begin(self, attempt, family, place):
        began = time.monotonic()
        # The address of nobody would reach this very machine.
        code = errno.EADDRNOTAVAIL if place[0] in NOBODY else errno.EMFILE if len(self.lines) >= MAX_SOCKETS else 0
        if code:
            attempt.settle("local", code, 0.0)
            return
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as exc:
            attempt.settle("local", exc.errno, 0.0)
            return
        try:
            sock.setblocking(False)
            code = sock.connect_ex(place)
        except OSError as exc:
            code = exc.errno or errno.EINVAL
        if code in WAITING:
            self.lines[sock.fileno()] = Line(attempt, sock, began)
            self.poll.register(sock, select.POLLOUT)
            return
        if code == 0 and self.answered(Line(attempt, sock, began), True):
            return
        if code:
            attempt.settle(verdict(code, True), code, time.monotonic() - began)
        sock.close()

    def answered(self, line, register=False):
        """It is connected. True if a banner is waited for now."""
        try:
            ourselves = line.sock.getsockname() == line.sock.getpeername()
        except OSError:
            ourselves = False
        # On this very machine a connection to a free port may meet itself: nobody listens there.
        code = errno.ECONNREFUSED if ourselves else 0
        line.attempt.settle(verdict(code, False), code, time.monotonic() - line.began)
        line.connected = True
        if ourselves or not line.attempt.hear:
            return False
        if register:
            self.lines[line.sock.fileno()] = line
            self.poll.register(line.sock, select.POLLIN)
        else:
            self.poll.modify(line.sock, select.POLLIN)
        return True

    def event(self, line):
        if not line.connected:
            code = line.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                line.attempt.settle(verdict(code, False), code, time.monotonic() - line.began)
            elif self.answered(line):
                return
        else:
            try:
                line.attempt.banner = bool(line.sock.recv(256)) or line.attempt.banner
            except OSError:
                pass
        self.end(line)

    def end(self, line):
        self.poll.unregister(line.sock)
        del self.lines[line.sock.fileno()]
        line.sock.close()

    def run(self):
        while True:
            for place in [place for place in self.waiting if place in self.names.done]:
                for attempt in self.waiting.pop(place):
                    for family, address in self.names.done[place]:
                        self.begin(attempt, family, address)
                    if not self.names.done[place]:
                        attempt.settle("resolve", None, self.names.took_s[place])
            left = self.until - time.monotonic()
            if left <= 0 or not (self.lines or self.waiting):
                break
            for fd, _ in self.poll.poll((min(left, TURN_S) if self.waiting else left) * 1000):
                self.event(self.lines[fd])
        # On a busy machine we may come late to what has long been answered.
        for fd, _ in self.poll.poll(0):
            self.event(self.lines[fd])
        for attempts in self.waiting.values():
            for attempt in attempts:
                attempt.settle("resolve", None, self.limit)
        for line in list(self.lines.values()):
            if not line.connected:
                # Whose name came late was not waited for long enough to say that nothing comes.
                tried = self.until - line.began >= self.limit / 2
                line.attempt.settle("timeout" if tried else "resolve", None, time.monotonic() - line.began)
            self.end(line)


def collect(ctx):
    targets, whole = asked_targets(ctx.args)
    if not targets:
        raise ctx.Absent('no node was named; --args \'{"targets": [{"node": "n2", "management": ["10.0.0.2:22"]}]}\'')
    told = ctx.args.get("timeout_s")
    limit = min(LONGEST_S, max(SHORTEST_S, told if isinstance(told, (int, float)) else TIMEOUT_S))
    rows, attempts = [], []
    for node, lists in targets:
        row = {"node": node}
        for name in LISTS:
            row[name] = [Attempt(text, name == "management") for text in lists[name]]
            attempts += row[name]
        rows.append(row)
    Asking(attempts, min(limit, max(SHORTEST_S, ctx.left() - 0.3))).run()
    for row in rows:
        row["node"] = clean(row["node"])
        for name in LISTS:
            row[name] = [attempt.row() for attempt in row[name]]
    return {"targets": rows, "truncated": not whole}


if __name__ == "__main__":
    import _probe

    _probe.main(PROBE, collect)
