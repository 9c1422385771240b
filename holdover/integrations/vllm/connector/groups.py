"""Which of vLLM's KV cache groups hold what, and whether the tier can keep them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

from holdover.arch.layout import StateLayout
from holdover.errors import ConfigError
from holdover.integrations.vllm.decode.pages import LOG_TENSORS, STATES


@dataclass(frozen=True)
class CacheLayer:
    """One layer's cache.

    Attributes:
        name: vLLM's name of the layer.
        index: its index in the model's stack.
        group: its KV cache group.
        spec: vLLM's description of the cache.
    """

    name: str
    index: int
    group: int
    spec: Any


@dataclass(frozen=True)
class CacheGroups:
    """All cached layers of a model.

    Attributes:
        recurrent: recurrent layers, in stack order.
        attention: attention layers, in stack order.
        block_size: tokens of one block, the same in every group.
        num_blocks: blocks of the pool.
    """

    recurrent: tuple[CacheLayer, ...]
    attention: tuple[CacheLayer, ...]
    block_size: int
    num_blocks: int

    @classmethod
    def of(cls, config: Any) -> CacheGroups:
        """Read vLLM's ``KVCacheConfig``.

        Raises:
            ConfigError: a group is neither full attention nor aligned recurrent state, or blocks differ in size.
        """
        layers = [
            CacheLayer(name, extract_layer_index(name), number, _spec_of(group.kv_cache_spec, name))
            for number, group in enumerate(config.kv_cache_groups)
            for name in group.layer_names
        ]
        layers.sort(key=lambda layer: layer.index)
        recurrent = tuple(layer for layer in layers if isinstance(layer.spec, MambaSpec))
        attention = tuple(layer for layer in layers if isinstance(layer.spec, FullAttentionSpec))
        if strange := [layer.name for layer in layers if layer not in (*recurrent, *attention)]:
            raise ConfigError(f"layers {strange} have neither full attention nor a recurrent state: not supported")
        if not recurrent or not attention:
            raise ConfigError("the model has no recurrent layer, or no attention layer, with a cache in vLLM")
        if modes := {layer.spec.mamba_cache_mode for layer in recurrent} - {"align"}:
            raise ConfigError(f"states are cached in mode {modes}: pass --mamba-cache-mode align")
        sizes = {layer.spec.block_size for layer in layers}
        if len(sizes) > 1:
            raise ConfigError(f"blocks of {sorted(sizes)} tokens in one model are not supported")
        return cls(recurrent, attention, sizes.pop(), config.num_blocks)

    @property
    def recurrent_groups(self) -> frozenset[int]:
        """Groups of recurrent layers."""
        return frozenset(layer.group for layer in self.recurrent)

    @property
    def attention_groups(self) -> frozenset[int]:
        """Groups of attention layers."""
        return frozenset(layer.group for layer in self.attention)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all attention layers."""
        return sum(layer.spec.page_size_bytes for layer in self.attention)

    def state_layout(self, model: StateLayout) -> StateLayout:
        """The model's state in the dtypes that vLLM keeps it in.

        Raises:
            ConfigError: vLLM has other recurrent layers than the model, or keeps more than a state in their pages.
        """
        wanted, seen = [layer.index for layer in model.layers], [layer.index for layer in self.recurrent]
        if wanted != seen:
            raise ConfigError(f"vLLM caches recurrent layers {seen}; the model's configuration names {wanted}")
        if sizes := {len(layer.spec.dtypes) for layer in self.recurrent} - {STATES, STATES + LOG_TENSORS}:
            raise ConfigError(f"state pages of {sizes} tensors are not supported: wanted a conv and a temporal state")
        dtypes = {layer.spec.dtypes[:STATES] for layer in self.recurrent}
        if len(dtypes) > 1:
            raise ConfigError(f"state pages of {dtypes} in one model are not supported")
        conv, temporal = (str(dtype).removeprefix("torch.") for dtype in dtypes.pop())
        return replace(model, conv_dtype=conv, temporal_dtype=temporal)


def _spec_of(spec: Any, name: str) -> Any:
    """The layer's own spec where a group joins several of one type."""
    return getattr(spec, "kv_cache_specs", {name: spec})[name]
