"""Reading a flight record safely and reducing it to at most 4 KB: shared by the probe and by the operator's side.

Input    a dump of PyTorch's flight recorder, pickle or JSON, format 2.3 to 2.10 (see flight_recorder.py for a sample).
Output   the record that reduce_dump() describes.
Trust    a dump is hostile: only an unpickler that refuses every global reads it, after a check of its opcodes; sizes,
         counts and strings are bounded.
(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import functools
import gc
import io
import json
import pickle
import re
import zlib

MAX_FILE = 64 << 20  # bytes; 20,000 entries with stacks are about 20 MB
MAX_RECORD = 4096  # bytes of a reduced dump as JSON
MAX_ENTRIES = 200000
MAX_CONTAINERS = 3000000  # lists and dicts in one pickle; 20,000 entries hold about 250,000
WINDOW = 64  # units of a group, and of the order trail, that are kept
MAX_OPEN = 8  # open units told in full
MAX_GROUPS = 48
MAX_PAIRS = 48


# ---------------------------------------------------------------- reading a dump safely


class BadDump(ValueError):
    """The bytes are no dump that we read. The message says why."""


def _without_gc(function):
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


class _Refusing(pickle.Unpickler):
    """Builds plain values only: a dump of PyTorch names no class (notes/flight-recorder.md 0)."""

    def find_class(self, module, name):
        raise BadDump("refused: the pickle names %s.%s, and a dump names no classes" % (module[:40], name[:40]))

    def persistent_load(self, pid):
        raise BadDump("refused: the pickle holds a persistent id")


# Opcodes that build plain values, in runs; strings are stepped over by hand. Anything else is refused before the
# unpickler sees it: also LONG_BINPUT with a huge index, which makes the C unpickler allocate gigabytes.
# The count is bounded because the regular expression engine remembers each turn.
_PLAIN = re.compile(
    rb"(?:[hqK].|[(\]})Neuastld\x85-\x89\x94]+|M..|[Jj]....|r..[\x00-\x0f]\x00|G.{8}|\x95.{8}"
    rb"|\x80[\x02-\x05]|\x8a(?:\x08.{8}|\x00|\x01.|\x02..|\x03...|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7})){1,4096}",
    re.S,
)


def check_pickle(raw):
    """Raises BadDump unless these bytes are a complete pickle of plain values (5 ms for 2,000 entries)."""
    if raw.count(b"]") + raw.count(b"}") > MAX_CONTAINERS:
        raise BadDump("refused: more than %d lists in one pickle" % MAX_CONTAINERS)
    at, end = 0, len(raw)
    while at < end:
        run = _PLAIN.match(raw, at)
        if run:
            at = run.end()
            continue
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


@_without_gc
def load_dump(raw):
    """(object, "pickle" | "json") of the bytes of a dump; BadDump says what is wrong. Never runs what it reads."""
    if not raw:
        raise BadDump("the file is empty")
    if len(raw) > MAX_FILE:
        raise BadDump("larger than %d MiB" % (MAX_FILE >> 20))
    try:
        if raw[:1] == b"\x80":
            check_pickle(raw)
            # A buffered reader hands out memory views: 3 ms instead of 12 (notes/flight-recorder.md 2.2).
            return _Refusing(io.BufferedReader(io.BytesIO(raw), 1 << 20)).load(), "pickle"
        head = raw.lstrip()[:1]
        if head in (b"{", b"["):
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
    """Bounded text without control characters: a dump is untrusted input."""
    text = text if isinstance(text, str) else repr(text)[: limit * 4]
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


# ---------------------------------------------------------------- groups and their members


def fold(ranks):
    """Sorted ranks as text of runs: [0, 1, 2] "0+3", [3, 7, 11] "3+3*4", [5] "5". 8,192 ranks are 6 bytes."""
    out, i, n = [], 0, len(ranks)
    while i < n:
        if i + 1 == n:
            out.append("%d" % ranks[i])
            break
        step, j = ranks[i + 1] - ranks[i], i + 1
        while j + 1 < n and ranks[j + 1] - ranks[j] == step:
            j += 1
        if j == i + 1 and j + 1 < n:  # two do not make a run while others follow
            out.append("%d" % ranks[i])
            i += 1
            continue
        out.append("%d+%d%s" % (ranks[i], j - i + 1, "" if step == 1 else "*%d" % step))
        i = j + 1
    return ",".join(out)


def holds(folded, rank):
    """Is this rank among the folded members?"""
    for part in filter(None, folded.split(",")):
        start, _, rest = part.partition("+")
        count, _, step = rest.partition("*")
        away = rank - int(start)
        if away >= 0 and away % int(step or 1) == 0 and away // int(step or 1) < int(count or 1):
            return True
    return False


def parse_members(value, cache):
    """Sorted global ranks of `pg_config.ranks`, which is text "[0, 1, 2]" (or, from others, a list); () if unusable."""
    if isinstance(value, str):
        known = cache.get(value)
        if known is not None:
            return known
        if len(value) > 1 << 20:
            return ()
        found = [int(n) for n in re.findall(r"\d{1,7}", value)]
    elif isinstance(value, (list, tuple)):
        found = [n for n in (whole(v) for v in value[:200000]) if n is not None and 0 <= n < 10000000]
    else:
        return ()
    members = tuple(sorted(set(found)))
    if isinstance(value, str):
        cache[value] = members
    return members


class _Group(object):
    """What one rank's entries say of one process group, while they are read."""

    __slots__ = (
        "desc",
        "done",
        "first_seq",
        "members",
        "name",
        "p2p",
        "pg_id",
        "seqs",
        "starts_whole",
        "unsure",
        "upto",
    )

    def __init__(self, name, desc, members):
        self.name, self.desc, self.members = name, desc, members
        self.seqs, self.done, self.upto = [], [], []  # one per collective unit: number, finished?, (first, last) entry
        self.p2p, self.pg_id, self.unsure = False, None, None
        self.first_seq, self.starts_whole = None, False


class _Pair(object):
    """Sends (or receives) between two ranks in one group, counted so that both sides' counts can be compared."""

    __slots__ = ("done", "enq", "epoch", "index", "open")

    def __init__(self):
        self.epoch, self.index = None, 0
        self.enq, self.done, self.open = None, None, None


NAME = re.compile(r"^(?:[a-z0-9_]+:)?(\S+?)(?: (\d{1,7})(->|<-)(\d{1,7}))?$")
DONE_STATE = "completed"


@_without_gc
def reduce_dump(obj, rank, kind="pickle", cache=None):
    """One rank's dump as a record of at most 4 KB; BadDump if it is none that we can use.

    {"v": 1, "rank", "format": "2.9", "lib": "2.27.3", "kind": "pickle" | "json", "n": entries,
     "ids": [first, last record id], "newest_s": epoch s of the newest entry, "opens": number of open units,
     "active_only": bool (no finished entries: no history), "wrapped": bool (the ring has dropped the oldest),
     "open": the <= 8 oldest open units; the first is where the rank waits:
             {"g": group index, "seq": collective number | None, "id": record id, "at": created, epoch s, "ms": time-out,
              "sig": index into sigs, "sizes": "in>out" of an all_to_all,
              "p2p": [["s" | "r", from, to (global ranks, None if not mapped), ordinal]]},
     "groups": [{"name", "desc", "ranks": folded members ("" = not told), "enq": newest number enqueued,
                 "first_open": smallest open number, "last_done": newest finished, "first": oldest kept number,
                 "unsure": a number that is over but perhaps failed, "p2p": true where it has sends,
                 "status": [enqueued, completed] of pg_status,
                 "win": "39353:0*6,1*6;..." the last units: start number, then signature * count}],
     "sigs": ["all_reduce|8x4|8x4|Float|Float", ...] (the parts of a coalesced unit are joined by "+"),
     "trail": "1:39353*6,2:17,..." the last 64 collective units in the order of enqueueing: group:number*count,
     "pairs": [[group, "s" | "r", from, to, enqueued, done, open]], each an ordinal or None,
     "cut": what was left out to stay within 4 KB, "warn": [oddities]}
    An ordinal is [last collective of the group, how many-th since then | None if not known, p2p number].
    A unit is one launch: all entries of one coalesced group. Done = retired, or completed, or noticed as completed.
    """
    if isinstance(obj, list):
        raise BadDump("a plain list of entries (PyTorch of 2023): this format is not supported")
    if not isinstance(obj, dict) or not ("entries" in obj or "pg_config" in obj or "pg_status" in obj):
        raise BadDump("not a flight record")
    version, warn = _version(obj.get("version"))
    entries = obj.get("entries")
    entries = entries if isinstance(entries, list) else []
    if len(entries) > MAX_ENTRIES:
        warn.append("only the newest %d of %d entries were read" % (MAX_ENTRIES, len(entries)))
        entries = entries[-MAX_ENTRIES:]
    read = _Reading(obj, rank, entries, {} if cache is None else cache, warn)
    read.walk()
    return _fit(read, version, kind)


def _version(value):
    text = clean(value, 16) if isinstance(value, (str, int, float)) else ""
    match = re.match(r"(\d{1,4})\.(\d{1,4})$", text)
    if not match:
        return text, ["no format version"] if not text else ["format version %s is not understood" % text]
    major, minor = int(match.group(1)), int(match.group(2))  # 2.10 > 2.9: never as a float
    if major != 2:
        raise BadDump("format version %s is not supported (2.3 to 2.10 are)" % text)
    return text, ["format %s is newer than 2.10" % text] if minor > 10 else []


class _Reading(object):
    """The pass over one dump."""

    def __init__(self, obj, rank, entries, cache, warn):
        self.obj, self.rank, self.entries, self.warn = obj, rank, entries, warn
        self.groups, self.index, self.pairs = [], {}, {}
        self.open = []  # [first entry, last entry, group, number or None, p2p parts or None]
        self.trail = []  # (group, number) of collective units
        self.first_id = self.last_id = None
        self.newest_ns = 0
        self.any_done = self.any_state = False
        self.config = self._config(cache)
        self.status, self.bridge = self._status()

    def _config(self, cache):
        """name -> (desc, members)."""
        told = self.obj.get("pg_config")
        config = {}
        for key, value in list(told.items())[:4096] if isinstance(told, dict) else ():
            if isinstance(value, dict):
                name = value.get("name", key)
                name = name if isinstance(name, str) else str(key)
                config[clean(name)] = (clean(value.get("desc") or ""), parse_members(value.get("ranks"), cache))
        # gloo writes one config entry without a name, for what its entries call ("0", "default_pg"); it forgets the ranks
        # once there are more groups (notes/flight-recorder.md 3.1).
        if "" in config and not config[""][0]:
            config["default_pg"] = ("default_pg", config.pop("")[1])
        return config

    def _status(self):
        """({local id: (enqueued, completed)}, {local id: name} where creation order gives the bridge)."""
        told = self.obj.get("pg_status")
        status = {}
        for key, value in list(told.items())[:4096] if isinstance(told, dict) else ():
            number = whole(key)
            if number is not None and isinstance(value, dict):
                enq = whole(value.get("last_enqueued_collective"))
                done = whole(value.get("last_completed_collective"))
                if enq is not None and done is not None:
                    status[number] = (enq, done)
        # Local ids and numeric names both count up as groups are made: if every name is a number and there are as many
        # of one as of the other, sorted order pairs them (it held for all 64 real dumps; entries may still contradict it).
        bridge = {}
        if status and len(status) == len(self.config) and all(n.isdigit() for n in self.config):
            bridge = dict(zip(sorted(status), sorted(self.config, key=int)))
        return status, bridge

    def group(self, told, pg_id):
        """Index of the group that `process_group` names, making it at first sight."""
        if isinstance(told, (list, tuple)) and told and isinstance(told[0], str):
            name, desc = clean(told[0]), clean(told[1]) if len(told) > 1 and isinstance(told[1], str) else ""
        elif isinstance(told, str):
            name, desc = clean(told), ""
        else:
            name, desc = "pg_id %s" % clean(str(pg_id), 12), ""
        known = self.config.get(name)
        if known is None and desc == "default_pg":
            known = self.config.get("default_pg")
        for i, have in enumerate(self.groups):
            if have.name == name and have.desc == desc:
                return i
        self.groups.append(_Group(name, desc or (known[0] if known else ""), known[1] if known else ()))
        return len(self.groups) - 1

    def walk(self):
        groups, index, opens, trail = self.groups, self.index, self.open, self.trail
        bad = 0
        newest = 0
        last_done_group = None
        for at, e in enumerate(self.entries):
            if type(e) is not dict:
                bad += 1
                continue
            get = e.get
            told = get("process_group")
            try:
                g = index[told]
            except (KeyError, TypeError):
                g = self.group(told, get("pg_id"))
                if len(groups) > 4096:
                    raise BadDump("more than 4096 process groups")
                if type(told) is tuple:
                    try:
                        index[told] = g
                    except TypeError:
                        pass
            group = groups[g]
            completed = get("state") == DONE_STATE or bool(get("time_discovered_completed_ns"))
            done = completed or get("retired") is True
            seq = get("collective_seq_id")
            if type(seq) is not int:
                seq = whole(seq if seq is not None else get("seq_id"))
            made = get("time_created_ns")
            if type(made) is int and made > newest:
                newest = made
            if group.first_seq is None:
                group.first_seq, group.pg_id = seq, whole(get("pg_id"))
                group.starts_whole = not get("is_p2p")
            if done:
                self.any_done = True
                if completed:
                    self.any_state = True
            if get("is_p2p") is True or (get("is_p2p") is None and _is_p2p(get("profiling_name"))):
                group.p2p = True
                self._p2p(g, group, at, e, seq, done)
                continue
            if seq is None:
                bad += 1
                continue
            seqs = group.seqs
            if seqs and seqs[-1] == seq:  # a further part of one coalesced launch
                group.upto[-1] = (group.upto[-1][0], at)
                if not done:
                    if group.done[-1]:
                        opens.append([group.upto[-1][0], at, g, seq, None])
                if opens and opens[-1][2] == g and opens[-1][3] == seq:
                    opens[-1][1] = at
                group.done[-1] = group.done[-1] and done
            else:
                seqs.append(seq)
                group.done.append(done)
                group.upto.append((at, at))
                trail.append((g, seq))
                if not done:
                    opens.append([at, at, g, seq, None])
                elif not completed:
                    last_done_group = (g, seq, at)
        self.newest_ns = newest
        if bad:
            self.warn.append("%d entries are not understood" % bad)
        if self.entries:
            first, last = self.entries[0], self.entries[-1]
            self.first_id = whole(first.get("record_id")) if type(first) is dict else None
            self.last_id = whole(last.get("record_id")) if type(last) is dict else None
        self._doubt(last_done_group)

    def _doubt(self, last):
        """Mark what is over but perhaps failed.

        NCCL: retired and not completed is failed or timed out, if this recorder tells completions at all. gloo and the newer
        hook recorder only ever retire: there the last thing the rank did may have failed (notes/flight-recorder.md 1.2, 5).
        """
        if self.any_state:
            for group in self.groups:
                for i in range(len(group.seqs) - 1, max(-1, len(group.seqs) - 1 - WINDOW), -1):
                    if group.done[i]:
                        e = self.entries[group.upto[i][1]]
                        if not (e.get("state") == DONE_STATE or e.get("time_discovered_completed_ns")):
                            group.unsure = group.seqs[i]
        elif last is not None and last[2] == len(self.entries) - 1:
            self.groups[last[0]].unsure = last[1]

    def _p2p(self, g, group, at, e, seq, done):
        name = e.get("profiling_name")
        match = NAME.match(name) if isinstance(name, str) and len(name) < 128 else None
        number = whole(e.get("p2p_seq_id"))
        epoch = seq if seq is not None else 0
        part = None
        if match and match.group(2):
            a, b = self._global(group, int(match.group(2))), self._global(group, int(match.group(4)))
            side, src, dst = ("s", a, b) if match.group(3) == "->" else ("r", b, a)
            pair = self.pairs.get((g, side, src, dst))
            if pair is None:
                pair = self.pairs[(g, side, src, dst)] = _Pair()
            if pair.epoch != epoch:
                pair.epoch, pair.index = epoch, 0
            where = [epoch, pair.index, number]
            pair.index += 1
            pair.enq = where
            if done:
                pair.done = where
            elif pair.open is None:
                pair.open = where
            part = [side, src, dst, where]
        if not done:
            last = self.open[-1] if self.open else None
            # Parts of one batched exchange share the p2p number: one unit.
            if last and last[4] is not None and last[2] == g and number is not None and last[5] == number:
                last[1] = at
                if part:
                    last[4].append(part)
            else:
                self.open.append([at, at, g, None, [part] if part else [], number])

    def _global(self, group, local):
        return group.members[local] if local < len(group.members) else None


def _is_p2p(name):
    return isinstance(name, str) and ("->" in name or "<-" in name)


# ---------------------------------------------------------------- signatures


def shapes_text(value):
    """[[8, 4], [2]] -> "8x4,2"; a scalar is "()"; many or long ones are "#count:numbers:crc"."""
    if not isinstance(value, (list, tuple)):
        return ""
    if len(value) == 1 and type(value[0]) is list and 0 < len(value[0]) <= 4:
        text = "x".join([str(d) for d in value[0] if type(d) is int and -1 < d < 1 << 40])
        if text.count("x") == len(value[0]) - 1:
            return text  # one plain tensor: nearly always
    if value and all(type(v) is int for v in value):
        value = [value]  # a bare shape
    parts, total = [], 0
    for shape in value[:4096]:
        if not isinstance(shape, (list, tuple)):
            continue
        dims = [d for d in (whole(v) for v in shape[:16]) if d is not None]
        numel = 1
        for d in dims:
            numel *= d
        total += numel
        parts.append("x".join("%d" % d for d in dims) if dims else "()")
    if len(parts) <= 4:
        text = ",".join(parts)
        if len(text) <= 60:
            return text
    return "#%d:%d:%08x" % (len(parts), total, zlib.crc32(",".join(parts).encode("ascii")) & 0xFFFFFFFF)


def dtypes_text(value):
    if type(value) is list and len(value) == 1 and type(value[0]) is str and value[0].isalnum():
        return value[0][:24]
    if isinstance(value, str):
        return clean(value, 24)
    if not isinstance(value, (list, tuple)):
        return ""
    names = [clean(v, 24) if isinstance(v, str) else "" for v in value[:4096]]
    if len(set(names)) == 1:
        return names[0]
    text = ",".join(names)
    return text if len(text) <= 48 else "#%08x" % (zlib.crc32(text.encode("utf-8", "replace")) & 0xFFFFFFFF)


def op_name(name):
    """`nccl:_all_gather_base` -> `_all_gather_base`; the backend is not part of what must agree."""
    name = clean(name, 96) if isinstance(name, str) else "?"
    match = NAME.match(name)
    return (match.group(1) if match else name)[:48].replace("|", "/").replace("+", "/")


def uneven(op):
    """Ops whose sizes may differ from rank to rank: they stay out of the signature."""
    return "all_to_all" in op or "alltoall" in op


def entry_signature(e):
    op = op_name(e.get("profiling_name"))
    if uneven(op):
        return "%s|||%s|%s" % (op, dtypes_text(e.get("input_dtypes")), dtypes_text(e.get("output_dtypes")))
    return "%s|%s|%s|%s|%s" % (
        op, shapes_text(e.get("input_sizes")), shapes_text(e.get("output_sizes")),
        dtypes_text(e.get("input_dtypes")), dtypes_text(e.get("output_dtypes")))  # fmt: skip


def unit_signature(entries, first, last, g, of_group):
    """The signature of all entries of one unit, which may stand between entries of other groups."""
    if first == last:
        return entry_signature(entries[first])
    parts = []
    for e in entries[first : min(last + 1, first + 512)]:
        if type(e) is dict and of_group(e) == g:
            parts.append(entry_signature(e))
    text = "+".join(parts)
    return (
        text
        if len(text) <= 400
        else "%s+#%d:%08x" % (parts[-1], len(parts), zlib.crc32(text.encode("utf-8")) & 0xFFFFFFFF)
    )


# ---------------------------------------------------------------- the record


def _fit(read, version, kind):
    """The record, with less history and then fewer details until it fits in 4 KB."""
    cut = None
    for window, opens, idle, pairs in (
        (WINDOW, MAX_OPEN, MAX_GROUPS, MAX_PAIRS),
        (32, MAX_OPEN, 24, 24),
        (16, 4, 12, 16),
        (8, 2, 0, 8),
        (2, 1, 0, 2),
    ):
        record = _record(read, version, kind, window, opens, idle, pairs)
        if cut:
            record["cut"] = cut
        if len(json.dumps(record)) <= MAX_RECORD:
            return record
        cut = "history of %d units a group" % window if window > 2 else None
    record["groups"] = [dict(row, win="") for row in record["groups"][:8]]
    record["warn"] = ["most of this dump was left out: it did not fit in %d bytes" % MAX_RECORD]
    record["trail"], record["pairs"], record["cut"] = "", [], "nearly everything"
    if len(json.dumps(record)) > MAX_RECORD:
        raise BadDump("even its outline does not fit in %d bytes" % MAX_RECORD)
    return record


def _record(read, version, kind, window, max_open, max_idle, max_pairs):
    entries = read.entries
    sigs, table = [], {}

    def of_group(e):
        told = e.get("process_group")
        try:
            return read.index[told]
        except (KeyError, TypeError):
            return read.group(told, e.get("pg_id"))

    def sig(first, last, g):
        text = unit_signature(entries, first, last, g, of_group)
        n = table.get(text)
        if n is None:
            n = table[text] = len(sigs)
            sigs.append(text)
        return n

    active_only = not read.any_done and bool(
        (read.first_id or 0) > 0 if entries else any(enq > 0 for enq, _ in read.status.values())
    )
    wrapped = bool(read.first_id) or active_only
    rows = []
    for g, group in enumerate(read.groups):
        rows.append(_row(read, g, group, window, sig))
    known = {group.name for group in read.groups}
    for pg_id, name in sorted(read.bridge.items()):
        if len(rows) >= len(read.groups) + max_idle:
            break
        members = read.config[name][1]
        if name not in known and len(members) > 1 and read.status[pg_id][0] > 0:
            rows.append({"name": name, "ranks": fold(members), "status": list(read.status[pg_id])})
    units = sorted(read.open, key=lambda unit: unit[0])
    record = {
        "v": 1, "rank": read.rank, "format": version, "lib": clean(
            read.obj.get("comm_lib_version") or read.obj.get("nccl_version") or "", 24), "kind": kind,
        "n": len(entries), "ids": [read.first_id, read.last_id], "newest_s": round(read.newest_ns / 1e9, 3) or None,
        "active_only": active_only, "wrapped": wrapped, "opens": len(units),
        "open": [_open_unit(read, unit, sig, wrapped) for unit in units[:max_open]],
        "groups": rows, "sigs": sigs, "trail": _runs(read.trail[-window:]),
        "pairs": _pairs(read, wrapped, max_pairs), "warn": [clean(w, 120) for w in read.warn[:6]],
    }  # fmt: skip
    return record


def _row(read, g, group, window, sig):
    row = {"name": group.name, "desc": group.desc, "ranks": fold(group.members)}
    seqs, done = group.seqs, group.done
    if seqs:
        open_seqs = [s for s, over in zip(seqs, done) if not over]
        over = [s for s, over in zip(seqs, done) if over]
        row["enq"], row["first"] = max(seqs), seqs[0]
        if open_seqs:
            row["first_open"] = min(open_seqs)
        if over:
            row["last_done"] = max(over)
        start = max(0, len(seqs) - window)
        # The first open unit must keep its signature even when much was enqueued after it.
        if open_seqs and open_seqs[0] < seqs[start]:
            at = seqs.index(open_seqs[0])
            row["win"] = "%s;" % _window(seqs[at : at + 1], [sig(group.upto[at][0], group.upto[at][1], g)])
        row["win"] = row.get("win", "") + _window(
            seqs[start:], [sig(group.upto[i][0], group.upto[i][1], g) for i in range(start, len(seqs))]
        )
    if group.unsure is not None:
        row["unsure"] = group.unsure
    if group.p2p:
        row["p2p"] = True
    pg_id = group.pg_id
    if pg_id in read.status and read.bridge.get(pg_id, group.name) == group.name:
        row["status"] = list(read.status[pg_id])
    return row


def _window(seqs, sigs):
    """Consecutive numbers with their signatures: "39353:0*6,1*6;39370:2"."""
    out, i = [], 0
    while i < len(seqs):
        j, runs = i, []
        while True:
            k = j
            while k + 1 < len(seqs) and seqs[k + 1] == seqs[k] + 1 and sigs[k + 1] == sigs[k]:
                k += 1
            runs.append("%d*%d" % (sigs[j], k - j + 1) if k > j else "%d" % sigs[j])
            j = k + 1
            if j >= len(seqs) or seqs[j] != seqs[j - 1] + 1:
                break
        out.append("%d:%s" % (seqs[i], ",".join(runs)))
        i = j
    return ";".join(out)


def _runs(trail):
    out, i = [], 0
    while i < len(trail):
        j = i
        while j + 1 < len(trail) and trail[j + 1] == (trail[j][0], trail[j][1] + 1):
            j += 1
        out.append("%d:%d*%d" % (trail[i][0], trail[i][1], j - i + 1) if j > i else "%d:%d" % trail[i])
        i = j + 1
    return ",".join(out)


def _counted(read, g, where, wrapped):
    """An ordinal; its index is None where the ring has lost the start of the epoch from which it counts."""
    if where is None:
        return None
    group, (epoch, index, number) = read.groups[g], where
    lost = wrapped and not (
        group.first_seq is not None and (epoch > group.first_seq or (epoch == group.first_seq and group.starts_whole))
    )
    return [epoch, None if lost else index, number]


def _open_unit(read, unit, sig, wrapped):
    first, last, g, seq, parts = unit[:5]
    e = read.entries[first]
    made = whole(e.get("time_created_ns"))
    out = {
        "g": g, "seq": seq, "id": whole(e.get("record_id")),
        "at": round(made / 1e9, 3) if made else None, "ms": whole(e.get("timeout_ms")),
    }  # fmt: skip
    if parts is None:
        out["sig"] = sig(first, last, g)
        if uneven(op_name(e.get("profiling_name"))):
            out["sizes"] = "%s>%s" % (shapes_text(e.get("input_sizes")), shapes_text(e.get("output_sizes")))
    else:
        out["sig"] = sig(first, first, g)
        out["p2p"] = [[side, src, dst, _counted(read, g, where, wrapped)] for side, src, dst, where in parts[:16]]
        if len(parts) > 16:
            out["more"] = len(parts) - 16
    return out


def _pairs(read, wrapped, limit):
    newest = sorted(read.pairs.items(), key=lambda item: (item[1].open is None, -(item[1].enq or [0])[0]))
    rows = []
    for (g, side, src, dst), pair in newest[:limit]:
        if src is not None and dst is not None:
            rows.append([g, side, src, dst] + [_counted(read, g, w, wrapped) for w in (pair.enq, pair.done, pair.open)])
    return rows
