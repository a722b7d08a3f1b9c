#!/usr/bin/env python3
"""What all cheap probes cost one node with 8 GPUs and 8 InfiniBand ports: CPU of every process, and bytes on the wire.

usage: python tests/bench/bench_node_cost.py [--python PYTHON] [--times 3]

The payload runs as on a node (`-I -S`, both looks), over the fake driver of the tests under the real pynvml and a tree of files
in the place of sysfs. A real driver costs more or less than the fake one: what is measured is our own share, and the number
of calls is printed with it. Exit 1 above 1 CPU-second or 64 KB (DESIGN section 11).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import fake_nvml

from triage.readers.signatures import for_probe
from triage.transports import payload

CHEAP_A = ("reach", "ranks", "kernel", "nic", "gpu", "steps")
CHEAP_B = ("ranks", "nic", "gpu", "steps")
COUNTERS = (
    "link_downed link_error_recovery symbol_error port_rcv_errors port_rcv_remote_physical_errors port_rcv_switch_relay_errors "
    "port_xmit_discards port_xmit_constraint_errors port_rcv_constraint_errors local_link_integrity_errors "
    "excessive_buffer_overrun_errors VL15_dropped port_xmit_wait port_xmit_data port_rcv_data port_xmit_packets port_rcv_packets "
    "unicast_rcv_packets unicast_xmit_packets multicast_rcv_packets multicast_xmit_packets"
)
HARDWARE = (
    "local_ack_timeout_err packet_seq_err out_of_sequence implied_nak_seq_err duplicate_request rnr_nak_retry_err out_of_buffer "
    "req_transport_retries_exceeded req_rnr_retries_exceeded req_cqe_error req_cqe_flush_error resp_cqe_error resp_cqe_flush_error "
    "roce_adp_retrans roce_adp_retrans_to np_ecn_marked_roce_packets np_cnp_sent rp_cnp_handled rp_cnp_ignored "
    "rx_icrc_encapsulated lifespan"
)


def ports(folder: Path, count: int) -> None:
    """InfiniBand ports as sysfs shows them."""
    for index in range(count):
        here = folder / "sys/class/infiniband" / f"mlx5_{index}" / "ports/1"
        for sub, names in (("counters", COUNTERS), ("hw_counters", HARDWARE)):
            (here / sub).mkdir(parents=True)
            for name in names.split():
                (here / sub / name).write_text(f"{index * 1000003 % 65536}\n")
        for name, value in (("state", "4: ACTIVE"), ("phys_state", "5: LinkUp"), ("rate", "400 Gb/sec (4X NDR)"),
                            ("link_layer", "InfiniBand")):  # fmt: skip
            (here / name).write_text(value + "\n")
        net = folder / "sys/class/net" / f"ib{index}"
        (net / "statistics").mkdir(parents=True)
        for name, value in (
            ("operstate", "up"),
            ("carrier", "1"),
            ("carrier_changes", "2"),
            ("type", "32"),
            ("speed", "400000"),
        ):
            (net / name).write_text(value + "\n")


def once(python: str, env: dict[str, str]) -> tuple[float, int, dict[str, str]]:
    """(CPU seconds of all its processes, bytes of its answers, status of each probe and look)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child = subprocess.Popen(
        [python, "-I", "-S", "-c", payload.BOOT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    )
    assert child.stdin and child.stdout
    args = {"kernel": {"signatures": for_probe("kernel")}, "ranks": {"job_id": "1"}, "steps": {"job_id": "1"}}
    child.stdin.write(payload.build())
    size, statuses = 0, {}
    for ident, (look, names) in enumerate((("A", CHEAP_A), ("B", CHEAP_B)), 1):
        child.stdin.write(payload.request(look, ident, {name: args.get(name, {}) for name in names}, 15.0))
        child.stdin.flush()
        missing = set(names)
        while missing:
            raw = child.stdout.readline()
            if not raw:
                sys.exit("the payload ended early")
            size += len(raw)
            answer = json.loads(raw) if raw.startswith(b'{"probe"') else {}
            if answer.get("probe") in missing:
                missing.discard(answer["probe"])
                statuses[f"{answer['probe']}/{look}"] = answer["status"]
    child.stdin.close()
    child.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, size, statuses


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--times", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {**os.environ, **fake_nvml.healthy().write(folder)}
        ports(folder, 8)
        runs = [once(args.python, env) for _ in range(args.times)]
    cpu, size, statuses = sorted(runs)[len(runs) // 2]
    print(", ".join(f"{name} {status}" for name, status in sorted(statuses.items())))
    print(f"CPU      {cpu:.2f} s for both looks (runs: {', '.join(f'{run[0]:.2f}' for run in runs)})   (budget 1)")
    print(f"answers  {size} bytes   (budget 65536)")
    bad = [name for name in ("gpu/A", "gpu/B", "nic/A", "nic/B") if statuses.get(name) != "ok"]
    print(f"not ok: {', '.join(bad)}" if bad else "all told")
    return 1 if bad or cpu > 1.0 or size > 65536 else 0


if __name__ == "__main__":
    sys.exit(main())
