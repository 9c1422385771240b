"""The engine's side of `vllm_host`: each line of standard input says what to measure, and a line is the answer."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch

from benchmarks.common import Row
from benchmarks.vllm_process import answer, answers_alone
from holdover.evaluation.traces.sharegpt import load_sharegpt

# tokens of an answer in a conversation
ANSWER = 48


class Arm:
    """One engine in this process.

    Args:
        model: directory.
        load_format: vLLM's.
        settings: the plug-in's; none for stock vLLM.
        changes: other arguments of vLLM's.
    """

    def __init__(self, model: str, load_format: str, settings: dict[str, Any], changes: dict[str, Any]) -> None:
        # vLLM reads these when it is imported
        os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        from vllm import LLM, SamplingParams

        connector = {"kv_connector": "HoldoverConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
        extra: dict[str, Any] = {"additional_config": {"holdover": settings}} if settings else {}
        self._has_tier = "host_budget" in settings
        if self._has_tier:
            extra["kv_transfer_config"] = connector
        self._llm = LLM(
            model=model,
            load_format=load_format,
            dtype="bfloat16",
            mamba_ssm_cache_dtype="float32",
            max_model_len=4096,
            max_num_seqs=4,
            enforce_eager=True,
            enable_prefix_caching=True,
            seed=0,
            **extra | changes,
        )
        self._sampling = SamplingParams
        self._drawn = torch.Generator().manual_seed(0)

    def ttft(self, tokens: int) -> Row:
        """A prompt that returns after vLLM's cache was emptied: milliseconds to its first token; what was cached."""
        prompt = self._prompt(tokens)
        self._generate([prompt], 1)
        self._forget()
        start = time.perf_counter()
        (output,) = self._generate([prompt], 1)
        return {"ms": 1e3 * (time.perf_counter() - start), "cached": output.num_cached_tokens}

    def depths(self, trace: str, conversations: int, turns: int) -> Row:
        """Recorded conversations, answered by the model: how deep each later turn resumes.

        With a tier, vLLM's cache is emptied before every turn; without, nothing is ever evicted.

        Returns:
            ``depths``: of every later turn, the tokens that it has in common with what was computed, and those that
            were cached.
        """
        tokenizer, found = self._llm.get_tokenizer(), []
        for conversation in load_sharegpt(trace, limit=conversations):
            history: list[int] = []
            for text in [turn.text for turn in conversation.turns if turn.role == "user"][:turns]:
                prompt = history + tokenizer.encode(text)
                (output,) = self._generate([prompt], ANSWER)
                if history:
                    found.append((len(history), output.num_cached_tokens))
                history = prompt + list(output.outputs[0].token_ids)
                if self._has_tier:
                    self._forget()
        return {"depths": found}

    def _forget(self) -> None:
        """Empty vLLM's cache, once the tier has what it keeps: it saves and writes while the engine steps."""
        self._generate([self._prompt(16)], 8)
        assert self._llm.reset_prefix_cache()

    def _prompt(self, length: int) -> list[int]:
        return torch.randint(5, 4000, (length,), generator=self._drawn).tolist()

    def _generate(self, prompts: list[list[int]], tokens: int) -> list[Any]:
        params = self._sampling(max_tokens=tokens, temperature=0, ignore_eos=True)
        found: list[Any] = self._llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return found


def main() -> None:
    answers = answers_alone()
    model, load_format, settings, changes = sys.argv[1:]
    arm = Arm(model, load_format, json.loads(settings), json.loads(changes))
    answer(answers, {"ttft": arm.ttft, "depths": arm.depths})


if __name__ == "__main__":
    main()
