"""ProphetKV: the tokens that the query attends to (Wang et al. 2026)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdover.chunks.selectors.context import Probe, QueryAttention, SelectionContext


@dataclass(frozen=True)
class ProphetKV:
    """Highest attention from the query's tokens, averaged over them, their heads and all attention layers.

    The query is run over the assembled context first, and its attention at each layer gives one vote. Its own tokens
    are left out of the softmax, so that every one of them has the same say.

    In a hybrid the query's hidden states come through recurrent layers too: the probe runs from the initialiser's
    state, on a scratch copy of it, and there are few attention layers to average over.
    """

    probe: ClassVar[Probe] = "query"

    def select(self, context: SelectionContext) -> tuple[int, ...]:
        """See `Selector.select`."""
        if not context.attention:
            raise ValueError("ProphetKV needs the attention that a query probe finds")
        votes = [_attention(layer) for layer in context.attention.values()]
        return context.highest(torch.stack(votes).mean(0))


def _attention(layer: QueryAttention) -> Tensor:
    """Mean attention on every position of the context, fp32 ``[C]``."""
    queries, keys = layer.queries.float(), layer.keys.float()
    grouped = queries.unflatten(1, (keys.shape[1], -1))  # [Q, heads, group, d_k]
    scores = torch.einsum("qhgd,chd->qhgc", grouped, keys) * layer.scale
    return scores.softmax(-1).flatten(0, 2).mean(0)
