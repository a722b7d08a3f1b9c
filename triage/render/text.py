"""The report for a person at 2 AM: what is wrong, what to do, until when; then why.

At most `width` columns, plain words, no boxes. The first three lines are verdict, step and nearest deadline, each one
line; the last line repeats the step, because that is where the eye lands. Colour marks labels only and never carries
meaning. Every string goes through `clean` first. The same report gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from triage.model import Deadline, Report, SinceLast
from triage.render import folding, stacks
from triage.render.clean import clean, clean_command
from triage.render.layout import cut, duration, width_of, wrap, wrap_shell

_GUTTER = 11
_NARROWEST = 40
_BOLD, _BLUE, _ORANGE = "1", "1;34", "1;38;5;208"
_STEPS = {"S1": "do nothing", "S2": "micro-batches", "S3": "topology", "S4": "restart"}


class _Page:
    """Lines under labels in a gutter."""

    def __init__(self, width: int, color: bool) -> None:
        self.width = max(_NARROWEST, width)
        self.color = color
        self.lines: list[str] = []

    def label(self, name: str, style: str = _BOLD) -> str:
        return f"\x1b[{style}m{name}\x1b[0m" + " " * (_GUTTER - len(name)) if self.color else name.ljust(_GUTTER)

    def one_line(self, name: str, text: str, tail: str = "", style: str = _BOLD) -> None:
        """Label and text on one line; `tail` is never cut for the sake of `text`."""
        room = self.width - _GUTTER
        tail = cut(tail, room)
        self.lines.append((self.label(name, style) + cut(text, room - width_of(tail)) + tail).rstrip())

    def section(self, name: str, entries: Iterable[str], mark: str = "") -> None:
        """A blank line, then each entry wrapped behind `mark`; the label stands at the first. Nothing without entries."""
        held = list(entries)
        if held:
            self.lines.append("")
            self.block(name, held, mark)

    def block(self, name: str, entries: Iterable[str], mark: str = "") -> None:
        head = self.label(name)
        for entry in entries:
            for line in wrap(entry, self.width - _GUTTER, mark, " " * len(mark)):
                self.lines.append((head + line).rstrip())
                head = " " * _GUTTER

    def shell(self, command: str) -> None:
        self.lines.extend(wrap_shell(clean_command(command), self.width))


def render(report: Report, *, color: bool = False, width: int = 80, explain: bool = False) -> str:
    """The whole report as text. `explain` adds the walk through the playbook and the timeline."""
    page = _Page(width, color)
    _head(page, report)
    _evidence(page, report, explain)
    _cost(page, report.mitigation)
    _commands(page, report)
    if explain:
        _explain(page, report)
    _foot(page, report)
    return "\n".join(page.lines) + "\n"


def priced(mitigation: Mapping[str, Any], *, color: bool = False, width: int = 80) -> str:
    """A mitigation alone, as `triage cost` prints it: the step first and last, the sums between."""
    page = _Page(width, color)
    summary = clean(_get(mitigation, "recommended", "summary") or "", 400)
    page.block("DO THIS", [summary])
    _cost(page, mitigation)
    page.section("ASSUMED", [clean(line, 200) for line in _assumed(mitigation)])
    page.section("SURE", [f"confidence {clean(mitigation.get('confidence'), 20)}"])
    page.lines.append("")
    page.block("DO THIS", [summary])
    return "\n".join(page.lines) + "\n"


def _assumed(mitigation: Mapping[str, Any]) -> list[str]:
    """Inputs that nobody told and nothing measured, with the ends that they may have."""
    found = []
    for name, told in (mitigation.get("inputs") or {}).items():
        if told.get("source") == "default" and isinstance(told.get("value"), float) and told["low"] != told["high"]:
            found.append(f"{name} {told['value']:g} {told['unit']} ({told['low']:g} to {told['high']:g})")
    return found


# ---------------------------------------------------------------- the first three lines, and the last


def _head(page: _Page, report: Report) -> None:
    _verdict(page, report)
    _do_this(page, report)
    page.one_line("DEADLINE", _nearest(report.deadlines, live=report.job.get("scheduler") != "files"))
    page.section("JOB", [_job(report), f"{clean(report.verdict.cause)}, score {report.verdict.score:.2f}"])
    _since(page, report.since_last)


def _since(page: _Page, since: SinceLast | None) -> None:
    """What is another than at the last look."""
    if since is None:
        return
    head = f"{duration(since.age_s)} ago ({_clock(since.at)}), look {since.looks + 1} at this attempt."
    if since.incident_onset:
        head += f" The incident began {clean(since.incident_onset, 40)}."
    changed = [f"{clean(c.what, 40)}: {clean(c.before, 200)} -> {clean(c.now, 200)}" for c in since.changes]
    page.section("LAST LOOK", [head])
    page.block("", changed or ["nothing has changed since"], "- ")
    page.block("", [clean(line, 300) for line in since.tried], "- ")


def _verdict(page: _Page, report: Report) -> None:
    verdict = report.verdict
    who = folding.parts([c for c in report.culprits if c.role == "culprit"])
    involved = folding.parts([c for c in report.culprits if c.role != "culprit"])
    title = (clean(verdict.title) or clean(verdict.id)).rstrip(".")
    named = "; ".join(word for word in (who, f"involved: {involved}" if involved else "") if word)
    if report.culprits and all(folding.label(c) in title for c in report.culprits):
        named = ""  # the title says it already
    # The confidence is never cut. Names and title share the rest; where both are long, the names get three quarters.
    sure = f". Confidence {clean(verdict.confidence, 8)}."
    room = page.width - _GUTTER - len(sure) - len(": ")
    tail = (f": {cut(named, max(room - width_of(title), 3 * room // 4))}" if named else "") + sure
    style = _BLUE if report.exit_code == 0 else _ORANGE
    page.one_line("VERDICT", title, tail, style)


def _do_this(page: _Page, report: Report) -> None:
    page.one_line("DO THIS", clean(_get(report.mitigation, "recommended", "summary") or "see COMMANDS"), style=_BLUE)


def _nearest(deadlines: tuple[Deadline, ...], live: bool = True) -> str:
    timed = sorted((d for d in deadlines if d.in_s is not None), key=lambda d: (d.in_s or 0.0, d.what))
    ahead = [d for d in timed if (d.in_s or 0.0) >= 0]
    chosen = ahead[0] if ahead else timed[-1] if timed else deadlines[0] if deadlines else None
    if chosen is None:
        return "none known"
    at = f" ({_clock(chosen.at)})" if chosen.at else ""
    if not live and chosen.in_s is not None and chosen.at:  # a folder of files: nothing says how long ago it was
        return f"{clean(chosen.what, 60)} at {clean(chosen.at, 40)}, {duration(chosen.in_s)} after the newest line"
    if chosen.in_s is None:
        when = " at an unknown time"
    elif chosen.in_s < 0:
        when = f" passed {duration(-chosen.in_s)} ago"
    else:
        when = f" in {duration(chosen.in_s)}"
    return f"{clean(chosen.what, 60)}{when}{at}, from {clean(chosen.source, 40)}"


def _job(report: Report) -> str:
    job = report.job
    words = [f"{clean(job.get('id', '?'), 80)}"]
    place = " ".join(clean(job[key], 60) for key in ("scheduler", "cluster") if job.get(key))
    if place:
        words.append(f"({place})")
    words.append("in an unknown state." if report.state == "unknown" else f"is {report.state}.")
    nodes, ranks, restart = job.get("nodes"), job.get("ranks"), job.get("restart")
    if isinstance(nodes, list | tuple) and nodes:
        words.append(f"{len(nodes)} node{'s' * (len(nodes) > 1)}: {folding.fold_names(str(node) for node in nodes)}.")
    elif nodes:
        words.append(f"Nodes {clean(nodes, 120)}.")
    if isinstance(ranks, int) and not isinstance(ranks, bool):
        words.append(f"{ranks} rank{'s' * (ranks != 1)}.")
    if isinstance(job.get("last_step"), int):
        words.append(f"Last step {job['last_step']}.")
    if restart:
        words.append(f"Restart {clean(restart, 20)}.")
    words.append(f"Seen {clean(report.observed, 40)}.")
    return " ".join(words)


# ---------------------------------------------------------------- why


def _evidence(page: _Page, report: Report, explain: bool) -> None:
    speaking = [e for e in report.evidence if e.side == "for"] + [e for e in report.evidence if e.side != "for"]
    told = folding.evidence(speaking)
    against = [line for line in told if line.startswith("but: ")]
    if len(told) > 5:  # what speaks against is never crowded out
        kept = 5 - min(len(against), 2)
        told = [*[line for line in told if not line.startswith("but: ")][:kept], *against[: 5 - kept]]
    # The verdict's own words: what it means, and how many sources name the culprit; its sums are a section of their own.
    says = [clean(why) for why in report.verdict.why if not _is_sum(why)]
    page.section("MEANS", [" ".join(_sentence(line) for line in says)] if says else [])
    page.section("WHY", told or ["no evidence was collected"], "- ")
    if report.verdict.score and any(why.startswith("-") for why in report.verdict.why):
        page.section("SCORE", [clean("; ".join(why for why in report.verdict.why if _is_sum(why)), 2000)])
    page.section("RULED OUT", (f"{clean(r.verdict, 60)}: {clean(r.why)}" for r in report.ruled_out), "- ")
    page.section(
        "MAYBE",
        (f"{clean(a.cause or a.verdict, 80)} (score {a.score:.2f}): {_short(a.why_not)}" for a in report.alternatives),
        "- ",
    )
    missing = folding.unknowns(report.unknown)
    if len(missing) > 5 and not explain:
        missing = [*missing[:5], (f"and {len(missing) - 5} more (--explain)", "")]
    _with_commands(page, "UNKNOWN", missing)
    if report.victims:
        wait = "it waits" if len(report.victims) == 1 else "they wait"
        page.section(
            "VICTIMS",
            [
                f"{folding.parts(report.victims)}: {wait} for others and {'is' if len(report.victims) == 1 else 'are'} not the cause."
            ],
        )
    _stacks(page, report)
    _with_commands(page, "FINDINGS", folding.findings(report.findings))


def _stacks(page: _Page, report: Report) -> None:
    """Where ranks stand in their program, equal stacks folded; frames keep their indent and are not wrapped."""
    lines = stacks.fold(report.stacks, page.width - 2)
    if lines:
        page.lines += ["", page.label("STACKS").rstrip(), *(f"  {line}" for line in lines)]


def _short(text: str) -> str:
    """The first sentences of a long reason, cut between them."""
    told: list[str] = []
    for piece in clean(text, 2000).split("; "):
        if told and len("; ".join([*told, piece])) > 220:
            return "; ".join(told) + "; ... (--output json has all)"
        told.append(piece)
    return "; ".join(told)


def _is_sum(why: str) -> bool:
    return why.startswith(("base ", "score ", "-")) or " scores 0." in why


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _with_commands(page: _Page, name: str, entries: list[tuple[str, str]]) -> None:
    for i, (line, run) in enumerate(entries):
        before = len(page.lines)
        page.section(name if i == 0 else "", [line], "- ")
        if i:  # one block: no blank line between its entries
            del page.lines[before]
        if run:
            page.shell(run)


# ---------------------------------------------------------------- cost


def _cost(page: _Page, mitigation: Mapping[str, Any]) -> None:
    if fix := _get(mitigation, "recommended", "fix_first"):
        page.section("FIX FIRST", [clean(fix, 600)])
    page.section("COST", (clean(line, 400) for line in mitigation.get("arithmetic") or ()))
    _table(page, mitigation)
    then = mitigation.get("next_escalation")
    if isinstance(then, Mapping):
        minutes = then.get("in_min")
        when = f" in {duration(60 * minutes)} ({_clock(then.get('at'))})" if minutes is not None else ""
        page.section("THEN", [f"{clean(then.get('strategy'), 8)}{when} if {clean(then.get('condition'))}."])
    flips = _get(mitigation, "sensitivity", "flips_if") or ()
    page.section("FLIPS", (clean(flip.get("text", "")) for flip in flips), "- ")


def _table(page: _Page, mitigation: Mapping[str, Any]) -> None:
    rows = mitigation.get("strategies") or ()
    if not rows:
        return
    chosen = _get(mitigation, "recommended", "strategy")
    # overhead in job-minutes; "pays from": the length of incident from which the step is worth it
    wide = page.width >= 56
    page.lines += ["", page.label("OPTIONS") + " " * 7 + ("overhead  pays from  now" if wide else "overhead  now")]
    for row in rows:
        name = f"{'>' if row.get('id') == chosen else ' '} {row.get('id')} {_STEPS.get(str(row.get('id')), '')}"
        middle = (row.get("overhead_job_min") or {}).get("mid")
        pays = row.get("break_even_incident_min")
        head = f"{name:<18}{_minutes(middle):>8}" + (f"{_minutes(pays):>11}  " if wide else "  ")
        page.lines += wrap(_now(row), page.width, head, " " * (len(head) if page.width >= 70 else _GUTTER))


def _minutes(minutes: float | None) -> str:
    if minutes is None:
        return "-"
    return duration(60 * minutes)


def _now(row: Mapping[str, Any]) -> str:
    reason = clean(row.get("reason", ""))
    if not row.get("applicable"):
        return f"no: {reason}"
    if row.get("justified"):
        return f"YES: {reason}" if row.get("id") != "S1" else reason
    due = f", from {_clock(row['justified_at'])}" if row.get("justified_at") else ""
    return f"not yet: {reason}{due}"


# ---------------------------------------------------------------- commands, the walk, the end


def _commands(page: _Page, report: Report) -> None:
    if report.commands:
        page.lines += ["", page.label("COMMANDS").rstrip() + " (triage runs none of them)"]
    for number, command in enumerate(report.commands, 1):
        page.lines += wrap(f"{clean(command.why)}", page.width, f"{number}. ", "   ")
        page.shell(command.run)
        known = (("effect", command.effect), ("cost", command.cost))
        told = [f"{name}: {clean(text)}" for name, text in known if text]
        if told:
            page.lines += wrap("; ".join(told), page.width, "   # ", "   # ")
    page.section("DO NOT", (clean(line) for line in report.do_not), "- ")


def _explain(page: _Page, report: Report) -> None:
    page.section("TIMELINE", (_moment(m.at, m.err_s, m.node, m.rank, m.what, m.role) for m in report.timeline))
    entries = []
    for step in report.walk:
        cost = f", costs {step.cost:.2f}" if step.cost else ""
        place = f"{clean(step.playbook, 40)}:{clean(step.question, 40)}"
        entries.append(f"{place}: {clean(step.ask)} {step.answer.upper()}{cost} -> {clean(step.goto, 80)}")
        entries.append(f"when {clean(step.when)}")
        entries += [f"saw {clean(fact)}" for fact in step.facts]
    first = True
    for entry in entries:
        before = len(page.lines)
        detail = entry.startswith(("when ", "saw "))
        page.section("WALK" if first else "", [entry], "    " if detail else "- ")
        if not first:
            del page.lines[before]
        first = False


def _moment(at: str, err_s: float | None, node: str | None, rank: int | None, what: str, role: str | None) -> str:
    about = f" +-{duration(err_s)}" if err_s else ""
    who = " ".join(word for word in (clean(node or "", 80), f"rank {rank}" if rank is not None else "") if word)
    return f"{_clock(at)}{about} {who + ': ' if who else ''}{clean(what)}{f' ({clean(role, 40)})' if role else ''}"


def _foot(page: _Page, report: Report) -> None:
    if report.took_s:
        parts = {name: seconds for name, seconds in report.took_s.items() if name != "total"}
        total = report.took_s.get("total", sum(parts.values()))
        phases = ", ".join(f"{clean(name, 30)} {seconds:.1f}s" for name, seconds in parts.items())
        page.section("TOOK", [f"{total:.1f}s: {phases}" if phases else f"{total:.1f}s"])
    if report.case:
        page.section("CASE", [f"triage replay {clean(report.case, 500)}"])
    # The end is what is on the screen when the report is longer than it: who it is, and what to do, whole.
    page.lines.append("")
    _verdict(page, report)
    page.block("DO THIS", [clean(_get(report.mitigation, "recommended", "summary") or "see COMMANDS", 400)])


def _get(tree: Mapping[str, Any], *path: str) -> Any:
    found: Any = tree
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _clock(iso: Any) -> str:
    """The time of day of an ISO time; the whole text where it is none."""
    text = clean(iso or "an unknown time", 40)
    return text[11:] if len(text) >= 20 and text[10] == "T" else text
