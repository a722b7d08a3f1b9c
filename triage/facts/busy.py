"""Is the job, or the rank that others wait for, in a long legitimate phase that makes progress of its own?

Two signs are needed: the log says that a phase began and not that it ended, and bytes of that phase move. A phase that
is only announced is a lead; bytes that move without a phase may be anything.
"""

from __future__ import annotations

from collections.abc import Mapping

from triage.facts.clocks import log_sample
from triage.facts.evidence import Evidence
from triage.facts.job import step_follows
from triage.facts.ranktable import log_hits, rank_table
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Part

# phase -> (signature that opens it, signature that closes it, counter of the process that must rise)
PHASES = {
    "checkpoint": ("checkpoint_save_begin", "checkpoint_save_end", "wchar"),
    "restore": ("checkpoint_load_begin", "checkpoint_load_end", "rchar"),
}


def open_phase(ev: Evidence) -> tuple[str, str] | None:
    """(phase, log line) of the last phase that began and has not ended, with no step known to follow it.

    Where nothing tells of steps (a restore before the first one) the phase stands: it is a lead until its bytes move.
    """
    sample = log_sample(ev)
    if sample is None:
        return None
    best: tuple[int, str, str] | None = None
    for phase, (begin, end, _) in PHASES.items():
        begun, ended = log_hits(ev, begin), log_hits(ev, end)
        if not begun:
            continue
        line = _line(begun[-1])
        closed = max((_line(hit) for hit in ended), default=-1)
        if closed > line or step_follows(ev, sample, begun[-1]):
            continue
        if best is None or line > best[0]:
            best = (line, phase, str(begun[-1].get("text", ""))[:120])
    return (best[1], best[2]) if best else None


def _line(hit: Mapping[str, object]) -> int:
    value = hit.get("line_no")
    return value if isinstance(value, int) else -1


@fact("busy.phase", type="text")
def phase(ev: Evidence) -> Fact:
    """The long phase that the log says the job is in: checkpoint, restore; "none" if no phase is open."""
    if log_sample(ev) is None:
        return unknown("the job log could not be read")
    found = ev.derive(open_phase)
    return known(found[0], text=f"the job log says: {found[1]}") if found else known("none")


@fact("busy.parts", type="number", unit="ranks", parts="rank")
def parts(ev: Evidence) -> Fact:
    """Ranks that move the bytes of the open phase between the looks."""
    found = ev.derive(open_phase)
    if log_sample(ev) is None:
        return unknown("the job log could not be read")
    if found is None:
        return known(parts=[])
    counter = PHASES[found[0]][2]
    window = {node: (a, b) for node, (a, b) in ev.both_looks("ranks").items()}
    moving, told = [], 0
    for row in ev.derive(rank_table).rows.values():
        if row.first is None or row.last is None or row.node not in window:
            continue
        old, new = row.first.get(counter), row.last.get(counter)
        if not isinstance(old, int) or not isinstance(new, int):
            continue
        told += 1
        a, b = window[row.node]
        seconds = max(0.5, (b.at or 0.0) - (a.at or 0.0))
        if (new - old) / seconds >= ev.limit("busy_floor_bytes_per_s"):
            why = f"{(new - old) / seconds / 1e6:.3g} MB/s in its {found[0]} phase"
            moving.append(Part("rank", node=row.node, rank=row.rank, why=why))
    if not told:
        return unknown("no rank's I/O counters were seen in both looks")
    return known(parts=moving, text=f"{len(moving)} ranks move bytes in the {found[0]} phase")
