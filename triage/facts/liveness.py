"""Which rank processes are gone, stopped, held by a debugger or in uninterruptible sleep.

What can fool it: a job that is suspended by the cgroup freezer shows no T (its processes sleep, or are in D); a tracer that
runs outside of the rank's pid namespace is told as pid 0 inside of it, so that the state `t` alone is left.
"""

from __future__ import annotations

from collections.abc import Callable

from triage.facts.claims import whole
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
    """Ranks whose process is stopped (state T: SIGSTOP; t: a debugger) in every look that shows them."""
    return _in_state(ev, "T", how_stopped)


@fact("ranks.stopped_now", type="number", unit="ranks", parts="rank")
def stopped_now(ev: Evidence) -> Fact:
    """Ranks whose process is stopped in the newest look, whatever it was before: no job goes on for long without them."""
    seen = [row for row in ev.derive(rank_table).rows.values() if row.alive]
    if not seen:
        return unknown("no live rank process was seen")
    rows = [row for row in seen if (row.last or row.first) is not None and str(row.state).upper() == "T"]
    if not rows and (blind := [row for row in seen if row.state is None]):
        return unknown(f"the state of {len(blind)} of {len(seen)} live ranks could not be read")
    parts = [Part("rank", row.node, row.rank, why=f"its process is stopped (state {row.state}) now") for row in rows]
    return known(parts=parts, provenance=_provenance(ev, rows))


@fact("ranks.d_state", type="number", unit="ranks", parts="rank")
def d_state(ev: Evidence) -> Fact:
    """Ranks in uninterruptible sleep (state D) in every look that shows them: the kernel waits for a device or mount."""
    return _in_state(ev, "D", lambda row: f"its process is in uninterruptible sleep (state D) {_looks(row)}")


def _in_state(ev: Evidence, state: str, why: Callable[[RankRow], str]) -> Fact:
    table = ev.derive(rank_table)
    seen = [row for row in table.rows.values() if row.alive]
    if not seen:
        return unknown("no live rank process was seen")
    rows = [row for row in seen if row.first is not None and standing(row) == state]
    parts = [Part("rank", node=row.node, rank=row.rank, why=why(row)) for row in rows]
    return known(parts=parts, provenance=_provenance(ev, rows))


def _looks(row: RankRow) -> str:
    return "in both looks" if row.last is not row.first else "in the only look at it"


def how_stopped(row: RankRow) -> str:
    """Who holds a stopped process, as far as it is known: "held by gdb (pid 4242): ..."."""
    tracer = tracer_of(row)
    if tracer is not None and tracer[0]:
        return f"held by {tracer[1]}: its process is stopped (state {row.state}) {_looks(row)}"
    if row.state == "t":
        return f"its process is held by a debugger (state t) {_looks(row)}"
    return f"its process is stopped (state {row.state}) {_looks(row)}"


def tracer_of(row: RankRow) -> tuple[int, str] | None:
    """(pid of the process that traces it, "gdb (pid 4242)"), pid 0 for nobody; None where the newest look does not tell."""
    newest = row.last or row.first
    pid = whole(newest.get("tracer_pid")) if newest is not None else None
    if pid is None or newest is None:
        return None
    name = newest.get("tracer")
    return pid, f"{name[:32] if isinstance(name, str) and name else 'an unknown process'} (pid {pid})"


@fact("ranks.all_stopped", type="bool")
def all_stopped(ev: Evidence) -> Fact:
    """Is every rank of the job seen and stopped (state T) in every look that shows it: a suspended job?"""
    table = ev.derive(rank_table)
    if table.world_size is None:
        return unknown("no rank process was seen, so WORLD_SIZE is not known")
    rows = list(table.rows.values())
    still = [row for row in rows if row.alive and standing(row) == "T"]
    others = [row for row in rows if row.gone or (row.alive and standing(row) != "T")]
    if others:
        how = "is gone" if others[0].gone else f"is not stopped in every look (state {others[0].state} now)"
        return known(False, text=f"rank {others[0].rank} {how}", provenance=_provenance(ev, others))
    if len(still) < len(rows) or len(rows) < table.world_size:
        return unknown(f"only {len(still)} of {max(len(rows), table.world_size)} ranks were seen; these are stopped")
    tracers = {tracer[1] for row in still if (tracer := tracer_of(row)) is not None and tracer[0]}
    held = f", held by {sorted(tracers)[0]}" if tracers else ""
    return known(True, text=f"all {len(rows)} ranks are stopped (state T){held}", provenance=_provenance(ev, still))


@fact("ranks.traced", type="number", unit="ranks", parts="rank")
def traced(ev: Evidence) -> Fact:
    """Ranks that another process traces (TracerPid is not 0): a debugger, strace, a profiler at work."""
    rows = [row for row in ev.derive(rank_table).rows.values() if row.alive]
    told = {row.rank: tracer for row in rows if (tracer := tracer_of(row)) is not None}
    held = [row for row in rows if row.rank in told and told[row.rank][0]]
    if not held and len(told) < len(rows):
        return unknown(f"{len(rows) - len(told)} of {len(rows)} ranks do not tell who traces them")
    if not rows:
        return unknown("no live rank process was seen")
    parts = [Part("rank", node=row.node, rank=row.rank, why=f"traced by {told[row.rank][1]}") for row in held]
    return known(parts=parts, provenance=_provenance(ev, held))
