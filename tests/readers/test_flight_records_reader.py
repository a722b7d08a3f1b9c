"""Folders of dumps as people collect them: odd names, foreign files, duplicates, several forms of one dump."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from triage.readers.flight_records import newest_time, read_folder

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "flight-recorder"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the real dumps of ../shared/data are not here")
T0 = 1_790_000_000


def dump(ranks="[0, 1, 2, 3]", entries=2, newest=T0):
    rows = [
        {"record_id": i, "process_group": ("0", "default_pg"), "collective_seq_id": i + 1, "profiling_name": "nccl:all_reduce",
         "retired": i + 1 < entries, "state": "completed" if i + 1 < entries else "scheduled", "input_sizes": [[4]],
         "time_created_ns": (newest - entries + 1 + i) * 10**9}
        for i in range(entries)
    ]  # fmt: skip
    return {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}, "entries": rows}


def raw(**how):
    return pickle.dumps(dump(**how), 2)


def read(files):
    return read_folder([(name, content, float(T0)) for name, content in files.items()])


@pytest.mark.parametrize(
    "name",
    [
        "_dump_3", "rank_3", "rank3", "fr_3.json", "fr_3.pickle", "comm_lib_trace_rank_3", "nccl_trace_rank_3",
        "nccl_trace_rank_gpu-node-0_3", "nccl_trace_rank_10.0.0.7_3", "comm_traces/rank_3", "trace_3.pkl", "3", "node7/3.bin",
        "rank_3.1790000123.pkl", "sub/folder/_dump_3",
    ],
)  # fmt: skip
def test_the_rank_is_the_number_at_the_end_of_the_name(name):
    content = json.dumps(dump()).encode() if name.endswith(".json") else raw()
    got = read({name: content})
    assert got.ranks == (3,)
    assert got.recognised == (name,)
    assert got.sample.data["ranks"][0]["record"]["rank"] == 3


def test_a_name_that_contradicts_the_groups_inside_is_not_believed():
    got = read({"_dump_17": raw()})
    assert got.ranks == ()
    assert got.unrecognised == (("_dump_17", "named for rank 17, but its groups do not hold that rank"),)
    # a host's number at the end, the rank before it
    assert read({"rank_2_host_17": raw()}).ranks == (2,)


def test_foreign_files_are_listed_with_their_reason_and_never_stop_the_reading():
    got = read(
        {
            "_dump_0": raw(),
            "fault_injection.log": b"Fault ranks: [1]\n",
            "empty_1": b"",
            "model_1.pt": b"PK\x03\x04 entries",
            "evil_1": b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR.",
            "config_1.json": b'{"lr": 1}',
            "cut_1": raw()[:-20],
            "list_1": pickle.dumps([{"seq_id": 3}], 2),
            "entries_1.json": b'{"entries": 7',
            "dump": raw(),
        }
    )
    why = dict(got.unrecognised)
    assert got.ranks == (0,)
    assert why["fault_injection.log"] == "not a flight record"
    assert why["empty_1"] == "empty"
    assert why["model_1.pt"] == "not a flight record"
    assert why["evil_1"].startswith("refused")
    assert why["config_1.json"] == "not a flight record"
    assert why["cut_1"].startswith("cut off")
    assert "2023" in why["list_1"]
    assert why["entries_1.json"].startswith("cannot be read")
    assert why["dump"] == "a flight record, but its name does not end in a rank"
    assert len(why) == 9


def test_an_empty_or_foreign_folder_gives_an_absent_sample():
    for files in ({}, {"readme_1": b"hello"}):
        got = read(files)
        assert (got.sample.status, got.ranks, got.family) == ("absent", (), "")


def test_several_forms_of_one_dump_are_one_kind_for_all_ranks():
    files = {}
    for rank in range(4):
        files[f"fr_stack_{rank}.pickle"] = raw() if rank != 2 else b""
        files[f"fr_nostack_{rank}.pickle"] = raw()
        files[f"fr_{rank}.json"] = json.dumps(dump()).encode()
    got = read(files)
    assert got.family == "fr_nostack_#.pickle"  # all four ranks; the stack form lacks one, JSON comes after pickles
    assert got.recognised == tuple(f"fr_nostack_{r}.pickle" for r in range(4))
    assert dict(got.unrecognised)["fr_1.json"] == "rank 1 is read from fr_nostack_1.pickle"
    assert dict(got.unrecognised)["fr_stack_2.pickle"] == "empty"


def test_the_choice_does_not_depend_on_the_order_of_the_folder():
    files = {f"{form}_{rank}": raw() for form in ("a", "b") for rank in range(4)}
    one = read(files)
    other = read(dict(reversed(files.items())))
    assert one.recognised == other.recognised


def test_two_dumps_of_one_rank_in_two_folders_the_newest_is_taken_and_the_other_named():
    got = read({"attempt1/_dump_0": raw(newest=T0), "attempt2/_dump_0": raw(newest=T0 + 500)})
    assert got.recognised == ("attempt2/_dump_0",)
    assert got.unrecognised == (("attempt1/_dump_0", "of an earlier attempt than attempt2"),)


def test_a_rank_that_only_another_form_tells_is_taken_and_the_mixture_is_said():
    got = read({"_dump_0": raw(), "_dump_1": raw(), "fr_2.json": json.dumps(dump()).encode()})
    assert got.ranks == (0, 1, 2)
    assert any("several moments" in note for note in got.sample.notes)


def test_the_newest_time_of_a_folder_is_its_newest_entry():
    assert newest_time(read({"_dump_0": raw(newest=T0), "_dump_1": raw(newest=T0 + 7)}).sample) == T0 + 7
    assert newest_time(read({}).sample) is None


@needs_data
@pytest.mark.shared
def test_the_real_gloo_folders_are_read_from_their_whole_pickles():
    for case in sorted((DATA / "gloo-4-ranks").iterdir()):
        files = [(p.name, p.read_bytes(), p.stat().st_mtime) for p in case.iterdir()]
        got = read_folder(files)
        assert got.family == "fr_nostack_#.pickle"
        assert len(got.recognised) + len(got.unrecognised) == len(files)
        assert not any("log_" in name or "http_" in name for name in got.recognised)
