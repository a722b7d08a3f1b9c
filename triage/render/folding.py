"""Equal things on one line: names of nodes and ranks, evidence that many nodes share, victims by the hundred."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from triage.model import Culprit, EvidenceLine, Finding, Part, Unknown
from triage.render.clean import clean
from triage.render.layout import duration, ranges, some


def fold_names(names: Iterable[str | None]) -> str:
    """`gpu[001-004,007]`, sorted so that neighbours meet; blanks and doubles dropped."""
    from triage.schedulers.hostlist import fold  # only a report with names needs it

    kept = sorted({clean(name, 80) for name in names if name} - {""})
    return fold(kept)


def parts(things: Sequence[Culprit]) -> str:
    """`rank 5 (gpu003)`, `ranks 0-3 (gpu[001-002])`, `gpu003`, `nic mlx5_0 (gpu003), link a-b`."""
    told: list[str] = []
    kinds = list(dict.fromkeys(thing.kind for thing in things))
    for kind in kinds:
        same = [thing for thing in things if thing.kind == kind]
        ranks = [thing.rank for thing in same if thing.rank is not None]
        if kind == "rank" and len(ranks) == len(same) > 1:
            where = fold_names(thing.node for thing in same)
            told.append(f"ranks {ranges(ranks)}" + (f" ({where})" if where else ""))
        elif kind == "node" and len(same) > 1:
            told.append(fold_names(thing.node for thing in same))
        else:
            told.append(some(list(dict.fromkeys(label(thing) for thing in same))))
    return ", ".join(told)


def label(thing: Culprit) -> str:
    name = thing.name
    if thing.kind == "fabric" and name and " | " in name:  # the sides into which it fell, node by node
        name = " | ".join(fold_names(side.split(", ")) for side in name.split(" | "))
    part = Part(thing.kind, thing.node, thing.rank, thing.gpu, thing.nic, name)
    return clean(part.label(), 120)


def evidence(lines: Sequence[EvidenceLine]) -> list[str]:
    """One line for each text and side, with all the nodes that say it, the probe, and the age of the newest."""
    groups: dict[tuple[str, str, str | None], list[EvidenceLine]] = {}
    for line in lines:
        groups.setdefault((line.side, line.text, line.probe), []).append(line)
    told = []
    for (side, text, probe), same in groups.items():
        ages = [line.age_s for line in same if line.age_s is not None]
        where = [fold_names(line.node for line in same), clean(probe or "", 40)]
        if ages:
            where.append(f"{duration(min(ages))} ago")
        source = ", ".join(word for word in where if word)
        said = clean(text) or clean(same[0].fact)
        told.append(("but: " if side == "against" else "") + said + (f" ({source})" if source else ""))
    return told


_AT_A_NODE = re.compile(r"(?P<head>.+?)(?P<link> of | on | \()(?P<node>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<tail>\)?)$")


def things(names: Sequence[str]) -> str:
    """`nic mlx5_1 of gpu[001-128]`, `gpu[001-004]`: equal things of many nodes once; of others the first few."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name in dict.fromkeys(name for name in names if name):
        match = _AT_A_NODE.match(name)
        if match:
            groups.setdefault((match["head"], match["link"], match["tail"] or ""), []).append(match["node"])
        else:
            groups.setdefault(("", "", "") if " " not in name else (name, "", ""), []).append(name)
    told = []
    for (head, link, tail), nodes in groups.items():
        if not link:
            told.append(head or fold_names(nodes))
        else:
            told.append(f"{head}{link}{fold_names(nodes)}{tail}")
    return some(told)


def findings(items: Sequence[Finding]) -> list[tuple[str, str]]:
    """(line, command or "") for each finding; parts that share class and text stand together."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for item in items:
        groups.setdefault((item.cls, item.text, item.run or ""), []).append(clean(item.part or "", 120))
    told = []
    for (cls, text, run), same in groups.items():
        who = things(same)
        told.append(
            (" ".join(word for word in (f"{clean(cls, 60)}:", f"{who}:" if who else "", clean(text)) if word), run)
        )
    return told


def unknowns(items: Sequence[Unknown]) -> list[tuple[str, str]]:
    """(line, command or "") for each thing that is not known; equal reasons stand together."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for item in items:
        groups.setdefault((item.why, item.tells or "", item.run or ""), []).append(clean(item.what, 160))
    told = []
    for (why, tells, run), same in groups.items():
        line = f"{things(same)}: {clean(why)}"
        told.append((line + (f". {clean(tells, 160)}:" if tells and run else ""), run))
    return sorted(told, key=lambda pair: not pair[1])  # what can be learnt comes first
