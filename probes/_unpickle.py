"""Reading the bytes of a flight record without running anything in them: pickle or JSON, hostile or half written.

Input    a dump of PyTorch's flight recorder: b"\x80\x02}q..." (protocol 2, plain values only) or b'{"version": "2.10", ...'.
Output   the object, or BadDump with the reason in one line.
Trust    a dump is hostile: an unpickler reads it that refuses every global; sizes and counts are bounded. Its opcodes are
         checked before, unless the process has a limit of memory (as each probe on a node has).
(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import functools
import gc
import io
import json
import pickle
import pickletools
import re
import resource
import sys

MAX_FILE = 64 << 20  # bytes; 20,000 entries with stacks are about 20 MB
MAX_CONTAINERS = 3000000  # lists and dicts in one pickle; 20,000 entries hold about 250,000
MAX_PLAIN = 24 << 20  # bytes of a pickle that are no strings: 200,000 entries; a number of three bytes becomes 36
MAX_STRINGS = 1000000  # 20,000 entries hold some 200,000; a second of checking
MAX_TUPLES = 8  # levels of tuples in tuples
MAX_ITEMS = 6000000  # commas of a JSON; 20,000 entries hold about 2,000,000
_LONG_NUMBER = re.compile(rb"\d{400}")


class BadDump(ValueError):
    """The bytes are no dump that we read. The message says why."""


def without_gc(function):
    """Run with the cyclic collector off: it would walk the 40,000 new lists of a dump again and again."""

    @functools.wraps(function)
    def run(*args, **kwargs):
        was_on = gc.isenabled()
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            if was_on:
                gc.enable()

    return run


class Refusing(pickle.Unpickler):
    """Builds plain values only: a dump of PyTorch names no class (notes/flight-recorder.md 0)."""

    def find_class(self, module, name):
        raise BadDump("refused: the pickle names %s.%s, and a dump names no classes" % (module[:40], name[:40]))

    def persistent_load(self, pid):
        raise BadDump("refused: the pickle holds a persistent id")


# Opcodes that build plain values, in runs; strings are stepped over by hand. Anything else is refused before the
# unpickler sees it: also LONG_BINPUT with a huge index, which makes the C unpickler allocate gigabytes.
# The count is bounded because the regular expression engine remembers each turn.
_PLAIN = re.compile(
    rb"(?:[hqK].|j..[\x00-\x0f]\x00|r..[\x00-\x0f]\x00|[(\]})Neuastld\x85-\x89\x94]+|\x8a\x08.{8}|M..|J....|G.{8}|\x95.{8}"
    rb"|\x80[\x02-\x05]|\x8a(?:\x00|\x01.|\x02..|\x03...|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7})){1,4096}",
    re.S,
)


def harmless_unread():
    """May bytes go to the unpickler without a look at their opcodes?

    What it could be made to do is to clear gigabytes (a memo index of milliards) or to compute for minutes (a number of a
    million digits, before Python 3.11). The first ends at the limit of memory that each probe has on a node.
    """
    bounded = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    return bounded and sys.version_info >= (3, 11)


_TUPLE_KEPT = re.compile(rb"[\x85-\x87t](?:q(.)|r(.{4})|(\x94))", re.S)  # a tuple, and the memo's place that it gets
_TUPLE_OF_KEPT = re.compile(rb"(?:h(.)|j(.{4}))[\x85-\x87t]", re.S)


def check_tuples(raw):
    """Raises BadDump where tuples hold tuples that hold tuples...: as a key of a map they are hashed, which never ends.

    A dump has tuples of two texts. Only where one may hold another (by two quick searches, which may err on that side) the
    opcodes are followed one by one.
    """
    kept = {match.group(1) or match.group(2) for match in _TUPLE_KEPT.finditer(raw)}
    if None in kept or not kept.isdisjoint(m.group(1) or m.group(2) for m in _TUPLE_OF_KEPT.finditer(raw)):
        _follow(raw)


def _follow(raw):
    stack, marks, memo = [], [], {}  # of each value: how deep are tuples nested in it? (lists and maps have no hash)
    for opcode, arg, _ in pickletools.genops(raw):
        name = opcode.name
        if name == "MARK":
            marks.append(len(stack))
        elif name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
            at = marks.pop() if name == "TUPLE" else len(stack) - int(name[-1])
            depth = 1 + max(stack[at:], default=0)
            if depth > MAX_TUPLES:
                raise BadDump("refused: tuples nested in tuples, and a dump holds none")
            stack[at:] = [depth]
        elif name in ("LIST", "DICT"):
            at = marks.pop()
            stack[at:] = [0]
        elif name in ("SETITEMS", "APPENDS"):
            del stack[marks.pop() :]
        elif name in ("SETITEM", "APPEND"):
            del stack[-2 if name == "SETITEM" else -1 :]
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if arg is None else arg] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[arg])
        elif name not in ("PROTO", "FRAME", "STOP"):
            stack.append(0)


def check_pickle(raw):
    """Raises BadDump unless these bytes are a complete pickle of plain values (5 ms for 2,000 entries)."""
    check_opcodes(raw)
    try:
        check_tuples(raw)
    except (IndexError, KeyError, ValueError) as error:
        raise error if isinstance(error, BadDump) else BadDump("its opcodes make no sense (%s)" % type(error).__name__)


def check_opcodes(raw):
    """Raises BadDump at the first opcode that builds no plain value, and where there are more of them than in any dump."""
    if raw.count(b"]") + raw.count(b"}") > MAX_CONTAINERS:
        raise BadDump("refused: more than %d lists in one pickle" % MAX_CONTAINERS)
    at, end, plain, strings = 0, len(raw), 0, 0
    while at < end:
        run = _PLAIN.match(raw, at)
        if run:
            plain += run.end() - at
            at = run.end()
            if plain > MAX_PLAIN:
                raise BadDump("refused: more values than any dump holds")
            continue
        strings += 1
        if strings > MAX_STRINGS:
            raise BadDump("refused: more strings than any dump holds")
        op = raw[at : at + 1]
        if op == b"X":
            at += 5 + int.from_bytes(raw[at + 1 : at + 5], "little")
        elif op == b"\x8c":
            at += 2 + (raw[at + 1] if at + 1 < end else end)
        elif op == b".":
            return
        elif op in b"cioR\x81\x92\x93bPQ\x82\x83\x84":
            raise BadDump("refused: the pickle wants to build objects (opcode %r), and a dump holds plain values" % op)
        elif end - at < 10:
            break
        else:
            raise BadDump("refused: opcode %r does not occur in a dump" % op)
    raise BadDump("cut off: the pickle has no end")


def check_json(raw):
    """Raises BadDump where reading these bytes would cost far more than any dump: in memory, or in time for one number."""
    if raw.count(b"[") + raw.count(b"{") > MAX_CONTAINERS or raw.count(b",") > MAX_ITEMS:
        raise BadDump("refused: more values than any dump holds")
    if _LONG_NUMBER.search(raw):
        raise BadDump("refused: a number of more than 400 digits")  # older interpreters need minutes for a long one


@without_gc
def load_dump(raw):
    """(object, "pickle" | "json") of the bytes of a dump; BadDump says what is wrong. Never runs what it reads."""
    if not raw:
        raise BadDump("the file is empty")
    if len(raw) > MAX_FILE:
        raise BadDump("larger than %d MiB" % (MAX_FILE >> 20))
    try:
        if raw[:1] == b"\x80":
            if not harmless_unread():
                check_pickle(raw)  # it costs more than the reading
            # A buffered reader hands out memory views: 3 ms instead of 12 (notes/flight-recorder.md 2.2). A buffer of more
            # than 128 KiB would be mapped anew for each dump.
            return Refusing(io.BufferedReader(io.BytesIO(raw), 1 << 16)).load(), "pickle"
        head = raw.lstrip()[:1]
        if head in (b"{", b"["):
            check_json(raw)
            return json.loads(raw.decode("utf-8", "replace")), "json"
    except BadDump:
        raise
    except MemoryError:
        raise BadDump("reading it would take too much memory")
    except Exception as error:  # pickle and json raise nearly anything on hostile or half-written bytes
        raise BadDump("cannot be read (%s: %s)" % (type(error).__name__, clean(str(error), 80)))
    raise BadDump("neither a pickle nor JSON")


def looks_finished(raw_tail):
    """A pickle ends with '.', JSON with '}'; a file that is being written does not (or cannot be parsed)."""
    tail = raw_tail.rstrip()
    return tail[-1:] in (b".", b"}")


def clean(text, limit=64):
    """Bounded text without control characters: a dump is untrusted input, and only a plain value is written out."""
    if not isinstance(text, str):
        plain = text is None or type(text) in (bool, float) or (type(text) is int and -(1 << 64) < text < 1 << 64)
        text = repr(text) if plain else "<%s>" % type(text).__name__
    text = text[:limit]
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def whole(value):
    """An int from an int, a float or a decimal string; else None (format 2.x writes some numbers as strings)."""
    kind = type(value)
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 63 else None
    if kind is str and len(value) <= 20:
        try:
            return int(value)
        except ValueError:
            return None
    if kind is float and value == value and abs(value) < 1e18:
        return int(value)
    return None
