"""What the doctor asks: each mistake in its file is named, and what a lack costs follows from the playbooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from triage.conclude import load_playbooks
from triage.errors import ConfigError
from triage.facts import registry
from triage.investigate import probe_names, shipped_playbooks
from triage.model import Fact
from triage.tree.checks import load_checks, lost_verdicts

SHIPPED = Path(__file__).parents[2] / "playbooks" / "doctor.yaml"


@pytest.fixture(scope="module")
def books() -> Any:
    return load_playbooks({n: text for n, text in shipped_playbooks().items() if n != "costs"}, probe_names())


def changed(tmp_path: Path, **keys: Any) -> Path:
    document = yaml.safe_load(SHIPPED.read_text())
    document["checks"][0].update(keys)
    file = tmp_path / "doctor.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def test_the_checks_that_ship_are_valid() -> None:
    checks = load_checks(registry.catalogue())
    assert len(checks) > 10 and len({check.id for check in checks}) == len(checks)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"lack": "hosts.silnt > 0"}, "did you mean"),
        ({"lack": "hosts.silent"}, "hosts.silent"),
        ({"loses": ["ranks.gon"]}, 'no fact "ranks.gon"'),
        ({"loses": "ranks.gone"}, "list of facts"),
        ({"where": "somewhere"}, "one of job, nodes, operator"),
        ({"says": "{no.such}"}, "no fact"),
        ({"id": "pipe"}, "two checks are called pipe"),
        ({"more": 1}, "exactly"),
    ],
)
def test_each_mistake_is_named_with_its_check(tmp_path: Path, keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=r"doctor\.yaml: ") as caught:
        load_checks(registry.catalogue(), changed(tmp_path, **keys))
    assert why in str(caught.value)


def test_a_file_without_checks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "doctor.yaml").write_text("version: 1\n")
    with pytest.raises(ConfigError, match="no checks"):
        load_checks(registry.catalogue(), tmp_path / "doctor.yaml")


def test_without_flight_records_the_deadlocks_are_lost_and_a_dead_rank_is_not(books: Any) -> None:
    lost = lost_verdicts(books, ["waits.roots", "waits.cycle", "waits.mismatch", "waits.all_joined"])
    assert "deadlock/order" in lost and "deadlock/mismatch" in lost
    assert not [cause for cause in lost if cause.startswith(("healthy", "inconclusive", "dead_rank/oom"))]


def test_nothing_lost_costs_no_verdict_and_a_fact_that_no_question_reads_costs_none(books: Any) -> None:
    assert lost_verdicts(books, []) == () and lost_verdicts(books, ["clocks.worst_s"]) == ()


def test_more_that_is_lost_never_costs_less(books: Any) -> None:
    few, more = lost_verdicts(books, ["pace.slow"]), lost_verdicts(books, ["pace.slow", "waits.cycle"])
    assert set(few) <= set(more) and few


def test_every_check_that_costs_a_fact_costs_a_verdict(books: Any) -> None:
    for check in load_checks(registry.catalogue()):
        assert bool(lost_verdicts(books, check.loses)) == bool(check.loses), check.id


def test_a_condition_that_cannot_be_told_says_why() -> None:
    check = next(c for c in load_checks(registry.catalogue()) if c.id == "gpus")
    facts = {"gpus.unseen": Fact("gpus.unseen", None, reason="the nodes have no NVIDIA GPU")}
    assert check.lacks(facts) is None and check.why_unknown(facts) == "the nodes have no NVIDIA GPU"
