"""Where do ranks live whose process nobody shows? By what their siblings say, by elimination, by the scheduler's order.

In the order of DESIGN section 2 ("A rank's node is known"): what a launcher or an earlier look showed goes before all of
this and is never moved. Nothing is placed where the nodes contradict it, and a claim from elsewhere than a rank's place
makes that rank unknown: a node can damn its own ranks, not another's.
What can fool it: nodes with unequal numbers of ranks (the product GROUP_RANK x LOCAL_WORLD_SIZE then places only nodes
that show it themselves), a launcher that numbers the nodes in an order of its own (the order must hold for every node that
tells its place), a node of the job that hosts no rank (then nothing is eliminated or ordered).
Pure; linear in ranks and nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

BY_SIBLINGS = "placed by its siblings' GROUP_RANK"
BY_ELIMINATION = "placed by elimination: only this node hosts none"
BY_ORDER = "placed by the scheduler's order of the nodes, which every node that tells its GROUP_RANK keeps to"

Home = tuple[str, str]  # (node, how we know)


@dataclass(frozen=True)
class Word:
    """What one node's rank processes say of their own place.

    group, size   GROUP_RANK and LOCAL_WORLD_SIZE, None where they are not told, or not alike on all of its ranks
    ranks         the global ranks that it shows
    torn          its ranks contradict each other on group or size
    """

    group: int | None
    size: int | None
    ranks: frozenset[int]
    torn: bool = False

    def fits(self, group: int, size: int) -> bool:
        """Do all ranks that it shows lie in the block of this group?"""
        return all(group * size <= rank < (group + 1) * size for rank in self.ranks)


@dataclass
class Placed:
    """rank -> home for ranks that nobody shows; rank -> why a claim on it is not believed."""

    homes: dict[int, Home] = field(default_factory=dict)
    doubted: dict[int, str] = field(default_factory=dict)


def by_siblings(words: Mapping[str, Word], world: int | None, shown: Mapping[int, str]) -> Placed:
    """A node places its ranks only where it places all that it shows, and has as many as most nodes.

    shown   rank -> node of the claims that are believed so far
    """
    out = Placed()
    sized = [word.size for word in words.values() if word.group is not None and word.size is not None]
    usual = Counter(sized).most_common(1)[0][0] if sized else 0
    by_group: dict[int, list[str]] = {}
    for node, word in words.items():
        if word.group is not None and word.size == usual and word.fits(word.group, usual):
            by_group.setdefault(word.group, []).append(node)
    for group, nodes in by_group.items():
        for rank in range(group * usual, (group + 1) * usual):
            if world is not None and rank >= world:
                break
            if len(nodes) > 1:
                if any(rank in words[node].ranks for node in nodes):
                    out.doubted[rank] = f"{' and '.join(sorted(nodes)[:3])} both say that they are group {group}"
                continue
            here = shown.get(rank)
            if here is None:
                out.homes[rank] = (nodes[0], BY_SIBLINGS)
            elif here != nodes[0]:
                out.doubted[rank] = f"{here} claims to host rank {rank}, whose siblings place it on {nodes[0]}"
    return out


def by_elimination(nodes: Sequence[str], world: int, where: Mapping[int, str]) -> dict[int, Home]:
    """Every other rank is placed, all other nodes host equally many, and exactly one hosts none: the rest is there."""
    missing = [rank for rank in range(world) if rank not in where]
    counts = Counter(where.values())
    empty = [node for node in nodes if node not in counts]
    if missing and len(empty) == 1 and set(counts.values()) == {len(missing)}:
        return dict.fromkeys(missing, (empty[0], BY_ELIMINATION))
    return {}


def by_order(
    nodes: Sequence[str],
    words: Mapping[str, Word],
    told: Collection[str],
    world: int,
    where: Mapping[int, str],
) -> Placed:
    """Ranks of nodes that told nothing, where the others stand as the scheduler lists them.

    told    nodes that told their processes at all: what they do not show is not placed on them by an order
    where   rank -> node, of all that is shown or placed so far
    """
    quiet = {name: place for place, name in enumerate(nodes) if name not in told}
    if not quiet or world % len(nodes):
        return Placed()
    size = world // len(nodes)
    place = {name: index for index, name in enumerate(nodes)}
    strays = {name for name, word in words.items() if not word.fits(place.get(name, -1), size)}
    others = {name: word for name, word in words.items() if name not in strays}
    if not _in_order(others, place, size, all_told=set(told) <= set(others)):
        return Placed()
    if strays:
        # A node at another place than the scheduler's may be an honest order of the launcher's own: nothing is placed. One
        # that says that it stands at its place and shows a silent node's ranks as well is not believed on those.
        honest = any(not words[name].torn and words[name].group != place.get(name) for name in strays)
        if honest or 2 * len(strays) >= len(words):
            return Placed()
        owner = {rank: name for name, group in quiet.items() for rank in _block(group, size)}
        claimed = ((rank, name) for name in sorted(strays) for rank in words[name].ranks if rank in owner)
        return Placed(
            doubted={
                rank: f"{name} claims to host rank {rank}, which the scheduler's order places on {owner[rank]}"
                for rank, name in claimed
            }
        )
    homes = {rank: (name, BY_ORDER) for name, group in quiet.items() for rank in _block(group, size)}
    if any(where.get(rank, name) != name for rank, (name, _) in homes.items()):
        return Placed()
    return Placed(homes={rank: home for rank, home in homes.items() if rank not in where})


def _block(group: int, size: int) -> range:
    return range(group * size, (group + 1) * size)


def _in_order(words: Mapping[str, Word], place: Mapping[str, int], size: int, *, all_told: bool) -> bool:
    """Does every node that tells its group stand at that place of the scheduler's list, and do enough of them tell it?"""
    if any(word.torn or word.size not in (None, size) for word in words.values()):
        return False
    telling = [name for name, word in words.items() if word.group is not None]
    if any(words[name].group != place[name] for name in telling):
        return False
    # One alone may stand at its place by chance; unless it is all that there is besides the silent.
    return len(telling) >= 2 or (bool(telling) and all_told and len(telling) == len(words))
