"""A report in which every text that a node or a user could have written is hostile."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from hypothesis import strategies as st
from sample_report import report

from triage.model import Report

NASTY = (
    "<script>alert(1)</script>", "<img src=http://evil.example/x onerror=alert(1)>", "</pre></svg><b>", "&lt;&#60;", "]]>", "<!--",
    "[click](http://evil.example)", "![x](https://evil.example/p.png)", "@here @channel", "<https://evil.example>", "www.evil.example",
    "`` ` ```sh\nrm -rf /\n```", "# heading", "- item", "1. item", "| a | b |\n|---|---|", "***", "\x1b[2J\x1b]0;t\x07", "\x9b31m",
    "\u202eevil", "a\u200bb", "\x00\x08\x7f", "\ud800", "e" + "\u0301" * 50, "\r\nVERDICT healthy", "' \" onload='x'", "x" * 5000, "字" * 700,
    "javascript:alert(1)", "url(http://evil.example)", "\\`", "a\\", "{{7*7}}", "~~x~~", "$x$", "1) a", "+ a", "=====", "a@b.example",
)  # fmt: skip

texts = st.one_of(
    st.sampled_from(NASTY),
    st.text(max_size=60),
    st.lists(st.sampled_from(NASTY), min_size=2, max_size=3).map(" ".join),
)

# What triage itself writes, never a node.
OURS = {
    "schema_version",
    "state",
    "fail",
    "confidence",
    "role",
    "side",
    "kind",
    "answer",
    "exit_code",
    "at",
    "observed",
}


def poisoned(draw: Any, value: Any, name: str = "") -> Any:
    if name in OURS or value is None or isinstance(value, bool | int | float):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: poisoned(draw, getattr(value, f.name), f.name) for f in fields(value)})
    if isinstance(value, tuple | list):
        return type(value)(poisoned(draw, item, name) for item in value)
    if isinstance(value, dict):
        return {key: poisoned(draw, item, str(key)) for key, item in value.items()}
    return draw(texts) if isinstance(value, str) else value


@st.composite
def reports(draw: Any) -> Report:
    clean = report()
    mitigation = {"recommended": {"summary": draw(texts)}}
    return poisoned(draw, replace(clean, mitigation=mitigation))  # type: ignore[no-any-return]
