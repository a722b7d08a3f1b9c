"""Stacks that look like a lock or a loader of the rank's own, while the rank waits for its peers; and sources that disagree."""

from __future__ import annotations

import pytest
from test_stack_facts import PEERS, said, world
from written_dumps import report
from written_stacks import EVALUATING, LOADING, LOCKED, REDUCING, SAVING, stands

BARRIER = """Thread 9 (idle): "async-save"
    barrier (torch/distributed/distributed_c10d.py:4159)
    wrapper (torch/distributed/c10d_logger.py:81)
    commit (ckpt.py:88)
    run (lib:threading.py:1012)"""
HOOK = """Thread 9 (idle): "Thread-4"
    reduce_scatter_tensor (torch/distributed/distributed_c10d.py:4100)
    _post_backward_hook (torch/distributed/fsdp/_runtime_utils.py:900)"""
BACKWARD = """Thread 1 (idle): "MainThread"
    _engine_run_backward (torch/autograd/graph.py:824)
    backward (torch/autograd/__init__.py:347)
    train_step (train.py:33)
    main (train.py:70)
kernel: S futex_do_wait futex"""
IDLE = """Thread 9 (idle): "tqdm"
    wait (lib:threading.py:331)
    run (tqdm/_monitor.py:60)"""


def both(main, *others):
    """The text of a stack with more threads: the kernel's line and the verb belong to the main one, and stand last."""
    lines = main.splitlines()
    ends = [line for line in lines if line.startswith(("verb:", "kernel:"))]
    return "\n".join([*(line for line in lines if line not in ends), *others, *ends])


@pytest.mark.parametrize("other", [BARRIER, HOOK])
@pytest.mark.parametrize("main", [LOCKED, LOADING, SAVING, EVALUATING, BACKWARD])
def test_a_rank_of_which_another_thread_is_in_a_collective_is_neither_in_a_lock_of_its_own_nor_stuck_on_its_host(
    main, other
):
    told = report(world(5, rows=(stands(5, both(main, other)), *PEERS)))
    assert told.verdict.cause == "inconclusive/inside_a_call" and not told.culprits


@pytest.mark.parametrize("main, cause", [(LOCKED, "deadlock/host_lock"), (LOADING, "stuck_rank/host")])
def test_another_thread_that_waits_for_nothing_of_others_changes_nothing(main, cause):
    assert said(world(5, rows=(stands(5, both(main, IDLE)), *PEERS))) == (cause, [5])


def test_a_held_interpreter_lock_is_no_lock_of_its_own_where_its_holder_is_in_a_collective():
    text = both(REDUCING).replace("(active)", "(active+gil)")
    row = stands(5, text, gil_held="the thread MainThread holds the interpreter lock and sleeps in the kernel")
    assert said(world(5, rows=(row, *PEERS)))[0] == "inconclusive/inside_a_call"
    held_by_another = both(REDUCING, IDLE.replace("(idle)", "(active+gil)"))
    row = stands(5, held_by_another, gil_held="the thread tqdm holds the interpreter lock and sleeps in the kernel")
    assert said(world(5, rows=(row, *PEERS))) == ("deadlock/host_lock", [5])


def test_a_stack_inside_a_collective_contradicts_the_record_by_which_its_rank_has_not_come():
    for text in (REDUCING, both(LOCKED, BARRIER)):
        found = world(5, rows=(stands(5, text), *PEERS)).fact("waits.roots")
        assert found.contradicted_by == ("the stack of rank 5, which stands in a call that waits for others",)
    assert world(5, rows=(stands(5, LOCKED), *PEERS)).fact("waits.roots").contradicted_by == ()
    assert world(5).fact("waits.roots").contradicted_by == ()


@pytest.mark.parametrize("verb, call", [("wait", "S futex_do_wait futex"), ("get", "S sk_wait_data recvfrom")])
def test_a_rank_that_waits_for_a_receive_of_gloo_or_for_the_store_is_no_rank_that_is_stuck_on_its_host(verb, call):
    # No frame tells either of them, and no flight record a receive of gloo: the job's own line calls C.
    text = f"""Thread 1 (idle): "MainThread"
    pipeline (train.py:12)
    main (train.py:70)
verb: {verb}
kernel: {call}"""
    assert said(world(5, rows=(stands(5, text), *PEERS)))[0] == "inconclusive/inside_a_call"


def test_the_stack_of_a_peer_inside_a_collective_contradicts_nothing():
    assert world(5, rows=PEERS).fact("waits.roots").contradicted_by == ()
