"""Reads playbooks and checks all that can be checked before 2 AM: `load_set` returns playbooks that can be walked.

The grammar is in triage-playbook(5). YAML is read as events, not objects: no tag, anchor, alias, merge key or second
document is accepted and no key may stand twice. Plain `yes no on off` stay words (YAML 1.1 makes them booleans, and a
question's arms are called yes and no), as do dates and 1:30. Every problem of every file is collected and raised as
one `PlaybookError`, a line each:

    frozen-job.yaml: question absent, when, col 1: no fact "waits.absnt", did you mean "waits.absent"?
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from triage.errors import ConfigError
from triage.model import FactSpec
from triage.readers.strict_yaml import read_yaml
from triage.tree.expr import Condition, ConditionError, compile_condition, did_you_mean
from triage.tree.graph import check_graph, shown
from triage.tree.playbook import ANSWERS, Arm, AskFor, Collect, Lead, Playbook, Question, Threshold, VerdictSpec
from triage.tree.words import Words, WordsError, clean, compile_words

MAX_PROBLEMS = 100

VERDICT_IDS = (
    *("dead_rank", "link_flap", "deadlock", "straggler", "stuck_rank", "input_stall", "init_failure"),
    *("slow_everywhere", "busy", "healthy", "inconclusive"),
)
# Which kinds a verdict id knows; any word for the others.
KINDS = {"straggler": ("compute", "network"), "stuck_rank": ("host", "device", "stopped")}
NOBODY_TO_NAME = ("healthy", "slow_everywhere", "inconclusive")
FAILS = ("stop", "slow", "none")
MITIGATIONS = ("none", "wait", "price", "restart", "restart_excluding", "fix_then_restart", "repair")
STATES = ("frozen", "slow", "running", "busy", "pending", "suspended", "completing", "ended", "unknown")

_WORD = re.compile(r"[a-z][a-z0-9_-]*")
_CAUSE = re.compile(r"([a-z_]+)/([a-z][a-z0-9_]*)")
_LIMIT = re.compile(r"[a-z][a-z0-9_]*")


class PlaybookError(ConfigError):
    """Playbooks that cannot be used; `problems` holds one line for each reason."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        more = len(self.problems) - MAX_PROBLEMS
        super().__init__("\n".join([*self.problems[:MAX_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]))


# ---------------------------------------------------------------- the check of one file


class _Reader:
    """Reads one file's tree; every problem goes to `problems`, and reading goes on to find the next."""

    def __init__(self, file: str, catalogue: Mapping[str, FactSpec], probes: Collection[str]) -> None:
        self.file = clean(file, 120)
        self.catalogue = catalogue
        self.probes = probes
        self.limits: set[str] = set()
        self.problems: list[str] = []

    def wrong(self, where: str, what: str) -> None:
        self.problems.append(f"{self.file}: " + (f"{where}: " if where else "") + what)

    # -------------------------------------------------------- shapes

    def table(self, value: Any, where: str, keys: Collection[str] = (), needs: Collection[str] = ()) -> dict[str, Any]:
        """A mapping with these keys only (any, if none are given) and all those that it needs."""
        if not isinstance(value, dict):
            self.wrong(where, f"must be a mapping, not {shown(value)}")
            return {}
        for key in [key for key in value if keys and key not in keys][:20]:
            self.wrong(where, f'unknown key "{clean(key, 60)}"{did_you_mean(key, keys)}')
        missing = [key for key in needs if value.get(key) is None]
        if missing:
            self.wrong(where, f"{' and '.join(missing)} missing")
        return value

    def items(self, value: Any, where: str) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value, list):
            self.wrong(where, f"must be a list, not {shown(value)}")
            return []
        return value

    def text(self, value: Any, where: str, default: str = "") -> str:
        if value is None:
            return default
        if not isinstance(value, str) or not value.strip():
            self.wrong(where, f"must be text, not {shown(value)}")
            return default
        return clean(value, 400)

    def number(self, value: Any, where: str, low: float, high: float, default: float, above: bool = False) -> float:
        """A number in [low, high], or in (low, high] with `above`."""
        if value is None:
            return default
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not good or not low <= value <= high or (above and value == low):
            span = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
            self.wrong(where, f"must be a number {span}, not {shown(value)}")
            return default
        return float(value)

    def choice(self, value: Any, where: str, of: Collection[str], default: str) -> str:
        if value is None:
            return default
        if not isinstance(value, str) or value not in of:
            hint = did_you_mean(value, of) if isinstance(value, str) else ""
            self.wrong(where, f"must be one of {' '.join(of)}, not {shown(value)}{hint}")
            return default
        return value

    def flag(self, value: Any, where: str, default: bool) -> bool:
        if value is not None and not isinstance(value, bool):
            self.wrong(where, f"must be true or false, not {shown(value)}")
        return value if isinstance(value, bool) else default

    def words(self, value: Any, where: str) -> Words:
        try:
            if isinstance(value, str) and value.strip():
                return compile_words(value, self.catalogue)
            self.text(value, where)
        except WordsError as error:
            self.wrong(f"{where}, col {error.column}", error.problem)
        return compile_words("", {})

    def condition(self, value: Any, where: str) -> Condition:
        try:
            if isinstance(value, str):
                return compile_condition(value, self.catalogue, self.limits)
            if value is not None:  # a missing one was already said
                self.wrong(where, f"must be a condition, not {shown(value)}")
        except ConditionError as error:
            self.wrong(f"{where}, col {error.column}", error.problem)
        return Condition("", (), (), lambda scope: None)

    def fact(self, value: Any, where: str, parts: bool = False) -> str | None:
        """The name of a fact of the catalogue; with `parts`, of one that points at things."""
        if value is None:
            return None
        if not isinstance(value, str) or value not in self.catalogue:
            hint = did_you_mean(value, self.catalogue) if isinstance(value, str) else ""
            self.wrong(where, f"no fact {shown(value)}{hint}")
            return None
        if parts and not self.catalogue[value].parts:
            self.wrong(where, f'the fact "{value}" points at no parts (ranks, nodes, nics …)')
            return None
        return value

    # -------------------------------------------------------- pieces

    def thresholds(self, value: Any) -> dict[str, Threshold]:
        found: dict[str, Threshold] = {}
        for name, each in self.table({} if value is None else value, "thresholds").items():
            where = f"threshold {clean(name, 60)}"
            if not _LIMIT.fullmatch(name) or keyword.iskeyword(name):
                self.wrong(where, "a name has small letters, digits and _, and is no word of the language")
                continue
            table = each if isinstance(each, dict) else {"value": each}
            self.table(table, where, ("value", "says", "source"), ("value",))
            number = self.number(table.get("value"), f"{where}, value", -1e15, 1e15, 0.0)
            says = self.text(table.get("says"), f"{where}, says")
            found[name] = Threshold(name, number, says, self.text(table.get("source"), f"{where}, source"))
        return found

    def question(self, name: str, value: Any, playbook: str) -> Question:
        where = f"question {clean(name, 60)}"
        if not _WORD.fullmatch(name):
            self.wrong(where, "a name has small letters, digits, _ and -")
        table = self.table(value, where, ("ask", "when", "ask_for", *ANSWERS), ("ask", "when", *ANSWERS))
        arms: dict[str, Arm] = {
            answer: self.arm(table[answer], f"{where}, {answer}", answer, playbook)
            for answer in ANSWERS
            if table.get(answer) is not None
        }
        ask_for = None
        if table.get("ask_for") is not None:
            ask_for = self.ask_for(table["ask_for"], f"{where}, ask_for")
        ask, when = self.text(table.get("ask"), f"{where}, ask"), self.condition(table.get("when"), f"{where}, when")
        return Question(name, ask, when, MappingProxyType(arms), ask_for)

    def ask_for(self, value: Any, where: str) -> AskFor:
        table = self.table(value, where, ("probe", "on", "peers", "args"), ("probe", "on"))
        probe = table.get("probe")
        if probe is not None and (not isinstance(probe, str) or probe not in self.probes):
            hint = did_you_mean(probe, self.probes) if isinstance(probe, str) else ""
            self.wrong(f"{where}, probe", f"no probe {shown(probe)}{hint}")
        on = self.fact(table.get("on"), f"{where}, on", parts=True)
        peers = self.number(table.get("peers"), f"{where}, peers", 0, 64, 0)
        if peers != int(peers):
            self.wrong(f"{where}, peers", "must be a whole number")
        args = self.table(table.get("args") or {}, f"{where}, args")
        return AskFor(str(probe), on or "", int(peers), MappingProxyType(args))

    def arm(self, value: Any, where: str, answer: str, playbook: str) -> Arm:
        table = {"goto": value} if isinstance(value, str) else value
        table = self.table(table, where, ("goto", "verdict", "rules_out", "costs"))
        goto, verdict = table.get("goto"), table.get("verdict")
        if isinstance(value, (str, dict)) and (goto is None) == (verdict is None):
            self.wrong(where, "needs either goto or verdict")
        for key, target in (("goto", goto), ("verdict", verdict)):
            if target is not None and not isinstance(target, str):
                self.wrong(f"{where}, {key}", f"must be a name, not {shown(target)}")
        rules_out: list[tuple[str, Words]] = []
        for ruled, why in self.table(table.get("rules_out") or {}, f"{where}, rules_out").items():
            here = f"{where}, rules_out {clean(ruled, 60)}"
            if answer == "unknown":
                self.wrong(here, "an unknown answer rules nothing out")
            if ruled.partition("/")[0] not in VERDICT_IDS:
                self.wrong(here, f"no such verdict{did_you_mean(ruled.partition('/')[0], VERDICT_IDS)}")
            text = self.words(why, here)
            if not text.facts:
                self.wrong(here, "must cite a fact, as {waits.members}: only what is known rules something out")
            rules_out.append((ruled, text))
        costs = self.number(table.get("costs"), f"{where}, costs", 0, 1, 0.0)
        target, _, question = goto.rpartition(":") if isinstance(goto, str) else ("", "", None)
        cause = verdict if isinstance(verdict, str) else None
        return Arm(target or playbook, question, cause, tuple(rules_out), costs)

    def verdict(self, cause: str, value: Any) -> VerdictSpec:
        where = f"verdict {clean(cause, 60)}"
        shape = _CAUSE.fullmatch(cause)
        id_ = shape[1] if shape else ""
        if not shape:
            self.wrong(where, "is written id/leaf, as dead_rank/process")
        elif id_ not in VERDICT_IDS:
            self.wrong(where, f'no verdict id "{id_}"{did_you_mean(id_, VERDICT_IDS)}')
        open_ = id_ == "inconclusive"
        needs = ("title", "says", "fail", "mitigate", *(() if open_ else ("base",)))
        t = self.table(value, where, _VERDICT_KEYS, needs)
        if open_ and t.get("base") is not None:
            self.wrong(f"{where}, base", "an inconclusive verdict has no score")
        if not open_ and t.get("leads") is not None:
            self.wrong(f"{where}, leads", "only inconclusive verdicts have leads")
        mitigate = self.choice(t.get("mitigate"), f"{where}, mitigate", MITIGATIONS, "none")
        if mitigate == "fix_then_restart" and t.get("fix_first") is None:
            self.wrong(where, "fix_then_restart needs fix_first: what to fix")
        exclude = self.flag(t.get("exclude"), f"{where}, exclude", mitigate == "restart_excluding")
        if id_ in NOBODY_TO_NAME and (t.get("culprits") is not None or t.get("involved") is not None):
            self.wrong(f"{where}, culprits", f"{id_} accuses nobody")
        elif exclude and t.get("culprits") is None:
            self.wrong(where, "only culprits are excluded; it needs culprits")
        kind = self.text(t.get("kind"), f"{where}, kind") or None
        if kind and id_ in KINDS:
            kind = self.choice(kind, f"{where}, kind", KINDS[id_], KINDS[id_][0])
        collect = self.items(t.get("collect"), f"{where}, collect")
        leads = self.items(t.get("leads"), f"{where}, leads")
        do_not = t.get("do_not")
        do_not = [do_not] if isinstance(do_not, str) else self.items(do_not, f"{where}, do_not")
        here = f"{where}, evidence"
        evidence = [self.fact(name, here) for name in self.items(t.get("evidence"), here)]
        return VerdictSpec(
            cause=cause,
            title=self.words(t.get("title"), f"{where}, title"),
            says=self.words(t.get("says"), f"{where}, says"),
            fail=self.choice(t.get("fail"), f"{where}, fail", FAILS, "none"),
            mitigate=mitigate,
            base=self.number(t.get("base"), f"{where}, base", 0, 1, 0.0, above=True),
            do_not=tuple(self.words(each, f"{where}, do_not") for each in do_not),
            culprits=self.fact(t.get("culprits"), f"{where}, culprits", parts=True),
            involved=self.fact(t.get("involved"), f"{where}, involved", parts=True),
            victims=self.fact(t.get("victims"), f"{where}, victims", parts=True),
            evidence=tuple(name for name in evidence if name is not None),
            fix_first=None if t.get("fix_first") is None else self.words(t["fix_first"], f"{where}, fix_first"),
            kind=kind,
            state=self.choice(t.get("state"), f"{where}, state", STATES, "") or None,
            exclude=exclude,
            collect=tuple(self.collect(each, f"{where}, collect") for each in collect),
            leads=tuple(self.lead(each, f"{where}, leads") for each in leads),
        )

    def collect(self, value: Any, where: str) -> Collect:
        table = self.table(value, where, ("why", "run", "effect", "cost"), ("why", "run"))
        why, run = self.words(table.get("why"), f"{where}, why"), self.words(table.get("run"), f"{where}, run")
        effect = self.text(table.get("effect"), f"{where}, effect", "reads only")
        return Collect(why, run, effect, self.text(table.get("cost"), f"{where}, cost", "none"))

    def lead(self, value: Any, where: str) -> Lead:
        table = self.table(value, where, ("verdict", "when", "why_not"), ("verdict", "when", "why_not"))
        condition = self.condition(table.get("when"), f"{where}, when")
        cause = self.text(table.get("verdict"), f"{where}, verdict")
        return Lead(cause, condition, self.words(table.get("why_not"), f"{where}, why_not"))

    def playbook(self, doc: dict[str, Any], thresholds: Mapping[str, Threshold]) -> Playbook:
        name = doc["playbook"]
        version = self.number(doc.get("version"), "version", 1, 10**6, 1)
        questions = self.table(doc.get("questions") or {}, "questions")
        verdicts = self.table(doc.get("verdicts") or {}, "verdicts")
        return Playbook(
            name,
            int(version),
            self.text(doc.get("start"), "start"),
            MappingProxyType({key: self.question(key, value, name) for key, value in questions.items()}),
            MappingProxyType({key: self.verdict(key, value) for key, value in verdicts.items()}),
            MappingProxyType(dict(thresholds)),
            self.text(doc.get("says"), "says"),
            self.file,
        )


_TOP_KEYS = ("playbook", "version", "says", "start", "thresholds", "questions", "verdicts")
_VERDICT_KEYS = (
    *("title", "says", "do_not", "culprits", "involved", "victims", "evidence", "base", "fail", "mitigate"),
    *("fix_first", "kind", "state", "exclude", "collect", "leads"),
)


# ---------------------------------------------------------------- the check of the set


def load_set(
    texts: Mapping[str, str], catalogue: Mapping[str, FactSpec], probes: Collection[str]
) -> dict[str, Playbook]:
    """Read and check playbooks together: file name -> YAML text in, playbook name -> playbook out.

    Thresholds are one set of names for all of them. Raises PlaybookError with every problem of every file.
    """
    readers: dict[str, tuple[_Reader, dict[str, Any], dict[str, Threshold]]] = {}
    problems: list[str] = []
    unread = False
    for file, text in texts.items():
        reader = _Reader(file, catalogue, probes)
        try:
            doc = read_yaml(text)
        except ConfigError as error:
            reader.wrong("", str(error))
            doc = None
        else:
            doc = reader.table(doc, "", _TOP_KEYS, ("playbook", "version", "start", "questions", "verdicts"))
        name = doc.get("playbook") if doc else None
        if isinstance(name, str) and _WORD.fullmatch(name) and name not in readers and doc:
            readers[name] = (reader, doc, reader.thresholds(doc.get("thresholds")))
        else:
            unread = True
            problems += reader.problems
            if name is not None:
                twice = isinstance(name, str) and name in readers
                reason = "stands in two files" if twice else "is no name (small letters, digits, _ and -)"
                problems.append(f"{reader.file}: playbook: {shown(name)} {reason}")
    limits: dict[str, float] = {}
    for reader, _, thresholds in readers.values():
        for limit in thresholds.values():
            if limits.setdefault(limit.name, limit.value) != limit.value:
                reader.wrong(f"threshold {limit.name}", f"has the value {limits[limit.name]:g} in another playbook")
    playbooks: dict[str, Playbook] = {}
    for name, (reader, doc, thresholds) in readers.items():
        reader.limits = set(limits)
        playbooks[name] = reader.playbook(doc, thresholds)
    check_graph(playbooks, lambda name, where, what: readers[name][0].wrong(where, what), unread)
    problems += [problem for reader, _, _ in readers.values() for problem in reader.problems]
    if problems:
        raise PlaybookError(problems)
    if not playbooks:
        raise PlaybookError(["no playbook was given"])
    return playbooks


def limits_of(playbooks: Mapping[str, Playbook], overrides: Mapping[str, float] | None = None) -> dict[str, float]:
    """The thresholds in force: those of the playbooks, then the profile's. Raises ConfigError for an unknown name."""
    limits = {t.name: t.value for playbook in playbooks.values() for t in playbook.thresholds.values()}
    for name, value in (overrides or {}).items():
        if name not in limits:
            raise ConfigError(f'no threshold "{clean(name, 60)}"{did_you_mean(name, limits)}')
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ConfigError(f"threshold {name} must be a number, not {shown(value)}")
        limits[name] = float(value)
    return limits
