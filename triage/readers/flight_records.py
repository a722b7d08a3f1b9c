"""A folder of flight-recorder dumps that somebody collected -> the Sample that the probe would have sent.

Input: an iterable of (relative name, bytes, mtime or None), read one after the other; nothing is kept but the reduced records.
Packed files (gzip) are read as what they hold, up to the size of a dump. A file is recognised by its content, its rank is the number at the end of its name (`_dump_3`, `rank_3`, `fr_3.json`,
`nccl_trace_rank_<host>_3`, `comm_lib_trace_rank_3`), checked against the groups in it: a rank's dump only lists groups that
hold the rank. Where several files tell of one rank, the name pattern that covers most ranks is taken for all, so that the
dumps compared are of one moment; pickles before JSON, then the newest. Everything else is listed with its reason.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from triage.model import Sample
from triage.probes import _records as probe

RANK_AT_END = re.compile(r"_?(\d+)(?:\.[A-Za-z]\w*)?$")
RANK_IN_NAME = re.compile(r"rank[_-]?(\d+)(?!\d)")
RANK_OF_FOLDER = re.compile(r"(?i)rank[_-]?(\d{1,7})")  # rank_3/trace.pkl
HOST = re.compile(r"(?:nccl|comm_lib)_trace_rank_(?P<host>[A-Za-z0-9][\w.-]{0,252}?)_\d+(?:\.[A-Za-z]\w*)?$")
GZIP = b"\x1f\x8b"
ARCHIVES = (".tar", ".tgz", ".zip", ".7z", ".bz2", ".xz", ".zst")
# Folders that are no host's, whatever they hold.
NO_HOST = re.compile(
    r"(?i)(?:attempt|run|try|step|dump|trace|incident|restart|rank|job|look|case|part|old|new|stage|shard|group|rack|rail|exp"
    r"|test|log|data|out|pp|tp|dp|ep|cp|vp|sp|(?:mon|tues|wednes|thurs|fri|satur|sun)day)s?[_.-]?\d*|\d+"
)
MOST_UNPACKED = 64 << 20
MOST_LISTED = 1000


@dataclass(frozen=True)
class Collected:
    """What a folder held: the sample for the facts, which files it was made of, and (name, why) of all others."""

    sample: Sample
    recognised: tuple[str, ...]
    unrecognised: tuple[tuple[str, str], ...]
    ranks: tuple[int, ...]
    family: str  # the name pattern that was preferred, e.g. "fr_nostack_#.pickle"
    mixed: tuple[str, ...] = ()  # folders that each hold the newest dump of some ranks and an older one of others
    said: tuple[str, ...] = ()  # what a reader of the report should know of the choice
    passed: tuple[str, ...] = ()  # folders of dumps of which none was used: what lies beside them is of another job


@dataclass(frozen=True)
class _Found:
    name: str
    family: str
    rank: int
    mtime: float | None
    record: Mapping[str, Any]

    @property
    def newest(self) -> float:
        at = self.record.get("newest_s")
        return float(at) if isinstance(at, int | float) else 0.0


def read_folder(files: Iterable[tuple[str, bytes, float | None]], node: str = "") -> Collected:
    """Recognise, reduce and choose. Never raises on what is in the files; an empty folder gives status `absent`."""
    found: list[_Found] = []
    left: list[tuple[str, str]] = []
    cache: dict[str, tuple[int, ...]] = {}
    for name, raw, mtime in files:
        one = _recognise(*unpacked(name, raw), mtime, cache)
        if isinstance(one, str):
            left.append((name, one))
        else:
            found.append(one)
    everywhere = {_folder(one) for one in found}
    found, older, mixed = _one_attempt(found)
    left += [(one.name, f"of an earlier attempt than {other}") for one, other in older]
    families = _families(found)
    chosen: dict[int, _Found] = {}
    for one in sorted(found, key=lambda f: (f.rank, families.index(f.family), -f.newest, f.name)):
        best = chosen.setdefault(one.rank, one)
        if best is not one:
            if best.family == one.family:
                left.append((one.name, f"a second dump of rank {one.rank}; the newest was taken ({best.name})"))
            else:
                left.append((one.name, f"rank {one.rank} is read from {best.name}"))
    hosts = _hosts(chosen)
    rows = [_row(chosen[rank], hosts.get(rank, "")) for rank in sorted(chosen)]
    names = tuple(chosen[rank].name for rank in sorted(chosen))
    family = families[0] if families else ""
    notes = [f"{len(rows)} flight records read, named {family}"] if rows else ["no flight record was recognised"]
    if len({chosen[rank].family for rank in chosen}) > 1:
        notes.append("not all ranks have a file of that name: dumps of several moments may be mixed")
    if left:
        notes.append(f"{len(left)} other files were not used")
    sample = Sample(
        "flight_recorder", node, "C", "ok" if rows else "absent",
        data={"ranks": rows, "files": {"used": list(names[:MOST_LISTED]), "left": [list(x) for x in left[:MOST_LISTED]]}},
        notes=tuple(notes),
    )  # fmt: skip
    folders = sorted({_folder(one) for one, _ in older})
    used = {_folder(one) for one in chosen.values()}
    taken = ", ".join(sorted(used)[:4])
    said = []
    if folders:
        more = f" and {len(folders) - 4} more" if len(folders) > 4 else ""
        older_ones = f"{', '.join(folders[:4])}{more}"
        said = [f"{older_ones}: older dumps of the same ranks, of another attempt or incident: not used; read: {taken}"]
    passed = tuple(sorted(everywhere - used))
    return Collected(sample, names, tuple(left), tuple(sorted(chosen)), family, mixed, tuple(said), passed)


def _folder(one: _Found) -> str:
    return one.name.rpartition("/")[0] or "."


def _one_attempt(found: list[_Found]) -> tuple[list[_Found], list[tuple[_Found, str]], tuple[str, ...]]:
    """(dumps of the newest attempt, (older one, folder of the newer), folders that nothing puts in order).

    Two folders with dumps of one rank, under one name, are two attempts: of the older folder nothing is used, not even the
    ranks that the newer one lacks, which would be another moment's.
    """
    by_rank: dict[tuple[int, str], list[_Found]] = {}
    for one in found:
        by_rank.setdefault((one.rank, one.family), []).append(one)
    beaten: dict[str, str] = {}
    winners: set[str] = set()
    for each in by_rank.values():
        folders = {_folder(one) for one in each}
        if len(folders) > 1:
            best = max(each, key=lambda one: (one.newest, one.mtime or 0.0, one.name))
            winners.add(_folder(best))
            for folder in folders - {_folder(best)}:
                beaten[folder] = _folder(best)
    if mixed := winners & set(beaten):
        return found, [], tuple(sorted(mixed | winners))
    kept = [one for one in found if _folder(one) not in beaten]
    return kept, [(one, beaten[_folder(one)]) for one in found if _folder(one) in beaten], ()


def newest_time(sample: Sample) -> float | None:
    """When the newest operation of all these records was enqueued (epoch s, the writers' clocks): "now" of a folder."""
    times = [at for row in sample.data.get("ranks", ()) if isinstance(at := row["record"].get("newest_s"), int | float)]
    return float(max(times)) if times else None


def unpacked(name: str, raw: bytes) -> tuple[str, bytes]:
    """A gzip file as what it holds, and its name without .gz. One that is cut off, or unpacks to too much, as far as that."""
    if raw[:2] != GZIP:
        return name, raw
    unpack = zlib.decompressobj(31)
    try:
        plain = unpack.decompress(raw, MOST_UNPACKED + 1)
    except zlib.error:
        return name, raw
    return (name[:-3] if name.endswith(".gz") else name), plain


def _recognise(name: str, raw: bytes, mtime: float | None, cache: dict[str, tuple[int, ...]]) -> _Found | str:
    """A reduced dump, or why this file is none."""
    if not raw:
        return "empty"
    if name.lower().endswith(ARCHIVES):
        return "an archive; unpack it first"
    if raw[:1] != b"\x80" and b'"entries"' not in raw and b'"pg_config"' not in raw and b'"pg_status"' not in raw:
        return "not a flight record"
    *folders, base = name.replace("\\", "/").split("/")
    at_end, in_name = RANK_AT_END.search(base), RANK_IN_NAME.search(base)
    ranks = [int(m.group(1)) for m in (at_end, in_name) if m and len(m.group(1)) <= 7]
    of_folder = RANK_OF_FOLDER.fullmatch(folders[-1]) if folders and not ranks else None
    ranks += [int(of_folder.group(1))] if of_folder else []
    try:
        record = probe.read_dump(raw, ranks[0] if ranks else -1, cache)
    except probe.BadDump as error:
        return str(error)
    if not ranks:
        return "a flight record, but its name does not end in a rank"
    rank = next((r for r in ranks if _holds(record, r)), None)
    if rank is None:
        return f"named for rank {ranks[0]}, but its groups do not hold that rank"
    record["rank"] = rank
    if of_folder:
        return _Found(name, "#/" + re.sub(r"\d+", "*", base), rank, mtime, record)
    match = at_end if at_end and int(at_end.group(1)) == rank else in_name
    assert match is not None
    family = re.sub(r"\d+", "*", base[: match.start(1)]) + "#" + base[match.end(1) :]
    return _Found(name, family, rank, mtime, record)


def _holds(record: Mapping[str, Any], rank: int) -> bool:
    return all(probe.holds(row["ranks"], rank) for row in record["groups"] if row.get("ranks"))


def _families(found: Iterable[_Found]) -> list[str]:
    """Name patterns, the one to prefer first: most ranks, then pickle, then the name."""
    ranks: dict[str, set[int]] = {}
    kind: dict[str, str] = {}
    for one in found:
        ranks.setdefault(one.family, set()).add(one.rank)
        kind[one.family] = str(one.record.get("kind"))
    return sorted(ranks, key=lambda f: (-len(ranks[f]), kind[f] != "pickle", f))


def _hosts(chosen: Mapping[int, _Found]) -> dict[int, str]:
    """rank -> the host in its file's name, or its folder where there is one for each node: equal blocks of ranks."""
    told = {rank: m.group("host") for rank, one in chosen.items() if (m := HOST.search(one.name.rsplit("/", 1)[-1]))}
    told = {rank: host for rank, host in told.items() if not NO_HOST.fullmatch(host)}
    folders: dict[str, list[int]] = {}
    for rank, one in sorted(chosen.items()):
        folders.setdefault(one.name.rpartition("/")[0], []).append(rank)
    names = {folder: folder.rsplit("/", 1)[-1] for folder in folders}
    size = len(next(iter(folders.values()), ()))
    blocks = all(len(r) == size and r[0] % size == 0 and r[-1] - r[0] == size - 1 for r in folders.values())
    if told or len(folders) < 2 or size < 2 or not blocks or len(set(names.values())) < len(names):
        return told
    if any(not name or NO_HOST.fullmatch(name) for name in names.values()):
        return {}
    return {rank: names[folder] for folder, ranks in folders.items() for rank in ranks}


def _row(one: _Found, host: str) -> dict[str, Any]:
    return {
        "rank": one.rank, "pid": None, "state": None, "source": "file", "path": one.name, "mtime": one.mtime, "age_s": None,
        "stale": False, "why": "", "poke": "not_asked", "record": one.record, **({"host": host[:256]} if host else {}),
    }  # fmt: skip
