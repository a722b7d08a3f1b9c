"""What the watchdogs' lines in the job log come to: who waited, and whom the waiting ranks wait for.

The road where flight records are missing (notes/nccl-ras-and-logs.md 4.1). The ranks that print a time-out are those that
waited. The suspect shows another call at the same number, or tells (in the dump line that all ranks print) that it has never
enqueued that number. Who prints nothing at all is a lead and never named.
What can fool it: "last enqueued" is counted when the NCCL call returns, so a rank that is stuck inside that call looks as one
that never came to it; a log that lacks the lines of some ranks; ranks whose programs went different ways before, so that one
number is another call (then the minority is named, or both sides are where there is none).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from triage.facts.collectives import spoken
from triage.facts.evidence import Evidence
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, unknown
from triage.facts.watchtable import Group, Line, Watch, behind, call, sides, watch
from triage.model import Fact, Part

# Heartbeats are counted in whole looks of a second or two: within this, two ranks were first together.
TOGETHER_S = 2.0


def _part(ev: Evidence, rank: int, why: str) -> Part:
    node = ev.derive(rank_table).node_of(rank) or ev.derive(watch).hosts.get(rank)
    return Part("rank", node, rank, why=why)


def _told(ev: Evidence, parts: Mapping[int, str], text: str) -> Fact:
    w = ev.derive(watch)
    return known(
        parts=[_part(ev, rank, why) for rank, why in sorted(parts.items())],
        text=text if parts else "",
        provenance=ev.seen(*w.samples[:8]),
    )


def _none(ev: Evidence, need_groups: bool = True) -> Fact | None:
    """Why nothing can be said, or None where something can."""
    w = ev.derive(watch)
    if not w.samples:
        return unknown("the job log could not be read")
    if not w.lines and (need_groups or not w.stuck):
        return unknown(
            w.why or "no watchdog of PyTorch says anything in the job log", provenance=ev.seen(*w.samples[:8])
        )
    if need_groups and not any(group.at for group in w.groups):
        why = w.why or "the watchdogs' lines tell of no collective that timed out"
        return unknown(why, provenance=ev.seen(*w.samples[:8]))
    if need_groups and w.left_out:
        return unknown("more watchdogs' lines than can be compared", provenance=ev.seen(*w.samples[:8]))
    return None


def _many(ranks: Iterable[int]) -> str:
    have = sorted(set(ranks))
    return f"rank {have[0]}" if len(have) == 1 else f"ranks {spoken(have)}"


def waiting(ev: Evidence) -> set[int]:
    """Ranks that gave up waiting, in whichever group. To be called through `ev.derive`."""
    return {line.rank for line in ev.derive(watch).lines if line.kind == "timeout"}


@fact("watchdog.table", type="number", unit="ranks", parts="rank")
def table(ev: Evidence) -> Fact:
    """Ranks whose watchdog told of a time-out, or how far it had come: group, number, call, enqueued, completed."""
    missing = _none(ev, need_groups=False)
    if missing is not None:
        return missing
    w = ev.derive(watch)
    told: dict[int, str] = {}
    for line in sorted(w.lines, key=lambda line: (line.kind != "timeout", line.seq or 0)):
        told.setdefault(line.rank, _says(line))
    gave_up = ev.derive(waiting)
    text = f"{len(told)} ranks say how far they had come, {len(gave_up)} of them gave up waiting"
    return _told(ev, told, text)


def _says(line: Line) -> str:
    if line.kind == "timeout":
        return f"gave up waiting in {call(line.sig) if line.sig else 'a collective'}" + (
            f", number {line.seq}" if line.seq is not None else ""
        )
    at = f" at number {line.seq}" if line.seq is not None else ""
    return f"had enqueued {line.enqueued} and completed {line.completed}{at}"


@fact("watchdog.mismatch", type="number", unit="ranks", parts="rank")
def mismatch(ev: Evidence) -> Fact:
    """Ranks whose call differs from that of their peers at one number of one group, by the watchdogs' lines.

    The minority; both sides where nothing separates them (watchdog.mismatch_tied).
    """
    missing = _none(ev)
    if missing is not None:
        return missing
    odd, text, _ = ev.derive(_mismatch)
    if not odd:
        return known(parts=[], text="the watchdogs' lines agree at each number", provenance=_seen(ev))
    return _told(ev, odd, text)


@fact("watchdog.mismatch_tied", type="bool")
def mismatch_tied(ev: Evidence) -> Fact:
    """Does nothing separate the sides of that mismatch, so that its ranks are involved and none is the culprit?"""
    missing = _none(ev)
    if missing is not None:
        return missing
    odd, text, tied = ev.derive(_mismatch)
    return known(bool(odd) and tied, text=text if tied else "", provenance=_seen(ev))


@fact("watchdog.mismatch_named", type="number", unit="ranks", parts="rank")
def mismatch_named(ev: Evidence) -> Fact:
    """The minority of that mismatch; nobody where nothing separates its sides."""
    missing = _none(ev)
    if missing is not None:
        return missing
    odd, text, tied = ev.derive(_mismatch)
    return _told(ev, {} if tied else odd, text)


def _mismatch(ev: Evidence) -> tuple[dict[int, str], str, bool]:
    """(rank -> why, the whole as a sentence, tied) of the first group whose members' calls differ."""
    for group in ev.derive(watch).groups:
        found = sides(group)
        if found is None:
            continue
        seq, told = found
        largest = told[0][1]
        # Whoever printed nothing could be on either side: the majority is one of all members, not of those that printed.
        tied = 2 * len(largest) <= max(group.least, len(group.at))
        odd = {
            rank: f"at number {seq} of {group.label()} it called {call(sig)}, others {_others(told, sig)}"
            for sig, ranks in (told if tied else told[1:])
            for rank in ranks
        }
        text = f"at number {seq} of {group.label()}: " + "; ".join(
            f"{_many(ranks)} called {call(sig)}" for sig, ranks in told[:4]
        )
        return odd, text, tied
    return {}, "", False


def _others(told: list[tuple[str, frozenset[int]]], sig: str) -> str:
    return " or ".join(call(other) for other, _ in told if other != sig)[:120]


def _seen(ev: Evidence) -> tuple:  # type: ignore[type-arg]
    return ev.seen(*ev.derive(watch).samples[:8])


# ---------------------------------------------------------------- who has not come


def late(ev: Evidence) -> dict[int, tuple[Group, Line]]:
    """rank -> (group, its line) of those that had not enqueued what others gave up at. Through `ev.derive`."""
    out: dict[int, tuple[Group, Line]] = {}
    for group in ev.derive(watch).groups:
        for rank, line in behind(group, ev.derive(watch).lines).items():
            out.setdefault(rank, (group, line))
    return out


@fact("watchdog.behind", type="number", unit="ranks", parts="rank")
def behind_fact(ev: Evidence) -> Fact:
    """Ranks that had not enqueued the number at which all others of their group gave up, by their own line.

    Only where no rank gave up in another group, and every member printed a line.
    """
    missing = _none(ev)
    if missing is not None:
        return missing
    found = ev.derive(late)
    parts = {
        rank: f"had enqueued {line.enqueued} when others of {group.label()} gave up at {group.seq}: it had not come there, "
        "or is stuck inside that very call"
        for rank, (group, line) in found.items()
    }
    doubt = _disagreeing(ev, set(parts))
    text = f"{_many(parts)} had not enqueued what the others waited in" if parts else ""
    told = _told(ev, parts, text)
    if not doubt:
        return told
    return known(parts=told.parts, text=text, provenance=told.provenance, contradicted_by=doubt)


def _disagreeing(ev: Evidence, named: set[int]) -> tuple[str, ...]:
    """A desync report that names others than the counts do."""
    found = ev.derive(_desync)
    if isinstance(found, dict) and found and named and set(found) != named:
        return (f"the desync report, which names {_many(found)}",)
    return ()


@fact("watchdog.elsewhere", type="number", unit="ranks", parts="rank")
def elsewhere(ev: Evidence) -> Fact:
    """Of the ranks that are behind: those that waited in a gloo (CPU) collective meanwhile, by the error that ended it.

    Only where that is so of all that are behind and every other member of the group is known to have waited: then they
    waited for each other.
    """
    missing = _none(ev)
    if missing is not None:
        return missing
    w, found = ev.derive(watch), ev.derive(late)
    parts = {}
    for rank, (group, line) in found.items():
        told = w.gloo.get(rank)
        if told is not None and told[0] == line.sample and told[1] > (line.line_no or 0):
            parts[rank] = f"waited in a gloo collective while the others waited in {group.label()} at {group.seq}"
    if set(parts) != set(found):
        return known(parts=[], provenance=_seen(ev))
    text = f"{_many(parts)} waited in a gloo collective, all others in NCCL"
    return _told(ev, parts, text)


@fact("watchdog.victims", type="number", unit="ranks", parts="rank")
def victims(ev: Evidence) -> Fact:
    """Ranks that gave up waiting, and that neither differ from their peers nor are behind."""
    missing = _none(ev, need_groups=False)
    if missing is not None:
        return missing
    odd, _, _ = ev.derive(_mismatch)
    apart = {*odd, *ev.derive(late)}
    told = {
        line.rank: _says(line) for line in ev.derive(watch).lines if line.kind == "timeout" and line.rank not in apart
    }
    return _told(ev, told, f"{_many(told)} waited" if told else "")


@fact("watchdog.silent", type="number", unit="ranks", parts="rank")
def silent(ev: Evidence) -> Fact:
    """Ranks of the default group of which no watchdog says anything, though their output is in the log: leads, no culprits."""
    missing = _none(ev)
    if missing is not None:
        return missing
    w = ev.derive(watch)
    whole = next((g for g in w.groups if g.at and all(place == rank for rank, place in g.places.items())), None)
    if whole is None:
        return unknown("no time-out is told of the group of all ranks, and who belongs to the others is not")
    world = max(whole.least, max(w.heard, default=-1) + 1) if whole.world is None else whole.world
    quiet = set(range(world)) - w.ranks()
    if quiet - w.heard:
        return unknown(
            f"whether the log holds the output of {_many(quiet - w.heard)} is not known", provenance=_seen(ev)
        )
    parts = dict.fromkeys(quiet, f"no watchdog's line of it, though others gave up at {whole.seq}")
    return _told(ev, parts, f"{_many(parts)} printed nothing of it" if parts else "")


@fact("watchdog.desync", type="number", unit="ranks", parts="rank")
def desync(ev: Evidence) -> Fact:
    """Ranks that every desync report names as not having joined, and that did not give up waiting themselves."""
    missing = _none(ev)
    if missing is not None:
        return missing
    found = ev.derive(_desync)
    if isinstance(found, str):
        return unknown(found, provenance=_seen(ev))
    return _told(ev, found, f"the desync report says that {_many(found)} had not joined" if found else "")


def _desync(ev: Evidence) -> dict[int, str] | str:
    """rank -> why, or why it cannot be said."""
    w = ev.derive(watch)
    if not w.desync:
        return "no desync report in the log (it takes TORCH_NCCL_DESYNC_DEBUG=1)"
    gave_up = [group for group in w.groups if group.at]
    if len(gave_up) != 1 or not all(place == rank for rank, place in gave_up[0].places.items()):
        return "several groups gave up, and a desync report does not say which it is of"
    group = gave_up[0]
    # A report is what the store held when that rank gave up: a later one lacks those that came in between.
    named = frozenset.intersection(*w.desync) - set(group.at)
    if 2 * len(named) >= max(group.least, 1):
        return "the desync report names as many ranks as it leaves"
    if unheard := set(range(group.least)) - named - set(group.at):
        return f"whether {_many(unheard)} waited is not told, and a report goes by numbers alone"
    return dict.fromkeys(named, "the desync report says that it had not joined")


@fact("watchdog.all_joined", type="bool")
def all_joined(ev: Evidence) -> Fact:
    """Have all members enqueued the number that timed out, completed the one before, and called the same?"""
    missing = _none(ev)
    if missing is not None:
        return missing
    w = ev.derive(watch)
    gave_up = [group for group in w.groups if group.at]
    if len(gave_up) != 1:
        return unknown("several groups gave up", provenance=_seen(ev))
    group = gave_up[0]
    seq = group.seq
    if seq is None:
        return unknown("the lines are of a release that tells no numbers", provenance=_seen(ev))
    if sides(group) is not None or ev.derive(late):
        return known(False, provenance=_seen(ev))
    if group.world is None:
        return unknown("how many ranks the group has is not known", provenance=_seen(ev))
    members = set(range(group.world))
    if {line.seq for line in group.at.values()} != {seq}:
        return unknown("its members gave up at different numbers", provenance=_seen(ev))
    counted = {
        rank
        for rank, line in group.counts.items()
        if line.enqueued is not None and line.enqueued >= seq and line.completed == seq - 1
    }
    if not members <= counted:
        absent = members - counted
        return unknown(f"no line tells that {_many(absent)} had come to number {seq}", provenance=_seen(ev))
    text = f"all {group.world} members had enqueued number {seq} and completed {seq - 1}"
    return known(True, text=text, provenance=_seen(ev))


# ---------------------------------------------------------------- heartbeats


@fact("watchdog.heartbeat", type="number", unit="ranks", parts="rank")
def heartbeat(ev: Evidence) -> Fact:
    """Ranks whose heartbeat monitor was first to find its own watchdog stuck (a CUDA call, or the interpreter's lock)."""
    w = ev.derive(watch)
    if not w.samples:
        return unknown("the job log could not be read")
    if not w.stuck:
        return known(parts=[], provenance=_seen(ev))
    if any(at is None for at, _ in w.stuck):
        if len({rank for _, ranks in w.stuck for rank in ranks}) == 1:
            return _stuck(ev, w, set(w.stuck[0][1]))
        return unknown("heartbeat lines of several ranks, without a time that orders them", provenance=_seen(ev))
    first = min(at for at, _ in w.stuck if at is not None)
    return _stuck(ev, w, {r for at, ranks in w.stuck if at is not None and at <= first + TOGETHER_S for r in ranks})


def _stuck(ev: Evidence, w: Watch, ranks: set[int]) -> Fact:
    why = "its heartbeat monitor says that its watchdog got stuck: a CUDA call that hangs, or the interpreter's lock"
    return _told(ev, dict.fromkeys(ranks, why), f"{_many(ranks)}: {why}")


# ---------------------------------------------------------------- for the verdicts


@fact("watchdog.not_come", type="number", unit="ranks", parts="rank")
def not_come(ev: Evidence) -> Fact:
    """The rank that has not come where others gave up: by the counts of its own line, else by the desync reports."""
    missing = _none(ev)
    if missing is not None:
        return missing
    counted = behind_fact(ev)
    counted = counted if counted.parts else desync(ev)
    if len(counted.parts) > 1:
        # One of several may wait for another of them, somewhere that no line tells of.
        return unknown(f"{_many(p.rank or 0 for p in counted.parts)} had not come, and one may wait for the other")
    return counted


@fact("watchdog.group_named", type="bool")
def group_named(ev: Evidence) -> Fact:
    """Do the lines name the groups that gave up so that they are the same group on every rank (torch 2.5 and newer)?"""
    missing = _none(ev)
    if missing is not None:
        return missing
    return known(all(group.named for group in ev.derive(watch).groups if group.at), provenance=_seen(ev))
