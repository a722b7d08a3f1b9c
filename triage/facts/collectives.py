"""Reduced flight records as the wait graph needs them: groups with members, heads, signatures, order trails.

Input: the records of `probes/_records.py` (shape: its `reduce_dump`), one a rank. They come from nodes, so each is
checked while it is decoded; one that lies about its own shape is left out and listed, it never stops the others.
What can fool it is told in notes/flight-recorder.md 1.2: one name for several groups, local ids, numbers mixed with p2p.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from triage.facts.members import Members, folded, members, spoken

__all__ = [
    "GroupInfo",
    "GroupKey",
    "Head",
    "Members",
    "Ordinal",
    "RankView",
    "Records",
    "decode",
    "folded",
    "members",
    "spoken",
]

GroupKey = tuple[str, str]  # (name, folded members): one name may stand for different ranks on different ranks
Ordinal = tuple[int, int | None, int | None]  # epoch (last collective of the group), index in it, p2p number

MOST_UNITS = 4096  # of one window or trail


# ---------------------------------------------------------------- one rank


class Head(NamedTuple):
    """Where a rank waits: its open unit with the smallest record id.

    Only this one is the rank's edge in the wait graph; what it has enqueued behind it has not been reached
    (prototype-findings 3.2: with all open ops instead, 8 times as many spurious units).
    A tuple and no dataclass: 8,192 frozen ones cost a tenth of all that the graph costs.
    """

    key: GroupKey
    seq: int | None  # None: point to point
    parts: tuple[tuple[str, int | None, int | None, Ordinal | None], ...] = ()
    sig: str = ""
    at: float | None = None  # created, epoch s, node's clock
    timeout_s: float | None = None

    @property
    def deadline(self) -> float | None:
        return self.at + self.timeout_s if self.at is not None and self.timeout_s else None


class RankView:
    """One rank's reduced dump, with its groups by key. Windows and trails are decoded when asked for."""

    __slots__ = ("batched", "default", "head", "keys", "named", "opens", "rank", "record", "rows", "sigs", "top")

    def __init__(self, rank: int, record: Mapping[str, Any]) -> None:
        self.rank = rank
        self.record = record
        self.rows: dict[GroupKey, Mapping[str, Any]] = {}
        self.keys: list[GroupKey] = []
        self.sigs: tuple[str, ...] = tuple([str(s)[:512] for s in record.get("sigs", ())[:1024]])
        # What its rows come to, told by `_view`: all rows of all ranks are walked as few times as can be.
        self.top = -1  # the highest rank that the record names
        self.default: tuple[str, ...] = ()  # members of its default group
        self.batched = False  # does a row say that its sends go in batches?
        self.named = True  # do all rows tell their members?
        self.head: Head | None = None
        self.opens: list[Head] = []

    @property
    def history(self) -> bool:
        """Does it hold everything since the process began? Then "not there" means "never done"."""
        return not self.record.get("wrapped") and not self.record.get("active_only")

    @property
    def gaps(self) -> bool:
        """Are entries left out between its first and its last: finished ones, where only the open ones are told?"""
        ids, count = self.record.get("ids"), self.record.get("n")
        if not (
            isinstance(ids, list) and len(ids) == 2 and all(isinstance(i, int) for i in ids) and isinstance(count, int)
        ):
            return bool(self.record.get("active_only"))
        return bool(ids[1] - ids[0] + 1 > count)

    def pair(self, key: GroupKey, side: str, src: int, dst: int) -> list[Any] | None:
        """[enqueued, done, open] of the sends ("s") or receives ("r") from src to dst, each an ordinal or None."""
        for row in self.record.get("pairs", ()):
            if row[1:4] == [side, src, dst] and self.keys[row[0]] == key:
                return list(row[4:7])
        return None

    def trail(self) -> list[tuple[int, int]]:
        """The last collective units in the order of enqueueing, as (group index, number); [] if it makes no sense."""
        out: list[tuple[int, int]] = []
        try:
            for run in str(self.record.get("trail", "")).split(",") if self.record.get("trail") else []:
                g, _, rest = run.partition(":")
                seq, _, count = rest.partition("*")
                for i in range(min(int(count or 1), MOST_UNITS - len(out))):
                    out.append((int(g), int(seq) + i))
        except ValueError:
            return []
        return out if all(0 <= g < len(self.keys) for g, _ in out) else []


@dataclass
class GroupInfo:
    key: GroupKey
    desc: str
    members: Members
    complete: bool  # False: nobody told the members, they are those that a dump happens to show
    p2p: bool = False

    said: str = ""

    def label(self) -> str:
        """`TP {0-7}`, made once: the default group of 8,192 ranks is asked for by each of them."""
        if not self.said:
            self.said = f"{self.desc} {{{spoken(self.members)}}}".strip()
        return self.said


@dataclass
class Records:
    """All usable dumps of one job, decoded together: what `waitgraph` reads."""

    views: dict[int, RankView]
    groups: dict[GroupKey, GroupInfo]
    world: int | None
    refused: dict[int, str] = field(default_factory=dict)  # rank -> why its record could not be used
    _windows: dict[tuple[str, tuple[str, ...]], dict[int, str]] = field(default_factory=dict)

    def window(self, rank: int, key: GroupKey) -> dict[int, str]:
        """number -> signature of the last units of a group on a rank ({} where the rank never used it)."""
        row = self.views[rank].rows.get(key)
        text = str(row.get("win", "")) if row else ""
        if not text:
            return {}
        at = (text, self.views[rank].sigs)
        if at not in self._windows:
            try:
                self._windows[at] = _decode_window(text, self.views[rank].sigs)
            except (ValueError, IndexError):
                self._windows[at] = {}
        return self._windows[at]

    def patterns(self, key: GroupKey, ranks: Iterable[int]) -> dict[tuple[str, tuple[str, ...]], list[int]]:
        """Ranks with the same window text and table, together: a healthy job of 8,192 ranks has a handful."""
        found: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        for rank in ranks:
            view = self.views[rank]
            row = view.rows.get(key)
            if row and (text := row.get("win")):
                at = (str(text), view.sigs)
                if at in found:
                    found[at].append(rank)
                else:
                    found[at] = [rank]
        return found

    def reached(self, rank: int, key: GroupKey) -> int:
        """The collective of this group that the rank has come to: beyond it, it has not arrived (findings 3.2)."""
        view = self.views[rank]
        if view.head and view.head.key == key and view.head.seq is not None:
            return view.head.seq
        row = view.rows.get(key)
        if row is None:
            return -1
        if row.get("first_open") is not None:
            return int(row["first_open"]) - 1  # enqueued behind another open op is not joined
        return self.enqueued(row, key)

    def enqueued(self, row: Mapping[str, Any], key: GroupKey) -> int:
        told = int(row.get("enq", -1))
        # pg_status mixes numbers of sends and collectives in groups that have both (notes/flight-recorder.md 0, 4).
        if not self.groups[key].p2p and row.get("status"):
            told = max(told, int(row["status"][0]))
        return told

    def finished(self, rank: int, key: GroupKey, seq: int) -> bool:
        """Has the rank surely finished this collective? (Not: it is over, perhaps by failing.)"""
        row = self.views[rank].rows.get(key)
        if row is None or seq == row.get("unsure"):
            return False
        first_open = row.get("first_open")
        if first_open is not None:
            return seq < int(first_open)
        if self.groups[key].p2p or not row.get("status"):
            return seq <= int(row.get("enq", -1))
        return seq <= max(int(row.get("enq", -1)), int(row["status"][1]))


def _decode_window(text: str, sigs: Sequence[str]) -> dict[int, str]:
    out: dict[int, str] = {}
    for segment in text.split(";"):
        start, _, runs = segment.partition(":")
        if not runs:
            continue
        seq = int(start)
        for run in runs.split(","):
            index, _, count = run.partition("*")
            for _ in range(min(int(count or 1), MOST_UNITS - len(out))):
                out[seq] = sigs[int(index)]
                seq += 1
    return out


# ---------------------------------------------------------------- all ranks


def decode(records: Mapping[int, Mapping[str, Any]], world: int | None = None) -> Records:
    """Decode the reduced dumps of a job. `world`: its size where it is known from elsewhere."""
    views: dict[int, RankView] = {}
    refused: dict[int, str] = {}
    tables: dict[tuple[str, ...], tuple[str, ...]] = {}  # ranks of one job have a handful of them
    for rank, record in sorted(records.items()):
        try:
            view = views[rank] = _view(rank, record)
            view.sigs = tables.setdefault(view.sigs, view.sigs)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            refused[rank] = f"its reduced dump is malformed ({error.__class__.__name__})"
    told = Counter([text for view in views.values() for text in view.default])
    told.pop("", None)
    if world is None and told:
        world = len(members(told.most_common(1)[0][0]))
    if world is not None:
        # A record that names ranks beyond the job is of another one, or lies; it may not make us loop over them either.
        for rank in [r for r, view in views.items() if view.top >= world]:
            del views[rank]
            refused[rank] = f"it names ranks that a job of {world} ranks does not have"
    for rank in [r for r, view in views.items() if view.record.get("lost")]:
        del views[rank]
        refused[rank] = "its ring has dropped operations that are still open, so where it waits is not told"
    for rank in _of_two_styles(views):
        del views[rank]
        refused[rank] = (
            "it holds open entries only, which do not tell whether its batches of sends and receives are finished"
        )
    highest = max([-1, *views, *[view.top for view in views.values()]])
    size = max(world or 0, highest + 1)
    groups = _groups(views, size, world is not None)
    for view in views.values():
        _attach(view)
    return Records(views, groups, world, refused)


def _of_two_styles(views: Mapping[int, RankView]) -> list[int]:
    """Ranks whose dump of open entries shows sends as single calls that others show to go in batches.

    The parts of a finished batch stay in such a dump, the entry that closed it does not (probes/_records.py): a rank that has
    no open batch looks as if each of them were open.
    """
    batched = {
        _role(row) for view in views.values() if view.batched for row in view.record["groups"] if row.get("batched")
    }
    found = []
    for rank, view in views.items() if batched else ():
        rows = view.record["groups"]
        loose = [rows[u["g"]] for u in view.record.get("open", ()) if "p2p" in u and not rows[u["g"]].get("batched")]
        if view.record.get("active_only") and any(_role(row) in batched for row in loose):
            found.append(rank)
    return found


def _role(row: Mapping[str, Any]) -> str:
    """What groups of one kind are called; PyTorch writes "undefined" where nobody gave a description."""
    desc = str(row.get("desc") or "")
    return "" if desc == "undefined" else desc


def _view(rank: int, record: Mapping[str, Any]) -> RankView:
    if record.get("v") != 1:
        raise ValueError("unknown version of the record")
    view = RankView(rank, record)
    top, stands = -1, False
    for row in record["groups"]:
        get = row.get
        told = get("ranks", "")
        last = members(str(told)).top
        if last > top:
            top = last
        if not told:
            view.named = False
        numbers = (get("enq"), get("first_open"), get("last_done"), get("unsure"), get("first"))
        for value in numbers:
            if value is not None and not isinstance(value, int):
                raise ValueError("a number")
        if numbers[1] is not None:
            stands = True
        status = get("status")
        if status is not None:
            int(status[0]), int(status[1])
        if get("desc") == "default_pg":
            view.default = (*view.default, row["ranks"])
        if get("batched"):
            view.batched = True
    view.top = top
    if (record.get("opens") or stands) and not record.get("open"):
        raise ValueError("it counts open operations and tells none")
    for pair in record.get("pairs", ()):
        record["groups"][pair[0]]["name"]
        if len(pair) != 7:
            raise ValueError("pairs")
    for unit in record.get("open", ()):
        row = record["groups"][unit["g"]]
        row["name"], view.sigs[unit["sig"]]
        seq, first = unit.get("seq"), row.get("first_open")
        if seq is None and "p2p" not in unit:
            raise ValueError("open")
        if seq is not None and first is not None and seq < first:
            raise ValueError("it tells an operation open that lies before the first open one of its group")
        if any(len(part) != 4 or (part[3] and len(part[3]) != 3) for part in unit.get("p2p", ())):
            raise ValueError("p2p")
    return view


def _groups(views: Mapping[int, RankView], size: int, sure: bool) -> dict[GroupKey, GroupInfo]:
    """Give every group row of every rank its key; members from the configuration, else the default group, else a union."""
    groups: dict[GroupKey, GroupInfo] = {}
    by_name: dict[str, set[str]] = {}
    loose: dict[GroupKey, set[int]] = {}
    used: set[GroupKey] = set()  # something has finished in them
    if not all(view.named for view in views.values()):
        for view in views.values():
            for row in view.record["groups"]:
                if row.get("ranks"):
                    by_name.setdefault(str(row["name"]), set()).add(str(row["ranks"]))
    for view in views.values():
        for row in view.record["groups"]:
            get = row.get
            name, text, desc = str(row["name"]), str(get("ranks", "")), str(get("desc", ""))
            if not text:
                text = next((t for t in sorted(by_name.get(name, ())) if view.rank in members(t)), "")
            if not text and desc == "default_pg" and size > 0:
                text = folded(range(size)) if size > 1 else "0"
            key = (name, text or f"?{desc}")
            if not text:
                loose.setdefault(key, set()).add(view.rank)
            if get("last_done") is not None:
                used.add(key)
            known = groups.get(key)
            if known is None:
                told = bool(get("ranks")) or (bool(text) and (desc != "default_pg" or sure))
                known = groups[key] = GroupInfo(key, desc, members(text), told)
            elif not known.desc:
                known.desc = desc
            if get("p2p"):
                known.p2p = True
            key = known.key  # one tuple for all ranks
            view.keys.append(key)
            view.rows[key] = row
    for key, ranks in loose.items():
        # Nobody told the members (gloo): those with entries. Complete only if there is a dump of every rank, and if a
        # collective has finished, which takes all of them: in the first one, who is missing has no entry yet.
        groups[key].members = members(folded(ranks))
        groups[key].complete = sure and len(views) >= size and key in used
    return groups


def _attach(view: RankView) -> None:
    for unit in view.record.get("open", ()):
        key = view.keys[unit["g"]]
        exchange = unit.get("p2p", ())
        parts = tuple([(p[0], p[1], p[2], tuple(p[3]) if p[3] else None) for p in exchange]) if exchange else ()
        seq = unit.get("seq")
        at, limit = unit.get("at"), unit.get("ms")
        view.opens.append(
            Head(
                key,
                None if "p2p" in unit else (None if seq is None else int(seq)),
                parts,
                view.sigs[unit["sig"]],
                float(at) if isinstance(at, int | float) else None,
                limit / 1000 if isinstance(limit, int | float) and limit > 0 else None,
            )
        )
    view.head = view.opens[0] if view.opens else None
