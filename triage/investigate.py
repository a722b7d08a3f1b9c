"""The one path: evidence in, report out.

    resolve job -> connect -> look A -> window -> look B -> facts -> walk; a question that needs a costly probe asks for
    it on its suspects only, and the walk goes on (DESIGN section 5)

`live` gathers from the job's nodes; `replay` reads a case again; `explain` reads a folder of dumps. All three end in
`conclude`. A deadline that passes yields a report of what is there; an interruption leaves a case that can be replayed.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from triage import __version__, asking, forward, incidents, ownfiles, ownlog
from triage.carry import NAME, Program
from triage.case import CaseFile, CaseWriter, NoCase, new_id
from triage.conclude import Outcome, conclude, load_playbooks, playbooks_of, thresholds
from triage.cost.profile import load_profile
from triage.errors import ConfigError, UsageError
from triage.facts.claims import records_of
from triage.facts.evidence import Evidence
from triage.facts.pace import job_change, present_step
from triage.facts.ranktable import rank_sets
from triage.ledger import Ledger
from triage.model import Job, Report, Sample
from triage.readers.shapes import checked
from triage.schedulers.hostlist import fold
from triage.tree.load import limits_of
from triage.tree.walk import Request
from triage.unread import unread

# DESIGN section 5. The run's own limit cuts each of them.
CONNECT_S, LOOK_A_S, LOOK_B_S, COSTLY_S = 10.0, 15.0, 10.0, 20.0
WINDOW_MIN_S, WINDOW_MAX_S, WINDOW_UNKNOWN_S, WINDOW_STEPS = 1.0, 20.0, 8.0, 3.0
RUN_S, RUN_LARGE_S, LARGE_NODES = 60.0, 120.0, 128

LOOKS = {"A": "first look", "B": "second look", "C": "flight recorders read"}

CHEAP_A = ("reach", "ranks", "kernel", "nic", "gpu", "steps", "checkpoint")
CHEAP_B = ("ranks", "nic", "gpu", "steps")


@dataclass(frozen=True)
class Options:
    """What a run may be told. `say` gets progress lines (stderr); the answer is the returned report."""

    command: str = "frozen-job"
    transport: str = "ssh"
    transport_options: Mapping[str, Any] = field(default_factory=dict)
    state_dir: str = ""
    profile: str = ""  # the profile's text
    playbooks: Mapping[str, str] = field(default_factory=dict)  # instead of those that ship
    poke: bool = True
    sudo: bool = False  # read as root where `sudo -n` lets us
    carry: Program | None = None  # the operator's py-spy, for suspects of its machine
    looks: int = 2  # 1: no window and no second look
    run_s: float | None = None
    warnings: tuple[str, ...] = ()
    again: str = ""  # the command line that looks again
    costly: bool = True  # may a question ask for a costly probe?
    remember: bool = True  # continue the record of incidents, and be continued by the next run
    keep_case: bool = True  # False: a round of a watch, of which nothing is kept
    say: Callable[[str], None] = lambda line: None


@dataclass(frozen=True)
class Result:
    """A finished run: its report, the case it was written from, and where that lies ("" = nowhere)."""

    report: Report
    case: CaseFile
    folder: str = ""


def shipped_playbooks() -> dict[str, str]:
    """name -> text of the playbooks, signatures' thresholds and costs that come with the package."""
    from importlib import resources

    folder = resources.files("triage.playbooks")
    names = ("frozen-job", "slow-job", "costs")
    return {name: (folder / f"{name}.yaml").read_text(encoding="utf-8") for name in names}


def shipped_limits(probes: tuple[str, ...]) -> dict[str, float]:
    """The thresholds of the playbooks that ship: what a fact needs and an older playbook does not name."""
    trees = {name: text for name, text in shipped_playbooks().items() if name != "costs"}
    return limits_of(load_playbooks(trees, probes))


def probe_names() -> tuple[str, ...]:
    from triage.transports.payload import probe_catalogue

    return tuple(sorted(probe_catalogue()))


def normal(sample: Sample) -> Sample:
    """The sample as a case would give it back, or as malformed: nothing that has not the shape of its probe's answer goes on."""
    return checked(replace(sample, data=json.loads(json.dumps(dict(sample.data), default=str))))


class _Run:
    """One live run while it happens."""

    def __init__(self, job: Job, options: Options) -> None:
        self.job, self.options = job, options
        self.begun = time.monotonic()
        self.limit = options.run_s or (RUN_S if len(job.nodes) <= LARGE_NODES else RUN_LARGE_S)
        self.samples: list[Sample] = []
        self.took: dict[str, float] = {}
        self.asked: list[str] = []
        self.pokes = 0
        self.moved = False  # the case, away from a state folder that stopped answering
        self.warnings = list(options.warnings)
        self.books = dict(options.playbooks) or shipped_playbooks()
        self.probes = probe_names()
        self.memory: dict[str, Any] = {}
        self.case_id = new_id(job.id, time.time())
        # Playbooks and profile are checked before anything is written or asked.
        own = limits_of(playbooks_of(self._case(), self.probes), thresholds(options.profile))
        self.limits = {**shipped_limits(self.probes), **own}
        load_profile(self.books.get("costs", ""), options.profile or None)
        self.stuck = self._state_stuck()
        # `_folder` tells of a state folder that is stuck.
        self.ledger = Ledger(options.state_dir if options.remember else "", incidents.who(job), self.stuck)
        self.memory = self.ledger.recall(self.warn)
        self.writer = CaseWriter(self._folder()) if options.keep_case else NoCase()
        self.save(complete=False)

    def _state_stuck(self) -> str:
        """Why the state folder cannot be asked anything; "" = it answers."""
        try:
            ownfiles.exists(self.options.state_dir)  # begun when the command was read
        except ownfiles.TooSlow as error:
            return str(error)
        return ""

    def _folder(self) -> Path:
        base = self.options.state_dir
        if self.stuck:
            why = f"{self.stuck}: shared storage may be stuck"
            return self._elsewhere(why) or Path(base or "/", "cases", self.case_id)
        try:
            if base and ownfiles.writable_folder(str(Path(base, "cases"))):
                return Path(base, "cases", self.case_id)
            why = f"the state folder {base or '(none)'} is not writable"
        except ownfiles.TooSlow as error:
            why = f"{error}: shared storage may be stuck"
        return self._elsewhere(why) or Path(base or "/", "cases", self.case_id)

    def _elsewhere(self, why: str) -> Path | None:
        """A private folder for the case, which is said with the reason; None where no temporary folder answers."""
        try:
            folder = ownfiles.private_folder()
        except OSError:
            self.warn(f"{why}; no temporary folder answers either, and no case is kept")
            return None
        self.warn(f"{why}; the case goes to {folder}")
        return Path(folder, self.case_id)

    def warn(self, line: str) -> None:
        """Told now, and kept for the report."""
        self.warnings.append(line)
        self.options.say(line)

    def left(self) -> float:
        return max(0.0, self.limit - (time.monotonic() - self.begun))

    def keep(self, sample: Sample) -> None:
        held = normal(sample)
        self.samples.append(held)
        self.writer.sample(held)

    def look_after_case(self) -> None:
        """Does the folder of the case still answer? If not, all that was seen goes to a private folder."""
        self.writer.check()
        if not self.writer.stalled or self.moved:
            return
        self.moved = True
        folder = self._elsewhere(f"{self.writer.trouble}: shared storage may be stuck")
        if folder is not None:
            self.writer = CaseWriter(folder)
            for sample in self.samples:
                self.writer.sample(sample)

    def phase(self, name: str, since: float) -> None:
        self.took[name] = round(self.took.get(name, 0.0) + time.monotonic() - since, 3)

    def evidence(self) -> Evidence:
        return Evidence(self.job, self.samples, time.time(), self.limits)

    def _case(self, complete: bool = False, observed: float | None = None) -> CaseFile:
        return CaseFile(
            case=self.case_id,
            command=self.options.command,
            job=self.job,
            observed=time.time() if observed is None else observed,
            playbooks=self.books,
            profile=self.options.profile,
            asked=tuple(self.asked),
            took_s={**self.took, "total": round(time.monotonic() - self.begun, 3)},
            pokes=self.pokes,
            looks=self.options.looks,
            transport=self.options.transport,
            warnings=tuple(self.warnings),
            again=self.options.again,
            memory=self.memory,
            tool_version=__version__,
            complete=complete,
            samples=tuple(self.samples),
        )

    def save(self, complete: bool, outcome: Outcome | None = None, case: CaseFile | None = None) -> None:
        from triage.render import json as as_json

        report = as_json.render(outcome.report) if outcome and outcome.report else None
        self.writer.save(case or self._case(complete), outcome.facts if outcome else {}, report)
        if self.writer.stalled and not self.moved:
            self.look_after_case()
            self.writer.save(case or self._case(complete), outcome.facts if outcome else {}, report)


def live(job: Job, options: Options) -> Result:
    """Ask the job's nodes. Raises UsageError when two jobs' ranks are there and nothing tells which is meant."""
    from triage.gather import Fleet, Progress
    from triage.transports import base, payload

    say = options.say
    # A missing key leaves no case behind.
    transport = base.load(
        options.transport,
        {**options.transport_options, "nodes": job.nodes, "job": job.match.get("SLURM_JOB_ID", job.id)},
    )
    run = _Run(job, options)
    for line in getattr(transport, "silent", ()):
        run.warn(f"{line}: going on without it")
    for why, names in getattr(transport, "choices", {}).items():
        run.warn(f"{fold(names)}: by the ssh binary, since {why}")
    load = payload.build(run.probes, deadline_s=run.limit + 5.0)

    def progress(step: Progress) -> None:
        if step.done == step.of and step.step in LOOKS:
            say(f"{LOOKS[step.step]} done")

    fleet = Fleet(
        job.nodes, transport, load, command=payload.command(options.sudo), on_sample=run.keep, on_progress=progress
    )
    try:
        if job.nodes:  # a pending job has none yet: nobody is asked, and nothing can move
            _gather(run, fleet)
        outcome, case = _walk_on(run, fleet)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C shall not cost the case
        run.save(complete=False)  # what was seen can still be replayed
        if run.options.keep_case:
            say(f"case {run.writer.folder} (not complete)")
        raise
    finally:
        fleet.close()
        run.writer.close()
    assert outcome.report is not None
    run.save(complete=True, outcome=outcome, case=case)
    run.ledger.keep(outcome.report, options.command, run.writer.stalled, say)
    if run.writer.trouble:
        say(run.writer.trouble)
    return Result(outcome.report, case, "" if run.writer.stalled or not options.keep_case else str(run.writer.folder))


def _gather(run: _Run, fleet: Any) -> None:
    """Connect and look, once or twice.

    Our own reading of the job log comes after the nodes': a step that ended while they were asked is then in it.
    """
    say = run.options.say
    # A node that is silent may hold the first line back for the whole of CONNECT_S: words come before it.
    count = len(run.job.nodes)
    say(f"job {run.job.id} {run.job.state}: asking {count} node{'' if count == 1 else 's'}")
    since = time.monotonic()
    fleet.open(min(CONNECT_S, run.left()))
    run.phase("connect", since)
    answered = {s.node for s in run.samples if s.probe == "contact" and s.status == "ok"}
    since = time.monotonic()
    path, started = run.job.log, run.job.attempt.started
    own_log = ownlog.readable(path)
    stood_still = own_log is not None and own_log.status == "timeout"
    if own_log is not None and path:
        run.keep(own_log)
    if stood_still and own_log is not None:
        say(f"the job log {own_log.notes[0]}: shared storage may be stuck")
    fleet.look("A", _args(run, CHEAP_A, with_log=own_log is not None and not stood_still), min(LOOK_A_S, run.left()))
    if own_log is None:
        run.keep(ownlog.read(path, "A", started))
    run.phase("look_a", since)
    for line in unread(run.samples, run.options.sudo):
        run.warn(line)
    evidence = run.evidence()
    _refuse_two_jobs(evidence)
    change = evidence.derive(job_change)
    step = change.now if change else None
    say(first_line(evidence, len(answered), step))
    if not answered and (not path or stood_still):
        return  # nothing will move that we could see
    if stood_still:
        # On storage that stands still this probe takes all its time: not before the first words.
        since = time.monotonic()
        fleet.look("A", _args(run, (), with_log=True), min(LOOK_B_S, run.left()))
        run.phase("look_a", since)
    if run.options.looks == 1:
        return
    pace = evidence.derive(present_step)
    window = WINDOW_UNKNOWN_S if pace is None else min(max(WINDOW_STEPS * pace, WINDOW_MIN_S), WINDOW_MAX_S)
    since = time.monotonic()
    time.sleep(min(window, run.left()))
    run.phase("window", since)
    since = time.monotonic()
    if path:
        run.keep(ownlog.read(path, "B", started, stood_still=stood_still))
    own = any(s.probe == "joblog" and not s.node and s.status == "ok" for s in run.samples)
    fleet.look("B", _args(run, CHEAP_B, with_log=not own), min(LOOK_B_S, run.left()), _without_hung_gpus(run))
    run.phase("look_b", since)


def _without_hung_gpus(run: _Run) -> dict[str, dict[str, dict[str, Any]]]:
    """What the second look asks otherwise of some nodes: a GPU that has hung once costs its node the whole of the limit."""
    return {node: {"gpu": {"skip": hung}} for node, hung in asking.hung_gpus(run.samples).items()}


def _args(run: _Run, names: tuple[str, ...], *, with_log: bool) -> dict[str, dict[str, Any]]:
    """Arguments of the cheap probes; `with_log`: the nodes are asked for the job log, which our machine cannot read."""
    from triage.readers.signatures import for_probe

    job = run.job
    args: dict[str, dict[str, Any]] = {name: {} for name in names if name in run.probes}
    if "ranks" in args:
        args["ranks"] = {"job_id": job.id, "match": dict(job.match)}
    for name in ("steps", "checkpoint"):
        if name in args:
            args[name] = {"job_id": job.id, "match": dict(job.match)}
    if "kernel" in args:
        args["kernel"] = {"since": job.attempt.started, "signatures": for_probe("kernel")}
    if job.log and with_log:
        args["joblog"] = {
            "path": job.log,
            "signatures": for_probe("joblog"),
            "since": job.attempt.started,
            "series": 400,
        }
    return args


def _refuse_two_jobs(evidence: Evidence) -> None:
    sets = rank_sets(evidence)
    if len(sets) > 1:
        listed = "; ".join(" ".join(f"{name}={value}" for name, value in group) for group in sets[:5])
        raise UsageError(
            f"job {evidence.job.id}: {len(sets)} sets of ranks run on its nodes and nothing tells which is meant: {listed}. "
            "Give the inventory's job a `match: {NAME: value}` that only one of them has"
        )


def first_line(evidence: Evidence, answered: int, step: float | None) -> str:
    """State, last step, nodes answered, nearest deadline: what is known within seconds."""
    from triage.facts.registry import other

    last = other(evidence, "progress.last_step")
    age = other(evidence, "progress.stall_age_s")
    state = "(state unknown)" if evidence.job.state in ("", "unknown") else evidence.job.state
    words = [f"job {evidence.job.id} {state}", f"{answered} of {len(evidence.job.nodes)} nodes answered"]
    if last.known:
        words.append(f"last step {last.value}" + (f", {age.value:.0f}s ago" if isinstance(age.value, float) else ""))
    if step is not None:
        words.append(f"{step:.3g}s a step")
    if evidence.job.deadline is not None:
        words.append(f"wall-time limit in {(evidence.job.deadline - evidence.observed) / 60:.0f} min")
    return ", ".join(words)


def _walk_on(run: _Run, fleet: Any) -> tuple[Outcome, CaseFile]:
    """Walk; gather what a question asks for; walk again."""
    while True:
        run.look_after_case()
        can_ask = run.left() > 1.0 and run.options.costly
        case = run._case(complete=True)
        outcome = conclude(case, probes=run.probes, can_ask=can_ask, defaults=run.limits)
        if outcome.request is None:
            return outcome, case
        since = time.monotonic()
        _ask(run, fleet, outcome.request, outcome)
        run.phase("ask", since)


def _ask(run: _Run, fleet: Any, request: Request, outcome: Outcome) -> None:
    """One costly probe on the suspects' nodes and on some of their peers."""
    run.asked.append(request.probe)
    by_node = asking.plan(request, run.evidence())
    if not by_node:
        return
    if request.probe == "flight_recorder":
        poke = _may_poke(run, outcome)
        by_node = {node: {**args, "poke": poke} for node, args in by_node.items()}
        if poke:
            run.options.say("asking the flight recorders for a fresh dump")
    if request.probe == "ras":
        run.options.say("asking NCCL's RAS for two reports")
        forward.ask(fleet, by_node, min(COSTLY_S, run.left()), run.keep)
        return
    sent = _carried(run, request, by_node) if request.probe == "stacks" else {}
    by_node = {node: {**args, **({"carry": NAME} if node in sent else {})} for node, args in by_node.items()}
    limit_s = min(COSTLY_S, run.left())
    ahead = {"before": sent} if sent else {}
    got = fleet.ask(request.probe, by_node, args_by_node=by_node, limit_s=limit_s, **ahead)
    run.pokes += sum(
        isinstance(entry, Mapping) and entry.get("poke") == "written"
        for sample in got
        if sample.probe == "flight_recorder" and sample.status == "ok"
        for entry in records_of(sample)
    )


def _carried(run: _Run, request: Request, by_node: Mapping[str, Any]) -> dict[str, tuple[bytes, ...]]:
    """node -> what carries the operator's py-spy there: to suspects only, and only where the machine is the same."""
    program = run.options.carry
    if program is None:
        return {}
    suspected = {part.node for part in request.parts if part.node in by_node and part.node}
    fits, others = program.fits(suspected, run.evidence().latest("reach"))
    if others:
        run.warn(f"--carry-py-spy is for {program.machine}: not sent to suspects of {', '.join(others)}")
    if not fits:
        return {}
    run.options.say(f"carrying py-spy to {len(fits)} suspected node{'' if len(fits) == 1 else 's'}")
    lines = tuple(program.lines())
    return dict.fromkeys(fits, lines)


def _may_poke(run: _Run, outcome: Outcome) -> bool:
    """Once per incident, and only when progress was answered no (DESIGN section 1, idea 10)."""
    if not run.options.poke or outcome.facts["progress.advancing"].value is not False:
        return False
    onset = outcome.facts["progress.onset"].value
    began = round(onset[0]) if isinstance(onset, list) and onset else 0
    if not run.ledger.may_poke(began or None):
        return False
    # The mark beside the record stands for it where it cannot be used, now or at the next run.
    restart = outcome.facts["job.attempt"].value or 0
    cases = run.writer.folder.parent
    base = cases.parent if cases.name == "cases" else cases  # a private folder is of this run alone
    mark = base / "pokes" / f"{_safe(run.job.cluster)}-{_safe(run.job.id)}-{restart}-{began}"
    try:
        return ownfiles.mark(str(mark))
    except OSError:
        return True


def _safe(text: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in text)[:60]


def replay(case: CaseFile, *, playbooks: Mapping[str, str] | None = None, until: str | None = None) -> Result:
    """Conclude again from a case. Nothing is asked of any node."""
    if playbooks:
        case = replace(case, playbooks={**case.playbooks, **playbooks})
    if not case.playbooks:
        raise ConfigError(f"case {case.case} holds no playbooks; give one with --playbook")
    defaults = shipped_limits(probe_names())
    outcome = conclude(case, probes=probe_names(), can_ask=False, until=until, defaults=defaults)
    assert outcome.report is not None
    return Result(outcome.report, case)


def explain(job: Job, samples: list[Sample], observed: float, options: Options) -> Result:
    """Conclude from evidence that somebody collected; saved as a case like any other run."""
    run = _Run(job, replace(options, remember=False))
    for sample in samples:
        run.keep(sample)
    run.writer.close()
    run.asked = list(run.probes)  # nothing can be asked of a folder
    case = run._case(complete=True, observed=observed)
    outcome = conclude(case, probes=run.probes, can_ask=False, defaults=run.limits)
    assert outcome.report is not None
    run.save(complete=True, outcome=outcome, case=case)
    if run.writer.trouble:
        options.say(run.writer.trouble)
    return Result(outcome.report, case, "" if run.writer.stalled else str(run.writer.folder))
