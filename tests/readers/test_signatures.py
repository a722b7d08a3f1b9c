"""The signature file keeps its promises: samples match, near-misses do not, and no line makes it slow."""

from __future__ import annotations

import copy
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from triage.errors import ConfigError
from triage.readers import signatures
from triage.readers.signatures import Signature, load

ALL = load().entries
SAMPLES = [(s, sample) for s in ALL for sample in s.samples]
NEAR = [(s, line) for s in ALL for line in s.near_misses]


@pytest.mark.parametrize("entry, sample", SAMPLES, ids=[f"{s.id}-{i}" for i, (s, _) in enumerate(SAMPLES)])
def test_a_sample_is_known_by_its_own_signature_and_by_no_other(entry, sample) -> None:
    told = entry.match(sample.line)
    assert told is not None and told.items() >= sample.groups.items()
    others = {o.id for o in load().of(entry.source) if o.id != entry.id and o.match(sample.line) is not None}
    assert others <= set(entry.also)


@pytest.mark.parametrize("entry, line", NEAR, ids=[f"{s.id}-{i}" for i, (s, _) in enumerate(NEAR)])
def test_a_near_miss_is_not_taken_for_it(entry, line) -> None:
    assert entry.match(line) is None


@pytest.mark.parametrize("entry", [s for s in ALL if s.source == "joblog"], ids=lambda s: s.id)
@pytest.mark.parametrize("prefix", ["", "3: ", "[rank3]:", "[rank3]: ", "gpu003: ", "[default3]:", "0: [rank5]: "])
def test_a_launchers_prefix_changes_nothing(entry, prefix) -> None:
    for sample in entry.samples:
        told = entry.match(prefix + sample.line)
        assert told is not None and told.items() >= sample.groups.items()


def test_every_entry_has_near_misses_and_a_sentence_that_can_be_said() -> None:
    for entry in ALL:
        assert entry.near_misses and entry.hints, entry.id
        said = entry.say(entry.match(entry.samples[0].line) or {})
        assert "{" not in said and said


def test_the_lines_of_a_healthy_job_are_known_by_none() -> None:
    healthy = [
        " [2026-11-30 21:40:01.123] iteration       12/  100000 | consumed samples: 384 | elapsed time per iteration (ms): 503.9 | lm loss: 2.345678E+00 |",
        "n1:9:71 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        "[rank0]:[W1130 21:40:01.1 ProcessGroupNCCL.cpp:4115] Warning: using GPU 0 to perform barrier as devices used by this process are currently unknown.",
        "n1:9:71 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>",
        "UserWarning: torch.distributed._all_gather_base is a private function and will be deprecated.",
        "Error handling is enabled. No Exception was raised so far.",
    ]
    kernel = [
        "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
        "EXT4-fs (vda): mounted filesystem r/w without journal. Quota mode: none.",
        "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.124.06",
        "mlx5_core 0000:9a:00.0: mlx5_cmd_out_err:816:(pid 4242): ACCESS_REG(0x805) op_mod(0x1) failed",
        "perf: interrupt took too long (2511 > 2500), lowering kernel.perf_event_max_sample_rate to 79500",
    ]
    for source, lines in (("joblog", healthy), ("kernel", kernel)):
        for line in lines:
            assert [s.id for s in load().of(source) if s.match(line) is not None] == []


def test_noise_is_known_as_noise_and_accuses_nobody() -> None:
    # Another user's job has the RAS port of this node: harmless, and it looks like a fault.
    line = "n1:9:71 [0] NCCL WARN Call to bind failed: Address already in use"
    assert [(s.id, s.role) for s in load().of("joblog") if s.match(line) is not None] == [("nccl_ras_noise", "context")]


def test_at_least_thirty_lines_of_pytorch_and_nccl_stand_there_as_they_were_printed() -> None:
    families = ("watchdog_", "heartbeat_", "nccl_", "store_", "torchelastic_", "gloo_", "flight_recorder_")
    told = [sample for s in ALL if s.source == "joblog" and s.id.startswith(families) for sample in s.samples]
    assert len(told) >= 60


def hostile_lines(entry: Signature) -> list[str]:
    """10 kB lines that start like a match, over and over: the worst that a job could print."""
    rng = random.Random(entry.id)
    lines = []
    for sample in entry.samples[:2]:
        text = sample.line
        hint = next(h for h in entry.hints if h in text)
        lines += [text[:-1] * (10_000 // len(text) + 1), hint * (10_000 // len(hint) + 1)]
        middle = text.index(hint) + len(hint)
        lines += [(text[:middle] + c * 10_000)[:10_000] for c in (" ", "1", "a", "(", "a.", "_", ": ")]
        lines.append("".join(rng.choice(text) for _ in range(10_000)) + hint)
        lines.append((text[:middle] + " x") * (10_000 // (middle + 2) + 1))
    return lines


@pytest.mark.parametrize("entry", ALL, ids=lambda s: s.id)
def test_no_hostile_line_makes_a_signature_slow(entry) -> None:
    # CPU time, not wall time; a catastrophic pattern needs minutes here, a good one milliseconds.
    began = time.process_time()
    lines = hostile_lines(entry)
    for line in lines:
        entry.match(line)
    assert time.process_time() - began < 0.25 * len(lines)


# ---------------------------------------------------------------- what is refused


GOOD: dict[str, Any] = {
    "id": "x_y", "source": "joblog", "class": "c", "role": "victim", "pattern": "abc (?P<n>\\d{1,3})",
    "says": "saw {n}", "samples": ["abc 12"], "not": ["abc x"], "hint": "abc",
}  # fmt: skip


def problems(**change: Any) -> list[str]:
    entry = {k: v for k, v in {**copy.deepcopy(GOOD), **change}.items() if v is not ...}
    return signatures.read({"version": 1, "signatures": [entry]})[1]


def test_a_good_entry_has_no_problem() -> None:
    assert problems() == []


@pytest.mark.parametrize(
    "change, says",
    [
        ({"pattern": "abc ("}, "bad pattern"),
        ({"samples": ...}, "samples is missing"),
        ({"samples": []}, "samples is missing"),
        ({"samples": ["abd 12"]}, "does not match its sample"),
        ({"samples": [{"line": "abc 12", "groups": {"n": "13"}}]}, "n is '12' and not '13'"),
        ({"not": ["abc 99"]}, "matches its near-miss"),
        ({"hint": "xyz"}, "no hint stands in its sample"),
        ({"says": "saw {m}"}, "{m}, which is no group"),
        ({"role": "villain"}, "role 'villain' is none of"),
        ({"source": "dmesg"}, "source 'dmesg' is none of"),
        ({"sample": ["abc 1"]}, "did you mean 'samples'?"),
        ({"id": "Bad Id"}, "is not lower-case words"),
        ({"pattern": "(a+)*bc (?P<n>\\d{1,3})"}, "a repeat within a repeat"),
        ({"pattern": "(?:a|b*)*c (?P<n>\\d{1,3})"}, "a repeat within a repeat"),
        ({"also": ["nobody"]}, "`also` names 'nobody'"),
        ({"hint": [1]}, "hint is neither"),
        ({"class": 3}, "class is no text"),
    ],
)  # fmt: skip
def test_a_bad_entry_is_refused_with_one_line_that_says_why(change, says) -> None:
    found = problems(**change)
    assert len(found) == 1 and says in found[0] and "\n" not in found[0], found


def test_two_entries_of_one_id_are_refused() -> None:
    found = signatures.read({"version": 1, "signatures": [GOOD, GOOD]})[1]
    assert found == ["x_y: there are two of this id"]


@pytest.mark.parametrize(
    "data", [None, [], {"signatures": {}}, {"version": 2, "signatures": []}, {"version": 1, "signatures": [3]}]
)
def test_a_file_of_another_shape_is_refused(data) -> None:
    assert signatures.read(data)[1]


def test_an_unreadable_or_broken_file_is_a_configuration_error(tmp_path: Path) -> None:
    bad = tmp_path / "s.yaml"
    bad.write_text("signatures: [\n")
    with pytest.raises(ConfigError, match="not YAML"):
        load(bad)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.yaml")
    bad.write_text("!!python/object/apply:os.system ['true']\n")
    with pytest.raises(ConfigError):
        load(bad)
    bad.write_text(json.dumps({"version": 1, "signatures": [GOOD, GOOD, {**GOOD, "id": "z_z", "role": "x"}]}))
    with pytest.raises(ConfigError) as error:
        load(bad)
    assert len(str(error.value).splitlines()) == 2


def test_a_probe_gets_what_its_contract_says() -> None:
    for source in signatures.SOURCES:
        told = signatures.for_probe(source)
        assert told and all(set(t) - {"above"} == {"id", "pattern", "kind", "hint"} for t in told)
    assert {t["kind"] for t in signatures.for_probe("kernel") if t["id"].startswith("oom_kill")} == {"oom"}
