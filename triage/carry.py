"""The operator's own py-spy on its way to a node: read here, checked, sent in pieces; it never touches a disk there.

    program = read("~/bin/py-spy")            a static ELF binary, for one machine; UsageError where it is none
    program.machine                           "x86_64", as `uname -m` of a node says it
    program.lines()                           what goes over the wire before the request (see probes/_probe.py)

Only a node of the same machine gets it, only with the probe `stacks`, and only where ranks are suspected: it is the one
program that triage ever sends (DESIGN section 10), on request, and it is run from memory or not at all.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from triage import ownfiles
from triage.errors import UsageError
from triage.model import Sample

MOST_BYTES = 32 << 20
PIECE = 384 << 10  # bytes before base64; a request line may have 1 MiB
NAME = "py-spy"
MACHINES = {62: "x86_64", 183: "aarch64", 21: "ppc64le", 243: "riscv64"}  # e_machine, little-endian 64 bit
INTERPRETER = 3  # the program header that names a loader


@dataclass(frozen=True)
class Program:
    """A checked binary: where it came from, the machine that it is for, and its bytes, deflated."""

    path: str
    machine: str
    deflated: bytes

    def fits(self, nodes: Iterable[str], reach: Mapping[str, Sample]) -> tuple[list[str], list[str]]:
        """(those of the nodes that are of its machine, the machines of the others), by their `reach` answers."""
        machines = {n: str(reach[n].data.get("machine") or "unknown") if n in reach else "unknown" for n in nodes}
        return sorted(n for n, m in machines.items() if m == self.machine), sorted(
            set(machines.values()) - {self.machine}
        )

    def lines(self) -> Iterator[bytes]:
        pieces = [self.deflated[i : i + PIECE] for i in range(0, len(self.deflated), PIECE)]
        for number, piece in enumerate(pieces):
            line = {
                "carry": NAME, "machine": self.machine, "first": number == 0, "last": number == len(pieces) - 1,
                "data": base64.b64encode(piece).decode("ascii"),
            }  # fmt: skip
            yield json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"


def read(path: str) -> Program:
    """The binary to carry. Raises UsageError with what is wrong with it."""
    name = os.path.expanduser(path)
    try:
        raw = ownfiles.read(name, MOST_BYTES + 1)
    except ownfiles.TooSlow as error:
        raise UsageError(f"--carry-py-spy: {error}: shared storage may be stuck") from error
    except OSError as error:
        raise UsageError(f"--carry-py-spy {path}: {error.strerror or error}") from error
    if len(raw) > MOST_BYTES:
        raise UsageError(f"--carry-py-spy {path}: larger than {MOST_BYTES >> 20} MiB; that is no py-spy")
    try:
        machine = machine_of(raw)
    except ValueError as error:
        raise UsageError(
            f"--carry-py-spy {path}: {error}; give the binary itself (pip download py-spy, unzip the wheel)"
        ) from None
    return Program(name, machine, zlib.compress(raw, 6))


def machine_of(raw: bytes) -> str:
    """`uname -m` of the machine that an ELF binary is for. ValueError for what is none, or needs a loader of the node."""
    if raw[:4] != b"\x7fELF":
        raise ValueError("is no ELF binary")
    if len(raw) < 64 or raw[4:6] != b"\x02\x01":
        raise ValueError("is no 64-bit little-endian ELF binary")
    machine = MACHINES.get(struct.unpack_from("<H", raw, 18)[0])
    if machine is None or struct.unpack_from("<H", raw, 16)[0] not in (2, 3):
        raise ValueError("is no program for a machine that nodes are known to be")
    offset = struct.unpack_from("<Q", raw, 32)[0]
    size, count = struct.unpack_from("<HH", raw, 54)
    for number in range(min(count, 64)):
        at = offset + number * size
        if at + 4 > len(raw):
            raise ValueError("is cut off")
        if struct.unpack_from("<I", raw, at)[0] == INTERPRETER:
            raise ValueError("needs a loader and libraries, which a node may not have: it is not static")
    return machine
