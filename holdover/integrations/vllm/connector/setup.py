"""What both halves of the connector derive from vLLM's configuration, and what they refuse."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import vllm
from vllm.logger import init_logger

from holdover.arch.layout import StateLayout
from holdover.arch.registry import layout_from_config
from holdover.codec import Codec
from holdover.errors import ConfigError, UnsupportedArchitectureError
from holdover.integrations.vllm.config import TierConfig
from holdover.integrations.vllm.connector.groups import CacheGroups
from holdover.integrations.vllm.connector.shard import shard_layout, shard_plan
from holdover.retention import Element, RetentionPlan
from holdover.retention.decay import read_decay
from holdover.retention.plan_file import read_plan
from holdover.weights.digest import model_digest
from holdover.weights.files import ModelFiles
from holdover.weights.source import resolve

# vLLM prints what is logged below its own name
logger = init_logger("vllm.holdover")

# families whose pages were compared with the core's own states
_FAMILIES = frozenset({"gdn"})


@dataclass(frozen=True, eq=False)
class Setup:
    """A tier for one model in one vLLM configuration.

    Attributes:
        config: the operator's settings.
        groups: vLLM's caches, the same on every rank.
        codecs: how each rank packs its part of a state.
        rank: whose setup this is; the scheduler's half, which has none, is given 0.
        identity: names everything but tokens, salt and rank that decides whether two entries may stand for each other.
        packed_above: depth up to which the plan would leave out what is not forgotten yet.
    """

    config: TierConfig
    groups: CacheGroups
    codecs: tuple[Codec, ...]
    rank: int
    identity: str
    packed_above: int

    @classmethod
    def of(cls, vllm_config: Any, kv_cache_config: Any, rank: int = 0) -> Setup:
        """Derive it.

        Args:
            vllm_config: vLLM's configuration.
            kv_cache_config: its KV cache groups.
            rank: of the worker.

        Raises:
            HoldoverError: the settings, the model or vLLM's configuration cannot be used; nothing was allocated.
        """
        config = TierConfig.parse(vllm_config.additional_config)
        _refuse(vllm_config)
        model = vllm_config.model_config
        files = resolve(str(model.model))
        layout = layout_from_config(files.config, dtype=str(model.dtype).removeprefix("torch.")).state
        if strange := {layer.family for layer in layout.layers} - _FAMILIES:
            raise UnsupportedArchitectureError(f"states of {sorted(strange)} are not yet kept in vLLM; gdn is")
        groups = CacheGroups.of(kv_cache_config)
        plan = _plan(config, files)
        layout = groups.state_layout(layout)
        codecs = _codecs(layout, plan, config.element, vllm_config.parallel_config.tensor_parallel_size)
        above = plan.replay_window(sys.maxsize) if plan is not None else 0
        return cls(config, groups, codecs, rank, _identity(vllm_config, files, groups, codecs), above)

    @property
    def codec(self) -> Codec:
        """This rank's."""
        return self.codecs[self.rank]

    @property
    def ranks(self) -> int:
        """Workers that share the model."""
        return len(self.codecs)

    @property
    def is_lossless(self) -> bool:
        """Whether every rank's part comes back as it was."""
        return all(codec.is_lossless for codec in self.codecs)

    @property
    def losses(self) -> int:
        """Losses that one restore adds to a state's past."""
        return 0 if self.is_lossless else 1

    @property
    def host_budget(self) -> int | None:
        """This rank's part of the host memory, by the size of an entry of one block: so ranks fill up together."""
        if self.config.host_budget is None:
            return None
        rows = self.groups.block_bytes
        return self.config.host_budget * (self.codec.nbytes + rows) // sum(c.nbytes + rows for c in self.codecs)

    def folder(self, rank: int) -> str:
        """Name of a rank's folder in the spill directory."""
        return self.identity if self.ranks == 1 else f"{self.identity}-{rank}-of-{self.ranks}"


def _refuse(vllm_config: Any) -> None:
    transfer, parallel = vllm_config.kv_transfer_config, vllm_config.parallel_config
    if transfer.kv_load_failure_policy != "recompute":
        raise ConfigError('set "kv_load_failure_policy": "recompute" in --kv-transfer-config: no request is to fail')
    if transfer.kv_role != "kv_both":
        raise ConfigError(f'the kv_role is {transfer.kv_role!r}; set "kv_both" in --kv-transfer-config')
    if parallel.world_size != parallel.tensor_parallel_size:
        raise ConfigError("of the ways to share a model among workers the tier supports --tensor-parallel-size alone")
    if parallel.decode_context_parallel_size != 1:
        raise ConfigError("a context that ranks share is not supported by the tier: leave out context parallelism")
    if parallel.nnodes != 1:
        raise ConfigError("the scheduler looks into every rank's folder: the tier supports workers of one machine")
    if vllm_config.speculative_config is not None:
        raise ConfigError("speculative decoding keeps more than a state in its pages: not supported by the tier")
    if not vllm_config.cache_config.enable_prefix_caching:
        raise ConfigError("the tier continues vLLM's prefix cache: pass --enable-prefix-caching")
    if vllm_config.model_config.revision is not None:
        raise ConfigError("a revision cannot be named to the tier: download the model and pass its directory")


def _plan(config: TierConfig, files: ModelFiles) -> RetentionPlan | None:
    if config.plan is None:
        return None
    plan = read_plan(config.plan)
    decay = read_decay(files)
    plan.check_fits(decay.fingerprint, decay.layout.state)
    _warn_of(plan, config.element)
    return plan


def _warn_of(plan: RetentionPlan, element: Element) -> None:
    """Say so where nothing shows that answers stay close: in vLLM omitted units are zero, and never replayed."""
    if plan.omits_nothing:
        return
    gate, wanted = plan.quality, (plan.w_max, "none", element)
    points = () if gate is None else (gate.chosen, *gate.sweep)
    point = next((p for p in points if (p.w_max, p.refresh, p.element) == wanted), None)
    if gate is None or point is None:
        logger.warning_once("holdover: the plan's quality was not measured without replay: run holdover calibrate")
    elif point.p95_kl > gate.budget:
        logger.warning_once(
            "holdover: without replay the plan is above its budget: P95 KL %.2g, budget %.2g", point.p95_kl, gate.budget
        )


def _codecs(layout: StateLayout, plan: RetentionPlan | None, element: Element, ranks: int) -> tuple[Codec, ...]:
    """Of every rank."""
    part = shard_layout(layout, ranks)
    plans = [None if plan is None else shard_plan(plan, part, rank, ranks) for rank in range(ranks)]
    return tuple(Codec(part, own, element=element) for own in plans)


def _identity(vllm_config: Any, files: ModelFiles, groups: CacheGroups, codecs: Sequence[Codec]) -> str:
    model, cache = vllm_config.model_config, vllm_config.cache_config
    parts = (
        f"vllm {vllm.__version__} {vllm_config.device_config.device_type}",
        model_digest(files),
        f"{model.dtype} {model.quantization} {model.hf_overrides}",
        f"{cache.cache_dtype} {groups.block_size} {[layer.spec for layer in groups.attention]}",
        *(codec.digest for codec in codecs),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
