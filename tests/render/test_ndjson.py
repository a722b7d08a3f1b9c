"""One event a line: the version first, the whole document last."""

from __future__ import annotations

import json

from hostile import reports
from hypothesis import HealthCheck, given, settings
from sample_report import report

from triage.model import Report
from triage.render import json as whole
from triage.render import ndjson


def test_the_version_is_first_and_the_document_of_json_is_last() -> None:
    lines = [json.loads(line) for line in ndjson.render(report()).splitlines()]
    assert lines[0]["type"] == "version" and lines[0]["schema_version"] == "triage.report/1"
    assert lines[-1]["type"] == "report" and lines[-1]["report"] == json.loads(whole.render(report()))
    walk = [line for line in lines if line["type"] == "tree.step"]
    assert [step["question"] for step in walk] == ["pulse", "hard"]
    assert len([line for line in lines if line["type"] == "evidence"]) == len(report().evidence)


@given(of=reports())
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_text_of_a_node_begins_a_line_of_its_own(of: Report) -> None:
    told = ndjson.render(of)
    assert told.isascii()
    assert len(told.split("\n")) - 1 == 4 - 1 + len(of.walk) + len(of.evidence) + 1
    assert all(isinstance(json.loads(line)["type"], str) for line in told.splitlines())
