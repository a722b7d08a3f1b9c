"""The schema: made from the model, shipped with the package, and true of what is printed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from sample_report import COSTS, report, request

import triage
from triage.cost.plans import plan
from triage.cost.profile import load_profile
from triage.render.json import as_json
from triage.schema import SCHEMA_VERSION, schema, schema_text

COMMITTED = Path(triage.__file__).parent / "report.schema.json"


def errors(document: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema())
    return [f"{list(e.path)}: {e.message}" for e in validator.iter_errors(document)]


def test_the_shipped_schema_is_that_of_the_model() -> None:
    assert COMMITTED.read_text() == schema_text(), "write it anew: triage schema > triage/report.schema.json"


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    assert schema()["title"] == SCHEMA_VERSION


@pytest.mark.parametrize(
    "mitigate", ["none", "wait", "price", "restart", "restart_excluding", "fix_then_restart", "repair"]
)
@pytest.mark.parametrize("fail", ["stop", "slow", "none"])
@pytest.mark.parametrize("verdict", ["dead_rank", "inconclusive", "straggler", "healthy"])
def test_every_plan_is_valid(mitigate: str, fail: str, verdict: str) -> None:
    for known in ({}, {"onset": None}, {"t0_s": 1.0, "t1_s": 1.2}, {"slow_fraction": 0.1, "idle_nodes": 0}):
        found = plan(request(verdict_id=verdict, mitigate=mitigate, fail=fail, **known), load_profile(COSTS))
        assert errors(as_json(replace(report(), mitigation=found))) == []


def test_a_report_with_nothing_but_a_verdict_is_valid() -> None:
    bare = replace(
        report(), culprits=(), victims=(), evidence=(), findings=(), ruled_out=(), alternatives=(), unknown=(), walk=(),
        timeline=(), deadlines=(), commands=(), do_not=(), took_s={}, case=None,
    )  # fmt: skip
    assert errors(as_json(bare)) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("state",), "sleeping"),
        (("verdict", "confidence"), "certain"),
        (("mitigation", "recommended", "strategy"), "S5"),
        (("mitigation", "recommended", "action"), "pray"),
        (("mitigation", "restart", "exclude_nodes"), None),
        (("mitigation", "inputs", "restart_min", "source"), "rumour"),
        (("culprits",), None),
        (("findings", 0, "class"), None),
        (("schema_version",), "triage.report/2"),
    ],
)
def test_what_is_wrong_is_found(path: tuple[Any, ...], value: object) -> None:
    document = json.loads(json.dumps(as_json(report())))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert errors(document)
    del place[path[-1]]
    assert errors(document)


def test_a_reader_of_this_version_accepts_what_a_later_one_adds() -> None:
    document = as_json(report())
    document["new"] = 1
    document["verdict"]["new"] = 1
    assert errors(document) == []
