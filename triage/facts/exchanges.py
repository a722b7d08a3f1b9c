"""Sends and receives: where a partner stands with the operation that matches mine.

Both sides count the operations of one ordered pair (probes/_records.py: ordinals), and must say the same number of bytes. Pure.
Fooled by   a ring that has lost the count, dumps of open entries only: then nothing is said of the order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from triage.facts.collectives import GroupKey, Head, Ordinal, RankView
from triage.facts.signatures import canonical

# A send may be over while its bytes still lie in transport buffers: 4 MiB a channel (NCCL_BUFFSIZE), a few channels a peer.
# Below this an open receive whose send is done says nothing about the receiver (findings 3.3, rule 3).
IN_FLIGHT_BYTES = 32 << 20
Sides = tuple[tuple[str, tuple[int, ...]], ...]  # (signature, ranks)
_WIDTH = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2}


def size_of(head: Head) -> int:
    """Bytes of the first part of an exchange; 0 where its sizes are not told."""
    _, sizes, _, dtype, _ = [*head.sig.split("+")[0].split("|"), "", "", "", ""][:5]
    try:
        return int(canonical(f"all_reduce|{sizes}|||")[0][1] or 0) * _WIDTH.get(dtype, 1)
    except ValueError:
        return 0


def partner_stands(
    view: RankView, key: GroupKey, theirs: tuple[str, int, int], mine: Ordinal | None, two: bool
) -> Literal["late", "behind", "perhaps late", "joined", "over"]:
    """Where the partner stands with the operation that matches mine.

    theirs  its ("s" | "r", from, to); mine the ordinal of my part; two: has the group two members only?
    """
    side, src, dst = theirs
    told = view.pair(key, side, src, dst)
    in_head = view.head is not None and any(p[:3] == (side, src, dst) for p in view.head.parts)
    if told is None:
        return "late" if view.history else "perhaps late"
    enqueued, done, first_open = told
    if first_open is not None:
        order = _compare(mine, first_open, two)
        if order is not None and order < 0:
            return "over"
        if order is not None and order > 0:
            return "behind"  # it is still at an earlier one of the same pair, which I have finished
        return "joined" if in_head else "behind"
    order = _compare(mine, enqueued, two)
    if order is None:
        return "perhaps late"  # finished or never begun: without history, nobody can tell
    if order > 0:
        return "late"
    order = _compare(mine, done, two)
    return "over" if order is not None and order <= 0 else "perhaps late"


def unequal(
    mine: RankView, theirs: RankView, key: GroupKey, part: tuple[str, int, int], ordinal: Ordinal | None, two: bool
) -> Sides | None:
    """Both sides with their bytes, mine first, where both are told of one exchange and differ; else None.

    NCCL moves what the receiver asked for: of two sizes the smaller side is through, and the other one never. Nothing is
    stuck on anybody's device then, and nothing says which of the two is wrong.
    part   my ("s" | "r", from, to), whose operation is open on me
    """
    side, src, dst = part
    other = "r" if side == "s" else "s"
    own, told = mine.pair(key, side, src, dst), theirs.pair(key, other, src, dst)
    if own is None or told is None or _compare(ordinal, own[2], two) != 0:
        return None
    have = _moved(mine, key, side, src, dst)[1]
    done, opened = _moved(theirs, key, other, src, dst)
    for at, size in ((told[1], done), (told[2], opened)):
        if _compare(ordinal, at, two) == 0 and have is not None and size is not None and have != size:
            words = {"s": "send", "r": "recv"}
            return (f"{words[side]}|{have}||bytes|", (mine.rank,)), (f"{words[other]}|{size}||bytes|", (theirs.rank,))
    return None


def _moved(view: RankView, key: GroupKey, side: str, src: int, dst: int) -> tuple[int | None, int | None]:
    """(bytes of the newest finished, bytes of the first open) of the sends or receives from src to dst."""
    for at, row in enumerate(view.record.get("pairs", ())):
        if row[1:4] == [side, src, dst] and view.keys[row[0]] == key:
            done, opened = view.record.get("moved") or ("", "")
            return _nth(str(done), at), _nth(str(opened), at)
    return None, None


def _nth(text: str, index: int) -> int | None:
    """The value at a place of "4096*3,-"; None where it tells none."""
    for run in text.split(","):
        word, _, count = run.partition("*")
        index -= int(count) if count.isdecimal() and len(count) < 6 else 1
        if index < 0:
            return int(word) if word.isdecimal() and len(word) < 19 else None
    return None


def _compare(a: Ordinal | None, b: Iterable[int | None] | None, two: bool) -> int | None:
    """-1, 0, 1 for a before, at, after b in the sequence of one pair; None where the ring has lost the count.

    In a group of two the p2p number counts the pair itself; in a larger one it counts all of a rank's exchanges and says
    nothing (notes/flight-recorder.md 1.2): there both sides count from the last collective that they share.
    """
    if a is None or b is None:
        return None
    epoch, index, number = b
    if two and a[2] is not None and number is not None:
        return (a[2] > number) - (a[2] < number)
    if epoch is None or (a[0] == epoch and (a[1] is None or index is None)):
        return None
    x, y = (a[0], a[1] or 0), (epoch, index or 0)
    return (x > y) - (x < y)
