"""Reducing a flight record to at most 4 KB: shared by the probe and by the operator's side.

Input    a dump of PyTorch's flight recorder, pickle or JSON, format 2.3 to 2.10 (see flight_recorder.py for a sample).
Output   the record that reduce_dump() describes.
Trust    a dump is hostile: `_unpickle.py` reads it; counts and strings are bounded.
Fooled by   the parts of a batch (batch_isend_irecv, a coalesced collective): PyTorch gives them no events, so that they
         stay "scheduled" and unretired for ever; only the entry that closes the batch tells (pytorch issue 137969).
(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import re

if __package__:  # read as a part of triage: the operator's side reads files by the same code
    from ._groups import Batch, Group, Pair, read_config, read_status
    from ._reduced import MAX_RECORD, WINDOW, fit
    from ._signed import NAME, closes, entry_signature, fold, holds, is_p2p
    from ._unpickle import (
        MAX_CONTAINERS,
        MAX_FILE,
        BadDump,
        Refusing,
        check_pickle,
        clean,
        load_dump,
        looks_finished,
        whole,
        without_gc,
    )
else:  # beside a probe, or in the payload
    from _groups import Batch, Group, Pair, read_config, read_status
    from _reduced import MAX_RECORD, WINDOW, fit
    from _signed import NAME, closes, entry_signature, fold, holds, is_p2p
    from _unpickle import (
        MAX_CONTAINERS,
        MAX_FILE,
        BadDump,
        Refusing,
        check_pickle,
        clean,
        load_dump,
        looks_finished,
        whole,
        without_gc,
    )

MAX_ENTRIES = 200000
TAIL = WINDOW + 8  # entries of a group that are read where everything before them is finished
DONE_STATE = "completed"

__all__ = [
    "MAX_CONTAINERS", "MAX_FILE", "MAX_RECORD", "BadDump", "Refusing", "check_pickle", "clean", "entry_signature", "fold",
    "holds", "load_dump", "looks_finished", "read_dump", "reduce_dump", "whole",
]  # fmt: skip


@without_gc
def read_dump(raw, rank, cache=None):
    """reduce_dump() of the bytes of a dump; BadDump says what is wrong.

    The dump is gone before the cyclic collector is on again: else that walks all of its lists once more, for nothing, which
    is a tenth of the whole cost.
    """
    obj, kind = load_dump(raw)
    return reduce_dump(obj, rank, kind, cache)


@without_gc
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
                 "unsure": a number that is over but perhaps failed, "failed": true if it surely did not complete, "p2p": true where it has sends,
                 "batched": true where these go in batches,
                 "pace": [units, gap, wait, length], medians in ms of its last finished units (see _reduced._pace),
                 "status": [enqueued, completed] of pg_status,
                 "win": "39353:0*6,1*6;..." the last units: start number, then signature * count}],
     "sigs": ["all_reduce|8x4|8x4|Float|Float", ...] (the parts of a coalesced unit are joined by "+"),
     "trail": "1:39353*6,2:17,..." the last 64 collective units in the order of enqueueing: group:number*count,
     "pairs": [[group, "s" | "r", from, to, enqueued, done, open]], each an ordinal or None,
     "moved": ["4096*3,-", "-*4"] bytes of the done and of the open one of each of these pairs, in their order ("-" = not told),
     "cut": what was left out to stay within 4 KB, "warn": [oddities],
     "lost": true where the ring has dropped operations that are still open}
    An ordinal is [last collective of the group, how many-th since then | None if not known, p2p number].
    A unit is one launch: all entries of one coalesced group. Done = retired, or completed, or noticed as completed; of a
    batch, its closing entry tells.
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
    return fit(read, version, kind)


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
        self.batches = []  # (group, _Batch) in the order of enqueueing
        self.active_only = self.lost = False
        self.trail = []  # (group, number) of collective units
        self.first_id = self.last_id = None
        self.newest_ns = 0
        self.any_done = self.any_state = False
        self.config = read_config(obj, cache)
        self.status, self.bridge = read_status(obj, self.config)

    def group(self, told, pg_id):
        """Index of the group that `process_group` names, making it at first sight."""
        plain = isinstance(told, (list, tuple)) and set(map(type, told)) == {
            str
        }  # others are not hashed: see plain_key
        if plain and tuple(told) in self.index:
            return self.index[tuple(told)]
        g = self._group(told, pg_id)
        if plain:
            self.index[tuple(told)] = g
        return g

    def _group(self, told, pg_id):
        if isinstance(told, (list, tuple)) and told and isinstance(told[0], str):
            name, desc = clean(told[0]), clean(told[1]) if len(told) > 1 and isinstance(told[1], str) else ""
        elif isinstance(told, str):
            name, desc = clean(told), ""
        else:
            name, desc = "pg_id %s" % clean(pg_id, 12), ""
        known = self.config.get(name)
        if known is None and desc == "default_pg":
            known = self.config.get("default_pg")
        for i, have in enumerate(self.groups):
            if have.name == name and have.desc == desc:
                return i
        self.groups.append(Group(name, desc or (known[0] if known else ""), known[1] if known else ()))
        if len(self.groups) > 4096:
            raise BadDump("more than 4096 process groups")
        return len(self.groups) - 1

    def walk(self):
        groups, index, opens, trail = self.groups, self.index, self.open, self.trail
        bad = 0
        newest = 0
        last_done_group = None
        order, plain = _worth_reading(self.entries)
        for at in order:
            e = self.entries[at]
            if type(e) is not dict:
                bad += 1
                continue
            get = e.get
            told = get("process_group")
            g = index.get(told) if plain and len(told) == 2 and type(told[1]) is str else None
            if g is None:
                g = self.group(told, get("pg_id"))
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
            batch = group.batch
            if batch is not None and closes(get("profiling_name")):
                if get("is_p2p") is True:
                    ends = whole(get("p2p_seq_id")) == batch.number
                else:  # up to PyTorch 2.5 a batch took a collective's number (pytorch issue 134833)
                    ends = seq == batch.epoch and batch.last == at - 1
                if ends and batch.parts:
                    batch.last, batch.closed = at, done
                    group.batched = True
                    continue
            if get("is_p2p") is True or (get("is_p2p") is None and is_p2p(get("profiling_name"))):
                group.p2p = True
                self._p2p(g, group, at, e, seq, done)
                continue
            if seq is None:
                bad += 1
                continue
            seqs = group.seqs
            if seqs and seqs[-1] == seq:  # a further part of one coalesced launch
                group.upto[-1] = (group.upto[-1][0], at)
                self._further_part(g, group, seq, at, done, closes(get("profiling_name")))
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
        # Parts of a batch never complete: they may stand there from record 0 on, with gaps between them.
        gaps = (self.last_id or 0) - (self.first_id or 0) + 1 > len(self.entries)
        self.active_only = not self.any_done and bool(
            gaps or (self.first_id or 0) > 0 if self.entries else any(enq > 0 for enq, _ in self.status.values())
        )
        self._end_batches()
        self._end_parts()
        self.lost = self._lost()
        self._doubt(last_done_group)

    def _further_part(self, g, group, seq, at, done, closing):
        """Parts have no events of their own: the closing entry tells for all; until it has come, the unit is open."""
        over = done if closing else group.done[-1] and done
        i = len(self.open) - 1
        while i >= 0 and not (self.open[i][2] == g and self.open[i][3] == seq):
            i -= 1
        if over and i >= 0:
            del self.open[i]
        elif not over and i >= 0:
            self.open[i][1] = at
        elif not over:
            self.open.append([group.upto[-1][0], at, g, seq, None])
        group.done[-1] = over

    def _lost(self):
        """Has the ring dropped operations that are still open? Then where this rank waits is not in the dump.

        A host that ran ahead by more than the ring holds: the oldest kept number is open and not the one after the newest
        that pg_status calls completed; or all entries are open, one after the other, and a group without any owes something.
        """
        seen = set()
        for group in self.groups:
            seen.add(group.pg_id)
            told = self.status.get(group.pg_id)
            if told and group.seqs and not group.p2p and not group.done[0] and told[1] + 1 < group.seqs[0]:
                if max(told[1], 0) + 1 < group.seqs[0]:  # numbers begin at 1, or at 0 in old releases
                    return True
        span = (self.last_id or 0) - (self.first_id or 0) + 1
        if not (self.active_only and self.first_id and span == len(self.entries) >= 16):
            return False
        first = {}  # oldest kept send or receive of a group
        for g, batch in self.batches:
            first.setdefault(self.groups[g].pg_id, batch.number)
        for pg_id, (enq, done) in self.status.items():
            if pg_id not in seen and enq > done:
                return True
            if first.get(pg_id) is not None and first[pg_id] > max(done, 0) + 1:
                return True
        return False

    def _end_parts(self):
        """Units of several entries that are not all there have no signature that could be compared."""
        wrapped = bool(self.first_id)
        for g, group in enumerate(self.groups) if wrapped or self.active_only else ():
            for i, (first, last) in enumerate(group.upto):
                closed = closes(self.entries[last].get("profiling_name"))
                if self.active_only and first != last and not closed:
                    # As with batches: the closing entry is left out because it has completed.
                    group.done[i] = True
                    group.partial.add(group.seqs[i])
                    self.open = [unit for unit in self.open if (unit[2], unit[3]) != (g, group.seqs[i])]
                elif i == 0 and wrapped and (first != last or closed):
                    group.partial.add(group.seqs[i])  # the ring may have dropped its first entries

    def _end_batches(self):
        """Count what was exchanged, in order, now that it is known how each batch ended."""
        for g, batch in self.batches if self.active_only else ():
            # A single call that pg_status calls completed would be left out: what is there is a part of a batch.
            if batch.epoch == 0 and self.status.get(self.groups[g].pg_id, (0, None))[1] == batch.number:
                self.groups[g].batched = True
        for g, batch in self.batches:
            over = batch.closed
            if over is None and self.active_only and self.groups[g].batched:
                # A dump of open entries leaves out the closing entry, and so the only sign, of what is finished. It is
                # written before the launch: a batch without one is a finished one.
                over = True
            for key, where, done in batch.parts:
                if key is None:
                    continue
                pair = self.pairs.get(key)
                if pair is None:
                    pair = self.pairs[key] = Pair()
                pair.enq = where
                if done if over is None else over:
                    pair.done = where
                elif pair.open is None:
                    pair.open = where
            open_parts = [part for part in batch.parts if not (part[2] if over is None else over)]
            if open_parts or (not batch.parts and not over):
                told = [[key[1], key[2], key[3], where] for key, where, _ in open_parts if key is not None]
                self.open.append([batch.first, batch.last, g, None, told])

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
        batch = group.batch
        if batch is None or number is None or batch.number != number or batch.epoch != epoch:
            # Parts of one batched exchange share the p2p number: one unit.
            batch = group.batch = Batch(at, number, epoch)
            self.batches.append((g, batch))
        batch.last = at
        key = where = None
        if match and match.group(2):
            a, b = self._global(group, int(match.group(2))), self._global(group, int(match.group(4)))
            side, src, dst = ("s", a, b) if match.group(3) == "->" else ("r", b, a)
            key = (g, side, src, dst)
            seen = group.counts.get(key)
            index = seen[1] + 1 if seen and seen[0] == epoch else 0
            group.counts[key] = (epoch, index)
            where = [epoch, index, number, at]
        if key is not None or not closes(name):
            batch.count += 1
            batch.parts.append((key, where, done))
            if batch.count > 1:
                group.batched = True
        else:  # the ring has dropped the parts, their closing entry is left
            batch.closed = done

    def _global(self, group, local):
        return group.members[local] if local < len(group.members) else None


def _worth_reading(entries):
    """(indexes of the entries that the record can tell of, are all their groups named by texts?)

    Of a group its newest and its first one, where all between are finished collectives; else all of the group's. (2,000
    finished entries cost 0.5 ms so, and 4 ms if each is read.)
    """
    odd, careful = [], (range(len(entries)), False)
    try:
        # Each entry is touched once: a dump lies all over the memory, and the waiting for it is most of the cost.
        # Within a process a group's name is unique; what it is called besides is read of what is kept.
        if type(entries[-1]["process_group"]) is not tuple:
            return careful
        told = [e["process_group"][0] if e["retired"] is True and e["is_p2p"] is False else None for e in entries]
        for at in [at for at, group in enumerate(told) if group is None]:
            e = entries[at]
            told[at] = e["process_group"][0]
            if e["is_p2p"] is not False or (e["retired"] is not True and e["state"] != DONE_STATE):
                odd.append(at)
        "".join(told)  # are they texts? (see plain_key)
        newest = {group: [] for group in set(told)}
        short = len(newest)  # groups of which fewer than TAIL are found yet
        for at in range(len(told) - 1, -1, -1):
            kept = newest[told[at]]
            if len(kept) < TAIL:
                kept.append(at)
                if len(kept) == TAIL:
                    short -= 1
                    if not short:
                        break
    except (LookupError, TypeError):
        return careful  # JSON, or a form that is to be read with care
    whole_groups = {told[at] for at in odd if at <= newest[told[at]][-1]}
    for group, kept in newest.items():  # coalesced units: many entries of one number
        if len(kept) == TAIL and len({whole(entries[at].get("collective_seq_id")) for at in kept}) <= WINDOW:
            whole_groups.add(group)
    keep = {told.index(group) for group in newest}
    keep.update(at for group, kept in newest.items() if group not in whole_groups for at in kept)
    if whole_groups:
        keep.update(at for at, group in enumerate(told) if group in whole_groups)
    return sorted(keep), True
