"""Which nodes are silent, and which of those are gone?

Silence alone accuses nobody. A silent node is gone only where the job is frozen and either the survivors' flight records
point at ranks on it and on nothing else, and no peer reaches its fabric address; or the scheduler says that it is gone
(DESIGN section 2, "Silence").
What can fool it: a management network that is cut (the node computes on: its fabric is reached, the job advances); a shared
service that hangs (home, directory: many nodes stop in one late phase); a scheduler's word of yesterday; ranks whose node is
not known (then nothing points at a node).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from triage.facts.dumps import waits
from triage.facts.evidence import Evidence
from triage.facts.ordertrail import overtakers
from triage.facts.peers import LATE_PHASES, PeerViews, View, kernel_lives, peer_views, silent_nodes
from triage.facts.registry import fact, known, other, unknown
from triage.model import Fact, Node, Part, Provenance, Sample

MOST_PROVENANCE = 8

# Slurm's words for a node that is gone or going (sinfo(1), NODE STATE CODES); `*` behind any of its words: not responding.
GONE_WORDS = frozenset(
    ("down", "fail", "failing", "powered_down", "powering_down", "no_respond", "not_responding"),
)
_WORD = re.compile(r"([a-z_]+)([^a-z_]*)\Z")


# ---------------------------------------------------------------- who is silent


@fact("hosts.silent", type="number", unit="nodes", parts="node")
def silent(ev: Evidence) -> Fact:
    """Nodes of the job that did not answer. Silence alone accuses nobody."""
    if not ev.of("contact", status=None):
        return unknown("no node was asked")
    quiet = ev.derive(silent_nodes)
    return known(
        parts=[Part("node", node=name, why=_silence(s)) for name, s in quiet.items()],
        provenance=ev.seen(*list(quiet.values())[:MOST_PROVENANCE]),
    )


@fact("hosts.lost", type="number", unit="nodes", parts="node")
def lost(ev: Evidence) -> Fact:
    """Nodes that answered the first look and not the second: they, their SSH or their network went away meanwhile."""
    answered = {s.node for s in ev.of("contact")}
    second = ev.of("ranks", "B", status=None)
    if not second:
        return unknown("there was no second look")
    gone = [s for s in second if s.node in answered and s.status in ("timeout", "error")]
    return known(
        parts=[Part("node", node=s.node, why="; ".join(s.notes)[:160] or s.status) for s in gone],
        provenance=ev.seen(*gone[:MOST_PROVENANCE]),
    )


@fact("hosts.misnamed", type="number", unit="nodes", parts="node")
def misnamed(ev: Evidence) -> Fact:
    """Nodes whose own hostname is that of another node of the job: addresses are mixed up, and whatever is seen is another's."""
    newest = ev.latest("reach")
    if not newest:
        return unknown("no node told its hostname")
    names = [node.name for node in ev.job.nodes]
    parts, seen = [], []
    for node, sample in newest.items():
        told = str(sample.data.get("hostname") or "")
        short = told.split(".")[0]
        meant = next((name for name in names if told == name or short == name.split(".")[0]), None)
        if meant is not None and told != node and short != node.split(".")[0]:
            parts.append(Part("node", node=node, why=f"{node} says that it is {meant}"))
            seen.append(sample)
    text = "; ".join(part.why for part in parts[:3])
    return known(parts=parts, text=text, provenance=ev.seen(*seen[:MOST_PROVENANCE]))


@fact("hosts.silent_phase", type="text")
def silent_phase(ev: Evidence) -> Fact:
    """The phase in which the silent nodes stopped, if it is one: resolve tcp banner kex auth channel exec read."""
    phases = [_phase(s) for s in ev.derive(silent_nodes).values()]
    if not phases:
        return unknown("no node is silent")
    common = max(set(phases), key=lambda phase: (phases.count(phase), phase))
    return known(common, text=f"{phases.count(common)} of {len(phases)} silent nodes stopped in phase {common}")


@fact("hosts.same_phase", type="bool")
def same_phase(ev: Evidence) -> Fact:
    """Did so many nodes stop in one late phase that a shared service (home, directory) is to blame, and not the nodes?"""
    if not ev.of("contact", status=None):
        return unknown("no node was asked")
    shared = ev.derive(shared_phases)
    text = "; ".join(f"{len(names)} of {len(ev.job.nodes)} nodes stopped in phase {p}" for p, names in shared.items())
    quiet = ev.derive(silent_nodes)
    seen = [quiet[name] for names in shared.values() for name in names]
    return known(bool(shared), text=text, provenance=ev.seen(*seen[:MOST_PROVENANCE]))


def shared_phases(ev: Evidence) -> dict[str, tuple[str, ...]]:
    """late phase -> the nodes that stopped in it, where they are too many to have failed one by one."""
    quiet = ev.derive(silent_nodes)
    counts = Counter(phase for s in quiet.values() if (phase := _phase(s)) in LATE_PHASES)
    many, share = ev.limit("same_phase_nodes"), ev.limit("same_phase_share")
    shared = [
        phase
        for phase, count in counts.items()
        # One node of a small job is a large share of it; "the same" takes two.
        if count >= many or (count >= 2 and count >= share * len(ev.job.nodes))
    ]
    return {phase: tuple(name for name, s in quiet.items() if _phase(s) == phase) for phase in sorted(shared)}


def _phase(contact: Sample) -> str:
    return str(contact.data.get("phase", ""))


def _silence(contact: Sample) -> str:
    """Where it ended and what was said there: an unknown host key or a key that is refused is no node at fault."""
    said = contact.data.get("error")
    return f"silent in phase {_phase(contact) or '?'}" + (f": {said[:300]}" if isinstance(said, str) and said else "")


# ---------------------------------------------------------------- what peers see of them


@fact("hosts.peers_see", type="number", unit="nodes", parts="node")
def peers_see(ev: Evidence) -> Fact:
    """Silent nodes whose fabric address some peer reaches (it connects, or is refused: a kernel that refuses lives)."""
    views = ev.derive(peer_views)
    why = _why_no_view(ev, views)
    if why:
        return unknown(why)
    return known(
        parts=[Part("node", node=name, why="; ".join(v.seen[:3])) for name, v in views.nodes.items() if v.seen],
        provenance=ev.seen(*views.samples[:MOST_PROVENANCE]),
    )


@fact("hosts.peers_blind", type="number", unit="nodes", parts="node")
def peers_blind(ev: Evidence) -> Fact:
    """Silent nodes none of whose fabric addresses any peer reaches, by peers that do reach another node of the job."""
    views = ev.derive(peer_views)
    why = _why_no_view(ev, views)
    if why:
        return unknown(why)
    parts = [Part("node", node=name, why=_blind_words(ev, name, v)) for name, v in views.nodes.items() if v.blind]
    open_ = [name for name, v in views.nodes.items() if not v.blind and not v.seen]
    if open_ and not parts:
        return unknown(f"{open_[0]}: {_why_undecided(ev, open_[0], views)}", provenance=_peers_seen(ev, views))
    return known(parts=parts, provenance=_peers_seen(ev, views))


def _why_no_view(ev: Evidence, views: PeerViews) -> str:
    """Why the peers tell nothing of any silent node; "" if they do, or if none is silent."""
    if not ev.of("contact", status=None):
        return "no node was asked"
    if not views.nodes or any(view.told for view in views.nodes.values()):
        return ""
    return _why_undecided(ev, next(iter(views.nodes)), views)


def _why_undecided(ev: Evidence, name: str, views: PeerViews) -> str:
    """Why no peer tells whether this silent node's fabric lives."""
    node = ev.job.node(name)
    if node is None or not node.fabric:
        return "no fabric address of it is known, so no peer can try it"
    if not views.samples:
        return "no peer was asked about it, or none answered"
    if not views.nodes[name].told:
        return "no peer tried its fabric address"
    if len(views.deaf) == len({sample.node for sample in views.samples}):
        return f"the peers that answered ({_few(views.deaf)}) reach no other node either: it may be their own fabric"
    return "no peer that reaches others tried all of its fabric addresses"


def _blind_words(ev: Evidence, name: str, view: View) -> str:
    node = ev.job.node(name)
    many = len(view.blind) > 1
    return f"{_few(view.blind)} reach{'' if many else 'es'} others, but not {_few(node.fabric if node else ())}"


def _peers_seen(ev: Evidence, views: PeerViews) -> tuple[Provenance, ...]:
    return ev.seen(*views.samples[:MOST_PROVENANCE])


def _few(names: Iterable[str], most: int = 3) -> str:
    held = list(names)
    return ", ".join(held[:most]) + (f" and {len(held) - most} more" if len(held) > most else "")


# ---------------------------------------------------------------- the scheduler's word


def gone_word(node: Node) -> str:
    """The scheduler's own word if it says that the node is gone ("down*", "idle*", "not_responding"), else "".

    Words that are not known say nothing, and the reason (free text) counts only where there is no state and it is the
    scheduler's own "Not responding".
    """
    for token in node.state.strip().lower().split("+"):
        found = _WORD.match(token)
        if found and (found[1] in GONE_WORDS or "*" in found[2]):
            return node.state.strip()
    reason = node.state_reason.strip()
    if not node.state.strip() and reason.lower().replace("_", " ").startswith(("not responding", "no respond")):
        return reason[:60]
    return ""


# ---------------------------------------------------------------- who is gone


@dataclass
class _Case:
    """What speaks for and against one silent node."""

    node: Node
    contact: Sample
    blind: bool = False
    word: str = ""  # the scheduler's, where it may stand
    why_not: str = ""  # why it cannot be called gone
    against: list[str] = field(default_factory=list)

    @property
    def gone(self) -> bool:
        return self.blind or bool(self.word)


@fact("hosts.down", type="number", unit="nodes", parts="node")
def down(ev: Evidence) -> Fact:
    """Silent nodes that are gone: waited for and reached by no peer, or gone by the scheduler's word, in a frozen job."""
    if not ev.of("contact", status=None):
        return unknown("no node was asked")
    quiet = ev.derive(silent_nodes)
    if not quiet:
        return known(parts=[], text="every node answered", provenance=ev.seen(*ev.of("contact")[:MOST_PROVENANCE]))
    moving = other(ev, "progress.advancing")
    if moving.value is not False:
        why = moving.text if moving.value else moving.reason
        return unknown(f"a silent node is accused only if the job stands still ({why})")
    views = ev.derive(peer_views)
    cases = _cases(ev, quiet, views)
    pointed = _pointed(ev)
    if pointed.elsewhere:
        return unknown(pointed.elsewhere, provenance=pointed.provenance)
    if pointed.parts:
        return _by_waits(ev, cases, views, pointed)
    return _by_word(ev, cases, pointed)


def _cases(ev: Evidence, quiet: Mapping[str, Sample], views: PeerViews) -> dict[str, _Case]:
    shared = {name: phase for phase, names in ev.derive(shared_phases).items() for name in names}
    cases: dict[str, _Case] = {}
    for node in ev.job.nodes:
        if node.name not in quiet:
            continue
        case = cases[node.name] = _Case(node, quiet[node.name])
        view = views.nodes[node.name]
        alive = [why for why in (kernel_lives(case.contact), *view.kernel[:1]) if why]
        if view.seen:
            case.why_not = f"{view.seen[0]}: its kernel lives"
        elif node.name in shared:
            case.why_not = f"it stopped in phase {shared[node.name]} as others did: rather a shared service"
        else:
            case.blind = bool(view.blind)
            case.word = "" if alive else gone_word(node)
            if not case.gone:
                case.why_not = _why_undecided(ev, node.name, views)
            elif case.blind and not case.word:
                case.against = [f"the kernel of {node.name}: {why}" for why in alive[:1]]
                if len(view.blind) == 1:
                    case.against.append(f"{view.blind[0]}, the only peer that can tell,")
    return cases


@dataclass(frozen=True)
class _Pointed:
    """At whom the survivors' records point: ranks; or why they tell nothing; or what else would explain the stall."""

    parts: tuple[Part, ...] = ()
    nothing: str = ""
    elsewhere: str = ""
    provenance: tuple[Provenance, ...] = ()


def _pointed(ev: Evidence) -> _Pointed:
    for name, what in (("waits.mismatch", "differ at one place"), ("waits.cycle", "show a circle")):
        found = other(ev, name)
        if found.parts:
            return _Pointed(elsewhere=f"the survivors' flight records {what}, which explains the stall as well")
    roots, possible = other(ev, "waits.roots"), other(ev, "waits.possible")
    found = roots if roots.parts else possible
    if found.parts:
        ahead = _half_circle(ev, found)
        if ahead:
            return _Pointed(elsewhere=f"{ahead}: it may be a circle, which explains the stall as well")
        return _Pointed(found.parts, provenance=found.provenance[:4])
    if not possible.known:
        return _Pointed(nothing=possible.reason)
    return _Pointed(
        elsewhere="the survivors' flight records point at no rank of a silent node", provenance=roots.provenance[:4]
    )


def _half_circle(ev: Evidence, pointed: Fact) -> str:
    """Who of the survivors has passed by what it owed to those without a record: one half of a circle (settle.py)."""
    picture = ev.derive(waits).picture
    if picture is None:
        return ""
    without = {
        part.rank: "" for part in pointed.parts if part.rank is not None and part.rank not in picture.records.views
    }
    waiting = {rank: unit.key for rank, unit in picture.waiting.items()}
    ahead = (
        {**picture.out_of_order, **overtakers(picture.records, waiting, without)} if without else picture.out_of_order
    )
    return next((f"rank {rank} {why}" for rank, why in sorted(ahead.items())), "")


def _by_waits(ev: Evidence, cases: Mapping[str, _Case], views: PeerViews, pointed: _Pointed) -> Fact:
    """The survivors wait for ranks: all of them must live on nodes that are gone."""
    ranks: dict[str, list[int]] = {}
    for part in pointed.parts:
        case = cases.get(part.node or "")
        if case is None:
            where = f"lives on {part.node}, which answered" if part.node else "has no known node"
            return unknown(f"rank {part.rank} is waited for and {where}", provenance=pointed.provenance)
        if not case.gone:
            return unknown(f"{case.node.name} hosts rank {part.rank}, which is waited for; {case.why_not}")
        ranks.setdefault(case.node.name, []).append(part.rank or 0)
    accused = [cases[name] for name in cases if name in ranks]
    parts = [_accuse(ev, case, views, ranks[case.node.name]) for case in accused]
    sources = [*_peers_seen(ev, views)] if any(case.blind for case in accused) else []
    against = [why for case in accused for why in case.against]
    # In a job that stands every healthy rank waits in something before long (settle.py): who does not may be the cause.
    picture = ev.derive(waits).picture
    if picture and any(view.head is None and view.record.get("lib") for view in picture.records.views.values()):
        against.append("a rank that answered and waits for nothing")
    return known(
        parts=parts,
        text="; ".join(f"{part.node}: {part.why}" for part in parts[:3]),
        provenance=(*sources, *pointed.provenance, *_contacts(ev, accused), *_scheduler(ev, accused)),
        contradicted_by=dict.fromkeys(against),
    )


def _by_word(ev: Evidence, cases: Mapping[str, _Case], pointed: _Pointed) -> Fact:
    """No record tells whom the survivors wait for: the scheduler's word stands alone, if nothing else explains the stall."""
    accused = [case for case in cases.values() if case.word]
    if not accused:
        case = next(iter(cases.values()))
        why = case.why_not or f"{pointed.nothing}: nothing points at its ranks"
        return unknown(f"{case.node.name}: {why}")
    names = {case.node.name for case in accused}
    for fact_name, what in (
        ("hard.parts", "was hit as well"),
        ("ranks.gone_first", "is gone as well"),
        ("ranks.stopped", "is stopped"),
    ):
        for part in other(ev, fact_name).parts:
            if part.node not in names:
                return unknown(f"{part.label()} {what}, and no flight record tells whom the others wait for")
    parts = [_accuse(ev, case, PeerViews(), []) for case in accused]
    return known(
        parts=parts,
        text="; ".join(f"{part.node}: {part.why}" for part in parts[:3]),
        provenance=(*_scheduler(ev, accused), *_contacts(ev, accused)),
    )


def _accuse(ev: Evidence, case: _Case, views: PeerViews, ranks: list[int]) -> Part:
    name = case.node.name
    why = [_silence(case.contact)]
    if case.blind and name in views.nodes:
        why.append(_blind_words(ev, name, views.nodes[name]))
    if case.word:
        why.append(f"the {ev.job.scheduler or 'scheduler'} says {case.word}")
    if ranks:
        why.append(
            f"the others wait for its {'rank' if len(ranks) == 1 else 'ranks'} {_few(str(rank) for rank in sorted(ranks))}"
        )
    return Part("node", node=name, why="; ".join(why))


def _contacts(ev: Evidence, accused: list[_Case]) -> tuple[Provenance, ...]:
    return ev.seen(*(case.contact for case in accused[:MOST_PROVENANCE]))


def _scheduler(ev: Evidence, accused: list[_Case]) -> list[Provenance]:
    """The scheduler as a source of its own."""
    return [Provenance(ev.job.scheduler or "scheduler", case.node.name) for case in accused if case.word][
        :MOST_PROVENANCE
    ]
