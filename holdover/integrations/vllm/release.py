"""What the releases of vLLM can have: 0.26 deferred decode alone, 0.32 the checkpoint tier too."""

from __future__ import annotations

from typing import Any

import vllm
from vllm.logger import init_logger

from holdover.errors import ConfigError

# vLLM prints what is logged below its own name
logger = init_logger("vllm.holdover")

# the newest for torch 2.11
_DECODE_ONLY = (0, 26)
_TRIED = (0, 32)


def refuse_tier_release() -> None:
    """Refuse a release without the connector's hooks.

    Raises:
        ConfigError: the release.
    """
    if _version() < _TRIED:
        raise ConfigError(f"vLLM {vllm.__version__} is too old for the tier: install 0.32 or newer")
    _warn_of_newer()


def refuse_decode_release(vllm_config: Any) -> None:
    """Refuse a release without the layers' hooks, and connectors where vLLM's handling of hybrid models is at fault.

    Raises:
        ConfigError: the release, or a connector in it.
    """
    if _version() == _DECODE_ONLY:
        if vllm_config.kv_transfer_config is not None:
            raise ConfigError(
                f"vLLM {vllm.__version__} can corrupt the states of a hybrid model when a KV connector is used: leave "
                "out --kv-transfer-config, or install 0.32 or newer"
            )
        logger.warning_once("holdover: vLLM %s is for decode alone: it has no checkpoint tier", vllm.__version__)
    elif _version() < _TRIED:
        raise ConfigError(
            f"vLLM {vllm.__version__} is too old for deferred decode: install 0.32 or newer (with torch 2.11: 0.26)"
        )
    _warn_of_newer()


def _version() -> tuple[int, ...]:
    version: tuple[int, ...] = vllm.__version_tuple__[:2]
    return version


def _warn_of_newer() -> None:
    if _version() > _TRIED:
        logger.warning_once("holdover: vLLM %s was never tried; 0.32 was", vllm.__version__)
