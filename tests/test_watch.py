"""Watching a job: a line a round, what is said aloud, when it ends, and that nothing is left behind."""

import gc
import json
import os
import resource
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "render"))
from sample_report import report, request

from triage import watch
from triage.cost.plans import CulpritNode, plan
from triage.cost.profile import load_profile
from triage.errors import SchedulerSilent, UsageError

COSTS = (Path(__file__).parents[1] / "playbooks" / "costs.yaml").read_text()
PROFILE = load_profile(COSTS, "costs: {s2_supported: true}")


class Time:
    def __init__(self):
        self.at, self.slept = 0.0, []

    def clock(self, look_s=0.0):
        return watch.Clock(lambda: self.at, self.sleep)

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.at += seconds


def seen(state="running", cause="healthy/advancing", **mitigation):
    base = report()
    verdict = replace(base.verdict, id=cause.split("/")[0], cause=cause)
    told = plan(request(verdict_id="healthy", mitigate="none", fail="none", state="running"), PROFILE)
    return replace(base, state=state, verdict=verdict, culprits=(), exit_code=0 if cause.startswith("healthy") else 10,
                   mitigation={**told, **mitigation})  # fmt: skip


def rounds(reports, **how):
    time, told, left = Time(), [], list(reports)

    def look():
        time.at += 7
        this = left.pop(0)
        if isinstance(this, BaseException):
            raise this
        return this

    end = watch.watch(look, told.append, time.clock(), every_s=60.0, rounds=how.pop("rounds", len(left)), **how)
    return end, told, time


def test_rounds_begin_once_in_every_interval_whatever_a_look_takes():
    end, told, time = rounds([seen()] * 4)
    assert time.slept == [53.0] * 3
    assert [each.said for each in told] == [()] * 4 and end.exit_code == 0


def test_a_change_of_state_is_said_once():
    slow = seen("slow", "straggler/compute")
    end, told, _ = rounds([seen(), slow, slow])
    assert [len(each.said) for each in told] == [0, 2, 0]
    assert "state running -> slow" in told[1].said
    assert end.exit_code == 10


def test_the_price_of_a_step_is_said_when_the_loss_reaches_it_and_until_escalate_ends_there():
    def slow(minutes):
        at = request().onset
        asked = request(verdict_id="straggler", mitigate="price", fail="slow", state="slow", kind="compute", culprits=(CulpritNode("gpu003", facts=2),),
                        t0_s=1.0, t1_s=1.25, observed=at + 60 * minutes)  # fmt: skip
        return replace(seen("slow", "straggler/compute"), mitigation=plan(asked, PROFILE))

    end, told, _ = rounds([slow(10), slow(60), slow(600), slow(700)], until="escalate")
    assert end.rounds == 3 and end.why == "S4 is due"
    assert any("the price of S4 is reached" in words for words in told[-1].said)
    assert not told[1].said


def test_it_ends_with_the_job():
    end, _, _ = rounds([seen(), seen("ended"), seen()])
    assert (end.rounds, end.why) == (2, "the job is ended")


def test_a_round_that_cannot_be_made_is_told_and_the_next_compares_with_the_last_good_one():
    end, told, _ = rounds([seen(), SchedulerSilent("squeue did not answer"), seen()])
    assert told[1].trouble == "squeue did not answer" and told[2].said == ()
    assert "no look" in watch.line(told[1]) and end.exit_code == 0
    with pytest.raises(UsageError):
        rounds([UsageError("no such inventory")])


def test_ctrl_c_passes_through():
    with pytest.raises(KeyboardInterrupt):
        rounds([seen(), KeyboardInterrupt()])


def test_every_round_is_one_line_of_text_and_one_json_object_without_nan():
    _, told, _ = rounds([seen("slow", "straggler/compute\nevil\x1b[2J"), SchedulerSilent("x\ny"), seen()])
    for each in told:
        assert watch.line(each).isprintable()
        document = json.loads(json.dumps(watch.document(each), allow_nan=False))
        assert document["schema_version"] == "triage.watch/1" and isinstance(document["culprits"], list)


def test_rounds_over_local_processes_leave_no_thread_descriptor_child_or_memory(tmp_path, monkeypatch):
    from triage import investigate
    from triage.inputs import watched

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    for name in ("WINDOW_UNKNOWN_S", "WINDOW_MIN_S", "WINDOW_MAX_S"):
        monkeypatch.setattr(investigate, name, 0.0)
    monkeypatch.setattr(investigate, "CHEAP_A", ("reach",))
    monkeypatch.setattr(investigate, "CHEAP_B", ())
    flags = {"transport": "local", "state_dir": str(tmp_path / "state")}
    look = watched("4711", "n1", flags, run_s=10.0, say=lambda line: None)

    def held():
        gc.collect()
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(children)

    made = watch.watch(look, lambda this: None, Time().clock(), every_s=10.0, rounds=3)
    before, memory_kb = held(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    watch.watch(look, lambda this: None, Time().clock(), every_s=10.0, rounds=20)
    after, grown_kb = held(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_kb
    assert made.rounds == 3
    assert all(b <= a + 1 for a, b in zip(before, after)), (before, after)
    assert grown_kb < 8_000
    assert sorted(os.listdir(tmp_path / "state")) == ["incidents.sqlite"], "no case is kept"
