"""The engine's side of `vllm_gpu`: one vLLM, stock or with deferred decode, that measures what it is asked for."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from itertools import count
from typing import Any

import torch

from benchmarks.common import Row
from benchmarks.vllm_gpu_model import RECURRENT_LAYERS, VOCABULARY, draw, register
from benchmarks.vllm_process import answer, answers_alone

# tokens of the two answers that `tpot` compares; their difference is a multiple of every interval up to 16
SHORT, LONG = 32, 160
# steps before the profiler starts, and of its window: whole cycles of every interval up to 16
SKIPPED, PROFILED = 24, 16
# prompts are this long and up to 15 tokens longer, so that sequences fold in different steps
PROMPT, PHASES = 16, 16
# kernels that advance the recurrence, by how their names begin; the second works out decays and write strengths, which
# vLLM's own kernel does itself
STOCK_UPDATE = ("fused_recurrent_gated_delta_rule_packed_decode",)
DEFERRED_UPDATE = ("step_kernel", "fused_olmo_hybrid_gdn_gating")
# bytes of vLLM's pool: enough for 256 sequences at any interval up to 16
POOL = 28 << 30


class Arm:
    """One engine in this process.

    Args:
        model: directory with its configuration.
        settings: the plug-in's; none for stock vLLM.
        batches: numbers of sequences that there will be, for which graphs are captured.
    """

    def __init__(self, model: str, settings: dict[str, Any], batches: list[int]) -> None:
        # vLLM reads these when it is imported
        os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        from vllm import LLM, SamplingParams

        register(deferred=bool(settings))
        self._update = DEFERRED_UPDATE if settings else STOCK_UPDATE
        self._llm = LLM(
            model=model,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            mamba_ssm_cache_dtype="float32",
            max_model_len=2048,
            max_num_seqs=max(batches),
            max_num_batched_tokens=8192,
            enable_prefix_caching=False,
            # engines that start together on one GPU must not size their pools by what is free
            gpu_memory_utilization=0.2,
            kv_cache_memory_bytes=POOL,
            compilation_config={
                "mode": 3,
                "cudagraph_mode": "FULL_AND_PIECEWISE",
                "cudagraph_capture_sizes": sorted({1, 8, *batches}),
            },
            # on Hopper vLLM 0.26 would take FlashInfer without looking whether it is there
            additional_config={"gdn_prefill_backend": "triton"} | ({"holdover": settings} if settings else {}),
            seed=0,
        )
        self._llm.apply_model(draw)
        self._sampling, self._names = SamplingParams, count()

    def tpot(self, batch: int) -> float:
        """Milliseconds a token of ``batch`` sequences, from two lengths of answers after the same prompts."""
        short, long = (self._timed(batch, tokens) for tokens in (SHORT, LONG))
        return 1e3 * (long - short) / (LONG - SHORT)

    def kernels(self, batch: int) -> Row:
        """GPU time of a decode step of ``batch`` sequences in ms, of all kernels and of the recurrence's.

        Returns:
            ``kernel_ms``, ``update_ms``, ``span_ms`` from the first kernel to the last, ``steps`` that were seen, and
            ``kernels``: the largest, ``[name, ms a step, launches a step]``.
        """
        engine, activities = self._llm.llm_engine, [torch.profiler.ProfilerActivity.CUDA]
        for prompt in _prompts(batch):
            sampling = self._params(SKIPPED + PROFILED + 16)
            engine.add_request(f"profiled-{next(self._names)}", {"prompt_token_ids": prompt}, sampling)
        profile = torch.profiler.profile(activities=activities)
        for step in range(SKIPPED + PROFILED):
            if step == SKIPPED:
                torch.cuda.synchronize()
                profile.start()
            engine.step()
        torch.cuda.synchronize()
        profile.stop()
        while engine.has_unfinished_requests():
            engine.step()
        return self._summed(profile)

    def _summed(self, profile: Any) -> Row:
        times, launches, spans = defaultdict[str, float](float), defaultdict[str, int](int), []
        for event in profile.events():
            if event.device_type.name == "CUDA":
                span = event.time_range
                times[event.name] += (span.end - span.start) / 1e3
                launches[event.name] += 1
                spans.append((span.start, span.end))
        update = [name for name in times if name.startswith(self._update)]
        main = sum(launches[name] for name in update if name.startswith(self._update[0]))
        steps = main / RECURRENT_LAYERS
        if not steps:
            raise RuntimeError(f"no kernel of the recurrence among {sorted(times)}")
        largest = sorted(times, key=times.__getitem__, reverse=True)[:24]
        return {
            "kernel_ms": sum(times.values()) / steps,
            "update_ms": sum(times[name] for name in update) / steps,
            "span_ms": (max(end for _, end in spans) - min(start for start, _ in spans)) / 1e3 / steps,
            "steps": steps,
            "kernels": [[name[:120], times[name] / steps, launches[name] / steps] for name in largest],
        }

    def tokens(self, batch: int, prompts: int, length: int) -> list[Row]:
        """Greedy answers to the first ``prompts`` of ``batch`` prompts.

        Returns:
            ``ids``, and ``logprobs``: of the five likeliest tokens at each position, by id.
        """
        found = self._generate(batch, length, logprobs=5)[:prompts]
        return [
            {
                "ids": list(output.outputs[0].token_ids),
                "logprobs": [{str(t): x.logprob for t, x in at.items()} for at in output.outputs[0].logprobs],
            }
            for output in found
        ]

    def folds(self) -> list[int]:
        """Tokens that were decoded from a log, and those of them that folded it, of one KV cache group; or nothing."""
        layers = self._llm.llm_engine.vllm_config.compilation_config.static_forward_context.values()
        builders = [layer.builder for layer in layers if getattr(layer, "builder", None) is not None]
        counts: list[int] = builders[0].group_cursor.counts.tolist() if builders else []
        return counts

    def _timed(self, batch: int, tokens: int) -> float:
        start = time.perf_counter()
        self._generate(batch, tokens)
        return time.perf_counter() - start

    def _generate(self, batch: int, tokens: int, **extra: Any) -> list[Any]:
        prompts = [{"prompt_token_ids": prompt} for prompt in _prompts(batch)]
        found: list[Any] = self._llm.generate(prompts, self._params(tokens, **extra), use_tqdm=False)
        return found

    def _params(self, tokens: int, **extra: Any) -> Any:
        return self._sampling(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False, **extra)


def _prompts(batch: int) -> list[list[int]]:
    drawn = torch.Generator().manual_seed(0)
    lengths = [PROMPT + row % PHASES for row in range(batch)]
    return [torch.randint(3, VOCABULARY, (length,), generator=drawn).tolist() for length in lengths]


def main() -> None:
    answers = answers_alone()
    model, settings, batches = sys.argv[1:]
    arm = Arm(model, json.loads(settings), json.loads(batches))
    answer(answers, {"tpot": arm.tpot, "kernels": arm.kernels, "tokens": arm.tokens, "folds": arm.folds})


if __name__ == "__main__":
    main()
