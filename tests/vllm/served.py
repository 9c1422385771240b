"""One vLLM engine in this process, with its caches and counters in reach."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from vllm.entrypoints.llm import LLM
from vllm.sampling_params import SamplingParams

from holdover.weights.bundled import bundled_path
from holdover.weights.source import resolve
from tests.vllm.random_model import write_qwen3_next

# tokens of a block of each model's, without a log and with logs of up to 15 entries
BLOCKS = {"tiny-gdn": {384, 512}, "qwen3-next": {128, 256}}
# short enough for the few blocks with which requests are preempted
LENGTHS = {"tiny-gdn": 4096, "qwen3-next": 1024}
TOKENS = 16


def model_folder(model: str, folder: Path) -> Path:
    """A model's files, in a folder of the test's own."""
    if model == "qwen3-next":
        return write_qwen3_next(folder / model)
    source, target = bundled_path("tiny-gdn"), folder / model
    assert source is not None
    target.mkdir(exist_ok=True)
    for file in source.iterdir():
        if not (target / file.name).exists():
            (target / file.name).symlink_to(file)
    assert resolve(str(target)).weights
    return target


def prompt(seed: int, length: int) -> list[int]:
    return torch.randint(5, 4000, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


class Served:
    """vLLM on one model.

    Args:
        folder: for the model.
        settings: the plug-in's; None leaves them out.
        model: ``tiny-gdn``, which is bundled, or ``qwen3-next``, of random weights.
        prefix_caching: vLLM's, without which there is no tier either.
        changes: other arguments of vLLM's.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any] | None = None,
        *,
        model: str = "tiny-gdn",
        prefix_caching: bool = True,
        **changes: Any,
    ) -> None:
        extra: dict[str, Any] = {} if settings is None else {"additional_config": {"holdover": settings}}
        if settings is not None and settings.keys() != {"decode"}:
            extra["kv_transfer_config"] = {
                "kv_connector": "HoldoverConnector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
            }
        self.llm = LLM(
            model=str(model_folder(model, folder)),
            dtype="bfloat16",
            max_model_len=LENGTHS[model],
            max_num_seqs=4,
            enforce_eager=True,
            enable_prefix_caching=prefix_caching,
            skip_tokenizer_init=True,
            disable_log_stats=False,
            worker_extension_cls="tests.vllm.watch.Watch",
            **extra | changes,
        )
        config = self.llm.llm_engine.vllm_config
        self.layers = config.compilation_config.static_forward_context
        self.scheduler = self.llm.llm_engine.engine_core.engine_core.scheduler
        self.block = config.cache_config.block_size
        assert self.block in BLOCKS[model] or not prefix_caching, self.block
        if "kv_transfer_config" in extra:
            # an engine in a process of its own does this once it is ready; steps then have to end where blocks do
            config.__post_init__()
            assert config.cache_config.block_size == self.block

    def generate(
        self, prompts: Sequence[Sequence[int]], salt: str | None = None, tokens: int = TOKENS
    ) -> list[dict[str, Any]]:
        """Greedy tokens of every prompt, by how much each led the next best, and how many of its tokens were cached."""
        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, logprobs=2, detokenize=False)
        inputs = [{"prompt_token_ids": list(ids)} | ({} if salt is None else {"cache_salt": salt}) for ids in prompts]
        outputs = self.llm.generate(inputs, params, use_tqdm=False)
        # a server goes on stepping until what is kept of the requests' ends is written; `generate` does not
        while self.scheduler.has_requests():
            self.llm.llm_engine.step()
        return [
            {"tokens": list(o.outputs[0].token_ids), "leads": _leads(o.outputs[0]), "cached": o.num_cached_tokens}
            for o in outputs
        ]

    def decoded(self) -> dict[str, int]:
        """Tokens that one layer decoded from its log, and those of them that folded."""
        counts, *others = self.llm.collective_rpc("decoded")
        assert all(other == counts for other in others)
        return dict(zip(("tokens", "folds"), counts, strict=True))

    def events(self) -> dict[str, int]:
        """The tier's counters, from vLLM's own metrics."""
        found = [m for m in self.llm.get_metrics() if m.name == "vllm:holdover_events"]
        return {m.labels["event"]: int(m.value) for m in found}

    def preemptions(self) -> int:
        """How often vLLM took a request's blocks away."""
        return sum(int(m.value) for m in self.llm.get_metrics() if m.name == "vllm:num_preemptions")

    def cached_pages(self) -> dict[str, list[str]]:
        """Digests of every block in vLLM's prefix cache, one of each rank, by the block's hash."""
        blocks = {
            block.block_hash.hex(): (self._group_layers(block), block.block_id)
            for block in self.scheduler.kv_cache_manager.block_pool.blocks
            if block.block_hash is not None
        }
        ranks = self.llm.collective_rpc("digests", args=(list(blocks.values()),))
        return {key: list(found) for key, found in zip(blocks, zip(*ranks, strict=True), strict=True)}

    def state_blocks(self) -> dict[int, int]:
        """Block of the one recurrent state that vLLM's prefix cache holds, by layer of the stack."""
        blocks = {}
        for block in self.scheduler.kv_cache_manager.block_pool.blocks:
            if block.block_hash is not None:
                for name in self._group_layers(block):
                    index = int(name.split(".layers.")[1].split(".")[0])
                    if len(self._tensors(name)) > 1:
                        assert index not in blocks, "more than one state is cached"
                        blocks[index] = block.block_id
        return blocks

    def state_pages(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Conv and temporal pages of one layer of the stack, as vLLM declares them."""
        name = next(name for name in self.layers if f".layers.{index}." in name and len(self._tensors(name)) > 1)
        conv, temporal = self._tensors(name)
        return conv, temporal

    def forget(self) -> None:
        """Empty vLLM's prefix cache and paint all of its pages, so that nothing can be there still."""
        assert self.llm.reset_prefix_cache()
        assert not self.cached_pages()
        self.llm.collective_rpc("paint")

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()

    def _group_layers(self, block: Any) -> list[str]:
        group = int.from_bytes(block.block_hash[-4:], "big")
        names: list[str] = self.scheduler.kv_cache_config.kv_cache_groups[group].layer_names
        return names

    def _tensors(self, name: str) -> tuple[torch.Tensor, ...]:
        cache = getattr(self.layers[name], "kv_cache", ())
        return tuple(cache) if isinstance(cache, tuple | list) else (cache,)


def _leads(output: Any) -> list[float]:
    leads = []
    for found in output.logprobs:
        best, second, *_ = sorted((entry.logprob for entry in found.values()), reverse=True)
        leads.append(best - second)
    return leads
