"""What the scheduler says of nodes is a finding before and beside what they say themselves."""

import pytest
from written_silence import world

from triage.readers.node_words import unwell


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("mixed*", "mixed*: its daemon does not respond"),
        ("down*", "down*: its daemon does not respond"),
        ("drained", "drained"),
        ("idle~", "idle~: powered off"),
        ("allocated$", "allocated$: reserved for maintenance"),
        ("DOWN+DRAIN", "DOWN+DRAIN"),
        ("allocated", ""),
        ("mixed-", ""),
        ("idle", ""),
        ("completing", ""),
        ("dancing", ""),
        ("", ""),
    ],
)
def test_what_is_wrong_with_a_node_by_its_state(state, says):
    assert unwell(state) == says


def test_a_node_that_answers_and_is_marked_says_that_only_its_daemon_is_silent():
    found = world(states={"gpu001": "idle", "gpu002": "mixed*"}).fact("hosts.marked")
    assert found.value == 1 and found.parts[0].node == "gpu002"
    assert found.text == "gpu002 mixed*: its daemon does not respond; it answers us"


def test_a_node_that_is_marked_and_silent_is_not_said_to_answer():
    found = world("gpu003", states={"gpu003": "down*"}).fact("hosts.marked")
    assert [(p.node, p.why) for p in found.parts] == [("gpu003", "down*: its daemon does not respond")]


def test_without_a_scheduler_it_is_unknown_and_with_one_that_marks_none_it_is_none():
    assert world().fact("hosts.marked").reason == "no scheduler told the states of the nodes"
    assert world(states={"gpu001": "allocated"}).fact("hosts.marked").value == 0
