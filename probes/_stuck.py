"""Reading many files of procfs of which one may never answer: shared by the probes that read environments.

(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import threading
import time


def guarded(names, read_one, left, stall_s, most):
    """({name: read_one(name)}, the names whose reading does not end, whether all were tried).

    left     a function: seconds left for the probe
    stall_s  how long one reading may take
    most     how many may hang before we give up

    Reading the environment of a process takes its memory lock, which a thread of it in D state may hold for ever
    (notes/prototype-findings.md 2.2): one such rank must not cost what the node says of all others.
    """
    todo, done, stuck = list(reversed(names)), {}, []
    finished = threading.Event()
    now_at = {}  # worker -> (name, since)

    def work(me):
        while todo and me in now_at:
            name = todo.pop()
            now_at[me] = (name, time.monotonic())
            value = read_one(name)
            if me not in now_at:
                return  # given up on meanwhile
            done[name] = value
        finished.set()

    me = 0
    threading.stack_size(262144)
    while True:
        now_at[me] = (None, time.monotonic())
        threading.Thread(target=work, args=(me,), daemon=True).start()
        while not finished.wait(0.05):
            name, since = now_at[me]
            if name is not None and time.monotonic() - since > stall_s:
                break
            if left() < 0.5:
                now_at.clear()
                return done, stuck, False
        else:
            return done, stuck, True
        now_at.pop(me)
        stuck.append(name)
        me += 1
        if me >= most:
            return done, stuck, False
