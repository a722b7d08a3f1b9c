"""Fan-out: one record per node and probe whatever the nodes do, over real SSH and over processes of this machine."""

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import ssh_servers

from triage.errors import UsageError
from triage.gather import Fleet, Limits
from triage.model import Node
from triage.transports import answers, base, payload, ssh

HEAD = 'PROBE = {"name": "%s", "version": 2, "timeout_s": %s, "cost": "cheap", "needs": [], "fields": {}}\n'
SOURCES = {
    "quick": HEAD % ("quick", 2) + "def collect(ctx):\n    ctx.note('a note')\n    return {'args': ctx.args}",
    "sleeps": HEAD % ("sleeps", 30) + "import time\ndef collect(ctx): time.sleep(600)",
    "runner": HEAD % ("runner", 2) + "import os\ndef collect(ctx): return {'pid': os.getppid()}",
}


def load(**settings):
    return payload.build(list(SOURCES), extra=SOURCES, nice=0, **settings)


@pytest.fixture
def fleet_of():
    made = []

    def make(nodes, transport=None, **more):
        fleet = Fleet(nodes, transport or base.load("local"), more.pop("load", None) or load(), **more)
        made.append(fleet)
        return fleet

    yield make
    for fleet in made:
        fleet.close()


def locals_of(count):
    return [Node(f"n{i}") for i in range(count)]


@pytest.fixture(scope="module")
def server():
    server = ssh_servers.Server()
    yield server
    server.stop()


@pytest.fixture
def over_ssh(server, tmp_path):
    (tmp_path / "key").write_text(ssh_servers.private_key())
    (tmp_path / "known_hosts").write_text(server.known_hosts_line())
    options = {"key": tmp_path / "key", "known_hosts": tmp_path / "known_hosts", "user": "oncall"}
    return ssh.make(options), lambda name: Node(name, address="127.0.0.1", port=server.port)


def test_two_looks_and_a_costly_question_over_connections_that_stay_open(fleet_of, over_ssh):
    transport, node = over_ssh
    heard, steps = [], []
    fleet = fleet_of([node("a"), node("b")], transport, on_sample=heard.append, on_progress=steps.append)
    contacts = fleet.open(5.0)
    assert [(c.probe, c.status, c.data["phase"]) for c in contacts] == [("contact", "ok", "read")] * 2
    assert {"resolve", "tcp", "banner", "kex", "auth", "channel", "exec", "read"} == set(contacts[0].data["seconds"])
    assert abs(contacts[0].at - contacts[0].received) < 2, "the node's clock and ours"
    before = time.time()
    first = fleet.look("A", {"quick": {"x": 1}, "runner": {}}, 5.0)
    second = fleet.look("B", {"runner": {}}, 5.0)
    third = fleet.ask("quick", ["a", "b"], {"x": 2}, args_by_node={"b": {"x": 3}}, limit_s=5.0)
    assert sorted((s.node, s.probe, s.look, s.status) for s in first) == [
        ("a", "quick", "A", "ok"),
        ("a", "runner", "A", "ok"),
        ("b", "quick", "A", "ok"),
        ("b", "runner", "A", "ok"),
    ]
    pids = {(s.node, s.data["pid"]) for s in [*first, *second] if s.probe == "runner"}
    assert len(pids) == 2, "look B asks the process that look A asked"
    assert {s.node: s.data for s in third} == {"a": {"args": {"x": 2}}, "b": {"args": {"x": 3}}}
    assert {s.look for s in third} == {"C"}
    one = next(s for s in first if s.probe == "quick")
    assert (one.version, one.notes) == (2, ("a note",))
    assert before <= one.received <= time.time()
    assert heard == [*contacts, *first, *second, *third]
    assert [(s.step, s.done, s.of) for s in steps][:2] == [("open", 1, 2), ("open", 2, 2)]


def test_closing_ends_what_runs_on_the_nodes(over_ssh):
    transport, node = over_ssh
    fleet = Fleet([node("a")], transport, load())
    fleet.open(5.0)
    (sample,) = fleet.look("A", {"runner": {}}, 5.0)
    began = time.monotonic()
    fleet.close()
    assert time.monotonic() - began < 0.2, "nobody is waited for"
    until = time.monotonic() + 3
    while os.path.exists(f"/proc/{sample.data['pid']}") and time.monotonic() < until:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{sample.data['pid']}")


def test_a_probe_that_hangs_is_a_timeout_told_by_the_node_and_the_rest_is_there(fleet_of):
    fleet = fleet_of(locals_of(3))
    fleet.open(5.0)
    began = time.monotonic()
    samples = fleet.look("A", {"quick": {}, "sleeps": {}}, 1.5)
    assert time.monotonic() - began < 1.9
    assert sorted((s.probe, s.status) for s in samples) == [("quick", "ok")] * 3 + [("sleeps", "timeout")] * 3
    assert all("killed at its deadline" in s.notes[0] for s in samples if s.probe == "sleeps")
    assert len(fleet.look("B", {"quick": {}}, 2.0)) == 3


def test_a_node_that_freezes_between_the_looks_yields_timeouts_and_answers_again_after_its_thaw(fleet_of):
    fleet = fleet_of(locals_of(2))
    fleet.open(5.0)
    pids = {s.node: s.data["pid"] for s in fleet.look("A", {"runner": {}}, 3.0)}
    os.kill(pids["n0"], 19)
    began = time.monotonic()
    samples = {s.node: s for s in fleet.look("B", {"quick": {}}, 1.0)}
    assert 0.9 < time.monotonic() - began < 1.4
    assert samples["n1"].status == "ok"
    assert (samples["n0"].status, samples["n0"].notes) == ("timeout", ("phase read: no answer within 1 s",))
    os.kill(pids["n0"], 18)
    late = fleet.ask("quick", ["n0"], {}, limit_s=3.0)
    assert [(s.probe, s.status, s.look) for s in late] == [("quick", "ok", "C")], "B's late answer is not C's"


def test_a_node_that_dies_between_the_looks_is_an_error_at_once(fleet_of):
    fleet = fleet_of(locals_of(2))
    fleet.open(5.0)
    pids = {s.node: s.data["pid"] for s in fleet.look("A", {"runner": {}}, 3.0)}
    os.kill(pids["n0"], 9)
    began = time.monotonic()
    samples = {(s.node, s.probe): s for s in fleet.look("B", {"quick": {}, "runner": {}}, 5.0)}
    assert time.monotonic() - began < 2
    assert {samples[("n0", p)].status for p in ("quick", "runner")} == {"error"}
    assert "phase read" in samples[("n0", "quick")].notes[0]
    assert samples[("n1", "quick")].status == "ok"


def test_a_node_that_is_asked_and_was_never_reached_has_its_reason_in_each_record(fleet_of):
    fleet = fleet_of(locals_of(1), command="sleep 600")
    (contact,) = fleet.open(0.5)
    assert (contact.probe, contact.status, contact.data["phase"]) == ("contact", "timeout", "read")
    began = time.monotonic()
    samples = fleet.look("A", {"quick": {}, "runner": {}}, 5.0)
    assert time.monotonic() - began < 0.3
    assert sorted((s.probe, s.status) for s in samples) == [("quick", "timeout"), ("runner", "timeout")]
    assert all(s.data == {} and s.notes[0].startswith("phase read: ") for s in samples)


def test_noise_before_the_first_line_is_no_answer_even_without_a_newline(fleet_of):
    noise = "echo Welcome to gpu001; echo '{\"probe\":\"quick\"}'; printf 'no newline'; "
    fleet = fleet_of(locals_of(1), command=noise + payload.COMMAND)
    assert fleet.open(5.0)[0].status == "ok"
    assert [s.status for s in fleet.look("A", {"quick": {}}, 3.0)] == ["ok"]


def test_no_python_on_the_node_is_said_in_words(fleet_of):
    fleet = fleet_of(locals_of(1), command=f"PATH=/nowhere; {payload.COMMAND}".replace("/usr/bin/python3 ", ""))
    (contact,) = fleet.open(5.0)
    assert contact.status == "error"
    assert "no Python 3 on this node exit 127" in contact.data["error"]


# ---------------------------------------------------------------- nodes that lie


def liar(code):
    """A command that begins like the payload, reads the request, and then runs `code` with `ident` and `say`."""
    program = f"""
import json, os, sys, time
def say(line):
    sys.stdout.write(line if isinstance(line, str) else json.dumps(line)); sys.stdout.write("\\n"); sys.stdout.flush()
size = int(sys.stdin.buffer.read(9)); sys.stdin.buffer.read(size)
say({{"_begin": {{"at": 1.5}}}})
for request in sys.stdin.buffer:
    request = json.loads(request.decode()); ident = request["id"]
    def ok(**more):
        return dict({{"probe": "quick", "look": "A", "id": ident, "status": "ok", "data": {{}}, "notes": []}}, **more)
{chr(10).join("    " + line for line in code.splitlines())}
    say({{"_done": "A", "id": ident}})
"""
    return f"{shlex.quote(sys.executable)} -u -c {shlex.quote(program)}"


@pytest.mark.parametrize(
    "code, quick, wire",
    [
        ("say(ok(node='gpu666'))", "ok", []),
        ("say(ok()); say(ok())", "ok", ["second answer of quick"]),
        ("say(ok(probe='other'))", "error", ["unasked probe 'other'"]),
        ("say('[' * 100000)", "error", ["no JSON: brackets do not match"]),
        ("say('{\"a\":' + '[' * 5000 + ']' * 5000 + '}')", "error", ["nested deeper than 40"]),
        ("say('{\"a\": NaN}')", "error", ["no JSON: NaN is no value"]),
        ("say('{\"a\": 1e999}')", "error", ["a number beyond any measurement"]),
        ("say('{\"a\": ' + '9' * 5000 + '}')", "error", ["a number beyond any measurement"]),
        ("say('x' * 2000000)", "error", ["a line over its limit"]),
        ("say('[1]'); say('{}'); say('\\udcff'.encode('utf-8', 'surrogateescape').decode('latin-1'))", "error", None),
        ("say(ok(status='fine'))", "malformed", []),
        ("say(ok(data=[1]))", "malformed", []),
        ("say(ok(took_s='soon'))", "malformed", []),
        ("say(ok(at=-1))", "malformed", []),
        ("say(ok(notes='x'))", "malformed", []),
        ("say(ok(version='1'))", "malformed", []),
        ("say(ok(id=99))", "error", ["answers no request"]),
        ("say('')", "error", []),
    ],
)
def test_a_node_that_lies_gets_one_record_per_probe_and_the_lie_is_told(fleet_of, code, quick, wire):
    fleet = fleet_of(locals_of(1), command=liar(code))
    (contact,) = fleet.open(5.0)
    assert contact.status == "ok" and contact.at == 1.5
    samples = fleet.look("A", {"quick": {}}, 3.0)
    asked = [s for s in samples if s.probe == "quick"]
    told = [s for s in samples if s.probe == "wire"]
    assert [(s.node, s.status) for s in asked] == [("n0", quick)]
    assert {s.status for s in told} <= {"malformed"}
    if wire is not None:
        assert [s.notes[0] for s in told] == wire


def test_a_node_that_never_stops_lying_is_cut_off_and_its_records_are_bounded(fleet_of):
    fleet = fleet_of(locals_of(1), command=liar("while True: say('junk')"))
    fleet.open(5.0)
    began = time.monotonic()
    samples = fleet.look("A", {"quick": {}}, 5.0)
    assert time.monotonic() - began < 3
    assert len([s for s in samples if s.probe == "wire"]) == 20
    (asked,) = [s for s in samples if s.probe == "quick"]
    assert (asked.status, asked.notes[0]) == ("error", "phase read: too many malformed lines; connection closed")


def test_a_node_that_sends_without_end_is_cut_off_at_its_cap(fleet_of):
    code = "while True: sys.stdout.write('x' * 65536)"
    fleet = fleet_of(locals_of(1), command=liar(code), limits=Limits(node_bytes=1 << 20))
    fleet.open(5.0)
    (asked,) = fleet.look("A", {"quick": {}}, 5.0)
    assert (asked.status, "more than 1048576 bytes" in asked.notes[0]) == ("error", True)


def test_half_a_surrogate_pair_from_a_file_name_does_not_reach_the_report(fleet_of):
    fleet = fleet_of(
        locals_of(1), command=liar(r"""say(json.dumps(ok(data={"k\udc80": ["\udcff", "\ud83d\ude00"]})))""")
    )
    fleet.open(5.0)
    (sample,) = fleet.look("A", {"quick": {}}, 3.0)
    json.dumps(dict(sample.data), ensure_ascii=False).encode("utf-8")
    assert sample.data == {"k\ufffd": ["\ufffd", "\U0001f600"]}


# ---------------------------------------------------------------- the rules of asking


def test_a_stranger_cannot_be_asked_and_a_node_stands_once():
    fleet = Fleet(locals_of(1), base.load("local"), load())
    with pytest.raises(UsageError, match="n7 is no node of this job"):
        fleet.ask("quick", ["n7"], limit_s=1)
    with pytest.raises(UsageError, match="twice"):
        Fleet([Node("a"), Node("a")], base.load("local"), load())


def test_callbacks_run_on_the_callers_thread(fleet_of):
    threads = set()
    fleet = fleet_of(locals_of(2), on_sample=lambda s: threads.add(threading.current_thread()))
    fleet.open(5.0)
    fleet.look("A", {"quick": {}}, 3.0)
    assert threads == {threading.current_thread()}


def test_a_process_that_gathered_from_a_hung_node_ends_without_waiting_for_it():
    code = """
import time
from triage.gather import Fleet
from triage.model import Node
from triage.transports import base, payload
class Hung:
    name = "hung"
    def open(self, node, command, deadline, contact):
        contact.enter("auth")
        time.sleep(600)
    def close(self): pass
fleet = Fleet([Node("n")], Hung(), payload.build([]))
(contact,) = fleet.open(0.3)
print(contact.status, contact.data["phase"])
fleet.close()
"""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert done.stdout.split() == ["timeout", "auth"], done.stderr
    assert time.monotonic() - began < 5


def test_lines_are_cut_wherever_the_pieces_end():
    raw = b'{"a": 1}\n\n{"b": "' + b"x" * 50 + b'"}\nrest'
    for size in (1, 3, 7, 1000):
        lines = answers.Lines(limit=40)
        got = [line for i in range(0, len(raw), size) for line in lines.feed(raw[i : i + size])]
        assert got == [b'{"a": 1}', b"", None]


def test_brackets_inside_strings_are_no_depth():
    assert answers.parse(json.dumps({"a": '[{"' * 500 + "\\"}).encode()) == {"a": '[{"' * 500 + "\\"}
    deep = b'{"a":' * 30 + b"1" + b"}" * 30
    assert answers.parse(deep)["a"]
    with pytest.raises(answers.BadLine):
        answers.parse(b'"' + b'\\"' * 300000)  # linear, whatever the line holds


def test_the_pure_part_imports_neither_sockets_nor_threads():
    source = Path(answers.__file__).read_text()
    assert not any(f"import {name}" in source for name in ("socket", "threading", "subprocess", "time", "paramiko"))
