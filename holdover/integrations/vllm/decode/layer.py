"""What every replaced layer has: a log in its page, the deferred step, and vLLM's own code for prefills."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from vllm.forward_context import get_forward_context, override_forward_context
from vllm.model_executor.layers.mamba.gdn.base import GatedDeltaNetAttention
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update

from holdover.integrations.vllm.decode.backend import DeferredBackend, DeferredBuilder, DeferredMetadata
from holdover.integrations.vllm.decode.cursor import GroupCursor
from holdover.integrations.vllm.decode.pages import STATES, PageLayout
from holdover.integrations.vllm.decode.setup import interval_of
from holdover.ops.conv.torch import step as conv_step
from holdover.ops.deferred.family import Family, Inputs
from holdover.ops.forms import deferred_form

# 0.26 has none, and writes over the input
_HAS_OUT = "out" in signature(causal_conv1d_update).parameters


class DeferredLayer(GatedDeltaNetAttention):  # type: ignore[misc]
    """Mixed in before one of vLLM's layers; without ``decode`` in the settings it is that layer.

    A page keeps the temporal state as ``[H, d_k, d_v]``, which is what the ops read; vLLM's CPU kernels keep it so too.
    Its GPU kernels for prefills take ``[H, d_v, d_k]``: pages are turned for them and back.

    Attributes:
        family: the recurrence.
        page: what a page holds; None if the layer is as vLLM has it.
        builder: of its KV cache group, which has the cursor; None before vLLM made it.
    """

    family: Family
    page: PageLayout | None = None
    builder: DeferredBuilder | None = None

    def __init__(self, config: Any, vllm_config: Any, prefix: str = "", **kwargs: Any) -> None:
        interval = interval_of(vllm_config)
        super().__init__(config, vllm_config, prefix, **kwargs)
        if interval is not None:
            states = self.get_state_shape(), self.get_state_dtype()
            self.page = PageLayout.of(self.family, *states, vllm_config.model_config.dtype, interval)

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        """vLLM's, with the log behind the states."""
        spec = super().get_kv_cache_spec(vllm_config)
        return spec if self.page is None else replace(spec, shapes=self.page.all_shapes, dtypes=self.page.all_dtypes)

    def get_attn_backend(self) -> Any:
        """What builds the step's metadata."""
        return super().get_attn_backend() if self.page is None else DeferredBackend

    def bind_kv_cache(self, kv_cache: Tensor) -> None:
        """Take the pages, int8 ``[blocks, 1, 1, bytes]``. vLLM's code goes on to see two states."""
        if self.page is None:
            super().bind_kv_cache(kv_cache)
            return
        self.kv_cache = self.page.views(kv_cache.squeeze((1, 2)))

    def __setattr__(self, name: str, value: Any) -> None:
        # vLLM 0.26 has no `bind_kv_cache`: it assigns views of all that the spec declares
        if name == "kv_cache" and self.page is not None and len(value) > STATES:
            value = self._taken(value)
        super().__setattr__(name, value)

    def _taken(self, views: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        assert self.page is not None
        (conv, temporal), self._log = self.page.split(views)
        self._inputs = conv.transpose(1, 2) if is_conv_state_dim_first() else conv  # [blocks, W - 1, C]
        self._base = temporal.view(len(temporal), *(temporal.shape[i] for i in (1, 3, 2)))  # [blocks, H, d_k, d_v]
        self._ops = deferred_form(temporal.device)
        return conv, temporal

    def step_metadata(self) -> DeferredMetadata | None:
        """The step's metadata; None in a run without any, in which vLLM sizes and warms up."""
        found = get_forward_context().attn_metadata
        metadata = found.get(self.prefix) if isinstance(found, dict) else None
        assert metadata is None or isinstance(metadata, DeferredMetadata)
        return metadata

    def convolved(self, x: Tensor, metadata: DeferredMetadata) -> Tensor:
        """One input of every sequence that decodes, ``[n, C]``, through the convolution; the pages' inputs move on."""
        if x.is_cuda:
            weight, pages = self.conv1d.weight.flatten(1), metadata.non_spec_state_indices_tensor[: len(x)]
            conv, bias = self._inputs.transpose(1, 2), self.conv1d.bias
            # what vLLM's kernel would overwrite is a view of the projection, whose other parts are read later
            own = {"out": torch.empty_like(x)} if _HAS_OUT else {}
            out: Tensor = causal_conv1d_update(x, conv, weight, bias, "silu", conv_state_indices=pages, **own)
            return out
        # vLLM packs the weights for its CPU kernel where the processor has one, and keeps them beside
        weight = getattr(self.conv1d, "_cpu_unpacked_conv_weight", self.conv1d.weight).reshape(x.shape[1], -1)
        return conv_step(self._inputs, metadata.slots[: len(x)], x, weight, self.conv1d.bias, "silu")

    def advanced(
        self, x: Tensor, log_decay: Tensor, beta: Tensor, metadata: DeferredMetadata, out: Tensor | None = None
    ) -> Tensor:
        """The recurrence for one token of every sequence that decodes.

        Args:
            x: queries, keys and values behind the convolution ``[n, C]``.
            log_decay: ``[n, H]``, or ``[n, H, d_k]`` per key channel, fp32.
            beta: ``[n, H]`` fp32.
            metadata: of the step.
            out: what to write and return ``[n, H, d_v]``; made if None.

        Returns:
            ``[n, H, d_v]``.
        """
        layout = self._log.layout
        keys = layout.key_heads * layout.d_k
        q, k, v = x.split([keys, keys, layout.heads * layout.d_v], dim=1)
        q, k = (part.unflatten(1, (layout.key_heads, layout.d_k)) for part in (q, k))
        inputs = Inputs(q, k, v.unflatten(1, (layout.heads, layout.d_v)), log_decay, beta)
        where = metadata.cursor, metadata.slots[: len(x)]
        found: Tensor = self._ops.step(self._base, self._log, *where, inputs, out=out)
        return found

    def settle(self, page: int, depth: int) -> None:
        """Fold what the log of a page holds whose sequence has ended at ``depth``."""
        slots, depths = self._one(page, depth)
        cursor = self._group_cursor()
        cursor.settle(slots, depths)
        self._ops.fold(self._base, self._log, cursor.cursor, slots)

    def arrive(self, page: int, depth: int) -> None:
        """Note that a page was given the whole state at ``depth``."""
        self._group_cursor().begin(*self._one(page, depth))

    def _group_cursor(self) -> GroupCursor:
        assert self.builder is not None
        return self.builder.group_cursor

    def _one(self, page: int, depth: int) -> tuple[Tensor, Tensor]:
        device = self._base.device
        return torch.tensor([page], device=device), torch.tensor([depth], dtype=torch.int32, device=device)

    @contextmanager
    def prefilling(self, metadata: DeferredMetadata) -> Iterator[None]:
        """For vLLM's code: its prefills as the whole batch, on pages without logs in the axes that it reads."""
        context, slots = get_forward_context(), metadata.prefill_slots
        self._ops.fold(self._base, self._log, metadata.cursor, slots)
        vllm_axes = self.kv_cache[1]
        if vllm_axes.is_cuda:
            vllm_axes[slots] = self._base[slots].mT
        with override_forward_context(replace(context, attn_metadata={self.prefix: metadata.prefills})):
            yield
        if vllm_axes.is_cuda:
            self._base[slots] = vllm_axes[slots].mT
