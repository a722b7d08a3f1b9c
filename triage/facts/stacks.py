"""Where do the ranks that the others wait for stand in their program, and where do their peers?

From the probe `stacks` and the classes of playbooks/stacks.yaml. A stack says where a rank stands, never by itself that it
is stuck: that the job stands still is asked before. Only two things are read as more. A lock: its stack shows that it waits
for one in both of two dumps, or its interpreter lock is held by a thread that sleeps. A collective: PyTorch counts an
operation only after the call of NCCL has returned (notes/nccl-ras-and-logs.md 4.1), so a rank that "has not arrived" may
stand inside the call, or in one of a backend that keeps no record; it is then not held by its own program. So it is where
another thread of it is in one: a lock, a queue or the end of backward() in the main thread may be waiting for that thread.
What can fool it: a rank that moves from call to call (a loader that delivers slowly) and is seen in one of them, in both
dumps by chance; a node that lies about its own ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from triage.facts.claims import records_of
from triage.facts.collectives import spoken
from triage.facts.evidence import Evidence
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, other, unknown
from triage.model import Fact, Part, Provenance, Sample, StackGroup
from triage.readers.stacks import Place, place_of

# Places and calls of the kernel in which nobody waits for a device or for another rank, whatever else may hold him. Not among
# them: a checkpoint (it copies from the device), a lock (its holder may wait for the device), sockets (the store of
# torch.distributed), futexes, poll and sleeps (a program that polls an event of its device).
OF_THE_HOST = ("data_loader", "storage", "compile")
CALLS_OF_THE_HOST = frozenset(
    (
        "read", "write", "pread64", "pwrite64", "openat", "open", "fsync", "fdatasync", "getdents64", "statx", "newfstatat",
        "flock", "fcntl", "wait4", "waitid", "rename", "mkdir",
    )
)  # fmt: skip


@dataclass
class Seen:
    """What the probe `stacks` told, by rank; only of ranks that the node hosts."""

    asked: bool = False
    places: dict[int, Place] = field(default_factory=dict)
    still: dict[int, bool | None] = field(default_factory=dict)
    unseen: dict[int, str] = field(default_factory=dict)  # rank -> why there is no stack of it
    sample: dict[int, Sample] = field(default_factory=dict)


def stacks(ev: Evidence) -> Seen:
    """Read all answers once; to be called through `ev.derive`."""
    out, node_of = Seen(asked=bool(ev.of("stacks", status=None))), ev.derive(rank_table).node_of
    for sample in ev.of("stacks"):
        for row in records_of(sample):
            rank = row.get("rank") if isinstance(row, Mapping) else None
            if not isinstance(row, Mapping) or not isinstance(rank, int) or node_of(rank) != sample.node:
                continue
            place = place_of(row)
            if place is None:
                out.unseen.setdefault(rank, str(row.get("why") or "no stack was told"))
                continue
            still = row.get("still")
            out.places[rank], out.sample[rank] = place, sample
            out.still[rank] = still if isinstance(still, bool) else None
            out.unseen.pop(rank, None)
    return out


def on_the_host(place: Place) -> bool:
    """Does this place show by itself that the rank waits neither for its device nor for another rank?"""
    if place.communicates or place.verb == "sync":
        return False
    return place.cls in OF_THE_HOST or place.syscall in CALLS_OF_THE_HOST


def _spoken(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {spoken(ranks)}"


def _suspects(ev: Evidence) -> list[int]:
    return sorted({part.rank for part in other(ev, "waits.roots").parts if part.rank is not None})


def _told(ev: Evidence, ranks: Iterable[int]) -> tuple[Provenance, ...]:
    found = ev.derive(stacks).sample
    return ev.seen(*list({id(found[rank]): found[rank] for rank in ranks if rank in found}.values())[:8])


def _part(ev: Evidence, rank: int, why: str) -> Part:
    return Part("rank", node=ev.derive(rank_table).node_of(rank), rank=rank, why=why)


def _missing(ev: Evidence, ranks: Iterable[int]) -> str:
    """Why a stack of these is not known; "" if all are."""
    seen = ev.derive(stacks)
    if not seen.asked:
        return "no node was asked for stacks"
    lacking = [rank for rank in ranks if rank not in seen.places]
    if not lacking:
        return ""
    why = next((f" ({seen.unseen[rank]})" for rank in lacking if rank in seen.unseen), "")
    return f"there is no stack of {_spoken(lacking)}{why}"


@fact("seen.stacks", type="number", unit="ranks")
def seen_stacks(ev: Evidence) -> Fact:
    """Ranks whose stack was read. Unknown if no node was asked for one."""
    seen = ev.derive(stacks)
    if not seen.asked:
        return unknown("no node was asked for stacks")
    return known(len(seen.places), provenance=_told(ev, seen.places))


@fact("stacks.where", type="number", unit="ranks", parts="rank")
def where(ev: Evidence) -> Fact:
    """Ranks that the others wait for and where each stands in its program: the class and its own innermost function."""
    suspects, seen = _suspects(ev), ev.derive(stacks)
    shown = [rank for rank in suspects if rank in seen.places]
    if not shown:
        return unknown(_missing(ev, suspects) or "no rank is known that the others wait for")
    words: dict[str, list[int]] = {}
    for rank in shown:
        words.setdefault(seen.places[rank].words(), []).append(rank)
    text = "; ".join(f"by its stack {_spoken(ranks)}: {said}" for said, ranks in list(words.items())[:3])
    return known(parts=[_part(ev, r, seen.places[r].words()) for r in shown], text=text, provenance=_told(ev, shown))


@fact("stacks.told", type="text")
def told(ev: Evidence) -> Fact:
    """A sentence on where the ranks stand that the others wait for; it says so where their stacks were not read."""
    found = other(ev, "stacks.where")
    if not found.known:
        return known("Where it stands in its program was not seen.")
    return known(found.text[:1].upper() + found.text[1:] + ".", provenance=found.provenance)


@fact("stacks.class", type="text")
def shared_class(ev: Evidence) -> Fact:
    """The kind of place that all ranks that the others wait for stand in. Unknown if they differ, or one was not read."""
    suspects, seen = _suspects(ev), ev.derive(stacks)
    missing = _missing(ev, suspects)
    if missing or not suspects:
        return unknown(missing or "no rank is known that the others wait for")
    classes = sorted({seen.places[rank].cls for rank in suspects})
    if len(classes) > 1 or not classes[0]:
        return unknown(f"their stacks are of different kinds ({', '.join(c or 'unknown' for c in classes)})")
    return known(classes[0], provenance=_told(ev, suspects))


def _of(ev: Evidence, test: Callable[[Place], bool], both_dumps: bool) -> Fact:
    """Suspects in a place of this kind. Unknown where none is, but a stack is missing or was seen only once."""
    suspects, seen = _suspects(ev), ev.derive(stacks)
    inside = [rank for rank in suspects if rank in seen.places and test(seen.places[rank])]
    sure = [r for r in inside if not both_dumps or seen.still[r] is True or seen.places[r].held]
    missing = _missing(ev, suspects)
    if not sure and (missing or not suspects):
        return unknown(missing or "no rank is known that the others wait for")
    if not sure and any(seen.still[rank] is None for rank in inside):
        return unknown(f"{_spoken(inside)} was seen once only")
    return known(parts=[_part(ev, r, seen.places[r].words()) for r in sure], provenance=_told(ev, suspects))


@fact("stacks.host_lock", type="number", unit="ranks", parts="rank")
def host_lock(ev: Evidence) -> Fact:
    """Ranks that the others wait for and that stand in a lock of their own: interpreter, thread or file lock, twice alike.

    Not where another thread of the rank is in a collective: it may hold that lock, and then the rank waits for its peers.
    """
    return _of(ev, lambda place: place.cls == "lock" and not place.aside, True)


@fact("stacks.in_collective", type="number", unit="ranks", parts="rank")
def in_collective(ev: Evidence) -> Fact:
    """Ranks that the others wait for, but that are inside a call of communication by the stack of one of their threads."""
    return _of(ev, lambda place: place.communicates, False)


@fact("stacks.odd", type="number", unit="ranks", parts="rank")
def odd(ev: Evidence) -> Fact:
    """Ranks that the others wait for and that stand in another kind of place than all peers whose stacks were read."""
    suspects, seen = _suspects(ev), ev.derive(stacks)
    peers = sorted(set(seen.places) - set(suspects))
    classes = {seen.places[rank].cls for rank in peers}
    missing = _missing(ev, suspects)
    if missing or not suspects:
        return unknown(missing or "no rank is known that the others wait for")
    if len(classes) != 1 or "" in classes:
        return unknown("no peer's stack was read" if not peers else "the peers stand in different kinds of places")
    (usual,) = classes
    parts = [
        _part(ev, rank, f"{seen.places[rank].words()}; its peers are of the kind {usual}")
        for rank in suspects
        if seen.places[rank].cls and seen.places[rank].cls != usual
    ]
    return known(parts=parts, provenance=_told(ev, [*suspects, *peers]))


def groups(ev: Evidence) -> tuple[StackGroup, ...]:
    """Ranks whose main threads stand at one place, suspects first: what a report folds into a tree."""
    seen, suspects = ev.derive(stacks), set(_suspects(ev))
    found: dict[tuple[bool, str, str, tuple[str, ...]], list[int]] = {}
    for rank, place in sorted(seen.places.items()):
        key = (rank not in suspects, place.cls, place.held or place.says, place.frames)
        found.setdefault(key, []).append(rank)
    return tuple(
        StackGroup(tuple(ranks), "peer" if peer else "suspect", cls, says, tuple(reversed(frames)))
        for (peer, cls, says, frames), ranks in sorted(found.items(), key=lambda item: (item[0][0], item[1]))
    )
