"""Conditions of a playbook: `waits.absent > 0 and not busy.phase.known`, three-valued and checked when they load.

Grammar  dotted fact names, `limit.NAME`, `NAME.known`, numbers, "text", true/false, lists of one type, parentheses,
         `and or not`, `== != < <= > >=` (also chained), `in` / `not in`, `+ - * /`. No calls, no None, no indexing.
Read by  Python's own parser, then a whitelist of node *and operator* types compared by exact type: operators hang in
         `.op` and `.ops`, and a check of expression nodes alone lets `9**9**9 > 1`, `x is 3` and `~x > 1` through
         (notes/prototype-findings.md 5). A dotted name is one key of the catalogue; no attribute of an object is read.
Values   True, False or None (unknown), by Kleene's rules: a known fact never flips an answer that was decided without
         it (`NAME.known` excepted, which asks about the knowing). Division by zero, overflow, NaN and a fact of
         another type than its catalogue entry are unknown.
Errors   `ConditionError` (exit 3) with the column, and what was probably meant.
"""

from __future__ import annotations

import ast
import difflib
import math
import operator
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from triage.errors import ConfigError
from triage.model import Fact, FactSpec

MAX_LENGTH = 500
MAX_DEPTH = 40

_ALLOWED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,()[]+-*/<>=! \t")
_HINTS = {
    "&": 'write "and"',
    "|": 'write "or"',
    "!": 'write "not"',
    "#": "a condition holds no comments",
    "=": 'write "==" to compare',
    ":": "conditions compare, they assign nothing",
}
_REFUSED: dict[type[ast.AST], str] = {
    ast.Call: "conditions make no calls; what needs computing is a fact",
    ast.Lambda: "conditions hold no functions",
    ast.IfExp: 'conditions hold no if/else; use "and" and "or"',
    ast.Subscript: "conditions do no indexing; what needs picking is a fact",
    ast.Tuple: "lists are written [a, b]",
    ast.Set: "lists are written [a, b]",
    ast.Starred: "conditions hold no *",
}
_KIND_WORDS = {"bool": "a yes or no", "number": "a number", "text": "text", "list": "a list"}
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {"bool": (bool,), "text": (str,), "list": (list, tuple)}
_NOT_VALUES = {"None", "null", "unknown"}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_WORDS: dict[type[ast.boolop], str] = {ast.And: "and", ast.Or: "or"}
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_EQUAL: dict[type[ast.cmpop], bool] = {ast.Eq: True, ast.NotEq: False}
_MEMBER: dict[type[ast.cmpop], bool] = {ast.In: True, ast.NotIn: False}


class ConditionError(ConfigError):
    """A condition that cannot be used: `problem` says why, `column` (from 1) where in the folded text."""

    def __init__(self, problem: str, column: int) -> None:
        super().__init__(f"col {column}: {problem}")
        self.problem = problem
        self.column = column


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`, did you mean "ranks.gone"?` for the nearest of `names`, or nothing."""
    near = difflib.get_close_matches(name[:80], list(names), n=1, cutoff=0.6)
    return f', did you mean "{near[0]}"?' if near else ""


@dataclass(frozen=True)
class _Scope:
    facts: Mapping[str, Fact]
    limits: Mapping[str, float]


_Run = Callable[[_Scope], Any]


@dataclass(frozen=True)
class _Typed:
    """A compiled piece: its type (for lists also that of the elements, "any" if not known) and how to get its value."""

    kind: str
    run: _Run
    item: str = ""


@dataclass(frozen=True)
class Condition:
    """A condition that passed its checks.

    facts   names of the facts that it reads, in order of first mention (`x.known` reads x)
    limits  names of the thresholds that it reads, without `limit.`
    """

    text: str
    facts: tuple[str, ...]
    limits: tuple[str, ...]
    _run: _Run = field(repr=False, compare=False)

    def evaluate(self, facts: Mapping[str, Fact], limits: Mapping[str, float]) -> bool | None:
        """True, False, or None when the facts cannot tell. A fact or limit that is absent is unknown. Never raises."""
        answer = self._run(_Scope(facts, limits))
        return answer if isinstance(answer, bool) else None


def compile_condition(text: str, catalogue: Mapping[str, FactSpec], limits: Collection[str] = ()) -> Condition:
    """Check `text` against the facts of the catalogue and the names of the thresholds. Raises ConditionError only."""
    # A folded YAML scalar may hold newlines, and Python would end the expression there.
    folded = re.sub(r"[ \t]*(?:\r\n|\r|\n)[ \t\r\n]*", " ", text).strip(" \t")
    _look_over(folded)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # `1and x` only warns; here it becomes a SyntaxError
            tree = ast.parse(folded, mode="eval")
    except SyntaxError as error:
        column = min(max(error.offset or 1, 1), len(folded) + 1)
        raise ConditionError(f"cannot be read ({str(error.msg)[:80]})", column) from None
    except (RecursionError, MemoryError):
        raise ConditionError("is nested too deeply", 1) from None
    except (ValueError, Warning):
        raise ConditionError("cannot be read", 1) from None
    compiler = _Compiler(folded, catalogue, limits)
    whole = compiler.piece(tree.body, 1)
    if whole.kind != "bool":
        what = compiler.source(tree.body)
        raise ConditionError(
            f'"{what}" is {_KIND_WORDS[whole.kind]}, not a yes or no; compare it with something', _first(folded)
        )
    if not compiler.facts:
        raise ConditionError("reads no fact, so its answer never changes", 1)
    return Condition(folded, tuple(compiler.facts), tuple(compiler.limits), whole.run)


def _first(text: str) -> int:
    return len(text) - len(text.lstrip("( ")) + 1


def _look_over(text: str) -> None:
    """Refuse by characters what the parser would only answer with surprises: before it, and in one pass.

    Comments (a folded scalar would lose every line after the first), neighbouring strings (a forgotten comma in a
    list joins them), string prefixes and escapes, letters outside ASCII (Python maps some of them to ASCII letters).
    """
    if not text:
        raise ConditionError("is empty", 1)
    if len(text) > MAX_LENGTH:
        raise ConditionError(f"has {len(text)} characters, {MAX_LENGTH} are allowed", 1)
    depth = 0
    at = 0
    closed = -1  # where the last string ended, while only blanks have followed
    while at < len(text):
        char, column = text[at], at + 1
        if char in "\"'":
            if at and (text[at - 1].isalnum() or text[at - 1] == "_"):
                raise ConditionError("a text has no letters before its quote", column)
            if closed >= 0:
                raise ConditionError("two texts side by side; is a comma missing?", column)
            at = closed = _end_of_text(text, at)
        elif char in _HINTS and not (char in "!=" and _is_comparison(text, at)):
            raise ConditionError(f'"{char}" is not part of conditions; {_HINTS[char]}', column)
        elif char not in _ALLOWED:
            shown = char if char.isprintable() else f"character {ord(char)}"
            raise ConditionError(f'"{shown}" is not part of conditions', column)
        elif char not in " \t":
            closed = -1
            depth += (char in "([") - (char in ")]")
            if depth > MAX_DEPTH:
                raise ConditionError("is nested too deeply", column)
        at += 1


def _end_of_text(text: str, start: int) -> int:
    """Index of the quote that closes the one at `start`."""
    end = text.find(text[start], start + 1)
    if end < 0:
        raise ConditionError("this text has no closing quote", start + 1)
    for at in range(start + 1, end):
        if text[at] == "\\" or not text[at].isprintable():
            raise ConditionError("a text holds no backslash and no control character", at + 1)
    return end


def _is_comparison(text: str, at: int) -> bool:
    """Whether the `=` or `!` at this place belongs to `== != <= >=`."""
    before, after = text[at - 1 : at], text[at + 1 : at + 2]
    if text[at] == "!":
        return after == "="
    return after == "=" or (before != "" and before in "=!<>")


class _Compiler:
    """One condition on its way from syntax tree to closures; remembers the names that it met."""

    def __init__(self, text: str, catalogue: Mapping[str, FactSpec], limits: Collection[str]) -> None:
        self._text = text
        self._bytes = text.encode("utf-8", "replace")
        self._catalogue = catalogue
        self._known_limits = limits
        self.facts: dict[str, None] = {}
        self.limits: dict[str, None] = {}

    def piece(self, node: ast.expr, depth: int) -> _Typed:
        if depth > MAX_DEPTH:
            raise self._error("is nested too deeply", node)
        kind = type(node)  # exact type: a subclass is not on the list
        if kind is ast.BoolOp:
            return self._bool(node, depth)  # type: ignore[arg-type]
        if kind is ast.UnaryOp:
            return self._unary(node, depth)  # type: ignore[arg-type]
        if kind is ast.BinOp:
            return self._binary(node, depth)  # type: ignore[arg-type]
        if kind is ast.Compare:
            return self._compare(node, depth)  # type: ignore[arg-type]
        if kind is ast.Constant:
            return self._constant(node)  # type: ignore[arg-type]
        if kind is ast.List:
            return self._list(node, depth)  # type: ignore[arg-type]
        if kind is ast.Name or kind is ast.Attribute:
            return self._name(node)
        raise self._error(_REFUSED.get(kind, f"{kind.__name__} is not part of conditions"), node)

    def source(self, node: ast.expr) -> str:
        """The text of this piece, short enough for a message."""
        found = self._bytes[node.col_offset : node.end_col_offset].decode("utf-8", "replace")
        return found if len(found) <= 60 else found[:57] + "..."

    def _error(self, problem: str, node: ast.expr) -> ConditionError:
        column = len(self._bytes[: node.col_offset].decode("utf-8", "ignore")) + 1
        return ConditionError(problem, column)

    def _must_be(self, kind: str, piece: _Typed, node: ast.expr, use: str) -> None:
        if piece.kind != kind:
            is_, needs = _KIND_WORDS[piece.kind], _KIND_WORDS[kind]
            raise self._error(f'"{self.source(node)}" is {is_}; {use} needs {needs}', node)

    # -------------------------------------------------------- names and constants

    def _name(self, node: ast.expr) -> _Typed:
        name = self._dotted(node)
        if name in ("true", "false"):
            truth = name == "true"
            return _Typed("bool", lambda scope: truth)
        if name in _NOT_VALUES:
            raise self._error(f'"{name}" is no value to compare with; ask NAME.known instead', node)
        if name in self._catalogue:
            spec = self._catalogue[name]
            self.facts[name] = None
            return _Typed(spec.type, _reader(name, spec.type), "any" if spec.type == "list" else "")
        if name.startswith("limit."):
            return self._limit(name.removeprefix("limit."), node)
        base = name.removesuffix(".known")
        if base != name and base in self._catalogue:
            self.facts[base] = None
            return _Typed("bool", lambda scope: base in scope.facts and scope.facts[base].known)
        names = [*self._catalogue, *(f"limit.{limit}" for limit in self._known_limits)]
        if base != name:
            names += [f"{fact}.known" for fact in self._catalogue]
        raise self._error(f'no fact "{name[:80]}"{did_you_mean(name, names)}', node)

    def _dotted(self, node: ast.expr) -> str:
        parts: list[str] = []
        inner = node
        while type(inner) is ast.Attribute:
            parts.append(inner.attr)
            inner = inner.value
        if type(inner) is not ast.Name:
            raise self._error("only a fact's name has dots", node)
        return ".".join([inner.id, *reversed(parts)])

    def _limit(self, name: str, node: ast.expr) -> _Typed:
        if name not in self._known_limits:
            raise self._error(f'no threshold "{name[:80]}"{did_you_mean(name, self._known_limits)}', node)
        self.limits[name] = None
        return _Typed("number", lambda scope: _as("number", scope.limits.get(name)))

    def _constant(self, node: ast.Constant) -> _Typed:
        value = node.value
        if value is None:
            raise self._error('"None" is no value to compare with; ask NAME.known instead', node)
        if type(value) is bool:
            return _Typed("bool", lambda scope: value)
        if type(value) is str:
            return _Typed("text", lambda scope: value)
        if type(value) is int or (type(value) is float and math.isfinite(value)):
            return _Typed("number", lambda scope: value)
        raise self._error("is no number that can be used", node)

    def _list(self, node: ast.List, depth: int) -> _Typed:
        if not node.elts:
            raise self._error("an empty list holds nothing to find", node)
        pieces = [self.piece(element, depth + 1) for element in node.elts]
        for piece, element in zip(pieces, node.elts):
            if piece.kind == "list":
                raise self._error("a list holds no lists", element)
            self._must_be(pieces[0].kind, piece, element, "this list")
        runs = [piece.run for piece in pieces]
        return _Typed("list", lambda scope: [run(scope) for run in runs], pieces[0].kind)

    # -------------------------------------------------------- operators

    def _bool(self, node: ast.BoolOp, depth: int) -> _Typed:
        word = _WORDS.get(type(node.op))
        if word is None:
            raise self._error("this operator is not part of conditions", node)
        pieces = [self.piece(value, depth + 1) for value in node.values]
        for piece, value in zip(pieces, node.values):
            self._must_be("bool", piece, value, f'"{word}"')
        return _Typed("bool", _all_of([piece.run for piece in pieces], decides=word == "or"))

    def _unary(self, node: ast.UnaryOp, depth: int) -> _Typed:
        piece = self.piece(node.operand, depth + 1)
        run = piece.run
        if type(node.op) is ast.Not:
            self._must_be("bool", piece, node.operand, '"not"')
            return _Typed("bool", lambda scope: _not(run(scope)))
        if type(node.op) is ast.USub:
            self._must_be("number", piece, node.operand, '"-"')
            return _Typed("number", _arithmetic(operator.sub, lambda scope: 0, run))
        raise self._error('this operator is not part of conditions; they have "not" and "-"', node)

    def _binary(self, node: ast.BinOp, depth: int) -> _Typed:
        function = _ARITHMETIC.get(type(node.op))
        if function is None:
            raise self._error("this operator is not part of conditions; they have + - * /", node)
        left, right = self.piece(node.left, depth + 1), self.piece(node.right, depth + 1)
        self._must_be("number", left, node.left, "arithmetic")
        self._must_be("number", right, node.right, "arithmetic")
        return _Typed("number", _arithmetic(function, left.run, right.run))

    def _compare(self, node: ast.Compare, depth: int) -> _Typed:
        nodes = [node.left, *node.comparators]
        pieces = [self.piece(each, depth + 1) for each in nodes]
        runs = [
            self._pair(op, (pieces[at], nodes[at]), (pieces[at + 1], nodes[at + 1])) for at, op in enumerate(node.ops)
        ]
        return _Typed("bool", runs[0] if len(runs) == 1 else _all_of(runs, decides=False))

    def _pair(self, op: ast.cmpop, left: tuple[_Typed, ast.expr], right: tuple[_Typed, ast.expr]) -> _Run:
        (one, one_node), (two, two_node) = left, right
        first, second, kind = one.run, two.run, type(op)
        if kind in _MEMBER:
            self._must_be("list", two, two_node, '"in"')
            if one.kind == "list" or two.item not in ("any", one.kind):
                held = "" if two.item == "any" else f" in a list of {two.item}"
                raise self._error(
                    f'"{self.source(one_node)}" is {_KIND_WORDS[one.kind]} and cannot be looked up{held}', one_node
                )
            return _same_or_not(_MEMBER[kind], lambda scope: _member(first(scope), second(scope)))
        if kind in _ORDER:
            self._must_be("number", one, one_node, "< and >")
            self._must_be("number", two, two_node, "< and >")
            ordered = _ORDER[kind]
            return lambda scope: _ordered(ordered, first(scope), second(scope))
        if kind in _EQUAL:
            if one.kind != two.kind or one.kind == "list":
                raise self._error(
                    f'"{self.source(one_node)}" is {_KIND_WORDS[one.kind]} and "{self.source(two_node)}" is '
                    f"{_KIND_WORDS[two.kind]}; they cannot be compared",
                    one_node,
                )
            return _same_or_not(_EQUAL[kind], lambda scope: _same(first(scope), second(scope)))
        raise self._error('this comparison is not part of conditions; "==" compares values', one_node)


# ---------------------------------------------------------------- evaluation: None is unknown everywhere


def _as(kind: str, value: Any) -> Any:
    """The value if it is of this kind, else unknown: a node's text where a number belongs decides nothing."""
    if kind == "number":
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and _finite(value)
    else:
        good = isinstance(value, _PYTHON_TYPES[kind])
    return value if good else None


def _finite(value: float) -> bool:
    return isinstance(value, int) or math.isfinite(value)


def _reader(name: str, kind: str) -> _Run:
    def run(scope: _Scope) -> Any:
        fact = scope.facts.get(name)
        return None if fact is None else _as(kind, fact.value)

    return run


def _all_of(runs: list[_Run], *, decides: bool) -> _Run:
    """`and` (False decides) or `or` (True decides): every operand is looked at before unknown is said."""

    def run(scope: _Scope) -> bool | None:
        answers = [each(scope) for each in runs]
        if any(answer is decides for answer in answers):
            return decides
        return None if any(answer is None for answer in answers) else not decides

    return run


def _not(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def _same_or_not(positive: bool, run: _Run) -> _Run:
    return run if positive else lambda scope: _not(run(scope))


def _arithmetic(function: Callable[[Any, Any], Any], first: _Run, second: _Run) -> _Run:
    def run(scope: _Scope) -> Any:
        one, two = first(scope), second(scope)
        if one is None or two is None:
            return None
        try:
            return _as("number", function(one, two))
        except (ZeroDivisionError, OverflowError):
            return None

    return run


def _ordered(function: Callable[[Any, Any], bool], one: Any, two: Any) -> bool | None:
    return None if one is None or two is None else function(one, two)


def _same(one: Any, two: Any) -> bool | None:
    """Equality that knows unknown, and that 1 is not true."""
    if one is None or two is None:
        return None
    numbers = _as("number", one) is not None and _as("number", two) is not None
    if not numbers and type(one) is not type(two):
        return None
    return bool(one == two)


def _member(one: Any, held: Any) -> bool | None:
    """True on a hit, else unknown if an element (or the list) is unknown."""
    if one is None or held is None:
        return None
    answers = [_same(one, element) for element in held]
    if any(answers):
        return True
    return None if None in answers else False
