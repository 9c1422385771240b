"""The prefix cache's executable definition: plain sets and lists, no tree, no pools, no locks.

`PrefixCache` must agree with it exactly, eviction order included, as long as no KV rows have to be evicted. It holds
no bytes: a state or a row is named by its namespace and the tokens that it has seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from holdover.errors import CapacityError, RequestError
from holdover.prefix.eviction import Eviction


class Prefix(NamedTuple):
    """Tokens of one namespace; names the state after them, and the KV row of the last one."""

    namespace: bytes
    tokens: tuple[int, ...]

    def starts(self, other: Prefix) -> bool:
        """Whether ``other`` begins with this prefix."""
        return self.namespace == other.namespace and self.tokens == other.tokens[: len(self.tokens)]


class NaiveHold:
    """A running sequence's claim on the rows of its published tokens."""

    def __init__(self, prefix: Prefix) -> None:
        self.prefix = prefix


class NaivePrefixCache:
    """Prefix cache over sets and lists; costs O(everything) a call.

    Args:
        num_slots: state slots, shared by running sequences and checkpoints.
        eviction: which checkpoint leaves first.

    Attributes:
        states: checkpoints present, least recently used first.
        rows: KV rows present, one for each token that ends one of these prefixes.
        holds: claims not released.
        leased: slots that running sequences own.
        pins: prefixes whose state and rows stay.
        hits: how often each state was resumed.
    """

    def __init__(self, num_slots: int, eviction: Eviction = "lru") -> None:
        self.num_slots = num_slots
        self.eviction = eviction
        self.states: list[Prefix] = []
        self.rows: set[Prefix] = set()
        self.holds: list[NaiveHold] = []
        self.leased = 0
        self.pins: list[Prefix] = []
        self.hits: Counter[Prefix] = Counter()

    @property
    def num_free(self) -> int:
        """Slots that nobody owns."""
        return self.num_slots - self.leased - len(self.states)

    @property
    def evictable_rows(self) -> int:
        """Rows that no hold and no pin claims."""
        return sum(not self._is_claimed(row) for row in self.rows)

    def match(self, namespace: bytes, tokens: Sequence[int]) -> tuple[int, int]:
        """Depth of the deepest state that leaves a token to run, and of the deepest row."""
        whole = Prefix(namespace, tuple(tokens))
        state_depths = [len(s.tokens) for s in self.states if s.starts(whole) and s.tokens != whole.tokens]
        row_depths = [len(r.tokens) for r in self.rows if r.starts(whole)]
        return max(state_depths, default=0), max(row_depths, default=0)

    def open(self, namespace: bytes, tokens: Sequence[int], *, reuse: bool = True) -> NaiveHold:
        """Resume at the deepest state, which becomes the newest. The last slot's own state is taken over.

        Raises:
            CapacityError: every slot is a running sequence's; nothing changed.
        """
        depth = self.match(namespace, tokens)[0] if reuse else 0
        resumed = Prefix(namespace, tuple(tokens[:depth]))
        others = [state for state in self.states if state != resumed and state not in self.pins]
        if self.num_free:
            pass
        elif others:
            self._evict_one_of(others)
        elif resumed in self.states and resumed not in self.pins:
            self._keep_only([state for state in self.states if state != resumed])
        else:
            raise CapacityError("every slot is a running sequence's or pinned")
        if resumed in self.states:
            self._touch(resumed)
            self.hits[resumed] += 1
        self.leased += 1
        hold = NaiveHold(resumed)
        self.holds.append(hold)
        return hold

    def acquire_slot(self) -> None:
        """Lease a slot, at the cost of a state if none is free.

        Raises:
            CapacityError: every slot is a running sequence's.
        """
        if not self.num_free:
            others = [state for state in self.states if state not in self.pins]
            if not others:
                raise CapacityError("every slot is a running sequence's or pinned")
            self._evict_one_of(others)
        self.leased += 1

    def release_slot(self) -> None:
        """Give a leased slot back."""
        self.leased -= 1

    def publish(self, hold: NaiveHold, tokens: Sequence[int], *, with_state: bool) -> None:
        """Make the rows of ``tokens`` present, and their state, whose slot was leased until now, the newest."""
        namespace = hold.prefix.namespace
        hold.prefix = Prefix(namespace, tuple(tokens))
        self.rows |= {Prefix(namespace, tuple(tokens[: i + 1])) for i in range(len(tokens))}
        if with_state:
            self.release_slot()
            self._touch(hold.prefix)

    def release(self, hold: NaiveHold) -> None:
        """Give a claim back. What it claimed stays present."""
        self.holds.remove(hold)

    def pin(self, namespace: bytes, tokens: Sequence[int]) -> bool:
        """Let a state and its rows stay, if it is present and half of the slots are not pinned then; whether they do.

        Raises:
            RequestError: too many are pinned.
        """
        prefix = Prefix(namespace, tuple(tokens))
        if prefix not in self.states:
            return False
        if prefix not in self.pins:
            if len(self.pins) + 1 > self.num_slots // 2:
                raise RequestError("half of the slots are pinned")
            self.pins.append(prefix)
        return True

    def unpin(self, namespace: bytes, tokens: Sequence[int]) -> None:
        """Let a pinned prefix go like any other."""
        self.pins.remove(Prefix(namespace, tuple(tokens)))

    def flush(self) -> int:
        """Drop every state that is not pinned, and every row that nobody claims. Returns how many states went."""
        before = len(self.states)
        self._keep_only([state for state in self.states if state in self.pins])
        self.rows = {row for row in self.rows if self._is_claimed(row)}
        return before - len(self.states)

    def _evict_one_of(self, others: Sequence[Prefix]) -> None:
        # the first of equals, which was used least recently
        first = min(others, key=self._worth)
        self._keep_only([state for state in self.states if state != first])

    def _worth(self, state: Prefix) -> float:
        """What keeping a state is worth."""
        age = len(self.states) - self.states.index(state)
        if self.eviction == "lru":
            return 1 / age
        branches = sum(self._would_resume(end, state) for end in self.rows if state.starts(end))
        if self.eviction == "coverage":
            return branches
        above = max((len(s.tokens) for s in self.states if s.starts(state) and s != state), default=0)
        return (len(state.tokens) - above) * branches / age

    def _would_resume(self, end: Prefix, state: Prefix) -> bool:
        """Whether ``end`` is the last row of a branch of which a state is the deepest one.

        The state of the end itself stands in nobody's way until it was resumed.
        """
        if any(end.starts(row) and row != end for row in self.rows):
            return False
        deeper = [s for s in self.states if state.starts(s) and s.starts(end) and s != state]
        return all(s == end and not self.hits[s] for s in deeper)

    def _keep_only(self, states: list[Prefix]) -> None:
        self.states = states
        self.hits = Counter({state: self.hits[state] for state in states})

    def _is_claimed(self, row: Prefix) -> bool:
        return any(row.starts(prefix) for prefix in [*(hold.prefix for hold in self.holds), *self.pins])

    def _touch(self, state: Prefix) -> None:
        self.states = [*(s for s in self.states if s != state), state]
