"""Questions in children of their own: how one ends, or does not, costs only its own answer."""

from __future__ import annotations

import os
import time
from pathlib import Path

from triage.probes._apart import apart


def within(seconds):
    until = time.monotonic() + seconds
    return lambda: until - time.monotonic()


def dead(pid):
    for _ in range(400):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.005)
    return False


def test_what_was_said_before_an_exception_stays_and_the_exception_is_told():
    def raises(say):
        say({"row": {"a": 1}})
        raise TypeError("a struct of another age \x1b[2J")

    told = apart({"x": raises, "y": lambda say: say({"row": {"a": 2}})}, within(5))
    assert told["x"].ended and not told["x"].whole
    assert told["x"].failed == "TypeError: a struct of another age \\x1b[2J"
    assert told["x"].pieces[0] == {"row": {"a": 1}} and told["y"].whole and told["y"].failed == ""


def test_a_number_that_json_lacks_is_an_exception_and_not_silence():
    told = apart({"x": lambda say: say({"row": {"a": float("nan")}})}, within(5))["x"]
    assert "ValueError" in told.failed and not told.whole


def test_a_child_that_said_all_and_does_not_die_delays_nobody_and_is_ended():
    def lingers(say):
        say({"row": {"pid": os.getpid()}})
        os.closerange(3, 65536)  # as the kernel does first, before the driver's own close blocks
        time.sleep(60)

    began = time.monotonic()
    told = apart({"x": lingers}, within(5))["x"]
    assert told.ended and time.monotonic() - began < 2
    assert dead(told.pieces[0]["row"]["pid"])


def test_a_child_that_never_answers_is_told_with_its_state_and_the_others_are_whole():
    told = apart({"x": lambda say: time.sleep(60), "y": lambda say: say({"row": {}})}, within(1))
    assert (told["x"].ended, told["x"].state, told["y"].whole) == (False, "S", True)
    assert dead(told["x"].pid)


def test_one_that_says_too_much_is_cut_off():
    def floods(say):
        while True:
            say({"row": {"x": "y" * 60000}})

    told = apart({"x": floods}, within(5))["x"]
    assert not told.ended and len(told.raw) < 400_000
    assert all(set(piece) == {"row"} for piece in told.pieces)
