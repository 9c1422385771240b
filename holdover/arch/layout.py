"""What one model keeps per sequence, from its configuration alone: `StateLayout` and `KVLayout`.

Both are frozen and hold only what the configuration says; bytes, units and digests are derived.
Canonical axes of a temporal state are ``[H, d_k, d_v]`` for every family (Mamba-2: ``d_k`` is the state size N
and ``d_v`` the head dimension P). Hosts that store another order convert at their edge.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Literal

Family = Literal["gdn", "kda", "mamba2", "rwkv6"]
Unit = Literal["head", "channel"]
GateForm = Literal["softplus", "bounded", "exponential"]
KVKind = Literal["heads", "latent"]

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class RecurrentLayer:
    """One recurrent layer's state.

    Attributes:
        index: the layer's index in the model's stack, from 0.
        family: recurrence that advances the state.
        heads: number of (value) heads H.
        key_heads: heads that queries and keys have; each serves ``heads // key_heads`` consecutive value heads.
        d_k: rows of a head's state.
        d_v: columns of a head's state.
        unit: what retention decides on: a head, or a (head, key channel).
        conv_channels: channels of the causal convolution before the recurrence.
        conv_width: its kernel width; ``conv_width - 1`` past inputs are state.
        gate: form of the decay gate.
    """

    index: int
    family: Family
    heads: int
    key_heads: int
    d_k: int
    d_v: int
    unit: Unit
    conv_channels: int
    conv_width: int
    gate: GateForm = "softplus"

    @property
    def units(self) -> int:
        """Number of retention units."""
        return self.heads if self.unit == "head" else self.heads * self.d_k

    @property
    def temporal_numel(self) -> int:
        """Elements of the temporal state ``[H, d_k, d_v]``."""
        return self.heads * self.d_k * self.d_v

    @property
    def conv_numel(self) -> int:
        """Elements of the conv state ``[conv_width - 1, conv_channels]``."""
        return (self.conv_width - 1) * self.conv_channels


@dataclass(frozen=True)
class StateLayout:
    """Recurrent state of one sequence: every recurrent layer, in stack order.

    Attributes:
        layers: the recurrent layers; at least one.
        conv_dtype: dtype of the conv state, the model's activation dtype.
        temporal_dtype: dtype of the temporal state.
    """

    layers: tuple[RecurrentLayer, ...]
    conv_dtype: str = "bfloat16"
    temporal_dtype: str = "float32"

    @property
    def units_per_layer(self) -> tuple[int, ...]:
        """Retention units of each recurrent layer."""
        return tuple(layer.units for layer in self.layers)

    @cached_property
    def temporal_bytes(self) -> int:
        """Bytes of all temporal states of one sequence."""
        return sum(layer.temporal_numel for layer in self.layers) * DTYPE_BYTES[self.temporal_dtype]

    @cached_property
    def conv_bytes(self) -> int:
        """Bytes of all conv states of one sequence."""
        return sum(layer.conv_numel for layer in self.layers) * DTYPE_BYTES[self.conv_dtype]

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of one dense checkpoint."""
        return self.temporal_bytes + self.conv_bytes

    @cached_property
    def digest(self) -> str:
        """Hex digest that differs whenever the meaning or order of a checkpoint's bytes does."""
        return _digest(self)

    @cached_property
    def shape_digest(self) -> str:
        """Hex digest of the layers alone: the same in whatever dtype a host runs the model."""
        return _digest(replace(self, conv_dtype="", temporal_dtype=""))


@dataclass(frozen=True)
class Rotary:
    """Rotary embedding as an attention layer applies it to its keys before they are cached.

    Attributes:
        dims: leading dimensions of a key head that are rotated.
        base: the base of the frequencies (theta).
        scaling: rope type other than ``default`` (for example ``yarn``), which re-rotation must then know.
    """

    dims: int
    base: float
    scaling: str = "default"


@dataclass(frozen=True)
class AttentionLayer:
    """One attention layer's cache: two planes of one row per token.

    ``heads``: keys ``[heads, d_k]`` and values ``[heads, d_v]``. ``latent`` (MLA): the normalised latent
    ``[1, d_k]`` and the shared key part ``[1, d_v]``, before expansion.

    Attributes:
        index: the layer's index in the model's stack, from 0.
        kind: ``heads`` or ``latent``.
        heads: KV heads (1 for latent).
        d_k: width of a row's head in the first plane.
        d_v: width of a row's head in the second plane.
        query_heads: query heads that read it.
        rotary: rotation already applied to cached keys, or None (NoPE).
        window: sliding window in tokens, or None.
    """

    index: int
    kind: KVKind
    heads: int
    d_k: int
    d_v: int
    query_heads: int
    rotary: Rotary | None = None
    window: int | None = None

    @property
    def numel_per_token(self) -> int:
        """Elements that one token adds to this layer's cache."""
        return self.heads * (self.d_k + self.d_v)


@dataclass(frozen=True)
class KVLayout:
    """Attention cache of one sequence: every attention layer, in stack order (may be empty)."""

    layers: tuple[AttentionLayer, ...]
    dtype: str = "bfloat16"

    @cached_property
    def bytes_per_token(self) -> int:
        """Bytes that one token adds over all attention layers."""
        return sum(layer.numel_per_token for layer in self.layers) * DTYPE_BYTES[self.dtype]

    @cached_property
    def digest(self) -> str:
        """Hex digest of the layout."""
        return _digest(self)


@dataclass(frozen=True)
class ModelLayout:
    """Everything Holdover needs to know of a model before its weights are read.

    Attributes:
        architecture: registry name, for example ``qwen3_5``.
        state: layout of the recurrent state.
        kv: layout of the attention cache.
        num_layers: layers in the model's stack (recurrent, attention and others).
        vocab_size: size of the vocabulary.
        max_context: longest sequence in tokens that the model was built for.
        dtype: dtype of the published weights, and of conv state and KV unless the host runs in another.
    """

    architecture: str
    state: StateLayout
    kv: KVLayout
    num_layers: int
    vocab_size: int
    max_context: int
    dtype: str


def _digest(layout: StateLayout | KVLayout) -> str:
    text = json.dumps(asdict(layout), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
