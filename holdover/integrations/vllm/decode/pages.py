"""The log in a state's page: behind conv and temporal state, which stay where vLLM has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from holdover.ops.deferred.family import Family
from holdover.ops.deferred.log import Log, LogLayout

# conv and temporal state; keys, values, decays and scales
STATES, LOG_TENSORS = 2, 4

Shape = tuple[int, ...]


@dataclass(frozen=True)
class PageLayout:
    """What one page of a recurrent layer holds, in order.

    Attributes:
        shapes: vLLM's two states.
        dtypes: theirs.
        log: what follows.
    """

    shapes: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...]
    log: LogLayout

    @classmethod
    def of(
        cls,
        family: Family,
        shapes: Sequence[Shape],
        dtypes: Sequence[torch.dtype],
        activations: torch.dtype,
        interval: int,
    ) -> PageLayout:
        """Derive it from vLLM's states.

        Args:
            family: the recurrence.
            shapes: of the conv state, ``(W - 1, C)`` or transposed, and of the temporal state ``(H, d_v, d_k)``.
            dtypes: theirs.
            activations: the model's dtype.
            interval: merge interval.

        Raises:
            ConfigError: the state cannot have a log.
        """
        conv, (heads, d_v, d_k) = shapes
        # the channels are queries, keys and values; the other axis is a few inputs
        key_heads = (max(conv) - heads * d_v) // (2 * d_k)
        log = LogLayout(family, heads, key_heads, d_k, d_v, interval, key_dtype=activations, base_dtype=dtypes[1])
        return cls(tuple(shapes), tuple(dtypes), log)

    @property
    def all_shapes(self) -> tuple[Shape, ...]:
        """Of the states and the log."""
        return (*self.shapes, *(shape for shape, _ in self.log.tensors.values()))

    @property
    def all_dtypes(self) -> tuple[torch.dtype, ...]:
        """Of the states and the log."""
        return (*self.dtypes, *(dtype for _, dtype in self.log.tensors.values()))

    def views(self, pages: Tensor) -> list[Tensor]:
        """The states and the log's tensors of all pages, as vLLM declares them.

        Args:
            pages: int8 ``[blocks, bytes]``.
        """
        views, start = [], 0
        for shape, dtype in zip(self.all_shapes, self.all_dtypes, strict=True):
            size = prod(shape) * dtype.itemsize
            views.append(pages[:, start : start + size].view(dtype).unflatten(1, shape))
            start += size
        return views

    def split(self, views: Sequence[Tensor]) -> tuple[tuple[Tensor, Tensor], Log]:
        """vLLM's states, and the log behind them, of `views`."""
        conv, temporal, *rest = views
        return (conv, temporal), Log(self.log, **dict(zip(self.log.tensors, rest, strict=True)))
