"""Worlds whose kernels tell of GPUs: 4 nodes x 2 ranks, two GPUs a node, lines as the kernel probe tells them."""

from __future__ import annotations

from functools import partial

from triage.probes import _kernel_events, _kernel_lines
from written_dumps import add_dumps, report
from written_evidence import NOW, World

from triage.readers.signatures import for_probe

STOOD = 100.0  # the job stands since so many seconds
STALL = NOW - STOOD
DRIVER = "570.133.20"
BDFS = ["0000:3b:00.0", "0000:86:00.0"]
SIGNATURES = for_probe("kernel")


def xid(code, words="GPU has fallen off the bus.", bdf="0000:3b:00", pid="'<unknown>'", name="<unknown>"):
    return f"NVRM: Xid (PCI:{bdf}): {code}, pid={pid}, name={name}, {words}"


def events_of(lines):
    """[(epoch seconds, text)] as the probe would tell them."""
    read = partial(_kernel_lines.split_line, now=NOW, mono_base=0.0)
    found = _kernel_events.Events(SIGNATURES, None, read)
    raw = [f"{at:.6f} gpu kernel: {text}".encode() for at, text in sorted(lines)]
    found.feed_all(iter([raw] if raw else []))
    return found.told()


def tell(w, node, *lines, driver=DRIVER, gpus=BDFS, **more):
    """The kernel of this node says these lines, each (seconds after the stall began, text)."""
    w.samples = [s for s in w.samples if not (s.probe == "kernel" and s.node == node)]
    data = {
        "readable": True, "boot_covered": True, "events": events_of([(STALL + after, text) for after, text in lines]),
        "nvidia": {"driver": driver, "gpus": list(gpus)}, **more,
    }  # fmt: skip
    return w.add("kernel", node, "A", data)


def gpu_world(*lines, node="gpu003", per_node=2, change=None, **more):
    """A frozen job; rank 4 works on 0000:3b:00 of gpu003 and rank 5 on 0000:86:00. Every kernel log is readable."""
    w = World(per_node=per_node)
    w.change = change or {}
    w.processes().fabric(0).log(last_ago=STOOD)
    for name in w.names:
        tell(w, name)
    return tell(w, node, *lines, **more)


def parts_of(fact):
    return [(p.node, p.rank, p.gpu, p.name) for p in fact.parts]


def verdict_of(w, dumps=None, lib=""):
    if dumps is not None:
        add_dumps(w, dumps, lib=lib)
    return report(w)
