"""The dialogue with NCCL's RAS: real sockets, servers that misbehave, and how often anybody is asked."""

from __future__ import annotations

import ast
import json
import socket
import time
from pathlib import Path

import pytest
from ras_server import Comm, Report
from triage.probes import _ras, _ras_report, _ras_text, ras

from triage.readers.shapes import problem

HERE = [(0, 40), (1, 41)]


def ask(server, *, limit=5.0, gap=0.2, world=8, procs=HERE, wait=time.sleep):
    def judge(raw, form):
        return _ras_report.judge(raw, form, world, procs, _ras_text.parse)

    host = "::1" if server.socket.family == socket.AF_INET6 else "127.0.0.1"
    connect = ras.connector([host], server.port, _ras.Nobody)
    began = time.monotonic()
    data = _ras.Client(connect, judge, time.monotonic, began + limit).two(wait, gap)
    assert time.monotonic() - began < limit + 1.0
    assert problem("ras", json.loads(json.dumps(data))) is None
    return data


def test_two_reports_are_asked_for_by_four_lines_each_and_nothing_else_is_sent(served):
    server = served(Report(Comm()), Report(Comm(counts=(0, 0, 13, 0, 43))))
    data = ask(server)
    assert (data["outcome"], data["queries"], data["gap_s"] >= 0.2) == ("ok", 2, True)
    assert data["first"]["comms"][0]["groups"][0][0][-1] == 42 and data["second"]["comms"][0]["groups"][0][0][-1] == 43
    assert server.heard == ["client protocol 2", "timeout 3", "set format json", "status"] * 2


def test_the_words_of_the_dialogue_are_all_that_the_file_could_send():
    literals = {
        node.value
        for node in ast.walk(ast.parse(Path(_ras.__file__).read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes)
    }
    sent = {b"CLIENT PROTOCOL 2\n", b"TIMEOUT %d\n", b"SET FORMAT json\n", b"STATUS\n", b"VERBOSE STATUS\n"}
    read = {b"", b"\n", b"\r", b"?", b"OK", b"SET", b"ERROR: ", b"SERVER PROTOCOL "}
    assert literals == sent | read


def test_a_release_without_json_is_asked_for_the_long_text(served):
    server = served(Report(Comm().more(5, by=-1), version="2.27.5"))
    data = ask(server)
    assert (data["first"]["format"], server.heard[3]) == ("text", "verbose status")
    assert data["first"]["comms"][0]["groups"][0][2] == "5"


def test_over_ipv6_it_is_the_same(served):
    assert ask(served(Report(Comm()), family=socket.AF_INET6))["outcome"] == "ok"


def test_a_connection_that_reaches_a_frozen_process_is_tried_again_and_counted(served):
    data = ask(served(Report(Comm()), ways=["silent", "close", "answer"]), limit=8.0)
    assert (data["outcome"], data["tries"], data["silent"]) == ("ok", 4, 2)


def test_where_every_connection_meets_silence_that_is_the_answer_and_nobody_was_asked_for_a_report(served):
    data = ask(served(Report(Comm()), ways=["silent"]), limit=3.5)
    assert (data["outcome"], data["queries"]) == ("handshake_silent", 0) and data["silent"] == data["tries"] >= 3


def test_closed_at_once_is_silence_too_and_ends_after_eight(served):
    data = ask(served(Report(Comm()), ways=["close"]))
    assert (data["outcome"], data["tries"]) == ("handshake_silent", 8)


def test_nobody_there_is_told_at_once(served):
    server = served(Report(Comm()))
    server.stop()
    time.sleep(0.05)
    with socket.socket() as free:  # a port on which nobody listens
        free.bind(("127.0.0.1", 0))
        server.port = free.getsockname()[1]
        data = ask(server)
    assert (data["outcome"], data["tries"]) == ("no_listener", 1) and "refused" in data["why"]


def test_another_jobs_report_is_not_used_and_another_connection_is_tried(served):
    data = ask(served(Report(Comm(pid=900)), Report(Comm()), Report(Comm())))
    assert (data["outcome"], data["foreign"], data["queries"]) == ("ok", 1, 3)


def test_where_only_another_job_answers_it_is_asked_no_more_than_four_times(served):
    data = ask(served(Report(Comm(pid=900))))
    assert (data["outcome"], data["queries"]) == ("foreign_job", 4) and "first" not in data


@pytest.mark.parametrize("way", ["line", "binary"])
def test_a_service_that_speaks_otherwise_is_sent_our_first_line_only(served, way):
    data = ask(served(Report(Comm()), ways=[way]))
    assert (data["outcome"], data["queries"], data["tries"]) == ("garbage", 0, 1)


def test_a_report_without_an_end_is_cut_at_its_bound(served, monkeypatch):
    monkeypatch.setattr(_ras, "MOST_JSON", 200_000)
    monkeypatch.setattr(_ras, "MOST_TEXT", 100_000)
    data = ask(served(Report(Comm()), ways=["endless"]))
    assert (data["outcome"], data["queries"]) == ("garbage", 2)


def test_a_report_that_never_comes_ends_with_the_time_that_there_is(served):
    data = ask(served(Report(Comm()), ways=["stall"]), limit=1.5)
    assert (data["outcome"], data["queries"]) == ("timeout", 1)


def test_json_that_breaks_off_is_asked_for_again_as_text(served):
    server = served(Report(Comm().more(5, by=-1)), ways=["half", "answer"])
    data = ask(server)
    assert (data["outcome"], data["first"]["format"], data["second"]["format"]) == ("ok", "text", "text")


def test_broken_json_of_2_28_9_with_a_missing_rank_needs_no_second_query(served):
    data = ask(served(Report(Comm().lose(6), version="2.28.9")))
    assert (data["queries"], data["first"]["repaired"], data["first"]["format"]) == (2, True, "json")


def test_a_senseless_report_is_not_asked_for_twice(served):
    raw = Report(Comm()).json().replace(b'"rank": 3', b'"rank": 1057455228')
    data = ask(served(raw, raw))
    assert (data["outcome"], data["queries"]) == ("garbage", 1)


def test_a_second_report_that_fails_leaves_the_first_one(served):
    data = ask(served(Report(Comm()), ways=["answer", "stall"]), limit=3.0)
    assert data["outcome"] == "ok" and "second" not in data and data["why"].startswith("no second report")


def test_without_time_for_two_there_is_one(served):
    waited = []
    data = ask(served(Report(Comm())), limit=2.0, gap=30.0, wait=waited.append)
    assert (data["outcome"], data["queries"], waited) == ("ok", 1, [])


def test_the_pause_between_two_reports_is_the_one_that_was_asked_for(served):
    waited = []
    ask(served(Report(Comm())), limit=30.0, gap=10.0, wait=waited.append)
    assert waited == [10.0]
