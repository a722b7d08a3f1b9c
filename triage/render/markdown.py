"""The report for a chat or a ticket, in CommonMark: verdict and step first, commands in fences, the walk folded away by length.

Fooled by   a node's text that is Markdown or HTML: links, images, mentions, tables. Every such sign is escaped, and words
            that a site would turn into a link or a mention stand in code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from triage.model import Report
from triage.render import brief, folding
from triage.render.clean import clean, clean_command
from triage.render.layout import duration

_SIGNS = re.compile(r"([\\`*_{}\[\]<>()#|~&$!])")
_LIVE = re.compile(r"@|://|www\.|mailto:|\b[\w.-]+\.(?:com|net|org|io)\b", re.IGNORECASE)
_MOST = 20


def render(report: Report) -> str:
    """One Markdown document."""
    lines = [f"## {said(brief.summary(report, 300))}", "", f"**Do this:** {said(brief.step(report))}", ""]
    lines += _facts(report)
    lines += _list("For it", brief.pro(report))
    lines += _list("Against it", [line.removeprefix("but: ") for line in brief.contra(report)])
    lines += _list("Ruled out", [f"{r.verdict}: {r.why}" for r in report.ruled_out])
    lines += _list("Not known", [line for line, _ in folding.unknowns(report.unknown)])
    lines += _list("Also seen, and not the cause", [line for line, _ in folding.findings(report.findings)])
    lines += _list("Do not", list(report.do_not))
    if report.commands:
        lines += ["### Commands", "", "triage runs none of them.", ""]
    for command in report.commands[:_MOST]:
        known = "; ".join(f"{n}: {t}" for n, t in (("effect", command.effect), ("cost", command.cost)) if t)
        lines += [f"{said(command.why)}{' (' + said(known) + ')' if known else ''}", "", *fenced(command.run), ""]
    if report.case:
        lines += ["The whole report again:", "", *fenced(brief.replay(report)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _facts(report: Report) -> list[str]:
    job = report.job
    named = folding.parts([c for c in report.culprits if c.role == "culprit"])
    involved = folding.parts([c for c in report.culprits if c.role != "culprit"])
    nodes = job.get("nodes")
    where = folding.fold_names(str(n) for n in nodes) if isinstance(nodes, list | tuple) else ""
    rows = [
        ("Culprit", named),
        ("Involved", involved),
        ("Victims", folding.parts(report.victims)),
        ("Job", " ".join(str(job[k]) for k in ("id", "scheduler", "cluster") if job.get(k)) + f", {report.state}"),
        ("Nodes", where),
        ("Verdict", f"{report.verdict.cause}, score {report.verdict.score:.2f}"),
        ("Seen", report.observed),
    ]
    lines = [f"- **{name}:** {said(text)}" for name, text in rows if text]
    for deadline in report.deadlines[:3]:
        when = "" if deadline.in_s is None else f"in {duration(deadline.in_s)}"
        told = [f"{deadline.what} {deadline.at or ''}", when, f"from {deadline.source}"]
        lines.append(f"- **Deadline:** {said(', '.join(filter(None, told)))}")
    return [*lines, ""]


def _list(name: str, entries: Iterable[str]) -> list[str]:
    held = list(entries)
    if not held:
        return []
    more = [f"- and {len(held) - _MOST} more in the report"] if len(held) > _MOST else []
    return [f"### {name}", "", *(f"- {said(entry)}" for entry in held[:_MOST]), *more, ""]


def said(text: object) -> str:
    """A text of anyone as Markdown that says just that: one line, nothing in it acts."""
    line = " ".join(map(_word, clean(text, 400).split()))
    return re.sub(r"^([-+=]|\d+(?=[.)]))", _quiet, line)


def _quiet(match: re.Match[str]) -> str:
    """The beginning of a list or a heading, said and not meant."""
    return match[1] + "\\" if match[1].isdigit() else "\\" + match[1]


def _word(word: str) -> str:
    return code(word) if _LIVE.search(word) else _SIGNS.sub(r"\\\1", word)


def code(text: str) -> str:
    """A code span whose fence is longer than any row of backticks inside (CommonMark 6.1)."""
    ticks = "`" * (1 + max((len(row) for row in re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def fenced(command: object) -> list[str]:
    line = clean_command(command)
    fence = "`" * max(3, 1 + max((len(row) for row in re.findall("`+", line)), default=0))
    return [f"{fence}sh", line, fence]
