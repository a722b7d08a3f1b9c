"""What `triage cost` needs of the world: the profile, the clock, nodes written as a list, dice. No cluster is asked."""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime, timezone
from importlib import resources
from typing import TYPE_CHECKING, Any

from triage import config, ownfiles
from triage.cost.calculator import Flags, increase_of, rates, recovery, request_of, with_switches
from triage.cost.plans import plan
from triage.cost.profile import CostProfile, load_profile
from triage.errors import ConfigError, UsageError
from triage.ownfiles import text_of
from triage.probes._checkpoints import last
from triage.schedulers.hostlist import expand
from triage.schema import COST_VERSION

if TYPE_CHECKING:
    from triage.picture import StepLog

MOST_INCIDENTS = 5_000_000


def profile_of(flags: Mapping[str, str | None]) -> tuple[CostProfile, tuple[str, ...]]:
    """The site's costs over those that ship, and what went wrong on the way to them."""
    settings = config.load(flags)
    path = settings.value("profile")
    shipped = (resources.files("triage.playbooks") / "costs.yaml").read_text(encoding="utf-8")
    return load_profile(shipped, text_of(path, "profile") if path else None), settings.warnings


def with_folders(
    flags: Flags, steps: str | None, checkpoints: str | None, at: str | None
) -> tuple[Flags, float, StepLog | None, str]:
    """The flags with what files tell; now (the newest step of `steps`, unless `at` says otherwise); the steps; a warning."""
    log, warning = None, ""
    observed = moment(at)
    if steps:
        from triage.picture import read_steps, slowdown  # it knows whole cases, and takes its time to load

        log = read_steps(steps)
        observed = moment(at) if at else log.observed
        if not is_told(flags):
            healthy, now, onset = slowdown(log)
            flags = replace(flags, healthy_step=f"{healthy:.9f}s", slow_step=f"{now:.9f}s")
            if onset is not None and not flags.since:
                flags = replace(flags, since=f"{max(0.0, observed - onset):.3f}s")
    if checkpoints:
        found = last_checkpoint(checkpoints)
        if found["at"] is None:
            warning = f"{checkpoints}: {found['why']}; the age of its last checkpoint is not known"
        elif not flags.checkpoint_age:
            gaps = tuple(found["gap_s"] or ())
            at_s = min(float(found["at"]), observed)
            flags = replace(flags, checkpoint_at=at_s, checkpoint_step=found["step"], checkpoint_gap_s=gaps)
    return flags, observed, log, warning


def last_checkpoint(folder: str) -> dict[str, Any]:
    """What the trackers of a folder tell (probes/_checkpoints.py), read with patience: it may lie on dead storage."""
    path = os.path.expanduser(folder)
    try:
        if not ownfiles.is_folder(path):
            raise UsageError(f"--checkpoint-dir {folder}: no such folder")
        found = json.loads(ownfiles.compute(lambda: json.dumps(last(path, time.time())).encode(), path))
    except ownfiles.TooSlow as error:
        raise ConfigError(f"--checkpoint-dir {error}: shared storage may be stuck") from None
    except OSError as error:
        raise ConfigError(f"--checkpoint-dir {folder}: {error.strerror}") from None
    return dict(found)


def moment(text: str | None) -> float:
    """Epoch seconds of an ISO time in UTC, or of now."""
    if not text:
        return time.time()
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"--at {text[:40]!r} is no time such as 2026-11-29T02:00:00Z") from None


def flags_of(asked: Mapping[str, Any]) -> Flags:
    """What was typed, by the names of the command's own parameters; what was not said stays as it is in Flags."""
    names = {"tp": "tensor", "pp": "pipeline", "dp": "data"}
    known = {field.name for field in fields(Flags)}
    said = {names.get(name, name): value for name, value in asked.items() if value is not None}
    nodes = tuple(expand(said.pop("nodes"))) if "nodes" in said else ()
    return Flags(nodes=nodes, **{name: value for name, value in said.items() if name in known})


def priced(flags: Flags, profile: CostProfile, observed: float) -> dict[str, Any]:
    """The `mitigation` object alone (`triage.cost/1`)."""
    mitigation = plan(request_of(flags, observed), with_switches(profile, flags))
    lines = list(mitigation["arithmetic"])
    if line := recovered(flags):
        lines.append(line)
    return {"schema_version": COST_VERSION, **mitigation, "arithmetic": lines}


def recovered(flags: Flags) -> str:
    """What a remedy took away, where a third rate tells it."""
    for flag, text in (("--rate", flags.rate), ("--mfu", flags.mfu)):
        values = rates(flag, text) if text else []
        if len(values) == 3 and values[1] < values[0]:
            found = recovery(*values)
            return (
                f"{values[1]:g} -> {values[2]:g} of {values[0]:g} took away {found.by_rate:.2%} of the slowdown by "
                f"throughput, {found.by_time:.2%} by step time."
            )
    return ""


def lengths(count: int, seed: int, mean_min: float, sigma: float) -> list[float]:
    """Lengths of incidents in minutes, log-normal; exponential where sigma is 0. The same seed, the same list."""
    if not 1 <= count <= MOST_INCIDENTS:
        raise UsageError(f"--incidents {count} is not from 1 to {MOST_INCIDENTS}")
    if not 0 < mean_min < 1e6 or not 0 <= sigma <= 5:
        raise UsageError("--mean must be above 0, --sigma from 0 (exponential) to 5")
    dice = random.Random(seed)
    if sigma == 0:
        return [dice.expovariate(1.0 / mean_min) for _ in range(count)]
    mu = math.log(mean_min) - sigma * sigma / 2.0
    return [dice.lognormvariate(mu, sigma) for _ in range(count)]


def own_setting(flags: Flags, profile: CostProfile, observed: float) -> Any:
    """The user's own numbers as a row of the simulation: its loss, and the steps that apply with their middles."""
    from triage.cost.escalate import Option
    from triage.cost.simulate import Setting

    found = priced(flags, profile, observed)
    options = tuple(
        Option(step["id"], step["overhead_job_min"]["mid"], step["residual_lost_fraction"])
        for step in found["strategies"]
        if step["applicable"] and step["id"] != "S1" and step["residual_lost_fraction"] is not None
    )
    lost = found["loss"]["lost_fraction"]
    return Setting(
        "yours", f"lost {lost:.3g}; " + ", ".join(f"{o.id} {o.overhead:g} min" for o in options), lost, options
    )


def is_told(flags: Flags) -> bool:
    """Was anything said of a slowdown of one's own?"""
    try:
        increase_of(replace(flags, frozen=False))
    except UsageError as error:
        if str(error).startswith("say how slow"):
            return False
        raise
    return True


def simulated(rows: Sequence[Any], count: int, seed: int, mean_min: float, sigma: float) -> dict[str, Any]:
    """The table as JSON."""
    return {
        "schema_version": "triage.cost-simulation/1",
        "incidents": count,
        "seed": seed,
        "mean_min": mean_min,
        "sigma": sigma,
        "rows": [
            {
                "set": row.setting.name,
                "says": row.setting.says,
                "mean_job_min": {name: round(value, 4) for name, value in row.means.items()},
                "times_hindsight": {name: round(value, 4) for name, value in row.ratios.items()},
            }
            for row in rows
        ],
    }
