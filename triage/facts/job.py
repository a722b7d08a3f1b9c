"""What is known of the job itself: its state, attempt, age, deadline, and whether it says that it is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triage.facts.clocks import log_sample, log_time
from triage.facts.evidence import Evidence
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
    """How often this job id was restarted before this attempt."""
    restarts = {
        int(value)
        for row in ev.derive(rank_table).rows.values()
        if (value := row.env.get("TORCHELASTIC_RESTART_COUNT", row.env.get("SLURM_RESTART_COUNT", ""))).isdigit()
    }
    if ev.job.attempt.restart or not restarts:
        return known(ev.job.attempt.restart)
    return known(max(restarts))


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


@fact("job.finished", type="bool")
def finished(ev: Evidence) -> Fact:
    """Has the job itself said that training is over (in its log, after the last step)?"""
    sample = log_sample(ev)
    if sample is None:
        return unknown("the job log could not be read")
    done = log_hits(ev, "training_finished")
    if not done:
        return known(False, provenance=ev.seen(sample))
    last = done[-1]
    at, started = log_time(ev, last.get("last_at")), ev.job.attempt.started
    if at is not None and started is not None and at < started - 1.0:
        return known(False, text="the end of an earlier attempt", provenance=ev.seen(sample))
    follows = step_follows(ev, sample, last)
    if follows is None:
        return unknown("the job log says that training is done, and nothing tells whether steps followed that line")
    if follows:
        return known(False, text="the job log says that training was done; steps follow", provenance=ev.seen(sample))
    return known(True, text=f"the job log says: {str(last.get('text', ''))[:100]}", provenance=ev.seen(sample))
