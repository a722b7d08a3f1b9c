"""Does what a busy rank does explain the stall, and who may be called stuck beside it?"""

import pytest
from test_busy import ONSET, all_wait_for, stalled
from written_activity import cache, compiler, compiles, doing, watch
from written_dumps import LATE, WAITS, add_dumps, everyone, ranks_of
from written_evidence import NOW, World, exit_line


def test_the_one_rank_that_all_wait_for_compiles_and_that_explains_the_stall():
    found = watch(all_wait_for(5), compiles(5)).fact("busy.explains")
    assert found.value is True and "the waits end at rank 5" in found.text


@pytest.mark.parametrize("other", [doing(5), doing(5, [compiler()], [])])
def test_a_rank_that_compiles_does_not_explain_another_that_lacks_as_well_and_neither_is_called_stuck(other):
    # torch builds an extension on one rank while the others wait for a lock file: those are idle, and no dump shows it.
    w = watch(all_wait_for(3, 5), compiles(3), other)
    assert ranks_of(w.fact("busy.compiling")) == [3]
    assert w.fact("busy.explains").value is None
    assert "rank 5" in w.fact("busy.explains").reason
    assert not w.fact("blame.host").parts
    assert w.fact("blame.host").value is (0 if other["compilers"] else None)


@pytest.mark.parametrize("late", [(5,), (3, 5)])
def test_a_rank_that_nobody_watched_may_be_what_an_idle_one_waits_for(late):
    found = watch(all_wait_for(*late), doing(5)).fact("busy.explains")
    assert found.value is (False if late == (5,) else None)


def test_two_ranks_that_are_waited_for_and_idle_may_both_be_called_stuck():
    w = watch(all_wait_for(3, 5), doing(3), doing(5))
    assert ranks_of(w.fact("blame.host")) == [3, 5]
    assert w.fact("busy.explains").value is False


@pytest.mark.parametrize("after", [None, 0.5, 60.0])
def test_where_a_rank_has_ended_no_compile_of_another_is_worth_waiting_for(after):
    w = World()
    w.dead = {5: "A"}
    hits = [] if after is None else [exit_line(4005, -9, 1, NOW - ONSET + after)]
    w.processes().log(last_ago=ONSET, hits=hits).fabric(0)
    watch(add_dumps(w, everyone(WAITS, r5=None, r3=LATE), lib="2.27.5"), compiles(3))
    assert w.fact("busy.explains").value is False
    assert w.fact("blame.host").value == 0


@pytest.mark.parametrize("state", ["T", "D"])
def test_where_another_rank_is_stopped_a_compile_leaves_it_open(state):
    w = World()
    w.change = {(5, look): {"state": state} for look in "AB"}
    w.processes().log(last_ago=ONSET).fabric(0)
    watch(add_dumps(w, everyone(WAITS, r5=None, r3=LATE), lib="2.27.5"), compiles(3))
    assert w.fact("busy.explains").value is None


def test_a_victim_that_compiles_beside_explains_nothing():
    w = watch(all_wait_for(5), compiles(2), doing(5))
    assert w.fact("busy.explains").value is False
    assert ranks_of(w.fact("blame.host")) == [5]


def test_a_rank_that_was_not_watched_leaves_the_explanation_open():
    assert watch(all_wait_for(3, 5), compiles(3)).fact("busy.explains").value is None


def test_a_rank_with_one_sign_is_not_called_stuck():
    w = watch(all_wait_for(5), doing(5, [compiler()], [cache()]))
    assert w.fact("waits.host_stuck").value == 1
    found = w.fact("blame.host")
    assert found.value == 0 and "rank 5 is or may be busy" in found.text


def test_a_rank_without_any_sign_may_be_called_stuck_and_so_may_one_that_nobody_watched():
    assert ranks_of(watch(all_wait_for(5), doing(5)).fact("blame.host")) == [5]
    assert ranks_of(all_wait_for(5).fact("blame.host")) == [5]
    assert stalled().fact("blame.host").value is None


def test_a_compile_of_a_rank_without_a_flight_record_explains_what_only_it_could():
    w = watch(add_dumps(stalled(), everyone(WAITS, r5=None)), compiles(5))
    assert w.fact("waits.roots").value is None
    assert w.fact("busy.explains").value is True


def test_of_two_ranks_without_a_flight_record_one_that_compiles_leaves_it_open():
    w = watch(add_dumps(stalled(), everyone(WAITS, r5=None, r3=None)), compiles(5), everybody=True)
    assert w.fact("busy.explains").value is None


def test_ranks_that_wait_in_a_circle_are_not_explained_by_a_compile():
    told = everyone(WAITS, r2=["2 2 all_reduce open"], r3=["0 2 all_reduce open"])
    told = {rank: ["0 1 all_reduce", *[x for x in lines if "0 1" not in x]] for rank, lines in told.items()}
    w = watch(add_dumps(stalled(), told, lib="2.27.5"), compiles(2), everybody=True)
    assert w.fact("waits.cycle").value == 2
    assert w.fact("busy.explains").value is False


def test_without_any_flight_record_one_that_compiles_among_idle_ranks_explains_it():
    found = watch(stalled(), compiles(5), everybody=True).fact("busy.explains")
    assert found.value is True and "no flight record" in found.text


@pytest.mark.parametrize("odd", ["T", "D", "gone", "maybe", "hidden"])
def test_without_any_flight_record_a_second_oddity_leaves_it_open(odd):
    w = World(root=odd != "hidden")
    if odd in ("T", "D"):
        w.change = {(2, look): {"state": odd} for look in "AB"}
    if odd == "gone":
        w.dead = {2: "A"}
    if odd == "hidden":
        w.dead = {2: "A", 3: "A"}
        w.change = {(rank, look): {"uid": 4711} for rank in range(8) for look in "AB"}
    w.processes().log(last_ago=ONSET).fabric(0)
    more = [doing(2, [compiler()], [])] if odd == "maybe" else []
    watch(w, compiles(5), *more, everybody=True)
    assert w.fact("busy.explains").value is (False if odd == "gone" else None)


def test_without_any_flight_record_idle_ranks_explain_nothing():
    assert watch(stalled(), everybody=True).fact("busy.explains").value is False


def test_a_job_of_which_all_ranks_compile_is_busy():
    w = watch(stalled(), *(compiles(rank) for rank in range(8)))
    assert w.fact("busy.explains").value is True
    assert w.fact("busy.compiling").value == 8


def test_one_that_may_be_busy_beside_an_idle_one_leaves_it_open():
    assert watch(all_wait_for(3, 5), doing(3, [compiler()], []), doing(5)).fact("busy.explains").value is None
