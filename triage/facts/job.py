"""What is known of the job itself: its state, attempt, age, deadline, and whether it says that it is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triage.facts.clocks import log_sample
from triage.facts.evidence import Evidence
from triage.facts.ranktable import log_hits, rank_table
from triage.facts.registry import fact, known, unknown
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


def is_before_last_step(sample: Sample, hit: Mapping[str, Any]) -> bool:
    """Does a training step follow this line of the log? (The series and the hits both carry the log's own times.)"""
    series = (sample.data.get("iterations") or {}).get("series") or [[0, None, None]]
    step, line = series[-1][1], hit.get("last_at")
    return isinstance(step, int | float) and isinstance(line, int | float) and line < step


@fact("job.finished", type="bool")
def finished(ev: Evidence) -> Fact:
    """Has the job itself said that training is over (in its log, after the last step)?"""
    sample = log_sample(ev)
    if sample is None:
        return unknown("the job log could not be read")
    done = log_hits(ev, "training_finished")
    if not done:
        return known(False, provenance=ev.seen(sample))
    if is_before_last_step(sample, done[-1]):
        return known(False, text="an earlier attempt's end; steps follow it", provenance=ev.seen(sample))
    return known(True, text=f"the job log says: {str(done[-1].get('text', ''))[:100]}", provenance=ev.seen(sample))
