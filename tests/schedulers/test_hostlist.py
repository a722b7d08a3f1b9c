"""Folded host lists keep their order, their padding and their nerve."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triage.errors import UsageError
from triage.schedulers.hostlist import expand, fold


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu[001-003]", ["gpu001", "gpu002", "gpu003"]),
        ("gpu[8-11]", ["gpu8", "gpu9", "gpu10", "gpu11"]),
        ("n[08-09]", ["n08", "n09"]),
        ("b2,a1,b1", ["b2", "a1", "b1"]),
        ("gpu[3,1-2]", ["gpu3", "gpu1", "gpu2"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[1-2].dc1.example.com", ["n1.dc1.example.com", "n2.dc1.example.com"]),
        ("n1, n2\nn3", ["n1", "n2", "n3"]),
        ("n1,n1", ["n1"]),
    ],
)
def test_a_folded_list_unfolds_in_its_own_order(text, names):
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    ["", "  ", "(null)", "None assigned", "n[1-3", "n]1", "n[3-1]", "n[]", "n[a-b]", "n[1-99999999]", "n[1-300][1-300]",
     "n;rm", "$(x)", "-oProxyCommand=x", "n[1-2]!n2", "n/../x", "n[[1]]", "n[1-2]\x00"],
)  # fmt: skip
def test_what_is_no_host_list_is_refused_in_one_line(text):
    with pytest.raises(UsageError) as refused:
        expand(text)
    assert "\n" not in str(refused.value)


@given(st.lists(st.from_regex(r"[a-c]{0,2}[0-9]{1,4}(-[a-b])?", fullmatch=True), min_size=1, max_size=30, unique=True))
def test_folding_and_unfolding_gives_the_same_names_in_the_same_order(names):
    names = [name for name in names if name[0] != "-"]
    if names:
        assert expand(fold(names)) == names


@given(st.text(max_size=60))
def test_any_text_unfolds_or_is_refused_and_never_crashes(text):
    try:
        assert all(isinstance(name, str) for name in expand(text))
    except UsageError:
        pass


def test_equal_neighbours_fold_into_one_word():
    assert fold(["gpu001", "gpu002", "gpu003", "gpu007", "login"]) == "gpu[001-003,007],login"
