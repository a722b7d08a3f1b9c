"""From the raw lines of a kernel log and a job log to the port that they name: what the probes read is what the facts need."""

from __future__ import annotations

import calendar
from dataclasses import replace

import pytest
from triage.probes import _kernel_events, _kernel_lines, joblog
from written_evidence import World
from written_ports import NCCL_ENV, faces, sources, where

from triage.facts.evidence import Evidence
from triage.readers.signatures import for_probe

STALLED = float(calendar.timegm((2026, 11, 29, 1, 55, 26)))  # the last step ended
NOW = STALLED + 60
STEP = " [2026-11-29 01:{:02d}:{:02d}.000] iteration {:8d}/  100000 | elapsed time per iteration (ms): 1000.0 | loss: 1.0 |"
KERNEL = (
    "2026-11-29T01:40:00.000000+00:00 gpu002 kernel: mlx5_core 0000:17:00.0 ens1f0np0: Link up\n"
    "2026-11-29T01:55:26.500000+00:00 gpu002 kernel: mlx5_core 0000:17:00.0 ens1f0np0: Link down\n"
    "2026-11-29T01:55:36.500000+00:00 gpu002 kernel: mlx5_core 0000:17:00.0 ens1f0np0: Link up\n"
)
NEW = (
    "\n[2026-11-29 01:55:26] gpu002:1002:4300 [0] transport/net_ib/common.cc:179 NCCL WARN NET/IB : mlx5_0:1 Got non-fatal async event: port error(10)\n"
    "\n[2026-11-29 01:55:30] gpu001:1000:4301 [0] transport/net_ib/p2p.cc:688 NCCL WARN NET/IB: Got completion from peer 10.88.0.2<41234> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129  localGid ::ffff:10.88.0.1 remoteGids::ffff:10.88.0.2 hca mlx5_0\n"
    "[2026-11-29 01:55:30] gpu001:1000:4301 [0] transport/net_ib/p2p.cc:690 NCCL WARN NET/IB: Got completion from peer 10.88.0.4<41299> with status=IBV_WC_WR_FLUSH_ERR(5) opcode=IBV_WC_SEND(0) vendor_err=249  hca mlx5_0\n"
    "\n[2026-11-29 01:55:36] gpu002:1002:4300 [0] transport/net_ib/common.cc:179 NCCL WARN NET/IB : mlx5_0:1 Got non-fatal async event: port active(9)\n"
)
MIDDLE = (
    "\ngpu002:1002:4300 [0] transport/net_ib.cc:103 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error\n"
    "\ngpu001:1000:4301 [0] transport/net_ib.cc:1984 NCCL WARN NET/IB: Got completion from peer 10.88.0.2<41234> with status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_0\n"
)
OLD = (
    "\ngpu002:1002:4300 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error\n"
    "\ngpu001:1000:4301 [0] transport/net_ib.cc:1238 NCCL WARN NET/IB : Got completion from peer 10.88.0.2<41234> with error 12, opcode 2, len 1, vendor err 129\n"
)
FLUSHED = NEW.splitlines()[4] + "\n"


def told(nccl, lines=KERNEL, written=8.0):
    """The facts of 4 nodes x 2 ranks whose logs hold these lines; the job log was written to until `written` s after the stall."""
    w = World()
    for rank in range(8):
        env = {k: v for k, v in w.record(rank, "A")["env"].items() if not k.startswith("NCCL")}
        for look in "AB":
            w.change[(rank, look)] = {"env": {**env, **NCCL_ENV}, "start_s": STALLED - 3000}
    fabric = [replace(node, fabric=(f"10.88.0.{int(node.name[3:])}:22",)) for node in w.job.nodes]
    w.job = replace(w.job, nodes=tuple(fabric), attempt=replace(w.job.attempt, started=STALLED - 3060))
    w.processes()
    w.samples = [s for s in w.samples if s.probe != "kernel"]
    for name in w.names:
        events = _kernel_events.Events(for_probe("kernel"), STALLED - 3060)
        for line in (lines if name == "gpu002" else "").splitlines():
            events.take(_kernel_lines.split_line(line, NOW, None))
        w.add("kernel", name, "B", {"readable": True, "boot_covered": True, "events": events.told()})
        for look in "AB":
            w.add("nic", name, look, {"nics": faces()})
    steps = [STEP.format(54 + (26 + i) // 60, (26 + i) % 60, 100 + i) for i in range(61)]
    raw = ("\n".join(steps) + "\n" + nccl).encode()
    data = joblog.reduce_log(
        raw, for_probe("joblog"), now=NOW, mtime=STALLED + written, since=STALLED - 3060, offset_s=0
    )
    w.add("joblog", "", "B", {**data, "size": len(raw), "mtime": STALLED + written, "exists": True})
    shifted = [replace(s, at=NOW - 0.2, received=NOW - 0.2) for s in w.samples]
    from written_evidence import limits

    from triage.facts import registry

    ev = Evidence(w.job, shifted, NOW, limits())
    names = ("progress.onset", "links.flapped_in_onset", "links.named", "links.tied", "links.outlasted")
    return [registry.other(ev, name) for name in names]


A = [("gpu002", "mlx5_0")]


@pytest.mark.parametrize("nccl", [NEW, MIDDLE, OLD], ids=["2.31", "2.22", "2.14"])
def test_every_wording_of_nccl_names_the_port_that_the_kernel_dates(nccl):
    onset, flapped, named, tied, outlasted = told(nccl)
    assert onset.value[0] == STALLED
    assert where(flapped) == where(tied) == A and sources(tied) == ["joblog", "kernel"]
    assert "gpu002" in {part.node for part in named.parts}
    assert outlasted.value is True and "10.0s" in outlasted.text


@pytest.mark.parametrize("nccl", [NEW, MIDDLE], ids=["2.31", "2.22"])
def test_without_a_line_of_the_kernel_nccl_names_it_alone(nccl):
    _, flapped, _, tied, outlasted = told(nccl, lines="")
    assert where(flapped) == where(tied) == A and sources(tied) == ["joblog"] and outlasted.value is True
    assert tied.contradicted_by == ("the kernel log",)


def test_flushed_work_is_a_consequence_and_names_nobody():
    _, flapped, named, tied, _ = told(FLUSHED)
    assert "status=IBV_WC_WR_FLUSH_ERR(5)" in FLUSHED
    assert where(flapped) == A and named.value == 0 and tied.value == 0


def test_old_lines_in_a_log_that_was_written_to_for_long_are_dated_by_the_kernels_only_loss():
    _, _, _, tied, _ = told(MIDDLE, written=55.0)
    assert where(tied) == A and sources(tied) == ["joblog", "kernel"]
