"""vLLM's models with a log in their state: the layers that have it, and the classes that declare it.

vLLM sizes its blocks from the class before there is a layer. Classes and layers are made when vLLM asks for the class,
so that only the served model's modules are imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from vllm.model_executor.custom_op import PluggableLayer, op_registry_oot
from vllm.model_executor.models.registry import ModelRegistry

from holdover.integrations.vllm.decode.pages import PageLayout
from holdover.integrations.vllm.decode.setup import interval_of
from holdover.ops.deferred.family import GDN, KDA, Family

_QWEN_NEXT, _QWEN, _OLMO = (f"vllm.model_executor.models.{name}" for name in ("qwen3_next", "qwen3_5", "olmo_hybrid"))


class _Served(NamedTuple):
    """Where vLLM's model class is, and its recurrent layer with its replacement."""

    module: str
    family: Family
    layer: str
    replacement: str


_GDN = f"{__package__}.gdn"
_QWEN_LAYER = (GDN, "QwenGatedDeltaNetAttention", f"{_GDN}:DeferredQwen")

# by architecture
MODELS = {
    "Qwen3NextForCausalLM": _Served(_QWEN_NEXT, *_QWEN_LAYER),
    "Qwen3_5ForCausalLM": _Served(_QWEN, *_QWEN_LAYER),
    "Qwen3_5MoeForCausalLM": _Served(_QWEN, *_QWEN_LAYER),
    "Qwen3_5ForConditionalGeneration": _Served(_QWEN, *_QWEN_LAYER),
    "Qwen3_5MoeForConditionalGeneration": _Served(_QWEN, *_QWEN_LAYER),
    "OlmoHybridForCausalLM": _Served(_OLMO, GDN, "OlmoHybridGatedDeltaNetAttention", f"{_GDN}:DeferredOlmo"),
    "KimiLinearForCausalLM": _Served(
        "vllm.models.kimi_k3", KDA, "KimiGatedDeltaNetAttention", f"{__package__}.kda:DeferredKimi"
    ),
}


def register() -> None:
    """Put the classes in the place of vLLM's. What nothing asks for behaves as before.

    A class that this release of vLLM does not have, or has elsewhere, stays as it is.
    """
    for architecture, served in MODELS.items():
        if getattr(ModelRegistry.models.get(architecture), "module_name", None) == served.module:
            ModelRegistry.register_model(architecture, f"{__name__}:{architecture}")


def __getattr__(name: str) -> Any:
    """vLLM asks for a model's class before it builds the model's layers."""
    if name not in MODELS:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    served = MODELS[name]
    replace_layer(served.layer, served.replacement)
    return with_log(getattr(import_module(served.module), name), served.family)


def replace_layer(name: str, replacement: str) -> None:
    """Have vLLM build ours for its layer class ``name``; ``replacement`` is ``module:class``."""
    if name not in op_registry_oot:
        module, _, own = replacement.partition(":")
        PluggableLayer.register_oot(getattr(import_module(module), own), name=name)


def with_log(model: Any, family: Family) -> Any:
    """A class of the same name, whose state has a log where the settings ask for one.

    Args:
        model: vLLM's model class.
        family: its recurrence.
    """

    class Deferred(model):  # type: ignore[misc]
        @classmethod
        def get_mamba_state_shape_from_config(cls, vllm_config: Any) -> Any:
            page = _page(super(), family, vllm_config)
            return super().get_mamba_state_shape_from_config(vllm_config) if page is None else page.all_shapes

        @classmethod
        def get_mamba_state_dtype_from_config(cls, vllm_config: Any) -> Any:
            page = _page(super(), family, vllm_config)
            return super().get_mamba_state_dtype_from_config(vllm_config) if page is None else page.all_dtypes

    Deferred.__name__ = Deferred.__qualname__ = model.__name__
    return Deferred


def _page(model: Any, family: Family, vllm_config: Any) -> PageLayout | None:
    interval = interval_of(vllm_config)
    if interval is None:
        return None
    shapes, dtypes = (getattr(model, f"get_mamba_state_{what}_from_config")(vllm_config) for what in ("shape", "dtype"))
    return PageLayout.of(family, shapes, dtypes, vllm_config.model_config.dtype, interval)
