"""An Xid is a cause only on a GPU of the job, in its time, on a driver on which it means that; 45 never is."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written_dumps import everyone
from written_evidence import NOW, World, exit_line
from written_xids import BDFS, STALL, gpu_world, parts_of, tell, verdict_of, xid

from triage.model import Part

OFF = "GPU has fallen off the bus."
OPEN, LATE = ["0 1 all_reduce", "0 2 all_reduce open"], ["0 1 all_reduce"]
GONE = ["NVRM: The NVIDIA GPU 0000:3b:00.0", "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands."]  # fmt: skip


def cause(w):
    return w.fact("xids.cause")


# ---------------------------------------------------------------- whose GPU


def test_a_gpu_of_the_job_that_falls_off_the_bus_at_the_stall_is_a_cause_and_names_its_rank():
    assert parts_of(cause(gpu_world((0.5, xid(79))))) == [("gpu003", 4, 0, "0000:3b:00")]
    assert parts_of(cause(gpu_world((0.5, xid(79, bdf="0000:86:00"))))) == [("gpu003", 5, 1, "0000:86:00")]


def test_three_lines_without_a_number_tell_the_same():
    assert parts_of(cause(gpu_world(*((0.5 + i / 100, line) for i, line in enumerate(GONE))))) == [
        ("gpu003", 4, 0, "0000:3b:00")
    ]


def test_a_process_of_a_rank_in_the_line_names_the_rank_whatever_the_order_of_the_gpus_is():
    w = gpu_world((0.5, xid(48, "DBE", pid="1005", name="python")), gpus=[])
    assert parts_of(cause(w)) == [("gpu003", 5, None, "0000:3b:00")]
    assert cause(w).parts[0].label() == "gpu 0000:3b:00 (gpu003)"


def test_a_gpu_on_which_no_rank_works_accuses_nobody():
    env = {**World().record(4, "A")["env"], "CUDA_VISIBLE_DEVICES": "0,1"}
    change = {
        (rank, look): {"env": {**env, "LOCAL_RANK": str(rank % 2), "RANK": str(rank)}}
        for rank in (4, 5)
        for look in "AB"
    }
    w = gpu_world((0.5, xid(79, bdf="0000:af:00")), change=change, gpus=[*BDFS, "0000:af:00.0", "0000:d8:00.0"])
    assert cause(w).value == 0 and w.fact("xids.perhaps").value == 0 and not verdict_of(w).culprits


def test_where_it_is_not_known_which_gpus_the_job_uses_it_is_a_lead_and_no_verdict():
    w = gpu_world((0.5, xid(79)), gpus=[*BDFS, "0000:af:00.0"])  # three GPUs, two ranks, no CUDA_VISIBLE_DEVICES
    assert cause(w).value is None and "not known" in cause(w).reason
    told = verdict_of(w)
    assert told.verdict.id == "inconclusive" and not told.culprits
    assert "dead_rank/xid" in [lead.cause for lead in told.alternatives]


def test_numbers_inside_of_a_container_are_not_taken_for_those_of_the_node():
    change = {(rank, look): {"ns_pid": 7 + rank} for rank in (4, 5) for look in "AB"}
    w = gpu_world((0.5, xid(79)), change=change)
    (part,) = cause(w).parts  # all GPUs of the node are the job's; which rank works on it is not told
    assert (part.node, part.rank) == ("gpu003", None)


# ---------------------------------------------------------------- roles


@pytest.mark.parametrize("code", [45, 43, 137, 108, 174])
def test_symptoms_are_never_a_cause(code):
    w = gpu_world((0.5, xid(code, "Ch 00000008")))
    assert cause(w).value == 0 and w.fact("hard.events").value == 0
    assert w.fact("xids.symptom").value == 1 and not verdict_of(w).culprits


def test_xid_45_alone_condemns_no_node_in_200_random_worlds():
    rng = random.Random(45)
    for _ in range(200):
        lines = [
            (rng.uniform(-200, 90), xid(45, f"Ch {rng.randrange(99):08x}", pid=str(rng.choice([1004, 1005, 77])), bdf=rng.choice(BDFS)[:10]))
            for _ in range(rng.randrange(1, 6))
        ]  # fmt: skip
        w = gpu_world(*lines, driver=rng.choice([None, "535.129.03", "570.133.20", "595.45"]))
        assert cause(w).value == 0 and w.fact("hard.gpu").value == 0 and w.fact("xids.perhaps").value == 0


@pytest.mark.parametrize("code", [13, 31, 63, 92, 171, 157])
def test_what_is_the_programs_own_or_a_note_is_no_cause(code):
    w = gpu_world((0.5, xid(code, "x")))
    assert cause(w).value == 0
    assert w.fact("xids.application").value + w.fact("xids.info").value == 1


def test_a_symptom_is_not_told_beside_a_cause_on_any_node():
    w = gpu_world((0.5, xid(79)))
    tell(w, "gpu001", (0.7, xid(45, "Ch 8")))
    assert w.fact("xids.symptom").value == 0 and cause(w).value == 1


def test_xid_43_after_a_process_of_the_job_was_killed_is_not_told():
    w = World()
    w.dead = {5: "A"}
    w.processes().log(last_ago=100, hits=[exit_line(1005, -9, 1, STALL + 0.5)])
    tell(w, "gpu003", (1.0, xid(43, "Ch 8")), (1.2, xid(45, "Ch 8")))
    assert w.fact("xids.symptom").value == 0
    assert verdict_of(w).verdict.cause == "dead_rank/killed"


def test_a_45_that_names_what_it_follows_stands_for_a_line_that_is_lost():
    assert parts_of(cause(gpu_world((0.5, xid(45, "Ch 00000008 caused by previous Xid 48"))))) == [
        ("gpu003", 4, 0, "0000:3b:00")
    ]


def test_a_number_that_others_call_harmless_needs_a_second_word():
    assert cause(gpu_world((0.5, xid(109, "CTX SWITCH TIMEOUT")))).value is None
    assert cause(gpu_world((0.5, xid(109, "CTX SWITCH TIMEOUT")), (0.9, xid(109, "CTX SWITCH TIMEOUT")))).value == 1


def test_a_sympathetic_number_is_a_cause_only_alone():
    both = gpu_world((0.5, xid(159, "CHI", bdf="0000:86:00")), (0.6, xid(48, "DBE")))
    assert [p.gpu for p in cause(both).parts] == [0]
    assert cause(gpu_world((0.5, xid(159, "CHI")))).value == 1


# ---------------------------------------------------------------- driver and severity

NVLINK = "RLW_REMAP {} XC1 i0 Link 10 (0x00000082 0x00000040 0x00000000)"


@pytest.mark.parametrize(
    ("code", "words", "driver", "value"),
    [
        (145, NVLINK.format("Fatal"), "570.133.20", 1),
        (145, NVLINK.format("Nonfatal"), "570.133.20", 0),
        (145, NVLINK.format("Fatal"), None, 1),
        (144, "Key rotation", "550.90.07", 1),
        (144, "x", "570.133.20", None),
        (144, "x", None, None),
        (56, "x", "570.133.20", None),
        (888, "x", "570.133.20", None),
    ],
)
def test_a_number_that_depends_on_the_driver_is_unknown_where_the_driver_is(code, words, driver, value):
    fact = cause(gpu_world((0.5, xid(code, words)), driver=driver))
    assert fact.value == value and (value is not None or f"Xid {code}" in fact.reason)


# ---------------------------------------------------------------- when


@pytest.mark.parametrize(("after", "value"), [(-130, 0), (-100, 1), (0, 1), (1.5, 1), (20, 0), (90, 0)])
def test_it_must_come_before_the_end_of_the_stalls_beginning_and_not_long_before(after, value):
    assert cause(gpu_world((after, xid(79)))).value == value


def test_steps_that_ended_after_it_speak_against_it():
    assert any("steps" in word for word in cause(gpu_world((-60, xid(48, "DBE")))).contradicted_by)
    assert not cause(gpu_world((0.2, xid(48, "DBE")))).contradicted_by


def test_an_xid_of_a_job_that_advances_is_no_cause():
    w = World().processes().fabric(1e6).log(last_ago=0.5)
    for name in w.names:
        tell(w, name, (99, xid(79)) if name == "gpu003" else (0, "x"))
    assert cause(w).value == 0 and verdict_of(w).verdict.id == "healthy"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.floats(-400, 400), st.floats(-115, 95))
def test_a_clock_that_is_minutes_off_does_not_move_an_xid_against_the_stall(skew, after):
    """The node's clock is measured with its answers; the same Xid is judged alike whatever that clock says."""
    straight = gpu_world((after, xid(79)))
    skewed = gpu_world((after + skew, xid(79)))
    skewed.samples = [
        replace(s, at=s.at + skew) if s.node == "gpu003" and s.at is not None else s for s in skewed.samples
    ]
    assert cause(skewed).value == cause(straight).value


def test_of_two_the_first_is_told_and_within_the_error_of_the_clocks_neither():
    w = gpu_world((0.1, xid(48, "DBE")))
    tell(w, "gpu001", (1.4, xid(79)))
    assert parts_of(w.fact("xids.first")) == [("gpu003", 4, 0, "0000:3b:00")]
    tell(w, "gpu001", (0.15, xid(79)))
    assert w.fact("xids.first").value is None and "error of the clocks" in w.fact("xids.first").reason


# ---------------------------------------------------------------- could not read


@pytest.mark.parametrize("data", [{"readable": False}, {"readable": True, "boot_covered": False}])
def test_a_kernel_log_that_could_not_be_read_is_unknown_and_not_none(data):
    w = gpu_world()
    assert cause(w).value == 0
    w.samples = [s for s in w.samples if not (s.probe == "kernel" and s.node == "gpu002")]
    w.add("kernel", "gpu002", "A", {"events": [], **data})
    assert cause(w).value is None and "gpu002" in cause(w).reason


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "id": st.sampled_from(["xid", "gpu_off_bus", "xid_nvlink", "xid_cascade", "xid_recovery", "sxid", "gpu_uuid"]),
                "at": st.one_of(st.none(), st.floats(0, 1e10), st.just(STALL)),
                "last_at": st.one_of(st.none(), st.floats(0, 1e10)),
                "count": st.one_of(st.none(), st.integers(0, 10**9)),
                "text": st.text(max_size=80),
                "groups": st.dictionaries(
                    st.sampled_from(["bdf", "xid", "pid", "severity", "previous", "action", "uuid"]),
                    st.one_of(st.text(max_size=20), st.sampled_from(["79", "144", "0000:3b:00", "1004", "Fatal"])),
                    max_size=5,
                ),
            }
        ),
        max_size=6,
    )
)  # fmt: skip
def test_whatever_a_node_says_of_its_gpus_the_facts_answer(told):
    w = gpu_world()
    w.samples = [s for s in w.samples if not (s.probe == "kernel" and s.node == "gpu003")]
    w.add("kernel", "gpu003", "A", {"readable": True, "events": told, "nvidia": {"driver": None, "gpus": BDFS}})
    for name in ("xids.cause", "xids.perhaps", "xids.first", "xids.symptom", "xids.application", "xids.info", "xids.told_action", "xids.switch", "hard.gpu", "hard.events"):  # fmt: skip
        found = w.fact(name)
        assert "please report" not in (found.reason or ""), found.reason


# ---------------------------------------------------------------- verdicts


def test_a_lost_gpu_and_survivors_that_wait_for_its_rank_are_two_roads_to_it():
    told = verdict_of(gpu_world((0.5, xid(79))), everyone(OPEN, r4=LATE))
    assert (told.verdict.cause, told.verdict.confidence) == ("dead_rank/gpu_lost", "high")
    assert [(c.kind, c.node, c.rank, c.gpu) for c in told.culprits] == [("gpu", "gpu003", 4, 0)]
    assert any("sources agree" in why and "kernel" in why for why in told.verdict.why)
    assert told.mitigation["recommended"]["strategy"] == "S4" and told.mitigation["restart"]["exclude_nodes"] == [
        "gpu003"
    ]


def test_the_kernel_alone_says_so_and_is_less_sure():
    told = verdict_of(gpu_world((0.5, xid(48, "DBE"))))
    assert (told.verdict.cause, told.verdict.confidence) == ("dead_rank/xid", "medium")
    assert any("One source alone (kernel)" in why for why in told.verdict.why)


@pytest.mark.parametrize(
    "lib", ["", "2.27.5"]
)  # without it the records do not tell a failed operation from a finished one
def test_survivors_that_wait_for_another_rank_leave_the_xid_a_lead(lib):
    told = verdict_of(gpu_world((0.5, xid(48, "DBE"))), everyone(OPEN, r1=LATE), lib=lib)
    assert told.verdict.id == "inconclusive" and not told.culprits
    assert "dead_rank/xid" in [lead.cause for lead in told.alternatives]


def test_a_rank_that_ended_by_an_exception_on_a_lost_gpu_is_laid_to_the_gpu():
    w = World()
    w.dead = {4: "A"}
    w.processes().fabric(0).log(last_ago=100, hits=[exit_line(1004, -9, 0, STALL + 0.9)])
    for name in w.names:
        tell(w, name)
    tell(w, "gpu003", (0.5, xid(79, pid="1004", name="python")))
    told = verdict_of(w, {**everyone(OPEN), 4: None})
    assert told.verdict.cause == "dead_rank/gpu_lost" and told.culprits[0].rank == 4


def test_a_death_on_another_node_at_the_same_time_takes_confidence_away():
    w = World()
    w.dead = {1: "A"}
    w.processes().fabric(0).log(last_ago=100, hits=[exit_line(1001, -9, 1, STALL + 0.1)])
    for name in w.names:
        tell(w, name)
    tell(w, "gpu003", (0.5, xid(48, "DBE")))
    assert any("rank 1" in word for word in w.fact("hard.gpu").contradicted_by)


def by_nvml(w, monkeypatch, *parts):
    """NVML says that these GPUs are lost."""
    from triage.facts import hard, registry
    from triage.facts.registry import known

    told = known(
        parts=[Part("gpu", "gpu003", rank, index, name=name, why="GPU is lost") for rank, index, name in parts]
    )
    monkeypatch.setattr(hard, "other", lambda ev, name: told if name == hard.NVML_LOST else registry.other(ev, name))
    return w.add("gpu", "gpu003", "A", {"nvml": "ok", "gpus": []})


def test_nvml_and_the_kernel_are_two_roads_to_a_lost_gpu_and_either_leads_there(monkeypatch):
    both = by_nvml(gpu_world((0.5, xid(79))), monkeypatch, (4, 0, "0000:3b:00.0")).fact("hard.gpu_lost")
    assert parts_of(both) == [("gpu003", 4, 0, "0000:3b:00")] and {p.probe for p in both.provenance} == {
        "kernel",
        "gpu",
    }
    w = by_nvml(gpu_world(), monkeypatch, (4, 0, None))
    assert parts_of(w.fact("hard.gpu_lost")) == [("gpu003", 4, 0, None)]
    told = verdict_of(w, everyone(OPEN, r4=LATE), lib="2.27.5")
    assert (told.verdict.cause, told.verdict.confidence) == ("dead_rank/gpu_lost", "high")


def test_a_gpu_that_nvml_calls_lost_while_the_job_advances_is_no_event(monkeypatch):
    w = World().processes().fabric(1e6).log(last_ago=0.5)
    assert by_nvml(w, monkeypatch, (4, 0, None)).fact("hard.gpu_lost").value == 0


def test_nvml_that_gets_an_answer_from_the_gpu_contradicts_the_kernel():
    w = gpu_world((0.5, xid(79)))
    w.add("gpu", "gpu003", "A", {"nvml": "ok", "gpus": [{"bdf": "0000:3b:00.0", "index": 0, "status": "ok"}]})
    assert any("NVML" in word for word in cause(w).contradicted_by)


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        (["GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"], 1),
        (["GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
          "GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)"], 0),
        ([], 0),
    ],
)  # fmt: skip
def test_what_the_driver_asks_for_is_told_until_it_has_recovered(lines, value):
    fact = gpu_world(*((i, xid(154, words)) for i, words in enumerate(lines))).fact("xids.told_action")
    assert fact.value == value and ("reset the GPU" in fact.text or not value)


def test_a_fatal_error_of_a_switch_is_a_finding_and_no_verdict():
    w = gpu_world((0.5, "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 32 LTSSM Fault Up"))
    assert [p.node for p in w.fact("xids.switch").parts] == ["gpu003"] and not verdict_of(w).culprits
    assert NOW > STALL
