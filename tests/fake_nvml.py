"""GPUs for tests: a fake driver library (fake_nvml.c, built once a session) under the real pynvml, and a PCI tree beside it.

    data = scenario("thermal straggler", gpu=3).run_probe(tmp_path)     # what probes/gpu.py answers, on this interpreter
    s = healthy(); s.gpu(2, clock1="1410", reasons="0x40"); s.card(2, current_link_width="8")
    s.write(tmp_path)    # may be called again while the probe runs: the library reads the file anew

A value is what fake_nvml.c understands: a number, a text, "!15" (an NVML error), "!abort" (the process dies), "~5000 1" (sleeps first), "a|b" (changes every
100 ms), "5+2e8" (a counter and its rate).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
PROBE = Path(__file__).parents[1] / "probes" / "gpu.py"
DRIVER = "580.95.05"
LOST, NOT_LOADED, MISMATCH, NO_PERMISSION = "!15", "!9", "!18", "!4"


@cache
def library(*flags: str) -> Path:
    """The fake library, built with gcc; skips the test that asks for it where there is none."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not here to build the fake driver")
    out = Path(tempfile.mkdtemp(prefix="fake-nvml-")) / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-O1", "-Wall", "-shared", "-fPIC", *flags, "-o", str(out), str(SOURCE)], check=True)
    return out


def address(index: int) -> str:
    """PCI address of a GPU of an eight-way machine."""
    return f"0000:{(0x19, 0x3B, 0x4C, 0x5D, 0x9B, 0xBB, 0xCB, 0xDB)[index % 8] + index // 8:02x}:00.0"


class Scenario:
    """What the driver and the PCI bus of one node say."""

    def __init__(self, gpus: int = 8, driver: str = DRIVER) -> None:
        self.lines: dict[tuple[int, str], str] = {}
        self.cards: dict[str, dict[str, str]] = {}
        self.flags: tuple[str, ...] = ()
        self.library: str | None = None  # another one than the fake
        self.driver(driver=driver, count=str(gpus))
        for index in range(gpus):
            self.cards[address(index)] = {
                "vendor": "0x10de", "class": "0x030200", "current_link_speed": "32.0 GT/s PCIe",
                "max_link_speed": "32.0 GT/s PCIe", "current_link_width": "16", "max_link_width": "16",
                "numa_node": str(index // 4), "aer_dev_fatal": "TOTAL_ERR_FATAL 0", "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0",
            }  # fmt: skip
            # An H100 in the middle of training (notes/gpu-health.md 2 and 4).
            self.gpu(
                index, bdf=address(index), minor=index, name="NVIDIA H100 80GB HBM3", uuid=f"GPU-{index:08d}-0000", arch=9,
                serial=1650000 + index, persistence=1, mig=0, pids=4000 + index, temp0=64 + index % 3, threshold1=87,
                threshold2=95, threshold3=83, margin=20, clock1="1935|1950|1965|1935", clock2=2619, max1=1980, max2=2619,
                reasons="0x4", power_mw=640000, limit_mw=700000, default_limit_mw=700000, energy_mj="9e9+640000", util=99,
                mem_util=45, ecc1_0=0, ecc0_0=2, ecc1_1_7=0, remap_corr=0, remap_unc=0, remap_pending=0, remap_failed=0,
                gen=5, width=16, max_gen=5, max_width=16, replay=0, fabric=3, fabric_status=0, fabric_mask=0x1AA, gpm=1,
                gpm2=82, gpm5=55, gpm10=40, gpm60=9000, gpm61=9000,
            )  # fmt: skip
            self.fields(index, {82: 71, 186: "640000|655000|630000", 230: 0, 251: 0, 74: "4e12+9e8", 75: "2e9", 76: 0,
                                77: 0, 78: "8e12", 79: 0, 81: 0, 269: 0, 270: 0, 271: 0})  # fmt: skip
            for link in range(18):
                self.gpu(index, **{f"nvlink{link}": 1}, **{f"nvlink{link}_error{n}": 0 for n in range(3)})

    def driver(self, **values: object) -> Scenario:
        return self.gpu(-1, **values)

    def gpu(self, index: int, **values: object) -> Scenario:
        self.lines.update({(index, key): str(value) for key, value in values.items()})
        return self

    def every(self, **values: object) -> Scenario:
        for index in range(len(self.cards)):
            self.gpu(index, **values)
        return self

    def fields(self, index: int, values: dict[int, object]) -> Scenario:
        """Values of nvmlDeviceGetFieldValues by number."""
        return self.gpu(index, **{f"fi{number}": value for number, value in values.items()})

    def without(self, *keys: str) -> Scenario:
        """What this driver or card does not support."""
        self.lines = {at: value for at, value in self.lines.items() if at[1] not in keys}
        return self

    def card(self, index: int, **files: str) -> Scenario:
        self.cards[address(index)].update(files)
        return self

    def write(self, folder: Path) -> dict[str, str]:
        """Write the driver's file, the PCI tree and an empty procfs; the environment that makes the probe see them."""
        text = "".join(f"{gpu}.{key} = {value}\n" for (gpu, key), value in self.lines.items())
        spool = folder / f"driver.{threading.get_ident()}"
        spool.write_text(text)
        spool.replace(folder / "driver.txt")
        for bdf, files in self.cards.items():
            here = folder / "sys/bus/pci/devices" / bdf
            here.mkdir(parents=True, exist_ok=True)
            for name, value in files.items():
                (here / name).write_bytes((value if name == "config" else value + "\n").encode("latin-1"))
        (folder / "proc/driver/nvidia").mkdir(parents=True, exist_ok=True)
        return {
            "FAKE_NVML_FILE": str(folder / "driver.txt"),
            "TRIAGE_NVML": self.library or str(library(*self.flags)),
            "TRIAGE_SYSFS": str(folder / "sys"),
            "TRIAGE_PROCFS": str(folder / "proc"),
        }

    def run_probe(
        self, folder: Path, look: str = "A", python: str = sys.executable, **args: object
    ) -> dict[str, object]:
        """The answer's data of probes/gpu.py. AssertionError with the envelope where its status is not ok."""
        answer = self.envelope(folder, look, python, **args)
        assert answer["status"] == "ok", answer
        return dict(answer["data"])

    def envelope(
        self, folder: Path, look: str = "A", python: str = sys.executable, **args: object
    ) -> dict[str, object]:
        import pynvml

        env = {**os.environ, **self.write(folder), "PYTHONPATH": str(Path(pynvml.__file__).parent)}
        argv = [python, "-S", str(PROBE), "--look", look, "--args", json.dumps({"window_s": 0.4, **args})]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stderr == "", (done.returncode, done.stderr)
        return dict(json.loads(done.stdout))


# ---------------------------------------------------------------- the scenarios


def healthy(gpus: int = 8) -> Scenario:
    return Scenario(gpus)


def thermal(gpu: int = 3) -> Scenario:
    """Hot, and its clocks cut by the hardware because of it: slower than its peers."""
    s = healthy().gpu(gpu, clock1="1380|1395|1410", reasons="0x40", temp0=88, power_mw=430000, gpm5=61)
    return s.fields(gpu, {186: "430000|440000|420000", 270: "7e12+9.5e8", 75: "7e12+9.5e8"})


def power_brake() -> Scenario:
    """The chassis asks all GPUs of the node to slow down."""
    s = healthy().every(clock1="990|1005", reasons="0x88", power_mw=300000)
    for index in range(8):
        s.fields(index, {186: 300000, 271: "3e12+9.9e8"})
    return s


def capped_alike() -> Scenario:
    """All at the power limit, as under any full load: no fault."""
    s = healthy().every(clock1="1590|1605|1575", reasons="0x4", power_mw=699000)
    for index in range(8):
        s.fields(index, {186: "699000|698000|700000", 74: "9e12+9.8e8"})
    return s


def low_limit(gpu: int = 5) -> Scenario:
    """Somebody left a lower power limit on one GPU."""
    s = healthy().gpu(gpu, limit_mw=450000, clock1="1335|1350|1320", reasons="0x4", power_mw=449000)
    return s.fields(gpu, {186: "449000|450000", 74: "9e12+9.9e8"})


def clock_lock(gpu: int = 2) -> Scenario:
    """Somebody locked the clocks of one GPU: no reason bit tells it (notes/gpu-health.md 2.3)."""
    return healthy().gpu(gpu, clock1="1410", reasons="0x0", power_mw=420000).fields(gpu, {186: 420000, 74: "4e12"})


def spin_hang(gpu: int = 6) -> Scenario:
    """A frozen job: seven GPUs spin in a collective, one has not launched it."""
    s = healthy().every(
        util=100, mem_util=0, power_mw=118000, reasons="0x0", clock1="1980", gpm2=1, gpm5=0, gpm10=0, gpm60=0, gpm61=0
    )
    for index in range(8):
        s.fields(index, {186: "118000|119000"})
    return s.gpu(gpu, util=0, power_mw=112000, reasons="0x1").fields(gpu, {186: 112000})


def lost(gpu: int = 1) -> Scenario:
    """Fallen off the bus: its handle fails, its configuration space reads ff."""
    return healthy().gpu(gpu, handle=LOST).driver(count="7").card(gpu, config="\xff" * 4)


def gsp_hang(gpu: int = 4, block_ms: int = 45000) -> Scenario:
    """Its firmware does not answer: each call that needs it blocks."""
    return healthy().gpu(gpu, temp0=f"~{block_ms} !10", ecc1_0=f"~{block_ms} !10")


def remap_pending(gpu: int = 0) -> Scenario:
    return healthy().gpu(gpu, remap_unc=1, remap_pending=1).fields(gpu, {230: 1})


def remap_failed(gpu: int = 0) -> Scenario:
    return healthy().gpu(gpu, remap_unc=4, remap_failed=1, ecc1_0=12).fields(gpu, {230: 1})


def nvlink_down(gpu: int = 7, link: int = 11) -> Scenario:
    return healthy().gpu(gpu, **{f"nvlink{link}": 0, f"nvlink{link}_error1": 40})


def pcie_slow(gpu: int = 2) -> Scenario:
    """Generation 1 while it works."""
    return healthy().gpu(gpu, gen=1).card(gpu, current_link_speed="2.5 GT/s PCIe")


def hot_but_fine(gpu: int = 3) -> Scenario:
    return healthy().gpu(gpu, temp0=86, margin=1).fields(gpu, {82: 92})


def mig() -> Scenario:
    return (
        healthy().every(mig=1).without("util", "mem_util", "remap_corr", "remap_unc", "remap_pending", "remap_failed")
    )


def old_driver() -> Scenario:
    """525: no event-reasons name, no instant power, no recovery action, no GPM."""
    s = Scenario(driver="525.147.05").without("fi186", "fi230", "fi269", "fi270", "fi271", "margin", "fabric", "gpm")
    s.flags = ("-DOLD",)
    return s


def driver_575(gpu: int = 3) -> Scenario:
    """The thermal times have other numbers, and 269 to 271 are power smoothing there."""
    s = Scenario(driver="575.57.08").gpu(gpu, clock1="1380", reasons="0x40", power_mw=430000)
    return s.fields(gpu, {251: 0, 252: "5e12+9e8", 253: 0, 269: 7, 270: 7, 271: 7, 186: 430000})


def no_library() -> Scenario:
    s = healthy()
    s.library = "/nowhere/libnvidia-ml.so.1"
    return s


def mismatch() -> Scenario:
    return healthy().driver(init=MISMATCH)


def not_loaded() -> Scenario:
    return healthy().driver(init=NOT_LOADED)


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "healthy": healthy, "thermal straggler": thermal, "power brake": power_brake, "capped all alike": capped_alike,
    "one low limit": low_limit, "clock lock": clock_lock, "spin hang": spin_hang, "lost": lost, "gsp hang": gsp_hang,
    "remap pending": remap_pending, "remap failed": remap_failed, "nvlink one lane down": nvlink_down,
    "pcie gen 1 under load": pcie_slow, "hot but fine": hot_but_fine, "mig": mig, "old driver": old_driver,
    "driver 575": driver_575, "no library": no_library, "mismatch": mismatch, "driver not loaded": not_loaded,
}  # fmt: skip
