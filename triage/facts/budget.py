"""How long does the transport retry silently before it gives up? Between which limits (notes/network.md 4.2)?

InfiniBand and RoCE: 4.096 us x 2^NCCL_IB_TIMEOUT a try, NCCL_IB_RETRY_CNT tries; cards wait up to four times as long a
try, and never shorter than their floor. The values are those of the ranks' environments and of NCCL's configuration file
below /etc; what neither sets has the default of the job's own release of NCCL. Over TCP the kernel retries for many
minutes, and the collective's own time-out comes first.
What can fool it: ~/.nccl.conf and adaptive retransmission, which are not read; ranks that export different values (the
longest counts for what outlasts it, the shortest for what it outlasts); values that cannot be; a release that nothing
tells (then the defaults of all releases since 2.14 count).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from triage.facts.evidence import Evidence
from triage.facts.launches import nccl_releases
from triage.facts.ranktable import rank_table
from triage.facts.registry import fact, known, unknown
from triage.model import Fact

LONGEST_EXPONENT = 31  # a field of five bits
MOST_RETRIES = 7  # a field of three bits: 15 cannot act as 15
NUMBER = re.compile(r"([+-]?)(0[xX][0-9a-fA-F]{1,16}|0[0-7]{0,20}|[1-9][0-9]{0,18})")
# NCCL_IB_TIMEOUT where nobody sets it, from which release on: read in the source of every tag (NVIDIA/nccl
# src/transport/net_ib.cc, later net_ib/connect.cc): 2.3.5 to 2.13.4, 2.14.3 to 2.22.3, 2.23.4 to 2.30.
DEFAULTS = (((2, 23), 20), ((2, 14), 18), ((0,), 14))


@dataclass(frozen=True)
class Budget:
    """Seconds: an outage under `least` is surely survived, one over `worst` surely not. Infinite: it retries for ever.

    sure   a rank's environment was seen; else this is NCCL's default, and the job may have set something else
    """

    least: float
    worst: float
    text: str
    sure: bool = True
    a_try: float = (
        math.inf
    )  # the longest that one try may take: so long after the link is back it must have been resent


def budget(ev: Evidence) -> Budget:
    """The range over all ranks whose environment was seen; to be called through `ev.derive`."""
    told: dict[tuple[str, str], None] = {}
    for row in ev.derive(rank_table).rows.values():
        if row.env:
            told[(row.env.get("NCCL_IB_TIMEOUT", "").strip(), row.env.get("NCCL_IB_RETRY_CNT", "").strip())] = None
    ranges = [_range(ev, timeout, retries) for timeout, retries in told] or [_range(ev, "", "")]
    least, worst = min(one[0] for one in ranges), max(one[1] for one in ranges)
    values = sorted({timeout for timeout, _ in told if _exponent(timeout) is not None})
    default = _default_words(ev)
    source = f"NCCL_IB_TIMEOUT={'/'.join(values[:4])}" if values else default
    if values and any(_exponent(timeout) is None for timeout, _ in told):
        source += f" or {default}"
    if not told:
        source += ", for no rank's environment was seen"
    return Budget(least, worst, f"{source}: {_span(least, worst)}", bool(told), max(one[2] for one in ranges))


def default_exponents(releases: list[tuple[int, ...]]) -> list[int]:
    """NCCL_IB_TIMEOUT of these releases where nobody sets it; [] where no release is told."""
    return sorted({next(value for since, value in DEFAULTS if release >= since) for release in releases})


def _default_words(ev: Evidence) -> str:
    releases = nccl_releases(ev)
    if not releases:
        return "NCCL's default"
    names = [".".join(map(str, release)) for release in releases[:2]]
    values = "/".join(map(str, default_exponents(releases)))
    return f"the default of NCCL {' and '.join(names)} ({values})"


def _range(ev: Evidence, timeout: str, retries: str) -> tuple[float, float, float]:
    """(least, worst, one try at the longest) of one rank's values."""
    exponent, count = _exponent(timeout), whole_of(retries)
    tries = max(1, min(count, MOST_RETRIES)) if count is not None and count >= 0 else MOST_RETRIES
    if exponent is not None:
        return _of_exponent(ev, exponent, tries)
    found = [_of_exponent(ev, value, tries) for value in default_exponents(nccl_releases(ev))]
    if found:
        return min(one[0] for one in found), max(one[1] for one in found), max(one[2] for one in found)
    share = tries / MOST_RETRIES
    worst = ev.limit("link_budget_s") * ev.limit("link_worst_factor") * share
    return ev.limit("link_least_budget_s") * share, worst, worst / tries


def _of_exponent(ev: Evidence, exponent: int, tries: int) -> tuple[float, float, float]:
    if exponent == 0:
        return math.inf, math.inf, math.inf
    a_try = 4.096e-6 * 2**exponent
    longest = max(a_try * ev.limit("link_worst_factor"), ev.limit("link_try_floor_s"))
    return a_try * tries, longest * tries, longest


def whole_of(text: str) -> int | None:
    """A number as NCCL reads it; None where there is no text. It takes what stands in front (0x0e, 016 and "14s" are 14),
    and 0 where nothing does (strtoll with base 0: NVIDIA/nccl src/misc/param.cc)."""
    if not text:
        return None
    found = NUMBER.match(text)
    if found is None:
        return 0
    sign, digits = found.groups()
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") else 10
    return int(digits, base) * (-1 if sign == "-" else 1)


def _exponent(text: str) -> int | None:
    """NCCL_IB_TIMEOUT, or None where it is unset or no card can be told so."""
    value = whole_of(text)
    return value if value is not None and 0 <= value <= LONGEST_EXPONENT else None


def _span(least: float, worst: float) -> str:
    if math.isinf(least):
        return "for ever"
    return f"{least:.3g}s to {'for ever' if math.isinf(worst) else f'{worst:.3g}s'}"


@fact("links.budget_s", type="number", unit="s")
def budget_s(ev: Evidence) -> Fact:
    """How long the transport retries silently before it gives up on a port, at the longest; unknown where for ever."""
    found = ev.derive(budget)
    if math.isinf(found.worst):
        return unknown("NCCL_IB_TIMEOUT=0: the transport retries for ever, and resumes whenever the link is back")
    return known(found.worst, text=found.text)
