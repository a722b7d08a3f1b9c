"""What the record of incidents changes about the price of a step: rent that goes on, and how long incidents here last. Pure.

Rent is never reset (notes/straggler-and-cost.md 3.5): what earlier looks counted stays counted, also when the log that they
read is gone. History feeds the hint about durations, never the rule itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from triage.cost.profile import CostProfile, Quantity
from triage.cost.request import PlanRequest


def continued(request: PlanRequest, memory: Mapping[str, Any], profile: CostProfile) -> PlanRequest:
    """The same request with what is remembered: the earlier onset, the rent so far, durations of earlier incidents."""
    incident = memory.get("incident")
    measured = {**durations(memory, profile), **request.measured}
    request = replace(request, measured=measured)
    if not incident or request.state not in ("slow", "frozen") or request.fail == "none":
        return request
    frozen = request.state == "frozen"
    if frozen and incident["state"] == "frozen" and request.onset is not None and request.onset > incident["seen"]:
        return request  # it moved between the looks: another incident
    onset = incident["onset"]
    if onset is not None and onset <= request.observed and incident["state"] == request.state:
        request = replace(request, onset=onset if request.onset is None else min(onset, request.onset))
    rent, at = incident["rent_job_min"], incident["rent_at"]
    if rent is not None and at is not None and at <= request.observed:
        request = replace(request, paid=(at, rent))
    return request


def durations(memory: Mapping[str, Any], profile: CostProfile) -> dict[str, Quantity]:
    """How long incidents lasted here, by class, where enough are known to say so.

    An incident ended between the last look that saw it and the first that did not: the middle counts, the ends are the
    range. Those that a restart ended are left out, for nobody knows how long they would have lasted. What the site's own
    profile says stays.
    """
    if "history_least" not in profile.quantities:  # the costs of a case that is older than the record
        return {}
    least, large = profile.number("history_least"), profile.number("large_job_gpus")
    told: dict[str, list[tuple[float, float]]] = {}
    for kind, gpus, low, high in memory.get("durations") or ():
        if kind != "frozen":
            is_large = gpus is not None and gpus >= large
            told.setdefault("duration_large_min" if is_large else f"duration_{kind}_min", []).append((low, high))
    found = {}
    for name, spans in told.items():
        if len(spans) >= least and profile.quantity(name).source != "profile":
            low, high = fmean(s[0] for s in spans), fmean(s[1] for s in spans)
            note = f"mean of the last {len(spans)} incidents here"
            found[name] = Quantity((low + high) / 2.0, low, high, source="history", note=note)
    return found
