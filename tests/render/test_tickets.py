"""Tickets and events: the field rules of each service hold, whatever the nodes wrote (notes/peers-and-style.md section 3)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hostile import reports
from hypothesis import HealthCheck, given, settings
from sample_report import report

from triage.model import Culprit, Report, Verdict
from triage.render import render
from triage.render.clean import clean

HEALTHY = Verdict("healthy", None, "healthy", "the job runs", "none", "high", 0.9)
SLOW = Verdict("straggler", None, "straggler/gpu", "rank 3 is slow", "slow", "high", 0.9)
UNSURE = Verdict("inconclusive", None, "inconclusive/no_node", "nothing is proven", "none", "none", 0.0)
hostile = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def told(name: str, of: Report) -> Any:
    return json.loads(render(name, of))


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


def printable(text: str) -> bool:
    return all(clean(line, 100_000) == " ".join(line.split()) for line in text.split("\n"))


def pagerduty_rules(event: Any) -> None:
    assert len(json.dumps(event)) <= 512 * 1024
    assert event["event_action"] in ("trigger", "resolve")
    assert 0 < len(event["dedup_key"]) <= 255
    assert "routing_key" not in event
    payload = event["payload"]
    assert 0 < len(payload["summary"]) <= 1024
    assert payload["source"]
    assert payload["severity"] in ("critical", "error", "warning", "info")
    datetime.fromisoformat(payload["timestamp"].replace("Z", "+00:00"))
    assert isinstance(payload["custom_details"], dict)
    assert set(payload) <= {
        "summary",
        "source",
        "severity",
        "timestamp",
        "component",
        "group",
        "class",
        "custom_details",
    }


def servicenow_rules(document: Any) -> None:
    assert list(document) == ["records"] and len(document["records"]) == 1
    record = document["records"][0]
    assert all(isinstance(value, str) and value for value in record.values())
    assert set(record) <= {
        "source", "event_class", "node", "type", "resource", "metric_name", "severity", "message_key", "description",
        "time_of_event", "additional_info",
    }  # fmt: skip
    assert all(len(record.get(name, "")) <= 100 for name in ("source", "node", "type", "resource"))
    assert record.get("node") or record["event_class"]
    assert record["severity"] in "012345"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", record["time_of_event"])
    assert isinstance(json.loads(record["additional_info"]), dict)
    assert len(record["description"]) <= 4000 and len(record["additional_info"]) <= 4000


def alertmanager_rules(document: Any) -> None:
    assert isinstance(document, list) and len(document) == 1
    alert = document[0]
    assert set(alert) == {"labels", "annotations", "startsAt", "endsAt"}
    assert alert["labels"]["alertname"]
    for name, value in {**alert["labels"], **alert["annotations"]}.items():
        assert re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", name) and isinstance(value, str) and value
    begin, end = (datetime.fromisoformat(alert[k].replace("Z", "+00:00")) for k in ("startsAt", "endsAt"))
    assert begin <= end and begin.tzinfo is not None


def jsm_rules(alert: Any) -> None:
    assert 0 < len(alert["message"]) <= 130
    limits = (("alias", 512), ("description", 15_000), ("entity", 512), ("source", 100))
    assert all(len(alert[name]) <= most for name, most in limits)
    assert alert["priority"] in ("P1", "P2", "P3", "P4", "P5")
    assert len(alert["tags"]) <= 20 and all(0 < len(tag) <= 50 for tag in alert["tags"])
    extra = alert["extraProperties"]
    assert all(isinstance(v, str) for v in extra.values()) and sum(len(k) + len(v) for k, v in extra.items()) <= 8000
    assert "details" not in alert


RULES = {
    "pagerduty": pagerduty_rules,
    "servicenow": servicenow_rules,
    "alertmanager": alertmanager_rules,
    "jsm": jsm_rules,
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("verdict", [None, HEALTHY, SLOW, UNSURE], ids=lambda v: v.id if v else "dead_rank")
def test_the_field_rules_hold_for_each_kind_of_verdict(name: str, verdict: Verdict | None) -> None:
    RULES[name](told(name, replace(report(), verdict=verdict) if verdict else report()))


@pytest.mark.parametrize("name", RULES)
def test_the_field_rules_hold_for_a_report_of_a_thousand_nodes(name: str) -> None:
    RULES[name](told(name, report(1024)))


@pytest.mark.parametrize("name", RULES)
@given(of=reports())
@hostile
def test_whatever_nodes_write_the_rules_hold_and_no_control_sign_survives(name: str, of: Report) -> None:
    raw = render(name, of)
    assert raw.isascii() and all(sign.isprintable() or sign == "\n" for sign in raw)
    document = json.loads(raw)
    RULES[name](document)
    assert all(printable(text) for text in strings(document))


def alert_id(name: str, of: Report) -> str:
    document = told(name, of)
    if name == "pagerduty":
        return str(document["dedup_key"])
    if name == "servicenow":
        return str(document["records"][0]["message_key"])
    return str(document["alias"]) if name == "jsm" else json.dumps(document[0]["labels"], sort_keys=True)


@pytest.mark.parametrize("name", RULES)
def test_a_changed_verdict_updates_the_incident_and_another_restart_opens_a_new_one(name: str) -> None:
    first = report()
    later = replace(
        first,
        verdict=SLOW,
        culprits=(Culprit("rank", "culprit", node="gpu001", rank=3),),
        observed="2026-11-29T02:22:00Z",
    )
    again = replace(first, job={**first.job, "restart": 1}, dedup_key="triage:lab:inventory:4711:1")
    assert alert_id(name, later) == alert_id(name, first) != alert_id(name, again)


@pytest.mark.parametrize("name", ["pagerduty", "servicenow", "jsm"])
def test_two_keys_too_long_to_tell_apart_do_not_become_one(name: str) -> None:
    one, other = (replace(report(), dedup_key="triage:" + "x" * 4500 + end) for end in "ab")
    assert alert_id(name, one) != alert_id(name, other)


def test_only_a_job_that_was_seen_to_run_resolves() -> None:
    runs = replace(report(), verdict=HEALTHY, exit_code=0, state="running", culprits=())
    assert told("pagerduty", runs)["event_action"] == "resolve"
    assert told("servicenow", runs)["records"][0]["severity"] == "0"
    alert = told("alertmanager", runs)[0]
    assert alert["endsAt"] == alert["startsAt"]
    for other in (
        replace(runs, verdict=UNSURE, exit_code=11, state="unknown"),
        replace(runs, state="ended"),
        replace(runs, verdict=replace(HEALTHY, cause="healthy/unreachable")),
        replace(runs, verdict=replace(HEALTHY, confidence="low")),
    ):
        assert told("pagerduty", other)["event_action"] == "trigger"
        assert told("servicenow", other)["records"][0]["severity"] != "0"
        assert told("alertmanager", other)[0]["endsAt"] != alert["startsAt"]


def test_an_alert_that_is_sent_once_does_not_end_after_five_minutes() -> None:
    alert = told("alertmanager", report())[0]
    assert (alert["startsAt"], alert["endsAt"]) == ("2026-11-29T01:22:00Z", "2026-11-29T05:22:00Z")


def test_a_long_title_gives_way_and_the_confidence_stays() -> None:
    long = replace(report(), verdict=replace(report().verdict, title="rank 5 " + "is very dead " * 90))
    message = told("jsm", long)["message"]
    assert message.startswith("job 4711: rank 5") and message.endswith("... (confidence high)")


def test_without_a_culprit_the_source_is_the_job() -> None:
    payload = told("pagerduty", replace(report(), culprits=()))["payload"]
    assert payload["source"] == "job 4711" and "component" not in payload
    involved = replace(report(), culprits=(Culprit("rank", "involved", node="gpu003", rank=5),))
    assert told("pagerduty", involved)["payload"]["source"] == "job 4711"  # nobody is accused
