"""Does the job log announce a long storage phase (checkpoint, restore), and do the bytes of that phase move?

Two signs are needed: the log says that a phase began and not that it ended, and bytes of that phase move, between the looks
or within the window of the `activity` probe. A phase that is only announced is a lead; bytes without a phase may be anything.
What can fool it: counters of read(2) and write(2) count sockets too; a rank that saves through a helper process moves no
bytes itself (only `activity` counts what the rank started).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from triage.facts.activity import Doing, activity, look_rates, rate
from triage.facts.clocks import log_sample
from triage.facts.evidence import Evidence
from triage.facts.job import step_follows
from triage.facts.ranktable import log_hits, rank_table
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Part, Provenance, Sample


@dataclass(frozen=True)
class Phase:
    """The signatures that open and close it, and the counters of which one must rise."""

    begin: str
    end: str
    counters: tuple[str, ...]


# Of a file that is mapped into memory only the storage's counters tell (proc(5), /proc/pid/io).
PHASES = {
    "checkpoint": Phase("checkpoint_save_begin", "checkpoint_save_end", ("wchar", "write_bytes")),
    "restore": Phase("checkpoint_load_begin", "checkpoint_load_end", ("rchar", "read_bytes")),
}


def open_phase(ev: Evidence) -> tuple[str, str] | None:
    """(phase, log line) of the last phase that began and has not ended, with no step known to follow it.

    Where nothing tells of steps (a restore before the first one) the phase stands: it is a lead until its bytes move.
    """
    sample = log_sample(ev)
    if sample is None:
        return None
    best: tuple[int, str, str] | None = None
    for name, phase in PHASES.items():
        begun, ended = log_hits(ev, phase.begin), log_hits(ev, phase.end)
        if not begun:
            continue
        line = _line(begun[-1])
        closed = max((_line(hit) for hit in ended), default=-1)
        if closed > line or step_follows(ev, sample, begun[-1]):
            continue
        if best is None or line > best[0]:
            best = (line, name, str(begun[-1].get("text", ""))[:120])
    return (best[1], best[2]) if best else None


def _line(hit: Mapping[str, object]) -> int:
    value = hit.get("line_no")
    return value if isinstance(value, int) else -1


def saving(ev: Evidence) -> tuple[dict[int, str], int]:
    """(rank -> how fast it moves the bytes of the open phase, number of ranks whose counters were seen)."""
    found = ev.derive(open_phase)
    if found is None:
        return {}, 0
    counters, floor = PHASES[found[0]].counters, ev.limit("busy_floor_bytes_per_s")
    by_looks, doing = look_rates(ev, counters), ev.derive(activity).of
    moving: dict[int, str] = {}
    told = 0
    for rank in sorted({*by_looks, *doing}):
        rates = [r for r in (by_looks.get(rank), _rate(doing.get(rank), counters)) if r is not None]
        told += bool(rates)
        if rates and max(rates) >= floor:
            moving[rank] = f"{max(rates) / 1e6:.3g} MB/s in its {found[0]} phase"
    return moving, told


def _rate(doing: Doing | None, counters: tuple[str, ...]) -> float | None:
    return rate(doing, counters) if doing else None


def told_by(ev: Evidence, ranks: list[int]) -> tuple[Provenance, ...]:
    """The log, and the looks and windows that tell of these ranks' bytes; a bounded number."""
    table, looks, doing = ev.derive(rank_table), ev.latest("ranks"), ev.derive(activity).of
    samples: dict[int, Sample] = {}
    log = log_sample(ev)
    for sample in (
        log,
        *(looks.get(table.node_of(rank) or "") for rank in ranks[:8]),
        *(doing[rank].sample for rank in ranks[:8] if rank in doing),
    ):
        if sample is not None:
            samples[id(sample)] = sample
    return ev.seen(*samples.values())


@fact("busy.parts", type="number", unit="ranks", parts="rank")
def parts(ev: Evidence) -> Fact:
    """Ranks that move the bytes of the phase that the log announces, between the looks or while we watched."""
    found = ev.derive(open_phase)
    if log_sample(ev) is None:
        return unknown("the job log could not be read")
    if found is None:
        return known(parts=[], text="the job log announces no checkpoint or restore that is still open")
    moving, told = ev.derive(saving)
    if not told:
        return unknown("no rank's I/O counters were seen in both looks")
    node_of = ev.derive(rank_table).node_of
    return known(
        parts=[Part("rank", node=node_of(rank), rank=rank, why=why) for rank, why in moving.items()],
        text=f"{len(moving)} ranks move bytes in the {found[0]} phase",
        provenance=told_by(ev, list(moving)),
    )
