"""A report to render: small and true to life, or with 128 nodes."""

from __future__ import annotations

from pathlib import Path

from triage.cost.plans import CulpritNode, PlanRequest, plan
from triage.cost.profile import load_profile
from triage.model import (
    Alternative,
    Command,
    Culprit,
    Deadline,
    EvidenceLine,
    Finding,
    Moment,
    Report,
    RuledOut,
    Unknown,
    Verdict,
    WalkStep,
)

COSTS = (Path(__file__).parents[2] / "playbooks" / "costs.yaml").read_text()
ONSET = 1_795_914_720.0  # 2026-11-29T01:12:00Z


def request(**changed: object) -> PlanRequest:
    given: dict[str, object] = {
        "verdict_id": "dead_rank",
        "mitigate": "restart_excluding",
        "fail": "stop",
        "confidence": "high",
        "state": "frozen",
        "observed": ONSET + 600,
        "n_nodes": 4,
        "n_gpus": 8,
        "culprits": (CulpritNode("gpu003", hard=True),),
        "onset": ONSET,
    }
    return PlanRequest(**{**given, **changed})  # type: ignore[arg-type]


def report(nodes: int = 4, **changed: object) -> Report:
    names = [f"gpu{i:03d}" for i in range(1, nodes + 1)]
    given: dict[str, object] = {
        "schema_version": "triage.report/1",
        "tool": {"name": "triage", "version": "0.1.0", "pokes": 0},
        "case": "/home/oncall/.local/state/triage/cases/4711-20261129T011200Z",
        "job": {
            "id": "4711",
            "scheduler": "inventory",
            "cluster": "lab",
            "restart": 0,
            "nodes": names,
            "ranks": 2 * nodes,
        },
        "observed": "2026-11-29T01:22:00Z",
        "state": "frozen",
        "verdict": Verdict(
            id="dead_rank",
            kind=None,
            cause="dead_rank/killed",
            title="rank 5 (gpu003) is dead",
            fail="stop",
            confidence="high",
            score=0.95,
            why=("named by 2 sources",),
        ),
        "culprits": (Culprit("rank", "culprit", node="gpu003", rank=5),),
        "victims": tuple(Culprit("rank", "involved", node=names[r // 2], rank=r) for r in range(2 * nodes) if r != 5),
        "evidence": (
            EvidenceLine("hard.killed", "its process ended by signal 9", "for", "gpu003", 5, "joblog", None, 590.0),
            *(EvidenceLine("waits.known_share", "waits in all_reduce 812", "for", n, None, "ranks") for n in names),
            EvidenceLine("seen.kernel_log", "the kernel log could not be read", "against", "gpu003", None, "kernel"),
        ),
        "findings": tuple(
            Finding("flap", f"nic mlx5_1 of {n}", "flapped once; the job does not use it") for n in names
        ),
        "ruled_out": (RuledOut("deadlock", "all members but one had joined", "absent"),),
        "alternatives": (Alternative("link_flap", "link_flap/down", 0.3, "no port of the job is down"),),
        "unknown": (
            Unknown("kernel log of gpu003", "permission denied", "whether it was the OOM killer", "ssh gpu003 dmesg"),
        ),
        "walk": (
            WalkStep("frozen-job", "pulse", "Does it make progress?", "progress.advancing", "no", ("a = no",), "hard"),
            WalkStep("frozen-job", "hard", "Is there a hard fact?", "hard.events > 0", "yes", ("b = 1",), "dead_rank"),
        ),
        "timeline": (Moment("2026-11-29T01:12:00Z", "rank killed by signal 9", 1.0, "gpu003", 5, "cause"),),
        "deadlines": (Deadline("collective time-out", "2026-11-29T01:24:00Z", 120.0, "log"),),
        "mitigation": plan(request(), load_profile(COSTS)),
        "commands": (
            Command("Is it still so?", "triage confirm 4711-20261129T011200Z", "none: read only", "5s"),
            Command(
                "Keep the node out",
                "scontrol update nodename=gpu003 state=drain reason='triage: rank 5 died here by signal 9, case 4711'",
                "no new job starts there",
                "one node less",
            ),
        ),
        "do_not": ("Do not blame the ranks that report the time-out; they waited for the dead one.",),
        "took_s": {"reach": 0.4, "look A": 1.25, "window": 8.0, "look B": 1.0},
        "exit_code": 10,
        "dedup_key": "triage:lab:inventory:4711:0",
    }
    return Report(**{**given, **changed})  # type: ignore[arg-type]
