"""The connector that vLLM builds, once in the scheduler and once in the worker: it hands every call to its half."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from holdover.integrations.vllm.connector.metadata import StepPlan, StepReport
from holdover.integrations.vllm.connector.scheduler import TierScheduler
from holdover.integrations.vllm.connector.setup import Setup
from holdover.integrations.vllm.connector.stats import TierMetrics, TierStats
from holdover.integrations.vllm.connector.worker import TierWorker


class HoldoverConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Checkpoints below vLLM's prefix cache. Loads are asynchronous: vLLM copies states before a load would start.

    Args:
        vllm_config: vLLM's configuration; ``additional_config`` has the settings (`TierConfig`).
        role: which half this is.
        kv_cache_config: vLLM's KV cache groups.

    Raises:
        HoldoverError: something cannot be used, and the message says what; vLLM does not start.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        is_worker = role == KVConnectorRole.WORKER
        setup = Setup.of(vllm_config, kv_cache_config, get_tensor_model_parallel_rank() if is_worker else 0)
        self._layers = vllm_config.compilation_config.static_forward_context
        self._worker = TierWorker(setup) if is_worker else None
        self._scheduler = None if is_worker else TierScheduler(setup)
        # the block size is settled by now, but vLLM for CPUs takes its default again when an engine in a process of its
        # own is ready, unless one was given; steps would end at multiples of that, where no state is kept
        vllm_config.cache_config.user_specified_block_size = True

    @property
    def worker(self) -> TierWorker:
        """The worker's half, in the worker."""
        assert self._worker is not None
        return self._worker

    @property
    def scheduler(self) -> TierScheduler:
        """The scheduler's half, in the scheduler."""
        assert self._scheduler is not None
        return self._scheduler

    @property
    def requires_kv_delivery(self) -> bool:
        """Nobody waits for what is kept here."""
        return False

    def register_kv_caches(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """Worker: see `TierWorker.register`."""
        logs = {name: self._layers[name] for name in kv_caches if getattr(self._layers[name], "page", None)}
        self.worker.register(kv_caches, logs)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Worker: see `TierWorker.start`."""
        self.worker.start(self._plan())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is loaded layer by layer."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing is saved layer by layer: vLLM calls this for attention layers only."""

    def wait_for_save(self) -> None:
        """Worker: see `TierWorker.save`."""
        self.worker.save(self._plan())

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Worker: see `TierWorker.finish`."""
        read, ended, failed = self.worker.finish()
        return KVConnectorTransferResults(finished_sending=read, finished_recving=ended, failed_recving=failed)

    def build_connector_worker_meta(self) -> StepReport | None:
        """Worker: see `TierWorker.report`."""
        return self.worker.report()

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Scheduler: see `TierScheduler.lookup`."""
        count = self.scheduler.lookup(request, num_computed_tokens)
        return count, count > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Scheduler: see `TierScheduler.admit`."""
        self.scheduler.admit(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepPlan:
        """Scheduler: see `TierScheduler.plan`."""
        return self.scheduler.plan(scheduler_output.kv_connector_block_state)

    def update_connector_output(self, connector_output: Any) -> None:
        """Scheduler: see `TierScheduler.absorb`."""
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, StepReport):
            self.scheduler.absorb(report)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Scheduler: see `TierScheduler.finish`."""
        return self.scheduler.finish(request, block_ids), None

    def has_pending_push_work(self) -> bool:
        """Scheduler: whether vLLM is to go on stepping until what was saved is written."""
        return self.scheduler.catalogue.has_pending

    def reset_cache(self) -> bool:
        """Scheduler: see `TierScheduler.reset`."""
        self.scheduler.reset()
        return True

    def get_kv_connector_stats(self) -> TierStats | None:
        """Counts since the last call, of this half."""
        if self._worker is not None:
            counters = self._worker.take_counters()
        else:
            counters, self.scheduler.counters = self.scheduler.counters, Counter()
        return TierStats(data=dict(counters)) if counters else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> TierStats:
        """Counts from what `get_kv_connector_stats` sent."""
        return TierStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> TierMetrics:
        """The tier's Prometheus counters."""
        return TierMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """Write what is pending and end the threads."""
        if self._worker is not None:
            self._worker.close()

    def _plan(self) -> StepPlan:
        plan = self._get_connector_metadata()
        assert isinstance(plan, StepPlan)
        return plan
