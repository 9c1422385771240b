"""What differs between the releases of vLLM whose layers can have a log: 0.26, for decode alone, and from 0.32 on."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
import vllm
from torch import Tensor
from vllm.logger import init_logger
from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update

from holdover.errors import ConfigError

# vLLM prints what is logged below its own name
logger = init_logger("vllm.holdover")

# the newest for torch 2.11
_DECODE_ONLY = (0, 26)
_TRIED = (0, 32)
_HAS_OUT = "out" in signature(causal_conv1d_update).parameters


def refuse_release(vllm_config: Any) -> None:
    """Refuse a release without the hooks, and connectors where vLLM's own handling of hybrid models is at fault.

    Raises:
        ConfigError: the release, or a connector in it.
    """
    version = vllm.__version_tuple__[:2]
    if version == _DECODE_ONLY:
        if vllm_config.kv_transfer_config is not None:
            raise ConfigError(
                f"vLLM {vllm.__version__} can corrupt the states of a hybrid model when a KV connector is used: leave "
                "out --kv-transfer-config, or install 0.32 or newer"
            )
        logger.warning_once("holdover: vLLM %s is for decode alone: it has no checkpoint tier", vllm.__version__)
    elif version < _TRIED:
        raise ConfigError(
            f"vLLM {vllm.__version__} is too old for deferred decode: install 0.32 or newer (with torch 2.11: 0.26)"
        )
    elif version > _TRIED:
        logger.warning_once("holdover: vLLM %s was never tried; 0.32 was", vllm.__version__)


def convolve(x: Tensor, histories: Tensor, weight: Tensor, bias: Tensor | None, pages: Tensor) -> Tensor:
    """vLLM's convolution kernel for one input of every sequence.

    Args:
        x: inputs ``[n, C]``, a view of the projection, whose other parts are read later.
        histories: of all pages ``[blocks, C, W - 1]``; those of ``pages`` move on.
        weight: ``[C, W]``.
        bias: ``[C]``.
        pages: int32 ``[n]``; 0 is padding.

    Returns:
        ``[n, C]``; 0.26 writes over ``x``, as its own layer does.
    """
    out = {"out": torch.empty_like(x)} if _HAS_OUT else {}
    convolved: Tensor = causal_conv1d_update(x, histories, weight, bias, "silu", conv_state_indices=pages, **out)
    return convolved
