"""What one look alone tells of progress: did a dated step end after we began to look? That is a rise since then.

Step records  by one clock: the rank that writes them and our first line from its node (`contact`) read the same one, so
              no calibration can err.
Job log       dated by whichever node printed: a step counts when it ended after our beginning even if that node's clock is
              the one furthest ahead of ours. That takes the clocks of all nodes of the job.

What can fool it: a clock that was set back between the step and our coming (a date ahead of the answer that carries it is
not believed); a job that stood still just after that step; ranks that claim (a minority is not believed).
"""

from __future__ import annotations

from collections.abc import Mapping

from triage.facts.attempt import WRITTEN_NOW
from triage.facts.clocks import clock_offsets, log_sample, log_shift
from triage.facts.evidence import Evidence
from triage.facts.pace import job_series
from triage.facts.ranktable import rank_table
from triage.facts.steps import job_steps
from triage.model import Sample

ROUNDING_S = 0.001  # answers tell their time to the millisecond


def only_look(ev: Evidence) -> bool:
    """Was there no second look, nor the beginning of one?"""
    return not any(sample.look == "B" for sample in ev.samples)


def since_we_began(ev: Evidence) -> tuple[list[str], list[Sample]]:
    """Signs that a step ended since we began to look, and who told. Empty where two looks tell better."""
    if not only_look(ev):
        return [], []
    signs, seen = _by_records(ev)
    more, told = _by_log(ev)
    return signs + more, seen + told


def _by_records(ev: Evidence) -> tuple[list[str], list[Sample]]:
    begun = {sample.node: sample.at for sample in ev.of("contact")}
    ended: dict[int, Sample] = {}
    watched = 0
    for sample, entry in ev.derive(job_steps):
        at, start = entry.get("last_at"), begun.get(sample.node)
        if entry.get("kind") != "records" or not isinstance(at, int | float) or start is None or sample.at is None:
            continue
        watched += 1
        if start < at <= sample.at + ROUNDING_S:
            ended[entry["rank"]] = sample
    # Ranks of a synchronous job advance together: a minority that claims to is a claim, and no progress of the job.
    if not ended or 2 * len(ended) < watched:
        return [], []
    seen = list({sample.node: sample for sample in ended.values()}.values())
    return [f"steps of {len(ended)} ranks ended after this run began to look, by their records"], seen


def _by_log(ev: Evidence) -> tuple[list[str], list[Sample]]:
    sample, series, shift = log_sample(ev), ev.derive(job_series), ev.derive(log_shift)
    contacts = [s.received for s in ev.of("contact") if s.received is not None]
    if sample is None or series is None or series.source != "job log" or shift is None or not contacts:
        return [], []
    clocks = ev.derive(clock_offsets)
    if {node.name for node in ev.job.nodes} - set(clocks):
        return [], []  # whoever printed may be the one whose clock we do not know
    ahead = max(0.0, *(clock.offset_s + clock.err_s for clock in clocks.values()))
    number, (end, _) = series.last_step, series.steps[-1]
    printed = None if end is None else end - shift
    now = sample.received if sample.received is not None else ev.observed
    if printed is None or not min(contacts) + ahead < printed <= now + ahead:
        return [], []
    return [f"step {number} ended after this run began to look, by its date in the job log"], [sample]


def after_the_looks(ev: Evidence) -> tuple[list[str], list[Sample]]:
    """Signs that the job went on when it was not looked at any more: most flight records that were written for us hold
    operations that began after the last look, by the clock of their node. A stall that ended meanwhile shows so."""
    looked = {s.node: s.at for look in "AB" for s in ev.of("ranks", look) if s.at is not None}
    node_of = ev.derive(rank_table).node_of
    began, told = {}, 0
    for sample in ev.of("flight_recorder"):
        rows = sample.data.get("ranks")
        for row in rows if isinstance(rows, list) else ():
            record = row.get("record") if isinstance(row, Mapping) and row.get("source") in WRITTEN_NOW else None
            newest = record.get("newest_s") if isinstance(record, Mapping) else None
            at = looked.get(sample.node)
            if not isinstance(newest, int | float) or at is None or sample.at is None:
                continue
            if node_of(row["rank"]) != sample.node:
                continue  # a node has no say on ranks of another
            told += 1
            if at + ROUNDING_S < newest <= sample.at + ROUNDING_S:
                began[row["rank"]] = sample
    if not began or 2 * len(began) < told:
        return [], []
    seen = list({sample.node: sample for sample in began.values()}.values())
    return [f"{len(began)} ranks began collectives after the looks, by their flight records"], seen
