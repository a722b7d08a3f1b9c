"""Loading: what YAML is accepted, and that each mistake of an author is found, named and placed before 2 AM."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from triage.errors import ConfigError
from triage.model import FactSpec, Report
from triage.readers.strict_yaml import MAX_BYTES, read_yaml
from triage.tree import load as load_module
from triage.tree.load import STATES, PlaybookError, limits_of, load_set
from triage.tree.playbook import Playbook

MANUAL = Path(__file__).parents[2] / "man" / "triage-playbook.5"
PROBES = {"stacks", "activity"}
CATALOGUE = {
    spec.name: spec
    for spec in (
        FactSpec("progress.advancing", "bool"),
        FactSpec("progress.stall_age_s", "number", "s"),
        FactSpec("waits.absent", "number", "ranks", "rank"),
        FactSpec("waits.members", "number", "ranks", "rank"),
        FactSpec("waits.roots", "number", "ranks", "rank"),
        FactSpec("waits.cycle", "number", "ranks", "rank"),
        FactSpec("waits.victims", "number", "ranks", "rank"),
        FactSpec("links.down_now", "number", "links", "nic"),
        FactSpec("pace.slow", "number", "ranks", "rank"),
        FactSpec("seen.looks", "number", "looks"),
        FactSpec("seen.nodes_share", "number", "share"),
        FactSpec("job.state", "text"),
    )
}

FROZEN = """
playbook: frozen-job
version: 3
start: pulse
thresholds:
  share: {value: 0.5, says: least share of nodes, source: notes/example.md}
questions:
  pulse:
    ask: Is there progress?
    when: progress.advancing
    yes: {goto: slow-job:start}
    no: absent
    unknown: {goto: absent, costs: 0.1}
  absent:
    ask: Has a member of the stalled group not arrived?
    when: waits.absent > 0 and seen.nodes_share > limit.share
    ask_for: {probe: stacks, on: waits.roots, peers: 2, args: {deep: true}}
    yes: {verdict: stuck_rank/silent}
    no: {verdict: inconclusive/arrived, rules_out: {stuck_rank: "all {waits.members} members had joined"}}
    unknown: {verdict: inconclusive/arrived}
verdicts:
  stuck_rank/silent:
    title: "{waits.roots.parts} did not arrive"
    says: It stands outside the collective.
    do_not: Do not restart on the same nodes.
    kind: host
    culprits: waits.roots
    victims: waits.victims
    evidence: [waits.absent, seen.looks]
    base: 0.9
    fail: stop
    mitigate: restart_excluding
  inconclusive/arrived:
    title: Nobody is missing
    says: All arrived and nobody finishes.
    fail: stop
    mitigate: wait
    do_not: [one, two]
    collect:
      - {why: to see where they stand, run: "triage collect JOBID --nodes {waits.members.nodes}"}
    leads:
      - {verdict: stuck_rank/silent, when: waits.roots > 0, why_not: "{waits.roots} roots, but all had joined"}
  inconclusive/weak:
    title: The evidence is too weak
    says: See the alternatives.
    fail: stop
    mitigate: wait
"""

SLOW = """
playbook: slow-job
version: 1
start: slower
questions:
  slower:
    ask: Is one part slower?
    when: pace.slow > 0
    yes: {verdict: healthy/fine}
    no: {verdict: healthy/fine}
    unknown: {verdict: inconclusive/weak}
verdicts:
  healthy/fine: {title: Fine, says: Fine., base: 0.9, fail: none, mitigate: none, state: running}
  inconclusive/weak: {title: Weak, says: Weak., fail: slow, mitigate: wait}
"""


def load(frozen: str = FROZEN, slow: str = SLOW) -> dict[str, Playbook]:
    return load_set({"frozen-job.yaml": frozen, "slow-job.yaml": slow}, CATALOGUE, PROBES)


def problems(frozen: str = FROZEN, slow: str = SLOW) -> tuple[str, ...]:
    with pytest.raises(PlaybookError) as caught:
        load(frozen, slow)
    assert caught.value.code == 3
    assert str(caught.value).splitlines() == list(caught.value.problems)
    return caught.value.problems


def changed(old: str, new: str, text: str = FROZEN) -> str:
    assert text.count(old) >= 1, old
    return text.replace(old, new, 1)


# ---------------------------------------------------------------- what is accepted


def test_a_sound_set_of_playbooks_is_read_whole() -> None:
    books = load()
    assert set(books) == {"frozen-job", "slow-job"}
    frozen = books["frozen-job"]
    assert (frozen.version, frozen.start, frozen.file) == (3, "pulse", "frozen-job.yaml")
    assert frozen.thresholds["share"].value == 0.5
    assert frozen.thresholds["share"].source == "notes/example.md"
    pulse, absent = frozen.questions["pulse"], frozen.questions["absent"]
    assert (pulse.arms["yes"].playbook, pulse.arms["yes"].question) == ("slow-job", "start")
    assert (pulse.arms["no"].playbook, pulse.arms["no"].question) == ("frozen-job", "absent")
    assert pulse.arms["unknown"].costs == 0.1
    assert absent.ask_for is not None
    assert (absent.ask_for.probe, absent.ask_for.on, absent.ask_for.peers) == ("stacks", "waits.roots", 2)
    assert absent.ask_for.args == {"deep": True}
    leaf = frozen.verdicts["stuck_rank/silent"]
    assert (leaf.id, leaf.leaf, leaf.kind, leaf.involved, leaf.exclude) == (
        "stuck_rank", "silent", "host", None, True,
    )  # fmt: skip
    assert [words.text for words in leaf.do_not] == ["Do not restart on the same nodes."]
    assert len(frozen.verdicts["inconclusive/arrived"].do_not) == 2
    assert frozen.verdicts["inconclusive/arrived"].leads[0].verdict == "stuck_rank/silent"
    assert books["slow-job"].verdicts["healthy/fine"].state == "running"


def test_yes_no_and_on_stay_words_though_yaml_calls_them_booleans() -> None:
    assert read_yaml("yes: no\non: off\nt: true\nn: ~\nd: 2026-11-30\nm: 1:30\no: 010\n_: 1_0") == {
        "yes": "no", "on": "off", "t": True, "n": None, "d": "2026-11-30", "m": "1:30", "o": 10, "_": "1_0",
    }  # fmt: skip
    assert read_yaml("[1, -2, 0.5, 1e3, 5., '7', .inf, .nan]") == [1, -2, 0.5, 1000.0, 5.0, "7", ".inf", ".nan"]


def test_the_states_are_those_of_the_report() -> None:
    assert get_args(get_type_hints(Report)["state"]) == STATES


def test_the_example_of_the_manual_loads() -> None:
    page = MANUAL.read_text(encoding="utf-8")
    example = re.search(r"\.SH EXAMPLES\n\.nf\n\.ft CW\n(.*?)\n\.ft\n\.fi", page, re.DOTALL)
    assert example
    text = example[1].replace("\\-", "-").replace("\\e", "\\").replace("\\&", "")
    books = load_set({"example.yaml": text, "slow-job.yaml": SLOW}, CATALOGUE, PROBES)
    assert "frozen-job" in books


def test_the_manual_has_every_key_verdict_and_mitigation() -> None:
    page = MANUAL.read_text(encoding="utf-8").replace("\\-", "-")
    words = {*load_module._TOP_KEYS, *load_module._VERDICT_KEYS, *load_module.VERDICT_IDS}
    words |= {*load_module.MITIGATIONS, *load_module.STATES, *load_module.FAILS}
    words |= {*["ask", "when", "ask_for", "goto", "verdict", "rules_out", "costs", "probe", "on", "peers", "args"]}
    words |= {*["value", "source", "why", "run", "effect", "cost", "why_not"]}
    assert sorted(word for word in words if not re.search(rf"\b{re.escape(word)}\b", page)) == []


# ---------------------------------------------------------------- thresholds


def test_a_profile_may_replace_a_threshold_but_invent_none() -> None:
    books = load()
    assert limits_of(books) == {"share": 0.5}
    assert limits_of(books, {"share": 0.25}) == {"share": 0.25}
    for bad in ({"shore": 1}, {"share": True}, {"share": float("nan")}, {"share": "x"}):
        with pytest.raises(ConfigError):
            limits_of(books, bad)  # type: ignore[arg-type]


def test_thresholds_of_one_playbook_serve_the_others_and_may_not_differ() -> None:
    load(slow=changed("when: pace.slow > 0", "when: pace.slow > limit.share", SLOW))
    found = problems(slow=changed("questions:", "thresholds: {share: 0.7}\nquestions:", SLOW))
    assert found == ("slow-job.yaml: threshold share: has the value 0.5 in another playbook",)


# ---------------------------------------------------------------- each mistake, its place and its words


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "waits.absent > 0",
            "waits.absnt > 0",
            'question absent, when, col 1: no fact "waits.absnt", did you mean "waits.absent"?',
        ),
        ("limit.share", "limit.shar", 'question absent, when, col 41: no threshold "shar", did you mean "share"?'),
        ("when: progress.advancing", "when: 5", "question pulse, when: must be a condition, not 5"),
        ("when: progress.advancing", "when: true", "question pulse, when: must be a condition, not true"),
        ("    when: progress.advancing\n", "", "question pulse: when missing"),
        ("    unknown: {goto: absent, costs: 0.1}\n", "", "question pulse: unknown missing"),
        (
            "no: absent",
            "no: {goto: absent, costs: -1}",
            "question pulse, no, costs: must be a number from 0 to 1, not -1",
        ),
        ("no: absent", "no: absnt", 'question pulse, no: no question "absnt", did you mean "absent"?'),
        (
            "no: absent",
            "no: dead_rank/x",
            'question pulse, no: no question "dead_rank/x"; a verdict is written {verdict: id/leaf}',
        ),
        ("no: absent", "no: {}", "question pulse, no: needs either goto or verdict"),
        ("no: absent", "no: [absent]", "question pulse, no: must be a mapping, not a list"),
        (
            "no: absent",
            "no: {goto: absent, verdict: stuck_rank/silent}",
            "question pulse, no: needs either goto or verdict",
        ),
        ("no: absent", "no: {costs: 0.1}", "question pulse, no: needs either goto or verdict"),
        ("no: absent", "no: {gotoo: absent}", 'question pulse, no: unknown key "gotoo", did you mean "goto"?'),
        ("no: absent", "no: {goto: 5}", "question pulse, no, goto: must be a name, not 5"),
        ("slow-job:start", "slo-job:start", 'question pulse, yes: no playbook "slo-job", did you mean "slow-job"?'),
        ("slow-job:start", "slow-job:slowr", 'question pulse, yes: no question "slowr", did you mean "slower"?'),
        (
            "verdict: stuck_rank/silent}",
            "verdict: stuck_rank/silnt}",
            'question absent, yes: no verdict "stuck_rank/silnt", did you mean "stuck_rank/silent"?',
        ),
        ("all {waits.members} members", "all members", "question absent, no, rules_out stuck_rank: must cite a fact"),
        (
            "all {waits.members} members",
            "all {waits.membrs}",
            'question absent, no, rules_out stuck_rank, col 6: no fact "waits.membrs", did you mean "waits.members"?',
        ),
        (
            "rules_out: {stuck_rank:",
            "rules_out: {stuk_rank:",
            'question absent, no, rules_out stuk_rank: no such verdict, did you mean "stuck_rank"?',
        ),
        (
            "rules_out: {stuck_rank:",
            "rules_out: {stuck_rank/x:",
            'question absent, no: rules out "stuck_rank/x", which is no verdict here',
        ),
        (
            "costs: 0.1}",
            "rules_out: {healthy: '{waits.absent}'}}",
            "question pulse, unknown, rules_out healthy: an unknown answer rules nothing out",
        ),
        ("probe: stacks", "probe: stack", 'question absent, ask_for, probe: no probe "stack", did you mean "stacks"?'),
        ("on: waits.roots", "on: job.state", 'question absent, ask_for, on: the fact "job.state" points at no parts'),
        ("on: waits.roots, ", "", "question absent, ask_for: on missing"),
        ("peers: 2", "peers: 1.5", "question absent, ask_for, peers: must be a whole number"),
        ("start: pulse", "start: puls", 'start: no question "puls", did you mean "pulse"?'),
        ("start: pulse", "start: absent", "question pulse: is unreachable: nothing leads to it"),
        (
            "{verdict: inconclusive/arrived}",
            "{goto: pulse}",
            "question pulse: the walk would never end: pulse -> absent -> pulse",
        ),
        ("  stuck_rank/silent:", "  stuck_rank:", "verdict stuck_rank: is written id/leaf"),
        (
            "  stuck_rank/silent:",
            "  stuk_rank/silent:",
            'verdict stuk_rank/silent: no verdict id "stuk_rank", did you mean "stuck_rank"?',
        ),
        ("  inconclusive/weak:", "  inconclusive/wek:", "verdicts: inconclusive/weak missing"),
        ("  inconclusive/weak:", "  inconclusive/wek:", "verdict inconclusive/wek: is unused: no arm leads to it"),
        (
            "culprits: waits.roots",
            "culprits: seen.looks",
            'verdict stuck_rank/silent, culprits: the fact "seen.looks" points at no parts',
        ),
        (
            "culprits: waits.roots",
            "culprits: waits.rots",
            'verdict stuck_rank/silent, culprits: no fact "waits.rots", did you mean "waits.roots"?',
        ),
        (
            "victims: waits.victims",
            "victims: job.state",
            'verdict stuck_rank/silent, victims: the fact "job.state" points at no parts',
        ),
        (
            "evidence: [waits.absent,",
            "evidence: [waits.absnt,",
            'verdict stuck_rank/silent, evidence: no fact "waits.absnt"',
        ),
        (
            "evidence: [waits.absent, seen.looks]",
            "evidence: waits.absent",
            'verdict stuck_rank/silent, evidence: must be a list, not "waits.absent"',
        ),
        ("base: 0.9", "base: 0", "verdict stuck_rank/silent, base: must be a number above 0 and at most 1, not 0"),
        ("base: 0.9", "base: 1.5", "verdict stuck_rank/silent, base: must be a number above 0 and at most 1, not 1.5"),
        (
            "base: 0.9",
            "base: true",
            "verdict stuck_rank/silent, base: must be a number above 0 and at most 1, not true",
        ),
        ("    base: 0.9\n", "", "verdict stuck_rank/silent: base missing"),
        (
            "fail: stop\n    mitigate: restart",
            "fail: stopp\n    mitigate: restart",
            'verdict stuck_rank/silent, fail: must be one of stop slow none, not "stopp", did you mean "stop"?',
        ),
        ("mitigate: restart_excluding", "mitigate: restart_exclude", 'did you mean "restart_excluding"?'),
        (
            "mitigate: restart_excluding",
            "mitigate: fix_then_restart",
            "verdict stuck_rank/silent: fix_then_restart needs fix_first: what to fix",
        ),
        ("    culprits: waits.roots\n", "", "verdict stuck_rank/silent: only culprits are excluded"),
        (
            "    culprits: waits.roots\n",
            "    involved: waits.roots\n",
            "only culprits are excluded",
        ),
        (
            "    culprits: waits.roots\n",
            "    culprits: waits.roots\n    involved: waits.share\n",
            "verdict stuck_rank/silent, involved",
        ),
        (
            "kind: host",
            "kind: hosts",
            'verdict stuck_rank/silent, kind: must be one of host device stopped, not "hosts", did you mean "host"?',
        ),
        ("kind: host", "leads: []", "verdict stuck_rank/silent, leads: only inconclusive verdicts have leads"),
        ("kind: host", "state: froze", "verdict stuck_rank/silent, state: must be one of"),
        ("kind: host", "exclude: maybe", 'verdict stuck_rank/silent, exclude: must be true or false, not "maybe"'),
        ("kind: host", "kindd: host", 'verdict stuck_rank/silent: unknown key "kindd", did you mean "kind"?'),
        (
            "title: The evidence",
            "culprits: waits.roots\n    title: The evidence",
            "verdict inconclusive/weak, culprits: inconclusive accuses nobody",
        ),
        (
            "title: The evidence",
            "base: 0.5\n    title: The evidence",
            "verdict inconclusive/weak, base: an inconclusive verdict has no score",
        ),
        ("title: The evidence is too weak", "title: ''", 'verdict inconclusive/weak, title: must be text, not ""'),
        (
            "title: The evidence is too weak",
            "title: {a: b}",
            "verdict inconclusive/weak, title: must be text, not a mapping",
        ),
        (
            '"{waits.roots.parts} did',
            '"{job.state.parts} did',
            'verdict stuck_rank/silent, title, col 2: "job.state" points at no parts',
        ),
        ("says: It stands", "says: It {stands", 'verdict stuck_rank/silent, says, col 4: "{" is never closed'),
        (
            "- {verdict: stuck_rank/silent,",
            "- {verdict: stuck_rank/slient,",
            'verdict inconclusive/arrived, leads: no verdict "stuck_rank/slient", did you mean "stuck_rank/silent"?',
        ),
        (
            "when: waits.roots > 0,",
            "when: waits.roots,",
            'verdict inconclusive/arrived, leads, when, col 1: "waits.roots" is a number',
        ),
        (
            "{why: to see where they stand, run:",
            "{whi: to see where they stand, run:",
            "verdict inconclusive/arrived, collect: why missing",
        ),
        ("share: {value: 0.5,", "share: {", "threshold share: value missing"),
        ("share: {value: 0.5,", "share: {value: lots,", "threshold share, value: must be a number"),
        ("  share: {", "  Share: {", "threshold Share: a name has small letters"),
        ("  share: {", "  is: 1\n  share: {", "threshold is: a name has small letters"),
        ("version: 3", "version: x", "version: must be a number"),
        ("version: 3\n", "", "version missing"),
        ("version: 3", "versoin: 3", 'unknown key "versoin", did you mean "version"?'),
        ("playbook: frozen-job", "playbook: slow-job", 'playbook: "slow-job" stands in two files'),
        ("playbook: frozen-job", "playbook: Frozen Job", 'playbook: "Frozen Job" is no name'),
        ("  absent:\n", "  start:\n", "question start: this name means the first question"),
    ],
)
def test_each_mistake_is_named_with_its_place(old: str, new: str, line: str) -> None:
    found = problems(changed(old, new))
    assert any(line in problem for problem in found), found
    assert all(problem.startswith(("frozen-job.yaml: ", "slow-job.yaml: ")) for problem in found)
    assert all("\n" not in problem for problem in found)


def test_all_mistakes_of_all_files_are_told_at_once() -> None:
    frozen = changed("waits.absent > 0", "waits.absnt > 0", changed("fail: stop", "fail: stopp"))
    found = problems(frozen, changed("base: 0.9", "base: 9", SLOW))
    assert len(found) == 3


def test_a_cycle_through_two_playbooks_is_found() -> None:
    found = problems(slow=changed("no: {verdict: healthy/fine}", "no: frozen-job:pulse", SLOW))
    assert any("the walk would never end: pulse -> slow-job:slower -> pulse" in each for each in found)


def test_a_file_that_cannot_be_read_does_not_make_its_callers_wrong() -> None:
    assert problems(slow="a: [") == (
        *(each for each in problems(slow="a: [") if "slow-job.yaml" in each),
    )  # fmt: skip


def test_a_thousand_questions_in_a_row_are_no_trouble() -> None:
    questions = "".join(
        f"  q{n}: {{ask: a, when: waits.absent > {n}, yes: q{n + 1}, no: q{n + 1}, unknown: q{n + 1}}}\n"
        for n in range(1500)
    )
    last = "  q1500: {ask: a, when: waits.absent > 0, yes: %s, no: %s, unknown: %s}\n"
    weak = "{verdict: inconclusive/weak}"
    head, tail = SLOW[: SLOW.index("  slower:")], SLOW[SLOW.index("verdicts:") :].replace("healthy/fine", "healthy/x")
    text = head.replace("start: slower", "start: q0") + questions + last % (weak, weak, weak) + tail
    with pytest.raises(PlaybookError) as caught:
        load_set({"long.yaml": text}, CATALOGUE, PROBES)
    assert caught.value.problems == ("long.yaml: verdict healthy/x: is unused: no arm leads to it",)


def test_an_endless_list_of_problems_is_cut() -> None:
    text = FROZEN + "".join(f"  bad{n}/x: {{}}\n" for n in range(300))
    with pytest.raises(PlaybookError) as caught:
        load(text)
    assert len(str(caught.value).splitlines()) == 101
    assert str(caught.value).splitlines()[-1].startswith("and ")


# ---------------------------------------------------------------- hostile YAML


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &x [1]\nb: *x", "line 1: anchors and aliases"),
        ("a: *x", "anchors and aliases"),
        ("a: &a ['x']\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b,*b,*b]", "anchors and aliases"),
        ("base: {a: 1}\nx:\n  <<: {a: 2}", "line 3: merge keys"),
        ("a: 1\nb: 2\na: 3", 'line 3: the key "a" stands twice'),
        ("a: {b: 1, b: 2}", 'the key "b" stands twice'),
        ("a: !!python/object/apply:os.system ['true']", "the tag tag:yaml.org,2002:python/object/apply:os.system"),
        ("!!python/name:os.system", "the tag"),
        ("a: !!set {x}", "the tag"),
        ("a: !include /etc/passwd", "the tag !include"),
        ("--- 1\n--- 2", "a second document"),
        ("5: x", "a key is a word, not 5"),
        ("true: x", "a key is a word, not True"),
        ("? [1, 2]\n: x", "a key is a word"),
        ("? {a: b}\n: x", "a key is a word"),
        ("a: [", "not YAML"),
        ("a: b: c", "not YAML"),
        ("\ta: 1", "not YAML"),
        ("a: \x00", "not YAML"),
        ("a: '\ud800'", "not YAML"),
        ('a: "\\UFFFFFFFF"', "not YAML"),
        ("[" * 5000, "nest"),
        ("{a: " * 5000, "nest"),
        ("- " * 5000 + "x", "nest"),
        ("#" * (MAX_BYTES + 1), "is larger than 4 MiB"),
        ("é" * (MAX_BYTES // 2 + 1), "is larger than 4 MiB"),
    ],
)
@pytest.mark.parametrize("parser", ["CSafeLoader", "SafeLoader"])
def test_yaml_that_is_more_than_data_is_refused(
    text: str, says: str, parser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if parser == "SafeLoader":  # as where PyYAML was built without libyaml
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    with pytest.raises(ConfigError) as caught:
        read_yaml(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "5", "[]", "null", "just words", "playbook:", "{}", "playbook: [1]\nversion: 1"])
def test_a_file_that_is_no_playbook_is_an_error_and_no_crash(text: str) -> None:
    with pytest.raises(PlaybookError):
        load_set({"x.yaml": text}, CATALOGUE, PROBES)


def test_no_file_at_all_is_an_error() -> None:
    with pytest.raises(PlaybookError):
        load_set({}, CATALOGUE, PROBES)


def test_control_characters_of_a_file_do_not_reach_the_terminal() -> None:
    found = problems(changed("no: absent", 'no: "\\e[2Jabsent"') + '  "\\e[31mx/y": {}\n')
    assert all(problem.isprintable() for problem in found)


JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from(["", "x", "pulse", "waits.absent", "{x}"])),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["goto", "x"]), inner)),
    max_leaves=4,
)
LINES = FROZEN.strip("\n").split("\n")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(LINES) - 1), JUNK), min_size=1, max_size=3))
def test_no_value_in_any_place_raises_anything_but_a_configuration_error(changes: list[tuple[int, object]]) -> None:
    lines = list(LINES)
    for at, junk in changes:
        key = lines[at].split(":")[0] if ":" in lines[at] else lines[at]
        lines[at] = f"{key}: {json.dumps(junk)}"
    try:
        load("\n".join(lines))
    except ConfigError as error:
        assert str(error)


SIGNS = st.sampled_from([*"a: \n-[]{}!&*?|>'\"%\x00\t", "\\U", ": ", "- "])


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(SIGNS).map("".join)))
def test_no_text_raises_anything_but_a_configuration_error(text: str) -> None:
    for read in (read_yaml, lambda each: load_set({"x": each}, CATALOGUE, PROBES)):
        try:
            read(text)
        except ConfigError as error:
            assert all(line.isprintable() for line in str(error).split("\n"))
