"""The cases of PyTorch's own analyzer suite (test_fr_analysis.py), through our reducer, decoder and graph.

The table is notes/flight-recorder.md 3.3, read again at the source (torch 2.13 and its newest test file). Entries are as that
suite writes them: numbers as text, one bare type for all tensors, no pg_id, op_id or thread. We agree with its expected state
in every case but one kind, and say so there: a difference of state is its mismatch (7), and is no difference of the call; the
graph reads it as what it is, one rank left behind.
"""

from __future__ import annotations

import math

import pytest
from triage.probes import _records as probe

from triage.facts.collectives import decode
from triage.facts.signatures import difference, exchange
from triage.facts.waitgraph import draw

# torch/distributed/flight_recorder/components/types.py of 2.13.0
COLLECTIVES = [
    "broadcast", "_broadcast_oop", "reduce", "_reduce_oop", "all_gather", "all_gather_single", "all_gather_v", "all_reduce",
    "_all_gather_base", "all_gather_into_tensor_coalesced", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_v",
    "reduce_scatter_tensor_coalesced", "_reduce_scatter_base", "gather", "scatter", "all_to_all", "all_to_all_single",
    "all_to_all_v_single", "all_reduce_barrier", "barrier", "split", "new_window", "allreduce_coalesced",
    "ALLGATHER_coalesced", "REDUCE_SCATTER_coalesced",
]  # fmt: skip
BACKENDS = ["nccl", "ncclx", "xccl", "gloo", "rccl", "rcclx", "mccl", "hccl"]
FULL, OP, SIZE, DTYPE, UNDECIDED = "", "op", "size", "dtype", "undecided"


def event(name, sin, sout, state="scheduled", seq=1, dout="float32", group=("0", "default"), record=0, backend="nccl"):
    return {
        "profiling_name": f"{backend}:{name}", "state": state, "process_group": group, "input_sizes": sin,
        "output_sizes": sout, "input_dtypes": "float32", "output_dtypes": dout, "collective_seq_id": str(seq),
        "p2p_seq_id": "0", "time_created_ns": 0, "frames": [], "record_id": record, "is_p2p": False,
    }  # fmt: skip


def dumps(zero, one, sub=False):
    """{rank: record} of two ranks; `sub`: a group of one name that holds another rank on each."""
    made = {}
    for rank, entries in ((0, zero), (1, one)):
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
        if sub:
            config["1"] = {"name": "1", "desc": "sub_pg", "ranks": f"[{rank}]"}
        obj = {"version": "2.8", "pg_config": config, "entries": [dict(e, record_id=i) for i, e in enumerate(entries)]}
        made[rank] = probe.reduce_dump(obj, rank)
    return made


def picture(zero, one, sub=False):
    return draw(decode(dumps(zero, one, sub)))


def compared(a, b):
    """What we call the difference of two entries of one number, in a group of two."""
    one, other = (probe.entry_signature(e) for e in (a, b))
    found = difference(one, other, 2)
    return UNDECIDED if not found and exchange(one) else found


AR = event("all_reduce", [[4, 4]], [[4, 4]])
DONE = event("all_reduce", [[4, 4]], [[4, 4]], "completed")
GATHER = event("gather", [[4, 4]], [[4, 4], [4, 4]], "completed")


@pytest.mark.parametrize(
    ("number", "a", "b", "want"),
    [
        (1, AR, AR, FULL),
        (2, AR, event("all_gather", [[4, 4]], [[4, 4]]), OP),
        (3, event("all_to_all", [[4, 4]], [[4, 4]]), event("all_to_all", [[4, 4]], [[4, 4]]), UNDECIDED),
        (4, AR, event("all_reduce", [[5, 4]], [[4, 4]]), SIZE),
        (5, AR, event("all_reduce", [[4, 4]], [[5, 4]]), SIZE),
        (6, event("all_reduce", [[4, 4]], [[5, 4]]), event("all_reduce", [[4, 4]], [[5, 4]]), SIZE),
        (7, AR, DONE, FULL),  # the state is no part of the call: see the test below
        (8, event("all_reduce", [[4, 4]], [[4, 4]], "completed", dout="float16"), DONE, DTYPE),
        (9, GATHER, event("gather", [[4, 4]], [[]], "completed", dout=""), FULL),
        (10, GATHER, event("gather", [[4, 4]], [[4, 4]], "completed", dout=""), FULL),
    ],
)
def test_pairs_of_entries_are_told_apart_as_the_analyzer_expects(number, a, b, want):
    assert compared(a, b) == want
    assert compared(b, a) == want


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_known_operation_agrees_with_itself(name):  # 11
    sin, sout = [[4, 4]], [[4, 4]]
    if name in ("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"):
        sout = [[sin[0][0] * 2]]  # 8 elements, twice that is taken
    if name in ("all_gather", "_all_gather_base", "all_gather_into_tensor_coalesced"):
        sout = [[math.prod(sin[0]) * 2]]
    e = event(name, sin, sout)
    assert compared(e, e) == (UNDECIDED if name.startswith("all_to_all") else FULL)
    p = picture([e], [e])
    assert p.mismatches == [] and [u.seq for u in p.stuck_units] == [1]


@pytest.mark.parametrize("backend", [*BACKENDS, "unknown_backend"])
def test_every_backend_is_read_and_an_unknown_one_as_well(
    backend,
):  # 12: the analyzer stops at the unknown one; we go on
    e = event("all_reduce", [[4, 4]], [[4, 4]], backend=backend)
    assert picture([e], [AR]).mismatches == []
    assert dumps([e], [e])[0]["sigs"] == ["all_reduce|4x4|4x4|float32|float32"]


def test_what_only_one_of_two_has_finished_is_a_rank_left_behind_and_no_mismatch():  # 7
    p = picture([AR], [DONE])
    assert p.mismatches == [] and set(p.device_stuck) == {0}
    further = event("all_reduce", [[4, 4]], [[4, 4]], seq=2)  # once somebody waits for it, it is the root
    assert picture([AR], [DONE, further]).roots == {0: "device"}


@pytest.mark.parametrize("name", ["all_gather_v", "reduce_scatter_v", "all_to_all_v_single"])
def test_uneven_variants_may_bring_another_size_on_each_rank(name):
    a, b = event(name, [[4]], [[9]]), event(name, [[5]], [[9]])
    assert picture([a], [b]).mismatches == []


@pytest.mark.parametrize("which", ["pair 2", "pair 4", "pair 5", "pair 8"])
def test_a_pair_that_differs_is_a_tie_of_both_in_the_graph(which):
    other = {
        "pair 2": event("all_gather", [[4, 4]], [[4, 4]]), "pair 4": event("all_reduce", [[5, 4]], [[4, 4]]),
        "pair 5": event("all_reduce", [[4, 4]], [[5, 4]]), "pair 8": event("all_reduce", [[4, 4]], [[4, 4]], dout="float16"),
    }[which]  # fmt: skip
    p = picture([AR], [other])
    assert (p.named_by_mismatch, p.tied_by_mismatch) == (set(), {0, 1})


# ---------------------------------------------------------------- whole databases (all entries completed, as written there)


def done(name, sin, sout, seq=0, group=("0", "default")):
    return event(name, sin, sout, "completed", seq, group=group)


S4, S5, NONE = [[4, 4]], [[5, 5]], [[]]
UNITS = {
    "a": ([done("all_reduce", S4, S4), done("all_reduce", S5, S5, group=("1", "sub_pg"))],) * 2,
    "b": ([done("allreduce_coalesced", S4, S4)],) * 2,
    "c": ([done("broadcast", S4, S4), done("broadcast", S4, S4), done("coalesced", NONE, NONE)],) * 2,
    "d": (
        [done("_broadcast_oop", S4, S4), done("_broadcast_oop", S5, S5), done("ALLGATHER_coalesced", NONE, NONE)],
        [done("_broadcast_oop", S4, S4), done("_broadcast_oop", S4, S4), done("ALLGATHER_coalesced", NONE, NONE)],
    ),
    "e": ([done("_reduce_oop", S4, S4), done("_reduce_oop", S4, S4), done("REDUCE_SCATTER_coalesced", NONE, NONE)],)
    * 2,
}


@pytest.mark.parametrize(("case", "collectives", "passes"), [("a", 3, True), ("b", 1, True), ("c", 1, True), ("d", 1, False), ("e", 1, True)])  # fmt: skip
def test_databases_of_two_ranks_hold_as_many_collectives_and_pass_as_the_analyzer_expects(case, collectives, passes):
    p = picture(*UNITS[case], sub=case == "a")
    units = {
        (key, seq) for rank, view in p.records.views.items() for key in view.keys for seq in p.records.window(rank, key)
    }
    assert len(units) == collectives
    assert (p.mismatches == []) is passes
    if not passes:
        assert p.tied_by_mismatch == {0, 1}  # it names rank 1, because it read rank 0 first


def test_a_coalesced_collective_that_one_rank_has_not_begun_is_a_wait_and_no_pass():
    """f: rank 1 goes on to a second collective. There all numbers are 0; a recorder counts, and so do we here."""
    first = done("all_reduce", S4, S4, 1)
    second = [event("_reduce_oop", S4, S4, seq=2), event("_reduce_oop", S4, S4, seq=2)]
    p = picture([first], [first, *second, event("REDUCE_SCATTER_coalesced", NONE, NONE, seq=2)])
    units = {seq for rank, view in p.records.views.items() for key in view.keys for seq in p.records.window(rank, key)}
    assert units == {1, 2}
    assert set(p.absent) == {0} and p.roots == {0: "host"}


def test_without_numbers_the_second_collective_of_one_rank_differs_from_the_first_of_the_other():
    """f to the letter: every entry says number 0, so all of a rank's entries are parts of one unit, and the two differ."""
    second = [done("_reduce_oop", S4, S4), done("_reduce_oop", S4, S4), done("REDUCE_SCATTER_coalesced", NONE, NONE)]
    p = picture([done("all_reduce", S4, S4)], [done("all_reduce", S4, S4), *second])
    assert p.tied_by_mismatch == {0, 1}
