"""How a playbook looks on a terminal, and what lint says of one that loads."""

from __future__ import annotations

from triage.model import FactSpec
from triage.tree.load import load_set
from triage.tree.playbook import Playbook
from triage.tree.show import lint_lines, show, warnings

CATALOGUE = {
    spec.name: spec
    for spec in (
        FactSpec("progress.advancing", "bool"),
        FactSpec("waits.absent", "number", "ranks", "rank"),
        FactSpec("waits.roots", "number", "ranks", "rank"),
    )
}

TEXT = """
playbook: frozen-job
version: 2
says: Who stopped?
start: pulse
thresholds:
  floor_s: {value: 300, says: least age of a stall, source: notes/example.md 2}
  share: 0.5
questions:
  pulse:
    ask: Is there progress?
    when: progress.advancing
    yes: {verdict: healthy/moving}
    no: absent
    unknown: {goto: absent, costs: 0.15}
  absent:
    ask: Has a member not arrived?
    when: waits.absent > 0
    ask_for: {probe: stacks, on: waits.roots, peers: 2}
    yes: {verdict: stuck_rank/silent}
    no: {verdict: inconclusive/weak, rules_out: {stuck_rank: "{waits.absent} are absent"}}
    unknown: {verdict: inconclusive/weak}
verdicts:
  healthy/moving: {title: It moves, says: s, evidence: [progress.advancing], base: 0.9, fail: none, mitigate: none}
  stuck_rank/silent:
    title: "{waits.roots.parts} did not arrive"
    says: s
    culprits: waits.roots
    evidence: [waits.absent]
    base: 0.9
    fail: stop
    mitigate: restart_excluding
  inconclusive/weak: {title: Too weak, says: s, fail: stop, mitigate: wait}
"""


def load(text: str = TEXT) -> dict[str, Playbook]:
    return load_set({"x.yaml": text}, CATALOGUE, {"stacks"})


def changed(old: str, new: str) -> dict[str, Playbook]:
    assert old in TEXT
    return load(TEXT.replace(old, new))


def test_a_playbook_is_shown_as_a_tree_with_its_verdicts_and_thresholds() -> None:
    assert (
        show(load()["frozen-job"])
        == """\
frozen-job, version 2
Who stopped?

QUESTIONS, from pulse
  pulse: Is there progress?
    when progress.advancing
    yes     => healthy/moving
    no      -> absent
    unknown -> absent, costs 0.15
    absent: Has a member not arrived?
      when waits.absent > 0
      asks stacks of waits.roots and 2 peers
      yes     => stuck_rank/silent
      no      => inconclusive/weak, rules out stuck_rank
      unknown => inconclusive/weak

VERDICTS
  healthy/moving  base 0.90, fail none, none
    It moves
  stuck_rank/silent  base 0.90, fail stop, restart_excluding
    {waits.roots.parts} did not arrive
    culprit: waits.roots
  inconclusive/weak  fail stop, wait
    Too weak

THRESHOLDS
  floor_s  300 (5m): least age of a stall [notes/example.md 2]
  share    0.5
"""
    )


def test_no_line_is_wider_than_a_terminal_and_every_question_stands_once() -> None:
    count = 60
    questions = "".join(
        f"  q{n}:\n    ask: {'Is it so that ' * 9}{n}?\n    when: {' and '.join(['waits.absent > 0'] * 20)}\n"
        f"    yes: q{n + 1}\n    no: q{n + 1}\n    unknown: {{verdict: inconclusive/weak}}\n"
        for n in range(count)
    )
    text = (
        TEXT[: TEXT.index("questions:")].replace("start: pulse", "start: q0")
        + "questions:\n"
        + questions
        + TEXT[TEXT.index("  pulse:") :].replace("  pulse:", f"  q{count}:")
    )
    shown = show(load(text)["frozen-job"]).splitlines()
    assert max(map(len, shown)) <= 80
    for n in range(count + 1):
        assert sum(line.strip().startswith(f"q{n}: ") for line in shown) == 1


def test_an_arm_that_leaves_the_playbook_says_where_to() -> None:
    other = TEXT.replace("playbook: frozen-job", "playbook: slow-job")
    crossing = TEXT.replace("yes: {verdict: healthy/moving}", "yes: slow-job:start").replace(
        "  healthy/moving: {title: It moves, says: s, evidence: [progress.advancing], base: 0.9, fail: none, "
        "mitigate: none}\n",
        "",
    )
    books = load_set({"a": crossing, "b": other}, CATALOGUE, {"stacks"})
    assert "yes     -> slow-job:start" in show(books["frozen-job"], books)
    assert lint_lines(books)[0].endswith("at most 3 questions in a walk")


def test_lint_sums_up_a_sound_playbook_in_one_line() -> None:
    assert lint_lines(load()) == [
        "frozen-job: 2 questions, 3 verdicts, 2 thresholds, at most 2 questions in a walk",
    ]


def test_lint_sees_a_verdict_that_is_ruled_out_and_yet_possible() -> None:
    books = changed("no: absent", 'no: {goto: absent, rules_out: {stuck_rank: "{waits.roots}"}}')
    assert warnings(books) == [
        "frozen-job: question pulse, no: rules out stuck_rank, but stuck_rank/silent can follow",
    ]


def test_lint_sees_a_verdict_that_can_never_be_said() -> None:
    books = changed("yes: {verdict: stuck_rank/silent}", "yes: {verdict: stuck_rank/silent, costs: 0.5}")
    assert warnings(books) == [
        "frozen-job: verdict stuck_rank/silent: scores at most 0.40, so it is never said",
    ]


def test_lint_sees_an_unknown_that_accuses_for_nothing_and_a_verdict_without_evidence() -> None:
    books = changed(
        "unknown: {verdict: inconclusive/weak}\nverdicts", "unknown: {verdict: stuck_rank/silent}\nverdicts"
    )
    assert warnings(books) == ["frozen-job: question absent, unknown: concludes stuck_rank/silent at no cost"]
    assert warnings(changed("    evidence: [waits.absent]\n", "")) == [
        "frozen-job: verdict stuck_rank/silent: shows no evidence",
    ]
