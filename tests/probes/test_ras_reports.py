"""Reports of NCCL's RAS: what both parsers make of them, and what they throw away."""

from __future__ import annotations

import json
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ras_server import OPS, Comm, Report
from triage.probes import _ras_report, _ras_text

from triage.readers.shapes import problem

HERE = [(0, 40), (1, 41)]  # the ranks of the node that is asked, and their processes


def judge(raw, form, world=8, procs=HERE):
    return _ras_report.judge(raw, form, world, procs, _ras_text.parse)


def read(report, form="json", world=8, procs=HERE):
    verdict, found = judge(report.json() if form == "json" else report.text(), form, world, procs)
    assert verdict == "ok", found
    data = {"outcome": "ok", "first": json.loads(json.dumps(found))}
    assert problem("ras", data) is None
    return found


def only(found):
    (comm,) = found["comms"]
    return comm


def groups(comm):
    """operation totals -> folded ranks."""
    return {sum(n or 0 for n in vector): folded for vector, _, folded in comm["groups"]}


FORMS = pytest.mark.parametrize("form", ["json", "text"])


def test_a_healthy_job_is_one_group_of_ranks():
    found = read(Report(Comm()))
    comm = only(found)
    assert (comm["groups"], comm["ranks"], comm["present"]) == ([[[0, 0, 12, 0, 42], 8, "0+8"]], "global", 8)
    assert (found["nccl"], found["format"], found["repaired"]) == ("2.30.7", "json", False)


def test_a_healthy_job_in_text_tells_no_counts_at_all():
    found = read(Report(Comm()), "text")
    assert (found["comms"], found["table"]) == ([], [[1, 8, "RUNNING", "OK"]])


@FORMS
def test_one_laggard_is_the_group_of_the_fewest_launches_and_its_process_is_told(form):
    comm = only(read(Report(Comm().more(5, by=-1)), form))
    assert [group[2] for group in comm["groups"]] == ["5", "0+5,6+2"]
    assert comm["who"] == [[5, "10.0.0.13", 45]]


@FORMS
def test_one_leader_is_listed_by_nccl_and_is_not_the_group_of_the_fewest(form):
    comm = only(read(Report(Comm().more(3)), form))
    assert [group[2] for group in comm["groups"]] == ["0+3,4+4", "3"]


def test_half_against_half_is_told_by_json_only():
    comm = Comm()
    for rank in range(4):
        comm.more(rank)
    assert [group[2] for group in only(read(Report(comm)))["groups"]] == ["4+4", "0+4"]
    text = only(read(Report(comm), "text"))
    assert text["groups"] == [] and text["unlisted"] == "AllReduce: 4 ranks at 42, 4 ranks at 43"


@FORMS
def test_another_order_shows_as_one_more_of_one_operation_and_one_less_of_another(form):
    comm = only(read(Report(Comm().more(2, "AllGather").more(2, "AllReduce", -1)), form))
    assert len(groups(comm)) == 1 and sorted(group[2] for group in comm["groups"]) == ["0+2,3+5", "2"]


@FORMS
def test_a_silent_process_is_missing_and_not_dead(form):
    comm = only(read(Report(Comm().lose(6)), form))
    assert (comm["missing"], comm["present"]) == ([[6, "silent", "10.0.0.14", 46]], 7)


@FORMS
def test_a_process_that_was_silent_for_a_minute_is_dead(form):
    assert only(read(Report(Comm().lose(6, dead=True)), form))["missing"] == [[6, "dead", "10.0.0.14", 46]]


@FORMS
def test_of_a_whole_node_all_ranks_are_missing_with_one_address(form):
    comm = only(read(Report(Comm().lose(4, 5)), form))
    assert [(row[0], row[2]) for row in comm["missing"]] == [(4, "10.0.0.13"), (5, "10.0.0.13")]


@FORMS
def test_a_rank_that_aborts_and_one_that_has_left_are_told_apart(form):
    comm = Comm().lose(7, unresponsive=False)
    comm.status[1] = "ABORT"
    found = only(read(Report(comm), form))
    assert found["missing"] == [[7, "left", "10.0.0.14", 47]]
    assert [row for row in found["status"] if row[0] == "ABORT"] == [["ABORT", 1, "1"]]


@FORMS
def test_ranks_in_their_set_up_are_told(form):
    comm = Comm(counts=(0, 0, 0, 0, 0))
    comm.status[2] = "INIT"
    assert ["INIT", 1, "2"] in only(read(Report(comm), form))["status"]


@FORMS
def test_asynchronous_errors_have_their_number_and_their_ranks(form):
    comm = Comm()
    comm.asynchronous = {0: 6, 1: 6, 5: 1}
    assert only(read(Report(comm), form))["errors"] == [["async 1", 1, "5"], ["async 6", 2, "0+2"]]


def test_the_first_releases_count_all_operations_together_and_list_missing_ranks_without_processes():
    comm = Comm().more(5, by=-1).lose(6)
    found = only(read(Report(comm, version="2.24.3"), "text"))
    assert (found["ops"], [group[2] for group in found["groups"]]) == (["all"], ["5", "0+5,7"])
    assert found["missing"] == [[6, "silent", "", 0]]


def test_the_first_releases_call_a_rank_that_left_unknown():
    for ranks in ((7,), (6, 7)):
        found = only(read(Report(Comm().lose(*ranks, unresponsive=False), version="2.24.3"), "text"))
        assert [row[:2] for row in found["missing"]] == [[rank, "left"] for rank in ranks]


def test_the_first_releases_tell_a_silent_rank_twice_where_states_differ_and_it_is_one():
    comm = Comm().lose(6)
    comm.status[2] = "INIT"
    raw = Report(comm, version="2.24.3").text()
    assert b"The missing rank: 6" in raw and b"Rank 6 has status UNKNOWN" in raw
    found = only(read(Report(comm, version="2.24.3"), "text"))
    assert (found["missing"], found["present"]) == ([[6, "silent", "", 0]], 7)


@pytest.mark.parametrize("version", ["2.28.7", "2.28.9"])
def test_json_that_lacks_a_comma_where_a_rank_is_missing_is_mended(version):
    raw = Report(Comm().lose(6), version=version).json()
    with pytest.raises(ValueError):
        json.loads(raw)
    found = judge(raw, "json")[1]
    assert found["repaired"] and only(found)["missing"] == [[6, "silent", "10.0.0.14", 46]]


def test_a_rank_that_has_launched_nothing_at_all_is_counted_too():
    assert groups(only(read(Report(Comm(counts=(0, 0, 0, 0, 1)).more(3, by=-1)), "text"))) == {0: "3", 1: "0+3,4+4"}


# ---------------------------------------------------------------- whose numbers these are


def test_ranks_of_a_small_communicator_are_told_as_ranks_of_the_job():
    small = Comm(0xB2, 4, members=[1, 3, 5, 7]).more(2, by=-1)
    found = read(Report(Comm(), small))
    (uneven,) = [comm for comm in found["comms"] if comm["size"] == 4]
    assert (uneven["ranks"], [group[2] for group in uneven["groups"]]) == ("global", ["5", "1,3,7"])


def test_without_a_communicator_of_all_ranks_nobody_is_renamed():
    found = read(Report(Comm(0xB2, 4, members=[0, 1, 5, 7]).more(2, by=-1)))
    assert only(found)["ranks"] == "comm" and only(found)["who"] == [[2, "10.0.0.13", 45]]


def test_a_communicator_that_orders_the_ranks_in_its_own_way_names_nobody():
    turned = Comm(members=[1, 0, 2, 3, 4, 5, 6, 7]).more(2, by=-1)
    assert only(read(Report(turned)))["ranks"] == "world"


def test_two_orders_of_all_ranks_name_nobody():
    other = Comm(0xB2, members=[0, 1, 2, 3, 4, 5, 7, 6])
    assert {comm["ranks"] for comm in read(Report(Comm(), other))["comms"]} == {"world"}


def test_a_missing_rank_of_a_small_communicator_is_known_by_the_one_of_all_ranks():
    found = read(Report(Comm().lose(5), Comm(0xB2, 4, members=[1, 3, 5, 7]).lose(2)))
    assert {row[0] for comm in found["comms"] for row in comm["missing"]} == {5}


def test_a_report_of_other_processes_is_another_jobs():
    assert judge(Report(Comm(pid=90)).json(), "json")[0] == "foreign"


def test_a_report_of_more_ranks_than_the_job_has_is_another_jobs():
    for form in ("json", "text"):
        report = Report(Comm(size=16))
        assert judge(report.json() if form == "json" else report.text(), form)[0] == "foreign"


def test_a_text_report_whose_listed_process_is_not_ours_is_another_jobs():
    assert judge(Report(Comm(pid=90).more(1, by=-1)).text(), "text")[0] == "foreign"


# ---------------------------------------------------------------- what is thrown away


def change(raw, *pairs):
    for old, new in pairs:
        assert old.encode() in raw, old
        raw = raw.replace(old.encode(), new.encode(), 1)
    return raw


@pytest.mark.parametrize(
    "old, new",
    [
        ('"size": 8', '"size": 0'),
        ('"size": 8', '"size": 7'),
        ('"size": 8', '"size": 4294967296'),
        ('"rank": 3', '"rank": 1057455228'),
        ('"rank": 3', '"rank": 2'),
        ('"rank": 3', '"rank": -3'),
        ('"ranks_count": 8', '"ranks_count": 9'),
        ('"AllReduce": 42', '"AllReduce": 18446744073709551615'),
        ('"AllReduce": 42', '"AllReduce": ' + "9" * 100_000),
        ('"AllReduce": 42', '"AllReduce": true'),
        ('"AllReduce": 42', '"AllReduce": NaN'),
        ('"AllReduce": 42', '"AllReduce": 1e999'),
        ('"init_state": 0', '"init_state": 131'),
        ('"pid": 43', '"pid": -7'),
        ('"abort_flag": false', '"abort_flag": 2'),
        ('"communicators_count": 1', '"communicators_count": 3'),
    ],
)
def test_a_json_report_with_one_senseless_number_is_thrown_away_as_a_whole(old, new):
    assert judge(change(Report(Comm()).json(), (old, new)), "json")[0] == "garbage"


@pytest.mark.parametrize(
    "old, new",
    [
        ("  Rank 5 has", "  Rank 1057455228 has"),
        ("1-2         8", "1-2         0"),
        (" RUNNING  MISMATCH", " NOISE  MISMATCH"),
        (" RUNNING  MISMATCH", " RUNNING  MISMATCH,HOPE"),
        ("  7 ranks have launched", "  9 ranks have launched"),
        ("operation 41 ", "operation 281474976710657 "),
        ("#0-0", "#4-0"),
    ],
)
def test_a_text_report_with_one_senseless_row_is_thrown_away_as_a_whole(old, new):
    assert judge(change(Report(Comm().more(5, by=-1)).text(), (old, new)), "text")[0] == "garbage"


@FORMS
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_report_that_is_cut_off_is_not_used(form, share):
    report = Report(Comm().more(5, by=-1))
    raw = report.json() if form == "json" else report.text()
    assert judge(raw[: int(len(raw) * share)], form)[0] in ("broken", "garbage")


@pytest.mark.parametrize(
    "raw", [b"", b"\xff\xfe" * 50, b"[" * 100_000, b"{}", b'{"communicators": ', b"null", b"\0" * 99]
)
@FORMS
def test_what_is_no_report_is_said_to_be_none(raw, form):
    assert judge(raw, form)[0] in ("broken", "garbage")


@pytest.mark.parametrize("filling", [b"[],", b'"a",', b'{"a":1},', b'{"b":[]},'])
def test_a_report_that_is_made_to_fill_memory_is_thrown_away_before_it_is_decoded(filling):
    raw = Report(Comm()).json().replace(b'"ranks": [', b'"x": [' + filling * 500_000 + b'0], "ranks": [', 1)
    tracemalloc.start()
    verdict = judge(raw, "json")[0]
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert verdict == "garbage" and held < 4 * len(raw)


@pytest.mark.parametrize("count", [3, 18000])
def test_a_text_that_claims_more_ranks_than_any_job_has_is_thrown_away_before_anybody_counts_them(count):
    # 60 bytes claim 262,143 ranks at one number; each would cost 0.4 s and 21 MB to write out.
    size = 1 << 18
    row = f"    0  {count}  2  8  {size}  {size}  RUNNING  MISMATCH\n"
    told = "".join(
        f"#0-{i} ({i:016x}) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
        f"  {size - 1} ranks have launched up to operation 42\n"
        "  Rank 0 has launched up to operation 41 -- GPU 0 managed by process 40 on node 10.0.0.11\n"
        for i in range(count)
    )
    text = f"NCCL version 2.27.5 compiled with CUDA 12.9\n{row}\nErrors\n======\n\nWarnings\n========\n\n{told}"
    began = time.process_time()
    verdict, why = _ras_report.judge(text.encode(), "text", 8, [(0, 40)], _ras_text.parse)
    assert verdict == "garbage" and "ranks in all" in why and time.process_time() - began < 1.0


def test_a_report_of_8192_ranks_in_many_communicators_stays_small():
    world = Comm(size=2048, per_node=8)
    rows = [Comm(0x1000 + i, 8, members=range(8 * i, 8 * i + 8), per_node=8) for i in range(256)]
    rows[7].more(3, by=-1)
    found = read(Report(world.more(59, by=-1), *rows), world=2048, procs=[(r, 40 + r) for r in range(8)])
    assert len(json.dumps(found)) < 32_000 and found["left_out"] == 257 - len(found["comms"])
    uneven = [comm for comm in found["comms"] if len(comm["groups"]) > 1]
    assert [comm["groups"][0][2] for comm in uneven] == ["59", "59"]


def test_an_answer_is_bounded_however_torn_the_counts_are():
    comms = []
    for index in range(80):
        comm = Comm(0x2000 + index, 256, per_node=8)
        for rank in range(256):
            comm.more(rank, by=(rank * 7919 + index) % 97)
        comms.append(comm)
    found = read(Report(*comms), world=256, procs=[(r, 40 + r) for r in range(8)])
    assert len(json.dumps(found)) < 400_000 and found["left_out"] > 0 and all(c["more_groups"] for c in found["comms"])


# ---------------------------------------------------------------- any report

ranks = st.integers(0, 7)


@st.composite
def reports(draw, version):
    comms = []
    for index in range(draw(st.integers(1, 3))):
        size = draw(st.sampled_from([2, 4, 8]))
        comm = Comm(0xC0 + index, size, members=draw(st.permutations(range(8)))[:size])
        for rank in draw(st.lists(st.integers(0, size - 1), max_size=3)):
            comm.more(rank, draw(st.sampled_from(OPS)), draw(st.integers(1, 3)))
        for rank in draw(st.sets(st.integers(0, size - 1), max_size=min(2, size - 1))):
            comm.lose(rank, dead=draw(st.booleans()), unresponsive=True)
        for rank in draw(st.sets(st.integers(0, size - 1), max_size=1)):
            comm.status[rank] = draw(st.sampled_from(["INIT", "ABORT", "FINALIZE"]))
        for rank in draw(st.sets(st.integers(0, size - 1), max_size=2)):
            if rank not in comm.missing:
                comm.asynchronous[rank] = draw(st.sampled_from([1, 2, 6]))
        comms.append(comm)
    return Report(*comms, version=version)


@settings(max_examples=60, deadline=None)
@given(reports("2.30.7"))
def test_json_loses_no_rank_and_no_launch(report):
    found = read(report, world=None, procs=[])
    for comm in report.comms:
        row = next(row for row in found["comms"] if row["id"].startswith(f"0x{comm.ident:x}/"))
        told = {}
        for vector, n, folded in row["groups"]:
            members = unfolded(folded)
            assert len(members) == n
            told.update(dict.fromkeys(members, vector))
        assert told == {r: comm.counts[r] for r in comm.present}
        assert {m[0] for m in row["missing"]} == set(comm.missing)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_text_of_every_dialect_tells_the_same_ranks_as_json_or_says_that_it_cannot(data):
    report = data.draw(reports(data.draw(st.sampled_from(["2.24.3", "2.26.2", "2.30.7"]))))
    found = read(report, "text", world=None, procs=[])
    assert sum(row[0] for row in found["table"]) == len(report.comms)
    dead = {comm.where[r] for comm in report.comms for r, (_, dead) in comm.missing.items() if dead}
    for comm in report.comms:
        row = next((row for row in found["comms"] if row["id"] == f"{comm.ident:016x}"), None)
        if row is None:
            assert comm.errors() == "OK"
            continue
        assert {m[0]: m[1] for m in row["missing"]} == {
            r: "dead" if comm.where[r] in dead and report.release >= (2, 26) else "silent" for r in comm.missing
        }
        assert row["present"] == len(comm.present)
        totals = {r: sum(comm.counts[r]) for r in comm.present}
        if row["unlisted"] or not row["groups"]:
            continue
        least = min(group_total(group) for group in row["groups"])
        behind = {rank for group in row["groups"] if group_total(group) == least for rank in unfolded(group[2])}
        assert behind == {r for r in totals if totals[r] == min(totals.values())}


@settings(max_examples=150, deadline=None)
@given(reports("2.28.9"), st.sampled_from(["json", "text"]), st.data())
def test_no_change_of_a_report_makes_a_parser_fail(report, form, data):
    raw = bytearray(report.json() if form == "json" else report.text())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        if data.draw(st.booleans()):
            raw[at] = data.draw(st.integers(0, 255))
        else:
            del raw[at : at + data.draw(st.integers(1, 40))]
    verdict, found = judge(bytes(raw), form)
    if verdict == "ok":
        assert problem("ras", json.loads(json.dumps({"outcome": "ok", "first": found}))) is None
    else:
        assert verdict in ("broken", "garbage", "foreign") and isinstance(found, str) and found.isprintable()


@settings(max_examples=150, deadline=None)
@given(st.sets(st.integers(0, 400), max_size=60))
def test_folded_ranks_are_the_same_ranks(found):
    assert unfolded(_ras_report.fold(sorted(found))) == sorted(found)


def group_total(group):
    return sum(n or 0 for n in group[0])


def unfolded(text):
    out = []
    for part in filter(None, text.split(",")):
        start, _, rest = part.partition("+")
        count, _, step = rest.partition("*")
        out += [int(start) + i * int(step or 1) for i in range(int(count or 1))]
    return out
