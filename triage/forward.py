"""NCCL's RAS asked from here, through the SSH connection that is open; on the node itself where that does not go.

    ask(fleet, {"gpu001": {"ranks": [...], "world": 16, "init": "past", "gap_s": 10}, "gpu002": {...}}, 20.0, keep)

One report tells of the whole job, so the nodes are asked in turn and the first that answers ends it. The dialogue and the
reading are the probe's own (probes/_ras.py, _ras_report.py): both roads give the same sample, which says in `road` which it
was. Through the connection nothing runs on the node, but nothing there can tell us either who listens: only loopback is
dialled, only the port that the job's environment names, and the first line that comes back must be RAS's. Where a query could
harm (communicators that may be in their set-up) the node is asked, which sees the library; so it is where the ranks have process
numbers of a container, which two jobs may share, and only the node sees who else listens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from triage.model import Sample
from triage.probes import _ras, _ras_report, _ras_text
from triage.probes.ras import GAP_S, port_of, release, risk
from triage.transports.base import Line

LEAST_S = 3.0  # no report comes in less where a process does not answer (notes/nccl-ras-and-logs.md 1.3)
MARGIN_S = 0.5
LOOPBACK = ("127.0.0.1", "::1")  # "localhost" may be either

Args = Mapping[str, Any]


def ask(fleet: Any, by_node: Mapping[str, Args], limit_s: float, keep: Callable[[Sample], None]) -> None:
    """Ask one node after the other until one has told a report; every sample goes to `keep` (the fleet's by its own way)."""
    until = time.monotonic() + limit_s
    for node, args in by_node.items():
        if until - time.monotonic() < LEAST_S:
            return
        sample = _through(fleet, node, args, until)
        if sample is not None:
            keep(sample)
        else:
            got = fleet.ask("ras", [node], args, limit_s=until - time.monotonic())
            sample = next((each for each in got if each.probe == "ras"), None)
        if sample is not None and sample.data.get("outcome") == "ok":
            return


class _Closed(Exception):
    """This road does not go."""


def _through(fleet: Any, node: str, args: Args, until: float) -> Sample | None:
    """What RAS tells through the open connection; None where the node must be asked itself."""
    told = args.get("address")
    env = {"NCCL_RAS_ADDR": told} if isinstance(told, str) and told else {}
    port = port_of(env)
    if port is None or not _loopback(told) or risk(args.get("init"), release(args.get("nccl"))):
        return None
    if any(row.get("ns_pid") != row.get("pid") for row in args.get("ranks", ())):
        return None  # in a container: only the node sees who else listens on that port

    def connect(seconds: float) -> Line:
        for host in LOOPBACK:
            try:
                line: Line = fleet.dial(node, host, port, time.monotonic() + seconds)
                return line
            except ConnectionRefusedError:
                continue
            except PermissionError as error:
                raise _Closed from error
        raise _ras.Nobody(f"nobody listens on port {port}")

    def judge(raw: bytes, form: str) -> Any:
        procs = [(row["rank"], row["ns_pid"]) for row in args.get("ranks", ())]
        return _ras_report.judge(raw, form, args.get("world"), procs, _ras_text.parse)

    began = time.monotonic()
    client = _ras.Client(connect, judge, time.monotonic, until - MARGIN_S)
    try:
        data = client.two(time.sleep, float(args.get("gap_s", GAP_S)))
    except _Closed:
        return None
    if data["outcome"] == "no_listener":
        return None  # why not is seen on the node: switched off, another network, too old
    where = f"port {port} of its loopback"
    return Sample(
        "ras",
        node,
        "C",
        "ok",
        {**data, "address": where, "nccl": str(args.get("nccl") or ""), "road": "ssh"},
        took_s=round(time.monotonic() - began, 3),
        received=time.time(),
        notes=("asked through the SSH connection; nothing ran on the node",),
    )


def _loopback(told: object) -> bool:
    """Does the job's own setting mean the node itself? What a node says must not send us elsewhere."""
    host = str(told).rpartition(":")[0].strip("[]") if told else "localhost"
    return host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")
