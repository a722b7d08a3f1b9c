"""One table of all ranks of the job: where each lives, and whether it lives.

Sources: the `ranks` probe in both looks, `reach` (what we may see), the launcher's lines in the job log, `contact`.
What can fool it: a node whose processes we may not see (nothing is then "gone"), a second job of the same user on the
node (other rank set), a pid that was given to another process (the start time is compared), orphaned loader workers
that wear the rank's environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from triage.facts.evidence import Evidence
from triage.model import Sample

# The environment that makes two processes members of one rank set (DESIGN section 2, "Rank").
SET_KEYS = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID")


@dataclass(frozen=True)
class RankRow:
    """One global rank. `alive` and `gone` are both None or False where we cannot say; they are never both true."""

    rank: int
    node: str | None
    pid: int | None
    state: str | None  # R S D T Z, of the newest look
    start_s: float | None  # the node's clock
    env: Mapping[str, str]
    alive: bool | None
    gone: bool | None
    why: str
    first: Mapping[str, Any] | None = None  # the record of look A
    last: Mapping[str, Any] | None = None  # the record of look B (or A, where B has none)
    exit_code: int | None = None  # from the launcher's line


@dataclass(frozen=True)
class RankTable:
    rows: Mapping[int, RankRow]
    world_size: int | None
    node_ranks: Mapping[str, tuple[int, ...]]  # node -> ranks known to be hosted there, alive or gone
    full_nodes: frozenset[str]  # nodes whose processes we see fully, in the newest look
    sets: tuple[tuple[tuple[str, str], ...], ...] = ()  # rank sets seen that belong to the job, as (name, value) pairs
    notes: tuple[str, ...] = ()

    def node_of(self, rank: int) -> str | None:
        row = self.rows.get(rank)
        return row.node if row else None


def set_of(env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((key, env[key]) for key in SET_KEYS if key in env)


def belongs(env: Mapping[str, str], job_id: str, match: Mapping[str, str]) -> bool | None:
    """Is a process of this environment one of the job's? None: neither the inventory nor the launcher tells."""
    if match:
        return all(env.get(name) == value for name, value in match.items())
    told = [env[name] for name in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID") if name in env]
    if job_id in told:
        return True
    return None


@dataclass
class _Choice:
    """Which rank sets the job's processes form."""

    keep: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)  # node, look, record
    sets: list[tuple[tuple[str, str], ...]] = field(default_factory=list)


def rank_sets(ev: Evidence) -> list[tuple[tuple[str, str], ...]]:
    """The rank sets that could be this job: exactly one is good; the caller refuses two (exit 2)."""
    return list(_choose(ev).sets)


def _choose(ev: Evidence) -> _Choice:
    seen = [
        (sample.node, sample.look, record)
        for sample in ev.of("ranks")
        for record in sample.data.get("ranks", ())
        if isinstance(record, Mapping) and isinstance(record.get("rank"), int)
    ]
    # A launcher's own number (SLURM_PROCID …) is a rank only where no process of the job wears RANK itself.
    if any(r.get("rank_from", "RANK") == "RANK" for _, _, r in seen):
        seen = [(n, look, r) for n, look, r in seen if r.get("rank_from", "RANK") == "RANK"]
    marked = [(n, look, r) for n, look, r in seen if belongs(_env(r), ev.job.id, ev.job.match)]
    # With a rule (match, or an id in the environment) only what it marks counts; without one, a single set is the job.
    keep = marked if marked or ev.job.match else seen
    choice = _Choice(keep)
    for _, _, record in keep:
        group = set_of(_env(record))
        if group not in choice.sets:
            choice.sets.append(group)
    return choice


def _env(record: Mapping[str, Any]) -> Mapping[str, str]:
    env = record.get("env")
    return env if isinstance(env, Mapping) else {}


def rank_table(ev: Evidence) -> RankTable:
    choice = ev.derive(_choose)
    by_look: dict[str, dict[int, tuple[str, Mapping[str, Any]]]] = {"A": {}, "B": {}}
    world: int | None = None
    for node, look, record in choice.keep:
        by_look.setdefault(look, {})[int(record["rank"])] = (node, record)
        size = record.get("world_size")
        if isinstance(size, int) and 0 < size <= 1_000_000:
            world = max(world or 0, size)
    first, last = by_look["A"], by_look["B"]
    newest = {s.node: s for s in ev.of("ranks")}
    full = frozenset(node for node, s in newest.items() if _sees_fully(ev, s))
    homes = _homes(ev, choice, world)
    exits = launcher_exits(ev)
    rows: dict[int, RankRow] = {}
    for rank in sorted(set(first) | set(last) | set(homes) | (set(range(world)) if world else set())):
        rows[rank] = _row(ev, rank, first.get(rank), last.get(rank), homes.get(rank), newest, full, exits)
    hosted: dict[str, list[int]] = {}
    for row in rows.values():
        if row.node:
            hosted.setdefault(row.node, []).append(row.rank)
    return RankTable(
        rows,
        world,
        {node: tuple(ranks) for node, ranks in hosted.items()},
        full,
        tuple(choice.sets),
    )


def _sees_fully(ev: Evidence, sample: Sample) -> bool:
    """Root, or the job's own user on a node without hidepid: only there may "gone" be said (DESIGN section 2)."""
    if sample.data.get("truncated"):
        return False
    if sample.data.get("sees_all") is True:
        return True
    reach = ev.latest("reach").get(sample.node)
    hidden = reach is None or reach.data.get("hidepid") not in (None, 0)
    if hidden:
        return False
    # The job's user: its own ranks elsewhere run under the uid that probes with.
    uid = sample.data.get("own_uid")
    uids = {
        record.get("uid")
        for other in ev.of("ranks")
        for record in other.data.get("ranks", ())
        if isinstance(record, Mapping)
    }
    return uid is not None and uids == {uid}


def _homes(ev: Evidence, choice: _Choice, world: int | None) -> dict[int, tuple[str, str]]:
    """rank -> (node, how we know), for ranks that no look shows."""
    seen = {int(record["rank"]): node for node, _, record in choice.keep}
    homes: dict[int, tuple[str, str]] = {}
    for node, _, record in choice.keep:
        group, size = record.get("group_rank"), record.get("local_world_size")
        # Nodes with unequal numbers of ranks break the product: believe it only where it also places the sibling itself.
        if (
            isinstance(group, int)
            and isinstance(size, int)
            and 0 < size <= 64
            and group * size <= int(record["rank"]) < (group + 1) * size
        ):
            for rank in range(group * size, (group + 1) * size):
                if rank not in seen and (world is None or rank < world):
                    homes[rank] = (node, "placed by its siblings' GROUP_RANK")
    if world is not None:
        # By elimination: every other rank is placed, all other nodes host equally many, and exactly one hosts none.
        missing = [r for r in range(world) if r not in seen and r not in homes]
        counts: dict[str, int] = {}
        for node in [*seen.values(), *(node for node, _ in homes.values())]:
            counts[node] = counts.get(node, 0) + 1
        empty = [n.name for n in ev.job.nodes if n.name not in counts]
        if missing and len(empty) == 1 and set(counts.values()) == {len(missing)}:
            for rank in missing:
                homes[rank] = (empty[0], "placed by elimination: only this node hosts none")
    return homes


def _row(
    ev: Evidence,
    rank: int,
    first: tuple[str, Mapping[str, Any]] | None,
    last: tuple[str, Mapping[str, Any]] | None,
    home: tuple[str, str] | None,
    newest: Mapping[str, Sample],
    full: frozenset[str],
    exits: Mapping[tuple[str, int], int],
) -> RankRow:
    now = last
    if first and not last:
        # Seen in A only. Without a look B of that node A is simply the newest we have.
        sample = newest.get(first[0])
        if sample is None or sample.look == "A":
            now = first
    if now:
        node, record = now
        state = record.get("state")
        pid = record.get("pid")
        if state in ("Z", "X"):
            return RankRow(
                rank, node, pid, state, record.get("start_s"), _env(record), False, True,
                "its process is a zombie", first[1] if first else None, record,
            )  # fmt: skip
        return RankRow(
            rank, node, pid, state, record.get("start_s"), _env(record), True, False,
            f"process {pid} is there, state {state}", first[1] if first else None, record,
        )  # fmt: skip
    node_name = first[0] if first else (home[0] if home else None)
    record = first[1] if first else {}
    if node_name is None:
        return RankRow(rank, None, None, None, None, {}, None, None, "no node is known to host it")
    how = "the first look saw it there" if first else home[1] if home else ""
    exit_code = exits.get((node_name, rank))
    base = (rank, node_name, record.get("pid"), None, record.get("start_s"), _env(record))
    if node_name not in newest:
        return RankRow(*base, None, None, f"{node_name} did not tell its processes")
    if node_name not in full:
        return RankRow(*base, None, None, f"not all processes of {node_name} are visible to us")
    return RankRow(
        *base,
        False,
        True,
        f"its process is no longer on {node_name} ({how})",
        first[1] if first else None,
        None,
        exit_code,
    )


def launcher_exits(ev: Evidence) -> dict[tuple[str, int], int]:
    """(node, rank) -> exit code, from the launcher's "failed (exitcode: -9) local_rank: 1 (pid: N)" lines.

    The line names a pid and a local rank, no node. It is tied to a node by the pid of an earlier look, or when only one
    node of the job lacks that local rank.
    """
    choice = ev.derive(_choose)
    by_pid: dict[int, tuple[str, int]] = {}
    present: dict[str, dict[int, int]] = {}  # node -> local rank -> pid
    groups: dict[str, tuple[int, int]] = {}
    for node, _, record in choice.keep:
        rank, local = record.get("rank"), record.get("local_rank")
        for pid in {record.get("pid"), record.get("top_pid")}:  # a shell may stand between launcher and rank
            if isinstance(rank, int) and isinstance(pid, int):
                by_pid[pid] = (node, rank) if by_pid.get(pid, (node, rank)) == (node, rank) else ("", rank)
                if isinstance(local, int):
                    present.setdefault(node, {})[local] = pid
        group, size = record.get("group_rank"), record.get("local_world_size")
        if isinstance(group, int) and isinstance(size, int):
            groups[node] = (group, size)
    found: dict[tuple[str, int], int] = {}
    for hit in log_hits(ev, "torchelastic_failed"):
        group_values = hit.get("groups", {})
        try:
            code, local, pid = int(group_values["code"]), int(group_values["lr"]), int(group_values["pid"])
        except (KeyError, TypeError, ValueError):
            continue
        placed = by_pid.get(pid)
        if placed and placed[0]:
            found[placed] = code
            continue
        lacking = [n.name for n in ev.job.nodes if local not in present.get(n.name, {})]
        if len(lacking) == 1 and lacking[0] in groups:
            group, size = groups[lacking[0]]
            found[(lacking[0], group * size + local)] = code
    return found


def log_hits(ev: Evidence, *ids: str) -> list[Mapping[str, Any]]:
    """Hits of these signatures in the job log, from the newest reading of it, in the order of the log."""
    best: Sample | None = None
    for sample in ev.of("joblog"):
        if best is None or (sample.data.get("size") or 0) >= (best.data.get("size") or 0):
            best = sample
    if best is None:
        return []
    hits = best.data.get("hits")
    return [h for h in hits if isinstance(h, Mapping) and h.get("id") in ids] if isinstance(hits, list) else []
