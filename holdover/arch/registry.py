"""Which architectures Holdover knows, and the layout of a model from its raw configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdover.arch import (
    bailing_hybrid,
    bamba,
    falcon_h1,
    glm5_next,
    granite_hybrid,
    kimi_linear,
    nemotron_h,
    olmo_hybrid,
    qwen3_5,
    qwen3_next,
    rwkv6,
    zamba2,
)
from holdover.arch.architecture import Architecture, Gate
from holdover.arch.fields import Fields
from holdover.arch.layout import DTYPE_BYTES, ModelLayout
from holdover.arch.refusals import attention_only, other_inputs, refusal
from holdover.errors import ConfigError, UnsupportedArchitectureError

_MODULES = (
    *(qwen3_5, qwen3_next, olmo_hybrid),
    *(kimi_linear, bailing_hybrid, glm5_next),
    *(granite_hybrid, bamba, nemotron_h, falcon_h1, zamba2),
    rwkv6,
)
ARCHITECTURES: dict[str, Architecture] = {module.ARCHITECTURE.name: module.ARCHITECTURE for module in _MODULES}
_DEFAULT_DTYPE = "bfloat16"


def layout_from_config(config: Mapping[str, Any], *, dtype: str | None = None) -> ModelLayout:
    """The layout of the model that ``config`` describes.

    Args:
        config: a raw ``config.json``, as published or as the embedded host saves it; multimodal wrappers are
            unwrapped to their ``text_config``.
        dtype: dtype that the host runs in (conv state and KV). Default: the configuration's, else bfloat16.

    Raises:
        UnsupportedArchitectureError: the architecture is unknown, refused, or has no recurrent layer.
        ConfigError: a key is missing or its value impossible.
    """
    view = _View.of(config)
    published = _published_dtype(view, fallback=dtype)
    host = published if dtype is None else _checked_dtype(dtype, "dtype")
    return _select(view).read_layout(view.text, published, host)


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """The registry's row for ``config``. Raises UnsupportedArchitectureError or ConfigError."""
    return _select(_View.of(config))


def gate_from_config(config: Mapping[str, Any]) -> Gate:
    """The decay gate's constants of the model that ``config`` describes.

    Raises:
        UnsupportedArchitectureError: the architecture is unknown or refused.
        ConfigError: a key's value is impossible.
    """
    view = _View.of(config)
    return _select(view).read_gate(view.text)


@dataclass(frozen=True)
class _View:
    """A configuration with its text part: the same object where nothing is wrapped."""

    whole: Fields
    text: Fields

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> _View:
        if not isinstance(config, Mapping):
            raise ConfigError(f"config: the top level is {type(config).__name__}; wanted an object")
        whole = Fields(config)
        return cls(whole, whole.section("text_config") if whole.has("text_config") else whole)

    def model_types(self) -> list[str]:
        """The model types it claims, the text part's first."""
        parts = dict.fromkeys((self.text, self.whole))
        return [part.text("model_type") for part in parts if part.has("model_type")]

    def classes(self) -> list[str]:
        """The class names it claims, the text part's first."""
        parts = [part for part in dict.fromkeys((self.text, self.whole)) if part.has("architectures")]
        return [str(name) for part in parts for name in part.sequence("architectures")]


def _select(view: _View) -> Architecture:
    model_types, classes = view.model_types(), view.classes()
    for name in (*model_types, *classes):
        for architecture in ARCHITECTURES.values():
            if name in architecture.model_types or name in architecture.classes:
                return architecture
    raise _unsupported(view, model_types, classes)


def _unsupported(view: _View, model_types: list[str], classes: list[str]) -> UnsupportedArchitectureError:
    seen = ", ".join(dict.fromkeys((*model_types, *classes)))
    hosted = [row for row in ARCHITECTURES.values() if row.hosted]
    supported = ", ".join(name for row in hosted for name in row.classes if name.endswith("CausalLM"))
    refused = refusal((*model_types, *classes))
    if refused is not None:
        name, reason = refused
        return UnsupportedArchitectureError(f"{name} is not supported: {reason}. Supported: {supported}")
    if attention_only(view.text, model_types[0] if model_types else None):
        return UnsupportedArchitectureError(
            f"{seen or 'this model'} has no recurrent layer, only attention: there is no recurrent state to manage. "
            f"Supported: {supported}"
        )
    if not seen:
        return UnsupportedArchitectureError(
            f"config: neither model_type nor architectures is set, so the model is unknown. Supported: {supported}"
        )
    if (inputs := other_inputs(view.whole)) is not None:
        return UnsupportedArchitectureError(
            f"{seen} takes {inputs}; only text is supported, of models whose text part is known. Supported: {supported}"
        )
    return UnsupportedArchitectureError(f"unknown architecture {seen}. Supported: {supported}")


def _published_dtype(view: _View, *, fallback: str | None) -> str:
    for part in (view.text, view.whole):
        if part.has("dtype", "torch_dtype"):
            return _checked_dtype(part.text("dtype", "torch_dtype"), "config: dtype")
    return _DEFAULT_DTYPE if fallback is None else _checked_dtype(fallback, "dtype")


def _checked_dtype(dtype: str, what: str) -> str:
    name = dtype.removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise ConfigError(f"{what} is {dtype!r}; wanted one of {', '.join(DTYPE_BYTES)}")
    return name
