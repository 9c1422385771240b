"""The plain recurrence under ``torch.compile``, in fp32 and in place."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from benchmarks.decode_arms import Shape
from benchmarks.peers.peer import Peer, Result, Step, Token, layerwise
from holdover.ops.deferred.log import Cursor
from holdover.ops.recurrence.delta import inverse_norm


def plain_step(shape: Shape) -> Callable[..., Tensor]:
    """``(states, *arguments) -> outputs`` in sums of products, which a compiler can fuse as it cannot a matmul."""
    family = shape.family

    def spread(x: Tensor) -> Tensor:
        return x.float().repeat_interleave(shape.heads // shape.key_heads, dim=1)

    def step(states: Tensor, *arguments: Tensor) -> Tensor:
        x = family.pack(*arguments)
        q, k, v = spread(x.q), spread(x.k), x.v.float()
        if family.delta:
            q, k = q * inverse_norm(q) * shape.d_k**-0.5, k * inverse_norm(k)
        if x.weight is not None:
            k = k * x.weight.unsqueeze(-1)
        decay = (x.log_decay if x.rate is None else x.log_decay * x.rate).exp()
        decayed = states * (decay.unsqueeze(-1) if family.per_key else decay[..., None, None])
        if x.beta is not None:
            v = x.beta.unsqueeze(-1) * (v - (k.unsqueeze(-1) * decayed).sum(-2))
        written = k.unsqueeze(-1) * v.unsqueeze(-2)
        read = decayed + written if x.bonus is None else states + x.bonus.unsqueeze(-1) * written
        out = (q.unsqueeze(-1) * read).sum(-2)
        if x.skip is not None:
            out = out + x.skip.unsqueeze(-1) * v
        states.copy_(decayed + written)
        return out.to(x.q.dtype)

    return step


@lru_cache(maxsize=1)
def _compiled(shape: Shape, batch: int) -> Callable[..., Tensor]:
    """Compiled once for a check and for what is timed after it; dynamo counts recompilations of the same code."""
    torch.compiler.reset()
    compiled: Callable[..., Tensor] = torch.compile(plain_step(shape), dynamic=False, fullgraph=True)
    return compiled


def compiled(shape: Shape) -> Peer:
    """Compiled anew for every batch size."""

    def layer(base: Tensor, cursor: Cursor) -> Step:
        states, function = base[1:], _compiled(shape, len(base) - 1)

        def step(token: Token) -> Result:
            return function(states, *token.arguments), states

        return step

    return Peer("torch-compile", layerwise(layer))
