"""`triage watch`: look again and again, one line a round, and speak up when something changes.

A round is one run of cheap probes over connections of its own: a node that was away is back with the next round, and nothing
is held in between. Rounds never ask a costly probe and never poke. The clock is given, so that tests need no time.

It speaks up when the state, the verdict or the culprits change, when another step is recommended, and when the rent reaches
the price of the next step (notes/straggler-and-cost.md 3.5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from triage import memory
from triage.errors import TriageError
from triage.model import Report

Until = Literal["never", "change", "escalate"]
OVER = ("ended", "completing")


@dataclass(frozen=True)
class Clock:
    now: Callable[[], float]  # monotonic seconds
    sleep: Callable[[float], None]


@dataclass(frozen=True)
class Round:
    """One look: the line of it, and what there is to speak up about."""

    number: int
    look: dict[str, Any]  # memory.look_of
    exit_code: int
    said: tuple[str, ...] = ()
    due: tuple[str, ...] = ()  # strategies whose price the rent has reached
    trouble: str = ""  # the look could not be made; `look` is then empty


@dataclass(frozen=True)
class End:
    exit_code: int
    why: str
    rounds: int


def watch(
    look: Callable[[], Report], emit: Callable[[Round], None], clock: Clock, *, every_s: float, until: Until = "never",
    rounds: int = 0,
) -> End:  # fmt: skip
    """Until the job is over, `until` holds, or `rounds` are made (0 = no limit). KeyboardInterrupt passes through.

    A round that cannot be made (a scheduler that is silent, an inventory that does not answer) is told and tried again;
    the first one raises, for then the command line is wrong.
    """
    before: Round | None = None
    count = 0
    while True:
        began = clock.now()
        count += 1
        this = _round(count, look, before)
        emit(this)
        if not this.trouble:
            before = this
        why = _ends(this, until)
        if why or count == rounds:
            return End((before or this).exit_code, why or f"{count} rounds were made", count)
        clock.sleep(max(0.0, began + every_s - clock.now()))


def _round(count: int, look: Callable[[], Report], before: Round | None) -> Round:
    try:
        report = look()
    except TriageError as error:
        if before is None:
            raise
        return Round(count, {}, error.code, trouble=memory.words(str(error), 200))
    now = memory.look_of(report, "watch")
    due = due_steps(report)
    return Round(count, now, report.exit_code, changes(before, now, due), due)


def due_steps(report: Report) -> tuple[str, ...]:
    """Applicable strategies (but for doing nothing) whose price the losses have reached."""
    told = report.mitigation.get("strategies") or []
    return tuple(s["id"] for s in told if s.get("applicable") and s.get("justified") and s.get("id") != "S1")


def changes(before: Round | None, now: dict[str, Any], due: tuple[str, ...]) -> tuple[str, ...]:
    """What is to be said aloud, against the round before; nothing in the first round."""
    if before is None:
        return ()
    was = before.look
    said = [
        f"{what} {was[key] or 'unknown'} -> {now[key] or 'unknown'}"
        for what, key in (("state", "state"), ("verdict", "cause"), ("step", "strategy"))
        if was[key] != now[key]
    ]
    if was["culprits"] != now["culprits"]:
        said.append(f"culprits {', '.join(now['culprits']) or 'nobody'}")
    rent = now["rent_job_min"]
    lost = "what was lost" if rent is None else f"{rent:.1f} job-min lost"
    said += [f"{lost}: the price of {step} is reached" for step in due if step not in before.due]
    return tuple(said)


def _ends(this: Round, until: Until) -> str:
    if this.trouble:
        return ""
    if this.look["state"] in OVER:
        return f"the job is {this.look['state']}"
    if until == "change" and this.said:
        return "something changed"
    if until == "escalate" and (this.due or this.look["strategy"] not in ("", "S1")):
        return f"{this.look['strategy'] or this.due[0]} is due"
    return ""


def line(this: Round) -> str:
    """`02:14:05Z 7 slow straggler/compute rank 5 (gpu003) step 812 5.8 job-min lost, S2 in 3 min`."""
    if this.trouble:
        return f"round {this.number}: no look: {this.trouble}"
    look = this.look
    when = (memory.iso(look["at"]) or "")[11:]
    who = ", ".join(look["culprits"][:3]) + (f" and {len(look['culprits']) - 3} more" if look["culprits"][3:] else "")
    words = [f"{when} {look['state']} {look['cause']}", who]
    words += [f"step {look['last_step']}"] if look["last_step"] is not None else []
    words += [f"{look['rent_job_min']:.1f} job-min lost"] if look["rent_job_min"] else []
    words += [look["strategy"]] if look["strategy"] not in ("", "S1") else []
    if look["next_strategy"] and look["next_at"] is not None:
        words.append(f"{look['next_strategy']} in {max(0.0, look['next_at'] - look['at']) / 60:.0f} min")
    return ", ".join(word for word in words if word)


def document(this: Round) -> dict[str, Any]:
    """The round as one object of `triage.watch/1`."""
    keys = ("at", "state", "verdict", "cause", "confidence", "culprits", "last_step", "rent_job_min", "lost_fraction",
            "strategy", "next_strategy", "next_at")  # fmt: skip
    told = {key: this.look.get(key) for key in keys}
    told["at"], told["next_at"] = memory.iso(told["at"]), memory.iso(told["next_at"])
    told = {key: None if value == "" else value for key, value in told.items()}
    told["culprits"] = told["culprits"] or []
    return {
        "schema_version": "triage.watch/1", "round": this.number, **told, "due": list(this.due), "said": list(this.said),
        "trouble": this.trouble or None, "exit_code": this.exit_code,
    }  # fmt: skip
