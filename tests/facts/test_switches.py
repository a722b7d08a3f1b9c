"""What the job was started with, by the environment of its ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from written_evidence import World

GOOD = {
    "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/tmp/pipe_", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "TRIAGE_STEP_LOG": "/tmp/steps/rank_", "NCCL_DEBUG": "WARN", "NCCL_RAS_ENABLE": "1",
}  # fmt: skip
FACTS = ("recorder_off", "recorder_unset", "no_pipe", "no_dump", "aborts", "no_steps", "quiet_nccl", "ras_off")


def world(change=None, ranks=(0,), drop=()):
    """All ranks have the good switches, but those of `ranks` the changed ones."""
    w = World().processes()

    def row(entry):
        env = {**entry["env"], **GOOD}
        if entry["rank"] in ranks:
            env.update(change or {})
            env = {name: value for name, value in env.items() if name not in drop}
        return {**entry, "env": env}

    w.samples = [
        replace(s, data={**s.data, "ranks": [row(r) for r in s.data["ranks"]]}) if s.probe == "ranks" else s
        for s in w.samples
    ]
    return w


@pytest.mark.parametrize("name", FACTS)
def test_a_job_with_all_switches_lacks_none(name):
    found = world().fact(f"switches.{name}")
    assert found.value == 0 and not found.parts


@pytest.mark.parametrize(
    ("name", "change", "drop"),
    [
        ("recorder_off", {"TORCH_FR_BUFFER_SIZE": "0"}, ()),
        ("recorder_off", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, ("TORCH_FR_BUFFER_SIZE",)),
        ("recorder_unset", {}, ("TORCH_FR_BUFFER_SIZE",)),
        ("no_pipe", {}, ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE",)),
        ("no_dump", {"TORCH_NCCL_DUMP_ON_TIMEOUT": "false"}, ()),
        ("aborts", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, ()),
        ("no_steps", {}, ("TRIAGE_STEP_LOG",)),
        ("quiet_nccl", {}, ("NCCL_DEBUG",)),
        ("quiet_nccl", {"NCCL_DEBUG": "version"}, ()),
        ("quiet_nccl", {"NCCL_DEBUG": "1"}, ()),
        ("aborts", {"NCCL_ASYNC_ERROR_HANDLING": "1"}, ("TORCH_NCCL_ASYNC_ERROR_HANDLING",)),
        ("ras_off", {"NCCL_RAS_ENABLE": "0"}, ()),
    ],
)
def test_each_lack_names_the_node_of_the_rank_and_how_many_ranks(name, change, drop):
    w = world(change, ranks=(2,), drop=drop)
    found = w.fact(f"switches.{name}")
    assert [part.node for part in found.parts] == [w.names[1]] and found.text.startswith("1 of the ")
    for other in FACTS:
        assert other == name or w.fact(f"switches.{other}").value == 0


@pytest.mark.parametrize("name", FACTS)
def test_without_an_environment_nothing_is_said(name):
    assert World().fact(f"switches.{name}").value is None


def test_what_is_left_to_the_release_is_not_said_to_be_off():
    w = world({}, ranks=range(99), drop=("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT"))
    assert w.fact("switches.recorder_off").value == 0 and w.fact("switches.no_dump").value == 0


def test_what_the_configuration_file_of_nccl_says_counts_as_said():
    w = world({}, ranks=range(99), drop=("NCCL_DEBUG",))
    w.samples = [
        replace(s, data={**s.data, "ranks": [{**r, "conf": {"NCCL_DEBUG": "WARN"}} for r in s.data["ranks"]]})
        if s.probe == "ranks"
        else s
        for s in w.samples
    ]
    assert w.fact("switches.quiet_nccl").value == 0


def test_the_worst_clock_is_told_with_its_node():
    w = world()
    w.samples = [replace(s, at=s.at + 40.0) if s.node == w.names[2] and s.at is not None else s for s in w.samples]
    found = w.fact("clocks.worst_s")
    assert found.value == pytest.approx(40.0, abs=2.0) and w.names[2] in found.text
