"""Is each GPU of this node there, well, and does it run as fast as it can; and who works on it?

Reads    /sys/bus/pci/devices/<address>/{vendor,class,config,current_link_speed,...}, /proc/driver/nvidia/{version,gpus/*}
         NVML, by the pynvml that travels with us: "NVIDIA H100 80GB HBM3", clocks 1980 MHz, reasons 0x40, power 312400 mW,
         fields 74 to 81 (ns), remapped rows (0, 1, 1, 0), ...
A child asks each GPU, with a deadline: a GPU whose firmware does not answer blocks each call for 45 s under a lock, and one
that is lost fails at its handle, so the list of GPUs is the PCI bus's and not NVML's (notes/gpu-health.md 1.2).
Fooled by   counters and times since the driver was loaded (only deltas speak); clocks that somebody locked (no reason bit, no
            getter); utilisation, which is 100 % while a kernel spins; link speed and clocks at idle; process ids of another
            namespace; a container that is shown other GPUs, or none.
OVERHEAD    one second of some 12 samples a GPU by default, about 0.2 s CPU for eight; opens no context on a GPU.
"""

import ctypes
import os

if __package__:  # read as a part of triage
    from ._apart import apart
    from ._nvml import read_gpu
    from ._pci import cards, driver_version
else:  # beside this file, or in the payload
    from _apart import apart
    from _nvml import read_gpu
    from _pci import cards, driver_version

PROBE = {
    "name": "gpu",
    "version": 1,
    "needs": ["pynvml"],
    "timeout_s": 8,
    "cost": "cheap",
    "fields": {
        "nvml": "ok, library_missing, driver_not_loaded, mismatch (driver and library), hung, denied, not_asked or error",
        "nvml_why": "text: what the loader or NVML said",
        "driver": "version of the kernel driver",
        "status": "per GPU: ok, lost, hung, needs_reset, denied, not_told (by NVML) or error",
        "sm_clock_mhz": "MHz, per GPU: [least, p10, p50, p90, most] over the window; likewise mem_clock_mhz, power_w, util_pct",
        "sm_clock_loaded": "the same, of the samples at 90 % utilisation and more",
        "reasons": "share of the samples in which each event reason (limiter) was active",
        "limited_ns": "ns since the driver was loaded that each limiter held the clocks; limited_window_ns: within the window",
        "recovery_action": "the driver's own verdict: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset",
        "pids": "compute processes as NVML tells them, null if it does not",
        "nulls": "per GPU: field -> not_supported, no_permission, function_missing, timeout, lost, not_read",
    },
}

LIBRARY = "libnvidia-ml.so.1"
INIT = {4: "denied", 9: "driver_not_loaded", 12: "library_missing", 18: "mismatch"}
WINDOW_S, LONGEST_S = 1.0, 15.0
RESERVE_S = 1.0  # for everything but the samples


def library(ctx):
    """(handle or None, outcome, why). pynvml tells no reason of a library that does not load, so it is loaded here.

    TRIAGE_NVML names another file, as TRIAGE_SYSFS names another root; below another root the host's own is not asked.
    """
    name = os.environ.get("TRIAGE_NVML") or (LIBRARY if ctx.real else "")
    if not name:
        return None, "not_asked", "below another root the driver of the host is not asked"
    try:
        return ctypes.CDLL(name), "ok", ""
    except OSError as error:
        return None, "library_missing", str(error)[:200]


def row_of(card, told, skipped):
    """One GPU: what the bus shows, and what its child said before it ended or did not."""
    row = {"bdf": card["bdf"], "status": "not_told", "status_why": "", "child_state": None, "child_wchan": None}
    row.update((name, card.get(name)) for name in ("name", "uuid", "minor", "numa", "aer_fatal", "aer_nonfatal"))
    if skipped:
        row["status"], row["status_why"] = "hung", "it did not answer before and was not asked again"
    doing = ""
    for piece in told.pieces if told else ():
        doing = piece.get("doing", doing)
        if isinstance(piece.get("row"), dict):
            row.update((name, value) for name, value in piece["row"].items() if value is not None or name not in row)
    if told and not told.ended:
        row["status"], row["child_state"], row["child_wchan"] = "hung", told.state, told.wchan
        row["status_why"] = "NVML did not answer (%s)" % doing
    elif told and not told.whole and row["status"] in ("ok", "not_told"):
        # What was told before stays; that it is not all must be said.
        row["status"], row["status_why"] = "error", "%s (%s)" % (told.failed or "the child that asked it died", doing)
    for name, key in (
        ("pcie_gen", "gen"),
        ("pcie_gen_max", "gen_max"),
        ("pcie_width", "width"),
        ("pcie_width_max", "width_max"),
    ):
        if row.get(name) is None:
            row[name] = card[key]
    for name in ("status_why", "child_state", "child_wchan"):
        if not row[name]:
            del row[name]
    if card["on_bus"] is False and row["status"] != "ok":
        row["status"], row["status_why"] = "lost", "it does not answer on the PCI bus (configuration space reads ff)"
    return row


def outcome_of(answers, outcome, why):
    """What NVML as a whole is: the first refusal of its start, or hung where no child came through it."""
    starts = [piece for told in answers.values() for piece in told.pieces if "init" in piece]
    bad = [piece for piece in starts if piece["init"]]
    if bad and len(bad) == len(starts):
        return INIT.get(bad[0]["init"], "error"), str(bad[0].get("why"))
    if answers and not starts and all(told.ended for told in answers.values()):
        return "error", next(iter(answers.values())).failed or "the children that asked it died"
    if answers and not starts:
        return "hung", "nvmlInit did not come back within the time of this probe"
    return outcome, why


def collect(ctx):
    found = cards(ctx)
    if not found:
        raise ctx.Absent("no NVIDIA GPU on the PCI bus")
    handle, outcome, why = library(ctx)
    skip = ctx.args.get("skip")
    skip = {str(bdf).lower() for bdf in skip} if isinstance(skip, list) else set()
    answers = {}
    if handle is not None:
        try:
            import pynvml
        except ImportError as error:
            handle, outcome, why = None, "error", "pynvml is not here: %s" % error
    if handle is not None:
        pynvml.nvmlLib = handle
        window = ctx.args.get("window_s", WINDOW_S)
        window = min(window, LONGEST_S) if isinstance(window, (int, float)) and window > 0 else WINDOW_S
        window = min(window, max(0.0, ctx.left() - RESERVE_S))
        jobs = {
            card["bdf"]: (lambda say, bdf=card["bdf"]: read_gpu(pynvml, bdf, window, say))
            for card in found if card["bdf"] not in skip
        }  # fmt: skip
        answers = apart(jobs, ctx.left, ctx.procfs if ctx.real else "/proc")
        outcome, why = outcome_of(answers, outcome, why)
    rows = [row_of(card, answers.get(card["bdf"]), card["bdf"] in skip) for card in found]
    told = [p["driver"] for a in answers.values() for p in a.pieces if isinstance(p.get("driver"), str)]
    return {
        "nvml": outcome,
        "nvml_why": why,
        "driver": told[0] if told else driver_version(ctx.read(ctx.proc("driver/nvidia/version"), 4096)),
        "window_s": max([row.pop("window_s", 0.0) for row in rows]),
        "samples": max([row.get("n", 0) for row in rows]),
        "gpus": rows,
    }


if __name__ == "__main__":
    import _probe

    _probe.main(PROBE, collect)
