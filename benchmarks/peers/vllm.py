"""vLLM's decode kernels, in place. They work gates out themselves; their states are ``[H, d_v, d_k]``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.decode_arms import Shape
from benchmarks.peers.peer import Peer, Result, Run, Step, Token, layerwise
from holdover.ops.deferred.log import Cursor


def vllm(shape: Shape) -> Peer:
    """The kernel that a served model decodes with.

    Raises:
        ImportError: vLLM is not installed, or this release has the kernel elsewhere.
        LookupError: it has no kernel for the family.
    """
    layers = {"gdn": _gdn, "kda": _kda, "mamba2": _mamba2}
    if shape.family.name not in layers:
        raise LookupError(f"vLLM has no kernel for {shape.family.name}")
    return Peer("vllm", layerwise(layers[shape.family.name](shape)), transposed=True)


def vllm_replay(shape: Shape, interval: int) -> Peer:
    """ReplaySSM, with which vLLM keeps recent tokens of a Mamba-2 layer beside the state.

    Raises:
        ImportError: as `vllm`.
        LookupError: the family is another one.
    """
    if shape.family.name != "mamba2":
        raise LookupError("vLLM replays Mamba-2 only")
    return Peer("vllm-replay", _replay(shape, interval), interval, transposed=True)


def _views(shape: Shape, base: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """States as vLLM keeps them, slots that are not the sink, and outputs."""
    states = base.view(-1, shape.heads, shape.d_v, shape.d_k)
    slots = torch.arange(1, len(base), dtype=torch.int32, device=base.device)
    out = torch.empty(len(slots), shape.heads, shape.d_v, dtype=torch.bfloat16, device=base.device)
    return states, slots, out


def _gdn(shape: Shape) -> Callable[[Tensor, Cursor], Step]:
    from vllm.third_party.flash_linear_attention.ops.fused_recurrent import (
        fused_recurrent_gated_delta_rule_packed_decode as function,
    )

    def layer(base: Tensor, cursor: Cursor) -> Step:
        states, slots, out = _views(shape, base)

        def step(token: Token) -> Result:
            gates = (token.gate, token.strength, token.a_log, token.bias)
            function(token.packed, *gates, shape.d_k**-0.5, states, out.unsqueeze(1), slots, True)
            return out, states[1:].mT

        return step

    return layer


def _kda(shape: Shape) -> Callable[[Tensor, Cursor], Step]:
    from vllm.models.kimi_k3.nvidia.ops.third_party.kda.fused_recurrent import (
        fused_recurrent_kda_packed_decode as function,
    )

    def layer(base: Tensor, cursor: Cursor) -> Step:
        states, slots, out = _views(shape, base)

        def step(token: Token) -> Result:
            gates = (token.gate.unsqueeze(0), token.strength.unsqueeze(0), token.a_log, token.bias)
            function(token.packed, *gates, None, states, slots, out=out.unsqueeze(0))
            return out, states[1:].mT

        return step

    return layer


def _wide(shape: Shape, token: Token) -> dict[str, Tensor]:
    """Arguments of the Mamba-2 kernels, numbers of a head spread over its channels without a copy."""
    x, _, rate, b, c, skip = token.arguments
    return {
        "x": x,
        "dt": token.gate.unsqueeze(-1).expand(-1, -1, shape.d_v),
        "A": rate[:, None, None].expand(-1, shape.d_v, shape.d_k),
        "B": b,
        "C": c,
        "D": skip.unsqueeze(-1).expand(-1, shape.d_v),
        "dt_bias": token.bias.unsqueeze(-1).expand(-1, shape.d_v),
    }


def _mamba2(shape: Shape) -> Callable[[Tensor, Cursor], Step]:
    from vllm.model_executor.layers.mamba.ops.mamba_ssm import selective_state_update

    def layer(base: Tensor, cursor: Cursor) -> Step:
        states, slots, out = _views(shape, base)

        def step(token: Token) -> Result:
            inputs = _wide(shape, token)
            selective_state_update(states, **inputs, dt_softplus=True, state_batch_indices=slots, out=out)
            return out, states[1:].mT

        return step

    return layer


def _replay(shape: Shape, interval: int) -> Callable[[Sequence[Tensor], Cursor], Run]:
    from vllm.model_executor.layers.mamba.ops.selective_state_update_replayssm_output_only import (
        selective_state_update_replayssm_output_only as function,
    )

    def build(bases: Sequence[Tensor], cursor: Cursor) -> Run:
        position = cursor.length[1:]
        flushes = torch.empty(position.shape, dtype=torch.bool, device=position.device)
        steps = [_replay_layer(function, shape, interval, base, position, flushes) for base in bases]

        def run(tokens: Sequence[Token]) -> list[Result]:
            torch.eq(position, interval - 1, out=flushes)
            return [step(token) for step, token in zip(steps, tokens, strict=True)]

        return run

    return build


def _replay_layer(
    function: Callable[..., Any], shape: Shape, interval: int, base: Tensor, position: Tensor, flushes: Tensor
) -> Step:
    states, slots, out = _views(shape, base)
    tokens, groups = (len(base), shape.heads, interval), shape.key_heads
    ring: dict[str, Any] = {
        "x_cache": torch.zeros(*tokens, shape.d_v, dtype=torch.bfloat16, device=base.device),
        "dt_cache": torch.zeros(*tokens, device=base.device),
        "B_cache": torch.zeros(len(base), groups, interval, shape.d_k, dtype=torch.bfloat16, device=base.device),
        "bc_pre": torch.zeros(len(slots), groups, interval, device=base.device),
        "write_pos": position,
        "is_flush": flushes,
        "max_cache_len": interval,
    }

    def step(token: Token) -> Result:
        inputs = _wide(shape, token)
        function(states, **inputs, dt_softplus=True, **ring, state_batch_indices=slots, out=out)
        return out, states[1:].mT

    return step
