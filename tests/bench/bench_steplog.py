"""What does a recorded step cost the job that copies triage/steplog.py? Budget: 2 us beyond its clock calls.

    python tests/bench/bench_steplog.py [STEPS]

A step is begin-to-end with three marks, written to a file in the temporary folder; the same loop with nothing but the clock
calls is taken off. Not collected by pytest: a number on a busy machine is no test. Prints CPU
time (a local write waits for nothing), the best of 100.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns, process_time, time_ns

from triage.steplog import StepLog

BUDGET_US = 2.0


def best(work: Callable[[int], None], steps: int) -> float:
    times = []
    for _ in range(100):
        before = process_time()
        work(steps)
        times.append(process_time() - before)
    return 1e6 * min(times) / steps


def clocks(steps: int) -> None:
    for _ in range(steps):
        perf_counter_ns()
        perf_counter_ns()
        perf_counter_ns()
        perf_counter_ns()
        time_ns()


def recorded(log: StepLog) -> Callable[[int], None]:
    def loop(steps: int) -> None:
        log.begin()
        mark, end = log.mark, log.end
        for number in range(steps):
            mark("data")
            mark("compute")
            mark("collective")
            end(number)

    return loop


def writes(path: str) -> Callable[[int], None]:
    line = b"x" * 190 + b"\n"

    def loop(steps: int) -> None:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for _ in range(steps):
            os.write(file, line)
        os.close(file)

    return loop


def main() -> int:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    clock = best(clocks, steps)
    with tempfile.TemporaryDirectory() as folder:
        silent = best(recorded(StepLog("", 0)), steps)
        whole = best(recorded(StepLog(folder + "/rank_", 0)), steps)
        write = best(writes(str(Path(folder) / "plain")), steps)
    print(f"clock calls                {clock:6.2f} us a step")
    print(f"without TRIAGE_STEP_LOG    {silent - clock:6.2f} us beyond them")
    print(f"recorded                   {whole - clock:6.2f} us beyond them (budget {BUDGET_US})")
    print(f"  of which the system call {write:6.2f} us (one write of a line)")
    return 0 if whole - clock <= BUDGET_US else 1


if __name__ == "__main__":
    raise SystemExit(main())
