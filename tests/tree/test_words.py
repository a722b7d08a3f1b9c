"""Words: values as people write them, slots that are checked, and strings of hostile nodes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triage.errors import ConfigError
from triage.model import Fact, FactSpec, Part
from triage.tree.words import (
    WordsError,
    clean,
    compile_words,
    duration,
    fact_line,
    fold_parts,
    value_text,
    with_unit,
)

CATALOGUE = {
    spec.name: spec
    for spec in (
        FactSpec("waits.absent", "number", "ranks", "rank"),
        FactSpec("progress.stall_age_s", "number", "s"),
        FactSpec("seen.nodes_share", "number", "share"),
        FactSpec("job.state", "text"),
        FactSpec("hard.parts", "number", "parts", "rank"),
        FactSpec("hard", "text"),
    )
}


def rank(number: int, node: str | None = None) -> Part:
    return Part("rank", node=node, rank=number)


def known(name: str, value: object, parts: tuple[Part, ...] = (), text: str = "") -> dict[str, Fact]:
    unit = CATALOGUE[name].unit
    return {name: Fact(name, value, unit, parts, text=text)}  # type: ignore[arg-type]


def say(text: str, facts: dict[str, Fact]) -> str:
    return compile_words(text, CATALOGUE).render(facts)


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0001, "0s"),
        (0.003, "3ms"),
        (0.5, "0.5s"),
        (3.0, "3s"),
        (9.97, "10s"),
        (90, "90s"),
        (119.4, "119s"),
        (120, "2m"),
        (150, "2.5m"),
        (48 * 60, "48m"),
        (7200, "2h"),
        (47 * 3600, "47h"),
        (3 * 86400, "3d"),
        (-300, "-5m"),
        (None, "unknown"),
        (float("nan"), "unknown"),
        (float("inf"), "unknown"),
    ],
)
def test_durations_are_written_with_one_unit(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "ranks", "unknown"),
        (True, "", "yes"),
        (False, "", "no"),
        (8192, "ranks", "8192"),
        (2880, "s", "48m"),
        (0.9712, "share", "97.1%"),
        (8191 / 8192, "share", ">99.9%"),
        (1, "share", "100%"),
        (503.94, "ms", "503.9"),
        (0.1 + 0.2, "", "0.3"),
        (123456.7, "", "123457"),
        (float("nan"), "", "unknown"),
        (pow(10, 4000), "", "more than 10^18"),
        ([1, 2], "", "1, 2"),
        ([], "", "none"),
        (["a"] * 9, "", "a, a, a, a, … (9 in all)"),
        ("running", "", "running"),
        ("", "", '""'),
    ],
)
def test_values_are_written_as_people_write_them(value: object, unit: str, text: str) -> None:
    assert value_text(value, unit) == text  # type: ignore[arg-type]


def test_a_step_of_the_walk_tells_value_and_unit_or_why_it_is_unknown() -> None:
    assert fact_line(Fact("waits.absent", 1, "ranks")) == "waits.absent = 1 ranks"
    assert fact_line(Fact("progress.stall_age_s", 2880.0, "s")) == "progress.stall_age_s = 48m"
    assert fact_line(Fact("links.down_now", None, "links", reason="no port\x1b[2J was read")) == (
        "links.down_now unknown: no port was read"
    )
    assert with_unit(Fact("x", None, "ranks")) == "unknown"
    onset = Fact("progress.onset", [1790000000.0, 1790000008.5], text="between 21:40:00Z and 21:40:08Z")
    assert fact_line(onset) == "progress.onset = between 21:40:00Z and 21:40:08Z"


# ---------------------------------------------------------------- parts


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([], "none"),
        ([rank(5, "gpu003")], "rank 5 (gpu003)"),
        ([rank(5, "gpu003"), rank(5, "gpu003")], "rank 5 (gpu003)"),
        ([rank(n, "gpu001") for n in range(8)], "ranks 0-7 (gpu001)"),
        ([rank(n, "gpu001") for n in (5, 1, 2, 9)], "ranks 1, 2, 5, 9 (gpu001)"),
        ([rank(1, "a"), rank(9, "b")], "rank 1 (a), rank 9 (b)"),
        ([rank(n) for n in range(8192)], "ranks 0-8191"),
        ([rank(n, f"n{n}") for n in range(12)], "12 ranks: rank 0 (n0), rank 1 (n1), rank 2 (n2), …"),
        ([Part("node", node="gpu007")], "gpu007"),
        ([Part("nic", node="gpu007", nic="mlx5_0"), rank(3, "x")], "nic mlx5_0 (gpu007), rank 3 (x)"),
    ],
)
def test_parts_are_folded_so_that_a_line_stays_a_line(parts: list[Part], text: str) -> None:
    assert fold_parts(parts) == text


# ---------------------------------------------------------------- slots


def test_slots_have_the_value_the_sentence_the_parts_the_nodes_and_the_ranks() -> None:
    facts = known("waits.absent", 2, (rank(5, "gpu003"), rank(7, "gpu004")), text="2 ranks have not arrived")
    assert say("{waits.absent} wait", facts) == "2 wait"
    assert say("{waits.absent.text}", facts) == "2 ranks have not arrived"
    assert say("{waits.absent.parts}", facts) == "rank 5 (gpu003), rank 7 (gpu004)"
    assert say("{waits.absent.nodes} {waits.absent.ranks}", facts) == "gpu003,gpu004 5,7"
    assert say("{waits.absent.text}", known("waits.absent", 2)) == "2 ranks"
    assert say("stood for {progress.stall_age_s}", known("progress.stall_age_s", 90)) == "stood for 90s"


def test_what_is_unknown_says_so() -> None:
    assert say("all {waits.absent} of {waits.absent.parts}", {}) == "all unknown of unknown"
    assert say("{job.state}", {"job.state": Fact("job.state", None)}) == "unknown"


def test_a_count_without_its_parts_is_not_called_none() -> None:
    assert say("{waits.absent.parts}", known("waits.absent", 3)) == "3 ranks"
    assert say("{waits.absent.parts}", known("waits.absent", 0)) == "none"


def test_a_fact_whose_name_ends_like_a_form_is_itself() -> None:
    assert say("{hard.parts}", known("hard.parts", 4)) == "4"


def test_braces_are_doubled_and_blocks_become_one_paragraph() -> None:
    assert say("awk '{{print  $1}}'\n   done\n", {}) == "awk '{print  $1}' done"


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("who {waits.absnt} is", 6, 'no fact "waits.absnt", did you mean "waits.absent"?'),
        ("{waits.absnt.parts}", 2, 'did you mean "waits.absent.parts"?'),
        ("{job.state.parts}", 2, "points at no parts"),
        ("{waits.absent.__class__}", 2, "no fact"),
        ("{waits.absent!r}", 2, "is no fact name"),
        ("{waits.absent:>20}", 2, "is no fact name"),
        ("{}", 2, "is no fact name"),
        ("{0}", 2, "is no fact name"),
        ("{waits.absent", 1, "never closed"),
        ("a } b", 3, 'write "}}"'),
        ("a \x1b[31m b", 3, "the character 27"),
        ("x" * 2001, 1, "2000 are allowed"),
    ],
)
def test_a_bad_slot_is_found_when_the_playbook_loads(text: str, column: int, says: str) -> None:
    with pytest.raises(WordsError) as caught:
        compile_words(text, CATALOGUE)
    assert caught.value.column == column
    assert says in str(caught.value)
    assert caught.value.code == 3


def test_only_a_known_fact_can_rule_something_out() -> None:
    words = compile_words("all {waits.absent} came, job {job.state}", CATALOGUE)
    assert words.facts == ("waits.absent", "job.state")
    assert not words.cites_known({})
    assert not words.cites_known({"job.state": Fact("job.state", None)})
    assert words.cites_known(known("waits.absent", 0))


# ---------------------------------------------------------------- hostile nodes


@pytest.mark.parametrize(
    ("hostile", "text"),
    [
        ("\x1b[2J\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("a\nb\r\nc\td", "a b c d"),
        ("nul\x00 bell\x07 c1\x9b31m", "nul bell c131m"),
        ("gpu\u202e100", "gpu100"),
        ("zero\u200bwidth\ud800", "zerowidth"),
        ("é ü 漢", "é ü 漢"),
        ("\x1b", ""),
    ],
)
def test_what_a_terminal_would_obey_is_taken_out(hostile: str, text: str) -> None:
    assert clean(hostile) == text


def test_a_long_string_is_cut_and_says_so() -> None:
    assert clean("x" * 10_000, 20) == "x" * 19 + "…"
    assert len(say("{job.state}", known("job.state", "y" * 10_000))) <= 160


def test_a_node_cannot_write_a_shell_line() -> None:
    words = compile_words("ssh {waits.absent.nodes} uptime", CATALOGUE)
    evil = known("waits.absent", 1, (rank(5, "gpu3; rm -rf /"),))
    assert words.render_command(evil) == "ssh 'gpu3; rm -rf /' uptime"
    assert words.render_command(known("waits.absent", 1, (rank(5, "gpu003"),))) == "ssh gpu003 uptime"


def test_a_command_with_an_unknown_in_it_is_not_given() -> None:
    words = compile_words("ssh {waits.absent.nodes} uptime", CATALOGUE)
    assert words.render_command({}) is None
    assert words.render_command(known("waits.absent", 1, (rank(5),))) is None


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("\x1b[];\x9b\x07\n{}")), max_size=60))
def test_no_text_leaves_a_control_character_behind(text: str) -> None:
    assert clean(text).isprintable()
    shown = say("{job.state}", known("job.state", text))
    assert shown.isprintable()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(["{", "}", "waits.absent", ".parts", "x", " ", "\n", "\x00", "{{", "é"])).map("".join))
def test_no_template_raises_anything_but_a_configuration_error(text: str) -> None:
    try:
        words = compile_words(text, CATALOGUE)
    except ConfigError:
        return
    words.render({})
    words.render_command({})
