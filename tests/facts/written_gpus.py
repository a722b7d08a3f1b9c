"""GPUs written by hand, as probes/gpu.py tells them: eight H100 in the middle of training, and what a test changes of them."""

from __future__ import annotations

import random

from written_evidence import World

STEP_MS = 400.0


def card(index, **changes):
    """One GPU at work. `clock`, `power`, `util` and `tensor` set a whole distribution."""
    clock, power = changes.pop("clock", 1950), changes.pop("power", 640)
    util, tensor = changes.pop("util", 99), changes.pop("tensor", 55)
    loaded = util >= 90
    row = {
        "bdf": f"0000:{0x19 + index:02x}:00.0", "index": index, "uuid": f"GPU-{index}", "name": "NVIDIA H100 80GB HBM3",
        "status": "ok", "mig": False, "temp_c": 64, "power_limit_w": 700, "max_sm_clock_mhz": 1980, "n": 60, "util_pct": [util] * 5,
        "sm_clock_mhz": _around(clock), "sm_clock_loaded": _around(clock) if loaded else None, "loaded_n": 60 if loaded else 0,
        "loaded_share": 1.0 if loaded else 0.0, "power_w": [power - 30, power - 10, power, power + 10, power + 15],
        "tensor_pct": [tensor] * 5, "mem_clock_mhz": [2619] * 5, "reasons": {"power_cap": 0.9}, "reasons_any": 4,
        "limited_window_ns": {"thermal": 0, "sw_thermal": 0, "hw_thermal": 0, "power_brake": 0}, "limited_ns": {},
        "pcie_gen": 5, "pcie_width": 16, "ecc_corr": 0, "remap_pending": False, "remap_failed": False, "nulls": {},
    }  # fmt: skip
    return {**row, **changes}


def _around(clock):
    return [clock - 30, clock - 15, clock, clock + 5, clock + 15]


THROTTLED = {"clock": 1395, "power": 430, "reasons": {"hw_thermal": 1.0}, "reasons_any": 0x40}
BRAKED = {"clock": 1000, "power": 300, "reasons": {"hw_slowdown": 1.0, "power_brake": 1.0}, "reasons_any": 0x88}


def job(cards=None, slow=None, nodes=2, pids=True, told=True, **more):
    """A job of `nodes` x 8 ranks that advances. cards: rank -> changes of its GPU; slow: rank -> ms of compute (else 400);
    told=False: no rank tells its own compute time."""
    slow = slow or {}
    rng = random.Random(7)
    w = World(nodes=nodes, per_node=8, **more).processes().fabric(1e8)
    step = max([STEP_MS, *slow.values()]) + 50
    times = {(r, i): slow.get(r, STEP_MS) * rng.uniform(0.997, 1.003) for r in range(8 * nodes) for i in range(20)}
    longest = [max(times[(r, i)] for r in range(8 * nodes)) for i in range(20)]
    w.log(step_s=step / 1000, steps=240, elapsed=[0.45] * 60 + [step / 1000] * 180)
    if told:
        w.steps(lambda r, i: times[(r, i)], lambda r, i: longest[i] - times[(r, i)] + 50, n=20, step_s=step / 1000)
    return add_cards(w, cards or {}, pids)


def add_cards(w, cards, pids=True, looks="AB"):
    for node, name in enumerate(w.names):
        for look in looks:
            rows = []
            for index in range(8):
                changes = dict(cards.get(8 * node + index, {}))
                change = changes.pop(look, {})
                known = {"pids": [1000 + 8 * node + index]} if pids else {"pids": None}
                rows.append(card(index, **{**known, **changes, **change}))
            w.add(
                "gpu", name, look, {"nvml": "ok", "driver": "580.95.05", "window_s": 6.0, "samples": 60, "gpus": rows}
            )
    return w
