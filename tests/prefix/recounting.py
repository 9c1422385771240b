"""Orders of eviction whose every answer is compared with the plain one, which counts the whole tree again for it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping

from holdover.prefix.eviction import BranchCoverage, CostAware, Eviction
from holdover.prefix.eviction.ranked import Ranked
from holdover.prefix.integrity import Standing, standings
from holdover.prefix.tree import Root
from holdover.store import LRU, Checkpoint


class Recounting(Ranked):
    """Comes before an order among the bases of a class.

    Attributes:
        roots: the trees of all namespaces.
    """

    roots: Mapping[bytes, Root]

    def oldest(self, may_go: Callable[[Checkpoint], bool]) -> Checkpoint | None:
        found = super().oldest(may_go)
        assert found is self._first(may_go)
        return found

    def _first(self, may_go: Callable[[Checkpoint], bool]) -> Checkpoint | None:
        placed = [pair for root in self.roots.values() for pair in standings(root).items()]
        standing = {id(node.checkpoint): where for node, where in placed if node.checkpoint is not None}
        worth = {id(c): self.recounted(standing[id(c)], len(self) - place) for place, c in enumerate(self)}
        # the first of equals
        return min(filter(may_go, self), key=lambda c: worth[id(c)], default=None)

    @abstractmethod
    def recounted(self, standing: Standing, age: int) -> float:
        """What a checkpoint is worth, by definition."""


class RecountingCost(Recounting, CostAware):
    """`CostAware`, compared."""

    def recounted(self, standing: Standing, age: int) -> float:
        return standing.saved * standing.branches / age


class RecountingCoverage(Recounting, BranchCoverage):
    """`BranchCoverage`, compared."""

    def recounted(self, standing: Standing, age: int) -> float:
        return standing.branches


ORDERS: Mapping[Eviction, type[LRU[Checkpoint]]] = {"lru": LRU, "cost": RecountingCost, "coverage": RecountingCoverage}
