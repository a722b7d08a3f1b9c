"""The record of one rank's dump in at most 4 KB: less history and then fewer details until it fits.

Input    what `_records.py` has read of a dump (its `_Reading`).
Output   the record whose shape is told at `_records.reduce_dump`.
(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import json

if __package__:  # read as a part of triage: the operator's side reads files by the same code
    from ._signed import (
        dtypes_text,
        entry_signature,
        fold,
        op_name,
        plain_key,
        shapes_text,
        signed,
        uneven,
        unit_signature,
    )
    from ._unpickle import BadDump, clean, whole
else:  # beside a probe, or in the payload
    from _signed import (
        dtypes_text,
        entry_signature,
        fold,
        op_name,
        plain_key,
        shapes_text,
        signed,
        uneven,
        unit_signature,
    )
    from _unpickle import BadDump, clean, whole

MAX_RECORD = 4096  # bytes of a reduced dump as JSON
WINDOW = 64  # units of a group, and of the order trail, that are kept
MAX_OPEN = 8  # open units told in full
MAX_GROUPS = 48
MAX_PAIRS = 48
WIDTHS = {  # as PyTorch names what NCCL moves
    "Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Byte": 1, "Char": 1, "Bool": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip
MIN_PACE = 20  # units of which a median of times is told (notes/flight-recorder.md 6, point 8)
PACE = 32  # and of how many at most
MOST_MS = 3600000.0  # a wait or gap of more than an hour is a broken clock


def fit(read, version, kind):
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
    record.pop("moved", None)
    if len(json.dumps(record)) > MAX_RECORD:
        raise BadDump("even its outline does not fit in %d bytes" % MAX_RECORD)
    return record


def _record(read, version, kind, window, max_open, max_idle, max_pairs):
    entries = read.entries
    sigs, table, newest = [], {}, [None, None]

    def of_group(e):
        return read.group(e.get("process_group"), e.get("pg_id"))

    def sig(first, last, g):
        if first != last:
            return told(first, last, g)
        try:
            key = signed(entries[first])
        except KeyError:
            key = None
        if key is None or key != newest[0]:  # most often the operation before: five times cheaper than to tell it anew
            n = told(first, last, g)
            # Compared with plain values only: what a hostile pickle shares with itself would be compared for ever.
            newest[:] = (key if key and plain_key(entries[first]) else None), n
        return newest[1]

    def told(first, last, g):
        text = entry_signature(entries[first]) if first == last else unit_signature(entries, first, last, g, of_group)
        n = table.get(text)
        if n is None:
            n = table[text] = len(sigs)
            sigs.append(text)
        return n

    wrapped = bool(read.first_id) or read.active_only
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
    pairs, moved = _pairs(read, wrapped, max_pairs)
    record = {
        "v": 1, "rank": read.rank, "format": version, "lib": clean(
            read.obj.get("comm_lib_version") or read.obj.get("nccl_version") or "", 24), "kind": kind,
        "n": len(entries), "ids": [read.first_id, read.last_id], "newest_s": round(read.newest_ns / 1e9, 3) or None,
        "active_only": read.active_only, "wrapped": wrapped, "opens": len(units),
        "open": [_open_unit(read, unit, sig, wrapped) for unit in units[:max_open]],
        "groups": rows, "sigs": sigs, "trail": _runs(read.trail[-window:]),
        "pairs": pairs, "warn": [clean(w, 120) for w in read.warn[:6]],
    }  # fmt: skip
    if pairs:
        record["moved"] = moved
    if read.lost:
        record["lost"] = True
    return record


def _row(read, g, group, window, sig):
    row = {"name": group.name, "desc": group.desc, "ranks": fold(group.members)}
    entries, seqs, done = read.entries, group.seqs, group.done
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
        kept = [i for i in range(start, len(seqs)) if seqs[i] not in group.partial]
        row["win"] = row.get("win", "") + _window(
            [seqs[i] for i in kept], [sig(group.upto[i][0], group.upto[i][1], g) for i in kept]
        )
        pace = _pace(entries, group, max(start, len(seqs) - PACE))
        if pace:
            row["pace"] = pace
    if group.unsure is not None:
        row["unsure"] = group.unsure
        if read.any_state:
            row["failed"] = True  # over and not completed, by a recorder that tells completions
    if group.p2p:
        row["p2p"] = True
    if group.batched:
        row["batched"] = True
    pg_id = group.pg_id
    if pg_id in read.status and read.bridge.get(pg_id, group.name) == group.name:
        row["status"] = list(read.status[pg_id])
    return row


def _pace(entries, group, start):
    """[units, gap, wait, length]: means in ms over the last finished units of a group; None where fewer than MIN_PACE tell.

    gap      from the moment that one was noticed to be finished until the next was enqueued: what the rank did in between
    wait     from the enqueueing to the noticing: short on the rank for which the others wait
    length   of the operation itself, where PyTorch measured it (TORCH_NCCL_ENABLE_TIMING)
    All on the rank's own clock (notes/flight-recorder.md 6, point 8). The watchdog notices every 100 ms, and a host that
    runs ahead of its GPU has gaps below zero. Means, because the collectives of a step differ and a step is their sum.
    """
    gaps, waits, lengths = [], [], []
    before = None  # (number, noticed)
    for i in range(start, len(group.seqs)):
        at, last = group.upto[i]
        if at != last or not group.done[i]:
            before = None
            continue
        e = entries[at]
        made, noticed, length = e.get("time_created_ns"), e.get("time_discovered_completed_ns"), e.get("duration_ms")
        if type(length) is float and 0.0 <= length < MOST_MS:
            lengths.append(length)
        if type(made) is not int or type(noticed) is not int or not 0 <= noticed - made < MOST_MS * 1e6:
            before = None
            continue
        waits.append(noticed - made)
        if before is not None and before[0] + 1 == group.seqs[i] and abs(made - before[1]) < MOST_MS * 1e6:
            gaps.append(made - before[1])
        before = group.seqs[i], noticed
    if max(len(waits), len(lengths)) < MIN_PACE:
        return None
    return [max(len(waits), len(lengths)), _mean(gaps, 1e6), _mean(waits, 1e6), _mean(lengths, 1.0)]


def _mean(values, scale):
    return round(sum(values) / len(values) / scale, 2) if len(values) >= MIN_PACE - 1 else None


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
    group, (epoch, index, number) = read.groups[g], where[:3]
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
    """(rows of `pairs`, the bytes of each one's done and open operation as two texts)."""
    newest = sorted(read.pairs.items(), key=lambda item: (item[1].open is None, -(item[1].enq or [0])[0]))
    rows, done, opened = [], [], []
    for (g, side, src, dst), pair in newest[:limit]:
        if src is not None and dst is not None:
            rows.append([g, side, src, dst] + [_counted(read, g, w, wrapped) for w in (pair.enq, pair.done, pair.open)])
            done.append(_bytes(read, pair.done, side))
            opened.append(_bytes(read, pair.open, side))
    return rows, [_repeats(done), _repeats(opened)]


def _bytes(read, where, side):
    """How much a send or receive moves; None where its entry does not tell (both sides must say the same)."""
    if where is None:
        return None
    e = read.entries[where[3]]
    shapes, width = (
        e.get("input_sizes" if side == "s" else "output_sizes"),
        WIDTHS.get(dtypes_text(e.get("input_dtypes" if side == "s" else "output_dtypes"))),
    )
    if width is None or not isinstance(shapes, (list, tuple)) or len(shapes) != 1:
        return None
    shape = shapes[0] if isinstance(shapes[0], (list, tuple)) else shapes
    total = width
    for dim in shape[:16]:
        dim = whole(dim)
        if dim is None or not 0 <= dim < 1 << 40 or total > 1 << 50:
            return None
        total *= dim
    return total if len(shape) <= 16 and total <= 1 << 50 else None


def _repeats(values):
    """[4096, 4096, None] -> "4096*2,-"."""
    out, i = [], 0
    while i < len(values):
        j = i
        while j + 1 < len(values) and values[j + 1] == values[i]:
            j += 1
        word = "-" if values[i] is None else "%d" % values[i]
        out.append("%s*%d" % (word, j - i + 1) if j > i else word)
        i = j + 1
    return ",".join(out)
