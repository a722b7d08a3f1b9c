"""What must agree when ranks meet in one collective, and what may differ.

A signature is the text of one unit as `probes/_records.py` reduces it: `op|input shapes|output shapes|input type|output
type`, the parts of a coalesced unit joined by "+". The cases are those of PyTorch's own analyzer (notes/flight-recorder.md 3.3).
"""

from __future__ import annotations

from functools import lru_cache

# What of an entry must agree between ranks. Only what a rank really has to pass alike is compared: the root of a gather
# alone names outputs, `_broadcast_oop` has an input of its own on each rank (notes/flight-recorder.md 3.3).
_BOTH = ("all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "broadcast")
_INPUT_ONLY = ("reduce", "reduce_oop", "gather")
_OUTPUT_ONLY = ("scatter", "broadcast_oop")
_SYMMETRIC = ("all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "barrier")


def _plain(op: str) -> str:
    return op.lower().lstrip("_")


def _numel(shapes: str) -> int:
    """Elements of "8x4,2" (34), "()" (1), "#300:123456:crc" (123456), "" (0)."""
    if shapes.startswith("#"):
        return int(shapes.split(":")[1])
    total = 0
    for shape in shapes.split(",") if shapes else ():
        n = 1
        for dim in shape.split("x") if shape != "()" else ():
            n *= int(dim)
        total += n
    return total


@lru_cache(maxsize=65536)
def canonical(sig: str) -> tuple[tuple[str, ...], ...]:
    """What must be equal on all members of a unit: per part (op, elements, elements, dtype, dtype), "" where exempt."""
    parts = []
    for part in sig.split("+"):
        op, sin, sout, din, dout = [*part.split("|"), "", "", "", ""][:5]
        name = _plain(op)
        din, dout = _moved(din), _moved(dout)
        if name in _INPUT_ONLY:
            parts.append((name, _count(sin), "", din, ""))
        elif name in _OUTPUT_ONLY:
            parts.append((name, "", _count(sout), "", dout))
        elif name.endswith("_v"):  # all_gather_v, reduce_scatter_v: each rank brings its own size
            parts.append((name, "", "", din, dout))
        elif name.startswith(_BOTH) and not name.startswith("reduce_oop"):
            parts.append((name, _count(sin), _count(sout), din, dout))
        else:  # barrier, all_to_all, coalesced, names that we do not know: only the op
            parts.append((name, "", "", "", ""))
    # Parts of a coalesced unit are compared as a multiset (notes/flight-recorder.md 6, step 9).
    return tuple(sorted(parts))


def _moved(dtype: str) -> str:
    """As what NCCL moves it: a Bool is a Byte to it (ncclUint8, NCCLUtils.hpp of PyTorch 2.13)."""
    return dtype.replace("Bool", "Byte")


def _count(shapes: str) -> str:
    try:
        return str(_numel(shapes))
    except (ValueError, IndexError):
        return shapes


def difference(a: str, b: str, members: int = 0) -> str:
    """What two signatures of one unit differ in: "" nothing, "op", "size", "dtype" (in that order of weight).

    "size" also where both are alike and cannot be right in a group of so many `members` (malformed).
    """
    x, y = canonical(a), canonical(b)
    if x == y:
        return "size" if malformed(a, members) or malformed(b, members) else ""
    if [p[0] for p in x] != [p[0] for p in y]:
        return "op"
    return "size" if [p[1:3] for p in x] != [p[1:3] for p in y] else "dtype"


def malformed(sig: str, members: int = 0) -> bool:
    """Do the sizes of one rank's own call contradict the operation?

    all_reduce returns what it takes; all_gather `members` times as much (reduce_scatter the reverse). PyTorch refuses such a
    call, so it is no rank's fault against its peers, and the wait graph does not use it; its analyzer calls it a mismatch.
    """
    for part in sig.split("+"):
        op, sin, sout, _, _ = [*part.split("|"), "", "", "", ""][:5]
        name = _plain(op)
        try:
            takes, gives = _numel(sin), _numel(sout)
        except (ValueError, IndexError):
            continue
        if name in ("all_reduce", "allreduce_coalesced") and sin and sout and takes != gives:
            return True
        if members and name in ("all_gather", "all_gather_base", "all_gather_into_tensor_coalesced"):
            return gives != takes * members
        if members and name in ("reduce_scatter", "reduce_scatter_base", "reduce_scatter_tensor_coalesced"):
            return takes != gives * members
    return False


def symmetric(sig: str) -> bool:
    """Can nobody finish this unless all have joined? Not so with a root, which may finish alone."""
    return all(_plain(part.split("|")[0]).startswith(_SYMMETRIC) for part in sig.split("+"))


def exchange(sig: str) -> bool:
    """all_to_all: each finishes when it has all its parts, so one that has not may lack those of any peer."""
    return all("all_to_all" in part.split("|")[0] or "alltoall" in part.split("|")[0] for part in sig.split("+"))


def readable(sig: str) -> str:
    """`all_reduce 8x4 Float`: a signature for a sentence."""
    words = []
    for part in sig.split("+")[:3]:
        op, sin, sout, din, _ = [*part.split("|"), "", "", "", ""][:5]
        size = sin if sin == sout or not sout else f"{sin or '-'} to {sout}"
        words.append(" ".join(w for w in (op, size, din) if w))
    return " + ".join(words)
