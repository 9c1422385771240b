"""How much do answers depend on the recurrent state?  ``python -m training.state_check assets/models/tiny-gdn``.

A prompt's context is read, then the recurrent states (not the attention's keys and values, not the convolutions') are
kept, reset to zero, or rounded to few bits, and the rest of the prompt (its last 40 tokens, which hold the question)
and the answer follow.  Exact match by task and treatment; and, for held-out text, the loss of the 64 tokens that follow
a context of 512 tokens.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedModel

from training.data import DATA
from training.score import Case, cases
from training.tokenizer import render

TAIL = 40


def rounded(bits: int) -> Callable[[Tensor], Tensor]:
    """Symmetric rounding with one scale per head, state ``[B, H, D, V]``."""

    def treat(state: Tensor) -> Tensor:
        scale = state.abs().amax((-1, -2), keepdim=True).clamp(min=1e-12) / (2 ** (bits - 1) - 1)
        return (state / scale).round() * scale

    return treat


TREATMENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "kept": lambda state: state,
    "8 bits": rounded(8),
    "4 bits": rounded(4),
    "2 bits": rounded(2),
    "zero": torch.zeros_like,
}


class Reader:
    """Reads a context once and goes on from treated copies of what it left."""

    def __init__(self, model: PreTrainedModel, context: list[int]) -> None:
        self.model = model
        names = inspect.signature(inspect.unwrap(type(model).forward)).parameters
        self.keyword = "cache" if "cache" in names else "past_key_values"  # renamed in Transformers 5.24
        self.cache = DynamicCache(config=model.config)
        self._forward(context, self.cache)

    def _forward(self, ids: list[int], cache: DynamicCache) -> Tensor:
        return self.model(input_ids=torch.tensor([ids]), use_cache=True, **{self.keyword: cache}).logits[0]

    def treated(self, treat: Callable[[Tensor], Tensor]) -> DynamicCache:
        cache = copy.deepcopy(self.cache)
        for layer in cache.layers:
            if hasattr(layer, "recurrent_states"):
                layer.recurrent_states[0] = treat(layer.recurrent_states[0])
        return cache

    def answer(self, following: list[int], treat: Callable[[Tensor], Tensor], stop: int, room: int) -> list[int]:
        """Greedy answer to the rest of a prompt."""
        cache, out = self.treated(treat), []
        while len(out) < room and stop not in out:
            out.append(int(self._forward(following, cache)[-1].argmax()))
            following = out[-1:]
        return out

    def losses(self, following: list[int], treat: Callable[[Tensor], Tensor]) -> Tensor:
        """Cross entropy of each token of ``following`` but the first."""
        logits = self._forward(following[:-1], self.treated(treat))
        return torch.nn.functional.cross_entropy(logits, torch.tensor(following[1:]), reduction="none")


def answers(model: PreTrainedModel, tokenizer: Any, found: list[Case]) -> dict[str, dict[str, float]]:
    """task/length -> treatment -> exact match."""
    hits: dict[str, dict[str, list[bool]]] = {}
    for case in found:
        ids = tokenizer.encode(render(case.messages[:-1], add_generation_prompt=True))
        room = len(tokenizer.encode(case.answers[0])) + 2
        reader = Reader(model, ids[:-TAIL])
        for name, treat in TREATMENTS.items():
            out = reader.answer(ids[-TAIL:], treat, tokenizer.eos_token_id, room)
            right = tokenizer.decode(out, skip_special_tokens=True).strip() == case.answers[0]
            hits.setdefault(f"{case.task}/{case.length}", {}).setdefault(name, []).append(right)
    return {task: {name: sum(some) / len(some) for name, some in row.items()} for task, row in hits.items()}


def text_losses(model: PreTrainedModel, rows: int, context: int = 512, following: int = 65) -> dict[str, float]:
    """Treatment -> mean loss on the held-out text that follows a context."""
    text = np.memmap(DATA / "tokens" / "held_out.bin", np.uint16, "r")
    sums = dict.fromkeys(TREATMENTS, 0.0)
    for start in np.linspace(0, len(text) - context - following - 1, rows).astype(int):
        ids = text[start : start + context + following].tolist()
        reader = Reader(model, ids[:context])
        for name, treat in TREATMENTS.items():
            sums[name] += reader.losses(ids[context:], treat).mean().item() / rows
    return sums


def main() -> None:
    parser = argparse.ArgumentParser(description="How much do answers depend on the recurrent state?")
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=50, help="per task and length, and rows of text")
    parser.add_argument("--lengths", type=lambda s: tuple(map(int, s.split(","))), default=(256,))
    parser.add_argument(
        "--tasks", type=lambda s: tuple(s.split(",")), default=("recall", "update", "tracking", "common")
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    tokenizer.model_max_length = 1 << 30
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    found: list[Case] = []
    for case in cases(tokenizer, 10 * options.prompts, 5, DATA, options.lengths, options.tasks):
        if sum((case.task, case.length) == (c.task, c.length) for c in found) < options.prompts:
            found.append(case)
    with torch.inference_mode():
        exact, text = answers(model, tokenizer, found), text_losses(model, options.prompts)
    report = {"prompts": options.prompts, "tail": TAIL, "exact": exact, "text": text}
    print(json.dumps(report, indent=1))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
