"""Conditions: what they accept, what they refuse and where, and what they say when a fact is unknown."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triage.errors import ConfigError
from triage.model import Fact, FactSpec
from triage.tree.expr import MAX_LENGTH, ConditionError, compile_condition

CATALOGUE = {
    spec.name: spec
    for spec in (
        FactSpec("waits.absent", "number", "ranks", "rank"),
        FactSpec("waits.members", "number", "ranks", "rank"),
        FactSpec("waits.known_share", "number", "share"),
        FactSpec("ranks.dead", "number", "ranks", "rank"),
        FactSpec("progress.advancing", "bool"),
        FactSpec("hosts.split", "bool"),
        FactSpec("job.state", "text"),
        FactSpec("links.names", "list"),
    )
}
LIMITS = {"floor_s": 60.0, "share": 0.5}


def facts(**values: object) -> dict[str, Fact]:
    return {name: Fact(name, value) for name, value in ((k.replace("__", "."), v) for k, v in values.items())}


def ask(text: str, **values: object) -> bool | None:
    return compile_condition(text, CATALOGUE, LIMITS).evaluate(facts(**values), LIMITS)


def refusal(text: str) -> ConditionError:
    with pytest.raises(ConditionError) as caught:
        compile_condition(text, CATALOGUE, LIMITS)
    assert caught.value.code == 3
    assert "\n" not in str(caught.value)
    return caught.value


# ---------------------------------------------------------------- what is accepted


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("waits.absent > 0", True),
        ("waits.absent == 1.0", True),
        ("0 < waits.absent < 2", True),
        ("0 < waits.absent < waits.members <= 7", False),
        ("waits.absent / waits.members >= 0.125", True),
        ("-waits.absent == 2 - 3", True),
        ("(waits.absent + 1) * 2 - 1 == 3", True),
        ("waits.members > limit.share * 10", True),
        ('job.state == "running"', True),
        ("job.state != 'ended'", True),
        ('job.state in ["running", "busy"]', True),
        ('job.state not in ["running", "busy"]', False),
        ("waits.absent in [1, 2.5, waits.members]", True),
        ('"mlx5_0" in links.names', True),
        ('"mlx5_9" not in links.names', True),
        ("progress.advancing", False),
        ("not progress.advancing", True),
        ("progress.advancing == false", True),
        ("progress.advancing != True", True),
        ("ranks.dead.known", False),
        ("waits.absent.known and not ranks.dead.known", True),
        ("waits.known_share > 0.5 and\n  waits.absent > 0", True),
        ("waits.known_share > 0.5\r\n\r\n\tand waits.absent > 0 \n", True),
    ],
)
def test_a_condition_that_an_engineer_would_write_is_understood(text: str, answer: bool) -> None:
    found = ask(
        text,
        waits__absent=1,
        waits__members=8,
        waits__known_share=0.75,
        progress__advancing=False,
        job__state="running",
        links__names=["mlx5_0", "mlx5_1"],
    )
    assert found is answer


def test_it_tells_which_facts_and_thresholds_it_reads() -> None:
    condition = compile_condition(
        "waits.absent > 0 and ranks.dead.known and waits.absent < limit.floor_s", CATALOGUE, LIMITS
    )
    assert condition.facts == ("waits.absent", "ranks.dead")
    assert condition.limits == ("floor_s",)


def test_a_fact_whose_name_ends_in_known_is_itself() -> None:
    catalogue = {**CATALOGUE, "waits.known": FactSpec("waits.known", "bool")}
    assert compile_condition("waits.known", catalogue).facts == ("waits.known",)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9 > 1",
        "ranks.dead ** 2 > 1",
        "ranks.dead % 2 == 1",
        "ranks.dead is 3",
        "ranks.dead is not 3",
        "ranks.dead // 2 > 1",
        "~ranks.dead > 1",
        "+ranks.dead > 1",
        "ranks.dead << 2 > 1",
        "ranks.dead & 1 == 1",
        "ranks.dead @ 2 > 1",
        "lambda: ranks.dead > 1",
        "(lambda x: x)(ranks.dead) > 1",
        "[x for x in links.names] == [1]",
        "any(x > 1 for x in links.names)",
        "ranks.dead.__class__ > 1",
        "__import__('os').system('true')",
        "().__class__.__bases__ == 1",
        "(x := ranks.dead) > 1",
        "ranks.dead = 1",
        'f"{ranks.dead}" == "1"',
        'b"running" == job.state',
        'job.state == u"running"',
        "links.names[0] == 'a'",
        "ranks.dead if progress.advancing else 2",
        "ranks.dead > 1 if progress.advancing else true",
        "ranks.dead in (1, 2)",
        "ranks.dead in {1, 2}",
        "ranks.dead in [*links.names]",
        "{1: 2} == {1: 2}",
        "await ranks.dead",
        "ranks.dead > 1; ranks.dead > 2",
        "ranks.dead > 1j",
        "ranks.dead > 1e999",
        "ranks.dead > ...",
        "len(links.names) > 1",
        "max(1, 2) > 1",
        "ranks.dead > 0\x00",
        "ranks.dead > 0\x0c",
        "",
        "   ",
        "\n",
    ],
)
def test_what_is_not_in_the_grammar_is_refused(text: str) -> None:
    refusal(text)


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("ranks.ded > 0", 1, 'no fact "ranks.ded", did you mean "ranks.dead"?'),
        ("waits.absent > 0 and ranks.ded > 0", 22, 'did you mean "ranks.dead"?'),
        ("waits.absnt.known", 1, 'did you mean "waits.absent.known"?'),
        ("waits.absent > limit.flor_s", 16, 'no threshold "flor_s", did you mean "floor_s"?'),
        ("waits.absent > floor_s", 16, 'did you mean "limit.floor_s"?'),
        ("ranks.dead", 1, '"ranks.dead" is a number, not a yes or no'),
        ("job.state", 1, '"job.state" is text, not a yes or no'),
        ("links.names", 1, '"links.names" is a list, not a yes or no'),
        ("ranks.dead and progress.advancing", 1, '"and" needs a yes or no'),
        ("progress.advancing or 1", 23, '"or" needs a yes or no'),
        ("not ranks.dead", 5, '"not" needs a yes or no'),
        ("progress.advancing + 1 > 1", 1, "arithmetic needs a number"),
        ("progress.advancing > 0", 1, "needs a number"),
        ("true > 0 and progress.advancing", 1, "needs a number"),
        ("progress.advancing == 1", 1, "cannot be compared"),
        ('ranks.dead == "3"', 1, '"ranks.dead" is a number and ""3"" is text'),
        ('job.state < "x"', 1, "needs a number"),
        ('"run" in job.state', 10, '"in" needs a list'),
        ("ranks.dead in [1, 'a']", 19, "this list needs a number"),
        ("ranks.dead in ['a']", 1, "cannot be looked up in a list of text"),
        ("true in [1]", 1, "cannot be looked up"),
        ("ranks.dead in []", 15, "an empty list"),
        ("ranks.dead in [[1]]", 16, "a list holds no lists"),
        ("links.names == links.names", 1, "cannot be compared"),
        ("ranks.dead == None", 15, "ask NAME.known"),
        ("ranks.dead == unknown", 15, "ask NAME.known"),
        ("waits.absent > 0 # dead\n and ranks.dead > 0", 18, "holds no comments"),
        ("waits.absent > 0 && ranks.dead > 0", 18, 'write "and"'),
        ("!progress.advancing", 1, 'write "not"'),
        ("ranks.dead = 1", 12, 'write "=="'),
        ('job.state in ["ended" "busy"]', 23, "is a comma missing"),
        (r'job.state == "a\x62"', 16, "no backslash"),
        ('job.state == "run', 14, "no closing quote"),
        ("1 > 0", 1, "reads no fact"),
        ("limit.floor_s > 0", 1, "reads no fact"),
        ("ranks.dead > 0 ranks.dead", 16, ""),
        ('job.state == "é" and ranks.ded > 0', 22, 'did you mean "ranks.dead"?'),
        ("ｒanks.dead > 0", 1, "is not part of conditions"),
        ("1and ranks.dead > 0", None, ""),
    ],
)
def test_a_refusal_names_the_column_and_what_was_meant(text: str, column: int | None, says: str) -> None:
    error = refusal(text)
    assert says in str(error)
    if column is not None:
        assert error.column == column
        assert str(error).startswith(f"col {column}: ")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000 + "ranks.dead > 0" + ")" * 10_000,
        "(" * 200 + "ranks.dead > 0" + ")" * 200,
        "[" * 240,
        "not " * 120 + "progress.advancing",
        "- " * 200 + "ranks.dead > 0",
        "ranks.dead" + "+1" * 200 + " > 0",
        "ranks.dead > 0 and " * 1000 + "ranks.dead > 0",
        "ranks.dead > " + "9" * (MAX_LENGTH + 1),
    ],
)
def test_depth_and_length_are_bounded_before_the_parser_suffers(text: str) -> None:
    refusal(text)


def test_a_long_flat_condition_within_the_limit_is_fine() -> None:
    text = " and ".join(["ranks.dead > 0"] * 26)
    assert len(text) <= MAX_LENGTH
    assert ask(text, ranks__dead=1) is True


# ---------------------------------------------------------------- three values

TABLE_AND = {(True, True): True, (True, None): None, (None, None): None}
TABLE_OR = {(False, False): False, (False, None): None, (None, None): None}


@pytest.mark.parametrize(("one", "two"), list(itertools.product([True, False, None], repeat=2)))
def test_and_or_not_follow_kleene(one: bool | None, two: bool | None) -> None:
    def table(values: dict[tuple[bool | None, bool | None], bool | None], default: bool) -> bool | None:
        return values.get((one, two), values.get((two, one), default))

    known = {"progress__advancing": one, "hosts__split": two}
    assert ask("progress.advancing and hosts.split", **known) is table(TABLE_AND, False)
    assert ask("progress.advancing or hosts.split", **known) is table(TABLE_OR, True)
    assert ask("not progress.advancing", progress__advancing=one) is (None if one is None else not one)


def test_the_deciding_operand_may_stand_behind_an_unknown_one() -> None:
    assert ask("ranks.dead > 0 and hosts.split and waits.absent > 5", waits__absent=1) is False
    assert ask("ranks.dead > 0 or hosts.split or waits.absent > 0", waits__absent=1) is True


@pytest.mark.parametrize(
    ("text", "values", "answer"),
    [
        ("ranks.dead > 0", {}, None),
        ("ranks.dead == ranks.dead", {}, None),
        ("1 / ranks.dead > 0", {"ranks__dead": 0}, None),
        ("ranks.dead / 0 > 0 or true", {"ranks__dead": 0}, True),
        ("0 / ranks.dead == 0", {"ranks__dead": 0.0}, None),
        ("ranks.dead in [1, waits.absent]", {"ranks__dead": 1}, True),
        ("ranks.dead in [2, waits.absent]", {"ranks__dead": 1}, None),
        ("ranks.dead not in [2, waits.absent]", {"ranks__dead": 1}, None),
        ("ranks.dead in [2, 3]", {}, None),
        ('"a" in links.names', {}, None),
        ('"a" in links.names', {"links__names": ["b", None]}, None),
        ('"a" in links.names', {"links__names": ["a", None]}, True),
        ('"a" in links.names', {"links__names": []}, False),
        ("1 in links.names", {"links__names": [True]}, None),
        ("5 > waits.absent > 0", {}, None),
        ("1 > 2 > waits.absent", {}, False),
        ("ranks.dead > 0", {"ranks__dead": "3"}, None),
        ("ranks.dead > 0", {"ranks__dead": True}, None),
        ("ranks.dead > 0", {"ranks__dead": float("nan")}, None),
        ("not ranks.dead > 0", {"ranks__dead": float("nan")}, None),
        ("ranks.dead > 0", {"ranks__dead": float("inf")}, None),
        ("ranks.dead * ranks.dead > 0", {"ranks__dead": 1e300}, None),
        ("ranks.dead / 3 > 0", {"ranks__dead": 10**400}, None),
        ("progress.advancing", {"progress__advancing": 1}, None),
        ('job.state == "running"', {"job__state": 7}, None),
    ],
)
def test_what_cannot_be_known_is_unknown_and_nothing_else(
    text: str, values: dict[str, object], answer: bool | None
) -> None:
    assert ask(text, **values) is answer


def test_a_threshold_without_a_value_is_unknown() -> None:
    condition = compile_condition("ranks.dead > limit.share", CATALOGUE, LIMITS)
    assert condition.evaluate(facts(ranks__dead=1), {}) is None


# ---------------------------------------------------------------- properties

NUMBERS = st.sampled_from(["ranks.dead", "waits.absent", "limit.share", "0", "1", "2.5"])
SUMS = st.recursive(
    NUMBERS, lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from("+-*/"), inner), max_leaves=4
)
ATOMS = st.one_of(
    st.sampled_from(["progress.advancing", "hosts.split", "true", "false", 'job.state == "running"']),
    st.builds("{} {} {}".format, SUMS, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), SUMS),
    st.builds("{} < {} <= {}".format, NUMBERS, SUMS, NUMBERS),
    st.builds("{} {} [{}, {}]".format, SUMS, st.sampled_from(["in", "not in"]), NUMBERS, NUMBERS),
    st.sampled_from(['"a" in links.names', 'job.state in ["a", "running"]']),
)
CONDITIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("(not {})".format, inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("({} and {} and {})".format, inner, inner, inner),
    ),
    max_leaves=6,
).filter(lambda text: len(text) <= MAX_LENGTH)
VALUES = st.fixed_dictionaries(
    {
        "ranks.dead": st.integers(-2, 3),
        "waits.absent": st.sampled_from([0, 1, 2.5, -1]),
        "progress.advancing": st.booleans(),
        "hosts.split": st.booleans(),
        "job.state": st.sampled_from(["running", "a", ""]),
        "links.names": st.lists(st.sampled_from(["a", "b"]), max_size=2),
    }
)


@settings(max_examples=400, deadline=None)
@given(CONDITIONS, VALUES, st.sets(st.sampled_from(sorted(CATALOGUE))))
def test_making_facts_known_never_flips_a_decided_answer(
    text: str, values: dict[str, object], hidden: set[str]
) -> None:
    try:
        condition = compile_condition(text, CATALOGUE, LIMITS)
    except ConditionError as error:
        assert "reads no fact" in str(error)
        return
    everything = {name: Fact(name, value) for name, value in values.items()}  # type: ignore[arg-type]
    partial = {
        name: (Fact(name, None, reason="hidden") if name in hidden else fact) for name, fact in everything.items()
    }
    early, late = condition.evaluate(partial, LIMITS), condition.evaluate(everything, LIMITS)
    assert early is None or early is late


PIECES = st.sampled_from(
    ["ranks.dead", "limit.share", "and", "or", "not", "in", "is", "(", ")", "[", "]", ",", "==", "**", "//", "-", ".",
     "1", '"a"', "'", '"', "None", "lambda", ":", "if", "else", "\\", "#", "\n", "\x00", "é", "\ud800", "{", "for"]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text(max_size=80), st.lists(PIECES, max_size=14).map(" ".join), st.lists(PIECES).map("".join)))
def test_no_text_whatever_raises_anything_but_a_configuration_error(text: str) -> None:
    try:
        condition = compile_condition(text, CATALOGUE, LIMITS)
    except ConfigError as error:
        assert len(str(error)) < 400
    else:
        assert condition.evaluate({}, {}) in (True, False, None)
