"""What Megatron's timers tell of each rank (--timing-log-option all, --timing-log-level 2), means over the log interval:

     iteration       40/  100000 | ... | elapsed time per iteration (ms): 503.9 | ...
    times across ranks (ms):
      forward-compute:
         rank  0: 210.40
         rank  1: 221.30
      backward-compute:
         rank  0: 420.80

Fooled by   a block that the end of what was read cuts (left out); another process that prints in between (it ends there); a
            restart, whose steps go back (what stands before it is of another attempt). Pure, Python 3.6.
"""

import re

HEAD = b"times across ranks (ms):"  # the forms with min and max say `time`
PARTS = {
    "forward-compute": "compute_ms",
    "backward-compute": "compute_ms",
    "batch-generator": "data_ms",
    "all-grads-sync": "collective_ms",
}
LINE = re.compile(r" {2,3}(?P<timer>[\w-]{1,60}):$| {4,6}rank {1,7}(?P<rank>\d{1,7}): (?P<ms>\d{1,9}\.\d\d)$")
LAST = 64  # blocks told
MOST = 30000  # numbers told: fewer blocks of a large job
FAR = 65536  # how far above a block the line of its step may stand


def parts_of(block, pos, bare):
    """{part: {rank: ms}} of the lines from `pos` on, or None if they end with what was read."""
    found, timer = {}, None
    end = block.find(b"\n", pos)
    while end >= 0:
        line = LINE.match(bare(block[pos:end]))
        if not line:
            return found
        if line.group("timer"):
            timer = PARTS.get(line.group("timer"))
        elif timer:
            ranks, rank = found.setdefault(timer, {}), int(line.group("rank"))
            ranks[rank] = round(ranks.get(rank, 0.0) + float(line.group("ms")), 2)
        pos = end + 1
        end = block.find(b"\n", pos)
    return None


def take(kept, block, bare, step_above):
    """Add the blocks of a piece of a log to `kept`, a list of (step, parts).

    bare        a function: a raw line as text, without a launcher's prefix
    step_above  a function: the step of the last step line of these bytes, or None
    """
    pos = block.find(HEAD)
    while pos >= 0:
        step = step_above(block[max(0, pos - FAR) : pos])
        begun = block.find(b"\n", pos) + 1
        parts = parts_of(block, begun, bare) if begun and step is not None else None
        if parts:
            if kept and step <= kept[-1][0]:
                del kept[:]
            kept.append((step, parts))
            del kept[: -max(1, min(LAST, MOST // sum(map(len, parts.values()))))]
        pos = block.find(HEAD, pos + 1)


def told(kept):
    """{"step": [n, …], part: {rank: [ms, …]}}: only ranks and parts that every block tells."""
    out = {"step": [step for step, _ in kept]}
    for part in sorted(set(PARTS.values())):
        rows = [parts.get(part, {}) for _, parts in kept]
        ranks = set(rows[0]).intersection(*rows) if rows else ()
        if ranks:
            out[part] = {str(rank): [row[rank] for row in rows] for rank in sorted(ranks)}
    return out
