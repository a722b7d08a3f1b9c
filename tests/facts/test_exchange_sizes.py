"""A send and its receive that pass different sizes: a mismatch of both, and nobody's device."""

from __future__ import annotations

import json

import pytest
from written_dumps import add_dumps, ranks_of, report
from written_evidence import World
from written_records import TP_DP, picture, record

from triage.facts.collectives import decode
from triage.facts.waitgraph import describe, draw
from triage.readers.shapes import problem

SEND, RECEIVE = "6 p {n} send 0->1 {shape}{end}", "6 p {n} recv 1<-0 {shape}{end}"


def pair(send, receive, ends=(" open", " open"), before=1):
    lines = [[f.format(n=n, shape="64", end="") for n in range(1, before + 1)] for f in (SEND, RECEIVE)]
    lines[0].append(SEND.format(n=before + 1, shape=send, end=ends[0]))
    lines[1].append(RECEIVE.format(n=before + 1, shape=receive, end=ends[1]))
    return {0: lines[0], 1: lines[1]}


@pytest.mark.parametrize("ends", [(" open", " open"), (" open", ""), ("", " open")])
def test_a_send_and_a_receive_of_two_sizes_are_both_involved_whoever_got_through(ends):
    programs = pair("8192x4096", "8192x4100", ends)
    for rank, lines in programs.items():
        if not ends[rank]:  # it went on to the next one
            lines.append((SEND if rank == 0 else RECEIVE).format(n=3, shape="64", end=" open"))
    p = picture(programs, TP_DP)
    assert not p.roots and not p.device_stuck and not p.stuck_units
    assert p.tied_by_mismatch == {0, 1} and p.named_by_mismatch == set()
    said = describe(p, p.mismatches[0])
    assert said.startswith("at the exchange of ranks 0 and 1 in PP2 {0, 1}: rank ")
    assert "rank 0 send 134217728 bytes" in said and "rank 1 recv 134348800 bytes" in said


@pytest.mark.parametrize("receive", ["8192x4096", "4096x8192", "33554432"])
def test_another_shape_of_as_many_bytes_is_the_same_message(receive):
    p = picture(pair("8192x4096", receive), TP_DP)
    assert not p.mismatches and [u.pair for u in p.stuck_units] == [(0, 1)]
    p = picture(pair("8192x4096", receive, (" open", "")), TP_DP)
    assert not p.mismatches and set(p.device_stuck) == {0}


def test_another_type_of_as_many_bytes_is_the_same_message_and_of_other_width_it_is_not():
    made = {r: record(r, lines, TP_DP) for r, lines in pair("8192", "8192").items()}
    assert made[0]["moved"] == ["256", "32768"] and made[1]["moved"] == ["256", "32768"]


def test_exchanges_of_different_numbers_are_not_compared():
    programs = pair("64", "64", (" open", ""))
    programs[1].append(RECEIVE.format(n=3, shape="9", end=" open"))  # of a send that has not been posted
    assert not picture(programs, TP_DP).mismatches


def test_a_record_that_does_not_tell_sizes_says_nothing_of_them():
    records = {r: record(r, lines, TP_DP) for r, lines in pair("64", "65").items()}
    assert draw(decode(records)).mismatches
    for moved in (None, ["", ""], ["-", "-"], ["x*y", "9" * 40], ["1*99999999", "5"]):
        again = {r: {**told, "moved": moved} for r, told in records.items()}
        assert not draw(decode(again)).mismatches, moved


def test_the_sizes_travel_and_are_bounded():
    told = record(0, pair("64", "65")[0], TP_DP)
    assert problem("flight_recorder", {"ranks": [{"rank": 0, "record": json.loads(json.dumps(told))}]}) is None
    assert problem("flight_recorder", {"ranks": [{"rank": 0, "record": {**told, "moved": ["x" * 5000, ""]}}]})
    assert problem("flight_recorder", {"ranks": [{"rank": 0, "record": {**told, "moved": [5, ""]}}]})


def test_the_verdict_is_a_mismatch_in_which_both_are_involved_and_nobody_is_excluded():
    w = World().processes().log(last_ago=100).fabric(0)
    lines = {0: ["1 p 1 send 0->1 8192x4096 open"], 1: ["1 p 1 recv 1<-0 8192x4100"]}
    waiting = ["0 1 all_reduce", "0 2 all_reduce open"]
    programs = {r: [waiting[0], *lines.get(r, ()), *([] if r == 0 else waiting[1:])] for r in range(8)}
    add_dumps(w, programs, lib="2.27.5")
    assert ranks_of(w.fact("waits.mismatch")) == [0, 1] and w.fact("waits.mismatch_tied").value is True
    told = report(w)
    assert told.verdict.cause == "deadlock/mismatch"
    assert not [c for c in told.culprits if c.role == "culprit"] and {c.rank for c in told.culprits} == {0, 1}
    assert told.mitigation["restart"]["exclude_nodes"] == []
