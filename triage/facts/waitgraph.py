"""Who waits for whom: the wait-for graph over flight records, and what its sinks mean.

Nodes are ranks and *units* (one collective of one group, or one exchange between two ranks), so that a group of N members
costs N edges and not N². A rank points at the unit where it waits; a unit points at the members that have not come to it.
A sink of the condensation is: a rank - a root (dead, stuck on the device, stuck on the host); several - a cycle; a unit -
all have joined and nobody finishes. Rules and the failing case that earned each: notes/prototype-findings.md 3.3.
Pure: the same function serves live nodes and a folder of dumps. Linear in members of the groups that are waited in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from triage.facts.collectives import GroupInfo, GroupKey, Head, Records, spoken
from triage.facts.components import components
from triage.facts.exchanges import IN_FLIGHT_BYTES, partner_stands, size_of, unequal
from triage.facts.ordertrail import odd_one
from triage.facts.signatures import canonical, exchange, readable, symmetric

BEHIND = "one of its members has enqueued what the others wait for, behind another open operation"
NO_HISTORY = "the dumps hold no history that would tell whether a member has finished its part or never begun it"


class Unit(NamedTuple):
    """One collective (`seq`) of a group, or the exchange of two of its members (`pair`)."""

    key: GroupKey
    seq: int | None = None
    pair: tuple[int, int] | None = None


@dataclass(frozen=True)
class Mismatch:
    """Members of one group that pass different things to the collective of one number, or two to one exchange (`pair`)."""

    key: GroupKey
    seq: int | None
    sides: tuple[tuple[str, tuple[int, ...]], ...]  # (signature, ranks), the largest side first
    named: tuple[int, ...]  # the minority, or whom the order trail separates; () if nothing separates them
    by: Literal["majority", "trail", ""]
    pair: tuple[int, int] | None = None


@dataclass
class Picture:
    """What the wait graph says. Ranks are global; nothing here is a verdict."""

    records: Records
    waiting: dict[int, Unit] = field(default_factory=dict)  # rank -> the unit where it waits (one of them)
    roots: dict[int, str] = field(default_factory=dict)  # rank -> dead | stopped | d_state | device | host
    cycles: list[list[int]] = field(default_factory=list)
    unsure_cycles: dict[int, str] = field(default_factory=dict)  # rank of a cycle -> why an edge of it is no proof
    stuck_units: list[Unit] = field(default_factory=list)  # all have joined, nobody finishes
    possible: set[int] = field(default_factory=set)  # members without a dump that would explain a wait; never accused
    rivals: set[int] = field(default_factory=set)  # could be it too, where the roots are ranks without a dump
    out_of_order: dict[int, str] = field(default_factory=dict)  # rank -> what speaks for a cycle that no dump shows
    absent: dict[int, set[Unit]] = field(default_factory=dict)  # rank -> units that wait for it
    mismatches: list[Mismatch] = field(default_factory=list)
    device_stuck: dict[int, Unit] = field(default_factory=dict)  # rank -> the unit its peers have finished
    swapper: int | None = None  # the one of a cycle whom the order trail separates
    stalled: GroupKey | None = None  # the group in which most ranks wait
    stalled_groups: set[GroupKey] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def group(self, key: GroupKey) -> GroupInfo:
        return self.records.groups[key]

    def label(self, unit: Unit) -> str:
        info = self.group(unit.key)
        if unit.pair:
            return f"the exchange of ranks {unit.pair[0]} and {unit.pair[1]} in {info.label()}"
        return f"number {unit.seq} of {info.label()}"

    @property
    def named_by_mismatch(self) -> set[int]:
        return {rank for m in self.mismatches for rank in m.named}

    @property
    def tied_by_mismatch(self) -> set[int]:
        return {rank for m in self.mismatches if not m.named for _, ranks in m.sides for rank in ranks}


Node = tuple[Literal["r"], int] | tuple[Literal["u"], Unit]


def draw(records: Records, incapable: Mapping[int, str] | None = None) -> Picture:
    """The picture of these dumps. `incapable`: rank -> "dead" | "stopped" | "d_state", from the process list, not from
    dumps; settle.py decides whom it may hold."""
    return _Drawing(records, dict(incapable or {})).picture()


class _Drawing:
    def __init__(self, records: Records, incapable: dict[int, str]) -> None:
        self.records = records
        self.views = records.views
        # A dump of one that has died since still tells where it waited; without one, it waits for nobody.
        self.incapable = {rank: why for rank, why in incapable.items() if rank not in self.views}
        self.edges: dict[Node, set[Node]] = {}
        self.unsure: dict[tuple[Node, Node], str] = {}  # edges that a cycle must not be proven by
        self.out = Picture(records)

    def picture(self) -> Picture:
        self.out.mismatches = self._mismatches()
        self._collectives()
        self._exchanges()
        self._sinks()
        self._stalled()
        self._separate()
        return self.out

    def _edge(self, a: Node, b: Node) -> None:
        self.edges.setdefault(a, set()).add(b)

    # ------------------------------------------------------------ signatures first (rule 1)

    def _mismatches(self) -> list[Mismatch]:
        """The first unresolved difference of each group, finished entries included."""
        found = []
        for key, info in sorted(self.records.groups.items()):
            patterns = self.records.patterns(key, [r for r in info.members if r in self.views])
            if len(patterns) < 2:
                continue
            by_seq: dict[int, dict[tuple[tuple[str, ...], ...], list[tuple[str, list[int]]]]] = {}
            for ranks in patterns.values():
                for seq, sig in self.records.window(ranks[0], key).items():
                    by_seq.setdefault(seq, {}).setdefault(canonical(sig), []).append((sig, ranks))
            for seq in sorted(s for s, kinds in by_seq.items() if len(kinds) > 1):
                sides = sorted(
                    (
                        (kind[0][0], tuple(sorted(r for _, ranks in kind for r in ranks)))
                        for kind in by_seq[seq].values()
                    ),
                    key=lambda side: (-len(side[1]), side[1]),
                )
                if not self._over(key, seq, [r for _, ranks in sides for r in ranks]):
                    found.append(self._judge(key, seq, tuple(sides)))
                    break
        return found

    def _over(self, key: GroupKey, seq: int, ranks: Iterable[int]) -> bool:
        """Have all finished it and a later one? Then whatever differed did no harm (a spelling, an uneven variant)."""
        return all(self.records.finished(r, key, seq) and self.records.finished(r, key, seq + 1) for r in ranks)

    def _judge(self, key: GroupKey, seq: int, sides: tuple[tuple[str, tuple[int, ...]], ...]) -> Mismatch:
        total = sum(len(ranks) for _, ranks in sides)
        if len(sides[0][1]) * 2 > total:
            return Mismatch(key, seq, sides, tuple(sorted(r for _, ranks in sides[1:] for r in ranks)), "majority")
        one = odd_one(self.records, [r for _, ranks in sides for r in ranks])
        return Mismatch(key, seq, sides, () if one is None else (one,), "" if one is None else "trail")

    # ------------------------------------------------------------ collectives

    def _collectives(self) -> None:
        waited: dict[GroupKey, dict[int, list[int]]] = {}
        for rank, view in self.views.items():
            if view.head and view.head.seq is not None:
                waited.setdefault(view.head.key, {}).setdefault(view.head.seq, []).append(rank)
        for key, units in waited.items():
            info = self.records.groups[key]
            seqs = sorted(units)
            late: dict[int, list[int]] = {seq: [] for seq in seqs}  # by the smallest waited number beyond it
            missing = []
            vague = self._untold(info, sum(map(len, units.values())))
            for member in info.members:
                if member in vague:
                    missing.append(member)
                elif member in self.views:
                    at = bisect_right(seqs, self.records.reached(member, key))
                    if at < len(seqs):
                        late[seqs[at]].append(member)
                else:
                    missing.append(member)
            if not info.complete:
                # Nobody told the members: any rank without a dump may be one that has not come.
                missing += [r for r in range(self.records.world or 0) if r not in self.views and r not in info.members]
            self._stuck_on_device(info, units)
            explained = False
            for i, seq in enumerate(seqs):
                unit = Unit(key, seq)
                for rank in units[seq]:
                    self.out.waiting[rank] = unit
                    if rank not in self.out.device_stuck:
                        self._edge(("r", rank), ("u", unit))
                self.edges.setdefault(("u", unit), set())
                if i:
                    self._edge(("u", unit), ("u", Unit(key, seqs[i - 1])))
                explained = self._blame(unit, late[seq], missing, explained)

    def _untold(self, info: GroupInfo, waiting: int) -> set[int]:
        """Members of whose part in the group their dump says nothing.

        One of open entries only: they may never have come to what the others wait in, or have finished all of it; where they
        are as many as those that wait, it is these that were left behind. A ring that is full may have dropped all of it.
        """
        records = {
            m: self.views[m].record for m in info.members if m in self.views and info.key not in self.views[m].rows
        }
        silent = {m for m, record in records.items() if record.get("active_only") or not record["groups"]}
        full = {member for member, record in records.items() if record.get("wrapped")} - silent
        return full | (silent if len(silent) >= waiting else set())

    def _blame(self, unit: Unit, late: list[int], missing: list[int], explained: bool) -> bool:
        """Edges from a unit to those who have not come to it. A member without a dump is blamed only if it can do nothing
        any more, else it is possible at best, and only where nobody with a dump explains the wait (rule 4)."""
        down = [m for m in missing if m in self.incapable]
        for member in [*late, *down]:
            self._edge(("u", unit), ("r", member))
            self.out.absent.setdefault(member, set()).add(unit)
            row = self.views[member].rows.get(unit.key) if member in self.views else None
            if row is not None and unit.seq is not None and self.records.enqueued(row, unit.key) >= unit.seq:
                self.unsure[("u", unit), ("r", member)] = BEHIND
        if late or down:
            return True
        if not explained:
            for member in missing:
                self._edge(("u", unit), ("r", member))
        return explained or bool(missing)

    def _stuck_on_device(self, info: GroupInfo, units: Mapping[int, list[int]]) -> None:
        """Rule 2: open at a unit that a peer has finished, with the same signature, where nobody can finish alone."""
        for seq, ranks in units.items():
            peers = [m for m in info.members if m in self.views and self.records.finished(m, info.key, seq)]
            # Several of one unit that are left behind while few have finished: a path rather than those devices.
            if not peers or (len(ranks) > 1 and len(ranks) * 2 > len(peers)):
                continue
            # A member that died in the middle of it leaves it done on some and open on those behind it: where one has no
            # dump, the open ones may be its victims.
            if not info.complete or any(member not in self.views for member in info.members):
                continue
            for rank in ranks:
                sig = self._head(rank).sig
                if exchange(sig):
                    # It may lack the part of any peer: only if all others are through is it the rank itself.
                    told = any(self._witnesses(peer, info.key, seq, len(peers)) for peer in peers)
                    sure = told and len(peers) == len(info.members) - 1 > 0
                else:
                    alike = [peer for peer in peers if self._same(rank, peer, info.key, seq, sig)]
                    sure = symmetric(sig) and any(self._witnesses(peer, info.key, seq, len(alike)) for peer in alike)
                if sure:
                    self.out.device_stuck[rank] = Unit(info.key, seq)

    def _same(self, rank: int, peer: int, key: GroupKey, seq: int, sig: str) -> bool:
        other = self.records.window(peer, key).get(seq)
        if other is not None:
            return canonical(sig) == canonical(other)
        # Dumps of open entries only keep no finished one to compare: its number must do.
        return bool(self.views[peer].record.get("active_only"))

    def _witnesses(self, peer: int, key: GroupKey, seq: int, how_many: int) -> bool:
        """Is it told by more than the number that what the peer has finished is what the rank waits in?

        A dump of open entries keeps no signature of it: one peer alone may have passed another operation there, and have got
        through by itself. Two, or one that has finished the next number as well (which needs all to have come past this one),
        cannot.
        """
        kept = seq in self.records.window(peer, key)
        return kept or how_many > 1 or self.records.finished(peer, key, seq + 1)

    def _head(self, rank: int) -> Head:
        head = self.views[rank].head
        assert head is not None
        return head

    # ------------------------------------------------------------ point to point

    def _exchanges(self) -> None:
        blocked: dict[int, bool] = {}
        pending: list[tuple[int, Head, list[int], list[int], bool]] = []
        for rank, view in self.views.items():
            head = view.head
            if head is None or head.seq is not None:
                continue
            joined, missing, over, strong, unclear = [], [], [], False, not head.parts
            two = len(self.records.groups[head.key].members) == 2
            for part in head.parts:
                side, src, dst, ordinal = part
                partner = dst if side == "s" else src
                if src is None or dst is None or partner is None or partner == rank:
                    unclear = True
                    continue
                self.out.waiting.setdefault(rank, Unit(head.key, pair=(min(rank, partner), max(rank, partner))))
                if partner not in self.views:
                    missing.append(partner)
                    continue
                how = partner_stands(
                    self.views[partner], head.key, ("r" if side == "s" else "s", src, dst), ordinal, two
                )
                if sides := unequal(view, self.views[partner], head.key, (side, src, dst), ordinal, two):
                    pair, unclear = (min(rank, partner), max(rank, partner)), True
                    if not any(m.pair == pair and m.key == head.key for m in self.out.mismatches):
                        self.out.mismatches.append(Mismatch(head.key, None, sides, (), "", pair))
                if how in ("late", "behind", "perhaps late"):
                    self._edge(("r", rank), ("r", partner))
                    self.out.absent.setdefault(partner, set()).add(self.out.waiting[rank])
                    blocked[rank] = True
                    if how != "late":
                        self.unsure[("r", rank), ("r", partner)] = BEHIND if how == "behind" else NO_HISTORY
                elif how == "joined":
                    joined.append(partner)
                else:
                    over.append(partner)
                    strong = strong or side == "s" or size_of(head) > IN_FLIGHT_BYTES
            down = [m for m in missing if m in self.incapable]
            for partner in down:
                self._edge(("r", rank), ("r", partner))
                self.out.absent.setdefault(partner, set()).add(self.out.waiting[rank])
                blocked[rank] = True
            if not blocked.get(rank):
                for partner in missing:
                    self._edge(("r", rank), ("r", partner))
                if not missing and len(over) == len(head.parts) and strong and not unclear:
                    # Rule 3: the partner has finished the matching one, so what hangs is on my side.
                    self.out.device_stuck[rank] = self.out.waiting[rank]
                elif not missing:
                    pending.append((rank, head, joined, over, unclear))
        for rank, head, joined, over, unclear in pending:
            if unclear and not joined and not over:
                # A partner that cannot be mapped to a global rank: it waits, and we cannot say for whom.
                self._edge(("r", rank), ("u", Unit(head.key, pair=(rank, -1))))
                self.out.notes.append(f"rank {rank} waits in an exchange whose partner the dump does not tell")
            for partner in [*joined, *over]:
                if partner in joined and blocked.get(partner):
                    # The partner is in the same exchange, which is held up by a third rank.
                    self._edge(("r", rank), ("r", partner))
                else:
                    unit = Unit(head.key, pair=(min(rank, partner), max(rank, partner)))
                    self._edge(("r", rank), ("u", unit))
                    self.edges.setdefault(("u", unit), set())

    # ------------------------------------------------------------ sinks

    def _sinks(self) -> None:
        nodes: set[Node] = set(self.edges).union(*self.edges.values())
        incoming: Counter[int] = Counter()
        ranks_first: list[Node] = [("r", rank) for rank in sorted(node[1] for node in nodes if node[0] == "r")]
        ranks_first += sorted((node for node in nodes if node[0] == "u"), key=repr)
        component = components(self.edges, ranks_first)
        leaves: set[int] = set(component.values())
        inside: dict[int, list[Node]] = {}
        for node, c in component.items():
            inside.setdefault(c, []).append(node)
            for target in self.edges.get(node, ()):
                if component[target] != c:
                    leaves.discard(c)
                    incoming[component[target]] += 1
        for c in sorted(leaves):
            ranks = sorted(node[1] for node in inside[c] if node[0] == "r")
            if len(inside[c]) == 1 and not ranks:
                unit = inside[c][0][1]
                assert isinstance(unit, Unit)
                if incoming[c] and not (unit.pair and unit.pair[1] < 0):
                    self.out.stuck_units.append(unit)
            elif len(inside[c]) == 1:
                if incoming[c]:
                    self._root(ranks[0])
            else:
                self.out.cycles.append(ranks)
                for (a, b), why in self.unsure.items():
                    if component.get(a) == c == component.get(b):
                        self.out.unsure_cycles.update(dict.fromkeys(ranks, why))
        for mismatch in self.out.mismatches:  # a unit whose members disagree is not "all joined"
            odd = (mismatch.key, mismatch.seq, mismatch.pair)
            self.out.stuck_units = [u for u in self.out.stuck_units if (u.key, u.seq, u.pair) != odd]

    def _root(self, rank: int) -> None:
        if rank in self.incapable:
            self.out.roots[rank] = self.incapable[rank]
        elif rank not in self.out.absent or self._failed(rank):
            self.out.possible.add(rank)  # without a dump, or with one that does not tell
        else:
            self.out.roots[rank] = "device" if rank in self.out.device_stuck else "host"

    def _failed(self, rank: int) -> bool:
        """Did it wait itself, in what is over and never completed (a time-out, an abort), so that nothing is open on it?"""
        view = self.views.get(rank)
        return view is not None and view.head is None and any(row.get("failed") for row in view.rows.values())

    def _stalled(self) -> None:
        """The groups in which somebody waits; the one where most do is "the" stalled group."""
        waiters = Counter(unit.key for unit in self.out.waiting.values())
        self.out.stalled_groups = set(waiters)
        if waiters:
            self.out.stalled = min(waiters, key=lambda k: (-waiters[k], -len(self.out.group(k).members), k))

    # ------------------------------------------------------------ the order trail (rule 5)

    def _separate(self) -> None:
        if len(self.out.cycles) == 1:
            self.out.swapper = odd_one(self.records, self.out.cycles[0])


def describe(picture: Picture, mismatch: Mismatch) -> str:
    """`at number 4 of default_pg {0-3}: rank 1 all_reduce 16x4 Float; ranks 2, 3 all_reduce 8x4 Float`."""
    sides = "; ".join(
        f"rank{'s' if len(ranks) > 1 else ''} {spoken(ranks)} {readable(sig)}" for sig, ranks in mismatch.sides[:4]
    )
    return f"at {picture.label(Unit(mismatch.key, mismatch.seq, mismatch.pair))}: {sides}"
