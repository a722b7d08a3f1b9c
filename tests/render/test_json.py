"""The report as one JSON document: valid, stable, and never a number that is none."""

from __future__ import annotations

import json as stdlib
from dataclasses import fields, replace

import pytest
from sample_report import report

from triage.model import Report, Verdict
from triage.render import json, render


def test_one_document_with_the_keys_of_the_model_in_their_order() -> None:
    told = json.render(report())
    assert list(stdlib.loads(told)) == [field.name for field in fields(Report)]
    assert told.endswith("}\n") and told.count("\n}") == 1


def test_a_findings_cls_is_called_class() -> None:
    found = stdlib.loads(json.render(report()))["findings"][0]
    assert list(found) == ["class", "part", "text", "run"]


def test_empty_lists_are_lists() -> None:
    found = stdlib.loads(json.render(replace(report(), culprits=(), evidence=(), do_not=())))
    assert found["culprits"] == [] and found["evidence"] == [] and found["do_not"] == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_none_is_refused_with_its_place(bad: float) -> None:
    with pytest.raises(ValueError, match=r"report\.verdict\.score"):
        json.render(replace(report(), verdict=Verdict("x", None, "x", "x", "stop", "high", bad)))
    with pytest.raises(ValueError, match=r"report\.took_s\.look A"):
        json.render(replace(report(), took_s={"look A": bad}))


def test_what_json_cannot_hold_is_refused_with_its_place() -> None:
    with pytest.raises(ValueError, match=r"report\.tool\.x holds a set"):
        json.render(replace(report(), tool={"x": {1}}))


def test_the_same_report_is_the_same_bytes_whatever_the_order_of_its_maps() -> None:
    one = replace(report(), took_s={"a": 1.0, "b": 2.0}, tool={"x": 1, "y": 2})
    other = replace(report(), took_s={"b": 2.0, "a": 1.0}, tool={"y": 2, "x": 1})
    assert json.render(one) == json.render(other)


def test_no_raw_control_character_or_lone_surrogate_reaches_the_terminal() -> None:
    told = json.render(replace(report(), do_not=("\x1b[2J\x9b\u202e\ud800字",)))
    assert told.isascii() and all(c.isprintable() or c == "\n" for c in told)
    assert stdlib.loads(told)["do_not"] == ["\x1b[2J\x9b\u202e\ud800字"]


def test_options_of_other_formats_are_left_out() -> None:
    assert render("json", report(), color=True, width=60) == json.render(report())
    assert render("text", report(), color=False, width=60).startswith("VERDICT")
