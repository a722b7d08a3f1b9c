"""Members and signatures of a flight record as short text: what 8,192 ranks have in common costs a few bytes.

Input    `pg_config.ranks` "[0, 1, 2]"; entries as the recorder writes them (see flight_recorder.py for a sample).
Output   "0+3" (runs of ranks); "all_reduce|8x4|8x4|Float|Float" (what ranks must pass alike), parts of one launch joined by "+".
Fooled by   a backend's own spelling of an op; sizes of an all_to_all, which may differ from rank to rank (left out).
(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import operator
import re
import zlib

if __package__:  # read as a part of triage: the operator's side reads files by the same code
    from ._unpickle import clean, whole
else:  # beside a probe, or in the payload
    from _unpickle import clean, whole

NAME = re.compile(r"^(?:[a-z0-9_]+:)?(\S+?)(?: (\d{1,7})(->|<-)(\d{1,7}))?$")


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


def closes(name):
    """Is this the entry that closes a batch: `coalesced`, `ALLGATHER_coalesced`? (`allreduce_coalesced` is one call.)"""
    return (
        isinstance(name, str)
        and name.endswith("coalesced")
        and (name.endswith(":coalesced") or name[-11:-10].isupper())
    )


def is_p2p(name):
    return isinstance(name, str) and ("->" in name or "<-" in name)


def uneven(op):
    """Ops whose sizes may differ from rank to rank: they stay out of the signature."""
    return "all_to_all" in op or "alltoall" in op


signed = operator.itemgetter("profiling_name", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes")
_INTS = {int}
_SEEN = {}  # what entries of one plain tensor have been told as: nearly all of a job's are of a few kinds


def plain_key(e):
    """(operation, input shape, output shape, their dtypes) of an entry with one plain tensor each; None for any other.

    The types are asked first: to hash or to compare what a hostile pickle shares with itself would never end.
    """
    try:
        name, (sin,), (sout,), (din,), (dout,) = signed(e)
        if type(name) is type(din) is type(dout) is str and type(sin) is type(sout) is list:
            if len(sin) + len(sout) < 16 and set(map(type, sin + sout)) <= _INTS:
                return name, sin, sout, din, dout
    except (KeyError, TypeError, ValueError):
        pass
    return None


def entry_signature(e):
    key = plain_key(e)
    if key is not None:
        key = (key[0], tuple(key[1]), tuple(key[2]), key[3], key[4])
        if key in _SEEN:
            return _SEEN[key]
    din, dout = e.get("input_dtypes"), e.get("output_dtypes")
    op = op_name(e.get("profiling_name"))
    if uneven(op):
        text = "%s|||%s|%s" % (op, dtypes_text(din), dtypes_text(dout))
    else:
        sizes = shapes_text(e.get("input_sizes")), shapes_text(e.get("output_sizes"))
        text = "%s|%s|%s|%s|%s" % ((op,) + sizes + (dtypes_text(din), dtypes_text(dout)))
    if key is not None and len(_SEEN) < 1024 and all(len(key[i]) < 96 for i in (0, 3, 4)):
        _SEEN[key] = text
    return text


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
