"""The gpu probe over the real pynvml and a fake driver: each scenario is told as it is, and what hangs costs only itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import fake_nvml
import pytest
from triage.probes import _nvml, _pci

from triage.readers.shapes import problem
from triage.transports import payload


def told(tmp_path, scenario, **args):
    data = scenario.run_probe(tmp_path, **args)
    assert problem("gpu", data) is None
    return data


@pytest.mark.parametrize("name", [name for name in fake_nvml.SCENARIOS if name != "gsp hang"])
def test_every_scenario_has_the_shape_that_facts_read_and_all_gpus_of_the_bus(tmp_path, name):
    data = told(tmp_path, fake_nvml.SCENARIOS[name]())
    assert [gpu["bdf"] for gpu in data["gpus"]] == [fake_nvml.address(i) for i in range(8)]
    assert len(json.dumps(data)) < 32_000


def test_a_healthy_gpu_is_told_in_full(tmp_path):
    data = told(tmp_path, fake_nvml.healthy())
    assert (data["nvml"], data["driver"]) == ("ok", fake_nvml.DRIVER) and data["samples"] >= 4
    gpu = data["gpus"][2]
    assert (gpu["status"], gpu["index"], gpu["name"], gpu["pids"]) == ("ok", 2, "NVIDIA H100 80GB HBM3", [4002])
    assert gpu["sm_clock_mhz"][0] >= 1935 and gpu["sm_clock_mhz"][4] <= 1965 and gpu["loaded_share"] == 1.0
    assert gpu["power_limit_w"] == 700.0 and 600 < gpu["power_w"][2] < 660
    assert gpu["reasons"]["power_cap"] == 1.0 and gpu["reasons_any"] == 4
    assert (gpu["nvlinks"], gpu["nvlinks_down"], gpu["recovery_action"]) == ([18, 18], [], 0)
    assert gpu["mem_temp_c"] == 71 and gpu["tensor_pct"] == [55.0] * 5 and gpu["fabric_state"] == 3
    # 0.9 s of each second at the power cap, measured within the window.
    assert 0.8 < gpu["limited_window_ns"]["power_cap"] / 1e9 / data["window_s"] < 1.0


def test_what_limits_a_gpu_is_told_by_bit_and_by_time(tmp_path):
    gpu = told(tmp_path, fake_nvml.thermal(3))["gpus"][3]
    assert gpu["reasons"] == {"hw_thermal": 1.0} and gpu["reasons_any"] == 0x40
    assert gpu["limited_window_ns"]["hw_thermal"] > 0 and "power_brake" not in gpu["limited_window_ns"]
    assert gpu["limited_ns"]["power_brake"] == 0


def test_a_reason_that_flashes_is_a_share_of_the_samples(tmp_path):
    scenario = fake_nvml.healthy().gpu(1, reasons="0|0|0|8|0|0|0|0|0|0")
    share = told(tmp_path, scenario, window_s=1.2)["gpus"][1]["reasons"]["hw_slowdown"]
    assert 0.0 < share < 0.35


def test_a_gpu_that_fell_off_the_bus_is_told_with_its_address(tmp_path):
    data = told(tmp_path, fake_nvml.lost(1))
    gpu = data["gpus"][1]
    assert gpu["status"] == "lost" and gpu["bdf"] == fake_nvml.address(1) and "PCI bus" in gpu["status_why"]
    assert [g["status"] for g in data["gpus"]].count("ok") == 7 and data["nvml"] == "ok"


def test_one_that_is_lost_while_it_is_read_keeps_what_was_read_before(tmp_path):
    scenario = fake_nvml.healthy().gpu(4, clock1=fake_nvml.LOST, temp0=fake_nvml.LOST)
    gpu = told(tmp_path, scenario)["gpus"][4]
    assert gpu["status"] == "lost" and gpu["name"].startswith("NVIDIA") and gpu["nulls"]["temp_c"] == "lost"


def test_a_gpu_whose_firmware_hangs_costs_only_its_own_answer(tmp_path):
    began = time.monotonic()
    data = told(tmp_path, fake_nvml.gsp_hang(4, block_ms=60_000))
    assert time.monotonic() - began < 12
    gpu = data["gpus"][4]
    assert gpu["status"] == "hung" and gpu["child_state"] == "S" and "health" in gpu["status_why"]
    assert gpu["name"] == "NVIDIA H100 80GB HBM3"  # what came before the hang is not lost
    assert [g["status"] for g in data["gpus"]].count("ok") == 7 and data["nvml"] == "ok"


def test_a_driver_that_hangs_at_its_start_is_a_finding_and_no_child_is_left(tmp_path):
    scenario = fake_nvml.healthy(2).driver(init="~60000 0")
    data = told(tmp_path, scenario)
    assert data["nvml"] == "hung" and {g["status"] for g in data["gpus"]} == {"hung"}
    marks = [p for p in Path("/proc").glob("[0-9]*/environ") if str(tmp_path).encode() in readable(p)]
    assert marks == []


def readable(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_gpu_that_hung_before_is_not_asked_again(tmp_path):
    data = told(tmp_path, fake_nvml.gsp_hang(4, block_ms=60_000), skip=[fake_nvml.address(4)])
    assert data["gpus"][4]["status"] == "hung" and "not asked again" in data["gpus"][4]["status_why"]
    assert data["gpus"][3]["status"] == "ok"


@pytest.mark.parametrize(
    ("name", "outcome", "word"),
    [
        ("no library", "library_missing", "cannot open shared object"),
        ("mismatch", "mismatch", "mismatch"),
        ("driver not loaded", "driver_not_loaded", "Not Loaded"),
    ],
)
def test_why_nvml_cannot_be_asked_is_told_in_its_own_words(tmp_path, name, outcome, word):
    data = told(tmp_path, fake_nvml.SCENARIOS[name]())
    assert data["nvml"] == outcome and word in data["nvml_why"]
    # The bus tells the GPUs all the same.
    assert {(g["status"], g["pcie_gen"]) for g in data["gpus"]} == {("not_told", 5)}


def test_a_file_that_is_no_library_is_told_with_the_loaders_own_reason(tmp_path):
    scenario = fake_nvml.healthy()
    (tmp_path / "broken.so").write_bytes(b"")
    scenario.library = str(tmp_path / "broken.so")
    data = told(tmp_path, scenario)
    assert data["nvml"] == "library_missing" and "file too short" in data["nvml_why"]


def test_an_old_driver_costs_fields_and_never_the_gpu(tmp_path):
    data = told(tmp_path, fake_nvml.old_driver())
    gpu = data["gpus"][0]
    assert gpu["status"] == "ok" and gpu["reasons"]["power_cap"] == 1.0  # by the function's older name
    assert gpu["recovery_action"] is None and gpu["tensor_pct"] is None and gpu["fabric_state"] is None
    assert gpu["nulls"]["margin_c"] == gpu["nulls"]["fabric_state"] == "function_missing"
    assert "sw_thermal" not in gpu["limited_ns"] and gpu["power_w"][2] == 640.0  # a mean of a second, not the instant


def test_the_thermal_times_are_read_by_the_numbers_of_the_driver(tmp_path):
    gpu = told(tmp_path, fake_nvml.driver_575(3))["gpus"][3]
    assert gpu["limited_window_ns"]["hw_thermal"] > 0 and gpu["limited_ns"]["sw_thermal"] == 0
    between = fake_nvml.thermal(3)
    between.driver(driver="580.70.01")
    assert "hw_thermal" not in told(tmp_path, between)["gpus"][3]["limited_ns"]


@pytest.mark.parametrize(
    ("driver", "first", "smoothing"),
    [("", None, None), ("550.54.15", None, None), ("570.133.20", None, 251), ("575.57.08", 251, 256), ("580.65.06", 251, 256),
     ("580.70", None, None), ("580.82.07", 269, 251), ("595.45.04", 269, 251), ("nonsense", None, None)],
)  # fmt: skip
def test_which_numbers_a_driver_has(driver, first, smoothing):
    assert _nvml.moved_fields(_nvml.version_of(driver)) == (first, smoothing)


def test_a_field_that_failed_is_null_although_its_value_reads_zero(tmp_path):
    scenario = fake_nvml.healthy().fields(5, {230: "!3", 82: "!3"})
    gpu = told(tmp_path, scenario)["gpus"][5]
    assert gpu["recovery_action"] is None and gpu["mem_temp_c"] is None
    assert gpu["nulls"]["recovery_action"] == gpu["nulls"]["mem_temp_c"] == "not_supported"


def test_only_what_is_null_has_a_reason_to_be_null(tmp_path):
    # The older name answered for the newer one, the mean for the instant; link 18 is not a link that is missing.
    gpu = told(tmp_path, fake_nvml.old_driver())["gpus"][0]
    assert not {"reasons_any", "power_w", "nvlinks"} & set(gpu["nulls"])
    assert all(gpu.get(name) is None for name in gpu["nulls"])
    assert gpu["nulls"]["recovery_action"] == gpu["nulls"]["limited_ns.hw_thermal"] == "not_read"
    blind = told(tmp_path, fake_nvml.healthy().gpu(1, reasons="!4"))["gpus"][1]
    assert (blind["reasons"], blind["reasons_any"], blind["nulls"]["reasons_any"]) == ({}, None, "no_permission")


def test_a_library_that_dies_while_it_is_asked_leaves_no_half_answer_that_looks_whole(tmp_path):
    data = told(tmp_path, fake_nvml.healthy(2).gpu(1, temp0="!abort"))
    gpu = data["gpus"][1]
    assert (gpu["status"], gpu["status_why"]) == ("error", "the child that asked it died (limits)")
    assert gpu["name"] == "NVIDIA H100 80GB HBM3" and data["gpus"][0]["status"] == "ok"
    data = told(tmp_path, fake_nvml.healthy(2).driver(init="!abort"))
    assert (data["nvml"], data["nvml_why"]) == ("error", "the children that asked it died")


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [(0, "71.5", 71.5), (1, "71", 71), (5, "-3", -3), (9, "71", None), (0, "nan", None), (0, "inf", None)],
)
def test_a_field_is_decoded_by_its_type(tmp_path, kind, value, read):
    scenario = fake_nvml.healthy(1).gpu(0, fi82=value, fi82_type=kind)
    data = scenario.run_probe(tmp_path)
    assert data["gpus"][0]["mem_temp_c"] == read


def test_a_denied_call_is_no_permission_and_not_zero(tmp_path):
    gpu = told(tmp_path, fake_nvml.healthy().gpu(0, ecc1_0=fake_nvml.NO_PERMISSION))["gpus"][0]
    assert gpu["ecc_unc"] is None and gpu["nulls"]["ecc_unc"] == "no_permission"


def test_mig_has_no_utilisation_and_says_so(tmp_path):
    gpu = told(tmp_path, fake_nvml.mig())["gpus"][0]
    assert gpu["mig"] is True and gpu["util_pct"] is None and gpu["nulls"]["util_pct"] == "not_supported"
    assert gpu["loaded_share"] is None and gpu["loaded_n"] == 0


def test_links_that_are_down_and_slow_are_told(tmp_path):
    gpu = told(tmp_path, fake_nvml.nvlink_down(7, 11))["gpus"][7]
    assert gpu["nvlinks"] == [17, 18] and gpu["nvlinks_down"] == [11] and gpu["nvlink_errors"] == 40
    assert told(tmp_path, fake_nvml.pcie_slow(2))["gpus"][2]["pcie_gen"] == 1


def test_a_node_without_a_gpu_is_absent(tmp_path):
    answer = fake_nvml.Scenario(0).envelope(tmp_path)
    assert answer["status"] == "absent"


def test_the_driver_file_of_the_bus_names_a_gpu_that_nvml_does_not(tmp_path):
    scenario = fake_nvml.mismatch()
    scenario.write(tmp_path)
    here = tmp_path / "proc/driver/nvidia"
    folder = here / "gpus" / fake_nvml.address(0)
    folder.mkdir(parents=True)
    (folder / "information").write_text("Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-77\nDevice Minor: \t 0\nIRQ: 5\n")
    (here / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build  (x)\nGCC version: 13\n"
    )
    data = told(tmp_path, scenario)
    assert data["driver"] == "570.133.20"
    assert (data["gpus"][0]["name"], data["gpus"][0]["uuid"], data["gpus"][0]["minor"]) == ("NVIDIA H200", "GPU-77", 0)


def test_below_another_root_the_hosts_own_driver_is_not_asked(tmp_path):
    env = fake_nvml.healthy().write(tmp_path)
    del env["TRIAGE_NVML"]
    script = str(fake_nvml.PROBE)
    done = subprocess.run([sys.executable, "-S", script], env={**os.environ, **env}, capture_output=True, text=True)
    assert json.loads(done.stdout)["data"]["nvml"] == "not_asked"


def test_hostile_files_of_the_bus_are_nulls(tmp_path):
    scenario = fake_nvml.healthy()
    scenario.card(
        0,
        current_link_speed="\x1b[2J" * 40,
        numa_node="-1",
        max_link_width="9" * 200,
        aer_dev_fatal="TOTAL_ERR_FATAL x",
    )
    scenario.lines = {at: value for at, value in scenario.lines.items() if at[0] != 0 or at[1] in ("bdf",)}
    gpu = told(tmp_path, scenario)["gpus"][0]
    assert (gpu["pcie_gen"], gpu["numa"], gpu["pcie_width_max"], gpu["aer_fatal"]) == (None, None, None, None)
    assert gpu["status"] == "ok" and gpu["nulls"]["name"] == "not_supported"


def interpreters():
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    return [sys.executable, *map(str, sorted(home.glob("3.*/bin/python")))]


@pytest.mark.parametrize("python", interpreters())
def test_the_carried_pynvml_works_from_the_payload_on_every_interpreter(tmp_path, python):
    env = {**os.environ, **fake_nvml.thermal(3).write(tmp_path)}
    line = payload.request("A", 1, {"gpu": {"window_s": 0.3}}, 8.0)
    child = subprocess.Popen(
        [python, "-I", "-S", "-c", payload.BOOT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    )
    out, _ = child.communicate(payload.build(["gpu"]) + line, timeout=60)
    # The end of input ends what runs: so ask again with the input kept open.
    assert b'"_begin"' in out
    child = subprocess.Popen(
        [python, "-I", "-S", "-c", payload.BOOT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    )
    child.stdin.write(payload.build(["gpu"]) + line)
    child.stdin.flush()
    answer = None
    for raw in child.stdout:
        if b'"probe"' in raw and b'"gpu"' in raw:
            answer = json.loads(raw)
            break
    child.stdin.close()
    child.wait(timeout=20)
    assert answer is not None and answer["status"] == "ok", answer
    assert answer["data"]["nvml"] == "ok" and answer["data"]["gpus"][3]["reasons"]["hw_thermal"] == 1.0


def test_generations_and_totals_of_the_bus():
    assert [_pci.generation(t) for t in ("2.5 GT/s PCIe", "32.0 GT/s PCIe", "Unknown", None, "")] == [
        1,
        5,
        None,
        None,
        None,
    ]
    assert _pci.total("RxErr 0\nBadTLP 3\nTOTAL_ERR_FATAL 3\n") == 3 and _pci.total("") is None
