"""A kernel log of any length as a few events: each known line once, counted, with its first and last time. Pure.

    800,000 times  "pcieport 0000:00:01.0: AER: Corrected error received: 0000:03:00.0"
      ->  {"id": "aer", "count": 800000, "at": 1790000000.1, "last_at": 1790003600.5, "times": [the newest 16], ...}

The log comes in pieces, the newest first, so that what a bound of time or size cuts off is the oldest. Nearly all lines are
none of ours or the same text again: those cost a look into a dictionary. A line is told apart from its stamp before that, and
by its shape (without digits) where its numbers vary.
Fooled by   a flood of known lines each of which differs: each is matched, until the CPU bound (then `cut` says so).

(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import re
import time

import _kernel_lines

clean = _kernel_lines.clean

MAX_EVENTS = 200
FIRST_EVENTS, LAST_EVENTS = 20, 40  # of one signature
NEWEST_TIMES = 16  # of one event: a port that flaps all day does so at the moment in question as well
LINE = 2048
LINES_ABOVE = 3  # the driver tells a GPU that is gone in three lines, of which the last says so and the first which
MOST_TEXTS = 4096
BLOCK, FEW = 512, 16  # lines looked at together; different texts among them that are still a flood
DIGITS = b"0123456789"


def compile_signatures(signatures):
    """[(id, kind, hints, regex, regex of a line above or None)]"""
    ready = []
    for item in signatures:
        hints = item.get("hint") or []
        hints = [hints] if isinstance(hints, str) else hints
        above = re.compile(item["above"]) if item.get("above") else None
        ready.append((item["id"], item.get("kind"), hints, re.compile(item["pattern"]), above))
    return ready


def peel(line):
    """The kernel's text of a raw line, for the dictionary only: two lines of one text differ in their stamp alone."""
    colon = line.find(b": ")
    if colon > 6 and line[colon - 7 : colon] == b" kernel":
        # Date and host only may stand before it: a user may call himself "x kernel".
        host = line.rfind(b" ", 0, colon - 7)
        if host == 15 or host == line.find(b" "):
            line = line[colon + 2 :]
    elif line[:2] == b"20" and line[19:20] == b",":
        line = line[line.find(b" ") + 1 :]
    elif line[:1] == b"<":
        line = line[line.find(b">") + 1 :]
    if line[:1] == b"[":
        return line[line.find(b"] ") + 2 :]
    return line


def peeled(lines):
    """peel() of each of these lines."""
    first = lines[0]
    size = len(first) - len(peel(first))
    head = first[:size].translate(None, DIGITS)
    # Mostly the stamps are all as long as the first one and differ in digits alone: then each text begins where that does.
    if size and b"".join([line[:size] for line in lines]).translate(None, DIGITS) == head * len(lines):
        return [line[size:] for line in lines]
    texts = []
    for line in lines:
        if not size or line[:size].translate(None, DIGITS) != head:
            size = len(line) - len(peel(line))
            head = line[:size].translate(None, DIGITS)
        texts.append(line[size:])
    return texts


class Events(object):
    """Known lines, one event per (id, groups); of each id the first and the last ones."""

    def __init__(self, signatures, since, split=None, cpu_s=None):
        """split    (line, anybody=False) -> (epoch s, monotonic s, text) or None, as _kernel_lines.split_line
        cpu_s    no further piece after so much CPU time
        """
        self.signatures, self.since, self.split = compile_signatures(signatures), since, split
        hints = [hint for _, _, several, _, _ in self.signatures for hint in several]
        # One search tells that a line is none of ours, which nearly all are.
        every = all(several for _, _, several, _, _ in self.signatures)
        self.any_hint = re.compile("|".join(re.escape(h) for h in hints)) if hints and every else None
        # What stands in a line without its digits stands in it with them, if it has none itself.
        shapes = [re.escape(h.encode().translate(None, DIGITS)) for h in hints]
        self.any_shape = re.compile(b"|".join(shapes)) if shapes and every else None
        self.upward = {name for name, _, _, _, above in self.signatures if above is not None}
        self.found, self.left_out = {}, {}
        self.lines, self.oldest, self.first_mono = 0, None, None
        self.texts, self.dull = {}, set()
        self.piece = 0
        self.until = None if cpu_s is None else time.process_time() + cpu_s
        self.cut = False

    # ---- one line

    def take(self, split):
        """One line that was split already, in the order of the log."""
        if split is None:
            return
        at, _, text = split
        self.lines += 1
        if at is not None and (self.oldest is None or at < self.oldest):
            self.oldest = at
        if not text or (self.since is not None and at is not None and at < self.since):
            return
        for hit in self.match(text, ()):
            self.record(hit, [at], 1, (self.piece, self.lines))

    def match(self, text, above):
        """[(id, kind, groups, key, text)] of the signatures that know this text. `above`: the lines before it, the next first."""
        text = text[:LINE]
        if self.any_hint is not None and not self.any_hint.search(text):
            return []
        hits = []
        for name, kind, hints, regex, upward in self.signatures:
            for hint in hints:
                if hint in text:
                    break
            else:
                if hints:
                    continue
            found = regex.search(text)
            if not found:
                continue
            groups = {k.split("__")[0]: clean(v, 128) for k, v in found.groupdict().items() if v is not None}
            for line in above if upward is not None else ():
                told = upward.search(line)
                if told:
                    more = {k.split("__")[0]: clean(v, 128) for k, v in told.groupdict().items() if v is not None}
                    groups = dict(more, **groups)
                    break
            hits.append((name, kind, groups, tuple(sorted(groups.items())), text))
        return hits

    def record(self, hit, times, count, order):
        """`count` occurrences of one known line, of which `times` are the dated newest and the first."""
        name, kind, groups, key, text = hit
        dated = sorted(t for t in times if t is not None)
        kept = self.found.setdefault(name, {})
        event = kept.get(key)
        if event is None:
            if len(kept) >= 4 * (FIRST_EVENTS + LAST_EVENTS):
                self.drop_middle(name, FIRST_EVENTS + LAST_EVENTS)
            event = kept[key] = {"id": name, "kind": kind, "at": None, "last_at": None, "count": 0, "groups": groups}
            event.update(text=clean(text), _order=order, _times=[])
        event["count"] += count
        if order < event["_order"]:
            event["_order"], event["text"] = order, clean(text)
        if dated:
            event["at"] = dated[0] if event["at"] is None else min(event["at"], dated[0])
            event["last_at"] = dated[-1] if event["last_at"] is None else max(event["last_at"], dated[-1])
            event["_times"] = sorted(event["_times"] + dated)[-NEWEST_TIMES:]

    def drop_middle(self, name, most):
        """Keep so many events of a signature, the first ones and the last ones; the others stay counted."""
        kept = self.found[name]
        if len(kept) <= most:
            return
        first = min(FIRST_EVENTS, most - 1)
        keys = sorted(kept, key=lambda k: kept[k]["_order"])
        for key in keys[first : first + len(keys) - most]:
            self.left_out[name] = self.left_out.get(name, 0) + kept.pop(key)["count"]

    # ---- pieces of a log

    def feed(self, lines, older=()):
        """One piece, its lines (bytes) in the order of the log, older than any piece before. `older`: the lines before it.

        True if it reaches back to `since`, so that nothing older is wanted.
        """
        self.piece -= 1
        first, last = self.end_of(lines), self.end_of(lines[::-1])
        if first is not None:
            self.first_mono = first[1] if first[1] is not None else self.first_mono
            if first[0] is not None and (self.oldest is None or first[0] < self.oldest):
                self.oldest = first[0]
        begins = first[0] if first is not None else None
        ends = last[0] if last is not None else None
        reached = self.since is not None and begins is not None and begins < self.since
        if reached and ends is not None and ends < self.since:
            return True
        # A piece in which `since` lies, or that has no date: each known line is dated by itself.
        one_by_one = self.since is not None and (begins is None or ends is None or reached or ends < self.since)
        self.walk(lines, older, one_by_one)
        return reached

    def end_of(self, lines):
        """The first dated line of these, split; None if the first ones have no date."""
        for line in lines[:64]:
            split = self.split(line[:LINE].decode("utf-8", "replace"), anybody=True)
            if split is not None and (split[0] is not None or split[1] is not None):
                return split
        return None

    def walk(self, lines, older, one_by_one):
        places, alone = {}, []  # text -> [hits, numbers of its lines]; what depends on the lines above it
        for begin in range(0, len(lines), BLOCK):
            texts = peeled(lines[begin : begin + BLOCK])
            different = set(texts)
            if len(different) <= FEW:
                # A flood: one look for each text, and not for each line.
                for text in different:
                    if places.get(text) == ():
                        continue
                    numbers = [begin + i for i, one in enumerate(texts) if one == text]
                    self.place(text, numbers, lines, older, places, alone)
                continue
            find = places.get
            for number, text in enumerate(texts, begin):
                place = find(text)
                if place is None:
                    self.place(text, [number], lines, older, places, alone)
                elif place:
                    place[1].append(number)
        self.lines += len(lines)
        for place in list(places.values()) + alone:
            if place:
                self.settle(place[0], place[1], lines, one_by_one)

    def place(self, text, numbers, lines, older, places, alone):
        """Note where a text stands; of a text that is none of ours, that it is none (an empty place)."""
        place = places.get(text)
        if place:
            place[1].extend(numbers)
        if place is not None:
            return
        hits = self.texts.get(text)
        if hits is None:
            if self.is_dull(text):
                if len(places) < MOST_TEXTS:
                    places[text] = ()
                return
            for number in numbers:
                hits, own = self.look(lines[number], text, lines, number, older)
                if not own:
                    break
                if hits:
                    alone.append([hits, [number]])
            else:
                return
        places[text] = [hits, numbers] if hits else ()

    def is_dull(self, text):
        """Can nothing of ours stand in a text of this shape?"""
        if self.any_shape is None:
            return False
        shape = text.translate(None, DIGITS)
        if shape in self.dull:
            return True
        if self.any_shape.search(shape):
            return False
        if len(self.dull) < MOST_TEXTS:
            self.dull.add(shape)
        return True

    def look(self, line, text, lines, number, older):
        """(what a text means that was not seen before, does that depend on the lines above it)"""
        split = self.split(line[:LINE].decode("utf-8", "replace"))
        hits = self.match(split[2], ()) if split is not None and split[2] else []
        if any(hit[0] in self.upward for hit in hits):
            above = list(lines[max(0, number - LINES_ABOVE) : number])
            above = (list(older) + above)[-LINES_ABOVE:] if len(above) < LINES_ABOVE else above
            told = [one[:LINE].decode("utf-8", "replace") for one in reversed(above)]
            return self.match(split[2], told), True
        if len(self.texts) < MOST_TEXTS:
            self.texts[text] = hits
        return hits, False

    def settle(self, hits, numbers, lines, one_by_one):
        """Date the lines of one text: the first and the newest, or each of them where `since` lies among them."""
        count, order = len(numbers), (self.piece, numbers[0])
        if not one_by_one and count > NEWEST_TIMES:
            numbers = numbers[:1] + numbers[-NEWEST_TIMES:]
        times = []
        for number in numbers:
            split = self.split(lines[number][:LINE].decode("utf-8", "replace"))
            at = split[0] if split is not None else None
            if one_by_one and at is not None and at < self.since:
                count -= 1
            else:
                times.append(at)
        for hit in hits if count else ():
            self.record(hit, times, count, order)

    def feed_all(self, pieces):
        """All pieces, newest first: "since" (it was reached), "end" (all was read) or "cpu" (over the bound of CPU time)."""
        waiting = None
        for lines in pieces:
            if waiting is not None:
                if self.feed(waiting, lines[-LINES_ABOVE:]):
                    return "since"
                if self.until is not None and time.process_time() > self.until:
                    self.cut = True
                    return "cpu"
            waiting = lines
        if waiting is not None and self.feed(waiting):
            return "since"
        return "end"

    # ---- the answer

    def told(self, err_of=None):
        """The events in the order in which they began; the noisiest signature gives way. `err_of`: s of doubt of a time."""
        for name in self.found:
            self.drop_middle(name, FIRST_EVENTS + LAST_EVENTS)
        while sum(len(kept) for kept in self.found.values()) > MAX_EVENTS:
            noisiest = max(self.found, key=lambda n: len(self.found[n]))
            self.drop_middle(noisiest, len(self.found[noisiest]) - 1)
        events = [event for kept in self.found.values() for event in kept.values()]
        events.sort(key=lambda e: e["_order"])
        for event in events:
            del event["_order"]
            times = event.pop("_times")
            if event["count"] > 2:
                event["times"] = times
            if err_of is not None and event["last_at"] is not None:
                event["err_s"] = round(err_of(event["at"]), 3)
        return events
