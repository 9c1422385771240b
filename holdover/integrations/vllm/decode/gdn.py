"""Gated delta networks: Qwen3-Next, Qwen3.5 and Qwen3.6, and OLMo-Hybrid."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.model_executor.layers.mamba.gdn.olmo_gdn_linear_attn import (
    OlmoHybridGatedDeltaNetAttention,
    fused_olmo_hybrid_gdn_gating,
)
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.layers.mamba.ops.cpu.gdn_attention import cpu_gdn_attention_core
from vllm.platforms import current_platform

from holdover.integrations.vllm.decode.backend import DeferredMetadata
from holdover.integrations.vllm.decode.layer import DeferredLayer
from holdover.ops.deferred.family import GDN
from holdover.ops.recurrence.gates import softplus_gate


class DeferredGdnLayer(DeferredLayer):
    """What both have: ``_forward_core`` is where vLLM's custom op arrives."""

    family = GDN
    # OLMo-Hybrid doubles the write strength where eigenvalues may be negative
    allow_neg_eigval = False

    def _forward_core(self, mixed_qkv: Tensor, b: Tensor, a: Tensor, core_attn_out: Tensor) -> None:
        if self.page is None:
            super()._forward_core(mixed_qkv, b, a, core_attn_out)
            return
        metadata = self.step_metadata()
        if metadata is None:
            if mixed_qkv.is_cuda:
                super()._forward_core(mixed_qkv, b, a, core_attn_out)
            return
        tokens = metadata.num_actual_tokens
        rows = min(len(metadata.slots), tokens)
        if rows:
            self._decode(mixed_qkv[:rows], b[:rows], a[:rows], core_attn_out[:rows], metadata)
        if metadata.prefills is not None:
            with self.prefilling(metadata):
                self._prefilled(*(x[rows:tokens] for x in (mixed_qkv, b, a, core_attn_out)))

    def _decode(self, mixed_qkv: Tensor, b: Tensor, a: Tensor, out: Tensor, metadata: DeferredMetadata) -> None:
        x = self.convolved(mixed_qkv, metadata)
        if x.is_cuda:
            gates = a.contiguous(), b.contiguous(), self.dt_bias, self.allow_neg_eigval
            log_decay, beta = (gate[0] for gate in fused_olmo_hybrid_gdn_gating(self.A_log, *gates))
        else:
            log_decay = softplus_gate(a, self.A_log, self.dt_bias)
            beta = b.float().sigmoid() * (2 if self.allow_neg_eigval else 1)
        self.advanced(x, log_decay, beta, metadata, out)

    def _prefilled(self, mixed_qkv: Tensor, b: Tensor, a: Tensor, core_attn_out: Tensor) -> None:
        super()._forward_core(mixed_qkv, b, a, core_attn_out)


class DeferredQwen(DeferredGdnLayer, QwenGatedDeltaNetAttention):  # type: ignore[misc]
    """Qwen's layer."""

    def __init__(self, config: Any, vllm_config: Any, prefix: str = "", **kwargs: Any) -> None:
        super().__init__(config, vllm_config, prefix, **kwargs)
        if self.page is not None and current_platform.is_cpu():
            # the other way does not pass by `_forward_core`; this one has the same projections
            self._forward_method = self.forward_cuda

    def _prefilled(self, mixed_qkv: Tensor, b: Tensor, a: Tensor, core_attn_out: Tensor) -> None:
        if mixed_qkv.is_cuda:
            super()._prefilled(mixed_qkv, b, a, core_attn_out)
        else:
            cpu_gdn_attention_core(mixed_qkv, b, a, core_attn_out, self.prefix)


class DeferredOlmo(DeferredGdnLayer, OlmoHybridGatedDeltaNetAttention):  # type: ignore[misc]
    """OLMo-Hybrid's layer."""
