"""What the job was started with: the switches of PyTorch and NCCL that leave evidence behind, as its ranks have them.

By the ranks' own environment (probes/_processes.py: ENV_NAMES). What can fool it: a program that sets a variable itself after
it was started (os.environ: /proc shows what it was started with); defaults that differ by the release of PyTorch, so that
"not set" is told apart from "off".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from triage.facts.clocks import clock_offsets
from triage.facts.evidence import Evidence
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Part

# What PyTorch takes for yes (getCvarBool, torch/csrc/distributed/c10d/Utils.hpp of 2.13); it refuses what is neither yes nor no.
YES = ("y", "yes", "1", "t", "true")
LOUD = (
    "WARN",
    "INFO",
    "ABORT",
    "TRACE",
)  # levels of NCCL_DEBUG that tell errors; any other word tells none (src/debug.cc)


def _ranks_with(ev: Evidence, lacks: Callable[[Mapping[str, str]], bool]) -> Fact:
    """The nodes on which living ranks lack something, by their environment."""
    told = [row for row in ev.derive(rank_table).rows.values() if row.alive and row.env and row.node]
    if not told:
        return unknown("no environment of a living rank of the job could be read")
    bad = [row for row in told if lacks(row.env)]
    nodes = sorted({row.node for row in bad if row.node})
    samples = ev.latest("ranks")
    return known(
        parts=[Part("node", node) for node in nodes],
        text=f"{len(bad)} of the {len(told)} ranks that we see",
        provenance=ev.seen(*[samples[node] for node in nodes[:8] if node in samples]),
    )


def _aborts(env: Mapping[str, str]) -> bool:
    told = env.get("TORCH_NCCL_ASYNC_ERROR_HANDLING") or env.get("NCCL_ASYNC_ERROR_HANDLING") or ""
    return told.strip() == "1"


def _size(env: Mapping[str, str]) -> str:
    return env.get("TORCH_FR_BUFFER_SIZE") or env.get("TORCH_NCCL_TRACE_BUFFER_SIZE") or ""


@fact("switches.recorder_off", type="number", unit="nodes", parts="node")
def recorder_off(ev: Evidence) -> Fact:
    """Nodes whose ranks keep no flight records (TORCH_FR_BUFFER_SIZE=0)."""
    return _ranks_with(ev, lambda env: _size(env).strip() == "0")


@fact("switches.recorder_unset", type="number", unit="nodes", parts="node")
def recorder_unset(ev: Evidence) -> Fact:
    """Nodes whose ranks leave it to their release of PyTorch whether flight records are kept."""
    return _ranks_with(ev, lambda env: not _size(env))


@fact("switches.no_pipe", type="number", unit="nodes", parts="node")
def no_pipe(ev: Evidence) -> Fact:
    """Nodes whose ranks cannot be asked for a flight record (no TORCH_NCCL_DEBUG_INFO_PIPE_FILE)."""
    return _ranks_with(ev, lambda env: not env.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE"))


@fact("switches.no_dump", type="number", unit="nodes", parts="node")
def no_dump(ev: Evidence) -> Fact:
    """Nodes whose ranks write no flight record when a collective times out (TORCH_NCCL_DUMP_ON_TIMEOUT off)."""
    return _ranks_with(ev, lambda env: env.get("TORCH_NCCL_DUMP_ON_TIMEOUT", "1").lower() not in YES)


@fact("switches.aborts", type="number", unit="nodes", parts="node")
def aborts(ev: Evidence) -> Fact:
    """Nodes whose ranks abort their communicators at a time-out, which may lose the flight record (ASYNC_ERROR_HANDLING=1)."""
    return _ranks_with(ev, _aborts)


@fact("switches.no_steps", type="number", unit="nodes", parts="node")
def no_steps(ev: Evidence) -> Fact:
    """Nodes whose ranks write no step records (no TRIAGE_STEP_LOG)."""
    return _ranks_with(ev, lambda env: not env.get("TRIAGE_STEP_LOG"))


@fact("switches.quiet_nccl", type="number", unit="nodes", parts="node")
def quiet_nccl(ev: Evidence) -> Fact:
    """Nodes whose ranks let NCCL say nothing of errors (NCCL_DEBUG unset, VERSION, or no word of NCCL's)."""
    return _ranks_with(ev, lambda env: env.get("NCCL_DEBUG", "").strip().upper() not in LOUD)


@fact("switches.ras_off", type="number", unit="nodes", parts="node")
def ras_off(ev: Evidence) -> Fact:
    """Nodes whose ranks have switched NCCL's RAS thread off (NCCL_RAS_ENABLE=0)."""
    return _ranks_with(ev, lambda env: env.get("NCCL_RAS_ENABLE", "").strip() == "0")


@fact("seen.ranks", type="number", unit="ranks")
def ranks(ev: Evidence) -> Fact:
    """How many living ranks of the job are seen on its nodes."""
    samples = ev.latest("ranks")
    if not samples:
        return unknown("no node told its processes")
    alive = [row for row in ev.derive(rank_table).rows.values() if row.alive]
    return known(len(alive), provenance=ev.seen(*list(samples.values())[:8]))


@fact("seen.job_log", type="bool")
def job_log(ev: Evidence) -> Fact:
    """Was the job's log read, here or on a node?"""
    read = [sample for sample in ev.of("joblog") if sample.data.get("exists", True)]
    if read:
        return known(True, provenance=ev.seen(*read[:4]))
    why = next((n for s in ev.of("joblog", status=None) for n in s.notes), "")
    return known(False, text=why or ("it could not be read" if ev.job.log else "nobody told its path"))


@fact("seen.untraceable", type="number", unit="nodes", parts="node")
def untraceable(ev: Evidence) -> Fact:
    """Nodes on which we may not read the stack of another's process (neither root nor allowed to trace)."""
    samples = ev.latest("reach")
    if not samples:
        return unknown("no node answered")
    bad = [s for s in samples.values() if s.data.get("ptrace_capable") is False and not s.data.get("root")]
    return known(parts=[Part("node", s.node) for s in bad], provenance=ev.seen(*bad[:8]))


@fact("clocks.worst_s", type="number", unit="s")
def worst(ev: Evidence) -> Fact:
    """How far the clock of the worst node is off ours."""
    offsets = ev.derive(clock_offsets)
    if not offsets:
        return unknown("no node told its time")
    node = max(offsets, key=lambda name: abs(offsets[name].offset_s))
    return known(abs(offsets[node].offset_s), text=f"the clock of {node} is {offsets[node].offset_s:+.1f}s off ours")
