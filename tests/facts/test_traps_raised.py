"""A rank that raises, and whose handler calls a barrier: the records differ at one number, and the exception is the cause."""

from __future__ import annotations

import pytest
from written_dumps import add_dumps, everyone, named, ranks_of, report
from written_evidence import NOW, World
from written_logs import glog, log_sample, step, steps, timed_out

STALL = NOW - 100.0
WAITS = ["0 1 all_reduce", "0 2 all_reduce open"]
BARRIER = ["0 1 all_reduce", "0 2 barrier open"]
TRACEBACK = ["[rank5]: Traceback (most recent call last):", '[rank5]:   File "/opt/train.py", line 12, in <module>']


def world(*said, programs=None, before=(), **others):
    """All wait in an all_reduce, except for whom `others` says; the log has this behind its last step."""
    w = World().processes().fabric(0)
    w.samples.append(log_sample([*before, *steps(1, 50, STALL), *said]))
    return add_dumps(w, programs or everyone(WAITS, **others), lib="2.27.5")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('[rank5]: KeyError: "labels"', "KeyError"),
        ("[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "CUDA out of memory"),
        ("[rank5]: StopIteration", "StopIteration"),
        ("[rank5]: torch.AcceleratorError: CUDA error: device-side assert triggered", "device-side assert"),
        ('3: [rank5]: KeyError: "labels"', "KeyError"),
    ],
)
def test_a_rank_whose_handler_calls_a_barrier_is_named_and_its_exception_is_told_as_the_cause(line, told):
    w = world(*TRACEBACK, line, r5=BARRIER)
    assert named(w)[:2] == ("deadlock/mismatch", [5])
    after = w.fact("waits.diverged_after")
    assert (
        ranks_of(after) == [5]
        and told in after.text
        and {p.probe for p in after.provenance}
        == {
            "joblog",
            "flight_recorder",
        }
    )
    assert ranks_of(w.fact("blame.mismatch")) == [5]


def test_without_an_exception_the_rank_that_differs_is_named_all_the_same():
    w = world(r5=BARRIER)
    assert named(w)[:2] == ("deadlock/mismatch", [5])
    assert w.fact("waits.diverged_after").value == 0 and ranks_of(w.fact("blame.mismatch")) == [5]


def two_sides(w=None, *said):
    """The pair of ranks 4 and 5 differs in its own group: nothing in the records separates the two."""
    programs = everyone(["0 1 all_reduce", "0 2 all_reduce open"])
    programs[4], programs[5] = ["3 1 all_reduce open"], ["3 1 barrier open"]
    return world(*said, programs=programs)


def test_of_two_that_differ_one_to_one_the_exception_separates_the_guilty():
    w = two_sides(None, '[rank5]: KeyError: "labels"')
    assert w.fact("waits.mismatch_tied").value is True and ranks_of(w.fact("waits.mismatch_named")) == []
    assert ranks_of(w.fact("blame.mismatch")) == [5]
    assert ranks_of(two_sides().fact("blame.mismatch")) == []


def test_a_minority_of_two_is_not_narrowed_to_the_one_that_could_still_print():
    w = world('[rank5]: KeyError: "labels"', r5=BARRIER, r6=BARRIER)
    assert ranks_of(w.fact("waits.mismatch_named")) == [5, 6] and ranks_of(w.fact("blame.mismatch")) == [5, 6]


def test_a_rank_whose_handler_waits_alone_in_another_group_is_told_with_its_exception():
    programs = everyone(WAITS)
    programs[5] = ["0 1 all_reduce", "3 1 barrier open"]
    w = world('[rank5]: KeyError: "labels"', programs=programs)
    assert ranks_of(w.fact("waits.diverged_after")) == [5] and named(w)[1] in ([5], [])


def test_a_rank_that_ran_out_of_batches_and_is_waited_for_is_told_with_its_exception():
    w = world("[rank5]: StopIteration", r5=["0 1 all_reduce"])
    assert ranks_of(w.fact("waits.roots")) == [5] and ranks_of(w.fact("waits.diverged_after")) == [5]


def test_an_exception_that_a_rank_caught_and_went_on_after_is_no_cause():
    w = world('[rank2]: KeyError: "labels"', r5=BARRIER)
    assert ranks_of(w.fact("raised.ranks")) == [2]
    assert w.fact("waits.diverged_after").value == 0 and named(w)[1] == [5]


@pytest.mark.parametrize(
    "line",
    [
        "[rank5]: torch.distributed.DistBackendError: NCCL error in: x.hpp:1, remote process exited, NCCL version 2.18.1",
        "[rank5]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:5421",
        "[rank5]: TimeoutError: The client socket has timed out after 600s",
        "rank 5 had a KeyError once",
        '5: KeyError: "labels"',  # a task of srun, which may be a node's launcher
        '[rank50]: KeyError: "labels"',  # no rank of the job
    ],
)
def test_what_peers_store_or_time_outs_gave_a_rank_is_no_exception_of_its_own(line):
    assert world(line, r5=BARRIER).fact("raised.ranks").value == 0


def test_an_exception_behind_the_time_out_is_a_consequence():
    w = world(timed_out(NOW - 40, 0, 60), '[rank5]: KeyError: "labels"', r5=BARRIER)
    assert w.fact("raised.ranks").value == 0


def test_an_exception_that_steps_followed_is_no_cause():
    w = world(r5=BARRIER, before=[f"{glog(STALL - 300)} x", '[rank5]: KeyError: "labels"'])
    assert w.fact("raised.ranks").value == 0


def test_an_exception_of_an_earlier_attempt_is_no_cause():
    w = world(r5=BARRIER, before=[step(9, NOW - 5000), '[rank5]: KeyError: "labels"'])
    assert w.fact("raised.ranks").value == 0 and w.fact("waits.diverged_after").value == 0


def test_of_a_chain_of_exceptions_the_first_is_the_cause():
    chain = [
        '[rank5]: KeyError: "labels"',
        "[rank5]: During handling of the above exception,",
        "[rank5]: ValueError: bad",
    ]
    assert "KeyError" in world(*chain, r5=BARRIER).fact("raised.ranks").parts[0].why


def test_while_it_is_not_known_when_the_stall_began_no_exception_is_tied_to_it():
    w = World().processes().fabric(0)
    w.samples.append(log_sample([f"{glog(NOW - 3000)} x", '[rank5]: KeyError: "labels"']))
    assert w.fact("raised.ranks").value is None


def test_the_report_of_a_mismatch_tells_the_exception():
    told = report(world('[rank5]: KeyError: "labels"', r5=BARRIER))
    assert told.verdict.cause == "deadlock/mismatch" and [c.rank for c in told.culprits] == [5]
    assert not any("rank 0" in (f.part or "") for f in told.findings)
