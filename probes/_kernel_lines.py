"""One line of a kernel log: when was it said, and what, in whichever way it is dated? Pure.

    1790000000.123456 gpu003 kernel: Out of memory: Killed process 4242 …        journalctl -o short-unix
    {"__REALTIME_TIMESTAMP":"1790000000123456","MESSAGE":"Out of memory: …","_TRANSPORT":"kernel",…}     -o json
    [12345.678901] NVRM: Xid …       [12345.678901][ T4242] …                    dmesg, seconds on the kernel's own clock
    2026-11-29T16:50:40,034040+00:00 …                                           dmesg --time-format iso (a comma)
    [Sun Nov 29 16:50:40 2026] …                                                 dmesg -T (whole seconds, local zone)
    Nov 29 16:50:40 gpu003 kernel: [12345.678901] …                              syslog: neither year nor zone
    6,339,5140900,-;mlx5_core 0000:9a:00.0 eth2: Link down                       /dev/kmsg, microseconds
Fooled by   syslog's missing year (the latest that is not ahead of us is taken); names of months in another language (then
            undated, never misdated); stamps of a host that was suspended; a clock that was set.

(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import calendar
import json
import re
import time

MONTHS = {m: i + 1 for i, m in enumerate("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split())}
# All the ways in which one and the same line may be dated. Behind a host stands who said it: the kernel or a user's process.
HEAD = re.compile(
    r"(?:<\d{1,4}>)?(?:"
    r"(?:(?P<unix>\d{9,11}\.\d{1,9})"
    r"|(?P<iso>20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:\.(?P<f>\d{1,9}))?(?P<z>Z|[+-]\d\d:?\d\d)?"
    r"|(?P<sm>[A-Z][a-z]{2}) {1,2}(?P<sd>\d{1,2}) (?P<st>\d\d:\d\d:\d\d)) (?P<who>(?:\S{1,255} )?\S{1,80}:)"
    r"|(?P<iso__2>20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d),(?P<f__2>\d{1,9})(?P<z__2>Z|[+-]\d\d:?\d\d)?"
    r"|\[[^\s\[\]]{1,12} {1,2}(?P<cm>[^\s\[\]]{1,12}) {1,2}(?P<cd>\d{1,2}) (?P<ct>\d\d:\d\d:\d\d) (?P<cy>20\d\d)\]"
    r")(?= |$)"
)
# A date and a host, and then no `kernel:`: a continuation, or a user who wants to look like the kernel.
OTHERS = re.compile(
    r"(?:<\d{1,4}>)?(?:\d{9,11}\.\d{1,9}|20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?!,)|[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d )"
)
MONO = re.compile(r"\s?(?:<\d{1,4}>)?\[ {0,12}(?P<mono>\d{1,12}\.\d{1,9})\](?:\[ {0,8}[TC]\d{1,10}\])? ?")
NUMBER = re.compile(r"[0-9]{1,17}\Z")
# Before the journal runs, the kernel's lines wait for it: their own stamps are older than their receipt.
EARLY_S = 60.0


def clean(text, limit=300):
    return "".join(c if c.isprintable() else " " for c in text[:limit]).rstrip()


def to_epoch(parts, local):
    """Epoch seconds of a broken-down time, in the node's zone or UTC; None for a date that does not exist."""
    year, month, day, hour, minute, second = parts
    if not (1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1] and hour < 24 and minute < 60):
        return None
    if second >= 62:
        return None
    try:
        if local:
            return time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
        return float(calendar.timegm((year, month, day, hour, minute, second)))
    except (OverflowError, ValueError):
        return None


def _dated(part, now, local):
    """Epoch seconds of what HEAD found, or None."""
    if part["unix"]:
        return float(part["unix"])
    iso = part["iso"] or part["iso__2"]
    if iso:
        zone, fraction = part["z"] or part["z__2"], part["f"] or part["f__2"]
        at = to_epoch([int(x) for x in re.split("[-T :]", iso)], local and not zone)
        if at is not None and zone and zone != "Z":
            away = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
            at -= away if zone[0] == "+" else -away
        return at + float("0." + fraction) if at is not None and fraction else at
    month = MONTHS.get(part["sm"] or part["cm"])
    if not month:
        return None
    clock = [int(x) for x in (part["st"] or part["ct"]).split(":")]
    day = int(part["sd"] or part["cd"])
    if part["cy"]:
        return to_epoch([int(part["cy"]), month, day] + clock, local)
    # No year in syslog: the latest one in which the date exists and that is not ahead of us.
    year = time.gmtime(now).tm_year
    for back in range(-1, 9):
        at = to_epoch([year - back, month, day] + clock, local)
        if at is not None and at <= now + 2 * 86400:
            return at
    return None


def split_line(line, now, mono_base, local=False, anybody=False):
    """(epoch seconds or None, monotonic seconds or None, kernel text), or None for a line of a user's process.

    mono_base  epoch seconds at which the kernel's own clock stood at 0, or None
    local      dates without a zone are in the node's zone, not UTC
    anybody    a user's line too: its date bounds what was read
    """
    if line.startswith("{"):
        return split_json(line, anybody)
    at, mono, found = None, None, HEAD.match(line)
    if found:
        part = found.groupdict()
        if part["who"] and part["who"] != "kernel:" and not part["who"].endswith(" kernel:") and not anybody:
            return None
        at = _dated(part, now, local)
        line = line[found.end() :]
    elif OTHERS.match(line):
        return None
    behind = MONO.match(line)
    if behind:
        mono = float(behind.group("mono"))
        if at is None and mono_base is not None:
            at = mono_base + mono
        line = line[behind.end() :]
    return at, mono, line.strip()


def _micros(value):
    """Seconds of a number of microseconds that journald writes as text; None for what is none."""
    return int(value) / 1e6 if isinstance(value, str) and NUMBER.match(value) else None


def split_json(line, anybody=False):
    """The same for one record of `journalctl -o json`. None for what another than the kernel wrote, or for no record.

    The realtime stamp is that of the receipt by journald, which is near the message except at boot.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or (record.get("_TRANSPORT") != "kernel" and not anybody):
        return None
    text = record.get("MESSAGE")
    if isinstance(text, list) and all(isinstance(c, int) and 0 <= c < 256 for c in text):
        text = bytes(text).decode("utf-8", "replace")  # journald writes what is no UTF-8 as numbers
    if not isinstance(text, str):
        return None
    at, heard = _micros(record.get("__REALTIME_TIMESTAMP")), _micros(record.get("__MONOTONIC_TIMESTAMP"))
    said = _micros(record.get("_SOURCE_MONOTONIC_TIMESTAMP"))
    if at is not None and heard is not None and said is not None and said < EARLY_S and heard > said:
        at -= heard - said
    return at, said, text.split("\n")[0].strip()


def split_kmsg(record, mono_base):
    """The same for one record of /dev/kmsg, "6,339,5140900,-;text"; None for what a user wrote there."""
    head, mark, text = record.partition(";")
    field = head.split(",")
    if not mark or len(field) < 3 or not (NUMBER.match(field[0]) and NUMBER.match(field[2])) or int(field[0]) >> 3:
        return None
    mono = int(field[2]) / 1e6
    return (None if mono_base is None else mono_base + mono), mono, text.split("\n")[0].strip()
