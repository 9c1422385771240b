"""The other ranks' engine: makes the calls that rank 0 makes, and takes the tokens that it has chosen."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from typing import Any

import torch

from holdover.engine.choosing import Choice
from holdover.engine.core import EngineCore
from holdover.engine.parallel.calls import decoded, position
from holdover.engine.parallel.ranks import Ranks, RanksLostError
from holdover.engine.sequence import Sequence
from holdover.errors import HoldoverError

logger = logging.getLogger(__name__)


def follow(core: EngineCore, ranks: Ranks) -> None:
    """Make every call that rank 0 makes, until it closes its engine.

    Args:
        core: this rank's engine, with a `FollowedChoice`.
        ranks: the group.

    Raises:
        ParallelError: rank 0 is gone, or this rank does not stand where it does.
    """
    calls: dict[str, Callable[..., Any]] = {
        "add": lambda said: core.add(decoded(said)),
        "abort": core.abort,
        "step": core.step,
        "warm_up": core.warm_up,
        "flush": core.flush,
        "pin": lambda namespace, tokens: core.pin(bytes.fromhex(namespace), tokens),
        "unpin": lambda key: core.unpin(bytes.fromhex(key)),
        "unpin_all": core.unpin_all,
        "settle": core.settle,
        "close": core.close,
    }
    name = ""
    with ranks.or_error():
        while name != "close":
            name, *args = ranks.receive()
            if name not in calls:
                raise RanksLostError(f"rank {ranks.rank} of {ranks.size} is asked for {name!r} between two calls")
            try:
                calls[name](*args)
            except HoldoverError as error:
                # refused on rank 0 as well, which answers for it
                logger.debug("%s was refused: %s", name, error)


class FollowedChoice:
    """Takes the tokens that rank 0 has chosen.

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
        """As `choose_tokens`; what is computed here is only looked at by rank 0.

        Raises:
            RanksLostError: this rank has advanced other sequences than rank 0, or they lie elsewhere.
        """
        name, *said = self._ranks.receive()
        stand = position(sequences)
        if name != "chosen" or said[0] != stand:
            raise RanksLostError(
                f"rank {self._ranks.rank} of {self._ranks.size} stands at {stand}, rank 0 at {name} {said[:1]}"
            )
        choices = []
        for sequence, (tokens, reason, failed) in zip(sequences, said[1], strict=True):
            sequence.tokens.extend(tokens)
            error = HoldoverError("it failed on rank 0") if failed else None
            choices.append(Choice(sequence, tuple(tokens), reason=reason, error=error))
        return choices
