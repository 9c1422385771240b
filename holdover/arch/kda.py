"""Kimi delta attention as every architecture with it keeps it: one head width, decay per (head, key channel)."""

from __future__ import annotations

from holdover.arch.architecture import Gate
from holdover.arch.fields import Fields
from holdover.arch.layout import RecurrentLayer
from holdover.errors import ConfigError


def kda_layer(index: int, heads: int, width: int, conv_width: int, gate: Gate) -> RecurrentLayer:
    """Layer ``index``: ``heads`` states of ``width`` by ``width``, and a convolution over queries, keys and values."""
    return RecurrentLayer(
        index=index,
        family="kda",
        heads=heads,
        key_heads=heads,
        d_k=width,
        d_v=width,
        unit="channel",
        conv_channels=3 * heads * width,
        conv_width=conv_width,
        gate=gate.form,
    )


def sectioned_kda_layer(fields: Fields, gate: Gate, index: int) -> RecurrentLayer:
    """Layer ``index`` with its sizes from ``linear_attn_config`` (published) or from ``linear_*`` keys (native)."""
    heads = _size(fields, "num_heads", "linear_num_heads")
    width = _size(fields, "head_dim", "linear_head_dim")
    conv_width = _size(fields, "short_conv_kernel_size", "linear_conv_kernel_dim", minimum=2)
    return kda_layer(index, heads, width, conv_width, gate)


def bounded_gate(fields: Fields, name: str, *, default: float | None = None) -> Gate:
    """The bounded gate with its most negative log-decay from key ``name``. Raises ConfigError unless negative."""
    bound = fields.number(name, default=default)
    if bound >= 0:
        raise fields.invalid((name,), bound, "a negative number")
    return Gate("bounded", lower_bound=bound)


def _size(fields: Fields, published: str, native: str, *, minimum: int = 1) -> int:
    """A size of the recurrent layers; the published section wins, as it does in the host."""
    linear = fields.section("linear_attn_config")
    if linear.has(published):
        return linear.integer(published, minimum=minimum)
    if fields.has(native):
        return fields.integer(native, minimum=minimum)
    raise ConfigError(f"config: neither linear_attn_config.{published} nor {native} is set; wanted a positive integer")
