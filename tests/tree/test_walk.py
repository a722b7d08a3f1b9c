"""The walk: which way it goes, what it asks for, what it accuses, and how its number is made."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triage.errors import ConfigError, UsageError
from triage.model import Command, Culprit, Fact, FactSpec, Part
from triage.tree.load import PlaybookError, load_set
from triage.tree.walk import Conclusion, Request, walk

CATALOGUE = {
    spec.name: spec
    for spec in (
        FactSpec("progress.advancing", "bool"),
        FactSpec("waits.absent", "number", "ranks", "rank"),
        FactSpec("waits.members", "number", "ranks", "rank"),
        FactSpec("waits.roots", "number", "ranks", "rank"),
        FactSpec("waits.victims", "number", "ranks", "rank"),
        FactSpec("hosts.silent", "number", "nodes", "node"),
        FactSpec("links.down_now", "number", "links", "nic"),
        FactSpec("seen.nodes_share", "number", "share"),
        FactSpec("progress.stall_age_s", "number", "s"),
    )
}

FROZEN = """
playbook: frozen-job
version: 1
start: pulse
thresholds: {floor_s: 60}
questions:
  pulse:
    ask: Is there progress?
    when: progress.advancing or progress.stall_age_s < limit.floor_s
    yes: slow-job:start
    no: hosts
    unknown: {goto: hosts, costs: 0.15}
  hosts:
    ask: Is a node gone?
    when: hosts.silent > 0
    yes: {verdict: dead_rank/node}
    no: {goto: absent, rules_out: {dead_rank: "{hosts.silent} of all nodes are silent"}}
    unknown: {goto: absent, costs: 0.1}
  absent:
    ask: Has a member not arrived?
    when: waits.absent > 0
    ask_for: {probe: stacks, on: waits.roots, peers: 2, args: {depth: 20}}
    yes: {verdict: stuck_rank/silent}
    no: {verdict: inconclusive/arrived, rules_out: {stuck_rank: "all {waits.members} had joined"}}
    unknown: {verdict: inconclusive/arrived, costs: 0.2}
verdicts:
  dead_rank/node:
    title: "{hosts.silent.parts} is gone"
    says: The job cannot go on.
    culprits: hosts.silent
    victims: waits.victims
    evidence: [hosts.silent]
    base: 0.95
    fail: stop
    mitigate: restart_excluding
  stuck_rank/silent:
    title: "{waits.roots.parts} did not arrive"
    says: It stands outside the collective for {progress.stall_age_s}.
    do_not: ["Do not blame {waits.victims.parts}."]
    kind: host
    culprits: waits.roots
    victims: waits.victims
    evidence: [waits.absent, waits.roots]
    base: 0.9
    fail: stop
    mitigate: fix_then_restart
    fix_first: See the stack of {waits.roots.parts}.
  inconclusive/arrived:
    title: Nobody is missing
    says: All arrived.
    fail: stop
    mitigate: wait
    state: frozen
    collect:
      - {why: to see stacks, run: "triage collect JOBID --nodes {waits.members.nodes}"}
      - {why: always, run: triage collect JOBID, effect: writes a case, cost: 20s}
    leads:
      - {verdict: link_flap/port, when: links.down_now > 0, why_not: "{links.down_now} port down, but all had joined"}
  inconclusive/weak:
    title: The evidence is too weak
    says: See the alternatives.
    fail: stop
    mitigate: wait
  link_flap/port:
    title: "{links.down_now.parts} is down"
    says: A port is down.
    culprits: links.down_now
    evidence: [links.down_now]
    base: 0.8
    fail: stop
    mitigate: wait
"""

SLOW = """
playbook: slow-job
version: 1
start: fine
questions:
  fine:
    ask: Does all look well?
    when: seen.nodes_share > 0.5
    yes: {verdict: healthy/moving}
    no: {verdict: inconclusive/weak}
    unknown: {verdict: healthy/moving, costs: 0.25}
verdicts:
  healthy/moving: {title: It moves, says: Fine., evidence: [progress.advancing], base: 0.9, fail: none, mitigate: none}
  inconclusive/weak: {title: Weak, says: Weak., fail: slow, mitigate: wait}
"""

BOOKS = load_set({"frozen-job.yaml": FROZEN, "slow-job.yaml": SLOW}, CATALOGUE, {"stacks"})


def rank(number: int, node: str | None = None, why: str = "") -> Part:
    return Part("rank", node=node, rank=number, why=why)


def facts(*given: Fact) -> dict[str, Fact]:
    return {fact.name: fact for fact in given}


def parts(name: str, *held: Part, against: tuple[str, ...] = ()) -> Fact:
    return Fact(name, len(held), CATALOGUE[name].unit, held, contradicted_by=against)


def none_of(name: str) -> Fact:
    return Fact(name, 0, CATALOGUE[name].unit)


STOPPED = (Fact("progress.advancing", False), Fact("progress.stall_age_s", 2880, "s"))
STUCK = facts(
    *STOPPED,
    none_of("hosts.silent"),
    parts("waits.absent", rank(5, "gpu003")),
    parts("waits.roots", rank(5, "gpu003", "no open entry\x1b[2J")),
    parts("waits.victims", rank(4), rank(5), rank(6)),
)


def conclude(known: dict[str, Fact], **more: object) -> Conclusion:
    found = walk(BOOKS, known, {}, **more)  # type: ignore[arg-type]
    assert isinstance(found, Conclusion)
    return found


# ---------------------------------------------------------------- the way


def test_the_walk_ends_at_the_leaf_and_tells_every_step() -> None:
    found = conclude(STUCK)
    assert (found.verdict.id, found.verdict.cause, found.verdict.kind) == ("stuck_rank", "stuck_rank/silent", "host")
    assert (found.verdict.score, found.verdict.confidence, found.verdict.fail) == (0.9, "high", "stop")
    assert found.verdict.title == "rank 5 (gpu003) did not arrive"
    assert found.says == "It stands outside the collective for 48m."
    assert found.fix_first == "See the stack of rank 5 (gpu003)."
    assert [(s.question, s.answer, s.goto, s.cost) for s in found.steps] == [
        ("pulse", "no", "hosts", 0.0),
        ("hosts", "no", "absent", 0.0),
        ("absent", "yes", "stuck_rank/silent", 0.0),
    ]
    assert found.steps[0].facts == (
        "progress.advancing = no",
        "progress.stall_age_s = 48m",
        "limit.floor_s = 60s",
    )
    assert found.steps[2].facts == ("waits.absent = 1 ranks",)
    assert found.steps[2].when == "waits.absent > 0"
    assert found.verdict.why == ("base 0.90", "score 0.90, high confidence")
    assert found.stopped_at is None


def test_an_arm_may_cross_into_another_playbook() -> None:
    found = conclude(facts(Fact("progress.advancing", True), Fact("seen.nodes_share", 1.0, "share")))
    assert found.playbook == "slow-job"
    assert found.verdict.id == "healthy"
    assert [(s.playbook, s.question, s.goto) for s in found.steps] == [
        ("frozen-job", "pulse", "slow-job:start"),
        ("slow-job", "fine", "healthy/moving"),
    ]


def test_a_walk_may_start_at_another_playbook_or_question() -> None:
    known = facts(Fact("seen.nodes_share", 1.0, "share"))
    assert conclude(known, start="slow-job").verdict.id == "healthy"
    assert conclude(STUCK, start="frozen-job:absent").verdict.id == "stuck_rank"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"start": "frozn-job"}, 'did you mean "frozen-job"?'),
        ({"start": "frozen-job:absnt"}, 'did you mean "absent"?'),
        ({"until": "absnt"}, 'did you mean "absent"?'),
        ({"until": "slow-job:absent"}, "no question"),
    ],
)
def test_a_name_that_is_none_is_a_usage_error(more: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("?", r"\?")):
        walk(BOOKS, STUCK, {}, **more)  # type: ignore[arg-type]


def test_thresholds_given_win_over_those_of_the_playbook() -> None:
    known = {**STUCK, "seen.nodes_share": Fact("seen.nodes_share", 1.0, "share")}
    found = walk(BOOKS, known, {"floor_s": 3000.0})
    assert isinstance(found, Conclusion)
    assert found.verdict.id == "healthy"
    assert found.steps[0].facts[-1] == "limit.floor_s = 50m"


# ---------------------------------------------------------------- requests


def test_a_question_asks_for_its_costly_probe_on_its_suspects_only_and_once() -> None:
    request = walk(BOOKS, STUCK, {}, can_ask=True)
    assert request == Request("stacks", STUCK["waits.roots"].parts, 2, "frozen-job:absent", {"depth": 20})
    assert isinstance(walk(BOOKS, STUCK, {}, can_ask=True, asked={"stacks"}), Conclusion)
    assert isinstance(walk(BOOKS, STUCK, {}, can_ask=False), Conclusion)


def test_nobody_is_asked_when_there_is_no_suspect() -> None:
    for roots in (none_of("waits.roots"), Fact("waits.roots", None, reason="no dump")):
        assert isinstance(walk(BOOKS, {**STUCK, "waits.roots": roots}, {}, can_ask=True), Conclusion)
    without = {name: fact for name, fact in STUCK.items() if name != "waits.roots"}
    assert isinstance(walk(BOOKS, without, {}, can_ask=True), Conclusion)


def test_a_question_that_is_not_reached_asks_for_nothing() -> None:
    gone = {**STUCK, "hosts.silent": parts("hosts.silent", Part("node", node="gpu003"))}
    assert isinstance(walk(BOOKS, gone, {}, can_ask=True), Conclusion)


# ---------------------------------------------------------------- the number


def test_each_unknown_on_the_path_costs_and_the_reason_is_told() -> None:
    known = {**STUCK, "hosts.silent": Fact("hosts.silent", None, "nodes", reason="no node was asked")}
    found = conclude(known)
    assert found.verdict.score == 0.8
    assert found.verdict.confidence == "high"  # 0.9 - 0.1 in floats is 0.8 at best; rounded it is
    assert found.costs == (("hosts.silent was unknown (no node was asked)", 0.1),)
    assert found.verdict.why[1] == "-0.10 because hosts.silent was unknown (no node was asked)"
    assert [(u.what, u.why, u.tells) for u in found.unknown] == [
        ("hosts.silent", "no node was asked", "Is a node gone?"),
    ]


def test_a_source_that_contradicts_is_counted_once() -> None:
    known = {
        **STUCK,
        "waits.absent": parts("waits.absent", rank(5), against=("ras",)),
        "waits.roots": parts("waits.roots", rank(5), against=("ras",)),
    }
    found = conclude(known)
    assert found.contradictions == (("ras", "waits.absent"),)
    assert (found.verdict.score, found.verdict.confidence) == (0.7, "medium")
    assert "-0.20 because ras contradicts waits.absent" in found.verdict.why


def test_a_contradiction_of_a_fact_that_nobody_used_costs_nothing() -> None:
    known = {**STUCK, "links.down_now": parts("links.down_now", against=("switch",))}
    assert conclude(known).verdict.score == 0.9


@pytest.mark.parametrize(
    ("against", "confidence"),
    [((), "high"), (("a",), "medium"), (("a", "b"), "low"), (("a", "b", "c"), "none")],
)
def test_the_levels_of_confidence(against: tuple[str, ...], confidence: str) -> None:
    known = {**STUCK, "waits.absent": parts("waits.absent", rank(5), against=against)}
    assert conclude(known).verdict.confidence == confidence


def test_below_the_floor_nothing_is_said_and_the_leaf_becomes_an_alternative() -> None:
    known = {
        **STUCK,
        "progress.advancing": Fact("progress.advancing", None, reason="one look only"),
        "hosts.silent": Fact("hosts.silent", None),
        "waits.absent": parts("waits.absent", rank(5), against=("ras",)),
    }
    found = conclude(known)
    assert (found.verdict.cause, found.verdict.confidence, found.verdict.score) == ("inconclusive/weak", "none", 0.0)
    assert found.culprit_parts == ()
    assert found.leaf.mitigate == "wait"
    (dropped,) = found.alternatives
    assert (dropped.verdict, dropped.cause, dropped.score) == ("stuck_rank", "stuck_rank/silent", 0.45)
    assert dropped.why_not.startswith(
        "it would name rank 5 (gpu003); stuck_rank/silent scores 0.45, below 0.50; base 0.90; -0.15 because "
    )
    assert found.contradictions == (("ras", "waits.absent"),)
    assert found.steps[-1].goto == "stuck_rank/silent"


def test_a_score_is_never_below_zero() -> None:
    known = {**STUCK, "waits.absent": parts("waits.absent", rank(5), against=tuple("abcdefgh"))}
    assert conclude(known).alternatives[0].score == 0.0


# ---------------------------------------------------------------- who


def test_a_culprit_is_never_a_victim_even_if_one_fact_knows_its_node_and_the_other_does_not() -> None:
    found = conclude(STUCK)
    assert found.culprits == (Culprit("rank", "culprit", "gpu003", 5, why="no open entry"),)
    assert [victim.rank for victim in found.victims] == [4, 6]
    assert found.do_not == ("Do not blame ranks 4-6.",)


def test_the_ranks_of_a_culprit_node_are_not_its_victims() -> None:
    known = {
        **STUCK,
        "hosts.silent": parts("hosts.silent", Part("node", node="gpu003")),
        "waits.victims": parts("waits.victims", rank(4, "gpu003"), rank(6, "gpu004")),
    }
    found = conclude(known)
    assert found.verdict.title == "gpu003 is gone"
    assert found.leaf.exclude
    assert [victim.rank for victim in found.victims] == [6]


def test_a_leaf_whose_culprits_are_unknown_names_nobody_and_says_so() -> None:
    known = {**STUCK, "waits.roots": Fact("waits.roots", None, "ranks", (rank(5),), reason="a tie")}
    found = conclude(known)
    assert found.culprits == ()
    assert found.verdict.why[-1] == "nobody is named: waits.roots unknown: a tie"


# ---------------------------------------------------------------- ruled out, leads, commands

ARRIVED = facts(
    *STOPPED,
    none_of("hosts.silent"),
    none_of("waits.absent"),
    parts("waits.members", rank(0, "gpu001"), rank(1, "gpu002")),
)


def test_what_was_ruled_out_cites_a_known_fact() -> None:
    found = conclude(ARRIVED)
    assert [(r.verdict, r.why, r.question) for r in found.ruled_out] == [
        ("dead_rank", "0 of all nodes are silent", "hosts"),
        ("stuck_rank", "all 2 had joined", "absent"),
    ]


def test_the_absence_of_a_fact_rules_nothing_out() -> None:
    without = {name: fact for name, fact in ARRIVED.items() if name != "waits.members"}
    assert [r.verdict for r in conclude(without).ruled_out] == ["dead_rank"]


def test_what_was_ruled_out_early_and_concluded_later_is_not_called_ruled_out() -> None:
    text = FROZEN.replace("rules_out: {dead_rank:", "rules_out: {stuck_rank:")
    books = load_set({"a": text, "b": SLOW}, CATALOGUE, {"stacks"})
    found = walk(books, STUCK, {})
    assert isinstance(found, Conclusion)
    assert (found.verdict.id, found.ruled_out) == ("stuck_rank", ())


def test_soft_facts_are_leads_and_stay_below_the_floor() -> None:
    down = parts("links.down_now", Part("nic", node="gpu003", nic="mlx5_0"))
    found = conclude({**ARRIVED, "links.down_now": down})
    assert found.verdict.cause == "inconclusive/arrived"
    (lead,) = found.alternatives
    assert (lead.cause, lead.score, lead.why_not) == ("link_flap/port", 0.49, "1 port down, but all had joined")
    assert conclude(ARRIVED).alternatives == ()  # unknown points at nobody


def test_commands_are_filled_in_and_one_with_a_hole_is_left_out() -> None:
    assert conclude(ARRIVED).collect == (
        Command("to see stacks", "triage collect JOBID --nodes gpu001,gpu002", "reads only", "none"),
        Command("always", "triage collect JOBID", "writes a case", "20s"),
    )
    without = {name: fact for name, fact in ARRIVED.items() if name != "waits.members"}
    assert [command.why for command in conclude(without).collect] == ["always"]


def test_nothing_known_at_all_is_inconclusive_and_lists_what_is_missing() -> None:
    found = conclude({})
    assert found.verdict.cause == "inconclusive/arrived"
    assert [step.answer for step in found.steps] == ["unknown"] * 3
    assert [each.what for each in found.unknown] == [
        "progress.advancing",
        "progress.stall_age_s",
        "hosts.silent",
        "waits.absent",
    ]
    assert found.unknown[0].why == "was not computed"


# ---------------------------------------------------------------- until


@pytest.mark.parametrize("until", ["hosts", "frozen-job:hosts"])
def test_until_answers_that_question_and_stops(until: str) -> None:
    found = conclude(STUCK, until=until)
    assert found.stopped_at == "frozen-job:hosts"
    assert [step.question for step in found.steps] == ["pulse", "hosts"]
    assert (found.verdict.id, found.verdict.cause) == ("inconclusive", "inconclusive/stopped")
    assert found.culprits == ()


def test_until_a_question_that_is_not_on_the_way_changes_nothing() -> None:
    assert conclude(STUCK, until="fine") == conclude(STUCK)


# ---------------------------------------------------------------- playbooks built by hand


def test_a_cycle_in_a_playbook_that_nobody_checked_ends_the_walk() -> None:
    book = BOOKS["frozen-job"]
    hosts = book.questions["hosts"]
    back = replace(hosts, arms={**hosts.arms, "no": replace(hosts.arms["no"], question="pulse")})
    books = {**BOOKS, "frozen-job": replace(book, questions={**book.questions, "hosts": back})}
    with pytest.raises(ConfigError, match="comes back"):
        walk(books, STUCK, {})


# ---------------------------------------------------------------- properties

WHENS = ["progress.advancing", "waits.absent > 0", "waits.absent > 0 or hosts.silent > 0", "seen.nodes_share.known"]
LEAVES = ["healthy/x", "stuck_rank/x", "inconclusive/weak"]


@st.composite
def playbooks(draw: st.DrawFn, backward: bool) -> str:
    """A playbook of up to six questions whose arms go forward only, or anywhere with `backward`."""
    count = draw(st.integers(1, 6))
    lines = ["playbook: frozen-job", "version: 1", "start: q0", "questions:"]
    for n in range(count):
        lines.append(f"  q{n}:\n    ask: a\n    when: {draw(st.sampled_from(WHENS))}")
        ahead = [f"{{goto: q{m}" for m in range(0 if backward else n + 1, count)]
        targets = [*ahead, *(f"{{verdict: {leaf}" for leaf in LEAVES)]
        for answer in ("yes", "no", "unknown"):
            cost = draw(st.sampled_from([0, 0.1, 0.3]))
            first = answer == "yes" and n + 1 < count  # one arm leads on, so that all are reached
            target = f"{{goto: q{n + 1}" if first else draw(st.sampled_from(targets))
            lines.append(f"    {answer}: {target}, costs: {cost}}}")
    lines.append("verdicts:")
    text = "\n".join(lines)
    for leaf in LEAVES:
        if f"verdict: {leaf}" in text or leaf == "inconclusive/weak":
            base = "" if leaf.startswith("inc") else "base: 0.9, "
            text += f"\n  {leaf}: {{title: t, says: s, {base}fail: stop, mitigate: wait}}"
    return text


VALUES = st.fixed_dictionaries(
    {
        "progress.advancing": st.sampled_from([True, False, None]),
        "waits.absent": st.sampled_from([0, 1, None]),
        "hosts.silent": st.sampled_from([0, 2, None, "lie"]),
        "seen.nodes_share": st.sampled_from([0.5, None, float("nan")]),
    }
)


def ends(text: str, values: dict[str, object]) -> None:
    books = load_set({"x": text}, CATALOGUE, ())
    held = {name: Fact(name, value, reason="r") for name, value in values.items()}  # type: ignore[arg-type]
    found = walk(books, held, {})
    assert isinstance(found, Conclusion)
    assert len(found.steps) <= 6
    assert 0 <= found.verdict.score <= 1
    assert (found.verdict.score >= 0.5) == (found.verdict.confidence != "none")
    assert (found.verdict.id == "inconclusive") == (found.verdict.confidence == "none")
    assert walk(books, held, {}) == found


@settings(max_examples=150, deadline=None)
@given(playbooks(backward=False), VALUES)
def test_every_playbook_that_loads_ends_whatever_the_facts(text: str, values: dict[str, object]) -> None:
    ends(text, values)


@settings(max_examples=150, deadline=None)
@given(playbooks(backward=True), VALUES)
def test_a_playbook_with_arms_in_all_directions_is_refused_or_ends(text: str, values: dict[str, object]) -> None:
    try:
        ends(text, values)
    except PlaybookError as error:
        assert "never end" in str(error)
