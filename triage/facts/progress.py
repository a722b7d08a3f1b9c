"""Does the job advance? The rules of DESIGN section 2, "Progress".

One positive sign is yes. No needs time: the last progress is older than max(factor x T0, floor); or it is older than the
floor, and between the looks everything that must move stood still for max(window, 3 x T0). Otherwise unknown. (Standing
still alone is not enough: one evaluation or long step of a job of short steps looks just like it.) CPU time, utilisation,
log or process activity never count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from triage.facts.clocks import log_sample, log_shift
from triage.facts.evidence import Evidence
from triage.facts.fabric import Fabric as Fabric
from triage.facts.fabric import fabric as fabric
from triage.facts.glance import after_the_looks, only_look, since_we_began
from triage.facts.launches import risen
from triage.facts.pace import job_change, job_series, last_step_end, rank_paces
from triage.facts.ports import ports
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, unknown
from triage.facts.steps import last_steps
from triage.model import Fact, Sample


@dataclass(frozen=True)
class Pulse:
    """What both looks say together; or one, of steps that ended while it was made."""

    yes: tuple[str, ...] = ()  # positive signs
    still: tuple[str, ...] = ()  # what must move and did not, over a window long enough
    last: tuple[float, str] | None = None  # end of the last step on our clock, and its source
    age_s: float | None = None
    limit_s: float = 0.0  # past this age the answer is no
    provenance: tuple[Sample, ...] = ()


def pulse(ev: Evidence) -> Pulse:
    found = ev.derive(job_change)
    t0 = found.healthy if found else None
    limit = ev.limit("progress_unknown_s")
    if t0 is not None:
        limit = max(ev.limit("progress_factor") * t0, ev.limit("progress_floor_s"))
    yes, seen = _steps_between_looks(ev)
    moved, still, nics = _payload(ev, t0)
    yes += moved
    for sign in (since_we_began, after_the_looks, risen):
        ended, told = sign(ev)
        yes, seen = yes + ended, seen + told
    last = last_step_end(ev)
    if last is not None:
        seen.append(last[2])
    age = ev.observed - last[0] if last else None
    if age is None and not yes:
        age = _silent_log_age(ev)
    return Pulse(tuple(yes), tuple(still), last[:2] if last else None, age, limit, tuple(seen + nics))


def _steps_between_looks(ev: Evidence) -> tuple[list[str], list[Sample]]:
    """Did the step number rise between the looks, by the log or by the ranks' records?"""
    signs: list[str] = []
    seen: list[Sample] = []
    rose, watched = 0, 0
    for a, b in ev.both_looks("steps").values():
        before, after = last_steps(ev, a), last_steps(ev, b)
        up = [rank for rank in after if rank in before and after[rank] > before[rank]]
        watched += sum(rank in before for rank in after)
        rose += len(up)
        seen += [a, b] if up else []
    # Ranks of a synchronous job advance together: a minority that claims to is a claim, and no progress of the job.
    if rose and 2 * rose >= watched:
        signs.append(f"step records of {rose} ranks advanced between the looks")
    for node, (a, b) in ev.both_looks("joblog").items():
        first, second = _log_step(a), _log_step(b)
        if first is not None and second is not None and second > first:
            signs.append(f"the job log went from step {first} to {second}")
            seen += [a, b]
            break
        del node
    return signs, seen


def _log_step(sample: Sample) -> int | None:
    series = sample.data.get("iterations", {}).get("series") or []
    last = series[-1] if series and isinstance(series[-1], list) else None
    return last[0] if last and isinstance(last[0], int) else None


def _payload(ev: Evidence, t0: float | None) -> tuple[list[str], list[str], list[Sample]]:
    """Payload bytes on the job's own fabric NICs between the looks."""
    quiet = 0
    shortest: float | None = None
    used: list[Sample] = []
    for node, (a, b) in ev.both_looks("nic").items():
        if a.at is None or b.at is None or b.at <= a.at:
            continue
        window = b.at - a.at
        moved = [
            count for port in ev.derive(ports).get(node, ()) if port.the_jobs and (count := port.growth()) is not None
        ]
        if not moved:
            continue
        grew = sum(moved)
        used += [a, b]
        if grew / window >= ev.limit("payload_floor_bytes_per_s"):
            return [f"{grew / window / 1e6:.2g} MB/s of payload on the fabric of {node}"], [], [a, b]
        quiet += 1
        shortest = window if shortest is None else min(shortest, window)
    # Standing still counts only when every node that hosts ranks was watched, for long enough to tell.
    hosting = set(ev.derive(rank_table).node_ranks)
    long_enough = shortest is not None and t0 is not None and shortest >= ev.limit("still_factor") * t0
    if quiet and long_enough and quiet >= len(hosting) and ev.derive(_nothing_hidden):
        return [], [f"no payload on the fabric of {quiet} nodes for {shortest:.3g}s"], used
    return [], [], used


def _nothing_hidden(ev: Evidence) -> bool:
    """Did every node of the job answer? A silent node may carry the traffic that we do not see."""
    return bool(ev.job.nodes) and {s.node for s in ev.of("contact")} >= {n.name for n in ev.job.nodes}


def _silent_log_age(ev: Evidence) -> float | None:
    """Without any dated step: the age of the attempt, when a job log is there and holds no step."""
    sample = log_sample(ev)
    started = ev.job.attempt.started
    if sample is None or started is None or ev.derive(job_series) is not None:
        return None
    return ev.observed - started


@fact("progress.advancing", type="bool")
def advancing(ev: Evidence) -> Fact:
    """Does the job make progress? One positive sign is yes; no needs time; otherwise unknown."""
    if ev.span.over:
        return unknown("the attempt has ended")
    found = ev.derive(pulse)
    provenance = ev.seen(*found.provenance[:8])
    too_old = found.age_s is not None and found.age_s > found.limit_s
    if found.yes:
        # Ranks that try again and again launch as well, and storage moves bytes: steps that are overdue speak against it.
        lesser = all("payload" in sign or "launches" in sign for sign in found.yes)
        against = ("step times",) if too_old and lesser else ()
        return known(True, text=found.yes[0], provenance=provenance, contradicted_by=against)
    stood_still = bool(found.still) and found.age_s is not None and found.age_s > ev.limit("progress_floor_s")
    if too_old or stood_still:
        source = found.last[1] if found.last else "job log"
        return known(
            False,
            text=f"no step for {found.age_s:.0f}s by the {source} (limit {found.limit_s:.0f}s)"
            + (f"; {found.still[0]}" if found.still else ""),
            provenance=provenance,
        )
    if found.age_s is not None:
        return unknown(f"last step {found.age_s:.0f}s ago, which is under the limit of {found.limit_s:.0f}s")
    if only_look(ev) and ev.of("contact"):
        return unknown("no dated step was seen, and one look shows nothing move")
    return unknown("no step, record, launch or fabric counter was seen twice")


@fact("progress.traffic_only", type="bool")
def traffic_only(ev: Evidence) -> Fact:
    """Is traffic on the fabric the only sign of progress, while the last step is older than any step may take?

    Storage over the same port, or another job's share of it, moves bytes as well; so does an evaluation without step lines.
    """
    found = ev.derive(pulse)
    too_old = found.age_s is not None and found.age_s > found.limit_s
    only = bool(found.yes) and too_old and all("payload" in sign for sign in found.yes)
    text = f"{found.yes[0]}, and no step for {found.age_s:.0f}s" if only and found.age_s is not None else ""
    return known(only, text=text, provenance=ev.seen(*found.provenance[:8]))


@fact("progress.stall_age_s", type="number", unit="s")
def stall_age(ev: Evidence) -> Fact:
    """How long ago the last step ended (0 while the job advances)."""
    found = ev.derive(pulse)
    if found.yes:
        return known(0.0)
    if found.age_s is None:
        return unknown("no dated sign of life was seen")
    return known(max(0.0, found.age_s))


def onset_interval(ev: Evidence) -> tuple[float, float] | None:
    """(last sign of life, first sign of stall) on our clock; None while nothing dated is known or the job advances."""
    found = ev.derive(pulse)
    if found.last is None or found.yes:
        return None
    change = ev.derive(job_change)
    step = change.healthy if change else 0.0
    looks = [s.received for s in ev.samples if s.look == "A" and s.received is not None]
    latest = found.last[0] + max(ev.limit("still_factor") * step, 1.0)
    return found.last[0], min([latest, *looks]) if looks and min(looks) > found.last[0] else latest


@fact("progress.onset", type="list", unit="epoch s")
def onset(ev: Evidence) -> Fact:
    """When the stall began: an interval [last sign of life, first sign of stall] on our clock."""
    interval = ev.derive(onset_interval)
    if interval is None:
        return unknown("the job advances, or no dated sign of life was seen")
    return known(list(interval))


@fact("progress.last_step", type="number")
def last_step(ev: Evidence) -> Fact:
    """The number of the last step that was logged or recorded."""
    series = ev.derive(job_series)
    numbers: list[int] = [n for s in ev.of("steps") for n in last_steps(ev, s).values()]
    if series and series.last_step is not None:
        numbers.append(series.last_step)
    return known(int(max(numbers))) if numbers else unknown("no step was logged or recorded")


@fact("progress.collective_ever", type="bool")
def collective_ever(ev: Evidence) -> Fact:
    """Has any collective completed in this attempt: a step, a record, or a done entry in a dump?"""
    series = ev.derive(job_series)
    if series is not None:
        return known(True, text=f"{len(series.steps)} steps were made ({series.source})")
    if any(pace.total for pace in ev.derive(rank_paces).values()):
        return known(True, text="ranks recorded steps")
    done = _done_entries(ev)
    if done:
        return known(True, text="flight records hold completed collectives")
    if done is not None and ev.derive(log_shift) is not None:
        return known(False, text="no step in the job log and no completed collective in the dumps")
    return unknown("neither steps nor dumps tell whether a collective ever completed")


def _done_entries(ev: Evidence) -> bool | None:
    """Do the dumps show a completed collective? None without usable dumps."""
    seen = False
    for sample in ev.of("flight_recorder"):
        for entry in sample.data.get("ranks") or ():
            record = entry.get("record") if isinstance(entry, Mapping) else None
            if not isinstance(record, Mapping) or entry.get("stale"):
                continue
            seen = True
            for group in record.get("groups") or ():
                last = group.get("last_done") if isinstance(group, Mapping) else None
                first = group.get("first_open") if isinstance(group, Mapping) else None
                if (isinstance(last, int) and last > 0) or (isinstance(first, int) and first > 1):
                    return True
    return False if seen else None
