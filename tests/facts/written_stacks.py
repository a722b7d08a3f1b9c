"""Answers of the `stacks` probe written by hand: where the ranks of a written world stand."""

from __future__ import annotations

from triage.readers.stacks import row_of

LOCKED = """Thread 1 (idle): "MainThread"
    update (train.py:12)
    main (train.py:40)
verb: acquire
kernel: S futex_do_wait futex"""
SAVING = """Thread 1 (idle): "MainThread"
    write_all (storage.py:10)
    save_checkpoint (train.py:41)
    main (train.py:70)
kernel: S pipe_write write"""
LOADING = """Thread 1 (idle): "MainThread"
    wait (lib:threading.py:331)
    get (lib:queue.py:180)
    _next_data (torch/utils/data/dataloader.py:1438)
    train (train.py:30)
kernel: S futex_do_wait futex"""
REDUCING = """Thread 1 (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2806)
    train_step (train.py:33)
    main (train.py:70)
kernel: S futex_do_wait futex"""
SENDING = """Thread 1 (active): "MainThread"
    send (torch/distributed/distributed_c10d.py:2300)
    pipeline (train.py:33)
    main (train.py:70)"""
EVALUATING = """Thread 1 (idle): "MainThread"
    evaluate (train.py:55)
    main (train.py:70)
verb: sleep
kernel: S hrtimer_nanosleep clock_nanosleep"""


def stands(rank, text, still=True, **more):
    return {"rank": rank, "pid": 1000 + rank, "state": "S", **row_of(text), "still": still, **more}


def no_stack(rank, why="no py-spy on this node"):
    return {"rank": rank, "pid": 1000 + rank, "threads": [], "kernel": [], "why": why, "gil_held": ""}


def stacked(world, *rows, node=None):
    by_node = {}
    for row in rows:
        by_node.setdefault(node or world.names[row["rank"] // world.per_node], []).append(row)
    for name, ranks in by_node.items():
        world.add("stacks", name, "C", {"ranks": ranks})
    return world
