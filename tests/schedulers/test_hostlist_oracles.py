"""Our reading of folded lists against that of ClusterShell (which sorts), python-hostlist (which keeps the order) and Slurm."""

import shutil
import subprocess

import hostlist as oracle
import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given, settings
from hypothesis import strategies as st

from triage.schedulers.hostlist import expand, fold

PREFIX = st.sampled_from(["n", "gpu", "rack-a", "a1b", "node.x"])
SUFFIX = st.sampled_from(["", "-ib0", ".dc1.example.com", "x"])


@st.composite
def ranges(draw):
    """`7`, `007`, `1-12`, `001-120`: as the three agree on them (the bounds padded to one width, or not at all)."""
    low = draw(st.integers(0, 150))
    high = low + draw(st.integers(0, 12))
    width = draw(st.sampled_from([0, 0, 3, 5]))
    text = f"{low:0{width}}" if width else str(low)
    return text if low == high else f"{text}-{high:0{width}}" if width else f"{text}-{high}"


@st.composite
def words(draw):
    width_of = st.lists(ranges(), min_size=1, max_size=4).map(lambda parts: f"[{','.join(parts)}]")
    middle = draw(st.one_of(width_of, st.tuples(width_of, width_of).map("-".join), st.integers(0, 99).map(str)))
    return f"{draw(PREFIX)}{middle}{draw(SUFFIX)}"


LISTS = st.lists(words(), min_size=1, max_size=5).map(",".join)


@given(LISTS)
@settings(max_examples=300, deadline=None)
def test_python_hostlist_reads_the_same_names_in_the_same_order(text):
    assert expand(text) == list(dict.fromkeys(oracle.expand_hostlist(text, allow_duplicates=True)))


@given(LISTS)
@settings(max_examples=300, deadline=None)
def test_clustershell_reads_the_same_set_of_names(text):
    # It knows one padding for all numbers of a set: lists of several are read word by word.
    theirs = {name for word in _words(text) for name in NodeSet(word)}
    assert set(expand(text)) == theirs


def _words(text):
    depth, word = 0, ""
    for sign in text + ",":
        depth += {"[": 1, "]": -1}.get(sign, 0)
        if sign == "," and not depth:
            yield word
            word = ""
        else:
            word += sign


@given(LISTS)
@settings(max_examples=200, deadline=None)
def test_what_we_fold_the_others_unfold(text):
    names = expand(text)
    folded = fold(names)
    assert oracle.expand_hostlist(folded) == names
    assert {name for word in _words(folded) for name in NodeSet(word)} == set(names)


# Slurm takes no text behind a bracket ("Invalid hostlist", exit 0: notes/fanout-and-schedulers.md 5).
SLURM = ["n[1-4]", "gpu[001-003,007]", "r[1-2]n[08-11]", "b2,a1,b1", "n[3,1-2]", "n8,n[09-10]", "x[1-2]-y[3-4]"]


@pytest.mark.parametrize("text", SLURM)
def test_slurm_reads_the_same_names_in_the_same_order(text, tmp_path):
    if not shutil.which("scontrol"):
        pytest.skip("needs scontrol (slurm-client)")
    (tmp_path / "slurm.conf").write_text("ClusterName=x\nSlurmctldHost=localhost\n")
    done = subprocess.run(
        ["scontrol", "show", "hostnames", text], capture_output=True, text=True, timeout=20,
        env={"PATH": "/usr/bin:/bin", "SLURM_CONF": str(tmp_path / "slurm.conf")},
    )  # fmt: skip
    assert done.stdout.split() == expand(text), done.stderr
