"""One recurrent layer of vLLM on a CPU, with pages and metadata but without an engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, model_parallel_is_initialized
from vllm.distributed.parallel_state import ensure_model_parallel_initialized
from vllm.forward_context import set_forward_context
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.attention.backend import CommonAttentionMetadata

NAME = "model.layers.0.linear_attn"
PAGES = 4


@dataclass(frozen=True)
class Row:
    """One sequence of a step.

    Attributes:
        computed: its tokens before the step.
        scheduled: those of the step.
        sequence: its number; pages are a sequence's own.
    """

    computed: int
    scheduled: int
    sequence: int = 0

    @property
    def end(self) -> int:
        return self.computed + self.scheduled

    def block(self, depth: int, block_size: int) -> int:
        """Page that holds the state at a depth."""
        return 1 + PAGES * self.sequence + (depth - 1) // block_size


def parallel() -> None:
    """vLLM's layers ask for a process group, of one."""
    if not model_parallel_is_initialized():
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        init_distributed_environment(1, 0, "tcp://127.0.0.1:29517", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)


class LayerRun:
    """A layer with pages full of poison.

    Args:
        config: vLLM's.
        cls: the layer's class.
        model: configuration of the model.
        sequences: how many there may be, of four blocks each.
        block_size: tokens of a block.
    """

    def __init__(self, config: VllmConfig, cls: Any, model: Any, sequences: int = 2, block_size: int = 32) -> None:
        self.config, self.block_size = config, block_size
        config.cache_config.mamba_block_size = block_size
        config.compilation_config.static_forward_context.clear()
        with set_current_vllm_config(config), set_default_torch_dtype(config.model_config.dtype):
            parallel()
            self.layer = cls(model, config, prefix=NAME)
            draw(self.layer)
            for module in self.layer.modules():
                if hasattr(module, "quant_method"):
                    module.quant_method.process_weights_after_loading(module)
            spec = self.layer.get_kv_cache_spec(config)
            self.pages = torch.full((1 + PAGES * sequences, 1, 1, spec.page_size_bytes), -1, dtype=torch.int8)
            self.layer.bind_kv_cache(self.pages)
            builder = self.layer.get_attn_backend().get_builder_cls()
            self.builder = builder(spec, [NAME], config, torch.device("cpu"))

    @contextmanager
    def step(self, rows: Sequence[Row]) -> Any:
        """The context in which a layer runs one step of ``rows``, those that decode first."""
        with set_current_vllm_config(self.config):
            metadata = self.builder.build(0, common(rows, self.block_size))
            with set_forward_context({NAME: metadata}, self.config):
                yield metadata

    def forward(self, hidden: Tensor, rows: Sequence[Row]) -> Tensor:
        """The layer's output for the tokens of one step ``[tokens, hidden_size]``."""
        self.migrate(rows)
        with self.step(rows), torch.no_grad():
            out: Tensor = self.layer(hidden)
        return out

    def migrate(self, rows: Sequence[Row]) -> None:
        """What vLLM does before a step that ends in another block: it copies the two states."""
        for row in rows:
            if row.computed:
                source, target = (row.block(depth, self.block_size) for depth in (row.computed, row.end))
                for state in self.layer.kv_cache:
                    state[target] = state[source].clone()

    def states(self, row: Row) -> list[Tensor]:
        """The two states behind a row's step, fp32."""
        return [state[row.block(row.end, self.block_size)].float() for state in self.layer.kv_cache]


def common(rows: Sequence[Row], block_size: int) -> CommonAttentionMetadata:
    scheduled = [row.scheduled for row in rows]
    ends = torch.tensor([row.end for row in rows], dtype=torch.int32)
    starts = torch.tensor([0, *scheduled]).cumsum(0).to(torch.int32)
    tables = torch.zeros(len(rows), 64, dtype=torch.int32)
    for table, row in zip(tables, rows, strict=True):
        table[(row.end - 1) // block_size] = row.block(row.end, block_size)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=ends,
        num_reqs=len(rows),
        num_actual_tokens=sum(scheduled),
        max_query_len=max(scheduled),
        max_seq_len=int(ends.max()),
        block_table_tensor=tables,
        slot_mapping=torch.zeros(sum(scheduled), dtype=torch.int64),
        is_prefilling=torch.tensor([row.computed == 0 for row in rows]),
        seq_lens_cpu_upper_bound=ends,
    )


def draw(layer: torch.nn.Module) -> None:
    """Small random parameters, and decays of many lengths."""
    noise = torch.Generator().manual_seed(0)
    for name, value in layer.named_parameters():
        shape, leaf = value.shape, name.rpartition(".")[2]
        drawn = torch.randn(shape, generator=noise, dtype=torch.float32)
        with torch.no_grad():
            if leaf == "A_log":
                value.copy_(torch.linspace(-6, 1, value.numel()).view(shape))
            elif "norm" in name:
                value.copy_(1 + 0.1 * drawn)
            else:
                value.copy_(drawn * (0.5 if value.dim() < 2 else shape[-1] ** -0.5))
