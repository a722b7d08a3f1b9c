"""Which rank processes are gone, stopped or in uninterruptible sleep."""

from __future__ import annotations

from triage.facts.dumps import standing
from triage.facts.ends import End, ends
from triage.facts.evidence import Evidence
from triage.facts.ranktable import RankRow, rank_table
from triage.facts.registry import fact, known, unknown
from triage.model import Fact, Part, Provenance


def part(row: RankRow) -> Part:
    return Part("rank", node=row.node, rank=row.rank, why=row.why)


def _provenance(ev: Evidence, rows: list[RankRow]) -> tuple[Provenance, ...]:
    newest = ev.latest("ranks")
    return ev.seen(*{id(s): s for row in rows[:8] if row.node and (s := newest.get(row.node))}.values())


@fact("ranks.expected", type="number", unit="ranks", parts="rank")
def expected(ev: Evidence) -> Fact:
    """All ranks that the job should have, by WORLD_SIZE of those seen."""
    table = ev.derive(rank_table)
    if table.world_size is None:
        return unknown("no rank process was seen, so WORLD_SIZE is not known")
    return known(parts=[part(row) for row in table.rows.values()], text=f"{table.world_size} ranks")


def _gone(ev: Evidence, *kinds: str) -> Fact:
    """Ranks that are gone, of these kinds of end (ends.py)."""
    table = ev.derive(rank_table)
    if not table.rows:
        return unknown("no rank process was seen")
    ended = ev.derive(ends)
    rows = [table.rows[rank] for rank in sorted(ended) if not kinds or ended[rank].kind in kinds]
    if not rows and any(row.gone is None for row in table.rows.values()):
        missing = sum(row.gone is None for row in table.rows.values())
        return unknown(f"{missing} of {len(table.rows)} ranks live where we cannot see all processes")
    parts = [Part("rank", row.node, row.rank, why=_why_gone(row, ended[row.rank])) for row in rows]
    return known(parts=parts, provenance=_provenance(ev, rows))


def _why_gone(row: RankRow, end: End) -> str:
    """A victim's end is told with its reason: whoever reads "gone" first takes it for the culprit."""
    return f"{row.why}; {end.why}" if end.kind == "late" else row.why


@fact("ranks.gone", type="number", unit="ranks", parts="rank")
def gone(ev: Evidence) -> Fact:
    """Ranks whose process is gone from a node that we see fully and that is known to have hosted them."""
    return _gone(ev)


@fact("ranks.gone_first", type="number", unit="ranks", parts="rank")
def gone_first(ev: Evidence) -> Fact:
    """Ranks that are gone and not known to have ended after the stall began: a cause may be among them."""
    return _gone(ev, "early", "undated")


@fact("ranks.gone_late", type="number", unit="ranks", parts="rank")
def gone_late(ev: Evidence) -> Fact:
    """Ranks that ended after the stall began (by a watchdog, a launcher, an operator): a consequence, never its cause."""
    return _gone(ev, "late")


@fact("ranks.claimed_twice", type="number", unit="ranks", parts="rank")
def claimed_twice(ev: Evidence) -> Fact:
    """Ranks on which no claim is believed: two nodes or processes claim them, or they cannot be where they are claimed."""
    if not ev.of("ranks"):
        return unknown("no node told its processes")
    table = ev.derive(rank_table)
    parts = [Part("rank", table.node_of(rank), rank, why=why) for rank, why in sorted(table.claimed.items())[:64]]
    return known(len(table.claimed), parts=parts, provenance=ev.seen(*ev.of("ranks")[:8]))


@fact("ranks.all_gone", type="bool")
def all_gone(ev: Evidence) -> Fact:
    """Is no rank process left anywhere, on nodes that we all see fully?"""
    if not ev.of("ranks"):
        return unknown("no node told its processes")
    table = ev.derive(rank_table)
    if any(row.alive for row in table.rows.values()):
        return known(False)
    if table.claimed:
        return unknown("processes are there on which no claim to be a rank is believed")
    if all(node.name in table.full_nodes for node in ev.job.nodes):
        return known(True, text="no rank process is left on any node")
    return unknown("not all processes of all nodes are visible")


@fact("ranks.stopped", type="number", unit="ranks", parts="rank")
def stopped(ev: Evidence) -> Fact:
    """Ranks whose process is stopped (state T: SIGSTOP, a debugger) in every look that shows them."""
    return _in_state(ev, "T", "its process is stopped (state T) in both looks")


@fact("ranks.d_state", type="number", unit="ranks", parts="rank")
def d_state(ev: Evidence) -> Fact:
    """Ranks in uninterruptible sleep (state D) in every look that shows them: the kernel waits for a device or mount."""
    return _in_state(ev, "D", "its process is in uninterruptible sleep (state D) in both looks")


def _in_state(ev: Evidence, state: str, why: str) -> Fact:
    table = ev.derive(rank_table)
    seen = [row for row in table.rows.values() if row.alive]
    if not seen:
        return unknown("no live rank process was seen")
    rows = [row for row in seen if row.first is not None and standing(row) == state]
    parts = [Part("rank", node=row.node, rank=row.rank, why=why) for row in rows]
    return known(parts=parts, provenance=_provenance(ev, rows))
