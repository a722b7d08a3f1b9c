"""One file of procfs that never answers must not cost what the node says of all others."""

import threading

import _stuck as stuck
import pytest


def test_a_reading_that_never_ends_is_named_and_all_others_are_done():
    forever = threading.Event()

    def read(name):
        if name == "7":
            forever.wait(30)
        return name * 2

    names = [str(number) for number in range(20)]
    done, hung, complete = stuck.guarded(names, read, lambda: 10.0, 0.2, 4)
    forever.set()
    assert hung == ["7"] and complete
    assert done == {name: name * 2 for name in names if name != "7"}


@pytest.mark.parametrize(("left", "most"), [(10.0, 1), (0.1, 4)])
def test_too_many_that_hang_or_no_time_left_end_the_reading_and_say_so(left, most):
    forever = threading.Event()
    done, _, complete = stuck.guarded(["a", "b"], lambda name: forever.wait(30), lambda: left, 0.2, most)
    forever.set()
    assert not complete and done == {}
