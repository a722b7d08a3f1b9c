"""What is sent to a node stays small, and is the same program as the files that it was made of."""

from __future__ import annotations

import ast
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triage.transports import payload

SOURCES = {**payload._files(), **payload.carried_modules()}


def bare(source):
    """The program without its docstrings, as a tree with its line numbers."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            for at, line in enumerate(body):
                if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant):
                    body[at] = ast.copy_location(ast.Pass(), line)
                    line.end_lineno = None
    return ast.dump(tree), [(type(n).__name__, n.lineno) for n in ast.walk(tree) if hasattr(n, "lineno")]


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_without_its_comments_a_file_is_the_same_program_line_by_line(name):
    assert bare(payload.lean(SOURCES[name])) == bare(SOURCES[name])


@given(st.binary(max_size=4000))
def test_any_bytes_come_back_from_the_literal_that_holds_them(raw):
    source = b"# coding: latin-1\ngot = " + payload.literal(raw) + b".encode('latin-1')\nafter = 1\n"
    found = {}
    exec(compile(source, "x", "exec"), found)
    assert found["got"] == raw and found["after"] == 1


def test_the_whole_payload_with_pynvml_keeps_its_budget():
    built = payload.build()
    assert len(built) <= 160_000, len(built)  # DESIGN section 11
    assert b"nvmlDeviceGetHandleByPciBusId" not in built and zlib.compress(built, 9) != b""


def test_pynvml_travels_only_where_a_probe_needs_it():
    assert len(payload.build(["reach"])) < len(payload.build(["reach", "gpu"])) - 30_000
