#!/usr/bin/env python3
"""Flight records against PyTorch's own analyzer: CPU and memory of both, on the same dumps, in one run.

usage: python tests/bench/bench_torchfrtrace.py [--ranks 64 256 1024 8192] [--entries 2000] [--torch PYTHON]

Up to 256 ranks every dump is written to a folder, and `torchfrtrace` reads that folder (its import of torch is measured
alone and subtracted); beyond, it would take minutes (85 to 107 ms a rank, notes/flight-recorder.md 3.2), so it is left out
and said so. Our node side reads and reduces each dump as a node would; our operator side parses the answers of all nodes and
computes the facts of the waits, each in a fresh process. CPU time on a shared machine moves by half within a minute, so both
take turns, ROUNDS times, and the medians are compared. Beyond 256 ranks the node side is measured on 64 whole dumps and
the others are made short and renumbered (bench_flight_records.py). One rank has not come; both must say which.
Without a Python that has torch (this one, --torch, or TRIAGE_TORCH_PYTHON) a line says so and ours is measured alone.

Exit 1 unless: >= 20 times less CPU than torchfrtrace at 256 ranks, our node side included; <= 1 s CPU and <= 100 MB for the
operator at any size; <= 20 ms CPU and <= 4 KB a rank on the node.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_flight_records import PER_NODE, STEP, T0_NS, as_pytorch, make, shift

WITH_TORCH = 256  # ranks at most that torchfrtrace is given
ROUNDS = 3  # turns of ours and torchfrtrace's
WHOLE = 64  # dumps that are read whole beyond that
FRTRACE = "from torch.distributed.flight_recorder.fr_trace import main; main()"
IMPORT = "from torch.distributed.flight_recorder.fr_trace import main"


# ---------------------------------------------------------------- what runs in a process of its own


def node_side(folder: str, out: str) -> dict[str, float]:
    """Read and reduce every dump of the folder, eight to an answer, as nodes do; CPU of this alone."""
    from triage.probes import _records as probe

    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (128 << 20),) * 2)  # as the payload runs its probes
    files = sorted(Path(folder).iterdir(), key=lambda p: int(p.name.split("_")[1]))
    began = time.process_time()
    with open(out, "w") as lines:
        for first in range(0, len(files), PER_NODE):
            rows, cache = [], {}  # type: ignore[var-annotated]
            for path in files[first : first + PER_NODE]:
                rank = int(path.name.split("_")[1])
                rows.append(row(rank, probe.read_dump(path.read_bytes(), rank, cache)))
            lines.write(json.dumps({"ranks": rows}) + "\n")
    spent = time.process_time() - began
    with open(out) as lines:
        sizes = [len(json.dumps(one["record"])) for line in lines for one in json.loads(line)["ranks"]]
    return {"cpu_s": spent, "worst_bytes": max(sizes), "files": len(files)}


def row(rank: int, record: Any) -> dict[str, Any]:
    return {
        "rank": rank, "pid": 1, "source": "poked", "mtime": T0_NS / 1e9 + 60, "stale": False, "why": "", "poke": "written",
        "record": record,
    }  # fmt: skip


def operator_side(answers: str) -> dict[str, Any]:
    """Parse the nodes' answers one by one and compute the facts; CPU, and the memory that it added."""
    from triage.facts import registry
    from triage.facts.evidence import Evidence
    from triage.model import Job, Sample

    registry.catalogue()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, samples = time.process_time(), []
    with open(answers) as lines:
        for i, line in enumerate(lines):
            samples.append(Sample("flight_recorder", f"gpu{i:04d}", "C", "ok", json.loads(line)))
    ev = Evidence(Job("bench", "inventory", ()), samples, T0_NS / 1e9 + 60)
    names = ("roots", "absent", "mismatch", "cycle", "members", "victims", "known_share", "all_joined", "host_stuck")
    facts = {name: registry.other(ev, f"waits.{name}") for name in names}
    spent = time.process_time() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"cpu_s": spent, "grown_mb": grown, "roots": [part.rank for part in facts["roots"].parts]}


# ---------------------------------------------------------------- making the evidence


def write_whole(folder: Path, ranks: int, entries: int, stuck: int, some: list[int]) -> None:
    folder.mkdir()
    for rank in some:
        (folder / f"rank_{rank}").write_bytes(as_pytorch(make(rank, ranks, entries, stuck)))


def write_answers(out: Path, ranks: int, entries: int, stuck: int) -> None:
    """Answers of all nodes, reduced from short dumps and renumbered to the length asked for."""
    from triage.probes import _records as probe

    with out.open("w") as lines:
        for first in range(0, ranks, PER_NODE):
            rows = []
            for rank in range(first, min(ranks, first + PER_NODE)):
                whole = rank == stuck
                record = probe.reduce_dump(make(rank, ranks, entries if whole else 16 * len(STEP), stuck), rank)
                if not whole:
                    shift(record, entries)
                rows.append(row(rank, record))
            lines.write(json.dumps({"ranks": rows}) + "\n")


def in_child(what: str, *args: str) -> dict[str, Any]:
    argv = [sys.executable, __file__, "--child", what, *args]
    return dict(json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout))


def spend(argv: list[str]) -> tuple[float, float, str]:
    """(CPU s, peak MB, output) of a command."""
    with tempfile.TemporaryFile("w+") as out:
        pid = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(pid.pid, 0)
        out.seek(0)
        text = out.read()
    if status:
        sys.exit(f"{argv[0]} failed: {text[-400:]}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, text


# ---------------------------------------------------------------- main


def torch_python(told: str | None) -> str | None:
    for python in (told, os.environ.get("TRIAGE_TORCH_PYTHON"), sys.executable):
        if python and shutil.which(python):
            found = "from importlib.util import find_spec as f; import sys; sys.exit(f('torch') is None)"
            if subprocess.run([python, "-c", found], capture_output=True, check=False).returncode == 0:
                return python
    return None


def against(python: str, folder: Path, stuck: int) -> tuple[float, float, str]:
    """(CPU s without the import, MB beyond the import, whether it says the stuck rank) of torchfrtrace."""
    base = spend([python, "-c", IMPORT])
    cpu, peak, text = spend([python, "-c", FRTRACE, str(folder), "-p", "rank_"])
    says = bool(re.search(rf"(missing|Culprit|joining)[^\n]*\b{stuck}\b", text))
    return cpu - base[0], peak - base[1], "names it" if says else "does not name it"


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        told = {"node": node_side, "operator": operator_side}[sys.argv[2]](*sys.argv[3:])
        print(json.dumps(told))
        return 0
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024, 8192])
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--torch", help="a Python that has torch")
    args = parser.parse_args()
    python = torch_python(args.torch)
    if python is None:
        print("torch is not installed here: torchfrtrace is not measured (--torch PYTHON names one that has it)")
    missed: list[str] = []
    for ranks in args.ranks:
        stuck = ranks // 2 + 5
        with tempfile.TemporaryDirectory() as name:
            folder, answers = Path(name) / "dumps", Path(name) / "answers"
            some = list(range(ranks)) if ranks <= WITH_TORCH else list(range(0, ranks, ranks // WHOLE))
            write_whole(folder, ranks, args.entries, stuck, some)
            theirs, nodes = [], []
            for _ in range(ROUNDS):
                nodes.append(in_child("node", str(folder), str(answers)))
                if python and ranks <= WITH_TORCH:
                    theirs.append(against(python, folder, stuck))
            node = sorted(nodes, key=lambda run: float(run["cpu_s"]))[ROUNDS // 2]
            if ranks > WITH_TORCH:
                write_answers(answers, ranks, args.entries, stuck)
            operator = in_child("operator", str(answers))
            each_ms = node["cpu_s"] / node["files"] * 1000
            ours = each_ms / 1000 * ranks + operator["cpu_s"]
            print(
                f"\n{ranks} ranks x {args.entries} entries; the rank that has not come: {stuck}, found {operator['roots']}"
            )
            print(
                f"  node      {each_ms:6.1f} ms CPU a rank, {node['worst_bytes']} bytes at most      (<= 20 ms, <= 4096)"
            )
            print(f"  operator  {operator['cpu_s']:6.2f} s CPU, {operator['grown_mb']:.0f} MB      (<= 1 s, <= 100 MB)")
            print(f"  both      {ours:6.2f} s CPU")
            if operator["roots"] != [stuck]:
                missed.append(f"{ranks}: the wrong rank")
            if each_ms > 20 or node["worst_bytes"] > 4096:
                missed.append(f"{ranks}: the node side is over budget")
            if operator["cpu_s"] > 1.0 or operator["grown_mb"] > 100:
                missed.append(f"{ranks}: the operator side is over budget")
            if theirs:
                cpu, mb, says = sorted(theirs)[ROUNDS // 2]
                print(
                    f"  torchfrtrace {cpu:.2f} s CPU, {mb:.0f} MB, both beyond its import; {says}: {cpu / ours:.1f} x ours"
                )
                spread = ", ".join(f"{run['cpu_s']:.2f} : {run_cpu:.1f}" for run, (run_cpu, _, _) in zip(nodes, theirs))
                print(f"  turns (node side : torchfrtrace, s CPU): {spread}")
                if ranks == WITH_TORCH and cpu < 20 * ours:
                    missed.append(f"only {cpu / ours:.1f} times less CPU than torchfrtrace at {ranks} ranks")
            elif python:
                print(f"  torchfrtrace is not run beyond {WITH_TORCH} ranks: it would take minutes")
    print("\n" + ("\n".join(missed) if missed else "all within budget"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
