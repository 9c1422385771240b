"""What rank 0's engine is asked to do, as the other ranks are told of it."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from typing import Any

from holdover.engine.request import Request
from holdover.engine.sampling import SamplingParams
from holdover.engine.sequence import Sequence
from holdover.engine.text import TextStream


class _Silent:
    """Whoever follows makes no text: rank 0 says when a sequence ends."""

    def decode(self, ids: Tokens[int]) -> str:
        """Nothing."""
        return ""


def encoded(sequence: Sequence) -> dict[str, Any]:
    """All of a sequence that decides what happens in the pools."""
    request = sequence.request
    return {
        "id": request.id,
        "prompt": request.prompt,
        "namespace": sequence.namespace.hex(),
        "max_tokens": sequence.max_tokens,
        "use_cache": request.use_cache,
        "exact": request.exact,
        "boundaries": list(map(int, request.boundaries)),
        "checkpoint_at": list(map(int, request.checkpoint_at)),
        "params": {"max_tokens": request.params.max_tokens, "prompt_logprobs": request.params.prompt_logprobs},
    }


def decoded(said: dict[str, Any]) -> Sequence:
    """The same sequence for a rank that follows."""
    request = Request(
        said["id"],
        tuple(said["prompt"]),
        SamplingParams(**said["params"]),
        use_cache=said["use_cache"],
        exact=said["exact"],
        boundaries=tuple(said["boundaries"]),
        checkpoint_at=tuple(said["checkpoint_at"]),
    )
    text = TextStream(_Silent())
    return Sequence(request, bytes.fromhex(said["namespace"]), text, frozenset(), said["max_tokens"])


def position(sequences: Tokens[Sequence]) -> list[Any]:
    """Where sequences of a forward stand: ranks that hit, evict or allocate otherwise differ here."""
    last = [s.place.rows.numbers(s.computed - 1, s.computed) for s in sequences]
    return [[s.request.id, s.computed, s.place.lease.slot, *rows] for s, rows in zip(sequences, last, strict=True)]
