"""Which source of kernel lines is believed, and what is said where it was read in part or not at all."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import pytest
from triage.probes import _kernel_events, _kernel_sources
from triage.probes._probe import Ctx

from triage.readers.signatures import for_probe

SIGNATURES = for_probe("kernel")
NOW = 1_796_000_000.0
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, name=python3, GPU has fallen off the bus."


class Told:
    """A command that writes these pieces."""

    def __init__(self, *pieces: bytes, code: int | None = 0, why: str = "", err: str = "") -> None:
        self.pieces, self.code, self.why, self.err = pieces, code, why, err

    def __iter__(self):
        yield from self.pieces


class Host:
    """Stands in for Ctx: `commands` by their first word and, of journalctl, whether it asks for what was before."""

    real = True

    def __init__(
        self, journal: Told | None = None, dmesg: Told | None = None, older: tuple[Any, str, str] = (0, "", "")
    ):
        self.journal, self.dmesg, self.older, self.notes, self.asked = journal, dmesg, older, [], []

    def stream(self, argv, timeout_s):
        self.asked.append(argv)
        return {"journalctl": self.journal, "dmesg": self.dmesg}[argv[0]]

    def run(self, argv, timeout_s, limit=0):
        return self.older

    def now(self):
        return NOW

    def left(self):
        return 5.0

    def note(self, text):
        self.notes.append(text)


def lines(*told: tuple[float, str]) -> bytes:
    """As journalctl -r writes them: the newest first."""
    return b"".join(b"%.6f gpu003 kernel: %s\n" % (at, text.encode()) for at, text in sorted(told, reverse=True))


def journal(host: Host, since: float | None = None):
    events = _kernel_events.Events(SIGNATURES, since)
    return _kernel_sources.from_journal(host, events, since), events.told()


def test_the_journal_of_all_boots_since_the_attempt_began_is_read_newest_first() -> None:
    raw = lines((NOW - 50, XID), (NOW - 40, "usb 1-1: x"), (NOW - 30, XID))
    host = Host(Told(raw[:70], raw[70:]), older=(0, f"{NOW - 5000:.6f} gpu003 kernel: x\n", ""))
    (readable, why, covered), told = journal(host, NOW - 100)
    assert (readable, why, covered) == (True, "", True)
    event = next(e for e in told if e["id"] == "xid")
    assert (event["count"], event["at"], event["last_at"]) == (2, NOW - 50, NOW - 30)
    assert "-r" in host.asked[0] and "-k" not in host.asked[0]  # -k is this boot alone


def test_a_journal_from_which_the_beginning_was_rotated_away_is_told_not_to_cover_it() -> None:
    (readable, _, covered), _ = journal(
        Host(Told(lines((NOW - 30, XID))), older=(0, "-- No entries --", "")), NOW - 100
    )
    assert readable is True and covered is False


def test_where_the_time_ran_out_the_newest_lines_are_told_and_the_rest_is_not_covered() -> None:
    host = Host(Told(lines((NOW - 30, XID)), code=None, why="no end after its time limit"))
    (readable, _, covered), told = journal(host, NOW - 100)
    assert readable is True and covered is False and told and "time limit" in host.notes[0]


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        (Told(code=None, why="journalctl: No such file or directory"), "No such file"),
        (Told(code=1, err="Failed to open journal: Permission denied"), "Permission denied"),
        (Told(b"-- No entries --\n", err="Hint: You are currently not seeing messages from other users and the system."), "not seeing"),
        (Told(b"No journal files were found.\n-- No entries --\n"), "No journal files"),
        (Told(b"-- No entries --\n"), "holds no kernel line"),
    ],
)  # fmt: skip
def test_a_journal_that_may_not_be_read_or_is_empty_is_not_believed_to_say_nothing(stream, says) -> None:
    (readable, why, covered), told = journal(Host(stream))
    assert readable is False and says in why and covered is None and told == []


def test_no_line_since_the_attempt_began_is_an_answer_where_older_ones_are_kept() -> None:
    host = Host(Told(b"-- No entries --\n"), older=(0, f"{NOW - 5000:.6f} gpu003 kernel: x\n", ""))
    assert journal(host, NOW - 100)[0] == (True, "", True)


def dmesg(raw: Told, since: float | None = None):
    events = _kernel_events.Events(SIGNATURES, since)
    return _kernel_sources.from_dmesg(Host(dmesg=raw), events, since, NOW - 20000), events.told()


def test_a_ring_that_reaches_back_to_boot_covers_any_attempt_and_one_that_wrapped_does_not() -> None:
    whole = Told(f"[    0.000000] Linux version\n[19000.5] {XID}\n".encode())
    assert dmesg(whole, NOW - 30000)[0] == (True, "", True)
    wrapped = Told(f"[18000.0] x\n[19000.5] {XID}\n".encode())
    assert dmesg(wrapped, NOW - 5000)[0][2] is False and dmesg(wrapped, NOW - 1500)[0][2] is True


def test_a_ring_larger_than_its_bound_keeps_its_newest_end(monkeypatch) -> None:
    monkeypatch.setattr(_kernel_sources, "MOST_RING", 200)
    pieces = [f"[{i}.0] {XID.replace('4242', str(i))}\n".encode() for i in range(20)]
    (_, _, covered), told = dmesg(Told(b"[    0.0] Linux version\n", *pieces))
    assert covered is not True and [e["groups"]["pid"] for e in told if e["id"] == "xid"][-1] == "19"


def test_a_closed_ring_says_why() -> None:
    told = dmesg(Told(code=1, err="dmesg: read kernel buffer failed: Operation not permitted"))[0]
    assert told == (False, "dmesg: dmesg: read kernel buffer failed: Operation not permitted", None)


# ---------------------------------------------------------------- the stream of a command


def test_a_command_is_read_piece_by_piece_and_tells_how_it_ended() -> None:
    stream = Ctx().stream(
        [sys.executable, "-c", "import sys; print('x' * 300000); sys.stderr.write('hint'); sys.exit(3)"], 20
    )
    assert len(b"".join(stream)) == 300001 and (stream.code, stream.err) == (3, "hint")


def test_a_command_that_does_not_end_is_ended_at_its_time_limit() -> None:
    began = time.monotonic()
    stream = Ctx().stream([sys.executable, "-c", "import time; print('a', flush=True); time.sleep(60)"], 1.5)
    assert b"".join(stream) == b"a\n" and stream.code is None and "time limit" in stream.why
    assert time.monotonic() - began < 10 and stream.child.poll() is not None


def test_a_reader_that_has_enough_ends_the_command() -> None:
    stream = Ctx().stream([sys.executable, "-c", "while True: print('y' * 1000)"], 20)
    for _ in stream:
        break
    assert stream.child.wait(5) is not None


def test_no_command_runs_below_another_root(tmp_path) -> None:
    stream = Ctx(str(tmp_path), "/sys", "/").stream(["dmesg"], 5)
    assert list(stream) == [] and stream.code is None and "other root" in stream.why
    assert list(Ctx().stream(["no-such-command-at-all"], 5)) == []


def test_a_stand_in_for_dev_kmsg_that_tells_nothing_is_not_a_clean_log(monkeypatch, tmp_path):
    """Containers put /dev/null there: what it does not tell is unknown, and reading it ends."""
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *more: real("/dev/null" if path == "/dev/kmsg" else path, *more))
    readable, why, _ = _kernel_sources.from_kmsg(Ctx(), None, None, None)
    assert not readable and "tells nothing" in why
