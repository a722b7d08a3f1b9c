"""The wait-for graph: each rule with the case that earned it (notes/prototype-findings.md 3.3), real incidents, random jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from triage.probes import _records as probe
from written_records import TP_DP, WORLD, picture, record, repeated

from triage.facts.collectives import decode, folded, members, spoken
from triage.facts.ordertrail import differ
from triage.facts.signatures import canonical, difference, exchange, readable, symmetric
from triage.facts.waitgraph import draw

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "flight-recorder"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the real dumps of ../shared/data are not here")


def load(folder, pattern, ranks):
    found = {}
    for rank in range(ranks):
        path = folder / pattern.format(rank)
        if path.exists():
            found[rank] = probe.reduce_dump(probe.load_dump(path.read_bytes())[0], rank)
    return found


# ---------------------------------------------------------------- real incidents


@needs_data
@pytest.mark.shared
@pytest.mark.parametrize(
    ("incident", "truth", "kind"),
    [
        ("gpu_error_1st", {12, 14}, "device"),
        ("gpu_error_2nd", {9, 14}, "device"),
        ("lock_gil_1st", {9, 14}, "host"),
        ("lock_gil_2nd", {10, 15}, "host"),
    ],
)
def test_the_ranks_at_fault_of_four_real_nccl_incidents_are_exactly_the_roots(incident, truth, kind):
    p = draw(decode(load(DATA / "nccl-16-ranks" / incident, "_dump_{}", 16)))
    assert p.roots == dict.fromkeys(truth, kind)
    assert (p.cycles, p.stuck_units, p.mismatches, p.possible) == ([], [], [], set())
    told = (DATA / "nccl-16-ranks" / incident / "fault_injection.log").read_text().splitlines()[0]
    assert truth == {int(n) for n in told.split("[")[1].rstrip("]").split(",")}


@needs_data
@pytest.mark.shared
@pytest.mark.parametrize("form", ["fr_nostack_{}.pickle", "fr_{}.json"])
@pytest.mark.parametrize(
    ("case", "roots", "named"),
    [
        ("ok", set(), set()),
        ("order", set(), {2}),  # swaps two operations: type differs, three against one
        ("shape", set(), {1}),  # the rank that died (0) is a victim of the size that rank 1 passed
        ("dataload", {2}, set()),
        ("p2p", {0}, set()),  # gloo records no sends: 0 has not arrived, whom it sends to is not visible
        ("pp_chain", {3}, set()),  # 0 waits for 2, 2 and 1 wait for 3; the default group's members are not told
        ("straggler", {3}, set()),  # a root of one snapshot; that the job advances is asked before
        ("sigkill", set(), set()),  # without the process list, 1 is only possible
    ],
)
def test_real_gloo_jobs_that_were_broken_on_purpose(case, roots, named, form):
    p = draw(decode(load(DATA / "gloo-4-ranks" / case, form, 4)))
    assert set(p.roots) == roots
    assert p.named_by_mismatch == named
    assert not p.cycles and not p.device_stuck
    assert p.possible == {"sigkill": {1}, "shape": {0}}.get(case, set())


@needs_data
@pytest.mark.shared
def test_a_killed_gloo_rank_is_named_once_its_process_is_known_to_be_gone():
    p = draw(decode(load(DATA / "gloo-4-ranks" / "sigkill", "fr_nostack_{}.pickle", 4)), {1: "dead"})
    assert p.roots == {1: "dead"}


@needs_data
@pytest.mark.shared
def test_a_gloo_rank_that_still_waits_is_not_device_stuck_because_others_have_failed():
    # Ranks 0 and 2 are over with number 4 only because it failed ("Connection closed by peer"); 3 still waits in it.
    p = draw(decode(load(DATA / "gloo-4-ranks" / "sigkill", "fr_nostack_{}.pickle", 4)))
    assert p.device_stuck == {}


# ---------------------------------------------------------------- rules, one failing case each


def test_a_rank_with_another_op_whose_peers_have_completed_is_a_mismatch_and_not_device_stuck():
    same = ["0 1 all_reduce", "0 2 all_reduce", "0 3 all_reduce open"]
    p = picture({0: same, 1: same, 2: same, 3: ["0 1 all_reduce", "0 2 all_gather open"]})
    assert p.named_by_mismatch == {3}
    assert 3 not in p.device_stuck


def test_a_rank_open_at_what_its_peers_have_finished_is_stuck_on_its_device():
    peer = ["0 1 all_reduce", "0 2 all_reduce", "0 3 all_reduce open"]
    p = picture({0: peer, 1: peer, 2: peer, 3: ["0 1 all_reduce", "0 2 all_reduce open", "0 3 all_reduce open"]})
    assert p.roots == {3: "device"}


@pytest.mark.parametrize("op", ["broadcast", "reduce", "gather", "scatter"])
def test_an_op_with_a_root_that_finished_alone_does_not_make_the_others_device_stuck(op):
    p = picture({0: [f"0 1 {op}", "0 2 barrier open"], **{r: [f"0 1 {op} open"] for r in (1, 2, 3)}})
    assert p.device_stuck == {}


def test_one_rank_left_behind_in_a_broadcast_is_part_of_a_stuck_unit_and_not_named():
    peer = ["0 1 broadcast", "0 2 barrier open"]
    p = picture({0: peer, 1: peer, 2: peer, 3: ["0 1 broadcast open", "0 2 barrier open"]})
    assert p.roots == {}
    assert [u.seq for u in p.stuck_units] == [1]


def test_half_of_a_group_left_behind_speaks_of_a_path_and_names_none_of_them():
    ahead, behind = ["0 1 all_reduce", "0 2 all_reduce open"], ["0 1 all_reduce open", "0 2 all_reduce open"]
    p = picture({0: ahead, 1: ahead, 2: behind, 3: behind})
    assert p.roots == {} and p.device_stuck == {}
    assert [u.seq for u in p.stuck_units] == [1]


def test_an_all_to_all_that_one_peer_has_finished_does_not_accuse_those_that_may_lack_anothers_part():
    ahead = ["0 1 all_to_all", "0 2 barrier open"]
    behind = ["0 1 all_to_all open", "0 2 barrier open"]
    p = picture({0: ahead, 1: ahead, 2: ahead[:1] + ahead[1:], 3: behind})
    assert p.roots == {3: "device"}
    p = picture({0: ahead, 1: ahead, 2: behind, 3: behind})
    assert p.roots == {}


def test_enqueued_behind_another_open_op_is_not_joined():
    # 1 has enqueued the default group's number 1 behind its TP op, which waits for nobody but 0's own device.
    p = picture(
        {
            0: ["1 1 all_reduce", "0 1 all_reduce open"],
            1: ["1 1 all_reduce open", "0 1 all_reduce open"],
            2: ["2 1 all_reduce", "0 1 all_reduce open"],
            3: ["2 1 all_reduce", "0 1 all_reduce open"],
        },
        TP_DP,
    )
    assert p.roots == {1: "device"}
    assert set(p.absent) == {1}


def test_a_chain_of_groups_ends_at_the_one_rank_that_has_nothing_open():
    p = picture(
        {
            0: ["1 1 all_reduce", "3 1 all_reduce open"],
            1: ["1 1 all_reduce", "4 1 all_reduce open"],
            2: ["2 1 all_reduce open"],
            3: ["0 1 barrier"],
        },
        TP_DP,
    )
    assert p.roots == {3: "host"}
    assert set(p.absent) == {2, 3}


def test_a_rank_without_a_dump_explains_a_wait_only_if_nobody_with_a_dump_does():
    waits, late = ["0 1 barrier", "0 2 barrier open"], ["0 1 barrier"]
    p = picture({0: waits, 1: late, 2: waits}, world=4)
    assert (p.roots, p.possible) == ({1: "host"}, set())
    p = picture({0: waits, 2: waits}, world=4)
    assert (p.roots, p.possible) == ({}, {1, 3})


def test_a_rank_without_a_dump_that_is_dead_or_stopped_is_a_full_root():
    waits = ["0 1 barrier", "0 2 barrier open"]
    p = picture({0: waits, 1: waits, 2: waits}, incapable={3: "stopped"}, world=4)
    assert p.roots == {3: "stopped"}
    # ... but not when nobody waits for it
    p = picture({r: ["0 1 barrier", "0 2 barrier"] for r in (0, 1, 2)}, incapable={3: "dead"}, world=4)
    assert p.roots == {}


def test_a_dump_of_a_rank_that_died_later_still_tells_that_it_was_a_victim():
    waits = ["0 1 barrier", "0 2 barrier open"]
    p = picture({0: waits, 1: waits, 2: ["0 1 barrier"], 3: waits}, incapable={0: "dead"})
    assert p.roots == {2: "host"}


def test_all_joined_and_nobody_finishes_is_a_unit_and_no_root():
    p = picture({r: ["0 1 barrier", "0 2 all_reduce open"] for r in range(4)})
    assert (p.roots, p.cycles) == ({}, [])
    assert [(u.key[0], u.seq) for u in p.stuck_units] == [("0", 2)]


def test_two_groups_entered_in_opposite_order_are_a_cycle_and_the_trail_separates_the_swapper():
    normal = ["1 1 all_reduce", "0 1 all_reduce", "1 2 all_reduce", "0 2 all_reduce open"]
    p = picture(
        {
            0: normal,
            1: normal,
            2: ["2 1 all_reduce", "0 1 all_reduce", "2 2 all_reduce open"],
            3: ["2 1 all_reduce", "0 1 all_reduce", "0 2 all_reduce open"],
        },
        TP_DP,
    )
    assert p.cycles == [[2, 3]]
    assert p.swapper == 3
    assert p.unsure_cycles == {}


def test_a_cycle_that_only_its_two_members_see_separates_nobody():
    groups = {"0": ("default_pg", [0, 1]), "1": ("TP", [0, 1])}
    p = picture({0: ["0 1 all_reduce open"], 1: ["1 1 all_reduce open"]}, groups)
    assert p.cycles == [[0, 1]]
    assert p.swapper is None


def test_a_cycle_through_what_is_only_enqueued_behind_is_no_proof():
    groups = {"0": ("default_pg", [0, 1]), "1": ("TP", [0, 1])}
    p = picture(
        {0: ["0 1 all_reduce open", "1 1 all_reduce open"], 1: ["1 1 all_reduce open", "0 1 all_reduce open"]}, groups
    )
    assert p.cycles == [[0, 1]]
    assert set(p.unsure_cycles) == {0, 1}


# ---------------------------------------------------------------- mismatches


def test_a_skip_shows_where_equal_ops_stop_hiding_it():
    # Rank 3 skips one of four all_reduces: at number 4 it calls the barrier, the others an all_reduce.
    most = [*repeated("0 # all_reduce", 1, 3), "0 4 all_reduce open"]
    p = picture({0: most, 1: most, 2: most, 3: [*repeated("0 # all_reduce", 1, 3), "0 4 barrier open"]})
    (m,) = p.mismatches
    assert (m.seq, m.named, m.by) == (4, (3,), "majority")
    assert p.stuck_units == []


def test_a_difference_that_all_have_got_over_is_none():
    calm = ["0 1 all_reduce", "0 2 all_reduce", "0 3 barrier open"]
    odd = ["0 1 allreduce_variant", "0 2 all_reduce", "0 3 barrier open"]
    p = picture({0: calm, 1: calm, 2: calm, 3: odd})
    assert p.mismatches == []


def test_one_against_one_without_a_witness_names_nobody_and_ties_both():
    groups = {"0": ("default_pg", [0, 1])}
    p = picture({0: ["0 1 all_reduce 8x4 open"], 1: ["0 1 all_reduce 9x4 open"]}, groups)
    assert p.named_by_mismatch == set()
    assert p.tied_by_mismatch == {0, 1}


def test_one_against_one_is_decided_by_the_other_groups_of_the_same_role():
    right = ["# 1 all_reduce 8x4", "# 2 all_reduce 8x4 open"]
    wrong = ["2 1 all_reduce 8x4", "2 2 all_reduce 9x4 open"]
    one, two = ([line.replace("#", g) for line in right] for g in "12")
    p = picture({0: one, 1: one, 2: two, 3: wrong}, TP_DP)
    (m,) = p.mismatches
    assert (m.named, m.by) == ((3,), "trail")


def test_a_mismatch_is_searched_only_where_both_windows_reach():
    short = [*repeated("0 # all_reduce", 200, 201), "0 202 all_reduce open"]
    long = [*repeated("0 # broadcast", 1, 150), *repeated("0 # all_reduce", 151, 201), "0 202 all_reduce open"]
    p = picture({0: long, 1: long, 2: long, 3: short})
    assert p.mismatches == []


def test_only_open_entries_leave_the_past_undecided_and_still_compare_what_is_open():
    same = ["0 1 all_reduce", "0 2 all_reduce open"]
    p = picture({0: same, 1: same, 2: same, 3: ["0 1 broadcast", "0 2 all_gather open"]}, only_open=True, wrap=7)
    (m,) = p.mismatches
    assert (m.seq, m.named) == (2, (3,))


# ---------------------------------------------------------------- point to point


def test_a_receive_whose_send_was_never_posted_waits_for_the_sender():
    p = picture(
        {0: ["0 1 barrier"], 1: ["0 1 barrier", "5 p 1 recv 1<-0 open"], 2: ["0 1 barrier", "5 p 1 recv 2<-1 open"]},
        TP_DP,
    )
    assert p.roots == {0: "host"}


def test_group_local_numbers_become_global_ranks():
    groups = {"0": ("default_pg", [0, 1, 2, 3, 4]), "7": ("PP", [1, 4])}
    p = picture({1: ["7 p 1 recv 0<-1 open"], 4: ["0 1 barrier"]}, groups)
    assert p.roots == {4: "host"}


def test_a_send_whose_receive_is_done_is_stuck_on_the_senders_device():
    p = picture(
        {
            0: ["6 p 1 send 0->1", "6 p 2 send 0->1 open"],
            1: ["6 p 1 recv 1<-0", "6 p 2 recv 1<-0", "6 p 3 recv 1<-0 open"],
        },
        TP_DP,
    )
    assert p.roots == {0: "device"}


@pytest.mark.parametrize(("shape", "root"), [("64", {}), ("8192x4096", {1: "device"})])
def test_a_small_send_may_be_done_while_its_bytes_lie_in_buffers_so_the_receiver_is_not_named(shape, root):
    p = picture(
        {
            0: [f"5 p 1 send 0->1 {shape}", f"5 p 2 send 0->1 {shape} open"],
            1: [f"5 p 1 recv 1<-0 {shape} open"],
        },
        TP_DP,
    )
    assert p.roots == root
    assert len(p.stuck_units) == (0 if root else 1)


def test_a_batched_exchange_of_one_pair_is_one_unit_and_not_four():
    p = picture(
        {
            0: ["5 p 1 send 0->1 open", "5 p 1 recv 0<-1 open"],
            1: ["5 p 1 send 1->0 open", "5 p 1 recv 1<-0 open"],
            2: ["0 1 barrier"],
        },
        TP_DP,
    )
    assert [u.pair for u in p.stuck_units] == [(0, 1)]


def test_a_partner_whose_exchange_is_held_up_by_a_third_rank_passes_the_blame_on():
    p = picture(
        {
            0: ["5 p 1 send 0->1 open"],
            1: ["5 p 1 recv 1<-0 open", "5 p 1 recv 1<-2 open"],
            2: ["0 1 barrier"],
        },
        TP_DP,
    )
    assert p.roots == {2: "host"}


def test_after_a_ring_wrap_both_sides_count_from_the_last_collective_they_share():
    p = picture(
        {
            0: ["5 7 barrier", "5 p 40 send 0->1", "5 p 41 send 0->1 open"],
            1: ["5 p 77 recv 1<-0", "5 7 barrier", "5 p 80 recv 1<-0", "5 p 81 recv 1<-0", "5 p 82 recv 1<-0 open"],
            2: ["5 7 barrier", "5 8 barrier open"],
        },
        TP_DP,
        wrap=500,
    )
    assert p.roots == {0: "device"}


def test_without_history_a_missing_counterpart_is_a_wait_but_a_cycle_through_it_proves_nothing():
    p = picture(
        {
            0: ["5 p 41 send 0->1 open"],
            1: ["5 p 82 recv 1<-2 open"],
            2: ["5 p 9 recv 2<-0 open"],
        },
        TP_DP,
        wrap=500,
        only_open=True,
    )
    assert p.cycles == [[0, 1, 2]]
    assert set(p.unsure_cycles) == {0, 1, 2}


def test_a_p2p_number_of_a_larger_group_is_never_compared():
    # rank 1's numbers are higher only because it talks to more partners
    p = picture(
        {
            0: ["5 p 1 send 0->1", "5 p 2 send 0->1 open"],
            1: ["5 p 1 send 1->2", "5 p 2 send 1->2", "5 p 3 recv 1<-0", "5 p 4 recv 1<-0 open"],
            2: ["5 p 1 recv 2<-1", "5 p 2 recv 2<-1"],
        },
        TP_DP,
    )
    assert [u.pair for u in p.stuck_units] == [(0, 1)]
    assert p.roots == {}


def test_an_exchange_whose_partner_cannot_be_mapped_accuses_nobody():
    lines = ["9 p 1 send 0->1 open"]
    groups = {**WORLD, "9": ("hidden", [0, 1])}
    raw = record(0, lines, groups)
    raw["open"][0]["p2p"][0][2] = None
    p = draw(decode({0: raw, 1: record(1, ["0 1 barrier"], groups)}))
    assert (p.roots, p.stuck_units) == ({}, [])
    assert p.notes


# ---------------------------------------------------------------- groups


def test_one_name_for_two_groups_does_not_mix_their_members():
    one = {"0": ("default_pg", [0, 1, 2, 3]), "1": ("sub", [0, 1])}
    two = {"0": ("default_pg", [0, 1, 2, 3]), "1": ("sub", [2, 3])}
    records = {
        0: record(0, ["1 1 all_reduce 4 open"], one),
        1: record(1, ["1 1 all_reduce 4 open"], one),
        2: record(2, ["1 1 all_reduce 5 open"], two),
        3: record(3, ["0 1 barrier"], two),
    }
    p = draw(decode(records))
    assert p.mismatches == []
    assert p.roots == {3: "host"}
    assert [u.key for u in p.stuck_units] == [("1", "0+2")]


def test_pg_status_of_a_group_with_sends_is_no_collective_number():
    # Only open entries are kept. Rank 2's last work in the default group was send number 900, so its status says 900:
    # it has not come to collective 195 for that.
    waits = {0: ["0 195 barrier open"], 1: ["0 195 barrier open"], 3: ["0 p 901 send 3->0 open", "0 195 barrier open"]}
    records = {r: record(r, lines, wrap=50, only_open=True) for r, lines in waits.items()}
    idle = record(2, ["0 194 barrier"], wrap=50, only_open=True)
    idle["groups"] = [{"name": "0", "ranks": "0+4", "status": [900, 900]}]
    p = draw(decode({**records, 2: idle}))
    assert 2 in p.absent and not p.device_stuck
    # ... while in a group without sends it is all that such a dump tells of a member with nothing open there
    calm = {r: record(r, ["0 195 barrier open"], wrap=50, only_open=True) for r in (0, 1, 3)}
    idle["groups"][0]["status"] = [194, 194]
    assert draw(decode({**calm, 2: idle})).roots == {2: "host"}
    idle["groups"][0]["status"] = [195, 195]
    assert draw(decode({**calm, 2: idle})).roots == {}


def test_hashed_group_names_are_names_like_others():
    groups = {"a1f9c3": ("split", [0, 1]), "0": ("default_pg", [0, 1])}
    p = picture({0: ["a1f9c3 1 all_reduce open"], 1: ["0 1 barrier"]}, groups)
    assert p.roots == {1: "host"}


def test_a_group_whose_members_nobody_told_cannot_be_called_all_joined():
    p = picture({0: ["0 1 barrier open"], 1: ["0 1 barrier open"]}, {"0": ("mystery", [])})
    assert [p.group(u.key).complete for u in p.stuck_units] == [False]


def test_a_malformed_record_is_refused_by_name_and_does_not_stop_the_others():
    waits = ["0 1 barrier", "0 2 barrier open"]
    good = {r: record(r, waits) for r in (0, 1)}
    for bad in (
        {}, {"v": 1}, {"v": 1, "groups": 7}, {"v": 1, "groups": [{"name": "0", "ranks": "0+99999999999"}]},
        {**good[0], "open": [{"g": 99, "seq": 1, "sig": 0}]}, {**good[0], "open": [{"g": 0, "sig": 0}]},
        {**good[0], "pairs": [[5]]}, {**good[0], "groups": [{"name": "0", "ranks": "", "enq": "many"}]},
    ):  # fmt: skip
        p = draw(decode({**good, 2: bad}, 4))
        assert list(p.records.refused) == [2]
        assert p.possible == {2, 3}
    odd = {**good[0], "trail": "7:1*9999999999,x", "groups": [{**good[0]["groups"][0], "win": "1:0*99999999999"}]}
    assert draw(decode({**good, 2: odd}, 4)).records.refused == {}


def test_ranks_fold_and_speak():
    assert [*members("0+4*4")] == [0, 4, 8, 12]
    assert [*members(folded([0, 1, 2, 7]))] == [0, 1, 2, 7]
    assert 9 in members("1+4*8") and 10 not in members("1+4*8")
    assert spoken([0, 1, 2, 5, 6, 9]) == "0-2, 5, 6, 9"
    assert len(members("0+8192")) == 8192


def test_a_ring_of_thousands_of_ranks_that_wait_for_each_other_is_one_cycle_without_recursion():
    n = 2000
    groups = {str(i + 1): ("pair", sorted({i, (i + 1) % n})) for i in range(n)}
    records = {}
    for i in range(n):
        mine = {k: groups[k] for k in (str(i + 1), str((i - 1) % n + 1))}
        records[i] = record(i, [f"{i + 1} 1 all_reduce open"], mine)
    p = draw(decode(records))
    assert [len(c) for c in p.cycles] == [n]


# ---------------------------------------------------------------- signatures: the table of notes/flight-recorder.md 3.3

AR, AG = "all_reduce|4x4|4x4|Float|Float", "all_gather|4x4|4x4|Float|Float"


@pytest.mark.parametrize(
    ("number", "a", "b", "want"),
    [
        (1, AR, AR, ""),
        (2, AR, AG, "op"),
        (3, "all_to_all|||Float|Float", "all_to_all|||Float|Float", ""),  # undecided: sizes may differ
        (4, AR, "all_reduce|5x4|4x4|Float|Float", "size"),
        (5, AR, "all_reduce|4x4|5x4|Float|Float", "size"),
        (8, "all_reduce|4x4|4x4|Float|Half", AR, "dtype"),
        (9, "gather|4x4|4x4,4x4|Float|Float", "gather|4x4||Float|", ""),
        (10, "gather|4x4|4x4,4x4|Float|Float", "gather|4x4|4x4|Float|", ""),
        (11, "_all_gather_base|4|8|Float|Float", "_all_gather_base|4|8|Float|Float", ""),
        (0, "all_reduce|8x4|8x4|Float|Float", "all_reduce|32|32|Float|Float", ""),  # NCCL counts elements only
        (0, "_broadcast_oop|3|8|Float|Float", "_broadcast_oop|5|8|Float|Float", ""),  # uneven all_gather: own input
        (0, "_broadcast_oop|5x5|5x5|Float|Float", "_broadcast_oop|4x4|4x4|Float|Float", "size"),
        (0, "_reduce_oop|8|3|Float|Float", "_reduce_oop|8|5|Float|Float", ""),
        (0, "sparse_thing|1|2|Float|Float", "sparse_thing|9|9|Half|Half", ""),  # unknown: only the name is compared
        (0, "barrier||||", "barrier|1|1|Float|Float", ""),
        (0, "all_reduce|()|()|Float|Float", "all_reduce|1|1|Float|Float", ""),
    ],
)
def test_pairs_of_signatures_as_in_pytorchs_own_table(number, a, b, want):
    assert difference(a, b) == want
    assert difference(b, a) == want


def test_parts_of_a_coalesced_unit_are_compared_as_a_multiset():
    a, b = "_reduce_oop|4|4|Float|Float", "_reduce_oop|5|5|Float|Float"
    end = "REDUCE_SCATTER_coalesced||||"
    assert difference(f"{a}+{b}+{end}", f"{b}+{a}+{end}") == ""
    assert difference(f"{a}+{b}+{end}", f"{a}+{a}+{end}") == "size"


def test_what_nobody_can_finish_alone():
    assert all(
        symmetric(f"{op}|1|1|Float|Float")
        for op in ("all_reduce", "_all_gather_base", "barrier", "_reduce_scatter_base")
    )
    assert not any(
        symmetric(f"{op}|1|1|Float|Float") for op in ("broadcast", "reduce", "gather", "scatter", "_reduce_oop")
    )
    assert exchange("all_to_all|||Float|Float") and not symmetric("all_to_all|||Float|Float")
    assert readable("_all_gather_base|4|8|Float|Float") == "_all_gather_base 4 to 8 Float"
    assert canonical("") == canonical("")


@pytest.mark.parametrize(
    ("case", "a", "b", "agree"),
    [
        ("b", ["0 1 allreduce_coalesced"], ["0 1 allreduce_coalesced"], True),
        (
            "c",
            ["0 1 broadcast", "0 1 broadcast", "0 1 coalesced"],
            ["0 1 broadcast", "0 1 broadcast", "0 1 coalesced"],
            True,
        ),
        (
            "d",
            ["0 1 _broadcast_oop 4x4", "0 1 _broadcast_oop 5x5", "0 1 ALLGATHER_coalesced"],
            ["0 1 _broadcast_oop 4x4", "0 1 _broadcast_oop 4x4", "0 1 ALLGATHER_coalesced"],
            False,
        ),
        (
            "e",
            ["0 1 _reduce_oop", "0 1 _reduce_oop", "0 1 REDUCE_SCATTER_coalesced"],
            ["0 1 _reduce_oop", "0 1 _reduce_oop", "0 1 REDUCE_SCATTER_coalesced"],
            True,
        ),
        (
            "f",
            ["0 1 all_reduce"],
            ["0 1 all_reduce", "0 2 _reduce_oop", "0 2 _reduce_oop", "0 2 REDUCE_SCATTER_coalesced"],
            True,
        ),
    ],
)
def test_whole_databases_as_in_pytorchs_own_table(case, a, b, agree):
    groups = {"0": ("default_pg", [0, 1])}
    p = picture({0: [f"{line} open" for line in a], 1: [f"{line} open" for line in b]}, groups)
    assert bool(p.mismatches) is not agree
    if case == "f":  # the second unit is not a difference: rank 0 has not come to it
        assert p.records.reached(0, ("0", "0+2")) == 1
    if case in "bce":
        assert len(p.stuck_units) == 1  # one unit, whatever it has of parts


def test_the_same_group_name_with_other_ranks_on_each_rank_is_three_collectives_that_all_pass():
    zero = {"0": ("default_pg", [0, 1]), "1": ("sub_pg", [0])}
    one = {"0": ("default_pg", [0, 1]), "1": ("sub_pg", [1])}
    lines = ["0 1 all_reduce 4x4 open", "1 1 all_reduce 5x5 open"]
    p = draw(decode({0: record(0, lines, zero), 1: record(1, lines, one)}))
    assert p.mismatches == [] and len(p.records.groups) == 3


def test_trails_part_where_one_enters_what_the_other_has_not():
    def t(*keys):
        return [((k[0], 0, int(k[1:])), (("all_reduce", "", "", "", ""),)) for k in keys]

    assert differ(t("T1", "D1", "T2"), t("T1", "D1", "T2", "D2")) is False  # one is only further
    assert differ(t("T1", "D1", "D2"), t("T1", "D1", "T2", "D2")) is True
    assert differ(t("D1", "T2"), t("T1", "D1", "T2")) is False  # begins later
    assert differ(t("T1"), t("P1")) is None


# ---------------------------------------------------------------- a death in the middle


def test_who_is_left_behind_by_a_rank_that_died_in_the_middle_of_a_collective_is_its_victim_and_not_stuck():
    lines = repeated("0 # all_reduce", 1, 4)
    # Rank 0 died while its part went round: 3 has all of it, 1 and 2 behind it do not.
    programs = {1: [*lines, "0 5 all_reduce open"], 2: [*lines, "0 5 all_reduce open"]}
    programs |= {3: [*lines, "0 5 all_reduce", "0 6 all_reduce open"]}
    for known in ({}, {0: "dead"}):
        p = picture(programs, incapable=known, world=4)
        assert p.device_stuck == {} and set(p.roots) <= {0} and p.possible <= {0}, known
        assert {*p.roots, *p.possible} == {0}
