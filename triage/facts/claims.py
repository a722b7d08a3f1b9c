"""Which node says that it hosts which rank, and which of these claims may be believed.

Nodes are untrusted input. A rank has one process on one node; whoever says otherwise makes the rank unknown, and never a
culprit: claims of two nodes, two processes of one rank on a node, a number that the job does not have, a place that the
siblings' GROUP_RANK contradicts, a process that began after the job had made its first steps.
What can fool it: a node that lies about its own ranks alone, in agreement with itself; it can only damn those.
Linear in the records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from triage.facts import places
from triage.facts.clocks import log_sample, log_time, our_time
from triage.facts.evidence import Evidence
from triage.model import Sample

Record = Mapping[str, Any]

# The environment that makes two processes members of one rank set (DESIGN section 2, "Rank").
SET_KEYS = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")
MOST_PER_NODE = 256  # what the ranks probe tells of one node at most
# Process starts of one node are exact to a tick, of two nodes to a second (btime is whole seconds).
START_SLACK_S = 1.5
ATTEMPT_SLACK_S = 60.0


@dataclass
class Claims:
    """What the nodes' `ranks` answers come to.

    world      WORLD_SIZE as most nodes tell it
    looks      look -> rank -> (node, record): believed claims only
    doubted    rank -> why no claim on it is believed; such a number may lie outside of the job
    impostors  rank -> why the process that wears its environment cannot be it
    homes      rank -> (node, how we know), for ranks that no look shows
    broken     nodes whose newest answer holds a record that cannot be used
    listed     node -> pid -> record of its newest answer, whosever it is
    """

    sets: list[tuple[tuple[str, str], ...]] = field(default_factory=list)
    world: int | None = None
    looks: dict[str, dict[int, tuple[str, Record]]] = field(default_factory=dict)
    doubted: dict[int, str] = field(default_factory=dict)
    impostors: dict[int, tuple[str, str]] = field(default_factory=dict)  # rank -> (node, why)
    homes: dict[int, tuple[str, str]] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    listed: dict[str, dict[int, Record]] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)  # nodes that told their processes in some look
    strangers: set[tuple[str, int]] = field(default_factory=set)  # (node, rank) that its newest answer shows, unmarked

    def believed(self) -> list[tuple[str, Record]]:
        """(node, record) of all believed claims, look A first."""
        return [claim for look in sorted(self.looks) for claim in self.looks[look].values()]


def whole(value: object) -> int | None:
    """An int that is no bool, or None: JSON knows `true`, and so do liars."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def environment(record: Record) -> Mapping[str, str]:
    """The environment as a copy that holds nothing but text, with what NCCL's configuration file adds to it."""
    conf = record.get("conf")
    told = {k: v for k, v in conf.items() if k.startswith("NCCL_")} if isinstance(conf, Mapping) else {}
    return {k: v for k, v in {**told, **_told(record)}.items() if isinstance(v, str)}


def _told(record: Record) -> Mapping[str, Any]:
    env = record.get("env")
    return env if isinstance(env, Mapping) else {}


def set_of(env: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key in SET_KEYS if isinstance(value := env.get(key), str))


def belongs(env: Mapping[str, Any], job_id: str, match: Mapping[str, str]) -> bool | None:
    """Is a process of this environment one of the job's? None: neither the inventory nor the launcher tells."""
    if match:
        return all(env.get(name) == value for name, value in match.items())
    told = [env[name] for name in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID") if name in env]
    if job_id in told:
        return True
    return None


def records_of(sample: Sample) -> list[object]:
    """The rank records of a `ranks` answer, usable or not."""
    told = sample.data.get("ranks", [])
    return list(told) if isinstance(told, list | tuple) else [told]


def usable(record: object) -> bool:
    """Has it what a rank's record always has: a whole number and an environment?"""
    return isinstance(record, Mapping) and whole(record.get("rank")) is not None and bool(_told(record))


def claims(ev: Evidence) -> Claims:
    out = Claims()
    kept = _of_the_job(ev, out)
    out.world = _world(ev, kept)
    _believe(ev, kept, out)
    _place(ev, kept, out)
    return out


Claim = tuple[str, str, int, Record]  # node, look, rank, record


def _of_the_job(ev: Evidence, out: Claims) -> list[Claim]:
    """The usable records that are this job's, and the rank sets that they form."""
    seen: list[Claim] = []
    for sample in ev.of("ranks"):
        out.told.add(sample.node)
        told = records_of(sample)
        good = [r for r in told if isinstance(r, Mapping) and usable(r)]
        seen += [(sample.node, sample.look, int(r["rank"]), r) for r in good]
        out.listed[sample.node] = {pid: r for r in good if (pid := whole(r.get("pid"))) is not None}
        (out.broken.add if len(good) < len(told) else out.broken.discard)(sample.node)
    # A launcher's own number (SLURM_PROCID …) is a rank only where no process of the job wears RANK itself.
    if any(r.get("rank_from", "RANK") == "RANK" for *_, r in seen):
        seen = [claim for claim in seen if claim[3].get("rank_from", "RANK") == "RANK"]
    marked = [claim for claim in seen if belongs(_told(claim[3]), ev.job.id, ev.job.match)]
    # With a rule (match, or an id in the environment) only what it marks counts; without one, a single set is the job.
    kept = marked if marked or ev.job.match else seen
    out.sets = list(dict.fromkeys(set_of(_told(claim[3])) for claim in kept))
    ours = {id(claim[3]) for claim in kept}
    out.strangers = {
        (node, int(r["rank"]))
        for node, told in out.listed.items()
        for r in told.values()
        if id(r) not in ours and set_of(_told(r)) in out.sets
    }
    return kept


def _world(ev: Evidence, kept: list[Claim]) -> int | None:
    """WORLD_SIZE as most nodes tell it, within what the nodes can hold; the larger of two that tie."""
    told: dict[str, Counter[int]] = {}
    for node, _, _, record in kept:
        size = whole(record.get("world_size"))
        if size is not None and size > 0:
            told.setdefault(node, Counter())[size] += 1
    most = MOST_PER_NODE * max(len(ev.job.nodes), len(told))
    votes = Counter(size for sizes in told.values() if (size := sizes.most_common(1)[0][0]) <= most)
    return max(votes, key=lambda size: (votes[size], size)) if votes else None


def _believe(ev: Evidence, kept: list[Claim], out: Claims) -> None:
    """Sort the claims into believed ones, doubted ranks and impostors."""
    end = out.world if out.world is not None else MOST_PER_NODE * max(len(ev.job.nodes), 1)
    nodes: dict[int, dict[str, None]] = {}
    at_once: dict[tuple[str, str, int], Record] = {}
    late = _late_comers(ev, kept)
    for node, look, rank, record in kept:
        if not 0 <= rank < end:
            out.doubted[rank] = f"{node} claims rank {rank} of a job of {end} ranks"
        elif id(record) in late:
            out.impostors[rank] = (node, late[id(record)])
        else:
            nodes.setdefault(rank, {})[node] = None
            if at_once.setdefault((node, look, rank), record).get("pid") != record.get("pid"):
                out.doubted[rank] = f"two processes of {node} claim to be rank {rank}"
    for rank, told in nodes.items():
        if len(told) > 1:
            out.doubted[rank] = f"{' and '.join(sorted(told)[:3])} each claim to host rank {rank}"
    for (node, look, rank), record in at_once.items():
        if rank not in out.doubted:
            out.impostors.pop(rank, None)  # the rank itself is there too
            out.looks.setdefault(look, {})[rank] = (node, record)


def _late_comers(ev: Evidence, kept: list[Claim]) -> dict[int, str]:
    """id(record) -> why that process cannot be the rank: it began when the job had made steps, or before the attempt."""
    starts = {
        (node, rank, record.get("pid")): our_time(ev, node, float(at))
        for node, _, rank, record in kept
        if isinstance(at := record.get("start_s"), int | float) and not isinstance(at, bool)
    }
    if len(starts) < 2:
        return {}
    usual = median(starts.values())
    stepped = min((at for at in _step_ends(ev) if at > usual), default=None)
    began = ev.job.attempt.started
    out: dict[int, str] = {}
    for node, _, rank, record in kept:
        start = starts.get((node, rank, record.get("pid")))
        if start is None:
            continue
        what = f"process {record.get('pid')} of {node} wears the environment of rank {rank}"
        if stepped is not None and start > stepped + START_SLACK_S:
            out[id(record)] = f"{what}, but began when the job had already made steps"
        elif began is not None and start < began - ATTEMPT_SLACK_S <= usual:
            out[id(record)] = f"{what}, but began before this attempt"
    return out


def _step_ends(ev: Evidence) -> list[float]:
    """Dated ends of steps on our clock, from the job log and the ranks' own records."""
    found: list[float] = []
    log = log_sample(ev)
    told = log.data.get("iterations") if log else None
    series = told.get("series") if isinstance(told, Mapping) else None
    for row in series if isinstance(series, list) else ():
        at = log_time(ev, row[1]) if isinstance(row, list) and len(row) > 1 else None
        if at is not None:
            found.append(at)
    for sample in ev.of("steps"):
        entries = sample.data.get("ranks")
        for entry in entries if isinstance(entries, list) else ():
            at = entry.get("last_at") if isinstance(entry, Mapping) else None
            if isinstance(at, int | float) and not isinstance(at, bool):
                found.append(our_time(ev, sample.node, float(at)))
    return found


# ---------------------------------------------------------------- places


def _place(ev: Evidence, kept: list[Claim], out: Claims) -> None:
    """Where ranks live that no look shows; a claim from elsewhere than a rank's place is not believed."""
    words = _words(kept, out)
    shown: dict[int, str] = {}
    for look in out.looks.values():
        for rank, (node, _) in look.items():
            shown.setdefault(rank, node)
    _take(out, places.by_siblings(words, out.world, shown))
    if out.world is None or out.doubted:
        return  # where somebody's word is not believed, nothing is placed by what the others leave over
    nodes = [node.name for node in ev.job.nodes]
    out.homes.update(places.by_elimination(nodes, out.world, _where(out)))
    _take(out, places.by_order(nodes, words, out.told, out.world, _where(out)))


def _words(kept: list[Claim], out: Claims) -> dict[str, places.Word]:
    """node -> what its rank processes say of their place; impostors have no say."""
    told: dict[str, set[tuple[int | None, int | None]]] = {}
    ranks: dict[str, set[int]] = {}
    for node, _, rank, record in kept:
        if rank not in out.impostors:
            told.setdefault(node, set()).add((whole(record.get("group_rank")), whole(record.get("local_world_size"))))
            ranks.setdefault(node, set()).add(rank)
    words: dict[str, places.Word] = {}
    for node, pairs in told.items():
        group, size = next(iter(pairs)) if len(pairs) == 1 else (None, None)
        if group is not None and group < 0:
            group = None
        if size is not None and not 0 < size <= MOST_PER_NODE:
            group = size = None
        words[node] = places.Word(group, size, frozenset(ranks[node]), torn=len(pairs) > 1)
    return words


def _where(out: Claims) -> dict[int, str]:
    where = {rank: node for look in out.looks.values() for rank, (node, _) in look.items()}
    where.update({rank: node for rank, (node, _) in out.homes.items()})
    return where


def _take(out: Claims, placed: places.Placed) -> None:
    """Add what was placed and what is doubted; a doubted rank is nowhere."""
    out.homes.update(placed.homes)
    out.doubted.update(placed.doubted)
    for rank in out.doubted:
        out.homes.pop(rank, None)
        out.impostors.pop(rank, None)
        for look in out.looks.values():
            look.pop(rank, None)
