"""Words: how values, durations and parts are written, and the `{fact.name}` slots of a playbook's texts.

A slot is the name of a fact, and optionally a form:

    {waits.absent}          its value, without unit except for seconds (`90s 48m 2h`) and shares (`97%`)
    {waits.absent.text}     the fact's own sentence where it has one, else value and unit: `1 ranks`
    {waits.absent.parts}    the parts, folded: `rank 5 (gpu003)`, `ranks 0-7 (gpu001)`, `12 ranks: …`
    {waits.absent.nodes}    the nodes of the parts, `gpu001,gpu003`
    {waits.absent.ranks}    the rank numbers of the parts, `5,12`

A fact whose whole name ends so (`hard.parts`) is that fact. What is unknown prints "unknown"; `{{` and `}}` print
braces. Names are checked when the playbook loads. Values may come from hostile nodes: control characters, escape
sequences and direction marks are taken out and every value is cut to a length, here, once.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from triage.errors import ConfigError
from triage.model import Fact, FactSpec, Part, Value
from triage.tree.expr import did_you_mean

MAX_TEMPLATE = 2000
MAX_VALUE = 160
SHOWN = 4  # parts that are written out; of more, the first three and a count

# ESC [ … letter, ESC ] … BEL or ST, ESC + one character: what a terminal would obey.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?", re.DOTALL)
_SLOT = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*", re.ASCII)
_FORMS = ("parts", "text", "nodes", "ranks")
_PARTS_FORMS = ("parts", "nodes", "ranks")


class WordsError(ConfigError):
    """A text whose slots cannot be filled: `problem` says why, `column` (from 1) where."""

    def __init__(self, problem: str, column: int) -> None:
        super().__init__(f"col {column}: {problem}")
        self.problem = problem
        self.column = column


# ---------------------------------------------------------------- values


def clean(text: str, limit: int = MAX_VALUE) -> str:
    """One line that is safe on a terminal, at most `limit` characters: what came from a node goes through here."""
    text = _ESCAPE.sub("", text[: 20 * limit])
    kept = "".join(c if c.isprintable() else " " if c.isspace() else "" for c in text)
    one_line = " ".join(kept.split())
    return one_line if len(one_line) <= limit else one_line[: limit - 1] + "…"


def duration(seconds: float | None) -> str:
    """`90s 48m 2h 3d`: one unit, a decimal below ten. None and NaN are "unknown"."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    sign, left = ("-", -seconds) if seconds < 0 else ("", float(seconds))
    if left < 0.095:
        return "0s" if left < 0.0005 else f"{sign}{left * 1000:.0f}ms"
    for size, unit, until in ((1, "s", 119.5), (60, "m", 119.5), (3600, "h", 47.5)):
        if left / size < until:
            return sign + _short(left / size) + unit
    return sign + _short(left / 86400) + "d"


def _short(amount: float) -> str:
    if amount >= 9.95:
        return f"{amount:.0f}"
    return f"{amount:.1f}".removesuffix(".0")


def value_text(value: Value, unit: str = "") -> str:
    """A value as a person would write it; the unit itself is not added, except `s` (a duration) and `share` (%)."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return _number_text(value, unit)
    if isinstance(value, (list, tuple)):
        shown = [value_text(each, unit) for each in value[:SHOWN]]
        more = f", … ({len(value)} in all)" if len(value) > SHOWN else ""
        return clean(", ".join(shown) or "none", MAX_VALUE) + more
    return clean(str(value)) or '""'


def _number_text(value: float, unit: str) -> str:
    if isinstance(value, int):
        return duration(value) if unit == "s" and abs(value) < 1e15 else clean(_whole(value, unit))
    if not math.isfinite(value):
        return "unknown"
    if unit == "s":
        return duration(value)
    if unit == "share":
        return _percent(value)
    if value == int(value) or abs(value) >= 1000:
        return f"{value:.0f}" if abs(value) < 1e15 else f"{value:.3g}"
    return f"{value:.4g}"


def _whole(value: int, unit: str) -> str:
    if abs(value) >= 10**18:  # no count is so large; and str() refuses more than 4,300 digits
        return "more than 10^18" if value > 0 else "less than -10^18"
    return _percent(value) if unit == "share" else str(value)


def _percent(share: float) -> str:
    text = f"{share * 100:.3g}%" if abs(share) < 10 else f"{share * 100:.0f}%"
    return ">99.9%" if share < 1 and text == "100%" else text  # one rank of 8,192 not seen is not "all seen"


def with_unit(fact: Fact) -> str:
    """Value and unit: `1 ranks`, `48m`, `97%`, `unknown`."""
    text = value_text(fact.value, fact.unit)
    bare = not fact.known or isinstance(fact.value, (bool, str)) or fact.unit in ("", "s", "share")
    return text if bare else f"{text} {clean(fact.unit, 20)}"


def fact_line(fact: Fact) -> str:
    """How a step of the walk tells a fact: `waits.absent = 1 ranks`, `links.down_now unknown: no port was read`."""
    if fact.known:
        told = isinstance(fact.value, (list, tuple)) and fact.text  # an interval of times reads better as its sentence
        return f"{fact.name} = {clean(fact.text) if told else with_unit(fact)}"
    return f"{fact.name} unknown" + (f": {clean(fact.reason)}" if fact.reason else "")


# ---------------------------------------------------------------- parts


def fold_parts(parts: Sequence[Part]) -> str:
    """Labels of parts, neighbours folded: `rank 5 (gpu003)`, `ranks 0-7 (gpu001)`, `12 nodes: a, b, c, …`, `none`."""
    labels = _labels(parts)
    if not labels:
        return "none"
    if len(labels) <= SHOWN:
        return ", ".join(labels)
    kinds = {part.kind for part in parts}
    noun = clean(f"{next(iter(kinds))}s", 20) if len(kinds) == 1 else "parts"
    count = len({(p.kind, p.node if p.kind != "rank" else None, p.rank, p.gpu, p.nic, p.name) for p in parts})
    return f"{count} {noun}: {', '.join(labels[: SHOWN - 1])}, …"


def _labels(parts: Sequence[Part]) -> list[str]:
    """Labels without doubles in the order given; ranks of one node stand together as `ranks 0-7 (gpu001)`."""
    ranks: dict[str | None, set[int]] = {}
    for part in parts:
        if part.kind == "rank" and part.rank is not None:
            ranks.setdefault(part.node, set()).add(part.rank)
    folded = {
        node: f"ranks {_runs(mine)}" + (f" ({clean(node, 60)})" if node else "")
        for node, mine in ranks.items()
        if len(mine) > 1
    }
    labels: dict[str, None] = {}
    for part in parts:
        grouped = part.kind == "rank" and part.rank is not None and part.node in folded
        labels[folded[part.node] if grouped else clean(part.label(), 80)] = None
    return list(labels)


def _runs(numbers: Iterable[int]) -> str:
    """`0-7, 9, 12-13`; of more than six runs the first five and `…`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [f"{a}" if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in runs]
    return ", ".join(texts if len(texts) <= 6 else [*texts[:5], "…"])


def _nodes(parts: Sequence[Part]) -> str:
    return ",".join(dict.fromkeys(clean(part.node, 80) for part in parts if part.node))


def _ranks(parts: Sequence[Part]) -> str:
    return ",".join(str(rank) for rank in dict.fromkeys(part.rank for part in parts if part.rank is not None))


# ---------------------------------------------------------------- templates


@dataclass(frozen=True)
class _Slot:
    fact: str
    form: str  # "" or one of _FORMS

    def fill(self, facts: Mapping[str, Fact]) -> str | None:
        """What stands in the slot, or None if it is unknown."""
        fact = facts.get(self.fact)
        if fact is None or not fact.known:
            return None
        if self.form == "parts":
            return fold_parts(fact.parts) if fact.parts or not fact.value else with_unit(fact)
        if self.form == "nodes":
            return _nodes(fact.parts) or None
        if self.form == "ranks":
            return _ranks(fact.parts) or None
        if self.form == "text" and fact.text:
            return clean(fact.text, 2 * MAX_VALUE)
        return with_unit(fact) if self.form == "text" else value_text(fact.value, fact.unit)


@dataclass(frozen=True)
class Words:
    """A text of a playbook whose slots were checked. `facts`: the names that it cites, in order."""

    text: str
    facts: tuple[str, ...]
    _pieces: tuple[str | _Slot, ...]

    def render(self, facts: Mapping[str, Fact]) -> str:
        """The text with its slots filled; unknown ones say "unknown"."""
        return "".join(
            piece if isinstance(piece, str) else (piece.fill(facts) or "unknown") for piece in self._pieces
        ).strip()

    def render_command(self, facts: Mapping[str, Fact]) -> str | None:
        """The text as a shell line: every value quoted; None if one is unknown (a holed command helps nobody)."""
        done: list[str] = []
        for piece in self._pieces:
            filled = piece if isinstance(piece, str) else piece.fill(facts)
            if filled is None:
                return None
            done.append(filled if isinstance(piece, str) else shlex.quote(filled))
        return "".join(done).strip()

    def cites_known(self, facts: Mapping[str, Fact]) -> bool:
        """Whether at least one cited fact is known: a text without one may rule nothing out."""
        return any(name in facts and facts[name].known for name in self.facts)


def compile_words(text: str, catalogue: Mapping[str, FactSpec]) -> Words:
    """Check the slots of `text` against the catalogue. Raises WordsError only."""
    if len(text) > MAX_TEMPLATE:
        raise WordsError(f"has {len(text)} characters, {MAX_TEMPLATE} are allowed", 1)
    text = re.sub(r"[ \t]*(?:\r\n|\r|\n)[ \t\r\n]*", " ", text).strip()  # a YAML block becomes one paragraph
    pieces: list[str | _Slot] = []
    literal = ""
    at = 0
    while at < len(text):
        char = text[at]
        if text[at : at + 2] in ("{{", "}}"):
            literal += char
            at += 2
        elif char == "}":
            raise WordsError('a single "}"; write "}}" for a brace', at + 1)
        elif char == "{":
            end = text.find("}", at)
            if end < 0:
                raise WordsError('"{" is never closed; write "{{" for a brace', at + 1)
            if literal:
                pieces.append(literal)
                literal = ""
            pieces.append(_slot(text[at + 1 : end], catalogue, at + 2))
            at = end + 1
        elif not char.isprintable():
            raise WordsError(f"holds the character {ord(char)}, which does not print", at + 1)
        else:
            literal += char
            at += 1
    if literal:
        pieces.append(literal)
    cited = dict.fromkeys(piece.fact for piece in pieces if isinstance(piece, _Slot))
    return Words(text, tuple(cited), tuple(pieces))


def _slot(name: str, catalogue: Mapping[str, FactSpec], column: int) -> _Slot:
    if name in catalogue:
        return _Slot(name, "")
    if not _SLOT.fullmatch(name):
        raise WordsError(f'"{{{clean(name, 60)}}}" is no fact name; a slot holds a name and nothing else', column)
    base, _, form = name.rpartition(".")
    if form in _FORMS and base in catalogue:
        if form in _PARTS_FORMS and not catalogue[base].parts:
            raise WordsError(f'"{base}" points at no parts, so "{name}" would be empty', column)
        return _Slot(base, form)
    names = [*catalogue, *(f"{fact}.{form}" for fact in catalogue if form in _FORMS)]
    raise WordsError(f'no fact "{name[:80]}"{did_you_mean(name, names)}', column)
