"""The classes of stacks keep what their own samples promise, and a class is only as good as its near-misses."""

from __future__ import annotations

import copy
import importlib.resources

import pytest
import yaml

from triage.readers import stacks

TEXT = importlib.resources.files("triage.playbooks").joinpath("stacks.yaml").read_text("utf-8")


def place(text, **row):
    return stacks.place_of({**stacks.row_of(text), **row})


def test_every_entry_that_ships_keeps_its_promises_and_has_both_kinds_of_samples():
    entries = stacks.load()
    assert {e.cls for e in entries} == set(stacks.CLASSES) - {"user_code"}
    assert all(e.stacks and e.near_misses for e in entries)


@pytest.mark.parametrize("number", range(16))
def test_an_entry_that_is_taken_away_is_missed_by_its_own_samples(number):
    document = yaml.safe_load(TEXT)
    gone = document["stacks"].pop(number)
    entries, _ = stacks.read(document)
    samples = [stacks.place_of(stacks.row_of(text), entries) for text in gone["stacks"]]
    assert any(found is None or found.cls != gone["class"] for found in samples), gone["id"]


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"pattern": "^nothing$"}, "is of class"), ({"pattern": "."}, "near-miss"), ({"pattern": "("}, "bad pattern"),
        ({"pattern": "(?:a+)+"}, "slow"), ({"class": "user_code"}, "is none of"), ({"where": "heart"}, "is none of"),
        ({"stacks": []}, "no list of stacks"), ({"not": None}, "no list of stacks"), ({"colour": "red"}, "unknown key"),
    ],
)  # fmt: skip
def test_an_entry_that_breaks_its_promise_is_refused(change, problem):
    document = copy.deepcopy(yaml.safe_load(TEXT))
    document["stacks"][0].update(change)
    assert any(problem in line for line in stacks.read(document)[1])


@pytest.mark.parametrize("document", [None, [], {}, {"version": 2, "stacks": []}, {"version": 1, "stacks": 5}])
def test_what_is_no_file_of_stacks_is_refused(document):
    assert stacks.read(document)[1]


def test_the_innermost_known_frame_counts_and_not_the_function_that_called_it():
    text = """Thread 1 (idle): "MainThread"
    barrier (torch/distributed/distributed_c10d.py:9)
    save_checkpoint (train.py:8)
    main (train.py:9)"""
    found = place(text)
    assert found.cls == "collective" and found.inside == "save_checkpoint (train.py:8)"


def test_a_wait_is_its_callers_unless_the_jobs_own_code_called_it():
    library = """Thread 1 (idle): "MainThread"
    wait (lib:threading.py:1)
    get (lib:queue.py:2)
    _next_data (torch/utils/data/dataloader.py:3)
    _next_data (train.py:3)"""
    assert place(library).cls == "data_loader"
    own = """Thread 1 (idle): "MainThread"
    wait (lib:threading.py:1)
    get (lib:queue.py:2)
    fetch (train.py:4)
    _next_data (torch/utils/data/dataloader.py:3)"""
    assert place(own).cls == "wait"


def test_a_held_interpreter_lock_is_a_lock_wherever_its_threads_stand_and_without_a_stack_too():
    text = (
        'Thread 1 (idle): "MainThread"\n    all_reduce (torch/distributed/distributed_c10d.py:9)\n    main (train.py:9)'
    )
    assert place(text, gil_held="the thread x holds it").cls == "lock"
    assert stacks.place_of({"gil_held": "it is held", "threads": []}).cls == "lock"


def test_a_word_of_the_line_counts_only_where_the_innermost_frame_is_the_jobs_own():
    text = """Thread 1 (idle): "MainThread"
    forward (torch/nn/modules/linear.py:9)
    main (train.py:9)
verb: acquire
kernel: S futex_do_wait futex"""
    assert place(text).cls == "user_code"


def test_a_stack_without_frames_is_nothing():
    assert stacks.place_of({"threads": [], "kernel": [{"state": "D", "wchan": "rpc_wait", "syscall": "read"}]}) is None
