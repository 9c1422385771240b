"""Gated delta networks as every architecture with them keeps them."""

from __future__ import annotations

from holdover.arch.architecture import Segment
from holdover.arch.common import divided
from holdover.arch.fields import Fields
from holdover.arch.layout import RecurrentLayer

KEYS, VALUES, HEADS = Segment("key", "d_k"), Segment("value", "d_v"), Segment("value", "one")


def gdn_layer(fields: Fields, index: int) -> RecurrentLayer:
    """Layer ``index``, with its sizes from ``linear_*`` keys."""
    heads, key_heads = fields.integer("linear_num_value_heads"), fields.integer("linear_num_key_heads")
    divided(fields, ("linear_num_value_heads", heads), ("linear_num_key_heads", key_heads))
    d_k, d_v = fields.integer("linear_key_head_dim"), fields.integer("linear_value_head_dim")
    return RecurrentLayer(
        index=index,
        family="gdn",
        heads=heads,
        key_heads=key_heads,
        d_k=d_k,
        d_v=d_v,
        unit="head",
        conv_channels=2 * key_heads * d_k + heads * d_v,
        conv_width=fields.integer("linear_conv_kernel_dim", minimum=2),
    )
