"""One run and the record of incidents: what it is told, what it leaves, whether it may poke. Never in the way of a diagnosis."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from triage import incidents, memory
from triage.model import Report

Say = Callable[[str], None]


class Ledger:
    """The record as one run sees it. Without a state folder ("") nothing is asked and nothing kept.

    stuck   why the state folder does not answer, "" if it does: then nothing is asked of it again
    """

    def __init__(self, state_dir: str, me: incidents.Who, stuck: str = "") -> None:
        self.state_dir, self.me, self.stuck = state_dir, me, stuck

    def recall(self, warn: Say) -> dict[str, Any]:
        """What earlier runs left of this job; without it the run goes on as the first one."""
        if not self.state_dir or self.stuck:
            return {}
        try:
            got = incidents.recall(self.state_dir, self.me, time.time())
        except incidents.Unavailable as why:
            warn(f"earlier looks at this job are not known: {why}")
            return {}
        if got.warning:
            warn(got.warning)
        return dict(got.value)

    def keep(self, report: Report, command: str, stalled: bool, say: Say) -> None:
        """Leave this look to the next run; of the rounds of a watch only those that saw something new."""
        look = memory.look_of(report, command)
        if not self.state_dir or not look:
            return
        if self.stuck or stalled:
            say("the next run will not know of this look: the state folder does not answer")
            return
        changed = report.since_last is None or bool(report.since_last.changes)
        try:
            got = incidents.record(self.state_dir, self.me, look, command != "watch" or changed)
        except incidents.Unavailable as why:
            say(f"the next run will not know of this look: {why}")
            return
        if got.warning:
            say(got.warning)

    def may_poke(self, onset: float | None) -> bool:
        """Is it the first poke of this incident, as far as the record can tell? Yes where it cannot be used."""
        if not self.state_dir or self.stuck:
            return True
        try:
            return incidents.claim_poke(self.state_dir, self.me, onset, time.time()).value is True
        except incidents.Unavailable:
            return True
