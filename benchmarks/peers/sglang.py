"""SGLang's decode kernels, in place. They work gates out themselves; their states are ``[H, d_v, d_k]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.decode_arms import Shape
from benchmarks.peers.peer import Peer, Result, Step, Token, layerwise
from holdover.ops.deferred.log import Cursor


def sglang(shape: Shape, *, cuda: bool = True) -> Peer:
    """The packed decode kernel, which writes the state at every token.

    Args:
        shape: of the layer.
        cuda: let KDA take the CUDA kernel that SGLang builds at its first use; it covers 32-bit slots only.

    Raises:
        ImportError: SGLang is not installed, or this release has the kernel elsewhere.
        LookupError: it has no kernel for the family.
    """
    from sglang.kernels.ops.attention.fla import fused_recurrent as kernels

    functions = {
        "gdn": kernels.fused_recurrent_gated_delta_rule_packed_decode,
        "kda": kernels.fused_recurrent_kda_packed_decode,
    }
    layer = _layer(shape, _function(functions, shape), torch.int32 if cuda else torch.int64)
    return Peer("sglang" if cuda else "sglang-triton", layerwise(layer), transposed=True)


def sglang_replay(shape: Shape, interval: int) -> Peer:
    """ReplaySSM: recent tokens in a ring beside the state, which is written once in ``interval`` tokens.

    Raises:
        ImportError: as `sglang`.
        LookupError: as `sglang`.
    """
    from sglang.kernels.ops.attention.linear import fused_recurrent_linear_replayssm as kernels

    function = kernels.fused_recurrent_linear_replayssm_decode
    layer = _layer(shape, _function({"gdn": function, "kda": function}, shape), torch.int32, interval)
    return Peer("sglang-replay", layerwise(layer), interval, transposed=True)


def _function(functions: dict[str, Callable[..., Any]], shape: Shape) -> Callable[..., Any]:
    if shape.family.name not in functions:
        raise LookupError(f"SGLang has no such kernel for {shape.family.name}")
    return functions[shape.family.name]


def _layer(
    shape: Shape, function: Callable[..., Any], slot_dtype: torch.dtype, interval: int | None = None
) -> Callable[[Tensor, Cursor], Step]:
    per_key = shape.family.per_key

    def layer(base: Tensor, cursor: Cursor) -> Step:
        states = base.view(-1, shape.heads, shape.d_v, shape.d_k)
        slots = torch.arange(1, len(base), dtype=slot_dtype, device=base.device)
        out = torch.empty(len(slots), 1, shape.heads, shape.d_v, dtype=torch.bfloat16, device=base.device)
        ring = {} if interval is None else _ring(shape, base, cursor, interval)
        # without a ring, decays per key are flat
        flat = per_key and interval is None

        def step(token: Token) -> Result:
            gate, bias = (token.gate.flatten(1), token.bias.flatten()) if flat else (token.gate, token.bias)
            function(
                mixed_qkv=token.packed,
                a=gate,
                b=token.strength,
                A_log=token.a_log,
                dt_bias=bias,
                scale=shape.d_k**-0.5,
                initial_state=states,
                out=out,
                ssm_state_indices=slots,
                use_qk_l2norm_in_kernel=True,
                **ring,
            )
            return out.squeeze(1), states[1:].mT

        return step

    return layer


def _ring(shape: Shape, base: Tensor, cursor: Cursor, interval: int) -> dict[str, Any]:
    """The ring as SGLang allocates it for fp32 states."""
    entries, per_key = (len(base), shape.heads, interval), shape.family.per_key
    return {
        "d_cache": torch.zeros(*entries, shape.d_v, device=base.device),
        "k_cache": torch.zeros(len(base), shape.key_heads, interval, shape.d_k, device=base.device),
        "g_cache": torch.zeros(*entries, *((shape.d_k,) if per_key else ()), device=base.device),
        "write_pos": cursor.length[1:],
        "is_kda": per_key,
    }
