"""Rank 0's engine: every call that changes the pools is told to the other ranks, which make it too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Tokens
from contextlib import contextmanager
from typing import Any

import torch

from holdover.engine.choosing import Choice, choose_tokens
from holdover.engine.core import EngineCore
from holdover.engine.parallel.calls import encoded, position
from holdover.engine.parallel.ranks import Ranks
from holdover.engine.request import Update
from holdover.engine.sequence import Sequence
from holdover.errors import HoldoverError, ParallelError
from holdover.prefix.pins import Pin


class LeaderCore(EngineCore):
    """The engine's loop on rank 0.

    All ranks run the same loop over the same calls, in which nothing depends on time or chance; only tokens are chosen
    here alone. What a call raises, it raises on every rank.

    Args:
        args: as for `EngineCore`.
        ranks: the group.
        options: as for `EngineCore`.
    """

    def __init__(self, *args: Any, ranks: Ranks, **options: Any) -> None:
        super().__init__(*args, choose=LeadingChoice(ranks), **options)
        self._ranks = ranks
        self._is_lost = False

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, on every rank."""
        with self._told("add", encoded(sequence)):
            super().add(sequence)

    def abort(self, request_id: str) -> Update | None:
        """End a request now, on every rank; None if it is not here."""
        if self._is_lost or not self.has(request_id):
            return None
        with self._told("abort", request_id):
            return super().abort(request_id)

    def step(self) -> list[Update]:
        """Advance every sequence that can be advanced, on every rank."""
        with self._told("step"):
            return super().step()

    def warm_up(self) -> None:
        """Compile now what would make the first requests slow, on every rank."""
        with self._told("warm_up"):
            super().warm_up()

    def flush(self) -> int:
        """Drop all that no sequence and no pin holds, on every rank."""
        with self._told("flush"):
            return super().flush()

    def pin(self, namespace: bytes, tokens: Tokens[int]) -> Pin | None:
        """Pin a prefix whose state is cached, on every rank."""
        with self._told("pin", namespace.hex(), list(tokens)):
            return super().pin(namespace, tokens)

    def unpin(self, key: bytes) -> bool:
        """Let a pinned prefix go, on every rank."""
        with self._told("unpin", key.hex()):
            return super().unpin(key)

    def unpin_all(self) -> int:
        """Let all pinned prefixes go, on every rank."""
        with self._told("unpin_all"):
            return super().unpin_all()

    def settle(self) -> None:
        """Finish what moves between tiers, on every rank."""
        # whoever leaves because the ranks are lost settles too: why they are must not be replaced
        if not self._is_lost:
            with self._told("settle"):
                super().settle()

    def close(self) -> None:
        """Finish what moves between tiers, and let the other ranks go."""
        if not self._is_lost:
            with self._told("close"):
                super().close()

    @contextmanager
    def _told(self, call: str, *args: Any) -> Iterator[None]:
        """Around a call that the other ranks are told of first.

        Raises:
            ParallelError: the ranks are not together any more; the engine has ended.
        """
        if self._is_lost:
            raise ParallelError("the other ranks are gone: start all of them again")
        try:
            with self._ranks.or_error():
                self._ranks.send([call, *args])
                yield
        except BaseException as error:
            # a call that is refused is refused on every rank; after any other end nobody knows where they stand
            if isinstance(error, ParallelError) or not isinstance(error, HoldoverError):
                self._is_lost = True
                self._ranks.leave()
            raise


class LeadingChoice:
    """Chooses tokens and tells the other ranks.

    Args:
        ranks: the group.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def __call__(
        self,
        sequences: Tokens[Sequence],
        logits: torch.Tensor,
        drafts: Tokens[Tokens[int]] | None = None,
        first: Callable[[Sequence, torch.Tensor], None] | None = None,
    ) -> list[Choice]:
        """As `choose_tokens`."""
        # where a forward has brought them, before the new tokens
        stand = position(sequences)
        choices = choose_tokens(sequences, logits, drafts, first)
        self._ranks.send(["chosen", stand, [[c.tokens, c.reason, c.error is not None] for c in choices]])
        return choices
