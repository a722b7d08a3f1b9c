"""Has an answer the shape that its probe gives it? Nodes are untrusted input, and so is a case of somebody else.

    problem("ranks", {"ranks": 5})            -> "ranks is no list"
    problem("ranks", {"ranks": [{"rank": True}]}) -> "ranks[0].rank is no whole number"
    checked(sample)                           -> the sample, or the same with status malformed, no data and the reason

One spec per probe names every field that a fact reads, with its type and bounds; so no fact has to ask again. Fields that
the spec does not name are allowed (a newer probe tells more) as long as they are shallow, finite and bounded. A field may
be missing unless it is marked `must`; a single value may be null, a list or map may not (no probe sends that) unless it is
marked `maybe`. What a value *means* (a pid that is none of ours, a step of the future) is the facts' business. Pure; linear
in the answer; the numbers of a long column are compared and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from triage.model import Sample
from triage.readers.shape_words import (
    MOST_TEXT,
    Bad,
    Check,
    column,
    each,
    flag,
    maybe,
    must,
    named,
    number,
    record,
    row,
    text,
    whole,
)

MOST_RANKS = 1 << 18  # of one job: more than any machine hosts, and as many rows as an operator's machine holds at once
LAST_TIME = 1e10  # the year 2286: no clock that is to be believed stands behind it
SEQUENCE = 1 << 64

_RUN = re.compile(r"(\d{1,7})(?:\+(\d{1,7})(?:\*(\d{1,7}))?)?\Z")


@lru_cache(maxsize=4096)
def _members_problem(folded: str) -> str:
    total = 0
    for part in folded.split(",") if folded else ():
        found = _RUN.match(part)
        if not found:
            return "is no folded list of ranks"
        start, count, stride = (int(group or 1) for group in found.groups())
        total += count
        if not count or not stride or start + (count - 1) * stride >= MOST_RANKS or total > MOST_RANKS:
            return "names ranks that no job has"
    return ""


def members(value: Any) -> None:
    """Folded ranks of a group, "0+8,16+4*2" (probes/flight_recorder.py); "" = not told."""
    text(MOST_TEXT)(value)
    why = _members_problem(value)
    if why:
        raise Bad(why)


def places(value: Any) -> None:
    """Folded ranks, or "=" (the same as the global ones)."""
    if value != "=":
        members(value)


# ---------------------------------------------------------------- the probes

RANK = whole(0, MOST_RANKS - 1)
SIZE = whole(0, MOST_RANKS)  # of a world, of a node
PID = whole(0, 1 << 31)
UID = whole(-(1 << 31), 1 << 32)
COUNT = whole()
TIME = number(0.0, LAST_TIME)  # epoch seconds
SPAN = number(-LAST_TIME, LAST_TIME)  # seconds; a difference of two clocks may be negative
SEQ = whole(-SEQUENCE, SEQUENCE)
WORD, LINE = text(256), text(4096)
ENV = named(text(4096), 256)

PROCESS = record({"rank": RANK, "pid": PID, "ppid": PID, "comm": WORD, "state": WORD, "cmd": LINE})
RANK_ROW = record(
    {
        "rank": must(RANK), "rank_from": WORD, "local_rank": RANK, "world_size": SIZE, "local_world_size": SIZE,
        "group_rank": RANK, "pid": PID, "top_pid": PID, "ppid": PID, "ns_pid": PID, "uid": UID, "state": WORD,
        "wchan": WORD, "cmd": LINE, "start_s": TIME, "start_ticks": COUNT, "threads": COUNT, "utime_s": number(),
        "stime_s": number(), "rchar": COUNT, "wchar": COUNT, "read_bytes": COUNT, "write_bytes": COUNT,
        "tracer_pid": PID, "tracer": WORD, "children": each(PROCESS), "env": ENV, "conf": ENV,
    }
)  # fmt: skip
RANKS = record(
    {
        "ranks": each(RANK_ROW), "sees_all": flag, "truncated": flag, "own_uid": UID, "hidepid": whole(0, 9),
        "processes": COUNT, "unreadable": COUNT, "unreadable_uids": each(UID), "orphans": each(PROCESS),
        "wrappers": each(PROCESS), "zombies": each(PROCESS), "stuck": each(PROCESS), "launchers": each(PROCESS),
    }
)  # fmt: skip

REACH = record(
    {
        "boot_id": WORD, "hostname": WORD, "user": WORD, "kernel": WORD, "machine": WORD, "python": WORD, "uptime_s": number(),
        "now_s": TIME, "load1": number(), "uid": UID, "cpus": COUNT, "hidepid": whole(0, 9), "root": flag,
        "sees_all": flag, "ptrace_capable": flag,
    }
)  # fmt: skip

GROUPS = named(LINE, 64)  # named groups of a signature: text to text
EVENT = record(
    {
        "id": WORD, "kind": WORD, "at": TIME, "last_at": TIME, "count": COUNT, "text": LINE, "groups": GROUPS,
        "times": each(TIME, 16), "err_s": number(),
    }
)  # fmt: skip
KERNEL = record(
    {
        "readable": flag, "source": WORD, "why": LINE, "boot_covered": flag, "oldest_at": TIME, "events": each(EVENT),
        "events_left_out": named(COUNT), "lines_read": COUNT, "oom_kill": COUNT, "cgroup_oom_kill": named(COUNT),
        "nvidia": record({"driver": maybe(WORD), "gpus": each(WORD, 64)}),
    }
)  # fmt: skip

DISTRIBUTION = maybe(row(*[number()] * 5))  # least, p10, p50, p90, most
_NUMBER, _FLAG = maybe(number()), maybe(flag)
_GPU_NUMBERS = (
    "numa aer_fatal aer_nonfatal arch temp_c temp_max_c temp_slowdown_c mem_temp_c mem_temp_max_c max_sm_clock_mhz "
    "max_mem_clock_mhz power_limit_w power_limit_default_w recovery_action ecc_unc ecc_corr sram_unc remap_unc pcie_gen "
    "pcie_gen_max pcie_width pcie_width_max pcie_replay energy_mj nvlink_errors fabric_state fabric_status fabric_health "
    "loaded_share loaded_n n reasons_any"
)
_GPU_SPREADS = (
    "sm_clock_mhz mem_clock_mhz power_w util_pct mem_util_pct tensor_pct sm_pct dram_pct nvlink_mb_s sm_clock_loaded"
)
GPU_ROW = record(
    {
        "bdf": WORD, "index": whole(0, 4096), "minor": whole(0, 4096), "uuid": WORD, "name": WORD, "serial": WORD,
        "status": WORD, "status_why": LINE, "child_state": WORD, "child_wchan": WORD, "margin_c": number(-1000.0, 1000.0),
        "remap_pending": _FLAG, "remap_failed": _FLAG, "retired_pending": _FLAG, "mig": _FLAG, "persistence": _FLAG,
        "power_smoothing": _FLAG, "nvlinks": maybe(row(COUNT, COUNT)), "nvlinks_down": each(whole(0, 64), 64),
        "reasons": named(number(0.0, 1.0), 32), "limited_ns": named(COUNT, 32), "limited_window_ns": named(COUNT, 32),
        "pids": maybe(each(PID, 64)), "nulls": named(WORD),
        **dict.fromkeys(_GPU_NUMBERS.split(), _NUMBER), **dict.fromkeys(_GPU_SPREADS.split(), DISTRIBUTION),
    }
)  # fmt: skip
GPUS = record(
    {"nvml": WORD, "nvml_why": LINE, "driver": WORD, "window_s": number(), "samples": COUNT, "gpus": each(GPU_ROW, 256)}
)

NIC_ROW = record(
    {
        "name": must(WORD), "kind": WORD, "driver": WORD, "state": WORD, "phys_state": WORD, "link_layer": WORD,
        "netdev": WORD, "carrier": whole(0, 1), "carrier_changes": COUNT, "carrier_down_count": COUNT, "rx_bytes": COUNT,
        "tx_bytes": COUNT, "speed_mbps": COUNT, "port": COUNT, "counters": named(maybe(COUNT)), "saturated": each(WORD),
        "rate": WORD, "pci": WORD, "board": WORD, "virtual": flag, "unread": WORD, "zeros": text(),
        "values": each(COUNT, 1024),
    }
)  # fmt: skip
NIC = record(
    {
        "nics": each(NIC_ROW), "rdma_devices": COUNT, "names": each(WORD), "chosen": WORD, "boot_id": WORD,
        "tcp": named(maybe(COUNT), 64), "sockets": each(row(WORD, WORD, COUNT, COUNT, COUNT), 256),
    }
)  # fmt: skip

HIT = record(
    {
        "id": must(WORD), "at": TIME, "last_at": TIME, "dated": flag, "count": COUNT, "text": LINE, "prefix": WORD,
        "line_no": COUNT, "groups": GROUPS,
    }
)  # fmt: skip
_SEQ, _TIME, _TAG = maybe(whole(-(1 << 64), 1 << 64)), maybe(number(0.0, LAST_TIME)), maybe(WORD)
_RANKS = maybe(members)
WATCHDOG_ROW = row(  # probes/_watchdog.py COLUMNS
    WORD, _TAG, _TAG, _TAG, _SEQ, _TAG, _SEQ, _SEQ, _SEQ, _SEQ, _SEQ, _SEQ, _RANKS, maybe(places), _RANKS,
    _TIME, _TIME, _TIME, _TIME, flag, COUNT, maybe(COUNT), maybe(COUNT),
)  # fmt: skip
TIMED = ("compute_ms", "collective_ms", "data_ms")
JOBLOG = record(
    {
        "path": LINE, "size": COUNT, "mtime": TIME, "exists": flag, "truncated_head": flag, "complete": flag,
        "first_at": TIME, "newest_at": TIME, "zone": WORD, "offset_s": SPAN, "lines": COUNT, "tail": each(LINE),
        "iterations": record(
            {
                "source": WORD, "prefix": WORD, "total": COUNT, "last_line_no": COUNT, "lines": each(COUNT, 20_000),
                "series": each(row(whole(0, 10**15), maybe(TIME), maybe(number(0.0, 1e12))), 20_000),
            }
        ),
        "hits": each(HIT), "hits_left_out": named(COUNT),
        "heard": each(RANK), "hosts": named(WORD, MOST_RANKS),  # of logs that somebody collected (log_files.py)
        "timers": record(
            {"step": column(0, 10**15, ints=True), **{name: named(column(), MOST_RANKS) for name in TIMED}}
        ),
        "watchdog": record({"columns": each(WORD, 64), "rows": each(WATCHDOG_ROW, 1024), "left_out": COUNT}),
    }
)  # fmt: skip

STEPS = record(
    {
        "ranks": each(
            record(
                {
                    "rank": must(RANK), "path": LINE, "kind": WORD, "unit": WORD, "last_step": whole(0, 10**15),
                    "last_at": TIME, "n": COUNT, "pids": each(PID), "set": ENV, "shared": flag,
                    "columns": record(
                        {"step": column(0, 10**15, ints=True), "t_start": column(0.0, LAST_TIME), "total_ms": column(),
                         "compute_ms": column(), "collective_ms": column(), "data_ms": column(), "gc_ms": column(),
                         "seq_tokens": column()}
                    ),
                }
            )
        ),
        "named": COUNT, "missing": COUNT,
    }
)  # fmt: skip

CHECKPOINT = record(
    {
        "folders": each(
            record(
                {
                    "path": LINE, "kind": WORD, "step": maybe(whole(0, 10**15)), "at": maybe(TIME), "why": LINE,
                    "gap_s": maybe(row(SPAN, SPAN, SPAN)),
                }
            ),
            8,
        ),
        "launch": record(
            {
                "tp": COUNT, "pp": COUNT, "cp": COUNT, "layers": COUNT, "global_batch": COUNT, "micro_batch": COUNT,
                "order": WORD,
            }
        ),
    }
)  # fmt: skip

ORDINAL = maybe(row(maybe(SEQ), maybe(SEQ), maybe(SEQ)))
SIDE = text(1)
DUMP = record(
    {
        "v": must(whole(0, 99)), "rank": RANK, "format": WORD, "lib": WORD, "kind": WORD, "n": COUNT,
        "ids": row(maybe(SEQ), maybe(SEQ)), "newest_s": TIME, "active_only": flag, "wrapped": flag, "opens": COUNT,
        "open": each(
            record(
                {"g": must(whole(0, 4095)), "seq": SEQ, "id": SEQ, "at": TIME, "ms": SEQ, "sig": must(whole(0, 4095)),
                 "sizes": LINE, "p2p": each(row(SIDE, maybe(RANK), maybe(RANK), ORDINAL)), "more": COUNT}
            )
        ),
        "groups": must(
            each(
                record(
                    {"name": must(WORD), "desc": WORD, "ranks": must(members), "enq": SEQ, "first": SEQ, "first_open": SEQ,
                     "last_done": SEQ, "unsure": SEQ, "failed": flag, "p2p": flag, "status": row(SEQ, SEQ), "win": LINE,
                     "pace": row(COUNT, maybe(SPAN), maybe(SPAN), maybe(SPAN))}
                )
            )
        ),
        "sigs": each(LINE), "trail": LINE, "cut": WORD, "warn": each(LINE),
        "pairs": each(row(whole(0, 4095), SIDE, RANK, RANK, ORDINAL, ORDINAL, ORDINAL)), "moved": row(LINE, LINE),
    }
)  # fmt: skip
FLIGHT_RECORDER = record(
    {
        "ranks": each(
            record(
                {
                    "rank": must(RANK), "pid": PID, "state": WORD, "source": WORD, "path": LINE, "mtime": TIME,
                    "age_s": SPAN, "stale": flag, "why": LINE, "poke": WORD, "http": LINE, "record": maybe(DUMP),
                    "before": record(
                        {"mtime": TIME, "newest_s": TIME, "groups": named(row(maybe(SEQ), maybe(SEQ)))}
                    ),
                }
            ),
            MOST_RANKS,
        )
    }
)  # fmt: skip

GROWTH = record(
    {
        "path": LINE, "kind": WORD, "files_new": COUNT, "bytes_grown": COUNT, "newest_at": TIME, "truncated": flag,
        "why": LINE, "shared_with": COUNT,
    }
)  # fmt: skip
ACTIVITY = record(
    {
        "window_s": number(0.0, 3600.0),
        "ranks": each(
            record(
                {
                    "rank": must(RANK), "pid": PID, "compiler_cpu_s": number(), "cpu_s": number(),
                    "compilers": each(record({"pid": PID, "comm": WORD, "state": WORD, "cpu_s": number()}), 256),
                    "caches": each(GROWTH, 256), "folders": each(GROWTH, 256), "read_bytes_grown": COUNT,
                    "write_bytes_grown": COUNT, "rchar_grown": COUNT, "wchar_grown": COUNT, "progress_line": LINE,
                    "progress_moved": flag,
                }
            )
        ),
        "unseen": each(record({"rank": RANK, "pid": PID, "why": LINE})),
    }
)  # fmt: skip

STACKS = record(
    {
        "ranks": each(
            record(
                {
                    "rank": must(RANK), "pid": PID, "state": WORD, "tracer_pid": PID, "how": WORD, "why": LINE, "still": flag,
                    "verb": WORD, "gil_held": LINE, "states": named(COUNT, 32),
                    "threads": each(
                        record(
                            {"tid": PID, "name": WORD, "main": flag, "gil": flag, "active": flag, "cut": COUNT,
                             "frames": each(row(WORD, WORD, COUNT, flag), 64)}
                        ),
                        64,
                    ),
                    "kernel": each(
                        record(
                            {"tid": PID, "comm": WORD, "state": WORD, "wchan": WORD, "syscall": WORD, "stack": each(WORD, 64)}
                        ),
                        64,
                    ),
                }
            ),
            1024,
        )
    }
)  # fmt: skip

WAY = each(
    record({"address": must(WORD), "result": must(WORD), "errno": whole(0, 4096), "took_s": number(), "banner": flag})
)
PEERS = record(
    {"targets": each(record({"node": must(WORD), "management": WAY, "fabric": WAY})), "truncated": flag}
)  # fmt: skip

RAS_RANKS = each(row(WORD, SIZE, members), 64)  # what is said, of how many ranks, of which
RAS_REPORT = record(
    {
        "format": must(WORD), "nccl": WORD, "repaired": flag, "timeouts": COUNT, "left_out": COUNT, "left_launches": COUNT,
        "table": each(row(COUNT, SIZE, WORD, WORD), 64),
        "comms": must(
            each(
                record(
                    {"id": must(WORD), "size": must(SIZE), "ranks": must(WORD), "ops": must(each(WORD, 16)),
                     "present": must(SIZE), "groups": must(each(row(each(maybe(COUNT), 16), SIZE, members), 64)),
                     "more_groups": must(SIZE), "unlisted": must(text(4096)), "status": must(RAS_RANKS),
                     "errors": must(RAS_RANKS), "missing": must(each(row(RANK, WORD, WORD, PID), 256)),
                     "missing_n": must(SIZE), "who": must(each(row(RANK, WORD, PID), 64))}
                ),
                64,
            )
        ),
    }
)  # fmt: skip
RAS = record(
    {
        "outcome": must(WORD), "why": LINE, "address": LINE, "road": WORD, "tries": COUNT, "silent": COUNT, "foreign": COUNT,
        "queries": COUNT, "gap_s": SPAN, "nccl": WORD, "first": RAS_REPORT, "second": RAS_REPORT,
    }
)  # fmt: skip

CONTACT = record({"phase": WORD, "error": LINE, "banner": LINE, "fingerprint": LINE, "seconds": named(SPAN, 64)})

SHAPES: Mapping[str, Check] = {
    "contact": CONTACT, "reach": REACH, "ranks": RANKS, "kernel": KERNEL, "nic": NIC, "joblog": JOBLOG, "steps": STEPS,
    "flight_recorder": FLIGHT_RECORDER, "activity": ACTIVITY, "peers": PEERS, "stacks": STACKS, "gpu": GPUS, "ras": RAS,
    "checkpoint": CHECKPOINT,
}  # fmt: skip
_UNKNOWN = record({})


# ---------------------------------------------------------------- the questions


def problem(probe: str, data: Mapping[str, Any]) -> str | None:
    """What of this answer is not as the probe tells it, "ranks[3].pid is no whole number"; None = nothing.

    A probe that has no spec here is read by no fact: its answer is only bounded.
    """
    try:
        SHAPES.get(probe, _UNKNOWN)(data)
    except Bad as bad:
        return f"{bad.where or 'data'} {bad.why}"[:200]
    return None


def checked(sample: Sample) -> Sample:
    """The sample as it is, or malformed and without data where its shape or its clock is not what a probe sends.

    A sample that was not good keeps its status (the phase of a failed contact is read): only data that lie about their
    shape are taken away.
    """
    why = problem(sample.probe, sample.data) if sample.data else None
    if why is None:
        why = next((f"{name} is no time" for name in ("at", "received") if not _is_time(getattr(sample, name))), None)
        if why is None:
            return sample
        sample = replace(sample, at=None, received=sample.received if _is_time(sample.received) else None)
    status = "malformed" if sample.status == "ok" else sample.status
    return replace(sample, status=status, data={}, notes=(*sample.notes[:19], f"answer not used: {why}"))


def _is_time(at: float | None) -> bool:
    return at is None or 0.0 <= at <= LAST_TIME
