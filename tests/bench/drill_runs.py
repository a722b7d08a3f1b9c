"""One drill as its own process, and what was right and wrong with the report of it. Shared by the benches of drills."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DRILL_S = 180.0  # of the whole drill: something hangs beyond that
# What may be new on a node after a run: the flight records that the poked ranks wrote themselves, and the work of a
# compiler that went on meanwhile.
ALLOWED = re.compile(r"^[^/]+/root/tmp/[^/]+/(comm/trace_rank_\d+|inductor(/.*)?)$")


@dataclass
class Run:
    """What one drill gave: the report and the truth (None if there is none), its figures, and where its files lie."""

    report: dict[str, Any] | None
    truth: dict[str, Any] | None
    code: int
    room: Path
    trouble: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    def keep(self) -> str:
        """Leave the files for whoever looks into a miss; the line that says where."""
        if self.report is not None:
            (self.room / "report.json").write_text(json.dumps(self.report))
        return f"report, truth and case: {self.room}"

    def drop(self) -> None:
        shutil.rmtree(self.room, ignore_errors=True)


def run_drill(triage: str, scenario: str, fault: str, seed: int, *more: str) -> Run:
    """`triage drill SCENARIO --fault F --seed N --output json --truth FILE`, with a state and temporary folder of its own."""
    room = Path(tempfile.mkdtemp(prefix="bench-"))
    truth_file, began = room / "truth.json", time.monotonic()
    command = [triage, "drill", scenario, "--fault", fault, "--seed", str(seed), "--output", "json"]
    command += ["--truth", str(truth_file), "--state-dir", str(room / "state"), *more]
    (room / "tmp").mkdir()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {"TMPDIR": str(room / "tmp")}, timeout=DRILL_S
        )
    except subprocess.TimeoutExpired:
        return Run(None, None, -1, room, [f"no end within {DRILL_S:.0f} s"], {"drill_s": DRILL_S})
    figures = {"drill_s": time.monotonic() - began}
    try:
        truth, report = json.loads(truth_file.read_text()), json.loads(done.stdout)
    except (OSError, ValueError):
        said = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        return Run(
            None, None, done.returncode, room, [f"exit {done.returncode} and no report; it said: {said[0]}"], figures
        )
    figures["triage_s"] = truth["investigation_s"]
    trouble = left_behind(truth, room / "tmp")
    return Run(report, truth, done.returncode, room, trouble, figures)


def culprits_of(report: dict[str, Any]) -> list[tuple[str, str, int | None, str | None, str | None]]:
    return [(part["kind"], part["role"], part["rank"], part["node"], part["nic"]) for part in report["culprits"]]


def named_right(report: dict[str, Any], truth: dict[str, Any]) -> bool:
    """Nobody; or exactly the broken rank, node or port as culprit; or all of its cycle, and only they, as involved."""
    named, culprit = culprits_of(report), truth["culprit"]
    if culprit is None:
        return not named
    if culprit["kind"] in ("link", "fabric"):
        parts = report["culprits"]
        return len(parts) == 1 and parts[0]["kind"] == culprit["kind"] and names_network(parts[0]["name"], truth)
    if len(named) == 1 and named[0][:2] == (culprit["kind"], "culprit") and named[0][3] == culprit["node"]:
        if culprit["kind"] == "rank":
            return named[0][2] == culprit["rank"]
        return culprit["kind"] == "node" or named[0][4] in culprit["nics"]
    ranks = sorted(part[2] for part in named if part[0] == "rank" and part[2] is not None)
    return bool(truth["cycle"]) and ranks == truth["cycle"] and {part[1] for part in named} == {"involved"}


def names_network(name: str, truth: dict[str, Any]) -> bool:
    """Are the nodes that it speaks of ends of the broken way, or the two halves as they are?"""
    culprit = truth["culprit"]
    if "halves" in culprit:
        return sorted(side.split(", ") for side in name.split(" | ")) == sorted(culprit["halves"])
    told = {node for node in truth["nodes"] if re.search(rf"\b{re.escape(node)}\b", name)}
    return bool(told) and told <= set(culprit["ends"])


def accused_wrongly(report: dict[str, Any], truth: dict[str, Any]) -> list[str]:
    """Whoever is named or excluded without having broken anything: the one thing that must never happen."""
    wrong = []
    culprit = truth["culprit"]
    if culprit is None and report["culprits"]:
        wrong.append(f"somebody is accused and nothing is broken: {culprits_of(report)}")
    victims = set(truth["victims"])
    if hit := sorted({part["rank"] for part in report["culprits"]} & victims):
        wrong.append(f"victims named as culprits: ranks {hit}")
    named = {part["node"] for part in report["culprits"] if part["node"]}
    excluded = set(report["mitigation"]["restart"]["exclude_nodes"])
    if stray := sorted(named - {culprit["node"]}) if culprit else []:
        wrong.append(f"parts of healthy nodes named: {stray}")
    if stray := sorted(excluded - ({culprit["node"]} if culprit else set())):
        wrong.append(f"healthy nodes excluded: {stray}")
    if culprit and culprit["rank"] is not None and culprit["rank"] in {part["rank"] for part in report["victims"]}:
        wrong.append("the culprit stands among the victims")
    return wrong


def judge(run: Run, schema: dict[str, Any]) -> list[str]:
    """Compare the report with the truth: verdict, cause, culprits, victims, findings, strategy, exit code, schema.

    Where several answers are right (`or_else`), with the one that it comes nearest to.
    """
    import jsonschema

    report, truth = run.report, run.truth
    if report is None or truth is None:
        return list(run.trouble)
    wrong = [
        f"not by the schema: {error.json_path}: {error.message[:200]}"
        for error in jsonschema.Draft202012Validator(schema).iter_errors(report)
    ]
    right = [truth, *(truth | other for other in truth.get("or_else", ()))]
    return wrong + min((compare(run.code, report, each) for each in right), key=len) + run.trouble


def compare(code: int, report: dict[str, Any], truth: dict[str, Any]) -> list[str]:
    """What is wrong with the report if this is the truth."""
    wrong = []
    verdict = report["verdict"]
    if verdict["id"] != truth["verdict"]:
        wrong.append(f"verdict {verdict['cause']} instead of {truth['verdict']}")
    elif truth["cause"] and verdict["cause"] != truth["cause"]:
        wrong.append(f"cause {verdict['cause']} instead of {truth['cause']}")
    if not named_right(report, truth):
        wrong.append(f"culprits {culprits_of(report)} instead of {truth['culprit']} (cycle {truth['cycle']})")
    wrong += accused_wrongly(report, truth)
    if truth["finding"] and not found(report, truth):
        wrong.append(f"no finding of class {truth['finding']} names {truth['at_node']}")
    strategy = report["mitigation"]["recommended"]["strategy"]
    if strategy != truth["strategy"]:
        wrong.append(f"strategy {strategy} instead of {truth['strategy']}")
    if code != truth["exit_code"] or report["exit_code"] != code:
        wrong.append(f"exit {code} (report: {report['exit_code']}) instead of {truth['exit_code']}")
    return wrong


def found(report: dict[str, Any], truth: dict[str, Any]) -> bool:
    return any(
        each["class"] == truth["finding"] and truth["at_node"] in f"{each['part']} {each['text']}"
        for each in report["findings"]
    )


def left_behind(truth: dict[str, Any], temporary: Path) -> list[str]:
    """Processes and folders that outlived the drill, and files that triage left on the nodes."""
    wrong = []
    until = time.monotonic() + 5
    while (running := [pid for pid in truth["processes"] if alive(pid)]) and time.monotonic() < until:
        time.sleep(0.1)
    if running:
        wrong.append(f"still running: {running}")
    if Path(truth["folder"]).exists() or any(temporary.glob("site-*")):
        wrong.append(f"still there: {truth['folder']}")
    if left := [path for path in truth["left_on_nodes"] if not ALLOWED.match(path)]:
        wrong.append(f"left on the nodes: {left}")
    if truth["gone_from_nodes"]:
        wrong.append(f"removed from the nodes: {truth['gone_from_nodes']}")
    return wrong


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def find_triage() -> str:
    """The command beside this Python, else the one on the PATH."""
    beside = Path(sys.executable).with_name("triage")
    return str(beside) if beside.exists() else shutil.which("triage") or "triage"
