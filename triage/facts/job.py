"""What is known of the job itself: its state, attempt, age, deadline, and whether it says that it is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triage.facts.attempt import restart_of
from triage.facts.clocks import log_sample, log_time
from triage.facts.evidence import Evidence
from triage.facts.lastwords import cancelled
from triage.facts.ranktable import log_hits, rank_table
from triage.facts.registry import fact, known, unknown
from triage.facts.steps import last_record_end
from triage.model import Fact, Sample


@fact("job.state", type="text")
def state(ev: Evidence) -> Fact:
    """The scheduler's word on the job: running, pending, suspended, completing, ended."""
    if ev.job.state in ("", "unknown"):
        return unknown("no scheduler told the state of the job")
    return known(ev.job.state)


@fact("job.attempt", type="number")
def attempt(ev: Evidence) -> Fact:
    """How often this job id was restarted before this attempt, by the scheduler, else by the ranks' environment."""
    if ev.job.attempt.restart is not None:
        return known(ev.job.attempt.restart)
    told = [restart_of(row.env) for row in ev.derive(rank_table).rows.values()]
    restarts = [count for count in told if count is not None]
    if not restarts:
        return unknown("neither the scheduler nor a rank process tells how often the job was restarted")
    return known(max(restarts), provenance=ev.seen(*ev.of("ranks")[:8]))


@fact("job.attempt_now", type="bool")
def attempt_now(ev: Evidence) -> Fact:
    """Is what the nodes show of the attempt asked about: does it run, and did its rank processes begin in it?

    No where it has ended, where most processes began before it, and where the restart count that they wear is another. What
    the nodes show then counts for no fact (cut.py): it may be another job's, and accuses nobody.
    """
    span, shown = ev.span, [s for s in ev.seen_samples if s.probe == "ranks" and s.status == "ok"]
    if span.now is None:
        return unknown(span.says, provenance=ev.seen(*shown[:8]))
    return known(span.now, text=span.says, provenance=ev.seen(*shown[:8]))


@fact("job.over", type="bool")
def over(ev: Evidence) -> Fact:
    """Has the attempt asked about ended, by the scheduler's word? Then only dated evidence counts."""
    if not ev.span.over and ev.job.state in ("", "unknown"):
        return unknown("no scheduler told the state of the job")
    return known(ev.span.over, text=ev.span.says if ev.span.over else "")


@fact("job.ended_by", type="text")
def ended_by(ev: Evidence) -> Fact:
    """Why the scheduler ended this attempt, by its line in the job log: time limit, preemption, cancelled, …; else "none"."""
    sample = log_sample(ev)
    if sample is None:
        return unknown("the job log could not be read")
    why = ev.derive(cancelled)
    if why is None:
        return known("none", provenance=ev.seen(sample))
    return known(why, text=f"the scheduler ended it ({why})", provenance=ev.seen(sample))


@fact("job.age_s", type="number", unit="s")
def age(ev: Evidence) -> Fact:
    """How long this attempt has been running, by the scheduler, else by its oldest rank process."""
    started = ev.job.attempt.started
    if started is None:
        starts = [row.start_s for row in ev.derive(rank_table).rows.values() if row.start_s is not None]
        started = min(starts) if starts else None
    if started is None:
        return unknown("neither the scheduler nor a rank process tells when the attempt began")
    return known(max(0.0, (ev.job.attempt.ended or ev.observed) - started))


@fact("job.deadline_s", type="number", unit="s")
def deadline(ev: Evidence) -> Fact:
    """Seconds until the scheduler ends the job at its wall-time limit."""
    if ev.job.deadline is None:
        return unknown("no wall-time limit is known")
    return known(ev.job.deadline - ev.observed)


def step_follows(ev: Evidence, sample: Sample, hit: Mapping[str, Any]) -> bool | None:
    """Does a training step follow this line of the log? None: nothing tells.

    By the order of the lines, which needs no clock and no date; else by the log's own times; where the log holds no step
    line that we know, by the end of the newest step record.
    """
    iterations = sample.data.get("iterations") or {}
    series = iterations.get("series") or []
    line, last_line = hit.get("line_no"), iterations.get("last_line_no")
    at = hit.get("last_at")
    if series and isinstance(line, int) and isinstance(last_line, int):
        return line < last_line
    if series:
        step = series[-1][1]
        return at < step if isinstance(step, int | float) and isinstance(at, int | float) else None
    ours, record = log_time(ev, at), ev.derive(last_record_end)
    # A record is written when its step ends and the line is printed after it: within a second they are one moment.
    return ours + 1.0 < record[0] if ours is not None and record is not None else None


def _another_finished(ev: Evidence) -> bool:
    """Does the log say of another attempt that it was done?"""
    return any(
        isinstance(hit, Mapping) and hit.get("id") == "training_finished"
        for sample in ev.seen_samples
        if sample.probe == "joblog" and sample.status == "ok"
        for hit in sample.data.get("hits") or ()
    )


@fact("job.finished", type="bool")
def finished(ev: Evidence) -> Fact:
    """Has the job itself said that training is over (in its log, after the last step)?"""
    sample = log_sample(ev)
    if sample is None:
        return unknown("the job log could not be read")
    done = log_hits(ev, "training_finished")
    if not done:
        text = "the job log holds the end of an earlier attempt only" if _another_finished(ev) else ""
        return known(False, text=text, provenance=ev.seen(sample))
    last = done[-1]
    follows = step_follows(ev, sample, last)
    if follows is None:
        return unknown("the job log says that training is done, and nothing tells whether steps followed that line")
    if follows:
        return known(False, text="the job log says that training was done; steps follow", provenance=ev.seen(sample))
    return known(True, text=f"the job log says: {str(last.get('text', ''))[:100]}", provenance=ev.seen(sample))
