"""How long does rendering take? Budget: 200 ms for a report of 128 nodes (DESIGN section 11).

    python tests/bench/bench_render.py [NODES]

Not collected by pytest: a number on a busy machine is no test. Prints CPU time, the best of nine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "render"))
from sample_report import report

from triage.render import json, text


def best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(9):
        before = time.process_time()
        work()
        times.append(time.process_time() - before)
    return 1000 * min(times)


def main() -> int:
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 128
    found = report(nodes)
    told = {
        "text": best(lambda: text.render(found, color=True, explain=True)),
        "json": best(lambda: json.render(found)),
    }
    for name, ms in told.items():
        print(f"{name:5} {nodes} nodes: {ms:6.1f} ms CPU (budget 200)")
    return 0 if max(told.values()) <= 200 else 1


if __name__ == "__main__":
    raise SystemExit(main())
