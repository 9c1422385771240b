"""FLA's fused recurrent kernels, which write a new state and leave the old one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from benchmarks.decode_arms import Shape
from benchmarks.peers.peer import Peer, Result, Step, Token, layerwise
from holdover.ops.deferred.log import Cursor


def fla(shape: Shape) -> Peer:
    """FLA's kernel for one token.

    Raises:
        ImportError: FLA is not installed.
        LookupError: it has no such kernel.
    """
    name = shape.family.name
    if name == "gdn":
        from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule as function
    elif name == "kda":
        from fla.ops.kda import fused_recurrent_kda as function
    elif name == "rwkv6":
        from fla.ops.rwkv6 import fused_recurrent_rwkv6 as function
    else:
        raise LookupError(f"FLA has no fused recurrent kernel for {name}")

    def layer(base: Tensor, cursor: Cursor) -> Step:
        final: dict[str, Any] = {"initial_state": base[1:], "output_final_state": True}

        def step(token: Token) -> Result:
            q, k, v, g = (x.unsqueeze(1) for x in token.arguments[:4])
            last = token.arguments[4]
            if name == "rwkv6":
                out, state = function(q, k, v, g, last, scale=1.0, **final)
            else:
                delta = {"beta": last.unsqueeze(1), "use_qk_l2norm_in_kernel": True}
                out, state = function(q=q, k=k, v=v, g=g, **delta, **final)
            return out.squeeze(1), state

        return step

    return Peer("fla", layerwise(layer))
