"""Which entries leave a shelf for a newcomer: a pure decision that every shelf shares.

Entries form chains: each is worth reading only with all that it continues. An entry whose chain is broken is therefore
the first to go and never stands in a whole one's way; of whole ones, the least recently used that none continues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from holdover.store.spill import EntryName

Place = tuple[str, int, bytes]


@dataclass(frozen=True)
class Resident:
    """One entry of a shelf, as eviction sees it.

    Attributes:
        name: its name.
        nbytes: what it takes of the budget.
        used: when it was last used; greater is later.
        identity: chains do not cross identities.
    """

    name: EntryName
    nbytes: int
    used: int
    identity: str = ""

    @property
    def place(self) -> Place:
        """Where it stands; entries of the same tokens stand at the same place."""
        return self.identity, self.name.depth, self.name.key

    @property
    def base(self) -> Place:
        """Where the entry that it continues stands."""
        return self.identity, self.name.parent_depth, self.name.parent_key


@dataclass(frozen=True)
class Admission:
    """What is to happen to a newcomer.

    Attributes:
        write: whether it is to be written.
        kept: whether the shelf will have it, or one at least as good.
        victims: what leaves for it once it is written; the worse entry at its place is among them.
    """

    write: bool
    kept: bool
    victims: tuple[Resident, ...] = ()


def admit(residents: Collection[Resident], newcomer: Resident, budget: int) -> Admission:
    """Decide about a newcomer. No two residents stand at one place. O(n log n) in the residents."""
    present = next((one for one in residents if one.place == newcomer.place), None)
    after = [*(one for one in residents if one is not present), newcomer]
    if present and not _is_better(newcomer, present, residents, after):
        return Admission(write=False, kept=True)
    victims = over_budget(after, budget, spare=newcomer)
    if victims is None:
        return Admission(write=False, kept=False)
    replaced = (present,) if present else ()
    return Admission(write=True, kept=True, victims=(*replaced, *victims))


def over_budget(
    residents: Collection[Resident], budget: int, spare: Resident | None = None
) -> tuple[Resident, ...] | None:
    """What has to leave so that the rest fits, in order; None if that is not enough.

    Args:
        residents: all entries.
        budget: bytes that may stay.
        spare: an entry that stays, with all that it continues.
    """
    excess = sum(one.nbytes for one in residents) - budget
    victims: list[Resident] = []
    order = _order(residents, spare)
    while excess > 0:
        victim = next(order, None)
        if victim is None:
            return None
        victims.append(victim)
        excess -= victim.nbytes
    return tuple(victims)


def best(residents: Collection[Resident]) -> list[Resident]:
    """The best entry of every place."""
    sound = _sound(residents)
    # the last of a place wins
    ranked = sorted(residents, key=lambda one: (_reaches(one, sound), -one.name.losses, one.used))
    return list({one.place: one for one in ranked}.values())


def _is_better(
    newcomer: Resident, present: Resident, before: Collection[Resident], after: Collection[Resident]
) -> bool:
    if newcomer.name.losses < present.name.losses:
        return True
    return present.place not in _sound(before) and newcomer.place in _sound(after)


def _sound(residents: Collection[Resident]) -> set[Place]:
    """Places whose chain reaches depth 0."""
    sound: set[Place] = set()
    # what an entry continues is less deep
    for one in sorted(residents, key=lambda one: one.name.depth):
        if _reaches(one, sound):
            sound.add(one.place)
    return sound


def _reaches(one: Resident, sound: set[Place]) -> bool:
    return one.name.parent_depth == 0 or one.base in sound


def _order(residents: Collection[Resident], spare: Resident | None) -> Iterator[Resident]:
    """What may leave, in order."""
    places = {one.place: one for one in residents}
    sound, spared = _sound(residents), _chain(places, spare)
    kept = sound | spared
    broken = (one for one in residents if one.place not in kept)
    yield from sorted(broken, key=lambda one: (one.used, one.place))
    # nothing whole makes room for what cannot be read
    if spare is None or spare.place in sound:
        yield from _leaves_first({place: places[place] for place in sound}, spared)


def _chain(places: Mapping[Place, Resident], last: Resident | None) -> set[Place]:
    chain = set()
    while last is not None:
        chain.add(last.place)
        last = places.get(last.base)
    return chain


def _leaves_first(places: Mapping[Place, Resident], spared: set[Place]) -> Iterator[Resident]:
    continued = Counter(one.base for one in places.values())
    leaves = [(one.used, place) for place, one in places.items() if not continued[place] and place not in spared]
    heapify(leaves)
    while leaves:
        leaf = places[heappop(leaves)[1]]
        yield leaf
        continued[leaf.base] -= 1
        base = places.get(leaf.base)
        if base is not None and not continued[leaf.base] and leaf.base not in spared:
            heappush(leaves, (base.used, leaf.base))
