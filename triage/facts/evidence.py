"""All that one run saw of the attempt asked about, indexed for the facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from triage.facts.attempt import span_of
from triage.facts.cut import cut
from triage.model import Job, Provenance, Sample

T = TypeVar("T")


class Evidence:
    """Samples of one run, the job they belong to, the time of looking and the thresholds in force.

    samples    only what is of the attempt asked about (cut.py); `span` says which that is
    observed   seconds since the epoch on the operator's clock, when the last look ended ("now" of every fact)
    limits     thresholds of the playbook, after the profile's overrides: name -> number
    """

    def __init__(
        self,
        job: Job,
        samples: Iterable[Sample],
        observed: float,
        limits: Mapping[str, float] | None = None,
    ) -> None:
        self.job = job
        self.seen_samples = tuple(samples)  # all of them, whosever they are
        self.observed = observed
        self.span = span_of(job, self.seen_samples, observed)
        self.samples = cut(self.seen_samples, self.span)
        self._limits = dict(limits or {})
        self._derived: dict[object, object] = {}

    def limit(self, name: str) -> float:
        """A threshold of the playbook. Its absence is a bug of the playbook, caught by its load checks."""
        return self._limits[name]

    def of(self, probe: str, look: str | None = None, status: str | None = "ok") -> list[Sample]:
        """Samples of a probe in the order they came; any look, status ok only, unless told otherwise."""
        return [
            s
            for s in self.samples
            if s.probe == probe and (look is None or s.look == look) and (status is None or s.status == status)
        ]

    def latest(self, probe: str) -> dict[str, Sample]:
        """node -> the newest good sample of a probe."""
        return {s.node: s for s in self.of(probe)}

    def both_looks(self, probe: str) -> dict[str, tuple[Sample, Sample]]:
        """node -> (look A, look B), only nodes where both are good."""
        first = {s.node: s for s in self.of(probe, "A")}
        second = {s.node: s for s in self.of(probe, "B")}
        return {node: (first[node], second[node]) for node in first if node in second}

    def derive(self, function: Callable[[Evidence], T]) -> T:
        """Compute `function(self)` once: how facts share a table without knowing each other."""
        if function not in self._derived:
            self._derived[function] = function(self)
        return self._derived[function]  # type: ignore[return-value]

    def seen(self, *samples: Sample) -> tuple[Provenance, ...]:
        """Provenance of these samples."""
        return tuple(Provenance(s.probe, s.node or None, s.received) for s in samples)
