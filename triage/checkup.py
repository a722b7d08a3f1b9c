"""`triage doctor`: will this job be diagnosable when it hangs? One look at its nodes, then the checks of doctor.yaml.

The look is that of frozen-job (the same probes, the same case), without a second one and without asking a flight recorder for
a dump: nothing but reading. `examine` is what is said of it; `text` and `document` are its two forms.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triage.conclude import load_playbooks
from triage.facts import registry
from triage.facts.evidence import Evidence
from triage.investigate import Result, probe_names, shipped_limits, shipped_playbooks
from triage.model import Fact
from triage.render.clean import clean
from triage.tree.checks import Check, load_checks, lost_verdicts

SCHEMA = "triage.doctor/1"
WIDTH = 80


@dataclass(frozen=True)
class Finding:
    """One check: `state` is ok, lack or unknown; of a lack what it is, on which nodes, what it costs, and what mends it."""

    id: str
    asks: str
    state: str
    says: str = ""
    nodes: tuple[str, ...] = ()
    costs: tuple[str, ...] = ()  # verdicts that cannot be reached then
    where: str = ""
    set: str = ""


@dataclass(frozen=True)
class Checkup:
    """All checks of one job, in the order of doctor.yaml."""

    job: str
    nodes: int
    answered: int
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """22 where no node answered, 10 where something is missing, else 0."""
        if self.nodes and not self.answered:
            return 22
        return 10 if any(f.state == "lack" for f in self.findings) else 0


def examine(result: Result) -> Checkup:
    """The checks over what the run saw."""
    case, probes = result.case, probe_names()
    books = load_playbooks({n: text for n, text in shipped_playbooks().items() if n != "costs"}, probes)
    evidence = Evidence(case.job, case.samples, case.observed, shipped_limits(probes))
    facts = registry.compute(evidence)
    answered = {s.node for s in case.samples if s.probe == "contact" and s.status == "ok"}
    found = [_finding(check, facts, books) for check in load_checks(registry.catalogue())]
    return Checkup(case.job.id, len(case.job.nodes), len(answered), tuple(found))


def _finding(check: Check, facts: Mapping[str, Fact], books: Mapping[str, Any]) -> Finding:
    lacks = check.lacks(facts)
    if lacks is None:
        return Finding(check.id, check.asks, "unknown", clean(check.why_unknown(facts)))
    if not lacks:
        return Finding(check.id, check.asks, "ok")
    parts = [part for name in check.lack.facts for part in facts[name].parts]
    return Finding(
        check.id,
        check.asks,
        "lack",
        clean(check.says.render(facts), 400),
        tuple(dict.fromkeys(clean(part.node or "", 80) for part in parts if part.node)),
        lost_verdicts(books, check.loses),
        check.where,
        clean(check.set.render_command(facts) or check.set.text, 400),
    )


def document(checkup: Checkup) -> dict[str, Any]:
    """The JSON form."""
    return {
        "schema_version": SCHEMA,
        "job": checkup.job,
        "nodes": checkup.nodes,
        "answered": checkup.answered,
        "exit_code": checkup.exit_code,
        "checks": [
            {
                "id": f.id,
                "asks": f.asks,
                "state": f.state,
                "says": f.says or None,
                "nodes": list(f.nodes),
                "costs": list(f.costs),
                "where": f.where or None,
                "set": f.set or None,
            }
            for f in checkup.findings
        ],
    }


WHOSE = {"job": "in the job's script", "nodes": "on these nodes", "operator": "here"}


def text(checkup: Checkup) -> str:
    """The same for a terminal of 80 columns: what is missing, what that costs, the line that mends it; then what is there."""
    from triage.render.folding import fold_names

    lacks = [f for f in checkup.findings if f.state == "lack"]
    lines = [
        f"DOCTOR     job {clean(checkup.job, 80)}: {checkup.answered} of {checkup.nodes} nodes answered; "
        f"{len(lacks) or 'no'} of {len(checkup.findings)} checks lack something.",
        "",
    ]
    for number, found in enumerate(lacks, 1):
        lines += _wrapped(f"{number}. {found.asks} No: {found.says}.", "   ")
        if found.nodes:
            lines += _wrapped(f"on {fold_names(found.nodes)}", "   ", "   ")
        if found.costs:
            lines += _wrapped(f"costs: {', '.join(found.costs)}", "          ", "   ")
        lines += [f"   {WHOSE[found.where]}:", f"     {found.set}", ""]
    for state, head in (("unknown", "NOT KNOWN"), ("ok", "IN ORDER")):
        same = [f for f in checkup.findings if f.state == state]
        for at, found in enumerate(same):
            why = f" {found.says}" if found.says else ""
            lines += _wrapped(f"{head if not at else '':<11}{found.asks}{why}", " " * 13)
    return "\n".join(lines) + "\n"


def _wrapped(line: str, indent: str, first: str = "") -> Sequence[str]:
    return textwrap.wrap(line, WIDTH, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)
