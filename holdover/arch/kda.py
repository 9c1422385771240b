"""Kimi delta attention as every architecture with it keeps it: one head width, decay per (head, key channel)."""

from __future__ import annotations

from holdover.arch.architecture import CoupledTensor, Gate, NameForm, Segment
from holdover.arch.fields import Fields
from holdover.arch.layout import RecurrentLayer
from holdover.errors import ConfigError

_KEYS, _VALUES, _HEADS = Segment("key", "d_k"), Segment("value", "d_v"), Segment("value", "one")


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


def coupled_tensors(
    published: str, loaded: str, *, head_axis: int, decay: str, gate: str, output: str
) -> tuple[CoupledTensor, ...]:
    """Parameters coupled to heads.

    Args:
        published: what the parameters of a published mixer begin with below the layer's prefix.
        loaded: the same in the loaded module.
        head_axis: axis of ``A_log`` that has an entry a head.
        decay: projection that gives the decay's input of every channel.
        gate: projection that gives the output's gate.
        output: the published name of the output projection.
    """
    forms: tuple[tuple[str, str, NameForm], ...] = (
        (published, published, "published"),
        (loaded, f"{loaded}forget_gate.", "loaded"),
    )
    tensors = [
        CoupledTensor(f"{published}q_conv1d.weight", 0, (_KEYS,), "published"),
        CoupledTensor(f"{published}k_conv1d.weight", 0, (_KEYS,), "published"),
        CoupledTensor(f"{published}v_conv1d.weight", 0, (_VALUES,), "published"),
        CoupledTensor(f"{loaded}conv1d.weight", 0, (_KEYS, _KEYS, _VALUES), "loaded"),
        CoupledTensor(f"{published}{output}.weight", 1, (_VALUES,), "published"),
        CoupledTensor(f"{loaded}o_proj.weight", 1, (_VALUES,), "loaded"),
    ]
    for mixer, forget, form in forms:
        tensors += [
            CoupledTensor(f"{forget}A_log", head_axis, (_HEADS,), form),
            CoupledTensor(f"{forget}dt_bias", 0, (_KEYS,), form),
            CoupledTensor(f"{forget}{decay}.weight", 0, (_KEYS,), form),
            CoupledTensor(f"{mixer}q_proj.weight", 0, (_KEYS,), form),
            CoupledTensor(f"{mixer}k_proj.weight", 0, (_KEYS,), form),
            CoupledTensor(f"{mixer}v_proj.weight", 0, (_VALUES,), form),
            CoupledTensor(f"{mixer}b_proj.weight", 0, (_HEADS,), form),
            CoupledTensor(f"{mixer}{gate}.weight", 0, (_VALUES,), form),
        ]
    return tuple(tensors)


def _size(fields: Fields, published: str, native: str, *, minimum: int = 1) -> int:
    """A size of the recurrent layers; the published section wins, as it does in the host."""
    linear = fields.section("linear_attn_config")
    if linear.has(published):
        return linear.integer(published, minimum=minimum)
    if fields.has(native):
        return fields.integer(native, minimum=minimum)
    raise ConfigError(f"config: neither linear_attn_config.{published} nor {native} is set; wanted a positive integer")
