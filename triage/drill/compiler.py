"""The compile worker of a drill: really compiles sources, one after the other, into the cache of torch.compile.

Standard library only; what lies on a node is a bare copy at .../torch/_inductor/compile_worker/__main__.py, which is where
PyTorch has its own. stdin, one line: for how many seconds. Ends with its rank.
"""

from __future__ import annotations

import ctypes
import hashlib
import marshal
import os
import random
import signal
import sys
import time


def source(noise: random.Random) -> str:
    """A kernel as text: some hundred lines of arithmetic."""
    lines = [f"def triton_poi_fused_{noise.randrange(10**6)}(x0, x1):"]
    for number in range(2, 600):
        a, b = noise.randrange(number), noise.randrange(number)
        lines.append(f"    x{number} = x{a} * {noise.random():.6f} + (x{b} if x{a} > x{b} else {noise.random():.6f})")
    return "\n".join([*lines, "    return x599", ""])


def main() -> None:
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (OSError, AttributeError):
        pass
    if f"--parent={os.getppid()}" not in sys.argv:
        return  # it died before we asked to die with it
    seconds = float(sys.stdin.readline() or 0)
    cache = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    until = time.monotonic() + seconds
    noise = random.Random()
    while time.monotonic() < until:
        text = source(noise)
        code = marshal.dumps(compile(text, "<kernel>", "exec", optimize=2))
        name = hashlib.sha256(text.encode()).hexdigest()[:52]
        folder = os.path.join(cache, name[1:3])
        os.makedirs(folder, exist_ok=True)
        for end, content in ((".py", text.encode()), (".bin", code)):
            with open(os.path.join(folder, f"c{name}{end}"), "wb") as out:
                out.write(content)
        rest = time.monotonic() + 0.2  # a cache of gigabytes is not what is shown; the optimiser goes on working
        while time.monotonic() < min(rest, until):
            compile(text, "<kernel>", "exec", optimize=2)


if __name__ == "__main__":
    main()
