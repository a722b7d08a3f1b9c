"""What a rank of a drill writes of each step: step records, the drill's own copy of them, and the log line of Megatron.

Standard library only: part of what lies on a node as the program of a rank (`plan.bare_source`).
"""

from __future__ import annotations

import json
import os
import random
import select
import time
from typing import Any

ITERATIONS = 100000
SAMPLES_A_STEP = 32


class Diary:
    """What a rank writes of each step: a record for triage's step reader, one for the drill, on the last rank a log line."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.rank, self.last, self.report_fd = plan["rank"], plan["rank"] == plan["world"] - 1, plan["report_fd"]
        prefix = os.environ.get("TRIAGE_STEP_LOG")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.file = os.open(f"{prefix}{self.rank}.jsonl", flags, 0o644) if prefix else -1
        self.noise = random.Random(self.rank)

    def keep(self, step: int, began: float, start: float, data: float, compute: float, end: float) -> None:
        """One step is done. `began` is wall clock; then the moments at which each part of it began or ended."""
        record = {
            "step": step,
            "rank": self.rank,
            "t_start": round(began, 3),
            "compute_ms": round((compute - data) * 1000, 3),
            "collective_ms": round((end - compute) * 1000, 3),
            "data_ms": round((data - start) * 1000, 3),
            "total_ms": round((end - start) * 1000, 3),
        }
        if self.file >= 0:
            os.write(self.file, json.dumps(record).encode() + b"\n")
        report(self.report_fd, record)
        if self.last:
            os.write(1, iteration_line(step, record["total_ms"], self.noise).encode())


def iteration_line(step: int, total_ms: float, noise: random.Random) -> str:
    """What Megatron prints on the last rank after each iteration."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}"
    loss = 10.8 * (step + 1) ** -0.09 + noise.gauss(0, 0.01)
    return (
        f" [{stamp}] iteration {step:8d}/{ITERATIONS:8d} | consumed samples: {step * SAMPLES_A_STEP:12d} |"
        f" elapsed time per iteration (ms): {total_ms:.1f} | learning rate: 1.000000E-04 |"
        f" global batch size: {SAMPLES_A_STEP:5d} | lm loss: {loss:.6E} | loss scale: 1.0 |"
        f" grad norm: {1.2 + noise.gauss(0, 0.05):.3f} | number of skipped iterations:   0 |"
        f" number of nan iterations:   0 |\n"
    )


def report(descriptor: int, record: dict[str, Any]) -> None:
    """Tell whoever set the job up. A full pipe drops the line: the job never waits for its audience."""
    if descriptor < 0 or not select.select([], [descriptor], [], 0)[1]:
        return
    try:
        os.write(descriptor, json.dumps(record, separators=(",", ":")).encode() + b"\n")
    except OSError:
        pass
