"""Kimi Delta Attention: Kimi-Linear."""

from __future__ import annotations

from torch import Tensor
from vllm.model_executor.layers.mamba.gdn.kimi_gdn_linear_attn import KimiGatedDeltaNetAttention

from holdover.integrations.vllm.decode.backend import DeferredMetadata
from holdover.integrations.vllm.decode.layer import DeferredLayer
from holdover.ops.deferred.family import KDA
from holdover.ops.recurrence.gates import bounded_gate, softplus_gate


class DeferredKimi(DeferredLayer, KimiGatedDeltaNetAttention):  # type: ignore[misc]
    """Kimi-Linear's layer. ``_forward`` is convolution, recurrence and output norm."""

    family = KDA

    def _forward(self, mixed_qkv: Tensor, g1: Tensor, g2: Tensor, beta: Tensor, core_attn_out: Tensor) -> None:
        metadata = self.step_metadata() if self.page is not None else None
        if metadata is None:
            super()._forward(mixed_qkv, g1, g2, beta, core_attn_out)
            return
        tokens = metadata.num_actual_tokens
        rows = min(len(metadata.slots), tokens)
        if rows:
            out = self._decoded(mixed_qkv[:rows], g1[0, :rows], beta[0, :rows], metadata)
            core_attn_out[0, :rows] = self.o_norm(out, g2[:rows])
        if metadata.prefills is not None:
            prefill = slice(rows, tokens)
            with self.prefilling(metadata):
                wide = (x[:, prefill] for x in (beta, core_attn_out))
                super()._forward(mixed_qkv[prefill], g1[:, prefill], g2[prefill], *wide)

    def _decoded(self, mixed_qkv: Tensor, gate: Tensor, beta: Tensor, metadata: DeferredMetadata) -> Tensor:
        """``[n, H, d]`` before the norm."""
        a_log, bias = self.A_log.unsqueeze(-1), self.dt_bias.view(gate.shape[1:])
        if self.gate_lower_bound is None:
            log_decay = softplus_gate(gate, a_log, bias)
        else:
            log_decay = bounded_gate(gate, a_log, bias, self.gate_lower_bound)
        return self.advanced(self.convolved(mixed_qkv, metadata), log_decay, beta.float().sigmoid(), metadata)
