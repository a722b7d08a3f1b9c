"""GPUs as the PCI bus shows them: also those that the driver no longer answers for.

    cards(ctx)   [{"bdf": "0000:3b:00.0", "vendor": "nvidia", "gen": 5, "gen_max": 5, "width": 16, ...}] in the order of addresses

Reads    /sys/bus/pci/devices/0000:3b:00.0/{vendor,class,config,current_link_speed,max_link_width,numa_node,aer_dev_fatal,...}
         "0x10de"  "0x030200"  b"\\xde\\x10..."  "32.0 GT/s PCIe"  "16"  "1"  "... TOTAL_ERR_FATAL 0"
         /proc/driver/nvidia/gpus/0000:3b:00.0/information   "Model: ...", "GPU UUID: GPU-...", "Device Minor: 0"
None of it enters the driver's resource manager, so it answers while NVML hangs (notes/gpu-health.md 1.2).
Fooled by   link speed at idle, which many cards lower; a card behind a switch, whose maximum is the slot's; a virtual function.
(A file with a leading underscore is no probe; it travels in the payload beside those that need it.)
"""

NVIDIA = "0x10de"
DISPLAY = ("0x0300", "0x0302")  # VGA and 3D controllers
# GT/s of a lane -> PCIe generation
GENERATIONS = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "8": 3, "16.0": 4, "16": 4, "32.0": 5, "32": 5, "64.0": 6, "64": 6}
MOST_CARDS = 64


def cards(ctx):
    base, found = ctx.sys("bus/pci/devices"), []
    for bdf in ctx.listdir(base):
        here = "%s/%s/" % (base, bdf)
        if _word(ctx, here + "vendor") != NVIDIA or not _word(ctx, here + "class", "").startswith(DISPLAY):
            continue
        head = ctx.read_bytes(here + "config", 4)
        row = {
            "bdf": bdf.lower(),
            "on_bus": None if head is None or len(head) < 4 else head != b"\xff\xff\xff\xff",
            "gen": generation(_word(ctx, here + "current_link_speed")),
            "gen_max": generation(_word(ctx, here + "max_link_speed")),
            "width": number(_word(ctx, here + "current_link_width")),
            "width_max": number(_word(ctx, here + "max_link_width")),
            "numa": number(_word(ctx, here + "numa_node")),
            "aer_fatal": total(ctx.read(here + "aer_dev_fatal", 4096)),
            "aer_nonfatal": total(ctx.read(here + "aer_dev_nonfatal", 4096)),
        }
        row.update(information(ctx.read(ctx.proc("driver/nvidia/gpus/%s/information" % bdf), 4096)))
        found.append(row)
        if len(found) >= MOST_CARDS:
            ctx.note("more than %d GPUs; the others are not told" % MOST_CARDS)
            break
    return found


def generation(text):
    """5 of "32.0 GT/s PCIe"; None for "Unknown"."""
    return GENERATIONS.get((text or "").split(" ")[0])


def number(text):
    return int(text) if text and len(text) < 9 and text.isdigit() else None


def total(text):
    """The sum of a counter file of AER: its last line is "TOTAL_ERR_FATAL 0"."""
    for line in (text or "").splitlines():
        name, _, value = line.partition(" ")
        if name.startswith("TOTAL_ERR_"):
            return number(value.strip())
    return None


def information(text):
    """What the driver's own file tells of one GPU, without asking the GPU."""
    names = {"Model": "name", "GPU UUID": "uuid", "Device Minor": "minor"}
    found = {}
    for line in (text or "").splitlines():
        key, _, value = line.partition(":")
        value = "".join(c if c.isprintable() else " " for c in value.strip()[:96])
        if key.strip() in names and value and "?" not in value:  # a UUID of question marks: not read yet
            found[names[key.strip()]] = number(value) if key.strip() == "Device Minor" else value
    return found


def driver_version(text):
    """570.133.20 of /proc/driver/nvidia/version: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  ..."."""
    for line in (text or "").splitlines():
        if line.startswith("NVRM version:"):
            for word in line.split():
                if word[0].isdigit() and word.count(".") in (1, 2) and all(part.isdigit() for part in word.split(".")):
                    return word[:24]
    return None


def _word(ctx, path, missing=None):
    text = ctx.read(path, 64)
    return missing if text is None else text.strip()
