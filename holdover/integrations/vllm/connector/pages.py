"""vLLM's pages as the core sees them: recurrent state with canonical axes, attention rows as bytes.

A page of a recurrent layer holds its states one behind the other, as its cache spec declares them: the convolution's
inputs, ``[width - 1, channels]`` or transposed, then the temporal state. On a GPU that is ``[H, d_v, d_k]``; the CPU
kernel declares the same and keeps ``[H, d_k, d_v]``, and so does deferred decode, whose log comes behind the states and
is folded before a state is read.

Rows are kept as whole blocks, layer by layer: kernels arrange the inside of a block as they like, that of CPUs not
token by token. An entry that begins or ends within a block has the whole of it; what the block holds beyond the entry's
last token says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from holdover.arch.layout import RecurrentLayer, StateLayout
from holdover.errors import CheckpointMismatchError, ConfigError
from holdover.integrations.vllm.connector.groups import CacheGroups, CacheLayer
from holdover.integrations.vllm.connector.metadata import Blocks
from holdover.integrations.vllm.decode.pages import STATES
from holdover.state import SlotPool


class Logged(Protocol):
    """A layer that keeps a log (`DeferredLayer`)."""

    def settle(self, page: int, depth: int) -> None:
        """Fold what the log of a page holds at a depth."""

    def arrive(self, page: int, depth: int) -> None:
        """Note that a page was given the state at a depth, and has no log."""


@dataclass(frozen=True, eq=False)
class StatePages:
    """One recurrent layer's pages.

    Attributes:
        index: the layer's index in the model's stack.
        group: its KV cache group.
        conv: ``[blocks, width - 1, channels]``, a view.
        temporal: ``[blocks, H, d_k, d_v]``, a view.
        log: the layer whose log lies behind them, or None.
    """

    index: int
    group: int
    conv: Tensor
    temporal: Tensor
    log: Logged | None = None


class Pages:
    """Copies between vLLM's pool and the core's containers.

    Args:
        caches: vLLM's cache of every layer, by its name: attention ``[blocks, H, N, C]``, recurrent int8 pages.
        groups: which layer is what.
        layout: the recurrent state that they hold.
        logs: layers that keep a log, by their names.

    Raises:
        ConfigError: the pages are not those of the layout.
    """

    def __init__(
        self,
        caches: Mapping[str, Tensor],
        groups: CacheGroups,
        layout: StateLayout,
        logs: Mapping[str, Logged] = MappingProxyType({}),
    ) -> None:
        self.block_size = groups.block_size
        shapes = {layer.index: layer for layer in layout.layers}
        self._states = [
            _state_pages(caches[layer.name], layer, shapes[layer.index], logs.get(layer.name))
            for layer in groups.recurrent
        ]
        self._rows = [(layer.group, caches[layer.name]) for layer in groups.attention]
        if any(len(cache) != groups.num_blocks for _, cache in self._rows):
            raise ConfigError("vLLM splits attention blocks for this attention backend, which is not supported")
        self.device = self._states[0].temporal.device

    @property
    def block_bytes(self) -> int:
        """Bytes of one block's attention rows, over all layers."""
        return sum(cache[0].numel() * cache.element_size() for _, cache in self._rows)

    @property
    def token_bytes(self) -> int:
        """Their share of one token."""
        return self.block_bytes // self.block_size

    def read_state(self, blocks: Blocks, depth: int, pool: SlotPool, slot: int) -> None:
        """Copy the state at a depth from its pages into a slot. Mutates the slot's bytes; folds the pages' logs."""
        for pages in self._states:
            block = blocks.state[pages.group]
            if pages.log is not None:
                pages.log.settle(block, depth)
            pool.conv(pages.index)[slot].copy_(pages.conv[block])
            pool.temporal(pages.index)[slot].copy_(pages.temporal[block])

    def write_state(self, pool: SlotPool, slot: int, blocks: Blocks, depth: int) -> None:
        """Copy a slot's bytes, the state at a depth, into a state's pages. Mutates those pages."""
        for pages in self._states:
            block = blocks.state[pages.group]
            pages.conv[block].copy_(pool.conv(pages.index)[slot])
            pages.temporal[block].copy_(pool.temporal(pages.index)[slot])
            if pages.log is not None:
                pages.log.arrive(block, depth)

    def read_rows(self, blocks: Blocks) -> Tensor:
        """The rows of ``blocks``, uint8 ``[blocks, block_bytes]`` in host memory."""
        parts = [
            cache[blocks.rows[group]].reshape(len(blocks.rows[group]), -1).contiguous().view(torch.uint8)
            for group, cache in self._rows
        ]
        return torch.cat(parts, dim=1).cpu()

    def by_block(self, rows: Tensor, blocks: int) -> Tensor:
        """The bytes of so many blocks that `by_token` made an entry's rows of.

        Raises:
            CheckpointMismatchError: the rows are of another size.
        """
        size = blocks * self.block_bytes
        if not size <= rows.numel() < size + len(rows):
            raise CheckpointMismatchError(f"{rows.numel()} bytes of rows for {blocks} blocks of {self.block_bytes}")
        return rows.view(-1)[:size].view(blocks, self.block_bytes)

    def write_rows(self, rows: Tensor, blocks: Mapping[int, Sequence[int]]) -> None:
        """Write rows that `read_rows` gave into as many blocks of every group. Mutates those blocks."""
        count = len(next(iter(blocks.values())))
        start = 0
        for group, cache in self._rows:
            size = cache[0].numel() * cache.element_size()
            part = rows[:, start : start + size].contiguous().view(cache.dtype).view(count, *cache.shape[1:])
            cache[list(blocks[group])] = part.to(cache.device)
            start += size


def by_token(blocks: Tensor, tokens: int) -> Tensor:
    """Bytes of blocks as the core's shelves want them: as many equal rows as there are tokens, padded at the end."""
    width = -(-blocks.numel() // tokens)
    rows = blocks.new_zeros(tokens * width)
    rows[: blocks.numel()] = blocks.view(-1)
    return rows.view(tokens, width)


def _state_pages(cache: Tensor, place: CacheLayer, layer: RecurrentLayer, log: Logged | None) -> StatePages:
    pages, spec = cache.squeeze((1, 2)), place.spec
    states, start = [], 0
    for shape, dtype in zip(spec.shapes[:STATES], spec.dtypes[:STATES], strict=True):
        size = prod(shape) * dtype.itemsize
        states.append(pages[:, start : start + size].view(dtype).unflatten(1, shape))
        start += size
    conv, temporal = states
    if conv.shape[1:] != (layer.conv_width - 1, layer.conv_channels):
        conv = conv.transpose(1, 2)
    if cache.device.type == "cpu" or len(spec.shapes) > STATES:
        temporal = temporal.view(-1, layer.heads, layer.d_k, layer.d_v)
    else:
        temporal = temporal.transpose(-1, -2)
    wanted = (layer.conv_width - 1, layer.conv_channels), (layer.heads, layer.d_k, layer.d_v)
    if (tuple(conv.shape[1:]), tuple(temporal.shape[1:])) != wanted:
        raise ConfigError(f"layer {place.index} keeps {spec.shapes} in vLLM, which is not the model's state {wanted}")
    return StatePages(place.index, place.group, conv, temporal, log)
