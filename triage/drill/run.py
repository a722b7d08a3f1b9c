"""One drill from start to end: set up, let it train, break it, wait until that shows, call triage, tear down.

stdout belongs to whoever is called (and, with --hold, to the one line to copy); progress goes to stderr.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from triage.drill.faults import Fault, check_needs, did_you_mean
from triage.drill.plan import BLINDABLE, SECOND_LOOK, check_shape
from triage.drill.scenarios import find, list_scenarios
from triage.errors import TriageError, UsageError

if TYPE_CHECKING:
    from triage.drill.cluster import Cluster

__all__ = ["DrillOptions", "Investigate", "list_scenarios", "run_drill"]

# (job id, inventory file, profile file, looks) -> exit code: `triage frozen-job` as the command line would run it.
Investigate = Callable[[str, Path, Path, int], int]

STILL_S = 7.5  # 1.5 times the floor of the drill's profile: then the job is frozen by any reading
SLOW_STEPS = 14  # the outlier rule wants 10 slow steps and gets some more (notes/straggler-and-cost.md 2.5)
LONGER_STEPS = 50  # of steps as uneven as lost packets make them, which the test for a change wants more of
AFTER_STEPS = 15
PATIENCE_S = 60.0
IMPORT_S = 60.0  # beyond that for all ranks of a busy machine to import torch
NODES = {"ring": 4, "torch": 2}  # without --nodes: a rank with torch costs 1.5 CPU-seconds and 200 MB


@dataclass(frozen=True)
class DrillOptions:
    """What `triage drill` was asked for. `fault` "" is the scenario's first, `nodes` None what suits the engine; `truth` is
    where to write what is true."""

    scenario: str = "dead-rank"
    fault: str = ""
    nodes: int | None = None
    ranks_per_node: int = 2
    speed: float = 0.88
    after_s: float = 8.0
    seed: int | None = None
    hold: bool = False
    blind: tuple[str, ...] = ()
    backend: str = "processes"  # the command line says auto
    engine: str = "ring"
    truth: Path | None = None


def run_drill(
    options: DrillOptions,
    investigate: Investigate,
    *,
    progress: Callable[[str], None] | None = None,
) -> int:
    """Run one drill and return the exit code of `investigate` (0 for --hold, which does not call it).

    Raises UsageError for what cannot be done as asked, TriageError if the cluster or the fault does not come.
    KeyboardInterrupt passes through after everything was ended.
    """
    say = progress or to_stderr
    scenario = find(options.scenario, options.engine)
    fault = scenario.fault(options.fault)
    nodes = max(NODES[options.engine], fault.needs_nodes) if options.nodes is None else options.nodes
    check(options, fault, nodes)
    from triage.drill.cluster import Cluster

    with ended_by_signals():
        say(f"starting {nodes} nodes of {options.ranks_per_node} ranks")
        with Cluster(
            nodes=nodes,
            ranks_per_node=options.ranks_per_node,
            seed=options.seed,
            compute_ms=scenario.compute_ms,
            blind=frozenset(options.blind),
            backend=options.backend,
            engine=options.engine,
            control_plane=fault.control_plane,
            sockets=fault.sockets,
            chunk_bytes=fault.chunk_bytes,
            slow_soon=fault.shows == "longer",
        ) as cluster:
            wait_for_steps(cluster)
            say(f"job {cluster.job_id} trains; seed {cluster.plan.seed}; breaks in {options.after_s:g} s")
            time.sleep(options.after_s)
            truth = cluster.apply(scenario.name, fault, speed=options.speed)
            if fault.messages:
                say(f"{scenario.name}: {fault.breaks}")
            wait_until_shown(cluster, fault, options, say)
            if options.hold:
                hold(cluster, truth, options)
                return 0
            with cluster.backend.inside():
                return ask(cluster, truth, options, investigate)


def check(options: DrillOptions, fault: Fault, nodes: int) -> None:
    """Everything that can be refused before anything starts."""
    from triage.drill.backends import AUTO, backends, settled

    check_shape(nodes, options.ranks_per_node)
    known = [AUTO, *backends()]
    if options.backend not in known:
        raise UsageError(f"drill: no backend is called {options.backend}{did_you_mean(options.backend, known)}")
    for source in options.blind:
        if source not in BLINDABLE:
            raise UsageError(f"drill: no source is called {source}{did_you_mean(source, list(BLINDABLE))}")
    if fault.real_cables and settled(options.backend) != "namespaces":
        raise UsageError(f"drill: fault {fault.name} needs real cables: --backend namespaces{because()}")
    if options.engine == "torch" and importlib.util.find_spec("torch") is None:
        raise UsageError("drill: --engine torch needs PyTorch: pip install 'triage-frozen-job[drill-torch]'")
    if not 0.01 <= options.speed < 1:
        raise UsageError(f"drill: --speed {options.speed:g} is not slower: give a share between 0.01 and 1")
    if not 0 <= options.after_s <= 3600:
        raise UsageError(f"drill: --after {options.after_s:g}s is out of range: give 0s to 1h")
    check_needs(fault, nodes, options.ranks_per_node)


def because() -> str:
    """Why there are none here, to be put behind a sentence."""
    from triage.drill.netlab import why_not

    why = why_not()
    return f", which cannot be had here: {why}" if why else ""


def wait_for(done: Callable[[], bool], otherwise: str, patience_s: float = PATIENCE_S) -> None:
    until = time.monotonic() + patience_s
    while not done():
        if time.monotonic() > until:
            raise TriageError(f"drill: {otherwise} within {patience_s:.0f} s; is the machine overloaded?")
        time.sleep(0.1)


def wait_for_steps(cluster: Cluster) -> None:
    """Wait until every rank has made a step. If one never does, the job's log says why."""
    world = cluster.plan.world
    patience_s = PATIENCE_S + (IMPORT_S if cluster.plan.engine == "torch" else 0.0)
    try:
        wait_for(lambda: len(cluster.steps()) == world or bool(cluster.ended()), "no rank makes steps", patience_s)
        if len(cluster.steps()) < world:
            raise TriageError("drill: a rank ended before it made a step")
    except TriageError as error:
        with contextlib.suppress(OSError):
            said = [line for line in cluster.plan.log.read_text(errors="replace").splitlines() if "Error" in line]
            if said:
                raise TriageError(f"{error}; the job's log says: {said[0][:300]}") from None
        raise


def wait_until_shown(cluster: Cluster, fault: Fault, options: DrillOptions, say: Callable[[str], None]) -> None:
    """Wait until the fault can be seen in the ranks' own step records, by the drill's own measure."""
    try:
        wait_for_signs(cluster, fault, options, say)
    except TriageError as error:
        if why := cluster.backend.failed():
            raise TriageError(f"{error}; what was to be done could not be: {why}") from None
        raise


def wait_for_signs(cluster: Cluster, fault: Fault, options: DrillOptions, say: Callable[[str], None]) -> None:
    if fault.shows == "frozen":
        say(f"waiting until no rank has finished a step for {STILL_S:g} s")
        wait_for(lambda: cluster.still_s() >= STILL_S, "the job did not freeze")
    elif fault.shows == "slow":
        truth = cluster.truth or {}
        rank = truth["broken_rank"]
        # Half way between the two paces: a step of the slow rank that is beyond it was slow by the fault.
        limit = cluster.plan.compute_ms * (1 + 1 / options.speed) / 2
        patience_s = PATIENCE_S + SLOW_STEPS * cluster.plan.compute_ms / 1000 / options.speed
        say(f"waiting for {SLOW_STEPS} slow steps")
        wait_for(
            lambda: sum(step["compute_ms"] > limit for step in cluster.records(rank)) >= SLOW_STEPS,
            "the rank did not become slow",
            patience_s,
        )
    elif fault.shows == "longer":
        say(f"waiting for {LONGER_STEPS} slow steps")
        began = (cluster.truth or {})["at"]
        usual = statistics.median(step["total_ms"] for step in cluster.records(0) if step["t_start"] < began)
        wait_for(
            lambda: (
                sum(s["total_ms"] > 1.2 * usual for s in cluster.records(0) if s["t_start"] > began) >= LONGER_STEPS
            ),
            "the steps did not become longer",
            3 * PATIENCE_S,
        )
    elif fault.messages:
        # The fault has come and gone, or never touches the steps: some of them must follow it.
        after = max(cluster.steps().values()) + AFTER_STEPS
        wait_for(lambda: min(cluster.steps().values()) >= after, "the job did not go on")


def ask(cluster: Cluster, truth: dict[str, Any], options: DrillOptions, investigate: Investigate) -> int:
    """Call triage and, where the ground truth is wanted, note what the run left on the nodes."""
    looks = 1 if SECOND_LOOK in options.blind else 2
    if options.truth is None:
        return investigate(cluster.job_id, cluster.inventory_path, cluster.profile_path, looks)
    before = set(cluster.files())
    began = time.monotonic()
    code = investigate(cluster.job_id, cluster.inventory_path, cluster.profile_path, looks)
    took_s = time.monotonic() - began
    noted = {
        "investigation_s": round(took_s, 3),
        "left_on_nodes": sorted(set(cluster.files()) - before),
        "gone_from_nodes": sorted(before - set(cluster.files())),
        "processes": cluster.processes(),
        "ended": {str(rank): code for rank, code in cluster.ended().items()},
        "folder": str(cluster.folder),
        "steps": {str(rank): cluster.records(rank) for rank in range(cluster.plan.world)},
    }
    write_truth(options, truth | noted)
    return code


def hold(cluster: Cluster, truth: dict[str, Any], options: DrillOptions) -> None:
    """Print the line for another terminal and keep the cluster up until Ctrl-C or SIGTERM, its normal ends."""
    if options.truth is not None:
        write_truth(options, truth | {"processes": cluster.processes(), "folder": str(cluster.folder)})
    with contextlib.suppress(KeyboardInterrupt):
        print(hold_line(cluster), flush=True)
        to_stderr("held; Ctrl-C ends it")
        threading.Event().wait()


def hold_line(cluster: Cluster) -> str:
    """The exact command that investigates this cluster from another terminal."""
    words = [
        *cluster.backend.prefix(),
        *own_name(),
        "frozen-job",
        cluster.job_id,
        "--inventory",
        str(cluster.inventory_path),
    ]
    words += ["--profile", str(cluster.profile_path)]
    return shlex.join([*words, "--looks", "1"] if SECOND_LOOK in cluster.plan.blind else words)


def own_name() -> list[str]:
    """How this program was called, so that the line works where it is pasted: a venv's triage is on no PATH."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return [sys.executable, "-m", "triage"]
    return [str(called.absolute())] if called.name == "triage" and os.sep in sys.argv[0] else ["triage"]


def write_truth(options: DrillOptions, truth: dict[str, Any]) -> None:
    assert options.truth is not None
    try:
        options.truth.write_text(json.dumps(truth) + "\n")
    except OSError as error:
        raise UsageError(f"drill: {options.truth}: {error.strerror}; give --truth a file that can be written") from None


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end a drill as Ctrl-C does: through every `finally`."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def to_stderr(line: str) -> None:
    print(f"drill: {line}", file=sys.stderr, flush=True)
