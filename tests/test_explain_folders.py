"""`triage explain FOLDER`: dumps and logs as people hand them over, from any cluster, with or without each other."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from triage.schema import schema

T0 = 1_790_000_000
INCIDENTS = Path(__file__).parents[1].parent / "shared" / "data" / "incidents"


def explain(folder, tmp_path, *words):
    done = subprocess.run(
        [sys.executable, "-m", "triage", "explain", str(folder), "--output", "json", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "TRIAGE_STATE_DIR": str(tmp_path / "state")},
        timeout=60,
    )
    report = json.loads(done.stdout)
    if done.returncode in (0, 10, 11):
        jsonschema.validate(report, schema())
    return done, report


def dump(rank, stuck=2, world=4, newest=T0):
    """All have done number 1 and wait in number 2 since `newest`, but `stuck`, which has not come there."""
    rows = [
        {"record_id": i, "process_group": ("0", "default_pg"), "collective_seq_id": i + 1, "op_id": i + 1, "is_p2p": False,
         "profiling_name": "nccl:all_reduce", "retired": i == 0, "state": "completed" if i == 0 else "scheduled",
         "input_sizes": [[4]], "output_sizes": [[4]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
         "time_created_ns": (newest - 60 + 60 * i) * 10**9, "timeout_ms": 600000}
        for i in range(1 if rank == stuck else 2)
    ]  # fmt: skip
    ranks = str(list(range(world)))
    return pickle.dumps(
        {
            "version": "2.10",
            "nccl_version": "2.27.3",
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
            "entries": rows,
        },
        2,
    )


def lay(folder, files, mtime=T0 + 700):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.utime(path, (mtime, mtime))
    return folder


def gave_up(rank, seq=2, at=T0 + 600, op="ALLREDUCE", zone=0.0, status=True):
    when = time.gmtime(at + zone)
    head = f"[rank{rank}]:[E{when.tm_mon}{when.tm_mday:02d} {time.strftime('%H:%M:%S', when)}.061727741 ProcessGroupNCCL.cpp:683]"
    work = f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=4, NumelOut=4, Timeout(ms)=600000)"
    text = f"{head} [Rank {rank}] Watchdog caught collective operation timeout: {work} ran for 600000 milliseconds before timing out.\n"
    if status:
        text += f"{head} [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {seq}, last completed work: {seq - 1}\n"
    return text


def told(rank, enqueued, at=T0 + 600):
    when = time.gmtime(at)
    head = f"[rank{rank}]:[E{when.tm_mon}{when.tm_mday:02d} {time.strftime('%H:%M:%S', when)}.561727741 ProcessGroupNCCL.cpp:1858]"
    return f"{head} [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal due to a collective timeout from  rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: {enqueued}, last completed NCCL work: {enqueued}.This is most likely\n"


def named(report):
    return {culprit["rank"] for culprit in report["culprits"]}


@pytest.mark.parametrize(
    "form",
    [
        "_dump_{0}", "nccl_trace_rank_{0}", "nccl_trace_rank_gpu007_{0}", "comm_lib_trace_rank_{0}", "rank_{0}", "fr_{0}.pickle",
        "gpu00{0}/_dump_{0}", "rank_{0}/trace.pkl", "a b/c/_dump_{0}",
    ],
)  # fmt: skip
def test_dumps_under_all_the_usual_names_name_the_rank_that_has_not_come(form, tmp_path):
    folder = lay(tmp_path / "ev", {form.format(rank): dump(rank) for rank in range(4)})
    done, report = explain(folder, tmp_path)
    assert named(report) == {2} and report["verdict"]["cause"] == "stuck_rank/host", done.stderr
    assert "4 dumps read, ranks 0-3" in done.stderr


def test_a_host_in_the_dumps_name_is_the_ranks_node(tmp_path):
    folder = lay(tmp_path / "ev", {f"nccl_trace_rank_gpu00{rank}_{rank}": dump(rank) for rank in range(4)})
    _, report = explain(folder, tmp_path)
    assert [culprit["node"] for culprit in report["culprits"]] == ["gpu002"]
    assert report["mitigation"]["restart"]["exclude_nodes"] == []


@pytest.mark.parametrize("word", ["attempt2", "job4711", "stage1"])
def test_a_word_in_the_dumps_name_that_is_no_host_is_no_node(tmp_path, word):
    folder = lay(tmp_path / "ev", {f"nccl_trace_rank_{word}_{rank}": dump(rank) for rank in range(4)})
    _, report = explain(folder, tmp_path)
    assert named(report) == {2} and [culprit["node"] for culprit in report["culprits"]] == [None]


def test_dumps_of_a_job_whose_ranks_had_waited_for_an_instant_accuse_nobody(tmp_path):
    folder = lay(tmp_path / "ev", {f"_dump_{rank}": dump(rank) for rank in range(4)})
    for path in folder.iterdir():
        os.utime(path, (T0 + 2, T0 + 2))
    _, report = explain(folder, tmp_path)
    assert named(report) == set() and report["verdict"]["cause"] == "inconclusive/perhaps_slow"


def test_a_folder_for_each_node_is_its_name_and_a_folder_for_each_attempt_is_none(tmp_path):
    nodes = {f"{'gpu001' if rank < 2 else 'gpu002'}/_dump_{rank}": dump(rank) for rank in range(4)}
    _, report = explain(lay(tmp_path / "nodes", nodes), tmp_path)
    assert [culprit["node"] for culprit in report["culprits"]] == ["gpu002"]
    parts = {f"{'part1' if rank < 2 else 'part2'}/_dump_{rank}": dump(rank) for rank in range(4)}
    _, report = explain(lay(tmp_path / "parts", parts), tmp_path)
    assert [culprit["node"] for culprit in report["culprits"]] == [None]


def test_of_two_attempts_the_newer_is_read_and_the_older_said_aloud(tmp_path):
    files = {f"first/_dump_{rank}": dump(rank, stuck=1, newest=T0 - 9000) for rank in range(4)}
    files |= {f"second/_dump_{rank}": dump(rank) for rank in range(4)}
    done, report = explain(lay(tmp_path / "ev", files), tmp_path)
    assert named(report) == {2}
    assert "first: older dumps of the same ranks, of another attempt or incident: not used; read: second" in done.stderr


def test_logs_beside_dumps_that_are_not_used_add_nothing_and_logs_elsewhere_do(tmp_path):
    def files(logs):
        old = {f"first/_dump_{rank}": dump(rank, stuck=1, newest=T0 - 9000) for rank in range(4)}
        new = {f"second/_dump_{rank}": dump(rank) for rank in range(4)}
        return old | new | {f"{logs}/rank{rank}.err": gave_up(rank) for rank in (0, 1, 3)}

    done, alone = explain(lay(tmp_path / "alone", files("first")), tmp_path)
    assert "logs read" not in done.stderr and "logs beside dumps that were not used: not read" in done.stderr
    assert not [one for one in alone["evidence"] if one["probe"] == "joblog"]
    for where in ("second", "second/logs", "logs"):
        done, _ = explain(lay(tmp_path / where.replace("/", "-"), files(where)), tmp_path)
        assert "3 logs read" in done.stderr


def test_a_rank_that_only_the_older_attempt_has_is_not_mixed_in(tmp_path):
    files = {f"first/_dump_{rank}": dump(rank, stuck=3, newest=T0 - 9000) for rank in range(4)}
    files |= {f"second/_dump_{rank}": dump(rank, stuck=9) for rank in range(3)}  # rank 3's is missing
    _, report = explain(lay(tmp_path / "ev", files), tmp_path)
    assert named(report) == set() and report["verdict"]["id"] == "inconclusive"


def test_two_incidents_that_nothing_puts_in_order_are_refused_with_a_list(tmp_path):
    files = {"a/_dump_0": dump(0, newest=T0), "b/_dump_0": dump(0, newest=T0 - 900)}
    files |= {"a/_dump_1": dump(1, newest=T0 - 900), "b/_dump_1": dump(1, newest=T0)}
    done, report = explain(lay(tmp_path / "ev", files), tmp_path)
    assert done.returncode == 2 and "several folders" in report["error"] and f"{tmp_path}/ev/a" in report["error"]


def test_packed_dumps_are_read_and_archives_are_named(tmp_path):
    files = {f"_dump_{rank}.gz": gzip.compress(dump(rank)) for rank in range(4)}
    files["rest.tar"] = b"\0" * 600
    done, report = explain(lay(tmp_path / "ev", files), tmp_path)
    assert named(report) == {2}
    assert "rest.tar: not read: an archive; unpack it first" in done.stderr


def test_a_packed_file_that_unpacks_to_gigabytes_is_bounded(tmp_path):
    bomb = gzip.compress(b"\0" * (80 << 20))
    done, report = explain(lay(tmp_path / "ev", {"_dump_0.gz": bomb, "_dump_1": b"\x1f\x8bnot gzip"}), tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr and "no flight-recorder dump" in report["error"]


def test_foreign_files_beside_the_dumps_change_nothing(tmp_path):
    files = {f"_dump_{rank}": dump(rank) for rank in range(4)}
    _, alone = explain(lay(tmp_path / "alone", files), tmp_path)
    files |= {
        "README.md": "how to read this\n",
        "notes/summary.log": "Fault ranks: [1]\n",
        "config.json": '{"lr": 1}',
        "x.bin": b"\0" * 9,
    }
    done, report = explain(lay(tmp_path / "ev", files), tmp_path)
    assert named(report) == named(alone) == {2} and report["verdict"]["score"] == alone["verdict"]["score"]
    assert "README.md: not read" in done.stderr


# ---------------------------------------------------------------- logs


def test_the_watchdogs_lines_alone_make_the_rank_that_had_not_come_a_lead(tmp_path):
    files = {f"rank{rank}.err": gave_up(rank) for rank in (0, 1, 3)} | {"rank2.err": told(2, 1)}
    done, report = explain(lay(tmp_path / "ev", files), tmp_path)
    assert named(report) == set() and report["verdict"]["id"] == "inconclusive"
    (lead,) = [lead for lead in report["alternatives"] if lead["cause"] == "stuck_rank/not_arrived"]
    assert "rank 2" in lead["why_not"] and "lines alone" in lead["why_not"]
    assert report["mitigation"]["restart"]["exclude_nodes"] == []
    assert "4 logs read" in done.stderr


def test_one_log_of_all_ranks_names_the_minority_whose_call_differs(tmp_path):
    text = gave_up(0, op="BROADCAST") + "".join(gave_up(rank) for rank in (1, 2, 3))
    _, report = explain(lay(tmp_path / "ev", {"slurm-4711.out": text}), tmp_path)
    assert named(report) == {0} and report["verdict"]["cause"] == "deadlock/mismatch_told"
    assert any("BROADCAST of 4" in line["text"] for line in report["evidence"])


def test_two_ranks_that_differ_are_both_involved_and_none_is_the_culprit(tmp_path):
    text = gave_up(0, op="BROADCAST") + gave_up(1)
    _, report = explain(lay(tmp_path / "ev", {"job.log": text}), tmp_path)
    assert {(culprit["rank"], culprit["role"]) for culprit in report["culprits"]} == {(0, "involved"), (1, "involved")}


def test_a_rank_that_prints_nothing_is_a_lead_and_never_named(tmp_path):
    files = {f"rank{rank}.err": gave_up(rank) for rank in (1, 2, 3)} | {"rank0.err": "epoch 0: iterator exhausted\n"}
    _, report = explain(lay(tmp_path / "ev", files), tmp_path)
    assert named(report) == set() and report["verdict"]["id"] == "inconclusive"
    assert any("rank 0" in each["why_not"] for each in report["alternatives"])


def test_where_the_records_and_the_log_point_at_different_ranks_nobody_is_named_and_both_are_said(tmp_path):
    # By the log's counts rank 1 had not come (it may be stuck inside its call), by the records rank 2 has not.
    files = {f"_dump_{rank}": dump(rank) for rank in range(4)}
    files["job.log"] = "".join(gave_up(rank) for rank in (0, 2, 3)) + told(1, 1)
    _, report = explain(lay(tmp_path / "ev", files), tmp_path)
    assert named(report) == set() and report["verdict"]["id"] == "inconclusive"
    assert any("rank 1" in why and "watchdogs" in why for why in report["verdict"]["why"])
    assert any("rank 2" in each["why_not"] for each in report["alternatives"])


def test_where_the_records_and_the_log_agree_that_rank_is_named(tmp_path):
    files = {f"_dump_{rank}": dump(rank) for rank in range(4)}
    files["job.log"] = "".join(gave_up(rank) for rank in (0, 1, 3)) + told(2, 1)
    _, report = explain(lay(tmp_path / "ev", files), tmp_path)
    assert named(report) == {2} and report["verdict"]["cause"] == "stuck_rank/host"


def test_a_log_of_another_zone_beside_the_dumps_is_laid_on_their_clock(tmp_path):
    files = {f"_dump_{rank}": dump(rank) for rank in range(4)}
    files["job.log"] = "".join(gave_up(rank, zone=5.75 * 3600) for rank in (0, 1, 3))
    done, report = explain(lay(tmp_path / "ev", files), tmp_path)
    assert report["observed"].startswith("2026-09-21T") and named(report) == {2}
    assert report["observed"] == time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(T0 + 600)) + "Z"
    assert "zone unknown" not in done.stderr


def test_a_log_whose_zone_nothing_tells_is_said_so(tmp_path):
    files = {f"_dump_{rank}": dump(rank) for rank in range(4)} | {"job.log": gave_up(0, seq=77)}
    done, _ = explain(lay(tmp_path / "ev", files), tmp_path)
    assert "the logs' times cannot be compared with the flight records: zone unknown" in done.stderr


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "it is empty"),
        ({"README.md": "hello\n"}, "README.md: neither a dump nor a log with a line that is known"),
        ({"empty_1": b""}, "empty_1: empty"),
        ({"a.tar": b"\0" * 600}, "a.tar: an archive; unpack it first"),
    ],
)
def test_a_folder_with_nothing_in_it_is_one_line_that_says_what_was_looked_for(files, says, tmp_path):
    folder = lay(tmp_path / "ev", files)
    folder.mkdir(exist_ok=True)
    done, report = explain(folder, tmp_path)
    assert (
        done.returncode == 2
        and says in report["error"]
        and "expected names such as _dump_3, rank3.err" in report["error"]
    )


# ---------------------------------------------------------------- real incidents, by their logs alone


def logs_of(incident, folder):
    """The job's and the launcher's logs of a bundle, a file each."""
    for section in (INCIDENTS / f"{incident}.log").read_text().split("@@ ")[1:]:
        head, _, body = section.partition("\n")
        told = dict(word.split("=", 1) for word in head.split() if "=" in word)
        if told.get("source") in ("job.log", "agent.log"):
            name = f"rank{told['rank']}.log" if "rank" in told else told["source"]
            path = folder / told["host"] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(body)
    return folder


@pytest.mark.shared
@pytest.mark.parametrize(
    ("incident", "cause", "ranks"),
    [
        ("I16", "deadlock/conditional_told", {0, 4}),
        ("I18", "inconclusive/arrival_unknown", set()),  # no line names the group: a lead
        ("I22", "inconclusive/arrival_unknown", set()),  # the lines alone: a lead
        ("I26", "deadlock/mismatch_told", {2, 3}),
        ("I20", "inconclusive/arrival_unknown", set()),  # the culprit printed nothing: a lead
        ("I24", "inconclusive/arrival_unknown", set()),  # two ranks at different numbers
        ("I60", "inconclusive/arrival_unknown", set()),  # a healthy teardown whose heartbeat complains
        ("I06", "inconclusive/arrival_unknown", set()),  # one rank's line of eight
    ],
)
def test_an_incidents_logs_alone_name_the_guilty_or_nobody(incident, cause, ranks, shared_data, tmp_path):
    _, report = explain(logs_of(incident, tmp_path / "ev"), tmp_path)
    assert named(report) == ranks
    assert ranks == set() or report["verdict"]["cause"] == cause
    label = next(json.loads(line) for line in (INCIDENTS / "labels.jsonl").open() if f'"{incident}"' in line[:20])[
        "expect"
    ]
    assert report["verdict"]["id"] not in label["not_verdicts"] and not named(report) & set(label["not_culprit_ranks"])
