"""What a step knows before its layers run: which rows decode, in which pages, and where their logs stand."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from vllm.logger import init_logger
from vllm.v1.attention.backends.gdn_attn import (
    GDNAttentionBackend,
    GDNAttentionMetadata,
    GDNAttentionMetadataBuilder,
)
from vllm.v1.attention.backends.utils import compute_causal_conv1d_metadata

from holdover.errors import ConfigError
from holdover.integrations.vllm.decode.cursor import GroupCursor
from holdover.ops.deferred.log import Cursor

# vLLM prints what is logged below its own name
logger = init_logger("vllm.holdover")


@dataclass(kw_only=True)
class DeferredMetadata(GDNAttentionMetadata):  # type: ignore[misc]
    """vLLM's metadata of a step, and what the deferred step needs beside it.

    Attributes:
        slots: pages of the rows that decode, int64 ``[n]``, in row order; 0 for padding.
        cursor: of all pages.
        prefills: the rows behind them as a batch of their own, which vLLM runs; None if there are none.
        prefill_slots: their pages, int64.
    """

    slots: Tensor
    cursor: Cursor
    prefills: GDNAttentionMetadata | None
    prefill_slots: Tensor


class DeferredBuilder(GDNAttentionMetadataBuilder):  # type: ignore[misc]
    """Builds `DeferredMetadata`. What graphs read lies in tensors that stay where they are."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._layers = [vllm_config.compilation_config.static_forward_context[name] for name in layer_names]
        self._slots = torch.zeros(vllm_config.scheduler_config.max_num_seqs, dtype=torch.int64, device=device)
        log = self._layers[0].page.log
        for layer in self._layers:
            layer.builder = self
        logger.info_once(
            "holdover: deferred decode, a fold every %d tokens; of the %d bytes of a page %d are the log's",
            *(log.merge_interval, kv_cache_spec.page_size_bytes, log.slot_bytes),
        )

    def build(self, common_prefix_len: int, common_attn_metadata: Any, *args: Any, **kwargs: Any) -> DeferredMetadata:
        """vLLM's metadata, after the cursor was set for the step."""
        common = common_attn_metadata
        metadata = super().build(common_prefix_len, common, *args, **kwargs)
        if metadata.num_spec_decodes:
            raise ConfigError("deferred decode does not verify drafts")
        pages, cursor = metadata.non_spec_state_indices_tensor, self.group_cursor
        # a captured graph has a row for every padded request, and their pages are the sink
        staged = self.use_full_cuda_graph and not metadata.num_prefills
        rows = len(pages) if staged else metadata.num_decodes
        slots = self._slots[:rows]
        slots.copy_(pages[:rows])
        if rows:
            cursor.decode(slots, common.seq_lens[:rows] - 1)
        behind = slice(metadata.num_decodes, metadata.num_decodes + metadata.num_prefills)
        prefill_slots = pages[behind].long()
        depths = common.seq_lens[behind]
        if metadata.num_prefills:
            cursor.prefill(prefill_slots, depths - common.query_start_loc.diff()[behind], depths)
        base = {field.name: getattr(metadata, field.name) for field in fields(metadata)}
        prefills = _prefills_of(metadata, common) if metadata.num_prefills else None
        return DeferredMetadata(
            **base, slots=slots, cursor=cursor.cursor, prefills=prefills, prefill_slots=prefill_slots
        )

    @cached_property
    def group_cursor(self) -> GroupCursor:
        """Where the logs of the group's pages stand; to be asked for once they are bound."""
        pages, interval = self._layers[0].kv_cache[1], self._layers[0].page.log.merge_interval
        return GroupCursor(len(pages), interval, self.kv_cache_spec.block_size, pages.device)


class DeferredBackend(GDNAttentionBackend):  # type: ignore[misc]
    """vLLM's backend with another builder."""

    @staticmethod
    def get_builder_cls() -> type[DeferredBuilder]:
        """See `DeferredBuilder`."""
        return DeferredBuilder


def _prefills_of(metadata: GDNAttentionMetadata, common: Any) -> GDNAttentionMetadata:
    """The prefills of a mixed batch as a batch without decodes."""
    decodes, tokens = metadata.num_decodes, metadata.num_decode_tokens
    if not decodes:
        return metadata
    starts = common.query_start_loc_cpu[decodes:] - tokens
    conv = compute_causal_conv1d_metadata(starts, device=metadata.prefill_query_start_loc.device)
    names = ("nums_dict", "batch_ptr", "token_chunk_offset_ptr")
    return replace(
        metadata,
        num_decodes=0,
        num_decode_tokens=0,
        num_actual_tokens=metadata.num_prefill_tokens,
        has_initial_state=metadata.prefill_has_initial_state,
        non_spec_query_start_loc=metadata.prefill_query_start_loc,
        non_spec_state_indices_tensor=metadata.prefill_state_indices,
        **dict(zip(names, conv, strict=True)),
    )
