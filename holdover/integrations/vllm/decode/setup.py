"""What deferred decode refuses, before anything is allocated."""

from __future__ import annotations

from typing import Any

from holdover.errors import ConfigError
from holdover.integrations.vllm.config import DecodeConfig, has_tier_settings
from holdover.integrations.vllm.release import refuse_decode_release


def interval_of(vllm_config: Any) -> int | None:
    """The merge interval that a model's recurrent layers are to have; None leaves them as they are.

    Raises:
        ConfigError: the settings, or vLLM's configuration, cannot be used.
    """
    config = DecodeConfig.parse(vllm_config.additional_config)
    if has_tier_settings(vllm_config.additional_config) and vllm_config.kv_transfer_config is None:
        raise ConfigError(
            "the checkpoint tier is set up and not put in: pass --kv-transfer-config with the HoldoverConnector, "
            "or take its settings out of --additional-config"
        )
    if config is None:
        return None
    _refuse(vllm_config)
    unit = vllm_config.cache_config.prefix_match_unit
    if unit is not None and unit % config.interval:
        raise ConfigError(
            f"a prefix may end at any multiple of {unit} tokens, where a log of interval {config.interval} is not "
            "empty: set --prefix-match-unit to a multiple of the interval"
        )
    return config.interval


def _refuse(vllm_config: Any) -> None:
    parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
    refuse_decode_release(vllm_config)
    if vllm_config.speculative_config is not None:
        raise ConfigError("deferred decode does not verify drafts: leave out speculative decoding, or decode")
    if parallel.world_size != parallel.tensor_parallel_size:
        raise ConfigError(
            "of the ways to share a model among workers deferred decode supports tensor parallelism alone"
        )
    if parallel.use_ubatching:
        raise ConfigError("deferred decode does not split a batch: leave out dual batch overlap")
    if cache.mamba_cache_mode not in ("align", "none"):
        raise ConfigError(f"states are cached in mode {cache.mamba_cache_mode}: pass --mamba-cache-mode align")
    # 0.26 has none
    if getattr(cache, "use_replayssm", False):
        raise ConfigError("vLLM's own replay is another log for the same states: leave out --use-replayssm")
