"""Members of a process group as runs of ranks: 8,192 ranks are one range, and "0+8192" is their text.

The text is what `probes/_signed.py` folds: "0+4*8,40" is 0, 8, 16, 24 and 40. It comes from nodes, so it is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

MOST_RANKS = 1_000_000  # of one group: a node may not make us loop over more


class Members:
    """Sorted global ranks, kept as runs: 8,192 ranks are one range."""

    __slots__ = ("_runs", "text", "top")

    def __init__(self, text: str) -> None:
        self.text = text
        runs = []
        for part in text.split(",") if text else []:
            start, _, rest = part.partition("+")
            count, _, stride = rest.partition("*")
            n, step = int(count or 1), int(stride or 1)
            if not (0 <= int(start) < 10 * MOST_RANKS and 0 < n <= MOST_RANKS and 0 < step <= MOST_RANKS):
                raise ValueError(f"no members: {text[:40]}")
            runs.append(range(int(start), int(start) + n * step, step))
        if sum(map(len, runs)) > MOST_RANKS:
            raise ValueError("more members than any job has")
        self._runs = tuple(runs)
        self.top = max((run[-1] for run in runs), default=-1)  # the highest of them, -1 for none

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def __iter__(self) -> Iterator[int]:
        for run in self._runs:
            yield from run

    def __contains__(self, rank: int) -> bool:
        return any(rank in run for run in self._runs)


@lru_cache(maxsize=4096)
def members(text: str) -> Members:
    return Members(text)


def folded(ranks: Iterable[int]) -> str:
    """The text of `members()` for these ranks: "0-3, 7" as people write it is `spoken()`."""
    return ",".join(f"{a}+{b - a + 1}" if b > a else str(a) for a, b in _spans(ranks))


def spoken(ranks: Iterable[int], limit: int = 12) -> str:
    """Ranks for a sentence: "0-3, 7, 9"; long lists end with a count."""
    have = sorted(set(ranks))
    parts = [str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in _spans(have)]
    return ", ".join(parts) if len(parts) <= limit else f"{', '.join(parts[:limit])} … ({len(have)} in all)"


def _spans(ranks: Iterable[int]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], rank)
        else:
            spans.append((rank, rank))
    return spans
