"""Requests that meet every path between the pools, run alike on an engine of one process and of several."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from holdover.engine.engine import Engine
from holdover.engine.request import Output
from holdover.engine.sampling import SamplingParams
from tests.arch.table import VOCAB
from tests.engine.harness import prompt_of

PROMPT, REPLY, FURTHER = 40, 6, 5
# what a finished request leaves: the state of all but its last token
LEFT = PROMPT + REPLY - 1


def conversation(engine: Engine) -> list[Output]:
    """A prompt, and its continuation, which resumes where the first one ended."""
    first = ask(engine, [prompt_of(PROMPT)])[0]
    following = (*first.prompt_token_ids, *first.token_ids[:-1], *prompt_of(FURTHER, seed=9))
    return [first, ask(engine, [following])[0]]


def pressure(engine: Engine) -> list[Output]:
    """Together, over too few slots and rows: prefixes that are shared, left, pinned and come back; one ends early."""
    outputs = []
    for turn in range(3):
        prompts = [prompt_of(24 + 8 * turn + seed, seed) for seed in range(4)]
        outputs += ask(engine, prompts)
        if turn == 1:
            namespace = engine.prepare.namespace("")
            engine.core.pin(namespace, [*outputs[-1].prompt_token_ids, *outputs[-1].token_ids[:-1]])
    for _ in engine.stream(prompt_of(30, seed=7), SamplingParams(max_tokens=8)):
        # leaving aborts it
        break
    engine.core.unpin_all()
    sampled = SamplingParams(max_tokens=REPLY, temperature=1.0, seed=3, logprobs=VOCAB)
    outputs += engine.generate([prompt_of(50, seed=2), prompt_of(20, seed=5)], sampled)
    engine.core.flush()
    outputs += ask(engine, [prompt_of(50, seed=2)])
    engine.core.check_integrity()
    return outputs


def ask(engine: Engine, prompts: list[tuple[int, ...]]) -> list[Output]:
    return engine.generate(prompts, SamplingParams(max_tokens=REPLY, logprobs=VOCAB))


def report(output: Output) -> dict[str, Any]:
    """What is compared of one answer."""
    cache = asdict(output.cache)
    found = {name: cache[name] for name in ("state_depth", "kv_depth", "tier", "lineage", "omitted", "refresh_tokens")}
    distributions = [[x for _, x in sorted(entry.top)] for entry in output.logprobs or ()]
    return {"tokens": output.token_ids, "cache": found, "logprobs": distributions}
