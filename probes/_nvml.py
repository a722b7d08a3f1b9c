"""One GPU through NVML: what it is, whether it is well, and how it ran during some seconds. For a child of its own.

    read_gpu(pynvml, "0000:3b:00.0", 1.0, say)    says {"doing": "nvmlInit"}, {"row": {...}} as it goes

Every value that cannot be had is null with its reason in `nulls`: one missing function of an old driver costs one field, never
the GPU. Values of nvmlDeviceGetFieldValues are checked one by one (the call succeeds while fields fail, with value 0) and
decoded by their type (notes/gpu-health.md 0 and 1.1).
Fooled by   field numbers that moved twice (chosen by the driver's version, left unread where that does not tell); limits that
            are relative on Ada and later; the temperature margin of some H100 (0 or below says nothing); "supported" with 0.
(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

import ctypes
import time

WHY = {3: "not_supported", 4: "no_permission", 10: "timeout", 13: "function_missing", 15: "lost", 16: "needs_reset"}
STATUS = {4: "denied", 15: "lost", 16: "needs_reset"}
# Bits of the event reasons (nvml.h; the last two are of 13.x).
REASONS = (
    (0x001, "idle"), (0x002, "app_clocks"), (0x004, "power_cap"), (0x008, "hw_slowdown"), (0x010, "sync_boost"),
    (0x020, "sw_thermal"), (0x040, "hw_thermal"), (0x080, "power_brake"), (0x100, "display"), (0x200, "board_limit"),
    (0x400, "reliability"),
)  # fmt: skip
# Cumulative times, ns, by field number.
LIMITED = {
    74: "power_cap",
    75: "thermal",
    76: "sync_boost",
    77: "board_limit",
    78: "low_util",
    79: "reliability",
    81: "below_base",
}
THERMAL = ("sw_thermal", "hw_thermal", "power_brake")
MEM_TEMP, POWER_INSTANT, RECOVERY = 82, 186, 230
GPM = ((2, "sm_pct"), (5, "tensor_pct"), (10, "dram_pct"), (60, "nvlink_rx"), (61, "nvlink_tx"))
INTERVAL_S = 0.08  # more than ten samples a second
LOADED_PCT = 90
MOST_LINKS = 36


def version_of(text):
    """(580, 82) of "580.82.07"; () for none."""
    try:
        return tuple(int(part) for part in (text or "").split(".")[:2])
    except ValueError:
        return ()


def moved_fields(version):
    """(first of the three thermal and brake fields, field of power smoothing) of a driver, None where it has none or it is unclear."""
    if not version or version < (570, 0):
        return None, None
    if version < (575, 0):
        return None, 251
    if version <= (580, 65):
        return 251, 256
    if version < (580, 82):
        return None, None
    return 269, 251


class Gpu(object):
    """The handle, and what went wrong with which field."""

    def __init__(self, nvml, say):
        self.nvml, self.say, self.handle = nvml, say, None
        self.row, self.nulls = {}, {}

    def ask(self, field, function, *args):
        """The value, or None with the reason in `nulls`. `function`: a name of pynvml."""
        try:
            return getattr(self.nvml, function)(*args)
        except AttributeError:
            self.nulls[field] = "function_missing"
        except self.nvml.NVMLError as error:
            self.nulls[field] = WHY.get(error.value, "error %s" % error.value)
            if error.value in (15, 16):
                self.row["status"], self.row["status_why"] = STATUS[error.value], "%s: %s" % (function, error)
        return None

    def put(self, field, function, *args):
        """Ask with the handle and keep a plain number or a text."""
        value = self.ask(field, function, self.handle, *args)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        self.row[field] = value

    def fields(self, numbers):
        """{name: value} of {field number: name}; those that were not answered are missing, with their reason in `nulls`."""
        found = {}
        values = self.ask("fields", "nvmlDeviceGetFieldValues", self.handle, list(numbers)) if numbers else ()
        if values is None:
            self.nulls.update(dict.fromkeys(numbers.values(), self.nulls.pop("fields")))
        for name, value in zip(numbers.values(), values or ()):
            number = decoded(value) if value.nvmlReturn == 0 else None
            if number is not None:
                found[name] = number
            else:
                self.nulls[name] = WHY.get(value.nvmlReturn, "error %s" % value.nvmlReturn)
        return found

    def tell(self):
        nulls = {field: why for field, why in self.nulls.items() if self.row.get(field) is None}
        self.say({"row": dict(self.row, nulls=nulls)})


def decoded(value):
    """The number of one field by its type; None for a type that we do not know, and for what is no number."""
    names = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
    name = names.get(value.valueType)
    number = None if name is None else getattr(value.value, name, None)
    return None if number is None or number - number != 0 else number  # infinite, or not a number


def read_gpu(nvml, bdf, window_s, say):
    """All of one GPU, told piece by piece so that what came before a hang is not lost."""
    gpu = Gpu(nvml, say)
    say({"doing": "nvmlInit"})
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        say({"init": error.value, "why": str(error)[:160]})
        return
    say(
        {"init": 0, "driver": gpu.ask("driver", "nvmlSystemGetDriverVersion"), "doing": "nvmlDeviceGetHandleByPciBusId"}
    )
    try:
        gpu.handle = nvml.nvmlDeviceGetHandleByPciBusId(("0000" + bdf if len(bdf) == 12 else bdf).encode("ascii"))
    except nvml.NVMLError as error:
        gpu.row["status"] = STATUS.get(error.value, "not_told" if error.value == 6 else "error")
        gpu.row["status_why"] = "nvmlDeviceGetHandleByPciBusId: %s" % error
        gpu.tell()
        return
    gpu.row["status"] = "ok"
    driver = version_of(gpu.ask("driver", "nvmlSystemGetDriverVersion"))
    for doing, step in (("identity", identity), ("health", health), ("links", links), ("limits", limits)):
        say({"doing": doing})
        step(gpu, driver)
        gpu.tell()
    say({"doing": "sampling"})
    sample(gpu, driver, window_s)
    gpu.tell()


# ---------------------------------------------------------------- what it is, and whether it is well


def identity(gpu, driver):
    for field, name in (
        ("index", "Index"), ("minor", "MinorNumber"), ("uuid", "UUID"), ("name", "Name"), ("serial", "Serial"),
        ("arch", "Architecture"), ("persistence", "PersistenceMode"),
    ):  # fmt: skip
        gpu.put(field, "nvmlDeviceGet" + name)
    if gpu.row["persistence"] is not None:
        gpu.row["persistence"] = bool(gpu.row["persistence"])
    mode = gpu.ask("mig", "nvmlDeviceGetMigMode", gpu.handle)
    gpu.row["mig"] = bool(mode[0]) if mode else None
    processes = gpu.ask("pids", "nvmlDeviceGetComputeRunningProcesses", gpu.handle)
    gpu.row["pids"] = None if processes is None else sorted({p.pid for p in processes})[:64]


def health(gpu, driver):
    gpu.row["mem_temp_c"] = gpu.fields({MEM_TEMP: "mem_temp_c"}).get("mem_temp_c")
    # Before 570 the number may be unknown to the driver or mean another thing.
    known = driver >= (570, 0)
    told = gpu.fields({RECOVERY: "recovery_action"}) if known else {}
    gpu.row["recovery_action"] = told.get("recovery_action")
    if not known:
        gpu.nulls["recovery_action"] = "not_read"
    gpu.put("ecc_unc", "nvmlDeviceGetTotalEccErrors", 1, 0)
    gpu.put("ecc_corr", "nvmlDeviceGetTotalEccErrors", 0, 0)
    gpu.put("sram_unc", "nvmlDeviceGetMemoryErrorCounter", 1, 1, 7)
    rows = gpu.ask("remap_pending", "nvmlDeviceGetRemappedRows", gpu.handle)
    unc, pending, failed = (rows[1], bool(rows[2]), bool(rows[3])) if rows else (None, None, None)
    gpu.row["remap_unc"], gpu.row["remap_pending"], gpu.row["remap_failed"] = unc, pending, failed
    gpu.put("retired_pending", "nvmlDeviceGetRetiredPagesPendingStatus")
    if gpu.row["retired_pending"] is not None:
        gpu.row["retired_pending"] = bool(gpu.row["retired_pending"])


def links(gpu, driver):
    for field, name in (
        ("pcie_gen", "CurrPcieLinkGeneration"), ("pcie_width", "CurrPcieLinkWidth"), ("pcie_gen_max", "MaxPcieLinkGeneration"),
        ("pcie_width_max", "MaxPcieLinkWidth"), ("pcie_replay", "PcieReplayCounter"),
    ):  # fmt: skip
        gpu.put(field, "nvmlDeviceGet" + name)
    up, down, errors = [], [], None
    for link in range(MOST_LINKS):
        state = gpu.ask("nvlinks", "nvmlDeviceGetNvLinkState", gpu.handle, link)
        if state is None:
            break  # there are no more
        (up if state else down).append(link)
        for counter in range(3):  # replay, recovery, CRC
            count = gpu.ask("nvlink_errors", "nvmlDeviceGetNvLinkErrorCounter", gpu.handle, link, counter)
            if count is not None:
                errors = (errors or 0) + count
    gpu.row["nvlinks"] = [len(up), len(up) + len(down)] if up or down else None
    gpu.row["nvlinks_down"], gpu.row["nvlink_errors"] = down, errors
    fabric(gpu)


def fabric(gpu):
    make = getattr(gpu.nvml, "c_nvmlGpuFabricInfo_v2_t", None)
    info = make() if make else None
    told = (
        info is not None and gpu.ask("fabric_state", "nvmlDeviceGetGpuFabricInfoV", gpu.handle, ctypes.byref(info)) == 0
    )
    gpu.row["fabric_state"] = info.state if told else None
    gpu.row["fabric_status"] = info.status if told else None
    gpu.row["fabric_health"] = info.healthMask if told else None


def limits(gpu, driver):
    gpu.put("temp_c", "nvmlDeviceGetTemperature", 0)
    for field, which in (("temp_slowdown_c", 1), ("mem_temp_max_c", 2), ("temp_max_c", 3)):
        gpu.put(field, "nvmlDeviceGetTemperatureThreshold", which)
    gpu.put("margin_c", "nvmlDeviceGetMarginTemperature")
    gpu.put("max_sm_clock_mhz", "nvmlDeviceGetMaxClockInfo", 1)
    gpu.put("max_mem_clock_mhz", "nvmlDeviceGetMaxClockInfo", 2)
    for field, name in (
        ("power_limit_w", "EnforcedPowerLimit"),
        ("power_limit_default_w", "PowerManagementDefaultLimit"),
    ):
        gpu.put(field, "nvmlDeviceGet" + name)
        if gpu.row[field] is not None:
            gpu.row[field] /= 1000.0
    gpu.put("energy_mj", "nvmlDeviceGetTotalEnergyConsumption")
    smoothing = moved_fields(driver)[1]
    told = gpu.fields({smoothing: "power_smoothing"}) if smoothing else {}
    gpu.row["power_smoothing"] = bool(told["power_smoothing"]) if told else None
    if not smoothing:
        gpu.nulls["power_smoothing"] = "not_read"


# ---------------------------------------------------------------- how it runs


def limited(gpu, driver):
    """{limiter: ns since the driver was loaded}."""
    first = moved_fields(driver)[0]
    names = dict(LIMITED)
    if first is not None:
        names.update((first + i, name) for i, name in enumerate(THERMAL))
    else:
        gpu.nulls.update(dict.fromkeys(("limited_ns." + name for name in THERMAL), "not_read"))
    told = gpu.fields({number: "limited_ns." + name for number, name in names.items()})
    return {name[11:]: value for name, value in told.items() if isinstance(value, int) and value >= 0}


def sample(gpu, driver, window_s):
    """Clocks, power, utilisation and reasons several times, and what the counters did meanwhile."""
    rows, began = [], time.monotonic()
    before, activity = limited(gpu, driver), Activity(gpu)
    reasons = "nvmlDeviceGetCurrentClocksEventReasons"
    if gpu.ask("reasons_any", reasons, gpu.handle) is None and gpu.nulls["reasons_any"] == "function_missing":
        reasons = "nvmlDeviceGetCurrentClocksThrottleReasons"
    while True:
        began_one = time.monotonic()
        rate = gpu.ask("util_pct", "nvmlDeviceGetUtilizationRates", gpu.handle)
        instant = gpu.fields({POWER_INSTANT: "power_w"}).get("power_w")
        watts = instant if instant is not None else gpu.ask("power_w", "nvmlDeviceGetPowerUsage", gpu.handle)
        rows.append(
            {
                "sm_clock_mhz": gpu.ask("sm_clock_mhz", "nvmlDeviceGetClockInfo", gpu.handle, 1),
                "mem_clock_mhz": gpu.ask("mem_clock_mhz", "nvmlDeviceGetClockInfo", gpu.handle, 2),
                "power_w": None if watts is None else watts / 1000.0,
                "util_pct": None if rate is None else rate.gpu,
                "mem_util_pct": None if rate is None else rate.memory,
                "reasons": gpu.ask("reasons_any", reasons, gpu.handle),
            }
        )
        if time.monotonic() - began + INTERVAL_S > window_s or gpu.row["status"] != "ok":
            break
        time.sleep(max(0.0, INTERVAL_S - (time.monotonic() - began_one)))
    after = limited(gpu, driver)
    gpu.row.update(series(rows))
    gpu.row.update(activity.told())
    gpu.row["limited_ns"] = after
    # What stands in limited_ns and not here did not hold the clocks in the window, or was set back.
    gpu.row["limited_window_ns"] = {k: after[k] - before[k] for k in after if after[k] > before.get(k, after[k])}
    gpu.row["window_s"] = round(time.monotonic() - began, 3)


def series(rows):
    """Distributions [least, p10, p50, p90, most] and shares of the samples."""
    out = {"n": len(rows)}
    for name in ("sm_clock_mhz", "mem_clock_mhz", "power_w", "util_pct", "mem_util_pct"):
        out[name] = spread([row[name] for row in rows if row[name] is not None])
    loads = [row["util_pct"] for row in rows if row["util_pct"] is not None]
    loaded = [row for row in rows if (row["util_pct"] or 0) >= LOADED_PCT]
    out["loaded_share"] = round(sum(load >= LOADED_PCT for load in loads) / float(len(loads)), 3) if loads else None
    out["sm_clock_loaded"] = spread([row["sm_clock_mhz"] for row in loaded if row["sm_clock_mhz"] is not None])
    out["loaded_n"] = len(loaded)
    masks = [row["reasons"] for row in rows if row["reasons"] is not None]
    shares = (
        [(name, round(sum(bool(m & bit) for m in masks) / float(len(masks)), 3)) for bit, name in REASONS]
        if masks
        else []
    )
    out["reasons"] = {name: share for name, share in shares if share}  # none of them: `reasons_any` is 0, and not null
    out["reasons_any"] = None
    for mask in masks:
        out["reasons_any"] = (out["reasons_any"] or 0) | mask
    return out


def spread(values):
    if not values:
        return None
    values = sorted(values)
    return [round(values[round(share * (len(values) - 1))], 1) for share in (0.0, 0.1, 0.5, 0.9, 1.0)]


class Activity(object):
    """What the GPU really did between two moments (GPM, Hopper and newer): tensor cores, memory, NVLink."""

    def __init__(self, gpu):
        self.gpu, self.first, support = gpu, None, gpu.ask("tensor_pct", "nvmlGpmQueryDeviceSupport", gpu.handle)
        if support is not None and support.isSupportedDevice:
            self.first = self.take()
        elif support is not None:
            gpu.nulls["tensor_pct"] = "not_supported"

    def take(self):
        made = self.gpu.ask("tensor_pct", "nvmlGpmSampleAlloc")
        taken = made is not None and self.gpu.ask("tensor_pct", "nvmlGpmSampleGet", self.gpu.handle, made)
        return made if taken is not False and "tensor_pct" not in self.gpu.nulls else None

    def told(self):
        out = dict.fromkeys(("tensor_pct", "sm_pct", "dram_pct", "nvlink_mb_s"))
        last = self.take() if self.first is not None else None
        if last is None:
            return out
        ask = self.gpu.nvml.c_nvmlGpmMetricsGet_t()
        ask.version, ask.numMetrics = self.gpu.nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM)
        ask.sample1, ask.sample2 = self.first, last
        for i, (number, _) in enumerate(GPM):
            ask.metrics[i].metricId = number
        if self.gpu.ask("tensor_pct", "nvmlGpmMetricsGet", ask) is None:
            return out
        values = {}
        for i, (_, name) in enumerate(GPM):
            if ask.metrics[i].nvmlReturn == 0 and ask.metrics[i].value == ask.metrics[i].value:
                values[name] = round(ask.metrics[i].value, 2)
        for name in ("tensor_pct", "sm_pct", "dram_pct"):
            if name in values:
                out[name] = [values[name]] * 5  # one mean over the window
        if "nvlink_rx" in values and "nvlink_tx" in values:
            out["nvlink_mb_s"] = [round(values["nvlink_rx"] + values["nvlink_tx"], 2)] * 5
        return out
