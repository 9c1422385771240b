"""What tests ask of each of vLLM's workers; vLLM mixes it into its worker (``worker_extension_cls``)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from vllm.distributed.kv_transfer import get_kv_transfer_group

from holdover.integrations.vllm.connector.connector import HoldoverConnector
from holdover.integrations.vllm.connector.worker import TierWorker


class Watch:
    """Reaches into a worker."""

    vllm_config: Any

    def digests(self, blocks: Sequence[tuple[Sequence[str], int]]) -> list[str]:
        """Digests of blocks, each over some layers."""
        found = []
        for names, block in blocks:
            digest = hashlib.sha256()
            for name in names:
                for tensor in tensors_of(self, name):
                    digest.update(tensor[block].contiguous().view(torch.uint8).numpy().tobytes())
            found.append(digest.hexdigest())
        return found

    def paint(self) -> None:
        """Leave nothing in any page."""
        for name in layers_of(self):
            for tensor in tensors_of(self, name):
                tensor.fill_(99.0)

    def decoded(self) -> list[int]:
        """Tokens that one layer decoded from its log, and those of them that folded."""
        (counts,) = {
            tuple(layer.builder.group_cursor.counts.tolist())
            for layer in layers_of(self).values()
            if getattr(layer, "builder", None)
        }
        return list(counts)


def layers_of(worker: Any) -> dict[str, Any]:
    layers: dict[str, Any] = worker.vllm_config.compilation_config.static_forward_context
    return layers


def tensors_of(worker: Any, name: str) -> Iterator[torch.Tensor]:
    cache = getattr(layers_of(worker)[name], "kv_cache", ())
    return iter(tuple(cache) if isinstance(cache, tuple | list) else (cache,))


def tier_worker() -> TierWorker:
    """The connector's half of the worker in this process."""
    connector = get_kv_transfer_group()
    assert isinstance(connector, HoldoverConnector)
    return connector.worker
